"""What the page says of one that is placed and waits to grow: the same as `topogate explain`."""

import io

import msgspec
import yaml
from rich.console import Console
from support.snapshots import FLAVOR, node, steady

from cli.cluster import cluster_snapshot
from cli.cluster import dump as dumps
from cli.explain import report as reports
from cli.explain.rendering import render
from cli.web.questions import ClusterQuestions
from crds.constants import Keys
from crds.names import workload_name
from crds.settings import Settings
from kube.workloads import WholeWorkload
from web.sight import EVERYTHING, Sight

NOW = 1_800_000_000.0
TRAIN = f"team/{workload_name('Job', 'train', 'uid-train')}"


class Standing:
    """A clock that stands."""

    def now(self):
        return NOW

    def monotonic(self):
        return NOW


def read(tmp_path, pods, *items):
    """A full rack with a job in it that asks for so many pods by now."""
    train = steady("train", ["r1h1", "r1h1"], 4)
    train[0]["spec"] |= {"parallelism": pods, "completions": pods}
    path = tmp_path / "c.yaml"
    nodes = [node(name, "r1") for name in ("r1h1", "r1h2")]
    path.write_text(yaml.safe_dump_all([FLAVOR, *nodes, *train, *items]))
    dump = dumps.read([str(path)])
    return dump, ClusterQuestions(lambda: (dump, ()), Settings(), Standing())


def explained(dump):
    memory = cluster_snapshot.cache_of(dump, Settings())
    owner = next(one.job for one in memory.entries.values() if one.job.name == "train")
    console = Console(file=io.StringIO(), width=400, color_system=None)
    console.print(render(reports._report(dump, memory, Keys(), None, owner, NOW)))
    return console.file.getvalue()


def test_the_page_says_of_growth_what_explain_says(tmp_path):
    dump, questions = read(tmp_path, 4, *steady("other", ["r1h2", "r1h2"], 4))
    found = questions.explain(TRAIN, EVERYTHING)["growth"]
    assert found["text"].startswith("It waits to grow by 2 pods: ")
    assert found["text"] in explained(dump)
    assert (found["pods"], [one["fits"] for one in found["room"]]) == (2, [0])
    assert [one["name"] for one in found["relief"]["enough"]] == ["job/other"]


def test_who_sees_one_namespace_alone_is_not_told_who_is_in_the_way(tmp_path):
    others = steady("other", ["r1h2", "r1h2"], 4)
    for one in others:
        one["metadata"]["namespace"] = "secret"
    _, questions = read(tmp_path, 4, *others)
    told = questions.explain(TRAIN, Sight(hosts=True, namespaces=frozenset({"team"})))
    assert told["growth"]["text"] == "It waits to grow by 2 pods: DoesNotFit"
    assert [one["name"] for one in told["growth"]["relief"]["enough"]] == ["somebody else's"]
    assert "other" not in str(told)
    bare = questions.explain(TRAIN, Sight(namespaces=frozenset({"team"})))["growth"]
    assert (bare["room"], bare["relief"]) == ([], None), "who may not list nodes sees none"


def test_one_that_has_what_it_wants_is_told_nothing(tmp_path):
    _, questions = read(tmp_path, 2, *steady("other", ["r1h2", "r1h2"], 4))
    assert questions.explain(TRAIN, EVERYTHING)["growth"] is None


def test_who_makes_room_for_growth_is_named_to_those_alone_who_may_see_them(tmp_path):
    train = steady("train", ["r1h1", "r1h1"], 4)
    train[0]["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"}
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump_all([FLAVOR, node("r1h1", "r1"), *train]))
    victim = {"kind": "Workload", "namespace": "secret", "name": "other"}
    growing = {
        "metadata": {"namespace": "team", "name": TRAIN.partition("/")[2]},
        "spec": {"queueName": "q"},
        "status": {"nomination": {"victims": [victim]}},
    }
    workloads = [msgspec.convert(growing, WholeWorkload)]
    questions = ClusterQuestions(lambda: (dumps.read([str(path)]), workloads), Settings(), Standing())
    for sight, named in ((EVERYTHING, "secret/other"), (Sight(namespaces=frozenset({"team"})), "")):
        told = questions.explain(TRAIN, sight)
        assert [one["workload"] for one in told["queue"]["victims"]] == [named]
        assert ("secret" in str(told)) is bool(named)

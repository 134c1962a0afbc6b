"""What `topogate explain` says of one that is placed and waits to grow: for the difference, where that may go."""

import io

import yaml
from rich.console import Console
from support.snapshots import FLAVOR, RACK, node, steady

from cli.cluster import cluster_snapshot
from cli.cluster import dump as dumps
from cli.explain import report as reports
from cli.explain.rendering import render
from crds.constants import Keys
from crds.settings import Settings

HIGH = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 5}
NODES = [node(f"r{rack}h{host}", f"r{rack}") for rack in (1, 2) for host in (1, 2)]


def urgent(name, where, gpus):
    """One of a higher priority."""
    items = steady(name, where, gpus, priority=5)
    items[0]["spec"]["template"]["spec"]["priorityClassName"] = "high"
    return items


def grown(items, pods):
    """The same with a job that asks for so many by now."""
    items[0]["spec"] |= {"parallelism": pods, "completions": pods}
    return items


def explained(tmp_path, *items):
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump_all([FLAVOR, HIGH, *NODES, *items]))
    dump, keys = dumps.read([str(path)]), Keys()
    memory = cluster_snapshot.cache_of(dump, Settings())
    owner = next(one.job for one in memory.entries.values() if one.job.name == "train")
    found = reports._report(dump, memory, keys, None, owner, 1_800_000_000.0)
    console = Console(file=io.StringIO(), width=160, color_system=None)
    console.print(render(found))
    return found, console.file.getvalue()


def test_one_that_waits_to_grow_is_told_what_the_difference_would_take(tmp_path):
    train = grown(steady("train", ["r1h1", "r1h1"], 4), 4)
    small, large = steady("small", ["r1h2"], 4), urgent("large", ["r1h2"], 4)
    found, text = explained(tmp_path, *train, *small, *large)
    assert found.state == "Placed"
    growth = found.growth
    assert (growth.pods, growth.reason) == (2, "DoesNotFit")
    assert [(one.values, one.fits) for one in growth.room] == [(("r1",), 0)], "it requires the rack that it is in"
    assert sorted(one.name for one in growth.relief.enough) == ["job/large", "job/small"]
    assert (growth.relief.count, growth.relief.enough_in) == (2, ("r1",))
    assert "a job without a queue evicts nobody" in growth.relief.preemption
    assert "It waits to grow by 2 pods: " in text
    assert "WOULD HAVE TO GO" in text


def test_only_what_is_lacking_would_have_to_go(tmp_path):
    train = grown(steady("train", ["r1h1", "r1h1"], 4), 3)
    found, _ = explained(tmp_path, *train, *steady("small", ["r1h2"], 4), *urgent("large", ["r1h2"], 4))
    assert [one.name for one in found.growth.relief.enough] == ["job/small"], "for one pod, not for three"


def test_one_that_prefers_its_rack_has_all_of_them(tmp_path):
    train = grown(steady("train", ["r1h1", "r1h1"], 4), 4)
    train[0]["metadata"]["annotations"] = {"kueue.x-k8s.io/podset-preferred-topology": RACK}
    others = [one for host in ("r1h2", "r2h1", "r2h2") for one in steady(f"o-{host}", [host], 8)]
    found, _ = explained(tmp_path, *train, *others)
    assert {one.values for one in found.growth.room} == {("r1",), ("r2",)}
    assert len(found.growth.relief.enough) == 1


def test_one_that_has_what_it_wants_or_would_get_it_now_is_told_nothing(tmp_path):
    for pods in (2, 4):
        found, text = explained(tmp_path, *grown(steady("train", ["r1h1", "r1h1"], 4), pods))
        assert (found.state, found.growth) == ("Placed", None)
        assert "waits to grow" not in text

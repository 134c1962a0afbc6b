"""Which owner ``topogate explain`` is asked about."""

import msgspec
import pytest
from support.owned import KEYS, make_job
from support.world import World

from cli.cluster.owner_names import one_owner, parse_owner
from cli.explain.owners import find, owners_elsewhere
from cli.output import Failure
from kube.objects import Pod


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("train", ("", "train")),
        ("job/train", ("job", "train")),
        ("jobs.batch/train", ("job", "train")),
        ("JobSet/train", ("jobset", "train")),
        ("sts/db", ("statefulset", "db")),
        ("statefulsets.apps/db", ("statefulset", "db")),
        ("lws/serve-0", ("leaderworkerset", "serve-0")),
    ],
)
def test_names(text, what):
    assert parse_owner(text) == what


@pytest.mark.parametrize("text", ["", "/", "jobset/", "/train", "ns/jobset/train"])
def test_what_is_no_name_is_refused(text):
    with pytest.raises(Failure, match="expected NAME of a Job, or KIND/NAME"):
        parse_owner(text)


def pod(name, owner="", kind="", *, labels=None, annotations=None):
    made = {
        "apiVersion": "ray.io/v1" if kind.startswith("Ray") else "apps/v1",
        "kind": kind,
        "name": owner,
        "uid": f"u-{owner}",
    }
    body = {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": f"u-{name}",
            "labels": labels or {},
            "annotations": {KEYS.required[0]: "rack", **(annotations or {})},
            "ownerReferences": [{**made, "controller": True}] if kind else [],
        },
        "spec": {"schedulingGates": [{"name": KEYS.gate}], "containers": [{"name": "c"}]},
    }
    return msgspec.json.decode(msgspec.json.encode(body), type=Pod)


@pytest.fixture
def memory():
    world = World()
    world.put("job", make_job("train"))
    for name, owner, kind in (
        ("web-7d-a", "web-7d", "ReplicaSet"),
        ("web-9f-a", "web-9f", "ReplicaSet"),
        ("web-other-9f-a", "web-other-9f", "ReplicaSet"),
        ("db-0", "db", "StatefulSet"),
        ("p-0", "p", "PyTorchJob"),
    ):
        world.put("pod", pod(name, owner, kind))
    for role in ("head", "workers"):
        world.put("pod", pod(f"r-{role}", "job-x7k2p", "RayCluster", labels={"ray.io/group": role}))
    world.put("pod", pod("ring-0", labels={KEYS.pod_group: "ring"}, annotations={KEYS.pod_group_total: "1"}))
    world.put("pod", pod("alone"))
    return world.memory


@pytest.mark.parametrize(
    ("text", "owners"),
    [
        ("train", ["train"]),
        ("job/train", ["train"]),
        ("deploy/web", ["web-7d", "web-9f"]),
        ("rs/web-7d", ["web-7d"]),
        ("deployment/web-other", ["web-other-9f"]),
        ("statefulsets/db", ["db"]),
        ("pytorchjob/p", ["p"]),
        ("raycluster/job-x7k2p", ["job-x7k2p-head", "job-x7k2p-workers"]),
        ("raycluster/job-x7k2p-head", ["job-x7k2p-head"]),
        ("rayjob/job", ["job-x7k2p-head", "job-x7k2p-workers"]),
        ("podgroup/ring", ["ring"]),
        ("pod/alone", ["alone"]),
        ("pod/db-0", ["db"]),
        ("db", ["db"]),
        ("statefulset/train", []),
        ("nothing", []),
    ],
)
def test_all_workloads_of_an_owner_are_found_by_its_name(memory, text, owners):
    assert [record.job.full_name for record in find(memory, "ns", *parse_owner(text))] == owners


@pytest.mark.parametrize(
    ("text", "there"),
    [
        ("train", "Job train in ns (-n ns)"),
        ("deploy/web", "ReplicaSet web-7d in ns (-n ns) and ReplicaSet web-9f in ns (-n ns)"),
        ("jobset/train", ""),
        ("nothing", ""),
    ],
)
def test_in_the_wrong_namespace_the_right_one_is_told(memory, text, there):
    assert owners_elsewhere(memory, "other", *parse_owner(text)) == there
    assert not owners_elsewhere(memory, "ns", *parse_owner(text))


def test_a_workload_is_found_by_its_own_name(memory):
    (record,) = find(memory, "ns", "", "db")
    assert find(memory, "ns", *parse_owner(f"wl/{record.job.workload}")) == [record]
    assert find(memory, "ns", *parse_owner(record.job.workload)) == [record], "as `kubectl get workloads` prints it"


def test_kind_and_name_may_be_two_words_as_for_kubectl():
    assert parse_owner(one_owner(["job", "train"])) == parse_owner(one_owner(["job/train"])) == ("job", "train")
    for words in (["job/train", "b"], ["a", "b", "c"]):
        with pytest.raises(Failure, match="expected one owner"):
            one_owner(words)


def test_a_name_that_several_have_is_asked_about(memory):
    world_job = make_job("db")
    memory.jobs.set_job(world_job)
    with pytest.raises(Failure, match="which of them: job/db, statefulset/db"):
        find(memory, "ns", "", "db")
    assert len(find(memory, "ns", "statefulset", "db")) == 1

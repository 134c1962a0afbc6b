"""What is kept of objects as large as the API server takes them, of every kind that tenants write."""

import tracemalloc

import msgspec
import pytest
from support.owned import KEYS

from crds.constants import ADMITTED_QUOTA
from kube.budgets import PodDisruptionBudget
from kube.kept import FREE, LONG, MOST, KeptParts, cut, parts_of
from kube.objects import Job, Node, Pod, PodGroup, key
from kube.parents import ControllerRevision, JobSet, LeaderWorkerSet
from kube.pods.devices import ResourceClaim, ResourceClaimTemplate
from kube.queues import LocalQueue
from kube.replicas import ReplicatedObject
from kube.volumes.objects import PersistentVolumeClaim

MIB = 1 << 20
LARGEST = 1_400_000  # bytes of JSON: etcd takes 1.5 MB, some of which the API server writes
MANY = {"matchExpressions": [{"key": "a", "operator": "In", "values": ["aa"] * 220_000}]}
TERMS = {"matchExpressions": [{"key": f"k{i}", "operator": "Exists"} for i in range(30_000)]}
LABELS = {"matchLabels": {f"k{i}": "v" for i in range(90_000)}}
GATED = {"schedulingGates": [{"name": KEYS.gate}]}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ZEROS = {f"a.b/r{i}": "0" for i in range(60_000)}


def spread_over(selector):
    return {"affinity": {"podAntiAffinity": {REQUIRED: [{"labelSelector": selector, "topologyKey": "zone"}]}}}


def containers(requests):
    return {"containers": [{"name": "c", "resources": {"requests": {**requests, "nvidia.com/gpu": "8"}}}]}


METADATA = {
    "labels": {"labels": {f"a{i}": "" for i in range(100_000)}},
    "annotations": {"annotations": {f"a{i}": "" for i in range(60_000)}},
    "owners": {"ownerReferences": [{"kind": "K", "name": "n", "uid": str(i)} for i in range(30_000)]},
    "a long owner": {"ownerReferences": [{"kind": "K", "name": "n", "uid": "u" * LARGEST, "controller": True}]},
    "finalizers": {"finalizers": [f"a/{i}" for i in range(100_000)]},
}
SPECS = [
    *[(PodDisruptionBudget, {"selector": one}) for one in (MANY, TERMS, LABELS)],
    *[(PersistentVolumeClaim, {"selector": one}) for one in (MANY, TERMS, LABELS)],
    (PersistentVolumeClaim, {"accessModes": ["ReadWriteOnce"] * 80_000}),
    (PersistentVolumeClaim, {"resources": {"requests": ZEROS}}),
    *[(Pod, {**GATED, **spread_over(one)}) for one in (MANY, TERMS, LABELS)],
    (Pod, containers(ZEROS)),
    (Pod, {"tolerations": [{"key": f"k{i}", "operator": "Exists"} for i in range(30_000)]}),
    (Pod, {"nodeSelector": {f"k{i}": "v" for i in range(90_000)}}),
    (Pod, {"volumes": [{"name": f"v{i}", "persistentVolumeClaim": {"claimName": "c"}} for i in range(20_000)]}),
    (Pod, {"containers": [{"name": "c", "ports": [{"hostPort": i, "containerPort": i} for i in range(30_000)]}]}),
    (Job, {"template": {"spec": spread_over(MANY)}}),
    (JobSet, {"replicatedJobs": [{"name": "r", "template": {"spec": {"template": {"spec": spread_over(MANY)}}}}]}),
    (LeaderWorkerSet, {"leaderWorkerTemplate": {"size": 2, "workerTemplate": {"spec": spread_over(MANY)}}}),
    (ReplicatedObject, {"tfReplicaSpecs": {"Worker": {"template": {"spec": spread_over(MANY)}}}}),
]
KINDS = (Job, PodGroup, ControllerRevision, ResourceClaim, ResourceClaimTemplate, LocalQueue)
FLOODS = (
    [(Pod, meta, {}) for meta in METADATA.values()]
    + [(kind, METADATA["annotations"], {}) for kind in KINDS]
    + [(kind, {}, spec) for kind, spec in SPECS]
)


def made(kind, name, meta=None, spec=None, namespace="ns"):
    """An object, and the bytes that it came in."""
    body = {"metadata": {"name": name, "namespace": namespace, **(meta or {})}, **({"spec": spec} if spec else {})}
    raw = msgspec.json.encode(body)
    return msgspec.json.decode(raw, type=kind), raw


@pytest.mark.parametrize(("kind", "meta", "spec"), FLOODS)
def test_many_of_the_largest_objects_of_a_namespace_take_little(kind, meta, spec):
    kept, found = KeptParts(kind.__name__, KEYS.read), []
    tracemalloc.start()
    try:
        found.extend(kept.as_kept(*made(kind, f"o{number}", meta, spec)) for number in range(3))
        memory, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert memory < 20 * MIB, "of 30 to 60 without limits"
    assert peak - memory < 64 * MIB, "one is decoded at a time"
    assert sum(parts_of(one) for one in found) <= MOST + 3 * FREE
    assert any(one.metadata.cut for one in found) or all(parts_of(one) <= MOST // 3 + FREE for one in found)


def ordinary(name, namespace="ns"):
    return made(Pod, name, {"labels": {"app": "x"}, "annotations": {"a": "b"}}, {"nodeName": "n1"}, namespace)


def test_an_ordinary_object_is_kept_as_it_came_whatever_else_its_namespace_has():
    kept = KeptParts("Pod", KEYS.read)
    for number in range(3):
        kept.as_kept(*made(Pod, f"large{number}", {}, {**GATED, **spread_over(MANY)}))
    pod, raw = ordinary("small")
    assert kept.as_kept(pod, raw) is pod


def test_a_large_object_of_another_namespace_or_of_none_is_kept_as_it_came():
    kept = KeptParts("Pod", KEYS.read, most=1000)
    kept.as_kept(*made(Pod, "evil", {}, spread_over(MANY)))
    large = {"tolerations": [{"key": f"k{i}"} for i in range(600)]}
    pod, raw = made(Pod, "honest", {}, large, "other")
    assert kept.as_kept(pod, raw) is pod
    node, raw = made(Node, "node", METADATA["annotations"], namespace="")
    assert kept.as_kept(node, raw) is node


def test_what_a_namespace_may_keep_comes_back_when_objects_shrink_or_go():
    kept, large = KeptParts("Pod", KEYS.read, most=1000), {"tolerations": [{"key": f"k{i}"} for i in range(1100)]}

    def is_cut(name, spec=large):
        return kept.as_kept(*made(Pod, name, {}, spec)).metadata.cut

    assert not is_cut("a")
    assert is_cut("b")
    assert not is_cut("a"), "the same again counts once"
    kept.forget_object("ns/a")
    assert not is_cut("b")
    assert is_cut("a")
    assert not is_cut("b", {})
    assert not is_cut("a")


def test_a_cut_pod_keeps_by_what_it_is_charged_and_whose_it_is():
    """Its owner may have written any number of keys before those that count."""
    ours = {KEYS.workload: "job-x", KEYS.pod_set: "main", ADMITTED_QUOTA: "{}", KEYS.queue_name: "team"}
    meta = {
        "labels": {**METADATA["labels"]["labels"], KEYS.queue_name: "team"},
        "annotations": {**METADATA["annotations"]["annotations"], **ours},
        "ownerReferences": [
            *METADATA["owners"]["ownerReferences"],
            {"kind": "Job", "name": "x", "uid": "u", "controller": True},
        ],
    }
    pod = cut(made(Pod, "p", meta, {"nodeName": "n1", **GATED, **containers(ZEROS), **spread_over(MANY)})[0], KEYS.read)
    assert parts_of(pod) <= FREE
    assert ours.items() <= pod.metadata.annotations.items()
    assert pod.metadata.labels[KEYS.queue_name] == "team"
    assert [one.uid for one in pod.metadata.owner_references if one.controller] == ["u"]
    assert pod.spec.node_name == "n1"
    assert pod.spec.containers[0].resources.requests == {"nvidia.com/gpu": "8"}
    assert key(pod) == "ns/p"


def test_two_owners_of_long_ids_stay_two():
    two = [
        cut(made(Pod, "p", {"ownerReferences": [{"uid": "u" * LARGEST + end, "controller": True}]})[0]) for end in "ab"
    ]
    ids = [one.metadata.owner_references[0].uid for one in two]
    assert ids[0] != ids[1]
    assert max(map(len, ids)) <= LONG


def test_the_selector_of_a_bound_claim_is_not_kept():
    claim, _ = made(PersistentVolumeClaim, "c", {}, {"selector": MANY, "volumeName": "v"})
    assert claim.spec.selector is None

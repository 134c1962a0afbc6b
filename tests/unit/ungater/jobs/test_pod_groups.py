"""Pods that no Job owns, seen as owners."""

import re

import msgspec
import pytest
from support.owned import KEYS, make_job, make_known, slot_map
from support.world import FLAVOR, NODES, World, stored_workload

from crds.constants import NUMA_POLICY, WORKER_INDEX
from crds.request import RequestError
from engine.reasons import Reason
from kube.objects import Condition, ObjectMeta, Pod, key
from kube.parents import LeaderWorkerSet, LeaderWorkerSetSpec, LeaderWorkerTemplate
from kube.workloads import PodSetCount, WorkloadObject
from queueing.cycle.cycle import cycle
from ungater.cache.pods import READY_AFTER
from ungater.jobs import leaderworkerset
from ungater.jobs.job import MOST_POD_SETS
from ungater.jobs.pod_group import GONE, GROUP, kind_as_stored, of_pods, owner_key, owner_of_pods, served
from ungater.model.actions import Delete, Dequeue, FreeCapacity, Remove, RequeueAfter, Shorten
from ungater.model.admission import write_admission
from ungater.model.job_view import id_of
from ungater.model.pod_slots import rank_of
from ungater.model.workload_entry import LastEvent
from ungater.model.workload_spec import belongs, new_workload
from ungater.model.workload_status import observed_of
from ungater.reconcile import missing_pods
from ungater.reconcile.context import MissingPods
from ungater.reconcile.reconcile import reconcile

STATEFUL_SET = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "u-db", "controller": True}
JOB = {**STATEFUL_SET, "apiVersion": "batch/v1", "kind": "Job"}
GATE = [{"name": KEYS.gate}]


def make_pod(name="p", *, owner=None, labels=None, annotations=None, phase="Pending", spec=None, cpu="1", **meta):
    containers = [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]
    body = {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": f"u-{name}",
            "labels": labels or {},
            "annotations": {KEYS.required[0]: "rack", **(annotations or {})},
            "ownerReferences": [owner] if owner else [],
            "creationTimestamp": f"2026-11-21T00:00:0{len(name) % 10}Z",
            **meta,
        },
        "spec": {"schedulingGates": GATE, "containers": containers, **(spec or {})},
        "status": {"phase": phase},
    }
    return msgspec.json.decode(msgspec.json.encode(body), type=Pod)


def grouped(name, total=None, index=None, **more):
    labels = {KEYS.pod_group: "ring"} | (
        {f"{KEYS.domain}/pod-group-pod-index": str(index)} if index is not None else {}
    )
    return make_pod(name, labels=labels, annotations={} if total is None else {KEYS.pod_group_total: total}, **more)


def owner_of(*pods, before=None):
    return owner_of_pods(owner_key(pods[0], KEYS), pods, KEYS, before)


@pytest.mark.parametrize(
    ("pod", "key"),
    [
        (make_pod("p"), "ns/u-p"),
        (make_pod("p", owner=STATEFUL_SET), "ns/u-db@StatefulSet.apps"),
        (make_pod("p", owner={**STATEFUL_SET, "controller": False}), "ns/u-p"),
        (grouped("p"), ":group/ns/ring"),
        (grouped("p", owner=STATEFUL_SET), ":group/ns/ring"),
        (grouped("p", owner=JOB), "ns/u-db"),
        (grouped("p", owner={**JOB, "apiVersion": "made.up/v1"}), ":group/ns/ring"),
        # The annotation counts before the label (Kueue 0.19.2, GetPodGroupName in pkg/util/pod/pod.go).
        (make_pod("p", annotations={KEYS.pod_group: "a.b"}), ":group/ns/a.b"),
        (make_pod("p", labels={KEYS.pod_group: "ring"}, annotations={KEYS.pod_group: "other"}), ":group/ns/other"),
        (make_pod("p", labels={KEYS.pod_group: "ring"}, annotations={KEYS.pod_group: ""}), ":group/ns/ring"),
        (make_pod("p", owner=JOB, annotations={KEYS.pod_group: "ring"}), "ns/u-db"),
        # No id of another owner can be written so: a name that no object can have names no group.
        (make_pod("p", annotations={KEYS.pod_group: "../other-ns/x"}), "ns/u-p"),
        (make_pod("p", labels={KEYS.pod_group: "ring"}, annotations={KEYS.pod_group: "a/b"}), ":group/ns/ring"),
    ],
)
def test_whose_a_pod_is(pod, key):
    assert owner_key(pod, KEYS) == key


def test_which_pods_are_served():
    assert served(make_pod(), KEYS)
    assert served(make_pod(owner=STATEFUL_SET), KEYS)
    assert not served(make_pod(owner=JOB), KEYS)
    assert served(make_pod(owner={**JOB, "apiVersion": "made.up/v1"}), KEYS), "anybody may call an owner so"
    assert not served(make_pod(owner={**STATEFUL_SET, "kind": "DaemonSet"}), KEYS)
    let_go = make_pod(spec={"schedulingGates": []})
    assert not served(let_go, KEYS)
    assert served(make_pod(spec={"schedulingGates": []}, annotations={KEYS.workload: "w"}), KEYS)


@pytest.mark.parametrize(
    ("labels", "rank"),
    [
        ({"batch.kubernetes.io/job-completion-index": "3"}, 3),
        ({"apps.kubernetes.io/pod-index": "2"}, 2),
        ({"apps.kubernetes.io/pod-index": "2", "leaderworkerset.sigs.k8s.io/worker-index": "5"}, 5),
        ({"training.kubeflow.org/replica-index": "1"}, 1),
        ({"topogate.dev/pod-group-pod-index": "7"}, 7),
        ({"apps.kubernetes.io/pod-index": "-1"}, None),
        ({}, None),
    ],
)
def test_where_ranks_are_read(labels, rank):
    assert rank_of(make_pod(labels=labels)) == rank


def test_pods_of_a_controller_count_as_they_are():
    pods = [make_pod(f"db-{i}", owner=STATEFUL_SET, labels={"apps.kubernetes.io/pod-index": str(i)}) for i in (1, 2)]
    owner = owner_of(*pods)
    assert (owner.kind, owner.name, owner.uid, owner.workload[:15]) == ("StatefulSet", "db", "u-db", "statefulset-db-")
    (pod_set,) = owner.pod_sets
    assert (pod_set.count, pod_set.full, owner.request.level) == (2, 2, "rack")
    assert [pod_set.position(rank) for rank in (1, 2)] == [0, 1]  # a LeaderWorkerSet's workers begin at 1
    (reference,) = new_workload(owner, 0)["metadata"]["ownerReferences"]
    assert (reference["uid"], reference["controller"], reference["blockOwnerDeletion"]) == ("u-db", True, False)


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (make_pod("p", owner=STATEFUL_SET), True),
        (make_pod("p", owner={**STATEFUL_SET, "kind": "ReplicaSet"}), True),
        (make_pod("p", owner={**STATEFUL_SET, "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob"}), False),
        (make_pod("p", owner={**STATEFUL_SET, "apiVersion": "made.up/v1"}), False),
        (make_pod("p", owner=STATEFUL_SET, annotations={KEYS.pod_group_total: "4"}), False),
        (grouped("p", "4"), False),
        (grouped("p"), False),
        (make_pod("p"), False),
    ],
)
def test_of_which_owners_each_pod_more_is_of_use_by_itself(pod, expected):
    assert owner_of(pod).one_by_one == expected


def test_a_group_tells_how_many_it_will_be():
    owner = owner_of(grouped("a", "4", 2), grouped("b", "4", 0))
    (pod_set,) = owner.pod_sets
    assert (owner.kind, owner.name, pod_set.count, pod_set.full) == (GROUP, "ring", 4, 4)
    later = owner_of(grouped("c", "4", 3)).pod_sets[0]
    assert [later.position(rank) for rank in (0, 3)] == [0, 3]
    body = new_workload(owner, 0)
    assert [reference["name"] for reference in body["metadata"]["ownerReferences"]] == ["a", "b"]
    assert not any(reference.get("controller") for reference in body["metadata"]["ownerReferences"])
    done = [grouped(name, "2", phase="Succeeded") for name in "ab"]
    assert owner_of(*done).over == "Complete"
    assert owner_of(done[0], grouped("b", "2")).pod_sets[0].count == 1


@pytest.mark.parametrize("total", ["0", "-2", "many", "1.5", "", "9" * 40])
def test_a_total_that_is_none_is_refused(total):
    request = owner_of(grouped("a", total)).request
    assert isinstance(request, RequestError)
    assert request.reason is Reason.INVALID_REQUEST
    assert f"metadata.annotations[{KEYS.pod_group_total}]" in str(request)


def test_pods_of_one_workload_are_alike():
    assert not isinstance(owner_of(grouped("a"), grouped("b")).request, RequestError)
    for odd in (grouped("b", cpu="2"), grouped("b", spec={"overhead": {"cpu": "1"}})):
        request = owner_of(grouped("a"), odd).request
        assert isinstance(request, RequestError)
        assert "pods a and b are one workload and differ" in str(request)


def test_pods_of_one_workload_may_be_resized_where_they_run():
    """Else nobody would answer for a group that runs, once its Workload is gone (Kubernetes 1.35 resizes in place)."""
    runs = [grouped(name, cpu=cpu, spec={"schedulingGates": []}) for name, cpu in (("a", "1"), ("b", "2"))]
    assert owner_of(*runs).wrong is None
    assert "pods c and d" in str(owner_of(*runs, grouped("c"), grouped("d", cpu="3")).wrong)


@pytest.mark.parametrize("make", [make_pod, grouped])
def test_pods_that_ask_for_what_is_no_request_are_refused(make):
    pod = make("a", phase="Pending")
    pod = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, annotations={NUMA_POLICY: "4"}))
    owner = owner_of(pod)
    assert f"metadata.annotations[{NUMA_POLICY}]" in str(owner.wrong)
    assert [(one.count, one.request) for one in owner.pod_sets] == [(1, None)]


def test_pods_may_have_a_queue():
    owner = owner_of(make_pod(labels={KEYS.queue_name: "team", KEYS.priority_class: "high"}))
    assert (owner.queue, owner.workload_class, owner.suspendable) == ("team", "high", False)
    wrong = owner_of(grouped("a"), make_pod("b", labels={KEYS.pod_group: "ring", KEYS.queue_name: "x"})).wrong
    assert wrong is None
    both = [make_pod(name, labels={KEYS.pod_group: "ring", KEYS.queue_name: name}) for name in ("a", "b")]
    assert "name queues a and b" in str(owner_of(*both).wrong)


TORCH = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "bert", "uid": "u-bert", "controller": True}


def replica(role, index, total=None, **more):
    labels = {"training.kubeflow.org/replica-type": role, "training.kubeflow.org/replica-index": str(index)}
    annotations = {} if total is None else {KEYS.pod_group_total: str(total)}
    return make_pod(f"{role}-{index}", owner=TORCH, labels=labels, annotations=annotations, **more)


def test_kinds_of_pods_of_one_controller_are_pod_sets_where_their_number_is_known():
    pods = [replica("master", 0, 3, cpu="4"), replica("worker", 0, 3), replica("worker", 1, 3)]
    assert {owner_key(pod, KEYS) for pod in pods} == {"ns/u-bert@PyTorchJob.kubeflow.org"}
    waits = owner_of(*pods[:2])
    assert waits.wrong.reason is Reason.PENDING
    assert "2 of 3 pods are there" in str(waits.wrong)
    owner = owner_of(*pods, before=waits)
    assert owner.wrong is None
    assert [(one.name, one.count) for one in owner.pod_sets] == [("master", 1), ("worker", 2)]
    assert [owner.pod_set_of(pod).name for pod in pods] == ["master", "worker", "worker"]
    again = owner_of(*pods[1:], before=owner)
    assert [(one.name, one.count) for one in again.pod_sets] == [("master", 1), ("worker", 2)], "it stays so"


def test_else_each_kind_is_a_workload_by_itself():
    pods = [replica("Master", 0), replica("Worker", 0)]
    assert [owner_key(pod, KEYS) for pod in pods] == [
        "ns/u-bert@PyTorchJob.kubeflow.org/master",
        "ns/u-bert@PyTorchJob.kubeflow.org/worker",
    ]
    owner = owner_of(pods[1])
    assert (owner.id, owner.uid, owner.part) == ("ns/u-bert@PyTorchJob.kubeflow.org/worker", "u-bert", "worker")
    assert owner.workload.startswith("pytorchjob-bert-worker-")
    (reference,) = new_workload(owner, 0)["metadata"]["ownerReferences"]
    assert reference["uid"] == "u-bert"
    head = {**TORCH, "apiVersion": "ray.io/v1", "kind": "RayCluster", "uid": "u-ray"}
    assert owner_key(make_pod("h", owner=head, labels={"ray.io/group": "headgroup"}), KEYS) == (
        "ns/u-ray@RayCluster.ray.io/headgroup"
    )


def test_pods_of_a_group_that_differ_say_so():
    pods = [
        make_pod(
            name,
            labels={KEYS.pod_group: "ring"},
            annotations={KEYS.pod_group_total: "2", KEYS.role_hash: name},
            cpu=cpu,
        )
        for name, cpu in (("driver", "1"), ("executor", "2"))
    ]
    assert [one.name for one in owner_of(*pods).pod_sets] == ["driver", "executor"]


def test_a_kind_whose_pods_were_all_let_go_for_another_workload_is_no_pod_set():
    def member(name, **annotations):
        told = {KEYS.pod_group_total: "2", KEYS.role_hash: name, **annotations}
        return make_pod(name, labels={KEYS.pod_group: "ring"}, annotations=told, spec={"schedulingGates": []})

    waits = member("driver")
    other = member("executor", **{KEYS.workload: "podgroup-another"})
    assert [one.name for one in owner_of(waits, other).pod_sets] == ["driver"]


def test_a_pod_that_contradicts_itself_says_so(world):
    pod = make_pod("p", annotations={KEYS.preferred[0]: "block"})
    world.put("pod", pod)
    (record,) = world.memory.entries.values()
    assert isinstance(record.job.request, RequestError)
    assert "keep one of the two" in str(record.job.request)


def test_the_template_of_pods_that_are_gone_tells_nothing_of_others():
    """Else what is held would be more before a restart than after it."""
    large = {"schedulingGates": [], "containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]}
    small = {"schedulingGates": [], "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
    before = owner_of(make_pod("a", owner=STATEFUL_SET, spec=large))
    (pod_set,) = owner_of(make_pod("b", owner=STATEFUL_SET, spec=small), before=before).pod_sets
    assert pod_set.template.spec.containers[0].resources.requests == {"cpu": "1"}
    both = [make_pod(name, owner=STATEFUL_SET, spec=spec) for name, spec in (("a", large), ("b", small))]
    assert owner_of(*both, before=before).pod_sets[0].template == before.pod_sets[0].template


@pytest.mark.parametrize("names", ["ab", "ba"])
@pytest.mark.parametrize("known", [True, False])
def test_pods_that_have_ended_do_not_tell_what_those_that_run_take(names, known):
    """A pod of a group runs on with less, and its quota goes back: by a controller that has just started as well."""
    before = owner_of(grouped("a", "2", cpu="2"), grouped("b", "2", cpu="2"))
    done = grouped(names[0], "2", cpu="2", phase="Succeeded", spec={"schedulingGates": []})
    runs = grouped(names[1], "2", cpu="1", spec={"schedulingGates": []})
    pods = sorted((done, runs), key=lambda pod: pod.metadata.name)
    (pod_set,) = owner_of(*pods, before=before if known else None).pod_sets
    assert pod_set.template.spec.containers[0].resources.requests == {"cpu": "1"}


def test_what_letting_a_pod_go_added_is_no_part_of_the_template():
    waits = make_pod("p", owner=STATEFUL_SET, spec={"nodeSelector": {"disk": "ssd"}})
    before = owner_of(waits)
    required = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]}
    added = {
        "schedulingGates": [],
        "nodeName": "n1",
        "nodeSelector": {"disk": "ssd", "rack": "r1"},
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
    }
    gone = make_pod("p", owner=STATEFUL_SET, annotations={KEYS.workload: before.workload}, spec=added)
    assert owner_of(gone, before=before).pod_sets == before.pod_sets
    template = owner_of(gone).pod_sets[0].template
    assert (template.spec.node_selector, template.spec.node_name) == (None, "")
    assert template.spec.affinity.node_affinity is None
    assert KEYS.workload not in template.metadata.annotations


def test_the_workload_of_a_group_is_of_pods_that_are_there():
    first, second, third = (grouped(name, "2") for name in ("g-0", "g-1", "g-2"))
    before = owner_of(first, second)
    assert [name for name, _ in before.members] == ["g-0", "g-1"]
    assert [name for name, _ in owner_of(second, third, before=before).members] == ["g-1", "g-2"]
    assert [name for name, _ in owner_of(third, before=before).members] == ["g-2"]  # else it is collected at once
    many = [grouped(f"g-{number}", "40") for number in range(40)]
    assert len(owner_of(*many).members) == 16, "as many as are enough"


def test_the_end_of_pods():
    assert owner_of(make_pod(phase="Succeeded")).over == "Complete"
    assert owner_of(make_pod(phase="Failed")).over == "Failed"
    assert owner_of(make_pod(owner=STATEFUL_SET, phase="Failed")).over == GONE  # its controller may make another
    assert owner_of(grouped("a", "2", phase="Failed")).over == ""
    before = owner_of(make_pod())
    gone = owner_of_pods("u-p", (), KEYS, before)
    assert (gone.over, gone.workload) == (GONE, before.workload)


def test_whose_a_workload_is():
    for owner in (owner_of(make_pod(owner=STATEFUL_SET)), owner_of(grouped("a")), owner_of(make_pod())):
        found = msgspec.convert(new_workload(owner, 0)["metadata"] | {"uid": "w"}, type=type(make_pod().metadata))
        workload = msgspec.structs.replace(make_pod(), metadata=found)
        assert belongs(workload, owner)
        assert of_pods(found)
        other = msgspec.structs.replace(
            workload, metadata=msgspec.structs.replace(found, name="x", owner_references=())
        )
        assert not belongs(other, owner)
        assert not of_pods(other.metadata)


# -- in the controller's memory -------------------------------------------------------------------------------


@pytest.fixture
def world():
    made = World()
    made.put("flavor", FLAVOR)
    for node in NODES:
        made.put("node", node)
    return made


def test_that_a_pod_became_ready_is_looked_at_though_no_slot_changes(world):
    pod = make_pod("db-0", owner=STATEFUL_SET)
    world.put("pod", pod)
    waits = world.waits
    waits.clear()
    for status in ("False", "True", "True"):
        ready = msgspec.structs.replace(pod.status, conditions=(Condition(type="Ready", status=status),))
        world.put("pod", msgspec.structs.replace(pod, status=ready))
    assert waits == [("ns/u-db@StatefulSet.apps", READY_AFTER)]


def ranked(name, rank, **more):
    return make_pod(name, owner=STATEFUL_SET, labels={"apps.kubernetes.io/pod-index": str(rank)}, **more)


def test_the_first_pod_of_an_owner_makes_a_record_and_the_last_one_takes_it_along(world):
    pods = [ranked(f"db-{rank}", rank) for rank in range(2)]
    waits = world.waits
    waits.clear()
    for pod in pods:
        world.put("pod", pod)
    assert set(waits) == {("ns/u-db@StatefulSet.apps", 1.0)}  # nobody told how many will come
    record = world.memory.entries["ns/u-db@StatefulSet.apps"]
    assert world.memory.pod_groups.regroup(record)
    assert record.job.pod_sets[0].count == 2
    assert not world.memory.gated_orphans.pods
    for pod in pods:
        world.drop("pod", pod)
    assert not world.memory.pod_groups.regroup(record)
    assert (world.memory.entries, world.memory.entries.groups) == ({}, {})


def test_a_workload_stays_known_until_it_is_deleted(world):
    pod = ranked("db-0", 0)
    world.put("pod", pod)
    record = world.memory.entries["ns/u-db@StatefulSet.apps"]
    body = new_workload(record.job, 0) | {"status": {}}
    body["metadata"] |= {"uid": "w", "resourceVersion": "1"}
    workload = msgspec.json.decode(msgspec.json.encode(body), type=WorkloadObject)
    world.put("workload", workload)
    assert record.observed is not None
    world.drop("pod", pod)
    assert world.memory.pod_groups.regroup(record)
    assert record.job.over == GONE
    assert [type(one) for one in reconcile(record, world.memory.rules, 0.0)] == [
        Dequeue,
        Remove,
        FreeCapacity,
    ], "what is stored may find pods again, so nobody gets it before"
    world.drop("workload", workload)
    assert not world.memory.pod_groups.regroup(record)


def stored_for(record, **status):
    body = new_workload(record.job, 0) | {"status": status}
    body["metadata"] |= {"uid": "w", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return msgspec.json.decode(msgspec.json.encode(body), type=WorkloadObject)


def test_pods_wait_until_a_workload_is_removed_whose_pods_all_went_unseen(world):
    """Its slots may be somebody else's by now; pods that came again would be let go to them."""
    first, second = ranked("db-0", 0), ranked("db-1", 1)
    world.put("pod", first)
    workload = stored_for(world.memory.entries["ns/u-db@StatefulSet.apps"])
    world.stores["workload"][key(workload)] = workload
    del world.stores["pod"][key(first)]
    world.memory = memory = world.restarted()
    memory.pod_groups.leave_out(key(workload))
    world.put("pod", second)
    world.put("pod", first)
    world.drop("pod", second)
    assert memory.entries == {}
    world.drop("workload", workload)
    assert memory.entries["ns/u-db@StatefulSet.apps"].observed is None
    assert list(memory.entries["ns/u-db@StatefulSet.apps"].pods) == [first.metadata.uid]


def test_what_is_heard_late_of_a_workload_that_was_removed_counts_for_nobody(world):
    """Its pods are gone, and it too; others come, and then the watch tells how it was made."""
    first, second = ranked("db-0", 0), ranked("db-1", 1)
    world.put("pod", first)
    record = world.memory.entries["ns/u-db@StatefulSet.apps"]
    record.observed = observed_of(workload := stored_for(record))
    world.drop("pod", first)
    record.last_event = LastEvent("DoesNotFit", "m", 1.0)
    world.memory.workloads.removed(record)
    assert record.last_event is None, "other pods have heard nothing yet"
    assert not world.memory.pod_groups.regroup(record)
    world.put("pod", second)
    world.put("workload", workload)
    assert world.memory.entries["ns/u-db@StatefulSet.apps"].observed is None
    world.drop("workload", workload)
    assert not world.memory.entries._removed


def test_what_is_stored_for_pods_that_all_ended_is_held_until_it_is_removed(world):
    """Others may come: a start that gave it to somebody else would give it twice."""
    pod = ranked("db-0", 0, phase="Failed")
    world.put("pod", pod)
    owner = world.memory.entries["ns/u-db@StatefulSet.apps"].job
    assert owner.over == GONE
    workload = stored_workload(owner, slot_map(("b/r1/r1-h1", 1)))
    world.stores["workload"][key(workload)] = workload
    memory = world.restarted()
    assert memory.state.assignments(memory.entries["ns/u-db@StatefulSet.apps"].key)


def test_the_place_in_line_stays_when_pods_are_replaced(world):
    old, new = (ranked(name, 0, creationTimestamp=f"2026-01-01T00:0{at}:00Z") for at, name in enumerate(("old", "new")))
    world.put("pod", old)
    workload = stored_for(world.memory.entries["ns/u-db@StatefulSet.apps"])
    world.put("workload", workload)
    turns = []
    for pods in ((old,), (new,)):
        world.stores["pod"] = {key(pod): pod for pod in pods}
        memory = world.restarted()
        memory.admissions.enqueue_entry(memory.entries["ns/u-db@StatefulSet.apps"])
        (entry,) = memory.queues.entries.values()
        turns.append(entry.workload.created)
    assert turns[0] == turns[1]


def test_after_a_start_nobody_waits_for_more_pods_of_those_that_are_there(world):
    world.put("pod", ranked("db-0", 0))
    world.waits.clear()
    world.restarted()
    assert set(world.waits) == {("ns/u-db@StatefulSet.apps", 0.0)}


def test_a_group_finds_its_workload_by_name(world):
    world.put("pod", grouped("a", "2"))
    record = world.memory.entries[":group/ns/ring"]
    body = new_workload(record.job, 0) | {"status": {}}
    body["metadata"] |= {"uid": "w", "resourceVersion": "1"}
    world.put("workload", msgspec.json.decode(msgspec.json.encode(body), type=WorkloadObject))
    assert record.observed is not None
    again = world.restarted()
    assert again.entries[":group/ns/ring"].observed is not None
    assert again.entries.groups == world.memory.entries.groups


def test_a_bare_pod_and_a_group_that_is_complete_wait_for_nobody(world):
    world.put("pod", make_pod("alone"))
    world.put("pod", grouped("a", "1"))
    assert {after for _, after in world.waits} == {0.0}


def test_pods_of_jobs_and_daemon_sets_make_no_record(world):
    jobset = ("JobSet", "jobset.x-k8s.io/v1alpha2")
    for kind, version in (("Job", "batch/v1"), ("DaemonSet", "apps/v1"), ("Node", "v1"), jobset):
        owner = {**STATEFUL_SET, "kind": kind, "apiVersion": version, "uid": kind}
        world.put("pod", make_pod(kind.lower(), owner=owner))
    assert world.memory.entries == {}
    assert len(world.memory.gated_orphans.pods) == 4


@pytest.mark.parametrize("kind", ["Job", "DaemonSet", "Node", "JobSet", "LeaderWorkerSet", "Pod", "PodGroup"])
def test_who_calls_an_owner_like_one_of_kubernetes_has_any_owner(world, kind):
    owner = {**STATEFUL_SET, "kind": kind, "apiVersion": "made.up/v1"}
    world.put("pod", make_pod("a", owner=owner))
    (record,) = world.memory.entries.values()
    assert (record.id, record.job.suspendable) == (f"ns/u-db@{kind}.made.up", False)


def test_a_pod_of_a_job_tells_nothing_of_pods_that_name_its_uid_and_another_kind(world):
    """Else they have a Workload of the Job: once that is gone it is collected and made again for ever."""
    job = {**STATEFUL_SET, "kind": "Job", "apiVersion": "batch/v1"}
    made_up = {**STATEFUL_SET, "kind": "MadeUp", "apiVersion": "made.up/v1"}
    world.put("pod", make_pod("a", owner=job))
    world.put("pod", make_pod("b", owner=made_up))
    (record,) = world.memory.entries.values()
    world.memory.pod_groups.regroup(record)
    assert (record.job.kind, record.job.api_version) == ("MadeUp", "made.up/v1")


@pytest.mark.parametrize(
    "forged",
    [
        {"kind": "Pod", "apiVersion": "v1", "name": "solo", "uid": "u-solo"},
        {"kind": "Pod", "apiVersion": "made.up/v1", "name": "solo", "uid": "u-solo"},
        {"kind": "Job", "apiVersion": "made.up/v1", "name": "db", "uid": "u-db"},
        {"kind": "StatefulSet", "apiVersion": "made.up/v1", "name": "db", "uid": "u-db"},
        {"kind": "PodGroup", "apiVersion": "made.up/v1", "name": "ring", "uid": "group/ns/ring"},
    ],
)
def test_who_names_the_uid_of_another_kinds_owner_gets_a_workload_of_his_own(world, forged):
    """Else two jobs share one, and what is heard of it reaches one of them."""
    world.put("job", make_job("db", uid="u-db"))
    world.put("pod", make_pod("solo"))
    world.put("pod", make_pod("db-0", owner=STATEFUL_SET))
    world.put("pod", grouped("ring-0"))
    world.put("pod", make_pod("forged", owner={**STATEFUL_SET, **forged}))
    entries = world.memory.entries
    assert len(entries) == 5
    assert len({entry.job.workload for entry in entries.values()}) == 5


@pytest.mark.parametrize("job", [make_job("db", uid="u-db"), make_job("db", uid="u-db", request={}, gated=False)])
def test_pods_that_name_a_job_and_another_kind_stay_known_when_it_goes(world, job):
    """Else their Workload would stay for good: nobody can tell whether an owner of such a kind exists."""
    world.put("pod", pod := make_pod("a", owner={**STATEFUL_SET, "kind": "MadeUp", "apiVersion": "made.up/v1"}))
    record = world.memory.entries["ns/u-db@MadeUp.made.up"]
    world.put("workload", stored_for(record))
    world.put("job", job)
    world.drop("job", job)
    world.drop("pod", pod)
    (record,) = world.memory.entries.values()
    world.memory.pod_groups.regroup(record)
    assert Remove in [type(one) for one in reconcile(record, world.memory.rules, 0.0)]


def test_pods_of_another_namespace_that_name_an_owner_are_none_of_its(world):
    world.put("pod", make_pod("a", owner=STATEFUL_SET))
    world.put("pod", make_pod("b", owner=STATEFUL_SET, namespace="thief"))
    assert {uid: list(record.pods) for uid, record in world.memory.entries.items()} == {
        "ns/u-db@StatefulSet.apps": ["u-a"],
        "thief/u-db@StatefulSet.apps": ["u-b"],
    }
    assert {uid: list(record.pods) for uid, record in world.restarted().entries.items()} == {
        "ns/u-db@StatefulSet.apps": ["u-a"],
        "thief/u-db@StatefulSet.apps": ["u-b"],
    }
    workloads = {record.key for record in world.memory.entries.values()}
    assert len({key.partition("/")[0] for key in workloads}) == 2


@pytest.mark.parametrize("kind", ["My Kind", "Ünïcode", "---", "K" * 63, "a/b", "group"])
def test_whatever_an_owner_is_called_its_workload_has_a_legal_name(kind):
    owner = owner_of(make_pod("a", owner={**STATEFUL_SET, "kind": kind}))
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", owner.workload)
    assert len(owner.workload) <= 63
    workload = msgspec.convert(new_workload(owner, 0)["metadata"], ObjectMeta)
    assert of_pods(workload)


def test_a_leader_worker_set_that_is_made_anew_under_its_name_is_another_workload(world):
    """What the old one holds goes first; its Workload is not written any more, and no pod goes to its slots."""
    labels = {leaderworkerset.NAME: "l", leaderworkerset.GROUP: "0", WORKER_INDEX: "0"}
    pod = make_pod("l-0", owner=STATEFUL_SET, labels=labels)
    template = msgspec.Raw(msgspec.json.encode({"spec": pod.spec}))

    def whole(uid):
        shape = LeaderWorkerSetSpec(leader_worker_template=LeaderWorkerTemplate(worker_template=template))
        return LeaderWorkerSet(metadata=ObjectMeta(name="l", namespace="ns", uid=uid), spec=shape)

    sets = {"ns/l": whole("u-1")}
    memory, world.leader_sets = world.memory, sets
    world.put("pod", pod)
    (old,) = memory.entries.values()
    old.observed = observed_of(stored_for(old))
    sets["ns/l"] = whole("u-2")
    assert memory.pod_groups.regroup(old)
    assert reconcile(old, memory.rules, 0.0) == [Dequeue(), Remove(), FreeCapacity()]
    memory.workloads.removed(old)
    assert not memory.pod_groups.regroup(old)
    (new,) = memory.entries.values()
    assert (new.observed, list(new.pods)) == (None, [pod.metadata.uid])
    assert new.job.workload != old.job.workload


@pytest.mark.parametrize("size", [0, -1])
def test_a_group_that_says_it_has_no_pods_has_a_leader(world, size):
    pod = make_pod(
        "l-0", owner=STATEFUL_SET, labels={leaderworkerset.NAME: "l", leaderworkerset.GROUP: "0", WORKER_INDEX: "0"}
    )
    template = msgspec.Raw(msgspec.json.encode({"spec": pod.spec}))
    shape = LeaderWorkerSetSpec(leader_worker_template=LeaderWorkerTemplate(size=size, worker_template=template))
    whole = LeaderWorkerSet(metadata=ObjectMeta(name="l", namespace="ns", uid="u-1"), spec=shape)
    world.leader_sets = {"ns/l": whole}
    world.put("pod", pod)
    (record,) = world.memory.entries.values()
    assert [(one.name, one.count) for one in record.job.pod_sets] == [("main", 1)]


@pytest.mark.parametrize(("born", "goes"), [("2026-11-21T00:00:04Z", False), ("2026-11-21T00:00:05Z", True)])
def test_pods_let_go_for_a_leader_worker_set_that_was_replaced_are_replaced(world, born, goes):
    """Those that are older than the new one may have been left running on purpose (--cascade=orphan)."""
    labels = {leaderworkerset.NAME: "l", leaderworkerset.GROUP: "0", WORKER_INDEX: "0"}
    shape = LeaderWorkerTemplate(worker_template=msgspec.Raw(msgspec.json.encode({"spec": make_pod("l-0").spec})))
    meta = ObjectMeta(name="l", namespace="ns", uid="u-2", creation_timestamp="2026-11-21T00:00:05Z")
    sets = {"ns/l": LeaderWorkerSet(metadata=meta, spec=LeaderWorkerSetSpec(leader_worker_template=shape))}
    world.leader_sets = sets
    marks = {"annotations": {KEYS.workload: "of-another"}, "spec": {"schedulingGates": [], "nodeName": "r1-h1"}}
    pod = make_pod("l-0", owner=STATEFUL_SET, labels=labels, creationTimestamp=born, **marks)
    world.put("pod", pod)
    (record,) = world.memory.entries.values()
    record.observed = observed_of(stored_for(record))
    found = [one for one in reconcile(record, world.memory.rules, 1.0) if isinstance(one, Delete)]
    assert [one.pod.metadata.name for one in found] == ["l-0"] * goes


def test_the_workload_of_a_leader_worker_sets_group_without_pods_is_left_over(world):
    """Its leader was deleted while no controller ran: its slots are nobody's until its Workload is removed."""
    labels = {leaderworkerset.NAME: "l", leaderworkerset.GROUP: "0", WORKER_INDEX: "0"}
    pod = make_pod("l-0", owner=STATEFUL_SET, labels=labels)
    shape = LeaderWorkerTemplate(worker_template=msgspec.Raw(msgspec.json.encode({"spec": pod.spec})))
    meta = ObjectMeta(name="l", namespace="ns", uid="u-1")
    sets = {"ns/l": LeaderWorkerSet(metadata=meta, spec=LeaderWorkerSetSpec(leader_worker_template=shape))}
    world.leader_sets = sets
    world.put("pod", pod)
    (record,) = world.memory.entries.values()
    workload = stored_for(record).metadata
    assert of_pods(workload)
    assert leaderworkerset.has_pods(workload, {leaderworkerset.group_key(pod)})
    assert not leaderworkerset.has_pods(workload, {":lws/ns/l/1", ":lws/ns/other/0"})
    assert not leaderworkerset.has_pods(make_pod(owner=STATEFUL_SET).metadata, {leaderworkerset.group_key(pod)})


def test_pods_that_name_a_jobs_uid_and_another_kind_have_a_workload_of_their_own_once_it_is_gone():
    world, job = World(), make_job()
    world.put("flavor", FLAVOR)
    world.put("job", job)
    world.put("pod", make_pod("p", owner={**STATEFUL_SET, "uid": job.metadata.uid}))
    world.put("pod", make_pod("its", owner={**JOB, "uid": job.metadata.uid}))
    world.drop("job", job)
    (record,) = world.memory.entries.values()
    assert (record.job.kind, "u-p" in record.pods) == ("StatefulSet", True)
    assert list(world.restarted().entries) == list(world.memory.entries)


def test_a_job_is_itself_also_where_pods_that_name_its_uid_and_another_kind_were_seen_before_it():
    world, job = World(), make_job()
    world.put("flavor", FLAVOR)
    world.put("pod", make_pod("p", owner={**STATEFUL_SET, "uid": job.metadata.uid}))
    world.put("job", job)
    record = world.memory.entries[id_of(job)]
    assert (record.job.kind, record.job.name, record.pods) == ("Job", job.metadata.name, {})
    (other,) = [one for one in world.memory.entries.values() if one is not record]
    assert (other.job.kind, list(other.pods)) == ("StatefulSet", ["u-p"])


def kinds(count, total):
    roles = [{KEYS.role_hash: f"r{number}", KEYS.pod_group_total: str(total)} for number in range(count)]
    labels = {KEYS.pod_group: "ring"}
    return [make_pod(f"p{at}", labels=labels, annotations=role) for at, role in enumerate(roles)]


def test_a_group_of_more_kinds_than_a_workload_has_room_for_is_refused():
    """Each look goes through the pods of each kind: of 500 it took seconds."""
    owner = owner_of(*kinds(500, 500))
    assert len(owner.pod_sets) == MOST_POD_SETS
    assert "Too many: 500 kinds of pods" in str(owner.request)
    assert not isinstance(owner_of(*kinds(8, 8)).request, RequestError)


def test_kinds_that_were_known_stay_where_others_come():
    before = owner_of(*kinds(20, 30)[12:])
    assert [one.name for one in before.pod_sets] == [f"r{at}" for at in range(12, 20)]
    after = owner_of(*kinds(20, 30), before=before)
    assert [one.name for one in after.pod_sets] == [f"r{at}" for at in range(12, 20)]
    assert "Too many" in str(after.request)


def test_a_group_by_annotation_is_one_workload_with_the_name_of_the_group():
    named = {KEYS.pod_group: "ring", KEYS.pod_group_total: "2"}
    pods = [make_pod(name, annotations=named) for name in ("a", "b")]
    view = owner_of(*pods)
    assert (view.kind, view.name, view.count, view.wrong) == (GROUP, "ring", 2, None)
    assert owner_of(*[grouped(name, "2") for name in ("a", "b")]).workload == view.workload, "as by the label"


def test_pods_of_a_group_tell_who_holds_it_back_until_none_does():
    pods = [grouped("a", "3"), grouped("b", "3"), grouped("c", "3")]

    def said(*texts):
        with_gates = [
            make_pod(pod.metadata.name, labels=pod.metadata.labels, annotations={KEYS.pod_group_total: "3", **gates})
            for pod, text in zip(pods, texts, strict=True)
            for gates in [{} if text is None else {KEYS.gated_by: text}]
        ]
        return owner_of(*with_gates).gated_by

    assert said(None, None, None) == ""
    assert said("a.b/c", None, None) == "a.b/c"
    assert said("a.b/c", "a.b/c,a.b/d", "") == "a.b/c,a.b/d"


def shaped(name, cpu="1", *, total="3", role="", let_go_as="", **spec):
    """A pod of a group without a role, as `shared/cases/migrate/pod-group-two-shapes.yaml` has them."""
    told = {KEYS.pod_group_total: total, **({KEYS.role_hash: role} if role else {}), KEYS.pod_set: let_go_as or "main"}
    if let_go_as:  # our patch merged the slot into its selector
        told[KEYS.workload] = owner_of(shaped("other", total=total)).workload
        spec = {**spec, "schedulingGates": [], "nodeSelector": {"rack": "r1"}}
    return make_pod(name, labels={KEYS.pod_group: "pg"}, annotations=told, cpu=cpu, spec=spec)


TWO_SHAPES = [shaped("pg-a"), shaped("pg-b1", "30"), shaped("pg-b2", "30")]


def sizes(view):
    return sorted(one.full for one in view.pod_sets)


def test_pods_of_a_group_with_two_shapes_are_two_pod_sets():
    # Kueue 0.19.2 writes role-hash itself, of the pods' specs: pod sets of 1 and 2, and all three run.
    view = owner_of(*TWO_SHAPES)
    assert (sizes(view), view.wrong, view.kinds) == ([1, 2], None, True)
    names = {pod.metadata.name: view.pod_set_of(pod).name for pod in TWO_SHAPES}
    assert names["pg-b1"] == names["pg-b2"] != names["pg-a"]
    assert all(re.fullmatch("[0-9a-f]{8}", name) for name in names.values())
    assert view.pod_set_of(shaped("late", "7")) is None, "a third shape is of none of them"
    assert owner_of(*reversed(TWO_SHAPES)).pod_sets == view.pod_sets, "whatever came first"


def test_pods_of_a_group_with_one_shape_stay_main():
    view = owner_of(*[shaped(name) for name in ("a", "b", "c")])
    assert ([one.name for one in view.pod_sets], view.count, view.kinds) == (["main"], 3, False)


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeSelector": {"disk": "ssd"}},
        {"tolerations": [{"key": "a", "operator": "Exists"}]},
        {"priority": 5},
        {"runtimeClassName": "kata"},
        {"overhead": {"cpu": "1"}},
        {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}, "ports": [{"hostPort": 80}]}]},
        {"initContainers": [{"name": "i", "resources": {"requests": {"cpu": "1"}}}]},
        {"resourceClaims": [{"name": "gpu", "resourceClaimName": "one"}]},
    ],
    ids=lambda spec: next(iter(spec)),
)
def test_what_tells_shapes_apart_is_what_kueue_looks_at(spec):
    assert sizes(owner_of(shaped("a"), shaped("b", **spec), total := shaped("c"))) == [1, 2], total.metadata.name


def test_a_group_of_two_shapes_waits_until_all_are_there():
    view = owner_of(*TWO_SHAPES[:2])
    assert view.wrong.reason is Reason.PENDING
    assert str(view.wrong).startswith("2 of 3 pods are there")
    first = owner_of(TWO_SHAPES[0])
    assert ([one.name for one in first.pod_sets], first.count) == (["main"], 3), "the first one cannot know"
    assert sizes(owner_of(*TWO_SHAPES, before=first)) == [1, 2], "and is no measure for what comes"


def test_a_pod_that_was_let_go_is_of_the_kind_that_it_was_let_go_as():
    view = owner_of(*TWO_SHAPES)
    of = {pod.metadata.name: view.pod_set_of(pod).name for pod in TWO_SHAPES}
    gone = [
        shaped(pod.metadata.name, cpu, let_go_as=of[pod.metadata.name])
        for pod, cpu in zip(TWO_SHAPES, ("1", "30", "30"), strict=True)
    ]
    for before in (view, None):
        again = owner_of(*gone, before=before)
        assert {one.name: one.full for one in again.pod_sets} == {one.name: one.full for one in view.pod_sets}
        assert [again.pod_set_of(pod).name for pod in gone] == list(of.values())
    replaced = owner_of(gone[0], gone[1], TWO_SHAPES[2], before=view)
    assert replaced.pod_set_of(TWO_SHAPES[2]).name == of["pg-b2"], "one that is made again is of its kind again"
    alone = owner_of(TWO_SHAPES[1], TWO_SHAPES[2], before=view)
    assert {one.name: one.full for one in alone.pod_sets} == {one.name: one.full for one in view.pod_sets}


def test_a_group_that_was_placed_as_one_stays_one():
    gone, late = shaped("a", let_go_as="main"), shaped("b", "30")
    for stored in ({}, {"main": 3}):
        view = owner_of_pods(owner_key(late, KEYS), [gone, late], KEYS, None, stored)
        assert [one.name for one in view.pod_sets] == ["main"]
    waiting = owner_of_pods(owner_key(late, KEYS), [shaped("a"), late], KEYS, None, {"main": 3})
    assert [one.name for one in waiting.pod_sets] == ["main"], "admitted, and none was let go yet"
    assert KEYS.role_hash in str(waiting.wrong), "its user learns how to have two kinds"


def test_roles_that_pods_tell_come_before_their_shapes():
    view = owner_of(shaped("a", role="driver"), shaped("b", "30"), shaped("c", "30"))
    assert sorted((one.name, one.full) for one in view.pod_sets) == [("driver", 1), ("main", 2)]
    mixed = owner_of(shaped("a", role="driver"), shaped("b", "30"), shaped("c", "7"))
    assert len(mixed.pod_sets) == 3
    assert "driver" in {one.name for one in mixed.pod_sets}


def test_a_group_of_many_shapes_is_refused_with_their_number():
    pods = [shaped(f"p{number}", str(number + 1), total="9") for number in range(9)]
    assert "9 kinds of pods: a workload has at most 8 pod sets" in str(owner_of(*pods).wrong)


def test_the_first_pod_of_a_group_waits_a_moment_for_those_that_may_differ(world):
    world.put("pod", TWO_SHAPES[0])
    (waited,) = {seconds for _, seconds in world.waits[-1:]}
    assert waited > 0, "placed at once, the others would find it placed as one kind"
    for pod in TWO_SHAPES[1:]:
        world.put("pod", pod)
    (record,) = world.memory.entries.values()
    assert world.memory.pod_groups.regroup(record)
    assert sizes(record.job) == [1, 2]
    assert world.waits[-1][1] == 0.0, "all are there"


def test_a_group_that_waits_is_what_its_pods_say_now_as_after_a_restart(world):
    for pod in TWO_SHAPES:
        world.put("pod", pod)
    (record,) = world.memory.entries.values()
    assert world.memory.pod_groups.regroup(record)
    assert sizes(record.job) == [1, 2]
    world.drop("pod", TWO_SHAPES[0])
    assert world.memory.pod_groups.regroup(record)
    (again,) = world.restarted().entries.values()
    assert [(one.name, one.full) for one in record.job.pod_sets] == [("main", 3)]
    assert record.job.pod_sets == again.job.pod_sets


def test_the_workers_of_a_leader_worker_set_may_have_slices_in_the_domain_that_they_share_with_their_leader():
    # Kueue from 0.20 on (PR 15111); 0.19.2 refuses a group together with slices.
    def template(**more):
        annotations = {KEYS.required[0]: "block", KEYS.group: "all", **more}
        return msgspec.Raw(msgspec.json.encode({"metadata": {"annotations": annotations}, "spec": make_pod("l").spec}))

    shape = LeaderWorkerTemplate(
        size=9,
        leader_template=template(),
        worker_template=template(**{KEYS.slice_level: "rack", KEYS.slice_size: "4"}),
    )
    spec = LeaderWorkerSetSpec(leader_worker_template=shape)
    whole = LeaderWorkerSet(metadata=ObjectMeta(name="l", namespace="ns", uid="u-1"), spec=spec)
    labels = {leaderworkerset.NAME: "l", leaderworkerset.GROUP: "0", WORKER_INDEX: "0"}
    pod = make_pod("l-0", owner=STATEFUL_SET, labels=labels)
    view = leaderworkerset.owner_of_group(owner_key(pod, KEYS), [pod], whole, KEYS, None, lambda *_: None)
    assert (view.wrong, [(one.name, one.count) for one in view.pod_sets]) == (None, [("leader", 1), ("workers", 8)])
    assert [one.request.group for one in view.pod_sets] == ["all", "all"]
    assert [len(one.request.slices) for one in view.pod_sets] == [0, 1]
    ranked = make_pod("l-0-1", owner=STATEFUL_SET, labels={**labels, WORKER_INDEX: "1"})
    assert view.pod_sets[1].rank_of_pod(ranked) == 0, "slices are counted from the first worker"


def test_a_group_keeps_the_kinds_that_it_was_placed_by_whatever_total_later_pods_tell():
    view = owner_of(shaped("pg-a", total="2"), shaped("pg-b", "30", total="2"))
    kinds = {one.name: 1 for one in view.pod_sets}
    later = [shaped("pg-b", "30", total="4"), shaped("pg-b2", "30", total="4")]
    again = owner_of_pods(owner_key(later[0], KEYS), later, KEYS, view, kinds)
    assert ({one.name: one.full for one in again.pod_sets}, again.wrong) == (kinds, None)


class Group(World):
    """A pod group of two, as its pods come."""

    def __init__(self):
        super().__init__()
        for node in NODES:
            self.put("node", node)
        self.put("flavor", FLAVOR)

    def comes(self, name, cpu="1", **made):
        self.put("pod", shaped(name, cpu, total="2", **made))
        return self.kinds()

    def entry(self):
        [entry] = self.memory.entries.values()
        return entry

    def kinds(self):
        assert self.memory.pod_groups.regroup(self.entry())
        return [one.name for one in self.entry().job.pod_sets]

    def decided(self):
        """It waits, and a cycle admits it; nothing is stored yet."""
        entry = self.entry()
        entry.observe(entry.observed or make_known(entry.job))
        self.memory.admissions.enqueue_entry(entry)
        [made] = cycle(self.memory.state, self.memory.queues, 0.0).admitted
        return made.grant


def test_a_pod_that_differs_and_comes_while_an_admission_is_written_does_not_change_what_is_admitted():
    group = Group()
    group.comes("pg-0")
    assert group.comes("pg-1") == ["main"]
    group.decided()
    assert group.comes("pg-2", "2") == ["main"]


def test_kinds_that_were_admitted_stay_where_the_watch_shows_the_workload_before_it_had_them():
    group = Group()
    assert group.comes("pg-0") == ["main"]
    body = new_workload(group.entry().job, 0)
    body["metadata"] |= {"uid": "wl", "resourceVersion": "7"}
    group.put("workload", msgspec.json.decode(msgspec.json.encode(body), type=WorkloadObject))
    kinds = group.comes("pg-1", "2")
    assert len(kinds) == 2
    grant, entry = group.decided(), group.entry()
    admission = group.memory.reservations.admission_of(entry, grant)
    group.memory.admissions.store_admission(entry, admission, grant)
    entry.observe(msgspec.structs.replace(entry.observed, admission=admission))
    assert group.kinds() == kinds


@pytest.mark.parametrize("roles", [("", ""), ("leader", "workers")], ids=["told by shape", "told by role-hash"])
@pytest.mark.parametrize("left", ["pg-0", "pg-1"])
def test_a_kind_without_pods_keeps_its_slots_over_a_restart(left, roles):
    """Its pod was deleted, and is made again: till then its slots wait for it, or for the end of its time."""
    group = Group()
    group.comes("pg-0", role=roles[0])
    kinds = group.comes("pg-1", "2", role=roles[1])
    grant, entry = group.decided(), group.entry()
    admission = group.memory.reservations.admission_of(entry, grant)
    stored = stored_for(entry, admission=write_admission(admission))
    group.stores["workload"][key(stored)] = stored
    gone = group.stores["pod"].pop("ns/pg-1" if left == "pg-0" else "ns/pg-0")
    before, parts = entry.job, grant.assignments
    group.memory = group.restarted()
    entry = group.entry()
    assert group.kinds() == kinds
    assert [(one.count, one.full) for one in entry.job.pod_sets] == [(1, 1), (1, 1)]
    assert [one.raw for one in entry.job.pod_sets] == [one.raw for one in before.pod_sets]
    assert [(part.pod_set, part.requests, part.shape) for part in entry.grant.assignments] == [
        (part.pod_set, part.requests, part.shape) for part in parts
    ]
    assert group.memory.reservations.admission_of(entry, entry.grant).same_grant(admission), "whoever writes it next"
    assert entry.job.wrong is None
    missing_pods.note(entry, 0.0)
    limits = MissingPods(60.0, 300.0)
    assert missing_pods.give_up_missing(entry, limits, 299.0) == [RequeueAfter(1.0)]
    lacking = kinds[entry.job.pod_sets.index(entry.job.pod_set_of(gone))]
    assert missing_pods.give_up_missing(entry, limits, 300.0) == [Shorten({lacking: 0}), RequeueAfter(0.0)]
    group.put("pod", gone)
    assert group.kinds() == kinds
    assert sorted(entry.pod_set_of(pod) for pod in entry.pods.values()) == kinds


@pytest.mark.parametrize(
    "template",
    [
        7,
        {"spec": {"containers": 7}},
        {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "many"}}}]}},
        {"metadata": {"annotations": {KEYS.required[0]: ""}}},
    ],
)
def test_a_kind_whose_stored_template_cannot_be_read_is_not_known(template):
    """Anybody may have written it."""
    assert (
        kind_as_stored(PodSetCount(name="a", count=1, template=msgspec.Raw(msgspec.json.encode(template))), KEYS)
        is None
    )
    assert kind_as_stored(PodSetCount(name="a", count=1), KEYS) is None, "of others none is kept"


def placed_group():
    """Pods of a group of two kinds of two pods each, all let go, of which some tell a total of two; and its kinds."""
    four = [shaped(name, cpu, total="4") for name, cpu in (("a1", "1"), ("a2", "1"), ("b1", "30"), ("b2", "30"))]
    view = owner_of(*four)
    of = {pod.metadata.name: view.pod_set_of(pod).name for pod in four}
    told = (("a1", "1", "2"), ("a2", "1", "2"), ("b1", "30", "4"))
    return [shaped(name, cpu, total=total, let_go_as=of[name]) for name, cpu, total in told], view


def test_a_start_finds_a_group_as_it_was_placed_whatever_total_its_pods_tell(world):
    """One of four pods is gone: what waits for another one in its place waits for it after a start as well."""
    pods, view = placed_group()
    for pod in pods:
        world.put("pod", pod)
    (record,) = world.memory.entries.values()
    record.set_view(view, view)
    parts = [{"name": one.name, "count": one.full, "flavors": {"cpu": "gpu"}} for one in view.pod_sets]
    workload = stored_for(record, admission={"clusterQueue": "cq", "podSetAssignments": parts})
    world.stores["workload"][key(workload)] = workload
    (again,) = world.restarted().entries.values()
    assert {one.name: one.full for one in again.job.pod_sets} == {one.name: 2 for one in view.pod_sets}


def test_a_kind_of_which_no_pod_was_there_at_a_start_is_known_again_once_one_comes():
    pods, view = placed_group()
    kinds = {one.name: 2 for one in view.pod_sets}
    first = owner_of_pods(owner_key(pods[0], KEYS), pods[:2], KEYS, None, kinds)
    again = owner_of_pods(owner_key(pods[0], KEYS), pods, KEYS, first, kinds)
    assert {one.name: one.full for one in again.pod_sets} == kinds

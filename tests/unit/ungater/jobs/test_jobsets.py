"""JobSets: several pod sets in one workload, placed by one decision, rebuilt from lists."""

import json

import msgspec
import pytest
from msgspec.structs import replace
from support import jobsets
from support.owned import KEYS, context, make_job, make_known, make_record
from support.world import FLAVOR, NODES, World, stored_workload

from clock import SYSTEM, Clock
from crds.constants import JOB_INDEX_LABEL, JOB_SET_INDEX, JOB_SET_ROLE, KUEUE_POD_SET, KUEUE_WORKLOAD
from crds.request import RequestError
from engine.model import Policy
from engine.reasons import Reason
from kube.budgets import BudgetSpec, BudgetStatus, PodDisruptionBudget
from kube.informer import Event, EventKind
from kube.objects import Condition, Job, LabelSelector, ObjectMeta, OwnerReference, Pod, ResourceFlavor, key
from kube.parents import JobSet
from queueing.cycle.cycle import cycle
from queueing.cycle.elastic import eager, grow
from ungater.cache.jobs import UNPROVED
from ungater.cache.pdb import BudgetWatch
from ungater.jobs import pod_template
from ungater.jobs.jobset import made_by, owner_of_jobset
from ungater.model import workload_spec, workload_status
from ungater.model.actions import ANYWHERE, Enqueue, Shrink, ShrinkLater, Ungate
from ungater.model.admission import Admission, PodSetAssignment
from ungater.model.job_view import JOB_SET, JOB_SET_API
from ungater.model.pod_slots import Expectation
from ungater.reconcile.reconcile import reconcile

GATE = [{"name": KEYS.gate}]
JOB = {"apiVersion": "batch/v1", "kind": "Job", "controller": True}


def template(cpu="1", annotations=None, **spec):
    return {
        "metadata": {"annotations": annotations or {}},
        "spec": {
            "schedulingGates": GATE,
            "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}],
            **spec,
        },
    }


def make_jobset(*, annotations=None, suspend=False, replicas=2, status=None, workers=None, **meta):
    jobs = [
        {"name": "leader", "replicas": 1, "template": {"spec": {**INDEXED, "template": template()}}},
        {
            "name": "workers",
            "replicas": replicas,
            "template": {"spec": {**INDEXED, "parallelism": 2, "completions": 2, "template": workers or template()}},
        },
    ]
    body = {
        "metadata": {
            "name": "js",
            "namespace": "ns",
            "uid": "u-js",
            "resourceVersion": "1",
            "creationTimestamp": "2026-11-21T00:00:00Z",
            "annotations": {KEYS.required[0]: "rack"} if annotations is None else annotations,
            **meta,
        },
        "spec": {"suspend": suspend, "replicatedJobs": jobs},
        "status": status or {},
    }
    return msgspec.json.decode(msgspec.json.encode(body), type=JobSet)


INDEXED = {"completionMode": "Indexed", "parallelism": 1, "completions": 1}
JOBS = (("leader", 0, 1), ("workers", 0, 2), ("workers", 1, 2))


def child(role, index, parallelism, **status):
    body = {
        "metadata": {
            "name": f"js-{role}-{index}",
            "namespace": "ns",
            "uid": f"u-{role}-{index}",
            "labels": {JOB_SET_ROLE: role, JOB_SET_INDEX: str(index)},
            "ownerReferences": [
                {
                    "apiVersion": "jobset.x-k8s.io/v1alpha2",
                    "kind": "JobSet",
                    "name": "js",
                    "uid": "u-js",
                    "controller": True,
                }
            ],
        },
        "spec": {**INDEXED, "parallelism": parallelism, "completions": parallelism, "template": template()},
        "status": status,
    }
    return msgspec.json.decode(msgspec.json.encode(body), type=Job)


def pod(role, index, rank, *, at=None, node="", mark=""):
    labels = {JOB_SET_ROLE: role, JOB_SET_INDEX: str(index), JOB_INDEX_LABEL: str(rank)}
    spec = template()["spec"]
    if at is not None:
        spec = {**spec, "schedulingGates": [], "nodeSelector": at, "nodeName": node}
    body = {
        "metadata": {
            "name": f"{role}-{index}-{rank}",
            "namespace": "ns",
            "uid": f"u-{role}-{index}-{rank}",
            "labels": labels,
            "annotations": {KEYS.workload: mark} if mark else {},
            "ownerReferences": [{**JOB, "name": role, "uid": f"u-{role}-{index}"}],
        },
        "spec": spec,
        "status": {"phase": "Pending"},
    }
    return msgspec.json.decode(msgspec.json.encode(body), type=Pod)


PODS = [pod(role, index, rank) for role, index, count in JOBS for rank in range(count)]


def owner_of(children=(), before=None, **jobset):
    return owner_of_jobset(make_jobset(**jobset), children, KEYS, before)


def test_each_replicated_job_is_a_pod_set():
    leader, workers = owner_of().pod_sets
    assert (leader.name, leader.count, leader.full, leader.ranks) == ("leader", 1, 1, 1)
    assert (workers.name, workers.count, workers.full, workers.ranks) == ("workers", 4, 4, 4)
    assert [workers.rank_of_pod(one) for one in PODS[1:]] == [0, 1, 2, 3]
    assert {one.request.level for one in (leader, workers)} == {"rack"}
    assert owner_of().pod_set_of(PODS[0]).name == "leader"


def test_jobs_that_are_done_need_less_and_those_that_failed_or_are_missing_all():
    done = child("workers", 0, 2, succeeded=2, completedIndexes="0-1", ready=0)
    (_, workers) = owner_of([done]).pod_sets
    assert (workers.count, workers.full, workers.done) == (2, 4, ((0, 1),))
    failed = child("workers", 1, 2, conditions=[{"type": "Failed", "status": "True"}], failedIndexes="0")
    assert owner_of([done, failed]).pod_sets[1].count == 2
    ready = child("workers", 1, 2, active=2, ready=2)
    assert owner_of([done, ready]).ready == 2


def test_requests_by_replicated_job():
    below = template(annotations={KEYS.required[0]: "block"})
    leader, workers = owner_of(annotations={}, workers=below).pod_sets
    assert (leader.request.policy, workers.request.level) == (Policy.UNCONSTRAINED, "block")
    assert owner_of(annotations={}).request is None
    assert isinstance(owner_of(workers=below).request, RequestError), "the JobSet and the template differ"


def test_what_a_workload_says_of_it():
    spec = workload_spec.new_workload(owner_of(), 0)["spec"]["podSets"]
    assert spec[1]["topologyRequest"] == {
        "policy": "Required",
        "level": "rack",
        "podIndexLabel": JOB_INDEX_LABEL,
        "subGroupIndexLabel": JOB_SET_INDEX,
        "subGroupCount": 2,
    }


@pytest.mark.parametrize(
    ("status", "over"),
    [({}, ""), ({"type": "Completed", "status": "True"}, "Complete"), ({"type": "Failed", "status": "True"}, "Failed")],
)
def test_when_it_is_over(status, over):
    assert owner_of(status={"conditions": [status]} if status else {}).over == over
    assert owner_of(deletionTimestamp="2026-11-21T00:01:00Z").over == "Deleted"


class Sets(World):
    """A world with JobSets."""

    def __init__(self):
        self.jobsets = {}
        self.now = 100.0
        super().__init__()

    def make(self):
        return super().make(clock=Clock(SYSTEM.now, lambda: self.now))

    def put_set(self, jobset):
        self.jobsets["ns/js"] = jobset
        self.memory.jobs.set_jobset(jobset)

    def restarted(self):
        memory = self.make()
        stores = (self.stores[kind].values() for kind in ("node", "flavor", "class", "job", "pod"))
        for _ in memory.load(*stores, jobsets=self.jobsets.values()):
            pass
        return memory

    def admit_set(self):
        record = self.memory.entries["ns/u-js"]
        record.observed = make_known(record.job)
        self.memory.admissions.enqueue_entry(record)
        (made,) = cycle(self.memory.state, self.memory.queues, 0.0).admitted
        admission = self.memory.reservations.admission_of(record, made.grant)
        self.memory.admissions.store_admission(record, admission, made.grant)
        stored = stored_workload(record.job, admission)
        record.observed = workload_status.observed_of(stored)
        self.put("workload", stored)
        return record


@pytest.fixture
def world():
    made = Sets()
    made.put("flavor", FLAVOR)
    for node in NODES:
        made.put("node", node)
    return made


def sent(record, memory):
    steps = reconcile(record, memory.rules, 100.0, 100.0)
    return [
        (one.pod.metadata.name, record.slots_of(one.pod).slots[one.index].node)
        for one in steps
        if isinstance(one, Ungate)
    ]


def test_all_pod_sets_are_placed_by_one_decision_and_pods_go_in_rank_order(world):
    grouped = {KEYS.preferred[0]: "block"}
    world.put_set(make_jobset(annotations=grouped))
    record = world.admit_set()
    assert {name: slots.total for name, slots in record.slots_in.items()} == {"leader": 1, "workers": 4}
    for role, index, count in JOBS:
        world.put("job", child(role, index, count))
    for one in PODS:
        world.put("pod", one)
    assert [name for name, _ in sent(record, world.memory)] == [one.metadata.name for one in PODS]
    (workers,) = [slots for name, slots in record.slots_in.items() if name == "workers"]
    nodes = [slot.node for slot in workers.slots for _ in range(slot.count)]
    assert [node for name, node in sent(record, world.memory) if name.startswith("workers")] == nodes
    held = sum(world.memory.state.free_on_node(node.metadata.name)["cpu"] for node in NODES)
    assert held == 3000
    leader = record.slots_in["leader"].slots[0]
    bound = pod(
        "leader", 0, 0, at=dict(zip(record.slots_in["leader"].levels, leader.values, strict=True)), node=leader.node,
        mark=record.job.workload,
    )  # fmt: skip
    world.put("pod", bound)
    assert sum(world.memory.state.free_on_node(node.metadata.name)["cpu"] for node in NODES) == held, (
        "it fills its own slot"
    )
    again = world.restarted()
    assert again.entries["ns/u-js"].slots_in == record.slots_in
    assert again.entries["ns/u-js"].pods == record.pods
    assert {n: again.state.free_on_node(n) for n in again.state.nodes} == {
        n: world.memory.state.free_on_node(n) for n in world.memory.state.nodes
    }


def test_budgets_count_the_pods_of_its_jobs(world):
    """They are bound after the budget was there, and their Jobs' names are no workload's."""
    watch = BudgetWatch(world.memory)
    meta = ObjectMeta(name="all", namespace="ns", generation=1)
    none = BudgetStatus(disruptions_allowed=0, observed_generation=1)
    budget = PodDisruptionBudget(metadata=meta, spec=BudgetSpec(LabelSelector()), status=none)
    watch.on_budget(Event(EventKind.ADDED, "ns/all", None, budget))
    world.put_set(make_jobset())
    record = world.admit_set()
    for role, index, count in JOBS:
        world.put("job", child(role, index, count))
    watch.report_changes()
    leader = record.slots_in["leader"]
    at = dict(zip(leader.levels, leader.slots[0].values, strict=True))
    for one in (PODS[0], pod("leader", 0, 0, at=at, node=leader.slots[0].node, mark=record.job.workload)):
        old = world.stores["pod"].get(key(one))
        world.put("pod", one)
        watch.follow_pod(Event(EventKind.MODIFIED, key(one), old, one))
        watch.report_changes()
    assert list(world.memory.queues.budgets.guarded) == [record.key]
    assert not world.memory.queues.budgets.allows(record.key, 1)


def test_all_of_it_or_nothing(world):
    world.put_set(make_jobset())
    record = world.memory.entries["ns/u-js"]
    record.observed = make_known(record.job)
    world.memory.admissions.enqueue_entry(record)
    world.put_set(make_jobset(replicas=4))
    world.memory.admissions.enqueue_entry(record)
    made = cycle(world.memory.state, world.memory.queues, 0.0)
    assert not made.admitted
    assert sum(world.memory.state.free_on_node(node.metadata.name)["cpu"] for node in NODES) == 8000


def test_pods_that_came_before_their_job_are_taken_in(world):
    for one in PODS:
        world.put("pod", one)
    world.put_set(make_jobset())
    record = world.memory.entries["ns/u-js"]
    assert not record.pods
    for role, index, count in JOBS:
        world.put("job", child(role, index, count))
    assert len(record.pods) == 5
    assert set(world.memory.entries) == {"ns/u-js"}, "its Jobs are no workloads of their own"


def test_pods_that_are_heard_to_be_gone_after_their_job_keep_no_slot(world):
    """A JobSet that restarts deletes its Jobs, and the watch of Jobs may be ahead of that of pods."""
    world.put_set(make_jobset())
    record, memory = world.memory.entries["ns/u-js"], world.memory
    job = child("leader", 0, 1)
    world.put("job", job)
    world.put("pod", PODS[0])
    world.drop("job", job)
    assert list(record.pods) == [PODS[0].metadata.uid], "it holds its slot until it is gone"
    world.drop("pod", PODS[0])
    assert not record.pods
    assert not memory.entries.owners._parents


@pytest.mark.parametrize("sent", [False, True])
def test_a_pod_whose_job_leaves_its_jobset_keeps_its_place_while_its_patch_is_under_way(world, sent):
    """As where a JobSet is orphaned: the pod may run by its slot, though nobody saw that yet."""
    world.put_set(make_jobset(annotations={KEYS.preferred[0]: "block"}))
    record = world.admit_set()
    record.admission = replace(record.admission, queue="q")
    world.put("job", job := child("leader", 0, 1))
    world.put("pod", PODS[0])
    if sent:
        record.expectations[PODS[0].metadata.uid] = Expectation(record.slots_in["leader"].slots[0].values, 9.0)
    world.put("job", msgspec.structs.replace(job, metadata=msgspec.structs.replace(job.metadata, owner_references=())))
    assert not record.pods
    assert [one.metadata.name for one in record.left_of("leader")] == ([PODS[0].metadata.name] if sent else [])


def test_a_replicated_job_that_is_done_is_still_known_to_queueing(world):
    """It holds slots until they are given back, and wants them again when the JobSet restarts."""
    world.put_set(make_jobset(annotations={KEYS.preferred[0]: "block"}))
    record = world.admit_set()
    for index in range(2):
        world.put("job", child("workers", index, 2, succeeded=2, completedIndexes="0-1"))
    assert [one.count for one in record.job.pod_sets] == [1, 0]
    assert [one.name for one in world.memory.pod_sets.wish(record)] == ["leader", "workers"]


def test_what_its_jobs_do_not_need_any_more_is_given_back(world):
    world.put_set(make_jobset(annotations={KEYS.preferred[0]: "block"}))
    record = world.admit_set()
    for role, index, count in JOBS:
        world.put("job", child(role, index, count))
    world.put("job", child("workers", 0, 2, succeeded=2, completedIndexes="0-1"))
    record.job = world.memory.entries["ns/u-js"].job
    assert [one for one in reconcile(record, world.memory.rules, 100.0, 100.0) if isinstance(one, ShrinkLater)]
    record.shrink_at = 1.0
    (shrink,) = [one for one in reconcile(record, world.memory.rules, 100.0, 100.0) if isinstance(one, Shrink)]
    assert (shrink.pod_set, shrink.count) == ("workers", 2)
    smaller = record.admission.shrink_pod_set(shrink.pod_set, shrink.slots, shrink.count)
    assert [part.count for part in smaller.parts] == [1, 2]


@pytest.mark.parametrize("left", [2, 0])
def test_what_some_do_not_need_is_nobodys_until_that_is_stored_also_where_others_need_more(world, left):
    """Were it given away as soon as the others grow into it, two would have it stored for a moment."""
    world.put_set(make_jobset(annotations={KEYS.preferred[0]: "block"}))
    record, memory = world.admit_set(), world.memory
    for role, index, count in JOBS:
        world.put("job", child(role, index, count))
    held = record.admission.shrink_pod_set("leader", record.slots_in["leader"].without_slots({0: 1}), 0)
    memory.admissions.hold_admission(record, held)  # it was done once, and the JobSet was restarted
    for index in range(2 - left // 2):
        world.put("job", child("workers", index, 2, succeeded=2, completedIndexes="0-1"))
    record.shrink_at = 1.0
    found = reconcile(record, memory.rules, 100.0, 100.0)
    (shrink,) = [one for one in found if isinstance(one, Shrink)]
    assert (shrink.pod_set, shrink.count, Enqueue() in found) == ("workers", left, True)
    memory.admissions.enqueue_entry(record)
    assert memory.queues.growing[record.key][0] == {"leader": 1}
    (key,) = eager(memory.queues)
    (grown,) = grow(memory.state, memory.queues, key)
    assert grown.counts == {"leader": 1, "workers": 4}


def test_pods_of_a_lost_node_move_by_pod_set(world):
    world.put_set(make_jobset(annotations={KEYS.preferred[0]: "block"}))
    record = world.admit_set()
    for role, index, count in JOBS:
        world.put("job", child(role, index, count))
    for one in PODS:
        world.put("pod", one)
    lost = record.slots_in["workers"].slots[0].node
    world.drop("node", world.stores["node"][lost])
    (enter,) = [one for one in reconcile(record, world.memory.rules, 100.0, 100.0) if isinstance(one, Enqueue)]
    assert set(enter.lost) >= {"workers"}
    assert all(record.slots_in[name].slots[at].node == lost for name, moves in enter.lost.items() for at, _ in moves)


def test_starting_and_putting_back():
    owner = owner_of(suspend=True)
    slots = next(iter(()), None)
    parts = [PodSetAssignment(one.name, one.count, {"cpu": "plain"}, {}, slots) for one in owner.pod_sets]
    plain = msgspec.convert(
        {"metadata": {"name": "plain"}, "spec": {"nodeLabels": {"zone": "z"}, "tolerations": [{"key": "t"}]}},
        ResourceFlavor,
    )
    admission = Admission("gpu", tuple(parts))
    body = pod_template.start(owner, admission, {"plain": plain}, KEYS)
    at = "/spec/replicatedJobs/1/template/spec/template/spec"
    assert body[0] == {"op": "test", "path": "/metadata/uid", "value": "u-js"}
    assert len(body) == 3, "its controller would merge what is added here into Jobs that keep it in another flavor"
    assert body[-1] == {"op": "add", "path": "/spec/suspend", "value": False}
    assert body[1] == {"op": "replace", "path": "/metadata/resourceVersion", "value": "1"}, "or somebody edited it"
    assert pod_template.stop(owner)[-1] == {"op": "add", "path": "/spec/suspend", "value": True}
    kept = [{"name": one.name, "template": msgspec.json.decode(one.raw)} for one in owner.pod_sets]
    assert pod_template.restore(owner, kept) is None
    started = template(nodeSelector={"zone": "z"}, schedulingGates=None)
    back = pod_template.restore(owner_of(suspend=True, workers=started), kept)
    assert {"op": "remove", "path": f"{at}/nodeSelector"} in back
    assert {"op": "add", "path": f"{at}/schedulingGates", "value": GATE} in back


# --- Jobs and numbers that anybody may write -----------------------------------------------------------


def test_a_jobset_of_any_size_is_read_in_no_time():
    owner = owner_of(children=[child("workers", 1, 2, active=2, ready=2)], replicas=20_000_000)
    workers = owner.pod_sets[1]
    assert (workers.count, workers.full, owner.ready) == (40_000_000, 40_000_000, 2)
    assert owner.wrong is None
    assert workers.rank_of_pod(PODS[-1]) == 3
    done = owner_of(children=[child("workers", 7, 2, completedIndexes="0-1", succeeded=2)], replicas=20_000_000)
    assert (done.pod_sets[1].count, done.pod_sets[1].done) == (39_999_998, ((14, 15),))


def test_one_with_more_pods_than_a_workload_can_say_is_refused_by_its_field():
    owner = owner_of(replicas=(1 << 31) - 1)
    assert owner.wrong.reason is Reason.INVALID_REQUEST
    assert "spec.replicatedJobs[1].replicas: Too many: pod set workers has 4294967294 pods" in str(owner.wrong)
    assert owner.pod_sets[1].full == (1 << 31) - 1, "its Workload can be made, and says why it waits"


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        ({}, True),
        ({"name": "js-workers-9"}, False),
        ({"labels": {}}, False),
        ({"labels": {JOB_SET_ROLE: "workers", JOB_SET_INDEX: "x"}}, False),
        ({"labels": {JOB_SET_ROLE: "others", JOB_SET_INDEX: "1"}, "name": "js-others-1"}, False),
        ({"namespace": "thief"}, False),
    ],
)
def test_a_job_is_a_jobsets_only_where_that_makes_such_jobs(change, counts):
    made = child("workers", 1, 2)
    made = msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, **change))
    assert made_by(make_jobset(), made.metadata) is counts


def queued(job, name="j", **meta):
    labels = {**(job.metadata.labels or {}), KEYS.queue_name: "team"}
    changed = msgspec.structs.replace(job.metadata, name=name, labels=labels, **meta)
    return msgspec.structs.replace(job, metadata=changed)


def test_a_job_with_a_queue_that_claims_a_jobset_that_does_not_make_it_is_its_own(world):
    world.put_set(make_jobset())
    world.put("job", queued(child("workers", 1, 2), uid="u-forged"))
    assert set(world.memory.entries) == {"ns/u-js", "ns/u-forged"}
    assert not world.memory.entries["ns/u-forged"].job.suspended, "its life has it suspended"


def test_a_jobset_that_nobody_sees_is_believed_in_for_a_while(world):
    world.put_set(make_jobset())
    world.put("job", queued(child("workers", 1, 2), uid="u-forged", owner_references=ref("u-nobody")))
    assert set(world.memory.entries) == {"ns/u-js"}
    world.memory.jobs.judge_unproved()
    assert set(world.memory.entries) == {"ns/u-js"}
    world.now += UNPROVED
    world.memory.jobs.judge_unproved()
    assert set(world.memory.entries) == {"ns/u-js", "ns/u-forged"}
    world.drop("job", queued(child("workers", 1, 2), uid="u-forged", owner_references=ref("u-nobody")))
    assert not world.memory.jobs._unproved


def test_the_jobs_of_a_jobset_that_is_orphaned_take_their_pods_along(world):
    world.put_set(make_jobset())
    for role, index, count in JOBS:
        world.put("job", child(role, index, count))
    for one in PODS:
        world.put("pod", one)
    orphan = child("workers", 1, 2)
    world.put(
        "job", msgspec.structs.replace(orphan, metadata=msgspec.structs.replace(orphan.metadata, owner_references=()))
    )
    records = world.memory.entries
    assert sorted(one.metadata.name for one in records["ns/u-workers-1"].pods.values()) == [
        "workers-1-0",
        "workers-1-1",
    ]
    assert len(records["ns/u-js"].pods) == 3
    world.drop("pod", PODS[-1])
    assert [one.metadata.name for one in records["ns/u-workers-1"].pods.values()] == ["workers-1-0"], (
        "what ends is seen"
    )
    world.put("pod", PODS[-1])
    assert len(records["ns/u-workers-1"].pods) == 2, "and so is what comes"


def test_children_of_a_jobset_in_another_namespace_are_none_of_its(world):
    world.put_set(make_jobset())
    stolen = child("workers", 1, 2)
    meta = msgspec.structs.replace(stolen.metadata, namespace="thief", uid="u-stolen")
    world.put("job", msgspec.structs.replace(stolen, metadata=meta))
    record = world.memory.entries["ns/u-js"]
    before = record.job
    assert "thief/u-stolen" not in world.memory.entries.owners._children.get("ns/u-js", {})
    assert record.job == before


@pytest.mark.parametrize("first", [True, False])
def test_pods_of_another_kind_that_name_a_job_of_its_are_none_of_its(world, first):
    forged = pod("workers", 1, 7, mark="made-up")
    other = OwnerReference(api_version="made.up/v1", kind="Thing", name="x", uid="u-workers-1", controller=True)
    forged = msgspec.structs.replace(
        forged, metadata=msgspec.structs.replace(forged.metadata, owner_references=(other,))
    )
    gated = msgspec.structs.replace(forged.spec, scheduling_gates=PODS[0].spec.scheduling_gates)
    forged = msgspec.structs.replace(forged, spec=gated)
    world.put_set(make_jobset())
    if first:
        world.put("pod", forged)
    world.put("job", child("workers", 1, 2))
    if not first:
        world.put("pod", forged)
    (entry,) = [entry for key, entry in world.memory.entries.items() if key != "ns/u-js"]
    assert entry.id == "ns/u-workers-1@Thing.made.up"
    assert world.memory.entries["ns/u-js"].pods == {}
    world.drop("pod", forged)
    assert not entry.pods


@pytest.mark.parametrize("labelled", [None, "driver", "made-up"])
def test_a_pod_that_was_let_go_is_of_the_pod_set_whose_slot_it_has_however_it_is_relabelled(labelled):
    """Else its slot is given back while it runs, and its quota with that."""
    view = owner_of()
    gone = pod("workers", 0, 0, at={}, mark="w")
    assert view.pod_set_of(gone).name == "workers"
    labels = {**gone.metadata.labels, JOB_SET_ROLE: labelled} if labelled else {}
    annotations = {**(gone.metadata.annotations or {}), KEYS.pod_set: "workers"}
    meta = msgspec.structs.replace(gone.metadata, labels=labels, annotations=annotations)
    assert view.pod_set_of(msgspec.structs.replace(gone, metadata=meta)).name == "workers"
    waits = msgspec.structs.replace(pod("driver", 0, 0), metadata=meta)
    assert view.pod_set_of(waits) != view.pod_sets[0], "what a gated pod says of itself counts no more than its labels"


def test_one_whose_amounts_cannot_be_read_is_told_which():
    """Its own schema is to refuse that, and an older one may not."""
    body = msgspec.json.decode(msgspec.json.encode(make_jobset()))
    body["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["spec"]["containers"][0]["resources"] = {
        "requests": {"cpu": "lots"}
    }
    broken = msgspec.json.decode(msgspec.json.encode(body), type=JobSet)
    view = owner_of_jobset(broken, (), KEYS)
    for seen in (view, owner_of_jobset(broken, (), KEYS, view)):
        assert str(seen.wrong).startswith(
            "spec.replicatedJobs[1].template.spec.template: cpu: 'lots' is not a quantity"
        )
        assert [one.shape for one in seen.pod_sets], "and it can still be counted"


def ref(uid):
    return (
        OwnerReference(api_version="jobset.x-k8s.io/v1alpha2", kind="JobSet", name="other", uid=uid, controller=True),
    )


def test_of_a_job_that_gets_another_owner_and_goes_nothing_is_kept():
    world = World()
    job = make_job("a", uid="a")
    for uid in ("one", "two", ""):
        owner = OwnerReference(api_version=JOB_SET_API, kind=JOB_SET, name=uid, uid=uid, controller=True)
        meta = msgspec.structs.replace(job.metadata, owner_references=(owner,) if uid else ())
        job = msgspec.structs.replace(job, metadata=meta)
        world.put("job", job)
        assert list(world.memory.entries.owners._children) == ([f"ns/{uid}"] if uid else [])
    world.drop("job", job)
    assert (world.memory.entries.owners._children, world.memory.entries) == ({}, {})


# --- what admissions add ---------------------------------------------------------------------------------


def plain_flavor(name):
    body = {"metadata": {"name": name}, "spec": {"nodeLabels": {name: "yes"}, "tolerations": [{"key": name}]}}
    return msgspec.convert(body, ResourceFlavor)


def patched(spec, body):
    """The JobSet's pod template of its workers after a JSON Patch of ours."""
    found = json.loads(json.dumps(spec))
    at = "/spec/replicatedJobs/1/template/spec/template/spec/"
    for one in body:
        if one["path"].startswith(at):
            name = one["path"].removeprefix(at)
            found.pop(name, None)
            if one["op"] != "remove":
                found[name] = one["value"]
    return found


def test_beside_kueue_each_template_says_which_pod_set_it_is():
    """Kueue's pod sets of a JobSet have the names of its replicated jobs (0.19.2, jobset_controller.go)."""
    owner = owner_of(suspend=True)
    parts = tuple(PodSetAssignment(one.name, one.count, {"cpu": "a"}, {}, None) for one in owner.pod_sets)
    body = pod_template.start(owner, Admission("cq", parts), {}, KEYS, kueue="jobset-js-0a1b2")
    set_to = {one["path"]: one["value"] for one in body if one["op"] == "add"}
    for at, name in enumerate(("leader", "workers")):
        meta = f"/spec/replicatedJobs/{at}/template/spec/template/metadata"
        assert set_to[f"{meta}/labels"] == {KUEUE_POD_SET: name}
        assert set_to[f"{meta}/annotations/{KUEUE_WORKLOAD.replace('/', '~1')}"] == "jobset-js-0a1b2"


@pytest.mark.parametrize("gated", [True, False])
def test_a_jobset_that_returns_in_another_flavor_keeps_nothing_of_the_first(gated):
    """JobSet 0.12.0 merges its templates into the Jobs that are there, and takes nothing out of them."""
    flavors = {name: plain_flavor(name) for name in ("a", "b")}
    before = template(schedulingGates=GATE if gated else None)
    child, sent = before, []
    for name in ("a", "b"):
        owner = owner_of(suspend=True, workers=before)
        parts = tuple(PodSetAssignment(one.name, one.count, {"cpu": name}, {}, None) for one in owner.pod_sets)
        admission = Admission("cq", parts)
        started = patched(before["spec"], pod_template.start(owner, admission, flavors, KEYS))
        child = jobsets.merged(child, {**before, "spec": started})
        record = make_record(owner, admission=admission)
        sent.append(pod_template.to_pods(record, "workers", flavors, KEYS, ()))
    assert (child["spec"]["nodeSelector"], child["spec"]["tolerations"]) == ({}, [])
    assert child["spec"]["schedulingGates"] == GATE, "its pods get it when their gate is removed"
    assert [one.node_selector for one in sent] == [{"a": "yes"}, {"b": "yes"}]
    assert [[each.key for each in one.tolerations] for one in sent] == [["a"], ["b"]]


def test_pods_of_a_jobset_that_have_quota_alone_are_let_go_anywhere():
    owner = owner_of(labels={KEYS.queue_name: "team"})
    parts = tuple(PodSetAssignment(one.name, one.count, {"cpu": "a"}, {}, None) for one in owner.pod_sets)
    admission = Admission("cq", parts)
    known = make_known(
        owner,
        admission=admission,
        conditions=[
            Condition(type=type_, status="True", reason="x", last_transition_time="2026-11-21T00:00:00Z")
            for type_ in ("QuotaReserved", "Admitted")
        ],
    )
    pods = [pod for pod in PODS if pod.metadata.labels]
    record = make_record(owner, admission=admission, observed=known, pods=pods, started=True)
    going = [one for one in reconcile(record, context(), 100.0, 100.0) if isinstance(one, Ungate)]
    assert [one.pod.metadata.name for one in going] == [pod.metadata.name for pod in pods]
    assert {one.index for one in going} == {ANYWHERE}

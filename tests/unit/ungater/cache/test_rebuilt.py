"""A Workload that was deleted while no controller was there: what its pods have that run is held again, if it is so."""

import json

import msgspec
import pytest
from support.owned import KEYS, LEVELS, make_admission, make_job, make_known, make_pod, slot_map
from support.queued_world import cluster_queue, entry_of, filled, queued, read
from support.world import FLAVOR, NODES, World, make_node

from crds.admitted_quota import AdmittedQuota, encode
from crds.constants import ADMITTED_QUOTA
from kube.objects import ObjectMeta, ResourceFlavor, ResourceFlavorSpec
from kube.queues import LocalQueue
from kube.workloads import WorkloadObject
from queueing.cycle.cycle import cycle
from ungater.jobs.job import owner_of
from ungater.jobs.pod_group import owner_key, owner_of_pods
from ungater.model.admission import Nomination
from ungater.model.job_view import id_of
from ungater.model.workload_spec import new_workload
from ungater.model.workload_status import nomination_patch

CPU = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
PAID = encode(AdmittedQuota("cq", {"cpu": "gpu"}))


@pytest.fixture
def world():
    return filled(World())


def annotated(pod, **more):
    annotations = {**(pod.metadata.annotations or {}), **more}
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, annotations=annotations))


def run(world, job, places, *, quota=PAID, spec=CPU, **more):
    """Pods of a job that were let go to these places (rack, host), and run there."""
    for number, (rack, host) in enumerate(places):
        node = f"{rack}-{host}"
        at = ("b", rack, node)
        name = f"{job.metadata.name}-{number}"
        pod = make_pod(name, owner=owner_of(job, KEYS), at=at, node=node, phase="Running", spec=spec, **more)
        pod = annotated(pod, **{KEYS.pod_set: "main"}, **({ADMITTED_QUOTA: quota} if quota else {}))
        world.put("pod", pod)


def job_of(world, name="train", pods=2, *, queue="team", **more):
    labels = {KEYS.queue_name: queue} if queue else {}
    job = make_job(name, parallelism=pods, labels=labels, **more)
    world.put("job", job)
    return job


def local_queue(name, leads_to):
    body = {"metadata": {"namespace": "ns", "name": name}, "spec": {"clusterQueue": leads_to}}
    return read(body, LocalQueue)


def stored_nomination(owner, nomination):
    """The Workload of a job that waits for its victims to go."""
    body = json.loads(msgspec.json.encode(new_workload(owner, 100)))
    body["metadata"] |= {"uid": f"wl-{owner.uid}", "resourceVersion": "9"}
    body["status"] = {"nomination": nomination}
    return msgspec.json.decode(msgspec.json.encode(body), type=WorkloadObject)


def held(memory, job):
    entry = memory.entries[id_of(job)]
    if entry.admission is None:
        return None
    return {slot.values[-1]: slot.count for slots in entry.slots_in.values() for slot in slots.slots}


def test_running_pods_keep_their_places_and_their_quota(world):
    job = job_of(world)
    run(world, job, [("r2", "h1"), ("r2", "h2")])
    again = world.restarted()
    assert held(again, job) == {"r2-h1": 1, "r2-h2": 1}
    entry = again.entries[id_of(job)]
    assert (entry.admission.queue, entry.queue_before, entry.started) == ("cq", "team", True)
    assert again.queues.quotas.used("cq", ("gpu", "cpu")) == 2000
    assert again.state.free_on_node("r2-h1")["cpu"] == 1000, "a pod and its slot count once"


def test_it_is_what_a_controller_holds_that_saw_it_all(world):
    job = make_job("train", parallelism=2, labels={KEYS.queue_name: "team"}, suspend=True)
    world.put("job", job)
    slots = world.admit(job)
    before = entry_of(world, job)
    run(world, job, [tuple(slot.node.split("-")) for slot in slots.slots for _ in range(slot.count)])
    world.put("job", msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, suspend=False)))
    world.stores["workload"].clear()
    again = world.restarted().entries[id_of(job)]
    assert again.admission.same_grant(before.admission)
    assert again.slots_in == before.slots_in


def test_a_job_without_a_queue_keeps_its_places_too(world):
    job = job_of(world, queue="")
    run(world, job, [("r1", "h1"), ("r1", "h1")], quota="")
    again = world.restarted()
    assert held(again, job) == {"r1-h1": 2}
    assert again.entries[id_of(job)].admission.queue == ""


def test_pods_that_are_missing_get_places_beside_those_that_run(world):
    job = job_of(world, pods=3)
    run(world, job, [("r2", "h1"), ("r2", "h1")])
    assert held(world.restarted(), job) == {"r2-h1": 2, "r2-h2": 1}


def test_one_on_its_way_keeps_its_place(world):
    job = job_of(world)
    run(world, job, [("r2", "h1"), ("r2", "h2")])
    moved(world, "train-1", "")
    again = world.restarted()
    assert held(again, job) == {"r2-h1": 1, "r2-h2": 1}
    assert again.state.free_on_node("r2-h2")["cpu"] == 1000


@pytest.mark.parametrize("bound", [True, False], ids=["on it", "on its way to it"])
def test_one_of_a_node_that_is_gone_is_missing_and_the_others_keep_their_places(world, bound):
    job = job_of(world)
    run(world, job, [("r2", "h1"), ("r9", "h1")])
    if not bound:
        moved(world, "train-1", "")
    again = world.restarted()
    assert sum(held(again, job).values()) == 2
    assert held(again, job)["r2-h1"] >= 1


def test_one_that_nobody_suspends_holds_what_its_pods_have_where_others_find_no_room(world):
    job, other = job_of(world, pods=4, queue=""), job_of(world, "other", 1, queue="")
    run(world, job, [("r2", "h1"), ("r2", "h1")], quota="")
    run(world, other, [("r2", "h2")], quota="")
    again = world.restarted()
    assert held(again, job) == {"r2-h1": 2}
    assert again.entries[id_of(job)].growing == {"main": 4}


def test_where_those_that_are_missing_find_no_room_it_waits_as_a_whole(world):
    job, other = job_of(world, pods=4), job_of(world, "other", 1, queue="")
    run(world, job, [("r2", "h1"), ("r2", "h1")])
    run(world, other, [("r2", "h2")], quota="")
    again = world.restarted()
    assert held(again, job) is None
    assert again.state.free_on_node("r2-h1")["cpu"] == 0, "its pods run on for now"
    assert again.queues.quotas.used("cq", ("gpu", "cpu")) == 2000, "and are paid for"


LIES = {
    "a place where it is not": lambda world, job: run(world, job, [("r2", "h1")]) or moved(world, "train-0", "r1-h2"),
    "a rack each, where one is required": lambda world, job: run(world, job, [("r1", "h1"), ("r2", "h1")]),
    "more pods than the job has": lambda world, job: run(world, job, [("r2", "h1")] * 2 + [("r2", "h2")]),
    "no quota": lambda world, job: run(world, job, [("r2", "h1"), ("r2", "h2")], quota=""),
    "quota that cannot be read": lambda world, job: run(world, job, [("r2", "h1")] * 2, quota='{"clusterQueue": [1]}'),
    "quota of nothing": lambda world, job: run(world, job, [("r2", "h1")] * 2, quota=encode(AdmittedQuota("cq"))),
    "quota of another queue": lambda world, job: run(
        world, job, [("r2", "h1")] * 2, quota=encode(AdmittedQuota("rich", {"cpu": "gpu"}))
    ),
    "quota of a flavor that is not the queue's": lambda world, job: run(
        world, job, [("r2", "h1")] * 2, quota=encode(AdmittedQuota("cq", {"cpu": "gold"}))
    ),
    "a resource without quota": lambda world, job: run(
        world,
        job,
        [("r2", "h1")] * 2,
        spec={"containers": [{"name": "c", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]},
    ),
    "each another quota": lambda world, job: (
        run(world, job, [("r2", "h1"), ("r2", "h2")]),
        world.put("pod", annotated(world.stores["pod"]["ns/train-1"], **{ADMITTED_QUOTA: json.dumps({})})),
    ),
    "another workload": lambda world, job: run(world, job, [("r2", "h1")] * 2, marked=False),
    "no node that there is": lambda world, job: run(world, job, [("r9", "h1")] * 2),
}


def moved(world, name, node):
    pod = world.stores["pod"][f"ns/{name}"]
    world.put("pod", msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node)))


@pytest.mark.parametrize("lie", LIES)
def test_what_pods_say_and_is_not_so_counts_for_nothing(world, lie):
    job = job_of(world)
    LIES[lie](world, job)
    again = world.restarted()
    assert held(again, job) is None
    assert not again.state.assignments(again.entries[id_of(job)].key)


@pytest.mark.parametrize("pods", [2, 3])
def test_quota_is_asked_for_what_does_not_run_alone(world, pods):
    """Who runs keeps what it was let go by; what is missing has to be paid for."""
    world.put("cluster_queue", cluster_queue(1))
    job = job_of(world, pods=pods)
    run(world, job, [("r2", "h1"), ("r2", "h2")])
    again = world.restarted()
    assert held(again, job) == ({"r2-h1": 1, "r2-h2": 1} if pods == 2 else None)
    assert again.queues.quotas.used("cq", ("gpu", "cpu")) == 2000


def group_of(world, queue="team"):
    """A group of three pods that nobody suspends, two of which run."""
    labels = {**({KEYS.queue_name: queue} if queue else {}), KEYS.pod_group: "g"}
    own = {KEYS.pod_group_total: "3", KEYS.required[0]: LEVELS[-2], KEYS.pod_set: "main", ADMITTED_QUOTA: PAID}
    pods = []
    for number in range(2):
        pod = make_pod(f"g-{number}", owner=None, at=("b", "r2", "r2-h1"), node="r2-h1", phase="Running", spec=CPU)
        meta = msgspec.structs.replace(pod.metadata, owner_references=(), labels=labels, annotations=own)
        pods.append(msgspec.structs.replace(pod, metadata=meta))
    owner = owner_of_pods(owner_key(pods[0], KEYS), pods, KEYS)
    for pod in pods:
        world.put("pod", annotated(pod, **{KEYS.workload: owner.workload}))
    return owner


@pytest.mark.parametrize("quota", [1, 2, 3])
def test_pods_that_nobody_suspends_hold_what_they_have_where_quota_lacks_for_those_to_come(world, quota):
    world.put("cluster_queue", cluster_queue(quota))
    owner = group_of(world)
    again = world.restarted()
    [slots] = again.entries[owner.id].slots_in.values()
    assert sum(slot.count for slot in slots.slots) == max(2, quota), "its quota may be less than when they were let go"
    assert again.queues.quotas.used("cq", ("gpu", "cpu")) == 1000 * max(2, quota)


def test_room_that_is_promised_to_somebody_else_is_not_taken(world):
    """Its pods run where another workload, whose Workload is there, has slots: nobody gets both."""
    other = make_job("other", parallelism=4, suspend=False)
    world.put("job", other)
    slots = world.admit(other)
    job = job_of(world)
    run(world, job, [tuple(slot.node.split("-")) for slot in slots.slots][:2])
    again = world.restarted()
    assert held(again, job) is None
    assert held(again, other) == {slot.node: slot.count for slot in slots.slots}


@pytest.mark.parametrize("quota", [4, 8])
@pytest.mark.parametrize("stop", ["None", "Hold"])
def test_what_runs_is_held_where_a_nominated_workload_was_to_have_its_place(world, stop, quota):
    """Its Workload was deleted, so that nobody knows it for a victim any more: the plan is made anew."""
    spec = {"preemption": {"withinClusterQueue": "LowerPriority"}}
    world.put("cluster_queue", cluster_queue(quota, **spec))
    for node in NODES:
        if node.metadata.name.startswith("r2"):
            world.drop("node", node)
    low = queued(world, "low", 4)
    slots = world.admit(low)
    high = entry_of(world, queued(world, "high", 2))
    high.observed = make_known(high.job, priority=100)
    world.memory.admissions.enqueue_entry(high)
    (plan,) = cycle(world.memory.state, world.memory.queues, 0.0).preempting
    admission = world.memory.reservations.admission_of(high, plan.grant)
    nomination = Nomination(admission, {one.key: one.uid for one in plan.victims}, {one.key: 0 for one in plan.victims})
    body = nomination_patch(high.observed, (), nomination, 0.0)["status"]["nomination"]
    run(world, low, [tuple(slot.node.split("-")) for slot in slots.slots for _ in range(slot.count)])
    world.put("job", msgspec.structs.replace(low, spec=msgspec.structs.replace(low.spec, suspend=False)))
    world.put("workload", stored_nomination(high.job, body))
    world.stores["workload"].pop(entry_of(world, low).key)
    world.put("cluster_queue", cluster_queue(quota, stopPolicy=stop, **spec))
    again = world.restarted()
    assert high.key in again.queues.holders.nominated
    (planned,) = again.reservations.planned(again.entries[high.id]).values()
    assert {slot.node for slot in planned.slots} <= {slot.node for slot in slots.slots}, "room may be kept there"
    assert held(again, low) == {slot.node: slot.count for slot in slots.slots}
    done = cycle(again.state, again.queues, 0.0)
    assert not done.admitted
    victims = [one.key for plan in done.preempting for one in plan.victims]
    assert victims == ([entry_of(world, low).key] if stop == "None" else [])


@pytest.mark.parametrize("queue", ["", "other"])
def test_pods_that_nobody_suspends_go_on_in_the_queue_that_let_them_go(world, queue):
    """As their workload did as long as its Workload was there, whatever their pods, or those after them, name."""
    world.put("local_queue", local_queue("other", "rich"))
    owner = group_of(world, queue)
    again = world.restarted()
    entry = again.entries[owner.id]
    assert (entry.admission.queue, entry.queue_before) == ("cq", "team")
    assert again.queues.quotas.used("cq", ("gpu", "cpu")) == 3000
    world.drop("local_queue", world.stores["local_queue"]["ns/team"])
    again = world.restarted()
    assert again.entries[owner.id].admission is None, "nothing of its namespace leads there"
    assert again.queues.quotas.used("cq", ("gpu", "cpu")) == 2000, "what runs is paid for"


@pytest.mark.parametrize("more", [{"suspend": True}, {"deleted": True}, {"status": {"conditions": [
    {"type": "Complete", "status": "True"}]}}])  # fmt: skip
def test_one_that_is_suspended_or_over_holds_nothing(world, more):
    job = job_of(world, **more)
    run(world, job, [("r2", "h1"), ("r2", "h2")])
    assert held(world.restarted(), job) is None


def test_ranks_of_a_slice_are_to_be_in_one_domain(world):
    slices = {KEYS.required[0]: "block", KEYS.slice_level: "rack", KEYS.slice_size: "2"}
    for racks, kept in ((("r1", "r1", "r2", "r2"), True), (("r1", "r2", "r1", "r2"), False)):
        job = job_of(world, pods=4, indexed=True, request=slices)
        for rank, rack in enumerate(racks):
            node = f"{rack}-h1"
            pod = make_pod(
                f"train-{rank}", owner=owner_of(job, KEYS), rank=rank, at=("b", rack, node), node=node, spec=CPU
            )
            world.put("pod", annotated(pod, **{ADMITTED_QUOTA: PAID}))
        assert (held(world.restarted(), job) is not None) is kept


def test_a_wider_level_than_the_node_is_checked_by_where_pods_are():
    world = World()
    levels = LEVELS[:2]
    topology = msgspec.structs.replace(FLAVOR.spec.topology, levels=levels)
    world.put("flavor", msgspec.structs.replace(FLAVOR, spec=msgspec.structs.replace(FLAVOR.spec, topology=topology)))
    for node in [*NODES, make_node("r3", "h1", cpu="8")]:
        world.put("node", node)
    job = make_job(parallelism=3)
    world.put("job", job)
    for number, node in enumerate(("r1-h1", "r1-h2", "")):
        pod = make_pod(f"p{number}", owner=owner_of(job, KEYS), at=("b", "r1", ""), node=node, spec=CPU)
        selector = dict(zip(levels, ("b", "r1"), strict=True))
        world.put("pod", msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_selector=selector)))
    again = world.restarted()
    assert held(again, job) == {"r1": 3}
    assert again.state.free_on_node("r1-h1")["cpu"] + again.state.free_on_node("r1-h2")["cpu"] == 1000


def test_a_pod_that_has_quota_and_no_slot_keeps_its_quota(world):
    plain = ResourceFlavor(metadata=ObjectMeta(name="plain"), spec=ResourceFlavorSpec(node_labels={"rack": "r1"}))
    world.put("flavor", plain)
    flavor = {"name": "plain", "resources": [{"name": "cpu", "nominalQuota": 4}]}
    world.put("cluster_queue", cluster_queue(4, resourceGroups=[{"coveredResources": ["cpu"], "flavors": [flavor]}]))
    for node, kept in (("r1-h1", True), ("r2-h1", False)):
        pod = make_pod("lone", gated=False, node=node, phase="Running", spec=CPU)
        meta = msgspec.structs.replace(
            pod.metadata,
            owner_references=(),
            labels={KEYS.queue_name: "team"},
            annotations={KEYS.unconstrained: "true", ADMITTED_QUOTA: encode(AdmittedQuota("cq", {"cpu": "plain"}))},
        )
        pod = msgspec.structs.replace(pod, metadata=meta)
        own = owner_of_pods(owner_key(pod, KEYS), [pod], KEYS)
        world.put("pod", annotated(pod, **{KEYS.workload: own.workload}))
        again = world.restarted()
        entry = again.entries[own.id]
        assert (entry.admission is not None) is kept
        assert again.queues.quotas.used("cq", ("plain", "cpu")) == 1000, "it runs, and is paid for"


# --- what is noted on a Workload that was made anew, and has no status yet ------------------------------------------


def noted(world, job, admission):
    """The Workload of a job, made anew with this note."""
    body = json.loads(msgspec.json.encode(new_workload(owner_of(job, KEYS), 0, admission)))
    body["metadata"] |= {"uid": "wl-new", "resourceVersion": "9"}
    world.put("workload", msgspec.json.decode(msgspec.json.encode(body), type=WorkloadObject))


def of_quota(count, queue="cq", **flavors):
    return make_admission(None, queue=queue, count=count, flavors=flavors or {"cpu": "gpu"})


def plain_job(world, pods=2):
    return job_of(world, pods=pods, request={}, gated=False)


def test_a_note_counts_where_pods_run_that_have_no_slots(world):
    job = plain_job(world)
    world.put("pod", make_pod("p", owner=owner_of(job, KEYS), gated=False, node="r1-h1", phase="Running", spec=CPU))
    noted(world, job, of_quota(2))
    again = world.restarted()
    entry = again.entries[id_of(job)]
    assert entry.admission.same_grant(of_quota(2))
    assert (entry.started, entry.queue_before) == (True, "")
    assert again.queues.quotas.used("cq", ("gpu", "cpu")) == 2000


def test_a_note_tells_more_than_pods_do(world):
    """The room beside those that run would be in the other host; the note says where it is kept."""
    job = job_of(world, pods=2)
    run(world, job, [("r2", "h1")])
    noted(
        world, job, make_admission(slot_map(("b/r2/r2-h1", 1), ("b/r2/r2-h2", 1)), queue="cq", flavors={"cpu": "gpu"})
    )
    assert sum(held(world.restarted(), job).values()) == 2


SLOTS = slot_map(("b/r2/r2-h1", 2))
FORGED_NOTES = {
    "where no pod runs": (of_quota(2), False),
    "of more pods than the job has": (of_quota(3), True),
    "of quota in another queue": (of_quota(2, "rich"), True),
    "of a flavor that the queue has not": (of_quota(2, cpu="gold"), True),
    "of no quota": (of_quota(2, memory="gpu"), True),
    "of slots, without the queue that it names": (make_admission(SLOTS), True),
    "of slots that its pods are not in": (make_admission(slot_map(("b/r9/r9-h1", 2)), queue="cq"), True),
}


@pytest.mark.parametrize("what", FORGED_NOTES)
def test_a_note_is_believed_no_further_than_it_can_be_seen(world, what):
    admission, running = FORGED_NOTES[what]
    job = plain_job(world)
    if running:
        world.put("pod", make_pod("p", owner=owner_of(job, KEYS), gated=False, node="r1-h1", phase="Running", spec=CPU))
    noted(world, job, admission)
    again = world.restarted()
    assert again.entries[id_of(job)].admission is None
    assert not again.queues.quotas.used("cq", ("gpu", "cpu"))


def test_a_note_takes_no_quota_that_others_have(world):
    other = job_of(world, "other", 3)
    run(world, other, [("r1", "h1"), ("r1", "h1"), ("r1", "h2")])
    job = plain_job(world)
    world.put("pod", make_pod("p", owner=owner_of(job, KEYS), gated=False, node="r2-h1", phase="Running", spec=CPU))
    noted(world, job, of_quota(2))
    again = world.restarted()
    assert held(again, other) == {"r1-h1": 2, "r1-h2": 1}
    assert again.entries[id_of(job)].admission is None

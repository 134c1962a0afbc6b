"""What is let go is what was admitted, and what runs is paid for until it ends."""

import msgspec
import pytest
from support.owned import KEYS, context, make_admission, make_known, make_owner, make_pod, make_record
from support.world import FLAVOR, NODES, World, stored_workload

from crds.admitted_quota import AdmittedQuota, decode, encode
from crds.constants import ADMITTED_QUOTA
from crds.request import RequestError
from engine.reasons import Reason
from kube.objects import Namespace, ObjectMeta, Pod, PodStatus
from kube.queues import ClusterQueue, LocalQueue
from kube.workloads import ObservedStatus
from queueing.cycle.cycle import cycle
from ungater.cache.cache import Cache
from ungater.model import workload_spec, workload_status
from ungater.model.actions import (
    Dequeue,
    EmitEvent,
    Enqueue,
    Release,
    RestoreAdmission,
    Shorten,
    Shrink,
    ShrinkLater,
    Ungate,
    UpdateSpec,
    WriteConditions,
)
from ungater.model.conditions import HOLDING, WantedCondition, merge
from ungater.model.pod_slots import Expectation
from ungater.reconcile import granted
from ungater.reconcile.granted import as_admitted
from ungater.reconcile.reconcile import reconcile
from ungater.reconcile.ungating import running as running_steps
from ungater.scheduling.replacement import replace_lost_slots

OWNER = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "u-db", "controller": True}
CPU = ("gpu", "cpu")


def read(body, kind):
    return msgspec.json.decode(msgspec.json.encode(body), type=kind)


HELD = merge((), [WantedCondition(type_, True, Reason.ADMITTED, "") for type_ in HOLDING], generation=1, now=1.0) or ()


class Queued(World):
    """A StatefulSet's pods in a queue of 4 CPUs, on four nodes of 2."""

    def __init__(self, quota=4):
        super().__init__()
        self.of = "ns/u-db@StatefulSet.apps"
        self.put("flavor", FLAVOR)
        for node in NODES:
            self.put("node", node)
        self.put("namespace", Namespace(metadata=ObjectMeta(name="ns", labels={"team": "a"})))
        flavor = {"name": "gpu", "resources": [{"name": "cpu", "nominalQuota": quota}]}
        group = {"coveredResources": ["cpu"], "flavors": [flavor]}
        spec = {"resourceGroups": [group], "namespaceSelector": {}}
        self.put("cluster_queue", read({"metadata": {"name": "cq"}, "spec": spec}, ClusterQueue))
        for name in ("team", "other"):
            local = {"metadata": {"namespace": "ns", "name": name}, "spec": {"clusterQueue": "cq"}}
            self.put("local_queue", read(local, LocalQueue))

    @property
    def record(self):
        return self.memory.entries[self.of]

    def pod(self, name, cpu="1", *, queue="team", owner=OWNER, request="unconstrained", total=None, **meta):
        unconstrained = {KEYS.unconstrained: "true"} if request == "unconstrained" else {KEYS.required[0]: request}
        more = {} if total is None else {KEYS.pod_group_total: str(total)}
        body = {
            "metadata": {
                "name": name,
                "namespace": "ns",
                "uid": f"u-{name}",
                "labels": {KEYS.queue_name: queue} if queue else {},
                "annotations": {**unconstrained, **more},
                "ownerReferences": [owner] if owner else [],
                "creationTimestamp": f"2026-11-21T00:00:{len(self.stores['pod']):02}Z",
                **meta,
            },
            "spec": {
                "schedulingGates": [{"name": KEYS.gate}],
                "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}],
            },
            "status": {"phase": "Pending"},
        }
        made = read(body, Pod)
        self.put("pod", made)
        return made

    def run(self, pod, slot, *, quota="cq", bound=True, **change):
        """Let a pod go and have it run, as the ungating patch and kube-scheduler do."""
        annotations = {**pod.metadata.annotations, KEYS.workload: self.record.job.workload}
        if quota:
            annotations[ADMITTED_QUOTA] = encode(AdmittedQuota(quota, {"cpu": "gpu"}))
        levels = dict(zip(FLAVOR.spec.topology.levels, slot.values, strict=True))
        spec = msgspec.structs.replace(
            pod.spec, scheduling_gates=None, node_selector=levels, node_name=slot.node if bound else ""
        )
        meta = msgspec.structs.replace(pod.metadata, annotations=annotations, **change)
        made = msgspec.structs.replace(pod, metadata=meta, spec=spec)
        self.put("pod", made)
        return made

    def change(self, pod, **change):
        made = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, **change))
        self.put("pod", made)
        return made

    def admitted(self, *, asked=None):
        """Wait and be admitted, or be given more; what the last cycle refused is returned."""
        record = self.record
        record.observed = record.observed or make_known(record.job)
        self.memory.pod_groups.regroup(record)
        record.asked = asked or {}
        self.memory.admissions.enqueue_entry(record)
        made = cycle(self.memory.state, self.memory.queues, 0.0)
        for one in (*made.admitted, *made.resized):
            admission = self.memory.reservations.admission_of(record, one.grant)
            self.memory.admissions.store_admission(record, admission, one.grant)
            self.stored(admission)
        return self.memory.queues.entries[record.key].refusal

    def stored(self, admission):
        """The admission is stored, and its Workload seen."""
        record = self.record
        observed = workload_status.observed_of(stored_workload(record.job, admission))
        record.observed = msgspec.structs.replace(
            observed,
            queue=record.job.queue,
            conditions=HELD,
        )

    def told(self, now=100.0):
        self.memory.pod_groups.regroup(self.record)
        self.memory.count_pods(self.record, now)
        return reconcile(self.record, self.memory.rules, now, 100.0)

    def used(self, memory: Cache | None = None):
        return (memory or self.memory).queues.quotas.used("cq", CPU)


@pytest.fixture
def world():
    return Queued()


def gone(instructions):
    return [one.pod.metadata.name for one in instructions if isinstance(one, Ungate)]


def running(world, *sizes, queue="team"):
    """An admitted StatefulSet whose pods run, each of the size of the first."""
    pods = [world.pod(f"db-{at}", cpu, queue=queue) for at, cpu in enumerate(sizes)]
    world.admitted()
    slots = [slot for slot in world.record.slots.slots for _ in range(slot.count)]
    quota = "cq" if queue else ""
    return [world.run(pod, slot, quota=quota) for pod, slot in zip(pods, slots, strict=True)]


# --- requests --------------------------------------------------------------------------------------------------------


def test_a_pod_that_asks_for_more_than_was_admitted_does_not_go(world):
    world.pod("db-0", "100m")
    world.pod("db-1", "100m")
    world.admitted()
    assert gone(world.told()) == ["db-0", "db-1"]
    for name in ("db-0", "db-1"):
        world.drop("pod", world.stores["pod"][f"ns/{name}"])
        world.pod(name, "2")
    instructions = world.told()
    assert gone(instructions) == []
    (wish,) = [one for one in instructions if isinstance(one, Enqueue)]
    assert wish.asked == {"main": {"cpu": 2000}}
    said = next(one for one in instructions if isinstance(one, WriteConditions)).wanted[0]
    assert said.reason is Reason.ASKS_FOR_MORE
    assert "pod db-0 (and 1 more) asks for cpu 2, and StatefulSet db" in said.message
    assert "admitted with cpu 100m for each" in said.message
    assert any(isinstance(one, EmitEvent) and one.reason is Reason.ASKS_FOR_MORE for one in instructions)


def test_it_goes_once_more_is_admitted_and_all_are_charged_alike(world):
    running(world, "1", "1")
    world.drop("pod", world.stores["pod"]["ns/db-1"])
    world.pod("db-1", "2")
    assert world.admitted(asked={"main": {"cpu": 2000}}) is None
    assert world.used() == 4000
    assert gone(world.told()) == ["db-1"]
    stored = world.record.observed.admission
    assert stored.pod_set_named().usage == {"cpu": 4000, "pods": 2}
    assert stored.pod_set_named().asks == {"cpu": 2000}


def test_where_quota_lacks_it_waits_and_says_so(world):
    running(world, "1", "1", "1")
    world.drop("pod", world.stores["pod"]["ns/db-2"])
    world.pod("db-2", "2")
    refusal = world.admitted(asked={"main": {"cpu": 2000}})
    assert refusal.reason is Reason.INSUFFICIENT_QUOTA
    assert world.used() == 3000
    assert gone(world.told()) == []


@pytest.mark.parametrize(("quota", "reason"), [(4, Reason.INSUFFICIENT_QUOTA), (8, None)])
def test_one_of_which_none_runs_gives_back_what_it_holds_where_quota_lacks_for_more(quota, reason):
    """Two that each kept a part of what both want would wait for each other."""
    world = Queued(quota=quota)
    grown(world, "1", "2")
    refusal = world.admitted(asked={"main": {"cpu": 2000}})
    assert (refusal and refusal.reason) is reason
    if reason is None:
        assert gone(world.told()) == ["db-0", "db-1", "db-2"]
        return
    world.record.refused = refusal
    leave, release = world.told()
    assert isinstance(leave, Dequeue)
    assert isinstance(release, Release)
    assert {one.reason for one in release.wanted} == {Reason.ASKS_FOR_MORE}
    world.memory.admissions.release_job(world.record)
    assert world.used() == 0


def test_a_pod_that_was_sent_may_run_and_nothing_is_given_back_meanwhile(world):
    grown(world, "1", "2")
    world.record.refused = world.admitted(asked={"main": {"cpu": 2000}})
    slot = world.record.slots.slots[0]
    world.record.expectations["u-db-0"] = Expectation(slot.values, deadline=200.0)
    assert not any(isinstance(one, Release) for one in world.told())
    world.record.expectations["u-db-0"] = Expectation(slot.values, deadline=200.0, gone=True)
    assert any(isinstance(one, Release) for one in world.told()), "there is no such pod"


def grown(world, before, after):
    """A rolling update made all three pods anew, which ask for more, before any of them ran."""
    running(world, before, before, before)
    for name in ("db-0", "db-1", "db-2"):
        world.drop("pod", world.stores["pod"][f"ns/{name}"])
        world.pod(name, after)


def test_a_slot_whose_node_is_too_small_for_the_larger_pod_goes_elsewhere(world):
    world = Queued(quota=8)
    first = running(world, "1", "1")
    assert len({pod.spec.node_name for pod in first}) == 1, "both on one node of 2 CPUs"
    world.drop("pod", world.stores["pod"]["ns/db-1"])
    world.pod("db-1", "2")
    assert world.admitted(asked={"main": {"cpu": 2000}}) is None
    assert len(world.record.slots.slots) == 2
    assert all(
        amount >= 0 for name in world.memory.state.nodes for amount in world.memory.state.free_on_node(name).values()
    )


def test_a_restart_knows_what_was_granted_to_each(world):
    running(world, "1", "1")
    world.put("workload", stored_workload_of(world))
    world.drop("pod", world.stores["pod"]["ns/db-1"])
    world.pod("db-1", "2")
    again = world.restarted()
    record = again.entries["ns/u-db@StatefulSet.apps"]
    again.pod_groups.regroup(record)
    assert record.granted("main") == {"cpu": 1000}
    assert gone(reconcile(record, again.rules, 100.0, 100.0)) == []


def stored_workload_of(world):
    record = world.record
    made = stored_workload(record.job, record.admission)
    reference = msgspec.structs.replace(made.metadata.owner_references[0], kind="StatefulSet", api_version="apps/v1")
    return msgspec.structs.replace(
        made, metadata=msgspec.structs.replace(made.metadata, owner_references=(reference,), uid=record.observed.uid)
    )


def test_what_all_pods_ask_less_is_given_back(world):
    running(world, "2", "2")
    for name in ("db-0", "db-1"):
        world.drop("pod", world.stores["pod"][f"ns/{name}"])
        world.pod(name, "500m")
    assert any(isinstance(one, ShrinkLater) for one in world.told())
    world.record.shrink_at = 1.0
    (shrink,) = [one for one in world.told() if isinstance(one, Shrink)]
    assert (shrink.count, shrink.asks) == (2, {"cpu": 500})
    smaller = world.record.admission.shrink_pod_set("main", shrink.slots, shrink.count, shrink.asks)
    world.memory.admissions.hold_admission(world.record, smaller)
    assert world.used() == 1000
    assert gone(world.told()) == ["db-0", "db-1"]


def test_as_long_as_one_pod_asks_for_it_nothing_is_given_back(world):
    running(world, "2", "2")
    world.drop("pod", world.stores["pod"]["ns/db-1"])
    world.pod("db-1", "500m")
    world.record.shrink_at = 1.0
    assert not any(isinstance(one, Shrink) for one in world.told())


def test_one_that_left_runs_on_by_what_was_granted_so_nothing_is_given_back(world):
    running(world, "2", "2")
    left = world.stores["pod"]["ns/db-1"]
    for name in ("db-0", "db-1"):
        world.drop("pod", world.stores["pod"][f"ns/{name}"])
    world.pod("db-0", "500m")
    world.record.left[left.metadata.uid] = ("main", left)
    world.told()  # the view is that of the pods that there are
    (pod_set,) = world.record.job.pod_sets
    assert granted.less(world.record, pod_set, world.memory.rules) is None
    del world.record.left[left.metadata.uid]
    assert granted.less(world.record, pod_set, world.memory.rules) == {"cpu": 500}


def test_pods_of_a_group_that_switch_their_requests_after_the_first_do_not_go(world):
    group = {"labels": {KEYS.pod_group: "ring", KEYS.queue_name: "team"}}
    world.pod("p0", "0", owner=None, total=2, **group)
    record = world.memory.entries[":group/ns/ring"]
    record.observed = make_known(record.job)
    world.memory.admissions.enqueue_entry(record)
    (made,) = cycle(world.memory.state, world.memory.queues, 0.0).admitted
    world.memory.admissions.store_admission(
        record, world.memory.reservations.admission_of(record, made.grant), made.grant
    )
    record.observed = make_known(record.job, admission=record.admission, conditions=HELD)
    world.drop("pod", world.stores["pod"]["ns/p0"])
    world.pod("p1", "2", owner=None, total=2, **group)
    world.memory.pod_groups.regroup(record)
    instructions = reconcile(record, world.memory.rules, 100.0, 100.0)
    assert gone(instructions) == []
    assert any(isinstance(one, Enqueue) and one.asked == {"main": {"cpu": 2000}} for one in instructions)


def test_a_group_that_gave_back_what_was_too_little_waits_for_as_much_as_its_pods_ask(world):
    """One of more pods than it says: placed by one of them, and given back for the other, it would come and go."""
    group = {"labels": {KEYS.queue_name: "team", KEYS.pod_group: "g"}}
    for name, cpu in (("p0", "1"), ("p1", "2")):
        world.pod(name, cpu, owner=None, total=1, **group)
    (record,) = world.memory.entries.values()
    record.observed = make_known(record.job)
    assert [pod_set.requests["cpu"] for pod_set in world.memory.pod_sets.wish(record)] == [1000]
    gave_back = merge(
        (), [WantedCondition(type_, False, Reason.ASKS_FOR_MORE, "") for type_ in HOLDING], generation=1, now=0
    )
    record.observed = msgspec.structs.replace(record.observed, conditions=gave_back)
    assert [pod_set.requests["cpu"] for pod_set in world.memory.pod_sets.wish(record)] == [2000]


# --- queues ----------------------------------------------------------------------------------------------------------


def test_a_pod_of_another_queue_does_not_go(world):
    running(world, "1", "1")
    world.drop("pod", world.stores["pod"]["ns/db-1"])
    world.pod("db-1", queue="other", request="rack")
    instructions = world.told()
    assert isinstance(world.record.job.wrong, RequestError), "pods of two queues are no new workload of either"
    assert world.record.job.queue == "team"
    assert gone(instructions) == []
    said = next(one for one in instructions if isinstance(one, WriteConditions)).wanted[0]
    assert said.reason is Reason.OTHER_QUEUE
    assert "pod db-1 names another queue than StatefulSet db, which was admitted in queue team" in said.message


def test_once_none_runs_the_workload_waits_in_the_queue_that_its_pods_name(world):
    running(world, "1", "1")
    for name in ("db-0", "db-1"):
        world.drop("pod", world.stores["pod"][f"ns/{name}"])
    world.pod("db-0", queue="other")
    leave, release = world.told()
    assert isinstance(leave, Dequeue)
    assert isinstance(release, Release)
    assert {one.reason for one in release.wanted} == {Reason.OTHER_QUEUE}
    world.memory.admissions.release_job(world.record)
    record = world.record
    record.observed = msgspec.structs.replace(record.observed, admission=None, conditions=())
    assert world.used() == 0
    assert [type(one) for one in world.told()] == [Dequeue, UpdateSpec]


def renamed(world, *names, queue="other", cpu="1", **more):
    """Pods that run are made anew and name another queue, as a StatefulSet does it from the last one on."""
    for name in names:
        world.drop("pod", world.stores["pod"][f"ns/{name}"])
    for name in names:
        world.pod(name, cpu, queue=queue, **more)


def given_back(world):
    """Look twice, as what is left over is given back a moment later; carry out and return what is given back."""
    assert ShrinkLater in [type(one) for one in world.told()]
    world.record.shrink(99.0)
    (shrink,) = [one for one in world.told() if isinstance(one, Shrink)]
    smaller = world.record.admission.shrink_pod_set(shrink.pod_set, shrink.slots, shrink.count, shrink.asks)
    queue = world.record.observed.queue
    world.stored(smaller)
    world.record.observe(msgspec.structs.replace(world.record.observed, queue=queue))
    world.memory.admissions.hold_admission(world.record, smaller)
    return shrink


def wishes(instructions):
    return [type(one) for one in instructions if isinstance(one, Enqueue | Dequeue | Shrink | ShrinkLater | Release)]


@pytest.mark.parametrize(("before", "after"), [("team", "other"), (None, "team")])
def test_free_slots_of_pods_that_name_another_queue_are_given_back_and_not_asked_for_again(world, before, after):
    running(world, "1", "1", "1", queue=before)
    first = world.stores["pod"]["ns/db-0"]
    renamed(world, "db-1", "db-2", queue=after)
    shrink = given_back(world)
    assert [slot.values for slot in shrink.slots.slots] == [tuple(first.spec.node_selector.values())]
    assert shrink.count == 1
    assert world.used() == (1000 if before else 0)
    instructions = world.told()
    assert wishes(instructions) == [Dequeue], "else it would take them, and give them back, over and over"
    assert gone(instructions) == []
    said = next(one for one in instructions if isinstance(one, WriteConditions)).wanted[0]
    assert said.reason is Reason.OTHER_QUEUE
    assert "pod db-1 (and 1 more) names another queue" in said.message


def test_once_the_last_one_ends_it_waits_in_the_other_queue_for_all_of_its_pods(world):
    running(world, "1", "1", "1", queue=None)
    renamed(world, "db-1", "db-2", queue="team")
    given_back(world)
    renamed(world, "db-0", queue="team")
    assert wishes(world.told()) == [Dequeue, Release]
    world.memory.admissions.release_job(world.record)
    world.record.observe(msgspec.structs.replace(world.record.observed, admission=None, conditions=()))
    assert [type(one) for one in world.told()] == [Dequeue, UpdateSpec]
    world.record.observe(None)
    world.admitted()
    assert world.used() == 3000
    assert gone(world.told()) == ["db-0", "db-1", "db-2"]


def test_a_pod_that_names_its_queue_again_is_asked_a_slot_for(world):
    running(world, "1", "1", "1", queue=None)
    renamed(world, "db-1", "db-2", queue="team")
    given_back(world)
    renamed(world, "db-2", queue=None)
    assert wishes(world.told()) == [Enqueue]
    assert world.record.growing == {"main": 2}, "and not for the one that is barred still"


def test_a_free_slot_is_for_those_that_may_go_and_not_for_a_barred_pod_of_a_lower_rank(world):
    running(world, "1", "1", "1", queue=None)
    world.drop("pod", world.stores["pod"]["ns/db-2"])
    assert given_back(world).count == 2
    renamed(world, "db-1", queue="team")
    world.pod("db-2", queue=None)
    assert gone(world.told()) == ["db-2"]


def test_after_a_restart_nothing_is_asked_for_and_no_pod_is_taken_to_be_missing(world):
    running(world, "1", "1", "1", queue=None)
    renamed(world, "db-1", "db-2", queue="team")
    given_back(world)
    world.put("workload", stored_workload_of(world))
    world.memory = world.restarted()
    world.record.observe(msgspec.structs.replace(world.record.observed, conditions=HELD))
    assert world.record.admission.count == 1
    assert wishes(world.told()) == [Dequeue]
    assert world.record.late == {}


def test_nothing_larger_is_asked_for_a_pod_that_names_another_queue(world):
    running(world, "1", "1", queue=None)
    renamed(world, "db-1", queue="team", cpu="2")
    assert Enqueue not in wishes(world.told())


def test_another_place_for_a_lost_slot_is_none_for_pods_that_name_another_queue(world):
    running(world, "1", "1", "1", queue=None)
    renamed(world, "db-1", queue="team")
    renamed(world, "db-2", queue="other")
    given_back(world)
    world.told()
    world.record.want({"main": ((0, 1),)}, {}, 100.0)
    (moved,) = replace_lost_slots(world.memory, world.record).assignments
    assert moved.count == 1


def test_what_is_held_for_pods_that_nobody_makes_goes_back_beside_one_that_is_barred(world):
    group = {"owner": None, "total": 4, "labels": {KEYS.pod_group: "g", KEYS.queue_name: "team"}}
    pods = [world.pod(f"db-{at}", **group) for at in range(4)]
    (world.of,) = world.memory.entries
    world.admitted()
    slots = [slot for slot in world.record.slots.slots for _ in range(slot.count)]
    for pod, slot in zip(pods, slots, strict=True):
        world.run(pod, slot)
    world.told()
    renamed(world, "db-2", **{**group, "labels": {KEYS.pod_group: "g", KEYS.queue_name: "other"}})
    world.drop("pod", world.stores["pod"]["ns/db-3"])
    assert given_back(world).count == 3, "one slot waits for the pod that is to come"
    world.told()
    assert Shorten({"main": 2}) in world.told(100.0 + world.memory.rules.missing_pods.again)


def test_quota_without_slots_is_given_back_too():
    job = msgspec.structs.replace(make_owner(parallelism=3), kind="StatefulSet", api_version="apps/v1", open_ended=True)
    admission = make_admission(None, queue="cq", count=3)
    labels = {KEYS.queue_name: "other"}
    pods = [make_pod("a", owner=job, at=("b", "r", "n"), node="n"), *(make_pod(owner=job) for _ in range(2))]
    pods[1:] = [
        msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, labels=labels)) for pod in pods[1:]
    ]
    job = msgspec.structs.replace(job, queue="team")
    entry = make_record(job, admission=admission, observed=make_known(job, admission=admission), pods=pods)
    entry.shrink(99.0)
    entry.bar_pods({"main": len(granted.of_other_queues(entry, KEYS, 100.0))})
    steps = running_steps(entry, context(), 100.0)
    assert Shrink(None, 1, "main") in steps
    assert gone(steps) == []


def test_a_pod_that_asks_for_more_keeps_its_slot_beside_one_that_is_barred(world):
    running(world, "1", "1", "1")
    renamed(world, "db-1", queue="team", cpu="2")
    renamed(world, "db-2")
    assert world.told()
    assert world.record.job.count == 1, "what its pods ask for contradicts, so one of them stands for all"
    assert given_back(world).count == 2


@pytest.mark.parametrize(
    ("sent", "barred"),
    [
        (Expectation(("b", "r1", "r1-h1"), 200.0), False),
        (Expectation(("b", "r1", "r1-h1"), 50.0), False),  # it is sent again
        (Expectation(("b", "r1", "r1-h9"), 200.0), False),
        (Expectation(("b", "r1", "r1-h9"), 50.0), True),
        (Expectation(("b", "r1", "r1-h9"), 50.0, gone=True), False),
    ],
)
def test_a_pod_that_was_sent_before_it_named_another_queue_has_its_slot(world, sent, barred):
    running(world, "1", "1")
    renamed(world, "db-1")
    world.record.expectations["u-db-1"] = sent
    assert bool(granted.of_other_queues(world.record, KEYS, 100.0)) is barred


# --- who pays --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"owner_references": ()},  # kubectl delete --cascade=orphan
        {"owner_references": (), "labels": {}},
        {"labels": {KEYS.pod_group: "mine"}},
    ],
)
def test_running_pods_that_are_orphaned_or_relabelled_are_charged_until_they_end(world, change):
    first, second = running(world, "1", "1")
    world.put("workload", stored_workload_of(world))
    for pod in (first, second):
        world.change(pod, **change)
    world.memory.admissions.release_job(world.record)
    assert world.used() == 2000
    assert set(world.memory.entries) == {"ns/u-db@StatefulSet.apps"}, (
        "they are no workload of their own, which would hold as much again"
    )
    world.drop("workload", world.stores["workload"][world.record.key])
    again = world.restarted()
    assert again.entries == {}
    assert world.used(again) == 2000, "a restart knows it too"
    for memory in (world.memory, again):
        world.memory = memory
        done = msgspec.structs.replace(world.stores["pod"]["ns/db-0"], status=PodStatus(phase="Succeeded"))
        world.put("pod", done)
        assert world.used(memory) == 1000
        world.put("pod", msgspec.structs.replace(done, status=first.status))
    world.drop("pod", world.stores["pod"]["ns/db-0"])
    world.drop("pod", world.stores["pod"]["ns/db-1"])
    assert world.used() == 0


def test_pods_that_stop_slowly_after_their_owner_is_gone_are_charged_until_they_do(world):
    pods = running(world, "1", "1")
    pods = [world.change(pod, deletion_timestamp="2026-11-21T00:05:00Z") for pod in pods]
    world.memory.views.drop("ns/u-db@StatefulSet.apps")
    assert world.used() == 2000
    world.drop("pod", pods[0])
    assert world.used() == 1000


def test_pods_that_stop_on_a_lost_node_keep_nobody_from_their_quota(world):
    pods = running(world, "1", "1")
    pods = [world.change(pod, deletion_timestamp="2026-11-21T00:05:00Z") for pod in pods]
    world.drop("node", world.stores["node"][pods[0].spec.node_name])
    world.memory.views.drop("ns/u-db@StatefulSet.apps")
    assert world.used() == 0


def test_while_their_workload_answers_for_them_they_are_not_charged_twice(world):
    running(world, "1", "1")
    assert world.used() == 2000


def test_a_workload_whose_owner_somebody_removed_is_still_seen_to_be_deleted(world):
    running(world, "1", "1")
    record = world.record
    stored = stored_workload(record.job, record.admission)
    world.put("workload", stored)
    assert record.observed is not None
    record.observed = msgspec.structs.replace(record.observed, uid=stored.metadata.uid)
    meta = msgspec.structs.replace(stored.metadata, owner_references=(), resource_version="99")
    world.put("workload", msgspec.structs.replace(stored, metadata=meta))
    world.drop("workload", world.stores["workload"][f"ns/{stored.metadata.name}"])
    assert record.observed is None, "so it is made anew"


def test_a_pod_that_is_orphaned_on_its_way_to_a_node_keeps_its_room_there(world):
    pods = [world.pod(f"db-{at}", "2") for at in range(2)]
    world.admitted()
    slots, free = world.record.slots.slots, world.memory.state.free_on_node
    taken = [slot.node for slot in slots]
    assert all(free(node)["cpu"] == 0 for node in taken)
    sent = [world.run(pod, slot, bound=False) for pod, slot in zip(pods, slots, strict=True)]
    for pod in sent:
        world.change(pod, owner_references=())
    world.memory.views.drop("ns/u-db@StatefulSet.apps")
    assert all(free(node)["cpu"] == 0 for node in taken), "they are on no node yet, and nobody else may have it"
    world.drop("pod", world.stores["pod"]["ns/db-0"])
    assert sorted(free(node)["cpu"] for node in taken) == [0, 2000]


def test_a_workload_that_is_deleted_and_made_anew_names_the_queue_it_was_admitted_in(world):
    first, second = running(world, "1", "1")
    record = world.record
    for pod in (first, second):
        world.drop("pod", pod)
        world.pod(f"{pod.metadata.name}-again", queue="other")
    world.memory.pod_groups.regroup(record)
    record.forget_workload()  # somebody deleted its Workload
    assert record.job.queue == "other"
    assert as_admitted(record).queue == "team"
    record.observed = msgspec.structs.replace(
        make_known(as_admitted(record)), admission=record.admission, conditions=HELD
    )
    instructions = world.told()
    assert gone(instructions) == []
    assert any(isinstance(one, Release) for one in instructions), "it waits anew in the queue that its pods name"


def test_what_a_workload_that_is_made_anew_holds_is_known_after_a_restart_in_that_moment(world):
    for pod in running(world, "1", "1"):
        world.run(pod, world.record.slots.slots[0])
    before = stored_workload_of(world)
    body = workload_spec.new_workload(world.record.job, 0, world.record.admission)
    meta = msgspec.structs.replace(before.metadata, annotations=body["metadata"]["annotations"], uid="wl-2")
    world.stores["workload"][world.record.key] = msgspec.structs.replace(before, metadata=meta, status=ObservedStatus())
    again = world.restarted()
    record = again.entries["ns/u-db@StatefulSet.apps"]
    assert record.admission.same_grant(world.record.admission)
    assert world.used(again) == world.used() > 0
    assert isinstance(reconcile(record, again.rules, 100.0, 100.0)[0], RestoreAdmission)


def test_orphans_stand_beside_a_workload_that_is_made_again(world):
    for pod in running(world, "1", "1"):
        world.change(pod, owner_references=())
    world.memory.views.drop("ns/u-db@StatefulSet.apps")
    again = {**OWNER, "uid": "u-again"}
    world.pod("new-0", "2", owner=again)
    world.pod("new-1", "2", owner=again)
    record = world.memory.entries["ns/u-again@StatefulSet.apps"]
    record.observed = make_known(record.job)
    world.memory.pod_groups.regroup(record)
    world.memory.admissions.enqueue_entry(record)
    assert not cycle(world.memory.state, world.memory.queues, 0.0).admitted, "2 of 4 are theirs"
    assert world.memory.queues.entries[record.key].refusal.reason is Reason.INSUFFICIENT_QUOTA
    for name in ("db-0", "db-1"):
        world.drop("pod", world.stores["pod"][f"ns/{name}"])
    assert cycle(world.memory.state, world.memory.queues, 1.0).admitted


def test_pods_that_an_owner_adopts_are_none_that_it_has_slots_for(world):
    for pod in running(world, "1", "1"):
        world.change(pod, owner_references=())
    world.memory.views.drop("ns/u-db@StatefulSet.apps")
    again = {**OWNER, "uid": "u-again"}
    reference = read({"metadata": {"ownerReferences": [again]}}, Pod).metadata.owner_references
    for name in ("db-0", "db-1"):
        world.change(world.stores["pod"][f"ns/{name}"], owner_references=reference)
    world.pod("db-2", owner=again)
    record = world.memory.entries["ns/u-again@StatefulSet.apps"]
    assert record.job.count == 1


def test_what_a_pod_says_of_its_quota_is_read_or_passed_over():
    quota = AdmittedQuota("cq", {"cpu": "gpu"})
    assert decode(encode(quota)) == quota
    for text in (None, "", "{", "[]", '{"clusterQueue": 7}', '{"flavors": {}}'):
        assert decode(text) is None


# --- pods that left their workload -----------------------------------------------------------------------------------


def left(world):
    """The second pod of a set of two runs on without an owner, in the place that it has in the set's workload."""
    _, pod = running(world, "1", "1")
    pod = world.change(pod, owner_references=(), annotations={**pod.metadata.annotations, KEYS.pod_set: "main"})
    assert list(world.record.left) == [pod.metadata.uid]
    assert world.used() == 2000
    return pod


@pytest.mark.parametrize("mark", ["statefulset-none", "podgroup-other"])
def test_a_place_is_free_once_who_had_it_is_gone_whatever_that_said_of_it_meanwhile(world, mark):
    pod = left(world)
    pod = world.change(pod, annotations={**pod.metadata.annotations, KEYS.workload: mark})
    assert world.record.left == {}
    assert world.used() == 3000, "it is charged by itself now"
    world.drop("pod", pod)
    world.memory.admissions.hold_admission(world.record, world.record.admission)
    assert (world.record.left, world.used()) == ({}, 2000)


def test_who_terminates_where_nobody_ends_it_has_no_place_and_takes_no_quota(world):
    pod = left(world)
    terminating = world.change(pod, deletion_timestamp="2026-11-21T00:10:00Z")
    assert list(world.record.left) == [pod.metadata.uid]
    node = world.stores["node"][pod.spec.node_name]
    world.drop("node", node)
    assert world.record.left == {}
    world.put("node", node)
    assert list(world.record.left) == [pod.metadata.uid]
    world.change(terminating, deletion_timestamp=None)
    assert list(world.record.left) == [pod.metadata.uid]


def test_who_was_to_go_before_it_had_a_node_has_no_place(world):
    pod = world.pod("db-0", "1")
    world.admitted()
    pod = world.run(pod, world.record.slots.slots[0], bound=False)
    pod = world.change(pod, owner_references=(), annotations={**pod.metadata.annotations, KEYS.pod_set: "main"})
    assert list(world.record.left) == [pod.metadata.uid]
    world.change(pod, deletion_timestamp="2026-11-21T00:10:00Z")
    assert world.record.left == {}

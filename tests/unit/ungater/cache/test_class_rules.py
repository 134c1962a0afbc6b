"""What priority classes and jobs say about preemption, from the API server's objects to who is a victim of whom."""

import msgspec
import pytest
from support.owned import KEYS, make_job, make_pod
from support.queued_world import cluster_queue, entry_of, filled, queued
from support.world import World

from crds.constants import PREEMPTIBLE, PREEMPTION_POLICY
from kube.informer import Event, EventKind
from kube.objects import ObjectMeta, PriorityClass
from kube.workloads import StoredBoost
from queueing import model
from queueing.cycle.cycle import cycle
from queueing.model import NonPreemptible
from ungater.jobs.job import owner_of
from ungater.model.workload_entry import ObservedWorkload
from ungater.model.workload_spec import new_workload, spec_patch

KEPT, MEEK = {PREEMPTIBLE: "false"}, {PREEMPTION_POLICY: "Never"}
RACK = {KEYS.required[0]: "rack"}


def classed(name, value, *, annotations=None, **fields):
    return PriorityClass(metadata=ObjectMeta(name=name, annotations=annotations or {}), value=value, **fields)


@pytest.fixture
def world():
    made = filled(World(), preemption={"withinClusterQueue": "LowerPriority"})
    made.put("class", classed("high", 9))
    made.put("class", classed("low", 1))
    return made


def of_workloads(world, wire):
    """News of a WorkloadPriorityClass of ours."""
    world.memory.classes.on_workload_class(Event(EventKind.ADDED, wire.metadata.name, None, wire))


def of_kueue(world, wire):
    """News of a WorkloadPriorityClass of Kueue's."""
    world.memory.classes.on_kueue_class(Event(EventKind.ADDED, wire.metadata.name, None, wire))


def preemptor(world, name="urgent", **spec):
    """One of high priority that needs all that there is: whom it preempts."""
    queued(world, name, pods=4, request={KEYS.unconstrained: "true"}, spec={"priorityClassName": "high", **spec})
    world.memory.admissions.enqueue_entry(entry_of(world, make_job(name)))
    found = cycle(world.memory.state, world.memory.queues, 9.0).preempting
    return {victim.key for one in found for victim in one.victims}


def running(world, name="train", *, annotations=None, labels=None, **spec):
    """One that was admitted in the cycle before last."""
    labels = {KEYS.queue_name: "team", **(labels or {})}
    request = {**RACK, **(annotations or {})}
    job = make_job(name, parallelism=2, labels=labels, suspend=True, request=request, spec=spec)
    world.put("job", job)
    world.admit(job)
    cycle(world.memory.state, world.memory.queues, 1.0)
    return entry_of(world, job).key


def test_without_a_word_the_lower_priority_goes(world):
    key = running(world, priorityClassName="low")
    assert preemptor(world) == {key}


@pytest.mark.parametrize(
    "kind", ["PriorityClass", "default PriorityClass", "WorkloadPriorityClass", "WorkloadPriorityClass of Kueue"]
)
def test_a_class_makes_its_jobs_nobodys_victims_at_once_and_no_longer_than_it_says_so(world, kind):
    default = kind.startswith("default")
    kept = classed("online", 2, annotations=KEPT, global_default=default)
    mortal = classed("online", 2, global_default=default)
    news = of_kueue if kind.endswith("Kueue") else of_workloads
    if kind.startswith("Workload"):
        news(world, mortal)
        running(world, labels={KEYS.priority_class: "online"})
        news(world, kept)
    else:
        world.put("class", mortal)
        running(world, **({} if default else {"priorityClassName": "online"}))
        world.put("class", kept)
    assert preemptor(world) == set()
    if kind.startswith("Workload"):
        gone = Event(EventKind.DELETED, "online", kept, None)
        (world.memory.classes.on_kueue_class if kind.endswith("Kueue") else world.memory.classes.on_workload_class)(
            gone
        )
    else:
        world.drop("class", kept)
    assert {one.key for one in cycle(world.memory.state, world.memory.queues, 10.0).preempting} == {
        entry_of(world, make_job("urgent")).key
    }


def test_a_class_that_the_label_names_counts_before_that_of_the_pods(world):
    world.put("class", classed("pods", 1, annotations=KEPT))
    of_workloads(world, classed("batch", 1))
    owner = owner_of(make_job(labels={KEYS.priority_class: "batch"}, spec={"priorityClassName": "pods"}), KEYS)
    assert world.memory.classes.rules.non_preemptible(owner) is NonPreemptible.NEVER
    unknown = owner_of(make_job(labels={KEYS.priority_class: "nosuch"}, spec={"priorityClassName": "pods"}), KEYS)
    assert world.memory.classes.rules.non_preemptible(unknown) is NonPreemptible.BY_CLASS


@pytest.mark.parametrize(
    ("ours", "kueues", "priority"), [(10_000, None, 10_000), (None, 5, 5), (10_000, 5, 10_000), (None, None, 9)]
)
def test_of_two_classes_with_one_name_ours_counts_and_with_neither_that_of_the_pods(world, ours, kueues, priority):
    for news, value in ((of_workloads, ours), (of_kueue, kueues)):
        if value is not None:
            news(world, classed("batch", value))
    owner = owner_of(make_job(labels={KEYS.priority_class: "batch"}, spec={"priorityClassName": "high"}), KEYS)
    assert world.memory.priorities.priority_of_job(owner) == priority
    assert world.memory.priorities.unknown_class(owner) is (ours is kueues is None)


@pytest.mark.parametrize("news", [of_workloads, of_kueue])
@pytest.mark.parametrize(
    ("labels", "priority", "named"),
    [
        ({KEYS.queue_name: "team"}, 7, "default"),
        ({}, 9, "high"),  # without a queue nothing is in a queue's order
        ({KEYS.queue_name: "team", KEYS.priority_class: "batch"}, 3, "batch"),
        ({KEYS.queue_name: "team", KEYS.priority_class: "nosuch"}, 9, "nosuch"),
    ],
)
def test_the_class_default_is_that_of_jobs_with_a_queue_that_name_none(world, news, labels, priority, named):
    news(world, classed("default", 7))
    news(world, classed("batch", 3))
    owner = owner_of(make_job(labels=labels, spec={"priorityClassName": "high"}), KEYS)
    assert world.memory.priorities.priority_of_job(owner) == priority
    spec = new_workload(world.memory.classes.rules.with_class(owner), priority)["spec"]
    assert (spec["priority"], spec["priorityClassName"]) == (priority, named)
    assert owner.workload_class == labels.get(KEYS.priority_class, ""), "what its label says stays"
    assert world.memory.priorities.unknown_class(owner) is (named == "nosuch")


def test_a_workload_keeps_its_priority_where_the_class_default_comes_later(world):
    key = running(world, priorityClassName="low")
    before = world.memory.queues.entries[key].workload.priority
    world.put("workload_class", classed("default", 1000))
    stored_with(world, key, before)
    for memory in (world.memory, world.restarted()):
        assert memory.priorities.priority_of_job(owner_of(make_job(labels={KEYS.queue_name: "team"}), KEYS)) == 1000
        assert memory.queues.entries[key].workload.priority == before


def test_what_the_class_default_says_of_preemption_counts_at_once(world):
    key = running(world, priorityClassName="low")
    of_workloads(world, classed("default", 7, annotations=KEPT))
    assert preemptor(world) == set()
    world.memory.classes.on_workload_class(Event(EventKind.DELETED, "default", classed("default", 7), None))
    found = cycle(world.memory.state, world.memory.queues, 10.0).preempting
    assert {victim.key for one in found for victim in one.victims} == {key}


def test_an_edited_job_keeps_the_class_that_its_priority_came_from(world):
    owner = owner_of(make_job(labels={KEYS.queue_name: "team"}, spec={"priorityClassName": "high"}), KEYS)
    patch = spec_patch(ObservedWorkload("w", "u", "6", 1, (1,)), owner, 7)
    assert patch["spec"]["priority"] == 7
    assert "priorityClassName" not in patch["spec"]


def test_a_class_of_ours_takes_the_place_of_kueues_at_once(world):
    of_kueue(world, classed("online", 2, annotations=KEPT))
    key = running(world, labels={KEYS.priority_class: "online"})
    assert preemptor(world) == set()
    of_workloads(world, classed("online", 2))
    found = cycle(world.memory.state, world.memory.queues, 10.0).preempting
    assert {victim.key for one in found for victim in one.victims} == {key}


def test_a_class_that_comes_later_counts_instead_of_that_of_the_pods(world):
    world.put("class", classed("kept", 2, annotations=KEPT))
    key = running(world, labels={KEYS.priority_class: "batch"}, priorityClassName="kept")
    assert preemptor(world) == set()
    of_workloads(world, classed("batch", 1))
    found = cycle(world.memory.state, world.memory.queues, 10.0).preempting
    assert {victim.key for one in found for victim in one.victims} == {key}


@pytest.mark.parametrize(("believed", "spared"), [("Never", False), ("ByClass", False), ("ByWorkload", True)])
def test_a_job_that_says_it_itself_is_believed_where_its_queue_says_so(world, believed, spared):
    policy = {"withinClusterQueue": "LowerPriority", "nonPreemptible": believed}
    world.put("cluster_queue", cluster_queue(4, preemption=policy))
    key = running(world, annotations=KEPT, priorityClassName="low")
    assert preemptor(world) == (set() if spared else {key})
    assert world.restarted().queues.holders.non_preemptible.keys() == ({key} if spared else set())


def test_a_job_that_asks_for_no_topology_may_say_it_too():
    job = make_job(request=KEPT, gated=False, labels={KEYS.queue_name: "team"})
    assert owner_of(job, KEYS).pod_sets[0].wishes == KEPT
    other = make_job(request={PREEMPTIBLE: "true"}, gated=False)
    assert World().memory.classes.rules.non_preemptible(owner_of(other, KEYS)) is NonPreemptible.NEVER


@pytest.mark.parametrize("by", ["the class's field", "the class's annotation", "a WorkloadPriorityClass", "the pods"])
def test_who_has_nobody_evicted_waits_with_its_reason(world, by):
    running(world, priorityClassName="low")
    spec, labels = {"priorityClassName": "meek"}, {KEYS.queue_name: "team"}
    if by == "the class's field":
        world.put("class", classed("meek", 9, preemption_policy="Never"))
    elif by == "the class's annotation":
        world.put("class", classed("meek", 9, annotations=MEEK))
    elif by == "a WorkloadPriorityClass":
        of_workloads(world, classed("meek", 9, annotations=MEEK))
        labels[KEYS.priority_class] = "meek"
        spec = {"priorityClassName": "high"}
    else:
        spec = {"priorityClassName": "high", "preemptionPolicy": "Never"}
    job = make_job("meek", parallelism=4, labels=labels, suspend=True, request={KEYS.unconstrained: "true"}, spec=spec)
    world.put("job", job)
    world.memory.admissions.enqueue_entry(entry_of(world, job))
    decided = cycle(world.memory.state, world.memory.queues, 9.0)
    assert decided.preempting == []
    assert [one.reason for one in decided.waiting if one.key == entry_of(world, job).key] == ["InsufficientQuota"]


class Plain(World):
    """Pods that no queue admitted may be victims."""

    def make(self, **options):
        return super().make(queueing=model.Rules(pods=True), **options)


def test_a_plain_pod_of_such_a_class_is_nobodys_victim_either():
    world = filled(Plain())
    world.put("class", classed("online", 2, annotations=KEPT))
    for name in ("online", "batch"):
        pod = make_pod(name, gated=False, node="r1-h1", phase="Running", spec={"priorityClassName": name})
        world.put("pod", msgspec.structs.replace(pod, metadata=ObjectMeta(name=name, namespace="ns", uid=name)))
    assert [one.workload.uid for one in world.memory.queues.holders.outside.values()] == ["batch"]


def stored_with(world, key, priority, boost=None):
    """Its Workload, to which an administrator has given a priority (or a boost), as the watch tells of it."""
    before = world.stores["workload"][key]
    version = str(int(before.metadata.resource_version) + 1)
    spec = msgspec.structs.replace(before.spec, priority=priority, queue_name="team")
    meta = msgspec.structs.replace(before.metadata, resource_version=version)
    counted = None if boost is None else StoredBoost(boost, "2027-01-15T08:00:00Z")
    status = msgspec.structs.replace(before.status, priority_boost=counted)
    world.put("workload", msgspec.structs.replace(before, metadata=meta, spec=spec, status=status))


def test_a_priority_that_an_administrator_changes_counts_for_one_that_runs(world):
    key = running(world, priorityClassName="high")
    stored_with(world, key, 100)
    cycle(world.memory.state, world.memory.queues, 2.0)
    assert preemptor(world) == set()
    stored_with(world, key, 1)
    found = cycle(world.memory.state, world.memory.queues, 10.0).preempting
    assert {victim.key for one in found for victim in one.victims} == {key}
    assert world.memory.queues.entries[key].workload.priority == 1


def test_a_boost_counts_for_one_that_runs_and_for_one_that_waits(world):
    key = running(world, priorityClassName="high")
    stored_with(world, key, 1, boost=99)
    cycle(world.memory.state, world.memory.queues, 2.0)
    assert preemptor(world) == set()
    assert world.memory.queues.entries[key].workload.priority == 100
    stored_with(world, key, 100, boost=-99)
    found = cycle(world.memory.state, world.memory.queues, 10.0).preempting
    assert {victim.key for one in found for victim in one.victims} == {key}
    assert {victim.priority for one in found for victim in one.victims} == {1}

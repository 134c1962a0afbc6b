"""Queues in what the controller knows: by events, and the same again after a restart."""

import msgspec
import pytest
from support.owned import KEYS, make_job, make_known, make_pod
from support.queue_factories import make_cohort, make_queue, make_state, make_workload, run, submit
from support.queued_world import cluster_queue, entry_of, filled, queued, read
from support.world import FLAVOR, NODES, World, stored_workload

from engine.cluster.assignment import Assignment, Slice
from engine.model import HOSTNAME_LABEL
from engine.reasons import Reason
from kube.objects import Condition, Namespace, ObjectMeta, PriorityClass, ResourceFlavor, ResourceFlavorSpec
from kube.queues import LocalQueue as WireLocalQueue
from kube.workloads import ObservedStatus, StoredNomination, WorkloadObject
from queueing.cycle.cycle import cycle
from queueing.model import LocalQueue, Preemption, Reclaim, order
from queueing.queues.entry import Phase
from ungater.jobs import pod_template
from ungater.jobs.job import owner_of
from ungater.model import workload_status
from ungater.model.actions import Create, Dequeue, Evict, EvictPods, FreeCapacity, RequeueAfter
from ungater.model.admission import Nomination
from ungater.model.class_rules import ClassRule
from ungater.model.job_view import id_of
from ungater.model.write_state import FORGOTTEN, LONGEST
from ungater.reconcile.reconcile import reconcile
from ungater.scheduling.replacement import anew, fits

JOB = {"apiVersion": "batch/v1", "kind": "Job", "controller": True}
CPU = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}


@pytest.fixture
def world():
    return filled(World(), preemption={"withinClusterQueue": "LowerPriority"})


def held(memory):
    """What is held, by key, in a form that can be compared."""
    return {
        key: (entry.phase, entry.grant, entry.victims)
        for key, entry in memory.queues.entries.items()
        if entry.grant is not None
    }


def store(world, record, **status):
    """The Workload as the API server would have it, with ``status`` beside its admission."""
    old = world.stores["workload"].get(record.key)
    made = msgspec.structs.replace(old.status if old else ObservedStatus(), **status)
    meta = ObjectMeta(
        name=record.job.workload,
        namespace=record.job.namespace,
        uid=record.observed.uid,
        resource_version=str(int(record.observed.resource_version) + 1),
        owner_references=({**JOB, "name": record.job.name, "uid": record.job.uid},),
    )
    plain = msgspec.to_builtins(WorkloadObject(metadata=meta, status=made))
    world.put("workload", msgspec.convert(plain, WorkloadObject))


def test_what_a_pod_set_holds_that_its_job_has_no_more_is_given_back_when_the_next_admission_is_stored(world):
    """A group whose pods of one role are gone grows by another role."""
    job = queued(world, "train")
    world.admit(job)
    record, memory = entry_of(world, job), world.memory
    other = msgspec.structs.replace(record.job.pod_sets[0], name="other", count=1, full=1)
    record.set_view(record.job, msgspec.structs.replace(record.job, pod_sets=(other,)))
    before = record.grant
    found = Assignment(
        pod_set="other",
        flavor=before.assignments[0].flavor,
        levels=before.assignments[0].levels,
        requests=before.assignments[0].requests,
        slices=(msgspec.structs.replace(before.assignments[0].slices[0], count=1),),
    )
    counts = {**before.counts, "other": 1}
    flavors = {**before.flavors, "other": before.flavors["main"]}
    amounts = {key: amount * 3 // 2 for key, amount in before.amounts.items()}
    grown = msgspec.structs.replace(
        before, counts=counts, flavors=flavors, amounts=amounts, assignments=(*before.assignments, found)
    )
    memory.queues.grant(memory.state, record.key, grown)
    memory.admissions.store_admission(record, memory.reservations.admission_of(record, grown), grown)
    assert [part.name for part in record.admission.parts] == ["other"]
    assert [*record.slots_in] == [*record.grant.counts] == [*memory.state.assignments(record.key)] == ["other"]
    assert memory.queues.quotas.used("cq", ("gpu", "cpu")) == 1000


def test_quota_and_slots_are_held_together_and_a_restart_ends_with_the_same(world):
    job = queued(world, "train")
    slots = world.admit(job)
    record = entry_of(world, job)
    assert slots.total == 2
    assert record.admission.queue == "cq"
    assert world.memory.queues.quotas.used("cq", ("gpu", "cpu")) == 2000
    slot = slots.slots[0]
    world.put("pod", make_pod("p", owner=record.job, at=slot.values, node=slot.node, phase="Running", spec=CPU))
    assert world.memory.queues.entries[record.key].pods == {"ns/p"}
    again = world.restarted()
    assert held(again) == held(world.memory)
    assert again.queues.quotas.used("cq", ("gpu", "cpu")) == 2000
    assert again.queues.entries[record.key].pods == {"ns/p"}
    assert again.entries[record.id].admission.same_grant(record.admission)


def test_a_plan_is_taken_up_again_and_its_victims_are_told(world):
    low = queued(world, "low", 4)
    world.admit(low)
    victim = entry_of(world, low)
    high = queued(world, "high", 2)
    record = entry_of(world, high)
    record.observed = make_known(record.job, priority=100)
    world.memory.admissions.enqueue_entry(record)
    (plan,) = cycle(world.memory.state, world.memory.queues, 0.0).preempting
    admission = world.memory.reservations.admission_of(record, plan.grant)
    nomination = Nomination(admission, {one.key: one.uid for one in plan.victims}, {victim.key: 0})
    body = workload_status.nomination_patch(record.observed, (), nomination, 0.0)["status"]["nomination"]
    store(world, record, nomination=msgspec.convert(body, StoredNomination))
    again = world.restarted()
    assert held(again)[record.key][0] is Phase.NOMINATED
    assert held(again)[record.key][2] == {victim.key}
    told = again.entries[victim.id].evict
    assert (told.reason, told.detail) == (Reason.PREEMPTED, Reason.IN_CLUSTER_QUEUE)
    assert record.job.title in told.message
    # Where its victim is gone meanwhile, the next cycle admits it into the room that was kept for it.
    world.drop("workload", world.stores["workload"][victim.key])
    world.drop("job", low)
    alone = world.restarted()
    (admitted,) = cycle(alone.state, alone.queues, 0.0).admitted
    assert (admitted.key, admitted.preempted) == (record.key, True)


def test_a_node_that_others_wait_for_is_not_too_small_for_who_is_there_already(world):
    """Until its victims are gone, a plan holds their room beside them. Nobody moves for that."""
    for node in NODES[1:]:
        world.drop("node", node)
    first = queued(world, "first", 1)
    slots = world.admit(first)
    world.admit(queued(world, "low", 1))
    record = entry_of(world, queued(world, "high", 1))
    record.observed = make_known(record.job, priority=100)
    world.memory.admissions.enqueue_entry(record)
    assert cycle(world.memory.state, world.memory.queues, 0.0).preempting
    (node,) = world.memory.state.nodes
    assert world.memory.state.free_on_node(node)["cpu"] < 0
    owner = entry_of(world, first).job
    assert world.memory.rules.lost(entry_of(world, first), owner.pod_sets[0], slots, [0]) == ()
    assert world.memory.state.free_on_node(node)["cpu"] < 0, "asking changes nothing"


def test_one_that_was_put_back_by_its_own_fault_comes_after_those_who_waited(world):
    late = queued(world, "late")
    record = entry_of(world, late)
    record.observed = make_known(record.job, requeues=1, requeue_at=4_000_000_000.0)
    world.memory.admissions.enqueue_entry(record, record.observed.requeue_at)
    entry = world.memory.queues.entries[record.key]
    assert (entry.phase, entry.until) == (Phase.LATER, 4_000_000_000.0)
    first = queued(world, "first")
    entry_of(world, first).observed = make_known(entry_of(world, first).job)
    world.memory.admissions.enqueue_entry(entry_of(world, first))
    other = world.memory.queues.entries[entry_of(world, first).key]
    assert order(other.workload) < order(entry.workload)


def test_what_a_job_gives_back_helps_those_who_wait(world):
    first, second = queued(world, "first", 4), queued(world, "second", 4)
    world.admit(first)
    assert world.refused(second).reason is Reason.INSUFFICIENT_QUOTA
    world.memory.admissions.release_and_requeue(entry_of(world, first), until=4_000_000_000.0)
    assert entry_of(world, first).admission is None
    assert world.admit(second).total == 4


def test_a_pod_that_goes_has_only_those_looked_at_who_wait_for_nodes_like_its_own(world):
    spec = ResourceFlavorSpec(node_labels={"pool": "other"}, topology=FLAVOR.spec.topology)
    world.put("flavor", ResourceFlavor(metadata=ObjectMeta(name="other"), spec=spec))
    labels = {**NODES[0].metadata.labels, "pool": "other", HOSTNAME_LABEL: "away"}
    away = msgspec.structs.replace(NODES[0].metadata, name="away", labels=labels)
    world.put("node", msgspec.structs.replace(NODES[0], metadata=away))
    world.put("cluster_queue", cluster_queue(99))
    jobs = [queued(world, f"j{size}", size) for size in range(9, 19)]
    assert {world.refused(job).reason for job in jobs} == {Reason.NEVER_FITS}
    groups = world.memory.queues.pending.lines["cq"].groups.values()
    strangers = [make_pod(node=node.metadata.name) for node in NODES]
    elsewhere, close, nowhere = (
        make_pod(name, node=node) for name, node in (("a", "away"), ("b", "r1-h1"), ("c", "gone"))
    )
    for pod in (*strangers, elsewhere, close, nowhere):
        world.put("pod", pod)
    asleep = []
    for pod in (elsewhere, close):
        world.drop("pod", pod)
        asleep.append(sum(group.inadmissible for group in groups))
    assert asleep == [10, 0]
    cycle(world.memory.state, world.memory.queues, 0.0)
    assert all(group.inadmissible for group in groups)
    world.drop("pod", nowhere)
    assert not any(group.inadmissible for group in groups), "of a node that is not known it could be any"


def test_a_write_that_failed_leaves_what_was_held_before(world):
    job = queued(world, "train")
    record = entry_of(world, job)
    record.observed = make_known(record.job)
    world.memory.admissions.enqueue_entry(record)
    assert cycle(world.memory.state, world.memory.queues, 0.0).admitted
    world.memory.admissions.forget_assumed(record, until=4_000_000_000.0)
    assert held(world.memory) == {}
    assert world.memory.queues.entries[record.key].phase is Phase.LATER
    world.memory.queues.wake_due(4_000_000_000.0)
    world.admit(job)
    before = held(world.memory)
    grant = msgspec.structs.replace(record.grant, counts={"main": 3})
    world.memory.reservations.replace(record, grant)
    world.memory.admissions.forget_assumed(record)
    world.memory.admissions.replaced(record)
    assert held(world.memory) == before


@pytest.mark.parametrize("stored", [True, False])
def test_what_one_leaves_that_moves_is_nobodys_until_the_move_is_stored(world, stored):
    """Else another is stored there first, and a controller that dies between the two writes leaves both."""
    job = queued(world, "train")
    world.admit(job)
    record = entry_of(world, job)
    (part,) = record.grant.assignments
    (here,) = part.slices
    free = {name: world.memory.state.free_on_node(name)["cpu"] for name in world.memory.state.nodes}
    there = next(node.metadata for node in NODES if node.metadata.name != here.values[-1])
    path = ("b", there.labels["rack"], there.name)
    moved = Assignment(
        pod_set=part.pod_set,
        flavor=part.flavor,
        levels=part.levels,
        requests=part.requests,
        slices=(Slice(path, here.count),),
    )
    world.memory.reservations.replace(record, msgspec.structs.replace(record.grant, assignments=(moved,)))
    left = {name: world.memory.state.free_on_node(name)["cpu"] for name in world.memory.state.nodes}
    assert (left[here.values[-1]], left[there.name]) == (free[here.values[-1]], free[there.name] - 2000)
    if stored:
        grant = world.memory.queues.entries[record.key].grant
        world.memory.admissions.store_admission(record, world.memory.reservations.admission_of(record, grant), grant)
    else:
        world.memory.admissions.forget_assumed(record)
    world.memory.admissions.replaced(record)
    after = {name: world.memory.state.free_on_node(name)["cpu"] for name in world.memory.state.nodes}
    assert after[here.values[-1]] == free[here.values[-1]] + (2000 if stored else 0)
    assert after[there.name] == free[there.name] - (2000 if stored else 0)
    assert list(world.memory.state.workloads) == [record.key]


def test_an_admission_that_is_stored_after_its_job_went_is_not_held(world):
    job = queued(world, "train")
    record = entry_of(world, job)
    record.observed = make_known(record.job)
    world.memory.admissions.enqueue_entry(record)
    (made,) = cycle(world.memory.state, world.memory.queues, 0.0).admitted
    admission = world.memory.reservations.admission_of(record, made.grant)
    record.writes.begin_write()
    world.drop("job", job)
    stored = workload_status.observed_of(stored_workload(record.job, admission))
    world.memory.workloads.written(record, stored)
    world.memory.workloads.saw_workload(record, msgspec.structs.replace(stored, resource_version="8"))
    assert held(world.memory) == {}
    assert world.memory.queues.entries == {}
    assert world.memory.queues.quotas.used("cq", ("gpu", "cpu")) == 0
    assert not world.memory.state.assignments(record.key)


def test_where_checks_want_other_nodes_all_slots_are_placed_anew(world):
    for node in NODES[2:]:
        labels = {**node.metadata.labels, "disk": "fast"}
        world.put("node", msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, labels=labels)))
    job = queued(world, "train", 4)
    world.admit(job)
    record = entry_of(world, job)
    before = held(world.memory)
    template = record.job.pod_sets[0].template
    assert {slot.values[1] for slot in record.slots.slots} == {"r1"}
    assert not fits(world.memory, record, "main", {"disk": "fast"})
    assert fits(world.memory, record, "main", {"pool": "gpu"})
    more = pod_template.Added(node_selector={"disk": "fast"})
    found = anew(world.memory, record, {"main": pod_template.merged(template, more)})
    assert {piece.values[1] for piece in found.assignments[0].slices} == {"r2"}
    assert (found.counts, found.amounts) == (record.grant.counts, record.grant.amounts)
    nowhere = pod_template.merged(template, pod_template.Added(node_selector={"disk": "slow"}))
    assert anew(world.memory, record, {"main": nowhere}).reason is Reason.NEVER_FITS
    assert held(world.memory) == before, "neither changed anything"


def test_flavors_without_a_topology_take_quota_alone(world):
    world.put(
        "flavor", ResourceFlavor(metadata=ObjectMeta(name="gpu"), spec=ResourceFlavorSpec(node_labels={"a": "b"}))
    )
    job = queued(world, "plain", request={}, gated=False)
    assert world.admit(job) is None
    record = entry_of(world, job)
    assert (record.admission.count, record.slots, dict(record.admission.pod_set_named().flavors)) == (
        2,
        None,
        {"cpu": "gpu"},
    )
    assert held(world.restarted()) == held(world.memory)


def test_the_label_names_a_workload_priority_class_or_the_class_that_the_pods_have_too(world):
    world.put("class", PriorityClass(metadata=ObjectMeta(name="system-node-critical"), value=2_000_001_000))
    owner = owner_of(make_job(labels={KEYS.priority_class: "system-node-critical"}), KEYS)
    assert world.memory.priorities.priority_of_job(owner) == 0, (
        "a class that its pods were not admitted with is not theirs to have"
    )
    assert world.memory.priorities.unknown_class(owner)
    same = owner_of(
        make_job(
            labels={KEYS.priority_class: "system-node-critical"}, spec={"priorityClassName": "system-node-critical"}
        ),
        KEYS,
    )
    assert world.memory.priorities.priority_of_job(same) == 2_000_001_000
    assert not world.memory.priorities.unknown_class(same)
    world.memory.classes.rules.of_workloads["system-node-critical"] = ClassRule(value=70)
    assert world.memory.priorities.priority_of_job(owner) == world.memory.priorities.priority_of_job(same) == 70
    assert world.memory.priorities.priority_of_job(owner_of(make_job(), KEYS)) == 0


def test_the_default_priority_goes_with_its_class(world):
    plain = owner_of(make_job(), KEYS)
    default = PriorityClass(metadata=ObjectMeta(name="usual"), value=50, global_default=True)
    world.put("class", default)
    assert world.memory.priorities.priority_of_job(plain) == 50
    lower = PriorityClass(metadata=ObjectMeta(name="lower"), value=20, global_default=True)
    world.put("class", lower)
    assert world.memory.priorities.priority_of_job(plain) == 20, "of several the API server takes the lowest"
    world.drop("class", lower)
    assert world.memory.priorities.priority_of_job(plain) == 50
    world.put("class", PriorityClass(metadata=ObjectMeta(name="usual"), value=50))
    assert world.memory.priorities.priority_of_job(plain) == 0
    world.put("class", default)
    world.drop("class", default)
    assert world.memory.priorities.priority_of_job(plain) == 0


@pytest.mark.parametrize("kind", ["local_queue", "cluster_queue"])
def test_a_queue_that_comes_has_those_looked_at_who_were_left_running_for_want_of_it(world, kind):
    queue = next(iter(world.stores[kind].values()))
    world.drop(kind, queue)
    job = make_job("ran", labels={KEYS.queue_name: "team"}, request={}, gated=False)
    world.put("job", job)
    waiting = queued(world, "waits")
    entry = entry_of(world, job)
    missing = {
        "local_queue": "there is no LocalQueue team in namespace ns",
        "cluster_queue": "LocalQueue team: there is no ClusterQueue cq",
    }
    assert world.memory.rules.no_queue(entry) == missing[kind]
    world.asked.clear()
    world.put(kind, queue)
    assert world.memory.rules.no_queue(entry) is None
    assert id_of(job) in world.asked
    assert id_of(waiting) not in world.asked, "it is in the queue"
    world.asked.clear()
    world.put(kind, queue)
    assert id_of(job) not in world.asked, "only when it comes: their status changes all the time"


def test_a_local_queue_that_comes_is_nothing_to_jobs_of_others(world):
    """Tenants may be allowed to create some: each would have every waiting job of the cluster looked at."""
    job = make_job("ran", labels={KEYS.queue_name: "team"}, request={}, gated=False)
    world.put("job", job)
    queue = next(iter(world.stores["local_queue"].values()))
    for changed in ({"namespace": "another"}, {"name": "second"}):
        world.asked.clear()
        other = msgspec.structs.replace(queue, metadata=msgspec.structs.replace(queue.metadata, **changed))
        world.put("local_queue", other)
        assert id_of(job) not in world.asked


def test_of_a_namespace_that_is_gone_nothing_is_kept(world):
    queues = world.memory.queues
    before = dict(queues.config.namespaces), dict(queues.config.local)
    there = Namespace(metadata=ObjectMeta(name="there", labels={"team": "b"}))
    world.put("namespace", there)
    plain = make_job("plain", uid="plain")
    plain = msgspec.structs.replace(plain, metadata=msgspec.structs.replace(plain.metadata, namespace="there"))
    world.put("job", plain)
    world.memory.admissions.enqueue_entry(world.memory.entries[id_of(plain)])
    assert (queues.config.namespaces, queues.config.local) != before
    world.drop("job", plain)
    world.drop("namespace", there)
    assert (queues.config.namespaces, queues.config.local) == before


def test_an_older_version_of_a_job_than_our_own_write_made_changes_nothing(world):
    job = queued(world, "train")
    newer = msgspec.structs.replace(
        job,
        metadata=msgspec.structs.replace(job.metadata, resource_version="9"),
        spec=msgspec.structs.replace(job.spec, suspend=False),
    )
    world.memory.jobs.saw_job(newer)
    older = msgspec.structs.replace(job, metadata=msgspec.structs.replace(job.metadata, resource_version="8"))
    world.put("job", older)
    assert not entry_of(world, job).job.suspended


def test_a_victim_is_told_by_which_rule(world):
    low = queued(world, "low", 4)
    world.admit(low)
    key = entry_of(world, low).key
    assert isinstance(world.memory.reservations.eviction_message(key, key), Evict)


def test_a_victim_is_told_which_cohort_takes_its_quota_back_and_budgets_do_not_yield_to_that(world):
    queues = world.memory.reservations.queues
    queues.set_namespace("ns", {})
    reclaim = Preemption(reclaim=Reclaim.ANY)
    for queue in (make_queue("a", 0, cohort="team", preemption=reclaim), make_queue("b", 8, cohort="org")):
        queues.set_cluster_queue(queue)
        queues.set_local_queue(LocalQueue(namespace="ns", name=queue.name, cluster_queue=queue.name))
    queues.set_cohort(make_cohort("team", 8, "org"))
    state = make_state()
    submit(queues, make_workload("ns/low", "b"), make_workload("ns/victim", "b", created=1.0))
    run(state, queues)
    submit(queues, make_workload("ns/owner", "a", created=2.0))
    assert [one.key for one in run(state, queues).preempting] == ["ns/owner"]
    found = world.memory.reservations.eviction_message("ns/owner", "ns/victim")
    text = "preempted to make room for ns/owner: cohort team takes back its quota for cluster queue a"
    assert (found.detail, found.message) == (Reason.RECLAIMED, text)
    assert world.memory.reservations.takes_for_cohort("ns/victim")
    assert not world.memory.reservations.reclaimed("ns/victim")


def test_a_workload_that_came_and_went_while_a_watch_was_broken_is_made_again(world):
    job = queued(world, "train")
    world.admit(job)
    record = entry_of(world, job)
    now = [100.0]
    world.memory.workloads._clock = lambda: now[0]
    world.memory.workloads.judge_unstored()
    assert record.observed is not None
    world.stores["workload"].pop(record.key)  # no event tells
    world.workloads_reached = record.observed.version - 1
    for _ in range(9):
        now[0] += 20.0
        world.memory.workloads.judge_unstored()
        assert record.observed is not None, "a watch that says nothing does not say that it is gone"
    world.workloads_reached += 1
    for seconds in (0.0, 20.0):
        now[0] += seconds
        world.memory.workloads.judge_unstored()
        assert record.observed is not None, "a watch may be late"
    now[0] += 20.0
    world.memory.workloads.judge_unstored()
    assert record.observed is None
    assert record.admission is not None, "what it holds is written again"
    assert not world.memory.workloads._unstored


def test_a_workload_that_was_found_gone_counts_no_more_though_a_late_watch_has_it(world):
    """Its entry is dropped then; a pod comes, and another is made."""
    job = queued(world, "train")
    world.admit(job)
    record = entry_of(world, job)
    world.memory.workloads.found_gone(record)
    assert record.observed is None
    world.memory.views.drop(record.id)
    world.memory.views.add_job(record.own)
    again = entry_of(world, job)
    assert again is not record
    assert again.observed is None
    assert again.admission is None
    world.drop("workload", world.stores["workload"][record.key])
    world.admit(job)
    assert again.admission is not None


def test_a_pod_that_takes_less_than_its_slot_leaves_room_to_others(world):
    job = queued(world, "train", 1, spec=CPU)
    slot = world.admit(job).slots[0]
    record, before = entry_of(world, job), world.memory.generation
    smaller = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "500m"}}}]}
    world.put("pod", make_pod("p", owner=record.job, at=slot.values, node=slot.node, phase="Running", spec=smaller))
    assert world.memory.generation > before


def looked_at(world, record, now):
    """What is done about a workload at this time of the clock."""
    return reconcile(record, world.memory.rules, now)


def test_a_workload_that_is_deleted_over_and_over_is_made_again_later_each_time(world):
    job = queued(world, "train")
    world.admit(job)
    record = entry_of(world, job)
    now, made = 100.0, []
    world.memory.workloads._clock = lambda: now
    for number in range(12):
        stored = stored_workload(record.job, record.admission, str(20 + number))
        meta = msgspec.structs.replace(stored.metadata, uid=f"wl-{number}")
        world.put("workload", msgspec.structs.replace(stored, metadata=meta))
        world.drop("workload", world.stores["workload"][record.key])
        assert record.observed is None
        assert record.admission is not None, "what it holds it keeps"
        since = now
        while Create() not in looked_at(world, record, now):
            (again,) = (one for one in looked_at(world, record, now) if isinstance(one, RequeueAfter))
            now += again.after
        made.append(now - since)
    assert made[:4] == [0.0, 0.0, 0.0, 1.0]
    assert made == sorted(made)
    assert made[-1] == LONGEST
    now += FORGOTTEN
    world.put("workload", stored_workload(record.job, record.admission, "90"))
    world.drop("workload", world.stores["workload"][record.key])
    assert looked_at(world, record, now) == [Create()]


def test_a_victim_goes_though_its_workload_is_deleted_over_and_over(world):
    job = queued(world, "train")
    slot = world.admit(job).slots[0]
    record = entry_of(world, job)
    pod = make_pod("p", owner=record.job, at=slot.values, node=slot.node, phase="Running", spec=CPU)
    world.put("pod", pod)
    record.evict_for(Evict(Reason.PREEMPTED, "it goes", Reason.IN_CLUSTER_QUEUE))
    record.writes.note_deleted(100.0)
    record.forget_workload()
    assert looked_at(world, record, 100.0) == [Create()], "it is told so first"
    for _ in range(9):
        record.writes.note_deleted(100.0)
    assert looked_at(world, record, 100.0) == [EvictPods((pod,), "it goes"), Create()]
    world.drop("pod", pod)
    assert looked_at(world, record, 100.0) == [FreeCapacity(), Create()]
    world.memory.admissions.release_job(record)
    assert looked_at(world, record, 100.0)[0] == Dequeue(), "and then it is made again later"


def test_a_workload_that_went_with_its_pods_was_not_deleted_by_anybody(world):
    job = queued(world, "train")
    world.admit(job)
    record = entry_of(world, job)
    record.observed = msgspec.structs.replace(record.observed, owners=frozenset({"uid-of-a-pod"}))
    for _ in range(9):
        world.memory.workloads._note_deleted(record)
    record.forget_workload()
    assert looked_at(world, record, 0.0) == [Create()]


def test_a_name_that_two_pools_give_to_different_levels_means_that_of_the_queues_pool(world):
    """Also once the queue gives another pool, and after a restart."""

    def put_flavor(name, **names):
        topology = msgspec.structs.replace(FLAVOR.spec.topology, names=names)
        spec = msgspec.structs.replace(FLAVOR.spec, topology=topology)
        metadata = msgspec.structs.replace(FLAVOR.metadata, name=name)
        world.put("flavor", msgspec.structs.replace(FLAVOR, metadata=metadata, spec=spec))

    def level(memory, one):
        return memory.entries[id_of(one)].job.pod_sets[0].request.level

    put_flavor("gpu", row="rack")
    put_flavor("other", row="block")
    request = {KEYS.required[0]: "row"}
    job, alone = queued(world, "a", request=request), make_job("alone", request=request)
    world.put("job", alone)
    assert (level(world.memory, job), level(world.restarted(), job)) == ("rack", "rack")
    assert level(world.memory, alone) == "row", "no queue says which"
    world.put("cluster_queue", cluster_queue(4, "other"))
    assert (level(world.memory, job), level(world.restarted(), job)) == ("block", "block")


@pytest.mark.parametrize("kind", ["cluster_queue", "local_queue"])
def test_whoever_waits_for_its_checks_is_looked_at_once_its_queue_is_stopped(world, kind):
    waits, runs = (queued(world, name, pods=1) for name in ("waits", "runs"))
    for job, status in ((waits, "False"), (runs, "True")):
        world.admit(job)
        entry = entry_of(world, job)
        said = (Condition(type="Admitted", status=status, reason="x"),)
        entry.observe(msgspec.structs.replace(entry.observed, conditions=said))
    local = {"metadata": {"namespace": "ns", "name": "team"}, "spec": {"clusterQueue": "cq", "stopPolicy": "Hold"}}
    stopped = cluster_queue(4, stopPolicy="Hold") if kind == "cluster_queue" else read(local, WireLocalQueue)
    world.asked.clear()
    world.put(kind, stopped)
    assert world.asked == [id_of(waits)]
    title = "ClusterQueue cq" if kind == "cluster_queue" else "LocalQueue team"
    for job in (waits, runs):
        found = world.memory.reservations.find_stop(entry_of(world, job))
        assert found == f"{title} is stopped (stopPolicy Hold)"
    world.asked.clear()
    world.put(kind, stopped)
    assert world.asked == [], "told twice"


def test_whoever_waits_in_another_queue_is_not_looked_at_when_one_is_stopped(world):
    """A tenant may stop its LocalQueue and open it in a loop."""
    beside = {"metadata": {"namespace": "ns", "name": "beside"}, "spec": {"clusterQueue": "cq"}}
    world.put("local_queue", read(beside, WireLocalQueue))
    ours = queued(world, "ours", pods=1)
    theirs = make_job("theirs", parallelism=1, labels={KEYS.queue_name: "beside"}, suspend=True)
    world.put("job", theirs)
    for job in (ours, theirs):
        world.admit(job)
        entry = entry_of(world, job)
        entry.observe(msgspec.structs.replace(entry.observed, conditions=()))

    def asked(kind, queue):
        world.asked.clear()
        world.put(kind, queue)
        return world.asked

    def local(name, **spec):
        body = {"metadata": {"namespace": "ns", "name": name}, "spec": {"clusterQueue": "cq", **spec}}
        return read(body, WireLocalQueue)

    for name, job in (("team", ours), ("beside", theirs)):
        assert asked("local_queue", local(name, stopPolicy="Hold")) == [id_of(job)]
        assert asked("local_queue", local(name)) == []
    assert asked("cluster_queue", cluster_queue(4, stopPolicy="Hold")) == [id_of(ours), id_of(theirs)]
    other = cluster_queue(4)
    other = msgspec.structs.replace(other, metadata=msgspec.structs.replace(other.metadata, name="other"))
    assert asked("cluster_queue", other) == []
    stopped = msgspec.structs.replace(cluster_queue(4, stopPolicy="Hold"), metadata=other.metadata)
    assert asked("cluster_queue", stopped) == []

"""What comes while a write is on its way, before its answer and after: nothing of it is lost, nothing old counts.

The order of events is played by hand, with a stand-in for the client that decides when an answer comes.
"""

import asyncio
import unittest.mock
from functools import partial

import msgspec
import pytest
from support.owned import KEYS, make_job, make_known, make_pod, slot_map
from support.queued_world import entry_of, filled, queued
from support.world import World, stored_workload

from clock import SYSTEM
from crds.names import longer_name
from crds.settings import Settings
from engine.reasons import Reason
from kube.errors import AlreadyExists, Conflict, NotFound
from kube.workloads import ObservedStatus
from queueing.cycle.cycle import Preempting, cycle
from queueing.queues.entry import Phase
from ungater import controller as loops
from ungater import kinds
from ungater.assembly import assemble
from ungater.controller import Controller
from ungater.executor.start_stop import StartStop
from ungater.metrics import ControllerMetrics
from ungater.model import conditions, workload_status
from ungater.model.actions import CountBoost, Create, Evict, Release, Suspend
from ungater.model.admission import Nomination
from ungater.model.job_view import id_of
from ungater.model.workload_entry import LastEvent, Refused
from ungater.reconcile.reconcile import reconcile
from ungater.writers.events import job_reference


@pytest.fixture
def world():
    return filled(World())


def known_as(workload):
    return workload_status.observed_of(workload)


def newer(workload, version, **spec):
    return msgspec.structs.replace(
        workload,
        metadata=msgspec.structs.replace(workload.metadata, resource_version=version),
        spec=msgspec.structs.replace(workload.spec, **spec),
    )


def test_an_answer_about_a_workload_that_was_seen_to_be_deleted_is_old(world):
    job = make_job("train", parallelism=2)
    world.put("job", job)
    world.admit(job)
    record = entry_of(world, job)
    stored = world.stores["workload"][record.key]
    record.writes.begin_write()
    world.drop("workload", stored)
    assert (record.observed, record.gone) == (None, stored.metadata.uid)
    world.memory.workloads.written(record, known_as(newer(stored, "9")))
    assert record.observed is None, "so it is made again"
    again = msgspec.structs.replace(stored, metadata=msgspec.structs.replace(stored.metadata, uid="another"))
    world.put("workload", newer(again, "12"))
    assert record.observed.uid == "another"
    world.put("workload", newer(stored, "10"))
    assert record.observed.uid == "another", "what is still heard of the deleted one is old"


def test_the_next_workload_says_anew_why_it_waits(world):
    """Pods that came meanwhile, and the new object, have no event yet; the answer to the removal may never come."""
    job = make_job("train", parallelism=2)
    world.put("job", job)
    world.admit(job)
    record = entry_of(world, job)
    record.last_event, record.removing = LastEvent("DoesNotFit", "m", 1.0), True
    world.drop("workload", world.stores["workload"][record.key])
    assert (record.last_event, record.removing) == (None, False)


def test_one_that_was_made_again_while_a_write_was_on_its_way_counts_after_it(world):
    job = make_job("train", parallelism=2)
    world.put("job", job)
    world.admit(job)
    record = entry_of(world, job)
    stored = world.stores["workload"][record.key]
    record.writes.begin_write()
    world.drop("workload", stored)
    again = msgspec.structs.replace(stored, metadata=msgspec.structs.replace(stored.metadata, uid="another"))
    world.put("workload", newer(again, "12"))
    assert record.observed is None, "nothing is taken over while a write is on its way"
    world.memory.workloads.written(record, known_as(newer(stored, "9")))
    assert record.observed.uid == "another"


def test_what_a_suspended_job_has_stored_is_held_until_it_is_removed(world):
    """A controller that starts then gives it to nobody else before: the job may be resumed at any moment."""
    job = make_job("train", parallelism=2)
    world.put("job", job)
    world.admit(job)
    slots = entry_of(world, job).slots
    world.put("job", make_job("train", parallelism=2, suspend=True))
    memory = world.restarted()
    record = memory.entries[id_of(job)]
    assert record.slots.same_slots(slots)
    assert isinstance(reconcile(record, memory.rules, 0.0)[-1], Release)


class Client:
    """Answers a patch after ``meanwhile()``."""

    def __init__(self, meanwhile, answer):
        self.meanwhile, self.answer = meanwhile, answer

    async def patch(self, *_args, **_options):
        self.meanwhile()
        await asyncio.sleep(0)
        return self.answer

    async def create(self, *_args, **_options):
        return await self.patch()


async def test_what_becomes_of_a_workload_while_its_job_is_patched_is_not_lost(world):
    job = queued(world, "train")
    world.admit(job)
    record = entry_of(world, job)
    stored = world.stores["workload"][record.key]
    client = Client(lambda: world.put("workload", newer(stored, "9", active=False)), job)
    recorder = unittest.mock.Mock()
    jobs = StartStop(client, world.memory, None, flavors={}, keys=KEYS, recorder=recorder)
    await jobs.suspend_job(record, Suspend())
    assert (record.observed.active, record.writes.busy) == (False, False)
    recorder.event.assert_not_called()  # what it is suspended for is told already
    await jobs.suspend_job(record, Suspend("nobody admitted it"))
    recorder.event.assert_called_once_with(
        job_reference(record), "Warning", Reason.SUSPENDED, "Suspend", "nobody admitted it"
    )


@pytest.fixture
def controller():
    """A controller whose writes go to a stand-in, with what a World would have told it."""
    made = Controller(
        assemble(Settings(), None, ControllerMetrics(), None, SYSTEM, restart=print), None, ControllerMetrics(), SYSTEM
    )
    for _ in made.parts.cache.load((), (), (), (), ()):
        pass
    return made


def told(controller, world, job):
    """Have the controller know what the world knows; the record of the job, with its slots."""
    stores = (world.stores[kind].values() for kind in ("node", "flavor", "class", "job", "pod"))
    queues = {f"{kind}s": world.stores[kind].values() for kind in ("namespace", "cluster_queue", "local_queue")}
    informers = controller.parts.informers
    for kind, informer in (
        ("workload", informers.of(kinds.WORKLOADS)),
        ("cluster_queue", informers.of(kinds.CLUSTER_QUEUES)),
    ):
        informer._store.update(world.stores[kind])
        world.stores[kind] = informer._store
    for _ in controller.parts.cache.load(*stores, **queues):
        pass
    return controller.parts.cache.entries[id_of(job)]


async def test_what_changes_while_its_workload_is_made_is_not_lost(world, controller):
    job = make_job("train", parallelism=2)
    world.put("job", job)
    record = told(controller, world, job)
    made = stored_workload(record.job, slot_map(("b/r1/r1-h1", 2)))
    made = msgspec.structs.replace(made, status=ObservedStatus())

    def edited():
        world.stores["workload"][record.key] = newer(made, "9", active=False)

    controller.parts.writer._client = Client(edited, made)
    await controller.reconciler.reconcile(record.id)
    assert (record.observed.resource_version, record.observed.active) == ("9", False)


class Taken:
    """In place of a client: somebody has a Workload of this name, which no watch told of."""

    def __init__(self, other):
        self.other, self.made = other, []

    async def create(self, _resource, body, *_args, **_options):
        self.made.append(body["metadata"]["name"])
        if body["metadata"]["name"] == self.other.metadata.name:
            raise AlreadyExists(409, "AlreadyExists", "taken")
        raise Conflict(409, "Conflict", "enough")

    async def get(self, *_args, **_options):
        return self.other


async def test_a_workload_whose_name_is_found_taken_is_made_under_the_longer_one(world, controller):
    job = make_job("train", parallelism=2)
    world.put("job", job)
    record = told(controller, world, job)
    made = stored_workload(record.job, slot_map(("b/r1/r1-h1", 2)))
    meta = msgspec.structs.replace(made.metadata, owner_references=(), annotations={})
    controller.parts.writer._client = client = Taken(msgspec.structs.replace(made, metadata=meta))
    usual = record.job.workload
    for _ in range(2):
        await controller.reconciler.reconcile(record.id)
    assert client.made == [usual, longer_name(usual, record.job.owner)]
    assert record.observed is None, "what it found is another's"


def admitted(controller, world):
    """The record of a job that is admitted, and its Workload; the controller knows both."""
    job = make_job("train", parallelism=2)
    world.put("job", job)
    world.admit(job)
    record = told(controller, world, job)
    return record, world.stores["workload"][record.key]


async def test_a_victim_whose_workload_somebody_gave_to_another_owner_goes_without_it(world, controller):
    """Where no policy keeps a tenant from writing owners: else nobody could ever have what it holds."""
    record, stored = admitted(controller, world)
    meta = msgspec.structs.replace(stored.metadata, owner_references=(), annotations={})
    controller.parts.writer._client = client = Taken(msgspec.structs.replace(stored, metadata=meta))
    controller.parts.executor._recorder = unittest.mock.Mock()
    world.stores["workload"][record.key] = client.other
    record.forget_workload()
    await controller.reconciler.reconcile(record.id)
    assert record.admission is not None, "it keeps what it has"
    record.evict_for(Evict(Reason.PREEMPTED, "cluster queue b takes back its nominal quota", Reason.RECLAIMED))
    for _ in range(8):
        await controller.reconciler.reconcile(record.id)
    assert record.admission is None


async def test_a_workload_that_somebody_gave_away_and_back_is_taken_over_again(world, controller):
    """Else another one would be asked for again and again, at once each time, whose name is taken."""
    record, stored = admitted(controller, world)
    controller.parts.writer._client = client = Taken(stored)
    controller.parts.cache.workloads.found_gone(record)
    await controller.reconciler.reconcile(record.id)
    assert client.made == [record.job.workload]
    assert record.observed.uid == client.other.metadata.uid


async def test_a_workload_whose_end_a_finalizer_holds_up_is_asked_for_again_later_each_time(world, controller):
    record, stored = admitted(controller, world)
    meta = msgspec.structs.replace(stored.metadata, deletion_timestamp="2026-11-21T00:00:00Z")
    controller.parts.writer._client = Taken(msgspec.structs.replace(stored, metadata=meta))
    controller.parts.cache.workloads.removed(record)
    for failures in (1, 2):
        await controller.reconciler.reconcile(record.id)
        assert (record.observed, record.failures) == (None, failures)


async def test_a_look_that_comes_while_a_write_is_on_its_way_is_made_after_it(world, controller):
    """Another write may fail meanwhile and ask for a look later, which the first one's answer overtakes."""
    job = make_job("train", parallelism=2)
    world.put("job", job)
    record = told(controller, world, job)
    record.writes.begin_write()
    while controller.parts.queue._waiting:
        controller.parts.queue.done(await controller.parts.queue.get())
    await controller.reconciler.reconcile(record.id)
    assert record.id not in controller.parts.queue._waiting
    controller.parts.cache.workloads.written(record, None)
    assert record.id in controller.parts.queue._waiting


async def test_what_was_to_be_given_back_and_is_kept_after_all_lets_pods_go_again(world, controller):
    job = make_job("train", parallelism=2)
    world.put("job", job)
    world.admit(job)
    pod = make_pod("p", owner=entry_of(world, job).job)
    world.put("pod", pod)
    record = told(controller, world, job)
    record.pods = {pod.metadata.uid: pod}
    controller.parts.cache.queues.holders.mark_leaving(record.key)
    record.closing = True  # the write that evicts it met a conflict: it had been made active again
    await controller.reconciler.reconcile(record.id)
    assert not record.closing
    assert not controller.parts.cache.queues.holders.evicting, "else it would never be given other slots"
    assert controller.parts.pod_writer._queue.qsize() == 1


async def test_no_pod_is_let_go_to_a_slot_that_is_being_given_up(world, controller):
    job = make_job("train", parallelism=2)
    world.put("job", job)
    world.admit(job)
    record = told(controller, world, job)
    pod = make_pod("p", owner=record.job)
    (slot,) = record.slots.slots
    sender = controller.parts.pod_writer
    sender.ungate(record, pod, slot)
    assert sender._may_still_go(record, pod, slot)
    record.leaving = frozenset({("main", slot.values)})
    assert not sender._may_still_go(record, pod, slot)


async def test_slots_are_not_moved_while_a_pod_is_being_let_go(world, controller):
    job = make_job("train", parallelism=2)
    world.put("job", job)
    world.admit(job)
    record = told(controller, world, job)
    record.lost = {"main": ((0, 2),)}
    record.writes.begin_patch()
    controller.parts.cache.reservations.moving[record.key] = ()
    controller.parts.scheduler._writes._spawn = lambda write: write.close()
    controller.parts.scheduler._move()
    assert controller.parts.cache.reservations.moving == {record.key: ()}, "nobody looked for other slots"
    record.writes.end_patch()
    controller.parts.scheduler._move()
    assert controller.parts.cache.reservations.moving != {record.key: ()}


async def test_an_admission_that_is_written_again_waits_for_its_checks_again(controller):
    world = filled(World(), admissionChecksStrategy={"admissionChecks": [{"name": "budget"}]})
    job = queued(world, "train")
    world.admit(job)
    record = told(controller, world, job)
    found = []

    async def admission(_namespace, observed, admission, wanted, **more):
        found.append(({one.type: one.status for one in wanted}, more["more"]))
        return msgspec.structs.replace(observed, admission=admission, resource_version="10")

    controller.parts.writer.admission = admission
    record.observed = make_known(record.job)
    await controller.reconciler.reconcile(record.id)
    record.observed = make_known(record.job)
    record.job = msgspec.structs.replace(record.job, suspended=False)
    await controller.reconciler.reconcile(record.id)
    (waits, more), (runs, nothing) = found
    assert (waits[conditions.ADMITTED], more["admissionChecks"][0]["state"]) == (False, "Pending")
    assert (runs[conditions.ADMITTED], nothing) == (True, None), "one that runs has passed them"


async def test_a_plan_that_is_none_any_more_is_removed_however_often_that_fails(world, controller):
    """A controller that starts would go on with what is stored, and evict for nothing."""
    job = queued(world, "train")
    record = told(controller, world, job)
    nomination = Nomination(None, {"ns/low": "u-low"})
    record.observed = msgspec.structs.replace(make_known(record.job), nomination=nomination)
    answers, writes = [Conflict(409, "Conflict", "m"), make_known(record.job)], []

    async def conditions_(_namespace, observed, _wanted, more):
        writes.append(more)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    spawned = []
    controller.parts.writer.conditions, controller.parts.scheduler._writes._spawn = conditions_, spawned.append
    for _ in range(2):
        controller.parts.cache.admissions.enqueue_entry(record)
        controller.parts.scheduler.withdraw(record)
        await spawned.pop()
    assert writes == [{"nomination": None}] * 2
    assert record.observed.nomination is None
    controller.parts.scheduler.withdraw(record)
    assert spawned == []


async def test_a_workload_of_whose_end_no_event_tells_is_made_again(world, controller):
    """It was made and deleted while the watch was broken, so the next list has nothing that went."""
    job = queued(world, "train")
    record = told(controller, world, job)
    record.observed = make_known(record.job)
    world.stores["workload"].clear()

    async def gone(*_args, **_options):
        raise NotFound(404, "NotFound", "workload")

    controller.parts.writer.conditions = controller.parts.writer.find = gone
    record.refused = Refused(Reason.QUEUE_STOPPED, "m")
    await controller.reconciler.reconcile(record.id)
    assert record.observed is None
    assert isinstance(reconcile(record, controller.parts.cache.rules, 0.0)[0], Create)


async def test_a_removal_of_which_no_event_tells_is_followed_up(world, controller):
    """A LeaderWorkerSet that was made anew under its name waits until the Workload of the old one is gone."""
    job = queued(world, "train")
    record = told(controller, world, job)
    record.observed = make_known(record.job)
    while controller.parts.queue._waiting:
        controller.parts.queue.done(await controller.parts.queue.get())

    async def remove(*_args):
        pass

    controller.parts.writer.remove = remove
    await controller.parts.eviction.remove_workload(record)
    assert record.observed is None
    assert record.id in controller.parts.queue._waiting


@pytest.mark.parametrize("plan", ["none", "decided", "stored"])
async def test_a_victim_whose_workload_is_deleted_while_it_goes_goes_on(world, controller, plan):
    """That it is evicted is said by its Workload alone, and somebody waits for its room.

    A plan that is not stored yet tells its victims once it is: else one goes for nobody where that is never stored.
    """
    job, awaited = queued(world, "low", 4), plan == "stored"
    world.admit(job)
    high = told(controller, world, queued(world, "high", 4))
    nomination = Nomination(None, {"ns/low": "u-low"}) if awaited else None
    high.observed = msgspec.structs.replace(make_known(high.job), nomination=nomination)
    record = told(controller, world, job)
    memory = controller.parts.cache
    memory.queues.holders.mark_leaving(record.key)
    memory.reservations.preemptors_of = lambda _: [high.key] if plan != "none" else []
    memory.reservations.eviction_message = lambda by, _: Evict(Reason.PREEMPTED, by, Reason.IN_CLUSTER_QUEUE)

    async def admission(_namespace, observed, admission, _wanted, **_):
        return msgspec.structs.replace(observed, admission=admission, resource_version="10")

    controller.parts.writer.admission = admission
    record.observed = make_known(record.job)
    await controller.reconciler.reconcile(record.id)
    assert record.observed.admission is not None
    assert any(isinstance(one, Evict) for one in reconcile(record, memory.rules, 0.0)) == awaited
    assert not awaited or record.key in memory.queues.holders.evicting


@pytest.mark.parametrize("planned", [False, True])
async def test_a_victim_that_is_planned_again_while_it_is_told_to_stay_goes(world, controller, planned):
    """Else the second plan would wait for ever for one that stays."""
    job = queued(world, "low", 4)
    world.admit(job)
    record = told(controller, world, job)
    memory, preemptor = controller.parts.cache, []
    memory.queues.holders.mark_leaving(record.key)
    memory.reservations.preemptors_of = lambda _: preemptor
    memory.reservations.eviction_message = lambda by, _: Evict(Reason.PREEMPTED, by, Reason.IN_CLUSTER_QUEUE)

    async def conditions_(_namespace, observed, _wanted, _more=None):
        preemptor.extend(["ns/high"] if planned else [])
        return msgspec.structs.replace(observed, resource_version="10")

    controller.parts.writer.conditions = conditions_
    await controller.parts.eviction._spare(record, Reason.QUOTA_RESERVED, "nobody waits for its room any more")
    assert (record.key in memory.queues.holders.evicting, record.evict is not None) == (planned, planned)


async def test_nobody_is_admitted_before_all_who_were_there_at_the_start_have_been_looked_at(controller, monkeypatch):
    """Else the first to be looked at is admitted before those it waits behind."""
    cycles = []
    monkeypatch.setattr(controller.parts.scheduler, "cycle", lambda: cycles.append(1))
    controller.parts.cycle_requests._unseen = {"a", "b"}
    controller.parts.cycle_requests.request_cycle()
    task = asyncio.create_task(controller._cycles())
    await asyncio.sleep(0.05)
    controller.parts.cycle_requests.saw("a")
    await asyncio.sleep(0.05)
    assert not cycles
    controller.parts.cycle_requests.saw("b")
    await asyncio.sleep(0.05)
    task.cancel()
    assert cycles


async def test_one_who_is_never_looked_at_holds_up_nobody_for_long(controller, monkeypatch):
    done = asyncio.Event()
    monkeypatch.setattr(controller.parts.scheduler, "cycle", done.set)
    monkeypatch.setattr(loops, "FIRST_LOOKS", 0.01)
    controller.parts.cycle_requests._unseen = {"a"}
    controller.parts.cycle_requests.request_cycle()
    task = asyncio.create_task(controller._cycles())
    await asyncio.wait_for(done.wait(), 10)
    task.cancel()
    assert controller.parts.cycle_requests._unseen == {"a"}, "it was not waited for"


def test_who_is_asked_again_says_again_why_it_waits(world):
    first, second = queued(world, "first", 4), queued(world, "second", 4)
    world.admit(first)
    world.refused(second)
    record = entry_of(world, second)
    record.refused = Refused(Reason.INSUFFICIENT_QUOTA, "for an earlier reservation")
    assert not cycle(world.memory.state, world.memory.queues, 0.0).waiting
    world.memory.admissions.renew_message(record)
    assert record.refused is None
    (waiting,) = cycle(world.memory.state, world.memory.queues, 0.0).waiting
    assert (waiting.key, waiting.reason) == (record.key, Reason.INSUFFICIENT_QUOTA)
    world.memory.admissions.renew_message(entry_of(world, first))
    assert not cycle(world.memory.state, world.memory.queues, 0.0).waiting, "who holds something does not wait"


@pytest.mark.parametrize("error", [Conflict, NotFound])
async def test_an_answer_to_kueue_that_was_refused_is_given_again(controller, error):
    """A kind that was made a moment ago has no status yet, and then no event comes that would decide again."""
    bridge = controller.parts.bridge

    async def refused():
        raise error(409, "no", "no")

    await bridge._try("ns/w", refused())
    assert await asyncio.wait_for(bridge._queue.get(), 5) == "ns/w"
    bridge._queue.close()


@pytest.mark.parametrize("late", [False, True])
async def test_a_bug_in_the_write_of_one_admission_ends_nothing_else(world, controller, late):
    job = queued(world, "train")
    record = told(controller, world, job)
    record.observed = make_known(record.job)
    memory = controller.parts.cache
    memory.admissions.enqueue_entry(record)
    assert cycle(memory.state, memory.queues, 0.0).admitted
    record.writes.begin_write()

    async def broken(record):
        if late:
            controller.parts.scheduler._writes.written(record, None)
        raise RuntimeError("a field that nobody thought of")

    await controller.parts.scheduler._writes._write(record, broken)
    entry = memory.queues.entries[record.key]
    assert (entry.phase, record.failures, record.writes.busy) == (Phase.LATER, 1, False)
    assert not memory.state.assignments(record.key), "it is held no more, and tried again later"


async def test_a_plan_whose_nomination_cannot_be_made_leaves_nothing_under_way(world, controller, monkeypatch):
    low, high = queued(world, "low", 4), queued(world, "high", 4)
    world.admit(low)
    grant = world.memory.queues.entries[entry_of(world, low).key].grant
    record, spawned = told(controller, world, high), []
    controller.parts.cache.admissions.enqueue_entry(record)
    monkeypatch.setattr(controller.parts.scheduler._writes, "_spawn", spawned.append)
    monkeypatch.setattr(controller.parts.cache.reservations, "admission_of", None)
    plan = Preempting(record.key, grant, (), "m")
    controller.parts.scheduler._write_in_turn(record.key, partial(controller.parts.scheduler._preempt, plan))
    assert record.writes.busy
    await spawned.pop()
    assert (record.writes.busy, record.failures) == (False, 1)


@pytest.mark.parametrize(("changed", "stored"), [({}, True), ({"priority": 5}, False), ({"queue": "other"}, False)])
async def test_nothing_is_stored_that_was_decided_for_a_workload_as_it_was_before_it_was_made_anew(
    world, controller, changed, stored
):
    """Its priority and queue may be others now: nobody is evicted by those of the old one."""
    record, done = told(controller, world, queued(world, "train", 4)), []
    memory, record.observed = controller.parts.cache, make_known(record.job)
    memory.admissions.enqueue_entry(record)
    (made,) = cycle(memory.state, memory.queues, 0.0).admitted
    record.observe(msgspec.structs.replace(record.observed, **changed))

    async def write():
        return record.observed

    record.writes.begin_write()
    writes = controller.parts.scheduler._writes
    assert await writes.store(record, made.grant, write, partial(done.append, record.key)) is stored
    assert done == ([record.key] if stored else [])
    assert stored or record.failures == 1


@pytest.mark.parametrize("stored", [True, False])
async def test_a_boost_that_an_older_crd_drops_is_not_written_without_end(world, controller, monkeypatch, stored):
    job = queued(world, "train")
    world.admit(job)
    record, parts, asked, later = told(controller, world, job), controller.parts, [], []

    async def conditions(_namespace, observed, _wanted, more):
        asked.append(more["priorityBoost"]["value"])
        version = str(observed.version + 1)
        kept = {"boost": asked[-1], "boost_since": 1.0} if stored else {}
        return msgspec.structs.replace(observed, resource_version=version, **kept)

    monkeypatch.setattr(parts.writer, "conditions", conditions)
    monkeypatch.setattr(parts.executor, "_requeue", lambda job, after: later.append((job, after)))
    last = await parts.executor.carry_out(record, [CountBoost(20)])
    assert asked == [20]
    assert record.observed.effective_priority == (20 if stored else 0)
    assert (last, later) == ((CountBoost(20), []) if stored else (None, [(record.id, 60.0)]))

"""However much one namespace has to be looked at and written, another one waits for one thing of it."""

import asyncio

import msgspec
import pytest
from support.owned import KEYS, make_job, make_owner, make_pod, make_record, slot_map
from support.queued_world import entry_of, filled
from support.world import World

from clock import SYSTEM
from clock.turns import InTurn, TurnQueue
from ungater.executor import deferred
from ungater.executor.deferred import DeferredWrites
from ungater.guard import Guard
from ungater.jobs.pod_group import owner_key
from ungater.metrics import ControllerMetrics
from ungater.model.job_view import namespace_of
from ungater.scheduling import scheduler as scheduling
from ungater.scheduling.scheduler import Scheduler
from ungater.workqueue import WorkQueue
from ungater.writers.evictor import Evictor
from ungater.writers.pods import PodWriter

MANY = 4000


def owner(name, namespace):
    return msgspec.structs.replace(make_owner(name), namespace=namespace)


def evil(number):
    return make_pod(f"evil-{number}", owner=owner("evil", "mallory"), gated=False, node="n1")


def rest(queue):
    return [queue.get_nowait() for _ in range(queue.qsize())]


async def test_a_job_is_looked_at_next_however_many_of_another_namespace_wait():
    """4,000 pods, or 2,000 groups, made and deleted at once."""
    queue = WorkQueue(SYSTEM, namespace_of)
    for number in range(MANY):
        queue.add(f"mallory/{number}")
        queue.add(f":group/mallory/{number}")
    queue.add("alice/honest")
    assert [await queue.get() for _ in range(2)] == ["mallory/0", "alice/honest"]
    assert await queue.get() == ":group/mallory/0"
    assert len(queue) == 2 * MANY - 2


async def test_within_a_namespace_the_first_that_came_is_first():
    queue = WorkQueue(SYSTEM, namespace_of)
    for key in ("a/1", "a/2", "b/1", "a/3", "b/2", "c/1"):
        queue.add(key)
    assert [await queue.get() for _ in range(6)] == ["a/1", "b/1", "c/1", "a/2", "b/2", "a/3"]


def test_whoever_comes_back_has_a_turn_after_all_that_wait():
    turns: InTurn[str] = InTurn()
    turns.append("a", "a1")
    turns.append("b", "b1")
    assert turns.popleft() == "a1"
    turns.append("a", "a2")
    assert [turns.popleft(), turns.popleft()] == ["b1", "a2"]
    assert len(turns) == 0
    with pytest.raises(StopIteration):
        turns.popleft()


def test_the_id_of_an_owner_tells_its_namespace():
    pods = [make_pod("p"), make_pod("p", owner=owner("train", "alice"))]
    assert [namespace_of(owner_key(pod, KEYS)) for pod in pods] == ["ns", "alice"]
    assert namespace_of("ns/uid") == "ns"
    assert namespace_of("ns/uid@Foo.made.up/role") == "ns"
    assert namespace_of(":group/ns/a/b") == "ns"
    assert namespace_of(":lws/ns/set/0") == "ns"
    assert namespace_of("check") == "check"


async def test_a_pod_is_let_go_next_however_many_of_another_namespace_are_to_be_deleted():
    writer = PodWriter(
        None,
        KEYS,
        {},
        concurrency=1,
        timeout=1.0,
        requeue=lambda *_: None,
        stayed=lambda *_: None,
        metrics=ControllerMetrics(),
        recorder=None,
        guard=Guard(SYSTEM, [].append),
        clock=SYSTEM,
    )
    bad, slots = make_record(owner("evil", "mallory")), slot_map(("b1/r1/n1", 2))
    for number in range(MANY):
        writer.delete(bad, evil(number))
    honest = make_record(owner("train", "alice"), slots=slots)
    writer.ungate(honest, make_pod("p", owner=honest.job), slots.slots[0])
    assert [one.namespace for one in rest(writer._queue)[:3]] == ["mallory", "alice", "mallory"]


async def test_a_pod_is_evicted_next_however_many_of_another_namespace_are_to_go():
    evictor = Evictor(
        None,
        concurrency=1,
        requeue=lambda *_: None,
        recorder=None,
        metrics=ControllerMetrics(),
        guard=Guard(SYSTEM, [].append),
        clock=SYSTEM,
        job=lambda _: None,
    )
    for number in range(MANY):
        evictor.request_eviction("mallory/evil", evil(number), "makes room")
    evictor.request_eviction("alice/train", make_pod("p", owner=owner("train", "alice"), gated=False), "makes room")
    assert [one.uid for one in rest(evictor._queue)[:2]] == ["mallory/evil", "alice/train"]


async def test_a_queue_that_is_waited_at_hands_out_what_comes():
    queue: TurnQueue[str] = TurnQueue(lambda one: one[0])
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.put_nowait("a1")
    assert await waiting == "a1"
    assert queue.empty()


async def test_a_write_that_can_wait_is_made_next_however_many_of_another_namespace_wait(monkeypatch):
    monkeypatch.setattr(deferred, "TICK", 0.0)
    asked: list[str] = []
    writes = DeferredWrites(lambda: True, asked.append, list, SYSTEM)
    for number in range(MANY):
        writes.defer_write(f"mallory/{number}", 1e-9)
    writes.defer_write("alice/honest", 1e-9)
    task = asyncio.create_task(writes.run())
    while not asked:
        await asyncio.sleep(0)
    task.cancel()
    assert asked[:2] == ["mallory/0", "alice/honest"]


def moving(monkeypatch, *names):
    """A scheduler over jobs that lost the nodes of their slots, in that order; what it looks for places for."""
    world, looked = filled(World()), []
    scheduler = Scheduler(
        world.memory,
        None,
        spawn=lambda write: write.close(),
        requeue=lambda *_: None,
        metrics=ControllerMetrics(),
        recorder=None,
        clock=SYSTEM,
    )
    monkeypatch.setattr(scheduler, "_move_one", looked.append)
    monkeypatch.setattr(scheduling, "HEADS", 2)
    for name in names:
        namespace, _, own = name.partition("/")
        job = make_job(own, parallelism=1)
        job = msgspec.structs.replace(job, metadata=msgspec.structs.replace(job.metadata, namespace=namespace))
        world.put("job", job)
        world.admit(job)
        entry = entry_of(world, job)
        entry.lost = {"main": ((0, 1),)}
        world.memory.reservations.want(entry)
    return scheduler, looked


async def test_other_slots_are_looked_for_next_however_many_of_another_namespace_lost_theirs(monkeypatch):
    scheduler, looked = moving(monkeypatch, "mallory/a", "mallory/b", "mallory/c", "alice/honest")
    assert scheduler.cycle(), "there are others to be looked at"
    assert [key.partition("-")[0] for key in looked] == ["mallory/job", "alice/job"]
    assert not scheduler.cycle()
    assert [key.split("-")[1] for key in looked] == ["a", "honest", "b", "c"]
    scheduler.cycle()
    assert len(looked) == 4, "nothing was freed since they were looked at"

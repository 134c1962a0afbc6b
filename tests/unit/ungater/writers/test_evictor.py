"""Evictions under way: what is tried again, and when."""

import asyncio
from types import SimpleNamespace

import msgspec
import pytest
from support.owned import make_pod

from clock import SYSTEM, Clock
from kube.errors import Conflict, ConnectionFailed, TooManyRequests
from ungater.guard import Guard
from ungater.metrics import Metrics
from ungater.model.conditions import timestamp
from ungater.writers.evictor import GONE_AFTER, UNASKED, Evictor


def test_a_look_before_the_next_attempt_is_due_asks_for_another_then():
    now, asked = [100.0], []
    evictions = Evictor(
        None,
        concurrency=1,
        requeue=lambda uid, after: asked.append((uid, after)),
        recorder=None,
        metrics=Metrics(),
        guard=Guard(SYSTEM, [].append),
        clock=Clock(SYSTEM.now, lambda: now[0]),
    )
    pod = make_pod(gated=False, node="n1")
    evictions.evict("job", pod, "makes room")
    evictions._refused(evictions._queue.get_nowait(), ConnectionFailed("no answer"))
    ((_, delay),) = asked
    now[0] += 0.25
    evictions.evict("job", pod, "makes room")  # a look for another reason takes the place of the one asked for
    assert asked[1:] == [("job", pytest.approx(delay - 0.25))]
    assert evictions._queue.empty()
    now[0] += delay
    evictions.evict("job", pod, "makes room")
    assert evictions._queue.get_nowait().pod is pod


def test_one_that_nobody_asks_for_any_more_is_forgotten_and_none_that_is_tried():
    now = [100.0]
    made = Evictor(
        None,
        concurrency=1,
        requeue=lambda *_: None,
        recorder=None,
        metrics=Metrics(),
        guard=Guard(SYSTEM, [].append),
        clock=Clock(SYSTEM.now, lambda: now[0]),
    )
    for name in ("a", "b"):
        made.evict("job", make_pod(name, gated=False, node="n1"), "makes room")
    made._refused(made._queue.get_nowait(), ConnectionFailed("no answer"))
    for seconds, left in ((60.0, 2), (UNASKED + 60.0, 1)):
        now[0] += seconds
        made.sweep()
        assert len(made._tries) == left
    made._refused(made._queue.get_nowait(), ConnectionFailed("no answer"))
    now[0] += UNASKED + 60.0
    made.sweep()
    assert (made._tries, made._of) == ({}, {})


class Conflicting:
    """Refuses each eviction with a conflict that is none of the pod's identity."""

    async def evict(self, *_args, **_options):
        raise Conflict(409, "Conflict", "the object has been modified; please apply your changes to the latest version")


async def test_after_a_conflict_the_pod_is_looked_for_again():
    asked = asyncio.Queue()
    evictions = Evictor(
        Conflicting(),
        concurrency=1,
        requeue=lambda uid, after: asked.put_nowait((uid, after)),
        recorder=None,
        metrics=Metrics(),
        guard=Guard(SYSTEM, [].append),
        clock=SYSTEM,
    )
    running = asyncio.create_task(evictions.run())
    for _ in range(2):
        evictions.evict("job", make_pod(gated=False, node="n1"), "makes room")
        assert await asyncio.wait_for(asked.get(), 5) == ("job", GONE_AFTER)
    running.cancel()


WALL = 1_800_000_000.0


class Asked:
    """Notes what is asked for; evictions are refused by a budget."""

    def __init__(self):
        self.calls = []

    async def evict(self, name, _namespace, *, grace_period, **_options):
        self.calls.append(("evict", name, grace_period))
        raise TooManyRequests(429, "TooManyRequests", "a budget forbids it")

    async def delete(self, _resource, name, _namespace, *, grace_period, **_options):
        self.calls.append(("delete", name, grace_period))


@pytest.fixture
async def asked():
    client = Asked()
    recorder = SimpleNamespace(event=lambda *_: None)
    made = Evictor(
        client,
        concurrency=1,
        requeue=lambda *_: None,
        recorder=recorder,
        metrics=Metrics(),
        guard=Guard(SYSTEM, [].append),
        clock=Clock(lambda: WALL, SYSTEM.monotonic),
    )
    running = asyncio.create_task(made.run())
    client.evictions = made
    yield client
    running.cancel()


async def settled(client, calls):
    for _ in range(100):
        if len(client.calls) >= calls:
            break
        await asyncio.sleep(0)
    return client.calls


def stops_slowly(left=None):
    pod = make_pod("slow", gated=False, node="n1", spec={"terminationGracePeriodSeconds": 2_592_000})
    if left is None:
        return pod
    return msgspec.structs.replace(
        pod, metadata=msgspec.structs.replace(pod.metadata, deletion_timestamp=timestamp(WALL + left))
    )


async def test_a_budget_is_overridden_at_once_where_that_is_asked_for(asked):
    asked.evictions.evict("job", make_pod("p", gated=False, node="n1"), "makes room")
    assert await settled(asked, 1) == [("evict", "p", None)]
    await asyncio.sleep(0)
    assert asked.evictions.blocked("job") is not None
    asked.evictions.evict("job", make_pod("p", gated=False, node="n1"), "makes room")
    asked.evictions.evict("job", make_pod("p", gated=False, node="n1"), "quota", overriding=True)
    assert (await settled(asked, 2))[1:] == [("delete", "p", None)]


async def test_a_pod_may_not_take_longer_to_stop_than_it_is_given(asked):
    asked.evictions.evict("job", stops_slowly(), "quota", most_grace=600)
    assert await settled(asked, 1) == [("evict", "slow", 600)]
    asked.evictions.evict("job", stops_slowly(left=2_000_000.0), "quota", most_grace=600)
    assert (await settled(asked, 2))[1:] == [("delete", "slow", 600)]
    asked.evictions.evict("job", stops_slowly(left=500.0), "quota", most_grace=600)
    asked.evictions.evict("job", stops_slowly(left=2_000_000.0), "makes room")
    assert len(await settled(asked, 3)) == 2, "one that stops in time, or whose owner owes nothing, is left alone"

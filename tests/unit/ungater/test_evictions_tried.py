"""Evictions under way: what is tried again, and when."""

import asyncio

import pytest
from support.owned import make_pod

from kube.errors import Conflict, ConnectionFailed
from ungater.evictions import GONE_AFTER, Evictions
from ungater.metrics import Metrics


def test_a_look_before_the_next_attempt_is_due_asks_for_another_then():
    now, asked = [100.0], []
    evictions = Evictions(
        None,
        concurrency=1,
        again=lambda uid, after: asked.append((uid, after)),
        recorder=None,
        metrics=Metrics(),
        clock=lambda: now[0],
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


class Conflicting:
    """Refuses each eviction with a conflict that is none of the pod's identity."""

    async def evict(self, *_args, **_options):
        raise Conflict(409, "Conflict", "the object has been modified; please apply your changes to the latest version")


async def test_after_a_conflict_the_pod_is_looked_for_again():
    asked = asyncio.Queue()
    evictions = Evictions(
        Conflicting(),
        concurrency=1,
        again=lambda uid, after: asked.put_nowait((uid, after)),
        recorder=None,
        metrics=Metrics(),
    )
    running = asyncio.create_task(evictions.run())
    for _ in range(2):
        evictions.evict("job", make_pod(gated=False, node="n1"), "makes room")
        assert await asyncio.wait_for(asked.get(), 5) == ("job", GONE_AFTER)
    running.cancel()

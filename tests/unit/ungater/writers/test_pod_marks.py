"""The mark of a pod that Kueue started: written once, and tried again where that fails, as no event tells of it."""

import asyncio
from contextlib import suppress

import pytest
from support.owned import KEYS, make_pod, make_record, slot_map

from clock import Clock
from kube.errors import Conflict, ConnectionFailed, NotFound
from ungater.guard import Guard
from ungater.jobs.pod_template import Added
from ungater.metrics import ControllerMetrics
from ungater.writers.pods import PodWriter

# As the API server answers where others wrote the pod each of the times that it tried: the pod is there all the same.
BUSY = Conflict(409, "Conflict", "the object has been modified; please apply your changes to the latest version")


class Refused:
    """A pod of Kueue's whose mark is refused with ``error``, and when its workload is looked at again, in seconds."""

    def __init__(self, error):
        self.error, self.now, self.patches, self.again = error, 100.0, 0, []
        clock = Clock(lambda: self.now, lambda: self.now)
        self.writer = PodWriter(
            self,
            KEYS,
            lambda _entry, _pod_set: Added(),
            concurrency=1,
            timeout=5.0,
            requeue=lambda _key, after: self.again.append(after),
            stayed=lambda *_: None,
            metrics=ControllerMetrics(),
            recorder=None,
            guard=Guard(clock, lambda _kind: None),
            clock=clock,
        )
        self.pod = make_pod("a")
        self.entry = make_record(slots=slot_map(("b/r/n1", 1)), pods=[self.pod])
        self.entry.adopt_pods(frozenset({self.pod.metadata.uid}))

    async def patch(self, *_args, **_options):
        self.patches += 1
        raise self.error

    async def mark(self):
        """One look has the pod marked, and what is to be sent is sent."""
        self.writer.mark(self.entry, self.pod)
        task = asyncio.create_task(self.writer.run())
        for _ in range(9):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return self.patches, self.again


@pytest.mark.parametrize("error", [BUSY, ConnectionFailed("down")])
async def test_a_mark_that_was_not_written_is_written_later(error):
    """A pod that runs may never change again: only the next leader would write it."""
    refused = Refused(error)
    assert await refused.mark() == (1, [5.0])
    refused.now += 5.0
    assert (await refused.mark())[0] == 2


async def test_a_look_that_comes_before_the_mark_is_due_asks_for_another_one():
    """A key is in the work queue once, so an earlier look is instead of the one that was asked for."""
    refused = Refused(BUSY)
    await refused.mark()
    refused.now += 2.0
    assert await refused.mark() == (1, [5.0, 3.0])


async def test_a_pod_that_is_gone_is_not_marked_later():
    assert await Refused(NotFound(404, "NotFound", "gone")).mark() == (1, [])

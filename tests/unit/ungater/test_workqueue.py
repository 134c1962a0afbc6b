"""The queue of keys."""

import asyncio

from clock import SYSTEM
from ungater.model.job_view import namespace_of
from ungater.workqueue import SHORTEST_DELAY, WorkQueue, backoff


async def test_a_key_is_handed_out_once_and_again_after_its_worker_is_done():
    queue = WorkQueue(SYSTEM, namespace_of)
    queue.add("a")
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    queue.add("b")
    assert await queue.get() == "b"
    assert len(queue) == 0
    queue.done("a")
    assert await queue.get() == "a"


async def test_the_earliest_of_several_wishes_holds():
    queue = WorkQueue(SYSTEM, namespace_of)
    queue.add("a", 1000.0)
    queue.add("b", 1000.0)
    queue.add("a", 0.001)
    async with asyncio.timeout(10):
        assert await queue.get() == "a"
    queue.done("a")
    queue.add("b")
    assert await queue.get() == "b"
    assert not queue._timers
    queue.close()


async def test_a_wish_of_later_made_during_the_work_is_kept():
    queue = WorkQueue(SYSTEM, namespace_of)
    queue.add("a")
    await queue.get()
    queue.add("a", 0.001)
    queue.done("a")
    async with asyncio.timeout(10):
        assert await queue.get() == "a"


async def test_get_waits_for_a_key():
    queue = WorkQueue(SYSTEM, namespace_of)
    getting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a")
    assert await getting == "a"


def test_backoff_doubles_up_to_its_limit_with_jitter_below():
    for failures, most in ((1, 0.1), (2, 0.2), (4, 0.8), (50, 30.0)):
        assert all(most / 2 <= backoff(failures) <= most for _ in range(50))


async def test_nobody_comes_again_before_the_clock_shows_a_difference():
    """Who waits for a moment that is a hair away asks again each time it comes too early: without end."""
    queue, loop = WorkQueue(SYSTEM, namespace_of), asyncio.get_running_loop()
    queue.add("a", 1e-15)
    began = loop.time()
    await queue.get()
    assert loop.time() - began >= SHORTEST_DELAY / 2


async def test_nobody_is_kept_for_longer_than_an_hour():
    queue, loop = WorkQueue(SYSTEM, namespace_of), asyncio.get_running_loop()
    queue.add("a", 2.0**31)
    assert queue._timers["a"].when() <= loop.time() + 3600
    queue.close()

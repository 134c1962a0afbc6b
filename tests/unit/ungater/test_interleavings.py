"""The invariants of the design in random interleavings of a simulated API history.

``TOPOGATE_INTERLEAVINGS=20000`` (with ``pytest -n auto``) runs that many. A failure names its seed and
prints the end of its history, and ``TOPOGATE_INTERLEAVING=SEED`` runs that one alone.
"""

import asyncio
import hashlib
import os

import pytest
from support.history import history, loop

SOME = 96
BLOCK = 8  # histories a test


def seeds() -> list[range]:
    one = os.environ.get("TOPOGATE_INTERLEAVING")
    if one is not None:
        return [range(int(one), int(one) + 1)]
    count = int(os.environ.get("TOPOGATE_INTERLEAVINGS", SOME))
    return [range(first, min(first + BLOCK, count)) for first in range(0, count, BLOCK)]


@pytest.mark.parametrize("block", seeds(), ids=lambda block: f"{block.start}-{block.stop - 1}")
def test_no_invariant_is_broken(block):
    for seed in block:
        history.run(seed)


def test_a_seed_gives_the_same_history_each_time():
    digests = {hashlib.sha256(repr(history.run(5).lines).encode()).hexdigest() for _ in range(2)}
    assert len(digests) == 1


def test_the_order_in_which_a_group_cancels_its_tasks_does_not_come_from_their_addresses():
    """Else a history depends on what ran before it in the same process."""
    ended = []

    async def wait(number):
        try:
            await asyncio.sleep(1)
        finally:
            ended.append(number)

    async def cancelled():
        async with asyncio.TaskGroup() as group:
            for number in range(200):
                group.create_task(wait(number))
            await asyncio.sleep(0.5)
            raise TimeoutError

    with loop.groups_in_order(), pytest.raises(ExceptionGroup):
        asyncio.run(cancelled())
    assert ended == list(range(200))

"""The invariants of the design in random interleavings of a simulated API history.

``TOPOGATE_INTERLEAVINGS=20000`` (with ``pytest -n auto``) runs that many. A failure names its seed and
prints the end of its history, and ``TOPOGATE_INTERLEAVING=SEED`` runs that one alone.
"""

import hashlib
import os

import pytest
from support.history import history

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

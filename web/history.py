"""How a cluster was over the last day, sampled: used, promised, out, who waits, and what is stranded. No clock.

*Stranded* at a level is what is free and lies in no domain of it that is free as a whole: room that a job which needs a
whole domain cannot use. Levels are those of the flavor with most of the resource.
"""

from collections import deque
from itertools import groupby
from typing import Any, Final

import msgspec

from web.board import Board, Grove
from web.facts import HostState

STEP: Final = 30.0  # seconds
DAY: Final = 86_400.0


class Sample(msgspec.Struct, frozen=True):
    """The cluster at one time; amounts of the resource.

    ``stranded``: by level, widest first; ``evictions``: since the sample before.
    """

    at: float
    amount: int
    used: int
    promised: int
    out: int
    free: int
    waiting: int
    wanted: int
    evictions: int
    stranded: tuple[int, ...]


class History:
    """The samples of the last day."""

    def __init__(self, step: float = STEP, span: float = DAY) -> None:
        self.step = step
        self.levels: tuple[str, ...] = ()
        self.samples: deque[Sample] = deque(maxlen=int(span / step))
        self._evictions = 0

    def take_sample(self, board: Board, now: float) -> None:
        """Take a sample where one is due."""
        # A clock that was set back gives a negative age; a sample is then taken at once instead of at the old hour.
        if self.samples and 0 <= now - self.samples[-1].at < self.step:
            return
        levels, sample = measure(board, now, board.evictions - self._evictions)
        if levels != self.levels:
            # Columns of stranded room have one entry a level; samples of other levels would not fit beside these.
            self.samples.clear()
        self.levels, self._evictions = levels, board.evictions
        self.samples.append(sample)

    def columns(self) -> dict[str, Any]:
        """Column by column, as curves are drawn."""
        found = list(self.samples)
        columns = ("at", "amount", "used", "promised", "out", "free", "waiting", "wanted", "evictions")
        made: dict[str, Any] = {name: [getattr(one, name) for one in found] for name in columns}
        return made | {
            "levels": self.levels,
            "stranded": [list(row) for row in zip(*(s.stranded for s in found), strict=True)],
        }


def measure(board: Board, now: float, evictions: int = 0) -> tuple[tuple[str, ...], Sample]:
    """The levels, and the cluster as it is."""
    free: dict[str, tuple[int, int]] = {}  # host -> (free, amount)
    used = promised = out = amount = 0
    for grove in board.groves():
        for name in grove.hosts:
            row = board.row(name)
            has, kept = sum(one.used for one in row.held), sum(one.promised for one in row.held)
            ready = row.state == HostState.READY
            left = max(0, row.amount - has - kept)
            used, promised, amount = used + has, promised + kept, amount + row.amount
            # Only what is free is out: what pods hold on a lost host counts as used until they go.
            out += 0 if ready else left
            free[name] = (left if ready else 0, row.amount)
    main = max(board.groves(), key=lambda one: sum(free[name][1] for name in one.hosts), default=None)
    levels = main.levels if main is not None else ()
    stranded = tuple(_stranded(main, rank, free) for rank in range(len(levels))) if main is not None else ()
    waiting = [one for one in board.holders.values() if one.reason and one.active]
    wanted, total = sum(one.wants for one in waiting), sum(left for left, _ in free.values())
    sample = Sample(now, amount, used, promised, out, total, len(waiting), wanted, evictions, stranded)
    return levels, sample


def _stranded(grove: Grove, rank: int, free: dict[str, tuple[int, int]]) -> int:
    found = 0
    # Hosts are in tree order, so the hosts of a domain lie side by side, as groupby needs.
    for _, members in groupby(zip(grove.hosts, grove.paths, strict=True), key=lambda pair: pair[1][: rank + 1]):
        amounts = [free[name] for name, _ in members]
        if any(left != have for left, have in amounts):
            found += sum(left for left, _ in amounts)
    return found

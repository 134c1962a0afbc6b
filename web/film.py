"""A board at one moment after the other, as JSON: the first as a whole, then what is different. Pure; no clock.

A file has no server that could be asked, so it carries the workloads of each moment too. Hosts stay as they are: a
board whose hosts come and go has no film.
"""

from typing import Any, Final

import msgspec

from web import inside, picture
from web.board import Board
from web.deltas import Changes
from web.sight import EVERYTHING

MOST_MOMENTS: Final = 240
MOST_HOST_ROWS: Final = 300_000  # of all moments together
Json = dict[str, Any]


class Film:
    """Moments of a board. ``cluster``: how people call it."""

    def __init__(self, board: Board, cluster: str) -> None:
        self.board = board
        self.times: list[float] = []
        self.whole: bytes = b""
        self.workloads: Json = {}  # of the first moment
        self._cluster = cluster
        self._moments: list[Json] = []

    @property
    def full(self) -> bool:
        """Whether no more moments are taken."""
        # At least two: a film of one moment is a picture.
        return len(self.times) >= min(MOST_MOMENTS, max(2, MOST_HOST_ROWS // max(1, len(self.board.hosts))))

    def take_moment(self, now: float) -> None:
        """One more moment: the board as it is."""
        # Also for the first moment, whose whole picture has them all: the second must not tell them again.
        hosts, holders, gone = self.board.take_changes()
        workloads = {key: found for key in sorted(holders) if (found := inside.workload(self.board, key)) is not None}
        number = len(self.times)
        self.times.append(now)
        if not number:
            self.whole = picture.whole_picture(
                self.board, EVERYTHING, version=0, epoch="film", now=now, cluster=self._cluster
            )
            self.workloads = workloads
            self._moments.append({})
            return
        changes = Changes(number - 1, frozenset(hosts), frozenset(holders), gone)
        told = picture.changed(self.board, EVERYTHING, changes, version=number, now=now)
        self._moments.append({"changes": msgspec.Raw(told), "workloads": workloads})

    def moments_from(self, first: float) -> Json:
        """All moments; ``first``: when that is which is shown first."""
        at = max((index for index, time in enumerate(self.times) if time <= first), default=0)
        return {"times": self.times, "first": at, "moments": self._moments}

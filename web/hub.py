"""What all viewers share: the versions of the board, and each picture and change encoded once for all who see the same.

A viewer waits for a version that is newer than his, and takes all since then in one piece; whoever reads slowly takes
fewer and larger pieces, and nothing is kept for him.
"""

import asyncio
import gzip
from collections import OrderedDict
from typing import Final
from uuid import uuid4

from clock import Clock
from web import picture
from web.board import Board
from web.deltas import Log
from web.history import History
from web.sight import Sight

# A picture is of one sight. Few sights differ: administrators share one, and so do the members of a team.
PICTURES: Final = 8  # encoded ones that are kept
CHANGES: Final = 64
LEVEL: Final = 5  # of gzip
NEW: Final = 2.0  # seconds for which a picture serves those who come; they are told what changed since


class Hub:
    """See the module. ``cluster``: how people call it."""

    def __init__(self, board: Board, clock: Clock, cluster: str = "") -> None:
        self.board = board
        self.cluster = cluster
        self.history = History()
        self.epoch = uuid4().hex[:12]  # versions of another process are no versions of this one
        self._clock = clock
        self._log = Log()
        self._layout = -1
        self._news = asyncio.Event()
        self._pictures: OrderedDict[Sight, tuple[int, float, bytes]] = OrderedDict()
        self._changes: OrderedDict[tuple[Sight, int, int], bytes] = OrderedDict()

    @property
    def version(self) -> int:
        """That of what was published last."""
        return self._log.version

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._clock.now()

    def publish(self) -> bool:
        """Tell everybody what changed on the board since; True where anything did."""
        hosts, holders, gone = self.board.take_changes()
        layout = self.board.layout != self._layout
        self._layout = self.board.layout
        if not self._log.record_changes(hosts, holders, gone, layout=layout):
            return False
        # The next event is in place before anybody wakes: a viewer who waits again at once waits for the next version.
        news, self._news = self._news, asyncio.Event()
        news.set()
        return True

    async def newer(self, version: int, seconds: float) -> bool:
        """Wait for a version after this one, so long; True where there is one."""
        if self.version > version:
            return True
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    def picture(self, sight: Sight) -> bytes:
        """The whole of what may be seen, packed with gzip."""
        version, now = self.version, self._clock.now()
        kept = self._pictures.get(sight)
        fresh = kept is not None and (kept[0] == version or 0 <= now - kept[1] < NEW)
        # A picture of a version that the log has dropped would send its viewer straight back for another one.
        if kept is not None and fresh and self._log.changes_since(kept[0]) is not None:
            self._pictures.move_to_end(sight)
            return kept[2]
        made = picture.whole_picture(
            self.board, sight, version=version, epoch=self.epoch, now=now, cluster=self.cluster
        )
        # Without a time in the header, equal pictures are equal bytes.
        self._pictures[sight] = version, now, (packed := gzip.compress(made, LEVEL, mtime=0))
        self._pictures.move_to_end(sight)
        if len(self._pictures) > PICTURES:
            self._pictures.popitem(last=False)
        return packed

    def changes(self, sight: Sight, since: int) -> bytes | None:
        """What is different since a version; None where a whole picture is due."""
        key = sight, since, self.version
        if (kept := self._changes.get(key)) is not None:
            return kept
        found = self._log.changes_since(since)
        if found is None:
            return None
        made = picture.changed(self.board, sight, found, version=self.version, now=self._clock.now())
        self._changes[key] = made
        if len(self._changes) > CHANGES:
            self._changes.popitem(last=False)
        return made

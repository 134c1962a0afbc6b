"""Volumes that several pods may share, by node: each is attached to a node once, whatever pods there have it.

So the first pod, or held slot, on a node takes one of the limit there, and the last one gives it back.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

import numpy as np

from engine.arrays import Ints
from engine.cluster.node_columns import Table

Volume = tuple[str, str]  # what limits it, and which it is


class Located(Protocol):
    """The record of a node, which keeps its identity while its place in the table changes."""

    index: int


Held = tuple[set[Located], tuple[Volume, ...]]  # the nodes on which slots are held, and what is attached there


class SharedVolumes:
    """What is attached where, and how many pods and reservations there have it; charges it to the table."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._on: dict[Volume, dict[Located, int]] = {}

    def count(self, record: Located, volumes: Sequence[Volume], sign: int) -> None:
        """A pod that has these volumes came to a node (1) or left it (-1)."""
        if volumes:
            (self.attach if sign > 0 else self.detach)(record, volumes)

    def attach(self, record: Located, volumes: Sequence[Volume]) -> None:
        """One more pod (or the slots of one reservation) on a node has these volumes, each named once."""
        for volume in volumes:
            on = self._on.setdefault(volume, {})
            on[record] = on.get(record, 0) + 1
            if on[record] == 1:
                self._charge(record, volume[0], 1)

    def detach(self, record: Located, volumes: Sequence[Volume]) -> None:
        """The opposite of `attach`."""
        for volume in volumes:
            on = self._on[volume]
            on[record] -= 1
            if not on[record]:
                del on[record]
                self._charge(record, volume[0], -1)
                if not on:
                    del self._on[volume]

    def hold_volumes(self, before: Held | None, on: Iterable[Located], volumes: tuple[Volume, ...]) -> Held | None:
        """The slots of a reservation that share these volumes are on these nodes now."""
        was, had = before or (set(), ())
        now = set(on)
        # With other volumes nothing stays: the old ones are detached everywhere before the new ones are attached.
        stays = was & now if had == volumes else set()
        for record in was - stays:
            self.detach(record, had)
        for record in now - stays:
            self.attach(record, volumes)
        return (now, volumes) if now else None

    def hold_on(self, held: Held, record: Located, *, some: bool) -> None:
        """The same where one node alone changed: whether any slot is held there."""
        on, volumes = held
        if some and record not in on:
            on.add(record)
            self.attach(record, volumes)
        elif not some and record in on:
            on.discard(record)
            self.detach(record, volumes)

    def charge_new(self, limits: Collection[str]) -> None:
        """Charge what is attached by limits that no node had until now."""
        for (limit, _), on in self._on.items():
            for record in on if limit in limits else ():
                self._charge(record, limit, 1)

    def count_unattached(self, volumes: Sequence[str], limit: str) -> Ints:
        """How many of these volumes are not attached yet: (nodes,) int64, by table index."""
        found = np.full(self._table.size, len(volumes), np.int64)
        for volume in volumes:
            on = self._on.get((limit, volume), ())
            # Each node is listed once for a volume, so plain indexing counts right.
            found[[record.index for record in on]] -= 1
        return found

    def _charge(self, record: Located, limit: str, count: int) -> None:
        # While no node limits the driver there is no row; `charge_new` charges what is attached once one does.
        if limit in self._table.rows:
            self._table.charge_node(record.index, self._table.vector({limit: 1}, pods=0) * count)

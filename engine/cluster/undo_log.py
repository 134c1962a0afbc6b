"""What was changed since the transactions that are open began, as the inverse of each change.

Rules
- Transactions nest. A rollback undoes the newest change first, and closes its transaction and those inside it.
- Nothing is noted while no transaction is open, and nothing that undoes is undone again.
"""

from collections.abc import Callable, Collection, Iterator

import msgspec

from engine.cluster.reservations import Slots
from engine.numa.node_zones import Mark


class Checkpoint(msgspec.Struct, frozen=True):
    """A point to roll back to; made by ``ClusterState.begin``."""

    depth: int
    mark: int
    version: int
    numa: Mark


class UndoLog:
    """See the module's rules. ``open``: the checkpoints of the transactions that are open, outermost first."""

    def __init__(self) -> None:
        self.open: list[Checkpoint] = []
        self._undo: list[tuple[Callable[[], object], Collection[dict[str, Slots]]]] = []

    def open_transaction(self, version: int, numa: Mark) -> Checkpoint:
        """Open a transaction."""
        checkpoint = Checkpoint(len(self.open), len(self._undo), version, numa)
        self.open.append(checkpoint)
        return checkpoint

    def record_change(self, undo: Callable[[], object], held: Collection[dict[str, Slots]] = ()) -> None:
        """A change was made while a transaction is open; ``held``: the slots that come back when it is undone."""
        self._undo.append((undo, held))

    def rollback(self, checkpoint: Checkpoint) -> None:
        """Undo every change since ``checkpoint``."""
        self._close(checkpoint)
        while len(self._undo) > checkpoint.mark:
            undo, _ = self._undo.pop()
            # An undo step goes through the same methods as other
            # changes; with nothing open they note nothing in this log.
            outer, self.open = self.open, []
            undo()
            self.open = outer

    def commit(self, checkpoint: Checkpoint) -> None:
        """Keep every change since ``checkpoint``, as far as no outer transaction undoes it."""
        self._close(checkpoint)
        if not self.open:
            self._undo.clear()

    def restored_slots(self) -> Iterator[dict[str, Slots]]:
        """The slots that come back with a rollback."""
        return (slots for _, held in self._undo for slots in held)

    def _close(self, checkpoint: Checkpoint) -> None:
        if checkpoint.depth >= len(self.open) or self.open[checkpoint.depth] != checkpoint:
            raise ValueError("this checkpoint is not open: it was rolled back or committed before")
        del self.open[checkpoint.depth :]

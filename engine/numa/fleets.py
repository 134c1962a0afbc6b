"""All machines by their places in the table of nodes, so that one question is answered for every node at once.

Rules
- There are two fleets: the machines as they stand now, and the same with nothing on them, which is made when somebody
  asks for it first.
- A machine whose contents changed is charged anew when somebody asks, not before: most changes are followed by others.
- A node whose kubelet would take too long to admit a pod takes none (`engine.kubelet.slow_hint_merge`).
"""

from collections.abc import Callable, Mapping

from engine.arrays import Ints
from engine.kubelet.admit import empty
from engine.kubelet.machine import Machine, PodShape, State
from engine.kubelet.slow_hint_merge import Stalling
from engine.numa.fleet import Fleet


class Fleets:
    """See the module's rules. ``index`` gives a node's place in the table; ``machines``: the reports, by node name."""

    def __init__(self, index: Callable[[str], int | None], machines: Mapping[str, Machine]) -> None:
        self._index = index
        self._machines = machines
        self._now = Fleet()
        self._bare: Fleet | None = None
        self._stalling = Stalling(index)
        self._changed: dict[str, None] = {}

    def mark_changed(self, name: str) -> None:
        """Something came to a node or went: what is left there is another."""
        self._changed[name] = None

    def reported(self, name: str) -> None:
        """A machine came, has another layout, or is not reported any more."""
        machine = self._machines.get(name)
        self._stalling.set(name, None if machine is None else machine.layout)
        self._place_bare(name)

    def node_came(self, name: str) -> None:
        """A node with a machine got a (new) place in the table."""
        self._changed[name] = None
        self._stalling.clear_places()
        self._place_bare(name)

    def permute(self, order: Ints) -> None:
        """The node at ``order[i]`` of the table is now at i; nodes that are not named are gone from it."""
        self._stalling.clear_places()
        for fleet in (self._now, self._bare):
            if fleet is not None:
                # A fleet ends at its last machine, and the new order may name nodes behind that.
                fleet.grow_to(int(order.max(initial=-1)) + 1)
                fleet.permute(order)

    def current_fleet(self, state: Callable[[str], State]) -> Fleet:
        """The machines as they stand; ``state``: what is left in the machine of a node."""
        for name in self._changed:
            index, machine = self._index(name), self._machines.get(name)
            if machine is None:
                _remove(self._now, index)
            elif index is not None:
                self._now.set(index, machine.layout, state(name))
        # A machine without a place in the table is left out: `node_came` notes it again once it has one.
        self._changed.clear()
        return self._now

    def count_admitted(self, shape: PodShape, most: int, state: Callable[[str], State]) -> Ints:
        """By table index, how many pods of a shape each kubelet would admit now, ``most`` at most; -1: not known."""
        return self._stalling.counts_without_stalls(shape, self.current_fleet(state).count_by_machine(shape, most))

    def count_if_empty(self, shape: PodShape, most: int) -> Ints:
        """As ``count_admitted``, if nothing ran on any node."""
        if self._bare is None:
            self._bare = Fleet()
            for name in self._machines:
                self._place_bare(name)
        return self._stalling.counts_without_stalls(shape, self._bare.count_by_machine(shape, most))

    def _place_bare(self, name: str) -> None:
        if self._bare is None:
            return
        index, machine = self._index(name), self._machines.get(name)
        if machine is None:
            _remove(self._bare, index)
        elif index is not None:
            self._bare.set(index, machine.layout, empty(machine.layout))


def _remove(fleet: Fleet, index: int | None) -> None:
    if index is not None and index < len(fleet):
        fleet.remove(index)

"""Which admitted workloads hold how much on which nodes, in columns: so that a search for victims is a few sums.

One row a unit (`queueing.queues.eviction_units`), pod set and node. Rows of those that left are dropped when they are
many. Rows name leaves of one tree; when nodes come, go or move the flavor has another tree, and the rows are made anew.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from math import inf
from typing import Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.arrays import Ints
from engine.cluster.assignment import Assignment
from engine.cluster.state import ClusterState
from engine.cluster.tree import Tree
from engine.model import PODS, Amounts
from engine.reservation_key import HolderKey, ReservationKey
from queueing.model import OutsidePod

OUTSIDE: Final = -2  # the queue of pods that no queue admitted

Mask = NDArray[np.bool_]
_Number = TypeVar("_Number", np.bool_, np.int64, np.float64)


class Rows(msgspec.Struct, frozen=True):
    """``owner[i]`` (a number) holds ``units[i]`` pods of ``kinds[kind[i]]`` requests on leaf ``leaf[i]``."""

    owner: Ints
    leaf: Ints
    units: Ints
    kind: Ints

    def select_rows(self, mask: Mask) -> "Rows":
        """Some of the rows."""
        return Rows(self.owner[mask], self.leaf[mask], self.units[mask], self.kind[mask])


class SlotOwner(msgspec.Struct, frozen=True):
    """A workload that holds slots; ``queue`` is the number of its cluster queue.

    ``level``: the slices that it has in one domain of this level may be taken alone; "" all or nothing. ``admitted``,
    ``ready``: since when it is, and its pods are (`queueing.queues.minimum_run_time`).
    """

    key: HolderKey
    priority: int = 0
    created: float = 0.0
    queue: int = -1
    level: str = ""
    admitted: float = -inf
    ready: float = inf


class FlavorRows:
    """The rows of one flavor, and a column for each thing to know of their owners."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.numbers: dict[HolderKey, int] = {}
        self.keys: list[HolderKey] = []
        self._units: dict[HolderKey, list[HolderKey]] = {}  # by workload or pod
        self.alive = np.zeros(64, np.bool_)
        self.priority = np.zeros(64, np.int64)
        self.created = np.zeros(64, np.float64)
        self.queue = np.zeros(64, np.int64)
        self.admitted = np.zeros(64, np.float64)
        self.ready = np.zeros(64, np.float64)
        self._kinds: dict[tuple[tuple[str, int], ...], int] = {}
        self._parts: list[Rows] = []
        self._rows = _join_rows([])

    def add(self, owner: SlotOwner, assignments: Iterable[Assignment]) -> None:
        """A workload was admitted: the assignments that are in this flavor."""
        # Rows are only ever added: the old ones die with their number, and the workload gets a new one.
        self.remove(owner.key)
        rank = self.tree.rank_of_level(owner.level)
        for assignment in assignments:
            leaves, units = self._leaves_of(assignment)
            kind = self._kind(assignment.requests | assignment.attached.most)
            if rank is None:
                self._row(self._number_of_unit(owner, owner.key), leaves, units, kind)
                continue
            # One unit a domain, so that a search may take the slices of one domain and leave the rest.
            domains = self.tree.owners[rank][leaves]
            for domain in np.unique(domains).tolist():
                inside = domains == domain
                number = self._number_of_unit(owner, ReservationKey.for_domain(owner.key, self.tree.path(rank, domain)))
                self._row(number, leaves[inside], units[inside], kind)

    def add_pod(self, pod: OutsidePod) -> None:
        """A pod that no queue admitted is on a node, perhaps on none of this flavor."""
        owner = SlotOwner(ReservationKey.for_pod(pod.key), pod.priority, pod.created, OUTSIDE)
        self.remove(owner.key)
        leaf = self._leaves_by_name.get(pod.node)
        if leaf is not None:
            number = self._number_of_unit(owner, owner.key)
            self._row(number, np.array([leaf]), np.ones(1, np.int64), self._kind(pod.requests))

    def _number_of_unit(self, owner: SlotOwner, unit: HolderKey) -> int:
        """The number of a unit, a new one where it has none."""
        if unit in self.numbers:
            return self.numbers[unit]
        number = self.numbers[unit] = len(self.keys)
        self.keys.append(unit)
        self._units.setdefault(owner.key, []).append(unit)
        # Doubled, not grown by one: columns are numpy arrays and are copied.
        if number == len(self.alive):
            self.alive, self.created = _doubled(self.alive), _doubled(self.created)
            self.priority, self.queue = _doubled(self.priority), _doubled(self.queue)
            self.admitted, self.ready = _doubled(self.admitted), _doubled(self.ready)
        self.alive[number] = True
        self.priority[number], self.created[number], self.queue[number] = owner.priority, owner.created, owner.queue
        self.admitted[number], self.ready[number] = owner.admitted, owner.ready
        return number

    def set_start(self, owner: SlotOwner) -> None:
        """Since when an owner is admitted, and its pods are ready, is another time than before."""
        # In place: it holds the same slots, and to number an owner again writes all its rows once more.
        for unit in self.units_of_workload(owner.key):
            self.admitted[self.numbers[unit]], self.ready[self.numbers[unit]] = owner.admitted, owner.ready

    def _row(self, number: int, leaves: Ints, units: Ints, kind: int) -> None:
        size = len(leaves)
        self._parts.append(Rows(np.full(size, number), leaves, units, np.full(size, kind)))

    def units_of_workload(self, key: HolderKey) -> list[HolderKey]:
        """The units of a workload or pod."""
        return self._units.get(key, [])

    def remove(self, key: HolderKey) -> None:
        """It holds nothing any more."""
        for unit in self._units.pop(key, ()):
            self.alive[self.numbers.pop(unit)] = False

    def rows(self) -> Rows:
        """All rows, those of the dead included."""
        if self._parts:
            self._rows = _join_rows([self._rows, *self._parts])
            self._parts = []
        return self._rows

    def drop_dead(self) -> None:
        """Forget rows and numbers of the dead where they are many. Numbers change: nobody may keep one from before."""
        # Half of the numbers are dead: each sum over rows costs twice what it has to.
        if len(self.keys) <= 64 or len(self.keys) <= 2 * len(self.numbers):
            return
        self._rows = self.rows()
        size = len(self.keys)
        alive = self.alive[:size]
        kept = self._rows.select_rows(alive[self._rows.owner])
        self._rows = Rows((np.cumsum(alive) - 1)[kept.owner], kept.leaf, kept.units, kept.kind)
        self.keys = [key for key, lives in zip(self.keys, alive.tolist(), strict=True) if lives]
        self.numbers = {key: number for number, key in enumerate(self.keys)}
        room = max(64, 2 * len(self.keys))
        for name in ("priority", "created", "queue", "admitted", "ready"):
            column = getattr(self, name)[:size][alive]
            setattr(self, name, np.pad(column, (0, room - len(column))))
        self.alive = np.arange(room) < len(self.keys)

    def amounts(self, resource: str) -> Ints:
        """What a pod of each kind takes of a resource."""
        return np.array([dict(kind).get(resource, 0) for kind in self._kinds] or [0], np.int64)

    def freed(self, rows: Rows, resources: Iterable[str]) -> dict[str, Ints]:
        """By resource, what would be free on each leaf if these rows were gone."""
        size = self.tree.size
        found = {}
        for resource in resources:
            amounts = rows.units * self.amounts(resource)[rows.kind]
            freed = np.zeros(size, np.int64)
            np.add.at(freed, rows.leaf, amounts)
            found[resource] = freed
        return found

    def _kind(self, requests: Amounts) -> int:
        return self._kinds.setdefault(tuple({PODS: 1, **requests}.items()), len(self._kinds))

    def leaves_of_nodes(self, names: Iterable[str]) -> Ints:
        """The leaves of these nodes, of those that are there."""
        at = self._leaves_by_name
        return np.array([at[name] for name in names if name in at], np.int64)

    @cached_property
    def _leaves_by_name(self) -> dict[str, int]:
        return {name: leaf for leaf, name in enumerate(self.tree.names)}

    def _leaves_of(self, assignment: Assignment) -> tuple[Ints, Ints]:
        packing = assignment.packing
        # Made for this very tree: leaves need not be looked up by name.
        if packing is not None and packing[0] is self.tree:
            return packing[1], packing[2]
        at = self._leaves_by_name
        on = [(at[name], n) for part in assignment.slices for name, n in part.nodes if name in at]
        return np.array([leaf for leaf, _ in on], np.int64), np.array([n for _, n in on], np.int64)


def _join_rows(parts: Iterable[Rows]) -> Rows:
    found = list(parts)
    none = np.zeros(0, np.int64)
    return Rows(*(np.concatenate([none, *(getattr(p, name) for p in found)]) for name in Rows.__struct_fields__))


def _doubled(column: NDArray[_Number]) -> NDArray[_Number]:
    return np.pad(column, (0, len(column)))


class UsageIndex:
    """By flavor; made when first asked for, kept as workloads come and go."""

    def __init__(self) -> None:
        self._of: dict[str, FlavorRows] = {}

    def get(
        self,
        state: ClusterState,
        flavor: str,
        owners: Callable[[], Iterable[SlotOwner]],
        pods: Callable[[], Iterable[OutsidePod]],
    ) -> FlavorRows | None:
        """The rows of a flavor; ``owners`` and ``pods`` give all that hold anything, should they be made anew."""
        tree = state.tree(flavor)
        if tree is None:
            return None
        found = self._of.get(flavor)
        # Leaves are positions in one tree: with another one every row would name a wrong node.
        if found is None or found.tree is not tree:
            found = self._of[flavor] = FlavorRows(tree)
            for owner in owners():
                _record_assignments(found, owner, state.assignments(owner.key))
            for pod in pods():
                found.add_pod(pod)
        return found

    def drop_dead(self, flavors: Iterable[str]) -> None:
        """Forget rows and numbers of the dead of these flavors, where rows are kept and the dead are many."""
        for flavor in flavors:
            if (found := self._of.get(flavor)) is not None:
                found.drop_dead()

    def note_pod(self, pod: OutsidePod) -> None:
        """A pod that no queue admitted is on a node."""
        for found in self._of.values():
            found.add_pod(pod)

    def forget_pod(self, pod: str) -> None:
        """It is gone."""
        for found in self._of.values():
            found.remove(ReservationKey.for_pod(pod))

    def record_usage(self, owner: SlotOwner, assignments: Mapping[str, Assignment]) -> None:
        """A workload holds exactly these assignments now."""
        for found in self._of.values():
            _record_assignments(found, owner, assignments)

    def record_start(self, owner: SlotOwner) -> None:
        """A workload holds what it holds, and the times of its start are others."""
        for found in self._of.values():
            found.set_start(owner)


def _record_assignments(found: FlavorRows, owner: SlotOwner, assignments: Mapping[str, Assignment]) -> None:
    mine = [part for part in assignments.values() if part.flavor == found.tree.flavor.name]
    if mine:
        found.add(owner, mine)
    else:
        found.remove(owner.key)

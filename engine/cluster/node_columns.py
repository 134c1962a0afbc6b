"""Numbers a node, in columns: what is allocatable, what is free, its status, its labels. One column index a node.

``free[r, i]`` is always ``alloc[r, i]`` less everything charged to node i, and may be negative. The index of a node is
its place in tree order; ``permute`` moves everything when that order changes. The log says which nodes changed, so that
counts made earlier are corrected instead of made anew.

A row is made for what a node has, never for what a pod asks for: whoever makes pods could name any number of resources.
How many volumes of a driver a node takes is a row too, where any node limits that; the others take any number. A
resource that devices of claims give where no plugin does (``delegated``) is alike: nodes that publish none of it take
any number, as far as amounts go, and `engine.devices.ledger` counts.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from engine.arrays import Ints
from engine.claims.read.asks import resources_of
from engine.model import NO_LIMIT, PODS, Amounts, Node, PodSet, Taint, is_volume_limit

_Number = TypeVar("_Number", np.int64, np.int32)
LOG_KEPT: Final = 4096
_REMEMBERED: Final = 32  # amounts of a vector that is kept
_DELEGATED: Final = 1024
FEATURES: Final = ""  # no label key: the column of what nodes declare, all of it as one value
_SPARE: Final = 1024  # codes beyond those in use that cost nothing
_HARD_EFFECTS: Final = frozenset({"NoSchedule", "NoExecute"})


class Leaves(Protocol):
    """A tree, as far as the log needs one: its leaves are nodes in these columns."""

    def columns_of_leaves(self, leaves: Ints) -> Ints:
        """Column indices of leaves."""


Change = int | tuple[Leaves, Ints]  # a node (by index), or leaves of a tree


class ExclusionStatus(NamedTuple):
    """What besides labels and resources keeps pods off a node. Equal statuses share one code."""

    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    ready: bool = True


class LabelColumn:
    """One label key over all nodes: ``codes[i]`` is the code of node i's value, 0 where it has none."""

    def __init__(self, capacity: int) -> None:
        self.codes = np.zeros(capacity, np.int32)
        self.values: dict[str, int] = {}

    def set(self, index: int, value: str | None) -> bool:
        """Note the value of one node; True where it changed."""
        code = 0 if value is None else self.values.setdefault(value, len(self.values) + 1)
        changed = bool(self.codes[index] != code)
        self.codes[index] = code
        return changed

    def permute(self, order: Ints) -> None:
        """Node ``order[i]`` becomes node i."""
        self.codes = _permuted(self.codes, order)

    def add_rows(self, extra: int) -> None:
        """There are so many nodes more, without a value."""
        self.codes = np.pad(self.codes, (0, extra))


class Table:
    """The columns; ``size`` of ``capacity`` are in use."""

    def __init__(self) -> None:
        self.size = 0
        self.capacity = 64
        self.rows: dict[str, int] = {PODS: 0}
        self.limits: Amounts = {}  # rows that say how many volumes, each with what a node has that does not say
        self.delegated: set[str] = set()
        self.uncounted: set[str] = set()  # of these: those that nobody gives, and that nobody counts
        self.alloc: Ints = np.zeros((1, self.capacity), np.int64)
        self.free: Ints = np.zeros((1, self.capacity), np.int64)
        self.alloc_version = self.labels_version = 0  # grow when what is allocatable, or labels or statuses, change
        self.status = np.zeros(self.capacity, np.int32)
        self.statuses: list[ExclusionStatus] = [ExclusionStatus()]
        self.status_uses: list[int] = [0]
        self._status_code: dict[ExclusionStatus, int] = {ExclusionStatus(): 0}
        self.labels: dict[str, LabelColumn] = {}
        self.log: list[Change] = []
        self.log_start = 0
        self.layout = 0
        self.offsets: Ints = np.zeros((1, 1), np.int64)  # where each row starts in the flattened table, as a column
        self._vectors: dict[tuple[tuple[str, int], ...], Ints] = {}

    # -- the log ----------------------------------------------------------------------------------------------

    @property
    def log_end(self) -> int:
        """The position after the newest entry."""
        return self.log_start + len(self.log)

    def touch(self, entry: Change) -> None:
        """Note that a node (by index), or leaves of a tree, changed."""
        log = self.log
        log.append(entry)
        if len(log) > LOG_KEPT:
            drop = LOG_KEPT // 2
            del log[:drop]
            self.log_start += drop

    # -- nodes ------------------------------------------------------------------------------------------------

    def add(self) -> int:
        """The index of a new, empty node."""
        index = self.size
        if index == self.capacity:
            self._grow(index * 2)
        self.size += 1
        self.status_uses[0] += 1
        return index

    def set_alloc(self, index: int, amounts: Amounts) -> None:
        """Set what a node has; what is charged to it stays charged."""
        self._add_rows(resource for resource in amounts if resource not in self.rows)
        # A published zero is no plugin's offer: where claims give
        # the resource, the node keeps the column without a limit.
        published = {name: amount for name, amount in amounts.items() if amount or name not in self.delegated}
        # What the node says comes second: it wins over the limit of a node that says nothing.
        vector = self.vector(self.limits | published, pods=0)
        self.free[:, index] += vector - self.alloc[:, index]
        self.alloc[:, index] = vector
        self.alloc_version += 1
        self.touch(index)

    def delegate(self, resource: str) -> None:
        """Devices of claims give a resource from now on, on nodes that publish none of it."""
        if resource in self.delegated:
            return
        if len(self.delegated) >= _DELEGATED:
            # Pods name these resources, and over time there may be any number of them.
            self.delegated &= self.rows.keys()  # of what no node publishes there is nothing to keep
        self.delegated.add(resource)
        if (row := self.rows.get(resource)) is None:
            return
        self.limits[resource] = NO_LIMIT
        # An empty column is a node that is not there: it gets no room without a limit.
        more = np.where(self.alloc.any(axis=0) & (self.alloc[row] == 0), NO_LIMIT, 0)
        self.alloc[row] += more
        self.free[row] += more
        self.alloc_version += 1
        for index in np.flatnonzero(more).tolist():
            self.touch(index)

    def leave_uncounted(self, resource: str) -> None:
        """Nodes that publish none of a resource take as many pods with it as anybody asks for."""
        self.uncounted.add(resource)
        self.delegate(resource)
        self._add_rows([resource] if resource not in self.rows else [])

    def set_status(self, index: int, node: Node) -> None:
        """Set taints, unschedulable and readiness."""
        hard = tuple(taint for taint in node.taints if taint.effect in _HARD_EFFECTS)
        self._put_status(index, ExclusionStatus(hard, node.unschedulable, node.ready))

    def clear(self, index: int) -> None:
        """The node went away: it has nothing, but what is charged to it is remembered."""
        self.free[:, index] -= self.alloc[:, index]
        self.alloc[:, index] = 0
        self.alloc_version += 1
        self._put_status(index, ExclusionStatus())
        for column in self.labels.values():
            column.codes[index] = 0

    def set_labels(self, index: int, labels: dict[str, str]) -> None:
        """Update the label columns that exist."""
        changed = [column.set(index, labels.get(key)) for key, column in self.labels.items()]
        if any(changed):
            self.relabelled(index)

    def relabelled(self, index: int) -> None:
        """A node has other labels, in a column or in one that is not there yet."""
        self.labels_version += 1
        self.touch(index)

    def permute(self, order: Ints) -> None:
        """Node ``order[i]`` becomes node i. Nodes that are not named are dropped."""
        self.alloc, self.free = (_permuted(rows, order) for rows in (self.alloc, self.free))
        self.status = _permuted(self.status, order)
        # Nodes come and go for months, and a host name never comes again: a column may have that many codes. One
        # that is dropped is made again at the next question, with the values of the nodes that are there.
        most = 2 * self.capacity + _SPARE
        self.labels = {key: column for key, column in self.labels.items() if len(column.values) <= most}
        for column in self.labels.values():
            column.permute(order)
        self.size = len(order)
        self.layout += 1
        self._count_statuses()
        # One beyond the end: counts that had seen every change are not current either, because their indices moved.
        self.log_start, self.log = self.log_end + 1, []

    @property
    def in_order(self) -> bool:
        """Whether no node's status keeps pods off."""
        return self.status_uses[0] == self.size

    def _count_statuses(self) -> None:
        """Count who has which status, and drop those that nobody has any more where they are many."""
        codes = self.status[: self.size]
        uses = np.bincount(codes, minlength=len(self.statuses))
        if len(self.statuses) > _SPARE + 2 * int(np.count_nonzero(uses)):
            kept = [0, *(code for code in np.flatnonzero(uses).tolist() if code)]
            moved = np.zeros(len(self.statuses), np.int32)
            moved[kept] = np.arange(len(kept))
            self.status[: self.size] = moved[codes]
            self.statuses = [self.statuses[code] for code in kept]
            self._status_code = {status: code for code, status in enumerate(self.statuses)}
            uses = uses[kept]
        self.status_uses = uses.tolist()

    # -- usage ------------------------------------------------------------------------------------------------

    def vector(self, amounts: Amounts, pods: int = 1) -> Ints:
        """Amounts in row order, with ``pods`` of the resource pods where ``amounts`` does not say. Do not modify.

        A resource that no node has is not in it.
        """
        key = (*amounts.items(), ("", pods))
        found = self._vectors.get(key)
        # Rows are only ever added, so a vector of the same length is of the same rows.
        if found is not None and len(found) == len(self.rows):
            return found
        made = np.zeros(len(self.rows), np.int64)
        made[0] = pods
        for resource, amount in amounts.items():
            if (row := self.rows.get(resource)) is not None:
                made[row] = amount
        if len(key) <= _REMEMBERED:
            # Each pod may ask for amounts of its own: the cache is cleared, not left to grow with the pods.
            if len(self._vectors) > LOG_KEPT:
                self._vectors.clear()
            self._vectors[key] = made
        return made

    def lacking_resources(self, amounts: Amounts) -> tuple[str, ...]:
        """What is asked for and no node has."""
        return tuple(resource for resource, amount in amounts.items() if amount > 0 and resource not in self.rows)

    def needs(self, pod_set: PodSet) -> Amounts:
        """What a node must have for one pod: resources, itself among the pods, and volumes that some node limits.

        Of what devices give in place of plugins, what any node publishes.
        """
        found, own = {PODS: 1, **pod_set.requests}, pod_set.attached.own
        if pod_set.devices is not None:
            for name in resources_of(pod_set.devices) - self.rows.keys():
                found.pop(name, None)
        return {**found, **{limit: count for limit, count in own.items() if limit in self.rows}} if own else found

    def published(self, rows: Ints, resource: str, selection: "slice | Ints") -> Ints:
        """As `amounts`, with zeros where devices may give the resource, as the node publishes none of it."""
        found = self.amounts(rows, resource, selection)
        if resource in self.delegated:
            found = np.where(self.amounts(self.alloc, resource, selection) >= NO_LIMIT, 0, found)
        return found

    def amounts(self, rows: Ints, resource: str, selection: "slice | Ints") -> Ints:
        """The amounts of a resource on some nodes, in ``free`` or ``alloc``; zeros where no node has the resource."""
        row = self.rows.get(resource)
        found: Ints = rows[0 if row is None else row][selection]
        return np.zeros_like(found) if row is None else found

    def _add_rows(self, resources: Iterable[str]) -> None:
        """Make rows of resources that no node had, all at once: a node may publish thousands."""
        made = []
        for resource in resources:
            self.rows[resource] = len(self.rows)
            empty = np.zeros(self.capacity, np.int64)
            if is_volume_limit(resource) or resource in self.delegated:
                self.limits[resource] = NO_LIMIT
                empty = np.where(self.alloc.any(axis=0), NO_LIMIT, 0)
            made.append(empty)
        if made:
            self.alloc, self.free = (np.concatenate([rows, made]) for rows in (self.alloc, self.free))
            self._laid_out()

    def charge_node(self, index: int, vector: Ints) -> None:
        """Take ``vector`` from one node; a negative vector gives back."""
        # A vector that is older than the newest rows is shorter: `charge_new` charges what it lacks.
        self.free[: len(vector), index] -= vector
        self.touch(index)

    def cells(self, index: Ints, counts: Ints, vector: Ints) -> tuple[Ints, Ints]:
        """Where ``counts[i]`` times ``vector`` on node ``index[i]`` lies in the flattened table, and the amounts.

        Valid while ``layout`` stays the same.
        """
        where = (self.offsets[: len(vector)] + index).reshape(-1)
        return where, (vector[:, None] * counts).reshape(-1)

    def charge_cells(self, cells: tuple[Ints, Ints], entry: Change) -> None:
        """Charge what ``cells`` says; ``entry`` tells the log which nodes that concerns."""
        np.subtract.at(self.free.reshape(-1), *cells)
        self.touch(entry)

    def restore_cells(self, cells: tuple[Ints, Ints], entry: Change) -> None:
        """The opposite of ``charge_cells``."""
        np.add.at(self.free.reshape(-1), *cells)
        self.touch(entry)

    def move(self, where: Ints, amounts: Ints, entries: Iterable[Change]) -> None:
        """Give back amounts (negative ones: take them) at places of the flattened table, many at once."""
        # Slots of several workloads may lie on one node: `add.at` adds all of them, `+=` would keep the last.
        np.add.at(self.free.reshape(-1), where, amounts)
        for entry in entries:
            self.touch(entry)

    # -- inside -----------------------------------------------------------------------------------------------

    def _put_status(self, index: int, status: ExclusionStatus) -> None:
        code = self._status_code.get(status)
        if code is None:
            code = self._status_code[status] = len(self.statuses)
            self.statuses.append(status)
            self.status_uses.append(0)
        self.labels_version += 1
        self.status_uses[self.status[index]] -= 1
        self.status_uses[code] += 1
        self.status[index] = code
        self.touch(index)

    def _grow(self, capacity: int) -> None:
        extra = capacity - self.capacity
        self.alloc, self.free = (np.pad(rows, ((0, 0), (0, extra))) for rows in (self.alloc, self.free))
        self.status = np.pad(self.status, (0, extra))
        for column in self.labels.values():
            column.add_rows(extra)
        self.capacity = capacity
        self._laid_out()

    def _laid_out(self) -> None:
        self.offsets = np.arange(len(self.rows))[:, None] * self.capacity
        self.layout += 1


def _permuted(rows: NDArray[_Number], order: Ints) -> NDArray[_Number]:
    moved = np.zeros_like(rows)
    moved[..., : len(order)] = rows[..., order]
    return moved

"""What is held on nodes by reservations, and which pods fill it.

A reservation holds slots: a number of units on each of some nodes. A pod that claims a slot is charged for itself, so
one unit is then no longer held: the unit on the pod's own node, else the first one of the slice's domain that is left
over, in tree order. What stays held is a function of the slots and the claims alone, never of the order they came in.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from engine.arrays import Ints
from engine.cluster.assignment import Assignment, Slice, with_slices
from engine.cluster.nodes import NodeRecord, Nodes
from engine.cluster.shared_volumes import Held
from engine.cluster.tree import Path, Tree
from engine.kubelet.machine import PodShape
from engine.kubelet.rebuild import inner
from engine.model import Pod
from engine.reservation_key import HolderKey

ClaimKey = tuple[HolderKey, str]
Claims = dict[NodeRecord, int]


class Slots(msgspec.Struct, eq=False):
    """Units of one pod set by node: ``index[i]`` (table index, unique) has ``counts[i]``, ``held[i]`` unclaimed.

    ``vector`` is one unit in table rows. ``homeless``: some slices have no node yet and wait for theirs to appear.
    ``taken``: (layout, cells, log entry) of what was charged, to give it back. ``attached``: shared volumes, and where.
    ``promised``: for how many units devices are kept, by node.
    """

    assignment: Assignment
    index: Ints
    counts: Ints
    held: Ints
    vector: Ints
    homeless: bool = False
    taken: "tuple[int, tuple[Ints, Ints], tuple[Tree, Ints]] | None" = None
    attached: Held | None = None
    promised: dict[str, int] = msgspec.field(default_factory=dict)
    _groups: "dict[Path, list[int]] | None" = None
    _group_of: "dict[int, Path] | None" = None

    def leave_unclaimed(self, held: Ints) -> None:
        """So many are unclaimed on each node."""
        self.held = held

    def leave_on(self, position: int, units: int) -> None:
        """So many are unclaimed on one node."""
        # `held is counts` says that no pod claims anything, which
        # `_give_back` relies on: a copy before the first change.
        if self.held is self.counts:
            self.held = self.counts.copy()
        self.held[position] = units

    def widen(self, vector: Ints) -> None:
        """The table has more rows: this is what one unit takes."""
        self.vector = vector

    def note_taken(self, taken: "tuple[int, tuple[Ints, Ints], tuple[Tree, Ints]] | None") -> None:
        """What was charged, to give it back at once; None once the table is not what it was then."""
        self.taken = taken

    def attach(self, nodes: Nodes, *, held: bool = True) -> None:
        """Have volumes that units share be attached where any is held, and devices be kept; not ``held``: nowhere."""
        volumes = self.assignment.attached.shared if held else ()
        if volumes or self.attached is not None:
            at = [nodes.at[index] for index in self.index[self.held > 0].tolist()] if volumes else ()
            self.attached = nodes.volumes.hold_volumes(self.attached, at, volumes)
        if (ask := self.assignment.devices) is not None:
            now = dict(zip([nodes.at[at].name for at in self.index.tolist()], self.held.tolist(), strict=True))
            self.promised = nodes.devices.waiting.promise(ask, self.promised, now if held else {})

    def attach_at(self, nodes: Nodes, position: int) -> None:
        """The same where one position alone changed."""
        if volumes := self.assignment.attached.shared:
            self.attached = self.attached or (set(), volumes)
            nodes.volumes.hold_on(self.attached, nodes.at[int(self.index[position])], some=bool(self.held[position]))
        if (ask := self.assignment.devices) is not None:
            here = {nodes.at[int(self.index[position])].name: int(self.held[position])}
            self.promised = nodes.devices.waiting.promise(ask, self.promised, self.promised | here)

    def reindex_nodes(self, moves: Ints) -> None:
        """The table was permuted."""
        self.index = moves[self.index]
        self._groups = self._group_of = None

    def groups(self, nodes: Nodes) -> tuple[dict[Path, list[int]], dict[int, Path]]:
        """(positions by slice values in tree order, slice values by table index)."""
        if self._groups is None or self._group_of is None:
            self._groups, self._group_of = {}, {}
            place = {name: part.values for part in self.assignment.slices for name, _ in part.nodes}
            for position, index in enumerate(self.index.tolist()):
                record = nodes.at[index]
                values = place.get(record.name) or record.paths.get(self.assignment.flavor, ())
                self._groups.setdefault(values, []).append(position)
                self._group_of[index] = values
            for positions in self._groups.values():
                positions.sort(key=lambda position: int(self.index[position]))
        return self._groups, self._group_of

    def group_of_node(self, nodes: Nodes, record: NodeRecord) -> Path:
        """The values of the slice that a pod on this node fills."""
        _, group_of = self.groups(nodes)
        return group_of.get(record.index) or record.paths.get(self.assignment.flavor, ())


class HeldSlots(msgspec.Struct, frozen=True):
    """What is held, by holder and pod set, in the order of the reservations. Nodes go by their place in the table."""

    by_holder: dict[HolderKey, dict[str, Slots]] = msgspec.field(default_factory=dict)

    def keys(self) -> Iterator[ClaimKey]:
        """Every pod set that holds slots, in the order of the reservations."""
        return ((holder, name) for holder, parts in self.by_holder.items() for name in parts)

    def shape(self, key: ClaimKey) -> PodShape | None:
        """What kubelets look at in the pods of a pod set; None where it holds nothing inside, or that is not known."""
        slots = self.by_holder.get(key[0], {}).get(key[1])
        return None if slots is None else inner(slots.assignment.shape)

    def unclaimed_slots(self, key: ClaimKey, index: Collection[int] | None) -> Iterator[tuple[int, int]]:
        """(node, slots there that no pod claims), for some nodes or all, in the order of the slots."""
        slots = self.by_holder.get(key[0], {}).get(key[1])
        if slots is None:
            return
        positions: Iterable[int] = range(len(slots.index))
        if index is not None:
            positions = np.flatnonzero(np.isin(slots.index, np.array(index, np.int64))).tolist()
        for position in positions:
            if slots.held[position]:
                yield int(slots.index[position]), int(slots.held[position])


class Ledger:
    """All reservations and claims; charges what is held to the table."""

    def __init__(self, nodes: Nodes, held: HeldSlots) -> None:
        self.nodes = nodes
        self.held = held.by_holder
        self.claims: dict[ClaimKey, Claims] = {}

    # -- reservations -----------------------------------------------------------------------------------------

    def put(self, workload: HolderKey, slots: dict[str, Slots]) -> dict[str, Slots]:
        """Hold exactly these slots for a workload; returns what it held before."""
        before = self.held.pop(workload, {})
        for part in before.values():
            self._give_back(part)
            part.attach(self.nodes, held=False)
        for name, part in slots.items():
            claims = self.claims.get((workload, name))
            # Claims are taken off before the slots are charged: each pod that claims one is charged for itself.
            part.leave_unclaimed(self._unclaimed(part, claims) if claims else part.counts)
            self._charge_slots(part)
            part.attach(self.nodes)
        if slots:
            self.held[workload] = slots
        return before

    def charge_new(self, resources: Collection[str], undone: Iterable[Mapping[str, Slots]]) -> None:
        """Charge what slots hold of resources that no node had until now; ``undone``: slots that may come back."""
        table = self.nodes.table
        for parts, held in (*((parts, True) for parts in self.held.values()), *((parts, False) for parts in undone)):
            for slots in parts.values():
                requests = slots.assignment.takes
                if not any(resource in requests for resource in resources):
                    continue
                before = slots.vector
                slots.widen(table.vector(requests))
                more = slots.vector.copy()
                more[: len(before)] -= before
                for at, units in zip(slots.index.tolist(), slots.held.tolist(), strict=True) if held else ():
                    table.charge_node(at, more * units)

    def release_all(self, workloads: Iterable[HolderKey]) -> dict[HolderKey, dict[str, Slots]]:
        """Give back what several workloads hold; returns it."""
        before = {workload: self.held.pop(workload) for workload in workloads if workload in self.held}
        for part in self._at_once(before, 1):
            self._give_back(part)
        return before

    def put_back(self, before: Mapping[HolderKey, dict[str, Slots]]) -> None:
        """The opposite of ``release_all``, while nothing else changed."""
        for part in self._at_once(before, -1):
            self._charge_slots(part)
        self.held.update(before)

    def _at_once(self, before: Mapping[HolderKey, dict[str, Slots]], sign: int) -> list[Slots]:
        """Give back (1) or take (-1) what can be in one go; the rest is returned."""
        table, rest = self.nodes.table, []
        cells: list[tuple[Ints, Ints]] = []
        leaves: dict[int, tuple[Tree, list[Ints]]] = {}
        for parts in before.values():
            for slots in parts.values():
                slots.attach(self.nodes, held=sign < 0)
                taken = slots.taken
                # The cells serve again where nothing moved in the table
                # and no pod has claimed a slot since they were charged.
                if taken is not None and taken[0] == table.layout and slots.held is slots.counts:
                    cells.append(taken[1])
                    tree, nodes = taken[2]
                    leaves.setdefault(id(tree), (tree, []))[1].append(nodes)
                else:
                    rest.append(slots)
        if cells:
            where, amounts = (np.concatenate(each) for each in zip(*cells, strict=True))
            table.move(where, amounts * sign, [(tree, np.unique(np.concatenate(of))) for tree, of in leaves.values()])
        return rest

    def _charge_slots(self, slots: Slots) -> None:
        packing = slots.assignment.packing
        table = self.nodes.table
        # Slots that are packed on the tree in use are charged in one
        # step with one entry in the log; all others node by node.
        if packing is None or len(packing[1]) != len(slots.index) or not self._current(packing[0]):
            for at, units in zip(slots.index.tolist(), slots.held.tolist(), strict=True):
                table.charge_node(at, slots.vector * units)
            return
        entry = packing[0], packing[1]
        cells = table.cells(slots.index, slots.held, slots.vector)
        table.charge_cells(cells, entry)
        slots.note_taken((table.layout, cells, entry))

    def _give_back(self, slots: Slots) -> None:
        table = self.nodes.table
        if slots.taken is not None and slots.taken[0] == table.layout and slots.held is slots.counts:
            table.restore_cells(*slots.taken[1:])
            return
        for at, units in zip(slots.index.tolist(), slots.held.tolist(), strict=True):
            table.charge_node(at, slots.vector * -units)

    def _current(self, tree: Tree) -> bool:
        return not self.nodes.stale and self.nodes.trees().get(tree.flavor.name) is tree

    def reindex_nodes(self, moves: Ints) -> None:
        """The table was permuted; nodes may have moved between domains, so claims are matched again."""
        for workload, parts in self.held.items():
            for name, slots in parts.items():
                slots.reindex_nodes(moves)
                # The tree is replaced: the slices take the names of their nodes from it before it goes.
                slots.assignment.build_slices()
                slots.note_taken(None)
                claims = self.claims.get((workload, name))
                # The claims of a slice of one host stay on that host, wherever the table has it.
                if claims and not slots.assignment.by_host:
                    self._set_unclaimed((workload, name), slots, self._unclaimed(slots, claims))

    # -- claims -----------------------------------------------------------------------------------------------

    def fill_slot(self, key: ClaimKey, record: NodeRecord, by: int, pod: Pod) -> None:
        """A pod on this node fills (by = 1), or no longer fills (by = -1), a slot."""
        claims = self.claims.setdefault(key, {})
        now = claims.get(record, 0) + by
        if now:
            claims[record] = now
        else:
            del claims[record]
            if not claims:
                del self.claims[key]
        slots = self.held.get(key[0], {}).get(key[1])
        if slots is None:
            return
        values = slots.group_of_node(self.nodes, record)
        groups, _ = slots.groups(self.nodes)
        positions = groups.get(values)
        if positions is None:
            return
        # The claims of one slice are matched again.
        held = self._unclaimed_left(slots, positions, self._claims_of(slots, claims, positions, values))
        for position, left in zip(positions, held, strict=True):
            if change := left - int(slots.held[position]):
                slots.leave_on(position, left)
                self._add_unclaimed(key, slots, position, change, pod if by > 0 else None)

    def _claims_of(self, slots: Slots, claims: Claims, positions: Sequence[int], values: Path) -> dict[int, int]:
        """Claims by table index that this slice's units can serve."""
        if slots.assignment.by_host and len(positions) == 1:
            record = self.nodes.at[int(slots.index[positions[0]])]
            return {record.index: claims[record]} if record in claims else {}
        records: Iterable[NodeRecord] = claims
        tree = self.nodes.trees().get(slots.assignment.flavor)
        domain = tree.domain_of.get(values) if tree is not None and not self.nodes.stale else None
        if tree is not None and domain is not None:
            bounds = tree.bounds[tree.last]
            index = tree.columns_of_leaves(np.arange(bounds[domain], bounds[domain + 1])).tolist()
            records = {self.nodes.at[at] for at in (*index, *slots.index[positions].tolist())}
        group = slots.group_of_node
        return {r.index: claims[r] for r in records if r in claims and group(self.nodes, r) == values}

    @staticmethod
    def _unclaimed_left(slots: Slots, positions: Sequence[int], claimed: dict[int, int]) -> list[int]:
        """Units left unclaimed at ``positions``: own node first, then tree order."""
        left = []
        for position in positions:
            index = int(slots.index[position])
            own = min(int(slots.counts[position]), claimed.get(index, 0))
            left.append(int(slots.counts[position]) - own)
            if own:
                claimed[index] -= own
        over = sum(claimed.values())
        for i, units in enumerate(left):
            taken = min(units, over)
            left[i] -= taken
            over -= taken
        return left

    def _unclaimed(self, slots: Slots, claims: Claims) -> Ints:
        groups, _ = slots.groups(self.nodes)
        held = slots.counts.copy()
        by_group: dict[Path, dict[int, int]] = {}
        for record, n in claims.items():
            by_group.setdefault(slots.group_of_node(self.nodes, record), {})[record.index] = n
        for values, claimed in by_group.items():
            positions = groups.get(values)
            if positions is not None:
                held[positions] = self._unclaimed_left(slots, positions, claimed)
        return held

    def _set_unclaimed(self, key: ClaimKey, slots: Slots, held: Ints) -> None:
        before = slots.held
        slots.leave_unclaimed(held)
        for position in np.flatnonzero(held != before).tolist():
            self._add_unclaimed(key, slots, position, int(held[position] - before[position]), None)

    def _add_unclaimed(self, key: ClaimKey, slots: Slots, position: int, by: int, claimant: Pod | None) -> None:
        """So many more slots of a node are unclaimed now."""
        index = int(slots.index[position])
        self.nodes.table.charge_node(index, slots.vector * by)
        slots.attach_at(self.nodes, position)
        if inner(slots.assignment.shape) is not None:
            self.nodes.numa.set_unclaimed(key, self.nodes.at[index].name, int(slots.held[position]), claimant)

    # -- from assignments to slots ----------------------------------------------------------------------------

    def slots_of_assignment(self, assignment: Assignment) -> Slots:
        """Slots of an assignment whose slices name their nodes."""
        vector = self.nodes.table.vector(assignment.takes)
        packing = assignment.packing
        if packing is not None and self._current(packing[0]):
            tree, leaves, counts = packing
            return Slots(assignment, tree.columns_of_leaves(leaves), counts, counts, vector)
        on: dict[int, int] = {}
        for part in assignment.slices:
            for name, count in part.nodes:
                index = self.nodes.record(name).index
                on[index] = on.get(index, 0) + count
        return _slots(assignment, on, vector)

    def restored(self, workload: HolderKey, assignment: Assignment) -> Slots:
        """Slots of slices that may lack their nodes: packed where claims are, then where room is, over-full if need be.

        Slices whose domain has no node stay homeless.
        """
        on: dict[int, int] = {}
        claims = self.claims.get((workload, assignment.pod_set), {})
        vector = self.nodes.table.vector(assignment.takes)
        slices: list[Slice] = []
        for part in assignment.slices:
            packed = list(self._pack(assignment, part, claims, vector))
            for index, count in packed:
                on[index] = on.get(index, 0) + count
            names = tuple((self.nodes.at[index].name, count) for index, count in packed)
            slices.append(Slice(part.values, part.count, names))
        homeless = any(part.count and not part.nodes for part in slices)
        return _slots(with_slices(assignment, slices), on, vector, homeless=homeless)

    def _pack(self, assignment: Assignment, part: Slice, claims: Claims, vector: Ints) -> Iterator[tuple[int, int]]:
        if part.nodes:
            yield from ((self.nodes.record(name).index, count) for name, count in part.nodes)
            return
        tree = self.nodes.trees().get(assignment.flavor)
        domain = tree.domain_of.get(part.values) if tree is not None else None
        if tree is None or domain is None:
            return
        bounds = tree.bounds[tree.last]
        index = tree.columns_of_leaves(np.arange(bounds[domain], bounds[domain + 1]))
        yield from self._packed_on(index, part.count, claims, vector)

    def _packed_on(self, index: Ints, count: int, claims: Claims, vector: Ints) -> Iterator[tuple[int, int]]:
        claimed = np.array([claims.get(self.nodes.at[at], 0) for at in index.tolist()])
        own = np.minimum(claimed, np.maximum(count - (np.cumsum(claimed) - claimed), 0))
        needed = vector > 0
        free = self.nodes.table.free[: len(vector)][:, index][needed]
        room = (
            np.maximum((free // vector[needed][:, None]).min(axis=0), 0) if needed.any() else np.full(len(index), count)
        )
        left = count - int(own.sum())
        # Stable: other sorts of numpy order equal values by the instructions that the processor has.
        for at in np.argsort(-room, kind="stable").tolist():
            taken = min(int(room[at]), left)
            own[at] += taken
            left -= taken
        # What finds no room overfills the first node: a stored admission is held whatever the cluster looks like now.
        own[0] += left
        yield from ((at, n) for at, n in zip(index.tolist(), own.tolist(), strict=True) if n)

    def records(self) -> set[NodeRecord]:
        """Every record that a reservation needs."""
        every = (slots for parts in self.held.values() for slots in parts.values())
        return {self.nodes.at[at] for slots in every for at in slots.index.tolist()}


def _slots(assignment: Assignment, on: dict[int, int], vector: Ints, *, homeless: bool = False) -> Slots:
    index, counts = np.fromiter(on, np.int64, len(on)), np.fromiter(on.values(), np.int64, len(on))
    return Slots(assignment, index, counts, counts, vector, homeless)

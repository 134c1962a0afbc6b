"""The cluster as placement sees it: nodes, flavors, pods and reservations, fed by events.

Rules
- Every change is keyed (node name, pod key, workload), so applying an event twice changes nothing.
- free = allocatable - pods - slots held by reservations that no pod claims. Equal contents give equal ``free``,
  whatever order the events came in.
- ``begin`` .. ``rollback`` undoes everything in between, by the inverse of each change: no copy of the state is made.
- ``version`` grows with every change; after a rollback it is what it was at ``begin``, as the contents are.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from engine.ledger import Ledger, Slots
from engine.model import Flavor, Node, Pod
from engine.neighbours import Neighbours, PodGroup, held_group
from engine.nodes import Nodes
from engine.placement import Assignment
from engine.tree import Path, Tree


@dataclass(frozen=True)
class Checkpoint:
    """A point to roll back to; made by ``ClusterState.begin``."""

    depth: int
    mark: int
    version: int


class ClusterState:
    """See the module's rules. Not safe for use by several threads."""

    def __init__(self) -> None:
        self.version = 0
        self.cluster = Nodes()
        self.ledger = Ledger(self.cluster)
        self.neighbours = Neighbours()
        self._pods: dict[str, Pod] = {}
        self._undo: list[Callable[[], object]] = []
        self._open: list[Checkpoint] = []

    # -- flavors and nodes ------------------------------------------------------------------------------------

    @property
    def flavors(self) -> Mapping[str, Flavor]:
        """By name."""
        return MappingProxyType(self.cluster.flavors)

    def set_flavor(self, flavor: Flavor) -> bool:
        """Take in a flavor; True where it changed."""
        old = self.cluster.set_flavor(flavor)
        undo = partial(self.remove_flavor, flavor.name) if old is None else partial(self.set_flavor, old)
        return self._changed(undo) if old != flavor else False

    def remove_flavor(self, name: str) -> bool:
        """Forget a flavor; what is held stays held. True where it was known."""
        old = self.cluster.remove_flavor(name)
        return False if old is None else self._changed(partial(self.set_flavor, old))

    @property
    def nodes(self) -> Mapping[str, Node]:
        """By name."""
        return self.cluster.view

    def set_node(self, node: Node) -> bool:
        """Take in a node; True where anything changed (a heartbeat changes nothing)."""
        old = self.cluster.known.get(node.name)
        if not self.cluster.set_node(node):
            return False
        return self._changed(partial(self.remove_node, node.name) if old is None else partial(self.set_node, old))

    def remove_node(self, name: str) -> bool:
        """Forget a node. Its pods and held slots stay charged to its name, should it come back."""
        old = self.cluster.remove_node(name)
        return False if old is None else self._changed(partial(self.set_node, old))

    def free(self, node: str) -> dict[str, int]:
        """Allocatable less pods and held slots, by resource; negative where over-committed. {} for an unknown name."""
        record, table = self.cluster.by_name.get(node), self.cluster.table
        if record is None:
            return {}
        return {resource: int(table.free[row, record.index]) for resource, row in table.rows.items()}

    # -- pods -------------------------------------------------------------------------------------------------

    @property
    def pods(self) -> Mapping[str, Pod]:
        """Bound pods that have not finished, by key."""
        return MappingProxyType(self._pods)

    def set_pod(self, pod: Pod) -> bool:
        """Charge a pod to its node, with its claim if it has one; True where anything changed."""
        old = self._pods.get(pod.key)
        if old is not None:
            if old == pod:
                return False
            self._charge(old, -1)
        self._pods[pod.key] = pod
        self._charge(pod, 1)
        self.version += 1
        if self._open:
            self._undo.append(partial(self.remove_pod, pod.key) if old is None else partial(self.set_pod, old))
        return True

    def remove_pod(self, key: str) -> bool:
        """Give back what a pod took; a slot it claimed is held again. True where it was known."""
        old = self._pods.pop(key, None)
        if old is None:
            return False
        self._charge(old, -1)
        return self._changed(partial(self.set_pod, old))

    def _charge(self, pod: Pod, sign: int) -> None:
        table = self.cluster.table
        record = self.cluster.record(pod.node)
        vector = table.vector(pod.requests)
        table.charge(record.index, vector if sign > 0 else -vector)
        record.pods += sign
        self.neighbours.note(pod, record, sign)
        if pod.claim is not None:
            self.ledger.claim(pod.claim, record, sign)

    # -- reservations -----------------------------------------------------------------------------------------

    @property
    def workloads(self) -> Mapping[str, Mapping[str, Assignment]]:
        """Workload key -> pod set name -> the assignment it holds, restored ones with the nodes they were packed on."""
        held = self.ledger.held
        return {key: {name: slots.assignment for name, slots in parts.items()} for key, parts in held.items()}

    def assignments(self, workload: str) -> Mapping[str, Assignment]:
        """Pod set name -> the assignment a workload holds; empty where it holds none."""
        return {name: slots.assignment for name, slots in self.ledger.held.get(workload, {}).items()}

    def reserve(self, workload: str, assignments: Sequence[Assignment]) -> None:
        """Hold these slots; replaces whatever the workload held. Slices without nodes are packed as by ``restore``."""
        slots = {}
        for assignment in assignments:
            if assignment.packing is None and any(part.count and not part.nodes for part in assignment.slices):
                self.tree(assignment.flavor)
                slots[assignment.pod_set] = self.ledger.restored(workload, assignment)
            else:
                slots[assignment.pod_set] = self.ledger.slots(assignment)
        self._put(workload, slots)

    def restore(self, workload: str, assignments: Sequence[Assignment]) -> None:
        """Hold slots read back from the API server (values and counts, perhaps no nodes).

        Never fails: where there is no room the node is over-committed, and a slice whose domain is unknown is held as
        soon as its nodes appear. Slots that are held already stay where they are packed.
        """
        if _outline(self.assignments(workload).values()) == _outline(assignments):
            return
        if workload in self.ledger.held:
            self._put(workload, {})
        self.tree("")
        self._put(workload, {part.pod_set: self.ledger.restored(workload, part) for part in assignments})

    def release(self, workload: str) -> bool:
        """Give back everything the workload holds; True where it held anything."""
        if workload not in self.ledger.held:
            return False
        self._put(workload, {})
        return True

    def _put(self, workload: str, slots: dict[str, Slots]) -> None:
        before = self.ledger.put(workload, slots)
        self._note_held(before, -1)
        self._note_held(slots, 1)
        self.version += 1
        if self._open:
            self._undo.append(_PutBack(self, workload, before))

    def _note_held(self, parts: Mapping[str, Slots], sign: int) -> None:
        for slots in parts.values():
            source = slots.assignment.source
            if source is not None and source.anti_affinity:
                self.neighbours.note_held(slots, sign)

    def unclaimed(self, workload: str, pod_set: str) -> tuple[tuple[Path, int], ...]:
        """(slice values, slots that no pod claims) for each slice, in tree order."""
        slots = self.ledger.held.get(workload, {}).get(pod_set)
        if slots is None:
            return ()
        groups, _ = slots.groups(self.cluster)
        left = {values: int(slots.held[positions].sum()) for values, positions in groups.items()}
        return tuple((part.values, left.get(part.values, part.count)) for part in slots.assignment.slices)

    # -- transactions -----------------------------------------------------------------------------------------

    def begin(self) -> Checkpoint:
        """Open a transaction; they nest."""
        self._open.append(Checkpoint(len(self._open), len(self._undo), self.version))
        return self._open[-1]

    def rollback(self, checkpoint: Checkpoint) -> None:
        """Undo every change since ``checkpoint`` and close its transaction and those inside it."""
        self._close(checkpoint)
        while len(self._undo) > checkpoint.mark:
            undo = self._undo.pop()
            nested, self._open = self._open, []  # what undoes is not undone again
            undo()
            self._open = nested
        self.version = checkpoint.version

    def commit(self, checkpoint: Checkpoint) -> None:
        """Keep every change since ``checkpoint``; an outer transaction may still undo them."""
        self._close(checkpoint)
        if not self._open:
            self._undo.clear()

    def _close(self, checkpoint: Checkpoint) -> None:
        if checkpoint.depth >= len(self._open) or self._open[checkpoint.depth] != checkpoint:
            raise ValueError("this checkpoint is not open: it was rolled back or committed before")
        del self._open[checkpoint.depth :]

    def _changed(self, undo: Callable[[], object]) -> bool:
        self.version += 1
        if self._open:
            self._undo.append(undo)
        return True

    # -- reading ----------------------------------------------------------------------------------------------

    def tree(self, flavor: str) -> Tree | None:
        """The tree of a flavor, made anew if nodes came, went or moved; None for an unknown flavor."""
        if self.cluster.stale:
            self.rebuild()
        return self.cluster.trees().get(flavor)

    def rebuild(self) -> None:
        """Bring nodes into tree order. Called when needed; changes nothing that can be seen from outside."""
        undone = [undo.before for undo in self._undo if isinstance(undo, _PutBack)]
        kept = None if self._open else self.ledger.records()
        moves = self.cluster.rebuild(kept)
        self.ledger.moved(moves)
        for parts in undone:
            for slots in parts.values():
                slots.moved(moves)
        for workload in [w for w, parts in self.ledger.held.items() if any(s.homeless for s in parts.values())]:
            parts = self.ledger.held[workload]
            self.ledger.put(workload, {})
            self.ledger.put(workload, {name: self._rehomed(workload, slots) for name, slots in parts.items()})

    def _rehomed(self, workload: str, slots: Slots) -> Slots:
        return self.ledger.restored(workload, slots.assignment) if slots.homeless else slots

    def pod_groups(self) -> Iterator[PodGroup]:
        """Pods, and held slots whose pod set is known, by namespace and labels: for inter-pod constraints."""
        yield from self.neighbours.groups(self._pods, self.cluster.by_name)
        for parts in self.ledger.held.values():
            yield from filter(None, (held_group(slots, self.cluster.at) for slots in parts.values()))


@dataclass(frozen=True, eq=False)
class _PutBack:
    """Undoes a reservation; its slots move along when the table is permuted."""

    state: ClusterState
    workload: str
    before: dict[str, Slots]

    def __call__(self) -> None:
        self.state._put(self.workload, self.before)  # noqa: SLF001  (the other half of the same module)


def _outline(assignments: Iterable[Assignment]) -> list[tuple[object, ...]]:
    """What the API server stores of assignments."""
    return [
        (part.pod_set, part.flavor, part.levels, part.requests, [(s.values, s.count) for s in part.slices])
        for part in assignments
    ]

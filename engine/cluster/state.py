"""The cluster as placement sees it: nodes, flavors, pods and reservations, fed by events.

Rules
- Every change is keyed (node name, pod key, workload), so applying an event twice changes nothing.
- free = allocatable - pods - slots held by reservations that no pod claims. Equal contents give equal ``free_on_node``,
  whatever order the events came in.
- ``begin`` .. ``rollback`` undoes everything in between (``engine.cluster.undo_log``): no copy of the state is made.
- ``version`` grows with every change; after a rollback it is what it was at ``begin``, as the contents are.
- What is free inside a node is ``engine.numa.zone_ledger``'s to know, devices of claims ``engine.devices.ledger``'s.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import msgspec

from engine.cluster.affinity_index import AffinityGroup, AffinityIndex, held_group
from engine.cluster.assignment import Assignment, outline
from engine.cluster.nodes import Nodes
from engine.cluster.reservations import HeldSlots, Ledger, Slots
from engine.cluster.share_index import ShareIndex
from engine.cluster.tree import Path, Tree
from engine.cluster.undo_log import Checkpoint, UndoLog
from engine.kubelet.arrival_orders import Free
from engine.kubelet.devices.xpu import RESOURCE
from engine.kubelet.machine import Machine, NumaPlacement, PodShape, State
from engine.kubelet.rebuild import inner
from engine.model import NODES_PER_OPENED_DOMAIN, Flavor, Node, Pod
from engine.numa.node_zones import NEVER, Before
from engine.numa.score import ALIGNMENT_OVER_PACKING, AlignmentOverPacking, ZoneScore
from engine.reservation_key import HolderKey


class ClusterState:
    """See the module's rules. Not safe for use by several threads.

    ``reconstruct_available``: False takes what NodeResourceTopology says is available as it is, less what was decided
    since. ``numa_score``: how full zones should become. What may be given up: ``alignment_over_packing`` to align pods,
    ``nodes_per_opened_domain`` more nodes to leave a domain whole. ``xpus``: resources given out by the rules of XPUs.
    ``uncounted``: resources that nodes need not publish.
    """

    def __init__(
        self,
        *,
        reconstruct_available: bool = True,
        numa_score: ZoneScore = ZoneScore.LEAST_NUMA_NODES,
        alignment_over_packing: AlignmentOverPacking = ALIGNMENT_OVER_PACKING,
        nodes_per_opened_domain: int = NODES_PER_OPENED_DOMAIN,
        xpus: Collection[str] = (RESOURCE,),
        uncounted: Collection[str] = (),
    ) -> None:
        self.version = 0
        self.alignment_over_packing, self.nodes_per_opened_domain = alignment_over_packing, nodes_per_opened_domain
        held = HeldSlots()
        self.cluster = Nodes(held, xpus=xpus, reconstruct=reconstruct_available, score=numa_score)
        for resource in uncounted:
            self.cluster.table.leave_uncounted(resource)
        self.ledger = Ledger(self.cluster, held)
        self.affinity_index = AffinityIndex()
        self.share_index = ShareIndex(self.ledger.held)
        self._pods: dict[str, Pod] = {}
        self._log = UndoLog()

    # -- flavors and nodes ------------------------------------------------------------------------------------

    @property
    def flavors(self) -> Mapping[str, Flavor]:
        """By name."""
        return MappingProxyType(self.cluster.flavors)

    def set_flavor(self, flavor: Flavor) -> bool:
        """Take in a flavor; True where it changed."""
        old = self.cluster.set_flavor(flavor)
        undo = partial(self.remove_flavor, flavor.name) if old is None else partial(self.set_flavor, old)
        return self._log_change(undo) if old != flavor else False

    def remove_flavor(self, name: str) -> bool:
        """Forget a flavor; what is held stays held. True where it was known."""
        old = self.cluster.remove_flavor(name)
        return False if old is None else self._log_change(partial(self.set_flavor, old))

    @property
    def nodes(self) -> Mapping[str, Node]:
        """By name."""
        return self.cluster.view

    def set_node(self, node: Node) -> bool:
        """Take in a node; True where anything changed (a heartbeat changes nothing)."""
        # Counted before the node is taken in: rows beyond this number
        # are new, and the pods that are there owe their amounts.
        old, resources = self.cluster.known.get(node.name), len(self.cluster.table.rows)
        if not self.cluster.set_node(node):
            return False
        # A pod may ask for a resource, and land on a node by name,
        # before any node publishes it: it is charged from now on.
        if len(self.cluster.table.rows) > resources:
            self._charge_new(tuple(self.cluster.table.rows)[resources:])
        return self._log_change(partial(self.remove_node, node.name) if old is None else partial(self.set_node, old))

    def _charge_new(self, resources: Collection[str]) -> None:
        """Charge what was asked for of resources that no node had until now."""
        table = self.cluster.table
        for pod in self._pods.values():
            takes = pod.takes
            if any(resource in takes for resource in resources):
                index = self.cluster.record(pod.node).index
                # No pod beside the amounts: each pod was counted when it came.
                table.charge_node(index, table.vector({name: takes.get(name, 0) for name in resources}, pods=0))
        self.ledger.charge_new(resources, self._log.restored_slots())
        self.cluster.volumes.charge_new(resources)

    def remove_node(self, name: str) -> bool:
        """Forget a node. Its pods and held slots stay charged to its name, should it come back."""
        old = self.cluster.remove_node(name)
        return False if old is None else self._log_change(partial(self.set_node, old))

    def flavors_on(self, node: str) -> Collection[str]:
        """The names of the flavors that a node is of; of all flavors where the node is not known."""
        return self.cluster.flavors_on(node)

    def free_on_node(self, node: str) -> dict[str, int]:
        """Allocatable less pods and held slots, by resource; negative where over-committed. {} for an unknown name."""
        record, table = self.cluster.by_name.get(node), self.cluster.table
        if record is None:
            return {}
        return {resource: int(table.free[row, record.index]) for resource, row in table.rows.items()}

    # -- machines ---------------------------------------------------------------------------------------------

    @property
    def machines(self) -> Mapping[str, Machine]:
        """The insides of nodes as they were reported, by node name."""
        return self.cluster.numa.view

    def set_machine(self, machine: Machine) -> bool:
        """Take in what is inside a node, whether the node is known or not; True where that changes what is free."""
        numa = self.cluster.numa
        old = numa.machines.get(machine.node)
        if old == machine:
            return False
        undo = partial(self.remove_machine, machine.node) if old is None else partial(self.set_machine, old)
        return self._log_change(undo, matters=numa.set_machine(machine))

    def remove_machine(self, node: str) -> bool:
        """Forget what is inside a node: it is counted by its amounts alone. True where it was known."""
        old = self.cluster.numa.machines.get(node)
        if old is None:
            return False
        self.cluster.numa.remove_machine(node)
        return self._log_change(partial(self.set_machine, old))

    def finish_listing(self) -> None:
        """Every pod that there is was taken in: what nodes publish counts them (`engine.numa.node_zones`)."""
        self.cluster.numa.mark_counted()
        self.version += 1

    def state_inside(self, node: str) -> State | None:
        """What is left inside a node, with all that was decided; None where its inside is not known."""
        return self.cluster.numa.state(node)

    def placements(self, workload: HolderKey, pod_set: str, node: str) -> tuple[NumaPlacement, ...]:
        """The zones of the slots on a node that no pod claims, in order, as far as its kubelet would take them."""
        return self.cluster.numa.placements((workload, pod_set), node)

    def unclaimed_inside(self, node: str) -> Iterator[tuple[HolderKey, PodShape, int]]:
        """(workload, what its pods ask for, slots) of the slots on a node that no pod claims, zones known."""
        for (workload, _), shape, count in self.cluster.numa.unclaimed(node):
            yield workload, shape, count

    def held_inside(self, pod: Pod) -> NumaPlacement | None:
        """What a pod that is on its node holds inside, as far as that is known."""
        return self.cluster.numa.held_by(pod)

    def unrecorded(self, node: str) -> int:
        """How many pods on a node hold something in its zones, and no record says in which."""
        return self.cluster.numa.unrecorded(node)

    def free_for(self, node: str, coming: Collection[str], ending: Collection[str]) -> Free | None:
        """What is free inside a node for pods on their way there; None where that is not known.

        ``coming``: keys of bound pods that are not settled yet; ``ending``: keys of pods that may end meanwhile.
        """
        return self.cluster.numa.free_on_node(node, coming, ending)

    def hold_placements(
        self, workload: HolderKey, pod_set: str, node: str, placements: Sequence[NumaPlacement]
    ) -> None:
        """Give unclaimed slots the zones that were decided for them before, in another transaction or process."""
        self.cluster.numa.reserve_zones((workload, pod_set), node, placements)
        self.version += 1

    # -- pods -------------------------------------------------------------------------------------------------

    @property
    def pods(self) -> Mapping[str, Pod]:
        """Bound pods that have not finished, by key."""
        return MappingProxyType(self._pods)

    def set_pod(self, pod: Pod) -> bool:
        """Charge a pod to its node, with its claim if it has one; True where anything changed."""
        old = self._pods.get(pod.key)
        if old == pod:
            return False
        before = self._charge(old, -1) if old is not None else NEVER
        # Asked before `pod_came` forgets it: when this arrival is undone, the claims of the pod are thought away again.
        self._pods[pod.key], away = pod, self.cluster.devices.holders.is_away(pod.key)
        self.cluster.devices.pod_came(pod.key)
        # A newer version on the same node keeps what is known of its zones; on another node the pod is a newcomer.
        self._charge(pod, 1, before if old is not None and old.node == pod.node else NEVER)
        undo = partial(self.remove_pod, pod.key, deallocated=away) if old is None else partial(self.set_pod, old)
        return self._log_change(undo)

    def mark_terminating(self, key: str) -> None:
        """A pod was told to end: it takes what it took until it is gone, and counts no more where pods are spread."""
        pod = self._pods.get(key)
        if pod is None or pod.terminating:
            return
        record, ends = self.cluster.record(pod.node), msgspec.structs.replace(pod, terminating=True)
        self.affinity_index.count_pod(pod, record, -1)
        self.affinity_index.count_pod(ends, record, 1)
        self._pods[key] = ends
        self._log_change(partial(self.set_pod, pod))

    def remove_pod(self, key: str, *, deallocated: bool = False) -> bool:
        """Give back what a pod took; a slot it claimed is held again. True where it was known.

        What its claims have they keep until they are told to be deallocated; ``deallocated``: as if they were by now.
        """
        old = self._pods.pop(key, None)
        if old is None:
            return False
        self._charge(old, -1)
        if deallocated:
            self.cluster.devices.think_away(key)
        return self._log_change(partial(self.set_pod, old))

    def _charge(self, pod: Pod, sign: int, before: Before = NEVER) -> Before:
        table = self.cluster.table
        record = self.cluster.record(pod.node)
        vector = table.vector(pod.takes)
        table.charge_node(record.index, vector if sign > 0 else -vector)
        self.cluster.volumes.count(record, pod.attached.shared, sign)
        self.cluster.devices.waiting.add(pod.node, pod.devices, sign)
        record.count_pod(sign)
        if not record.pods:
            self.cluster.drop_empty_record(record)
        self.affinity_index.count_pod(pod, record, sign)
        # The zones learn of the pod before its claim does: the claim
        # hands the pod the zones of a slot, for which it has to be there.
        numa = self.cluster.numa
        if sign > 0:
            numa.arrive(pod, before)
        else:
            before = numa.remove_pod(pod)
        if pod.claim is not None:
            self.ledger.fill_slot(pod.claim, record, sign, pod)
        return before

    # -- reservations -----------------------------------------------------------------------------------------

    @property
    def workloads(self) -> Mapping[HolderKey, Mapping[str, Assignment]]:
        """Workload key -> pod set name -> the assignment it holds, restored ones with the nodes they were packed on."""
        held = self.ledger.held
        return {key: {name: slots.assignment for name, slots in parts.items()} for key, parts in held.items()}

    def assignments(self, workload: HolderKey) -> Mapping[str, Assignment]:
        """Pod set name -> the assignment a workload holds; empty where it holds none."""
        return {name: slots.assignment for name, slots in self.ledger.held.get(workload, {}).items()}

    def reserve(self, workload: HolderKey, assignments: Sequence[Assignment]) -> None:
        """Hold these slots; replaces whatever the workload held. ``restore_slots`` packs slices without nodes alike."""
        slots = {}
        for assignment in assignments:
            if assignment.packing is None and any(part.count and not part.nodes for part in assignment.slices):
                # Packing reads the trees, which are stale after any change of nodes: this brings them into order.
                self.tree(assignment.flavor)
                slots[assignment.pod_set] = self.ledger.restored(workload, assignment)
            else:
                slots[assignment.pod_set] = self.ledger.slots_of_assignment(assignment)
        self._put_slots(workload, slots)

    def restore_slots(self, workload: HolderKey, assignments: Sequence[Assignment]) -> None:
        """Hold slots read back from the API server (values and counts, perhaps no nodes).

        Never fails: where there is no room the node is over-committed, and a slice whose domain is unknown is held as
        soon as its nodes appear. Slots that are held already stay where they are packed.
        """
        if outline(self.assignments(workload).values()) == outline(assignments):
            return
        # The old slots go first: packing looks for room, and would see that of the workload itself as taken.
        replaced = dict(self.ledger.held.get(workload, {}))
        if replaced:
            self._put_slots(workload, {}, replaced={})  # what was decided inside the nodes is kept for what follows
        self.tree("")
        self._put_slots(
            workload, {part.pod_set: self.ledger.restored(workload, part) for part in assignments}, replaced
        )

    def release_workload(self, workload: HolderKey) -> bool:
        """Give back everything the workload holds; True where it held anything."""
        if workload not in self.ledger.held:
            return False
        self._put_slots(workload, {})
        return True

    def release_all(self, workloads: Iterable[HolderKey]) -> None:
        """Give back everything that several workloads hold, in one go."""
        # One change of the table serves all: a search that takes out
        # 128 small workloads one by one spends most of its time here.
        before = self.ledger.release_all(workloads)
        self._tell_all(before, -1)
        self.version += 1
        if self._log.open:
            self._log.record_change(partial(self._put_all_back, before), before.values())

    def _put_all_back(self, before: dict[HolderKey, dict[str, Slots]]) -> None:
        self.ledger.put_back(before)
        self._tell_all(before, 1)

    def _tell_all(self, parts: Mapping[HolderKey, Mapping[str, Slots]], sign: int) -> None:
        for workload, slots in parts.items():
            before, after = (slots, {}) if sign < 0 else ({}, slots)
            self._tell_numa(workload, before, after)
            self._note_held(workload, slots, sign)

    def _put_slots(
        self, workload: HolderKey, slots: dict[str, Slots], replaced: Mapping[str, Slots] | None = None
    ) -> None:
        """``replaced``: what the slots replace, where that was given back just before."""
        before = self.ledger.put(workload, slots)
        self._tell_numa(workload, before if replaced is None else replaced, slots)
        self._note_held(workload, before, -1)
        self._note_held(workload, slots, 1)
        self.version += 1
        if self._log.open:
            self._log.record_change(partial(self._put_slots, workload, before), (before,))

    def _tell_numa(self, workload: HolderKey, before: Mapping[str, Slots], after: Mapping[str, Slots]) -> None:
        for name in {**before, **after}:
            old = inner(before[name].assignment.shape) if name in before else None
            new = inner(after[name].assignment.shape) if name in after else None
            if old is not None or new is not None:
                self.cluster.numa.put((workload, name), new, old)

    def _note_held(self, workload: HolderKey, parts: Mapping[str, Slots], sign: int) -> None:
        self.share_index.note_change(workload, parts, sign)
        for slots in parts.values():
            if (source := slots.assignment.source) is not None and source.anti_affinity:
                self.affinity_index.note_held(slots, sign)

    def unclaimed(self, workload: HolderKey, pod_set: str) -> tuple[tuple[Path, int], ...]:
        """(slice values, slots that no pod claims) for each slice, in tree order."""
        slots = self.ledger.held.get(workload, {}).get(pod_set)
        if slots is None:
            return ()
        groups, _ = slots.groups(self.cluster)
        left = {values: int(slots.held[positions].sum()) for values, positions in groups.items()}
        return tuple((part.values, left.get(part.values, part.count)) for part in slots.assignment.slices)

    def unclaimed_on(self, workload: HolderKey, pod_set: str, node: str) -> int:
        """Slots on one node that no pod claims."""
        slots, record = self.ledger.held.get(workload, {}).get(pod_set), self.cluster.by_name.get(node)
        return 0 if slots is None or record is None else int(slots.held.dot(slots.index == record.index))

    def unclaimed_by_node(self, workload: HolderKey, pod_set: str) -> Iterator[tuple[str, int]]:
        """(node, slots there that no pod claims), in the order of the slots."""
        return self.cluster.numa.unclaimed_slots((workload, pod_set), None)

    # -- transactions -----------------------------------------------------------------------------------------

    def begin(self) -> Checkpoint:
        """Open a transaction; they nest."""
        if not self._log.open and self.cluster.stale:
            self.rebuild()  # inside, it would give slots a home that the rollback takes away again
        return self._log.open_transaction(self.version, self.cluster.numa.begin())

    def rollback(self, checkpoint: Checkpoint) -> None:
        """Undo every change since ``checkpoint`` and close its transaction and those inside it."""
        # The undo steps go through the same methods as other changes and raise the version, so it is set after
        # them. The zones come last: the undo steps decide some of them again, and this brings back what they were.
        self._log.rollback(checkpoint)
        self.version = checkpoint.version
        self.cluster.numa.rollback(checkpoint.numa, last=not self._log.open)

    @property
    def depth(self) -> int:
        """How many transactions are open."""
        return len(self._log.open)

    def rollback_to(self, depth: int) -> None:
        """Undo and close what was begun since so many transactions were open; nothing where that is closed."""
        if self.depth > depth:
            self.rollback(self._log.open[depth])

    def commit(self, checkpoint: Checkpoint) -> None:
        """Keep every change since ``checkpoint``; an outer transaction may still undo them."""
        self._log.commit(checkpoint)
        if not self._log.open:
            self.cluster.numa.commit()

    def _log_change(self, undo: Callable[[], object], *, matters: bool = True) -> bool:
        self.version += matters
        if self._log.open:
            self._log.record_change(undo)
        return matters

    # -- reading ----------------------------------------------------------------------------------------------

    def tree(self, flavor: str) -> Tree | None:
        """The tree of a flavor, made anew if nodes came, went or moved; None for an unknown flavor."""
        if self.cluster.stale:
            self.rebuild()
        return self.cluster.trees().get(flavor)

    def rebuild(self) -> None:
        """Bring nodes into tree order. Called when needed; changes nothing that can be seen from outside."""
        # While a transaction is open no record is dropped: slots
        # in its log name nodes that only a rollback needs again.
        kept = None if self._log.open else self.ledger.records()
        moves = self.cluster.rebuild(kept)
        self.ledger.reindex_nodes(moves)
        # Slots that a rollback brings back name nodes by their place in the table too.
        for parts in self._log.restored_slots():
            for slots in parts.values():
                slots.reindex_nodes(moves)
        # A list, because `put` takes the workload out of the table that is walked here.
        for workload in [w for w, parts in self.ledger.held.items() if any(s.homeless for s in parts.values())]:
            parts = self.ledger.held[workload]
            # Given back before they are packed: the slots that have
            # a home already would count as taken against the others.
            self.ledger.put(workload, {})
            homed = {
                name: self.ledger.restored(workload, slots.assignment) if slots.homeless else slots
                for name, slots in parts.items()
            }
            self.ledger.put(workload, homed)
            self._tell_numa(workload, parts, homed)
            self._note_held(workload, parts, -1)
            self._note_held(workload, homed, 1)

    def pod_groups(self) -> Iterator[AffinityGroup]:
        """Pods, and held slots whose pod set is known, by namespace and labels: for inter-pod constraints."""
        yield from self.affinity_index.groups(self._pods, self.cluster.by_name)
        for parts in self.ledger.held.values():
            yield from filter(None, (held_group(slots, self.cluster.at) for slots in parts.values()))

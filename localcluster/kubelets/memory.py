"""The Memory Manager's static policy: which zones a container's memory and huge pages come from.

Written after the kubelet's own policy. A zone serves single-zone pods or one group of zones at a time, never both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from localcluster.kubelets.hardware import PlayedHardware, PlayedSettings, bits
from localcluster.kubelets.masks import Hint, Hints, subsets
from localcluster.kubelets.pods import APP, INIT, SIDECAR, PlayedContainer, PlayedPod, round_up
from localcluster.kubelets.refusals import AdmissionRefusal, NotAdmitted

MEMORY = "memory"
HUGEPAGES = "hugepages-"


@dataclass
class PlayedBlock:
    """Memory of one type from a group of zones that one container holds."""

    type: str
    zones: int
    size: int
    taken: dict[int, int] = field(default_factory=dict)  # zone -> bytes, when it was taken

    def shrink(self, size: int) -> None:
        """So much of it is counted elsewhere."""
        self.size -= size


@dataclass
class ZoneMemory:
    """One zone: the group it is used with, how many blocks touch it, and its amounts by type."""

    cells: int
    assignments: int = 0
    allocatable: dict[str, int] = field(default_factory=dict)
    free: dict[str, int] = field(default_factory=dict)

    def join(self, cells: int) -> None:
        """One more block touches it, with this group of zones."""
        self.assignments += 1
        self.cells = cells

    def release_block(self, alone: int) -> None:
        """One block less touches it; without any it is ``alone``."""
        self.assignments -= 1
        if self.assignments == 0:
            self.cells = alone


class MemoryManager:
    """The state of one kubelet's memory manager."""

    def __init__(self, hardware: PlayedHardware, settings: PlayedSettings) -> None:
        """With the policy ``None`` it has no preference and gives out nothing."""
        self._static = settings.static_memory
        self.zones = []
        for position, zone in enumerate(hardware.zones):
            # Huge pages are a part of the zone's memory that ordinary allocations cannot have.
            amounts = {**zone.hugepages, MEMORY: zone.memory - zone.reserved_memory - sum(zone.hugepages.values())}
            self.zones.append(ZoneMemory(1 << position, 0, amounts, dict(amounts)))
        self._all = (1 << len(self.zones)) - 1
        self.held: dict[str, dict[str, list[PlayedBlock]]] = {}  # pod -> container -> blocks
        self._reusable: tuple[str, dict[tuple[int, str], int]] = ("", {})

    def _memory_requests(self, pod: PlayedPod, container: PlayedContainer) -> dict[str, int]:
        if not self._static or not pod.pins:
            return {}
        return {
            resource: round_up(amount)
            for resource, amount in container.requests.items()
            if resource == MEMORY or resource.startswith(HUGEPAGES)
        }

    def topology_hints(self, pod: PlayedPod, container: PlayedContainer | None) -> Hints:
        """For one container, or for the pod (None). No map where no set of zones has enough."""
        if container is not None:
            asked = self._memory_requests(pod, container)
        else:
            asked = pod.peak(self._memory_requests(pod, c) for c in pod.containers)
            of_apps = {resource for c in pod.containers if c.kind == APP for resource in self._memory_requests(pod, c)}
            asked = {resource: amount for resource, amount in asked.items() if resource in of_apps}
        hints = self._hints(pod, asked) if asked else []
        # No map, and not an empty list: the merge goes on without memory, and `allocate` fails.
        return dict.fromkeys(asked, hints) if hints else {}

    def _hints(self, pod: PlayedPod, asked: Mapping[str, int]) -> list[Hint]:
        width, masks = len(self.zones), []
        for mask in subsets(self._all):
            if any(self._sum(mask, resource, free=False) < amount for resource, amount in asked.items()):
                continue
            # Before the groups: a zone that is taken now still says how wide the request is on an empty machine.
            width = min(width, mask.bit_count())
            if self._grouped(mask):
                continue
            if all(self._sum(mask, r) + self._left_by_init(pod, mask, r) >= amount for r, amount in asked.items()):
                masks.append(mask)
        return [Hint(mask, mask.bit_count() == width) for mask in masks]

    def _sum(self, mask: int, resource: str, *, free: bool = True) -> int:
        zones = [self.zones[position] for position in bits(mask)]
        return sum((zone.free if free else zone.allocatable).get(resource, 0) for zone in zones)

    def _grouped(self, mask: int) -> bool:
        """Whether a zone of the set is used in another way already, so that no block can have this set."""
        if mask.bit_count() == 1:
            return self.zones[mask.bit_length() - 1].cells.bit_count() > 1
        return self._violates(mask)

    def _violates(self, mask: int) -> bool:
        if mask.bit_count() == 1:
            return False
        return any(self.zones[p].assignments and self.zones[p].cells != mask for p in bits(mask))

    def _left_by_init(self, pod: PlayedPod, mask: int, resource: str) -> int:
        return self._reusable[1].get((mask, resource), 0) if self._reusable[0] == pod.uid else 0

    def allocate(self, pod: PlayedPod, container: PlayedContainer, affinity: Hint) -> None:
        """Give the container its memory from the zones of ``affinity``, or from more where they lack it.

        Raises NotAdmitted.
        """
        asked = self._memory_requests(pod, container)
        if not asked:
            return
        mask = self._choose(pod, asked, affinity)
        blocks = [PlayedBlock(resource, mask, size) for resource, size in asked.items()]
        for block in blocks:
            # The memory that init containers leave is charged already.
            reused = min(block.size, self._left_by_init(pod, mask, block.type))
            self._charge(block, block.size - reused)
        self._note_reusable(pod, container, blocks)
        self.held.setdefault(pod.uid, {})[container.name] = blocks
        # After the new blocks are in ``held``: the sum of all blocks is what the pod holds at any time.
        self._shrink_init_blocks(pod, container, blocks)

    def _choose(self, pod: PlayedPod, asked: Mapping[str, int], affinity: Hint) -> int:
        mask = affinity.mask
        if mask is None:
            best = _best_hint(self._hints(pod, asked))
            if best is None:
                raise _unexpected(
                    "failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"
                )
            if affinity.preferred and not best.preferred:
                raise _unexpected("failed to find the default preferred hint")
            mask = best.mask or 0
        # Without what is reusable, as the kubelet compares: it may extend a mask that needs nothing new.
        if any(self._sum(mask, resource) < amount for resource, amount in asked.items()):
            wider = [hint for hint in self._hints(pod, asked) if (hint.mask or 0) & mask == mask]
            best = _best_hint(wider)
            if best is None:
                raise _unexpected("failed to find NUMA nodes to extend the current topology hint")
            if affinity.preferred and not best.preferred:
                raise _unexpected("failed to find the extended preferred hint")
            mask = best.mask or 0
        if self._violates(mask):
            raise _unexpected("preferred hint violates NUMA node allocation")
        return mask

    def _charge(self, block: PlayedBlock, size: int) -> None:
        for position in bits(block.zones):
            zone = self.zones[position]
            zone.join(block.zones)
            taken = min(size, zone.free.get(block.type, 0))
            if taken:
                zone.free[block.type] -= taken
                block.taken[position] = taken
                size -= taken

    def _note_reusable(self, pod: PlayedPod, container: PlayedContainer, blocks: Sequence[PlayedBlock]) -> None:
        if self._reusable[0] != pod.uid:
            self._reusable = (pod.uid, {})
        left = self._reusable[1]
        for block in blocks:
            key = (block.zones, block.type)
            if container.kind == INIT:
                # Init containers run one after another, so the larger one counts.
                left[key] = max(left.get(key, 0), block.size)
            else:
                left[key] = max(0, left.get(key, 0) - block.size)

    def _shrink_init_blocks(self, pod: PlayedPod, container: PlayedContainer, blocks: Sequence[PlayedBlock]) -> None:
        """What a later container uses again is counted there, so that the sum stays what the pod holds."""
        held = self.held[pod.uid]
        for block in blocks:
            size = block.size
            for before in pod.containers:
                if before.kind == APP or before.name == container.name:
                    break
                if before.kind == SIDECAR:
                    continue
                for old in held.get(before.name, ()):
                    if old.type == block.type and old.zones == block.zones:
                        shared = min(size, old.size)
                        old.shrink(shared)
                        size -= shared

    def started(self, pod: PlayedPod) -> None:
        """Its ordinary init containers are through: the kubelet drops what they hold when the next container starts."""
        held = self.held.get(pod.uid, {})
        for container in pod.containers:
            if container.kind == INIT:
                for block in held.pop(container.name, ()):
                    self._free_block(block)
        if not held:
            self.held.pop(pod.uid, None)

    def release_pod(self, uid: str) -> None:
        """Take back all that the pod holds."""
        for blocks in self.held.pop(uid, {}).values():
            for block in blocks:
                self._free_block(block)

    def _free_block(self, block: PlayedBlock) -> None:
        size = block.size
        for position in bits(block.zones):
            zone = self.zones[position]
            zone.release_block(1 << position)
            # Never more than the zone's own: a block may have taken other parts from its zones than are given back.
            back = min(size, zone.allocatable.get(block.type, 0) - zone.free.get(block.type, 0))
            if back > 0:
                zone.free[block.type] += back
                size -= back

    def restore_pod(self, uid: str, held: Mapping[str, Sequence[PlayedBlock]]) -> None:
        """Take over what the pod's containers held before a restart."""
        if held:
            self.held[uid] = {container: list(blocks) for container, blocks in held.items()}
            for blocks in held.values():
                for block in blocks:
                    # In the order of admission (`Machines._take_over`): each block takes from zones what the ones
                    # before left.
                    self._charge(block, block.size)


def _best_hint(hints: Sequence[Hint]) -> Hint | None:
    """Preferred before not, then the narrowest."""
    return min(hints, key=lambda h: (not h.preferred, (h.mask or 0).bit_count(), h.mask or 0), default=None)


def _unexpected(what: str) -> NotAdmitted:
    return NotAdmitted(AdmissionRefusal.unexpected(f"[memorymanager] {what}"))

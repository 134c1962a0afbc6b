"""The kubelet's Static memory manager: where memory and huge pages may come from, and what an allocation takes.

A zone that took part in an allocation over several zones belongs to that group (its *cells*) until nothing is left of
it: alone it serves nobody, and together with other zones only exactly that group. A zone that serves single-zone
allocations joins no group while it does. All types of memory of a container share one width and one mask.
"""

from functools import lru_cache
from typing import Final

from engine.kubelet.devices.links import bits
from engine.kubelet.hint_merge import Hints, space_of
from engine.kubelet.hints import fewest, holding, ranked
from engine.kubelet.machine import Layout, MemoryCells, State
from engine.kubelet.resource_requests import Pairs, is_memory

NO_DEFAULT: Final = "failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"
NO_PREFERRED_DEFAULT: Final = "failed to find the default preferred hint"
NOTHING_TO_EXTEND: Final = "failed to find NUMA nodes to extend the current topology hint"
NO_PREFERRED_EXTENSION: Final = "failed to find the extended preferred hint"
VIOLATION: Final = "preferred hint violates NUMA node allocation"


class Memory:
    """Memory while one pod is admitted: ``free[row][zone]`` of the memory types, -1 where a zone has none of it.

    ``cells`` and ``taken`` (allocations) by zone. ``spare``: what init containers leave to later ones, by (mask, row).
    ``touched``: (zone, row) pairs of which the pod holds something, be it nothing of a group's zone.
    """

    __slots__ = ("cells", "free", "layout", "space", "spare", "taken", "touched")

    def __init__(self, layout: Layout, state: State) -> None:
        self.layout = layout
        self.space = space_of(len(layout.zones))
        self.free = {row: [zone[row] for zone in state.free] for row in memory_rows(layout.resources)}
        # By amounts alone groups are invisible: each zone stands for itself until an agent tells otherwise.
        known = state.memory or tuple([MemoryCells(cells=1 << zone) for zone in range(len(layout.zones))])
        self.cells = [zone.cells for zone in known]
        self.taken = [zone.assignments for zone in known]
        self.spare: dict[tuple[int, int], int] = {}
        self.touched: set[tuple[int, int]] = set()

    def hints_for_memory(self, wanted: Pairs, *, narrow: bool = False) -> Hints | None:
        """Hints for all types alike; None where no mask fits: the kubelet then gives no hint at all.

        ``narrow``: single zones suffice, if there are any.
        """
        if narrow and _width(self.layout, wanted) == 1:
            # The single zones that have enough and belong to no group.
            family = 0
            for zone, group in enumerate(self.cells):
                if group == 1 << zone and all(
                    self.free[row][zone] + self.spare.get((group, row), 0) >= amount
                    and self.layout.allocatable[zone][row] >= amount
                    for row, amount in wanted
                ):
                    family |= 1 << group
            if family:
                return Hints(preferred=family)
        # Also where the narrow look found nothing: a wider mask may still be a hint, and then the resource has a
        # preference.
        family = self._family(wanted)
        if not family:
            return None
        return ranked(family, _width(self.layout, wanted), self.space)

    def _family(self, wanted: Pairs) -> int:
        """The family of masks that may be hints, counting what is left of init containers on each mask."""
        family = (1 << (self.space.all + 1)) - 2
        for row, amount in wanted:
            enough = holding(tuple(self.free[row]), amount)
            # The memory that an init container leaves is bound to its mask: two zones of it do not help a hint of one
            # of them.
            for (mask, other), spare in self.spare.items():
                if other == row and spare and holding(tuple(self.free[row]), amount - spare) >> mask & 1:
                    enough |= 1 << mask
            family &= enough
        for row, amount in wanted:  # a mask that could not hold it were it empty is not looked at
            family &= holding(_allocatable(self.layout, row), amount)
        for zone, group in enumerate(self.cells):
            alone = group == 1 << zone
            # As memorymanager/policy_static.go `calculateHints`: a grouped zone gives no hint of its own, with or
            # without allocations.
            if not alone:
                family &= ~(1 << (1 << zone))
            if self.taken[zone]:
                # A zone in use joins no other group: all wider masks with it are out but the one that it belongs to.
                several = self.space.holding[zone] & self.space.several
                family &= ~several | (0 if alone else 1 << group)
        return family

    def allocate_memory(self, wanted: Pairs, mask: int | None, preferred: bool, init: bool) -> str:
        """Take memory for a container that the topology manager gave ``mask``; why not, or "" where that worked."""
        # Policy none, or all zones of a machine under single-numa-node: the manager computes a default mask by itself.
        if mask is None:
            hints = self.hints_for_memory(wanted)
            if hints is None:
                return NO_DEFAULT
            if not hints.preferred and preferred:
                return NO_PREFERRED_DEFAULT
            mask, preferred = self._best_hint(hints), bool(hints.preferred)
        # Without what init containers lend, as `isAffinitySatisfyRequest` has it: such a mask may be extended though
        # the container needs nothing new.
        if not all(sum(max(self.free[row][zone], 0) for zone in bits(mask)) >= amount for row, amount in wanted):
            hints = self.hints_for_memory(wanted) or Hints()
            # Only masks that contain the whole given mask extend it.
            wider = 0
            for zone in bits(mask):
                wider = wider or (1 << (self.space.all + 1)) - 2
                wider &= self.space.holding[zone]
            hints = Hints(hints.preferred & wider, hints.others & wider)
            if not hints.preferred | hints.others:
                return NOTHING_TO_EXTEND
            if not hints.preferred and preferred:
                return NO_PREFERRED_EXTENSION
            mask = self._best_hint(hints)
        # The topology manager may have merged to a mask that the memory hints do not have (best-effort).
        # As `isAffinityViolatingNUMAAllocations`: a mask of one zone never violates, even in a zone that belongs to a
        # group.
        if mask.bit_count() != 1 and any(self.taken[zone] and self.cells[zone] != mask for zone in bits(mask)):
            return VIOLATION
        self._take_blocks(wanted, mask, init)
        return ""

    def _best_hint(self, hints: Hints) -> int:
        """Preferred before others, then the narrowest, then the lowest number."""
        family = hints.preferred or hints.others
        return min(bits(family), key=lambda mask: (mask.bit_count(), mask))

    def _take_blocks(self, wanted: Pairs, mask: int, init: bool) -> None:
        for row, amount in wanted:
            spare = self.spare.get((mask, row), 0)
            rest = max(amount - spare, 0)
            for zone in bits(mask):
                # Also for a zone that gives no byte: it belongs to the group, and the kubelet counts the assignment.
                self.taken[zone] += 1
                self.cells[zone] = mask
                self.touched.add((zone, row))
                # Filled in the order of the zones: the next one gives only what the one before does not have.
                part = min(max(self.free[row][zone], 0), rest)
                if part:
                    self.free[row][zone] -= part
                    rest -= part
            # An init container that asks for less than is lent leaves the larger amount: the earlier one still holds
            # it.
            self.spare[mask, row] = max(spare, amount) if init else max(spare - amount, 0)

    def widen(self, zone: int, wanted: Pairs) -> None:
        """Let a zone stand for itself and have just as much free as is wanted, where it has less."""
        for row, amount in wanted:
            need = amount - self.spare.get((1 << zone, row), 0)
            self.free[row][zone] = max(self.free[row][zone], need)
        if self.cells[zone] != 1 << zone:
            self.cells[zone], self.taken[zone] = 1 << zone, 0

    def cells_after(self, state: State) -> tuple[MemoryCells, ...]:
        """The cells of the state that is left. A pod counts once for each zone and type, however many containers."""
        if not state.memory:
            return ()
        more = [0] * len(self.cells)
        for zone, _ in self.touched:
            more[zone] += 1
        return tuple(
            [
                MemoryCells(cells=self.cells[zone], assignments=before.assignments + more[zone])
                if more[zone]
                else before
                for zone, before in enumerate(state.memory)
            ]
        )


@lru_cache(maxsize=256)
def memory_rows(resources: tuple[str, ...]) -> tuple[int, ...]:
    """The rows of the types of memory."""
    return tuple([row for row, resource in enumerate(resources) if is_memory(resource)])


@lru_cache(maxsize=1 << 13)
def _allocatable(layout: Layout, row: int) -> tuple[int, ...]:
    return tuple([zone[row] for zone in layout.allocatable])


@lru_cache(maxsize=1 << 13)
def _width(layout: Layout, wanted: Pairs) -> int:
    """The fewest zones that would have enough of all types at once."""
    space = space_of(len(layout.zones))
    if len(wanted) == 1:
        ((row, amount),) = wanted
        return fewest(_allocatable(layout, row), amount, space.zones)
    family = (1 << (space.all + 1)) - 2
    # Together, not each by itself: two types that fit one zone each may need two zones for both.
    for row, amount in wanted:
        family &= holding(_allocatable(layout, row), amount)
    return next((width for width in range(1, space.zones) if family & space.widths[width]), space.zones)

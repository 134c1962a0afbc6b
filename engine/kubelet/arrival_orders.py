"""Whether a kubelet grants all pods that are on their way to it, in any order and whatever ends meanwhile.

A kubelet places a pod when it arrives. One that is alone gets what was predicted. Of several each takes the first zones
that have room for it, so another order may leave no zone for the last one; and a pod whose containers are placed one by
one may be refused because *more* is free: its first container then goes to zones where the next one finds no device.

- `certain` goes through the orders with what is free as two states: ``least``, where nothing has ended, and ``most``,
  where all has ended that may. A mask that ``most`` allows is possible, one that ``least`` allows is sure; the kubelet
  takes a possible one up to the first that is sure. Each of those is followed, and in each every pod has to find one.
- Where nothing may end, that is the admission itself, order by order. Else it may say no where all would go well: where
  pods take of several zones, or where there are more orders than `BUDGET` steps.
- Under ``none`` and ``best-effort`` a kubelet refuses for want of the sum alone, which no order changes.
"""

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from engine.kubelet.admit import MOST_ZONES, Trial
from engine.kubelet.allocators import CountRoom, CpuRoom, DeviceRoom, installed, row_of
from engine.kubelet.devices.links import bits
from engine.kubelet.hint_merge import Merged, space_of
from engine.kubelet.hints import fewest
from engine.kubelet.machine import CPU, Layout, PodShape, Scope, State, TopologyPolicy
from engine.kubelet.rebuild import asked
from engine.kubelet.resource_requests import Asks, ResourceRequest, asks_of

# Each step is an admission or a pair of trials. Beyond, the answer is no: a pod waits for arrivals that would have gone
# well, and none is sent to a kubelet that may refuse it.
BUDGET: Final = 128  # admissions
KEPT: Final = 1 << 12
_CHOOSY: Final = (TopologyPolicy.RESTRICTED, TopologyPolicy.SINGLE)


class Free(NamedTuple):
    """What is free inside a machine, if nothing ends and if all ends that may."""

    least: State
    most: State


@lru_cache(maxsize=KEPT)
def heeds(layout: Layout, shape: PodShape) -> bool:
    """Whether what such a pod finds on a machine decides what becomes of it, or of others that come after it."""
    return layout.kubelet.policy in _CHOOSY and len(layout.zones) <= MOST_ZONES and takes_zones(layout, shape)


@lru_cache(maxsize=KEPT)
def takes_zones(layout: Layout, shape: PodShape) -> bool:
    """Whether such a pod takes anything of zones, so that others may be given other ones."""
    return any(ask != ResourceRequest() for _, _, ask in _asks_of_shape(layout, shape).containers)


def certain(layout: Layout, least: State, most: State, shapes: Iterable[PodShape], budget: int = BUDGET) -> bool:
    """Whether all these pods are granted; see the module."""
    # Pods that take nothing of zones are left out. They change nothing for others, and each kind more multiplies the
    # orders.
    coming = Counter(shape for shape in shapes if heeds(layout, shape))
    if not coming:
        return True
    if all(_is_plain(layout, shape) for shape in coming):
        # All pods are alike and plain, so the order does not matter and more free room never hurts: ``least`` alone
        # decides.
        if len(coming) == 1:
            ((shape, count),) = coming.items()
            # They come in the one order that there is.
            for _ in range(count):
                admission = asked(layout, least, shape)
                if not admission.admitted:
                    return False
                least = admission.after
            return True
        # A bound that is cheap to compute. Where it fails, the search may still find that all go.
        if all(_finds_room(layout, least, shape, coming) for shape in coming):
            return True
    kinds = tuple(coming)
    return _Search(layout, kinds, budget).all_go(Free(least, most), tuple(coming.values()))


def _asks_of_shape(layout: Layout, shape: PodShape) -> Asks:
    return asks_of(layout.resources, layout.ignored, layout.kubelet, shape)


@lru_cache(maxsize=KEPT)
def _is_plain(layout: Layout, shape: PodShape) -> bool:
    """Whether one merge decides: then more that is free never hurts.

    In pod scope memory that only init containers ask for is no part of it, and is taken wherever it is.
    """
    asks = _asks_of_shape(layout, shape)
    if layout.kubelet.scope is Scope.POD:
        merged = {row for row, _ in asks.whole.memory}
        return all(row in merged for _, _, ask in asks.containers for row, _ in ask.memory)
    return sum(ask != ResourceRequest() for _, _, ask in asks.containers) <= 1


def _finds_room(layout: Layout, state: State, shape: PodShape, coming: Counter[PodShape]) -> bool:
    """Whether a plain pod finds a zone wherever the others go: they are too few to block all that have room for it.

    A zone is blocked once others have more of some resource there than the pod leaves. So each of them blocks no more
    of a zone than its part of that, one zone at most, in as many zones as it takes from.
    """
    # The bound counts amounts. Whole cores, links and wishes refuse pods for which the amounts suffice.
    if layout.kubelet.full_pcpus_only or shape.gpu_link or shape.wish is not TopologyPolicy.NONE:
        return False
    need = _most_of(layout, shape)
    if _reach(layout, shape) > 1:
        return False
    zones = [
        [free[row] // (1000 if layout.resources[row] == CPU else 1) - amount + 1 for row, amount in need.items()]
        for zone, free in enumerate(state.free)
        # A zone of a memory group serves no pod alone, however much it has free.
        if not state.memory or state.memory[zone].cells == 1 << zone
    ]
    zones = [spare for spare in zones if min(spare, default=1) > 0]  # those with room for the pod
    blocked, in_each = 0.0, [0.0] * len(zones)
    others = coming - Counter([shape])
    for other, count in others.items():
        takes = _most_of(layout, other)
        parts = [
            max((takes.get(row, 0) / left for row, left in zip(need, spare, strict=True)), default=0.0)
            for spare in zones
        ]
        in_each = [total + count * part for total, part in zip(in_each, parts, strict=True)]
        blocked += count * min(1.0, max(parts, default=0.0)) * _reach(layout, other)
    return len(zones) > blocked or any(total < 1 for total in in_each)


@lru_cache(maxsize=KEPT)
def _reach(layout: Layout, shape: PodShape) -> int:
    """How many zones a pod takes from at most; types of memory share zones, which may be more than each needs."""
    cpu, zones = row_of(layout.resources, CPU), len(layout.zones)
    asks = _asks_of_shape(layout, shape)
    reach = 0
    for ask in [asks.whole] if layout.kubelet.scope is Scope.POD else [ask for _, _, ask in asks.containers]:
        amounts = (*ask.devices, *(((cpu, ask.cpus),) if ask.cpus else ()))
        widths = [fewest(installed(layout, row).units, amount, zones) for row, amount in amounts]
        held = [fewest(tuple([zone[row] for zone in layout.allocatable]), amount, zones) for row, amount in ask.memory]
        # Types of memory add up (each may lie in zones of its own), CPUs and devices do not.
        reach += max(*widths, sum(held), 0)
    return min(reach, zones)


@lru_cache(maxsize=KEPT)
def _most_of(layout: Layout, shape: PodShape) -> dict[int, int]:
    """The most that a pod holds of each resource, in whole CPUs, bytes and devices."""
    found = Counter[int]()
    cpu = row_of(layout.resources, CPU)
    for _, _, ask in _asks_of_shape(layout, shape).containers:
        for row, amount in (*ask.memory, *ask.devices, *(((cpu, ask.cpus),) if ask.cpus else ())):
            found[row] += amount
    return dict(found)


class _Search:
    """All orders, each state once."""

    def __init__(self, layout: Layout, kinds: tuple[PodShape, ...], budget: int) -> None:
        self._layout = layout
        self._kinds = kinds
        self._left = budget
        self._known: dict[tuple[Free, tuple[int, ...]], bool] = {}

    def all_go(self, free: Free, counts: tuple[int, ...]) -> bool:
        """Whether so many pods of each kind are granted from here on."""
        if not any(counts):
            return True
        known = self._known.get((free, counts))
        if known is None:
            known = True
            for at, shape in enumerate(self._kinds):
                if not counts[at]:
                    continue
                # Counted for each kind in each state, before the cached outcomes are asked, so that the answer does not
                # depend on what is in the cache.
                self._left -= 1
                outcomes = _outcomes(self._layout, free, shape) if self._left >= 0 else None
                rest = (*counts[:at], counts[at] - 1, *counts[at + 1 :])
                # One bad order suffices: nobody knows in which one the pods arrive.
                if not outcomes or not all(self.all_go(after, rest) for after in outcomes):
                    known = False
                    break
            self._known[free, counts] = known
        return known


@lru_cache(maxsize=KEPT)
def _outcomes(layout: Layout, free: Free, shape: PodShape) -> tuple[Free, ...]:
    """What may be left once such a pod has come; nothing where it may be refused."""
    # Nothing may end: one admission tells the outcome, and no mask is a guess.
    if free.least == free.most:
        admission = asked(layout, free.least, shape)
        return (Free(admission.after, admission.after),) if admission.admitted else ()
    found: list[Free] = []
    ways: list[tuple[int, ...]] = [()]
    while ways:
        got = _Pair(layout, free, shape, ways.pop()).free_after_both()
        if got is None:
            return ()
        if isinstance(got, Free):
            found.append(got)
        else:
            ways += got
    # Several ways often leave the same state; each of them would be searched again.
    return tuple(dict.fromkeys(found))


class _Pair:
    """One pod on both states at once, with the same masks chosen; ``way``: those of the first merges."""

    def __init__(self, layout: Layout, free: Free, shape: PodShape, way: tuple[int, ...]) -> None:
        self._layout = layout
        self._asks = _asks_of_shape(layout, shape)
        self._least = Trial(layout, free.least, shape, self._asks)
        self._most = Trial(layout, free.most, shape, self._asks)
        self._way = way
        self._chosen: list[int] = []

    def free_after_both(self) -> Free | list[tuple[int, ...]] | None:
        """What is left; or the ways there are where several masks are possible; None where it may be refused."""
        per_container = self._layout.kubelet.scope is Scope.CONTAINER
        asks = [ask for _, _, ask in self._asks.containers] if per_container else [self._asks.whole]
        mask = 0
        for at, (kind, _, ask) in enumerate(self._asks.containers):
            if at < len(asks):
                choices = self._choices(asks[at])
                # The trials have taken what earlier containers got, and cannot be turned back: each choice starts from
                # the beginning with a longer way.
                if len(choices) != 1:
                    return [(*self._chosen, choice) for choice in choices] or None
                (mask,) = choices
                self._chosen.append(mask)
                # A mask that only ``most`` has means that something ended there: the least state is raised to that, or
                # the pod counts as refused.
                if not self._sure(asks[at], mask) and not self._make_room(asks[at], mask):
                    return None
            single = self._layout.kubelet.policy is TopologyPolicy.SINGLE
            # As topologymanager/policy_single_numa_node.go does: an affinity of all zones becomes none, on machines of
            # one zone.
            whole = single and mask == space_of(len(self._layout.zones)).all
            merged = Merged(None if whole else mask, preferred=True)
            for trial in (self._least, self._most):
                if trial.allocate_container(at, kind, ask, merged) is not None:
                    return None
        least, most = self._least.admission(), self._most.admission()
        # Where the two trials take other amounts from zones, nothing is known of what the next pod finds.
        return Free(least.after, most.after) if least.uses == most.uses else None

    def _choices(self, ask: ResourceRequest) -> list[int]:
        """The masks that the kubelet may choose; none where no one is sure."""
        if len(self._chosen) < len(self._way):
            return [self._way[len(self._chosen)]]
        sure = self._family(self._least, ask)
        possible = self._family(self._most, ask) | sure
        found: list[int] = []
        for mask in sorted(bits(possible), key=self._rank):
            found.append(mask)
            # The kubelet takes the first mask in this order that it has. It never gets past one that it surely has.
            if sure >> mask & 1:
                return found
        # No mask is sure: if nothing ends, the kubelet refuses the pod.
        return []

    def _rank(self, mask: int) -> tuple[int, int, int]:
        kubelet, spread = self._layout.kubelet, 0
        zones = [zone.distances for zone in self._layout.zones]
        if kubelet.prefer_closest_numa_nodes and kubelet.policy is not TopologyPolicy.SINGLE and all(zones):
            spread = sum(zones[one][other] for one in bits(mask) for other in bits(mask))
        return mask.bit_count(), spread, mask

    def _sure(self, ask: ResourceRequest, mask: int) -> bool:
        return bool(self._family(self._least, ask) >> mask & 1)

    def _family(self, trial: Trial, ask: ResourceRequest) -> int:
        """The masks that all resources prefer."""
        space = space_of(len(self._layout.zones))
        hints = trial.hints_for_ask(ask)
        if not hints:
            # Without hints the kubelet merges to all zones, preferred.
            return 1 << space.all
        common = -1
        for hint in hints:
            common &= hint.preferred
        return common & space.widths[1] if self._layout.kubelet.policy is TopologyPolicy.SINGLE else common

    def _make_room(self, ask: ResourceRequest, mask: int) -> bool:
        """Where the kubelet chooses a zone that has no room if nothing ends, something has ended: at least so much."""
        if mask.bit_count() != 1:
            return False
        zone = mask.bit_length() - 1
        least, most = self._least, self._most
        if ask.cpus:
            _widen(least.cpu_room(), most.cpu_room(), zone, ask.cpus)
        for row, amount in ask.devices:
            for rooms, others in ((least.devices, most.devices), (least.counts, most.counts)):
                if row in rooms:
                    _widen(rooms[row], others[row], zone, amount)
        if ask.memory and least.memory is not None:
            least.memory.widen(zone, ask.memory)
        return self._sure(ask, mask)


def _widen(
    room: CpuRoom | CountRoom | DeviceRoom, most: CpuRoom | CountRoom | DeviceRoom, zone: int, need: int
) -> None:
    """Give a zone just as many free units as are needed with those that are lent there."""
    if isinstance(room, CountRoom):
        room.free[zone] = max(room.free[zone], need - room.spare[zone])
    elif not isinstance(most, CountRoom):
        here = room.cpus.zones[zone] if isinstance(room, CpuRoom) else room.zones[zone]
        missing = need - ((room.free | room.spare) & here).bit_count()
        # The lowest units that may have become free. Which ones did end is unknown, and the zone's count is all that
        # the next hints read.
        for unit in bits(most.free & here & ~room.free):
            if missing <= 0:
                break
            room.free_one(unit)
            missing -= 1

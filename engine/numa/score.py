"""What makes one node the better place inside than another: the parts of `engine.numa.alignment`, for one machine.

Plain functions of a layout, what is free and what a pod would take. Less is better in all of them.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import lru_cache
from itertools import combinations
from typing import Any, Final

from engine.kubelet.devices.choose import fragmentation
from engine.kubelet.devices.links import TABLE_DEVICES, LinkGraph, cliques, closeness, mask_of, tables
from engine.kubelet.devices.xpu import delta_mtf
from engine.kubelet.machine import Layout, Scope, State, TopologyPolicy

FULL: Final = 1000


class ZoneScore(StrEnum):
    """How full zones should become; the names are those of kube-scheduler's NodeResourceTopology scoring."""

    LEAST_NUMA_NODES = "LeastNUMANodes"  # no matter
    LEAST_ALLOCATED = "LeastAllocated"  # spread over zones
    MOST_ALLOCATED = "MostAllocated"  # fill zones
    BALANCED_ALLOCATION = "BalancedAllocation"  # use each zone's resources evenly


class AlignmentOverPacking(StrEnum):
    """Where a better aligned node is taken before a tighter one, of equally many nodes and domains."""

    NEVER = "Never"  # only of equally tight ones
    USED_NODES = "UsedNodes"  # where no more idle nodes are taken for it
    USED_DOMAINS = "UsedDomains"  # where no more idle domains (of the level above the nodes) are
    ALWAYS = "Always"


ALIGNMENT_OVER_PACKING: Final = AlignmentOverPacking.ALWAYS  # unless somebody says otherwise


class Trait(StrEnum):
    """What makes nodes differ inside for pods of one shape."""

    LINKS = "links"  # devices that are linked
    CONTAINERS = "containers"  # each container may get another zone
    ZONES = "zones"  # one container may get several


def traits(layout: Layout) -> tuple[Trait, ...]:
    """Those that a layout has."""
    found = [Trait.LINKS] if any(layout.links) else []
    if layout.kubelet.policy is not TopologyPolicy.SINGLE:
        found.append(Trait.ZONES)
    elif layout.kubelet.scope is Scope.CONTAINER:
        found.append(Trait.CONTAINERS)
    return tuple(found)


def close(layout: Layout, devices: Mapping[str, int], amounts: Mapping[str, int], zones: int) -> int:
    """How well the devices that a pod would get are linked; more is better.

    ``devices``: which, as masks, where that is known. Else it is what ``amounts`` of them in these zones have at least.
    """
    found = 0
    for resource, links in zip(layout.resources, layout.links, strict=False):
        if isinstance(links, LinkGraph):
            known = devices.get(resource)
            found += _at_least(links, zones, amounts.get(resource, 0)) if known is None else closeness(links, known)
    return found


@lru_cache(maxsize=1 << 12)
def _at_least(links: LinkGraph, zones: int, count: int) -> int:
    """How well any so many devices of some zones are linked: as their loosest pair, where it is not all of them."""
    if count < 2:
        return 0
    members = [at for at in range(links.size) if not links.zones or links.zones[at] & zones]
    if count >= len(members):
        return closeness(links, mask_of(members))
    # Which devices the plugin hands out is not known here, so the worst pair is what is sure.
    return min([closeness(links, mask_of(pair)) for pair in combinations(members, 2)])


def distance(layout: Layout, zones: int) -> int:
    """The mean over all ordered pairs of a mask of zones, in hundredths; 0 for one zone, and where it is not known."""
    if not zones & (zones - 1):
        return 0
    members = [at for at in range(len(layout.zones)) if zones >> at & 1]
    rows = [layout.zones[zone].distances for zone in members]
    if not rows or not all(rows):
        return 0
    # Each zone counts with itself too, as in the kubelet's `CalculateAverageFor` (1.36.3).
    return 100 * sum(row[zone] for row in rows for zone in members) // len(members) ** 2


def fullness(used: Iterable[Any], score: ZoneScore) -> Any:
    """How far zones are from what a score asks for, 0 to 1000; ``used``: the share of each resource, in thousandths.

    Shares are numbers, or arrays of many machines at once.
    """
    parts = list(used)
    if score is ZoneScore.LEAST_NUMA_NODES or not parts:
        return 0
    mean = sum(parts) // len(parts)
    if score is ZoneScore.BALANCED_ALLOCATION:
        return sum(abs(part - mean) for part in parts) // len(parts)
    return FULL - mean if score is ZoneScore.MOST_ALLOCATED else mean


def breaks(layout: Layout, before: State, after: State) -> int:
    """In how many more pieces the free devices are once a pod has its own; below 0 where it takes the odd ones.

    A piece is an NVLink clique, or for XPUs a task of the sizes that there are (MTF). On a machine whose GPUs are all
    linked to each other, or none of them, it does not matter which are taken: 0.
    """
    found = 0
    for row, links in enumerate(layout.links):
        known = row < len(after.devices)
        if isinstance(links, LinkGraph):
            if known and before.devices[row] != after.devices[row]:
                found += pieces(links, after.devices[row]) - pieces(links, before.devices[row])
        elif links is not None:
            free, left = (
                links.free_by_wing(state.devices[row]) if known else tuple(max(0, zone[row]) for zone in state.free)
                for state in (before, after)
            )
            taken = tuple(have - rest for have, rest in zip(free, left, strict=True))
            found += delta_mtf(free, taken) if any(taken) else 0
    return found


@lru_cache(maxsize=1 << 14)
def pieces(graph: LinkGraph, free: int) -> int:
    """In how many cliques the free devices fall, the largest taken out first; 0 where all or none are linked."""
    if not any(graph.neighbours) or graph.is_clique(graph.all):
        return 0
    found, left = 0, free & graph.all
    while left:
        left &= ~_largest_clique(graph, left)
        found += 1
    return found


def _largest_clique(graph: LinkGraph, free: int) -> int:
    """The first of the largest cliques among some devices, as a mask."""
    if graph.size > TABLE_DEVICES:
        return cliques(graph, free)[0]
    worth, chosen = tables(graph), 0
    while free:
        size = int(worth.clique[free])
        device = next(
            at
            for at in range(graph.size)
            if free >> at & 1 and int(worth.clique[free & graph.neighbours[at]]) == size - 1
        )
        chosen |= 1 << device
        free &= graph.neighbours[device]
    return chosen


def broken_up(layout: Layout, after: State) -> int:
    """How far the GPUs that stay free are from the best sets of their size, in thousandths."""
    return sum(
        fragmentation(links, after.devices[row])
        for row, links in enumerate(layout.links)
        if isinstance(links, LinkGraph) and row < len(after.devices)
    )

"""Which of otherwise equal nodes is the better place inside: fewest zones first, then what is left behind.

In this order: the zones that the kubelet would spread the pod over (so a best-effort or none node where the pod comes
out aligned is taken before one where it does not), how well its devices are linked (pods with ``gpu-link`` only), the
zones' mean distance, how full they become (only where a ``ZoneScore`` asks for that), how broken up the devices are
that stay free, tree order. Nodes whose inside is not known come after those where one zone suffices. A preference only:
whether a node takes a pod was decided before.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Final

from engine.kubelet.devices.choose import fragmentation
from engine.kubelet.devices.links import LinkGraph, closeness
from engine.kubelet.devices.xpu import delta_mtf
from engine.kubelet.machine import Layout, PodShape, Scope, State, TopologyPolicy
from engine.kubelet.rebuild import asked

WORST: Final = 1 << 40
FULL: Final = 1000


class ZoneScore(StrEnum):
    """How full zones should become; the names are those of kube-scheduler's NodeResourceTopology scoring."""

    LEAST_NUMA_NODES = "LeastNUMANodes"  # no matter
    LEAST_ALLOCATED = "LeastAllocated"  # spread over zones
    MOST_ALLOCATED = "MostAllocated"  # fill zones
    BALANCED_ALLOCATION = "BalancedAllocation"  # use each zone's resources evenly


class Trait(StrEnum):
    """What makes nodes that take equally many pods differ inside."""

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


@lru_cache(maxsize=1 << 13)
def quality(layout: Layout, state: State, shape: PodShape, score: ZoneScore) -> tuple[int, ...]:
    """Less is better: zones, how loosely linked (where the pod asks), mean distance, how full, how broken up."""
    admission = asked(layout, state, shape)
    if not admission.admitted:
        return (WORST,)
    zones = [at for at in range(len(layout.zones)) if admission.zones >> at & 1]
    full = _fullness(layout, admission.after, zones, shape, score) if zones else 0
    loose = -_closeness(layout, dict(admission.devices)) if shape.gpu_link else 0
    return len(zones), loose, _distance(layout, zones), full, _broken_up(layout, state, admission.after)


def _closeness(layout: Layout, devices: Mapping[str, int]) -> int:
    """How well the devices that a pod would get are linked; 0 where it is not known which."""
    rules = dict(zip(layout.resources, layout.links, strict=False))
    found = ((rules.get(resource), mask) for resource, mask in devices.items())
    return sum(closeness(links, mask) for links, mask in found if isinstance(links, LinkGraph))


def _distance(layout: Layout, zones: list[int]) -> int:
    """The mean over all ordered pairs, in hundredths; 0 where it is not known."""
    rows = [layout.zones[zone].distances for zone in zones]
    if not rows or not all(rows):
        return 0
    return 100 * sum(row[zone] for row in rows for zone in zones) // len(zones) ** 2


def _fullness(layout: Layout, after: State, zones: list[int], shape: PodShape, score: ZoneScore) -> int:
    """Of the worst zone, in thousandths."""
    if score is ZoneScore.LEAST_NUMA_NODES:
        return 0
    named = {resource for one in shape.containers for resource, amount in (*one.requests, *one.limits) if amount}
    rows = [at for at, resource in enumerate(layout.resources) if resource in named]
    worst = 0
    for zone in zones:
        used = list(_used(layout, after, zone, rows))
        if not used:
            continue
        mean = sum(used) // len(used)
        if score is ZoneScore.BALANCED_ALLOCATION:
            mean = sum(abs(part - mean) for part in used) // len(used)
        worst = max(worst, FULL - mean if score is ZoneScore.MOST_ALLOCATED else mean)
    return worst


def _used(layout: Layout, after: State, zone: int, rows: list[int]) -> Iterator[int]:
    """How much of each resource of a zone is used, in thousandths."""
    for row in rows:
        whole = layout.allocatable[zone][row]
        if whole > 0:
            yield FULL * (whole - after.free[zone][row]) // whole


def _broken_up(layout: Layout, before: State, after: State) -> int:
    """How far the GPUs that stay free are from the best sets of their size; for XPUs, how many more tasks fill them."""
    worst = 0
    for row, links in enumerate(layout.links):
        known = row < len(after.devices)
        if isinstance(links, LinkGraph):
            worst += fragmentation(links, after.devices[row]) if known else 0
        elif links is not None:
            free, left = (
                links.free(state.devices[row]) if known else tuple(max(0, zone[row]) for zone in state.free)
                for state in (before, after)
            )
            taken = tuple(have - rest for have, rest in zip(free, left, strict=True))
            worst += FULL * delta_mtf(free, taken) if any(taken) else 0
    return worst

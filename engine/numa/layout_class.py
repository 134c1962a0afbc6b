"""What decides how a pod is counted on a layout, apart from amounts: layouts with equal traits are counted together."""

import msgspec
import numpy as np

from engine.arrays import Ints
from engine.kubelet.admit import MOST_ZONES
from engine.kubelet.cpu_manager import cpus_of
from engine.kubelet.devices.links import LinkGraph
from engine.kubelet.devices.xpu import XpuBoard
from engine.kubelet.machine import CPU, Kubelet, Layout, TopologyPolicy
from engine.kubelet.resource_requests import is_memory


class Traits(msgspec.Struct, frozen=True, gc=False):
    """The part of a layout that is not amounts; hashable.

    ``plain``: the closed forms know everything that this layout has; not so where a device belongs to several zones or
    to none, or where a kubelet option looks at more than zones. ``distances`` are kept only where the kubelet breaks
    ties by them. ``threads``: CPUs are given out in so many; ``siblings``: as many a core
    has. Resources: ``absent``, those that no zone has; ``cards``,
    handed out by rules of their own (`engine.kubelet.devices.xpu`); ``cliques`` and ``graphs``, devices with links, of
    each to each or not.
    """

    zones: int
    resources: tuple[str, ...]
    kubelet: Kubelet
    ignored: tuple[str, ...]
    exact: bool
    plain: bool
    distances: tuple[tuple[int, ...], ...] = ()
    cards: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    graphs: tuple[str, ...] = ()
    cliques: tuple[str, ...] = ()
    threads: int = 1
    siblings: int = 1


def traits_of(layout: Layout) -> Traits:
    """The traits of a layout."""
    kubelet = layout.kubelet
    rules = dict(zip(layout.resources, layout.links, strict=False))
    graphs = {name: graph for name, graph in rules.items() if isinstance(graph, LinkGraph)}
    in_one_zone = all(device.zones.bit_count() == 1 for devices in layout.devices for device in devices)
    listed = zip(layout.links, layout.devices, strict=False) if layout.exact else ()
    all_in_graphs = all(graph.size == len(devices) for graph, devices in listed if isinstance(graph, LinkGraph))
    return Traits(
        zones=len(layout.zones),
        resources=layout.resources,
        kubelet=kubelet,
        ignored=layout.ignored,
        exact=layout.exact,
        plain=0 < len(layout.zones) <= MOST_ZONES and in_one_zone and all_in_graphs and not _looks_closer(layout),
        graphs=tuple([name for name, graph in graphs.items() if not graph.is_clique(graph.all)]),
        cliques=tuple([name for name, graph in graphs.items() if graph.is_clique(graph.all)]),
        threads=_threads(layout) if kubelet.full_pcpus_only else 1,
        siblings=_threads(layout),
        distances=tuple([z.distances for z in layout.zones]) if kubelet.prefer_closest_numa_nodes else (),
        cards=tuple([name for name, board in rules.items() if isinstance(board, XpuBoard)]),
        absent=tuple([name for row, name in enumerate(layout.resources) if _is_absent(layout, row)]),
    )


def _looks_closer(layout: Layout) -> bool:
    """Whether cores or sockets may decide: of whole cores, those of which only a thread is reserved."""
    kubelet = layout.kubelet
    # The CPUs may then come from any zone of the socket, which sums over zones do not show.
    if kubelet.align_by_socket:
        return True
    if not layout.exact:
        return False
    spreads = kubelet.distribute_cpus_across_numa and kubelet.policy is not TopologyPolicy.SINGLE
    return spreads or (kubelet.full_pcpus_only and cpus_of(layout).reserved_cores != layout.reserved_cpus)


def _threads(layout: Layout) -> int:
    return max(cpus_of(layout).threads if layout.exact else layout.threads, 1)


def _is_absent(layout: Layout, row: int) -> bool:
    # With full state a device is listed even where it belongs to
    # no zone, so a resource that no zone reports may have devices.
    listed = layout.exact and layout.devices and layout.devices[row]
    return not listed and all(zone[row] < 0 for zone in layout.capacity)


def room_of(layout: Layout) -> Ints:
    """What widths are taken from, (resources, zones): what is installed, but of memory what pods may have."""
    found = np.empty((len(layout.resources), len(layout.zones)), np.int64)
    for row, resource in enumerate(layout.resources):
        # As the kubelet's managers (1.36.3) take the width: reserved
        # CPUs and unhealthy devices count, reserved memory does not.
        amounts = layout.allocatable if is_memory(resource) else layout.capacity
        found[row] = [zone[row] for zone in amounts]
        if resource == CPU:
            # CPUs are pinned whole, so a part of one makes no zone wide enough.
            found[row] -= found[row] % 1000
    return np.maximum(found, 0)


def reach_of(room: Ints) -> Ints:
    """Of each resource, the most that 1, 2, ... zones have together: (resources, zones)."""
    found: Ints = np.cumsum(-np.sort(-room, axis=1), axis=1)
    return found

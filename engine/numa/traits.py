"""What decides how a pod is counted on a layout, apart from amounts: layouts with equal traits are counted together."""

import msgspec
import numpy as np

from engine.devices.xpu import XpuBoard
from engine.numa.machine import CPU, HUGEPAGES, MEMORY, Kubelet, Layout
from engine.table import Ints


class Traits(msgspec.Struct, frozen=True):
    """The part of a layout that is not amounts; hashable.

    ``plain``: the closed forms know everything that this layout has; not so where a device belongs to several zones or
    to none, or where a kubelet option looks at cores, caches or sockets. ``distances`` are kept only where the kubelet
    breaks ties by them. ``cards``: resources that are handed out by rules of their own (`engine.devices.xpu`).
    """

    zones: int
    resources: tuple[str, ...]
    kubelet: Kubelet
    ignored: tuple[str, ...]
    exact: bool
    plain: bool
    distances: tuple[tuple[int, ...], ...] = ()
    cards: tuple[str, ...] = ()

    @property
    def splits(self) -> bool:
        """Whether amounts alone say what a pod takes from each of several zones."""
        return not self.exact


def traits_of(layout: Layout) -> Traits:
    """The traits of a layout."""
    kubelet = layout.kubelet
    looks_closer = kubelet.full_pcpus_only or kubelet.align_by_socket or kubelet.prefer_align_cpus_by_uncorecache
    in_one_zone = all(device.zones.bit_count() == 1 for devices in layout.devices for device in devices)
    return Traits(
        zones=len(layout.zones),
        resources=layout.resources,
        kubelet=kubelet,
        ignored=layout.ignored,
        exact=layout.exact,
        plain=bool(layout.zones) and in_one_zone and not looks_closer,
        distances=tuple([z.distances for z in layout.zones]) if kubelet.prefer_closest_numa_nodes else (),
        cards=tuple([layout.resources[row] for row, rules in enumerate(layout.links) if isinstance(rules, XpuBoard)]),
    )


def is_memory(resource: str) -> bool:
    """Whether the kubelet's memory manager has it."""
    return resource == MEMORY or resource.startswith(HUGEPAGES)


def is_device(resource: str) -> bool:
    """Whether the kubelet's device manager has it."""
    return resource != CPU and not is_memory(resource)


def room_of(layout: Layout) -> Ints:
    """What widths are taken from, (resources, zones): what is installed, but of memory what pods may have."""
    found = np.empty((len(layout.resources), len(layout.zones)), np.int64)
    for row, resource in enumerate(layout.resources):
        amounts = layout.allocatable if is_memory(resource) else layout.capacity
        found[row] = [zone[row] for zone in amounts]
    return np.maximum(found, 0)


def reach_of(room: Ints) -> Ints:
    """Of each resource, the most that 1, 2, ... zones have together: (resources, zones)."""
    found: Ints = np.cumsum(-np.sort(-room, axis=1), axis=1)
    return found

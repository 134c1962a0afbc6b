"""The workload's own NUMA wish (``topogate.dev/numa-policy``), judged on what the kubelet will surely do.

A kubelet may align less than a workload wants. The wish refuses such a node:

- ``single-numa-node``: all wished resources come from one zone.
- ``restricted``: from no more zones than the resource that needs most would need on an empty machine.
- ``socket``: from zones of one socket; where sockets are not known, from one zone.
- ``best-effort`` refuses nothing.

What counts are the zones that units *may* come from: where the plugin or the kubelet is free to choose, all of those. A
resource that the workload names has to be pinned for its pod; without names, what the kubelet pins is judged. A node
that publishes nothing of its zones is refused to whoever asks for anything that may be pinned.

Devices of claims count beside what the kubelet pins, in the zones that they will come from (`PodShape.claimed`). Then
whole CPUs of a Guaranteed pod have to be pinned, for the wish is about these beside the devices.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from engine.kubelet.allocators import installed, row_of
from engine.kubelet.device_manager import DeviceRefusal, must_link, unknown
from engine.kubelet.devices.links import bits
from engine.kubelet.hints import fewest
from engine.kubelet.machine import CPU, DeviceZones, Layout, NumaPlacement, PodShape, Qos, TopologyPolicy
from engine.kubelet.resource_requests import is_device, is_memory

NUMA_POLICY: Final = "NumaPolicy"
DEVICES: Final = "devices of its claims"
UNPINNED_CPUS: Final = "the kubelet pins CPUs only with the static CPU manager, for whole CPUs of Guaranteed pods"
CLASS_RESOURCE: Final = "deviceclass.resource.kubernetes.io/"  # and a DeviceClass: devices of claims
LENIENT: Final = (TopologyPolicy.NONE, TopologyPolicy.BEST_EFFORT)


def refused_unseen(pod: PodShape) -> DeviceRefusal | None:
    """Why a node of whose inside nothing is known takes no such pod; None where it may."""
    unlinked = next(iter(must_link(pod)), None)
    if unlinked is not None:
        return unknown(unlinked)
    if pod.wish in LENIENT:
        return None
    if pod.claimed is None:
        # Whether some kubelet would pin anything that the wish is about, so that it may not hold.
        asked = {name for each in pod.containers for name, amount in (*each.requests, *each.limits) if amount}
        pinned = pod.qos is Qos.GUARANTEED or any(map(is_device, asked))
        if pod.wish_resources:
            pinned = not asked.isdisjoint(pod.wish_resources)
        if not pinned:
            return None
    return DeviceRefusal(NUMA_POLICY, f"asks for {pod.wish}, and the NUMA zones of this node are not known")


def unfulfilled(layout: Layout, pod: PodShape, reach: Mapping[int, int], asked: Mapping[int, int]) -> str:
    """What the wish lacks, for a person; "" where it is fulfilled.

    ``reach``: by row, the zones that the pod's units may come from; ``asked``: how much the pod asks of each in all.
    """
    if pod.wish in LENIENT:
        return ""
    # Named resources come first: a wish that names a resource which nothing pins is not fulfilled, wherever its units
    # are.
    for resource in pod.wish_resources:
        loose = _loose(layout, pod, reach, resource)
        if loose:
            return f"asks for {pod.wish} for {resource}, but {loose}"
    rows = [row for row in reach if not pod.wish_resources or layout.resources[row] in pod.wish_resources]
    zones = 0
    for row in rows:
        zones |= reach[row]
    # Before the zones are compared: devices in a zone that the node does not publish have no bit in the mask below.
    if pod.claimed is not None and (apart := _out_of_sight(layout, pod, reach, pod.claimed)):
        return apart
    ids = ", ".join(str(layout.zones[zone].id) for zone in bits(zones))
    beside, fewest_zones = 0, 0
    if pod.claimed is not None:
        fewest_zones = pod.claimed.fewest
        beside = sum(1 << at for at, zone in enumerate(layout.zones) if zone.id in pod.claimed.zones)
    needed = _needed(layout, pod.wish, zones | beside, {row: asked.get(row, 0) for row in rows}, fewest_zones)
    if not needed:
        return ""
    names = " and ".join(layout.resources[row] for row in sorted(rows))
    if pod.claimed is None or not beside:
        return f"asks for {pod.wish}, which needs {names} {needed}; here they may come from zones {ids}"
    theirs = f"zone{'s' * (beside.bit_count() > 1)} {', '.join(map(str, pod.claimed.zones))}"
    others = f", and {names} from zone{'s' * (zones.bit_count() > 1)} {ids}" if names else ""
    all_names = f"{DEVICES}{' and ' * bool(names)}{names}"
    return f"asks for {pod.wish}, which needs {all_names} {needed}; here the devices come from {theirs}{others}"


def _out_of_sight(layout: Layout, pod: PodShape, reach: Mapping[int, int], claimed: DeviceZones) -> str:
    """Why it cannot be told whether devices of claims are where the kubelet gives the rest; "" where it can."""
    told = {zone.id for zone in layout.zones}
    if strange := [zone for zone in claimed.zones if zone not in told]:
        return f"asks for {pod.wish}, and {DEVICES} are in zone {strange[0]}, which the node does not publish"
    asks = any(name == CPU and amount for each in pod.containers for name, amount in each.requests)
    counts = (
        claimed.zones and asks and pod.qos is Qos.GUARANTEED and (not pod.wish_resources or CPU in pod.wish_resources)
    )
    if not counts or (row_of(layout.resources, CPU) in reach and _all_pinned(pod, CPU)):
        return ""
    return f"asks for {pod.wish} for {DEVICES} and {CPU}, but {UNPINNED_CPUS}"


def unkept(layout: Layout, pod: PodShape, observed: NumaPlacement) -> str:
    """The same of what a pod really got: what its wish lacks there; "" where it is kept, or too little is told.

    Of resources that nobody observed nothing is said.
    """
    place = {zone.id: at for at, zone in enumerate(layout.zones)}
    reach: dict[int, int] = {}
    asked: dict[int, int] = {}
    for use in observed.zones:
        for resource, amount in use.amounts.items():
            row = row_of(layout.resources, resource)
            if amount and row >= 0 and use.zone in place and resource not in layout.ignored:
                reach[row] = reach.get(row, 0) | 1 << place[use.zone]
                # Observed CPUs are in milli-CPU, and `unfulfilled` counts whole ones; rounded up, so that a rest still
                # needs its zone.
                asked[row] = asked.get(row, 0) + (-(-amount // 1000) if resource == CPU else amount)
    # A named resource that nobody observed must not count as loose: nothing is known about it.
    seen = tuple([name for name in pod.wish_resources if row_of(layout.resources, name) in reach])
    if not reach or (pod.wish_resources and not seen):
        return ""
    return unfulfilled(layout, msgspec.structs.replace(pod, wish_resources=seen), reach, asked)


def _needed(layout: Layout, wish: TopologyPolicy, zones: int, asked: Mapping[int, int], least: int) -> str:
    """Where all would have to come from; "" where they do. ``least``: how many zones something else needs."""
    count = zones.bit_count()
    if wish is TopologyPolicy.RESTRICTED:
        width = max((_width(layout, row, amount) for row, amount in asked.items()), default=least or count)
        width = max(width, least)
        return "" if count <= width else f"from {width} NUMA zone{'s' * (width > 1)} at most"
    sockets = {zone.socket for zone in layout.zones}
    # Without full state, one socket for all zones means that nobody told the sockets. One zone is asked for then.
    if wish is TopologyPolicy.SOCKET and (layout.exact or len(sockets) > 1):
        return "" if len({layout.zones[zone].socket for zone in bits(zones)}) <= 1 else "from one socket"
    return "" if count <= 1 else "from one NUMA zone"


def _width(layout: Layout, row: int, amount: int) -> int:
    if is_memory(layout.resources[row]):
        units = tuple([zone[row] for zone in layout.allocatable])
    else:
        units = installed(layout, row).units
    return fewest(units, amount, len(layout.zones))


def _loose(layout: Layout, pod: PodShape, reach: Mapping[int, int], resource: str) -> str:
    """Why the kubelet would not pin a resource that the pod asks for; "" where it does, or nothing is asked."""
    asks = any(
        name == resource and amount for each in pod.containers for name, amount in (*each.requests, *each.limits)
    )
    row = row_of(layout.resources, resource)
    if not asks or (row in reach and _all_pinned(pod, resource)) or resource.startswith(CLASS_RESOURCE):
        return ""
    # Zones report it nowhere, so no kubelet aligns it here: one of the node's extended resources, or a misspelled name.
    if row < 0 or all(zone[row] < 0 for zone in layout.capacity):
        return "no NUMA zone of the node has it"
    if resource in layout.ignored:
        return "the node lists it as a resource that is not aligned"
    if resource == CPU:
        return UNPINNED_CPUS
    if is_memory(resource):
        return "the kubelet pins memory only with the Static memory manager, for Guaranteed pods"
    return "its devices belong to no NUMA zone"


def _all_pinned(pod: PodShape, resource: str) -> bool:
    """Whether no container runs on the shared CPUs because it asks for a fraction."""
    if resource != CPU:
        return True
    return not any(name == CPU and amount % 1000 for each in pod.containers for name, amount in each.requests)

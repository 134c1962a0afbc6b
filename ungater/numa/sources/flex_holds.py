"""Who holds what of a machine, by its FlexTopo's status: the placement of every pod that it accounts for."""

import re
from collections import defaultdict
from collections.abc import Iterable

import msgspec

from engine.kubelet.machine import CPU, NumaPlacement, ZoneUse
from engine.quantity import bounded
from kube.topologies import FlexTopoStatus, Holder, MemoryAssignment
from ungater.numa.sources.checked import cpu_mask
from ungater.numa.sources.flex_hardware import FlexHardware

_DIGITS = re.compile(r"(\d+)")


class Columns(msgspec.Struct):
    """Amounts by resource, then zone."""

    capacity: dict[str, dict[int, int]] = msgspec.field(default_factory=lambda: defaultdict(dict))
    allocatable: dict[str, dict[int, int]] = msgspec.field(default_factory=lambda: defaultdict(dict))
    free: dict[str, dict[int, int]] = msgspec.field(default_factory=lambda: defaultdict(dict))

    def put(self, resource: str, zone: int, amounts: tuple[int, int, int]) -> None:
        """Capacity, allocatable and free of a resource in a zone."""
        self.capacity[resource][zone], self.allocatable[resource][zone], self.free[resource][zone] = amounts


def natural(text: str) -> tuple[tuple[int, int | str], ...]:
    """A key that orders numbers inside of texts as numbers."""
    return tuple((0, int(part)) if part.isdecimal() else (1, part) for part in _DIGITS.split(text) if part)


def placements_by_pod(status: FlexTopoStatus, hardware: FlexHardware, columns: Columns) -> dict[str, NumaPlacement]:
    """Pod -> what it holds. A pod that the agent could not name goes by its uid, which is no pod's key."""
    uses: dict[str, dict[int, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
    ids: dict[str, dict[int, dict[str, list[str]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))

    def note(pod: str, zone: int, resource: str, amount: int) -> None:
        amounts = uses[pod][zone]
        amounts[resource] = bounded(amounts.get(resource, 0) + amount)

    cpus: dict[str, int] = defaultdict(int)
    for assignment in (status.cpus.assignments if status.cpus else None) or ():
        cpus[_pod(assignment)] |= _mask(assignment.cpus)  # what later containers reuse counts once
    for pod, mask in cpus.items():
        for zone in hardware.zones:
            if here := (mask & hardware.cpus[zone]).bit_count():
                note(pod, zone, CPU, here * 1000)
    memory = (status.memory.assignments if status.memory else None) or ()
    for pod, zone, resource, size in _memory_uses(memory, columns):
        note(pod, zone, resource, size)
    for wire in status.devices or ():
        for device in wire.devices or ():
            if device.used_by is not None:
                # One that is near to several zones is charged in the first of them, so that it counts once.
                for zone in sorted(zone for zone in device.zones or () if zone in hardware.zones)[:1]:
                    note(_pod(device.used_by), zone, wire.resource, 1)
                    ids[_pod(device.used_by)][zone][wire.resource].append(device.id)
    return {
        pod: NumaPlacement(
            zones=tuple(
                ZoneUse(
                    zone=zone,
                    amounts=amounts,
                    devices={resource: tuple(sorted(own, key=natural)) for resource, own in ids[pod][zone].items()},
                )
                for zone, amounts in sorted(zones.items())
            )
        )
        for pod, zones in uses.items()
    }


def _memory_uses(assignments: Iterable[MemoryAssignment], columns: Columns) -> Iterable[tuple[str, int, str, int]]:
    """(pod, zone, type, bytes). The kubelet fills the zones of a group in their order, and records only the sum."""
    left = {
        (resource, zone): columns.allocatable[resource][zone] - free
        for resource, zones in columns.free.items()
        for zone, free in zones.items()
    }
    # Those of a single zone first: their share is certain, and groups fill what is left of it.
    for assignment in sorted(assignments, key=lambda each: len(each.zones)):
        rest = assignment.size
        for zone in sorted(assignment.zones):
            last = zone == max(assignment.zones)
            taken = rest if last else min(rest, max(0, left.get((assignment.type, zone), 0)))
            if taken:
                left[assignment.type, zone] = left.get((assignment.type, zone), 0) - taken
                yield _pod(assignment), zone, assignment.type, taken
            rest -= taken


def _pod(holder: Holder) -> str:
    return f"{holder.namespace}/{holder.pod}" if holder.namespace and holder.pod else holder.pod_uid


def _mask(text: str) -> int:
    try:
        return cpu_mask(text)
    except ValueError:
        return 0  # the CRD's own pattern lets none of these in

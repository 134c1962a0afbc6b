"""Which zones each pod's CPUs, memory and devices really come from: the observed placement.

A pod that holds nothing for itself (all in the shared pool) has none. A device of several zones counts in its lowest
one; a device without zones in none.
"""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from agent.kubelet.held import KubeletState, memory_by_zone
from agent.machine.hardware import Hardware
from engine.kubelet.machine import CPU, NumaPlacement, ZoneUse

MILLI = 1000


class _Part(NamedTuple):
    """Something of one resource in one zone, not counted yet."""

    zone: int
    resource: str


def placements(held: KubeletState, hardware: Hardware) -> dict[str, NumaPlacement]:
    """Pod uid -> where it sits."""
    amounts: dict[str, dict[_Part, int]] = {}
    ids: dict[str, dict[_Part, list[str]]] = {}
    # A pod's CPUs: an app container may have those of an init container, so they count once.
    cpus: dict[str, set[int]] = {}
    for owner, found in held.cpus.items():
        cpus.setdefault(owner.uid, set()).update(found)
    zone_of = hardware.zone_of_cpu
    for uid, theirs in cpus.items():
        # A CPU that went offline since is in the kubelet's file and in no zone.
        for zone, count in Counter(zone_of[cpu] for cpu in theirs & zone_of.keys()).items():
            amounts.setdefault(uid, {})[_Part(zone, CPU)] = count * MILLI
    for owner, kinds in memory_by_zone(held).items():
        of = amounts.setdefault(owner.uid, {})
        for part, size in ((_Part(zone, kind), size) for kind, zones in kinds.items() for zone, size in zones.items()):
            of[part] = of.get(part, 0) + size
    for resource, devices in held.devices.items():
        for name, device in devices.items():
            if device.owner and device.zones:
                part = _Part(device.zones[0], resource)
                ids.setdefault(device.owner.uid, {}).setdefault(part, []).append(name)
    for uid, parts in ids.items():
        amounts.setdefault(uid, {}).update({part: len(names) for part, names in parts.items()})
    return {uid: _placement(parts, ids.get(uid, {})) for uid, parts in sorted(amounts.items()) if parts}


def _placement(amounts: Mapping[_Part, int], ids: Mapping[_Part, list[str]]) -> NumaPlacement:
    return NumaPlacement(
        zones=tuple(
            ZoneUse(
                zone=zone,
                amounts={part.resource: amount for part, amount in sorted(amounts.items()) if part.zone == zone},
                devices={
                    part.resource: tuple(sorted(names)) for part, names in sorted(ids.items()) if part.zone == zone
                },
            )
            for zone in sorted({part.zone for part in amounts})
        )
    )

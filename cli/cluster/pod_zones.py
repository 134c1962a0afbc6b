"""What pods have inside of their nodes, zone by zone, as commands report it."""

from collections.abc import Sequence

import msgspec

from cli.cluster.room_report import listed
from engine.kubelet.machine import NumaPlacement


class PodZone(msgspec.Struct, frozen=True):
    """What a pod has in one NUMA zone; ``devices``: ids by resource, where known."""

    zone: int
    amounts: dict[str, str]
    devices: dict[str, tuple[str, ...]]


def pod_zones(placement: NumaPlacement) -> tuple[PodZone, ...]:
    """The zones of one pod."""
    return tuple(PodZone(use.zone, listed(use.amounts), dict(use.devices)) for use in placement.zones)


def zones_in_words(zones: Sequence[PodZone], devices: Sequence[str]) -> tuple[str, str]:
    """The amounts in each zone, and the devices there with those of claims, as cells of a table."""
    amounts = ((zone.zone, sorted(zone.amounts.items())) for zone in zones)
    told = "; ".join(f"{zone}: {', '.join(f'{amount} {name}' for name, amount in each)}" for zone, each in amounts)
    known = [name for zone in zones for ids in zone.devices.values() for name in ids]
    return told, ", ".join([*known, *devices])

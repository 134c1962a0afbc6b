"""What a node reaches: its pools and their devices in the order in which they are looked at."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.claims.features import Features
from engine.claims.model import Device, DeviceId, DeviceNode, ResourceSlice
from engine.claims.pools import Inventory, Pool


@dataclass(frozen=True, eq=False, slots=True)
class Reachable:
    """A device that a node reaches, where it is."""

    device: Device
    slice: ResourceSlice
    pool: Pool
    device_id: DeviceId

    def __str__(self) -> str:
        return "/".join(self.device_id)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Hardware:
    """The devices of a node; ``by_pool`` has for each pool the indexes of its devices in ``candidates``."""

    node: DeviceNode
    features: Features
    candidates: Sequence[Reachable]
    by_pool: Sequence[tuple[Pool, range]]

    @classmethod
    def of(cls, inventory: Inventory, node: DeviceNode, features: Features) -> "Hardware":
        """Of all slices of a cluster, what this node reaches."""
        candidates: list[Reachable] = []
        by_pool: list[tuple[Pool, range]] = []
        for pool in inventory.pools(node, features):
            start = len(candidates)
            candidates += [
                Reachable(device, one, pool, (*pool.pool_id, device.name))
                for one in pool.slices
                for device in one.devices
            ]
            by_pool.append((pool, range(start, len(candidates))))
        return cls(node, features, candidates, by_pool)

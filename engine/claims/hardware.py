"""What a node reaches: its pools and their devices in the order in which they are looked at."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.claims.features import Features
from engine.claims.model import Device, DeviceId, DeviceNode, PoolId, Reach, ResourceSlice
from engine.claims.pools import Inventory, Pool, reaches


@dataclass(frozen=True, eq=False, slots=True)
class Reachable:
    """A device that a node reaches, where it is."""

    device: Device
    slice: ResourceSlice
    pool: Pool
    device_id: DeviceId

    @property
    def reach(self) -> Reach:
        """From where it is reached."""
        return self.device.reach if self.slice.per_device else self.slice.reach

    def __str__(self) -> str:
        return "/".join(self.device_id)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Hardware:
    """The devices of a node; ``by_pool`` has for each pool the indexes of its devices in ``candidates``.

    ``common``: those that another node may give away too, or that take counters which devices of others take.
    """

    node: DeviceNode
    features: Features
    candidates: Sequence[Reachable]
    by_pool: Sequence[tuple[Pool, range]]
    common: frozenset[DeviceId] = frozenset()

    def has(self, pool_id: PoolId) -> bool:
        """Whether the node reaches a pool."""
        return any(pool.pool_id == pool_id for pool, _ in self.by_pool)

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
        common = [_common(pool, [candidates[index] for index in indexes], node) for pool, indexes in by_pool]
        return cls(node, features, candidates, by_pool, frozenset().union(*common))


def _common(pool: Pool, devices: Sequence[Reachable], node: DeviceNode) -> set[DeviceId]:
    """The devices of a pool that are not one node's alone."""
    others = [device for one in pool.elsewhere for device in one.devices]
    others += [one.device for one in devices if one.slice.per_device and not reaches(one.device.reach, node)]
    counted = {use.counter_set for device in others for use in device.uses}
    return {
        one.device_id
        for one in devices
        if not one.reach.only or any(use.counter_set in counted for use in one.device.uses)
    }

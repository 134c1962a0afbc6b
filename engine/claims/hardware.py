"""What a node reaches: its pools and their devices in the order in which they are looked at."""

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from itertools import compress

import msgspec

from engine.claims.features import Features
from engine.claims.model import Device, DeviceId, DeviceNode, PoolId, Reach
from engine.claims.pools import Inventory, Pool, reaches
from engine.claims.slices import ResourceSlice


class Reachable(msgspec.Struct, frozen=True, eq=False):
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


class NodeHardware(msgspec.Struct, frozen=True, eq=False, dict=True, weakref=True):
    """The devices of a node; ``by_pool`` has for each pool the indexes of its devices in ``candidates``.

    ``common``: those that another node may give away too, or that take counters which devices of others take.
    """

    node: DeviceNode
    features: Features
    by_pool: Sequence[tuple[Pool, range]]
    common: frozenset[DeviceId] = frozenset()

    @cached_property
    def candidates(self) -> Sequence[Reachable]:
        """The devices; made when somebody searches them, as most nodes look like another that was searched."""
        # In the order of ``by_pool``, whose ranges are the indexes of this list.
        return [one for pool, _ in self.by_pool for one in _reachable(pool)]

    @property
    def size(self) -> int:
        """How many devices there are."""
        return self.by_pool[-1][1].stop if self.by_pool else 0

    def has(self, pool_id: PoolId) -> bool:
        """Whether the node reaches a pool."""
        return any(pool.pool_id == pool_id for pool, _ in self.by_pool)

    def indexes(self, devices: Collection[DeviceId]) -> list[int]:
        """Where some devices are in ``candidates``, in that order."""
        found: list[int] = []
        for pool, indexes in self.by_pool if devices else ():
            driver, name = pool.pool_id
            # One look-up for each device, without making ``candidates``: states are asked of many nodes that nobody
            # searches.
            here = [(driver, name, device.name) in devices for one in pool.slices for device in one.devices]
            found += compress(indexes, here)
        return found

    @classmethod
    def for_node(cls, inventory: Inventory, node: DeviceNode, features: Features) -> "NodeHardware":
        """Of all slices of a cluster, what this node reaches."""
        by_pool: list[tuple[Pool, range]] = []
        common: set[DeviceId] = set()
        start = 0
        for pool in inventory.pools(node, features):
            end = start + sum([len(one.devices) for one in pool.slices])
            by_pool.append((pool, range(start, end)))
            start = end
            # Everything else is of this node alone, as nearly all devices are, and is not looked at one by one.
            if pool.elsewhere or any(one.per_device or not one.reach.only for one in pool.slices):
                common |= _shared_devices(pool, list(_reachable(pool)), node)
        return cls(node, features, by_pool, frozenset(common))


def _reachable(pool: Pool) -> Iterator[Reachable]:
    return (Reachable(device, one, pool, (*pool.pool_id, device.name)) for one in pool.slices for device in one.devices)


def _shared_devices(pool: Pool, devices: Sequence[Reachable], node: DeviceNode) -> set[DeviceId]:
    """The devices of a pool that are not one node's alone."""
    others = [device for one in pool.elsewhere for device in one.devices]
    others += [one.device for one in devices if one.slice.per_device and not reaches(one.device.reach, node)]
    # A device may be this node's alone and still lose its counters to another node's.
    counted = {use.counter_set for device in others for use in device.uses}
    return {
        one.device_id
        for one in devices
        if not one.reach.only or any(use.counter_set in counted for use in one.device.uses)
    }

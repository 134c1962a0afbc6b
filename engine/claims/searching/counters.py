"""Counters and compatibility groups of pools while devices are being chosen.

Devices of one piece of hardware take counters from the pool's counter sets; those in use count, on whatever node.
"""

import msgspec

from engine.claims.in_use import InUse
from engine.claims.model import CounterUse, Device, PoolId
from engine.claims.pools import Pool

Groups = frozenset[str] | None  # in common to all devices of a counter set so far; None: there is none yet


class PoolCounters(msgspec.Struct):
    """What is left of a pool's counters, in billionths. Nothing can be taken where one is overdrawn."""

    left: dict[tuple[str, str], int]
    overdrawn: bool
    groups: dict[str, Groups]

    @classmethod
    def from_pool(cls, pool: Pool, in_use: InUse) -> "PoolCounters":
        """What devices in use leave."""
        left = {
            (name, counter): amount
            for name, counters in pool.counter_sets.items()
            for counter, amount in counters.items()
        }
        groups: dict[str, Groups] = {}
        # Devices of other nodes too: partitions of one piece of hardware draw on the same counters wherever they are
        # used.
        for one in (*pool.slices, *pool.elsewhere):
            for device in one.devices:
                # A shared device counts once, however many shares there are.
                if not device.uses or not in_use.has((*pool.pool_id, device.name)):
                    continue
                for use in device.uses:
                    groups[use.counter_set] = _in_common(groups.get(use.counter_set), use.groups)
                    for counter, amount in use.counters.items():
                        left[use.counter_set, counter] -= amount
        return cls(left, any(amount < 0 for amount in left.values()), groups)


def _in_common(before: Groups, groups: frozenset[str]) -> frozenset[str]:
    """Devices without groups, and what contradicts itself already, change nothing."""
    if before is None:
        return groups
    return before & groups if before and groups else before


class Counters(msgspec.Struct):
    """The counters of all pools that the search has come to."""

    in_use: InUse
    with_groups: bool
    _pools: dict[PoolId, PoolCounters] = msgspec.field(default_factory=dict)

    def consume_counters(self, pool: Pool, device: Device) -> dict[str, Groups] | None:
        """Take a device's counters; returns what `undo_take` needs, None where there are not enough."""
        counters = self._pools.get(pool.pool_id)
        if counters is None:
            counters = self._pools[pool.pool_id] = PoolCounters.from_pool(pool, self.in_use)
        before: dict[str, Groups] = {}
        if self.with_groups:
            before = {use.counter_set: counters.groups.get(use.counter_set) for use in device.uses}
            if not all(_admitted(before[use.counter_set], use.groups) for use in device.uses):
                return None
        # A driver may have lowered a counter under devices in use. Kubernetes then gives out none of the pool's
        # counters.
        if counters.overdrawn:
            return None
        _charge(counters, device.uses, 1)
        # A device may name one counter twice, so all are taken first and looked at together.
        if any(counters.left[use.counter_set, name] < 0 for use in device.uses for name in use.counters):
            _charge(counters, device.uses, -1)
            return None
        # After the counters: a device that does not fit must not narrow the groups for others.
        for use in device.uses if self.with_groups else ():
            counters.groups[use.counter_set] = _in_common(counters.groups.get(use.counter_set), use.groups)
        return before

    def undo_take(self, pool: Pool, device: Device, before: dict[str, Groups]) -> None:
        """Give back what was taken last."""
        counters = self._pools[pool.pool_id]
        _charge(counters, device.uses, -1)
        counters.groups.update(before)


def _admitted(before: Groups, groups: frozenset[str]) -> bool:
    """Whether a device may be used beside the others of a counter set: all without groups, or with one in common."""
    return before is None or (not before and not groups) or bool(before & groups)


def _charge(counters: PoolCounters, uses: tuple[CounterUse, ...], sign: int) -> None:
    for use in uses:
        for name, amount in use.counters.items():
            counters.left[use.counter_set, name] -= sign * amount

"""The devices that drivers publish (ResourceSlices), and which claims hold them: what of that one host shows.

Rules
- Slices are read when somebody looks at a host that they name, not before: a large cluster has tens of thousands of
  devices. Those that name no host (by labels, of all) are read as they come, as every look needs them.
- What of one slice, rule or claim cannot be read counts as not there, and is told of the hosts that it names.
- A device is held while any claim's allocation names it. One is *blocked* that nobody has, where those who have others
  of its pool took its counters: a partition of a GPU of which another one is in use.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from engine.claims.errors import ObjectError
from engine.claims.features import DEFAULT
from engine.claims.in_use import InUse, Use
from engine.claims.model import Device, DeviceId, DeviceNode, PoolId
from engine.claims.pools import Inventory, Pool
from engine.claims.read.slices import read_slice
from engine.claims.searching.counters import PoolCounters
from engine.claims.slices import ResourceSlice
from engine.devices.holders import ClaimHolders
from engine.devices.taints import TaintRule, TaintRules

Spec = Mapping[str, Any]
ANY_HOST: Final = ""  # of slices that name none
_REPELS: Final = frozenset({"NoSchedule", "NoExecute"})


class DeviceAvailability(StrEnum):
    """Whether somebody may have a device. ``GONE``: somebody has it, and no slice has it any more."""

    FREE = "free"
    HELD = "held"
    SHARED = "shared"
    BLOCKED = "blocked"
    GONE = "gone"


class ClaimedDevice(msgspec.Struct, frozen=True):
    """One device as a host sees it. ``claims`` have it (``namespace/name``); ``taint`` keeps others away."""

    device: DeviceId
    zones: tuple[int, ...]
    state: DeviceAvailability
    claims: tuple[str, ...] = ()
    taint: str = ""


class _Slot(msgspec.Struct, frozen=True):
    """Where a slice is filed, and what is known of it."""

    host: str
    pool: PoolId
    spec: Spec
    read: ResourceSlice | None = None  # of one that names no host


class ClaimDevices:
    """See the module's rules."""

    def __init__(self) -> None:
        self.holders = ClaimHolders()
        self._rules = TaintRules()
        self._slices: dict[str, _Slot] = {}
        self._of_host: dict[str, set[str]] = {}
        self._of_pool: dict[PoolId, set[str]] = {}

    # --- facts -------------------------------------------------------------------------------------------------------

    def set_slice(self, name: str, spec: Spec) -> set[str]:
        """A ResourceSlice is there as it is published, and none of that name before it; the hosts that it names.

        Raises ObjectError for one that names no host and cannot be read.
        """
        host, pool = spec.get("nodeName") or ANY_HOST, spec.get("pool") or {}
        # A slice that names no host is needed by every look. One that cannot be read raises here, before anything is
        # filed.
        read = None if host else read_slice({"metadata": {"name": name}, "spec": spec})
        slot = self._slices[name] = _Slot(host, (str(spec.get("driver")), str(pool.get("name"))), spec, read)
        self._of_host.setdefault(slot.host, set()).add(name)
        self._of_pool.setdefault(slot.pool, set()).add(name)
        return {slot.host} - {ANY_HOST}

    def remove_slice(self, name: str) -> set[str]:
        """A ResourceSlice is gone; the hosts that it named."""
        before = self._slices.pop(name, None)
        if before is None:
            return set()
        self._of_host[before.host].discard(name)
        self._of_pool[before.pool].discard(name)
        # Empty sets go: a driver that renames its pools would fill the tables otherwise.
        if not self._of_pool[before.pool]:
            del self._of_pool[before.pool]
        if not self._of_host[before.host]:
            del self._of_host[before.host]
        return {before.host} - {ANY_HOST}

    def set_rule(self, name: str, rule: TaintRule | None) -> None:
        """A DeviceTaintRule is there, or gone."""
        self._rules.put(name, rule)

    def set_claim(self, key: str, uses: tuple[Use, ...], pods: frozenset[str]) -> set[str]:
        """What a claim has, () for one that has nothing or is gone; the hosts whose devices it has, or had."""
        pools = self.holders.set(key, uses, pods)
        return {self._slices[name].host for pool in pools for name in self._of_pool.get(pool, ())} - {ANY_HOST}

    # --- reading -----------------------------------------------------------------------------------------------------

    def of_host(
        self, node: DeviceNode, pods: Iterable[str], roots: Mapping[str, int]
    ) -> tuple[list[ClaimedDevice], list[str]]:
        """The devices that a host reaches and those that its pods have, in the scheduler's order; what is wrong.

        ``roots``: the zones of its PCIe roots, as far as they are known.
        """
        # The slices that may be this host's, and all others of their pools.
        here = self._of_host.get(node.name, set()) | self._of_host.get(ANY_HOST, set())
        # Whether a pool is complete, and its shared counters, is only known from all its slices.
        names = here.union(*(self._of_pool[self._slices[name].pool] for name in here))
        inventory, problems = Inventory.from_slices(()), list[str]()
        # In the order of names, so that the same slices list the same devices and problems.
        for name in sorted(names):
            slot = self._slices[name]
            try:
                one = slot.read or read_slice({"metadata": {"name": name}, "spec": slot.spec})
            except ObjectError as error:
                problems.append(str(error))
                continue
            inventory.add(self._rules.tainted(one))
        found: list[ClaimedDevice] = []
        for pool in inventory.pools(node, DEFAULT):
            if pool.incomplete:
                problems.append(f"pool {pool.name}: not all its ResourceSlices are there")
            elif pool.invalid:
                problems.append(f"pool {pool.name}: {pool.invalid}")
            found += self._of_known(pool, roots)
        there = {one.device for one in found}
        for key in pods:
            for claim in self.holders.claims_of(key):
                lost = [use.device for use in self.holders.uses_of(claim) if not use.admin and use.device not in there]
                found += [ClaimedDevice(device, (), DeviceAvailability.GONE, (claim,)) for device in lost]
                there.update(lost)
        return found, problems

    def _of_known(self, pool: Pool, roots: Mapping[str, int]) -> Iterator[ClaimedDevice]:
        claims: dict[DeviceId, list[str]] = {}
        # A claim with adminAccess takes nothing from others, so it holds no device here.
        uses = [(claim, use) for claim, use in self.holders.of_pool(pool.pool_id) if not use.admin]
        for claim, use in uses:
            claims.setdefault(use.device, []).append(claim)
        in_use = InUse.from_uses(use for _, use in uses)
        counters = PoolCounters.from_pool(pool, in_use)
        for device in (device for one in pool.slices for device in one.devices):
            found = (*pool.pool_id, device.name)
            state = _state(device, found, in_use, counters)
            holders = tuple(sorted(claims.get(found, ())))
            repelling = (one for one in device.taints if one.effect in _REPELS)
            taint = next((f"{one.key}{'=' if one.value else ''}{one.value}:{one.effect}" for one in repelling), "")
            yield ClaimedDevice(found, device.numa_zones(roots), state, holders, taint)


def _state(device: Device, found: DeviceId, in_use: InUse, counters: PoolCounters) -> DeviceAvailability:
    # Before HELD: a shared device is in use as well.
    if in_use.is_shared(found):
        return DeviceAvailability.SHARED
    if in_use.has(found):
        return DeviceAvailability.HELD
    lacks = any(counters.left[use.counter_set, name] < n for use in device.uses for name, n in use.counters.items())
    return DeviceAvailability.BLOCKED if lacks or (device.uses and counters.overdrawn) else DeviceAvailability.FREE

"""Devices in use, as the scheduler keeps account of them (dynamicresources, allocateddevices.go)."""

from collections.abc import Iterable, Mapping

import msgspec

from engine.claims.model import Amounts, DeviceId


class Use(msgspec.Struct, frozen=True):
    """One device of an allocation: taken, shared (``share`` names the share), or only looked at (``admin``)."""

    device: DeviceId
    share: str = ""
    consumed: Amounts | None = None  # capacities of a share, in billionths
    admin: bool = False


class InUse(msgspec.Struct, frozen=True):
    """Devices that are taken, and what is taken of shared ones (an entry for every shared device)."""

    taken: frozenset[DeviceId] = frozenset()
    shared: Mapping[DeviceId, Amounts] | None = None

    @classmethod
    def from_uses(cls, uses: Iterable[Use], *, shares: bool = True) -> "InUse":
        """What these uses amount to; without the feature of shares, a shared device is taken."""
        return cls().with_uses(uses, shares=shares)

    def with_uses(self, uses: Iterable[Use], *, shares: bool = True) -> "InUse":
        """The same and these."""
        # Admin access takes nothing from anybody.
        held = [use for use in uses if not use.admin]
        taken = self.taken.union([use.device for use in held if not (use.share and shares)])
        # A deep enough copy: the amounts of the state before must not change with those of the new one.
        shared = {device: dict(amounts) for device, amounts in self.shared.items()} if self.shared else {}
        for use in [use for use in held if use.share] if shares else ():
            # Also for a share that takes nothing: the device is in use then, and pays its counters.
            amounts = shared.setdefault(use.device, {})
            for name, amount in (use.consumed or {}).items():
                amounts[name] = amounts.get(name, 0) + amount
        return InUse(taken, shared)

    def has(self, device: DeviceId) -> bool:
        """Whether a device is taken or shared: then its counters are used."""
        return device in self.taken or self.is_shared(device)

    def is_shared(self, device: DeviceId) -> bool:
        """Whether anybody has a share of it."""
        return self.shared is not None and device in self.shared

    def consumed(self, device: DeviceId) -> Amounts:
        """What is taken of its capacities."""
        return (self.shared or {}).get(device, {})

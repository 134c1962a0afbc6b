"""Capacities: what a request takes of a device, and whether it may (consumable_capacity.go of the allocator).

Requests below the least amount are raised to it, others up to the next step or valid value.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from engine.claims import quantities
from engine.claims.model import Amounts, CapacityPolicy, Device, DeviceCapacity, Range
from engine.claims.quantities import LARGEST_INT, NANO, Quantity

_MILLI: Final = NANO // 1000


class CapacityError(ValueError):
    """An amount that cannot be represented, or is negative: it stops the pod instead of one device."""


class Consumption(msgspec.Struct, frozen=True):
    """What a request takes of each capacity of a device; None where the device cannot give it at all."""

    amounts: Mapping[str, Quantity] | None

    def fits_beside(self, device: Device, used: Amounts, taking: Amounts) -> bool:
        """Whether there is room beside what is used, and what the search takes already."""
        if self.amounts is None:
            return False
        if not used and not taking:
            return True
        return all(
            amount.nanos + used.get(name, 0) + taking.get(name, 0) <= device.capacity[name].value.nanos
            for name, amount in self.amounts.items()
        )


def consumption(device: Device, wanted: Mapping[str, Quantity] | None, *, fractional: bool) -> Consumption:
    """What a request for these amounts takes of an idle device.

    Raises:
        CapacityError: an amount cannot be represented, or is negative.
    """
    # Kubernetes compares the names as they are published, also on devices that are not shared.
    if wanted and any(name not in device.capacity for name in wanted):
        return Consumption(None)
    amounts: dict[str, Quantity] = {}
    for name, capacity in device.capacity.items():
        amounts[name] = _consumed(capacity, wanted.get(name) if wanted else None, fractional=fractional)
        if amounts[name].nanos < 0:
            raise CapacityError(f'capacity "{name}": capacity value is negative')
    # After all amounts are known: one that cannot be represented stops the pod, even if another excludes the device.
    for name, capacity in device.capacity.items():
        if _violates(amounts[name], capacity.policy, fractional=fractional):
            return Consumption(None)
        if amounts[name].nanos > capacity.value.nanos:
            return Consumption(None)
    return Consumption(amounts)


def _consumed(capacity: DeviceCapacity, wanted: Quantity | None, *, fractional: bool) -> Quantity:
    policy = capacity.policy
    if wanted is None:
        # A request that names no amount takes the default, or the whole capacity: then nobody else gets a share.
        return policy.default if policy is not None and policy.default is not None else capacity.value
    if policy is None:
        return wanted
    if policy.range is not None and policy.range.least is not None:
        return _raised(wanted, policy.range, policy.range.least, fractional=fractional)
    # An amount above all valid values stays as it is; `_violates` refuses it.
    return next((value for value in policy.values if wanted.nanos <= value.nanos), wanted)


def _raised(wanted: Quantity, limits: Range, least: Quantity, *, fractional: bool) -> Quantity:
    if wanted.nanos < least.nanos:
        return least
    if limits.step is None:
        return wanted
    # Only where the whole range can be said in thousandths. Otherwise steps would be counted from rounded amounts.
    if _in_milli(limits, fractional=fractional):
        if not _is_milli(wanted):
            raise CapacityError(f"capacity request cannot be represented: {wanted} is no milli value")
        amount = _up(wanted.nanos // _MILLI, least.nanos // _MILLI, limits.step.nanos // _MILLI)
        return Quantity(amount * _MILLI, 0 if amount % 1000 == 0 else -3, limits.step.written)
    # Before the rounding below: Kubernetes counts in 64 bits and cannot represent it.
    if wanted.nanos > LARGEST_INT * NANO:
        raise CapacityError(f"capacity request cannot be represented: {wanted} exceeds 2^63 - 1")
    amount = _up(_units(wanted), _units(least), _units(limits.step))
    return quantities.whole_quantity(amount, limits.step.written)


def _up(wanted: int, least: int, step: int) -> int:
    """The next amount that is so many steps above the least."""
    amount = least + step * -(-(wanted - least) // step)
    if amount > LARGEST_INT:
        raise CapacityError("capacity request cannot be represented: the next step passes 2^63 - 1")
    return amount


def _units(quantity: Quantity) -> int:
    return -(-quantity.nanos // NANO)


def _is_milli(quantity: Quantity) -> bool:
    return quantity.nanos % _MILLI == 0 and abs(quantity.nanos // _MILLI) <= LARGEST_INT


def _in_milli(limits: Range, *, fractional: bool) -> bool:
    """Whether a range counts in thousandths: where it may, and all of it can be said in them."""
    return fractional and all(one is None or _is_milli(one) for one in (limits.least, limits.most, limits.step))


def _violates(amount: Quantity, policy: CapacityPolicy | None, *, fractional: bool) -> bool:
    if policy is None or (policy.default is not None and amount.nanos == policy.default.nanos):
        return False
    limits = policy.range
    if limits is None:
        return bool(policy.values) and all(amount.nanos != value.nanos for value in policy.values)
    if limits.most is not None and amount.nanos > limits.most.nanos:
        return True
    if limits.step is None or limits.least is None:
        return False
    if _in_milli(limits, fractional=fractional):
        return not _is_milli(amount) or (amount.nanos - limits.least.nanos) % limits.step.nanos != 0
    return (_units(amount) - _units(limits.least)) % _units(limits.step) != 0

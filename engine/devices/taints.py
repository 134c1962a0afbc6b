"""DeviceTaintRules: taints that an administrator puts on devices, as if their driver had published them.

After the tracker of ResourceSlices in ``k8s.io/dynamic-resource-allocation`` of Kubernetes 1.37.
"""

import msgspec
from msgspec.structs import replace

from engine.claims.model import Device, DeviceTaint
from engine.claims.read.fields import Fields
from engine.claims.slices import ResourceSlice


class TaintRule(msgspec.Struct, frozen=True):
    """A taint for the devices of a driver, a pool and a name, as far as these are said (None: any)."""

    driver: str | None
    pool: str | None
    device: str | None
    taint: DeviceTaint

    def selects(self, one: ResourceSlice) -> bool:
        """Whether it is for devices of a slice, if their names are right."""
        return self.driver in {None, one.driver} and self.pool in {None, one.pool}

    def taints(self, device: Device) -> bool:
        """Whether it is for a device of a slice that it selects."""
        return self.device in {None, device.name}


def read_rule(given: object) -> TaintRule | None:
    """A DeviceTaintRule as it is in JSON; None for one that selects nothing.

    Raises:
        ObjectError: it cannot be used; the error names the field.
    """
    whole = Fields.of_object("DeviceTaintRule", given)
    spec = whole.fields_of("spec") or Fields(whole.what, "spec", {})
    which, taint = spec.fields_of("deviceSelector"), spec.fields_of("taint")
    if which is None or taint is None:
        return None
    driver, pool, device = (which.text(name) or None for name in ("driver", "pool", "device"))
    made = DeviceTaint(taint.text("key"), taint.text("value"), taint.text("effect"))
    return TaintRule(driver, pool, device, made)


class TaintRules:
    """All rules, by their names."""

    def __init__(self) -> None:
        self._rules: dict[str, TaintRule] = {}

    @property
    def all(self) -> dict[str, TaintRule]:
        """The rules by their names."""
        return dict(self._rules)

    def put(self, name: str, rule: TaintRule | None) -> TaintRule | None:
        """A rule came, changed or went; returns what it was."""
        before = self._rules.pop(name, None)
        if rule is not None:
            self._rules[name] = rule
        return before

    def tainted(self, one: ResourceSlice) -> ResourceSlice:
        """A slice with the taints of all rules."""
        # By name: the order of taints is a part of `Device.form`. In another order equal nodes would not be counted
        # together.
        rules = [rule for _, rule in sorted(self._rules.items()) if rule.selects(one)]
        if not any(rule.taints(device) for rule in rules for device in one.devices):
            return one
        return replace(one, devices=tuple([_with_taints(device, rules) for device in one.devices]))


def _with_taints(device: Device, rules: list[TaintRule]) -> Device:
    more = [rule.taint for rule in rules if rule.taints(device)]
    return replace(device, taints=(*device.taints, *more)) if more else device

"""All that is known of devices, as plain data: what one ledger knows, another can be told."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from engine.claims.in_use import Use
from engine.claims.model import DeviceClass
from engine.claims.slices import ResourceSlice
from engine.devices.taints import TaintRule


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """By their names: slices as they were published, taint rules, classes; by claim what it has, and whose it is."""

    slices: Mapping[str, ResourceSlice] = field(default_factory=dict)
    rules: Mapping[str, TaintRule] = field(default_factory=dict)
    classes: Mapping[str, DeviceClass] = field(default_factory=dict)
    uses: Mapping[str, tuple[Use, ...]] = field(default_factory=dict)
    pods: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def unused(self) -> "DeviceFacts":
        """The same, and no claim has any device."""
        return replace(self, uses={}, pods={})

"""All that is known of devices, as plain data: what one ledger knows, another can be told."""

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from engine.claims.in_use import Use
from engine.claims.model import DeviceClass
from engine.claims.slices import ResourceSlice
from engine.devices.taints import TaintRule


class DeviceFacts(msgspec.Struct, frozen=True):
    """By their names: slices as they were published, taint rules, classes; by claim what it has, and whose it is."""

    slices: Mapping[str, ResourceSlice] = msgspec.field(default_factory=dict)
    rules: Mapping[str, TaintRule] = msgspec.field(default_factory=dict)
    classes: Mapping[str, DeviceClass] = msgspec.field(default_factory=dict)
    uses: Mapping[str, tuple[Use, ...]] = msgspec.field(default_factory=dict)
    pods: Mapping[str, frozenset[str]] = msgspec.field(default_factory=dict)

    @property
    def unused(self) -> "DeviceFacts":
        """The same, and no claim has any device."""
        return replace(self, uses={}, pods={})

"""Feature gates that decide what devices are given out, and the defaults of Kubernetes 1.37."""

from collections.abc import Collection
from typing import Final

import msgspec

_GATES: Final = {
    "admin_access": ("DRAAdminAccess",),
    "binding_conditions": ("DRADeviceBindingConditions", "DRAResourceClaimDeviceStatus"),
    "compatibility_groups": ("DRADeviceCompatibilityGroups",),
    "consumable_capacity": ("DRAConsumableCapacity",),
    "derived_attributes": ("DRADerivedAttributes",),
    "fractional_capacity": ("DRAFractionalCapacityRange",),
    "list_attributes": ("DRAListTypeAttributes",),
    "node_operations": ("DRAOptionalNodeOperations",),
    "partitionable": ("DRAPartitionableDevices",),
    "prioritized_list": ("DRAPrioritizedList",),
    "taints": ("DRADeviceTaints",),
}


class Features(msgspec.Struct, frozen=True):
    """What is on."""

    admin_access: bool = True
    binding_conditions: bool = True
    compatibility_groups: bool = False
    consumable_capacity: bool = True
    derived_attributes: bool = False
    fractional_capacity: bool = True
    list_attributes: bool = False
    node_operations: bool = False
    partitionable: bool = True
    prioritized_list: bool = True
    taints: bool = True

    @classmethod
    def from_gates(cls, gates: Collection[str]) -> "Features":
        """The features of these gates; all others are off."""
        # A feature of two gates is on only with both.
        return cls(**{name: all(gate in gates for gate in needed) for name, needed in _GATES.items()})

    @property
    def experimental(self) -> bool:
        """Whether Kubernetes' variant for gates that are off by default allocates: it looks at more of a slice."""
        return self.compatibility_groups or self.derived_attributes or self.list_attributes or self.node_operations


DEFAULT: Final = Features()

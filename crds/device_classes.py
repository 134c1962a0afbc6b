"""DeviceClasses as queues count them: which of them count together, as one resource of a ClusterQueue.

The same as ``resources.deviceClassMappings`` of Kueue's Configuration, with its bounds; ``sources`` (quota of counters
and capacities) is not among it. Source: Kueue's ``validateDeviceClassMappings``.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.alias_generators import to_camel

MOST_MAPPINGS: Final = 16
MOST_CLASSES: Final = 8

_LABEL: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_OF_NODES: Final = ("cpu", "memory", "pods", "storage", "ephemeral-storage")  # their amounts are not numbers of devices


class DeviceClassMapping(BaseModel):
    """Devices of some DeviceClasses, and what they count as."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, validate_by_name=True, validate_by_alias=True
    )

    name: Annotated[
        str,
        Field(
            min_length=1,
            max_length=253,
            pattern=rf"^({_LABEL}(\.{_LABEL})*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?$",
        ),
    ]
    device_class_names: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=253, pattern=rf"^{_LABEL}(\.{_LABEL})*$")], ...],
        Field(min_length=1, max_length=MOST_CLASSES),
    ]

    @field_validator("name")
    @classmethod
    def _counts_devices(cls, name: str) -> str:
        if is_of_nodes(name):
            raise ValueError(f"expected a name that no node has something of, {name} is measured")
        return name


def is_of_nodes(name: str) -> bool:
    """Whether a resource without a domain is one that Kubernetes itself knows, as requests of containers."""
    return name in _OF_NODES or name.startswith("hugepages-")


def ambiguous(mappings: Iterable[DeviceClassMapping]) -> str | None:
    """Which name there is twice, or which class: it would count in two ways. None where there is none."""
    found = tuple(mappings)
    twice = [name for name, count in Counter(one.name for one in found).items() if count > 1]
    if twice:
        return f"expected each name once, {twice[0]} is there twice"
    classes = Counter(name for one in found for name in one.device_class_names)
    twice = [name for name, count in classes.items() if count > 1]
    return f"expected each DeviceClass once, {twice[0]} is there twice" if twice else None

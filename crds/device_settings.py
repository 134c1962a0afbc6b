"""Settings about devices: annotations that plugins read, and DeviceClasses that queues count together.

The mappings are those of ``resources.deviceClassMappings`` of Kueue's Configuration, with its bounds; ``sources``
(quota of counters and capacities) is not among them. Source: Kueue's ``validateDeviceClassMappings``.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.alias_generators import to_camel

from crds.names import is_of_nodes

MOST_MAPPINGS: Final = 16
MOST_CLASSES: Final = 8

_LABEL: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
RESOURCE_NAME: Final = r"^[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?$"
MAPPED_NAME: Final = rf"^({_LABEL}(\.{_LABEL})*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?$"
CLASS_NAME: Final = rf"^{_LABEL}(\.{_LABEL})*$"


class DeviceAnnotation(BaseModel):
    """One annotation that a device plugin reads."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, validate_by_name=True, validate_by_alias=True
    )

    resource: Annotated[str, Field(min_length=1, max_length=317)]
    key: Annotated[str, Field(min_length=1, max_length=317, pattern=RESOURCE_NAME)]
    value: Literal["index", "id"] = "index"


class DeviceClassMapping(BaseModel):
    """Devices of some DeviceClasses, and what they count as."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, validate_by_name=True, validate_by_alias=True
    )

    name: Annotated[str, Field(min_length=1, max_length=253, pattern=MAPPED_NAME)]
    device_class_names: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=253, pattern=CLASS_NAME)], ...],
        Field(min_length=1, max_length=MOST_CLASSES),
    ]

    @field_validator("name")
    @classmethod
    def _counts_devices(cls, name: str) -> str:
        if is_of_nodes(name):
            raise ValueError(f"{name} is a resource that nodes have themselves: expected another name")
        return name


def ambiguous(mappings: Iterable[DeviceClassMapping]) -> str | None:
    """Which name there is twice, or which class: it would count in two ways. None where there is none."""
    found = tuple(mappings)
    twice = [name for name, count in Counter(one.name for one in found).items() if count > 1]
    if twice:
        return f"expected each name once, {twice[0]} is there twice"
    # A class in two mappings would be charged to two resources of a queue.
    classes = Counter(name for one in found for name in one.device_class_names)
    twice = [name for name, count in classes.items() if count > 1]
    return f"expected each DeviceClass once, {twice[0]} is there twice" if twice else None

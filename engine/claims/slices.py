"""ResourceSlices, and what all devices of one come to for whoever looks at many of them."""

from collections.abc import Hashable, Sequence
from functools import cached_property

import msgspec

from engine.claims.cel.selectors import Path
from engine.claims.model import ALWAYS_VALUES, Amounts, Device, PoolId, Reach, entries_of, flaw_of


class ResourceSlice(msgspec.Struct, frozen=True, eq=False, dict=True):
    """One ResourceSlice."""

    name: str
    driver: str
    pool: str
    generation: int
    slices: int  # that the pool of this generation has
    reach: Reach
    per_device: bool | None  # each device says itself where it is reachable from
    devices: tuple[Device, ...]
    counter_sets: tuple[tuple[str, Amounts], ...]
    skips_node_operations: bool

    @property
    def pool_id(self) -> PoolId:
        """The pool that it is a part of."""
        return self.driver, self.pool

    def looks(self, path: Path) -> tuple[Hashable, ...]:
        """`Device.looks` of each of its devices."""
        match path:
            case ("attributes", domain, name):
                return tuple(entries_of([one.attributes for one in self.devices], self.driver, domain, name))
        return tuple([one.looks(path) for one in self.devices])

    @cached_property
    def outline(self) -> "Outline":
        """What its devices come to."""
        return Outline.from_devices(self.devices)


class Outline(msgspec.Struct, frozen=True, gc=False):
    """What all devices of a slice come to, for whoever looks at many slices.

    ``forms``: `Device.form` of each; ``flaws``: `Device.flaw`, None where none has any. ``repeated``: a name that
    several have, "" for none. Whether any of them takes counters, declares compatibility groups, or has binding
    conditions.
    """

    forms: tuple[Hashable, ...]
    repeated: str
    counted: bool
    grouped: bool
    conditional: bool
    flaws: tuple[str | None, ...] | None

    @classmethod
    def from_devices(cls, devices: tuple[Device, ...]) -> "Outline":
        """Of these devices."""
        names = [one.name for one in devices]
        uses = [use for one in devices if one.uses for use in one.uses]
        kinds = {attribute.kind for one in devices for attribute in one.attributes.values()}
        flaws: tuple[str | None, ...] | None = None
        # Kinds that are always values cannot be flawed. Only versions and lists are parsed.
        if not kinds <= ALWAYS_VALUES:
            found = tuple([flaw_of(one) for one in devices])
            flaws = None if found.count(None) == len(found) else found
        return cls(
            forms=tuple([one.form for one in devices]),
            repeated=repeated(names),
            counted=bool(uses),
            grouped=bool(uses) and any(use.groups for use in uses),
            conditional=[one.binding_conditions for one in devices].count(None) < len(devices),
            flaws=flaws,
        )


def repeated(names: Sequence[str]) -> str:
    """The first name that was there before; "" where none was."""
    seen: set[str] = set()
    # In one step where nothing is repeated, which is nearly always.
    if len(set(names)) == len(names):
        return ""
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return ""

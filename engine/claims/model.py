"""Devices, DeviceClasses, ResourceClaims and what they are about, as far as an allocation depends on them."""

from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Final, TypeVar

import msgspec

from engine.claims.cel import versions
from engine.claims.cel.errors import EvaluationError
from engine.claims.cel.selectors import FLAWS, Path
from engine.claims.cel.values import Domains, Value
from engine.claims.node_selectors import ReachTerms, only_node
from engine.claims.quantities import Quantity

DeviceId = tuple[str, str, str]  # driver, pool, device
PoolId = tuple[str, str]  # driver, pool
Amounts = Mapping[str, int]  # of counters or capacities, in billionths
_Entry = TypeVar("_Entry")

EXACT_COUNT: Final = "ExactCount"
ALWAYS_VALUES: Final = frozenset({"string", "int", "bool"})  # kinds of attributes that are values whatever they say
# The attributes by which drivers say the NUMA zone of a device, by the kernel's number.
ZONE_ATTRIBUTES: Final = ("resource.kubernetes.io/numaNode", "dra.net/numaNode", "dra.cpu/numaNodeID")
OWN_ZONE: Final = "numaNode"  # the same in the driver's own domain
PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
ALL: Final = "All"
MOST_DEVICES: Final = 32  # of one claim (resource.k8s.io, AllocationResultsMaxSize)


class Attribute(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """One attribute of a device.

    ``kind`` is ``string``, ``int``, ``bool`` or ``version``; ``strings`` and so on for lists; empty where it has no
    value that is known here.
    """

    kind: str
    value: str | int | bool | tuple[str, ...] | tuple[int, ...] | tuple[bool, ...] | None


class Range(msgspec.Struct, frozen=True):
    """Which amounts of a capacity may be asked for: from, up to, and in steps of."""

    least: Quantity | None
    most: Quantity | None
    step: Quantity | None


class CapacityPolicy(msgspec.Struct, frozen=True):
    """What a request for a part of a capacity may be; what one takes that asks for none."""

    default: Quantity | None
    values: tuple[Quantity, ...]
    range: Range | None


class DeviceCapacity(msgspec.Struct, frozen=True, gc=False):
    """An amount that a device has."""

    value: Quantity
    policy: CapacityPolicy | None


class CounterUse(msgspec.Struct, frozen=True):
    """What a device takes of a counter set of its pool."""

    counter_set: str
    counters: Amounts
    groups: frozenset[str]  # compatibility groups


class DeviceTaint(msgspec.Struct, frozen=True):
    """What keeps those away who do not tolerate it."""

    key: str
    value: str
    effect: str


class DeviceToleration(msgspec.Struct, frozen=True):
    """A taint, or several, that a request tolerates."""

    key: str
    operator: str
    value: str
    effect: str

    def tolerates(self, taint: DeviceTaint) -> bool:
        """Whether it tolerates a taint."""
        if self.effect not in {"", taint.effect} or self.key not in {"", taint.key}:
            return False
        return self.operator == "Exists" or (self.operator == "Equal" and self.value == taint.value)


class Reach(msgspec.Struct, frozen=True):
    """The nodes that a slice or a device is reachable from: one by name, all, or by their labels."""

    node: str
    all_nodes: bool
    terms: ReachTerms | None

    @property
    def only(self) -> str:
        """The one node that may reach it, by whichever way it is named; "" where others may too."""
        return self.node or ("" if self.all_nodes or self.terms is None else only_node(self.terms))

    @property
    def repeatable(self) -> bool:
        """Whether an allocation says of all these nodes that its devices are reached from there: it has one term."""
        return len(self.terms or ()) <= 1


class Device(msgspec.Struct, frozen=True, eq=False, dict=True):
    """One device; what an expression sees of it is made once."""

    driver: str
    name: str
    attributes: Mapping[str, Attribute]
    capacity: Mapping[str, DeviceCapacity]
    uses: tuple[CounterUse, ...]
    taints: tuple[DeviceTaint, ...]
    reach: Reach
    shareable: bool | None
    binds_to_node: bool
    binding_conditions: int | None  # how many; None where the list is not there

    def variables(self) -> dict[str, Value]:
        """The device as an expression's variable."""
        if self.flaw is not None:
            raise EvaluationError(self.flaw)
        return self._seen

    def looks(self, path: Path) -> Hashable:
        """What it publishes at a path: the same where an expression that reads no more finds the same."""
        if path == FLAWS:
            return self.flaw
        match path:
            case ("driver",):
                return self.driver
            case ("allowMultipleAllocations",):
                return bool(self.shareable)
            case ("attributes", domain, name):
                return entries_of([self.attributes], self.driver, domain, name)[0]
            case ("capacity", domain, name):
                (found,) = entries_of([self.capacity], self.driver, domain, name)
                return None if found is None else found.value
        return self._whole

    def attribute(self, qualified: str) -> Attribute | None:
        """An attribute by its qualified name; those of the driver's own domain may be published without one.

        The API takes a device that has both spellings. For constraints the qualified one counts, as `lookupAttribute`
        of k8s.io/dynamic-resource-allocation 0.37 has it. For expressions it is left open there, as Go's maps have no
        order: here it is the same one.
        """
        found = self.attributes.get(qualified)
        domain, slash, name = qualified.partition("/")
        return self.attributes.get(name) if found is None and slash and domain == self.driver else found

    def numa_zones(self, roots: Mapping[str, int]) -> tuple[int, ...]:
        """The NUMA zones that it says it is of, ascending, by the kernel's numbers; else that of its PCIe root.

        ``roots``: zones by the names of roots, as far as somebody knows them. () where it says none (-1 is none) and
        its root tells none, or one attribute says other than the next.
        """
        # A device that says two different zones is of none: its root may not overrule what its driver says.
        if self._said_zones:
            return next(iter(self._said_zones)) if len(self._said_zones) == 1 else ()
        root = self.attribute(PCIE_ROOT)
        return (roots[root.value],) if root is not None and isinstance(root.value, str) and root.value in roots else ()

    @cached_property
    def _said_zones(self) -> frozenset[tuple[int, ...]]:
        named = (self.attribute(name) for name in (*ZONE_ATTRIBUTES, f"{self.driver}/{OWN_ZONE}"))
        return frozenset([zones for one in named if one is not None and (zones := _zone_numbers(one))])

    @property
    def form(self) -> Hashable:
        """What it is apart from names, attributes and where it is reached from: equal for devices that count alike."""
        # Nearly all devices are plain, and this runs for each device of each new slice.
        if not (self.capacity or self.uses or self.taints or self.binds_to_node or self.binding_conditions):
            return self.shareable
        uses = tuple([(use.counter_set, frozenset(use.counters.items()), use.groups) for use in self.uses])
        return (
            *(frozenset(self.capacity.items()) if self.capacity else (), uses, self.taints),
            *(self.shareable, self.binds_to_node, bool(self.binding_conditions)),
        )

    @cached_property
    def _whole(self) -> Hashable:
        return (
            *(self.driver, bool(self.shareable)),
            *(frozenset(self.attributes.items()), frozenset((name, one.value) for name, one in self.capacity.items())),
        )

    @cached_property
    def flaw(self) -> str | None:
        """What of it is no value: it fails every expression, whatever that reads."""
        return flaw_of(self)

    @cached_property
    def _seen(self) -> dict[str, Value]:
        attributes, capacity = Domains(), Domains()
        for name, attribute in self.attributes.items():
            _put_attribute(attributes, self.driver, name, _attribute_value(attribute))
        for name, one in self.capacity.items():
            _put_attribute(capacity, self.driver, name, one.value)
        return {
            "driver": self.driver,
            "allowMultipleAllocations": bool(self.shareable),
            "attributes": attributes,
            "capacity": capacity,
        }


def entries_of(maps: Sequence[Mapping[str, _Entry]], driver: str, domain: str, name: str) -> list[_Entry | None]:
    """What each of several devices of a driver has by a name; in the driver's own domain it may go without that."""
    qualified = f"{domain}/{name}"
    if domain != driver or "/" in name:
        return [one.get(qualified) for one in maps]
    # Both spellings are looked up, because a selector names the domain whatever the driver published. Where a device
    # has both, the one with the domain counts (`Device.attribute`).
    return [one[qualified] if qualified in one else one.get(name) for one in maps]


def flaw_of(device: Device) -> str | None:
    """`Device.flaw` of one of many, which nobody asks again."""
    for name, attribute in device.attributes.items():
        if attribute.kind not in ALWAYS_VALUES and (flaw := _flaw_of(attribute)) is not None:
            return f"attribute {name}: {flaw}"
    return None


@lru_cache(maxsize=1024)
def _flaw_of(attribute: Attribute) -> str | None:
    try:
        _attribute_value(attribute)
    except ValueError as error:
        return str(error)
    return None


def _zone_numbers(attribute: Attribute) -> tuple[int, ...]:
    """The numbers of zones; () where it is no such thing, or says that the zone is not known."""
    values = attribute.value if isinstance(attribute.value, tuple) else (attribute.value,)
    # ``type`` and not ``isinstance``: True is an int in Python, and no zone.
    if attribute.kind not in {"int", "ints"} or not all(type(one) is int and one >= 0 for one in values):
        return ()
    return tuple(sorted({int(one) for one in values if one is not None}))


def _put_attribute(domains: Domains, driver: str, qualified: str, value: Value) -> None:
    domain, slash, name = qualified.partition("/")
    if slash:
        domains.setdefault(domain, {})[name] = value
    else:
        domains.setdefault(driver, {}).setdefault(qualified, value)  # with the domain it comes first, wherever it is


def _attribute_value(attribute: Attribute) -> Value:
    if attribute.kind == "version":
        return _version(attribute.value)
    if attribute.kind == "versions" and isinstance(attribute.value, tuple):
        return tuple(_version(one) for one in attribute.value)
    # The value is of a kind that this version does not know. Every selector fails on the device, as in the allocator.
    if not attribute.kind:
        raise ValueError("unsupported attribute value")
    return attribute.value


def _version(text: object) -> versions.Version:
    try:
        return versions.parse(str(text))
    except ValueError as error:
        raise ValueError(f"parse semantic version: {error}") from error


class DeviceClass(msgspec.Struct, frozen=True):
    """One DeviceClass; a selector is None where it is of a kind that is not known."""

    name: str
    selectors: tuple[str | None, ...]
    extended_resource: str
    created: str  # RFC 3339, in UTC; empty where it is not told


class Ask(msgspec.Struct, frozen=True):
    """A request for devices, or one of its alternatives; ``admin`` is None where it says nothing of it."""

    name: str
    class_name: str
    mode: str  # ExactCount, All
    count: int
    admin: bool | None
    selectors: tuple[str | None, ...]
    tolerations: tuple[DeviceToleration, ...]
    capacity: Mapping[str, Quantity] | None
    derived: Mapping[str, str]  # expressions by the attribute that they stand for


class Request(msgspec.Struct, frozen=True):
    """A request of a claim: one ask, or alternatives of which the first possible one is taken."""

    name: str
    exactly: Ask | None
    alternatives: tuple[Ask, ...]


class Constraint(msgspec.Struct, frozen=True):
    """What the devices of some requests (of all, where none is named) must have in common, or must not."""

    requests: frozenset[str]
    match: str
    distinct: str


class Claim(msgspec.Struct, frozen=True):
    """One ResourceClaim; ``name`` has its namespace before it where it has one."""

    name: str
    requests: tuple[Request, ...]
    constraints: tuple[Constraint, ...]


class DeviceNode(msgspec.Struct, frozen=True):
    """The node that is asked about."""

    name: str
    labels: Mapping[str, str]
    declared_features: frozenset[str] = frozenset()

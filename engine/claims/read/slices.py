"""ResourceSlices (resource.k8s.io/v1) from JSON."""

from typing import Any, Final

from engine.claims.model import (
    Attribute,
    CapacityPolicy,
    CounterUse,
    Device,
    DeviceCapacity,
    DeviceTaint,
    Range,
    Reach,
)
from engine.claims.quantities import NANO
from engine.claims.read.fields import LARGEST, Fields
from engine.claims.read.node_selectors import read_terms
from engine.claims.slices import ResourceSlice

_WHOLE: Final = frozenset({("int", int), ("bool", bool), ("string", str), ("version", str)})
_NOWHERE: Final = Reach(node="", all_nodes=False, terms=None)
_PLACES: Final = frozenset({"nodeName", "allNodes", "nodeSelector"})
_LISTS: Final = {"ints": int, "bools": bool, "strings": str, "versions": str}  # in Kubernetes' order


def read_slice(given: object) -> ResourceSlice:
    """One ResourceSlice.

    Raises:
        ObjectError: it is none; the error names the field.
    """
    whole = Fields.of_object("ResourceSlice", given)
    spec = whole.fields_of("spec") or Fields(whole.what, "spec", {})
    pool = spec.fields_of("pool") or Fields(whole.what, "spec.pool", {})
    driver = spec.required("driver")
    return ResourceSlice(
        name=whole.metadata.required("name"),
        driver=driver,
        pool=pool.required("name"),
        generation=pool.integer("generation"),
        slices=pool.integer("resourceSliceCount"),
        reach=_reach(spec),
        per_device=spec.flag("perDeviceNodeSelection"),
        devices=tuple(_device(part, driver) for part in spec.parts_of_list("devices")),
        counter_sets=tuple((part.text("name"), _counters(part)) for part in spec.parts_of_list("sharedCounters")),
        skips_node_operations=bool(spec.texts("skipNodeOperations")),
    )


def _reach(part: Fields) -> Reach:
    if _PLACES.isdisjoint(part.values):
        return _NOWHERE  # as most devices, whose slices tell it
    selector = part.fields_of("nodeSelector")
    return Reach(
        node=part.text("nodeName"),
        all_nodes=bool(part.flag("allNodes")),
        terms=None if selector is None else read_terms(selector),
    )


def _device(part: Fields, driver: str) -> Device:
    conditions = part.values.get("bindingConditions")
    return Device(
        driver=driver,
        name=part.required("name"),
        attributes={
            # The short way first. 5,000 nodes with 8 devices of 10 attributes are 400,000 of them.
            name: _single_attribute(one) or _attribute(part.entry("attributes", name, one))
            for name, one in part.entries("attributes")
        },
        capacity={name: _capacity(one) for name, one in part.parts_by_key("capacity")},
        uses=tuple(
            CounterUse(one.text("counterSet"), _counters(one), frozenset(one.texts("compatibilityGroups")))
            for one in part.parts_of_list("consumesCounters")
        ),
        taints=tuple(
            DeviceTaint(one.text("key"), one.text("value"), one.text("effect")) for one in part.parts_of_list("taints")
        ),
        reach=_reach(part),
        shareable=part.flag("allowMultipleAllocations"),
        binds_to_node=bool(part.flag("bindsToNode")),
        # An empty list and none differ: the allocator puts pools whose devices have the list last.
        binding_conditions=None if conditions is None else len(part.texts("bindingConditions")),
    )


def _single_attribute(given: Any) -> Attribute | None:
    """The same as `_attribute` of what has one value as it should be, which is nearly all; None of anything else."""
    if type(given) is not dict or len(given) != 1:
        return None
    ((kind, value),) = given.items()
    # The exact type, so that true is no int.
    right = (kind, type(value)) in _WHOLE and (kind != "int" or -LARGEST - 1 <= value <= LARGEST)
    return Attribute(kind, value) if right else None


def _attribute(part: Fields) -> Attribute:
    """The value; of several, the one that Kubernetes looks at first."""
    # Lists before single values, in the order in which Kubernetes looks at them.
    for kind, element in _LISTS.items():
        if part.values.get(kind) is not None:
            found = part.items(kind)
            if not all(type(one) is element for one in found) or (
                element is int and not all(-(1 << 63) <= one < 1 << 63 for one in found)
            ):
                raise part.error(kind, f"expected values of one type, {element.__name__}")
            return Attribute(kind, tuple(found))
    if part.values.get("int") is not None:
        return Attribute("int", part.integer("int", least=-(1 << 63)))
    if part.values.get("bool") is not None:
        return Attribute("bool", part.flag("bool"))
    for kind in ("string", "version"):
        if part.values.get(kind) is not None:
            return Attribute(kind, part.text(kind))
    return Attribute("", None)


def _capacity(part: Fields) -> DeviceCapacity:
    value = part.quantity("value")
    if value is None:
        raise part.error("value", "expected a quantity, got nothing")
    policy = part.fields_of("requestPolicy")
    if policy is None:
        return DeviceCapacity(value, None)
    limits = policy.fields_of("validRange")
    return DeviceCapacity(
        value,
        CapacityPolicy(
            default=policy.quantity("default"),
            values=policy.listed_quantities("validValues"),
            range=None if limits is None else _range(limits),
        ),
    )


def _range(part: Fields) -> Range:
    step = part.quantity("step")
    # `capacities` divides by the step.
    if step is not None and step.nanos < 1:
        raise part.error("step", "expected an amount above zero")
    if step is not None and part.values.get("min") is None:
        raise part.error("min", "expected an amount where there is a step")
    return Range(part.quantity("min"), part.quantity("max"), step)


def _counters(part: Fields) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, one in part.parts_by_key("counters"):
        value = one.quantity("value")
        # A bound far beyond any hardware, so that sums of counters stay cheap to compute.
        if value is None or abs(value.nanos) > NANO << 96:
            raise one.error("value", "expected a quantity")
        found[name] = value.nanos
    return found

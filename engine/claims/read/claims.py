"""DeviceClasses, ResourceClaims, nodes and devices in use (resource.k8s.io/v1) from JSON, with the API's defaults."""

from collections.abc import Mapping

from engine.claims.in_use import Use
from engine.claims.model import EXACT_COUNT, Ask, Claim, Constraint, DeviceClass, DeviceNode, DeviceToleration, Request
from engine.claims.read.fields import Fields


def read_class(given: object) -> DeviceClass:
    """One DeviceClass.

    Raises:
        ObjectError: it is none; the error names the field.
    """
    whole = Fields.of_object("DeviceClass", given)
    metadata = whole.metadata
    spec = whole.fields_of("spec") or Fields(whole.what, "spec", {})
    return DeviceClass(
        name=metadata.required("name"),
        selectors=_selectors(spec),
        extended_resource=spec.text("extendedResourceName"),
        created=metadata.text("creationTimestamp"),
    )


def read_claim(given: object) -> Claim:
    """One ResourceClaim.

    Raises:
        ObjectError: it is none; the error names the field.
    """
    whole = Fields.of_object("ResourceClaim", given)
    metadata = whole.metadata
    namespace = metadata.text("namespace")
    spec = whole.fields_of("spec") or Fields(whole.what, "spec", {})
    devices = spec.fields_of("devices") or Fields(whole.what, "spec.devices", {})
    return Claim(
        name=f"{namespace}/{metadata.required('name')}".lstrip("/"),
        requests=tuple(_request(part) for part in devices.parts_of_list("requests")),
        constraints=tuple(
            Constraint(
                requests=frozenset(part.texts("requests")),
                match=part.text("matchAttribute"),
                distinct=part.text("distinctAttribute"),
            )
            for part in devices.parts_of_list("constraints")
        ),
    )


def read_node(name: str, labels: Mapping[str, str], declared_features: tuple[str, ...] = ()) -> DeviceNode:
    """A node by its name and labels."""
    return DeviceNode(name, labels, frozenset(declared_features))


def read_uses(given: object, what: str) -> tuple[Use, ...]:
    """Devices in use: the list ``status.allocation.devices.results`` of claims.

    Raises:
        ObjectError: an entry is none.
    """
    uses = Fields(what, "", {"results": given})
    return tuple(
        Use(
            device=(part.required("driver"), part.required("pool"), part.required("device")),
            share=part.text("shareID"),
            consumed={name: amount.nanos for name, amount in part.quantities("consumedCapacity").items()},
            admin=bool(part.flag("adminAccess")),
        )
        for part in uses.parts_of_list("results")
    )


def _request(part: Fields) -> Request:
    exactly = part.fields_of("exactly")
    return Request(
        name=part.required("name"),
        exactly=None if exactly is None else _ask_of(exactly, part.required("name")),
        alternatives=tuple(_ask_of(one, one.required("name")) for one in part.parts_of_list("firstAvailable")),
    )


def _ask_of(part: Fields, name: str) -> Ask:
    mode = part.text("allocationMode") or EXACT_COUNT
    capacity = part.fields_of("capacity")
    wanted = capacity is not None and capacity.values.get("requests") is not None
    return Ask(
        name=name,
        class_name=part.text("deviceClassName"),
        mode=mode,
        # The API server fills in 1 for ExactCount; templates read before that default have none.
        count=part.integer("count") or (1 if mode == EXACT_COUNT else 0),
        admin=part.flag("adminAccess"),
        selectors=_selectors(part),
        tolerations=tuple(
            DeviceToleration(
                key=one.text("key"),
                operator=one.text("operator") or "Equal",
                value=one.text("value"),
                effect=one.text("effect"),
            )
            for one in part.parts_of_list("tolerations")
        ),
        # An empty ``capacity`` differs from none: with the gate off it is refused all the same (`_check_features`).
        capacity=None if capacity is None else (capacity.quantities("requests") if wanted else {}),
        derived={one.text("name"): one.text("expression") for one in part.parts_of_list("derivedAttributes")},
    )


def _selectors(part: Fields) -> tuple[str | None, ...]:
    found = (selector.fields_of("cel") for selector in part.parts_of_list("selectors"))
    # None marks a selector of a later API version. It is refused when it is used, and not while it is read: nobody may
    # ask for it.
    return tuple(None if cel is None else cel.text("expression") for cel in found)

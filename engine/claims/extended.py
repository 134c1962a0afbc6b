"""Extended resources that a DeviceClass stands for: the claim that the scheduler makes of a pod's containers.

The rules are those of the scheduler (dynamicresources, extendeddynamicresources.go): each container has a request of
its own, an init container takes what later containers have before it asks for more, and of several init containers the
one that asks for most is enough.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from engine.claims.asks import ExtendedRequest
from engine.claims.model import EXACT_COUNT, Ask, Claim, DeviceClass, Request
from engine.claims.quantities import Quantity

CLASS_PREFIX: Final = "deviceclass.resource.kubernetes.io/"
CLAIM_NAME: Final = "<extended-resources>"

_NATIVE: Final = "kubernetes.io/"
_QUOTA: Final = "requests."
_DOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


class ContainerAsk(msgspec.Struct, frozen=True):
    """What one container asks for; ``early`` for an init container that is over before the others start."""

    name: str
    early: bool
    requests: Mapping[str, Quantity]


class RequestMapping(msgspec.Struct, frozen=True):
    """Which request of the claim a container's resource comes from, as the pod's status says it."""

    container: str
    resource: str
    request: str


class ExtendedClaim(msgspec.Struct, frozen=True):
    """The claim for one node, None where nothing is to be allocated. ``missing`` is a resource that the node lacks."""

    claim: Claim | None = None
    mappings: tuple[RequestMapping, ...] = ()
    missing: str = ""


class _Part(msgspec.Struct, frozen=True):
    """So many devices of a class, for one container."""

    name: str
    count: int


def classes_by_resource(classes: Iterable[DeviceClass]) -> dict[str, DeviceClass]:
    """The class of each extended resource: the newest, then the one with the lowest name; and each by its own name."""
    found: dict[str, DeviceClass] = {}
    for one in classes:
        found[CLASS_PREFIX + one.name] = one
        if not one.extended_resource:
            continue
        other = found.get(one.extended_resource)
        if other is None or one.created > other.created or (one.created == other.created and one.name < other.name):
            found[one.extended_resource] = one
    return found


def is_extended(resource: str) -> bool:
    """Whether a resource may stand for devices."""
    if resource.startswith(CLASS_PREFIX):
        return True
    if _NATIVE in resource or resource.startswith(_QUOTA):
        return False
    domain, slash, name = resource.partition("/")
    # As pkg/apis/core/v1/helper `IsExtendedResourceName`: the name must be a qualified name after "requests." for
    # quota.
    if not slash or len(name) > 63 or len(_QUOTA) + len(domain) > 253:
        return False
    return _DOMAIN.fullmatch(_QUOTA + domain) is not None and _NAME.fullmatch(name) is not None


def extended_claim(
    containers: Sequence[ContainerAsk],
    classes: Mapping[str, DeviceClass],
    allocatable: Mapping[str, Quantity],
    *,
    has_claims: bool,
) -> ExtendedClaim:
    """The claim for a node that has these resources; ``classes`` are by resource (`classes_by_resource`).

    What the node has as plain resources is not asked of its devices. ``has_claims`` says whether the pod has claims of
    its own.
    """
    wanted = sorted({name for one in containers for name, amount in one.requests.items() if amount.nanos > 0})
    if not any(is_extended(name) and name in classes for name in wanted):
        return ExtendedClaim()
    of_devices: list[str] = []
    for name in filter(is_extended, wanted):
        plain = allocatable.get(name)
        # A resource of which the node's allocatable has 0 units is asked of devices. With more than 0, the plugin's
        # units are the only ones.
        if name in classes and (plain is None or plain.nanos <= 0):
            of_devices.append(name)
        elif plain is None:
            return ExtendedClaim(missing=name)
    if not of_devices and not has_claims:
        return ExtendedClaim()
    requests: list[Request] = []
    mappings: list[RequestMapping] = []
    for name in of_devices:
        parts, mapped = _of_resource(containers, name)
        for part in parts:
            ask = Ask(
                name=part.name,
                class_name=classes[name].name,
                mode=EXACT_COUNT,
                count=part.count,
                admin=None,
                selectors=(),
                tolerations=(),
                capacity=None,
                derived={},
            )
            requests.append(Request(part.name, ask, ()))
        mappings += mapped
    # As texts, as the scheduler sorts them: container-10 comes before container-2, and the order decides who gets which
    # device.
    requests.sort(key=lambda request: request.name)
    return ExtendedClaim(Claim(CLAIM_NAME, tuple(requests), ()), tuple(mappings))


def extended_requests(containers: Sequence[ContainerAsk], classes: Mapping[str, str]) -> tuple[ExtendedRequest, ...]:
    """The requests of that claim on a node that has nothing as plain resources; ``classes``: names, by resource."""
    wanted = sorted({name for one in containers for name, amount in one.requests.items() if amount.nanos > 0})
    found = [
        ExtendedRequest(name, part.name, classes[name], part.count)
        for name in wanted
        if name in classes
        for part in _of_resource(containers, name)[0]
    ]
    return tuple(sorted(found, key=lambda one: one.name))


def _of_resource(containers: Sequence[ContainerAsk], resource: str) -> tuple[list[_Part], list[RequestMapping]]:
    """The requests for one resource, and which containers use them."""
    lasting: list[_Part | None] = [None] * len(containers)
    mappings: list[RequestMapping] = []
    # Lasting containers first: an init container may use their devices, so these have to be known before.
    for index, container in enumerate(containers):
        if not container.early:
            lasting[index], mapped = _of_container(index, container, resource, ())
            mappings += mapped
    largest: _Part | None = None
    early_names: set[str] = set()
    early: list[RequestMapping] = []
    for index, container in enumerate(containers):
        if not container.early:
            continue
        part, mapped = _of_container(index, container, resource, [one for one in lasting[index:] if one is not None])
        early += mapped
        if part is not None:
            early_names.add(part.name)
            # Of equal ones the first stays, whose name goes into the claim.
            largest = part if largest is None or largest.count < part.count else largest
    if largest is not None:
        # Init containers run one at a time, so all of them use the request of the largest.
        early = [replace(one, request=largest.name) if one.request in early_names else one for one in early]
    parts = [part for part in (largest, *lasting) if part is not None]
    return parts, mappings + early


def _of_container(
    index: int, container: ContainerAsk, resource: str, reusable: Sequence[_Part]
) -> tuple[_Part | None, list[RequestMapping]]:
    """What a container needs beside requests that it may use, and all that it uses."""
    amount = container.requests.get(resource)
    count = (amount.integer() if amount is not None else None) or 0
    if count <= 0:
        return None, []
    mappings: list[RequestMapping] = []
    for part in reusable:
        mappings.append(RequestMapping(container.name, resource, part.name))
        count -= part.count
        if count <= 0:
            return None, mappings
    # The index counts the container's resources in order, also the ones that are no devices.
    name = f"container-{index}-request-{sorted(container.requests).index(resource)}"
    mappings.append(RequestMapping(container.name, resource, name))
    return _Part(name, count), mappings

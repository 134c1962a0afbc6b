"""Devices that pods ask for by resource claims (Dynamic Resource Allocation), and DeviceClasses that stand for others.

A request for an extended resource is one for devices of a class where a DeviceClass says so. Source: of kube-scheduler,
``shouldDelegateResourceToDRA`` (noderesources/fit.go) and ``filterExtendedResources`` (extendeddynamicresources.go),
and of ``k8s.io/dynamic-resource-allocation`` the ExtendedResourceCache, of Kubernetes 1.36:

- A node whose allocatable has more than 0 of a resource gives it by its device plugin, whatever classes say.
- On all other nodes the class counts that has the resource for its ``extendedResourceName``: of several the newest,
  then the one with the lowest name. The API server stores no class that names cpu and its like, and such a name would
  keep everybody waiting: it counts for nothing. Each class has one more such name, `CLASS_PREFIX` and its own.
"""

from collections.abc import Container as Contains
from collections.abc import Iterator, Mapping
from typing import Any, Final

from engine.claims.asks import OWN, ExtendedRequest, Named
from engine.claims.extended import ContainerAsk, extended_requests, is_extended
from engine.claims.quantities import Quantity, parse
from kube.objects import Container, Object, PodResourceClaim, PodSpec, Struct
from kube.pods.limits import too_many_parts
from kube.pods.requests import is_sidecar

CLASS_PREFIX: Final = "deviceclass.resource.kubernetes.io/"
_NONE: Final = Quantity(0)


class DeviceClassSpec(Struct, frozen=True):
    """The extended resource that a DeviceClass stands for, and which devices are of it: ``selectors`` as in JSON."""

    extended_resource_name: str | None = None
    selectors: tuple[Any, ...] | None = None


class DeviceClass(Object, frozen=True):
    """A DeviceClass."""

    spec: DeviceClassSpec = DeviceClassSpec()


class DeviceClasses:
    """All DeviceClasses, by the extended resources that they stand for: by what they name, and by their own name."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[str, str]] = {}  # the resource that it names, "" for none, and when it was made
        self._by_resource: dict[str, set[str]] = {}

    def asked_by(self, spec: PodSpec) -> set[str]:
        """The extended resources in a pod's requests and limits, of whatever amount, for which a class stands."""
        return named_in(spec, self._by_resource) if self._by_resource else set()

    def of_resource(self, resource: str) -> str | None:
        """The name of the class that stands for an extended resource; None where there is none."""
        names = self._by_resource.get(resource)
        if not names:
            return None
        # A class is asked for by its own name: it counts whatever other classes call themselves.
        if (own := resource.removeprefix(CLASS_PREFIX)) != resource and own in names:
            return own
        newest = max(self._named[name][1] for name in names)
        return min(name for name in names if self._named[name][1] == newest)

    def set_device_class(self, name: str, found: DeviceClass | None) -> set[str]:
        """A class is there as it is ``found``, or no longer: the resources of which it may say something else now."""
        before, now = self._named.pop(name, None), None
        stood = _stands_for(name, before)
        for resource in stood:
            self._by_resource[resource].discard(name)
            if not self._by_resource[resource]:
                del self._by_resource[resource]
        if found is not None:
            now = self._named[name] = found.spec.extended_resource_name or "", found.metadata.creation_timestamp or ""
        stands = _stands_for(name, now)
        for resource in stands:
            self._by_resource.setdefault(resource, set()).add(name)
        # Both: what the class no longer stands for may now be served by another class, or by none.
        return stood | stands if before != now else set()


def extended_asks(spec: PodSpec, classes: DeviceClasses) -> tuple[ExtendedRequest, ...]:
    """What a pod's containers ask for of resources that classes stand for, as the scheduler's own claim has it.

    A request that is missing is the limit, as the API server fills it in on a pod but not on a template.

    Raises:
        ValueError: an amount is no number of devices (the error names the resource), or there are too many parts.
    """
    named = {one: name for one in classes.asked_by(spec) if (name := classes.of_resource(one)) is not None}
    if not named:
        return ()
    if too_many_parts(spec):
        raise ValueError("they have more containers or resources than Topogate takes into account")
    early = [_container(one, named, early=not is_sidecar(one)) for one in spec.init_containers or ()]
    return extended_requests([*early, *(_container(one, named) for one in spec.containers or ())], named)


def _container(one: Container, resources: Mapping[str, str], *, early: bool = False) -> ContainerAsk:
    found = {**(one.resources.limits or {}), **(one.resources.requests or {})} if one.resources is not None else {}
    return ContainerAsk(
        one.name,
        early,
        {name: _parse_device_count(name, found[name]) if name in resources else _NONE for name in found},
    )


def _parse_device_count(resource: str, amount: object) -> Quantity:
    try:
        found = parse(str(amount))
    except ValueError as error:
        raise ValueError(f"they ask for {resource}: {error}") from error
    if found.nanos > 0 and found.integer() is None:
        raise ValueError(f"they ask for an amount of {resource} that is not a whole number of devices")
    return found


def _stands_for(name: str, known: tuple[str, str] | None) -> set[str]:
    if known is None:
        return set()
    return {CLASS_PREFIX + name, known[0]} if is_extended(known[0]) else {CLASS_PREFIX + name}


def claims_by_template(spec: PodSpec) -> Named:
    """Of each resource claim of a pod its name there, and that of its template, or `OWN` and that of the claim.

    "" for one that names neither.
    """
    return tuple([(one.name, _what(one)) for one in spec.resource_claims or ()])


def _what(one: PodResourceClaim) -> str:
    if one.resource_claim_template_name or not one.resource_claim_name:
        return one.resource_claim_template_name or ""
    return OWN + one.resource_claim_name


def made_of_templates(spec: PodSpec) -> frozenset[str]:
    """The names that a pod has for those of its claims that are made for it."""
    return frozenset([one.name for one in spec.resource_claims or () if one.resource_claim_template_name])


def claims_in_words(spec: PodSpec) -> str:
    """The resource claims of a pod, the first by its name; "" where it has none."""
    claims = spec.resource_claims or ()
    if claims:
        first = claims[0]
        what = f'resource claim "{first.name}"'
        if first.resource_claim_template_name:
            what += f' (of template "{first.resource_claim_template_name}")'
        elif first.resource_claim_name:
            what += f' (ResourceClaim "{first.resource_claim_name}")'
        return what + (f" and {len(claims) - 1} more" if len(claims) > 1 else "")
    used = next(_used(spec), "")  # the API server refuses what its pod does not name; a file may have it
    return f'resource claim "{used}"' if used else ""


def _used(spec: PodSpec) -> Iterator[str]:
    for container in (*(spec.init_containers or ()), *(spec.containers or ())):
        if container.resources is not None:
            yield from (one.name for one in container.resources.claims or ())


def named_in(spec: PodSpec, names: Contains[str]) -> set[str]:
    """Those of these resources that a pod's requests and limits name, of whatever amount."""
    found: set[str] = set()
    for one in (*(spec.init_containers or ()), *(spec.containers or ())):
        if (resources := one.resources) is not None:
            found.update([name for name in resources.requests or () if name in names])
            found.update([name for name in resources.limits or () if name in names])
    return found

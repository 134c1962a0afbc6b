"""Devices that pods ask for by resource claims (Dynamic Resource Allocation), and DeviceClasses that stand for others.

A request for an extended resource is one for devices of a class where a DeviceClass says so. Source: of kube-scheduler,
``shouldDelegateResourceToDRA`` (noderesources/fit.go) and ``filterExtendedResources`` (extendeddynamicresources.go),
and of ``k8s.io/dynamic-resource-allocation`` the ExtendedResourceCache, of Kubernetes 1.36:

- A node whose allocatable has more than 0 of a resource gives it by its device plugin, whatever classes say.
- On all other nodes the class counts that has the resource for its ``extendedResourceName``: of several the newest,
  then the one with the lowest name. Each class has one more such name, `CLASS_PREFIX` and its own.
"""

from collections.abc import Iterator
from typing import Final

from kube.objects import Object, PodSpec, Struct

CLASS_PREFIX: Final = "deviceclass.resource.kubernetes.io/"


class DeviceClassSpec(Struct, frozen=True):
    """Of a DeviceClass the extended resource that it stands for."""

    extended_resource_name: str | None = None


class DeviceClass(Object, frozen=True):
    """A DeviceClass."""

    spec: DeviceClassSpec = DeviceClassSpec()


class DeviceClasses:
    """All DeviceClasses, by the extended resources that they stand for."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[str, str]] = {}  # the resource that it names, "" for none, and when it was made
        self._by_resource: dict[str, set[str]] = {}

    def __bool__(self) -> bool:
        return bool(self._named)

    def of_resource(self, resource: str) -> str | None:
        """The name of the class that stands for an extended resource; None where there is none."""
        if resource.startswith(CLASS_PREFIX):
            name = resource.removeprefix(CLASS_PREFIX)
            return name if name in self._named else None
        names = self._by_resource.get(resource)
        if not names:
            return None
        newest = max(self._named[name][1] for name in names)
        return min(name for name in names if self._named[name][1] == newest)

    def note(self, name: str, found: DeviceClass | None) -> set[str]:
        """A class is there as it is ``found``, or no longer: the resources of which it may say something else now."""
        before, now = self._named.pop(name, None), None
        if before is not None and before[0]:
            self._by_resource[before[0]].discard(name)
            if not self._by_resource[before[0]]:
                del self._by_resource[before[0]]
        if found is not None:
            now = found.spec.extended_resource_name or "", found.metadata.creation_timestamp or ""
            self._named[name] = now
            if now[0]:
                self._by_resource.setdefault(now[0], set()).add(name)
        if before == now:
            return set()
        return {CLASS_PREFIX + name, *(one[0] for one in (before, now) if one is not None and one[0])}


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


def resource_names(spec: PodSpec) -> set[str]:
    """The names of all extended resources in a pod's requests and limits, of whatever amount."""
    found: set[str] = set()
    for container in (*(spec.init_containers or ()), *(spec.containers or ())):
        if (resources := container.resources) is not None:
            found.update(resources.requests or ())
            found.update(resources.limits or ())
    return {name for name in found if "/" in name}

"""What a kubelet looks at when it admits a pod."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

GUARANTEED = "Guaranteed"
BURSTABLE = "Burstable"
BEST_EFFORT = "BestEffort"
INIT = "init"
SIDECAR = "sidecar"
APP = "app"
_SUFFIXES: Mapping[str, int | Fraction] = {
    "": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60,
    "m": Fraction(1, 10**3), "u": Fraction(1, 10**6), "n": Fraction(1, 10**9),
}  # fmt: skip

Amounts = Mapping[str, Fraction]


@dataclass(frozen=True)
class PlayedContainer:
    """One container; amounts are in cores, bytes and devices."""

    name: str
    kind: str = APP
    requests: Amounts = field(default_factory=dict)
    limits: Amounts = field(default_factory=dict)


@dataclass(frozen=True)
class PlayedPod:
    """A pod: its containers in the order in which the kubelet starts them, init containers and sidecars first."""

    uid: str
    containers: tuple[PlayedContainer, ...]
    pod_level: bool = False  # it sets spec.resources

    @cached_property
    def qos(self) -> str:
        """The quality of service class, from the CPU and memory of all containers."""
        asked = [
            (resource, container.requests.get(resource, 0), container.limits.get(resource, 0))
            for container in self.containers
            for resource in ("cpu", "memory")
        ]
        if not any(request or limit for _, request, limit in asked):
            return BEST_EFFORT
        return GUARANTEED if all(limit and request == limit for _, request, limit in asked) else BURSTABLE

    @property
    def pins(self) -> bool:
        """Whether the CPU and memory managers care about this pod."""
        return self.qos == GUARANTEED and not self.pod_level

    def peak(self, amounts: Iterable[Mapping[str, int]]) -> dict[str, int]:
        """The most that the pod holds at any time, where ``amounts`` are those of each container in order.

        An init container runs beside the sidecars before it, the apps beside all sidecars.
        """
        sidecars: dict[str, int] = {}
        apps: dict[str, int] = {}
        most: dict[str, int] = {}
        for container, amount in zip(self.containers, amounts, strict=True):
            for resource, value in amount.items():
                most.setdefault(resource, 0)
                if container.kind == INIT:
                    most[resource] = max(most[resource], sidecars.get(resource, 0) + value)
                else:
                    held = sidecars if container.kind == SIDECAR else apps
                    held[resource] = held.get(resource, 0) + value
        return {r: max(value, sidecars.get(r, 0) + apps.get(r, 0)) for r, value in most.items()}


def round_up(amount: Fraction) -> int:
    """An amount as the kubelet takes it where it counts whole things: rounded up."""
    return math.ceil(amount)


def from_api(pod: Mapping[str, Any]) -> PlayedPod:
    """The pod as the API server has it."""
    spec = pod["spec"]
    first = [
        _container(container, SIDECAR if container.get("restartPolicy") == "Always" else INIT)
        for container in spec.get("initContainers", ())
    ]
    apps = [_container(container, APP) for container in spec["containers"]]
    resources = spec.get("resources") or {}
    return PlayedPod(
        pod["metadata"]["uid"], (*first, *apps), pod_level=bool(resources.get("requests") or resources.get("limits"))
    )


def make_container(name: str, kind: str, requests: Mapping[str, Any], limits: Mapping[str, Any]) -> PlayedContainer:
    """A container from quantities as Kubernetes writes them; what has a limit only is requested too."""
    most = {resource: quantity(value) for resource, value in limits.items()}
    return PlayedContainer(name, kind, {**most, **{r: quantity(v) for r, v in requests.items()}}, most)


def _container(container: Mapping[str, Any], kind: str) -> PlayedContainer:
    resources = container.get("resources") or {}
    return make_container(container["name"], kind, resources.get("requests") or {}, resources.get("limits") or {})


def quantity(value: "str | float") -> Fraction:
    """A Kubernetes quantity (``500m``, ``8Gi``, ``1e3``). ValueError for other text."""
    text = str(value)
    # The suffix is cut off from the end. An exponent's ``E`` stays, because digits come behind it.
    number = text.rstrip("kMGTPEimun")
    try:
        return Fraction(number) * _SUFFIXES[text[len(number) :]]
    except (KeyError, ValueError):
        raise ValueError(f"{text!r} is not a quantity") from None

"""A machine in the engine's words as far as a NodeResourceTopology tells of it."""

import re
from collections.abc import Callable

import msgspec

from cli.whatif.forms import AmountsForm, NrtForm, Quantity
from cli.whatif.machines import Rows, amount_of, check_unique
from engine.kubelet.machine import (
    CPU,
    Kubelet,
    Layout,
    Scope,
    State,
    TopologyPolicy,
    Zone,
)
from engine.kubelet.resource_requests import is_memory
from ungater.numa.sources.contradictions import contradictions

_ZONE_NAME = re.compile(r"node-(\d+)")


def from_nrt(nrt: NrtForm, options: Kubelet | None = None, threads: int = 2) -> tuple[Layout, State]:
    """Layout and state as far as a NodeResourceTopology tells.

    The CPU manager is static, and the memory manager Static, where any zone has CPUs or memory to give away. Options
    and threads a core are not in it; they may be given besides.
    """
    nodes = (zone for zone in nrt.zones if zone.type == "Node")
    named = [(int(found[1]), zone) for zone in nodes if (found := _ZONE_NAME.fullmatch(zone.name))]
    named.sort(key=lambda item: item[0])
    check_unique("nrt.zones:", [zone.name for _, zone in named])
    zones = [zone for _, zone in named]
    resources = tuple(sorted({resource for zone in zones for resource in zone.resources}))

    def rows(amount: Callable[[AmountsForm], Quantity]) -> Rows:
        return tuple(
            tuple(
                amount_of(resource, amount(zone.resources[resource])) if resource in zone.resources else -1
                for resource in resources
            )
            for zone in zones
        )

    allocatable = rows(lambda amounts: amounts.allocatable)
    manages = {resource for row in allocatable for resource, amount in zip(resources, row, strict=True) if amount > 0}
    layout = Layout(
        zones=tuple(
            Zone(id=zone_id, distances=tuple(zone.costs.get(other.name, 0) for other in zones) if zone.costs else ())
            for zone_id, zone in named
        ),
        resources=resources,
        capacity=rows(lambda amounts: amounts.capacity),
        allocatable=allocatable,
        kubelet=msgspec.structs.replace(
            options or Kubelet(),
            policy=TopologyPolicy(nrt.attributes.get("topologyManagerPolicy", TopologyPolicy.NONE)),
            scope=Scope(nrt.attributes.get("topologyManagerScope", Scope.CONTAINER)),
            static_cpu=CPU in manages,
            static_memory=any(is_memory(resource) for resource in manages),
        ),
        threads=threads,
    )
    return layout, State(free=rows(lambda amounts: amounts.available))


def doubt(layout: Layout) -> str:
    """Why the controller would not believe these zones, and count the node by its amounts; "" where it would."""
    return next(contradictions(layout, {}), "")

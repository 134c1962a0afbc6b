"""A machine from its NodeResourceTopology: amounts by zone, no single CPU or device.

- Attributes win over the deprecated list of policies; without either the policy is ``none``, the scope ``container``.
- Only zones of type ``Node`` are the kubelet's.
- Per node: what no zone reports is not aligned. Exporters publish cpu only with the static CPU manager and memory only
  with the Static memory manager, so that their presence in any zone says that these are on;
  `SourceRules.ignored` overrides.
- More available than allocatable, or more allocatable than there is, counts as the smaller one.
"""

import re
from collections.abc import Collection, Mapping

from crds.numa_placement import zone_id
from engine.kubelet.devices.links import LinkGraph
from engine.kubelet.devices.xpu import XpuBoard
from engine.kubelet.machine import CPU, HUGEPAGES, MEMORY, Kubelet, Layout, Machine, Scope, State, TopologyPolicy, Zone
from kube.links import XPU_RESOURCE, device_links
from kube.topologies import FlexTopoSpec, NodeResourceTopology, TopologyZone, ZoneResource
from ungater.numa.sources.checked import Problems

KIND = "NodeResourceTopology"
OPTION = re.compile(r"(?:topologyManager|cpuManager)Option([A-Za-z0-9]+)")
# `socket` is a wish of Topogate's: no kubelet has such a policy.
POLICIES = {str(policy): policy for policy in TopologyPolicy if policy is not TopologyPolicy.SOCKET}
SCOPES = {str(scope): scope for scope in Scope}
_MAX_ZONES = "topologyManagerMaxNUMANodes"

_SINGLE, _RESTRICTED, _BEST = TopologyPolicy.SINGLE, TopologyPolicy.RESTRICTED, TopologyPolicy.BEST_EFFORT
_DEPRECATED = {
    "SingleNUMANodeContainerLevel": (_SINGLE, Scope.CONTAINER),
    "SingleNUMANodePodLevel": (_SINGLE, Scope.POD),
    "Restricted": (_RESTRICTED, Scope.CONTAINER),
    "RestrictedContainerLevel": (_RESTRICTED, Scope.CONTAINER),
    "RestrictedPodLevel": (_RESTRICTED, Scope.POD),
    "BestEffort": (_BEST, Scope.CONTAINER),
    "BestEffortContainerLevel": (_BEST, Scope.CONTAINER),
    "BestEffortPodLevel": (_BEST, Scope.POD),
    "None": (TopologyPolicy.NONE, Scope.CONTAINER),
}
# Options of the kubelet's managers, by their names without hyphens and case, to fields of `Kubelet`.
_FLAGS = (
    "prefer_closest_numa_nodes",
    "full_pcpus_only",
    "distribute_cpus_across_numa",
    "distribute_cpus_across_cores",
    "align_by_socket",
    "strict_cpu_reservation",
)
OPTIONS = {flag.replace("_", ""): flag for flag in _FLAGS} | {
    "preferaligncpusbyuncorecache": "prefer_align_cpus_by_uncorecache"
}
MAX_ALLOWABLE = "maxallowablenumanodes"

Amounts3 = tuple[int, int, int]  # capacity, allocatable, available


def machine_of(
    nrt: NodeResourceTopology,
    problems: Problems,
    *,
    version: tuple[int, int],
    ignored: tuple[str, ...] = (),
    spec: FlexTopoSpec | None = None,
    annotations: Mapping[str, str] | None = None,
    xpus: Collection[str] = (XPU_RESOURCE,),
) -> Machine | None:
    """The machine; None where the object names no zone that can be used.

    ``version``: of the node's kubelet. How devices are linked comes from the graph in ``spec`` or the node's
    ``annotations``, where there are any; ``xpus``: resources with rules of their own.
    """
    zones = _zones_by_kubelet_id(nrt, problems)
    if not zones:
        problems.report_missing("zones", "at least one zone of type Node, named node-<id>")
        return None
    amounts = {zone: _amounts(wire, f"zones[{at}]", problems) for zone, (at, wire) in zones.items()}
    resources = tuple(sorted({name for found in amounts.values() for name in found}))
    missing = (-1, -1, -1)
    table = [[amounts[zone].get(name, missing) for name in resources] for zone in zones]
    present = {name for found in amounts.values() for name, (_, allocatable, _) in found.items() if allocatable > 0}
    layout = Layout(
        zones=tuple(_zone(zone, zones, problems) for zone in zones),
        resources=resources,
        capacity=tuple(tuple(each[0] for each in row) for row in table),
        allocatable=tuple(tuple(each[1] for each in row) for row in table),
        kubelet=_kubelet(nrt, version, present, problems),
        links=_links(resources, table, tuple(zones), spec, annotations, problems, xpus),
        ignored=ignored,
    )
    free = tuple(tuple(each[2] for each in row) for row in table)
    return Machine(node=nrt.metadata.name, layout=layout, state=State(free=free))


def _links(  # noqa: PLR0917
    resources: tuple[str, ...],
    table: list[list[Amounts3]],
    zone_ids: tuple[int, ...],
    spec: FlexTopoSpec | None,
    annotations: Mapping[str, str] | None,
    problems: Problems,
    xpus: Collection[str],
) -> tuple[LinkGraph | XpuBoard | None, ...]:
    found: list[LinkGraph | XpuBoard | None] = []
    for at, resource in enumerate(resources):
        count = sum(max(0, row[at][0]) for row in table)
        links = device_links(resource, count, zone_ids=zone_ids, spec=spec, annotations=annotations, xpus=xpus)
        problems.add_problems(links.problems)
        found.append(links.found)
    return tuple(found) if any(each is not None for each in found) else ()


def _zones_by_kubelet_id(nrt: NodeResourceTopology, problems: Problems) -> dict[int, tuple[int, TopologyZone]]:
    """Kubelet id -> (place in the list, zone), ascending by id."""
    found: dict[int, tuple[int, TopologyZone]] = {}
    for at, wire in enumerate(nrt.zones or ()):
        if wire.type != "Node":
            continue
        zone = zone_id(wire.name)
        if zone is None:
            problems.add(f"zones[{at}].name", wire.name, "node-<id>, with the id of a NUMA node")
        elif zone in found:
            problems.add(f"zones[{at}].name", wire.name, "each zone once")
        else:
            found[zone] = at, wire
    return dict(sorted(found.items()))


def _zone(zone: int, zones: dict[int, tuple[int, TopologyZone]], problems: Problems) -> Zone:
    """A zone with its distances, where it has one for each."""
    at, wire = zones[zone]
    distances: dict[int, int] = {}
    for place, cost in enumerate(wire.costs or ()):
        field = f"zones[{at}].costs[{place}]"
        other = zone_id(cost.name)
        if other is None or other not in zones:
            problems.add(f"{field}.name", cost.name, "the name of one of the zones")
        elif (distance := problems.parse_whole_number(f"{field}.value", cost.value)) is not None:
            distances[other] = distance
    complete = distances.keys() == zones.keys()
    if distances and not complete:
        problems.report_missing(f"zones[{at}].costs", "the cost of every zone, or of none")
    return Zone(id=zone, distances=tuple(distances[other] for other in zones) if complete else ())


def _amounts(wire: TopologyZone, at: str, problems: Problems) -> dict[str, Amounts3]:
    found: dict[str, Amounts3] = {}
    for place, resource in enumerate(wire.resources or ()):
        field = f"{at}.resources[{place}]"
        if not resource.name:
            problems.report_missing(f"{field}.name", "the name of a resource")
        elif resource.name in found:
            problems.add(f"{field}.name", resource.name, "each resource once")
        else:
            found[resource.name] = _resource(resource, field, problems)
    return found


def _resource(wire: ZoneResource, field: str, problems: Problems) -> Amounts3:
    """Capacity, allocatable and available. One that is missing is the next larger; a bad one is nothing."""

    def read(name: str) -> int | None:
        value = getattr(wire, name)
        amount = problems.amount(f"{field}[{wire.name}].{name}", wire.name, value)
        return 0 if amount is None and value is not None else amount

    capacity, allocatable, available = read("capacity"), read("allocatable"), read("available")
    if allocatable is None:
        allocatable = capacity or 0
    if capacity is None:
        capacity = allocatable
    if allocatable > capacity:
        problems.add(f"{field}[{wire.name}].allocatable", wire.allocatable, f"at most the capacity, {wire.capacity}")
        allocatable = capacity
    if available is None:
        available = allocatable
    elif available > allocatable:
        expected = f"at most what is allocatable, {wire.allocatable}"
        problems.add(f"{field}[{wire.name}].available", wire.available, expected)
        available = allocatable
    return capacity, allocatable, available


def _kubelet(nrt: NodeResourceTopology, version: tuple[int, int], present: set[str], problems: Problems) -> Kubelet:
    policy, scope = TopologyPolicy.NONE, Scope.CONTAINER
    if nrt.topology_policies:
        field = "topologyPolicies[0]"
        policy, scope = problems.choice(field, nrt.topology_policies[0], _DEPRECATED) or (policy, scope)
    options: dict[str, bool] = {}
    most = Kubelet().max_allowable_numa_nodes
    for at, attribute in enumerate(nrt.attributes or ()):
        field, value = f"attributes[{at}]({attribute.name})", str(attribute.value)
        option = OPTION.fullmatch(attribute.name)
        if attribute.name == "topologyManagerPolicy":
            policy = problems.choice(field, value, POLICIES) or policy
        elif attribute.name == "topologyManagerScope":
            scope = problems.choice(field, value, SCOPES) or scope
        elif attribute.name == _MAX_ZONES or (option and option[1].lower() == MAX_ALLOWABLE):
            most = problems.parse_whole_number(field, value) or most
        elif option and (flag := OPTIONS.get(option[1].lower())):
            options[flag] = value.lower() == "true"
    return Kubelet(
        version=version,
        policy=policy,
        scope=scope,
        static_cpu=CPU in present,
        static_memory=any(name == MEMORY or name.startswith(HUGEPAGES) for name in present),
        max_allowable_numa_nodes=most,
        **options,
    )

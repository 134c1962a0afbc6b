"""The hardware in a FlexTopo's graph, by NUMA zone (`crds.graph` has its words)."""

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from crds import graph
from engine.kubelet.devices.links import bits
from engine.kubelet.machine import Zone
from kube.topologies import Component, FlexTopoSpec
from ungater.numa.sources.checked import Problems


class FlexHardware(msgspec.Struct):
    """Zones by kubelet id; all maps are by that."""

    zones: tuple[int, ...]
    cpus: dict[int, int] = msgspec.field(default_factory=dict)  # masks
    sockets: dict[int, int] = msgspec.field(default_factory=dict)
    cores: dict[int, list[tuple[tuple[int, ...], int]]] = msgspec.field(default_factory=dict)  # (threads, L3)
    distances: dict[int, dict[int, int]] = msgspec.field(default_factory=dict)

    def mask(self, ids: Iterable[int] | None) -> int:
        """Zone ids as a mask of their places; ids that are none of the machine's are left out."""
        return sum(1 << self.zones.index(zone) for zone in {*(ids or ())} if zone in self.zones)

    def zone(self, zone: int) -> Zone:
        """One zone, as the engine has it."""
        distances = self.distances.get(zone, {})
        cores = sorted(self.cores.get(zone, ()))
        socket = self.sockets.get(zone, 0)
        # One core whose cache is not told is enough: which caches are shared cannot be counted then.
        whole = all(l3 >= 0 for _, l3 in cores)
        sharing = Counter[int]()
        for here in self.cores.values():
            for threads, l3 in here:
                sharing[l3] += len(threads)
        # Of a cache that as many CPUs share as the zone has, the kubelet hears nothing (cAdvisor's addCacheInfo keeps
        # that for the zone), and takes the socket for it (its getUncoreCacheID).
        caches = [socket if sharing[l3] == len(cores) * len(threads) else l3 for threads, l3 in cores]
        return Zone(
            id=zone,
            socket=socket,
            distances=tuple(distances[other] for other in self.zones) if set(distances) >= set(self.zones) else (),
            cores=tuple(threads for threads, _ in cores),
            uncore=tuple(caches) if whole else (),
        )


def hardware_of(spec: FlexTopoSpec, problems: Problems) -> FlexHardware:
    """What the graph says; no zones where it has none. Edges that make no sense are problems."""
    zones: dict[str, int] = {}
    parts: dict[str, Component] = {}
    found: dict[int, Component] = {}
    for at, component in enumerate(spec.nodes or ()):
        parts[component.id] = component
        if component.type == graph.NUMA_NODE:
            number = graph.zone_number(component.id)
            if number is None:
                problems.add(f"spec.nodes[{at}].id", component.id, "numa-<id> for a NUMANode")
            else:
                zones[component.id], found[number] = number, component
    hardware = FlexHardware(tuple(sorted(found)))
    for number, component in found.items():
        attributes = component.attributes or {}
        hardware.cpus[number] = problems.parse_cpu_set(
            f"spec.nodes[{component.id}].attributes.cpus", attributes.get("cpus")
        )
        if socket := attributes.get("socket"):
            place = f"spec.nodes[{component.id}].attributes.socket"
            hardware.sockets[number] = problems.parse_whole_number(place, socket) or 0
    _read_edges(spec, hardware, zones, parts, problems)
    return hardware


def _read_edges(
    spec: FlexTopoSpec,
    hardware: FlexHardware,
    zones: Mapping[str, int],
    parts: Mapping[str, Component],
    problems: Problems,
) -> None:
    zone_of: dict[str, int] = {}
    cores: list[tuple[str, str]] = []
    for at, edge in enumerate(spec.edges or ()):
        if edge.source not in parts or edge.target not in parts:
            unknown = edge.target if edge.source in parts else edge.source
            problems.add(f"spec.edges[{at}]", unknown, "the id of one of spec.nodes")
        elif edge.type == graph.LOCALIZED and edge.target in zones:
            zone_of[edge.source] = zones[edge.target]
        elif edge.type == graph.CONTAIN:
            cores.append((edge.source, edge.target))
        elif edge.type == graph.DISTANCE and edge.source in zones and edge.target in zones:
            place = f"spec.edges[{at}].attributes.distance"
            distance = problems.parse_whole_number(place, (edge.attributes or {}).get("distance", ""))
            if distance is not None:
                hardware.distances.setdefault(zones[edge.source], {})[zones[edge.target]] = distance
    for zone in hardware.distances:
        # The graph need not have an edge from a zone to itself.
        hardware.distances[zone].setdefault(zone, graph.LOCAL_DISTANCE)
    # After all edges were read: the one that places a group in its zone may come later than those to its cores.
    for group, core in cores:
        if group in zone_of:
            attributes = parts[core].attributes or {}
            place = f"spec.nodes[{core}].attributes.cpus"
            if not (mask := problems.parse_cpu_set(place, attributes.get("cpus"))):
                problems.report_missing(place, "the CPUs of the core, such as 0,64")
                continue
            l3 = attributes.get("l3", "")
            level = int(l3) if l3.isascii() and l3.isdigit() else -1
            hardware.cores.setdefault(zone_of[group], []).append((tuple(bits(mask)), level))


def roots_of(spec: FlexTopoSpec) -> dict[str, int]:
    """The zone of each PCIe root all of whose devices are near the same one."""
    names = {one.id: root for one in spec.nodes or () if (root := (one.attributes or {}).get(graph.PCIE_ROOT))}
    found: dict[str, set[int]] = {}
    for edge in spec.edges or ():
        zone = graph.zone_number(edge.target) if edge.type == graph.NEARBY else None
        if zone is not None and edge.source in names:
            found.setdefault(names[edge.source], set()).add(zone)
    return {root: zones.pop() for root, zones in found.items() if len(zones) == 1}

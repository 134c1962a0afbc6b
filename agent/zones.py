"""What each NUMA zone has, may give out and has left: NodeResourceTopology, as NFD spells it for all its readers.

Rules
- CPUs are there with the static CPU manager only, memory and hugepages with the Static memory manager only: that is how
  a reader knows what the kubelet aligns.
- Everything is in order, so that an unchanged machine is an unchanged object.
- Capacity counts unhealthy devices, allocatable does not.
"""

from collections.abc import Collection, Iterator
from typing import Any

from agent import fingerprint
from agent.kubelet.held import KubeletPod, KubeletState
from agent.machine.hardware import Hardware, MachineZone
from crds.numa_placement import zone_name

Json = dict[str, Any]

API_VERSION = "topology.node.k8s.io/v1alpha2"
KIND = "NodeResourceTopology"
LEGACY_POLICIES = {
    ("single-numa-node", "container"): "SingleNUMANodeContainerLevel",
    ("single-numa-node", "pod"): "SingleNUMANodePodLevel",
    ("restricted", "container"): "RestrictedContainerLevel",
    ("restricted", "pod"): "RestrictedPodLevel",
    ("best-effort", "container"): "BestEffortContainerLevel",
    ("best-effort", "pod"): "BestEffortPodLevel",
}


def topology(node: str, held: KubeletState, hardware: Hardware, pods: Collection[KubeletPod]) -> Json:
    """The object of this node."""
    config = held.config
    policy, scope = config.topology_manager_policy, config.topology_manager_scope
    options = config.topology_manager_policy_options or {}
    running = [(pod.namespace, pod.name) for pod in pods if not pod.finished]
    attributes = [
        ("topologyManagerPolicy", policy),
        ("topologyManagerScope", scope),
        *(
            (f"topologyManagerOption{''.join(word.capitalize() for word in option.split('-'))}", value)
            for option, value in sorted(options.items())
        ),
        (fingerprint.ATTRIBUTE, fingerprint.of_pods(running)),
        (fingerprint.METHOD_ATTRIBUTE, fingerprint.METHOD_ALL),
    ]
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": node},
        # For readers that are older than the attributes; where both are read, the attributes win.
        "topologyPolicies": [LEGACY_POLICIES.get((policy, scope), "None")],
        "attributes": [{"name": name, "value": value} for name, value in attributes],
        "zones": [
            {
                "name": zone_name(zone.id),
                "type": "Node",
                "costs": [{"name": zone_name(other), "value": cost} for other, cost in sorted(zone.distances.items())],
                "resources": [
                    {"name": name, "capacity": str(has), "allocatable": str(usable), "available": str(free)}
                    for name, has, usable, free in sorted(_resources(zone, held))
                ],
            }
            for zone in hardware.zones
        ],
    }


def _resources(zone: MachineZone, held: KubeletState) -> Iterator[tuple[str, int, int, int]]:
    """Name, capacity, allocatable and available."""
    if held.static_cpu and zone.cpus:
        # The default set has the reserved CPUs too, which no container ever gets for itself.
        usable = zone.cpus - held.reserved
        yield "cpu", len(zone.cpus), len(usable), len(usable & held.default)
    if held.static_memory and (node := held.memory_zones.get(zone.id)):
        for kind, table in (node.memory_map or {}).items():
            if table.total:
                # What the kernel says is installed; the kubelet's own figure where it says nothing.
                installed = zone.memory if kind == "memory" else zone.hugepages.get(kind, 0)
                yield kind, installed or table.total, table.allocatable, table.free
    for resource, devices in held.devices.items():
        here = [device for device in devices.values() if zone.id in device.zones]
        healthy = [device for device in here if device.healthy]
        if here:
            yield resource, len(here), len(healthy), len([device for device in healthy if device.owner is None])

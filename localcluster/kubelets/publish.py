"""What is told of a simulated machine: NodeResourceTopology, FlexTopo, and where each pod really sits.

Spelled as the real exporters spell them: `crds.graph` has the words of the graph, docs/api.md the fields.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from itertools import permutations
from typing import Any, NamedTuple

from crds import graph
from localcluster.kubelets.hardware import PlayedHardware, bits, cpu_list, mask_of
from localcluster.kubelets.kubelet import ContainerHolding, PlayedKubelet
from localcluster.kubelets.memory import MEMORY, PlayedBlock
from localcluster.kubelets.specs import GPU, NIC

NRT_API_VERSION = "topology.node.k8s.io/v1alpha2"
CORE_GROUP = 8
Json = dict[str, Any]


class PodName(NamedTuple):
    """Which pod a uid is."""

    namespace: str
    name: str


# --- observed placement ----------------------------------------------------------------------------------------------


def record(kubelet: PlayedKubelet, uid: str) -> str:
    """The observed placement of a pod as its annotation carries it; "" where the pod holds nothing for itself."""
    amounts: dict[int, dict[str, int]] = {}
    devices: dict[int, dict[str, list[str]]] = {}
    held = kubelet.held_by_container(uid)
    # A set over all containers: what an init container lends is counted once.
    cpus = mask_of(cpu for container in held.values() for cpu in bits(container.cpus))
    for position, zone_cpus in enumerate(kubelet.hardware.zone_cpus):
        if count := (cpus & zone_cpus).bit_count():
            amounts.setdefault(position, {})["cpu"] = count
    for block in (block for container in held.values() for block in container.memory):
        for position, size in _shares(block):
            of = amounts.setdefault(position, {})
            of[block.type] = of.get(block.type, 0) + size
    for resource in kubelet.devices.devices:
        # The same: lent devices are in two containers' hands.
        for device in sorted({d for c in held.values() for d in (c.devices or {}).get(resource, ())}):
            zones = kubelet.devices.zones_of_device(resource, device)
            if zones:
                # A device of several zones counts in the lowest, so that amounts add up to the devices.
                lowest = (zones & -zones).bit_length() - 1
                of = amounts.setdefault(lowest, {})
                of[resource] = of.get(resource, 0) + 1
                devices.setdefault(lowest, {}).setdefault(resource, []).append(device)
    entries = []
    for position, of in sorted(amounts.items()):
        entry: Json = {"zone": f"node-{kubelet.hardware.zones[position].id}"}
        entry["amount"] = {resource: str(amount) for resource, amount in sorted(of.items())}
        if position in devices:
            entry["devices"] = devices[position]
        entries.append(entry)
    return json.dumps(entries, separators=(",", ":")) if entries else ""


def _shares(block: PlayedBlock) -> Iterator[tuple[int, int]]:
    """What each zone gave: as it was taken, less what a later container of the pod uses again."""
    left, zones = block.size, list(bits(block.zones))
    for position in zones:
        # The last zone gets the rest, so that the shares always add up to the block.
        share = left if position == zones[-1] else min(left, block.taken.get(position, 0))
        if share:
            yield position, share
            left -= share


# --- checkpoint: what a restarted process takes over ------------------------------------------------------------------


def checkpoint(kubelet: PlayedKubelet, uid: str, order: int) -> str:
    """What a pod's containers hold, and when it was admitted."""
    ids = kubelet.hardware.zone_ids
    held = {
        name: {
            **({"cpus": cpu_list(container.cpus)} if container.cpus else {}),
            **({"devices": {r: sorted(d) for r, d in container.devices.items()}} if container.devices else {}),
            **({"memory": [[b.type, ids(b.zones), b.size] for b in container.memory]} if container.memory else {}),
        }
        for name, container in kubelet.held_by_container(uid).items()
    }
    return json.dumps({"order": order, "held": held}, separators=(",", ":"))


# --- NodeResourceTopology --------------------------------------------------------------------------------------------


def node_resource_topology(node: str, kubelet: PlayedKubelet) -> Json:
    """The object, as NFD's topology-updater would publish it."""
    settings = kubelet.settings
    attributes = {"topologyManagerPolicy": settings.policy, "topologyManagerScope": settings.scope}
    for option in sorted(settings.topology_options):
        attributes[f"topologyManagerOption{''.join(map(str.capitalize, option.split('-')))}"] = "true"
    zones = kubelet.hardware.zones
    return {
        "apiVersion": NRT_API_VERSION,
        "kind": "NodeResourceTopology",
        "metadata": {"name": node},
        "attributes": [{"name": name, "value": value} for name, value in attributes.items()],
        "zones": [
            {
                "name": f"node-{zone.id}",
                "type": "Node",
                "costs": [
                    {"name": f"node-{other.id}", "value": cost}
                    for other, cost in zip(zones, zone.distances, strict=True)
                ],
                "resources": [
                    {"name": name, "capacity": str(have), "allocatable": str(can), "available": str(left)}
                    for name, have, can, left in _resources(kubelet, position)
                ],
            }
            for position, zone in enumerate(zones)
        ],
    }


def _resources(kubelet: PlayedKubelet, position: int) -> Iterator[tuple[str, int, int, int]]:
    """Name, capacity, allocatable, available of one zone."""
    hardware, zone = kubelet.hardware, kubelet.hardware.zones[position]
    if kubelet.settings.static_cpu and (cpus := hardware.zone_cpus[position]):
        allocatable = cpus & ~hardware.reserved_cpus
        yield "cpu", cpus.bit_count(), allocatable.bit_count(), (cpus & kubelet.cpus.free_cpus).bit_count()
    for resource, devices in sorted(hardware.devices.items()):
        here = {d.id for d in devices if zone.id in d.zones}
        # NFD publishes a resource only in zones that have a device of it.
        if here:
            healthy = {d.id for d in devices if d.healthy} & here
            yield resource, len(here), len(healthy), len(kubelet.devices.free_ids(resource) & here)
    if kubelet.settings.static_memory:
        state = kubelet.memory.zones[position]
        for kind in sorted(state.allocatable):
            total = zone.memory if kind == MEMORY else zone.hugepages[kind]
            yield kind, total, state.allocatable[kind], state.free[kind]


# --- FlexTopo --------------------------------------------------------------------------------------------------------


def flex_topo_spec(hardware: PlayedHardware) -> Json:
    """The graph of the hardware."""
    sockets = sorted({zone.socket for zone in hardware.zones})
    nodes: list[Json] = [{"id": graph.socket_id(socket), "type": graph.SOCKET} for socket in sockets]
    edges: list[Json] = []

    def node(name: str, kind: str, **attributes: object) -> None:
        nodes.append({"id": name, "type": kind, "attributes": {key: str(value) for key, value in attributes.items()}})

    def edge(source: str, target: str, kind: str, **attributes: object) -> None:
        known = {"attributes": {key: str(value) for key, value in attributes.items()}} if attributes else {}
        edges.append({"source": source, "target": target, "type": kind, **known})

    for zone, cpus in zip(hardware.zones, hardware.zone_cpus, strict=True):
        name = graph.zone_id(zone.id)
        attributes = {"cpus": cpu_list(cpus), "memory": zone.memory, **zone.hugepages}
        node(name, graph.NUMA_NODE, **attributes, **({"socket": zone.socket} if cpus else {}))
        for start in range(0, len(zone.cores), CORE_GROUP):
            cores = zone.cores[start : start + CORE_GROUP]
            members = mask_of(cpu for core in cores for cpu in core.cpus)
            group = graph.group_id(next(bits(members)))
            node(group, graph.CORE_GROUP, cpus=cpu_list(members))
            edge(graph.socket_id(zone.socket), group, graph.HOST)
            edge(group, name, graph.LOCALIZED)
            for core in cores:
                known = {} if core.uncore is None else {"l3": core.uncore}
                node(graph.core_id(min(core.cpus)), graph.CORE, cpus=cpu_list(mask_of(iter(core.cpus))), **known)
                edge(group, graph.core_id(min(core.cpus)), graph.CONTAIN)
    for (one, zone), (two, other) in permutations(enumerate(hardware.zones), 2):
        if hardware.zones[one].distances:
            distance = hardware.zones[one].distances[two]
            edge(graph.zone_id(zone.id), graph.zone_id(other.id), graph.DISTANCE, distance=distance)
    for resource, devices in sorted(hardware.devices.items()):
        for index, device in enumerate(devices):
            kind = {GPU: graph.GPU, NIC: graph.NIC}.get(resource, graph.PCI_DEVICE)
            name = graph.device_id(kind, device.id)
            node(name, kind, **({"uuid": device.id, "index": index} if kind == graph.GPU else {"names": device.id}))
            for zone_id in device.zones:
                edge(name, graph.zone_id(zone_id), graph.NEARBY)
    return {"coreGroupSize": CORE_GROUP, "nodes": nodes, "edges": edges}


def flex_topo_status(kubelet: PlayedKubelet, pods: Mapping[str, PodName]) -> Json:
    """The kubelet's whole state, as the agent reads it from the kubelet's files. ``conditions`` is the caller's."""
    settings, hardware = kubelet.settings, kubelet.hardware
    status: Json = {
        "kubelet": {
            "version": settings.version,
            "topologyManagerPolicy": settings.policy,
            "topologyManagerScope": settings.scope,
            "topologyManagerPolicyOptions": dict.fromkeys(sorted(settings.topology_options), "true"),
            "cpuManagerPolicy": "static" if settings.static_cpu else "none",
            "cpuManagerPolicyOptions": dict.fromkeys(sorted(settings.cpu_options), "true"),
            "memoryManagerPolicy": "Static" if settings.static_memory else "None",
            "threadsPerCore": hardware.threads,
            "onlineCpus": cpu_list(hardware.cpus),
            "reservedCpus": cpu_list(hardware.reserved_cpus),
        }
    }
    holders: list[tuple[Json, ContainerHolding]] = []
    for uid in sorted({*kubelet.cpus.held, *kubelet.devices.held, *kubelet.memory.held}):
        known = pods.get(uid)
        pod = {"podUid": uid, **({"namespace": known.namespace, "pod": known.name} if known else {})}
        holders += (({**pod, "container": name}, held) for name, held in kubelet.held_by_container(uid).items())
    if settings.static_cpu:
        status["cpus"] = {
            "defaultSet": cpu_list(kubelet.cpus.default),
            "assignments": [{**holder, "cpus": cpu_list(held.cpus)} for holder, held in holders if held.cpus],
        }
    if settings.static_memory:
        status["memory"] = {
            "zones": [_memory_zone(kubelet, position) for position in range(len(hardware.zones))],
            "assignments": [
                {**holder, "type": block.type, "zones": hardware.zone_ids(block.zones), "size": block.size}
                for holder, held in holders
                for block in held.memory
            ],
        }
    status["devices"] = [
        {"resource": resource, "devices": _device_states(kubelet, resource, holders)}
        for resource in sorted(hardware.devices)
    ]
    return status


def _memory_zone(kubelet: PlayedKubelet, position: int) -> Json:
    zone, state = kubelet.hardware.zones[position], kubelet.memory.zones[position]
    return {
        "zone": zone.id,
        "assignments": state.assignments,
        "cells": kubelet.hardware.zone_ids(state.cells),
        "amounts": [
            {
                "type": kind,
                "total": zone.memory if kind == MEMORY else zone.hugepages[kind],
                "systemReserved": zone.reserved_memory if kind == MEMORY else 0,
                "allocatable": state.allocatable[kind],
                "reserved": state.allocatable[kind] - state.free[kind],
                "free": state.free[kind],
            }
            for kind in sorted(state.allocatable)
        ],
    }


def _device_states(
    kubelet: PlayedKubelet, resource: str, holders: Collection[tuple[Json, ContainerHolding]]
) -> list[Json]:
    used = {device: holder for holder, held in holders for device in (held.devices or {}).get(resource, ())}
    return [
        {
            "id": device.id,
            "healthy": device.healthy,
            **({"zones": list(device.zones)} if device.zones else {}),
            **({"usedBy": used[device.id]} if device.id in used else {}),
        }
        for device in kubelet.hardware.devices[resource]
    ]

"""A kubelet's outside: its directory with configuration and state files, and its podresources API on a socket.

It decides nothing: a test says who holds what. Files are replaced by renaming, as the kubelet does; the API leaves
ordinary init containers out, and gives a device of several zones once for each.
"""

import json
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import yaml

from agent.machine import cpuset
from agent.podresources import api_pb2 as api

GIB = 1024**3
CONFIG = {
    "topologyManagerPolicy": "restricted",
    "topologyManagerScope": "pod",
    "topologyManagerPolicyOptions": {"prefer-closest-numa-nodes": "true"},
    "cpuManagerPolicy": "static",
    "cpuManagerPolicyOptions": {"full-pcpus-only": "true"},
    "memoryManagerPolicy": "Static",
    "reservedSystemCPUs": "0",
}


@dataclass
class Holding:
    """What one container holds: CPUs, memory blocks (type, zones, bytes), devices by resource."""

    namespace: str
    pod: str
    cpus: str = ""
    memory: tuple = ()
    devices: dict = field(default_factory=dict)
    init: bool = False


@dataclass
class Kubelet:
    """``zones``: zone -> bytes of memory; ``devices``: resource -> id -> zones; ``sick``: ids that are unhealthy."""

    folder: Path
    cpus: str
    zones: dict
    reserved: str = "0"
    reserved_memory: int = GIB
    devices: dict = field(default_factory=dict)
    sick: set = field(default_factory=set)
    config: dict = field(default_factory=lambda: dict(CONFIG))
    held: dict = field(default_factory=dict)  # (uid, container) -> Holding
    starting: bool = False  # a kubelet that starts lists no pod yet
    late: set = field(default_factory=set)  # resources whose plugin is not registered yet

    def __post_init__(self):
        (self.folder / "device-plugins").mkdir(parents=True)
        (self.folder / "pod-resources").mkdir()
        self.write()

    @property
    def socket(self):
        return self.folder / "pod-resources" / "kubelet.sock"

    def hold(self, uid, container="main", **what):
        self.held[uid, container] = Holding(**what)
        self.write()

    def drop(self, uid):
        self.held = {owner: holding for owner, holding in self.held.items() if owner[0] != uid}
        self.write()

    # --- files -----------------------------------------------------------------------------------------------------

    def write(self):
        self.replace("config.yaml", yaml.safe_dump({"kind": "KubeletConfiguration", "maxPods": 110, **self.config}))
        self.replace("cpu_manager_state", json.dumps(self.cpu_state()))
        self.replace("memory_manager_state", json.dumps(self.memory_state()))
        self.replace("device-plugins/kubelet_internal_checkpoint", json.dumps(self.device_state()))

    def replace(self, name, text):
        path = self.folder / name
        draft = path.with_name(f".{path.name}.tmp")
        draft.write_text(text)
        draft.replace(path)

    def cpu_state(self):
        taken = cpuset.parse(",".join(filter(None, (holding.cpus for holding in self.held.values()))))
        return {
            "policyName": self.config["cpuManagerPolicy"],
            "defaultCpuSet": cpuset.render(cpuset.parse(self.cpus) - taken),
            "entries": self.entries(lambda holding: holding.cpus),
            "checksum": 1,
        }

    def memory_state(self):
        machine = {str(zone): self.memory_zone(zone) for zone in self.zones}
        blocks = [block for holding in self.held.values() for block in holding.memory]
        for kind, affinity, size in blocks:
            rest = size
            for zone in affinity:
                node = machine[str(zone)]
                node["numberOfAssignments"] += 1
                node["cells"] = list(affinity)
                table = node["memoryMap"][kind]
                part = min(rest, table["free"])
                table["free"] -= part
                table["reserved"] += part
                rest -= part
        return {
            "policyName": self.config["memoryManagerPolicy"],
            "machineState": machine,
            "entries": self.entries(
                lambda holding: [
                    {"numaAffinity": list(affinity), "type": kind, "size": size}
                    for kind, affinity, size in holding.memory
                ]
            ),
            "checksum": 2,
        }

    def memory_zone(self, zone):
        total = self.zones[zone]
        allocatable = total - self.reserved_memory
        table = {
            "total": total,
            "systemReserved": self.reserved_memory,
            "allocatable": allocatable,
            "reserved": 0,
            "free": allocatable,
        }
        return {"numberOfAssignments": 0, "memoryMap": {"memory": table}, "nodes": None, "cells": [zone]}

    def device_state(self):
        entries = []
        for (uid, container), holding in self.held.items():
            for resource, ids in holding.devices.items():
                by_zone = {}
                for name in ids:
                    for zone in self.devices[resource][name] or (-1,):
                        by_zone.setdefault(str(zone), []).append(name)
                entries.append(
                    {
                        "PodUID": uid,
                        "ContainerName": container,
                        "ResourceName": resource,
                        "DeviceIDs": by_zone,
                        "AllocResp": "",
                    }
                )
        registered = {resource: sorted(set(ids) - self.sick) for resource, ids in self.devices.items()}
        return {"Data": {"PodDeviceEntries": entries, "RegisteredDevices": registered}, "Checksum": 3}

    def entries(self, of):
        entries = {}
        for (uid, container), holding in self.held.items():
            if found := of(holding):
                entries.setdefault(uid, {})[container] = found
        return entries

    # --- podresources ----------------------------------------------------------------------------------------------

    @contextmanager
    def serving(self, port=None):
        """Serve the API while the block runs. In this process, so a test may change what it says at any moment."""
        server = grpc.server(futures.ThreadPoolExecutor(2))
        methods = {
            "List": grpc.unary_unary_rpc_method_handler(
                lambda _request, _context: self.listed(),
                request_deserializer=api.ListPodResourcesRequest.FromString,
                response_serializer=api.ListPodResourcesResponse.SerializeToString,
            ),
            "GetAllocatableResources": grpc.unary_unary_rpc_method_handler(
                lambda _request, _context: self.allocatable(),
                request_deserializer=api.AllocatableResourcesRequest.FromString,
                response_serializer=api.AllocatableResourcesResponse.SerializeToString,
            ),
        }
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("v1.PodResourcesLister", methods)])
        assert server.add_insecure_port(f"unix:{self.socket}")
        server.start()
        try:
            yield self
        finally:
            server.stop(None).wait()
            if self.socket.exists():
                self.socket.unlink()

    def listed(self):
        pods = {}
        for (_uid, container), holding in {} if self.starting else self.held.items():
            containers = pods.setdefault((holding.namespace, holding.pod), [])
            if not holding.init:
                containers.append(self.container(container, holding))
        return api.ListPodResourcesResponse(
            pod_resources=[
                api.PodResources(namespace=namespace, name=name, containers=containers)
                for (namespace, name), containers in pods.items()
            ]
        )

    def container(self, name, holding):
        return api.ContainerResources(
            name=name,
            cpu_ids=sorted(cpuset.parse(holding.cpus)),
            memory=[
                api.ContainerMemory(memory_type=kind, size=size, topology=topology(zones))
                for kind, zones, size in holding.memory
            ],
            devices=[
                each
                for resource, ids in holding.devices.items()
                for name in ids
                for each in self.device(resource, name)
            ],
        )

    def device(self, resource, name):
        zones = self.devices[resource][name]
        if not zones:
            return [api.ContainerDevices(resource_name=resource, device_ids=[name])]
        return [
            api.ContainerDevices(resource_name=resource, device_ids=[name], topology=topology([zone])) for zone in zones
        ]

    def allocatable(self):
        static = self.config["memoryManagerPolicy"] == "Static"
        usable = cpuset.parse(self.cpus) - cpuset.parse(self.reserved)
        return api.AllocatableResourcesResponse(
            cpu_ids=sorted(usable) if self.config["cpuManagerPolicy"] == "static" else [],
            memory=[
                api.ContainerMemory(memory_type="memory", size=size - self.reserved_memory, topology=topology([zone]))
                for zone, size in self.zones.items()
                if static
            ],
            devices=[
                each
                for resource, ids in self.devices.items()
                if resource not in self.late
                for name in ids
                if name not in self.sick
                for each in self.device(resource, name)
            ],
        )


def topology(zones):
    return api.TopologyInfo(nodes=[api.NUMANode(ID=zone) for zone in zones])

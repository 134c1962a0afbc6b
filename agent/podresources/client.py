"""What the kubelet's podresources API says: all pods' exclusive resources, and all that may be given out.

The answer has no pod uids and leaves ordinary init containers out; a device of several zones comes once for each.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import grpc
import msgspec
from google.protobuf.message import Message

from agent.machine.cpuset import Cpus
from agent.podresources import api_pb2 as api

M = TypeVar("M", bound=Message)

# As the kubelet's own clients have it. gRPC's default of 4 MiB is too little for nodes with very many devices.
MAX_MESSAGE = 16 * 1024 * 1024
TIMEOUT_SECONDS = 5.0
_SERVICE = "/v1.PodResourcesLister/"
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.enable_http_proxy", 0),
    ("grpc.default_authority", "localhost"),  # the kubelet's server refuses what a socket's path would make
    # gRPC shares connections by address among a process's channels: a channel made right after another was closed
    # would meet that one's failure and wait of up to a second, although the kubelet answers by now.
    ("grpc.use_local_subchannel_pool", 1),
)

Zones = tuple[int, ...]
DeviceZones = dict[str, Zones]  # device id -> its zones, ascending; () for none


class Unavailable(Exception):  # noqa: N818 -- reads as what it is
    """The kubelet does not answer; the text says why."""


class GrantedMemory(msgspec.Struct, frozen=True):
    """Memory of one type from these zones, in bytes."""

    type: str
    size: int
    zones: Zones


class GrantedResources(msgspec.Struct, frozen=True):
    """What one container holds, or what may be given out: devices by resource."""

    cpus: Cpus = frozenset()
    memory: tuple[GrantedMemory, ...] = ()
    devices: Mapping[str, DeviceZones] = msgspec.field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.cpus or self.memory or self.devices)


PodKey = tuple[str, str]  # namespace, name


class PodResources(msgspec.Struct, frozen=True):
    """Both calls: pod -> container -> what it holds; and what may be given out."""

    pods: Mapping[PodKey, Mapping[str, GrantedResources]]
    allocatable: GrantedResources


class KubeletClient:
    """Calls one kubelet by its socket. A connection is made when it is needed, and made again when it broke."""

    def __init__(self, socket: Path, timeout: float = TIMEOUT_SECONDS) -> None:
        self._socket = socket
        self._timeout = timeout
        self._channel: grpc.Channel | None = None

    def read(self) -> PodResources:
        """Ask the kubelet; blocks for at most twice the timeout. Raises Unavailable."""
        pods = self._call("List", api.ListPodResourcesRequest(), api.ListPodResourcesResponse.FromString)
        given = self._call(
            "GetAllocatableResources", api.AllocatableResourcesRequest(), api.AllocatableResourcesResponse.FromString
        )
        return PodResources(
            pods={
                (pod.namespace, pod.name): {container.name: resources(container) for container in pod.containers}
                for pod in pods.pod_resources
            },
            allocatable=resources(given),
        )

    def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _call(self, method: str, request: Message, parse: Callable[[bytes], M]) -> M:
        if not self._socket.exists():
            raise Unavailable(f"{self._socket}: no such socket")
        if self._channel is None:
            self._channel = grpc.insecure_channel(f"unix:{self._socket.absolute()}", options=_OPTIONS)
        ask = self._channel.unary_unary(
            _SERVICE + method, request_serializer=type(request).SerializeToString, response_deserializer=parse
        )
        try:
            return ask(request, timeout=self._timeout)
        except grpc.RpcError as error:
            self.close()  # the next call connects at once, without the wait that gRPC puts between attempts
            details = getattr(error, "details", None)  # of an answered or failed call, which every one here is
            raise Unavailable(f"{self._socket}: {method}: {details() if details else error}") from error


def resources(found: api.ContainerResources | api.AllocatableResourcesResponse) -> GrantedResources:
    """The message's content, in order."""
    devices: dict[str, dict[str, set[int]]] = {}
    for each in found.devices:
        of = devices.setdefault(each.resource_name, {})
        for device in each.device_ids:
            of.setdefault(device, set()).update(_zones_of_topology(each.topology))
    return GrantedResources(
        cpus=frozenset(found.cpu_ids),
        memory=tuple(
            GrantedMemory(block.memory_type, block.size, _zones_of_topology(block.topology))
            for block in sorted(found.memory, key=lambda block: (block.memory_type, _zones_of_topology(block.topology)))
        ),
        devices={
            resource: {device: tuple(sorted(of[device])) for device in sorted(of)}
            for resource, of in sorted(devices.items())
        },
    )


def _zones_of_topology(topology: api.TopologyInfo) -> Zones:
    return tuple(sorted(node.ID for node in topology.nodes))

"""What is not real, over gRPC: the container runtime's socket, and the device plugins' with their registration."""

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from localcluster.kubelets.hardware import PlayedDevice
from localcluster.real import cri_pb2 as cri
from localcluster.real import device_plugin_pb2 as plugin
from localcluster.real.containers import Runtime, UnknownIdError

# A kubelet stops containers side by side, and each stop may take its time.
THREADS = 32
VERSION = "v1beta1"
KUBELET_SOCKET = "kubelet.sock"
REGISTER_SECONDS = 5.0
# What a socket's path would make of the authority is refused; a proxy has no business here.
_OPTIONS = (("grpc.default_authority", "localhost"), ("grpc.enable_http_proxy", 0))

Answer = Callable[[Any], Any]


def serve_runtime(runtime: Runtime, socket: Path) -> grpc.Server:
    """Answer the kubelet's calls at ``socket`` until the server is stopped."""
    server = _server(socket, THREADS)
    for service in ("RuntimeService", "ImageService"):
        described = cri.DESCRIPTOR.services_by_name[service]
        # Every call is answered by the method that has its name with underscores.
        handlers = {
            method.name: _unary(method, getattr(runtime, re.sub(r"(?<!^)(?=[A-Z])", "_", method.name).lower()))
            for method in described.methods
        }
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(described.full_name, handlers)])
    server.start()
    return server


def _unary(method: MethodDescriptor, answer: Answer) -> "grpc.RpcMethodHandler[Any, Any]":
    def call(request: Message, context: grpc.ServicerContext) -> Any:
        try:
            return answer(request)
        except UnknownIdError as error:
            context.abort(grpc.StatusCode.NOT_FOUND, str(error))

    request, response = (message_factory.GetMessageClass(each) for each in (method.input_type, method.output_type))
    return grpc.unary_unary_rpc_method_handler(
        call, request_deserializer=request.FromString, response_serializer=response.SerializeToString
    )


class DevicePlugin:
    """The plugin of one resource. Which devices are sick may change; the kubelet is told at once."""

    def __init__(self, resource: str, devices: Sequence[PlayedDevice], folder: Path) -> None:
        """``folder``: the kubelet's folder of device plugins."""
        self.resource = resource
        self._devices = devices
        self._folder = folder
        self._endpoint = f"{resource.replace('/', '-')}.sock"
        self._sick: frozenset[str] = frozenset()
        self._changed = threading.Condition()
        self._stopped = False
        self._told = threading.Event()
        self._server: grpc.Server | None = None

    def serve(self) -> None:
        """Listen, anew where it listened before: a kubelet that starts empties the folder."""
        if self._server is not None:
            self.close()
        # Before the new server: its watches would end at once otherwise.
        self._stopped = False
        self._told.clear()
        self._server = _server(self._folder / self._endpoint, 4)
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(_PLUGIN, self._methods())])
        self._server.start()

    def register(self) -> None:
        """Tell the kubelet. Raises grpc.RpcError."""
        request = plugin.RegisterRequest(
            version=VERSION, endpoint=self._endpoint, resource_name=self.resource, options=plugin.DevicePluginOptions()
        )
        with grpc.insecure_channel(f"unix:{self._folder / KUBELET_SOCKET}", options=_OPTIONS) as channel:
            call = channel.unary_unary(
                f"/{VERSION}.Registration/Register",
                request_serializer=plugin.RegisterRequest.SerializeToString,
                response_deserializer=plugin.Empty.FromString,
            )
            call(request, timeout=REGISTER_SECONDS)

    def wait_told(self, seconds: float) -> bool:
        """Whether the kubelet that it registered with has asked for the devices, within so long."""
        return self._told.wait(seconds)

    def set_sick(self, ids: frozenset[str]) -> None:
        """These of the devices are unhealthy, and no others."""
        with self._changed:
            self._sick = ids
            self._changed.notify_all()

    def close(self) -> None:
        """Stop listening."""
        with self._changed:
            # Before the server is stopped: a watch that waits in its thread would not notice.
            self._stopped = True
            self._changed.notify_all()
        if self._server is not None:
            self._server.stop(None).wait()
            self._server = None

    def _methods(self) -> "dict[str, grpc.RpcMethodHandler[Any, Any]]":
        described = plugin.DESCRIPTOR.services_by_name["DevicePlugin"].methods_by_name
        return {
            "GetDevicePluginOptions": _unary(
                described["GetDevicePluginOptions"], lambda _: plugin.DevicePluginOptions()
            ),
            "Allocate": _unary(described["Allocate"], _allocate),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                self._watch,
                request_deserializer=plugin.Empty.FromString,
                response_serializer=plugin.ListAndWatchResponse.SerializeToString,
            ),
        }

    def _watch(self, _: plugin.Empty, context: grpc.ServicerContext) -> Iterator[plugin.ListAndWatchResponse]:
        told: frozenset[str] | None = None
        # Called when the kubelet goes away. Otherwise the thread of this watch waits for ever.
        context.add_callback(self._wake)
        while True:
            with self._changed:
                # The first list is sent at once: nothing was told yet.
                while self._sick == told and not self._stopped and context.is_active():
                    self._changed.wait()
                if self._stopped or not context.is_active():
                    return
                told = self._sick
            yield plugin.ListAndWatchResponse(devices=[_device(each, each.id in told) for each in self._devices])
            # After the list is handed over: the generator goes on only then.
            self._told.set()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


_PLUGIN = plugin.DESCRIPTOR.services_by_name["DevicePlugin"].full_name


def _allocate(request: plugin.AllocateRequest) -> plugin.AllocateResponse:
    answers = [
        plugin.ContainerAllocateResponse(envs={"TOPOGATE_DEVICES": ",".join(each.devices_ids)})
        for each in request.container_requests
    ]
    return plugin.AllocateResponse(container_responses=answers)


def _device(device: PlayedDevice, sick: bool) -> plugin.Device:
    zones = [plugin.NUMANode(ID=zone) for zone in device.zones]
    topology = plugin.TopologyInfo(nodes=zones) if zones else None
    healthy = device.healthy and not sick
    return plugin.Device(ID=device.id, health="Healthy" if healthy else "Unhealthy", topology=topology)


def _server(socket: Path, threads: int) -> grpc.Server:
    """A server on a socket whose file of an earlier time is out of the way."""
    socket.parent.mkdir(parents=True, exist_ok=True)
    socket.unlink(missing_ok=True)
    server = grpc.server(ThreadPoolExecutor(threads, thread_name_prefix=socket.name))
    server.add_insecure_port(f"unix:{socket}")
    return server

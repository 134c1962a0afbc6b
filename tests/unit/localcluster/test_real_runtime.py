"""The container runtime without containers: what it says of sandboxes and containers, and when they end."""

import threading
from contextlib import suppress

import grpc
import pytest
from google.protobuf import message_factory

from clock import Clock
from localcluster.kubelets.hardware import PlayedDevice
from localcluster.real import cri_pb2 as cri
from localcluster.real import device_plugin_pb2 as plugin
from localcluster.real.containers import Runtime, UnknownIdError, planned
from localcluster.real.serving import DevicePlugin, serve_runtime

POD = "topogate.dev/"


class Time:
    def __init__(self):
        self.seconds = 1000.0

    def clock(self):
        return Clock(now=lambda: self.seconds, monotonic=lambda: self.seconds)


@pytest.fixture
def time():
    return Time()


@pytest.fixture
def runtime(tmp_path, time):
    return Runtime(tmp_path / "records", time.clock())


def sandbox(runtime, name="p", network=cri.POD, **annotations):
    linux = cri.LinuxPodSandboxConfig(
        security_context=cri.LinuxSandboxSecurityContext(namespace_options=cri.NamespaceOption(network=network))
    )
    config = cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name=name, uid=f"uid-{name}"),
        labels={"pod": name},
        annotations={f"{POD}{key.replace('_', '-')}": value for key, value in annotations.items()},
        linux=linux,
    )
    return runtime.run_pod_sandbox(cri.RunPodSandboxRequest(config=config)).pod_sandbox_id


def container(runtime, sandbox, name="main", command=(), start=True):
    config = cri.ContainerConfig(
        metadata=cri.ContainerMetadata(name=name), image=cri.ImageSpec(image="i"), command=command, labels={"c": name}
    )
    request = cri.CreateContainerRequest(pod_sandbox_id=sandbox, config=config)
    made = runtime.create_container(request).container_id
    if start:
        runtime.start_container(cri.StartContainerRequest(container_id=made))
    return made


def state(runtime, key):
    return runtime.container_status(cri.ContainerStatusRequest(container_id=key)).status


@pytest.mark.parametrize(
    ("command", "annotations", "plan"),
    [
        ([], {}, (None, 0)),
        (["nginx"], {}, (None, 0)),
        (["sleep", "2.5"], {}, (2.5, 0)),
        (["sleep", "for ever"], {}, (None, 0)),
        (["true"], {}, (0.0, 0)),
        (["false"], {}, (0.0, 1)),
        ([], {"run-seconds": "5"}, (5.0, 0)),
        (["sleep", "1"], {"run-seconds": "5"}, (1.0, 0)),
        ([], {"run-seconds": "5", "fail-after-seconds": "3"}, (3.0, 1)),
        ([], {"fail-after-seconds": "3", "exit-code": "42"}, (3.0, 42)),
        ([], {"run-seconds": "-1"}, (None, 0)),
        ([], {"run-seconds": "soon"}, (None, 0)),
    ],
)
def test_how_a_container_ends(command, annotations, plan):
    assert planned(command, {f"{POD}{key}": value for key, value in annotations.items()}) == plan


def test_a_container_runs_until_its_time(runtime, time):
    key = container(runtime, sandbox(runtime), command=["sleep", "3"], start=False)
    assert state(runtime, key).state == cri.CONTAINER_CREATED
    runtime.start_container(cri.StartContainerRequest(container_id=key))
    time.seconds += 2.9
    assert (state(runtime, key).state, state(runtime, key).finished_at) == (cri.CONTAINER_RUNNING, 0)
    time.seconds += 0.2
    ended = state(runtime, key)
    assert (ended.state, ended.exit_code, ended.reason) == (cri.CONTAINER_EXITED, 0, "Completed")
    assert ended.finished_at - ended.started_at == 3_000_000_000


def test_containers_outlive_the_process_that_speaks_for_them(runtime, time, tmp_path):
    pod = sandbox(runtime, run_seconds="10")
    key = container(runtime, pod)
    time.seconds += 11
    again = Runtime(tmp_path / "records", time.clock())
    assert state(again, key).state == cri.CONTAINER_EXITED
    assert state(again, key) == state(runtime, key)
    assert [each.id for each in again.list_pod_sandbox(cri.ListPodSandboxRequest()).items] == [pod]


def test_what_is_stopped_has_ended_and_what_had_ended_stays_as_it_was(runtime, time):
    pod = sandbox(runtime)
    running, done = container(runtime, pod), container(runtime, pod, "done", ["true"])
    time.seconds += 1
    runtime.stop_container(cri.StopContainerRequest(container_id=running, timeout=30))
    runtime.stop_pod_sandbox(cri.StopPodSandboxRequest(pod_sandbox_id=pod))
    assert (state(runtime, running).exit_code, state(runtime, running).reason) == (143, "Error")
    assert (state(runtime, done).exit_code, state(runtime, done).reason) == (0, "Completed")
    status = runtime.pod_sandbox_status(cri.PodSandboxStatusRequest(pod_sandbox_id=pod)).status
    assert status.state == cri.SANDBOX_NOTREADY
    runtime.remove_pod_sandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=pod))
    with pytest.raises(UnknownIdError):
        state(runtime, running)
    runtime.remove_container(cri.RemoveContainerRequest(container_id=running))  # twice is no error
    runtime.stop_container(cri.StopContainerRequest(container_id=running))


def test_a_sandbox_that_is_killed_takes_its_containers_along(runtime):
    pod = sandbox(runtime)
    key = container(runtime, pod)
    runtime.stop_pod_sandbox(cri.StopPodSandboxRequest(pod_sandbox_id=pod))
    assert state(runtime, key).exit_code == 137


def test_each_pod_has_an_address_unless_it_is_the_hosts(runtime):
    pods = [sandbox(runtime, str(number)) for number in range(3)] + [sandbox(runtime, "host", network=cri.NODE)]
    found = [runtime.pod_sandbox_status(cri.PodSandboxStatusRequest(pod_sandbox_id=pod)).status for pod in pods]
    assert len({each.network.ip for each in found[:3]}) == 3
    assert found[3].network.ip == ""
    # The kubelet makes a sandbox anew whose network is not the one that it asked for.
    assert [each.linux.namespaces.options.network for each in found] == [cri.POD] * 3 + [cri.NODE]


def test_filters(runtime, time):
    one, other = sandbox(runtime, "one"), sandbox(runtime, "other")
    ended, running = container(runtime, one, "a", ["true"]), container(runtime, other, "b")
    time.seconds += 1

    def listed(**wanted):
        request = cri.ListContainersRequest(filter=cri.ContainerFilter(**wanted))
        return [each.id for each in runtime.list_containers(request).containers]

    assert listed() == [ended, running]
    assert listed(pod_sandbox_id=one) == [ended]
    assert listed(state=cri.ContainerStateValue(state=cri.CONTAINER_RUNNING)) == [running]
    assert listed(label_selector={"c": "b"}) == [running]
    wanted = cri.PodSandboxFilter(label_selector={"pod": "other"})
    found = runtime.list_pod_sandbox(cri.ListPodSandboxRequest(filter=wanted)).items
    assert [each.id for each in found] == [other]


def test_resources_that_are_set_are_kept(runtime):
    key = container(runtime, sandbox(runtime))
    pages = [cri.HugepageLimit(page_size="2MB", limit=1)]
    for cpus in ("0-1", "2-3"):
        linux = cri.LinuxContainerResources(cpuset_cpus=cpus, hugepage_limits=pages)
        runtime.update_container_resources(cri.UpdateContainerResourcesRequest(container_id=key, linux=linux))
    runtime.update_container_resources(
        cri.UpdateContainerResourcesRequest(container_id=key, linux=cri.LinuxContainerResources(cpu_shares=512))
    )
    found = state(runtime, key).resources.linux
    assert (found.cpuset_cpus, found.cpu_shares, len(found.hugepage_limits)) == ("2-3", 512, 1)


def call(socket, service, method, request, response):
    with grpc.insecure_channel(f"unix:{socket}", options=[("grpc.default_authority", "localhost")]) as channel:
        ask = channel.unary_unary(
            f"/{service}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )
        return ask(request, timeout=10)


@pytest.fixture
def short(tmp_path, monkeypatch):
    """A folder that sockets may be named from, however long its path is."""
    monkeypatch.chdir(tmp_path)
    return type(tmp_path)()


NAMES_ONE = {"PodSandboxStatus", "CreateContainer", "StartContainer", "ContainerStatus", "UpdateContainerResources"}


def test_every_call_is_answered_over_its_socket(runtime, short):
    server = serve_runtime(runtime, short / "runtime.sock")
    failed = {}
    for service in ("RuntimeService", "ImageService"):
        for method in cri.DESCRIPTOR.services_by_name[service].methods:
            request = message_factory.GetMessageClass(method.input_type)()
            answer = message_factory.GetMessageClass(method.output_type)
            try:
                call(short / "runtime.sock", f"runtime.v1.{service}", method.name, request, answer)
            except grpc.RpcError as error:
                failed[method.name] = error.code()
    server.stop(None).wait()
    assert failed == dict.fromkeys(NAMES_ONE, grpc.StatusCode.NOT_FOUND)  # what they name is not there


def test_a_plugin_tells_of_devices_and_of_those_that_fall_sick(short):
    made = DevicePlugin("nvidia.com/gpu", (PlayedDevice("a", (0,)), PlayedDevice("b", (1,))), short)
    made.serve()
    seen, changed = [], threading.Semaphore(0)

    def watch():
        with grpc.insecure_channel(f"unix:{short / 'nvidia.com-gpu.sock'}") as channel:
            stream = channel.unary_stream(
                "/v1beta1.DevicePlugin/ListAndWatch",
                request_serializer=plugin.Empty.SerializeToString,
                response_deserializer=plugin.ListAndWatchResponse.FromString,
            )
            with suppress(grpc.RpcError):  # the plugin's end
                for told in stream(plugin.Empty()):
                    seen.append({each.ID: (each.health, each.topology.nodes[0].ID) for each in told.devices})
                    changed.release()

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert changed.acquire(timeout=10)
    made.set_sick(frozenset({"b"}))
    assert changed.acquire(timeout=10)
    assert made.wait_told(10)
    made.close()
    watcher.join(10)
    assert seen == [{"a": ("Healthy", 0), "b": ("Healthy", 1)}, {"a": ("Healthy", 0), "b": ("Unhealthy", 1)}]

"""A container runtime without containers: it says of each what a runtime would say, and runs nothing.

Rules
- A container's command decides how it ends: ``sleep SECONDS``, ``true`` and ``false`` do what they say, whatever else
  runs for ever. Where none of these, the pod's annotations decide that KWOK's pods have too (``run-seconds`` ...).
- When a container ends is settled when it starts. Its state follows from the time, so nothing has to happen meanwhile.
- Every image is there. What was made is kept in a file: containers outlive this process.
"""

import ipaddress
import threading
import time
import uuid
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from clock import Clock
from localcluster.real import cri_pb2 as cri

RUN_SECONDS: Final = "topogate.dev/run-seconds"
FAIL_SECONDS: Final = "topogate.dev/fail-after-seconds"
EXIT_CODE: Final = "topogate.dev/exit-code"
STOP_SECONDS: Final = "topogate.dev/stop-seconds"
TERMINATED, KILLED = 143, 137  # exit codes: by SIGTERM, by SIGKILL
NANOSECONDS = 1_000_000_000
# Pods' addresses: 2^21 from here, apart from those of KWOK's pods and of nodes.
_ADDRESSES = int(ipaddress.IPv4Address("10.64.0.0"))
_POD = cri.NamespaceOption(network=cri.POD, pid=cri.CONTAINER, ipc=cri.POD)


class UnknownIdError(LookupError):
    """There is no sandbox or container of this id."""


class Runtime:
    """The calls of the CRI that a kubelet makes, each by its own name. Thread-safe. Raises UnknownIdError."""

    def __init__(self, file: Path, clock: Clock) -> None:
        """Go on with what ``file`` holds, where it is there."""
        self._file = file
        self._clock = clock
        self._lock = threading.RLock()
        records = cri.Records.FromString(file.read_bytes()) if file.exists() else cri.Records()
        self._sandboxes = {each.id: each for each in records.sandboxes}
        self._containers = {each.id: each for each in records.containers}

    # --- the runtime itself ------------------------------------------------------------------------------------------

    def version(self, _: cri.VersionRequest) -> cri.VersionResponse:
        """Who answers."""
        return cri.VersionResponse(
            version="0.1.0", runtime_name="topogate-none", runtime_version="1.0.0", runtime_api_version="v1"
        )

    def status(self, _: cri.StatusRequest) -> cri.StatusResponse:
        """Ready, network and all."""
        ready = [cri.RuntimeCondition(type=name, status=True) for name in ("RuntimeReady", "NetworkReady")]
        return cri.StatusResponse(status=cri.RuntimeStatus(conditions=ready))

    def runtime_config(self, _: cri.RuntimeConfigRequest) -> cri.RuntimeConfigResponse:
        """Without cgroups any driver would do; systemd's would need systemd."""
        return cri.RuntimeConfigResponse(linux=cri.LinuxRuntimeConfiguration(cgroup_driver=cri.CGROUPFS))

    def update_runtime_config(self, _: cri.UpdateRuntimeConfigRequest) -> cri.UpdateRuntimeConfigResponse:
        """There are no networks."""
        return cri.UpdateRuntimeConfigResponse()

    # --- sandboxes ---------------------------------------------------------------------------------------------------

    def run_pod_sandbox(self, request: cri.RunPodSandboxRequest) -> cri.RunPodSandboxResponse:
        """A new sandbox, ready at once."""
        made = cri.SandboxRecord(
            id=uuid.uuid4().hex,
            config=request.config,
            runtime_handler=request.runtime_handler,
            created_at=self._now(),
        )
        with self._lock:
            self._sandboxes[made.id] = made
            self._write_records()
        return cri.RunPodSandboxResponse(pod_sandbox_id=made.id)

    def stop_pod_sandbox(self, request: cri.StopPodSandboxRequest) -> cri.StopPodSandboxResponse:
        """Its containers are killed."""
        with self._lock:
            sandbox = self._sandboxes.get(request.pod_sandbox_id)
            # The kubelet stops a sandbox several times, and it must not fail where nothing is left.
            if sandbox is not None and not sandbox.stopped:
                sandbox.stopped = True
                for container in self._containers_of(sandbox.id):
                    self._end_container(container, KILLED)
                self._write_records()
        return cri.StopPodSandboxResponse()

    def remove_pod_sandbox(self, request: cri.RemovePodSandboxRequest) -> cri.RemovePodSandboxResponse:
        """With its containers; nothing happens where it is gone."""
        with self._lock:
            for container in self._containers_of(request.pod_sandbox_id):
                del self._containers[container.id]
            self._sandboxes.pop(request.pod_sandbox_id, None)
            self._write_records()
        return cri.RemovePodSandboxResponse()

    def pod_sandbox_status(self, request: cri.PodSandboxStatusRequest) -> cri.PodSandboxStatusResponse:
        """One sandbox."""
        with self._lock:
            found = self._sandbox(request.pod_sandbox_id)
            config = found.config
            linux = config.linux
            options = linux.security_context.namespace_options if config.HasField("linux") else _POD
            status = cri.PodSandboxStatus(
                id=found.id,
                metadata=config.metadata,
                state=_sandbox_state(found),
                created_at=found.created_at,
                network=cri.PodSandboxNetworkStatus(ip="" if options.network == cri.NODE else _address(found.id)),
                linux=cri.LinuxPodSandboxStatus(namespaces=cri.Namespace(options=options)),
                labels=config.labels,
                annotations=config.annotations,
                runtime_handler=found.runtime_handler,
            )
        return cri.PodSandboxStatusResponse(status=status)

    def list_pod_sandbox(self, request: cri.ListPodSandboxRequest) -> cri.ListPodSandboxResponse:
        """Those that the filter lets through."""
        wanted = request.filter
        with self._lock:
            items = [
                cri.PodSandbox(
                    id=each.id,
                    metadata=each.config.metadata,
                    state=_sandbox_state(each),
                    created_at=each.created_at,
                    labels=each.config.labels,
                    annotations=each.config.annotations,
                    runtime_handler=each.runtime_handler,
                )
                for each in self._sandboxes.values()
                if wanted.id in {"", each.id}
                and (not wanted.HasField("state") or wanted.state.state == _sandbox_state(each))
                and _selected(wanted.label_selector, each.config.labels)
            ]
        return cri.ListPodSandboxResponse(items=items)

    # --- containers --------------------------------------------------------------------------------------------------

    def create_container(self, request: cri.CreateContainerRequest) -> cri.CreateContainerResponse:
        """A container in a sandbox that is there."""
        with self._lock:
            sandbox = self._sandbox(request.pod_sandbox_id)
            made = cri.ContainerRecord(
                id=uuid.uuid4().hex, pod_sandbox_id=sandbox.id, config=request.config, created_at=self._now()
            )
            self._containers[made.id] = made
            self._write_records()
        return cri.CreateContainerResponse(container_id=made.id)

    def start_container(self, request: cri.StartContainerRequest) -> cri.StartContainerResponse:
        """From now on it runs, until the time that is settled here."""
        with self._lock:
            found = self._container(request.container_id)
            annotations = self._sandbox(found.pod_sandbox_id).config.annotations
            seconds, found.exit_code = planned(list(found.config.command) + list(found.config.args), annotations)
            found.started_at = self._now()
            # At least a nanosecond after the start: 0 means that it never ends.
            found.ends_at = 0 if seconds is None else found.started_at + max(int(seconds * NANOSECONDS), 1)
            self._write_records()
        return cri.StartContainerResponse()

    def stop_container(self, request: cri.StopContainerRequest) -> cri.StopContainerResponse:
        """Ends as the pod's ``stop-seconds`` says, or by force where that is later than the kubelet waits."""
        with self._lock:
            found = self._containers.get(request.container_id)
            if found is None:
                return cri.StopContainerResponse()
            annotations = self._sandbox(found.pod_sandbox_id).config.annotations
            takes = seconds_of(annotations, STOP_SECONDS) or 0.0
        # Without the lock: a stop takes up to the pod's grace period, and other calls go on.
        if takes and request.timeout:
            time.sleep(min(takes, request.timeout))
        # The container may have ended by itself meanwhile, which `_end_container` leaves as it is.
        with self._lock:
            self._end_container(found, TERMINATED if takes <= request.timeout else KILLED)
            self._write_records()
        return cri.StopContainerResponse()

    def remove_container(self, request: cri.RemoveContainerRequest) -> cri.RemoveContainerResponse:
        """Nothing happens where it is gone."""
        with self._lock:
            if self._containers.pop(request.container_id, None) is not None:
                self._write_records()
        return cri.RemoveContainerResponse()

    def list_containers(self, request: cri.ListContainersRequest) -> cri.ListContainersResponse:
        """Those that the filter lets through."""
        wanted = request.filter
        with self._lock:
            containers = [
                cri.Container(
                    id=each.id,
                    pod_sandbox_id=each.pod_sandbox_id,
                    metadata=each.config.metadata,
                    image=each.config.image,
                    image_ref=each.config.image.image,
                    image_id=each.config.image.image,
                    state=self._state(each),
                    created_at=each.created_at,
                    labels=each.config.labels,
                    annotations=each.config.annotations,
                )
                for each in self._containers.values()
                if wanted.id in {"", each.id}
                and wanted.pod_sandbox_id in {"", each.pod_sandbox_id}
                and (not wanted.HasField("state") or wanted.state.state == self._state(each))
                and _selected(wanted.label_selector, each.config.labels)
            ]
        return cri.ListContainersResponse(containers=containers)

    def container_status(self, request: cri.ContainerStatusRequest) -> cri.ContainerStatusResponse:
        """One container."""
        with self._lock:
            found = self._container(request.container_id)
            config, state = found.config, self._state(found)
            ended = state == cri.CONTAINER_EXITED
            status = cri.ContainerStatus(
                id=found.id,
                metadata=config.metadata,
                state=state,
                created_at=found.created_at,
                started_at=found.started_at,
                finished_at=found.ends_at if ended else 0,
                exit_code=found.exit_code if ended else 0,
                reason=("Error" if found.exit_code else "Completed") if ended else "",
                image=config.image,
                image_ref=config.image.image,
                image_id=config.image.image,
                labels=config.labels,
                annotations=config.annotations,
                log_path=config.log_path,
                resources=cri.ContainerResources(linux=config.linux.resources),
            )
        return cri.ContainerStatusResponse(status=status)

    def update_container_resources(
        self, request: cri.UpdateContainerResourcesRequest
    ) -> cri.UpdateContainerResourcesResponse:
        """What is set in the request is taken over."""
        with self._lock:
            resources = self._container(request.container_id).config.linux.resources
            # Deterministic, because maps have no order in protobuf.
            before = resources.SerializeToString(deterministic=True)
            if request.linux.hugepage_limits:
                del resources.hugepage_limits[:]  # merging would append
            resources.MergeFrom(request.linux)
            if resources.SerializeToString(deterministic=True) != before:  # it asks every few seconds
                self._write_records()
        return cri.UpdateContainerResourcesResponse()

    def list_container_stats(self, _: cri.ListContainerStatsRequest) -> cri.ListContainerStatsResponse:
        """Nothing is used."""
        return cri.ListContainerStatsResponse()

    # --- images ------------------------------------------------------------------------------------------------------

    def list_images(self, _: cri.ListImagesRequest) -> cri.ListImagesResponse:
        """None that could be thrown away."""
        return cri.ListImagesResponse()

    def image_status(self, request: cri.ImageStatusRequest) -> cri.ImageStatusResponse:
        """Every image is there; one without a size would count as broken."""
        name = request.image.image
        return cri.ImageStatusResponse(image=cri.Image(id=name, repo_tags=[name], size=1))

    def pull_image(self, request: cri.PullImageRequest) -> cri.PullImageResponse:
        """It is there already."""
        return cri.PullImageResponse(image_ref=request.image.image)

    def remove_image(self, _: cri.RemoveImageRequest) -> cri.RemoveImageResponse:
        """There is nothing to remove."""
        return cri.RemoveImageResponse()

    def image_fs_info(self, _: cri.ImageFsInfoRequest) -> cri.ImageFsInfoResponse:
        """The filesystem of this very file, of which images use nothing."""
        usage = cri.FilesystemUsage(
            timestamp=self._now(),
            fs_id=cri.FilesystemIdentifier(mountpoint="/"),
            used_bytes=cri.UInt64Value(value=0),
            inodes_used=cri.UInt64Value(value=0),
        )
        return cri.ImageFsInfoResponse(image_filesystems=[usage], container_filesystems=[usage])

    # --- how it is done ----------------------------------------------------------------------------------------------

    def _now(self) -> int:
        return int(self._clock.now() * NANOSECONDS)

    def _sandbox(self, key: str) -> cri.SandboxRecord:
        if (found := self._sandboxes.get(key)) is None:
            raise UnknownIdError(f"no sandbox {key}")
        return found

    def _container(self, key: str) -> cri.ContainerRecord:
        if (found := self._containers.get(key)) is None:
            raise UnknownIdError(f"no container {key}")
        return found

    def _containers_of(self, sandbox: str) -> list[cri.ContainerRecord]:
        return [each for each in self._containers.values() if each.pod_sandbox_id == sandbox]

    def _state(self, container: cri.ContainerRecord) -> cri.ContainerState:
        if container.ends_at and container.ends_at <= self._now():
            return cri.CONTAINER_EXITED
        return cri.CONTAINER_RUNNING if container.started_at else cri.CONTAINER_CREATED

    def _end_container(self, container: cri.ContainerRecord, exit_code: int) -> None:
        """Now, unless it has ended by itself."""
        if self._state(container) != cri.CONTAINER_EXITED:
            container.ends_at, container.exit_code = self._now(), exit_code

    def _write_records(self) -> None:
        """Write the file, whole or not at all."""
        records = cri.Records(sandboxes=self._sandboxes.values(), containers=self._containers.values())
        temporary = self._file.with_name(f".{self._file.name}")
        temporary.write_bytes(records.SerializeToString())
        # A process that is killed while it writes leaves the file of before.
        temporary.replace(self._file)


def planned(command: list[str], annotations: Mapping[str, str]) -> tuple[float | None, int]:
    """How long a container runs (seconds; None: for ever), and its exit code."""
    match command:
        case ["sleep", seconds] if (found := _parse_number(seconds)) is not None:
            return found, 0
        case ["true"]:
            return 0.0, 0
        case ["false"]:
            return 0.0, 1
    if (fails := seconds_of(annotations, FAIL_SECONDS)) is not None:
        return fails, int(_parse_number(annotations.get(EXIT_CODE, "")) or 1)
    return seconds_of(annotations, RUN_SECONDS), 0


def seconds_of(annotations: Mapping[str, str], name: str) -> float | None:
    """The annotation's seconds; None where it is missing or no number."""
    return _parse_number(annotations.get(name, ""))


def _parse_number(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    # Annotations are a tenant's: NaN, infinity and negative numbers would end in `time.sleep` and in int().
    return found if 0 <= found < float("inf") else None


def _sandbox_state(sandbox: cri.SandboxRecord) -> cri.PodSandboxState:
    return cri.SANDBOX_NOTREADY if sandbox.stopped else cri.SANDBOX_READY


def _selected(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.items())


def _address(sandbox: str) -> str:
    return str(ipaddress.IPv4Address(_ADDRESSES + zlib.crc32(sandbox.encode()) % (1 << 21)))

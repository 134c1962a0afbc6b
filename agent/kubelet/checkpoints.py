"""The kubelet's files: its configuration, and what its CPU, memory and device managers have given out.

They are whole at any moment, for the kubelet replaces them by renaming, and so does who copies them. Fields that nobody
reads here are passed over, so a newer kubelet's file still reads. Checksums are not looked at: what the kubelet cannot
use it deletes itself.
"""

from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import yaml

from agent import copies
from agent.copies import CPU_STATE, DEVICE_STATE, MEMORY_STATE
from agent.machine import cpuset
from agent.machine.cpuset import Cpus

T = TypeVar("T")

NO_ZONE = -1  # the device manager's zone of a device that has none


class Unreadable(Exception):  # noqa: N818 -- reads as what it is
    """A file that cannot be read; the text names it and says why."""


class _Struct(msgspec.Struct, frozen=True, rename="camel"):
    pass


class Config(_Struct, frozen=True):
    """What decides how the kubelet admits pods; defaults are the kubelet's."""

    topology_manager_policy: Literal["none", "best-effort", "restricted", "single-numa-node"] = "none"
    topology_manager_scope: Literal["container", "pod"] = "container"
    topology_manager_policy_options: dict[str, str] | None = None
    cpu_manager_policy: str = "none"
    cpu_manager_policy_options: dict[str, str] | None = None
    memory_manager_policy: str = "None"
    reserved_system_cpus: str = msgspec.field(name="reservedSystemCPUs", default="")


class _CpuFile(_Struct, frozen=True):
    policy_name: str
    default_cpu_set: str = ""
    entries: dict[str, dict[str, str]] | None = None


class Cpu(msgspec.Struct, frozen=True):
    """The CPU manager's state: CPUs that nobody holds, and by pod uid and container those that are held."""

    policy: str
    default: Cpus
    entries: dict[str, dict[str, Cpus]]


class MemoryTable(_Struct, frozen=True):
    """Memory of one type in one zone, in bytes."""

    total: int = 0
    system_reserved: int = 0
    allocatable: int = 0
    reserved: int = 0
    free: int = 0


class MemoryNode(_Struct, frozen=True):
    """The memory manager's state of one zone."""

    number_of_assignments: int = 0
    memory_map: dict[str, MemoryTable] | None = None
    cells: tuple[int, ...] | None = None


class CheckpointBlock(_Struct, frozen=True):
    """Memory that one container holds, from these zones as one group."""

    numa_affinity: tuple[int, ...] | None = msgspec.field(name="numaAffinity", default=())
    type: str = "memory"
    size: int = 0


class _MemoryFile(_Struct, frozen=True):
    policy_name: str
    machine_state: dict[str, MemoryNode] | None = None
    entries: dict[str, dict[str, tuple[CheckpointBlock, ...]]] | None = None


class MemoryCheckpoint(msgspec.Struct, frozen=True):
    """The memory manager's state: zone -> node, and by pod uid and container the blocks that are held."""

    policy: str
    zones: dict[int, MemoryNode]
    entries: dict[str, dict[str, tuple[CheckpointBlock, ...]]]


class DeviceEntry(msgspec.Struct, frozen=True, rename="pascal"):
    """Devices of one resource that one container holds: zone (`NO_ZONE` for none) -> ids."""

    pod_uid: str = msgspec.field(name="PodUID", default="")
    container_name: str = ""
    resource_name: str = ""
    device_ids: dict[int, tuple[str, ...] | None] | None = msgspec.field(name="DeviceIDs", default=None)


class _DeviceData(msgspec.Struct, frozen=True, rename="pascal"):
    pod_device_entries: tuple[DeviceEntry, ...] | None = None
    registered_devices: dict[str, tuple[str, ...] | None] | None = None


class _DeviceFile(msgspec.Struct, frozen=True, rename="pascal"):
    data: _DeviceData


class Devices(msgspec.Struct, frozen=True):
    """The device manager's state: who holds what, and the healthy devices of each resource that is registered."""

    entries: tuple[DeviceEntry, ...]
    registered: dict[str, tuple[str, ...]]


def read_config(path: Path) -> Config:
    """The kubelet's configuration file (YAML or JSON). Raises Unreadable."""
    try:
        values: Any = yaml.safe_load(_bytes(path))
        return msgspec.convert(values, Config)
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise Unreadable(f"{path}: {error}") from error


def read_cpu(folder: Path) -> Cpu:
    """The CPU manager's state. Raises Unreadable."""
    path = folder / CPU_STATE
    found = _decode(path, _CpuFile)
    try:
        entries = {
            uid: {name: cpuset.parse(cpus) for name, cpus in containers.items()}
            for uid, containers in (found.entries or {}).items()
        }
        return Cpu(found.policy_name, cpuset.parse(found.default_cpu_set), entries)
    except ValueError as error:
        raise Unreadable(f"{path}: {error}") from error


def read_memory(folder: Path) -> MemoryCheckpoint:
    """The memory manager's state. Raises Unreadable."""
    path = folder / MEMORY_STATE
    found = _decode(path, _MemoryFile)
    try:
        zones = {int(zone): node for zone, node in (found.machine_state or {}).items()}
    except ValueError as error:
        raise Unreadable(f"{path}: {error}") from error
    return MemoryCheckpoint(found.policy_name, dict(sorted(zones.items())), found.entries or {})


def read_devices(folder: Path) -> Devices:
    """The device manager's state. Raises Unreadable."""
    data = _decode(folder / DEVICE_STATE, _DeviceFile).data
    registered = {resource: ids or () for resource, ids in (data.registered_devices or {}).items()}
    return Devices(data.pod_device_entries or (), registered)


def _decode(path: Path, type_: type[T]) -> T:
    try:
        return msgspec.json.decode(_bytes(path), type=type_, strict=False)
    except msgspec.DecodeError as error:
        raise Unreadable(f"{path}: {error}") from error


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        # The process that copies the files knows why one is not here; this one sees only that it is not.
        raise Unreadable(f"{path}: {copies.note(str(path)) or error.strerror}") from error

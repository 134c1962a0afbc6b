"""Reads the kubelet: its configuration, its managers' files and its podresources API. Blocks; call it in a thread."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from agent import copies
from agent.kubelet import checkpoints
from agent.kubelet.checkpoints import Devices, Unreadable
from agent.kubelet.held import KubeletReading
from agent.podresources.client import KubeletClient, PodResources, Unavailable
from agent.settings import AgentSettings
from clock import Clock

T = TypeVar("T")

Signature = tuple[tuple[int, int, int] | None, ...]


class Reader:
    """One kubelet."""

    def __init__(self, settings: AgentSettings, clock: Clock) -> None:
        self._clock = clock
        self.folder = Path(settings.agent_kubelet_directory)
        self.config = Path(settings.agent_kubelet_config or self.folder / copies.CONFIG)
        socket = Path(settings.agent_pod_resources_socket or self.folder / "pod-resources" / "kubelet.sock")
        self._client = KubeletClient(socket)

    def read(self) -> KubeletReading:
        """Everything at one time; what cannot be read is None and told. Never raises for the kubelet's sake."""
        problems: list[str] = []
        answer: PodResources | None = None
        try:
            answer = self._client.read()
        except Unavailable as error:
            problems.append(str(error))
        if copies.silent_seconds(str(self.folder), self._clock.now()) > copies.SILENT_SECONDS:
            text = f"{self.folder}: the copies of the kubelet's files are old: container kubelet-files does not run"
            return KubeletReading(None, None, None, None, answer, (*problems, text))
        return KubeletReading(
            config=_try_read(lambda: checkpoints.read_config(self.config), problems),
            cpu=_try_read(lambda: checkpoints.read_cpu(self.folder), problems),
            memory=_try_read(lambda: checkpoints.read_memory(self.folder), problems),
            devices=_try_read(lambda: self._read_devices(answer), problems),
            answer=answer,
            problems=tuple(problems),
        )

    def signature(self) -> Signature:
        """Differs when one of the files was written or replaced."""
        names = (copies.CPU_STATE, copies.MEMORY_STATE, copies.DEVICE_STATE)
        return tuple(_signature(path) for path in (self.config, *(self.folder / name for name in names)))

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _read_devices(self, answer: PodResources | None) -> Devices:
        """A kubelet that never met a device plugin has no file, only the folder for plugins."""
        path = self.folder / copies.DEVICE_STATE
        met = answer is not None and bool(answer.allocatable.devices)
        # A note in its place says that there is such a file, and that it could not be copied.
        if not met and not path.exists() and path.parent.is_dir() and not copies.note(str(path)):
            return Devices((), {})
        return checkpoints.read_devices(self.folder)


def usable(reading: KubeletReading) -> bool:
    """Whether it is known who holds what, if not exactly."""
    files = (reading.cpu, reading.memory, reading.devices)
    return reading.answer is not None or all(found is not None for found in files)


def _try_read(read: Callable[[], T], problems: list[str]) -> T | None:
    try:
        return read()
    except Unreadable as error:
        problems.append(str(error))
        return None


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    # The kubelet replaces its files by renaming, so the inode differs where the clock is too coarse to.
    return found.st_ino, found.st_mtime_ns, found.st_size

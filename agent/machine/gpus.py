"""GPUs, their links and health, as NVML tells them.

Rules
- Where there is no NVML (no library, no driver) there are no GPUs, and ``absent`` says why; that is no error.
- A GPU that does not answer is there all the same, with its fault: by what was known of it before, else by its PCI
  address. It hides no other GPU, and no link between others.
- A GPU's zone is what sysfs says, as NVIDIA's device plugin has it; NVML's memory affinity where sysfs does not know.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import combinations
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from agent.machine import pci
from agent.machine.hardware import Hardware

T = TypeVar("T")

MIB = 1024 * 1024
# What NVML says of two GPUs' nearest common PCIe ancestor, in the words of `nvidia-smi topo -m`.
LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_GPU, _SWITCH = 0, 2  # NVML_NVLINK_DEVICE_TYPE_*
_VERSIONS = ("", "1.0", "2.0", "2.2", "3.0", "3.1", "4.0", "5.0", "6.0")  # NVML_NVLINK_VERSION_*
_MAX_LINKS = 36
_AFFINITY_WORDS = 16  # of 64 bits: the kernel's 1024 zones
_NODE_SCOPE = 0
# Answers that mean "not with this GPU or driver", and say nothing about its health.
_HARMLESS = frozenset({2, 3, 4, 6, 13, 25, 26})


class Gpu(msgspec.Struct, frozen=True):
    """One GPU. ``memory`` in MiB; ``fault``: what is wrong with it, "" where it is healthy; ``uuid`` "": not known."""

    address: str
    uuid: str = ""
    index: int = 0
    model: str = ""
    memory: int = 0
    zone: int | None = None
    fault: str = ""


class Link(msgspec.Struct, frozen=True):
    """How two GPUs, known by their PCI addresses, are connected; ``nvlinks`` 0: by PCIe alone.

    ``version`` is that of the NVLinks, the lower of both ends, such as 4.0; "" where there are none or it is not known.
    """

    one: str
    other: str
    pcie: str
    nvlinks: int = 0
    version: str = ""

    @property
    def kind(self) -> str:
        """As ``nvidia-smi topo -m`` prints it."""
        return f"NV{self.nvlinks}" if self.nvlinks else self.pcie


class Gpus(msgspec.Struct, frozen=True):
    """All GPUs, in order of NVML's index; links once a pair. ``absent``: why there is no NVML."""

    gpus: tuple[Gpu, ...] = ()
    links: tuple[Link, ...] = ()
    absent: str = ""
    problems: tuple[str, ...] = ()


class _Found(msgspec.Struct):
    """A GPU that answers, with its handle and the ends of its NVLinks."""

    gpu: Gpu
    handle: Any
    direct: dict[str, int] = msgspec.field(default_factory=dict)  # PCI address -> links
    switched: int = 0
    version: int = 0  # NVML's number for that of its NVLinks, the oldest; 0: not known

    def note_version(self, version: int) -> None:
        """One of its NVLinks is of this version."""
        self.version = min(version, self.version or version)

    def link(self, address: str) -> None:
        """An NVLink leads to another GPU."""
        self.direct[address] = self.direct.get(address, 0) + 1

    def link_to_switch(self) -> None:
        """An NVLink leads to a switch."""
        self.switched += 1


NO_GPUS = Gpus()


def read(nvml: Any, hardware: Hardware, before: Gpus = NO_GPUS) -> Gpus:
    """What the NVML module (``pynvml``) says; ``before`` is its last answer. Never raises for what NVML answers."""
    try:
        # Opened for each look, and closed again: a process that keeps NVML open keeps its driver from being exchanged.
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return _silent(before, error) if before.gpus else Gpus(absent=str(error))
    try:
        return _Session(nvml, hardware, before).read()
    except nvml.NVMLError as error:  # the number of GPUs cannot be had
        return _silent(before, error)
    finally:
        with suppress(nvml.NVMLError):  # the driver may be gone
            nvml.nvmlShutdown()


def _silent(before: Gpus, error: Exception) -> Gpus:
    """All of them as they were, but faulty: the driver fell silent, or is being exchanged."""
    lost = tuple(replace(gpu, fault=str(error)) for gpu in before.gpus)
    return Gpus(lost, before.links, problems=(f"NVML: {error}",))


class _Session:
    def __init__(self, nvml: Any, hardware: Hardware, before: Gpus) -> None:
        self.nvml = nvml
        self.pci = hardware.by_address()
        self.before = before
        self.problems: list[str] = []

    def read(self) -> Gpus:
        answering: list[_Found] = []
        silent: list[Gpu] = []
        for index in range(self.nvml.nvmlDeviceGetCount()):
            try:
                answering.append(self._gpu(index))
            except self.nvml.NVMLError as error:
                self.problems.append(f"GPU {index}: {error}")
                silent += [replace(gpu, fault=str(error)) for gpu in self.before.gpus if gpu.index == index]
        seen = {found.gpu.address for found in answering}
        # Indexes move when a GPU is lost: what was known under this one may answer under another by now.
        silent = [gpu for gpu in silent if gpu.address not in seen]
        # GPUs on the PCI bus that the driver does not list (any more).
        there = seen | {gpu.address for gpu in silent}
        before = {gpu.address: gpu for gpu in self.before.gpus}
        for device in self.pci.values():
            if device.vendor == pci.NVIDIA and pci.is_gpu(device) and device.address not in there:
                fault = "on the PCI bus, but not listed by the driver"
                known = before.get(device.address) or Gpu(device.address, zone=device.zone)
                self.problems.append(f"GPU {device.address}: {fault}")
                silent.append(replace(known, fault=fault))
        for found in answering:
            self._ends(found, seen)
        gpus = sorted([*(found.gpu for found in answering), *silent], key=lambda gpu: (gpu.index, gpu.address))
        # A GPU that fell silent keeps its links: they say where it sits, and come back with it.
        lost = {gpu.address for gpu in silent}
        kept = (link for link in self.before.links if link.one in lost or link.other in lost)
        links = (*self._links(answering), *kept)
        return Gpus(
            tuple(gpus), tuple(sorted(links, key=lambda link: (link.one, link.other))), "", tuple(self.problems)
        )

    def _gpu(self, index: int) -> _Found:
        """Raises NVMLError where the GPU does not answer."""
        nvml = self.nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = _text(nvml.nvmlDeviceGetUUID(handle))
        address = pci.normal(_text(nvml.nvmlDeviceGetPciInfo(handle).busId))
        fault = ""
        memory = 0
        try:
            memory = int(nvml.nvmlDeviceGetMemoryInfo(handle).total) // MIB
        except nvml.NVMLError as error:
            if error.value not in _HARMLESS:
                fault = str(error)
        if not fault and self._ask_nvml(lambda: nvml.nvmlDeviceGetRemappedRows(handle)[3], 0):
            fault = "a memory row could not be remapped"
        if fault:
            self.problems.append(f"GPU {index} ({uuid}): {fault}")
        model = _text(self._ask_nvml(lambda: nvml.nvmlDeviceGetName(handle), ""))
        device = self.pci.get(address)
        zone = device.zone if device is not None else None
        if zone is None:
            words: Sequence[int] = self._ask_nvml(
                lambda: nvml.nvmlDeviceGetMemoryAffinity(handle, _AFFINITY_WORDS, _NODE_SCOPE), ()
            )
            # One zone or none: an affinity with several says that the driver does not know it either.
            zones = [64 * i + bit for i, word in enumerate(words) for bit in range(64) if word >> bit & 1]
            zone = zones[0] if len(zones) == 1 else None
        return _Found(Gpu(address, uuid, index, model, memory, zone, fault), handle)

    def _ends(self, found: _Found, addresses: set[str]) -> None:
        """What is at the other ends of the GPU's active NVLinks."""
        nvml, handle = self.nvml, found.handle
        for link in range(_MAX_LINKS):
            try:
                active = nvml.nvmlDeviceGetNvLinkState(handle, link)
            except nvml.NVMLError:
                break  # there are no more, or none at all
            if not active:
                continue
            if version := self._ask_nvml(partial(nvml.nvmlDeviceGetNvLinkVersion, handle, link), 0):
                found.note_version(version)
            remote = self._ask_nvml(partial(nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link), None)
            address = pci.normal(_text(remote.busId)) if remote else ""
            # Older drivers do not say what is at the other end.
            guess = _GPU if address in addresses else _SWITCH
            kind = self._ask_nvml(partial(nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link), guess)
            if kind == _GPU and address in addresses:
                found.link(address)
            elif kind == _SWITCH:
                found.link_to_switch()

    def _links(self, answering: list[_Found]) -> Iterator[Link]:
        nvml = self.nvml
        for one, other in combinations(sorted(answering, key=lambda found: found.gpu.address), 2):
            # Both ends tell of the same links, so they are not added up; an end that does not answer tells of none.
            nvlinks = max(one.direct.get(other.gpu.address, 0), other.direct.get(one.gpu.address, 0))
            # Through switches two GPUs have as many links as the one of them that has fewer.
            nvlinks += min(one.switched, other.switched)
            version = min(one.version, other.version) if nvlinks else 0
            text = _VERSIONS[version] if version < len(_VERSIONS) else ""
            ancestor = self._ask_nvml(partial(nvml.nvmlDeviceGetTopologyCommonAncestor, one.handle, other.handle), None)
            devices = self.pci.get(one.gpu.address), self.pci.get(other.gpu.address)
            by_bus = pci.level(devices[0], devices[1]) if devices[0] and devices[1] else "SYS"
            yield Link(one.gpu.address, other.gpu.address, LEVELS.get(ancestor, by_bus), nvlinks, text)

    def _ask_nvml(self, call: Callable[[], T], default: T) -> T:
        try:
            return call()
        except self.nvml.NVMLError:
            return default


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)

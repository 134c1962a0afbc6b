"""Machines and kubelets as a person writes them.

A machine: parts in any order, between slashes or commas::

    2 sockets / 8 NUMA / 64 cores / 8 GPUs
    2 NUMA / 128 cores / 8 GPUs / 8 NICs / 1Ti / 1 thread

Sockets (default 1) and NUMA zones (default: one a socket) share the cores and devices evenly. A core has 2 threads
unless told otherwise; without a quantity of memory there are 8 GiB a CPU. Threads of the first core and 1 GiB of the
first zone are kept for the system.

A kubelet: its topology policy, scope and options, between commas::

    restricted, pod
    single-numa-node, container, full-pcpus-only, prefer-closest-numa-nodes

Default: restricted, container. ``no-static-cpu`` and ``no-static-memory`` turn these managers off.
"""

import re
import zlib
from dataclasses import dataclass
from functools import cache

from localcluster.kubelets.hardware import (
    CPU_OPTIONS,
    POLICIES,
    RESTRICTED,
    SCOPES,
    TOPOLOGY_OPTIONS,
    PlayedCore,
    PlayedDevice,
    PlayedHardware,
    PlayedSettings,
    PlayedZone,
    bits,
    mask_of,
)
from localcluster.kubelets.pods import quantity

MACHINE = "topogate.dev/machine"  # a node's annotation: the machine as described above
KUBELET = "topogate.dev/kubelet"  # another: the kubelet
GPU = "nvidia.com/gpu"
NIC = "nvidia.com/rdma_nic"
MEMORY_A_CPU = 8 << 30
RESERVED_MEMORY = 1 << 30
LOCAL, NEAR, FAR = 10, 12, 32  # SLIT distances: itself, same socket, other socket
MOST_ZONES = 8  # the kubelet's Topology Manager does not start with more
MOST_CPUS = 4096
NO_STATIC_CPU = "no-static-cpu"
NO_STATIC_MEMORY = "no-static-memory"
EXAMPLE = "2 sockets / 8 NUMA / 64 cores / 8 GPUs"
_WORDS = {
    "socket": "sockets",
    "numa": "zones",
    "zone": "zones",
    "core": "cores",
    "thread": "threads",
    "gpu": "gpus",
    "nic": "nics",
}
_PART = re.compile(r"(\d+)\s*([a-z]+?)s?(?:\s+(?:zones?|nodes?))?", re.IGNORECASE)
_MEMORY = re.compile(r"([0-9.]+[KMGTP]i?)B?(?:\s+memory)?", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class MachineSpec:
    """Counts of the whole machine; ``memory`` in bytes."""

    sockets: int
    zones: int
    cores: int
    threads: int = 2
    gpus: int = 0
    nics: int = 0
    memory: int = 0

    def __post_init__(self) -> None:
        """ValueError for what cannot be built, or what a kubelet would not start on."""
        if min(self.sockets, self.zones, self.cores, self.threads) < 1:
            raise ValueError("a machine has at least one socket, NUMA zone, core and thread")
        if self.zones > MOST_ZONES:
            raise ValueError(f"{self.zones} NUMA zones: the kubelet's Topology Manager takes at most {MOST_ZONES}")
        if self.zones % self.sockets:
            raise ValueError(f"{self.zones} NUMA zones cannot be shared evenly by {self.sockets} sockets")
        if self.cores % self.zones:
            raise ValueError(f"{self.cores} cores cannot be shared evenly by {self.zones} NUMA zones")
        if self.cores * self.threads > MOST_CPUS:
            raise ValueError(f"{self.cores * self.threads} CPUs: at most {MOST_CPUS}")
        if self.memory < self.zones * 2 * RESERVED_MEMORY:
            raise ValueError(f"a NUMA zone needs at least {2 * RESERVED_MEMORY >> 30} GiB of memory")


@cache
def parse_machine(text: str) -> MachineSpec:
    """A machine as described above. ValueError names the part that is not understood."""
    found: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in re.split(r"[/,]", text))):
        name, value = _parse_part(part)
        if name in found:
            raise ValueError(f"machine {text!r}: {part!r} says {name} a second time")
        found[name] = value
    if "cores" not in found:
        raise ValueError(f"machine {text!r}: expected a number of cores, as in {EXAMPLE!r}")
    # An even number of zones is taken for two sockets, as most servers are built.
    sockets = found.setdefault("sockets", 2 if found.get("zones", 1) % 2 == 0 else 1)
    found.setdefault("zones", sockets)
    found.setdefault("memory", MEMORY_A_CPU * found["cores"] * found.get("threads", 2))
    try:
        return MachineSpec(**found)
    except ValueError as error:
        raise ValueError(f"machine {text!r}: {error}") from None


def without_devices(text: str) -> str:
    """That machine without GPUs and NICs: of a kubelet that no device plugin tells of them. ValueError as above."""
    parts = filter(None, (part.strip() for part in re.split(r"[/,]", text)))
    return " / ".join(part for part in parts if _parse_part(part)[0] not in {"gpus", "nics"})


def _parse_part(text: str) -> tuple[str, int]:
    if (match := _PART.fullmatch(text)) and (name := _WORDS.get(match[2].lower())):
        return name, int(match[1])
    if match := _MEMORY.fullmatch(text):
        return "memory", int(quantity(match[1]))
    raise ValueError(f"{text!r}: expected a part of a machine, as in {EXAMPLE!r} or 512Gi")


@cache
def parse_kubelet(text: str) -> PlayedSettings:
    """A kubelet as described above. ValueError names the word that is not understood."""
    words = [word for word in re.split(r"[\s,/]+", text.strip()) if word and word.lower() != "scope"]
    known = {*POLICIES, *SCOPES, *CPU_OPTIONS, *TOPOLOGY_OPTIONS, NO_STATIC_CPU, NO_STATIC_MEMORY}
    for word in words:
        if word not in known:
            raise ValueError(f"kubelet {text!r}: {word!r}: expected one of {', '.join(sorted(known))}")
    policies, scopes = [w for w in words if w in POLICIES], [w for w in words if w in SCOPES]
    for several in (policies, scopes):
        if len(several) > 1:
            raise ValueError(f"kubelet {text!r}: {' and '.join(several)} contradict each other")
    try:
        return PlayedSettings(
            policy=policies[0] if policies else RESTRICTED,
            scope=scopes[0] if scopes else SCOPES[0],
            static_cpu=NO_STATIC_CPU not in words,
            static_memory=NO_STATIC_MEMORY not in words,
            cpu_options=frozenset(words) & frozenset(CPU_OPTIONS),
            topology_options=frozenset(words) & frozenset(TOPOLOGY_OPTIONS),
        )
    except ValueError as error:
        raise ValueError(f"kubelet {text!r}: {error}") from None


@cache
def build(spec: MachineSpec, name: str) -> PlayedHardware:
    """The hardware; GPUs carry ids that differ from machine to machine, as real ones do."""
    # From the name, so that a machine that is made again has the same devices.
    mark = f"{zlib.crc32(name.encode()):08x}"
    ids = {GPU: [f"GPU-{mark}-{i}" for i in range(spec.gpus)], NIC: [f"mlx5_{i}" for i in range(spec.nics)]}
    return PlayedHardware(
        tuple(_zone(spec, number) for number in range(spec.zones)),
        spec.sockets,
        mask_of(cpu for cpu in _threads(spec, 0)),
        {
            # Devices fill the zones in blocks: 8 GPUs in 2 zones are 4 and 4, in their order.
            resource: tuple(PlayedDevice(name, (i * spec.zones // len(names),)) for i, name in enumerate(names))
            for resource, names in ids.items()
            if names
        },
    )


def _threads(spec: MachineSpec, core: int) -> "tuple[int, ...]":
    """As Linux numbers them: the first thread of every core, then the second of every core."""
    return tuple(core + thread * spec.cores for thread in range(spec.threads))


def _zone(spec: MachineSpec, number: int) -> PlayedZone:
    cores, zones_a_socket = spec.cores // spec.zones, spec.zones // spec.sockets
    socket = number // zones_a_socket
    distances = [NEAR if other // zones_a_socket == socket else FAR for other in range(spec.zones)]
    distances[number] = LOCAL
    return PlayedZone(
        number,
        socket,
        # A zone has one L3: of such the kubelet hears nothing.
        tuple(PlayedCore(_threads(spec, core)) for core in range(number * cores, (number + 1) * cores)),
        spec.memory // spec.zones,
        RESERVED_MEMORY if number == 0 else 0,
        {},
        tuple(distances),
    )


def capacity(hardware: PlayedHardware) -> tuple[dict[str, str], dict[str, str]]:
    """What the Node has, and what of it pods can get, beside the number of pods."""
    memory = sum(zone.memory for zone in hardware.zones)
    reserved = sum(zone.reserved_memory for zone in hardware.zones)
    healthy = {r: str(sum(device.healthy for device in d)) for r, d in hardware.devices.items()}
    cpus = hardware.cpus.bit_count()
    return (
        {"cpu": str(cpus), "memory": str(memory), **{r: str(len(d)) for r, d in hardware.devices.items()}},
        {"cpu": str(cpus - len(list(bits(hardware.reserved_cpus)))), "memory": str(memory - reserved), **healthy},
    )


def describe(spec: MachineSpec, settings: PlayedSettings) -> str:
    """Both in words, with what was left to the defaults."""
    parts = [
        *(
            f"{count} {name}{'s' * (count != 1)}"
            for name, count in (("socket", spec.sockets), ("NUMA zone", spec.zones))
        ),
        f"{spec.cores} cores of {spec.threads} thread{'s' * (spec.threads != 1)}",
        f"{spec.memory / 2**30:g} GiB",
        *(f"{count} {name}{'s' * (count != 1)}" for name, count in (("GPU", spec.gpus), ("NIC", spec.nics)) if count),
    ]
    options = sorted(settings.cpu_options | settings.topology_options)
    return f"{', '.join(parts)}; kubelet: {', '.join([settings.policy, f'{settings.scope} scope', *options])}"

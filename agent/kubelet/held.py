"""What the kubelet holds and what it will make of the next pod, from everything that could be read of it. Pure.

Rules
- The managers' own files win, for they alone have what ordinary init containers hold, and memory cells; podresources
  takes their place where they cannot be read, and ``missing`` says what is then not exact.
- What a pod held that is gone is free: the kubelet drops it before it admits the next one.
- A device that was there and is not handed out now is unhealthy, not gone, as long as the kubelet counts it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

import msgspec

from agent.kubelet.checkpoints import (
    NO_ZONE,
    CheckpointBlock,
    Config,
    Cpu,
    Devices,
    MemoryCheckpoint,
    MemoryNode,
    MemoryTable,
)
from agent.machine import cpuset
from agent.machine.cpuset import Cpus
from agent.machine.hardware import MEMORY, Hardware, MachineZone
from agent.podresources.client import GrantedResources, PodResources

T = TypeVar("T")
Zones = tuple[int, ...]
# As long as an id in a FlexTopo may be (`crds.kinds.flex_topo`); the API server would refuse the whole object.
MAX_DEVICE_ID = 128
STATIC_CPU, STATIC_MEMORY = "static", "Static"


class Owner(NamedTuple):
    """A container, by its pod's uid (as the kubelet has it) and its name."""

    uid: str
    container: str


class KubeletPod(msgspec.Struct, frozen=True):
    """A pod of this node. ``uid`` as the kubelet has it: of a static pod, another than its mirror's."""

    uid: str
    namespace: str
    name: str
    finished: bool = False


class KubeletReading(msgspec.Struct, frozen=True):
    """What could be read at one time; None for what could not, and why in ``problems``.

    ``capacity``: what the node's status counts of each device resource, unhealthy ones included; None: not known.
    """

    config: Config | None = None
    cpu: Cpu | None = None
    memory: MemoryCheckpoint | None = None
    devices: Devices | None = None
    answer: PodResources | None = None
    problems: tuple[str, ...] = ()
    version: str = ""
    capacity: Mapping[str, int] | None = None


class KubeletDevice(msgspec.Struct, frozen=True):
    """A device of a plugin. ``zones`` (): the plugin says none."""

    zones: Zones = ()
    healthy: bool = True
    owner: Owner | None = None


class KubeletState(msgspec.Struct, frozen=True):
    """The kubelet's state. ``missing``: why it is not exact; () where it is.

    ``default``: CPUs that no container holds for itself, reserved ones included. ``memory_zones``: by zone id; only
    with the Static memory manager. ``devices``: resource -> id -> device, sorted.
    """

    config: Config
    version: str = ""
    static_cpu: bool = False
    static_memory: bool = False
    default: Cpus = frozenset()
    reserved: Cpus = frozenset()
    cpus: Mapping[Owner, Cpus] = msgspec.field(default_factory=dict)
    memory_zones: Mapping[int, MemoryNode] = msgspec.field(default_factory=dict)
    memory: Mapping[Owner, tuple[CheckpointBlock, ...]] = msgspec.field(default_factory=dict)
    devices: Mapping[str, Mapping[str, KubeletDevice]] = msgspec.field(default_factory=dict)
    missing: tuple[str, ...] = ()

    @property
    def remembered(self) -> dict[str, dict[str, Zones]]:
        """The devices and their zones, for the next time."""
        return {resource: {name: device.zones for name, device in of.items()} for resource, of in self.devices.items()}


def merge(
    reading: KubeletReading,
    hardware: Hardware,
    pods: Collection[KubeletPod],
    gone: Collection[str] = frozenset(),
    remembered: Mapping[str, Mapping[str, Zones]] | None = None,
) -> KubeletState:
    """The kubelet's state.

    Args:
        reading: what was read.
        hardware: the machine.
        pods: the node's pods, as the API server has them.
        gone: uids of pods that hold nothing any more, whatever a file says.
        remembered: the devices that were there before, and zones of some that may come.
    """
    merging = _Merging(reading, hardware, pods, gone)
    static_cpu, default, cpus = merging.merge_cpus()
    static_memory, memory_zones, memory = merging.memory()
    return KubeletState(
        config=reading.config or Config(),
        version=reading.version,
        static_cpu=static_cpu,
        static_memory=static_memory,
        default=default,
        reserved=merging.reserved() if static_cpu else frozenset(),
        cpus=cpus,
        memory_zones=memory_zones,
        memory=memory,
        devices=merging.merge_devices(remembered or {}),
        missing=(*reading.problems, *merging.missing),
    )


class _Merging:
    def __init__(
        self, reading: KubeletReading, hardware: Hardware, pods: Collection[KubeletPod], gone: Collection[str]
    ) -> None:
        self.reading = reading
        self.hardware = hardware
        self.gone = gone
        self.config = reading.config or Config()
        self.missing: list[str] = []
        self._uids = {(pod.namespace, pod.name): pod.uid for pod in pods}

    def merge_cpus(self) -> tuple[bool, Cpus, dict[Owner, Cpus]]:
        """Whether the static policy is on, the default set, and who holds which CPUs."""
        state = self.reading.cpu
        if state is None:
            held = {owner: found.cpus for owner, found in self._listed_resources() if found.cpus}
            # The kubelet lists allocatable CPUs under the static policy alone, so its configuration may be missing.
            static = self.config.cpu_manager_policy == STATIC_CPU or bool(self._allocatable().cpus)
            return static, self.hardware.cpus - _union(held.values()), held
        held, freed = self._split(state.entries)
        # Less what is held: the CPUs of an init container stand under the container after it as well.
        default = state.default | (_union(freed.values()) - _union(held.values()))
        return state.policy == STATIC_CPU, default, held

    def reserved(self) -> Cpus:
        """CPUs for the system: those that may not be given out."""
        # The kubelet's word first: where amounts are reserved and no list of CPUs, it picks the reserved ones itself.
        if allocatable := self._allocatable().cpus:
            return self.hardware.cpus - allocatable
        try:
            reserved = cpuset.parse(self.config.reserved_system_cpus)
        except ValueError:
            reserved = frozenset()
        if not reserved:
            self.missing.append("the reserved CPUs: podresources does not answer, and the configuration names none")
        return reserved

    def memory(self) -> tuple[bool, dict[int, MemoryNode], dict[Owner, tuple[CheckpointBlock, ...]]]:
        """Whether the Static policy is on, its state of each zone, and who holds what."""
        state = self.reading.memory
        if state is None:
            return self._memory_as_listed()
        if state.policy != STATIC_MEMORY:
            return False, {}, {}
        held, freed = self._split(state.entries)
        zones = dict(state.zones)
        for owner in sorted(freed):
            for block in freed[owner]:
                _release(zones, block)
        return True, zones, held

    def _memory_as_listed(self) -> tuple[bool, dict[int, MemoryNode], dict[Owner, tuple[CheckpointBlock, ...]]]:
        """By podresources alone: amounts, and no cells."""
        allocatable = self._allocatable().memory
        held = {
            owner: tuple(CheckpointBlock(memory.zones, memory.type, memory.size) for memory in found.memory)
            for owner, found in self._listed_resources()
            if found.memory
        }
        by_id = {zone.id: zone for zone in self.hardware.zones}
        tables: dict[int, dict[str, MemoryTable]] = {}
        for memory in allocatable:
            for zone in memory.zones[:1]:
                installed = by_id.get(zone, MachineZone(zone))
                if memory.type == MEMORY:
                    total = installed.memory
                    # The kubelet takes huge pages out of a zone's memory before it counts what it may give out.
                    reserved = max(0, total - memory.size - sum(installed.hugepages.values()))
                else:
                    total = installed.hugepages.get(memory.type, 0)
                    reserved = max(0, total - memory.size)
                tables.setdefault(zone, {})[memory.type] = MemoryTable(total, reserved, memory.size, 0, memory.size)
        zones = {zone: MemoryNode(0, table, (zone,)) for zone, table in sorted(tables.items())}
        for owner in sorted(held):
            for block in held[owner]:
                _take_block(zones, block)
        # The kubelet lists allocatable memory under the Static policy alone.
        return bool(allocatable), zones, held

    def merge_devices(self, remembered: Mapping[str, Mapping[str, Zones]]) -> dict[str, dict[str, KubeletDevice]]:
        """All devices that the kubelet knows or knew, by resource."""
        owners = self._device_owners()
        zones = self._device_zones(remembered)
        found: dict[str, dict[str, KubeletDevice]] = {}
        registered = self.reading.devices.registered if self.reading.devices else {}
        healthy = self._allocatable().devices if self.reading.answer else registered
        for resource in sorted({*healthy, *registered, *owners, *remembered}):
            usable = set(healthy.get(resource, ()))
            known = usable | set(registered.get(resource, ())) | set(owners.get(resource, {}))
            # Of the remembered devices that are neither healthy nor held, as many as the node's status still counts.
            silent = sorted(set(remembered.get(resource, ())) - known)
            if self.reading.capacity is not None:
                unhealthy = self.reading.capacity.get(resource, 0) - len(usable)
                lacking = unhealthy - len(known - usable)
                if lacking > len(silent):
                    self.missing.append(
                        f"which zones {lacking - len(silent)} unhealthy devices of {resource} belong to"
                    )
                # Which of them are left nobody says. By name, so that the answer does not change from look to look.
                silent = silent[: max(0, lacking)]
            known.update(silent)
            # Devices whose id a FlexTopo cannot hold hide no others.
            if unspeakable := {name for name in known if not 0 < len(name) <= MAX_DEVICE_ID}:
                self.missing.append(f"{len(unspeakable)} devices of {resource}, whose ids are empty or too long")
                known -= unspeakable
            if known:
                found[resource] = {
                    name: KubeletDevice(
                        zones.get(resource, {}).get(name, ()), name in usable, owners.get(resource, {}).get(name)
                    )
                    for name in sorted(known)
                }
        return found

    def _device_owners(self) -> dict[str, dict[str, Owner]]:
        owners: dict[str, dict[str, Owner]] = {}
        if self.reading.devices is None:
            for owner, held in self._listed_resources():
                for resource, ids in held.devices.items():
                    owners.setdefault(resource, {}).update(dict.fromkeys(ids, owner))
            return owners
        for entry in self.reading.devices.entries:
            if entry.pod_uid in self.gone:
                continue
            owner, of = Owner(entry.pod_uid, entry.container_name), owners.setdefault(entry.resource_name, {})
            # Of two holders the lower one, whatever the order in the file: else the status changes where nothing does.
            for names in (entry.device_ids or {}).values():
                of.update((name, min(owner, of.get(name, owner))) for name in names or ())  # an init container's too
        return owners

    def _device_zones(self, remembered: Mapping[str, Mapping[str, Zones]]) -> dict[str, dict[str, Zones]]:
        zones = {resource: dict(of) for resource, of in remembered.items()}
        for entry in self.reading.devices.entries if self.reading.devices else ():
            of = zones.setdefault(entry.resource_name, {})
            by_device: dict[str, set[int]] = {}
            for zone, ids in (entry.device_ids or {}).items():
                for name in ids or ():
                    by_device.setdefault(name, set()).update(() if zone == NO_ZONE else (zone,))
            of.update((name, tuple(sorted(found))) for name, found in by_device.items())
        # Last, as it wins: a plugin that was restarted may tell other zones than the file and we remember.
        for resource, listed in self._allocatable().devices.items():
            zones.setdefault(resource, {}).update(listed)
        return zones

    def _allocatable(self) -> GrantedResources:
        return self.reading.answer.allocatable if self.reading.answer else GrantedResources()

    def _listed_resources(self) -> Iterator[tuple[Owner, GrantedResources]]:
        """What podresources says the containers of known pods hold."""
        for key, containers in sorted((self.reading.answer.pods if self.reading.answer else {}).items()):
            uid = self._uids.get(key)
            if uid is not None and uid not in self.gone:
                yield from ((Owner(uid, name), found) for name, found in sorted(containers.items()) if found)

    def _split(self, entries: Mapping[str, Mapping[str, T]]) -> tuple[dict[Owner, T], dict[Owner, T]]:
        """What is held, and what is free again because its pod is gone."""
        held: dict[Owner, T] = {}
        freed: dict[Owner, T] = {}
        for uid, containers in sorted(entries.items()):
            for name, amount in sorted(containers.items()):
                (freed if uid in self.gone else held)[Owner(uid, name)] = amount
        return held, freed


def uids(reading: KubeletReading) -> set[str]:
    """The pods that the kubelet's files name."""
    found = {entry.pod_uid for entry in reading.devices.entries} if reading.devices else set()
    for state in (reading.cpu, reading.memory):
        found |= set(state.entries) if state else set()
    return found


def with_last(answer: PodResources, last: PodResources | None, pods: Collection[KubeletPod]) -> PodResources:
    """The answer; one without any pod is of a kubelet that starts: then the pods that still live are as they were."""
    if answer.pods or last is None:
        return answer
    # Only the ones that still live: else the last answer would bring back what ended while the kubelet was away.
    living = {(pod.namespace, pod.name) for pod in pods if not pod.finished}
    return PodResources({key: held for key, held in last.pods.items() if key in living}, answer.allocatable)


def memory_by_zone(held: KubeletState) -> dict[Owner, dict[str, dict[int, int]]]:
    """Owner -> type -> zone -> bytes.

    The kubelet keeps a group's memory as one amount. What each zone gave in all is known: blocks of several zones are
    spread so that these sums hold, in order of the owners, from the lowest zone on as the kubelet takes it.
    """
    left = {
        (zone, kind): table.reserved
        for zone, node in held.memory_zones.items()
        for kind, table in (node.memory_map or {}).items()
    }
    blocks = [(owner, block) for owner, found in sorted(held.memory.items()) for block in found if block.size]
    shares: dict[Owner, dict[str, dict[int, int]]] = {}
    # Blocks of one zone first: they leave no choice, and the sums then hold what is left for the others.
    for owner, block in sorted(blocks, key=lambda pair: len(pair[1].numa_affinity or ()) > 1):
        share = shares.setdefault(owner, {}).setdefault(block.type, {})
        zones, size = sorted(block.numa_affinity or ()), block.size
        for i, zone in enumerate(zones):
            # The last zone takes what remains, so that a container's amounts add up to its block in any case.
            part = size if i == len(zones) - 1 else min(size, max(0, left.get((zone, block.type), 0)))
            if part:
                share[zone] = share.get(zone, 0) + part
                left[zone, block.type] = left.get((zone, block.type), 0) - part
                size -= part
    return shares


def _release(zones: dict[int, MemoryNode], block: CheckpointBlock) -> None:
    """Give a block back, as the kubelet does when it drops a container."""
    size = block.size
    for zone in block.numa_affinity or ():
        if (node := zones.get(zone)) is None:
            continue
        count = node.number_of_assignments - 1
        tables = dict(node.memory_map or {})
        table = tables.get(block.type, MemoryTable())
        back = min(size, table.reserved)
        size -= back
        if back:
            tables[block.type] = _table_after(table, -back)
        # The kubelet takes a group of zones apart only when the last container has left it.
        zones[zone] = MemoryNode(max(0, count), tables, node.cells if count > 0 else (zone,))


def _take_block(zones: dict[int, MemoryNode], block: CheckpointBlock) -> None:
    """Take a block from what is free, as the kubelet does."""
    size = block.size
    for zone in block.numa_affinity or ():
        if (node := zones.get(zone)) is None:
            continue
        tables = dict(node.memory_map or {})
        table = tables.get(block.type, MemoryTable())
        part = min(size, table.free)
        size -= part
        tables[block.type] = _table_after(table, part)
        cells = tuple(block.numa_affinity or ())
        zones[zone] = MemoryNode(node.number_of_assignments + 1, tables, cells)


def _table_after(table: MemoryTable, taken: int) -> MemoryTable:
    return MemoryTable(
        table.total, table.system_reserved, table.allocatable, table.reserved + taken, max(0, table.free - taken)
    )


def _union(sets: Iterable[Cpus]) -> Cpus:
    return frozenset().union(*sets)

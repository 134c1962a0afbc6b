"""Whether a node's kubelet admits a pod, and which zones, CPUs and devices the pod gets there.

In container scope every container in turn asks all managers for hints, has them merged, and takes what it asks for; the
next one finds what is left. In pod scope there is one merged hint for all, and in policy none there is none. A refusal
comes from the merge (``TopologyAffinityError``) or from an allocation (``SMTAlignmentError``,
``UnexpectedAdmissionError``); these are the kubelet's own words. Two reasons of ours come on top: the pod's wish for
linked devices (`engine.kubelet.device_manager`) and for zones (`engine.kubelet.numa_policy`).

Layouts with full state are predicted exactly. Where only amounts are known, whole zones are; out of several zones
amounts are taken zone by zone in their order. docs/numa.md has what that leaves open.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from engine.kubelet.admission import AdmissionOutcome, HintMerge
from engine.kubelet.allocators import (
    AllocationFailure,
    CountRoom,
    CpuRoom,
    DeviceRoom,
    allocate_devices,
    allocate_units,
    row_of,
    unexpected,
)
from engine.kubelet.cpu_manager import cpus_of
from engine.kubelet.device_manager import must_link, unknown
from engine.kubelet.hint_merge import Hints, Merged, agreed, merge, space_of
from engine.kubelet.hints import permutations
from engine.kubelet.machine import (
    CPU,
    ContainerKind,
    Layout,
    Machine,
    MemoryCells,
    NumaPlacement,
    PodShape,
    Scope,
    State,
    TopologyPolicy,
    ZoneUse,
)
from engine.kubelet.memory_manager import Memory
from engine.kubelet.numa_policy import LENIENT, NUMA_POLICY, unfulfilled
from engine.kubelet.resource_requests import Asks, ResourceRequest, asks_of

ALIGNED: Final = "TopologyAffinityError"
ALIGNED_MESSAGE: Final = "Resources cannot be allocated with Topology locality"
WHOLE_POD: Final = "*"
# A family of masks is an int of 2^zones bits (`engine.kubelet.hint_merge`): 4,096 bits at 12 zones, and four times as
# many with every two zones more.
MOST_ZONES: Final = 12  # beyond, kubelets that align would go through more masks than they can
TOO_MANY: Final = f"cannot be predicted: the kubelet looks at every set of zones, and there are more than {MOST_ZONES}"


def admit(layout: Layout, state: State, pod: PodShape) -> AdmissionOutcome:
    """Ask the kubelet of a machine with this layout and state for one pod."""
    layout = _first_equal(layout)
    asks = asks_of(layout.resources, layout.ignored, layout.kubelet, pod)
    # Under policy none no masks are made, unless the memory manager has to find a default mask by itself.
    if len(layout.zones) > MOST_ZONES and (layout.kubelet.policy is not TopologyPolicy.NONE or asks.whole.memory):
        return AdmissionOutcome(False, ALIGNED, TOO_MANY, (), 0, (), (), state)
    trial = Trial(layout, state, pod, asks)
    refusal = trial.run()
    if refusal is not None:
        return AdmissionOutcome(False, refusal.reason, refusal.message, tuple(trial.steps), 0, (), (), state)
    # After the kubelet's own verdict, and only then: a node whose kubelet refuses shows the kubelet's reason, which is
    # the one that a person finds on the failed pod.
    unlinked = next((name for name in must_link(pod) if not trial.knows(name)), None)
    if unlinked is not None:
        refused = unknown(unlinked)
        return AdmissionOutcome(False, refused.reason, refused.message, tuple(trial.steps), 0, (), (), state)
    missing = "" if pod.wish in LENIENT else unfulfilled(layout, pod, trial.reach, trial.totals())
    if missing:
        return AdmissionOutcome(False, NUMA_POLICY, missing, tuple(trial.steps), 0, (), (), state)
    return trial.admission()


@lru_cache(maxsize=1 << 14)
def _first_equal(layout: Layout) -> Layout:
    """One object for all equal layouts, so that what is kept by layout is found without comparing cores."""
    return layout


def hangs(layout: Layout, pod: PodShape) -> int:
    """How many combinations of hints the kubelet goes through for one merge of this pod, were the machine empty.

    About 6 million a second; where a second is not enough, do not steer the pod there (docs/numa.md).
    """
    if layout.kubelet.policy is TopologyPolicy.NONE or len(layout.zones) > MOST_ZONES:
        return 0
    asks = asks_of(layout.resources, layout.ignored, layout.kubelet, pod)
    wanted = [asks.whole] if layout.kubelet.scope is Scope.POD else [ask for _, _, ask in asks.containers]
    most = 0
    for ask in wanted:
        hints = Trial(layout, empty(layout), pod, asks).hints_for_ask(ask)
        # As the kubelet does before its product of hints: single-numa-node drops every hint but preferred ones of one
        # zone, so its product stays small.
        if layout.kubelet.policy is TopologyPolicy.SINGLE:
            single = space_of(len(layout.zones)).widths[1]
            hints = [Hints(preferred=hint.preferred & single, free=hint.free) for hint in hints]
        most = max(most, permutations(hints))
    return most


class Trial:
    """One admission as it goes on."""

    __slots__ = ("asks", "counts", "cpus", "devices", "layout", "memory", "mode", "reach", "state", "steps")

    def __init__(self, layout: Layout, state: State, pod: PodShape, asks: Asks) -> None:
        self.layout = layout
        self.state = state
        self.asks = asks
        self.mode = pod.gpu_link
        self.steps: list[HintMerge] = []
        self.reach: dict[int, int] = {}  # by row: the zones that the pod's units come from, or may come from
        self.cpus: CpuRoom | None = None
        self.memory: Memory | None = None
        self.devices: dict[int, DeviceRoom] = {}
        self.counts: dict[int, CountRoom] = {}
        whole = asks.whole
        if whole.cpus:
            row = row_of(layout.resources, CPU)
            if layout.exact:
                self.cpus = CpuRoom(layout, state)
            else:
                # The kubelet pins whole CPUs: what is left of a CPU in milli-CPU serves no container.
                self._set_count(row, [max(zone[row], 0) // 1000 for zone in state.free])
        # An init container may ask for a type of memory that no app asks for. It is not part of the whole pod's ask,
        # and the memory manager allocates it all the same.
        if whole.memory or any(ask.memory for _, _, ask in asks.containers):
            self.memory = Memory(layout, state)
        for row, _ in whole.devices:
            # Also in an exact layout a resource that zones report, and of which no single devices are listed, counts by
            # amounts.
            if layout.exact and layout.devices and layout.devices[row]:
                self.devices[row] = DeviceRoom(layout, row, state.devices[row])
            elif any(zone[row] >= 0 for zone in layout.capacity):
                self._set_count(row, [zone[row] for zone in state.free])

    def _set_count(self, row: int, free: list[int]) -> None:
        self.counts[row] = CountRoom(self.layout, row, free)

    # -- the flow -----------------------------------------------------------------------------------------------

    def run(self) -> AllocationFailure | None:
        """Admit container by container; why not, or None."""
        policy = self.layout.kubelet.policy
        # Under policy none every allocation gets no affinity, and it can still fail.
        merged = Merged(None, preferred=False)
        per_container = self.layout.kubelet.scope is Scope.CONTAINER
        if policy is not TopologyPolicy.NONE and not per_container:
            # One merge before anything is allocated: the mask holds for all containers, whatever the first ones take of
            # it.
            merged = self._step(WHOLE_POD, self.asks.whole)
            if not self.steps[-1].admit:
                return AllocationFailure(ALIGNED, ALIGNED_MESSAGE)
        for at, (kind, name, ask) in enumerate(self.asks.containers):
            if policy is not TopologyPolicy.NONE and per_container:
                merged = self._step(name, ask)
                if not self.steps[-1].admit:
                    return AllocationFailure(ALIGNED, ALIGNED_MESSAGE)
            # Between this merge and the next one: the next container's hints are about what this one leaves.
            refusal = self.allocate_container(at, kind, ask, merged)
            if refusal is not None:
                return refusal
        return None

    def _step(self, name: str, ask: ResourceRequest) -> Merged:
        """Merge the hints; where a single zone is preferred by all, nothing wider is looked at."""
        kubelet = self.layout.kubelet
        space = space_of(len(self.layout.zones))
        # Most pods fit one zone. Their merge needs no family of all masks, which is the costly part on 8 zones.
        narrow = self.hints_for_ask(ask, narrow=True)
        if kubelet.policy is TopologyPolicy.SINGLE:
            merged = merge(narrow, space, TopologyPolicy.SINGLE)
        else:
            distances = [zone.distances for zone in self.layout.zones] if kubelet.prefer_closest_numa_nodes else []
            # A node that publishes distances for some zones only has no order by distance.
            if not all(distances):
                distances = []
            # A preferred mask of one zone is the narrowest that there is, so no wider family can change the answer.
            mask = agreed(narrow, space, distances)
            merged = Merged(mask, preferred=True)
            if not mask:
                merged = merge(self.hints_for_ask(ask), space, kubelet.policy, distances)
        # Restricted and single-numa-node refuse by the same rule; they differ in which hints are merged, not here.
        admitted = merged.preferred or kubelet.policy is TopologyPolicy.BEST_EFFORT
        self.steps.append(HintMerge(name, merged.mask, merged.preferred, admitted))
        return merged

    def hints_for_ask(self, ask: ResourceRequest, *, narrow: bool = False) -> list[Hints]:
        """The hints of all that is asked for, of those who have a preference; ``narrow`` as in `of_sums`."""
        found = []
        for row, amount in ask.devices:
            room = self.devices.get(row) or self.counts.get(row)
            if room is not None:
                found.append(room.hints_for_count(amount, narrow=narrow))
        if ask.cpus:
            found.append(self.cpu_room().hints_for_count(ask.cpus, narrow=narrow))
        if ask.memory and self.memory is not None:
            hints = self.memory.hints_for_memory(ask.memory, narrow=narrow)
            if hints is not None:
                found.append(hints)
        # A resource without a preference takes part in no merge: it would accept every mask.
        return [hint for hint in found if not hint.free]

    def cpu_room(self) -> CpuRoom | CountRoom:
        """Where the pod's CPUs come from."""
        return self.cpus if self.cpus is not None else self.counts[row_of(self.layout.resources, CPU)]

    # -- allocation ---------------------------------------------------------------------------------------------

    def allocate_container(
        self, at: int, kind: ContainerKind, ask: ResourceRequest, merged: Merged
    ) -> AllocationFailure | None:
        """Take what container ``at`` asks for, with this merged hint; why not, or None."""
        # Devices, then CPUs, then memory, as the kubelet calls its hint providers: the first allocation that fails
        # gives the reason that the pod shows.
        for row, count in ask.devices:
            share = self._allocate_devices(at, kind, row, count, merged.mask)
            if isinstance(share, AllocationFailure):
                return share
            if share is not None:
                self._reaches(row, share)
        if ask.cpus:
            # The mask stands for what all providers agreed on; the CPU manager may still take CPUs outside of it where
            # it has too few inside (best-effort).
            share = self.cpu_room().allocate_count(ask.cpus, merged.mask, kind)
            if isinstance(share, AllocationFailure):
                return share
            self._reaches(row_of(self.layout.resources, CPU), share)
        if ask.memory and self.memory is not None:
            failed = self.memory.allocate_memory(ask.memory, merged.mask, merged.preferred, kind is ContainerKind.INIT)
            if failed:
                # The memory manager finds out only here that nothing fits, under every policy: without a fitting mask
                # it gives no hint, and so it does not stop the merge.
                return unexpected(f"[memorymanager] {failed}")
            for zone, row in self.memory.touched:
                self._reaches(row, 1 << zone)
        return None

    def _allocate_devices(
        self, at: int, kind: ContainerKind, row: int, count: int, mask: int | None
    ) -> int | AllocationFailure | None:
        later = 0
        if kind is not ContainerKind.INIT:
            # Devices that containers after this one will hold beside it.
            later = sum(
                amount
                for other, _, ask in self.asks.containers[at + 1 :]
                if other is not ContainerKind.INIT
                for r, amount in ask.devices
                if r == row
            )
        if row in self.devices:
            room = self.devices[row]
            # Devices that an init container lends are free for this container; they count as the pod's other devices
            # only once a container that stays has them.
            held = 0 if kind is ContainerKind.INIT else room.held & ~room.spare
            return allocate_devices(room, count, mask, kind, mode=self.mode, held=held, later=later)
        if row in self.counts:
            # Without single devices it is not known what the containers before got, so links are asked for the whole
            # pod.
            whole = dict(self.asks.whole.devices)[row]
            free = dict(self.state.declared_free).get(self.layout.resources[row])
            return allocate_units(self.counts[row], count, mask, kind, mode=self.mode, whole=whole, declared=free)
        return None

    def knows(self, resource: str) -> bool:
        """Whether devices of a resource were handed out by what is known of them."""
        row = row_of(self.layout.resources, resource)
        return row in self.devices or row in self.counts

    def _reaches(self, row: int, zones: int) -> None:
        if zones:
            self.reach[row] = self.reach.get(row, 0) | zones

    # -- the result ---------------------------------------------------------------------------------------------

    def totals(self) -> dict[int, int]:
        """What the whole pod asks of each resource, in whole CPUs, bytes and devices."""
        whole = self.asks.whole
        cpus = {row_of(self.layout.resources, CPU): whole.cpus} if whole.cpus else {}
        return cpus | dict((*whole.devices, *whole.memory))

    def admission(self) -> AdmissionOutcome:
        """All that the pod holds now, and what is left."""
        zones = len(self.layout.zones)
        held: list[dict[str, int]] = [{} for _ in range(zones)]
        free: dict[int, list[int]] = {}
        devices: list[tuple[str, int]] = []
        resources = self.layout.resources
        for row, counts in self.counts.items():
            scale = 1000 if resources[row] == CPU else 1
            # Before the amounts are read: it moves what the kubelet may hold on top from free to held.
            counts.keep_others()
            free[row] = [left * scale for left in counts.free]
            _add(held, resources[row], [count * scale for count in counts.held])
        for row, room in self.devices.items():
            free[row] = [(room.free & mask).bit_count() for mask in room.zones]
            _add(held, resources[row], [(room.held & mask).bit_count() for mask in room.zones])
            if room.held:
                devices.append((resources[row], room.held))
        if self.cpus is not None:
            row = row_of(resources, CPU)
            free[row] = [1000 * count for count in self.cpus.by_zone(self.cpus.free)]
            _add(held, CPU, [1000 * count for count in self.cpus.by_zone(self.cpus.held)])
        if self.memory is not None:
            free |= self.memory.free
            for zone, row in self.memory.touched:
                # Of a zone in a group this may be 0. The zone stays in the placement, because the group blocks it for
                # others.
                held[zone][resources[row]] = self.state.free[zone][row] - self.memory.free[row][zone]
        uses = tuple([(zone, tuple(sorted(amounts.items()))) for zone, amounts in enumerate(held) if amounts])
        mask = sum(1 << zone for zone, _ in uses)
        pinned = self.cpus.held if self.cpus is not None else 0
        return AdmissionOutcome(True, "", "", tuple(self.steps), mask, uses, tuple(devices), self._after(free), pinned)

    def _after(self, free: Mapping[int, list[int]]) -> State:
        state = self.state
        rows = []
        for zone, before in enumerate(state.free):
            after = list(before)
            for row, left in free.items():
                # -1 stays: the zone does not report the resource, which is not the same as having none left.
                if after[row] >= 0:
                    after[row] = left[zone]
            rows.append(tuple(after))
        devices = tuple(
            [self.devices[row].free if row in self.devices else mask for row, mask in enumerate(state.devices)]
        )
        memory = self.memory.cells_after(state) if self.memory is not None else state.memory
        cpus = self.cpus.free if self.cpus is not None else state.cpus
        return State(free=tuple(rows), cpus=cpus, devices=devices, memory=memory, declared_free=state.declared_free)


def _add(held: list[dict[str, int]], resource: str, amounts: list[int]) -> None:
    for here, amount in zip(held, amounts, strict=True):
        if amount:
            here[resource] = amount


def placement_of(
    where: Layout | Machine, admission: AdmissionOutcome, device_ids: Mapping[str, tuple[str, ...]] | None = None
) -> NumaPlacement:
    """What an admission means for the pod: by kubelet ids of zones, and of devices where they are known."""
    layout = where.layout if isinstance(where, Machine) else where
    ids = device_ids if device_ids is not None else where.device_ids if isinstance(where, Machine) else {}
    amounts = {zone: dict(held) for zone, held in admission.uses}
    named: dict[int, dict[str, tuple[str, ...]]] = {}
    for resource, mask in admission.devices:
        listed = layout.devices[layout.resources.index(resource)]
        # Names and layout come from two parts of a report. With different lengths an index would name a wrong device.
        if resource not in ids or len(ids[resource]) != len(listed):
            continue
        for zone in amounts:
            here = [i for i, device in enumerate(listed) if mask >> i & 1 and device.zones >> zone & 1]
            if here:
                named.setdefault(zone, {})[resource] = tuple([ids[resource][i] for i in here])
        # Devices of no zone take nothing of one; a record has no other place for their ids than its first zone.
        nowhere = [i for i, device in enumerate(listed) if mask >> i & 1 and not device.zones]
        if nowhere:
            first = named.setdefault(min(amounts, default=0), {})
            first[resource] = (*first.get(resource, ()), *[ids[resource][i] for i in nowhere])
    uses = [
        ZoneUse(zone=layout.zones[zone].id, amounts=amounts.get(zone, {}), devices=named.get(zone, {}))
        for zone in amounts.keys() | named.keys()
    ]
    return NumaPlacement(zones=tuple(sorted(uses, key=lambda use: use.zone)))


def empty(layout: Layout) -> State:
    """The state of a machine on which nothing runs."""
    if not layout.exact:
        return State(free=layout.allocatable)
    # Unhealthy devices count in the width of a hint (`installed`) and are never handed out.
    healthy = tuple([sum(1 << at for at, one in enumerate(listed) if one.healthy) for listed in layout.devices])
    cells = tuple([MemoryCells(cells=1 << zone) for zone in range(len(layout.zones))])
    # Reserved CPUs are never free, with or without strict-cpu-reservation: that option only keeps them out of the
    # shared pool.
    cpus = cpus_of(layout).all & ~layout.reserved_cpus
    return State(free=layout.allocatable, cpus=cpus, devices=healthy, memory=cells)

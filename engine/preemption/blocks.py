"""The blocks of a node that a preemptor may land in, what is free there, and what each victim would give back.

A block is one zone, the zones of one socket, or the whole node; a landing in a block takes all that kubelets align from
its zones. Whatever is not aligned comes from the node. So a row is either a resource of the node, or a resource that
zones report, and a block has an amount of each. That a block has enough is necessary for landing there; whether it
suffices is for `engine.kubelet.admit` to say.
"""

from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from engine.kubelet.allocators import installed
from engine.kubelet.hints import DEVICES_WHERE_THEY_ARE
from engine.kubelet.machine import CPU, Kubelet, Layout, PodShape, TopologyPolicy
from engine.kubelet.numa_policy import LENIENT, refused_unseen
from engine.kubelet.resource_requests import asks_of, is_device, is_memory
from engine.model import PODS
from engine.preemption.model import Landing, NodeRoom, Preemptor, TopologyQos, VictimPod

KEPT: Final = 1 << 12

_WHOLE: Final = frozenset({Landing.ACROSS, Landing.UNKNOWN})
Row = tuple[bool, str]  # (inside: of zones, else of the node; resource)


class Block(NamedTuple):
    """``zones``: a mask; 0 where the inside of the node is not known."""

    landing: Landing
    zones: int


class Offer(NamedTuple):
    """What a victim gives back in a block, by row of the node's rows; ``freed``: devices in all."""

    gains: tuple[int, ...]
    priority: int
    weight: int
    freed: int


@lru_cache(maxsize=KEPT)
def blocks_of(layout: Layout | None) -> tuple[Block, ...]:
    """All blocks of a machine, the whole last; a socket of one zone is that zone."""
    if layout is None:
        return (Block(Landing.UNKNOWN, 0),)
    sockets: dict[int, int] = {}
    for at, zone in enumerate(layout.zones):
        sockets[zone.socket] = sockets.get(zone.socket, 0) | 1 << at
    found = {1 << at: Landing.ZONE for at in range(len(layout.zones))}
    for mask in sockets.values():
        found.setdefault(mask, Landing.SOCKET)
    whole = Block(Landing.ACROSS, (1 << len(layout.zones)) - 1)
    return (*[Block(landing, mask) for mask, landing in found.items()], whole)


def free_in(room: NodeRoom, block: Block, rows: tuple[Row, ...]) -> list[int]:
    """What is free of each row."""
    found = []
    resources = {} if room.layout is None else {name: at for at, name in enumerate(room.layout.resources)}
    state = room.state
    for inside, resource in rows:
        if not inside:
            found.append(room.free.get(resource, 0))
        elif state is not None:
            at = resources[resource]
            zones = range(len(state.free))
            found.append(sum(max(state.free[zone][at], 0) for zone in zones if block.zones >> zone & 1))
    return found


def offers(room: NodeRoom, victim: VictimPod, rows: tuple[Row, ...], blocks: tuple[Block, ...]) -> list[Offer]:
    """What a victim gives back in each block."""
    places = {} if room.layout is None else {zone.id: at for at, zone in enumerate(room.layout.zones)}
    held: dict[str, list[tuple[int, int]]] = {}
    uses = victim.placement.zones if victim.placement is not None else ()
    if all(use.zone in places for use in uses):  # a record with an unknown zone is void
        for use in uses:
            for resource, amount in use.amounts.items():
                held.setdefault(resource, []).append((1 << places[use.zone], amount))
    freed = sum(amount for resource, amount in victim.requests.items() if is_device(resource))
    found = []
    for block in blocks:
        gains = [
            sum(amount for zone, amount in held.get(resource, ()) if zone & block.zones)
            if inside
            else victim.requests.get(resource, 0)
            for inside, resource in rows
        ]
        found.append(Offer(tuple(gains), victim.priority, victim.weight, freed))
    return found


class MachineNeeds(msgspec.Struct, frozen=True):
    """What a preemptor needs of a kind of machine.

    ``needs``: (row, amount > 0). ``blocks``: those that a landing may be promised in. ``asked``: the shape that the
    kubelet is asked about, None where nothing inside can refuse it.
    """

    needs: tuple[tuple[Row, int], ...]
    blocks: frozenset[Landing]
    asked: PodShape | None

    @property
    def aligned(self) -> bool:
        """Whether anything has to come from zones."""
        return self.blocks is not _WHOLE


class MachineKind(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """What a layout decides about needs; None for nodes whose inside is not known."""

    resources: tuple[str, ...]
    ignored: tuple[str, ...]
    kubelet: Kubelet
    exact: bool
    nowhere: tuple[str, ...]  # resources of which some devices belong to no zone
    largest: tuple[int, ...]  # by resource, what one zone has at the most


@lru_cache(maxsize=KEPT)
def kind_of(layout: Layout | None) -> MachineKind | None:
    """The kind of a layout."""
    if layout is None:
        return None
    devices = layout.devices or ((),) * len(layout.resources)
    nowhere = [
        name
        for row, (name, listed) in enumerate(zip(layout.resources, devices, strict=True))
        # A device without a zone may serve the pod wherever it lands, so the zones bound nothing for this resource.
        if any(not device.zones for device in listed) or all(zone[row] < 0 for zone in layout.capacity)
    ]
    largest: list[int] = []
    for row, name in enumerate(layout.resources):
        if is_memory(name):
            largest.append(max(zone[row] for zone in layout.allocatable))
        else:
            # Restricted goes by what is installed: a pod that one empty zone would hold is refused on two.
            largest.append(max(installed(layout, row).units) * (1000 if name == CPU else 1))
    return MachineKind(layout.resources, layout.ignored, layout.kubelet, layout.exact, tuple(nowhere), tuple(largest))


def wanted(kind: MachineKind | None, preemptor: Preemptor) -> MachineNeeds | None:
    """What a preemptor needs; None where it can never land on such a machine."""
    amounts = {PODS: 1, **preemptor.requests}
    needs: list[tuple[Row, int]] = [((False, name), amount) for name, amount in amounts.items() if amount > 0]
    shape = preemptor.shape
    if shape is None or preemptor.qos is TopologyQos.BLIND:
        return MachineNeeds(tuple(needs), _WHOLE, None)
    # A wish that only ranks must not refuse: the kubelet is asked about the pod as if it had none.
    if preemptor.qos is TopologyQos.BEST_EFFORT and shape.wish not in LENIENT:
        shape = _without_wish(shape)
    if kind is None:
        return None if refused_unseen(shape) is not None else MachineNeeds(tuple(needs), _WHOLE, None)
    inside, blocks = _aligned(kind, shape)
    return MachineNeeds((*needs, *inside), blocks, shape)


@lru_cache(maxsize=KEPT)
def _aligned(kind: MachineKind, shape: PodShape) -> tuple[tuple[tuple[Row, int], ...], frozenset[Landing]]:
    """What kubelets take from zones, and the blocks that they may take it from."""
    whole = asks_of(kind.resources, kind.ignored, kind.kubelet, shape).whole
    inside = {CPU: whole.cpus * 1000} if whole.cpus else {}
    for row, amount in (*whole.devices, *whole.memory):
        if amount > 0 and kind.resources[row] not in kind.nowhere:
            inside[kind.resources[row]] = amount
    widest = _widest(kind, shape, inside)
    blocks = frozenset(landing for landing in Landing if landing <= widest)
    return tuple([((True, name), amount) for name, amount in inside.items()]), blocks if inside else _WHOLE


@lru_cache(maxsize=KEPT)
def _without_wish(shape: PodShape) -> PodShape:
    return PodShape(containers=shape.containers, qos=shape.qos, pod_level=shape.pod_level, gpu_link=shape.gpu_link)


def _widest(kind: MachineKind, shape: PodShape, inside: dict[str, int]) -> Landing:
    """The widest block out of which a pod may be served, as far as that is sure without asking the kubelet."""
    kubelet = kind.kubelet
    asks = asks_of(kind.resources, kind.ignored, kubelet, shape)
    asking = [ask for _, _, ask in asks.containers if ask.cpus or ask.memory or any(n for _, n in ask.devices)]
    # Several containers may get different zones, older kubelets make masks of all zones for devices,
    # and a wish about some resources lets others lie elsewhere: then only the kubelet tells.
    sure = len(asking) == 1 and kubelet.version >= DEVICES_WHERE_THEY_ARE and not shape.wish_resources
    if not sure or not inside:
        return Landing.ACROSS
    if kubelet.policy is TopologyPolicy.SINGLE or shape.wish is TopologyPolicy.SINGLE:
        return Landing.ZONE
    if kubelet.policy is TopologyPolicy.RESTRICTED and all(
        kind.largest[kind.resources.index(name)] >= amount for name, amount in inside.items()
    ):
        return Landing.ZONE
    return Landing.SOCKET if shape.wish is TopologyPolicy.SOCKET else Landing.ACROSS

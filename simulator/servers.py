"""GPU servers as the preemption scenarios describe them, as the rooms that a search for victims looks at.

The CPUs of an instance come in equal parts from the zones of its GPUs, the lowest free ones first. The kubelets are
those that can promise the most about sockets and refuse nothing: static CPU manager, ``best-effort`` over whole pods,
``prefer-closest-numa-nodes``. What is guaranteed beyond that is the pod's own wish, one socket by default.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final

import msgspec

from engine.kubelet.charge import charge
from engine.kubelet.machine import (
    CPU,
    Container,
    DeviceLayout,
    Kubelet,
    Layout,
    MemoryCells,
    NumaPlacement,
    PodShape,
    Scope,
    State,
    TopologyPolicy,
    Zone,
    ZoneUse,
)
from engine.kubelet.machine import Qos as PodQos
from engine.model import PODS
from engine.preemption.model import NodeRoom, Preemptor, TopologyQos, VictimPod

GPU: Final = "nvidia.com/gpu"
KUBELET: Final = Kubelet(
    policy=TopologyPolicy.BEST_EFFORT, scope=Scope.POD, static_cpu=True, prefer_closest_numa_nodes=True
)


class Server(msgspec.Struct, frozen=True, dict=True):
    """One kind of server. ``cores[z]``: CPU ids of zone z; ``socket_of[z]``; ``zone_of[g]``: the zone of GPU g."""

    cores: tuple[range, ...]
    socket_of: tuple[int, ...]
    zone_of: tuple[int, ...]
    distances: tuple[int, int, int] = (10, 12, 32)  # the same zone, the same socket, across
    allocatable: Mapping[str, int] = msgspec.field(default_factory=dict)
    kubelet: Kubelet = KUBELET

    @cached_property
    def layout(self) -> Layout:
        """The same in the engine's words, with full state."""
        zones, (same, near, far) = range(len(self.cores)), self.distances
        gpus = [sum(1 for zone in self.zone_of if zone == at) for at in zones]
        amounts = tuple((1000 * len(self.cores[at]), gpus[at]) for at in zones)
        return Layout(
            zones=tuple(
                Zone(
                    id=at,
                    socket=self.socket_of[at],
                    distances=tuple(
                        same if at == to else near if self.socket_of[at] == self.socket_of[to] else far for to in zones
                    ),
                    cores=tuple((cpu,) for cpu in self.cores[at]),
                )
                for at in zones
            ),
            resources=(CPU, GPU),
            capacity=amounts,
            allocatable=amounts,
            kubelet=self.kubelet,
            devices=((), tuple(DeviceLayout(zones=1 << zone) for zone in self.zone_of)),
            threads=1,
            exact=True,
        )

    @property
    def gpus(self) -> int:
        """How many it has."""
        return len(self.zone_of)

    @property
    def amounts(self) -> dict[str, int]:
        """What the whole node has."""
        return {CPU: 1000 * sum(map(len, self.cores)), GPU: self.gpus, PODS: 110} | dict(self.allocatable)

    @cached_property
    def ids(self) -> dict[str, tuple[str, ...]]:
        """GPUs are known by their number."""
        return {GPU: tuple(map(str, range(self.gpus)))}


class InstanceClass(msgspec.Struct, frozen=True):
    """One row of Table 3; ``cpu`` in whole CPUs."""

    priority: int
    gpus: int
    cpu: int
    preemptible: bool = True
    count: int = 0

    @property
    def requests(self) -> dict[str, int]:
        """What an instance takes from its node."""
        return {CPU: 1000 * self.cpu, GPU: self.gpus, PODS: 1}


class Instance(msgspec.Struct, frozen=True):
    """One running pod; ``started``: when, in seconds, where that is known."""

    id: str
    node: int
    of: InstanceClass
    gpus: tuple[int, ...]
    started: float | None = None


def seated(server: Server, name: str, instances: Iterable[Instance]) -> tuple[dict[str, NumaPlacement], State]:
    """(what each of these instances holds on a server, by id; what they leave of it).

    Raises:
        ValueError: two hold the same GPU, one holds a GPU that there is not, or more CPUs than there are.
    """
    cpus, free_gpus = sum(1 << cpu for cores in server.cores for cpu in cores), (1 << server.gpus) - 1
    held: dict[str, NumaPlacement] = {}
    for one in instances:
        each, over = divmod(one.of.cpu, max(len(one.gpus), 1))
        uses: dict[int, tuple[int, list[str]]] = {}
        for number, gpu in enumerate(one.gpus):
            # A described scenario may name any GPU: unchecked, the
            # mask would hide that two instances hold the same one.
            if not 0 <= gpu < server.gpus or not free_gpus >> gpu & 1:
                raise ValueError(f"instance {one.id}: GPU {gpu} of node {name} is not there, or held by another one")
            free_gpus &= ~(1 << gpu)
            zone = server.zone_of[gpu]
            # CPUs that do not divide evenly go to the zones of the first GPUs, one each.
            wanted_cpus = each + (number < over)
            own = [cpu for cpu in server.cores[zone] if cpus >> cpu & 1][:wanted_cpus]
            if len(own) < wanted_cpus:
                raise ValueError(
                    f"instance {one.id}: zone {zone} of node {name} has not the {wanted_cpus} CPUs it holds"
                )
            cpus &= ~sum(1 << cpu for cpu in own)
            taken, gpus = uses.get(zone, (0, []))
            uses[zone] = taken + len(own), [*gpus, str(gpu)]
        held[one.id] = NumaPlacement(
            zones=tuple(
                ZoneUse(zone=zone, amounts={CPU: 1000 * taken, GPU: len(gpus)}, devices={GPU: tuple(gpus)})
                for zone, (taken, gpus) in sorted(uses.items())
            )
        )
    state = State(
        free=tuple(
            (
                1000 * sum(cpus >> cpu & 1 for cpu in cores),
                sum(free_gpus >> gpu & 1 for gpu, at in enumerate(server.zone_of) if at == zone),
            )
            for zone, cores in enumerate(server.cores)
        ),
        cpus=cpus,
        devices=(0, free_gpus),
        memory=tuple(MemoryCells(cells=1 << zone) for zone in range(len(server.cores))),
    )
    return held, state


def room_of(server: Server, name: str, instances: Sequence[Instance]) -> NodeRoom:
    """A server with these instances on it.

    Raises:
        ValueError: as `seated`.
    """
    held, state = seated(server, name, instances)
    free = server.amounts
    for one in instances:
        requests = one.of.requests
        free = {resource: have - requests.get(resource, 0) for resource, have in free.items()}
    victims = tuple(
        VictimPod(one.id, one.of.priority, one.of.requests, held[one.id]) for one in instances if one.of.preemptible
    )
    return NodeRoom(name, free, victims, server.layout, state, server.ids)


def preemptor_of(of: InstanceClass, qos: TopologyQos, wish: TopologyPolicy = TopologyPolicy.SOCKET) -> Preemptor:
    """A pod of a class that may preempt what is less important."""
    return Preemptor(of.requests, of.priority, shape_of(of, wish), qos)


def shape_of(of: InstanceClass, wish: TopologyPolicy) -> PodShape:
    """What kubelets look at in an instance of a class."""
    amounts = tuple(sorted({CPU: 1000 * of.cpu, GPU: of.gpus}.items()))
    container = Container(name="main", requests=amounts, limits=amounts)
    return PodShape(containers=(container,), qos=PodQos.GUARANTEED, wish=wish)


def one_socket(server: Server, room: NodeRoom, of: InstanceClass, gone: Iterable[VictimPod]) -> bool:
    """Whether, with these gone, one socket has the GPUs and the CPUs of an instance: a hit, as Table 4 counts."""
    state = room.state
    assert state is not None  # noqa: S101  (servers' insides are known)
    for victim in gone:
        if victim.placement is not None:
            state = charge(server.layout, state, victim.placement, -1, server.ids)
    for socket in set(server.socket_of):
        zones = [state.free[zone] for zone, at in enumerate(server.socket_of) if at == socket]
        if sum(zone[0] for zone in zones) >= 1000 * of.cpu and sum(zone[1] for zone in zones) >= of.gpus:
            return True
    return False

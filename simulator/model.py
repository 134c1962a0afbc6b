"""What a simulation is given: a cluster, jobs, a policy. Plain data; no behaviour beyond construction.

Amounts are the engine's: ``cpu`` in milli-CPU, memory in bytes, everything else in units. Times are seconds since the
simulation began.
"""

from enum import StrEnum
from typing import Final

import msgspec

from engine.devices.facts import DeviceFacts
from engine.kubelet.machine import CPU, HUGEPAGES, MEMORY, Container, Machine, PodShape, Qos
from engine.model import NODES_PER_OPENED_DOMAIN, Amounts, Flavor, Node, Pod, PodSet
from engine.numa.score import ALIGNMENT_OVER_PACKING, AlignmentOverPacking
from engine.preemption.model import Strategy
from queueing.model import ClusterQueue, Cohort, LocalQueue, NonPreemptible, PlainFlavor

NAMESPACE: Final = "default"
QUEUE: Final = "default"


class SimulatedJob(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What somebody submits at ``arrival``; it has to run for ``duration`` seconds with all its pods.

    ``queue`` is a LocalQueue of ``namespace``. ``preempts``, ``non_preemptible``, ``at_least``, ``by_slices``,
    ``one_by_one``: as in `queueing.model.Workload`; with fewer pods it runs longer by as much. ``hindered``: why the
    controller gives it nothing, whatever room there is; "" where it may be placed. ``stays``: it is never moved while
    it runs. ``row``: its place among those that arrive at one time, before their names.
    """

    name: str
    arrival: float
    duration: float
    pod_sets: tuple[PodSet, ...]
    priority: int = 0
    preempts: bool = True
    non_preemptible: NonPreemptible = NonPreemptible.NEVER
    namespace: str = NAMESPACE
    queue: str = QUEUE
    at_least: dict[str, int] = {}
    by_slices: bool = False
    one_by_one: bool = False
    hindered: str = ""
    stays: bool = False
    row: int = 0

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def pods(self) -> int:
        """How many pods it has when it has all."""
        return sum(pod_set.count for pod_set in self.pod_sets)


class SimulatedCluster(msgspec.Struct, frozen=True):
    """What jobs are put on, and in which queues they wait.

    ``pods`` are there already, and stay for ever. Where there is no queue at all, jobs wait in one without quota.
    ``names``: what flavors call their levels: flavor to name to level. ``devices``: what resource claims may get.
    """

    flavors: tuple[Flavor, ...]
    nodes: tuple[Node, ...]
    machines: tuple[Machine, ...] = ()
    pods: tuple[Pod, ...] = ()
    plain: tuple[PlainFlavor, ...] = ()
    cohorts: tuple[Cohort, ...] = ()
    queues: tuple[ClusterQueue, ...] = ()
    local: tuple[LocalQueue, ...] = ()
    namespaces: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
    names: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
    devices: DeviceFacts = msgspec.field(default_factory=DeviceFacts)


class Placing(StrEnum):
    """Where the pods of a job go."""

    TOPOLOGY = "topology"  # as the engine decides: levels, and the insides of nodes
    SPREAD = "count-only"  # the emptiest nodes, as kube-scheduler does unless told otherwise
    PACK = "count-only-pack"  # the fullest nodes that still take them


HALF_LIFE: Final = 86_400.0  # seconds


class SchedulingPolicy(msgspec.Struct, frozen=True):
    """One way to run the cluster. ``preemption``, ``strict``, ``strategy`` (of preemption): None as each queue says.

    ``moves``: whether jobs that run may be moved (docs/moves.md); with topology only.
    ``leaving``: whether what comes free bit by bit is kept for the first who fits all of it (docs/queues.md).
    ``alignment``: what may be given up to align pods. ``opening``: `ClusterState.nodes_per_opened_domain`.

    ``claims``: whether who waits for long keeps room from those behind it (docs/queues.md). None: with topology only.
    A claim of pods that no single domain has to hold closes all nodes, and with no topology that is every claim; no
    scheduler that counts does that.
    ``by_use``: LocalQueues of each queue, and children of each cohort, take turns by what they used, with a half-life
    of ``HALF_LIFE``.
    """

    name: str
    placing: Placing = Placing.TOPOLOGY
    preemption: bool | None = None
    strict: bool | None = None
    fair: bool = False
    claims: bool | None = None
    leaving: bool = True
    strategy: Strategy | None = None
    alignment: AlignmentOverPacking = ALIGNMENT_OVER_PACKING
    opening: int = NODES_PER_OPENED_DOMAIN
    moves: bool = False
    by_use: bool = False

    @property
    def moving(self) -> bool:
        """Whether jobs that run are moved: without levels nobody is spread."""
        return self.moves and self.placing is Placing.TOPOLOGY

    @property
    def claiming(self) -> bool:
        """Whether there are claims."""
        return self.placing is Placing.TOPOLOGY if self.claims is None else self.claims


class SimulatorOptions(msgspec.Struct, frozen=True):
    """What is assumed of the world; the defaults favour no policy.

    ``slowdown``: a job whose pods lie across domains of the level that it wishes runs so many times as long (1: it does
    not matter). ``checkpoint``: seconds of work between checkpoints; 0: an evicted job begins anew. ``grace``: seconds
    until the pods of a victim are gone. ``retries``: how often pods that a kubelet refused are made again before their
    job fails (a Job's backoffLimit). ``patience``, ``hold``: see docs/queues.md. ``seed``: breaks ties of count-only
    placing. ``apart``: seconds between the ends of a job's pods, one after the other; 0: they end together.
    ``moves_per_hour``, ``make_room_max_priority``: where jobs are moved, as the settings of the controller.
    """

    slowdown: float = 1.0
    checkpoint: float = 0.0
    grace: float = 30.0
    retries: int = 6
    patience: float = 300.0
    hold: float = 604_800.0
    apart: float = 0.0
    seed: int = 0
    moves_per_hour: int = 6
    make_room_max_priority: int | None = None


def guaranteed(requests: Amounts) -> PodShape:
    """What kubelets look at in a pod of one container whose limits are its requests."""
    aligned = tuple(
        (name, requests[name])
        for name in sorted(requests)
        if name in {CPU, MEMORY} or name.startswith(HUGEPAGES) or "/" in name
    )
    # As the API server sets QoS: Guaranteed takes limits of both CPU and memory, whatever else is asked for.
    whole = all(requests.get(name, 0) > 0 for name in (CPU, MEMORY))
    container = Container(name="main", requests=aligned, limits=aligned)
    return PodShape(containers=(container,), qos=Qos.GUARANTEED if whole else Qos.BURSTABLE)

"""What the controller remembers of one job. All of it can be rebuilt from the API server; none of it is the truth."""

from asyncio import Lock
from collections.abc import Mapping
from dataclasses import dataclass, field

from crds.request import ParsedRequest
from engine.numa.machine import NumaPlacement, PodShape
from engine.placement import Assignment
from engine.reasons import Reason
from kube.objects import Condition, Pod
from queueing import life
from queueing.queues import Grant
from ungater.jobs import MAIN, Owner
from ungater.patches import UngatePatches
from ungater.slices import Layer, layers_of
from ungater.slots import Intent, SlotMap

Moves = tuple[tuple[int, int], ...]  # (slice, how many of its slots), slices ascending
Exchange = tuple[NumaPlacement, NumaPlacement]  # (what was promised, what the pod will get instead)


@dataclass(frozen=True)
class Part:
    """One pod set of an admission. ``flavors``: by resource; ``usage``: what all its pods take; ``slots``: where."""

    name: str
    count: int
    flavors: Mapping[str, str]
    usage: Mapping[str, int]
    slots: SlotMap | None = None


@dataclass(frozen=True)
class Admission:
    """What a workload was given, as it is stored. ``queue``: the cluster queue, "" for a workload without a queue."""

    queue: str
    parts: tuple[Part, ...]

    def part(self, name: str = MAIN) -> Part | None:
        """One pod set of it."""
        return next((part for part in self.parts if part.name == name), None)

    @property
    def slots(self) -> SlotMap | None:
        """The slots of the pod set that has some."""
        return next((part.slots for part in self.parts if part.slots is not None), None)

    @property
    def count(self) -> int:
        """Pods in all."""
        return sum(part.count for part in self.parts)

    def same(self, other: "Admission | None") -> bool:
        """Whether both give the same quota and the same slots."""
        return (
            other is not None
            and self.queue == other.queue
            and len(self.parts) == len(other.parts)
            and all(_alike(mine, theirs) for mine, theirs in zip(self.parts, other.parts, strict=True))
        )


def _alike(mine: Part, theirs: Part) -> bool:
    same_slots = theirs.slots is None if mine.slots is None else mine.slots.same(theirs.slots)
    return same_slots and (mine.name, mine.count, dict(mine.flavors)) == (
        theirs.name,
        theirs.count,
        dict(theirs.flavors),
    )


@dataclass(frozen=True)
class Nomination:
    """A preemption under way, as it is stored. ``victims``: uid of each by its key ``namespace/name``."""

    admission: Admission
    victims: Mapping[str, str]
    priorities: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Known:
    """The Workload as it was last read or written. Times are seconds since the epoch."""

    name: str
    uid: str
    resource_version: str
    generation: int
    count: int  # spec.podSets[0].count
    conditions: tuple[Condition, ...] = ()
    admission: Admission | None = None
    nomination: Nomination | None = None
    active: bool = True
    queue: str = ""  # spec.queueName
    priority: int = 0
    least: int = 0  # spec.podSets[0].minCount
    most_execution: int | None = None
    executed: int = 0
    requeues: int = 0
    requeue_at: float | None = None
    checks: tuple[life.Check, ...] = ()
    copy_of: str = ""  # `ungater.workloads.fingerprint` of the job that its pod sets were copied from

    @property
    def slots(self) -> SlotMap | None:
        """The slots of the stored admission."""
        return self.admission.slots if self.admission is not None else None

    @property
    def version(self) -> int:
        """The resource version as a number, to tell which of two is newer."""
        return int(self.resource_version) if self.resource_version.isdigit() else 0


@dataclass(frozen=True)
class Refused:
    """Why the last attempt to place (or to place more of it) failed."""

    reason: Reason
    message: str


@dataclass(frozen=True)
class Told:
    """The last event about waiting, so that people are told news and nothing else."""

    reason: str
    message: str
    at: float


@dataclass(frozen=True)
class Trouble:
    """A kubelet did otherwise than was predicted for a pod: refused it (``reason``), or gave it other zones ("")."""

    pod: Pod
    node: str
    reason: str
    message: str
    seconds: float = 0.0  # for which the node is left out

    @property
    def refused(self) -> bool:
        """Whether the pod does not run at all."""
        return bool(self.reason)


@dataclass
class Record:
    """One job: what was seen, what is held for it, and what was started for it."""

    owner: Owner  # as it is to be looked at (`Memory.view`)
    known: Known | None = None
    admission: Admission | None = None  # held, and written in the API server
    slots: SlotMap | None = None  # those of the admission, with their nodes
    assignment: Assignment | None = None
    grant: Grant | None = None  # the admission, as queueing takes it
    pods: dict[str, Pod] = field(default_factory=dict)  # by uid
    intents: dict[str, Intent] = field(default_factory=dict)  # by pod uid
    deleting: dict[str, float] = field(default_factory=dict)  # by pod uid: when the deletion is asked for again
    refused: Refused | None = None
    lost: Moves = ()  # slots that need another place
    troubles: dict[str, Trouble] = field(default_factory=dict)  # by pod uid
    swaps: dict[str, NumaPlacement] = field(default_factory=dict)  # by pod uid: what came to it by an exchange
    exchanges: dict[str, list[Exchange]] = field(default_factory=dict)  # by node: for pods on their way there
    told: Told | None = None
    shrink_at: float | None = None
    busy: int = 0  # writes of its Workload or job under way or due: nothing is decided meanwhile
    lock: Lock = field(default_factory=Lock)  # one write at a time
    closing: bool = False  # what it holds is being given back: no more pods go
    evict: life.Evict | None = None  # the cycle has it evicted
    started: bool = False  # its job was unsuspended since it was admitted
    lost_at: float | None = None  # since when pods of lost nodes have no other place, in seconds since the epoch
    sending: int = 0  # ungating patches under way
    patches: UngatePatches | None = None
    refused_at: float = 0.0
    failures: int = 0  # in a row, for the backoff
    noted: set[str] = field(default_factory=set)  # events that are worth saying once
    own: Owner | None = None  # the job as it is, without that view

    @property
    def shape(self) -> PodShape:
        """What kubelets look at in the job's pods."""
        return self.owner.shape

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Its slices, in the flavor that it is in; the narrowest first."""
        request = self.owner.request
        if self.slots is None or not isinstance(request, ParsedRequest):
            return ()
        return layers_of(request.slices, self.slots.levels)

    @property
    def uid(self) -> str:
        """Uid of the job: the key of everything in the controller."""
        return self.owner.uid

    @property
    def key(self) -> str:
        """``namespace/name`` of the Workload: the engine's name of the reservation."""
        return self.owner.workload_key

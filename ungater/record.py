"""What the controller remembers of one job. All of it can be rebuilt from the API server; none of it is the truth."""

from dataclasses import dataclass, field

from engine.numa.machine import NumaPlacement, PodShape
from engine.placement import Assignment
from engine.reasons import Reason
from kube.objects import Condition, Pod
from ungater.jobs import Owner
from ungater.patches import UngatePatches
from ungater.slots import Intent, SlotMap

Moves = tuple[tuple[int, int], ...]  # (slice, how many of its slots), slices ascending
Exchange = tuple[NumaPlacement, NumaPlacement]  # (what was promised, what the pod will get instead)


@dataclass(frozen=True)
class Known:
    """The Workload as it was last read or written."""

    name: str
    uid: str
    resource_version: str
    generation: int
    count: int  # spec.podSets[0].count
    conditions: tuple[Condition, ...] = ()
    slots: SlotMap | None = None  # status.admission

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
    slots: SlotMap | None = None  # admitted: reserved in the engine and written in the API server
    assignment: Assignment | None = None
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
    busy: bool = False  # its Workload is being written: nothing is decided meanwhile
    closing: bool = False  # what it holds is being given back: no more pods go
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
    def uid(self) -> str:
        """Uid of the job: the key of everything in the controller."""
        return self.owner.uid

    @property
    def key(self) -> str:
        """``namespace/name`` of the Workload: the engine's name of the reservation."""
        return self.owner.workload_key

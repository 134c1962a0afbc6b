"""What `reconcile.reconcile` may ask for, and the rules that hold for all jobs. Plain data."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from crds.constants import Keys
from crds.levels import LevelNames
from engine.claims.asks import DeviceAsk
from engine.model import Amounts
from engine.reasons import Reason
from kube.objects import Pod, PodClaimStatus, PodSpec
from queueing.lifecycle import LifeRules
from ungater.model.conditions import WantedCondition
from ungater.model.job_view import MAIN, PodSetView
from ungater.model.pod_slots import PodSetSlots
from ungater.model.workload_entry import Moves, WorkloadEntry


class _Instruction(msgspec.Struct, frozen=True, gc=False):
    pass


class Create(_Instruction, frozen=True):
    """Make the Workload."""


class UpdateSpec(_Instruction, frozen=True):
    """Bring the Workload's spec up to date: counts, and while it waits the templates too."""


class UpdateOwners(_Instruction, frozen=True):
    """Have the Workload of a pod group belong to pods that are there: it is collected with the last of its owners."""


class Enqueue(_Instruction, frozen=True):
    """Wait for a place; with slots already, for more of them, or for others in place of the ``lost``.

    ``until``: not before that time (seconds since the epoch). ``asked``: by pod set, what its pods ask for where that
    is more than was granted to each. ``urgent``: where there is no other place in time, all of it is put back.
    """

    lost: Moves = {}
    until: float = 0.0
    asked: Mapping[str, Amounts] = {}
    urgent: bool = True


class Dequeue(_Instruction, frozen=True):
    """Wait for a place no more."""


class FreeCapacity(_Instruction, frozen=True):
    """Give all capacity back at once; nothing is written."""


class Shorten(_Instruction, frozen=True):
    """Pods did not come in time: by pod set, as many as it gets from now on, until more are there."""

    counts: Mapping[str, int]


class TakePods(_Instruction, frozen=True):
    """Its pods are made otherwise than its owner says, by pod set: they are what counts from now on.

    ``undecided``: what it holds was decided for others in what single nodes do not tell, so it is decided again.
    """

    specs: Mapping[str, PodSpec]
    undecided: bool = False


class Differ(_Instruction, frozen=True):
    """These gated pods differ from others of their pod set; ``again``: they are deleted, to be made alike."""

    uids: frozenset[str]
    again: bool = False


class DoubtNamespace(_Instruction, frozen=True):
    """Pods of a workload without a queue never came: others of its namespace wait for theirs before they are placed."""


class HoldUp(_Instruction, frozen=True):
    """Pods with a place are held up for others of their PodGroup, ``since`` then; None: they are no more.

    ``ending``: for pods that end and still have a node.
    """

    since: float | None
    ending: bool = False


class Release(_Instruction, frozen=True):
    """Remove the admission from the Workload, then give the capacity back."""

    wanted: tuple[WantedCondition, ...]


class ClearAdmission(_Instruction, frozen=True):
    """An eviction is over: remove the admission, and wait again from ``until`` on (seconds since the epoch).

    ``leave``: it does not come back by itself. ``requeues``: how often it was put back because of its own trouble.
    """

    wanted: tuple[WantedCondition, ...]
    until: float
    requeues: int
    leave: bool


class Evict(_Instruction, frozen=True):
    """Begin an eviction: write these conditions; from then on no more pods go."""

    wanted: tuple[WantedCondition, ...]
    reason: Reason
    message: str


class EvictPods(_Instruction, frozen=True):
    """Evict these pods through the Eviction API."""

    pods: tuple[Pod, ...]
    why: str


class EvictSome(_Instruction, frozen=True):
    """Evict these pods of a workload that keeps others, or (with what each is told) pods that no queue admitted."""

    pods: tuple[tuple[Pod, str], ...]


class EvictMoved(_Instruction, frozen=True):
    """Evict these pods of a workload that is moved; where a budget refuses for long, they stay where they are.

    ``one``: only the first of them now. ``ending``: others that are in old places yet, and end.
    """

    pods: tuple[tuple[Pod, str], ...]
    one: bool = False
    ending: tuple[Pod, ...] = ()


class GiveUpMove(_Instruction, frozen=True):
    """Have a move that takes too long end: these pods in old places stay, and of those that end who ends late."""

    pods: tuple[Pod, ...]
    ending: tuple[Pod, ...]
    why: str


class Start(_Instruction, frozen=True):
    """Unsuspend the job."""


class Suspend(_Instruction, frozen=True):
    """Suspend the job; ``why`` where nothing else has told that."""

    why: str = ""


class Deactivate(_Instruction, frozen=True):
    """Set spec.active to false."""

    reason: Reason
    message: str


class Remove(_Instruction, frozen=True):
    """Delete the Workload: it finished long ago."""


class RequeueAfter(_Instruction, frozen=True):
    """Nothing to do before so many seconds."""

    after: float


class WriteConditions(_Instruction, frozen=True):
    """Write conditions; one with a ``delay`` (seconds) waits that long and until there is nothing better to do.

    ``lost``: names of lost nodes whose pods have no other place; None: nothing is said of them.
    """

    wanted: tuple[WantedCondition, ...]
    delay: float = 0.0
    lost: tuple[str, ...] | None = None


class ShrinkLater(_Instruction, frozen=True):
    """Look again in a moment whether slots are to be given back."""


class RestoreAdmission(_Instruction, frozen=True):
    """Write the admission that is held again: somebody removed it or the whole Workload."""


class Shrink(_Instruction, frozen=True):
    """Write the smaller admission of a pod set, then give the difference back; ``slots`` None where pods have none.

    ``asks``: what each of its pods takes, where that is less than was granted.
    """

    slots: PodSetSlots | None
    count: int
    pod_set: str = MAIN
    asks: Amounts | None = None


ANYWHERE = -1  # no slice: the pod has quota alone


class Ungate(_Instruction, frozen=True):
    """Send this pod to this slice of its pod set."""

    pod: Pod
    index: int


class NominateNode(_Instruction, frozen=True):
    """Have kube-scheduler keep the room of this pod, which waits behind the gate, on a node; "": on none any more."""

    pod: Pod
    node: str


class LoseTurns(_Instruction, frozen=True):
    """Nobody waits any more for these pods (uids), which waited for their turn at a node and do not go there now."""

    pods: tuple[str, ...]


class LeaveOut(_Instruction, frozen=True):
    """These pods were refused, or did not start, for too long: for a while none like them goes to the same places."""

    pods: tuple[Pod, ...]


class NotStarted(_Instruction, frozen=True):
    """These pods have a node and do not start: they count against it, and what events say of the first is asked for."""

    pods: tuple[Pod, ...]


class Delete(_Instruction, frozen=True):
    """Delete a pod that stands where it has no slot; its owner makes another. ``at_once``: nobody would stop it."""

    pod: Pod
    reason: Reason
    message: str
    at_once: bool = False


class EmitEvent(_Instruction, frozen=True):
    """An event on the job, or on ``pod``; ``once`` names what is not to be said twice."""

    type: str
    reason: Reason
    action: str
    message: str
    pod: Pod | None = None
    once: str = ""


Instruction = (
    Create
    | UpdateSpec
    | UpdateOwners
    | Enqueue
    | Dequeue
    | FreeCapacity
    | Shorten
    | TakePods
    | Differ
    | DoubtNamespace
    | Release
    | ClearAdmission
    | Evict
    | EvictPods
    | EvictSome
    | EvictMoved
    | GiveUpMove
    | Start
    | Suspend
    | Deactivate
    | Remove
    | RequeueAfter
    | WriteConditions
    | ShrinkLater
    | HoldUp
    | RestoreAdmission
    | Shrink
    | Ungate
    | NominateNode
    | LoseTurns
    | LeaveOut
    | NotStarted
    | Delete
    | EmitEvent
)


class Losing(_Instruction, frozen=True):
    """The domains in which a workload loses its slices, and why."""

    domains: tuple[tuple[str, ...], ...]
    message: str


class PodChoice(msgspec.Struct, frozen=True):
    """The slots that a gated pod may go to, by where its volumes reach; ``why`` it may not go at all, if so."""

    slots: frozenset[int]
    why: str = ""


class MissingPods(msgspec.Struct, frozen=True):
    """So many seconds have pods to come for which something is held: those that never were there, and others."""

    # Set by missingPodsTimeoutSeconds and missingPodsRecoveryTimeoutSeconds (`ungater.cache.rules`).
    never: float = 60.0
    again: float = 900.0


class ReconcileContext(msgspec.Struct, frozen=True):
    """What holds for all jobs: our keys, each flavor's levels by its name, and which places are lost.

    ``lost``: those of some slices where no pod of the pod set can start now. ``dead``: whether nobody ends pods on a
    node, as it is gone or not ready. ``missing``: since when there is no such node, on the monotonic clock; None where
    there is one. ``avoided``: the nodes where kubelets or kube-scheduler refused pods like those of the pod set, for
    as long as they are left out. ``patience``: seconds for which kube-scheduler may refuse a pod; None: for ever.
    """

    keys: Keys
    flavors: Mapping[str, tuple[str, ...]]
    level_names: LevelNames  # what flavors call their levels
    lost: Callable[[WorkloadEntry, PodSetView, PodSetSlots, Sequence[int]], Collection[int]]
    dead: Callable[[str], bool]
    missing: Callable[[str], float | None]
    avoided: Callable[[WorkloadEntry, PodSetView, float], Collection[str]]
    patience: float | None
    life: LifeRules
    missing_pods: MissingPods
    default_class: Callable[[], str]  # the PriorityClass of pods that name none
    require_queue: bool  # what asks for a topology without a queue is not placed
    nominates: bool  # kube-scheduler keeps the room of pods that have a slot and wait behind the gate
    planned: Callable[[WorkloadEntry], Mapping[str, PodSetSlots]]  # by pod set: what it gets once its victims are gone
    # Seconds for which those of a namespace wait for their pods, as pods of others there did not come.
    doubted: Callable[[str, float], float]
    no_queue: Callable[[WorkloadEntry], str | None]  # what is not there of the queue that it names
    checks: Callable[[WorkloadEntry], Collection[str]]  # the admission checks that it needs
    losing: Callable[[WorkloadEntry], Losing | None]  # slices that are to make room for somebody
    outsiders: Callable[[WorkloadEntry], tuple[tuple[Pod, str], ...]]  # pods that are to make room for it
    unkept: Callable[[WorkloadEntry], Mapping[str, str]]  # by uid: what of a pod's wishes is not so
    uncounted: Callable[[WorkloadEntry], str | None]  # what its pods ask for that is not counted
    # What pods of a namespace ask for by claims that are made of templates; a text says why that is not counted.
    devices: Callable[[str, PodSpec, Iterable[PodClaimStatus] | None], DeviceAsk | str | None]
    # What a pod takes of what its workload was granted; of its node it takes the amounts that are given.
    charged: Callable[[WorkloadEntry, Amounts, PodSpec, Iterable[PodClaimStatus] | None], Amounts]
    asked_by: Callable[[Pod], Amounts]  # what a pod that runs takes of its node, as far as that is charged
    unready: Callable[[WorkloadEntry], str | None]  # why it waits for its volumes
    in_group: Callable[[str], Iterable[Pod]]  # all pods of a native PodGroup, by its key
    grouped: Callable[[WorkloadEntry], str | None]  # who else waits in its native PodGroup
    # By uid of those gated pods whose volumes do not let them go to all of the slots: to which.
    choices: Callable[[WorkloadEntry, PodSetSlots, Collection[Pod]], Mapping[str, PodChoice]]

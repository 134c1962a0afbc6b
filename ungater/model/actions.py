"""What is to be done next for a workload: the one vocabulary of `ungater.reconcile` and `ungater.executor`."""

from collections.abc import Mapping

import msgspec

from engine.model import Amounts
from engine.reasons import Reason
from kube.objects import Pod, PodSpec
from ungater.model.conditions import EVICTED, PREEMPTED, WantedCondition
from ungater.model.job_view import MAIN
from ungater.model.pod_slots import PodSetSlots

# By pod set: (slice, how many of its slots), slices ascending.
Moves = Mapping[str, tuple[tuple[int, int], ...]]


class _Action(msgspec.Struct, frozen=True, gc=False):
    pass


class Create(_Action, frozen=True):
    """Make the Workload."""


class UpdateSpec(_Action, frozen=True):
    """Bring the Workload's spec up to date: counts, and while it waits the templates too."""


class UpdateOwners(_Action, frozen=True):
    """Have the Workload of a pod group belong to pods that are there: it is collected with the last of its owners."""


class Enqueue(_Action, frozen=True):
    """Wait for a place; with slots already, for more of them, or for others in place of the ``lost``.

    ``until``: not before that time (seconds since the epoch). ``asked``: by pod set, what its pods ask for where that
    is more than was granted to each. ``urgent``: where there is no other place in time, all of it is put back.
    """

    lost: Moves = {}
    until: float = 0.0
    asked: Mapping[str, Amounts] = {}
    urgent: bool = True


class Dequeue(_Action, frozen=True):
    """Wait for a place no more."""


class FreeCapacity(_Action, frozen=True):
    """Give all capacity back at once; nothing is written."""


class Shorten(_Action, frozen=True):
    """Pods did not come in time: by pod set, as many as it gets from now on, until more are there."""

    counts: Mapping[str, int]


class TakePods(_Action, frozen=True):
    """Its pods are made otherwise than its owner says, by pod set: they are what counts from now on.

    ``undecided``: what it holds was decided for others in what single nodes do not tell, so it is decided again.
    """

    specs: Mapping[str, PodSpec]
    undecided: bool = False


class Differ(_Action, frozen=True):
    """These gated pods differ from others of their pod set; ``again``: they are deleted, to be made alike."""

    uids: frozenset[str]
    again: bool = False


class DoubtNamespace(_Action, frozen=True):
    """Pods of a workload without a queue never came: others of its namespace wait for theirs before they are placed."""


class HoldUp(_Action, frozen=True):
    """Pods with a place are held up for others of their PodGroup, ``since`` then; None: they are no more.

    ``ending``: for pods that end and still have a node.
    """

    since: float | None
    ending: bool = False


class Release(_Action, frozen=True):
    """Remove the admission from the Workload, then give the capacity back."""

    wanted: tuple[WantedCondition, ...]


class ClearAdmission(_Action, frozen=True):
    """An eviction is over: remove the admission, and wait again from ``until`` on (seconds since the epoch).

    ``leave``: it does not come back by itself. ``requeues``: how often it was put back because of its own trouble.
    """

    wanted: tuple[WantedCondition, ...]
    until: float
    requeues: int
    leave: bool


class Evict(_Action, frozen=True):
    """Begin an eviction: write its conditions; from then on no more pods go.

    ``detail``: by which rule it is preempted.
    """

    reason: Reason
    message: str
    detail: Reason | None = None

    @property
    def wanted(self) -> tuple[WantedCondition, ...]:
        """What the Workload says of it."""
        evicted = WantedCondition(EVICTED, True, self.reason, self.message)
        if self.detail is None:
            return (evicted,)
        return evicted, WantedCondition(PREEMPTED, True, self.detail, self.message)


class EvictPods(_Action, frozen=True):
    """Evict these pods through the Eviction API."""

    pods: tuple[Pod, ...]
    why: str


class EvictSome(_Action, frozen=True):
    """Evict these pods of a workload that keeps others, or (with what each is told) pods that no queue admitted."""

    pods: tuple[tuple[Pod, str], ...]


class EvictMoved(_Action, frozen=True):
    """Evict these pods of a workload that is moved; where a budget refuses for long, they stay where they are.

    ``one``: only the first of them now. ``ending``: others that are in old places yet, and end.
    """

    pods: tuple[tuple[Pod, str], ...]
    one: bool = False
    ending: tuple[Pod, ...] = ()


class GiveUpMove(_Action, frozen=True):
    """Have a move that takes too long end: these pods in old places stay, and of those that end who ends late."""

    pods: tuple[Pod, ...]
    ending: tuple[Pod, ...]
    why: str


class Start(_Action, frozen=True):
    """Unsuspend the job."""


class Suspend(_Action, frozen=True):
    """Suspend the job; ``why`` where nothing else has told that."""

    why: str = ""


class Deactivate(_Action, frozen=True):
    """Set spec.active to false."""

    reason: Reason
    message: str


class Remove(_Action, frozen=True):
    """Delete the Workload: it finished long ago."""


class RequeueAfter(_Action, frozen=True):
    """Nothing to do before so many seconds."""

    after: float


class WriteConditions(_Action, frozen=True):
    """Write conditions; one with a ``delay`` (seconds) waits that long and until there is nothing better to do.

    ``lost``: names of lost nodes whose pods have no other place; None: nothing is said of them.
    """

    wanted: tuple[WantedCondition, ...]
    delay: float = 0.0
    lost: tuple[str, ...] | None = None


class CountBoost(_Action, frozen=True):
    """So much is added to its priority from now on."""

    value: int


class ShrinkLater(_Action, frozen=True):
    """Look again in a moment whether slots are to be given back."""


class RestoreAdmission(_Action, frozen=True):
    """Write the admission that is held again: somebody removed it or the whole Workload."""


class Shrink(_Action, frozen=True):
    """Write the smaller admission of a pod set, then give the difference back; ``slots`` None where pods have none.

    ``asks``: what each of its pods takes, where that is less than was granted.
    """

    slots: PodSetSlots | None
    count: int
    pod_set: str = MAIN
    asks: Amounts | None = None


ANYWHERE = -1  # no slice: the pod has quota alone


class Ungate(_Action, frozen=True):
    """Send this pod to this slice of its pod set."""

    pod: Pod
    index: int


class MarkPods(_Action, frozen=True):
    """Write on these pods, which Kueue let go, whose they are here; nothing else of them changes."""

    pods: tuple[Pod, ...]


class NominateNode(_Action, frozen=True):
    """Have kube-scheduler keep the room of this pod, which waits behind the gate, on a node; "": on none any more."""

    pod: Pod
    node: str


class LoseTurns(_Action, frozen=True):
    """Nobody waits any more for these pods (uids), which waited for their turn at a node and do not go there now."""

    pods: tuple[str, ...]


class LeaveOut(_Action, frozen=True):
    """These pods were refused, or did not start, for too long: for a while none like them goes to the same places."""

    pods: tuple[Pod, ...]


class NotStarted(_Action, frozen=True):
    """These pods have a node and do not start: they count against it, and what events say of the first is asked for."""

    pods: tuple[Pod, ...]


class Delete(_Action, frozen=True):
    """Delete a pod that stands where it has no slot; its owner makes another. ``at_once``: nobody would stop it."""

    pod: Pod
    reason: Reason
    message: str
    at_once: bool = False


class EmitEvent(_Action, frozen=True):
    """An event on the job, or on ``pod``; ``once`` names what is not to be said twice."""

    type: str
    reason: Reason
    action: str
    message: str
    pod: Pod | None = None
    once: str = ""


# Carried out at once, without a call of the API server that anybody waits for.
ImmediateAction = (
    Enqueue
    | Dequeue
    | FreeCapacity
    | Shorten
    | Differ
    | DoubtNamespace
    | HoldUp
    | EvictSome
    | EvictMoved
    | GiveUpMove
    | RequeueAfter
    | ShrinkLater
    | MarkPods
    | NominateNode
    | LoseTurns
    | LeaveOut
    | Delete
    | EmitEvent
)
# What was decided beside one of these may be stale afterwards: it waits for the API server, or changes the job's view.
AwaitedAction = (
    Create
    | UpdateSpec
    | UpdateOwners
    | TakePods
    | Release
    | ClearAdmission
    | Evict
    | EvictPods
    | Start
    | Suspend
    | Deactivate
    | Remove
    | WriteConditions
    | CountBoost
    | RestoreAdmission
    | Shrink
    | NotStarted
)
Action = Ungate | ImmediateAction | AwaitedAction

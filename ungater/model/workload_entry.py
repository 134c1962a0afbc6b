"""What the controller remembers of one job. All of it can be rebuilt from the API server; none of it is the truth."""

from collections.abc import Collection, Mapping
from math import inf
from typing import NamedTuple

import msgspec
from msgspec import structs

from engine.kubelet.machine import NumaPlacement, PodShape
from engine.model import Amounts
from engine.reasons import Reason
from kube.objects import Condition, LimitRange, Pod, PodSpec, PodTemplate, RuntimeClass, condition, version_of
from kube.workloads import PodSetUpdate, boosted
from queueing.queues.entry import AssumedAdmission
from ungater.model.actions import Evict, Moves
from ungater.model.admission import Admission, Nomination
from ungater.model.conditions import ADMITTED
from ungater.model.held_pods import HeldPod
from ungater.model.job_view import JobView, PodSetView
from ungater.model.kueue_objects import TakenOver
from ungater.model.life import Check
from ungater.model.nominated_node import NominatedNode
from ungater.model.pod_set_slices import RankLayer, layers_of
from ungater.model.pod_slots import Expectation, PodSetSlots, finished, is_gated
from ungater.model.pods_seen import PodsSeen
from ungater.model.ungate_patch import UngatePatches
from ungater.model.unscheduled import Unscheduled
from ungater.model.unstarted import Unstarted
from ungater.model.write_state import WriteState

DIFFERING_END = 3600.0  # seconds after which pods that are made again once more count as the first
# A look before any pod is there finds nothing to do, and the first pod that comes has the job looked at.
PODS_COME = 5.0  # seconds until one of a queue that was just admitted, or resumed, is looked at without any pod
REFUSALS_END = 3600.0  # seconds after which another refusal by kube-scheduler counts as the first
Alike = tuple[PodSpec, PodSpec, str]  # a template, a pod that is like it, with the PriorityClass of pods that name none
Exchange = tuple[NumaPlacement, NumaPlacement]  # (what was promised, what the pod will get instead)


class ObservedWorkload(msgspec.Struct, frozen=True):
    """The Workload as it was last read or written. Times are seconds since the epoch."""

    name: str
    uid: str
    resource_version: str
    generation: int
    counts: tuple[int, ...]  # of spec.podSets, in their order
    conditions: tuple[Condition, ...] = ()
    admission: Admission | None = None
    held: Admission | None = None  # that of the Workload before this one, as long as the status says nothing
    nomination: Nomination | None = None
    active: bool = True
    queue: str = ""  # spec.queueName
    priority: int = 0
    least: int = 0  # minCount of the pod set that has one
    most_execution: int | None = None
    executed: int = 0
    requeues: int = 0
    requeue_at: float | None = None
    # Lost nodes, and since when, as the status says it.
    unhealthy: Mapping[str, str | None] = msgspec.field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    # What ready admission checks add to its pods.
    updates: Mapping[str, tuple[PodSetUpdate, ...]] = msgspec.field(default_factory=dict)
    copy_of: str = ""  # `ungater.model.workload_spec.fingerprint` of the job that its pod sets were copied from
    created: float = 0.0
    # What was asked to be added to the priority, by annotation, as it is written; what is added, and since when.
    boosts: Mapping[str, str] = msgspec.field(default_factory=dict)
    boost: int = 0
    boost_since: float | None = None
    move_to: str = ""  # what an administrator asks (`ungater.model.move_request`), as it is written
    owners: frozenset[str] = frozenset()  # the uids of those that it goes with

    @property
    def effective_priority(self) -> int:
        """The priority that counts in its queue, boost included."""
        return boosted(self.priority, self.boost)

    @property
    def slots(self) -> PodSetSlots | None:
        """The slots of the stored admission; of its first pod set that has some."""
        return self.admission.slots if self.admission is not None else None

    @property
    def version(self) -> int:
        """The resource version as a number, to tell which of two is newer."""
        return version_of(self.resource_version)


class Refused(msgspec.Struct, frozen=True):
    """Why the last attempt to place (or to place more of it) failed."""

    reason: Reason
    message: str


class LastEvent(msgspec.Struct, frozen=True):
    """The last event about waiting, so that people are told news and nothing else."""

    reason: str
    message: str
    at: float


class PlacementMismatch(msgspec.Struct, frozen=True):
    """A kubelet did otherwise than was predicted for a pod: refused it (``reason``), or gave it other zones ("").

    ``unreported``: the resources that it may have refused the pod for, and of which its node tells no zones.
    """

    pod: Pod
    node: str
    reason: str
    message: str
    seconds: float = 0.0  # for which the node is left out
    unreported: tuple[str, ...] = ()

    @property
    def refused(self) -> bool:
        """Whether the pod does not run at all."""
        return bool(self.reason)


class PodsAsMade(msgspec.Struct, frozen=True):
    """What the pods of a pod set turned out to be, and what they were made of (``made_of``: without its gates).

    ``changes``: how often they turned out otherwise than the time before.
    """

    made_of: PodSpec
    spec: PodSpec
    changes: int = 0


class Differing(msgspec.Struct, frozen=True):
    """Gated pods that differ from others, since when these do, and how often in a row such were made again."""

    uids: frozenset[str] = frozenset()
    since: float = 0.0
    again: int = 0
    again_at: float = 0.0


class FilledTemplate(NamedTuple):
    """A template with what the API server adds to pods that are made from it, and what that was made of."""

    own: PodTemplate
    ranges: tuple[LimitRange, ...]
    runtime: RuntimeClass | None
    template: PodTemplate


class WorkloadEntry(msgspec.Struct):
    """One job: what was seen, what is held for it, and what was started for it.

    Its fields are read by everybody, and changed by its methods alone; only what is in its tables changes in place.
    """

    job: JobView  # as it is to be looked at (`ungater.kueue.standings`)
    observed: ObservedWorkload | None = None
    queue_before: str = ""  # that the last Workload named which was deleted
    gone: str = ""  # uid of the Workload that was deleted last: what is still heard of it is old
    admission: Admission | None = None  # held, and written in the API server
    # The slots of the admission with their nodes, by pod set.
    slots_in: dict[str, PodSetSlots] = msgspec.field(default_factory=dict)
    grant: AssumedAdmission | None = None  # the admission, as queueing takes it
    pods: dict[str, Pod] = msgspec.field(default_factory=dict)  # by uid
    # By uid: pods that left the workload and run on, with their pod sets.
    left: dict[str, tuple[str, Pod]] = msgspec.field(default_factory=dict)
    expectations: dict[str, Expectation] = msgspec.field(default_factory=dict)  # by pod uid
    held: dict[str, HeldPod] = msgspec.field(default_factory=dict)  # by pod uid
    deleting: dict[str, float] = msgspec.field(default_factory=dict)  # by pod uid: when the deletion is asked for again
    refused: Refused | None = None
    lost: Moves = msgspec.field(default_factory=dict)  # slots that need another place
    # By pod set: what its pods ask for, while it waits for a place for that.
    asked: Mapping[str, Amounts] = msgspec.field(default_factory=dict)
    # By pod set: what its pods turned out to be, where that is not what their owner says.
    made: dict[str, PodsAsMade] = msgspec.field(default_factory=dict)
    alike: dict[str, Alike] = msgspec.field(default_factory=dict)  # by pod set: found to be so last
    filled: dict[int, FilledTemplate] = msgspec.field(default_factory=dict)  # by place of the pod set
    differing: Differing = Differing()  # of its gated pods
    undecided: bool = False  # its pods turned out to be others than those that what it holds was decided for
    came: dict[str, PodsSeen] | None = None  # by pod set; None where they were not counted since the start
    # Pod sets whose pods did not come in time, and how many pods each gets instead.
    late: dict[str, int] = msgspec.field(default_factory=dict)
    # By pod set: how many gated pods name another queue.
    barred: Mapping[str, int] = msgspec.field(default_factory=dict)
    # By pod uid: the nominated node that was sent last for a gated pod.
    nominated: dict[str, NominatedNode] = msgspec.field(default_factory=dict)
    mismatches: dict[str, PlacementMismatch] = msgspec.field(default_factory=dict)  # by pod uid
    # By uid: pods that were let go and have no node yet.
    unscheduled: dict[str, Unscheduled] = msgspec.field(default_factory=dict)
    # By uid: pods that have a node and do not run yet.
    unstarted: dict[str, Unstarted] = msgspec.field(default_factory=dict)
    refusals: int = 0  # by kube-scheduler, of some of its pods, in a row
    refusal_at: float = 0.0  # when the last one was counted, on the monotonic clock
    swaps: dict[str, NumaPlacement] = msgspec.field(default_factory=dict)  # by pod uid: what came to it by an exchange
    # By pod set and node: exchanges that are under way.
    exchanges: dict[tuple[str, str], list[Exchange]] = msgspec.field(default_factory=dict)
    last_event: LastEvent | None = None
    shrink_at: float | None = None
    writes: WriteState = msgspec.field(default_factory=WriteState)
    closing: bool = False  # what it holds is being given back: no more pods go
    evict: Evict | None = None  # the cycle has it evicted
    started: bool = False  # its job was unsuspended since it was admitted
    lost_at: float | None = None  # since when pods of lost nodes have no other place, in seconds since the epoch
    leaving: frozenset[tuple[str, tuple[str, ...]]] = frozenset()  # slots of pod sets that are being given up
    patches: dict[str, UngatePatches] = msgspec.field(default_factory=dict)  # by pod set
    refused_at: float = 0.0
    removing: bool = False  # the removal of its Workload was begun: it may be gone though nobody heard of it
    held_up_since: float | None = None  # since when pods wait for others of their PodGroup, on the monotonic clock
    ending_until: float = 0.0  # until when some of those were pods that end, since the epoch; inf while there are any
    bare_since: float | None = None  # since when an owner that is known by its pods has none, on the monotonic clock
    failures: int = 0  # in a row, for the backoff
    noted: set[str] = msgspec.field(default_factory=set)  # events that are worth saying once
    own: JobView | None = None  # the job as it is, without that view
    # Kueue's Workload by which the job was started, where what it has was taken over.
    taken: TakenOver | None = None
    adopting: frozenset[str] = frozenset()  # uids of pods that Kueue let go, until they have our mark
    marking: dict[str, float] = msgspec.field(default_factory=dict)  # by pod uid: when the mark is sent again
    unadopted: str = ""  # why a job that Kueue started is left running and holds nothing
    ran_by_kueue: bool = False  # Kueue's Workload was seen to be admitted while the job ran and held nothing
    seen_running: float | None = None  # since when it runs and Kueue has not admitted it, on the monotonic clock
    given_back: bool = False  # what was taken over was given back: Kueue's Workload is its past

    # --- what was seen -------------------------------------------------------------------------------------------

    def set_view(self, own: JobView, job: JobView) -> None:
        """The job is ``own`` now, and is to be looked at as ``job``."""
        self.own, self.job = own, job

    def observe(self, observed: ObservedWorkload | None) -> None:
        """Its Workload was read or written; None: there is none."""
        self.observed = observed

    def mark_deleted(self, workload: str) -> None:
        """Its Workload of this uid was deleted: what is still heard of that is old."""
        self.gone = workload

    def forget_workload(self, queue: str = "") -> None:
        """It has no Workload any more, ``queue`` was named by one unseen; who comes now has heard nothing yet."""
        # What is held was given in that queue: the next Workload has to name it, whatever the pods name by then.
        self.queue_before = self.observed.queue if self.observed is not None else queue or self.queue_before
        self.observed, self.removing, self.last_event = None, False, None

    def begin_removal(self) -> None:
        """Its Workload is about to be deleted by us."""
        self.removing = True

    def count_pods(self, came: dict[str, PodsSeen], late: dict[str, int]) -> None:
        """Its pods were counted, by pod set; ``late``: as many as those get whose pods did not come in time."""
        self.came, self.late = came, late

    def take_pods(self, specs: Mapping[str, PodSpec], *, undecided: bool) -> None:
        """Its pods are made otherwise than its owner says, by pod set. ``undecided``: it is to be decided again."""
        for name, spec in specs.items():
            own = next(one.template.spec for one in (self.own or self.job).pod_sets if one.name == name)
            made_of, before = structs.replace(own, scheduling_gates=None), self.made.get(name)
            # Counted only while the template stays: an edited template explains by itself that pods are others now.
            again = before is not None and before.made_of == made_of
            self.made[name] = PodsAsMade(made_of, spec, before.changes + 1 if again and before is not None else 0)
        self.undecided = self.undecided or undecided

    def see_differing(self, uids: frozenset[str], now: float, *, again: bool) -> None:
        """These gated pods differ from others; ``again``: they are made again. ``now``: on the monotonic clock."""
        before = self.differing
        count = before.again if now - before.again_at < DIFFERING_END else 0
        self.differing = Differing(uids, now, count + again, now if again else before.again_at)

    def forget_pods(self) -> None:
        """What its pods turned out to be counts no more: others would be made now."""
        self.made.clear()

    def bar_pods(self, counts: Mapping[str, int]) -> None:
        """So many pods, by pod set, name another queue than it was admitted in: it wants nothing for them."""
        self.barred = counts

    def shorten(self, counts: Mapping[str, int]) -> None:
        """Pods of these pod sets did not come in time: they get so many from now on."""
        self.late = {**self.late, **counts}
        self.came = {name: one.given_up() if name in counts else one for name, one in (self.came or {}).items()}

    def hold_up(self, since: float | None, *, ending: bool, now: float) -> None:
        """Pods with a place wait for others of their PodGroup, that may be ``ending``; None: they do no more.

        ``now``: seconds since the epoch.
        """
        self.held_up_since = since
        if ending:
            self.ending_until = inf
        elif self.ending_until == inf:
            self.ending_until = now

    def lack_pods(self, now: float) -> float:
        """Its owner has no pods; returns for how many seconds."""
        self.bare_since = now if self.bare_since is None else self.bare_since
        return now - self.bare_since

    def have_pods(self) -> None:
        """Its owner has pods (again)."""
        self.bare_since = None

    # --- while it waits ------------------------------------------------------------------------------------------

    def want(self, lost: Moves, asked: Mapping[str, Amounts], now: float, *, urgent: bool = True) -> None:
        """It waits for a place, for others than its ``lost`` slots, or for what its pods ask for (``asked``).

        ``now``: seconds since the epoch. ``urgent``: nobody can run on the lost slots, so there is a time for that.
        """
        same = asked == self.asked and not (lost and not self.lost)
        self.refused = self.refused if same else None  # that was about something else
        self.lost, self.asked = lost, asked
        # Kept over looks that ask for the same: the time for a replacement counts from the first of them.
        self.lost_at = (self.lost_at or now) if lost and urgent else None

    def want_nothing(self) -> None:
        """It waits for nothing any more."""
        self.lost, self.lost_at, self.asked = {}, None, {}

    def set_refusal(self, why: Refused | None, at: float | None = None) -> None:
        """It gets nothing now, for this reason; None: nobody knows yet. ``at``: when it was explained, by the clock."""
        self.refused = why
        if at is not None:
            self.refused_at = at

    def forget_refusal(self) -> None:
        """Why it waited counts no more, and may be said anew."""
        self.refused = self.last_event = None

    def note_event(self, event: LastEvent) -> None:
        """People were told why it waits."""
        self.last_event = event

    def count_refusal(self, now: float) -> None:
        """kube-scheduler refuses pods of it where they were let go to; ``now``: on the monotonic clock."""
        self.refusals = self.refusals + 1 if now - self.refusal_at < REFUSALS_END else 1
        self.refusal_at = now

    def remember_alike(self, pod_set: str, both: Alike) -> None:
        """A pod of a pod set is made as its template says: whether others are need not be found out again."""
        self.alike[pod_set] = both

    def count_failure(self) -> int:
        """Something for it failed; returns how often in a row."""
        self.failures += 1
        return self.failures

    def succeed(self) -> None:
        """Nothing failed this time."""
        self.failures = 0

    # --- what it holds -------------------------------------------------------------------------------------------

    def hold_admission(self, admission: Admission, grant: AssumedAdmission, slots: dict[str, PodSetSlots]) -> None:
        """It holds this and nothing else, which is stored: no slot of it is known to be lost. ``slots``: by pod set."""
        self.admission, self.grant, self.slots_in = admission, grant, slots
        self.lost, self.lost_at, self.undecided = {}, None, False
        self.patches.clear()  # they carry what was added by the flavors of the admission before

    def give_up_slots(self, slots: frozenset[tuple[str, tuple[str, ...]]]) -> None:
        """It leaves these slots for others, until that is stored; none: it is."""
        self.leaving = slots

    def shrink(self, at: float | None) -> None:
        """It is to give back what its pods do not need at that time, in seconds of the clock; None: it did."""
        self.shrink_at = at

    @property
    def until_pods_come(self) -> float:
        """For how many seconds it need not be looked at, as its pods have it looked at when they come; 0: it must.

        Without a queue nobody pays for what is held: for how long that is in vain counts from the first look on.
        """
        waits = self.admission is not None and not (self.job.suspended or self.pods)
        return PODS_COME if waits and self.job.queue else 0.0

    def mark_started(self) -> None:
        """Its job was unsuspended since it was admitted."""
        self.started = True

    def evict_for(self, evict: Evict) -> None:
        """The cycle, or somebody who waits for its room, has it evicted."""
        self.evict = evict

    def drop_eviction(self) -> None:
        """Nobody has it evicted any more, or that is stored."""
        self.evict = None

    def close(self) -> None:
        """What it holds is about to be given back: no more pods go."""
        self.closing = True

    def reopen(self) -> None:
        """What it holds it keeps: pods may go."""
        self.closing = False

    def clear_holding(self) -> None:
        """It holds nothing any more, and nothing that was begun for that goes on. What is about its pods is cleared."""
        # A patch that still arrives lets a pod go for which nothing is held (`ungater.reconcile.reconcile._stranded`).
        self.expectations.clear()
        self.exchanges.clear()
        self.patches.clear()
        self.shrink_at, self.closing = None, False
        self.admission, self.grant, self.slots_in = None, None, {}
        self.lost, self.lost_at, self.asked = {}, None, {}
        self.evict, self.started, self.held_up_since, self.ending_until = None, False, None, 0.0
        self.barred, self.undecided = {}, False
        self.given_back = self.given_back or self.taken is not None
        self.taken, self.adopting, self.ran_by_kueue = None, frozenset(), False
        self.marking.clear()

    # --- beside Kueue --------------------------------------------------------------------------------------------

    def take_over(self, taken: TakenOver) -> None:
        """What it has by Kueue's Workload is held here from now on."""
        self.taken, self.unadopted = taken, ""

    def adopt_pods(self, uids: frozenset[str]) -> None:
        """These pods were let go by Kueue and lack our mark: they count as ours, by what is known of them."""
        self.adopting = uids
        for uid in [uid for uid in self.marking if uid not in uids]:
            del self.marking[uid]

    def leave_running(self, why: str) -> None:
        """Kueue started it, and it is left running for this reason; "": it is not, or is none of Kueue's."""
        self.unadopted = why

    def run_by_kueue(self) -> None:
        """Kueue has admitted it: whatever becomes of Kueue's Workload, it is not suspended for that."""
        self.ran_by_kueue = True

    def see_running(self, now: float) -> float:
        """It runs, and Kueue has not admitted it; returns since when. ``now``: on the monotonic clock."""
        self.seen_running = now if self.seen_running is None else self.seen_running
        return self.seen_running

    # --- reading -------------------------------------------------------------------------------------------------

    @property
    def slots(self) -> PodSetSlots | None:
        """The slots of its first pod set that has some: whether there are any, and where of a job with one pod set."""
        return next(iter(self.slots_in.values()), None)

    def slots_of(self, pod: Pod) -> PodSetSlots | None:
        """The slots of a pod's pod set."""
        # The usual case of one pod set, asked for every pod of a gang: no label is read.
        if len(self.slots_in) <= 1 and self.job.has_one_pod_set:
            return self.slots
        pod_set = self.job.pod_set_of(pod)
        return self.slots_in.get(pod_set.name) if pod_set is not None else None

    def pods_of_pod_set(self, pod_set: PodSetView) -> Collection[Pod]:
        """The pods of one pod set."""
        if self.job.has_one_pod_set:
            return self.pods.values()
        return [pod for pod in self.pods.values() if self.job.pod_set_of(pod) is pod_set]

    def pod_set_of(self, pod: Pod) -> str:
        """The name of a pod's pod set; "" where it belongs to none."""
        found = self.job.pod_set_of(pod)
        return found.name if found is not None else ""

    def shape_of(self, pod: Pod) -> PodShape:
        """What kubelets look at in such a pod."""
        return (self.job.pod_set_of(pod) or self.job.pod_sets[0]).shape

    def layers_of(self, pod_set: PodSetView) -> tuple[RankLayer, ...]:
        """The slices of a pod set, in the flavor that it is in; the narrowest first."""
        slots = self.slots_in.get(pod_set.name)
        if slots is None or pod_set.request is None:
            return ()
        return layers_of(pod_set.request.slices, slots.levels, pod_set.ranks or pod_set.full)

    def granted(self, pod_set: str) -> Amounts | None:
        """What each pod of a pod set may take, by its admission; None where that is not known."""
        return self.grant.asks.get(pod_set) if self.grant is not None else None

    def admitted(self, pod_set: str) -> int:
        """How many pods of a pod set are admitted."""
        part = self.admission.pod_set_named(pod_set) if self.admission is not None else None
        return part.count if part is not None else 0

    def left_of(self, pod_set: str) -> list[Pod]:
        """Pods that were let go for a pod set and are somebody else's now: they keep their places until they end."""
        return [pod for name, pod in self.left.values() if name == pod_set]

    def has_place(self, name: str, gate: str) -> bool:
        """Whether the pods of a pod set that run, and those that left it, are fewer than are admitted."""
        pods = [pod for pod_set in self.job.pod_sets if pod_set.name == name for pod in self.pods_of_pod_set(pod_set)]
        run = sum(
            not finished(pod) and (not is_gated(pod, gate) or pod.metadata.uid in self.expectations) for pod in pods
        )
        return run + len(self.left_of(name)) < self.admitted(name)

    def on_its_way(self, uid: str) -> Expectation | None:
        """What was sent to a pod and may have let it go, whether that was seen or not."""
        sent = self.expectations.get(uid)
        return sent if sent is not None and not (sent.gone or sent.refused) else None

    def count_existing(self, pod_set: PodSetView) -> int:
        """How many pods of a pod set exist and have not finished, without those that are barred."""
        expectations = self.expectations
        found = sum(
            not finished(pod) and not ((sent := expectations.get(pod.metadata.uid)) is not None and sent.gone)
            for pod in self.pods_of_pod_set(pod_set)
        )
        # Barred pods are gated, so each of them is among the ones that were found.
        return found - self.barred.get(pod_set.name, 0)

    def count_of(self, pod_set: PodSetView) -> int:
        """How many slots a pod set needs now; none for pods that are barred, as they wait for another admission."""
        return max(0, pod_set.count - self.barred.get(pod_set.name, 0))

    def wanted(self, pod_set: PodSetView) -> int:
        """How many slots a pod set is to have now; one whose pods did not come in time gets no more than it has."""
        return min(count := self.count_of(pod_set), self.late.get(pod_set.name, count))

    @property
    def asked_for_more(self) -> bool:
        """Whether it gave back what it held, as that was less than its pods ask for."""
        said = condition(self.observed.conditions, ADMITTED) if self.observed is not None else None
        return said is not None and said.reason == str(Reason.ASKS_FOR_MORE)

    @property
    def growing(self) -> dict[str, int]:
        """The pod sets that are to have more pods than are admitted, with how many."""
        return {one.name: many for one in self.job.pod_sets if (many := self.wanted(one)) > self.admitted(one.name)}

    @property
    def id(self) -> str:
        """Id of the job: the key of everything in the controller."""
        return self.job.id

    @property
    def key(self) -> str:
        """``namespace/name`` of the Workload: the engine's name of the reservation."""
        return self.job.workload_key

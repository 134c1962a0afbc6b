"""What jobs wait for and what they hold, as queueing and the engine have it: the two change together, here.

Rules
- Every job that may be placed is one workload of `queueing`; one without a queue is in the unlimited queue `UNQUEUED`.
- ``entry.admission`` is what is held and stored. What was decided and is not stored yet is in queueing alone; where
  storing fails, `Admissions.forget_assumed` goes back to what is stored.
"""

from collections.abc import Callable, Iterable, Iterator

import msgspec

from engine.cluster.assignment import Assignment, Slice
from engine.cluster.state import ClusterState
from engine.model import Amounts, PodSet
from engine.reasons import Reason
from engine.reservation_key import HolderKey, ReservationKey, order_of
from kube.objects import condition
from kube.pods import convert
from queueing import messages, model
from queueing.cycle.elastic import hold_elsewhere
from queueing.cycle.growth import hold_growth
from queueing.model import OutsidePod
from queueing.preemption.cohort_reach import owed_cohort
from queueing.queues.entry import HOLDING, AssumedAdmission, Entry, Phase
from queueing.queues.queues import Queues
from ungater.cache.claims.device_quota import DeviceQuota
from ungater.model.actions import Evict
from ungater.model.admission import Admission, Nomination, PodSetAssignment, assign_pod_set, slots_of_assignment
from ungater.model.class_rules import ClassRules
from ungater.model.conditions import QUOTA_RESERVED, moment, read_run_times, true_since
from ungater.model.job_view import JobView, PodSetView
from ungater.model.pod_slots import PodSetSlots
from ungater.model.workload_entry import WorkloadEntry
from ungater.reconcile.context import Losing

UNQUEUED = "(no queue)"  # no legal name, so that nobody else's queue is meant


class Reservations:
    """See the module's rules. ``clock``: seconds since the epoch."""

    def __init__(
        self,
        state: ClusterState,
        rules: model.Rules | None,
        pod_priority: Callable[[JobView], int | None],
        kept_apart: Callable[[WorkloadEntry, PodSetView], PodSet | None],
        clock: Callable[[], float],
        *,
        classes: ClassRules,
        quota: DeviceQuota,
    ) -> None:
        self.state = state
        self.queues = Queues(rules)
        self.queues.set_cluster_queue(model.ClusterQueue(name=UNQUEUED, unlimited=True, claims=False))
        self.moving: dict[str, tuple[int, ...]] = {}  # who wants other places for slots, and what was free when tried
        self._left: dict[str, AssumedAdmission] = {}  # what those had who move, until it is stored
        self._pod_priority = pod_priority  # of a job's pods in Kubernetes
        self._classes = classes
        self._quota = quota
        self._kept_apart = kept_apart  # any pod of a pod set, where they are kept apart from others
        self._clock = clock

    # --- waiting ---------------------------------------------------------------------------------------------------

    def submit(self, entry: WorkloadEntry, pod_sets: tuple[PodSet, ...], priority: int, *, until: float = 0.0) -> None:
        """Have a job wait; one that holds something keeps it, and its new wish is noted."""
        queues, now, key = self.queues, self._clock(), entry.key
        queues.submit(self.workload(entry, pod_sets, priority), now, _waits_since(entry))
        queued = queues.entries[key]
        # Put off once: each look would push another entry onto the heap.
        if until > now and not (queued.phase is Phase.LATER and queued.until == until):
            queues.delay_workload(key, until)

    def workload(self, entry: WorkloadEntry, pod_sets: tuple[PodSet, ...], priority: int) -> model.Workload:
        """The job as queueing sees it. ``pod_sets``: those that need pods."""
        owner, observed = entry.job, entry.observed
        # An empty name is that of no LocalQueue, so a tenant cannot make one that leads there.
        if not owner.queue and (owner.namespace, "") not in self.queues.config.local:
            self.queues.set_local_queue(model.LocalQueue(namespace=owner.namespace, name="", cluster_queue=UNQUEUED))
        created = moment(owner.created) or 0.0
        if observed is not None and not owner.suspendable:
            created = observed.created or created  # pods come and go, the Workload of those who have nothing else stays
        if observed is not None and observed.requeues and observed.requeue_at is not None:
            created = max(created, observed.requeue_at)  # it had its turn, and comes after those who wait since
        at_least = {one.name: one.least for one in owner.pod_sets if one.least and one.least < one.count}
        return model.Workload(
            key=entry.key,
            namespace=owner.namespace,
            queue=owner.queue,
            pod_sets=pod_sets,
            priority=priority,
            created=created,
            uid=observed.uid if observed is not None else "",
            at_least=at_least,
            by_slices=owner.by_slices,
            one_by_one=owner.one_by_one,
            pod_priority=self._pod_priority(owner),
            preempts=self._classes.preempts(owner),
            non_preemptible=self._classes.non_preemptible(owner),
            charged=self.charged(entry, pod_sets),
            follows=owner.follows,
            owner=owner.title,
        )

    def charged(self, entry: WorkloadEntry, pod_sets: Iterable[PodSet]) -> dict[str, Amounts]:
        """By pod set, what one of its pods takes of quota, where that is not what it takes of its node."""
        return {one.name: takes for one in pod_sets if (takes := self._quota.charged(entry, one)) is not None}

    def class_changed(self, entry: WorkloadEntry) -> None:
        """A priority class says something else: it counts at once, for those who hold something too."""
        preempts, said = self._classes.preempts(entry.job), self._classes.non_preemptible(entry.job)
        self._change_workload(entry, preempts=preempts, non_preemptible=said)

    def change_priority(self, entry: WorkloadEntry, priority: int) -> bool:
        """One that holds something has this priority from now on; True where it had another."""
        return self._change_workload(entry, priority=priority)

    def _change_workload(self, entry: WorkloadEntry, **fields: object) -> bool:
        """Change some of what queueing knows of a job, as far as it is another."""
        queued = self.queues.entries.get(entry.key)
        if queued is None or all(getattr(queued.workload, name) == value for name, value in fields.items()):
            return False
        self.queues.submit(msgspec.structs.replace(queued.workload, **fields), self._clock())
        return True

    def forget_namespace(self, name: str) -> None:
        """A namespace is gone, and so is all that was in it."""
        self.queues.remove_namespace(name)
        self.queues.remove_local_queue(name, "")

    def find_stop(self, entry: WorkloadEntry) -> str | None:
        """Which of the queues is stopped by which a job holds something; None where neither is."""
        queued = self.queues.entries.get(entry.key)
        if queued is None or queued.phase not in HOLDING:
            return None
        return self.queues.config.find_stop(queued.workload, queued.queue)

    def want(self, entry: WorkloadEntry) -> None:
        """One that holds something wants what `reconcile` said: other places for lost slots, else more pods."""
        if entry.lost:
            self.moving.setdefault(entry.key, ())
            return
        # What fewer pods leave is not in it: that is somebody else's only once it is stored that they have less.
        same = {name: entry.admitted(name) for name in entry.asked}
        self.queues.wish(entry.key, {**same, **entry.growing} or None)

    def stop_wanting(self, entry: WorkloadEntry) -> None:
        """One that holds something wants nothing else, until `want` is called again."""
        self.moving.pop(entry.key, None)
        self.queues.wish(entry.key, None)

    def end_wait(self, entry: WorkloadEntry) -> bool:
        """It waits no more, for a place or for more of them; True where somebody else may be helped."""
        if entry.admission is not None:
            self.stop_wanting(entry)
            return ReservationKey.for_growth(entry.key) in self.queues.entries
        self.moving.pop(entry.key, None)
        return self._forget_workload(entry)

    def victims_of(self, key: str) -> Iterable[HolderKey]:
        """The keys of those whose eviction a workload waits for: to be admitted, or to grow."""
        found = (self.queues.entries.get(name) for name in (key, ReservationKey.for_growth(key)))
        victims = {victim for entry in found if entry is not None for victim in entry.victims}
        return tuple(sorted(victims, key=order_of))

    def preemptors_of(self, key: HolderKey) -> list[HolderKey]:
        """Who is nominated and waits until this one is gone: the keys of workloads, or of their growth."""
        return [one for one in self.queues.holders.nominated if key in self.queues.entries[one].victims]

    def eviction_message(self, preemptor: HolderKey, victim: HolderKey) -> Evict:
        """What a victim is told whose eviction was planned before a restart, or that is told at every look."""
        entry, other = self.queues.entries[preemptor], self.queues.entry_of_unit(victim)
        ours, cohort, borrows = entry.queue, "", self._borrows(entry)
        detail = Reason.RECLAIMED
        if borrows:
            detail = Reason.RECLAIMED_WHILE_BORROWING
            if owed := owed_cohort(self.queues.quotas, entry, other.queue):
                detail, cohort = Reason.RECLAIMED, owed
        # Later rules win: a plan does not store by which rule each
        # victim goes, so it is worked out from the queues as they are.
        detail = Reason.FAIR_SHARING if self.queues.rules.fair and borrows else detail
        detail = Reason.IN_CLUSTER_QUEUE if ours == other.queue else detail
        detail = Reason.OUTSIDE_QUEUES if other.outside is not None else detail
        text = messages.preempted(self.queues.title_of(preemptor), ours, detail, cohort)
        return Evict(Reason.PREEMPTED, text, detail)

    def _borrows(self, entry: Entry) -> bool:
        """Whether the queue of one that is nominated uses more than its nominal quota of what it is to get."""
        overuse = self.queues.quotas.overuse_of_queue
        return entry.grant is not None and any(overuse(entry.queue, key) > 0 for key in entry.grant.amounts)

    def awaited(self, victim: HolderKey) -> Evict | None:
        """What one is told for which a nominated workload waits until it is gone whole; None where none does."""
        preemptor = next(iter(self.preemptors_of(victim)), None)
        return (
            self.eviction_message(preemptor, victim)
            if preemptor is not None and victim not in self.queues.holders.losing
            else None
        )

    def reclaimed(self, victim: HolderKey) -> bool:
        """Whether one that loses some of its slices does so because a queue takes back its nominal quota."""
        preemptor = next(iter(self.preemptors_of(victim)), None)
        if preemptor is None or self.takes_for_cohort(victim):
            return False
        return self.eviction_message(preemptor, victim).detail is Reason.RECLAIMED

    def takes_for_cohort(self, victim: HolderKey) -> bool:
        """Whether who waits for one to be gone borrows: then a cohort takes its quota back, and budgets count."""
        return any(self._borrows(self.queues.entries[one]) for one in self.preemptors_of(victim))

    def losing(self, key: HolderKey) -> Losing | None:
        """The domains in which an admitted workload loses its slices, and why; None where it loses none."""
        domains = self.queues.holders.losing.get(key)
        preemptor = next(iter(self.preemptors_of(key)), None)
        if not domains or preemptor is None:
            return None
        return Losing(domains, messages.losing(domains, self.eviction_message(preemptor, key).message))

    def outsiders(self, key: str) -> Iterator[tuple[OutsidePod, str]]:
        """The pods that no queue admitted and that a nominated workload waits for, and what they are told."""
        for name in (key, ReservationKey.for_growth(key)):
            nominated = self.queues.entries.get(name)
            for unit in sorted(nominated.victims, key=order_of) if nominated is not None else ():
                entry = self.queues.holders.outside.get(unit)
                if entry is not None and entry.outside is not None:
                    yield entry.outside, self.eviction_message(name, unit).message

    def stay(self, entry: WorkloadEntry) -> None:
        """One that was on its way out holds what it holds as before."""
        self.queues.quotas.mark_leaving(entry.key, leaving=False)
        self.queues.holders.evicting.pop(entry.key, None)

    # --- use over time ---------------------------------------------------------------------------------------------

    def pass_time(self) -> None:
        """Whatever is held or given back next, is so from now on."""
        self.queues.pass_time(self._clock())

    def begin_use(self, entry: WorkloadEntry) -> None:
        """Its Workload says that it is admitted, which may be long after quota was reserved, where checks are slow."""
        self.queues.settle_use(entry.key, self._clock())

    def note_start(self, entry: WorkloadEntry) -> bool:
        """Since when its Workload says that it is admitted, and its pods are ready, which decides who may evict it.

        True where somebody is to be looked at again.
        """
        conditions = entry.observed.conditions if entry.observed is not None else ()
        return self.queues.run_times.note_start(entry.key, *read_run_times(conditions, self._clock()))

    # --- holding ---------------------------------------------------------------------------------------------------

    def restore_admission(
        self, entry: WorkloadEntry, admission: Admission, workload: model.Workload, *, starting: bool
    ) -> None:
        """Hold exactly what the API server, or what runs, says that is admitted.

        ``starting``: at the start of a controller.
        """
        now = self._clock()
        since = (_holds_since(entry) or now) if starting else None
        grant = self.grant_of(entry, admission)
        self.queues.restore_workload(self.state, workload, grant, now, since=since)
        self._keep_packed(entry, admission, grant)
        self.note_start(entry)
        # An admission by which pods run already is stored only later, and the answer to that write may be late. Until
        # then a search for victims would find a workload that has not begun, which nothing keeps safe.
        if entry.observed is None or entry.observed.admission is None:
            self.queues.run_times.presume_start(entry.key, now)

    def nominate(self, entry: WorkloadEntry, nomination: Nomination, workload: model.Workload) -> None:
        """Hold what the API server says that a workload gets once its victims are gone."""
        grant = self.grant_of(entry, nomination.admission)
        # By uid: a workload of the same name that was made since owes nobody anything.
        victims = [key for key, uid in nomination.victims.items() if self._is(key, uid)]
        parts = nomination.domains
        self.queues.restore_workload(
            self.state, workload, grant, self._clock(), nominated=victims, parts=parts, waits=True
        )

    def nominate_growth(self, entry: WorkloadEntry, nomination: Nomination, workload: model.Workload) -> None:
        """Hold what the API server says that an admitted workload gets besides, once its victims are gone."""
        grant = self.grant_of(entry, nomination.admission)
        pod_sets = tuple(
            msgspec.structs.replace(pod_set, count=grant.counts[pod_set.name])
            for pod_set in workload.pod_sets
            if grant.counts.get(pod_set.name)
        )
        more = msgspec.structs.replace(
            workload, key=ReservationKey.for_growth(entry.key), pod_sets=pod_sets, at_least={}
        )
        victims = [key for key, uid in nomination.victims.items() if self._is(key, uid)]
        hold_growth(self.state, self.queues, more, grant, victims, nomination.domains, stored=True)

    def planned(self, entry: WorkloadEntry) -> dict[str, PodSetSlots]:
        """By pod set, the slots that a workload gets once its victims are gone, as far as that is stored."""
        observed = entry.observed
        if entry.admission is not None or observed is None or observed.nomination is None:
            return {}
        return {name: slots_of_assignment(assignment) for name, assignment in self.state.assignments(entry.key).items()}

    def _is(self, key: HolderKey, uid: str) -> bool:
        entry = self.queues.entries.get(key) or self.queues.holders.outside.get(key)
        return entry is not None and entry.workload.uid == uid

    def admit_reserved(self, entry: WorkloadEntry, admission: Admission, grant: AssumedAdmission) -> None:
        """What was decided is stored; not of a pod set that its job has no more (a role), which is held for nobody."""
        self.pass_time()
        self.moving.pop(entry.key, None)
        # Held as stored, or it would be held for nobody until a restart.
        if any(admission.pod_set_named(name) is None for name in grant.counts):
            stored = self.grant_of(entry, admission)
            self.queues.grant(self.state, entry.key, stored)
            self.queues.gave_back(self.state, grant)
            grant = stored
        self._keep_packed(entry, admission, grant)

    def _keep_packed(self, entry: WorkloadEntry, admission: Admission, grant: AssumedAdmission) -> None:
        held = self.state.assignments(entry.key)
        # The engine knows the nodes inside wide domains, which what is stored does not name.
        packed = msgspec.structs.replace(grant, assignments=tuple(held.values()))
        entry.hold_admission(
            admission, packed, {name: slots_of_assignment(assignment) for name, assignment in held.items()}
        )
        queued = self.queues.entries.get(entry.key)
        if queued is not None and queued.grant is not None:
            queued.pack(packed)

    def replace(self, entry: WorkloadEntry, grant: AssumedAdmission) -> None:
        """Hold other slots from now on. Those that it leaves are nobody's until `replaced`: they are what is stored."""
        before = self.queues.entries[entry.key].grant
        # The old slots stay taken until the write ends: should the controller die in between, they are what is stored.
        left = hold_elsewhere(self.state, self.queues, entry.key, grant)
        if before is not None:
            self.state.restore_slots(ReservationKey.for_leaving(entry.key), left)
            self._left[entry.key] = before
            entry.give_up_slots(frozenset((part.pod_set, one.values) for part in left for one in part.slices))

    def replaced(self, entry: WorkloadEntry) -> bool:
        """The write of other slots ended; True where somebody else may be helped."""
        before = self._left.pop(entry.key, None)
        if before is None:
            return False
        entry.give_up_slots(frozenset())
        # The write has ended: from here on the slots that it left are anybody's.
        self.state.release_workload(ReservationKey.for_leaving(entry.key))
        self.queues.gave_back(self.state, before)
        return True

    def forget_assumed(self, entry: WorkloadEntry, until: float) -> None:
        """A write failed for certain: hold what was held before it, or wait again, not before ``until``."""
        self.pass_time()
        # Its job went while the write was on its way; nothing but the engine may still hold something.
        if entry.key not in self.queues.entries:
            self.state.release_workload(entry.key)
        elif entry.grant is None:
            self.queues.release_and_requeue(self.state, entry.key, self._clock(), until=until)
        else:
            before = self.queues.entries[entry.key].grant
            self.queues.grant(self.state, entry.key, entry.grant)
            if before is not None:
                self.queues.gave_back(self.state, before)

    def release_and_requeue(self, entry: WorkloadEntry, until: float = 0.0) -> None:
        """It holds nothing any more, and waits again."""
        self._clear(entry)
        self.queues.release_and_requeue(self.state, entry.key, self._clock(), until=until)

    def release_reservations(self, entry: WorkloadEntry) -> bool:
        """Give back all, for good; True where anything was held."""
        self._clear(entry)
        return self._forget_workload(entry)

    def _clear(self, entry: WorkloadEntry) -> None:
        self.moving.pop(entry.key, None)
        entry.clear_holding()

    def _forget_workload(self, entry: WorkloadEntry) -> bool:
        queued = self.queues.entries.get(entry.key)
        held = queued is not None and queued.phase in HOLDING
        self.pass_time()
        self.queues.remove_workload(self.state, entry.key)
        return held

    # --- as stored, and as queueing has it ---------------------------------------------------------------------------

    def grant_of(self, entry: WorkloadEntry, admission: Admission) -> AssumedAdmission:
        """A stored admission as queueing takes it back."""
        assignments = [self.assignment(entry, part) for part in admission.parts if part.slots is not None]
        asks = {part.name: asked for part in admission.parts if (asked := part.asks) is not None}
        # Where no amounts for each pod are known, the ones of its slots stand in.
        asks |= {one.pod_set: one.requests for one in assignments if one.pod_set not in asks}
        grant = admission.build_grant(assignments, asks)
        if admission.queue:
            return grant
        flavors = {name: dict[str, str]() for name in grant.counts}
        return msgspec.structs.replace(grant, queue=UNQUEUED, flavors=flavors, amounts={})

    def assignment(self, entry: WorkloadEntry, part: PodSetAssignment, slots: PodSetSlots | None = None) -> Assignment:
        """Stored slots as the engine takes them back."""
        slots = slots or part.slots
        if slots is None:
            raise AssertionError(f"{entry.key}: pod set {part.name} has no slots")
        # A pod set that the job has no more: held like the first until the next admission is stored.
        owned = next((one for one in entry.job.pod_sets if one.name == part.name), entry.job.pod_sets[0])
        flavors = self.state.flavors
        named = (name for name in part.flavors.values() if name in flavors and flavors[name].levels == slots.levels)
        return Assignment(
            pod_set=part.name,
            # By levels too: a flavor that was made again with other levels is not the one that the slots are in.
            flavor=next(named, slots.flavor),
            levels=slots.levels,
            requests=self._of_nodes(part, owned),
            shape=owned.shape,
            source=self._kept_apart(entry, owned),
            slices=(Slice(values=slot.values, count=slot.count) for slot in slots.slots),
        )

    def _of_nodes(self, part: PodSetAssignment, owned: PodSetView) -> Amounts:
        """What each of its pods takes of its node."""
        spec, asks = owned.template.spec, part.asks
        return self._quota.of_nodes(asks, spec) if asks else convert.pod_requests(spec)

    def admission_of(self, entry: WorkloadEntry, grant: AssumedAdmission) -> Admission:
        """What is stored of a grant: an entry for every pod set, also for one that needs no pods now."""
        by_name = {part.pod_set: part for part in grant.assignments}
        queue = "" if grant.queue == UNQUEUED else grant.queue
        parts = []
        for pod_set in entry.job.pod_sets:
            name = pod_set.name
            asked, flavors = grant.asks.get(name), grant.flavors.get(name, {}) if queue else None
            requests = convert.pod_requests(pod_set.template.spec) if asked is None else asked
            parts.append(assign_pod_set(name, grant.counts.get(name, 0), requests, flavors, by_name.get(name)))
        return Admission(queue, tuple(parts))


def _waits_since(entry: WorkloadEntry) -> float | None:
    """Since when it is stored that a job waits: a restart makes nobody wait for its claim from the start."""
    found = condition(entry.observed.conditions, QUOTA_RESERVED) if entry.observed is not None else None
    return moment(found.last_transition_time) if found is not None and found.status == "False" else None


def _holds_since(entry: WorkloadEntry) -> float | None:
    """Since when a job holds quota, as it is stored; None where it is not."""
    return true_since(entry.observed.conditions, QUOTA_RESERVED) if entry.observed is not None else None

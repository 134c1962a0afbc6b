"""What becomes of a workload's pods, of its victims and of those who wait, when what is held for it changes."""

from collections.abc import Callable, Iterable

from engine.reservation_key import HolderKey, ReservationKey
from kube import objects
from kube.queues import checks
from queueing.queues.entry import AssumedAdmission
from ungater.cache.charges.left_pods import LeftPods
from ungater.cache.charges.pod_charges import Charges
from ungater.cache.core import Core
from ungater.cache.held.pod_sets import RequestedPodSets
from ungater.cache.held.reservations import Reservations
from ungater.model.admission import Admission
from ungater.model.conditions import ADMITTED
from ungater.model.workload_entry import WorkloadEntry
from ungater.numa.predictions import promise_again


class Admissions:
    """See the module. What itself is held is in `Reservations`; ``gives_back`` is told who is to hold nothing."""

    def __init__(  # noqa: PLR0917
        self,
        core: Core,
        reservations: Reservations,
        pod_sets: RequestedPodSets,
        charges: Charges,
        left_pods: LeftPods,
        gives_back: Callable[[WorkloadEntry], None],
    ) -> None:
        self._core = core
        self._state = core.state
        self._stores = core.stores
        self._queues = core.queues
        self._entries = core.entries
        self._enqueue = core.enqueue
        self._signal = core.signal
        self._topologies = core.inside.topologies
        self._in_flight = core.inside.in_flight
        self._reservations = reservations
        self._pod_sets = pod_sets
        self._charges = charges
        self._left_pods = left_pods
        self._gives_back = gives_back

    # --- waiting -------------------------------------------------------------------------------------------------

    def enqueue_entry(self, entry: WorkloadEntry, until: float = 0.0) -> None:
        """Have a job wait for a place, or for more or other ones."""
        self._reservations.submit(
            entry, self._pod_sets.wish(entry), self._pod_sets.priority_of_entry(entry), until=until
        )
        if entry.admission is not None:
            self._reservations.want(entry)
        self._signal()

    def take_priority(self, entry: WorkloadEntry) -> None:
        """One that holds something may have been given another priority, which decides who is evicted for whom."""
        # One that waits is submitted with its priority at its next look, and one that runs is not.
        if entry.admission is not None and self._reservations.change_priority(
            entry, self._pod_sets.priority_of_entry(entry)
        ):
            self._signal()

    def stored(self, entry: WorkloadEntry) -> None:
        """The write of an admission ended: from here on it may be somebody's victim."""
        if self._queues.stored(entry.key):
            self._signal()

    def renew_message(self, entry: WorkloadEntry) -> None:
        """What was said of why it waits counts no more: have it said anew, should it still wait."""
        entry.forget_refusal()
        self._queues.repeat_message(entry.key)
        self._signal()

    def dequeue_entry(self, entry: WorkloadEntry) -> None:
        """It waits no more."""
        # Asked before the wait ends: afterwards nothing says whose eviction it waited for.
        victims = self._reservations.victims_of(entry.key)
        if self._reservations.end_wait(entry):
            self._core.queue_inadmissible(())
            self.stand_down(victims)

    def checks_of(self, entry: WorkloadEntry) -> tuple[str, ...]:
        """The admission checks that what a job holds needs."""
        return self.checks_for(entry.admission) if entry.admission is not None and entry.job.queue else ()

    def checks_for(self, admission: Admission) -> tuple[str, ...]:
        """The admission checks that an admission needs."""
        found = self._stores.cluster_queue(admission.queue)
        flavors = {flavor for part in admission.parts for flavor in part.flavors.values()}
        return checks(found, flavors) if found is not None else ()

    def outsiders(self, entry: WorkloadEntry) -> tuple[tuple[objects.Pod, str], ...]:
        """The pods that no queue admitted and that a preemption waits for, and what each is told."""
        return tuple(
            (pod, text)
            for one, text in self._reservations.outsiders(entry.key)
            for pod in self._stores.pods_on(one.node)
            if pod.metadata.uid == one.uid
        )

    def nominate(self, entry: WorkloadEntry) -> None:
        """After a restart, a preemption that was under way goes on where it stood; its victims are told again."""
        observed = entry.observed
        if observed is None or observed.nomination is None or entry.job.over:
            return
        if not observed.active:
            return  # it waits no more: the plan is removed when it is looked at
        workload = self._reservations.workload(
            entry, self._pod_sets.wish(entry), self._pod_sets.priority_of_entry(entry)
        )
        # The plan of a workload that waits and the plan for growth look alike; its stored admission tells them apart.
        if observed.admission is None:
            self._reservations.nominate(entry, observed.nomination, workload)
        elif entry.admission is not None:
            self._reservations.nominate_growth(entry, observed.nomination, workload)
        for key in self._reservations.victims_of(entry.key):
            victim = self._entries.of_workload(key)
            if victim is not None:
                if (told := self._reservations.awaited(key)) is not None:
                    victim.evict_for(told)
                # The eviction may have got no further than the plan before
                # the restart: the look at the victim goes on with it.
                self._enqueue(victim.id, 0.0)

    # --- holding -------------------------------------------------------------------------------------------------

    def hold_admission(self, entry: WorkloadEntry, admission: Admission) -> None:
        """Have queueing and the engine hold exactly this, which is stored in the API server.

        Nothing where the job went while a write was on its way: its Workload goes too, and nobody would give it back.
        """
        if self._entries.get(entry.id) is not entry:
            return
        # Noted before it is replaced: with less than before, somebody else may be helped.
        before = entry.grant
        workload = self._reservations.workload(
            entry, self._pod_sets.wish(entry), self._pod_sets.priority_of_entry(entry)
        )
        # Held before its pods are charged: a pod claims a slot, and without one it would count beside it.
        self._reservations.restore_admission(entry, admission, workload, starting=not self._core.live)
        entry.shrink(None)
        for pod in entry.pods.values():
            self._charges.charge_pod(pod)
            self._left_pods.pay(pod, entry)
        # After its own pods have their places: pods that left it keep one only where one is free.
        self._left_pods.judge(entry)
        # At a start the zones that were predicted for its pods are promised again; events do not count yet.
        if not self._core.live:
            promise_again(self._state, self._topologies, entry)
        elif before is not None:
            if entry.job.ending:
                self._queues.leaving.pod_ended(entry.key)
            self._queues.gave_back(self._state, before)
            self._core.queue_inadmissible(())

    def store_admission(self, entry: WorkloadEntry, admission: Admission, grant: AssumedAdmission) -> None:
        """The admission is stored: from here on pods may go."""
        # Held before its pods are charged: the charge of a pod asks which slots there are.
        self._reservations.admit_reserved(entry, admission, grant)
        entry.forget_refusal()
        for pod in entry.pods.values():
            if pod.spec.node_name:
                self._charges.charge_pod(pod)
            self._left_pods.pay(pod, entry)
        self._left_pods.judge(entry)

    def take_conditions(self, entry: WorkloadEntry) -> None:
        """Its Workload says whether it is admitted: sampled use counts from here on, and how long it runs."""
        observed = entry.observed
        if observed is not None and objects.is_true(observed.conditions, ADMITTED):
            self._reservations.begin_use(entry)
        if self._reservations.note_start(entry):
            self._signal()

    def release_job(self, entry: WorkloadEntry) -> None:
        """Give back all that is held for the job; it waits for nothing any more.

        Nothing where the job went while a write was on its way: that gave back all, and others have its pods by now.
        """
        if self._entries.get(entry.id) is entry:
            self.drop_job(entry)

    def drop_job(self, entry: WorkloadEntry) -> None:
        """Give back all that is held for a job, which is in the entries no more where it is gone."""
        victims = self._reservations.victims_of(entry.key)
        # Before the slots are freed: pods that run by them are remembered with the quota that they run by.
        self._clear(entry)
        if self._reservations.release_reservations(entry):
            self._core.queue_inadmissible(())
        self.stand_down(victims)
        # After all is given back: pods that run on are charged by themselves, so that nothing runs unpaid.
        self._leave_pods(entry)
        self._charges.note_left(entry)

    def release_and_requeue(self, entry: WorkloadEntry, until: float = 0.0) -> None:
        """Give back all that is held for the job; it waits again, not before ``until``. Nothing where it went."""
        if self._entries.get(entry.id) is not entry:
            return
        victims = self._reservations.victims_of(entry.key)
        self._clear(entry)
        entry.set_refusal(None)
        self._reservations.release_and_requeue(entry, until)
        self._core.queue_inadmissible(())
        self.stand_down(victims)
        self._leave_pods(entry)

    def _leave_pods(self, entry: WorkloadEntry) -> None:
        """What is held for a job was given back: pods of it that run on are charged by themselves."""
        for pod in entry.pods.values():
            self._left_pods.pay(pod, entry)
            if not pod.spec.node_name:
                self._charges.charge_pod(pod)
        self._left_pods.judge(entry)

    def _clear(self, entry: WorkloadEntry) -> None:
        self._gives_back(entry)
        self._left_pods.remember(entry)
        self._in_flight.stop_all(entry)

    def end_growth(self, entry: WorkloadEntry) -> None:
        """Nothing is held any more for more of its pods, where anything was; who was to go for them stays."""
        if ReservationKey.for_growth(entry.key) not in self._queues.entries or self._is_made_again(entry):
            return
        victims = self._reservations.victims_of(entry.key)
        self._reservations.pass_time()
        self._queues.end_growth(self._state, entry.key)
        self._core.queue_inadmissible(())
        self.stand_down(victims)

    def forget_assumed(self, entry: WorkloadEntry, until: float = 0.0) -> None:
        """A write failed for certain: hold what was held before it."""
        if self._is_made_again(entry):
            return
        victims = self._reservations.victims_of(entry.key)
        self._reservations.forget_assumed(entry, until)
        self._core.queue_inadmissible(())
        self.stand_down(victims)

    def _is_made_again(self, entry: WorkloadEntry) -> bool:
        """Whether the job went, and another is known by its key: what is held by that is not held for this one."""
        found = self._entries.of_workload(entry.key)
        return found is not None and found is not entry

    def drop_plan(self, entry: WorkloadEntry) -> None:
        """The plan of its preemption is stored no more: it plans again, as it would after a restart.

        Victims whose own Workload is deleted are told again by stored plans alone, so it would wait for them for ever.
        """
        self.end_growth(entry)
        if entry.key in self._queues.holders.nominated:
            self.forget_assumed(entry)

    def replaced(self, entry: WorkloadEntry) -> None:
        """The write of other slots ended: those that it left may be another's from now on."""
        if self._reservations.replaced(entry):
            self._core.queue_inadmissible(())

    def stand_down(self, victims: Iterable[HolderKey]) -> None:
        """Nobody waits for these any more: they may stay."""
        for key in victims:
            victim = self._entries.of_workload(key)
            if victim is not None:
                self._enqueue(victim.id, 0.0)

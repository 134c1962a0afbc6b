"""All queues and all workloads in them: what the shell feeds with events, and what the cycle decides on.

Rules
- Every workload that was submitted and not forgotten is in exactly one phase (see `Phase`); a test counts them.
- What is configured, who waits, and who holds something are parts with rules of their own (``config``,
  ``pending_workloads``, ``holders``). Here is what one of them means for the others.
- What is held changes by ``grant`` and ``release_workload`` alone.
- Every event may be told twice.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from engine.cluster.state import ClusterState
from engine.preemption.model import ChoiceRules as VictimRules
from engine.reservation_key import HolderKey, ReservationKey, Role, role_of, whole_of, workload_of
from queueing.model import (
    NO_SHARE,
    ClusterQueue,
    Cohort,
    LocalQueue,
    Order,
    PlainFlavor,
    Quantities,
    Rank,
    Rules,
    Workload,
    looks_at_pods,
    order,
    part_of,
    shape,
)
from queueing.queues.config import QueueConfig
from queueing.queues.entry import HOLDING, AssumedAdmission, Entry, Phase
from queueing.queues.eviction_order import EvictionOrder
from queueing.queues.eviction_units import Path, slice_level
from queueing.queues.flavor_assigner import FlavorAssignments, options
from queueing.queues.held import Held
from queueing.queues.holders import Holders, chosen_for, flavors_of, helped_by
from queueing.queues.leaving import Leaving
from queueing.queues.minimum_run_time import RunTimes
from queueing.queues.over_time.fair_use import FairUse
from queueing.queues.pdb import Budgets
from queueing.queues.pending import EquivalenceClass, Place
from queueing.queues.pending_workloads import RING_OPENED, PendingWorkloads
from queueing.queues.quota import Limits, Quotas
from queueing.queues.rotation import Rotation, of_namespace
from queueing.queues.wanted_growth import WantedGrowth

if TYPE_CHECKING:
    from engine.results import Refusal
    from queueing.queues.claim import BackfillLine, BackfillReservation
    from queueing.queues.successor import Successor


class Queues:
    """See the module's rules. Not safe for use by several threads."""

    def __init__(self, rules: Rules | None = None) -> None:
        self.rules = rules or Rules()
        self.quotas = Quotas(self.rules.use)
        self.entries: dict[HolderKey, Entry] = {}
        self.config = QueueConfig(self.quotas)
        self.use = FairUse(self.rules.use)
        self.pending = PendingWorkloads(self.config, self.rules, self.use)
        self.holders = Holders(self.quotas, self.entries)
        self.run_times = RunTimes(self.rules, self.quotas, self.holders, self.entries, self.pending)
        self.budgets = Budgets()
        self.eviction_order = EvictionOrder()
        self.claims: dict[str, BackfillReservation] = {}
        self.successors: dict[str, Successor] = {}  # of those that leave
        self.searches = 0  # for victims and such, so far
        self.changes = 0  # of queues and flavors, so far
        self.growing = WantedGrowth(self.holders, self.quotas, self.entries)
        self.leaving = Leaving(self.rules.leaving, self.quotas, self.entries, self.holders.evicting, self.growing)
        self.growers: Rotation[str] = Rotation()  # those of them who have not had their turn
        self.memo: dict[Hashable, tuple[Hashable, Refusal]] = {}
        self.aged: dict[BackfillLine, list[tuple[Order, str]]] = {}  # by claim to be had: those in line for it
        self.drains: set[str] = set()
        self.fresh: set[str] = set()  # admitted in this cycle, or being stored: nobody's victim yet
        self.storing: set[str] = set()  # those of them whose writes take longer than a cycle
        self.spared: dict[HolderKey, float] = {}  # nobody's victim until then: a budget refused to let its pods go
        self.of_pod: dict[str, str] = {}  # whose pod it is, of those in the engine's state

    # -- configuration ----------------------------------------------------------------------------------------

    def set_cluster_queue(self, queue: ClusterQueue) -> None:
        """Take in a ClusterQueue, new or changed."""
        old = self.quotas.queues.get(queue.name)
        # Told twice, or only its status changed: waking a whole cohort for that would cost a cycle of looks.
        if old == queue:
            return
        before = self.quotas.members(queue.name) if old is not None else frozenset()
        self.quotas.set_queue(queue)
        line = self.pending.lines.get(queue.name)
        if line is not None and line.by_use != self.pending.goes_by_use(queue):
            # Groups are of one LocalQueue or of all of them: everybody leaves, and joins again below.
            for key in [key for group in line.groups.values() for key in group.members]:
                self.pending.remove_entry(self.entries[key])
        self.pending.set_line(queue)
        self._mark_queue_changed(queue.name, before | self.quotas.members(queue.name))

    def remove_cluster_queue(self, name: str) -> None:
        """Forget a ClusterQueue; its workloads stay where they are, those that wait wait for it to come back."""
        if name in self.quotas.queues:
            before = self.quotas.members(name)
            self.quotas.remove_queue(name)
            self._mark_queue_changed(name, before)
            self.pending.remove_line(name)

    def set_cohort(self, cohort: Cohort) -> None:
        """Take in a Cohort, new or changed."""
        # Status is written to it as to a ClusterQueue, and each write comes back as an event.
        if self.quotas.cohorts.get(cohort.name) != cohort:
            before = self.quotas.queues_around(cohort.name)
            self.quotas.set_cohort(cohort)
            self._mark_tree_changed(before | self.quotas.queues_around(cohort.name))

    def remove_cohort(self, name: str) -> None:
        """Forget a Cohort; the queues and cohorts that name it stay together."""
        if name in self.quotas.cohorts:
            before = self.quotas.queues_around(name)
            self.quotas.remove_cohort(name)
            self._mark_tree_changed(before | self.quotas.queues_around(name))

    def set_local_queue(self, queue: LocalQueue) -> None:
        """Take in a LocalQueue, new or changed."""
        key = queue.namespace, queue.name
        if self.config.local.get(key) != queue:
            self.config.local[key] = queue
            self.use.set_weight(queue.part, queue.weight)
            self._reroute(lambda entry: (entry.workload.namespace, entry.workload.queue) == key)

    def remove_local_queue(self, namespace: str, name: str) -> None:
        """Forget a LocalQueue."""
        if self.config.local.pop((namespace, name), None) is not None:
            self.use.forget_part(part_of(namespace, name))
            self._reroute(lambda entry: (entry.workload.namespace, entry.workload.queue) == (namespace, name))

    def set_namespace(self, name: str, labels: Mapping[str, str]) -> None:
        """Take in a namespace's labels."""
        if self.config.namespaces.get(name) != labels:
            self.config.namespaces[name] = dict(labels)
            self._reroute(lambda entry: entry.workload.namespace == name)

    def remove_namespace(self, name: str) -> None:
        """Forget a namespace."""
        self.config.namespaces.pop(name, None)

    def set_flavor(self, flavor: PlainFlavor) -> None:
        """Take in a flavor without a topology; tell ``flavors_changed`` of those that the engine knows."""
        if self.config.plain.get(flavor.name) != flavor:
            self.config.plain[flavor.name] = flavor
            self.flavors_changed()

    def remove_flavor(self, name: str) -> None:
        """Forget a flavor without a topology."""
        if self.config.plain.pop(name, None) is not None:
            self.flavors_changed()

    def flavors_changed(self) -> None:
        """Flavors of the engine came, went or changed: everyone may be helped."""
        self.changes += 1
        self.memo.clear()
        self.pending.rooms.clear()  # of flavors that went too; that ``changes`` grew tells those who looked
        for line in self.pending.lines.values():
            self.pending.move_queue_to_active(line)

    def _mark_queue_changed(self, queue: str, concerned: frozenset[str]) -> None:
        self.changes += 1
        self._wake_lines({queue, *concerned})
        # One whose LocalQueue leads elsewhere by now holds quota here all the same, and goes where this is drained.
        self._reroute(lambda entry: queue in {entry.queue, self.config.cluster_queue(entry.workload)})

    def _mark_tree_changed(self, concerned: frozenset[str]) -> None:
        """These queues may use more or less than before; what they offer, and who waits where, is as it was."""
        self._wake_lines(concerned)
        # Those who want more pods are in no line: they compare these counters.
        for pool in {self.quotas.pool(name) for name in concerned}:
            self.pending.pool_changed(pool)

    def _wake_lines(self, queues: Collection[str]) -> None:
        # In the order of all lines, so that equal histories wake in equal order.
        for line in [line for name, line in self.pending.lines.items() if name in queues]:
            self.pending.move_queue_to_active(line)

    def _reroute(self, concerned: Callable[[Entry], bool]) -> None:
        for entry in self.entries.values():
            if concerned(entry):
                if entry.phase in {Phase.STUCK, Phase.WAITING}:
                    self.pending.route(entry)
                self._drain(entry)
                self.growing.try_again([entry.workload.base])  # a queue that was stopped let it grow no more

    # -- workloads --------------------------------------------------------------------------------------------

    def submit(self, workload: Workload, now: float, since: float | None = None) -> None:
        """A workload is to wait: a new one, one whose wish changed, or one that came back after an eviction.

        One that holds something keeps it, and its new wish counts when it waits again (`queueing.cycle.elastic`
        resizes). ``since``: when a new one began to wait, where that was before ``now``.
        """
        self.pass_time(now)
        entry = self.entries.get(workload.key)
        if entry is None:
            entry = self.entries[workload.key] = Entry(
                workload, order(workload), shape(workload), now if since is None else since
            )
        elif entry.workload != workload:
            # Out of its line before it changes: its group is that of the old priority and shape.
            self.pending.remove_entry(entry)
            before, shape_before = entry.workload, entry.shape
            entry.change(workload)
            # Not where only its place in time changes, as it may with each eviction: a ring would never be noted.
            rights = before.priority, before.queue, shape_before
            if rights != (workload.priority, workload.queue, entry.shape):
                self._forget_evictions(workload.base)
            # It may be in another LocalQueue, which uses what it holds from now on.
            self.count_use(entry)
            # Its class may say by now that it is nobody's victim, or no more.
            self.holders.update_protection(entry)
            self._update_owner(entry, before)
            self.growing.try_again([workload.base])  # what kept it from more pods may be no more part of its wish
        if entry.phase in {Phase.STUCK, Phase.WAITING}:
            self.pending.route(entry)

    def _update_owner(self, entry: Entry, before: Workload) -> None:
        """One that holds something may be another victim than before."""
        workload, grant = entry.workload, entry.grant
        was = (before.priority, -before.created), slice_level(before)
        now = (workload.priority, -workload.created), slice_level(workload)
        if grant is None or was == now:
            return
        self.holders.update_owner(entry)
        # One that rose helps nobody. Whoever found no victims is parked under the room
        # of the flavors, and under their quota where they have no topology.
        if now[0] < was[0] or now[1] != was[1]:
            self.pending.room_freed(flavors_of(grant))
            self.pending.gave_quota(grant.queue, grant.amounts)

    def delay_workload(self, key: str, until: float) -> None:
        """One that waits is not looked at before ``until``: after an eviction, or a write that failed."""
        entry = self.entries.get(key)
        if entry is not None and entry.phase not in HOLDING:
            self.pending.delay_entry(entry, until)

    def pass_time(self, now: float) -> None:
        """It is so late, for use over time and run times: said before anything is granted or released."""
        self.use.advance_to(now)
        self.run_times.advance_to(now)
        self.quotas.pass_time(now)

    def wake_due(self, now: float) -> None:
        """Those whose time has come wait again."""
        self.pass_time(now)
        self.pending.wake_due(self.entries, now)
        self.run_times.wake_due(now)
        # A possible victim is back: whoever waits for room in its flavors may find a plan.
        for key in [key for key, until in self.spared.items() if until <= now]:
            del self.spared[key]
            entry = self.entries.get(key)
            self.pending.room_freed(flavors_of(entry.grant if entry is not None else None))

    def renew_message(self, key: str) -> None:
        """Have it told why it waits, if it does, and for another reason than it was told."""
        entry = self.entries.get(key)
        if entry is not None and entry.phase in {Phase.STUCK, Phase.WAITING}:
            self.pending.news.join_party(key, of_namespace(key))

    def repeat_message(self, key: str) -> None:
        """Have it told why it waits, if it does, whatever it was told."""
        entry = self.entries.get(key)
        if entry is not None and entry.phase is Phase.WAITING:
            entry.forget_refusal()
        self.renew_message(key)

    def look_again(self, key: str) -> None:
        """Have the group of one that was refused be looked at, though nothing helped it."""
        entry = self.entries.get(key)
        if entry is not None and entry.group is not None:
            self.pending.look_again(entry.group)

    def stores(self, key: str) -> None:
        """The admission that a cycle just made is being stored: it is nobody's victim until ``stored``."""
        self.storing.add(key)

    def stored(self, key: str) -> bool:
        """That ended, well or not. True where somebody is to be looked at again, whose victim it may be now."""
        self.storing.discard(key)
        self.fresh.discard(key)
        # Asked before the events are moved, which empties them.
        helped = self.pending.awaited(("placed",))
        self.pending.move_events_to_active([("placed",)])
        return self.growing.may_be_victim(key) or helped

    def holds_more(self, key: HolderKey) -> None:
        """One that is admitted holds more than before: others may be placed beside that, or take some of it back."""
        grant = self.entries[key].grant
        if grant is not None:
            self.pending.move_events_to_active(self.pending.helped_by_grant(grant))
            self.growing.may_be_victim(key)

    def spare_until(self, key: HolderKey, until: float) -> None:
        """A holder is nobody's victim before ``until``."""
        self.spared[key] = until

    def next_change_time(self) -> float | None:
        """When time alone changes something next."""
        late = [self.leaving.next_time] if self.leaving else []
        return min(chain(self.pending.times(), self.run_times.end_times(), self.spared.values(), late), default=None)

    def remove_workload(self, state: ClusterState, key: str) -> None:
        """It finished, was deleted or made inactive: it gives back all, and is gone."""
        # Released before the entry goes: what it held says whom that helps.
        self.release_workload(state, key)
        self._forget_evictions(key)
        entry = self.entries.pop(key, None)
        if entry is not None:
            self.pending.remove_entry(entry)
            for pod in entry.pods:
                self.of_pod.pop(pod, None)
        self.pending.news.leave_party(key)

    def note_victims(self, taker: str, victims: Sequence[HolderKey], now: float) -> None:
        """These are to go, so that a workload has room."""
        self.leaving.victims_go(victims, now)
        # A pod that no queue admitted does not come back as the same one.
        workloads = [workload_of(victim) for victim in victims if role_of(victim) is not Role.POD]
        self.eviction_order.record_evictions(taker, workloads)

    def _forget_evictions(self, key: str) -> None:
        # Any of those who left others alone may have done so because of a ring through this one.
        growing = self.eviction_order.find_evicted(self.growing, beside=key)
        if self.eviction_order.forget_workload(key):
            self.pending.move_events_to_active([RING_OPENED])
            self.growing.try_again(growing)

    def bind(self, pod: str, workload: str) -> None:
        """A pod of the workload is in the engine's state; so a search for victims can take it out and put it back."""
        entry = self.entries.get(workload)
        if entry is not None:
            # A pod that another workload had under the same name (it was made again) belongs to that one no more.
            self.unbind(pod)
            entry.pods.add(pod)
            self.of_pod[pod] = workload

    def unbind(self, pod: str) -> None:
        """The pod is gone."""
        entry = self.entries.get(self.of_pod.pop(pod, ""))
        if entry is not None:
            entry.pods.discard(pod)

    def charge_pod(self, pod: str, held: Held | None, queue: str = "") -> bool:
        """Charge a pod (``namespace/name``) without a workload, or (None) no more; True where that may help somebody.

        ``queue``: not a pod, but what pods of a workload take of this queue beyond its admission.
        """
        before = self.quotas.held.get(unit := ReservationKey.for_orphan(pod, queue))
        # Events of a pod come often and rarely change what it takes; charging again would wake all that wait for quota.
        if before == held:
            return False
        self.quotas.release_quota(unit)
        helped = before is not None
        if held is not None:
            self.quotas.charge_workload(unit, held)
            for event in self.pending.helped_by_use(held.queue, held.amounts):
                helped |= self.pending.awaited(event) | self.growing.may_take_back(held.queue)
                self.pending.move_events_to_active([event])
        if before is not None:
            self.pending.gave_quota(before.queue, before.amounts)
        return helped

    def rank_of_entry(self, entry: Entry, more: Quantities) -> Rank:
        """What decides between the queues' workloads which one goes first, were it given this; the least is first.

        What leaves does not count, and what is kept for successors counts as if those before it in its queue had all of
        it, and the others nothing.
        """
        queue = entry.queue
        if not self.quotas.shares(queue):
            return Rank(0, NO_SHARE, entry.order)
        less = self.not_counted(entry) if self.successors or self.leaving.amounts else None
        return Rank(*self.quotas.rank_of_queue(queue, more, fair=self.rules.fair, less=less), entry.order)

    def not_counted(self, entry: Entry) -> Quantities | None:
        """What its queue uses and does not count as used for its rank."""
        queue = entry.queue
        less = self.leaving.amounts.get(queue)
        # Quota held for successors counts as used: the workload must not seem to borrow because of those behind it.
        behind = [one for one in self.successors.values() if one.entry.queue == queue]
        if behind and (kept := [one for one in behind if one.holder in self.quotas.held]):
            less = dict(less or {})
            for one in kept:
                first = one.option.amounts if self.place_of(one.entry) < self.place_of(entry) else {}
                for name, amount in self.quotas.held[one.holder].amounts.items():
                    less[name] = less.get(name, 0) + amount - first.get(name, 0)
        return less

    def place_of(self, entry: Entry) -> Place:
        """The place of one in its own queue, whether it waits or grows; the least is first.

        Not to be compared with that of one in another queue: scores of two cluster queues say nothing of each other.
        """
        line = self.pending.lines.get(entry.queue)
        return (1, 0.0, entry.order) if line is None else line.place_of(entry.order, entry.workload.part)

    def kept_for(self) -> "list[Successor]":
        """The successors for whom something is kept from the one who is looked at."""
        return [one for one in self.successors.values() if one.holder in self.quotas.held]

    def limits(self, entry: Entry) -> Limits:
        """What a workload may take of the quotas of its queue."""
        return Limits(self.quotas, entry.queue, self.quotas.is_protected(entry.queue, entry.workload))

    def victim_rules(self, queue: str) -> VictimRules:
        """Which victims are the least for the workloads of a cluster queue."""
        found = self.quotas.queues.get(queue)
        return found.preemption.victims(self.rules.victims) if found is not None else self.rules.victims

    def entry_of_unit(self, unit: HolderKey) -> Entry:
        """Whose unit it is (`queueing.queues.eviction_units`)."""
        # Whole workloads first, by one look-up: they are nearly all of the units.
        whole = whole_of(unit)
        return self.entries.get(unit) or self.entries.get(whole) or self.holders.outside[whole]

    def title_of(self, unit: HolderKey) -> str:
        """What people are told that a workload is, or its growth, or a pod that no queue admitted."""
        if role_of(unit) is Role.POD:
            return str(unit)
        entry = self.entries.get(workload_of(unit))
        return entry.workload.title if entry is not None else workload_of(unit)

    def _drain(self, entry: Entry) -> None:
        """Note one that has to be evicted because its queue is drained."""
        self.holders.update_protection(entry)
        if role_of(entry.workload.key) is Role.GROWTH:
            return  # it goes with its workload
        # One that is nominated ends no pods: the cycle gives its place up.
        if entry.phase is Phase.ADMITTED and self.config.find_drain(entry.workload, entry.queue) is not None:
            self.drains.add(entry.workload.base)
        else:
            self.drains.discard(entry.workload.base)
            entry.mark_undrained()

    # -- what is held -----------------------------------------------------------------------------------------

    def grant(
        self,
        state: ClusterState,
        key: str,
        grant: AssumedAdmission,
        *,
        nominated: Iterable[HolderKey] = (),
        parts: Mapping[HolderKey, tuple[Path, ...]] | None = None,
        stored: bool = False,
        waits: bool = False,
        since: float | None = None,
    ) -> None:
        """Hold quota and slots for a workload; ``nominated``: the victims that have to go first.

        ``parts``: by victim the domains in which it loses its slices, where it does not lose all. ``stored``: the
        assignments come from the API server. ``waits``: it is nominated also where no victim is left, until the next
        cycle admits it. ``since``: it is taken in after a restart, and holds this since then.
        """
        entry = self.entries[key]
        # Out of its line before it holds anything: no look may find it there with a grant.
        self.pending.remove_entry(entry)
        self.holders.set_grant(state, entry, grant, nominated=nominated, parts=parts or {}, stored=stored, waits=waits)
        self.pending.news.leave_party(key)
        self.count_use(entry, since)
        self._drain(entry)

    def count_use(self, entry: Entry, since: float | None = None) -> None:
        """Count what one holds as used by its LocalQueue."""
        workload, grant, admitted = entry.workload, entry.grant, entry.phase is Phase.ADMITTED
        if self.rules.use is not None and grant is not None and workload.queue:
            self.use.charge_use(workload.part, workload.key, grant.amounts, admitted=admitted, since=since)
            if since is not None:
                self.quotas.over_time.count_past(grant.queue, since)

    def settle_use(self, key: str, now: float) -> None:
        """The status says that one is admitted: from here on what it holds counts where use is sampled."""
        self.pass_time(now)
        self.use.settle_use(key)

    def restore_workload(
        self,
        state: ClusterState,
        workload: Workload,
        grant: AssumedAdmission,
        now: float,
        *,
        nominated: Iterable[HolderKey] = (),
        parts: Mapping[HolderKey, tuple[Path, ...]] | None = None,
        waits: bool = False,
        since: float | None = None,
    ) -> None:
        """After a restart: what the API server says a workload holds. Never fails, whatever the quotas are now.

        ``since``: when it began to hold this, for what its LocalQueue used. Restore those that are admitted before
        those that are nominated (``waits``), or their victims are not known.
        """
        self.submit(workload, now)
        entry = self.entries[workload.key]
        if entry.grant == grant:
            return
        self.grant(state, workload.base, grant, nominated=nominated, parts=parts, stored=True, waits=waits, since=since)

    def release_workload(self, state: ClusterState, key: str) -> bool:
        """Give back quota and slots: its pods are gone, or its admission was never stored. True where it held any.

        It is STUCK until it is submitted, put off or forgotten.
        """
        # Growth goes with its workload: nobody else would ever end it.
        self.end_growth(state, key)
        self.leaving.workload_gone(key)
        grant = self.holders.release_workload(state, key)
        self.use.release_use(key)
        if grant is None:
            return False
        self.drains.discard(key)
        self.growing.pop(key, None)
        self.gave_back(state, grant)
        return True

    def end_growth(self, state: ClusterState, key: str) -> AssumedAdmission | None:
        """Hold nothing more for pods that an admitted workload was to get; returns what was held."""
        grant = self.holders.release_workload(state, ReservationKey.for_growth(key))
        self.entries.pop(ReservationKey.for_growth(key), None)
        self.use.release_use(ReservationKey.for_growth(key))
        if grant is not None:
            self.gave_back(state, grant)
        return grant

    def gave_back(self, state: ClusterState, grant: AssumedAdmission) -> None:
        """Quota and room of a grant, or part of it, are free again."""
        # Stored admissions may name flavors that nobody has; without the cut, counters would stay for them for ever.
        # In others nobody finds room.
        self.pending.room_freed(helped_by(state, grant) & {*state.flavors, *self.config.plain})
        self.pending.gave_quota(grant.queue, grant.amounts)

    def wish(self, key: str, counts: Mapping[str, int] | None) -> None:
        """An admitted workload wants more pods than it holds; the cycles try. None: it does not any more."""
        entry = self.entries.get(key)
        if counts is None or entry is None or entry.phase is not Phase.ADMITTED:
            self.growing.pop(key, None)
        elif key not in self.growing or self.growing[key][0] != counts:
            # Only a new wish comes here: the same one told again keeps what
            # is known of its refusal, else each event would cost a look.
            self.growing[key] = dict(counts), ()

    def grow_later(self, key: str, wish: dict[str, int]) -> None:
        """One that was just tried wants this still: it is tried again once something is free that was not."""
        self.growing[key] = wish, self.freed_so_far(key)

    def freed_so_far(self, key: str) -> tuple[int, ...]:
        """Changes whenever something that one who holds a grant could grow into may have become free."""
        grant = self.entries[key].grant
        if grant is None:
            return (0,)
        looks = any(looks_at_pods(pod_set) for pod_set in self.entries[key].workload.pod_sets)
        # One that holds nothing, as all its pods are done, grows into any flavor, and would else wait for none.
        flavors = sorted(self.pending.rooms if looks else chosen_for(grant) or self.pending.rooms)
        pool = self.quotas.pool(grant.queue)
        # Counters only: comparing them is cheap, and each grows with whatever may help.
        return self.changes, self.pending.pools.get(pool, 0), *(self.pending.rooms.get(flavor, 0) for flavor in flavors)

    def release_and_requeue(self, state: ClusterState, key: str, now: float, *, until: float = 0.0) -> None:
        """Give back all and wait again, not before ``until``: after an eviction, or a write that failed."""
        self.pass_time(now)
        self.release_workload(state, key)
        entry = self.entries.get(key)
        if entry is None or entry.phase in HOLDING:
            return
        entry.restart(now)
        if until > now:
            self.delay_workload(key, until)
        else:
            self.pending.route(entry)

    def options_of(self, state: ClusterState, group: EquivalenceClass) -> FlavorAssignments:
        """What the workloads of a group may be given; kept until queues or flavors change."""
        # Equal for all members, whose shapes are equal, so made once a group and version of queues and flavors.
        if group.options is None or group.options_at != self.changes:
            workload = self.entries[next(iter(group.members))].workload
            made = options(state, self.quotas.queues[group.line.queue], self.config.plain, workload)
            return group.offer(made, self.changes)
        return group.options

    def count_search(self) -> None:
        """Victims are searched for once more, or something that takes as long."""
        self.searches += 1

    # -- reading ----------------------------------------------------------------------------------------------

    def waiting(self, queue: str) -> Iterator[str]:
        """Who waits in a cluster queue, in order."""
        line = self.pending.lines.get(queue)
        return line.waiting_names() if line is not None else iter(())

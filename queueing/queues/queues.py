"""All queues and all workloads in them: what the shell feeds with events, and what the cycle decides on.

Rules
- Every workload that was submitted and not forgotten is in exactly one phase (see `Phase`); a test counts them.
- One that was refused is parked under the events that could help it: room in a flavor, quota of a cohort, a change of
  its queue. Nothing else makes anybody look at it again.
- What is held is held twice, in the engine (slots) and here (quota), and both change together: ``grant`` and
  ``release`` are the only ways.
- Every event may be told twice.
"""

import heapq
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING

from engine.cluster.state import ClusterState
from engine.reasons import Reason
from engine.results import Refusal
from queueing.model import (
    ClusterQueue,
    LocalQueue,
    Order,
    OutsidePod,
    PlainFlavor,
    Quantities,
    Rules,
    Stop,
    Workload,
    looks_at_pods,
    order,
    serves,
    shape,
)
from queueing.queues.entry import HOLDING, OUTSIDE, AssumedAdmission, Entry, Phase
from queueing.queues.eviction_units import Path, holder_of, orphan, pod_unit, slice_level, split
from queueing.queues.flavor_assigner import FlavorAssignments, options
from queueing.queues.pdb import Budgets
from queueing.queues.pending import EquivalenceClass, PendingQueue
from queueing.queues.quota import Held, Quotas
from queueing.queues.usage import FlavorUsage, SlotOwner, UsageIndex

if TYPE_CHECKING:
    from queueing.queues.claim import BackfillReservation

# What parked groups wait for: ("room", flavor), ("quota", pool, flavor, resource), ("claim", key of its claimant),
# ("borrow", cohort), ("placed",), ("gone",). A change of queues or flavors wakes whomever it concerns without an event.
Event = tuple[str, ...]


class Queues:
    """See the module's rules. Not safe for use by several threads."""

    def __init__(self, rules: Rules | None = None) -> None:
        self.rules = rules or Rules()
        self.quotas = Quotas()
        self.entries: dict[str, Entry] = {}
        self.lines: dict[str, PendingQueue] = {}
        self.local: dict[tuple[str, str], LocalQueue] = {}
        self.namespaces: dict[str, dict[str, str]] = {}
        self.plain: dict[str, PlainFlavor] = {}
        self.occupancies = UsageIndex()
        self.claims: dict[str, BackfillReservation] = {}
        self.searches = 0  # for victims, so far
        self.turn = 0  # of the queue that was served last
        self.config = 0  # grows with every change of queues and flavors
        self.rooms: dict[str, int] = {}  # by flavor: grows when room there may have become free
        self.holders: dict[str, int] = {}  # by flavor: how many hold something of it
        self.pools: dict[str, int] = {}  # by pool of quota: grows when some was given back
        self.growing: dict[
            str, tuple[dict[str, int], tuple[int, ...]]
        ] = {}  # wish, and what was free when it was tried
        self.memo: dict[Hashable, tuple[Hashable, Refusal]] = {}
        self.nominated: dict[str, None] = {}
        self.news: dict[str, None] = {}  # whom nobody has told yet why they wait
        self.aging: list[tuple[float, str]] = []  # heap: (when its patience ends, key)
        self.aged: dict[str, list[tuple[Order, str]]] = {}  # by claim to be had: those in line for it
        self.drains: set[str] = set()
        self.evicting: dict[str, None] = {}  # whose pods are on their way out
        self.fresh: set[str] = set()  # admitted in this cycle, or being stored: nobody's victim yet
        self.storing: set[str] = set()  # those of them whose writes take longer than a cycle
        self.losing: dict[str, tuple[Path, ...]] = {}  # who loses the slices that it has in these domains
        self.outside: dict[str, Entry] = {}  # pods that no queue admitted, by name of the unit
        self.spared: dict[str, float] = {}  # nobody's victim until then: a budget refused to let its pods go
        self.budgets = Budgets()
        self._held_in: dict[str, dict[str, None]] = {}
        self._priorities: dict[str, dict[int, int]] = {}
        self._of_pod: dict[str, str] = {}
        self._numbers: dict[str, int] = {}
        self._parked: dict[Event, set[EquivalenceClass]] = {}
        self._later: list[tuple[float, str]] = []

    # -- configuration ----------------------------------------------------------------------------------------

    def set_cluster_queue(self, queue: ClusterQueue) -> None:
        """Take in a ClusterQueue, new or changed."""
        old = self.quotas.queues.get(queue.name)
        if old == queue:
            return
        self.quotas.set_queue(queue)
        line = self.lines.setdefault(queue.name, PendingQueue(queue.name))
        line.strict = queue.strict
        self._changed(queue.name, old.cohort if old else "", queue.cohort)

    def remove_cluster_queue(self, name: str) -> None:
        """Forget a ClusterQueue; its workloads stay where they are, those that wait wait for it to come back."""
        old = self.quotas.queues.get(name)
        if old is not None:
            self.quotas.remove_queue(name)
            self._changed(name, old.cohort)

    def set_local_queue(self, queue: LocalQueue) -> None:
        """Take in a LocalQueue, new or changed."""
        key = queue.namespace, queue.name
        if self.local.get(key) != queue:
            self.local[key] = queue
            self._reroute(lambda entry: (entry.workload.namespace, entry.workload.queue) == key)

    def remove_local_queue(self, namespace: str, name: str) -> None:
        """Forget a LocalQueue."""
        if self.local.pop((namespace, name), None) is not None:
            self._reroute(lambda entry: (entry.workload.namespace, entry.workload.queue) == (namespace, name))

    def set_namespace(self, name: str, labels: Mapping[str, str]) -> None:
        """Take in a namespace's labels."""
        if self.namespaces.get(name) != labels:
            self.namespaces[name] = dict(labels)
            self._reroute(lambda entry: entry.workload.namespace == name)

    def remove_namespace(self, name: str) -> None:
        """Forget a namespace."""
        self.namespaces.pop(name, None)

    def set_flavor(self, flavor: PlainFlavor) -> None:
        """Take in a flavor without a topology; tell ``flavors_changed`` of those that the engine knows."""
        if self.plain.get(flavor.name) != flavor:
            self.plain[flavor.name] = flavor
            self.flavors_changed()

    def remove_flavor(self, name: str) -> None:
        """Forget a flavor without a topology."""
        if self.plain.pop(name, None) is not None:
            self.flavors_changed()

    def flavors_changed(self) -> None:
        """Flavors of the engine came, went or changed: everyone may be helped."""
        self.config += 1
        self.memo.clear()
        for line in self.lines.values():
            self._wake_line(line)

    def _changed(self, queue: str, *cohorts: str) -> None:
        self.config += 1
        for name, line in self.lines.items():
            found = self.quotas.queues.get(name)
            if name == queue or (found is not None and found.cohort and found.cohort in cohorts):
                self._wake_line(line)
        self._reroute(lambda entry: self._cluster_queue(entry) == queue)

    def _cluster_queue(self, entry: Entry) -> str:
        local = self.local.get((entry.workload.namespace, entry.workload.queue))
        return local.cluster_queue if local is not None else ""

    def _reroute(self, concerned: Callable[[Entry], bool]) -> None:
        for entry in self.entries.values():
            if concerned(entry):
                if entry.phase in {Phase.STUCK, Phase.WAITING}:
                    self._route(entry)
                self._drain(entry)

    # -- workloads --------------------------------------------------------------------------------------------

    def submit(self, workload: Workload, now: float, since: float | None = None) -> None:
        """A workload is to wait: a new one, one whose wish changed, or one that came back after an eviction.

        One that holds something keeps it, and its new wish counts when it waits again (`queueing.cycle.elastic`
        resizes). ``since``: when a new one began to wait, where that was before ``now``.
        """
        entry = self.entries.get(workload.key)
        if entry is None:
            entry = self.entries[workload.key] = Entry(
                workload, order(workload), shape(workload), now if since is None else since
            )
        elif entry.workload != workload:
            self._leave_line(entry)
            entry.workload, entry.order, entry.shape, entry.errors = workload, order(workload), shape(workload), 0
        if entry.phase in {Phase.STUCK, Phase.WAITING}:
            self._route(entry)

    def put_off(self, key: str, until: float) -> None:
        """One that waits is not looked at before ``until``: after an eviction, or a write that failed."""
        entry = self.entries.get(key)
        if entry is None or entry.phase in HOLDING:
            return
        self._leave_line(entry)
        entry.phase, entry.until = Phase.LATER, until
        heapq.heappush(self._later, (until, key))

    def due(self, now: float) -> None:
        """Those whose time has come wait again."""
        while self._later and self._later[0][0] <= now:
            until, key = heapq.heappop(self._later)
            entry = self.entries.get(key)
            if entry is not None and entry.phase is Phase.LATER and entry.until == until:
                entry.since = now
                self._route(entry)
        for key in [key for key, until in self.spared.items() if until <= now]:
            del self.spared[key]
            entry = self.entries.get(key)
            self.freed(flavors_of(entry.grant if entry is not None else None))

    def ask(self, key: str) -> None:
        """Have it told again why it waits, if it does."""
        entry = self.entries.get(key)
        if entry is not None and entry.phase in {Phase.STUCK, Phase.WAITING}:
            self.news[key] = None

    def stores(self, key: str) -> None:
        """The admission that a cycle just made is being stored: it is nobody's victim until ``stored``."""
        self.storing.add(key)

    def stored(self, key: str) -> bool:
        """That ended, well or not. True where somebody is to be looked at again, whose victim it may be now."""
        self.storing.discard(key)
        self.fresh.discard(key)
        helped = ("placed",) in self._parked
        self.wake([("placed",)])
        return helped

    def spare(self, key: str, until: float) -> None:
        """A holder is nobody's victim before ``until``."""
        self.spared[key] = until

    def next_time(self) -> float | None:
        """When time alone changes something next."""
        times = [*(heap[0][0] for heap in (self._later, self.aging) if heap), *self.spared.values()]
        return min(times) if times else None

    def forget(self, state: ClusterState, key: str) -> None:
        """It finished, was deleted or made inactive: it gives back all, and is gone."""
        self.release(state, key)
        entry = self.entries.pop(key, None)
        if entry is not None:
            self._leave_line(entry)
            for pod in entry.pods:
                self._of_pod.pop(pod, None)
        self.news.pop(key, None)

    def bind(self, pod: str, workload: str) -> None:
        """A pod of the workload is in the engine's state; so a search for victims can take it out and put it back."""
        entry = self.entries.get(workload)
        if entry is not None:
            self.unbind(pod)
            entry.pods.add(pod)
            self._of_pod[pod] = workload

    def unbind(self, pod: str) -> None:
        """The pod is gone."""
        entry = self.entries.get(self._of_pod.pop(pod, ""))
        if entry is not None:
            entry.pods.discard(pod)

    def set_pod(self, pod: OutsidePod) -> None:
        """A bound pod that no queue admitted, and that may be evicted; it is in the engine's state."""
        unit = pod_unit(pod.key)
        found = self.outside.get(unit)
        if found is not None and found.outside == pod:
            return
        if found is not None:
            self._number_outside(found.workload.priority, -1)
        self._number_outside(pod.priority, 1)
        namespace = pod.key.partition("/")[0]
        workload = Workload(
            key=unit,
            namespace=namespace,
            queue="",
            pod_sets=(),
            priority=pod.priority,
            created=pod.created,
            uid=pod.uid,
        )
        self.outside[unit] = Entry(workload, order(workload), b"", 0.0, Phase.ADMITTED, pods={pod.key}, outside=pod)
        self.occupancies.note_pod(pod)

    def remove_pod(self, key: str) -> None:
        """Such a pod is gone, or may not be evicted any more; ``key``: ``namespace/name``."""
        unit = pod_unit(key)
        found = self.outside.pop(unit, None)
        if found is not None:
            self._number_outside(found.workload.priority, -1)
            self.occupancies.forget_pod(key)
            self.evicting.pop(unit, None)
            self._lost(unit)

    def _number_outside(self, priority: int, by: int) -> None:
        counts = self._priorities.setdefault(OUTSIDE, {})
        counts[priority] = counts.get(priority, 0) + by
        if not counts[priority]:
            del counts[priority]

    def keep_charging(self, pod: str, queue: str, amounts: Quantities) -> None:
        """A pod (``namespace/name``) runs that no workload answers for: it takes this, whatever the limits are."""
        self.quotas.hold(orphan(pod), Held(queue, amounts))

    def stop_charging(self, pod: str) -> bool:
        """Such a pod is gone, or its workload answers for it. True where it took anything: others may be helped."""
        held = self.quotas.free(orphan(pod))
        if held is None:
            return False
        self._gave_quota(held.queue, held.amounts)
        return True

    def holder(self, unit: str) -> Entry:
        """Whose unit it is (`queueing.queues.eviction_units`)."""
        key = holder_of(unit)
        return self.entries[key] if key in self.entries else self.outside[key]

    def _route(self, entry: Entry) -> None:
        """Have one wait in the line of its cluster queue, or note why it can wait in none."""
        stuck, queue = self._refused(entry)
        if stuck is None and entry.group is not None and entry.queue == queue:
            return
        self._leave_line(entry)
        self.news[entry.workload.key] = None
        if stuck is not None:
            entry.phase, entry.queue, entry.refusal = Phase.STUCK, queue, stuck
            return
        entry.phase, entry.queue, entry.refusal = Phase.WAITING, queue, None
        entry.group = self.lines[queue].add(entry.order, entry.shape)
        heapq.heappush(self.aging, (entry.since + self.rules.patience, entry.workload.key))

    def _refused(self, entry: Entry) -> tuple[Refusal | None, str]:
        workload = entry.workload
        local = self.local.get((workload.namespace, workload.queue))
        if local is None:
            text = f"there is no LocalQueue {workload.queue} in namespace {workload.namespace}"
            return Refusal(Reason.NO_QUEUE, text), ""
        name = local.cluster_queue
        queue = self.quotas.queues.get(name)
        if queue is None:
            return Refusal(Reason.NO_QUEUE, f"LocalQueue {local.name}: there is no ClusterQueue {name}"), name
        for kind, stop in (("LocalQueue", local.stop), ("ClusterQueue", queue.stop)):
            if stop is not Stop.NONE:
                text = f"{kind} {local.name if kind == 'LocalQueue' else name} is stopped (stopPolicy {stop})"
                return Refusal(Reason.QUEUE_STOPPED, text), name
        if not serves(queue, self.namespaces.get(workload.namespace, {})):
            text = f"the namespaceSelector of ClusterQueue {name} does not select namespace {workload.namespace}"
            return Refusal(Reason.NAMESPACE_NOT_SELECTED, text), name
        return None, name

    def _leave_line(self, entry: Entry) -> None:
        if entry.group is not None:
            entry.group.line.remove(entry.workload.key, entry.group)
            if not entry.group.members:
                self._unpark(entry.group)
            entry.group = None

    def _drain(self, entry: Entry) -> None:
        """Note one that has to be evicted because its queue is drained."""
        local = self.local.get((entry.workload.namespace, entry.workload.queue))
        queue = self.quotas.queues.get(entry.queue)
        draining = Stop.DRAIN in {local.stop if local else None, queue.stop if queue else None}
        if draining and entry.phase in HOLDING:
            self.drains.add(entry.workload.key)
        else:
            self.drains.discard(entry.workload.key)
            entry.drained = False

    # -- what is held -----------------------------------------------------------------------------------------

    def grant(
        self,
        state: ClusterState,
        key: str,
        grant: AssumedAdmission,
        *,
        nominated: Iterable[str] = (),
        parts: Mapping[str, tuple[Path, ...]] | None = None,
        stored: bool = False,
        waits: bool = False,
    ) -> None:
        """Hold quota and slots for a workload; ``nominated``: the victims that have to go first.

        ``parts``: by victim the domains in which it loses its slices, where it does not lose all. ``stored``: the
        assignments come from the API server. ``waits``: it is nominated also where no victim is left, until the next
        cycle admits it.
        """
        entry = self.entries[key]
        self._leave_line(entry)
        if entry.grant is not None:
            self._list(entry, entry.grant, -1)
        self._list(entry, grant, 1)
        self._count(entry.grant, -1)
        self._count(grant, 1)
        victims = {victim for victim in nominated if self._has(victim, (parts or {}).get(victim, ()))}
        entry.grant, entry.queue, entry.victims, entry.refusal = grant, grant.queue, victims, None
        entry.phase = Phase.NOMINATED if victims or waits else Phase.ADMITTED
        self.quotas.hold(key, Held(grant.queue, grant.amounts))
        for victim in victims:
            if parts and victim in parts:
                self.losing[victim] = parts[victim]
            else:
                self.evict(victim)
        if key in self.losing and not split(grant.assignments, self.losing[key])[1]:
            self._lost(key)
        (state.restore if stored else state.reserve)(key, grant.assignments)
        self.occupancies.note(self._owner(entry), state.assignments(key))
        self.news.pop(key, None)
        if entry.phase is Phase.NOMINATED:
            self.nominated[key] = None
        else:
            self.nominated.pop(key, None)
        self._drain(entry)

    def _has(self, victim: str, domains: tuple[Path, ...]) -> bool:
        """Whether a victim holds what it is to give up."""
        if victim in self.outside:
            return True
        entry = self.entries.get(victim)
        if victim not in self.quotas.held or entry is None or entry.grant is None:
            return False
        return not domains or bool(split(entry.grant.assignments, domains)[1])

    def _lost(self, victim: str) -> None:
        """It gave up what it was to give up: nobody waits for it any more."""
        self.losing.pop(victim, None)
        for other in self.nominated:
            self.entries[other].victims.discard(victim)

    def restore(
        self,
        state: ClusterState,
        workload: Workload,
        grant: AssumedAdmission,
        now: float,
        *,
        nominated: Iterable[str] = (),
        parts: Mapping[str, tuple[Path, ...]] | None = None,
        waits: bool = False,
    ) -> None:
        """After a restart: what the API server says a workload holds. Never fails, whatever the quotas are now.

        Restore those that are admitted before those that are nominated (``waits``), or their victims are not known.
        """
        self.submit(workload, now)
        entry = self.entries[workload.key]
        if entry.grant == grant:
            return
        self.grant(state, workload.key, grant, nominated=nominated, parts=parts, stored=True, waits=waits)

    def release(self, state: ClusterState, key: str) -> bool:
        """Give back quota and slots: its pods are gone, or its admission was never stored. True where it held any.

        It is STUCK until it is submitted, put off or forgotten.
        """
        entry = self.entries.get(key)
        state.release(key)
        self.quotas.free(key)
        if entry is None or entry.grant is None:
            return False
        grant, entry.grant = entry.grant, None
        for victim in entry.victims:
            self.quotas.leave(victim, leaving=False)
            self.evicting.pop(victim, None)
            self.losing.pop(victim, None)
        entry.victims, entry.phase = set(), Phase.STUCK
        self._count(grant, -1)
        self._list(entry, grant, -1)
        self.evicting.pop(key, None)
        self.nominated.pop(key, None)
        self.drains.discard(key)
        entry.drained = False
        self.occupancies.note(SlotOwner(key), {})
        self._lost(key)
        self.growing.pop(key, None)
        self.gave_back(state, grant)
        return True

    def gave_back(self, state: ClusterState, grant: AssumedAdmission) -> None:
        """Quota and room of a grant, or part of it, are free again."""
        self.freed(_helped(state, grant))
        self._gave_quota(grant.queue, grant.amounts)

    def _gave_quota(self, queue: str, amounts: Quantities) -> None:
        if queue not in self.quotas.queues:
            return  # nobody waits in it
        pool = self.quotas.pool(queue)
        self.pools[pool] = self.pools.get(pool, 0) + 1
        self.wake(("quota", pool, *name) for name in amounts)

    def took(self, grant: AssumedAdmission) -> Iterator[Event]:
        """Whom it may help that this was taken: who looks at other pods, and who may take back what is borrowed now."""
        yield ("placed",)
        queue = self.quotas.queues.get(grant.queue)
        if queue is not None and queue.cohort and any(self.quotas.over(grant.queue, key) > 0 for key in grant.amounts):
            yield ("borrow", queue.cohort)

    def wish(self, key: str, counts: Mapping[str, int] | None) -> None:
        """An admitted workload wants more pods than it holds; the cycles try. None: it does not any more."""
        entry = self.entries.get(key)
        if counts is None or entry is None or entry.phase is not Phase.ADMITTED:
            self.growing.pop(key, None)
        elif key not in self.growing or self.growing[key][0] != counts:
            self.growing[key] = dict(counts), ()

    def freed_so_far(self, key: str) -> tuple[int, ...]:
        """Changes whenever something that one who holds a grant could grow into may have become free."""
        grant = self.entries[key].grant
        if grant is None:
            return (0,)
        looks = any(looks_at_pods(pod_set) for pod_set in self.entries[key].workload.pod_sets)
        flavors = sorted(self.rooms if looks else flavors_of(grant))
        pool = self.quotas.pool(grant.queue)
        return self.config, self.pools.get(pool, 0), *(self.rooms.get(flavor, 0) for flavor in flavors)

    def back(self, state: ClusterState, key: str, now: float, *, until: float = 0.0) -> None:
        """Give back all and wait again, not before ``until``: after an eviction, or a write that failed."""
        self.release(state, key)
        entry = self.entries.get(key)
        if entry is None or entry.phase in HOLDING:
            return
        entry.since = now
        if until > now:
            self.put_off(key, until)
        else:
            self._route(entry)

    def evict(self, key: str) -> None:
        """Its pods are on their way out: it is nobody's victim any more, and holds what it holds until ``release``."""
        entry = self.entries.get(key)
        if key in self.outside or (entry is not None and entry.grant is not None):
            self.quotas.leave(key)
            self.losing.pop(key, None)
            self.evicting[key] = None

    def held_in(self, queue: str) -> Iterator[str]:
        """Who holds quota of a cluster queue."""
        return iter(self._held_in.get(queue, ()))

    def lowest(self, queue: str) -> int | None:
        """The lowest priority of those who hold quota of a cluster queue, or of the pods in `OUTSIDE`."""
        return min(self._priorities.get(queue, ()), default=None)

    def _list(self, entry: Entry, grant: AssumedAdmission, by: int) -> None:
        """Note who holds quota of which queue."""
        if by > 0:
            entry.held_at = entry.workload.priority
            self._held_in.setdefault(grant.queue, {})[entry.workload.key] = None
        else:
            self._held_in[grant.queue].pop(entry.workload.key, None)
        counts = self._priorities.setdefault(grant.queue, {})
        counts[entry.held_at] = counts.get(entry.held_at, 0) + by
        if not counts[entry.held_at]:
            del counts[entry.held_at]

    def first_holders(self, queue: str) -> Iterator[str]:
        """Some who hold quota of a cluster queue, for messages: reading all of thousands would take long."""
        return islice(self.held_in(queue), 64)

    def _owner(self, entry: Entry) -> SlotOwner:
        workload = entry.workload
        number = self._numbers.setdefault(entry.queue, len(self._numbers))
        return SlotOwner(workload.key, workload.priority, workload.created, number, slice_level(workload))

    def number(self, queue: str) -> int:
        """A number that stands for a cluster queue; -1 where it never held anything."""
        return self._numbers.get(queue, -1)

    def occupancy(self, state: ClusterState, flavor: str) -> FlavorUsage | None:
        """Who holds how much on the nodes of a flavor."""
        return self.occupancies.get(
            state,
            flavor,
            lambda: (self._owner(self.entries[key]) for key in self.holding()),
            lambda: (entry.outside for entry in self.outside.values() if entry.outside is not None),
        )

    def _count(self, grant: AssumedAdmission | None, by: int) -> None:
        for flavor in flavors_of(grant):
            self.holders[flavor] = self.holders.get(flavor, 0) + by

    # -- events that help -------------------------------------------------------------------------------------

    def freed(self, flavors: Iterable[str]) -> None:
        """Room may have become free in these flavors: pods went, nodes came or changed, slots were given back."""
        for flavor in flavors:
            self.rooms[flavor] = self.rooms.get(flavor, 0) + 1
            self.wake([("room", flavor)])
        self.wake([("gone",)])

    def wake(self, events: Iterable[Event]) -> None:
        """Whoever is parked under one of these events is looked at again."""
        for event in events:
            for group in self._parked.pop(event, ()):
                if group.line.wake(group):
                    self._unpark(group)

    def park(self, group: EquivalenceClass, waits: Iterable[Event], *, aside: bool) -> None:
        """Nobody looks at a group until one of the events comes."""
        self._unpark(group)
        group.parked, group.aside, group.waits = True, aside, tuple(waits)
        for event in group.waits:
            self._parked.setdefault(event, set()).add(group)

    def _unpark(self, group: EquivalenceClass) -> None:
        for event in group.waits:
            waiting = self._parked.get(event)
            if waiting is not None:
                waiting.discard(group)
                if not waiting:
                    del self._parked[event]
        group.waits = ()

    def options_of(self, state: ClusterState, group: EquivalenceClass) -> FlavorAssignments:
        """What the workloads of a group may be given; kept until queues or flavors change."""
        if group.options is None or group.options_at != self.config:
            workload = self.entries[next(iter(group.members))].workload
            group.options = options(state, self.quotas.queues[group.line.queue], self.plain, workload)
            group.options_at = self.config
        return group.options

    def _wake_line(self, line: PendingQueue) -> None:
        for group in line.groups.values():
            if line.wake(group):
                self._unpark(group)

    # -- reading ----------------------------------------------------------------------------------------------

    def holding(self) -> Iterator[str]:
        """The keys of all that hold something."""
        return (key for key, entry in self.entries.items() if entry.grant is not None)

    def sharing(self, queue: str, keys: Iterable[str]) -> list[str]:
        """Those who hold quota within the limits of a cluster queue; that of others changes nothing for it."""
        quotas, pool = self.quotas, self.quotas.pool(queue)
        return [key for key in keys if (held := quotas.held.get(key)) is not None and quotas.pool(held.queue) == pool]

    def promised(self) -> list[str]:
        """Who holds room that its victims hold as well, until they are gone: nodes may look too full meanwhile."""
        return [key for key in self.nominated if self.entries[key].victims]

    @contextmanager
    def counted_once(self, state: ClusterState) -> Iterator[None]:
        """Look at the state without what is `promised`; nothing that is done to it meanwhile stays."""
        checkpoint = state.begin()
        try:
            state.release_all(self.promised())
            yield
        finally:
            state.rollback(checkpoint)

    def waiting(self, queue: str) -> Iterator[str]:
        """Who waits in a cluster queue, in order."""
        line = self.lines.get(queue)
        return line.names() if line is not None else iter(())

    def position(self, key: str) -> int | None:
        """How many of its cluster queue come before it; None where it does not wait in one."""
        entry = self.entries.get(key)
        if entry is None or entry.group is None:
            return None
        return entry.group.line.before(entry.order)


def _helped(state: ClusterState, grant: AssumedAdmission) -> Iterable[str]:
    """The flavors in which somebody may find room once a grant is gone: flavors may share nodes."""
    if any(part.source is not None and part.source.anti_affinity for part in grant.assignments):
        return flavors_of(grant) | state.flavors.keys()  # it kept others out of whole domains
    if len(state.flavors) <= 1:
        return flavors_of(grant)
    slices = [piece for part in grant.assignments for piece in part.slices]
    if not all(piece.nodes for piece in slices):
        return flavors_of(grant) | state.flavors.keys()
    return flavors_of(grant).union(*(state.flavors_on(name) for piece in slices for name, _ in piece.nodes))


def flavors_of(grant: AssumedAdmission | None) -> set[str]:
    """The flavors that a grant takes something of: one all of whose pods are done may still hold nothing of some."""
    if grant is None:
        return set()
    taken = {flavor for (flavor, _), amount in grant.amounts.items() if amount}
    return taken | {part.flavor for part in grant.assignments if part.slices}

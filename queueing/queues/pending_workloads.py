"""All who wait: in the line of their cluster queue, put off until a time, or parked until something could help them.

Rules
- A group that was refused is parked under the events that could help it: room in a flavor, quota of a cohort, somebody
  gone. Nothing else makes anybody look at it again, but a change of queues or flavors, which wakes whole lines.
- A group leaves the events as soon as it is woken, or its last member left.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from engine.reservation_key import HolderKey
from queueing.model import ClusterQueue, Quantities, Rules
from queueing.queues.config import QueueConfig
from queueing.queues.entry import AssumedAdmission, Entry, Phase
from queueing.queues.over_time.fair_use import FairUse
from queueing.queues.pending import EquivalenceClass, PendingQueue
from queueing.queues.rotation import Rotation, of_namespace

# What parked groups wait for. ("room", flavor): there may be more of it. ("quota", pool, flavor, resource): some was
# given back. ("claim", key of its claimant): it keeps room no longer, or other room. ("borrow", pool): a queue of its
# tree of cohorts borrows what others may take back. ("placed",): something was placed. ("gone",): pods went, of
# whatever flavor. ("counted",): devices were counted further. ("ring",): one of those who had somebody evicted is gone.
# ("safe", pool): somebody of its tree of cohorts may have run for as long as it has to.
# A change of queues, cohorts or flavors wakes all whom it concerns without an event.
Event = tuple[str, ...]
RING_OPENED: Final[Event] = ("ring",)

MANY_LATE: Final = 1024  # entries of that heap from which on those are looked for that wait no more


class PendingWorkloads:
    """See the module's rules. ``rules.patience``: how long one waits until it may keep room, in seconds."""

    def __init__(self, config: QueueConfig, rules: Rules, use: FairUse) -> None:
        self.lines: dict[str, PendingQueue] = {}
        self._rotation: Rotation[EquivalenceClass] = Rotation()
        self.news: Rotation[str] = Rotation()  # whom nobody has told yet why they wait
        self.aging: list[tuple[float, str]] = []  # heap: (when its patience ends, key)
        self.rooms: dict[str, int] = {}  # by flavor: grows when room there may have become free
        self.pools: dict[str, int] = {}  # by pool of quota: grows when some was given back
        self._pool_changes = 0  # of all pools together
        self.turn = 0  # of the queue that was served last
        self._config = config
        self._rules = rules
        self._use = use
        self._many_late = MANY_LATE
        self._becoming_late: list[tuple[float, str]] = []  # heap: (when one is late, key), where use may count
        self._inadmissible: dict[Event, dict[EquivalenceClass, None]] = {}  # in order, as they take turns in it
        self._later: list[tuple[float, str]] = []

    # -- who waits where --------------------------------------------------------------------------------------

    def set_line(self, queue: ClusterQueue) -> None:
        """There is a line for a cluster queue."""
        line, by_use = self.lines.get(queue.name), self.goes_by_use(queue)
        if line is None:
            line = PendingQueue(queue.name, self._rotation, self._use, strict=queue.strict, by_use=by_use)
            self.lines[queue.name] = line
        else:
            line.set_rules(strict=queue.strict, by_use=by_use)

    def remove_line(self, queue: str) -> None:
        """A cluster queue is gone; whoever waited there is led to none by now."""
        if queue in self.lines and not self.lines[queue].groups:
            del self.lines[queue]

    def goes_by_use(self, queue: ClusterQueue) -> bool:
        """Whether LocalQueues of a cluster queue take turns by what they used."""
        return queue.by_use and self._rules.use is not None

    def serve(self, line: PendingQueue) -> None:
        """A queue has its turn."""
        self.turn = max(self.turn, line.turn)
        line.take_turn()

    def groups_in_turn(self) -> Iterator[EquivalenceClass]:
        """The groups whose turn it is, whatever their place, one after the other."""
        return self._rotation.members_in_turn(lambda group: group.line.chosen(group))

    def route(self, entry: Entry) -> None:
        """Have one wait in the line of its cluster queue, or note why it can wait in none."""
        stuck, queue = self._config.refuse_workload(entry.workload)
        # In its line already: leaving and joining would cost it its
        # place in the turns and what is known of its refusal.
        if stuck is None and entry.group is not None and entry.queue == queue:
            return
        self.remove_entry(entry)
        # Joined also where it waits in a line: if nobody looks at it in the
        # coming cycle, it gets the reason of the ones that it waits behind.
        self.news.join_party(entry.workload.base, of_namespace(entry.workload.base))
        if stuck is not None:
            entry.get_stuck(queue, stuck)
            return
        line, key = self.lines[queue], entry.workload.base
        group = line.add(entry.order, entry.shape, entry.workload.part)
        entry.join(queue, group)
        # What refused a younger workload may not refuse this one: a policy may allow it to evict younger workloads, and
        # it comes before their claims.
        if group.inadmissible and group.head == entry.order:
            self.look_again(group)
        heapq.heappush(self.aging, (entry.since + self._rules.patience, key))
        # In whatever line: a cohort above it may go by use, now or later, and claims stop it no more by that once late.
        if self._rules.use is not None:
            heapq.heappush(self._becoming_late, (entry.since + self._rules.hold, key))

    def remove_entry(self, entry: Entry) -> None:
        """One waits in no line any more."""
        if entry.group is not None:
            entry.group.line.remove(entry.workload.base, entry.group)
            if not entry.group.members:
                self._forget_events(entry.group)
            entry.leave_group()

    def delay_entry(self, entry: Entry, until: float) -> None:
        """One is not looked at before ``until``."""
        self.remove_entry(entry)
        entry.delay_until(until)
        heapq.heappush(self._later, (until, entry.workload.base))

    def wake_due(self, entries: Mapping[HolderKey, Entry], now: float) -> None:
        """Those whose time has come wait again."""
        while self._later and self._later[0][0] <= now:
            until, key = heapq.heappop(self._later)
            entry = entries.get(key)
            # Heap entries are never searched: an older one of a workload that was put off again names another time.
            if entry is not None and entry.phase is Phase.LATER and entry.until == until:
                entry.restart(now)
                self.route(entry)
        self._drop_stale(entries)
        while self._becoming_late and self._becoming_late[0][0] <= now:
            _, key = heapq.heappop(self._becoming_late)
            entry = entries.get(key)
            # As above: one that began to wait again has another entry, with a later time.
            if entry is not None and entry.group is not None and entry.since + self._rules.hold <= now:
                entry.group.line.mark_late(key, entry.group)
                self.look_again(entry.group)
        quotas = self._config.quotas
        for queue in quotas.over_time.pop_unbarred(now):
            if queue in self.lines:
                # Those who want more pods are in no line: they compare this counter.
                self.pool_changed(quotas.pool(queue))
                self.move_queue_to_active(self.lines[queue])

    def _drop_stale(self, entries: Mapping[HolderKey, Entry]) -> None:
        """Forget when those would be late that wait no more: a week of them would fill the memory of a busy cluster."""
        if len(self._becoming_late) < self._many_late:
            return
        keys = {key for _, key in self._becoming_late}
        waiting = [entry for key in keys if (entry := entries.get(key)) is not None and entry.group is not None]
        self._becoming_late = [(entry.since + self._rules.hold, entry.workload.base) for entry in waiting]
        heapq.heapify(self._becoming_late)
        # Twice what is left, so that this costs each entry a look or two.
        self._many_late = max(MANY_LATE, 2 * len(self._becoming_late))

    def times(self) -> Iterator[float]:
        """When time alone changes something next."""
        yield from (heap[0][0] for heap in (self._later, self.aging, self._becoming_late) if heap)
        yield from self._config.quotas.over_time.barred.values()

    # -- events that help -------------------------------------------------------------------------------------

    def room_freed(self, flavors: Iterable[str]) -> None:
        """Room may have become free in these flavors: pods went, nodes came or changed, slots were given back."""
        for flavor in flavors:
            self.rooms[flavor] = self.rooms.get(flavor, 0) + 1
            self.move_events_to_active([("room", flavor)])
        # Groups whose pods look at other pods may be helped by any pod that goes, whatever flavor it was in.
        self.move_events_to_active([("gone",)])

    def gave_quota(self, queue: str, amounts: Quantities) -> None:
        """Quota of a cluster queue is free again."""
        quotas = self._config.quotas
        if queue not in quotas.queues:
            return  # nobody waits in it
        pool = quotas.pool(queue)
        self.pool_changed(pool)
        self.move_events_to_active(("quota", pool, *name) for name in amounts)

    def keeps_less(self, key: str, queue: str) -> None:
        """What was kept for one of a queue is kept no longer, or from fewer: no quota is given back for that."""
        # Those who want more pods are in no line: they compare this counter.
        if queue in self._config.quotas.queues:
            self.pool_changed(self._config.quotas.pool(queue))
        self.move_events_to_active([("claim", key)])

    def helped_by_grant(self, grant: AssumedAdmission) -> Iterator[Event]:
        """What it may mean for others that one holds this now: some look at other pods, some take back what it lends.

        Others again may have it evicted from now on.
        """
        yield ("placed",)
        yield from self.helped_by_use(grant.queue, grant.amounts)

    def helped_by_use(self, queue: str, amounts: Quantities) -> Iterator[Event]:
        """What it may mean for others that a cluster queue uses so much more: some take back what it borrows by now."""
        if self._config.quotas.overuses_any(queue, amounts):
            yield ("borrow", self._config.quotas.pool(queue))

    def pool_changed(self, pool: str) -> None:
        """There may be more quota in a pool, or a queue is in another one now."""
        # One count for all of them: a queue that changes its pool must not meet the number that it had in the other.
        self._pool_changes += 1
        self.pools[pool] = self._pool_changes

    def move_events_to_active(self, events: Iterable[Event]) -> None:
        """Whoever is parked under one of these events is looked at again."""
        for event in events:
            # Taken out as a whole, since waking a group changes the tables of all its events.
            for group in self._inadmissible.pop(event, ()):
                self.look_again(group)

    def look_again(self, group: EquivalenceClass) -> None:
        """A group is looked at again, whatever it waits for."""
        if group.line.move_to_active(group):
            self._forget_events(group)

    def move_queue_to_active(self, line: PendingQueue) -> None:
        """Whoever is parked in a line is looked at again."""
        for group in line.groups.values():
            self.look_again(group)

    def awaited(self, event: Event) -> bool:
        """Whether somebody is parked under an event."""
        return event in self._inadmissible

    def mark_inadmissible(self, group: EquivalenceClass, waits: Iterable[Event], *, aside: bool) -> None:
        """Nobody looks at a group until one of the events comes."""
        # Parked under other events: the ones of the look before count no more.
        self._forget_events(group)
        group.mark_inadmissible(tuple(waits), aside=aside)
        # A parked group takes no turns; it joins at the end of its namespace when it is woken.
        self._rotation.leave_party(group)
        for event in group.waits:
            self._inadmissible.setdefault(event, {})[group] = None

    def _forget_events(self, group: EquivalenceClass) -> None:
        for event in group.end_waits():
            waiting = self._inadmissible.get(event)
            if waiting is not None:
                waiting.pop(group, None)
                if not waiting:
                    del self._inadmissible[event]

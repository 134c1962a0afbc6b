"""Who waits in one cluster queue, and who is next.

Rules
- Order: priority (high first), then time, then name (`queueing.model.Order`).
- Workloads of equal priority and shape form a *group*: what refuses its first refuses all of it, so only the first is
  ever looked at, and the group as a whole is parked until an event that could help it.
- BestEffortFIFO: the first of the groups that are not parked is next. StrictFIFO: the very first one is next, and while
  it is parked nobody is; one that cannot be admitted whatever ends (``aside``) holds up nobody.
- In a line by use (`queueing.queues.over_time.fair_use`) the LocalQueue with the lowest score comes first, and within
  it the order above. A group is of one LocalQueue then. One that has waited for `Rules.hold` is *late*: it comes before
  all that are not, whatever they used, and late ones go by the order above.
- Beside that the groups of all lines take turns (`queueing.queues.rotation`): those of one namespace, and those of one
  line that is StrictFIFO or by use.
"""

import heapq
from collections.abc import Iterator
from operator import itemgetter
from typing import Final

import msgspec

from engine.results import Refusal
from queueing.model import Order
from queueing.queues.flavor_assigner import FlavorAssignments
from queueing.queues.over_time.fair_use import FairUse
from queueing.queues.rotation import Rotation, of_namespace

GroupKey = tuple[int, bytes, str]  # (priority, shape, the LocalQueue in a line by use, else "")
Place = tuple[int, float, Order]  # 0 where it is late, the score of its LocalQueue, its order; the least is first
MANY_STALE: Final = 64  # entries of a heap, beside two of each group, from which on stale ones are looked for
ANY_PART: Final = ""  # the heap of those that no LocalQueue's score decides on: late ones, and all of other lines


class EquivalenceClass(msgspec.Struct, eq=False):
    """Workloads of one queue with equal priority and shape. ``heap`` may hold orders of workloads that left.

    In a line by use they are of one LocalQueue, its ``part``; those of them that are ``late`` are in a heap of their
    own besides.

    ``inadmissible`` (it is parked), ``aside``, ``refusal``: what the last look at its first left behind; an event wakes
    it.
    """

    key: GroupKey
    line: "PendingQueue"
    heap: list[Order] = msgspec.field(default_factory=list)
    members: dict[str, Order] = msgspec.field(default_factory=dict)
    late: list[Order] = msgspec.field(default_factory=list)
    inadmissible: bool = False
    aside: bool = False
    waits: tuple[tuple[str, ...], ...] = ()  # the events that could help it
    refusal: Refusal | None = None
    refused_at: float = float("-inf")
    options: FlavorAssignments | None = None
    options_at: int = -1

    @property
    def part(self) -> str:
        """The LocalQueue, in a line by use."""
        return self.key[2]

    @property
    def head(self) -> Order | None:
        """The first of its members; late ones come before the others."""
        if self.late and (first := self._late_head()) is not None:
            return first
        heap, members = self.heap, self.members
        # Members leave without a search of the heap; their orders are dropped when they come to the top.
        while heap:
            first = heap[0]
            known = members.get(first.key)
            if known is first or known == first:
                return first
            heapq.heappop(heap)
        return None

    def _late_head(self) -> Order | None:
        late = self.late
        while late and (self.members.get(late[0].key) != late[0] or late[0].key not in self.line.late):
            heapq.heappop(late)
        return late[0] if late else None

    def add(self, order: Order) -> None:
        """One more member."""
        if self.members.get(order.key) != order:
            self.members[order.key] = order
            heapq.heappush(self.heap, order)

    def mark_late(self, key: str) -> None:
        """One of its members has waited for too long."""
        heapq.heappush(self.late, self.members[key])

    def mark_inadmissible(self, waits: tuple[tuple[str, ...], ...], *, aside: bool) -> None:
        """Its first was refused, and one of these events could help it."""
        self.inadmissible, self.aside, self.waits = True, aside, waits

    def mark_active(self) -> None:
        """It is worth a look again."""
        self.inadmissible = False

    def end_waits(self) -> tuple[tuple[str, ...], ...]:
        """It waits for no event any more; returns for which it did."""
        waits, self.waits = self.waits, ()
        return waits

    def record_refusal(self, refusal: Refusal, now: float) -> None:
        """Why its first was refused."""
        self.refusal, self.refused_at = refusal, now

    def offer(self, options: FlavorAssignments, version: int) -> FlavorAssignments:
        """What its members may be given, for a version of queues and flavors; returns it."""
        self.options, self.options_at = options, version
        return options


class PendingQueue:
    """The groups of one cluster queue."""

    def __init__(
        self,
        queue: str,
        rotation: Rotation[EquivalenceClass],
        use: FairUse,
        *,
        strict: bool = False,
        by_use: bool = False,
    ) -> None:
        self.queue = queue
        self.strict = strict
        self.by_use = by_use
        self.late: set[str] = set()  # in a line by use: who has waited for too long
        self._rotation = rotation
        self._use = use
        self.turn = 0  # grows with every turn; see `queueing.cycle.turns`
        self.active = False
        self.groups: dict[GroupKey, EquivalenceClass] = {}
        self._ready: dict[str, list[tuple[Order, int, EquivalenceClass]]] = {ANY_PART: []}  # heaps; may be stale
        # Heap of the first of each LocalQueue. A score that grew since is found out when its entry comes to the top.
        self._firsts: list[tuple[float, Order, str]] = []
        self._stamp = -1  # of the scores that ``_firsts`` was made by
        self._pushed = 0

    def __len__(self) -> int:
        return sum(len(group.members) for group in self.groups.values())

    def set_rules(self, *, strict: bool, by_use: bool) -> None:
        """Go by the rules of the queue as they are now; nobody waits where ``by_use`` changes."""
        self.strict = strict
        if by_use != self.by_use:
            self.by_use, self._ready, self._firsts = by_use, {ANY_PART: []}, []
        for group in self.groups.values():
            self._take_turns(group)

    def join(self, turn: int) -> None:
        """It takes part in the turns: at the present one, however long it did not."""
        self.active, self.turn = True, max(self.turn, turn)

    def rest_all(self) -> None:
        """Nobody of it is to be looked at."""
        self.active = False

    def take_turn(self) -> None:
        """It has its turn."""
        self.turn += 1

    def add(self, order: Order, shape: bytes, part: str) -> EquivalenceClass:
        """A workload of a LocalQueue joins; returns its group."""
        key = (-order.later, shape, part if self.by_use else ANY_PART)
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = EquivalenceClass(key, self)
        before = group.head
        group.add(order)
        # A group that is parked stays so: what refused its first refuses all that come after it.
        if not group.inadmissible and (before is None or order < before):
            self._push(group)
        return group

    def remove(self, key: str, group: EquivalenceClass) -> None:
        """A workload leaves; what parked its group holds for the others of it too."""
        group.members.pop(key, None)
        self.late.discard(key)
        if not group.members:
            self.groups.pop(group.key, None)
            self._rotation.leave_party(group)
            if not self.groups:
                self._ready, self._firsts = {ANY_PART: []}, []
            # LocalQueues come and go, and each may have had its heap.
            elif group.part in self._ready and group.part != ANY_PART and self._first_of(group.part) is None:
                del self._ready[group.part]
        elif not group.inadmissible:
            self._push(group)

    def mark_late(self, key: str, group: EquivalenceClass) -> None:
        """A workload of a group has waited for too long."""
        # The line may have gone by use when it began to wait, and go by it no more.
        if not self.by_use or key in self.late:
            return
        self.late.add(key)
        # Behind one that was evicted it would wait as long again, as that one comes before it and waits anew.
        group.mark_late(key)
        if not group.inadmissible:
            self._push(group)

    def move_to_active(self, group: EquivalenceClass) -> bool:
        """The group is worth a look again; True where it was parked."""
        if not group.inadmissible or not group.members:
            return False
        group.mark_active()
        self._push(group)
        return True

    def _push(self, group: EquivalenceClass) -> None:
        head = group.head
        if head is not None:
            # Groups have no order: of equal heads the one that was pushed first decides.
            self._pushed += 1
            part = self._heap_of(group.part, head)
            ready = self._ready.setdefault(part, [])
            heapq.heappush(ready, (head, self._pushed, group))
            if len(ready) > MANY_STALE + 2 * len(self.groups):
                self._drop_stale(part)
            if part:
                heapq.heappush(self._firsts, (self._use.score_of(part), head, part))
            self._take_turns(group)

    def _heap_of(self, part: str, head: Order) -> str:
        return ANY_PART if head.key in self.late else part

    def _take_turns(self, group: EquivalenceClass) -> None:
        """A group that is worth a look takes turns, with those of the namespace of its first, or of its line."""
        if not group.inadmissible and (head := group.head) is not None:
            # By use a line has its own order of namespaces: turns of each would admit against it every other time.
            whole = self.strict or self.by_use
            self._rotation.join_party(group, ("queue", self.queue) if whole else of_namespace(head.key))

    def next(self) -> EquivalenceClass | None:
        """The group whose head is to be looked at; it stays where it is."""
        group = self._first_of(ANY_PART)
        if group is None and self.by_use:
            group = self._lightest()
        # Kept on the heap: once the one before it is woken, this one is next after it.
        return None if group is None or self.holds_up(group) else group

    def _first_of(self, part: str) -> EquivalenceClass | None:
        """The first of the groups of a LocalQueue that are worth a look."""
        ready = self._ready[part]
        while ready:
            group = ready[0][2]
            if self._is_stale(*ready[0], part):
                heapq.heappop(ready)
                continue
            return group
        return None

    def _drop_stale(self, part: str) -> None:
        """Forget what is stale behind the first: those that come and go behind one that holds them up fill a heap."""
        last = {id(group): number for _, number, group in sorted(self._ready[part], key=itemgetter(1))}
        kept = [one for one in self._ready[part] if last[id(one[2])] == one[1] and not self._is_stale(*one, part)]
        heapq.heapify(kept)
        self._ready[part] = kept

    def _is_stale(self, order: Order, _: int, group: EquivalenceClass, part: str) -> bool:
        # The group was parked, has another head or is late (then it was pushed again with that), or ended and was made
        # again.
        return (
            group.inadmissible
            or ((head := group.head) is not order and head != order)
            or self.groups.get(group.key) is not group
            or (self.by_use and self._heap_of(group.part, order) != part)
        )

    def _lightest(self) -> EquivalenceClass | None:
        """The first group of the LocalQueue with the lowest score, of those that have one."""
        if self._stamp != self._use.stamp:
            self._stamp, firsts = self._use.stamp, list[tuple[float, Order, str]]()
            for part in [part for part in self._ready if part]:
                if (group := self._first_of(part)) is not None and group.head is not None:
                    firsts.append((self._use.score_of(part), group.head, part))
                else:
                    del self._ready[part]
            heapq.heapify(firsts)
            self._firsts = firsts
        while self._firsts:
            _, _, part = first = self._firsts[0]
            group = self._first_of(part) if part in self._ready else None
            if group is None or group.head is None:
                heapq.heappop(self._firsts)
                continue
            now = self._use.score_of(part), group.head, part
            if now == first:
                return group
            heapq.heapreplace(self._firsts, now)
        return None

    def chosen(self, group: EquivalenceClass) -> EquivalenceClass | None:
        """Who is looked at if it is the turn of one of its groups.

        Of a line by use the next one. Of a StrictFIFO line the one that holds up all behind it, else the next one
        before that: those that hold up nobody may be woken over and over.
        """
        if not self.strict and not self.by_use:
            return group
        found = self.next()
        if not self.strict or found is None or not found.aside:
            return found
        holding = (
            (self.place_of(head, each.part), each)
            for each in self.groups.values()
            if not each.aside and (head := each.head) is not None
        )
        _, first = min(holding, key=itemgetter(0), default=(None, found))
        return found if first.inadmissible else first

    def place_of(self, order: Order, part: str) -> Place:
        """The place of one of a LocalQueue among those of the queue, as scores are now."""
        if not self.by_use:
            return 1, 0.0, order
        return (0, 0.0, order) if order.key in self.late else (1, self._use.score_of(part), order)

    def holds_up(self, group: EquivalenceClass) -> bool:
        """Whether it is StrictFIFO, and a group that is parked comes before; only parked ones are compared, few are."""
        if not self.strict or group.head is None:
            return False
        place = self.place_of(group.head, group.part)
        return any(
            other.inadmissible
            and not other.aside
            and (head := other.head) is not None
            and self.place_of(head, other.part) < place
            for other in self.groups.values()
        )

    @property
    def waits_for_time(self) -> bool:
        """Whether one that is parked holds up those of other LocalQueues, whose scores may be lower than its by and by.

        In other lines that are by use nobody is held up: whatever frees room has all of them looked at in their order.
        """
        return self.strict and self.by_use and len({group.part for group in self.groups.values()}) > 1

    def waiting_names(self) -> Iterator[str]:
        """All who wait, in order."""
        if not self.by_use:
            return (order.key for order in sorted(o for group in self.groups.values() for o in group.members.values()))
        places = (self.place_of(o, group.part) for group in self.groups.values() for o in group.members.values())
        return (order.key for _, _, order in sorted(places))

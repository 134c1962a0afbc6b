"""Who waits in one cluster queue, and who is next.

Rules
- Order: priority (high first), then time, then name (`queueing.model.Order`).
- Workloads of equal priority and shape form a *group*: what refuses its first refuses all of it, so only the first is
  ever looked at, and the group as a whole is parked until an event that could help it.
- BestEffortFIFO: the first of the groups that are not parked is next. StrictFIFO: the very first one is next, and while
  it is parked nobody is; one that cannot be admitted whatever ends (``aside``) holds up nobody.
- Beside that the groups of all lines take turns (`queueing.queues.rotation`): those of one namespace, and those of one
  StrictFIFO line.
"""

import heapq
from collections.abc import Iterator
from operator import itemgetter

import msgspec

from engine.results import Refusal
from queueing.model import Order
from queueing.queues.flavor_assigner import FlavorAssignments
from queueing.queues.rotation import Rotation, of_namespace

GroupKey = tuple[int, bytes]  # (priority, shape)


class EquivalenceClass(msgspec.Struct, eq=False):
    """Workloads of one queue with equal priority and shape. ``heap`` may hold orders of workloads that left.

    ``inadmissible`` (it is parked), ``aside``, ``refusal``: what the last look at its first left behind; an event wakes
    it.
    """

    key: GroupKey
    line: "PendingQueue"
    heap: list[Order] = msgspec.field(default_factory=list)
    members: dict[str, Order] = msgspec.field(default_factory=dict)
    inadmissible: bool = False
    aside: bool = False
    waits: tuple[tuple[str, ...], ...] = ()  # the events that could help it
    refusal: Refusal | None = None
    refused_at: float = float("-inf")
    options: FlavorAssignments | None = None
    options_at: int = -1

    @property
    def head(self) -> Order | None:
        """The first of its members."""
        heap = self.heap
        # Members leave without a search of the heap; their orders are dropped when they come to the top.
        while heap and self.members.get(heap[0].key) != heap[0]:
            heapq.heappop(heap)
        return heap[0] if heap else None

    def add(self, order: Order) -> None:
        """One more member."""
        if self.members.get(order.key) != order:
            self.members[order.key] = order
            heapq.heappush(self.heap, order)

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

    def __init__(self, queue: str, rotation: Rotation[EquivalenceClass], *, strict: bool = False) -> None:
        self.queue = queue
        self.strict = strict
        self._rotation = rotation
        self.turn = 0  # grows with every turn; see `queueing.cycle.turns`
        self.active = False
        self.groups: dict[GroupKey, EquivalenceClass] = {}
        self._ready: list[tuple[Order, int, EquivalenceClass]] = []  # heap; entries may be stale
        self._pushed = 0

    def __len__(self) -> int:
        return sum(len(group.members) for group in self.groups.values())

    def set_strictness(self, *, strict: bool) -> None:
        """Go by the rules of the queue as they are now."""
        self.strict = strict
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

    def add(self, order: Order, shape: bytes) -> EquivalenceClass:
        """A workload joins; returns its group."""
        key = (-order.later, shape)
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = EquivalenceClass(key, self)
        before = group.head
        group.add(order)
        # A group that is parked stays so: what refused its first refuses this one too.
        if not group.inadmissible and (before is None or order < before):
            self._push(group)
        return group

    def remove(self, key: str, group: EquivalenceClass) -> None:
        """A workload leaves; what parked its group holds for the others of it too."""
        group.members.pop(key, None)
        if not group.members:
            self.groups.pop(group.key, None)
            self._rotation.leave_party(group)
        elif not group.inadmissible:
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
            heapq.heappush(self._ready, (head, self._pushed, group))
            self._take_turns(group)

    def _take_turns(self, group: EquivalenceClass) -> None:
        """A group that is worth a look takes turns, with those of the namespace of its first, or of a strict line."""
        if not group.inadmissible and (head := group.head) is not None:
            self._rotation.join_party(group, ("queue", self.queue) if self.strict else of_namespace(head.key))

    def next(self) -> EquivalenceClass | None:
        """The group whose head is to be looked at; it stays where it is."""
        ready = self._ready
        while ready:
            order, _, group = ready[0]
            # Stale: the group was parked, has another head (then it was
            # pushed again with that), or ended and was made again.
            if group.inadmissible or group.head != order or self.groups.get(group.key) is not group:
                heapq.heappop(ready)
                continue
            # Kept on the heap: once the one before it is woken, this one is next after it.
            if self.holds_up(order):
                return None
            return group
        return None

    def chosen(self, group: EquivalenceClass) -> EquivalenceClass | None:
        """Who is looked at if it is the turn of one of its groups.

        Of a StrictFIFO line the one that holds up all behind it, else the next one before that: those that hold up
        nobody may be woken over and over.
        """
        if not self.strict:
            return group
        found = self.next()
        if found is None or not found.aside:
            return found
        holding = ((head, each) for each in self.groups.values() if not each.aside and (head := each.head) is not None)
        _, first = min(holding, key=itemgetter(0), default=(None, found))
        return found if first.inadmissible else first

    def holds_up(self, order: Order) -> bool:
        """Whether it is StrictFIFO, and one that is parked comes before; only parked groups are looked at, few are."""
        return self.strict and any(
            group.inadmissible and not group.aside and (head := group.head) is not None and head < order
            for group in self.groups.values()
        )

    def waiting_names(self) -> Iterator[str]:
        """All who wait, in order."""
        return (order.key for order in sorted(o for group in self.groups.values() for o in group.members.values()))

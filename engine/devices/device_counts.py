"""How many pods with claims fit each node, counted for all nodes together.

Rules
- Nodes on which nobody waits, and whose devices look the same to a kind of pods, are counted once. What they look like,
  and what is in use, is a number of each node that all kinds have in common.
- Where numbers of free devices decide, and nobody waits, all nodes are counted by division (`free_numbers`), each time
  that somebody asks: what is kept and corrected are these numbers, which many kinds have in common.
- One call takes so many steps at most, those for a first look at a kind of pods among them. Nodes that it does not come
  to count as 0, and are *left*. In each round (`DeviceCounts.next_round`) one of those who ask goes on with them.
  Namespaces take turns; of those of one namespace it is who has waited longest, and was seldom served: who makes ever
  new kinds of pods is in the way of nobody for long. Those who are new in a round have the steps of one call together:
  each namespace that left something in the round before as many as all others together.
"""

from collections.abc import Callable, Collection, Sequence
from itertools import count as numbers
from typing import Final
from weakref import WeakKeyDictionary

import msgspec
import numpy as np

from engine.arrays import Ints
from engine.claims.asks import DeviceAsk
from engine.claims.budget import Budget
from engine.claims.counting.looks import DeviceUse, DeviceView, NodeDevices
from engine.devices.changes import ChangeLog
from engine.devices.free_numbers import ManyNodes
from engine.devices.kinds import CALL_STEPS, MOST_PODS, Kind
from engine.devices.known_kinds import KnownKinds, Varying
from engine.devices.node_counts import Counting, NodeCounts, NodePlaces, each, grouped
from engine.devices.of_node import BothStates

_REMEMBERED: Final = 1 << 16
_TURNS_KNOWN: Final = 1024  # namespaces
_A_TURN: Final = 64  # counts made later that one comes after for each time that it went on
_One = Callable[[str, DeviceAsk, Budget], int | None]


class CountedNodes(msgspec.Struct, frozen=True):
    """What is counted: by name, how many more pods fit a node now (``now``), and if nothing was held (``bare``).

    ``devices`` gives a node's devices in both; ``awaited`` the nodes on which somebody waits for any. ``free`` has the
    nodes on which something else is in use or promised, ``there`` those that have other devices.
    """

    places: NodePlaces
    free: ChangeLog
    there: ChangeLog
    now: _One
    bare: _One
    devices: Callable[[str], BothStates]
    awaited: Callable[[], Collection[str]]


class _Looks:
    """Numbers of nodes by view: what their devices look like."""

    def __init__(self, nodes: CountedNodes) -> None:
        self._nodes = nodes
        self._by_view: WeakKeyDictionary[DeviceView, NodeCounts] = WeakKeyDictionary()

    def count_by_look(self, view: DeviceView) -> Ints:
        """``(nodes,) int64``, the same for nodes whose devices look the same."""
        places = self._nodes.places
        counts = self._by_view.get(view)
        if counts is None:
            counts = self._by_view[view] = NodeCounts()

        def one(name: str) -> int:
            return view.number_of_look(self._nodes.devices(name).now.hardware)

        return counts.values(self._nodes.there, places, Counting(one, lambda: each(places.nodes_by_place(), one)))


class _Numbers:
    """Numbers of nodes: of their devices by view (``looks``), and of what is in use."""

    def __init__(
        self, nodes: CountedNodes, devices: Callable[[str], NodeDevices], looks: _Looks, *, bare: bool
    ) -> None:
        self._nodes = nodes
        self._devices = devices
        self._log = log = nodes.there if bare else nodes.free
        self.looks = looks.count_by_look
        self._states = NodeCounts()
        self._ids: dict[DeviceUse, int] = {}
        self._number = numbers()
        self._spare: Ints = np.zeros(0, np.int64)
        self.all = ManyNodes(*(nodes.places, log, nodes.there, devices, self.looks, self.states), bare=bare)

    def lend(self) -> Ints:
        """Memory for a number of each node, for questions that are asked one at a time."""
        size = len(self._nodes.places.nodes_by_place())
        if len(self._spare) != size:
            self._spare = np.zeros(size, np.int64)
        return self._spare

    def states(self) -> Ints:
        """``(nodes,) int64``, the same for nodes on which the same is in use."""
        return self._states.values(self._log, self._nodes.places, Counting(self._state))

    def _state(self, name: str) -> int:
        state = self._devices(name).state
        # Numbers go on from where they were. Equal states may then have two numbers, and are counted twice, but never
        # wrongly.
        if len(self._ids) >= _REMEMBERED:
            self._ids.clear()
        number = self._ids.get(state)
        return self._ids.setdefault(state, next(self._number)) if number is None else number


class _Turns:
    """Which namespace goes on with what it counts: that which had its turn least lately."""

    def __init__(self) -> None:
        self._last: dict[str, None] = {}  # namespaces by their last turns

    def next(self, tenants: Collection[str]) -> str:
        """Of some, who is next."""
        order = {tenant: at for at, tenant in enumerate(self._last)}
        found = min(tenants, key=lambda one: (order.get(one, -1), one))
        self._last.pop(found, None)
        self._last[found] = None
        if len(self._last) > _TURNS_KNOWN:
            del self._last[next(iter(self._last))]
        return found


class DeviceCounts:
    """See the module's rules; ``changed`` notes that a node at a place takes another number of pods."""

    def __init__(self, nodes: CountedNodes, kinds: KnownKinds, changed: Callable[[int], object]) -> None:
        self._nodes = nodes
        self._kinds = kinds
        self._changed = changed
        looks = _Looks(nodes)
        self._now = _Numbers(nodes, lambda name: nodes.devices(name).now, looks, bare=False)
        self._bare = _Numbers(nodes, lambda name: nodes.devices(name).bare, looks, bare=True)
        self._left: dict[DeviceAsk, set[str]] = {}  # not counted on all nodes, and asked for since: by whom
        self._turns = _Turns()
        self._turn: DeviceAsk | None = None  # whose turn it is to go on
        self._round = Budget(CALL_STEPS)  # for who is new in it
        self._shares: dict[str, Budget] = {}  # the same of a namespace that left something in the round before

    def count_by_node(self, ask: DeviceAsk, budget: Budget | None = None) -> Ints:
        """By table index, how many more pods fit each node. Do not modify; it holds until the next question."""
        budget, kind = budget or Budget(CALL_STEPS), self._kinds.counted(ask)
        # Beside the ones that wait, which devices they get matters, and not only how many.
        found = self._divided(kind, self._now, budget) if not self._nodes.awaited() else None
        if found is not None:
            return found
        found = kind.now.values(self._nodes.free, self._nodes.places, self._counting(ask, budget))
        # The namespaces that asked before stay noted: the turn goes by namespaces.
        if kind.now.left and ask not in self._left:
            self._left[ask] = {self._kinds.tenant(ask)}
        return found

    def count_if_unclaimed(self, ask: DeviceAsk, budget: Budget | None = None) -> Ints:
        """As ``count_by_node``, if no claim held anything, and nobody waited."""
        budget, kind = budget or Budget(CALL_STEPS), self._kinds.counted(ask)
        found = self._divided(kind, self._bare, budget)
        if found is not None:
            return found
        return kind.bare.values(self._nodes.there, self._nodes.places, self._counting_bare(ask, budget))

    def uncounted(self, ask: DeviceAsk, tenant: str = "") -> int:
        """Nodes of which it is not known yet how many such pods fit: ``count_by_node`` (or its like) is 0 there.

        Counts them, or goes on with that where it has its turn, as far as one call goes. ``tenant``: the namespace that
        asks.
        """
        tallies, asked = self._kinds.counted(ask, tenant), self._left.pop(ask, set())
        if tallies.now.left or tallies.bare.left:
            if ask == self._turn:
                self._go_on(ask)
        else:
            budget = self._shares.get(tenant, self._round)
            if ask == self._turn:  # what was counted of it is gone, as there were too many kinds
                self._turn, budget = None, Budget(CALL_STEPS)
            # One budget for both counts, since a cycle needs both before it can say that a workload never fits.
            self.count_by_node(ask, budget)
            self.count_if_unclaimed(ask, budget)
        left = len(tallies.now.left | tallies.bare.left)
        # `count_by_node` notes the ask for whoever owns the kind, which may be another namespace than the one that
        # asks.
        self._left.pop(ask, None)
        if left:
            self._left[ask] = asked | {tenant}
        return left

    def next_round(self) -> bool:
        """Begin a round: workloads that asked and are not counted on all nodes ask again, and one of them goes on.

        Where the one whose turn it was did not ask again (one that grows does not), its count goes on here. False where
        no workload has a turn.
        """
        # Before the trim, so that what this turn remembers is weighed too.
        if self._turn is not None:
            self._go_on(self._turn)
        self._kinds.trim()
        tenants = set[str]().union(*self._left.values())
        steps = CALL_STEPS // (1 + len(tenants))
        self._round, self._shares = Budget(steps), {one: Budget(steps) for one in tenants}
        if tenants:
            tenant = self._turns.next(tenants)
            self._turn = min([ask for ask, asked in self._left.items() if tenant in asked], key=self._turn_of)
            # A workload that still waits asks again in this round.
            self._left.clear()
        return self._turn is not None

    def spend_steps(self, steps: int) -> None:
        """Take steps that something else took from those of this round, and of who is new in it."""
        self._round.spend_steps(steps)

    def compile_kind(self, kind: Kind) -> None:
        """Have a kind compiled, as this round's, whatever is left of it: somebody asks for what it is like."""
        own = Budget()
        before = own.left
        kind.begin_counting(own)
        self.spend_steps(before - own.left)

    @property
    def unfinished(self) -> bool:
        """Whether anybody asked in this round who is not counted on all nodes."""
        return bool(self._left)

    def _turn_of(self, ask: DeviceAsk) -> int:
        tally = self._kinds.counted(ask).now
        return tally.number + _A_TURN * tally.rounds

    def _go_on(self, ask: DeviceAsk) -> None:
        self._turn, budget = None, Budget(CALL_STEPS)
        tallies, places = self._kinds.counted(ask), self._nodes.places
        now = tallies.now.go_on(places, self._counting(ask, budget))
        for place in (*now, *tallies.bare.go_on(places, self._counting_bare(ask, budget))):
            self._changed(place)

    def _divided(self, kind: Kind | Varying, numbers: _Numbers, budget: Budget) -> Ints | None:
        """What known numbers of free devices come to; None where these do not decide, or steps are left no more.

        What a kind itself knows of nodes is not needed for that. Numbers that have to be corrected are so for all
        kinds: that takes the steps of one call, whoever asks first.
        """
        if not isinstance(kind, Kind) or kind.forms is None or kind.is_refused or budget.left <= 0:
            return None
        # A kind that left nodes goes on with its own numbers (`_go_on`).
        if kind.now.left or kind.bare.left:
            return None
        own = Budget(CALL_STEPS)
        found = self._kinds.free.divided(kind.forms, MOST_PODS, numbers.all, own, numbers.lend())
        budget.spend_steps(CALL_STEPS - own.left)
        return found

    def _counting(self, ask: DeviceAsk, budget: Budget) -> Counting:
        def one(name: str) -> int | None:
            return self._nodes.now(name, ask, budget)

        def whole() -> tuple[Ints, set[str]]:
            places = [self._nodes.places.index(name) for name in self._nodes.awaited()]
            return self._count_together(ask, self._now, one, budget, [place for place in places if place is not None])

        return Counting(one, None if ask.varies else whole)

    def _counting_bare(self, ask: DeviceAsk, budget: Budget) -> Counting:
        def one(name: str) -> int | None:
            return self._nodes.bare(name, ask, budget)

        return Counting(one, None if ask.varies else lambda: self._count_together(ask, self._bare, one, budget, ()))

    def _count_together(
        self,
        ask: DeviceAsk,
        numbers: _Numbers,
        one: Callable[[str], int | None],
        budget: Budget,
        awaited: Sequence[int],
    ) -> tuple[Ints, set[str]]:
        """What `Counting.whole` gives.

        Nodes at ``awaited`` each by itself; others by numbers of free devices, and where these do not decide, those
        that look the same once.
        """
        kind, names = self._kinds.kind(ask), self._nodes.places.nodes_by_place
        # Not even compiled within this budget: all nodes are left, and the next turn begins there.
        if not kind.begin_counting(budget, len(names())):
            return np.zeros(len(names()), np.int64), set(names())
        values = None
        if kind.forms is not None and not kind.is_refused:
            values = self._kinds.free.count_pods(kind.forms, MOST_PODS, numbers.all, budget)
        if values is None:
            return grouped(names(), numbers.looks(kind.view), _number_apart(numbers.states(), awaited), one)
        # Division decides everywhere, so no look or state of a node is needed at all.
        if not awaited and values.min(initial=0) >= 0:
            return values, set()
        open_ = values < 0
        open_[awaited] = True
        places = np.flatnonzero(open_)
        looks, states = numbers.looks(kind.view), _number_apart(numbers.states(), awaited)
        found, left = grouped([names()[place] for place in places.tolist()], looks[places], states[places], one)
        values[places] = found
        return values, left


def _number_apart(states: Ints, places: Sequence[int]) -> Ints:
    """The same, with a number of its own for the node at each of some places."""
    if not places:
        return states
    found = states.copy()
    # Below 0, where no number of a state is: each of these nodes is counted by itself.
    found[places] = np.arange(-1, -1 - len(places), -1)
    return found

"""How many pods of one kind, those with equal claims, get their devices on each node.

What such a count may cost is limited. A kind that takes too many steps on some nodes, each for itself, is counted on
none, until devices or classes change. Where all nodes together take too many for one call, the next one goes on; what a
kind takes to be compiled, and nodes to be looked at for it the first time, is part of that. Beside
others that wait on a node as many fit as were found by then: what they ask for is theirs, and gives nobody else up.
"""

from collections.abc import Callable, Hashable, Sequence
from itertools import count as numbers
from typing import Final
from weakref import WeakKeyDictionary

from engine.claims.allocate import prepare
from engine.claims.budget import CHARACTER_STEPS, Budget
from engine.claims.cel.selectors import Selectors
from engine.claims.counting.beside import count_beside
from engine.claims.counting.count import ClaimCounter, StateClass, expressions
from engine.claims.counting.draws import UNKNOWN, Draws, DrawsByIndex, most_devices
from engine.claims.counting.free_devices import forms_of
from engine.claims.counting.looks import DeviceView, DeviceViews, NodeDevices
from engine.claims.hardware import NodeHardware
from engine.claims.model import Claim, DeviceClass
from engine.claims.searching.requests import RequestContext
from engine.devices.node_counts import NodeCounts

MOST_PODS: Final = 256  # of one kind on one node that are counted
# Measured: requests for partitions cost some 2,430 steps for each state of a node.
LOOK_STEPS: Final = 50_000  # for one state of a node
CALL_STEPS: Final = LOOK_STEPS  # for all nodes in one call, some 0.3 seconds; no less than what one state may take
DRAW_STEPS: Final = 4 * LOOK_STEPS  # for what a kind may be given of common devices, all nodes together
BESIDE_STEPS: Final = 10_000  # for one state of a node on which others wait
MOST_NODE_STEPS: Final = CALL_STEPS // 4  # for the first look at all nodes, one or some for each of them
# One odd state of a node must not refuse a kind everywhere.
MOST_GIVEN_UP: Final = 2  # states that took too many steps, before the kind is given up
_COSTLY_WEIGHS: Final = 16  # a state that took too many steps: others that wait there are part of it
_READS_A_STEP: Final = 2  # of each device, in a look at a node
_REMEMBERED: Final = 1 << 14
_numbers = numbers()


class Kind:
    """Pods with equal claims; made anew when a class changes. ``views``: those that all kinds have."""

    def __init__(
        self, claims: Sequence[Claim], classes: dict[str, DeviceClass], selectors: Selectors, views: DeviceViews
    ) -> None:
        self.claims = claims
        self.number = next(_numbers)  # no other kind has it
        self.now = NodeCounts()
        self.bare = NodeCounts()
        self.forms = forms_of(claims)  # where numbers of free devices decide how many fit
        self._known = classes, selectors
        self._views = views
        self._made: ClaimCounter | None = None
        self._costly: dict[Hashable, int] = {}  # what was found of states that took too many steps
        self._given_up: set[Hashable] = set()  # those of them that were so, and not only thought
        self._beside: dict[Hashable, int] = {}
        self._answers: dict[Hashable, bool] = {}
        self._states = 0  # of nodes that ``_beside`` and ``_answers`` are about
        self._draws: WeakKeyDictionary[NodeHardware, Draws] = WeakKeyDictionary()
        self._looked: dict[int, DrawsByIndex] = {}  # by what the devices are
        self._draw_steps = DRAW_STEPS

    @property
    def remembered_answers(self) -> int:
        """How much is remembered, in answers about a node."""
        return (
            self._states
            + _COSTLY_WEIGHS * len(self._costly)
            + (self._made.remembered_answers if self._made is not None else 0)
        )

    def forget_answers(self) -> None:
        """Forget what was found of single nodes; what nodes were counted for by that stays in ``now`` and ``bare``."""
        # Not ``_given_up``: to forget it would let a costly kind start from the beginning in each round.
        for remembered in (self._costly, self._beside, self._answers):
            remembered.clear()
        self._states = 0
        if self._made is not None:
            self._made.forget_answers()
        self._looked.clear()

    @property
    def is_refused(self) -> bool:
        """Whether it took too many steps to be counted."""
        return len(self._given_up) >= MOST_GIVEN_UP

    @property
    def view(self) -> DeviceView:
        """What it reads of devices."""
        return self._counter.view

    @property
    def counted_view(self) -> DeviceView | None:
        """The same, None before it is counted."""
        return self._made.view if self._made is not None else None

    def begin_counting(self, whole: Budget, nodes: int = 0) -> bool:
        """Whether it may be counted: where any budget is left, its expressions are compiled and charged the first time.

        ``nodes``: of which it reads the devices then, for the first time too.
        """
        if self._made is None:
            if whole.left <= 0:
                return False
            classes, selectors = self._known
            # Text that another kind compiled already costs nothing again.
            size = sum(len(one) for one in expressions(self.claims, classes) if not selectors.knows(one))
            whole.spend_steps(CHARACTER_STEPS * size)
        view = self._counter.view
        if nodes and not view.remembered_answers:
            whole.spend_steps(min(nodes * (1 + view.reads // _READS_A_STEP), MOST_NODE_STEPS))
        return True

    @property
    def _counter(self) -> ClaimCounter:
        """Made when it is counted: that compiles what selects its devices."""
        if self._made is None:
            self._made = ClaimCounter(self.claims, *self._known, MOST_PODS, own=True, views=self._views)
        return self._made

    def devices_changed(self) -> None:
        """Nodes have other devices than before."""
        self._draw_steps = DRAW_STEPS
        self._looked.clear()
        self._costly.clear()
        self._given_up.clear()

    def draws(self, hardware: NodeHardware) -> Draws:
        """What it may be given of devices that several nodes reach."""
        found = self._draws.get(hardware)
        if found is None:
            found = self._draws_of(self.view.number_of_look(hardware), hardware).draws_on_node(
                hardware, most_devices(self.claims)
            )
            # An unknown answer comes of the budget. It may be known after devices changed, or in another call.
            if not found.unknown:
                self._draws[hardware] = found
        return found

    def _draws_of(self, look: int, hardware: NodeHardware) -> DrawsByIndex:
        if look not in self._looked:
            steps = min(LOOK_STEPS, self._draw_steps)
            if steps <= 0:
                return UNKNOWN
            budget = Budget(steps)
            prepared = prepare(hardware, self.claims, RequestContext(*self._known, budget))
            found = DrawsByIndex.from_prepared(prepared, budget)
            self._draw_steps -= steps - budget.left
            # Others used up the steps, so this look did not have its share. Only a look with all its steps is kept as
            # unknown.
            if found.unknown and steps < LOOK_STEPS:
                return found
            if len(self._looked) >= _REMEMBERED:
                self._looked.clear()
            self._looked[look] = found
        return self._looked[look]

    def state_class(self, node: NodeDevices) -> StateClass:
        """What tells states of nodes apart to this kind."""
        return self._counter.state_class(node)

    def count(
        self, node: NodeDevices, waiting: "Sequence[tuple[Kind, int]]", whole: Budget, *, real: bool = True
    ) -> int | None:
        """How many more pods fit a node beside those that wait there, pods of this kind among them.

        None where too little of the budget is left to tell. Not ``real``: it is only thought to be so, and what that
        costs gives nobody up.
        """
        if self.is_refused:
            return 0
        # Also the ones that wait: their expressions run in the same search.
        if not all(kind.begin_counting(whole) for kind in (self, *(kind for kind, _ in waiting))):
            return None
        look = self.state_class(node)
        found = self._counter.known_count(look)
        if found is None:
            found = self._count_within(
                whole, look, lambda budget: self._counter.count_on(node, budget, look), most=LOOK_STEPS, real=real
            )
        if found is None or not waiting:
            return found
        # Pods of this kind that wait are like the ones that ask: they take their part of the count, in whatever order.
        same = sum(count for kind, count in waiting if kind is self)
        most, others = found - same, [(kind, count) for kind, count in waiting if kind is not self]
        if most <= 0 or not others:
            return max(most, 0)
        key = (look, same, tuple([(kind.number, kind.state_class(node), count) for kind, count in others]))
        found = self._beside.get(key)
        if found is None:
            found = self._count_within(
                *(whole, key, lambda budget: self._count_beside(node, others, most + same, budget) - same),
                most=BESIDE_STEPS,
                real=False,
            )
            if found is None:
                return None
            if len(self._beside) >= _REMEMBERED:
                self._beside.clear()
            self._beside[key] = found
            # The key holds a state class for each kind, and these are what weighs.
            self._states += 1 + len(others)
        return max(found, 0)

    def remembered(self, question: Hashable, states: int, find: Callable[[], bool]) -> bool:
        """What was found for a question, about so many states of nodes, that was asked before; else it is found now."""
        found = self._answers.get(question)
        if found is None:
            if len(self._answers) >= _REMEMBERED:
                self._answers.clear()
            found = self._answers[question] = find()
            self._states += states
        return found

    def _count_beside(self, node: NodeDevices, others: "Sequence[tuple[Kind, int]]", limit: int, budget: Budget) -> int:
        known = RequestContext(*self._known, budget)
        waiting = [(prepare(node.hardware, kind.claims, known), count) for kind, count in others]
        return count_beside(waiting, prepare(node.hardware, self.claims, known), node.in_use, limit, budget)

    def _count_within(
        self,
        whole: Budget,
        state: Hashable,
        counted: Callable[[Budget], int],
        *,
        most: int,
        real: bool,
    ) -> int | None:
        """What is counted of a state of a node within ``most`` steps; None where less was left, and too little."""
        if state not in self._costly:
            if whole.left <= 0:
                return None
            steps = min(whole.left, most)
            budget = Budget(steps)
            found = counted(budget)
            whole.spend_steps(steps - budget.left + budget.compiled)
            if budget.left >= 0:
                return found
            # Less than a full look was left in this call, so it says nothing about the state.
            if steps < most:
                return None
            # The count so far is a lower bound, and stays the answer: nobody pays twice for such a state.
            self._costly[state] = found
        if real:
            self._given_up.add(state)
        return self._costly[state]

"""How many pods of one kind fit nodes, one after another; counted once for nodes that look the same (`looks`)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import is_not
from typing import Final

import msgspec
import numpy as np

from engine.arrays import Ints
from engine.claims.allocate import Allocator, Prepared, prepare
from engine.claims.budget import MOST_STEPS, Budget
from engine.claims.cel.selectors import Selectors
from engine.claims.counting.interchangeable import DeviceSets, Takers
from engine.claims.counting.looks import DeviceUse, DeviceView, DeviceViews, NodeDevices
from engine.claims.in_use import InUse
from engine.claims.model import Claim, DeviceClass
from engine.claims.results import Allocation, Outcome
from engine.claims.searching.requests import RequestContext

StateClass = tuple[int, DeviceUse]  # all that a count depends on: what the devices are, and which are in use

_REMEMBERED: Final = 1 << 16  # counts of one kind of pods
_SETS_WEIGH: Final = 2  # the devices that a kind may have on a node, beside one answer
_COMMON: Final = "the next devices could also go to pods on other nodes"


class Counted(msgspec.Struct, frozen=True):
    """The allocation of every pod that fits, and the one that failed; None where all that were asked about fit."""

    pods: tuple[Allocation, ...]
    failed: Allocation | None


def count(prepared: Prepared, in_use: InUse, limit: int, budget: Budget, *, own: bool = False) -> Counted:
    """Allocate for one pod after another until one does not fit, at most ``limit``; ``own`` as in `ClaimCounter`."""
    pods: list[Allocation] = []
    allocator, takers = Allocator(prepared, in_use, budget), Takers(prepared, budget)
    while len(pods) < limit:
        # One search that goes on, where it may: the tenth pod does not begin at the first device again.
        allocation = allocator.next()
        if not allocation.allocated:
            return Counted(tuple(pods), allocation)
        if own and not takers.count_on(allocation.allocated_devices()):
            return Counted(tuple(pods), Allocation(Outcome.UNALLOCATABLE, message=_COMMON))
        pods.append(allocation)
    return Counted(tuple(pods), None)


@dataclass(slots=True)
class ClaimCounter:
    """Counts of one kind of pods: claims that are the same but for their names.

    ``steps`` is what one call may cost, all nodes together. Nodes beyond it have as many pods as were found by then,
    and are asked again by the next call. ``own``: none fits that would get a device which is not the node's alone
    (`NodeHardware.common`). ``views``: those that other kinds have too.
    """

    claims: Sequence[Claim]
    classes: dict[str, DeviceClass]
    selectors: Selectors
    limit: int
    steps: int = MOST_STEPS
    own: bool = False
    views: DeviceViews = field(default_factory=DeviceViews)
    view: DeviceView = field(init=False)
    _answers: dict[StateClass, int] = field(default_factory=dict)
    _sets: dict[int, DeviceSets | None] = field(default_factory=dict)  # by what the devices are
    _nodes: list[NodeDevices] = field(default_factory=list)
    _counts: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def __post_init__(self) -> None:
        texts = sorted(expressions(self.claims, self.classes))
        paths = [path for text in texts for path in self.selectors.program(text).reads]
        constraints = [one for claim in self.claims for one in claim.constraints]
        attributes = {name for one in constraints for name in (one.match, one.distinct) if name}
        self.view = self.views.view_of_paths(paths, attributes, own=self.own)

    @property
    def remembered_answers(self) -> int:
        """How much is remembered, in answers about a node."""
        return len(self._answers) + _SETS_WEIGH * len(self._sets)

    def forget_answers(self) -> None:
        """Forget what was counted: it is counted again where somebody asks."""
        self._answers.clear()
        self._sets.clear()

    def count_by_node(self, nodes: Sequence[NodeDevices]) -> Ints:
        """``(nodes,) int64``, pods that fit each node. Only nodes that changed since the last time are looked at."""
        given, budget = list(nodes), Budget(self.steps)
        if len(given) != len(self._nodes):
            self._counts = np.array([self.count_on(node, budget) for node in given], np.int64)
        elif any(map(is_not, given, self._nodes)):
            counts = self._counts.copy()
            for index, (node, before) in enumerate(zip(given, self._nodes, strict=True)):
                if node is not before:
                    counts[index] = self.count_on(node, budget)
            self._counts = counts
        # Empty where the budget ended, so that the next call counts every node and not only the ones that changed.
        self._nodes = given if budget.left >= 0 else []
        return self._counts

    def state_class(self, node: NodeDevices) -> StateClass:
        """What tells a node from others."""
        return self.view.number_of_look(node.hardware), node.state

    def known_count(self, look: StateClass) -> int | None:
        """What was counted of nodes that look like this; None where nothing was."""
        return self._answers.get(look)

    def count_on(self, node: NodeDevices, budget: Budget, look: StateClass | None = None) -> int:
        """The same of one node, within a budget; where that ends, as many as were found by then.

        ``look``: what `state_class` gives of it, where that is known.
        """
        look = self.state_class(node) if look is None else look
        found = self.known_count(look)
        if found is not None:
            return found
        # Numbers first: a division instead of a search for each pod.
        found = self._of_sets(node, look, budget)
        if found is None:
            budget.spend_steps(len(node.hardware.candidates))  # each is read once, whatever the search comes to
            known = RequestContext(self.classes, self.selectors, budget)
            counted = count(prepare(node.hardware, self.claims, known), node.in_use, self.limit, budget, own=self.own)
            found = len(counted.pods)
            # A lower bound only; it is not kept as the answer.
            if counted.failed is not None and counted.failed.outcome is Outcome.GIVEN_UP:
                return found
        if len(self._answers) >= _REMEMBERED:
            self._answers.clear()
        self._answers[look] = found
        return found

    def _of_sets(self, node: NodeDevices, look: StateClass, budget: Budget) -> int | None:
        """The same where it decides how many devices are free; None where more decides, or budget is used up."""
        number, state = look
        if state.shared:
            return None
        if number not in self._sets:
            known = RequestContext(self.classes, self.selectors, budget)
            sets = DeviceSets.from_prepared(prepare(node.hardware, self.claims, known), budget)
            if budget.left < 0:
                return None
            if len(self._sets) >= _REMEMBERED:
                self._sets.clear()
            self._sets[number] = sets
        found = self._sets[number]
        return min(found.count(frozenset(state.busy), self.limit), self.limit) if found is not None else None


def expressions(claims: Sequence[Claim], classes: dict[str, DeviceClass]) -> set[str]:
    """All that select devices for these claims, those of their classes among them."""
    asks = [
        ask
        for claim in claims
        for request in claim.requests
        for ask in (*((request.exactly,) if request.exactly else ()), *request.alternatives)
    ]
    named = [classes[ask.class_name] for ask in asks if ask.class_name in classes]
    texts = {text for one in (*asks, *named) for text in one.selectors if text is not None}
    return texts | {text for ask in asks for text in ask.derived.values()}

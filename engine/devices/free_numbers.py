"""How many pods fit every node at once, for pods that simply ask for so many devices of a class.

Of each form of a request the numbers of free devices of all nodes are kept, and corrected by change. Pods of any
numbers of these are counted by division, all nodes in one step.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from engine.arrays import Ints
from engine.claims.budget import Budget
from engine.claims.cel.selectors import Selectors
from engine.claims.counting.free_devices import NOT_SIMPLE, Form, FreeDevices, Grouping, grouping
from engine.claims.counting.looks import DeviceView, DeviceViews, NodeDevices
from engine.claims.model import DeviceClass
from engine.devices.changes import ChangeLog
from engine.devices.node_counts import Counting, NodeCounts, NodePlaces, each, grouped
from engine.latest import Latest

FORMS_KEPT: Final = 128


class ManyNodes(msgspec.Struct, frozen=True):
    """All nodes: ``log`` has the changes of what is free, ``there`` those of what devices there are.

    ``looks`` and ``states``: `engine.devices.device_counts`. ``bare``: nothing is in use.
    """

    places: NodePlaces
    log: ChangeLog
    there: ChangeLog
    devices: Callable[[str], NodeDevices]
    looks: Callable[[DeviceView], Ints]
    states: Callable[[], Ints]
    bare: bool


class _Form:
    """The numbers of one form; ``costly``: to know them took too many steps."""

    def __init__(self, counter: FreeDevices) -> None:
        self.counter = counter
        self.now = NodeCounts()
        self.bare = NodeCounts()
        self.costly = False

    def devices_changed(self) -> None:
        """Nodes have other devices than before."""
        self.costly = False

    def count_free(self, nodes: ManyNodes, budget: Budget) -> Ints | None:
        """``(nodes,) int64``, or `NOT_SIMPLE`; None where the budget does not do."""

        def one(name: str) -> int | None:
            found = self.counter.count_free(nodes.devices(name), budget)
            return None if budget.left < 0 else found

        def whole() -> tuple[Ints, set[str]]:
            return grouped(nodes.places.nodes_by_place(), nodes.looks(self.counter.view), nodes.states(), one)

        counts = self.bare if nodes.bare else self.now
        found = counts.values(nodes.log, nodes.places, Counting(one, whole))
        if not counts.left:
            return found
        # Numbers of some nodes only would be taken for numbers of all, so they go too.
        self.costly, self.now, self.bare = True, NodeCounts(), NodeCounts()
        return None


class _Together(msgspec.Struct):
    """Of several forms, for each node which of them mean the same devices there; by number."""

    numbers: NodeCounts = msgspec.field(default_factory=NodeCounts)
    known: dict[Grouping, int] = msgspec.field(default_factory=dict)

    def count_together(self, forms: Sequence[_Form], nodes: ManyNodes, budget: Budget) -> Ints | None:
        """``(nodes,) int64``, a number of ``known``, or `NOT_SIMPLE`; None where the budget does not do."""

        def one(name: str) -> int | None:
            devices = nodes.devices(name)
            found = grouping([form.counter.matching_devices(devices, budget) for form in forms])
            if budget.left < 0:
                return None
            return NOT_SIMPLE if found is None else self.known.setdefault(found, len(self.known))

        found = self.numbers.values(
            nodes.there, nodes.places, Counting(one, lambda: each(nodes.places.nodes_by_place(), one))
        )
        if not self.numbers.left:
            return found
        # The numbers that were found are dropped, and ``known`` stays: equal groups keep their number.
        self.numbers = NodeCounts()
        return None


class FreeNumbers:
    """See the module. ``classes``: as they are now; when one changes, all is made anew."""

    def __init__(self, classes: dict[str, DeviceClass], selectors: Selectors, views: DeviceViews) -> None:
        self._known = classes, selectors, views
        self._forms: Latest[Form, _Form] = Latest(FORMS_KEPT)
        self._together: Latest[tuple[Form, ...], _Together] = Latest(FORMS_KEPT)
        self._undecided: set[tuple[Form, ...]] = set()  # on some nodes more decides, since devices changed

    @property
    def counters(self) -> list[FreeDevices]:
        """Those that remember of which devices forms are."""
        return [form.counter for form in self._forms.values()]

    def devices_changed(self) -> None:
        """Nodes have other devices than before."""
        self._undecided.clear()
        for form in self._forms.values():
            form.devices_changed()

    def divided(
        self, wanted: Mapping[Form, int], limit: int, nodes: ManyNodes, budget: Budget, out: Ints
    ) -> Ints | None:
        """As `count_pods`, where all these forms were asked for before and decide on all nodes; None elsewhere.

        ``out`` lends memory of that size.
        """
        if not all(map(self._forms.__contains__, wanted)) or (forms := tuple(wanted)) in self._undecided:
            return None
        found = self.count_pods(wanted, limit, nodes, budget, out)
        # Any node below 0 is `NOT_SIMPLE`: division does not decide there, and the caller has to count it otherwise.
        if found is None or np.minimum.reduce(found, initial=0) >= 0:
            return found
        if len(self._undecided) >= FORMS_KEPT:
            self._undecided.clear()
        self._undecided.add(forms)
        return None

    def count_pods(
        self, wanted: Mapping[Form, int], limit: int, nodes: ManyNodes, budget: Budget, out: Ints | None = None
    ) -> Ints | None:
        """``(nodes,) int64``: on how many times these devices are free, `NOT_SIMPLE` where more than that decides.

        None where it takes more than the budget to know that of all nodes; then nothing of it is used up.
        """
        # A budget of its own, charged only where all is known: a failed try must not take the steps of the way that
        # follows.
        forms, own = [self._form(form) for form in wanted], Budget(budget.left)
        if any(form.costly for form in forms):
            return None
        free = [form.count_free(nodes, own) for form in forms]
        groups = self._together.get_or_make(tuple(wanted), _Together) if len(forms) > 1 else None
        together = groups.count_together(forms, nodes, own) if groups is not None else None
        there = [one for one in free if one is not None]
        if len(there) < len(free) or (together is None and len(free) > 1):
            return None
        budget.spend_steps(budget.left - own.left)
        each = list(wanted.values())
        if groups is None or together is None:
            found = np.floor_divide(there[0], each[0], out=out)
            return np.minimum(found, limit, out=found)  # what is not simple stays -1
        found = np.full(len(together), NOT_SIMPLE, np.int64)
        for same, number in groups.known.items():
            # Forms that mean the same devices compete for them, so their amounts add up before the division.
            fit = np.min([there[group[0]] // sum(each[at] for at in group) for group in same], axis=0)
            found = np.where(together == number, np.minimum(fit, limit), found)
        return found

    def _form(self, form: Form) -> _Form:
        return self._forms.get_or_make(form, lambda: _Form(FreeDevices(form, *self._known)))

"""How many devices of a form are free on a node: what decides for pods that simply ask for so many of a class.

Pods that ask for other numbers of the same have these in common: how many fit is a division.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from engine.claims.allocate import prepare
from engine.claims.budget import Budget
from engine.claims.cel.selectors import Selectors
from engine.claims.counting.interchangeable import MOST_DEEP, DeviceSets, disjoint
from engine.claims.counting.looks import DeviceView, DeviceViews, NodeDevices
from engine.claims.model import EXACT_COUNT, MOST_DEVICES, Ask, Claim, DeviceClass, DeviceToleration, Request
from engine.claims.searching.requests import RequestContext

NOT_SIMPLE: Final = -1  # more than a number decides
MOST_FORMS: Final = 4  # of one pod: for more, each node is asked by itself
_REMEMBERED: Final = 1 << 16
Grouping = tuple[tuple[int, ...], ...]  # of forms, those that mean the same devices together


class Form(msgspec.Struct, frozen=True, cache_hash=True):
    """A request that leaves open how many devices."""

    class_name: str
    selectors: tuple[str | None, ...]
    tolerations: tuple[DeviceToleration, ...]

    def claim_of_one(self) -> Claim:
        """A claim of one device."""
        ask = Ask("", self.class_name, EXACT_COUNT, 1, None, self.selectors, self.tolerations, None, {})
        return Claim("", (Request("", ask, ()),), ())


def forms_of(claims: Sequence[Claim]) -> dict[Form, int] | None:
    """How many devices of which form one pod takes; None where it asks for more than that, or for none."""
    found: dict[Form, int] = {}
    deep = 0
    for claim in claims:
        in_claim = 0
        for request in claim.requests:
            ask = request.exactly
            if ask is None or request.alternatives:
                return None
            if ask.mode != EXACT_COUNT or ask.count <= 0 or ask.capacity or ask.admin or ask.derived:
                return None
            form = Form(ask.class_name, ask.selectors, ask.tolerations)
            found[form] = found.get(form, 0) + ask.count
            in_claim += ask.count
        # Constraints ask which devices, not how many.
        if claim.constraints or in_claim > MOST_DEVICES:
            return None
        # As deep as the search would go: a pod that the search gives up must not be counted by division either.
        deep += in_claim + 1 + len(claim.requests)
    return found if found and len(found) <= MOST_FORMS and deep <= MOST_DEEP else None


@dataclass(slots=True)
class FreeDevices:
    """Numbers of free devices of one form, by node."""

    form: Form
    classes: dict[str, DeviceClass]
    selectors: Selectors
    views: DeviceViews
    view: DeviceView = field(init=False)
    _sets: dict[int, frozenset[int] | None] = field(default_factory=dict)  # by what the devices are
    _alike: dict[frozenset[int], frozenset[int]] = field(default_factory=dict)  # most nodes have the same: held once

    def __post_init__(self) -> None:
        found = self.classes.get(self.form.class_name)
        texts = (*self.form.selectors, *(found.selectors if found is not None else ()))
        paths = {path for text in texts if text is not None for path in self.selectors.program(text).reads}
        self.view = self.views.view_of_paths(paths, (), own=True)

    @property
    def remembered_answers(self) -> int:
        """How much is remembered, in answers about a node."""
        return len(self._sets) + len(self._alike)

    def forget_answers(self) -> None:
        """Forget which devices are of the form: they are looked for again where somebody asks."""
        self._sets.clear()
        self._alike.clear()

    def count_free(self, node: NodeDevices, budget: Budget) -> int:
        """How many are free; `NOT_SIMPLE` where that does not decide how many pods fit, or budget is left no more."""
        devices = self.matching_devices(node, budget)
        # A shared device in use is neither free nor taken.
        return NOT_SIMPLE if devices is None or node.state.shared else len(devices.difference(node.state.busy))

    def matching_devices(self, node: NodeDevices, budget: Budget) -> frozenset[int] | None:
        """The devices that are of the form, whoever uses them, by their indexes; None as with `count_free`."""
        number = self.view.number_of_look(node.hardware)
        if number in self._sets:
            return self._sets[number]
        known = RequestContext(self.classes, self.selectors, budget)
        sets = DeviceSets.from_prepared(prepare(node.hardware, [self.form.claim_of_one()], known), budget)
        # Not kept: with a full budget the answer may be another.
        if budget.left < 0:
            return None
        if len(self._sets) >= _REMEMBERED:
            self.forget_answers()
        devices = sets.sets[0][0] if sets is not None else None
        if devices is not None:
            devices = self._alike.setdefault(devices, devices)
        self._sets[number] = devices
        return devices


def grouping(forms: Sequence[frozenset[int] | None]) -> Grouping | None:
    """Which of several forms are the same devices on a node; None where two have only some in common."""
    groups: dict[frozenset[int], list[int]] = {}
    for index, devices in enumerate(forms):
        if devices is None:
            return None
        groups.setdefault(devices, []).append(index)
    return tuple([tuple(one) for one in groups.values()]) if disjoint(groups) else None

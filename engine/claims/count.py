"""How many pods of one kind fit nodes, one after another; counted once for nodes that look the same.

Nodes look the same to a kind of pods where their devices differ in nothing that is asked for: names and attributes
that no selector and no constraint reads do not count, the order of devices does.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from operator import is_not
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np

from engine.arrays import Ints
from engine.claims.allocate import Prepared, allocate, prepare
from engine.claims.budget import MOST_STEPS, Budget
from engine.claims.cel.selectors import Path, Program, Selectors
from engine.claims.hardware import Hardware, Reachable
from engine.claims.in_use import InUse
from engine.claims.model import Claim, DeviceClass
from engine.claims.pools import reaches
from engine.claims.results import Allocation, Outcome
from engine.claims.searching.counters import PoolCounters
from engine.claims.searching.requests import Known

_REMEMBERED: Final = 1 << 16  # counts of one kind of pods
_COMMON: Final = "the next devices could be given away by other nodes too"


@dataclass(frozen=True, slots=True)
class Counted:
    """The allocation of every pod that fits, and the one that failed; None where all that were asked about fit."""

    pods: tuple[Allocation, ...]
    failed: Allocation | None


@dataclass(frozen=True, eq=False, slots=True)
class NodeDevices:
    """A node's devices and which of them are in use; made anew when either changes."""

    hardware: Hardware
    in_use: InUse


def count(prepared: Prepared, in_use: InUse, limit: int, budget: Budget, *, own: bool = False) -> Counted:
    """Allocate for one pod after another until one does not fit, at most ``limit``; ``own`` as in `ClaimCounter`."""
    pods: list[Allocation] = []
    shares = prepared.hardware.features.consumable_capacity
    while len(pods) < limit:
        allocation = allocate(prepared, in_use, budget)
        if not allocation.allocated:
            return Counted(tuple(pods), allocation)
        if own and not prepared.hardware.common.isdisjoint(allocation.devices()):
            return Counted(tuple(pods), Allocation(Outcome.UNALLOCATABLE, message=_COMMON))
        pods.append(allocation)
        in_use = in_use.with_uses(allocation.uses(), shares=shares)
    return Counted(tuple(pods), None)


@dataclass(slots=True)
class ClaimCounter:
    """Counts of one kind of pods: claims that are the same but for their names.

    ``steps`` is what one call may cost, all nodes together. Nodes beyond it have as many pods as were found by then,
    and are asked again by the next call. ``own``: none fits that would get a device which is not the node's alone
    (`Hardware.common`).
    """

    claims: Sequence[Claim]
    classes: dict[str, DeviceClass]
    selectors: Selectors
    limit: int
    steps: int = MOST_STEPS
    own: bool = False
    _reads: tuple[Path, ...] = field(init=False)
    _attributes: tuple[str, ...] = field(init=False)
    _looks: "WeakKeyDictionary[Hardware, Hashable]" = field(default_factory=WeakKeyDictionary)
    _ids: dict[Hashable, int] = field(default_factory=dict)
    _answers: dict[Hashable, int] = field(default_factory=dict)
    _nodes: list[NodeDevices] = field(default_factory=list)
    _counts: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def __post_init__(self) -> None:
        programs = list(self._programs())
        self._reads = tuple(sorted({path for program in programs for path in program.reads}))
        constraints = [one for claim in self.claims for one in claim.constraints]
        self._attributes = tuple(sorted({name for one in constraints for name in (one.match, one.distinct) if name}))

    def counts(self, nodes: Sequence[NodeDevices]) -> Ints:
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
        self._nodes = given if budget.left >= 0 else []
        return self._counts

    def count_on(self, node: NodeDevices, budget: Budget, look: Hashable = None) -> int:
        """The same of one node, within a budget; where that ends, as many as were found by then.

        ``look``: what `look` gives of it, where that is known.
        """
        look = self.look(node) if look is None else look
        found = self._answers.get(look)
        if found is not None:
            return found
        known = Known(self.classes, self.selectors, budget)
        counted = count(prepare(node.hardware, self.claims, known), node.in_use, self.limit, budget, own=self.own)
        if counted.failed is None or counted.failed.outcome is not Outcome.GIVEN_UP:
            if len(self._answers) >= _REMEMBERED:
                self._answers.clear()
            self._answers[look] = len(counted.pods)
        return len(counted.pods)

    def _programs(self) -> Sequence[Program]:
        asks = [
            ask
            for claim in self.claims
            for request in claim.requests
            for ask in (*((request.exactly,) if request.exactly else ()), *request.alternatives)
        ]
        classes = [self.classes[ask.class_name] for ask in asks if ask.class_name in self.classes]
        texts = {text for one in (*asks, *classes) for text in one.selectors if text is not None}
        texts |= {text for ask in asks for text in ask.derived.values()}
        return [self.selectors.program(text) for text in sorted(texts)]

    def look(self, node: NodeDevices) -> Hashable:
        """All that the count depends on: what the devices are, and which are in use."""
        hardware, in_use = node.hardware, node.in_use
        look = self._looks.get(hardware)
        if look is None:
            parts = tuple(self._pool_look(hardware, index) for index in range(len(hardware.by_pool)))
            look = self._looks[hardware] = self._ids.setdefault(parts, len(self._ids))
        taken = in_use.taken
        busy = tuple([index for index, one in enumerate(hardware.candidates) if one.device_id in taken])
        shared: Hashable = ()
        if in_use.shared:
            shared = tuple(
                (index, tuple(sorted(in_use.consumed(one.device_id).items())))
                for index, one in enumerate(hardware.candidates)
                if in_use.is_shared(one.device_id)
            )
        return look, busy, shared, self._counters_look(hardware, in_use)

    def _pool_look(self, hardware: Hardware, index: int) -> Hashable:
        pool, indexes = hardware.by_pool[index]
        devices = tuple(self._device_look(hardware.candidates[one], hardware) for one in indexes)
        return pool.pool_id[0], pool.incomplete, bool(pool.invalid), devices

    def _device_look(self, one: Reachable, hardware: Hardware) -> Hashable:
        device, per_device = one.device, bool(one.slice.per_device)
        reach = device.reach if per_device else one.slice.reach
        return (
            tuple([device.looks(path) for path in self._reads]),
            tuple([device.attribute(name) for name in self._attributes]),
            device.form,
            self.own and one.device_id in hardware.common,
            hardware.node.declared_features if one.slice.skips_node_operations else None,
            (not per_device or reaches(reach, hardware.node), bool(reach.node), len(reach.terms or ())),
        )

    def _counters_look(self, hardware: Hardware, in_use: InUse) -> Hashable:
        """What is left of the counters, where devices take any."""
        looks = []
        for pool, indexes in hardware.by_pool:
            if any(hardware.candidates[index].device.uses for index in indexes):
                counters = PoolCounters.of(pool, in_use)
                looks.append((frozenset(counters.left.items()), frozenset(counters.groups.items())))
        return tuple(looks)

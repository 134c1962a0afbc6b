"""How many pods the kubelets of many machines would admit, in closed form, for many columns of a kind together.

Each pod is admitted on the state that the one before left. Under single-numa-node and restricted, while a pod fits one
zone, it goes to one zone and takes from no other: so a zone grants what its scarcest resource allows, and a machine the
sum over its zones. Restricted admits a pod on several zones only where no single zone could hold it even if it were
empty: then every resource must need equally many zones, and one set of so many zones must hold them all. best-effort
and none refuse only what the machine lacks in all, unless memory is aligned, which must still find zones to come from.

``UNKNOWN`` stands where none of this decides; `engine.numa.fleet` then asks the exact admission.
"""

from typing import Final, NamedTuple

import numpy as np

from engine.numa.asks import Ask, asks_of
from engine.numa.batch_masks import FEW, WIDEST, Bools, Space, holding, sets_of
from engine.numa.columns import View
from engine.numa.machine import PodShape, State, TopologyPolicy
from engine.numa.traits import Traits, is_memory
from engine.table import Ints

UNKNOWN: Final = -1


class Plan(NamedTuple):
    """A pod shape, worked out for a kind of layout."""

    policy: TopologyPolicy
    asks: tuple[Ask, ...]


def plan_for(traits: Traits, shape: PodShape) -> Plan | None:
    """How to count pods of that shape; None where the exact admission has to be asked for every state."""
    if not traits.plain or shape.gpu_link or shape.wish is not TopologyPolicy.NONE:
        return None
    asks = asks_of(traits, shape)
    return None if asks is None else Plan(traits.kubelet.policy, asks)


def count(view: View, plan: Plan, most: int, space: Space) -> Ints:
    """Pods that each machine grants, ``most`` at the most; ``UNKNOWN`` where the closed forms do not say."""
    if not plan.asks:
        return np.full(view.width, most, np.int64)
    if plan.policy not in {TopologyPolicy.SINGLE, TopologyPolicy.RESTRICTED}:
        return _permissive(view, plan, most, space)
    if len(plan.asks) > 1:
        return _in_turn(view, plan, most)
    (ask,) = plan.asks
    found = in_one_zone(view, ask, most, space)
    if plan.policy is TopologyPolicy.RESTRICTED and ask.rows:
        none = (found == 0).nonzero()[0]
        if len(none):
            found[none] = _in_several(view.only(none), ask, most, space)
    return found


def in_one_zone(view: View, ask: Ask, most: int, space: Space) -> Ints:
    """Pods that fit into zones, none of them into more than one."""
    if most == 1 or not ask.rows:
        return np.multiply(_holds_zone(view, ask, space).any(axis=0), most, dtype=np.int64)
    fits: Ints
    if view.width <= FEW:
        fits = np.minimum.reduce(view.all_free(ask.rows) // ask.column)
    else:
        fits, part = (space.get(name, np.int64, view.zones, view.width) for name in ("fits", "part"))
        for at, (row, amount) in enumerate(ask.pairs):
            have = view.free(row)
            if not at:
                np.floor_divide(have, amount, out=fits)
            else:
                np.minimum(fits, have if amount == 1 else np.floor_divide(have, amount, out=part), out=fits)
    for barred in _barred(view, ask):
        fits[barred] = 0
    found: Ints = np.add.reduce(fits)
    return np.minimum(found, most, out=found)


def _holds_zone(view: View, ask: Ask, space: Space) -> Bools:
    """Which zones hold a pod: (zones, machines)."""
    found: Bools
    if view.width <= FEW:
        found = np.logical_and.reduce(view.all_free(ask.rows) >= ask.column)
    else:
        found, also = (space.get(name, np.bool_, view.zones, view.width) for name in ("holds", "also"))
        if not ask.rows:
            found[:] = True
        for at, (row, amount) in enumerate(ask.pairs):
            np.greater_equal(view.free(row), amount, out=also if at else found)
            if at:
                found &= also
    for barred in _barred(view, ask):
        found[barred] = False
    return found


def _barred(view: View, ask: Ask) -> list[Bools]:
    """Zones out of the question whatever is free: without the device at all, or sharing their memory with others."""
    barred: list[Bools] = [view.room(row) == 0 for row in ask.present]
    if ask.memory and view.kind.grouped:
        group = view.group
        barred.append(group & (group - 1) != 0)
    return barred


def in_one_zone_of(state: State, ask: Ask, most: int) -> int:
    """The same as `in_one_zone` for one machine, and much faster for one."""
    found = 0
    for zone, have in enumerate(state.free):
        fits = most
        for row, amount in ask.pairs:
            if have[row] < amount:
                fits = 0
                break
            fits = min(fits, have[row] // amount)
        if fits and not (ask.memory and state.memory and state.memory[zone].cells.bit_count() > 1):
            found += fits
            if found >= most:
                return most
    return found


def count_one(view: View, state: State, plan: Plan, most: int, space: Space) -> int:
    """The same as `count` for a view of one column, which has this state."""
    strict = plan.policy in {TopologyPolicy.SINGLE, TopologyPolicy.RESTRICTED}
    if strict and len(plan.asks) == 1 and not plan.asks[0].present:
        (ask,) = plan.asks
        found = in_one_zone_of(state, ask, most)
        if found or plan.policy is TopologyPolicy.SINGLE:
            return found
        return int(_in_several(view, ask, most, space)[0])
    return int(count(view, plan, most, space)[0])


def _in_several(view: View, ask: Ask, most: int, space: Space) -> Ints:
    """Restricted, where no zone alone holds a pod: pods that take several zones each."""
    if ask.memory > 1 or ask.present or view.zones > WIDEST:  # types of memory have one width together
        return np.full(view.width, UNKNOWN, np.int64)
    found = np.zeros(view.width, np.int64)
    widths = _widths(view, ask)
    for width in (np.bincount(widths)[2:].nonzero()[0] + 2).tolist():
        some = (widths == width).nonzero()[0]
        part = view.only(some)
        sets = sets_of(view.zones, width)
        holds = holding(sets, part.all_free(ask.rows), ask.column.reshape(-1), space)
        if ask.memory and view.kind.grouped:
            holds &= _may_share(sets.masks, part.group)
        found[some[holds.any(axis=0)]] = 1 if most == 1 else UNKNOWN
    return found


def _widths(view: View, ask: Ask) -> Ints:
    """The fewest zones that would hold the pod if they were empty; 0 where its resources do not agree, or none do."""
    widths = [(view.reach(row) < amount).sum(axis=0) for row, amount in ask.pairs]
    found: Ints = widths[0] + 1
    for width in widths[1:]:
        found *= width == widths[0]
    found *= found <= view.zones
    return found


def _may_share(masks: Ints, group: Ints) -> Bools:
    """Which sets of several zones may hold memory together: nothing is taken there, or they share it already."""
    taken = np.bitwise_or.reduce((group != 0) << np.arange(len(group))[:, None], axis=0)
    lowest = [(mask & -mask).bit_length() - 1 for mask in masks.tolist()]
    shared: Bools = (group[lowest] == masks[:, None]) | (taken & masks[:, None] == 0)
    return shared


def _permissive(view: View, plan: Plan, most: int, space: Space) -> Ints:
    """best-effort and none: what the whole machine holds; with memory, as far as it surely comes from single zones."""
    totals: dict[int, int] = {}
    for ask in plan.asks:
        for row, amount in ask.pairs:
            totals[row] = totals.get(row, 0) + amount
    found = np.full(view.width, most, np.int64)
    for row, amount in totals.items():
        np.minimum(found, view.free(row).sum(axis=0) // amount, out=found)
    if not any(ask.memory for ask in plan.asks):
        return found
    sure = np.zeros_like(found)
    if len(plan.asks) == 1:
        (ask,) = plan.asks
        if plan.policy is TopologyPolicy.NONE:  # each manager for itself
            ask = _memory_of(view, ask)
        sure = in_one_zone(view, ask, most, space)
    return np.where(found <= sure, found, UNKNOWN)


def _memory_of(view: View, ask: Ask) -> Ask:
    resources = view.kind.traits.resources
    pairs = [pair for pair in ask.pairs if is_memory(resources[pair[0]])]
    return Ask(pairs, memory=len(pairs))


def _in_turn(view: View, plan: Plan, most: int) -> Ints:
    """Containers aligned one by one: pod after pod, each container in the lowest zone that holds it."""
    found = np.zeros(view.width, np.int64)
    alive = np.arange(view.width)
    free = view.all_free(range(len(view.kind.traits.resources)))
    barred = [_barred(view, ask) for ask in plan.asks]
    for _ in range(most):
        for step, ask in enumerate(plan.asks):
            holds = np.ones(free.shape[1:], np.bool_)
            for row, amount in ask.pairs:
                holds &= free[row] >= amount
            for zones in barred[step]:
                holds[zones] = False
            some = holds.any(axis=0)
            if not some.all():
                failed = alive[~some]
                found[failed[_might_be_wider(view.only(failed), plan, ask)]] = UNKNOWN
                alive, free, holds = alive[some], free[:, :, some], holds[:, some]
                barred = [[zones[:, some] for zones in each] for each in barred]
            zone, column = holds.argmax(axis=0), np.arange(len(alive))
            for row, amount in ask.pairs:
                free[row, zone, column] -= amount
        if not len(alive):
            break
        found[alive] += 1
    return found


def _might_be_wider(view: View, plan: Plan, ask: Ask) -> Bools:
    """Where a container that no single zone holds could still be admitted."""
    if plan.policy is TopologyPolicy.SINGLE or not ask.rows:
        return np.zeros(view.width, np.bool_)
    if ask.memory > 1:
        return np.ones(view.width, np.bool_)
    wider: Bools = _widths(view, ask) > 1
    return wider

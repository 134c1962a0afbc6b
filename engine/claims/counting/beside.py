"""How many more pods fit a node beside others that wait for devices there, whatever order all of them come in.

kube-scheduler takes pods as they come, and the first devices that fit: a pod that comes first may take the one device
that another needed. So a pod counts only if all that wait get their devices in each order. What the devices in use may
be after so many pods of each kind is followed step by step; where kinds do not stand in each other's way, any one
order is like all others, and is the only one that is tried.
"""

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Final

from engine.claims.allocate import Prepared, allocate
from engine.claims.budget import Budget
from engine.claims.counting.interchangeable import Takers, disjoint, one_set_each
from engine.claims.hardware import NodeHardware
from engine.claims.in_use import InUse

# Each place holds all states of devices that its orders may leave, and each state is searched once for each kind.
MOST_PLACES: Final = 1024  # numbers of pods of each kind that were served before

_States = dict[object, InUse]  # what may be in use, by what tells them apart


def count_beside(
    waiting: Sequence[tuple[Prepared, int]], asking: Prepared, in_use: InUse, limit: int, budget: Budget
) -> int:
    """How many pods of the kind ``asking`` fit beside those that wait, (kind, pods) each; ``limit`` at most.

    A kind that waits may be the one that asks too. 0 where those that wait do not all get their devices, or where that
    takes too many steps.
    """
    hardware = asking.hardware
    others, takers = [(Takers(kind, budget), count) for kind, count in waiting], Takers(asking, budget)
    if independent([*(kind for kind, _ in waiting), asking], hardware, budget):
        return _in_one_order(others, takers, in_use, limit)
    # Before anything is searched: with many kinds that wait the places multiply, and the answer is none.
    if prod(count + 1 for _, count in waiting) > MOST_PLACES:
        return 0
    before: dict[tuple[int, ...], _States] = {}
    for more in range(limit + 1):
        now: dict[tuple[int, ...], _States] = {}
        for place in product(*(range(count + 1) for _, count in waiting)):
            # A place is reached by one more pod of any kind, so all orders are covered without listing them.
            steps = [(takers, before[place])] if more else []
            for index, (kind, _) in enumerate(others):
                if place[index]:
                    steps.append((kind, now[*place[:index], place[index] - 1, *place[index + 1 :]]))
            states = _after(steps) if steps else {_key(in_use): in_use}
            if states is None:
                # With ``more`` pods some order fails; also with none, if the ones that wait do not all get theirs.
                return max(more - 1, 0)
            now[place] = states
        before = now
    return limit


def given(takers: Takers, in_use: InUse) -> InUse | None:
    """What is in use once one more pod has its devices; None where it gets none, or one that it is not counted on."""
    allocation = allocate(takers.prepared, in_use, takers.budget)
    if not allocation.allocated or not takers.count_on(allocation.allocated_devices()):
        return None
    return in_use.with_uses(allocation.uses(), shares=takers.prepared.hardware.features.consumable_capacity)


def independent(kinds: Sequence[Prepared], hardware: NodeHardware, budget: Budget) -> bool:
    """Whether each request takes any of some devices, and no two requests share only a part of theirs.

    Then it decides how many are taken, and not which.
    """
    wanted: dict[frozenset[int], int] = {}
    return all(one_set_each(kind, hardware, budget, wanted) for kind in kinds) and disjoint(wanted)


def _after(steps: Sequence[tuple[Takers, _States]]) -> _States | None:
    """What may be in use after any of these steps; None where one of them may fail."""
    found: _States = {}
    for kind, states in steps:
        for state in states.values():
            after = given(kind, state)
            if after is None:
                return None
            # Different orders often leave the same devices; each state goes on once.
            found[_key(after)] = after
    return found


def _key(state: InUse) -> object:
    shared = state.shared or {}
    return state.taken, frozenset((device, frozenset(amounts.items())) for device, amounts in shared.items())


def _in_one_order(waiting: Sequence[tuple[Takers, int]], asking: Takers, in_use: InUse, limit: int) -> int:
    state = in_use
    for kind in (kind for kind, count in waiting for _ in range(count)):
        after = given(kind, state)
        if after is None:
            return 0
        state = after
    for more in range(limit):
        after = given(asking, state)
        if after is None:
            return more
        state = after
    return limit

"""Which zones the next pod would take, for many machines together: to prefer one machine over another.

Where the kubelet aligns strictly, this is what it does. Where it does not, it is the best that can come of it: the
fewest zones that hold the pod together, of equally many those that the kubelet would take first.
"""

import numpy as np

from engine.arrays import Ints
from engine.numa.batch.masks import WIDEST, Bools, Workspace, holding, sets_of
from engine.numa.batch.reusable import turns_of
from engine.numa.batch.sequential import UNKNOWN, first
from engine.numa.batch.zones import holds_zone, in_sets, knows_sets
from engine.numa.columns import View
from engine.numa.count_plans import CountPlan
from engine.numa.zone_requests import ZoneRequest


def spread(view: View, plan: CountPlan, space: Workspace) -> Ints:
    """Zones that one more pod takes, as masks: 0 where nothing is aligned, all where it does not fit, or ``UNKNOWN``.

    Shape (columns,).
    """
    every = (1 << view.zones) - 1
    if plan.refused or not plan.asks:
        return np.full(view.width, every if plan.refused else 0, np.int64)
    if plan.strict and len(plan.asks) > 1:
        return _in_turn(view, plan, space)
    holds = holds_zone(view, plan.whole, space)
    one = np.left_shift(1, holds.argmax(axis=0)) if plan.whole.rows else 0
    fits: Bools = np.logical_or.reduce(holds, axis=0)
    found: Ints = np.where(fits, one, every)
    none = (~fits).nonzero()[0]
    if plan.bounded:
        found[none] = UNKNOWN
    elif len(none) and not plan.one_zone:
        found[none] = (_fewest if not plan.strict else _in_sets)(view.select_columns(none), plan.whole, space)
    return found


def _in_turn(view: View, plan: CountPlan, space: Workspace) -> Ints:
    turns = turns_of(view, plan, space)
    took = turns.pod()
    found = np.full(view.width, (1 << view.zones) - 1)
    found[turns.at] = took
    for out in turns.unknown:
        found[out] = UNKNOWN
    return found


def _in_sets(view: View, ask: ZoneRequest, space: Workspace) -> Ints:
    """Restricted, where no zone alone holds the pod."""
    if not knows_sets(view, ask):
        return np.full(view.width, UNKNOWN)
    found = np.full(view.width, (1 << view.zones) - 1)
    for some, sets, holds in in_sets(view, ask, space):
        taken = first(sets, holds, view.kind.traits)
        found[some[taken > 0]] = taken[taken > 0]
    return found


def _fewest(view: View, ask: ZoneRequest, space: Workspace) -> Ints:
    """Where the kubelet does not insist and no zone alone holds the pod."""
    found = np.full(view.width, (1 << view.zones) - 1)
    left = np.arange(view.width)
    for width in range(2, view.zones) if view.zones <= WIDEST and ask.rows else ():
        part, sets = view.select_columns(left), sets_of(view.zones, width)
        taken = first(sets, holding(sets, [part.free(row) for row in ask.rows], ask.amounts, space), view.kind.traits)
        found[left[taken > 0]] = taken[taken > 0]
        left = left[taken == 0]
        if not len(left):
            break
    return found

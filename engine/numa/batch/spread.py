"""Over how many zones the next pod would be spread, for many machines together: to prefer one machine over another.

Where the kubelet aligns strictly, this is what it does. Where it does not, it is the best that can come of it: the
fewest zones that hold the pod together.
"""

import numpy as np

from engine.arrays import Ints
from engine.numa.batch.masks import WIDEST, Workspace, holding, sets_of
from engine.numa.batch.reusable import turns_of
from engine.numa.batch.sequential import UNKNOWN
from engine.numa.batch.zones import holds_zone, in_sets, knows_sets
from engine.numa.columns import View
from engine.numa.count_plans import Plan
from engine.numa.zone_requests import ZoneRequest


def spread(view: View, plan: Plan, space: Workspace) -> Ints:
    """Zones that one more pod takes: none where nothing is aligned, all where it does not fit; or ``UNKNOWN``."""
    if plan.refused or not plan.asks:
        return np.full(view.width, view.zones if plan.refused else 0, np.int64)
    if plan.strict and len(plan.asks) > 1:
        return _in_turn(view, plan, space)
    found = np.where(holds_zone(view, plan.whole, space).any(axis=0), min(len(plan.whole.rows), 1), view.zones)
    none = (found > 1).nonzero()[0]
    if plan.bounded:
        found[none] = UNKNOWN
    elif len(none) and not plan.one_zone:
        found[none] = (_fewest if not plan.strict else _in_sets)(view.only(none), plan.whole, space)
    return found


def _in_turn(view: View, plan: Plan, space: Workspace) -> Ints:
    turns = turns_of(view, plan, space)
    took = turns.pod()
    found = np.full(view.width, view.zones)
    found[turns.at] = np.bitwise_count(took)
    for out in turns.unknown:
        found[out] = UNKNOWN
    return found


def _in_sets(view: View, ask: ZoneRequest, space: Workspace) -> Ints:
    """Restricted, where no zone alone holds the pod."""
    if not knows_sets(view, ask):
        return np.full(view.width, UNKNOWN)
    found = np.full(view.width, view.zones)
    for some, sets, holds in in_sets(view, ask, space):
        found[some[holds.any(axis=0)]] = sets.width
    return found


def _fewest(view: View, ask: ZoneRequest, space: Workspace) -> Ints:
    """Where the kubelet does not insist and no zone alone holds the pod."""
    found = np.full(view.width, view.zones)
    left = np.arange(view.width)
    for width in range(2, view.zones) if view.zones <= WIDEST and ask.rows else ():
        part = view.only(left)
        holds = holding(sets_of(view.zones, width), [part.free(row) for row in ask.rows], ask.amounts, space).any(
            axis=0
        )
        found[left[holds]] = width
        left = left[~holds]
        if not len(left):
            break
    return found

"""How many pods the kubelets of many machines would admit, in closed form, for many columns of a kind together.

Each pod is admitted on the state that the one before left. Under single-numa-node and restricted, while a pod fits one
zone, it goes to one zone and takes from no other: so a zone grants what its scarcest resource allows, and a machine the
sum over its zones. Restricted admits a pod on several zones only where no single zone could hold it even if it were
empty: then every resource must need equally many zones, and one set of so many zones must hold them all. best-effort
and none refuse only what the machine lacks in all, unless memory is aligned, which must still find zones to come from.

``UNKNOWN`` stands where none of this decides; `engine.numa.fleet` then asks the exact admission.
"""

import numpy as np

from engine.arrays import Ints
from engine.kubelet.machine import State, TopologyPolicy
from engine.numa.batch.masks import Workspace
from engine.numa.batch.reusable import turns_of
from engine.numa.batch.sequential import UNKNOWN
from engine.numa.batch.zones import fits_set_of, in_one_zone, in_one_zone_of, in_sets, knows_sets
from engine.numa.columns import View
from engine.numa.count_plans import CountPlan
from engine.numa.zone_requests import ZoneRequest

__all__ = ["UNKNOWN", "count", "count_in_one_zone", "count_one"]


def count(view: View, plan: CountPlan, most: int, space: Workspace) -> Ints:
    """Pods that each machine grants, ``most`` at the most; ``UNKNOWN`` where the closed forms do not say."""
    if plan.refused or not plan.asks:
        return np.full(view.width, 0 if plan.refused else most, np.int64)
    if plan.one_zone and len(plan.asks) == 1 and not plan.loose:
        return in_one_zone(view, plan.asks[0], most, space)
    found = _by_kubelet(view, plan, most, space)
    if plan.bounded:
        sure = in_one_zone(view, plan.whole, most, space)
        # Beyond the pods that fit one zone each, the kubelet may grant
        # pods that the wish refuses: only the exact admission tells.
        found[(found != sure) & (found != 0)] = UNKNOWN
    return found


def count_in_one_zone(view: View, plan: CountPlan, most: int, space: Workspace) -> Ints:
    """The same for pods that come out in one zone each, as a kubelet that does not insist would align them."""
    if plan.refused or not plan.whole.rows:
        return count(view, plan, most, space)
    found = in_one_zone(view, plan.whole, most, space)
    return np.minimum(found, count(view, plan, most, space)) if plan.strict else found


def _by_kubelet(view: View, plan: CountPlan, most: int, space: Workspace) -> Ints:
    """The same before any wish."""
    if not plan.strict:
        return _permissive(view, plan, most, space)
    if len(plan.asks) > 1:
        return _in_turn(view, plan, most, space)
    (ask,) = plan.asks
    found = in_one_zone(view, ask, most, space)
    if plan.policy is TopologyPolicy.RESTRICTED and ask.rows:
        none = (found == 0).nonzero()[0]
        if len(none):
            found[none] = _in_several(view.select_columns(none), plan, most, space)
    if plan.loose:
        left = found < most
        for row, amount in ask.memory_of(view.kind.traits.resources):
            left &= view.free(row).sum(axis=0) >= (found + 1) * amount
        found[left] = UNKNOWN
    return found


def count_one(view: View, state: State, plan: CountPlan, most: int, space: Workspace) -> int:
    """The same as `count` for a view of one column, which has this state."""
    if plan.alone:
        (ask,) = plan.asks
        found = in_one_zone_of(state, ask, most)
        if found or plan.one_zone:
            return found
        fits = fits_set_of(view, state, ask)
        if fits is None or (fits and (most > 1 or plan.lent)):
            return int(_in_several(view, plan, most, space)[0])
        return int(fits)
    return int(count(view, plan, most, space)[0])


def _in_several(view: View, plan: CountPlan, most: int, space: Workspace) -> Ints:
    """Restricted, where no zone alone holds a pod: pods that take several zones each."""
    (ask,) = plan.asks
    if not knows_sets(view, ask):
        return np.full(view.width, UNKNOWN, np.int64)
    found = np.zeros(view.width, np.int64)
    for some, _, holds in in_sets(view, ask, space):
        found[some] = holds.any(axis=0)
    if plan.lent:
        found[found > 0] = UNKNOWN
    elif most > 1:
        some = found.nonzero()[0]
        # Where the whole machine holds one pod at most, the first turn has given the answer.
        some = some[_most_of_machine(view.select_columns(some), ask, most) > 1]
        if len(some):
            found[some] = _in_turn(view.select_columns(some), plan, most, space)
    return found


def _most_of_machine(view: View, ask: ZoneRequest, most: int) -> Ints:
    """What the whole machine holds: an upper bound."""
    found = np.full(view.width, most, np.int64)
    for row, amount in ask.pairs:
        np.minimum(found, view.free(row).sum(axis=0) // amount, out=found)
    return found


def _in_turn(view: View, plan: CountPlan, most: int, space: Workspace) -> Ints:
    turns = turns_of(view, plan, space)
    found = np.zeros(view.width, np.int64)
    for _ in range(most):
        turns.pod()
        if not len(turns.at):
            break
        found[turns.at] += 1
    for out in turns.unknown:
        found[out] = UNKNOWN
    return found


def _permissive(view: View, plan: CountPlan, most: int, space: Workspace) -> Ints:
    """best-effort and none: what the whole machine holds.

    Memory that zones may give in groups only is sure as far as it comes from single zones.
    """
    found = _most_of_machine(view, plan.whole, most)
    if not plan.whole.memory or not plan.grouped:
        return found
    sure = np.zeros_like(found)
    if len(plan.asks) == 1:
        (ask,) = plan.asks
        if plan.policy is TopologyPolicy.NONE:  # each manager for itself
            pairs = ask.memory_of(view.kind.traits.resources)
            ask = ZoneRequest(pairs, memory=len(pairs))
        sure = in_one_zone(view, ask, most, space)
    if not plan.groups_itself:  # the first pod finds no groups where no memory is taken
        np.maximum(sure, (view.group == 0).all(axis=0), out=sure)
    return np.where(found <= sure, found, UNKNOWN)

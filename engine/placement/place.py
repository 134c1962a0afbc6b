"""Placement: where the pods of a workload go. Reads the state, and leaves it as it was.

The recipe: for each pod set and each flavor, count what fits (``count``), cut it to what inter-pod constraints allow
(``affinity``), choose domains (``choose``). Pod sets are placed one after another, each holding its slots while the
next is placed, and all of it is rolled back at the end: all pod sets fit, or none is placed.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, permutations
from typing import Final

from engine.cluster.assignment import Assignment
from engine.cluster.filters import Mask
from engine.cluster.state import ClusterState
from engine.model import PodSet
from engine.placement import refusals
from engine.placement.fit import Fit
from engine.placement.group import place_group
from engine.placement.pinned import extend, place_pinned
from engine.placement.resize import enlarge, replace, shrink
from engine.placement.shares import Shares
from engine.reservation_key import ReservationKey
from engine.results import Placement, Refusal, WorkloadRequest

__all__ = ["enlarge", "extend", "place", "replace", "shrink"]

# Five pod sets have 120 orders already, and each order is a placement of all of them.
ORDERS: Final = 24  # orders of pod sets tried before a workload is refused

Unit = tuple[PodSet, ...]  # pod sets that share a domain; most have one


def place(state: ClusterState, request: WorkloadRequest) -> Placement | Refusal:
    """All pod sets, or a refusal. Changes nothing: ``state.reserve`` the assignments to hold them.

    Where the pod sets do not fit in request order, other orders are tried (at most 24), largest first.
    """
    wrong = refusals.invalid(request)
    if wrong is not None:
        return wrong
    if len(request.pod_sets) == 1:
        found = _place_unit(state, request, request.pod_sets)
        return found if isinstance(found, Refusal) else Placement(found)
    units: dict[str, list[PodSet]] = {}
    for pod_set in request.pod_sets:
        # With a prefix each, because a group and a pod set may have one name.
        units.setdefault(f"group {pod_set.group}" if pod_set.group else f"pod set {pod_set.name}", []).append(pod_set)
    first: Refusal | None = None
    for order in _orders([tuple(unit) for unit in units.values()]):
        outcome = _place_all(state, request, order)
        if isinstance(outcome, Placement):
            return outcome
        # Of all refusals the one of the request order is reported: it is the order that the user wrote.
        first = first or outcome
    assert first is not None  # noqa: S101  (there is at least one order)
    return first


def _orders(units: list[Unit]) -> Iterator[Sequence[Unit]]:
    """Request order, then largest first, then others; no order twice."""
    # Amounts of different resources are added up: the order only has to be rough, and the same each time.
    largest = sorted(units, key=lambda unit: -sum(sum(p.requests.values()) * p.count for p in unit))
    seen: set[tuple[str, ...]] = set()
    for order in chain([units, largest], permutations(largest)):
        names = tuple(unit[0].name for unit in order)
        if names not in seen:
            seen.add(names)
            yield order
        if len(seen) == ORDERS:
            return


def _place_all(state: ClusterState, request: WorkloadRequest, units: Sequence[Unit]) -> Placement | Refusal:
    found: dict[str, Assignment] = {}
    checkpoint = state.begin()
    try:
        for number, unit in enumerate(units):
            outcome = _place_unit(state, request, unit)
            if isinstance(outcome, Refusal):
                return outcome
            found |= {assignment.pod_set: assignment for assignment in outcome}
            # No workload has this key, so a trial replaces nothing that the workload itself holds.
            state.reserve(ReservationKey.for_trial(request.key, "place", str(number)), outcome)
    finally:
        state.rollback(checkpoint)
    return Placement(tuple(found[pod_set.name] for pod_set in request.pod_sets))


def _place_unit(state: ClusterState, request: WorkloadRequest, unit: Unit) -> tuple[Assignment, ...] | Refusal:
    """The first flavor that takes the unit; else the refusal of the flavor that came closest to taking it."""
    refused: list[Refusal] = []
    for flavor in refusals.flavors_for(state, request, unit[0]):
        outcome = _place_on_flavor(state, request, unit, flavor)
        if not isinstance(outcome, Refusal):
            return outcome
        refused.append(outcome)
    return min(refused, key=refusals.gravity) if refused else refusals.no_flavor(state, request, unit[0])


def _place_on_flavor(
    state: ClusterState, request: WorkloadRequest, unit: Unit, flavor: str
) -> tuple[Assignment, ...] | Refusal:
    """Round by round where shares of domains are limited; else at once."""
    shares = Shares.of_pod_set(state, flavor, unit[0], request.key)
    if shares is None:
        return _place_within(state, request, unit, flavor, None)
    if isinstance(shares, Refusal):
        return shares
    refusal: Refusal | None = None
    # A whole placement each: a required rule has two rounds at most, a preferred one also one for each count above it.
    for leaves in shares.rounds():
        outcome = _place_within(state, request, unit, flavor, leaves)
        if not isinstance(outcome, Refusal):
            return outcome
        # Of the rounds the one that came closest is told: the first may have a single domain, which is full.
        refusal = outcome if refusal is None else min(refusal, outcome, key=refusals.gravity)
    return shares.explained(refusal, unit[0])


def _place_within(
    state: ClusterState, request: WorkloadRequest, unit: Unit, flavor: str, leaves: Mask | None
) -> tuple[Assignment, ...] | Refusal:
    if len(unit) == 1:
        found = place_pinned(state, flavor, unit[0], request.effort, leaves)
        return found if isinstance(found, Refusal) else (found,)
    fit = Fit.count_pod_set(state, flavor, unit[0], request.effort)
    return fit if isinstance(fit, Refusal) else place_group(state, fit.tree, unit, leaves)

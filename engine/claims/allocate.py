"""Devices for a pod's claims on one node: the way in.

`prepare` reads the claims against a node once; `allocate` searches, as often as the devices in use change, and an
`Allocator` goes on from one pod to the next.
"""

from collections.abc import Sequence

import msgspec

from engine.claims.budget import Budget
from engine.claims.errors import AllocationError, SearchLimitError
from engine.claims.hardware import NodeHardware
from engine.claims.in_use import InUse
from engine.claims.model import MOST_DEVICES, Claim, Request
from engine.claims.results import Allocation, Outcome
from engine.claims.searching.constraints import Rule, rule_of
from engine.claims.searching.requests import RequestContext, ready
from engine.claims.searching.search import Alternatives, ClaimSearch, DeviceSearch


class Prepared(msgspec.Struct, frozen=True):
    """A pod's claims on one node. ``failed`` is the answer where there can be no search."""

    hardware: NodeHardware
    claims: tuple[tuple[Claim, tuple[Alternatives, ...]], ...] = ()
    failed: Allocation | None = None


def prepare(hardware: NodeHardware, claims: Sequence[Claim], known: RequestContext) -> Prepared:
    """Find classes, compile selectors, and say what ``All`` means on this node."""
    try:
        # Expressions take stack beside that of the caller. To run out of it (RecursionError) means that nothing is
        # known.
        return Prepared(hardware, tuple((claim, _requests(claim, known, hardware)) for claim in claims))
    except AllocationError as error:
        return Prepared(hardware, failed=Allocation(Outcome.ERROR, message=str(error)))
    except (SearchLimitError, RecursionError) as error:
        return Prepared(hardware, failed=Allocation(Outcome.GIVEN_UP, message=str(error)))


class Allocator:
    """Devices for pods with equal claims on one node, one after another, each beside those before it."""

    def __init__(self, prepared: Prepared, in_use: InUse, budget: Budget) -> None:
        self._prepared = prepared
        self._in_use = in_use
        self._budget = budget
        self._search: DeviceSearch | None = None
        self._goes_on = _goes_on(prepared)

    def next(self) -> Allocation:
        """The devices that Kubernetes would give to the next pod; after one that gets none there is no other."""
        prepared = self._prepared
        if prepared.failed is not None:
            return prepared.failed
        lists, shares = prepared.hardware.features.list_attributes, prepared.hardware.features.consumable_capacity
        # New rules for each pod: a constraint holds within a claim, and remembers the devices of it.
        searches = tuple([ClaimSearch(requests, _rules(claim, lists=lists)) for claim, requests in prepared.claims])
        if self._search is None:
            self._search = DeviceSearch(prepared.hardware, self._in_use, searches, self._budget)
        else:
            self._search.search_claims(searches)
        allocation = _searched(prepared, self._search)
        # This search cannot go on, so the next one starts from the devices in use with these added.
        if not self._goes_on:
            self._search = None
            if allocation.allocated:
                self._in_use = self._in_use.with_uses(allocation.uses(), shares=shares)
        return allocation


def allocate(prepared: Prepared, in_use: InUse, budget: Budget) -> Allocation:
    """The devices that Kubernetes would give to the claims while others are in use."""
    return Allocator(prepared, in_use, budget).next()


def _goes_on(prepared: Prepared) -> bool:
    """Whether a search may go on for the next pod: it is to keep all that it chose, and count groups in any order."""
    asked = (one for _, requests in prepared.claims for alternatives in requests for one in alternatives)
    pools = [pool for pool, _ in prepared.hardware.by_pool]
    grouped = any(one.outline.grouped for pool in pools for one in (*pool.slices, *pool.elsewhere))
    return not grouped and not any(one.admin for one in asked)


def _searched(prepared: Prepared, search: DeviceSearch) -> Allocation:
    try:
        found = search.run()
        # After the search, and only for what it chose: the scheduler fails the pod here, and looks for no other
        # devices.
        for (claim, _), each in zip(prepared.claims, search.claims, strict=True):
            _check_node_selectors(claim, each)
    except AllocationError as error:
        return Allocation(Outcome.ERROR, message=str(error))
    except (SearchLimitError, RecursionError) as error:
        return Allocation(Outcome.GIVEN_UP, message=str(error))
    if found:
        return Allocation(Outcome.ALLOCATED, tuple(tuple(one for _, one in each.given) for each in search.claims))
    # Only where nothing was found: an invalid pool does no harm to a pod that gets its devices elsewhere.
    broken = [pool for pool, _ in prepared.hardware.by_pool if pool.invalid]
    if broken:
        return Allocation(
            Outcome.INVALID_POOL, message=f"resource pool {broken[0].name} is invalid: {broken[0].invalid}"
        )
    return Allocation(Outcome.UNALLOCATABLE, message="no devices are left that meet the claims")


def _requests(claim: Claim, known: RequestContext, hardware: NodeHardware) -> tuple[Alternatives, ...]:
    made: list[Alternatives] = []
    least = 0
    for request in claim.requests:
        _check_features(claim, request, hardware)
        asks = [(ask, request.name) for ask in request.alternatives]
        if not asks:
            if request.exactly is None:
                raise AllocationError(f"claim {claim.name}, request {request.name}: unsupported request type")
            asks = [(request.exactly, "")]
        alternatives = tuple(ready(claim, ask, parent, known, hardware) for ask, parent in asks)
        # The smallest alternative: the limit is exceeded for certain only if even that one exceeds it.
        devices = min(one.count for one in alternatives)
        if devices > MOST_DEVICES - least:
            raise AllocationError(
                f"claim {claim.name}, request {request.name}: adding {devices} devices exceeds the claim limit of "
                f"{MOST_DEVICES}, with {least} already accounted for"
            )
        least += devices
        made.append(alternatives)
    # For its error alone: a constraint of an unknown kind ends the pod before any device is looked at.
    _rules(claim, lists=hardware.features.list_attributes)
    return tuple(made)


def _check_features(claim: Claim, request: Request, hardware: NodeHardware) -> None:
    features, where = hardware.features, f"claim {claim.name}, request {request.name}"
    if request.alternatives and not features.prioritized_list:
        raise AllocationError(f"{where}: has subrequests, but the DRAPrioritizedList feature is disabled")
    asks = (*([request.exactly] if request.exactly else ()), *request.alternatives)
    if not features.consumable_capacity and any(ask.capacity is not None for ask in asks):
        raise AllocationError(f"{where}: has capacity requests, but the DRAConsumableCapacity feature is disabled")


def _rules(claim: Claim, *, lists: bool) -> tuple[Rule, ...]:
    rules: list[Rule] = []
    for index, constraint in enumerate(claim.constraints):
        rule = rule_of(constraint, lists=lists)
        if rule is None:
            raise AllocationError(f"claim {claim.name}, constraint #{index}: empty constraint")
        rules.append(rule)
    return tuple(rules)


def _check_node_selectors(claim: Claim, search: ClaimSearch) -> None:
    """An allocation says where its devices can be reached from; of a selector it can repeat only one term."""
    for one, _ in search.given:
        reach = one.device.reach if one.slice.per_device else one.slice.reach
        # One such device ties the allocation to this node by name, and no selector has to be repeated.
        if reach.node or one.device.binds_to_node:
            return
        if reach.terms is not None and len(reach.terms) > 1:
            raise AllocationError(f"claim {claim.name}: unsupported node selector with {len(reach.terms)} terms")

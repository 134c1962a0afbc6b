"""The search for devices: depth first, first fit, as Kubernetes' allocator goes (allocator_incubating.go).

Claims, their requests, alternatives in order; within a request it only goes forward through the devices, and each new
request starts at the first. What is chosen is marked as in use and taken back on the way out. The first solution is the
answer.
"""

from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Final, NamedTuple

import msgspec

from engine.claims.budget import Budget
from engine.claims.errors import SearchLimitError
from engine.claims.hardware import NodeHardware, Reachable
from engine.claims.in_use import InUse
from engine.claims.model import ALL, EXACT_COUNT, MOST_DEVICES, Amounts
from engine.claims.results import Given
from engine.claims.searching.constraints import Rule
from engine.claims.searching.counters import Counters, Groups
from engine.claims.searching.requests import Ready

# Each level takes up to two Python frames, and Python ends at 1,000 by default. A claim has 32 devices at most.
DEEPEST: Final = 300  # devices, requests and claims together, of one pod
_NODE_OPERATIONS: Final = "DRAOptionalNodeOperations"
_NOTHING: Final[Amounts] = {}

Alternatives = tuple[Ready, ...]  # of one request


class Found(Enum):
    """What one branch of the search came to."""

    YES = auto()
    NO = auto()
    TOO_MANY = auto()  # devices for one claim: there is no use in looking at other devices for what came before


class ClaimSearch(msgspec.Struct):
    """One claim: its requests, its constraints, and the devices chosen so far."""

    requests: tuple[Alternatives, ...]
    rules: tuple[Rule, ...]
    given: list[tuple[Reachable, Given]] = msgspec.field(default_factory=list)


class RequestPlace(NamedTuple):
    """Where the search is: a claim, and a request of it."""

    claim: int
    request: int


class Chosen(msgspec.Struct, frozen=True):
    """What choosing one device changed, for the way back."""

    index: int
    groups: dict[str, Groups] | None  # of counter sets before; None where it takes no counters
    shared: bool  # its capacities are shared out, else it is marked as taken
    before: Amounts | None  # what shares took of it before


@dataclass(slots=True)
class DeviceSearch:
    """The search for one pod, and for more with equal claims after it (`search_claims`), while its budget lasts."""

    hardware: NodeHardware
    in_use: InUse
    claims: tuple[ClaimSearch, ...]
    budget: Budget
    _counters: Counters = field(init=False)
    _busy: list[bool] = field(init=False)
    _taking: dict[int, set[int]] = field(default_factory=dict)  # by device, the claims that it is chosen for
    _sharing: dict[int, Amounts] = field(default_factory=dict)  # by device, what chosen shares take
    _single: bool = field(init=False)  # each pod gets one device
    _reached: dict[int, int] = field(default_factory=dict)  # then, by request or alternative: those before it are gone

    def __post_init__(self) -> None:
        asked = [one for claim in self.claims for alternatives in claim.requests for one in alternatives]
        one_request = len(self.claims) == 1 and len(self.claims[0].requests) == 1
        self._single = one_request and all(one.ask.mode == EXACT_COUNT and one.count == 1 for one in asked)
        # One account for all pods of `search_claims`: counters of devices that were chosen before stay taken in it.
        self._counters = Counters(self.in_use, self.hardware.features.compatibility_groups)
        taken = self.in_use.taken
        # By index, for the innermost loop asks it for every device; an id is a tuple of three texts.
        self._busy = [one.device_id in taken for one in self.hardware.candidates]

    def run(self) -> bool:
        """Whether every claim can have its devices; they are in ``claims`` then.

        Raises:
            AllocationError: something is wrong with a claim, a class or an expression.
            SearchLimitError: it takes too many steps.
        """
        return self._request(0, 0, 0) is Found.YES

    def search_claims(self, claims: tuple[ClaimSearch, ...]) -> None:
        """Have what was found in use, and search for these claims of the next pod; nobody only looks at devices.

        A device that was passed over by a pod that gets one device is passed over by those after it too.
        """
        # Shares stay in ``_sharing`` and counters in ``_counters``. Only what was taken whole moves, as the scheduler
        # sees it for the next pod.
        for index, chosen in self._taking.items():
            self._busy[index] = self._busy[index] or bool(chosen)
        self._taking.clear()
        self.claims = claims

    def _request(self, claim_index: int, index: int, depth: int) -> Found:
        """Go on with a request of a claim, or with what comes after its last."""
        self._step(depth)
        if claim_index == len(self.claims):
            return Found.YES
        requests = self.claims[claim_index].requests
        if index == len(requests):
            found = self._request(claim_index + 1, 0, depth + 1)
            # The limit of 32 devices is that of one claim: another choice in this claim may still help the next one.
            return Found.NO if found is Found.TOO_MANY else found
        alternatives = requests[index]
        if not alternatives[0].parent:
            return self._choose_devices(RequestPlace(claim_index, index), alternatives[0], 0, 0, depth)
        exceeded = True
        for alternative in alternatives:
            found = self._choose_devices(RequestPlace(claim_index, index), alternative, 0, 0, depth + 1)
            if found is Found.YES:
                return found
            # One alternative within the limit keeps the search going, even if it finds no devices.
            exceeded = exceeded and found is Found.TOO_MANY
        return Found.TOO_MANY if exceeded else Found.NO

    def _choose_devices(self, place: RequestPlace, request: Ready, chosen: int, start: int, depth: int) -> Found:
        """Choose the devices of a request, of which it has so many, from the one at ``start`` on."""
        self._step(depth)
        # "All" of no devices is no success in Kubernetes.
        if request.ask.mode == ALL and not request.all_devices:
            return Found.NO
        if chosen >= request.count:
            return self._request(place.claim, place.request + 1, depth + 1)
        if request.count - chosen > MOST_DEVICES - len(self.claims[place.claim].given):
            return Found.TOO_MANY
        if request.ask.mode == ALL:
            return self._next_of_all(place, request, chosen, depth)
        unfit = request.unfit
        # ``_reached`` holds for single devices only: a device that was passed over for one pod stays unfit, or in use,
        # for the next.
        for device in range(max(start, self._reached.get(id(request), 0)), len(self.hardware.candidates)):
            # Without a step: it was paid for when the device was asked about first.
            if device in unfit:
                continue
            self.budget.spend(1)
            step = self._possible(place.claim, request, device)
            if step is None:
                continue
            found = self._choose_devices(place, request, chosen + 1, device + 1, depth + 1)
            if found is not Found.YES:
                self._give_back(place.claim, request, step)
            # Found, or too many devices: in both cases no later device changes the outcome.
            if found is not Found.NO:
                if self._single:
                    self._reached[id(request)] = device
                return found
        if self._single:
            self._reached[id(request)] = len(self.hardware.candidates)
        return Found.NO

    def _next_of_all(self, place: RequestPlace, request: Ready, chosen: int, depth: int) -> Found:
        step = self._choose(place.claim, request, request.all_devices[chosen], must=True)
        if step is None:
            return Found.NO
        found = self._choose_devices(place, request, chosen + 1, 0, depth + 1)
        if found is not Found.YES:
            self._give_back(place.claim, request, step)
        return found

    def _step(self, depth: int) -> None:
        self.budget.spend(1)
        if depth > DEEPEST:
            raise SearchLimitError(f"more than {DEEPEST} devices and requests")

    def _possible(self, claim_index: int, request: Ready, index: int) -> Chosen | None:
        """Choose a device if it is free, selected and large enough; what is in use is never asked about."""
        # Admin access ignores who uses a device, but one claim lists it only once.
        if request.admin:
            if claim_index in self._taking.get(index, ()):
                return None
        elif self._busy[index] or self._taking.get(index):
            return None
        one = self.hardware.candidates[index]
        # After the use: an expression that fails on a device in use does not end the pod, as in the allocator. So the
        # order of these checks decides which pods fail.
        if not request.matches(index, one, self.hardware, self.budget):
            request.unfit.add(index)
            return None
        if self.hardware.features.consumable_capacity and not self._fits(request, index, one):
            return None
        return self._choose(claim_index, request, index, must=False)

    def _fits(self, request: Ready, index: int, one: Reachable) -> bool:
        used = self.in_use.consumed(one.device_id)
        taking = self._sharing.get(index, _NOTHING)
        return request.consumption_of(index, one, self.hardware.features).fits_beside(one.device, used, taking)

    def _choose(self, claim_index: int, request: Ready, index: int, *, must: bool) -> Chosen | None:
        """Choose a selected device unless something stands against it; then nothing is changed.

        Raises:
            AllocationError: a constraint stands against a device that the request must have (``must``).
        """
        one = self.hardware.candidates[index]
        shareable = self.hardware.features.consumable_capacity and bool(one.device.shareable)
        if not self._is_usable(claim_index, request, index, shareable=shareable):
            return None
        groups: dict[str, Groups] | None = None
        # Further shares of a device do not pay its counters again.
        charged = not (shareable and (self.in_use.is_shared(one.device_id) or index in self._sharing))
        if charged and one.device.uses:
            groups = self._counters.consume_counters(one.pool, one.device)
            if groups is None:
                return None
        # Where a rule refuses, the rules have taken back their own additions: only counters are left to give back.
        if not self._constrained(self.claims[claim_index], request, one):
            self._rollback(request, index, groups, ())
            if must:
                raise request.error(f"cannot add device {one} because a claim constraint would not be satisfied")
            return None
        # `_possible` checks the capacity before anything is charged; "All" comes here without it.
        if must and self.hardware.features.consumable_capacity and not self._fits(request, index, one):
            self._rollback(request, index, groups, self.claims[claim_index].rules)
            return None
        amounts, before = None, None
        if shareable:
            amounts = request.consumption_of(index, one, self.hardware.features).amounts
            before = self._sharing.get(index)
            used = before or _NOTHING
            self._sharing[index] = {name: used.get(name, 0) + amount.nanos for name, amount in (amounts or {}).items()}
        else:
            self._taking.setdefault(index, set()).add(claim_index)
        given = Given(request.full_name, one.device_id, amounts or None, shareable, request.admin)
        self.claims[claim_index].given.append((one, given))
        return Chosen(index, groups, shareable, before)

    def _is_usable(self, claim_index: int, request: Ready, index: int, *, shareable: bool) -> bool:
        taking = self._taking.get(index, ())
        if request.admin:
            if not shareable and claim_index in taking:
                return False
        elif self._busy[index] or taking:
            return False
        one, features = self.hardware.candidates[index], self.hardware.features
        # Only the allocator for gates that are off by default looks at this field of a slice; the others ignore it.
        if (
            features.experimental
            and one.slice.skips_node_operations
            and not (features.node_operations and _NODE_OPERATIONS in self.hardware.node.declared_features)
        ):
            return False
        if one.device.uses and not features.partitionable:
            return False
        return not features.taints or request.tolerates(index, one)

    def _constrained(self, claim: ClaimSearch, request: Ready, one: Reachable) -> bool:
        """Add a device to all constraints of its claim; to none where one is against it."""
        lookup = partial(request.attribute, one, self.budget)
        for added, rule in enumerate(claim.rules):
            if not rule.add(request.base, request.full_name, lookup):
                # Only the ones that were added. A rule's `remove` takes back its last device, whichever that is.
                for before in reversed(claim.rules[:added]):
                    before.remove(request.base, request.full_name)
                return False
        return True

    def _give_back(self, claim_index: int, request: Ready, chosen: Chosen) -> None:
        """Undo the last choice."""
        self.claims[claim_index].given.pop()
        # In the opposite order of `_choose`: mark, constraints, counters.
        if not chosen.shared:
            self._taking[chosen.index].discard(claim_index)
        elif chosen.before is None:
            del self._sharing[chosen.index]
        else:
            self._sharing[chosen.index] = chosen.before
        self._rollback(request, chosen.index, chosen.groups, self.claims[claim_index].rules)

    def _rollback(self, request: Ready, index: int, groups: dict[str, Groups] | None, rules: tuple[Rule, ...]) -> None:
        for rule in reversed(rules):
            rule.remove(request.base, request.full_name)
        if groups is not None:
            one = self.hardware.candidates[index]
            self._counters.undo_take(one.pool, one.device, groups)

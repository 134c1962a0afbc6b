"""Whether a pod may go to a node now beside those on their way there, who have no devices yet.

kube-scheduler gives a pod the first devices that fit when its turn comes. What comes free between our decision and
that moment may lead it to others than were there when the pod was let go: one with ``firstAvailable`` takes an earlier
alternative that needs more, and leaves none for the next. A pod that is alone on its way gets devices whatever comes
free, as it got some before. So pods that could stand in each other's way go one after another.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from engine.claims.allocate import allocate, prepare
from engine.claims.budget import Budget
from engine.claims.counting.beside import independent
from engine.claims.counting.looks import NodeDevices
from engine.claims.model import EXACT_COUNT, Claim
from engine.claims.results import Outcome
from engine.claims.searching.requests import RequestContext
from engine.devices.kinds import BESIDE_STEPS, LOOK_STEPS, Kind

TURN_STEPS: Final = BESIDE_STEPS  # to tell of one pod beside others; all who wait are looked at when these change
_UNKNOWN: Final = frozenset({Outcome.ALLOCATED, Outcome.GIVEN_UP})  # what no pod is held up for


class DeviceTurn(StrEnum):
    """Whether a pod may go now."""

    NOW = ""
    LATER = "later"  # those on their way get their devices first
    NONE = "none"  # there are no devices for it as things stand


def turn_of(
    devices: NodeDevices, asking: Kind, coming: Sequence[tuple[Kind, int]], known: RequestContext
) -> DeviceTurn:
    """The turn of a pod of one kind beside those on their way, (kind, pods) each. What they wait for alone counts.

    Where it takes too many steps to tell, the pod goes. Who waits is looked at each second: a node whose devices are as
    they were is not searched again.
    """
    # Compiling has a budget of its own, so that the search below starts with all its steps.
    compiling = Budget(LOOK_STEPS)
    if not all(kind.begin_counting(compiling) for kind in (asking, *(kind for kind, _ in coming))):
        return DeviceTurn.NOW
    if coming:
        return DeviceTurn.NOW if _fit_together(devices, asking, coming, known) else DeviceTurn.LATER
    # The count is kept by the state of the node, so it usually answers without a search.
    if asking.count(devices, (), Budget(LOOK_STEPS), real=False):
        return DeviceTurn.NOW

    def gets_devices() -> bool:
        found = allocate(prepare(devices.hardware, asking.claims, known), devices.in_use, known.budget)
        return found.outcome in _UNKNOWN

    found = asking.remembered(asking.state_class(devices), 1, gets_devices)
    return DeviceTurn.NOW if found else DeviceTurn.NONE


def _fit_together(
    devices: NodeDevices, asking: Kind, coming: Sequence[tuple[Kind, int]], known: RequestContext
) -> bool:
    """Whether all of them get devices, whoever is first and whatever comes free meanwhile."""
    if asking.count(devices, coming, Budget(LOOK_STEPS), real=False) == 0:
        return False
    kinds = {id(kind): kind for kind in (asking, *(kind for kind, _ in coming))}
    nothing_comes_free = not (devices.in_use.taken or devices.in_use.shared)
    if len(kinds) == 1 and (nothing_comes_free or _of_one(asking.claims)):
        return True

    def of_different_devices() -> bool:
        prepared = [prepare(devices.hardware, kind.claims, known) for kind in kinds.values()]
        return independent(prepared, devices.hardware, known.budget)

    # The order of kinds does not matter for whether they meet, so all orders share an answer.
    beside = frozenset((kind.number, kind.state_class(devices)) for kind in kinds.values())
    return asking.remembered(beside, len(beside), of_different_devices)


def _of_one(claims: Sequence[Claim]) -> bool:
    """Whether each pod takes one device, or one share, of a kind: who comes next takes what is like it."""
    requests = [request for claim in claims for request in claim.requests]
    if len(requests) != 1 or any(claim.constraints for claim in claims):
        return False
    ask = requests[0].exactly
    return ask is not None and not requests[0].alternatives and ask.mode == EXACT_COUNT and ask.count == 1

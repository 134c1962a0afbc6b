"""Why a node has no devices for one more pod, in words: which request of which claim, and who holds what fits it."""

from collections.abc import Mapping, Sequence
from typing import Final

from engine.claims.allocate import Prepared, allocate, prepare
from engine.claims.counting.beside import given
from engine.claims.counting.interchangeable import Takers, uncounted
from engine.claims.counting.looks import NodeDevices
from engine.claims.errors import AllocationError, SearchLimitError
from engine.claims.model import ALL, Claim, DeviceId
from engine.claims.searching.requests import Ready, RequestContext

_NAMED: Final = 3  # claims that hold devices
# An error quotes the expression that fails, and a tenant may write 10 KiB of it (CELSelectorExpressionMaxLength).
_LONGEST: Final = 400  # characters of an error


def message_of(
    node: NodeDevices,
    claims: Sequence[Claim],
    known: RequestContext,
    *,
    waiting: int,
    holders: Mapping[DeviceId, str],
    common: Sequence[str],
) -> str:
    """Of a node on which no more pod with these claims fits.

    ``waiting``: how many pods are to have devices there first. ``holders``: of devices in use the claim that has them.
    ``common``: what is told of devices that several nodes reach.
    """
    prepared = prepare(node.hardware, claims, known)
    if prepared.failed is not None:
        return prepared.failed.message[:_LONGEST]
    if not prepared.hardware.candidates:
        return "it has no devices"
    try:
        left_out = uncounted(prepared, known.budget)
        requests = [
            _request(node, request, holders, known, left_out)
            for _, claimed in prepared.claims
            for alternatives in claimed
            for request in alternatives
        ]
    except (AllocationError, SearchLimitError) as error:
        return str(error)[:_LONGEST]
    return "; ".join([*requests, *(common or _promised(node, prepared, waiting, known))])


def _request(
    node: NodeDevices,
    request: Ready,
    holders: Mapping[DeviceId, str],
    known: RequestContext,
    left_out: frozenset[DeviceId],
) -> str:
    hardware, in_use = node.hardware, node.in_use
    fit = [
        (index, one)
        for index, one in enumerate(hardware.candidates)
        if request.matches(index, one, hardware, known.budget)
    ]
    amount = "all" if request.ask.mode == ALL else str(request.count)
    found = f'claim "{request.claim}", request "{request.full_name}" ({amount} of DeviceClass '
    found += f'"{request.ask.class_name}"): {len(fit)} {"fits" if len(fit) == 1 else "fit"}'
    held = [one.device_id for _, one in fit if in_use.has(one.device_id)]
    parts = []
    if held:
        names = sorted({holders[device] for device in held if device in holders})
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        parts.append(f"{len(held)} held by {', '.join(names[:_NAMED])}{more}")
    if tainted := sum(not request.tolerates(index, one) for index, one in fit):
        parts.append(f"{tainted} tainted")
    if common := sum(one.device_id in left_out for _, one in fit):
        parts.append(f"{common} not counted, as they could also go to pods on other nodes")
    return found + "".join(f", {part}" for part in parts)


def _promised(node: NodeDevices, prepared: Prepared, waiting: int, known: RequestContext) -> list[str]:
    """What is told of those that wait, and of what else stands against it."""
    if waiting:
        return [f"{waiting} other {'pod gets' if waiting == 1 else 'pods get'} devices there first"]
    allocation = allocate(prepared, node.in_use, known.budget)
    # The scheduler would find devices, and the count does not promise them: they may go to pods on other nodes.
    if allocation.allocated and given(Takers(prepared, known.budget), node.in_use) is None:
        return ["the next pod here would get one of those"]
    return [] if allocation.allocated else [allocation.message[:_LONGEST]]

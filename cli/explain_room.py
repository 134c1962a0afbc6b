"""The part of ``topogate explain`` and ``place`` about room: how many pods each domain could take, what is short."""

from collections.abc import Collection, Sequence

import msgspec
from rich.table import Table

from crds.request import ParsedRequest, resolve
from engine.explain import DomainFit, explain
from engine.model import Amounts, PodSet
from engine.quantity import format_quantity
from engine.state import ClusterState


class Room(msgspec.Struct, frozen=True):
    """How many of the job's pods one domain could take now, and what is short for the rest.

    ``misaligned``: nodes that have the amounts for more pods than their kubelet would admit; ``refusal`` is what it
    would say.
    """

    flavor: str
    values: tuple[str, ...]
    fits: int
    nodes: int
    limit: str
    missing: dict[str, str]
    excluded: dict[str, int]
    misaligned: int = 0
    refusal: str = ""


def rooms(
    state: ClusterState, request: ParsedRequest, pod_set: PodSet, flavors: Collection[str] | None
) -> tuple[Room, ...]:
    """For every flavor that has the level: its domains, the roomiest first. ``flavors``: its queue's; None: any."""
    found: list[Room] = []
    for name, flavor in sorted(state.flavors.items()):
        topology = resolve(request, flavor.levels)
        if topology is None or (flavors is not None and name not in flavors):
            continue
        level = topology.level or flavor.levels[0]
        asked = msgspec.structs.replace(pod_set, topology=topology)
        found.extend(_as_room(name, fit) for fit in explain(state, name, asked, level))
    return tuple(sorted(found, key=lambda room: -room.fits))


def _as_room(flavor: str, fit: DomainFit) -> Room:
    excluded = {str(reason): nodes for reason, nodes in fit.excluded.items()}
    return Room(
        flavor,
        fit.values,
        fit.fits,
        fit.nodes,
        str(fit.limit),
        listed(fit.missing),
        excluded,
        fit.misaligned,
        fit.refusal,
    )


def listed(amounts: Amounts) -> dict[str, str]:
    """Amounts as people write them."""
    return {name: format_quantity(name, amount) for name, amount in amounts.items()}


def table(found: Sequence[Room], count: int) -> Table:
    """The domains as a person reads them."""
    made = Table(box=None, pad_edge=False)
    made.add_column("DOMAIN")
    made.add_column(f"FITS (OF {count})", justify="right")
    made.add_column("NODES", justify="right")
    made.add_column("LIMITED BY")
    made.add_column("SHORT OF")
    made.add_column("NODES OUT")
    numa = any(room.misaligned for room in found)
    if numa:
        made.add_column("NUMA")
    for room in found:
        missing = ", ".join(f"{amount} {name}" for name, amount in room.missing.items())
        out = ", ".join(f"{nodes} {reason}" for reason, nodes in room.excluded.items())
        cells = ["/".join(room.values), str(room.fits), str(room.nodes), room.limit, missing, out]
        if numa:
            cells.append(f"{room.misaligned} nodes refuse more: {room.refusal}" if room.misaligned else "")
        made.add_row(*cells)
    return made

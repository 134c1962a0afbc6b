"""The part of ``topogate explain`` and ``place`` about room: how many pods each domain could take, what is short."""

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec
from rich.table import Table
from rich.text import Text

from cli.output import counted, plain_table
from crds.request import ParsedRequest, resolve
from engine.cluster.levels import domain_in_words
from engine.cluster.state import ClusterState
from engine.cluster.unlabeled import helpful
from engine.model import Amounts, PodSet, Policy, TopologyRequest
from engine.placement.explain import DomainFit, explain
from engine.quantity import format_quantity
from engine.reasons import Reason
from ungater.cache.cache import Cache
from ungater.model.workload_entry import WorkloadEntry

CLOSEST = 10  # domains in a table, unless all are asked for
MOST_UNLABELED = 8  # nodes in a table; JSON has them all


class UnlabeledNode(msgspec.Struct, frozen=True):
    """A node that takes no pods, as it lacks the labels of these levels, and could take ``fits`` of the job's else."""

    node: str
    missing: tuple[str, ...]
    fits: int


class Room(msgspec.Struct, frozen=True):
    """How many of the job's pods one domain could take now, and what is short for the rest.

    ``misaligned``: nodes that have the amounts for more pods than their kubelet would admit; ``refusal`` is what it
    would say. ``devices``: why one of its nodes takes no more pods with such claims. ``unlabeled``: in the entry of
    nodes without a domain, those that would have helped.
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
    devices: str = ""
    unlabeled: tuple[UnlabeledNode, ...] = ()


def rooms(
    state: ClusterState, request: ParsedRequest, pod_set: PodSet, flavors: Collection[str] | None
) -> tuple[Room, ...]:
    """For every flavor that has the level: its domains, the closest first. ``flavors``: its queue's; None: any."""
    found: list[tuple[DomainFit, Room]] = []
    for name, flavor in sorted(state.flavors.items()):
        topology = resolve(request, flavor.levels)
        if topology is None or (flavors is not None and name not in flavors):
            continue
        level = topology.level or flavor.levels[0]
        asked = msgspec.structs.replace(pod_set, topology=topology)
        for fit in explain(state, name, asked, level):
            # Asked only where nodes were left out for that: it tries each such node.
            lacking = helpful(state, name, asked) if Reason.MISSING_LEVEL_LABEL in fit.excluded else ()
            excluded = {str(reason): nodes for reason, nodes in fit.excluded.items()}
            room = Room(
                name,
                fit.values,
                fit.fits,
                fit.nodes,
                str(fit.limit),
                listed(fit.missing),
                excluded,
                fit.misaligned,
                fit.refusal,
                fit.devices,
                tuple(UnlabeledNode(one.node, one.missing, one.fits) for one in lacking),
            )
            found.append((fit, room))
    return tuple([room for _, room in sorted(found, key=lambda one: one[0].closeness, reverse=True)])


def rooms_of_entry(
    cache: Cache, entry: WorkloadEntry, flavors: Collection[str] | None, more: Mapping[str, int] | None = None
) -> tuple[Room, ...]:
    """The same for a workload: of several pod sets for the largest, which is hardest to place.

    ``more``: how many pods it wants beside those it has, by pod set; the report is about the one that grows most.
    None: all.
    """
    owned = max(entry.job.pod_sets, key=lambda one: one.count if more is None else more.get(one.name, 0))
    if not isinstance(owned.request, ParsedRequest):
        return ()
    count = None if more is None else more[owned.name]
    asked = cache.pod_sets.pod_set(entry, owned, TopologyRequest(policy=Policy.UNCONSTRAINED), count)
    return rooms(cache.state, owned.request, asked, flavors)


def listed(amounts: Amounts) -> dict[str, str]:
    """Amounts as people write them."""
    return {name: format_quantity(name, amount) for name, amount in amounts.items()}


def notes(found: Sequence[Room]) -> Iterator[Text]:
    """Which nodes would help if they had the labels of all levels."""
    lacking = [(room.flavor, one) for room in found for one in room.unlabeled]
    for flavor, one in lacking[:MOST_UNLABELED]:
        missing = ", ".join(one.missing)
        yield Text(
            f"node {one.node} (flavor {flavor}) could take {counted(one.fits, 'pod')}, but lacks the label {missing}"
        )
    if len(lacking) > MOST_UNLABELED:
        yield Text(f"and {len(lacking) - MOST_UNLABELED} more such nodes; -o json has them all")


def table(found: Sequence[Room], count: int, most: int = CLOSEST) -> Table:
    """The domains that come closest, at most so many (0: all), as a person reads them."""
    shown = found[:most] if most else found
    flavors = len({room.flavor for room in found}) > 1
    numa, devices = any(room.misaligned for room in shown), any(room.devices for room in shown)
    heads = ("DOMAIN", f">FITS (OF {count})", ">NODES", "LIMITED BY", "SHORT OF", "NODES OUT")
    made = plain_table(*["FLAVOR"] * flavors, *heads, *["NUMA"] * numa, *["DEVICES"] * devices)
    for room in shown:
        missing = ", ".join(f"{amount} {name}" for name, amount in room.missing.items())
        out = ", ".join(f"{nodes} {reason}" for reason, nodes in room.excluded.items())
        cells = [room.flavor] if flavors else []
        cells += [domain_in_words(room.values), str(room.fits), str(room.nodes), room.limit, missing, out]
        if numa:
            cells.append(f"{room.misaligned} nodes refuse more: {room.refusal}" if room.misaligned else "")
        if devices:
            cells.append(room.devices)
        made.add_row(*cells)
    if more := len(found) - len(shown):
        made.add_row(f"and {counted(more, 'more domain')}, none of them closer; --all shows them")
    return made

"""Nodes that a flavor selects and that lack the label of a level: they take no pods, and somebody should know.

So do nodes whose host name is that of another node too, where it is a level: a pod that is sent to one of them may come
to the other.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import numpy as np

from engine.cluster.filters import NodeFilter
from engine.cluster.state import ClusterState
from engine.model import HOSTNAME_LABEL, Flavor, Node, PodSet

NAMED: Final = 3  # nodes in a message


class Unlabeled(msgspec.Struct, frozen=True):
    """One such node. ``missing``: the levels without a label, or with a value that names no domain (``rack=unknown``).

    ``fits``: pods that it could take if it had them.
    """

    node: str
    missing: tuple[str, ...]
    fits: int = 0


def unlabeled(state: ClusterState, flavor: str) -> tuple[Unlabeled, ...]:
    """Such nodes of a flavor, by name; empty for a flavor that is not known."""
    known = state.flavors.get(flavor)
    if known is None:
        return ()
    cluster = state.cluster
    lost = cluster.lost_levels(flavor)
    found: list[Unlabeled] = []
    for node in cluster.outside(known):
        lacks = missing(known, node, lost)
        if not lacks:
            others = cluster.namesakes(node)
            more = f" and {len(others) - 1} more" if len(others) > 1 else ""
            lacks = (f"{HOSTNAME_LABEL} of its own: {node.labels[HOSTNAME_LABEL]} is also that of {others[0]}{more}",)
        found.append(Unlabeled(node.name, lacks))
    return tuple(sorted(found, key=lambda one: one.node))


def helpful(state: ClusterState, flavor: str, pod_set: PodSet) -> tuple[Unlabeled, ...]:
    """Those of them that could take a pod of this pod set, by name. What pods ask of other pods is not looked at."""
    return tuple(one for one in _fitting(state, flavor, pod_set) if one.fits)


def _fitting(state: ClusterState, flavor: str, pod_set: PodSet) -> Iterator[Unlabeled]:
    known, table = state.flavors.get(flavor), state.cluster.table
    if known is None or table.lacking_resources(table.needs(pod_set)):
        return
    which, needs = NodeFilter.for_pod_set(pod_set, known.tolerations), table.vector(pod_set.takes)
    asked = np.flatnonzero(needs)
    for one in unlabeled(state, flavor):
        index = np.array([state.cluster.by_name[one.node].index])
        mask = which.mask(state.cluster.columns, index)
        if mask is not None and not mask.any():
            continue
        # Without the label of a level the node is in no tree and has no counts, so its room is looked up in the table.
        room = table.free[asked, index] // needs[asked]
        yield Unlabeled(one.node, one.missing, max(0, min(int(room.min()), pod_set.count)))


def missing(flavor: Flavor, node: Node, lost: Sequence[str] = ()) -> tuple[str, ...]:
    """The levels of a flavor, but for those that all its nodes lost, of which a node's labels name no domain."""
    labels = node.labels
    lacking = [level for level in flavor.levels if level not in lost and not flavor.value(labels, level)]
    return tuple([f"{level}={labels[level]}" if labels.get(level) else level for level in lacking])


def in_words(found: tuple[Unlabeled, ...]) -> str:
    """For messages: ``2 nodes lack the label of a level: n7 (rack), n8 (rack=unknown)``; "" where there is none."""
    if not found:
        return ""
    shown = ", ".join(f"{one.node} ({', '.join(one.missing)})" for one in found[:NAMED])
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    verb = "nodes lack" if len(found) > 1 else "node lacks"
    return f"{len(found)} {verb} the label of a level: {shown}{more}"

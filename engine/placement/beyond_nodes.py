"""What one pod asks for and no node has, in words that end with what to do: neither quota nor patience helps there."""

from collections.abc import Collection
from typing import Final

import numpy as np

from engine.arrays import Ints
from engine.claims.extended import is_extended
from engine.cluster.node_columns import Table
from engine.cluster.state import ClusterState
from engine.model import PodSet, amount_in_words
from engine.quantity import format_quantity

SMALLER: Final = "ask for less in each pod"
NAMED: Final = 4  # of the resources that nodes offer


def beyond_every_node(state: ClusterState, pod_set: PodSet) -> str:
    """The first of what its pods ask for of which no node of the cluster has as much; "" where there is none."""
    table = state.cluster.table
    index = np.flatnonzero(table.alloc.any(axis=0))
    return beyond_nodes(table, pod_set, index) if len(index) else ""


def beyond_nodes(table: Table, pod_set: PodSet, index: Ints, of: str = "", unpublished: Collection[str] = ()) -> str:
    """The same of some nodes. ``of``: which these are, in words; ``unpublished``: what no node is to have."""
    for resource, amount in table.needs(pod_set).items():
        if amount <= 0 or resource in unpublished:
            continue
        most = int(table.amounts(table.alloc, resource, index).max(initial=0))
        if most >= amount:
            continue
        # In words the amount is as it was asked for: what is too large to be counted is cut before the engine sees it.
        asks = f"a pod asks for {amount_in_words(resource, pod_set.cut.get(resource, amount))}, and no node{of}"
        if most > 0:
            return f"{asks} has more than {format_quantity(resource, most)}; {SMALLER}"
        return f"{asks} has any; {_name(table, resource) or SMALLER}"
    return ""


def _name(table: Table, resource: str) -> str:
    """To look at its name, where nodes have others of its kind; "" elsewhere."""
    everywhere = slice(None)
    offered = sorted(
        name for name in table.rows if is_extended(name) and table.published(table.alloc, name, everywhere).any()
    )
    if resource in offered or not is_extended(resource):
        return ""
    if not offered:
        return "check its name: the nodes offer no such resource"
    more = f" and {len(offered) - NAMED} more" if len(offered) > NAMED else ""
    return f"check its name: the nodes offer {', '.join(offered[:NAMED])}{more}"

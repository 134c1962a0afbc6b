"""Which NVLink cliques no other ComputeDomain uses: two of them in one clique may break each other.

A domain uses the nodes that carry its uid, and those on which slots are held for pods that ask for its channels.
"""

import numpy as np

from engine.claims.asks import DeviceAsk
from engine.cluster.filters import Mask
from engine.cluster.state import ClusterState
from engine.cluster.tree import Tree
from engine.devices.compute_domains import CLIQUE, LABEL, domain_of


def own_cliques(state: ClusterState, tree: Tree, ask: DeviceAsk | None) -> Mask | None:
    """``(leaves,) bool``: whether a leaf is in no clique, or in one of no other domain than that of ``ask``.

    None where that is so of all, or none is asked for.
    """
    own = domain_of(ask)
    if not own:
        return None
    columns = state.cluster.columns
    values, codes = columns.labels(LABEL)
    used = (codes != 0) & (codes != values.get(own, 0))
    # A node gets the label when the first claim is prepared there: until then only the slots tell of the domain.
    for parts in state.ledger.held.values():
        for slots in parts.values():
            if (other := domain_of(slots.assignment.devices)) and other != own:
                used[slots.index] = True
    if not used.any():
        return None
    cliques, of = columns.labels(CLIQUE)
    theirs = np.zeros(len(cliques) + 1, np.bool_)
    theirs[of[used]] = True
    # Code 0 stands for nodes without a clique, which belong to nobody.
    theirs[0] = False
    found: Mask = ~theirs[of[tree.span]]
    return None if found.all() else found

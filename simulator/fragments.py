"""How broken up the free part of a cluster is, level by level.

A domain is *whole* where all its nodes are idle. *Stranded* is the share of what is free that lies in no whole domain
of the level: 0 where all of it is in whole domains or nothing is free, 1 where no domain is whole. *Largest* is the
most that one job of whole nodes could get within one domain.
"""

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.cluster.tree import Tree

Ints = NDArray[np.int64]


class Fragments(msgspec.Struct, frozen=True):
    """Of one level at one time."""

    whole: int  # domains
    stranded: float
    largest: int


def level_names(tree: Tree) -> list[str]:
    """The levels of a tree, widest first; ``node`` on top where its narrowest level holds several nodes."""
    levels = list(tree.flavor.levels)
    return levels if tree.leaf == tree.last else [*levels, "node"]


def fragments(tree: Tree, free: Ints, idle: NDArray[np.bool_]) -> list[Fragments]:
    """For each of `level_names`. ``free``: amounts by leaf; ``idle``: leaves on which nothing runs."""
    total = int(free.sum())
    on_idle = np.where(idle, free, 0)
    found = []
    for bounds in tree.bounds:
        starts = bounds[:-1]
        whole = np.logical_and.reduceat(idle, starts)
        inside = np.add.reduceat(on_idle, starts)
        # Over what is free everywhere: room on nodes in use is in no whole domain and counts as stranded.
        stranded = 1 - int(inside[whole].sum()) / total if total else 0.0
        found.append(Fragments(int(whole.sum()), stranded, int(inside.max(initial=0))))
    return found

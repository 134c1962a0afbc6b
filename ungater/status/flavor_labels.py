"""What is odd about the labels of a flavor's levels as a whole, each told as an event on the flavor. Pure."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from crds.topology_labels import OF_SPINES, SUPERSEDED, lopsided, lopsided_in_words, superseded_in_words
from engine.cluster.state import ClusterState
from engine.reasons import Reason

_REMEDY = "`topogate doctor` says what to do"


def troubles(state: ClusterState, flavor: str) -> Iterator[tuple[Reason, str]]:
    """Levels that all nodes lost, that their tool gave up, or that a dead cable may have divided; one each at most."""
    tree = state.tree(flavor)
    if tree is None or not tree.size:
        return
    levels = tree.flavor.levels
    if lost := state.cluster.lost_levels(flavor):
        yield Reason.MISSING_LEVEL_LABEL, f"{lost_in_words(lost)}; {_REMEDY}"
    for level in levels:
        if (newer := SUPERSEDED.get(level)) is not None and state.cluster.has_label(newer):
            yield Reason.LABELS_SUPERSEDED, f"{superseded_in_words(level)}; {_REMEDY}"
            break
    for rank, (level, below) in enumerate(pairwise(levels)):
        # The tree has the bounds of each domain's children, so differences of neighbors are their numbers.
        if level in OF_SPINES and lopsided(parts := np.diff(tree.children[rank]).tolist()):
            yield Reason.UNEVEN_DOMAINS, f"{lopsided_in_words(level, below, max(parts), min(parts))}; {_REMEDY}"
            break


def lost_in_words(levels: tuple[str, ...]) -> str:
    """What it means that no node of a flavor has these levels."""
    labels = f"label{'s' if len(levels) > 1 else ''} {', '.join(levels)}"
    return f"no node has the {labels}: jobs that require such a level wait, all others are placed without it"

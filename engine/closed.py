"""Which of the slots that a workload holds no pod can start in any more. Changes nothing."""

from collections.abc import Iterable, Iterator

import numpy as np

from engine.filters import NodeFilter
from engine.model import HOSTNAME_LABEL, Flavor, PodSet
from engine.nodes import NodeRecord, selected
from engine.state import ClusterState
from engine.tree import Path


def closed(
    state: ClusterState, flavor: str, levels: tuple[str, ...], pod_set: PodSet, slots: Iterable[tuple[Path, str]]
) -> list[bool]:
    """For each slot (its level values, and its node where it is one) whether it is closed to pods of this pod set.

    It is where none of its nodes is left that is there, ready, schedulable, without a taint that the pods (or the
    flavor) do not tolerate, with the labels that the slot, the pods' selectors and the flavor name. A node that became
    too small for what is held on it is closed too. ``flavor``: one that is not known asks for no labels.
    """
    known, table = state.flavors.get(flavor), state.cluster.table
    if known is not None and known.levels != levels:
        known = None  # another one of that name; who stands in the old one is not to move for that
    which = NodeFilter.of(pod_set, known.tolerations if known is not None else ())
    needs = table.vector(pod_set.requests)
    answers = []
    for values, name in slots:
        found = [record.index for record in _nodes(state, levels, values, name) if _labelled(record, known)]
        if not found:
            answers.append(True)
            continue
        index = np.array(found, np.int64)
        mask = which.mask(state.cluster.columns, index)
        if mask is not None:
            index = index[mask]
        if levels[-1] == HOSTNAME_LABEL:
            short = (table.free[: len(needs), index] < 0) & (needs > 0)[:, None]
            index = index[~short.any(axis=0)]
        answers.append(not len(index))
    return answers


def _nodes(state: ClusterState, levels: tuple[str, ...], values: Path, name: str) -> Iterator[NodeRecord]:
    """The nodes that pods with these values in their node selector could be bound to."""
    by_name = state.cluster.by_name
    records = [by_name[name]] if name in by_name else [] if name else by_name.values()
    wanted = tuple(zip(levels, values, strict=True))
    for record in records:
        node = record.node
        if node is not None and all(node.labels.get(level) == value for level, value in wanted):
            yield record


def _labelled(record: NodeRecord, flavor: Flavor | None) -> bool:
    return record.node is not None and (flavor is None or selected(flavor, record.node))

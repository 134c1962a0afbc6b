"""The nodes for which a CSI driver has storage left for a new volume of some size.

Source: ``hasEnoughCapacity`` of the plugin VolumeBinding in Kubernetes 1.37. Each claim is judged by itself, whatever
other claims take of the same storage; the largest size of a volume counts before what is left in all.
"""

from bisect import bisect_left
from collections.abc import Iterable

from engine.model import NodeTerm
from engine.quantity import parse
from kube.pods.convert import label_selector
from kube.volumes.objects import CsiStorageCapacity
from kube.volumes.terms import MOST_REQUIREMENTS, Terms, merged, size_of


class StorageLeft:
    """What a driver has left for one class. Sizes between two of what there is have the same answer."""

    def __init__(self, capacities: Iterable[CsiStorageCapacity]) -> None:
        known = ((limit_of(one), _nodes(one)) for one in capacities)
        parts = sorted(((limit, term) for limit, term in known if limit and term is not None), key=lambda one: one[0])
        self._limits = [limit for limit, _ in parts]
        self._terms = [term for _, term in parts]
        self._found: dict[int, Terms | None] = {}

    def __len__(self) -> int:
        return len(self._limits)

    def size_class(self, size: int) -> int:
        """What tells sizes apart."""
        return bisect_left(self._limits, size)

    def knows(self, size: int) -> bool:
        """Whether a size like this was asked for before."""
        return self.size_class(size) in self._found

    def terms_for_size(self, size: int) -> Terms | None:
        """Where a volume of this size may be made; None: on all nodes."""
        at = self.size_class(size)
        if at not in self._found:
            terms = self._terms[at:]
            # A selector without requirements is that of all nodes, so no other term narrows it.
            self._found[at] = merged(terms) if all(term.labels for term in terms) else None
        return self._found[at]


def limit_of(one: CsiStorageCapacity) -> int:
    """The largest volume that may be made."""
    said = one.maximum_volume_size if one.maximum_volume_size is not None else one.capacity
    try:
        return parse("storage", said) if said is not None else 0
    except ValueError:
        return 0


def _nodes(one: CsiStorageCapacity) -> NodeTerm | None:
    """The nodes that have access; None for none."""
    labels = label_selector(one.node_topology)
    if labels is None:
        return None
    term = NodeTerm(labels=labels)
    return term if size_of((term,)) <= MOST_REQUIREMENTS else None

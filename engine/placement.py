"""What the engine answers: placements, refusals, and the requests they answer.

An Assignment made by ``place`` keeps two numpy arrays (which nodes of the tree, how many pods on each) and builds its
``slices`` the first time somebody reads them, because most decisions of an admission cycle are never read in full.
Slices are in tree order, which is rank order: consecutive ranks sit in the same or in neighbouring domains.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

import msgspec

from engine.model import HOSTNAME_LABEL, Amounts, PodSet
from engine.numa.machine import PodShape
from engine.reasons import Reason

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from engine.tree import Tree


class Slice(msgspec.Struct, frozen=True, gc=False):
    """``count`` pods in one domain of the narrowest level; ``values`` has one value a level, widest first.

    ``nodes`` says where the engine packs them: (node name, pods) in tree order. Empty where the slice was read back
    from the API server, which does not store it.
    """

    values: tuple[str, ...]
    count: int
    nodes: tuple[tuple[str, int], ...] = ()


@final
class Assignment:
    """Which domains the pods of one pod set go to. Equal where pod set, flavor, levels, requests and slices are equal.

    ``source`` is the pod set it was made for, where known: its labels and anti-affinity then count for others while
    its pods do not exist yet. ``shape`` is what kubelets look at when its pods arrive; without it the slots have no
    NUMA placement.
    """

    def __init__(
        self,
        *,
        pod_set: str,
        flavor: str,
        levels: tuple[str, ...],
        requests: Amounts,
        slices: Iterable[Slice],
        source: PodSet | None = None,
        shape: PodShape | None = None,
    ) -> None:
        """An assignment with known slices, e.g. one read back from ``status.admission``.

        Its shape is ``shape``, else that of ``source``.
        """
        self.pod_set = pod_set
        self.flavor = flavor
        self.levels = levels
        self.requests = requests
        self.source = source
        self.shape = source.shape if shape is None and source is not None else shape
        self.slices = tuple(slices)  # shadows the cached property
        self.count = sum(part.count for part in self.slices)
        self._packed: tuple[Tree, NDArray[np.int64], NDArray[np.int64]] | None = None

    @classmethod
    def packed(
        cls, pod_set: PodSet, tree: "Tree", leaves: "NDArray[np.int64]", counts: "NDArray[np.int64]", total: int
    ) -> "Assignment":
        """Made by the engine: ``counts[i]`` > 0 pods on leaf ``leaves[i]`` of ``tree``, leaves ascending and unique."""
        made = cls.__new__(cls)
        made.pod_set = pod_set.name
        made.flavor = tree.flavor.name
        made.levels = tree.flavor.levels
        made.requests = pod_set.requests
        made.source = pod_set
        made.shape = pod_set.shape
        made.count = total
        made._packed = (tree, leaves, counts)  # noqa: SLF001  (a constructor of the class itself)
        return made

    @cached_property
    def slices(self) -> tuple[Slice, ...]:
        """One slice for each domain of the narrowest level, in tree (= rank) order."""
        assert self._packed is not None  # noqa: S101  (the other constructor sets slices)
        tree, leaves, counts = self._packed
        return tree.slices(leaves, counts)

    def settle(self) -> None:
        """Build the slices and let go of the tree, because it was replaced: trees are large, assignments live long."""
        _ = self.slices
        self._packed = None

    @property
    def packing(self) -> "tuple[Tree, NDArray[np.int64], NDArray[np.int64]] | None":
        """(tree, leaves, counts) where the engine made it and its tree is in use; else None."""
        return self._packed

    @property
    def by_host(self) -> bool:
        """Whether each slice is one host."""
        return self.levels[-1:] == (HOSTNAME_LABEL,)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Assignment):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash((self.pod_set, self.flavor, self.slices))

    def __repr__(self) -> str:
        return f"Assignment({self.pod_set!r}, flavor={self.flavor!r}, count={self.count}, slices={self.slices!r})"

    def _key(self) -> tuple[Any, ...]:
        return self.pod_set, self.flavor, self.levels, self.requests, self.slices


@dataclass(frozen=True)
class Placement:
    """All pod sets of a workload placed: one assignment for each, in request order."""

    assignments: tuple[Assignment, ...]


@dataclass(frozen=True)
class Refusal:
    """Why a workload was not placed, in words for a person: ``message`` names the level and how close it came."""

    reason: Reason
    message: str
    pod_set: str = ""
    flavor: str = ""


@dataclass(frozen=True)
class WorkloadRequest:
    """Pod sets to place together, all or none.

    ``flavors`` are tried in their order; () means every flavor whose levels contain the requested level, by name.
    ``effort``: on trees of more than 1,024 nodes, how much longer a pod set may be thought about to find fewer domains
    below the requested level, in cells (about a nanosecond each; 2,000,000 finds most of what there is to find).
    """

    key: str
    pod_sets: tuple[PodSet, ...]
    flavors: tuple[str, ...] = ()
    effort: int = 0

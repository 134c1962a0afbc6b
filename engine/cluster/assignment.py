"""Assignments: which domains the pods of one pod set go to.

An Assignment made by ``place`` keeps two numpy arrays (which nodes of the tree, how many pods on each) and builds its
``slices`` the first time somebody reads them, because most decisions of an admission cycle are never read in full.
Slices are in tree order, which is rank order: consecutive ranks sit in the same or in neighbouring domains.
"""

from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from typing import Any, final

import msgspec

from engine.arrays import Ints
from engine.claims.asks import DeviceAsk
from engine.cluster.tree import Path, Tree
from engine.kubelet.machine import PodShape
from engine.model import HOSTNAME_LABEL, NOTHING_ATTACHED, Amounts, Attached, PodSet


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
    NUMA placement. ``attached``: the volumes of each of its pods; ``devices``: the claims of each of them.
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
        attached: Attached | None = None,
        devices: DeviceAsk | None = None,
    ) -> None:
        """An assignment with known slices, e.g. one read back from ``status.admission``.

        Its shape is ``shape``, else that of ``source``; volumes and claims alike.
        """
        self.pod_set = pod_set
        self.flavor = flavor
        self.levels = levels
        self.requests = requests
        self.source = source
        self.shape = source.shape if shape is None and source is not None else shape
        if attached is None:
            attached = source.attached if source is not None else NOTHING_ATTACHED
        self.attached = attached
        self.devices = source.devices if devices is None and source is not None else devices
        self.slices = tuple(slices)  # shadows the cached property
        self.count = sum(part.count for part in self.slices)
        self._packed: tuple[Tree, Ints, Ints] | None = None

    @classmethod
    def packed(cls, pod_set: PodSet, tree: Tree, leaves: Ints, counts: Ints, total: int) -> "Assignment":
        """Made by the engine: ``counts[i]`` > 0 pods on leaf ``leaves[i]`` of ``tree``, leaves ascending and unique."""
        # Around the constructor, which would build the slices that this way leaves for later.
        made = cls.__new__(cls)
        made.pod_set = pod_set.name
        made.flavor = tree.flavor.name
        made.levels = tree.flavor.levels
        made.requests = pod_set.requests
        made.source = pod_set
        made.shape = pod_set.shape
        made.attached = pod_set.attached
        made.devices = pod_set.devices
        made.count = total
        made._packed = (tree, leaves, counts)  # noqa: SLF001  (a constructor of the class itself)
        return made

    @cached_property
    def slices(self) -> tuple[Slice, ...]:
        """One slice for each domain of the narrowest level, in tree (= rank) order."""
        assert self._packed is not None  # noqa: S101  (the other constructor sets slices)
        tree, leaves, counts = self._packed
        return slices_of(tree, leaves, counts)

    def build_slices(self) -> None:
        """Build the slices and let go of the tree, because it was replaced: trees are large, assignments live long."""
        _ = self.slices
        self._packed = None

    @property
    def packing(self) -> tuple[Tree, Ints, Ints] | None:
        """(tree, leaves, counts) where the engine made it and its tree is in use; else None."""
        return self._packed

    @property
    def takes(self) -> Amounts:
        """What each of its pods takes of its node (`Attached.beside`)."""
        return self.attached.beside(self.requests)

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


def slices_of(tree: Tree, leaves: Ints, counts: Ints) -> tuple[Slice, ...]:
    """One slice for each domain of the narrowest level; ``leaves`` ascending."""
    names, paths = tree.names, tree.paths
    pairs = zip(leaves.tolist(), counts.tolist(), strict=True)
    if tree.leaf == tree.last:
        return tuple(Slice(paths[leaf], count, ((names[leaf], count),)) for leaf, count in pairs)
    packed: dict[Path, list[tuple[str, int]]] = {}
    for leaf, count in pairs:
        packed.setdefault(paths[leaf], []).append((names[leaf], count))
    return tuple(Slice(path, sum(n for _, n in nodes), tuple(nodes)) for path, nodes in packed.items())


def with_slices(assignment: Assignment, slices: Iterable[Slice]) -> Assignment:
    """The same assignment with other slices."""
    return Assignment(
        pod_set=assignment.pod_set,
        flavor=assignment.flavor,
        levels=assignment.levels,
        requests=assignment.requests,
        slices=slices,
        source=assignment.source,
        shape=assignment.shape,
        attached=assignment.attached,
        devices=assignment.devices,
    )


def outline(assignments: Iterable[Assignment]) -> list[tuple[object, ...]]:
    """What the API server stores of assignments."""
    return [
        (part.pod_set, part.flavor, part.levels, part.requests, [(s.values, s.count) for s in part.slices])
        for part in assignments
    ]


def slots_removed(before: Iterable[Assignment], after: Iterable[Assignment]) -> list[Assignment]:
    """The slots of ``before`` that are not in ``after``."""
    kept = Counter({(part.pod_set, one.values): one.count for part in after for one in part.slices})
    left = []
    for part in before:
        gone = [
            Slice(one.values, count) for one in part.slices if (count := one.count - kept[part.pod_set, one.values]) > 0
        ]
        if gone:
            left.append(
                Assignment(
                    pod_set=part.pod_set,
                    flavor=part.flavor,
                    levels=part.levels,
                    requests=part.requests,
                    shape=part.shape,
                    slices=gone,
                    attached=part.attached,
                    devices=part.devices,
                )
            )
    return left

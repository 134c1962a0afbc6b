"""Where more pods of a pod set go beside those that are there: used nodes, used domains, then the same container."""

from collections.abc import Collection, Iterator

import msgspec
import numpy as np
from msgspec.structs import replace

from engine.arrays import Ints
from engine.cluster.assignment import Assignment, Slice
from engine.cluster.fit_counts import Counts
from engine.cluster.natural_order import natural
from engine.cluster.state import ClusterState
from engine.cluster.tree import Path, Tree
from engine.model import PodSet
from engine.placement.choose import Chooser
from engine.placement.fit import ANYWHERE, Fit
from engine.placement.largest_first import cover
from engine.placement.search.descent import Pick


def keep_inside(tree: Tree, counts: Ints, rank: int, domain: int) -> Ints:
    """``counts`` with those outside of one domain (of rank ANYWHERE: none) set to 0, in place."""
    if rank != ANYWHERE:
        first, last = tree.bounds[rank][domain : domain + 2].tolist()
        counts[:first] = counts[last:] = 0
    return counts


def leaves_of(tree: Tree, state: ClusterState, slices: Collection[Slice], names: Collection[str] = ()) -> Ints:
    """The leaves on which slices are, and those of named nodes."""
    wanted = [*names, *(name for part in slices for name, _ in part.nodes)]
    index = [record.index for name in wanted if (record := state.cluster.by_name.get(name)) is not None]
    return np.unique(tree.leaves_among(np.array(index, np.int64)))


class Growth(msgspec.Struct, frozen=True):
    """``by`` more pods beside those on the ``used`` leaves, none of them on ``lost`` ones."""

    fit: Fit
    used: Ints
    lost: Ints
    by: int

    def containers(self, held: Assignment) -> Iterator[tuple[int, int]]:
        """(rank, domain) to try in order; each holds every slice there was before, lost ones too."""
        tree = self.fit.tree
        for rank in self.fit.containers():
            if rank == ANYWHERE:
                yield rank, 0
                continue
            paths = {part.values[: rank + 1] for part in held.slices}
            # Pods in several domains of a level are spread beyond it already, so no domain of it holds all of them.
            if len(paths) == 1:
                domain = tree.find(min(rank, tree.last), paths.pop())
                if domain is not None:
                    yield min(rank, tree.last), domain

    def count_room(self, rank: int, domain: int) -> Ints:
        """Pods that fit each leaf of one container; none elsewhere. The caller may write to it.

        Slices that are to be alone are not looked at: what one of them lacks comes where it is.
        """
        counts = replace(self.fit.room, alone=()).counts_within(rank).leaf.copy()
        # A node may be lost to these pods and still have room in the table.
        counts[self.lost] = 0
        return keep_inside(self.fit.tree, counts, rank, domain)

    def pick(self, rank: int, domain: int) -> Pick | None:
        """Used nodes first, then used domains from the narrowest on, then the container."""
        return self.onto(self.count_room(rank, domain), rank)

    def onto(self, counts: Ints, rank: int) -> Pick | None:
        """The same where ``counts`` are what fits each leaf of the container, which is of ``rank``."""
        if int(counts.sum()) < self.by:
            return None
        onto = np.zeros_like(counts)
        room = counts[self.used]
        if int(room.sum()) <= self.by:
            onto[self.used] = room
        else:
            picked, rest = cover(room, self.by, tight=True)
            onto[self.used[picked]] = room[picked]
            onto[self.used[picked[-1]]] = rest
        left = self.by - int(onto.sum())
        if left:
            counts -= onto
            counts[self.used] = 0
            self._add_rest(onto, counts, left, rank)
        leaves = np.flatnonzero(onto)
        return Pick(leaves, onto[leaves], (len(leaves),))

    def _add_rest(self, onto: Ints, counts: Ints, left: int, rank: int) -> None:
        """Put ``left`` pods onto unused nodes: in a used domain as narrow as can be, else anywhere in the container."""
        tree = self.fit.tree
        for narrow in range(tree.leaf - 1, rank, -1):
            owners = tree.owners[narrow]
            near = np.where(np.isin(owners, owners[self.used]), counts, 0)
            if int(near.sum()) >= left:
                counts = near
                break

        def pick_of(leaf: Ints) -> Pick | None:
            chooser = Chooser(tree, Counts(tree, leaf), left, self.fit.work, self.fit.prefer)
            return chooser.pick_anywhere(min(self.fit.rank, tree.leaf))

        pick = pick_of(counts) if self.fit.alignment is None else self.fit.alignment.best_pick(counts, pick_of)
        assert pick is not None  # noqa: S101  (the sum was checked)
        onto[pick.leaves] += pick.amounts


def merged(
    held: Assignment, stays: Collection[Slice], more: Collection[Slice], tree: Tree, pod_set: PodSet
) -> Assignment:
    """Old and new slices, each domain once, in tree order."""
    on: dict[Path, dict[str, int]] = {}
    bare: dict[Path, int] = {}
    for part in (*stays, *more):
        nodes = on.setdefault(part.values, {})
        for name, pods in part.nodes:
            nodes[name] = nodes.get(name, 0) + pods
        bare[part.values] = bare.get(part.values, 0) + part.count
    slices = [
        Slice(values, bare[values], tuple(sorted(nodes.items(), key=lambda item: natural(item[0]))))
        # Tree order is rank order: where pods have ranks, slot k of the new assignment belongs to rank k.
        for values, nodes in sorted(on.items(), key=lambda item: [natural(value) for value in item[0]])
    ]
    return Assignment(
        pod_set=held.pod_set,
        flavor=tree.flavor.name,
        levels=tree.flavor.levels,
        requests=pod_set.requests,
        slices=slices,
        source=pod_set,
    )

"""One pod set on one flavor: its counts, what inter-pod constraints leave of them, and the best pick."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from engine.arrays import Ints
from engine.cluster.affinity import ConstrainedCounts, Unsupported, room
from engine.cluster.assignment import Assignment
from engine.cluster.filters import Mask
from engine.cluster.fit_counts import CountedShape, Counts, known_shape
from engine.cluster.state import ClusterState
from engine.cluster.tree import Tree
from engine.model import HOSTNAME_LABEL, PodSet, Policy
from engine.placement.choose import Chooser
from engine.placement.numa.alignment import Alignment
from engine.placement.numa.numa_preference import Inner
from engine.placement.search.cliques import own_cliques
from engine.placement.search.descent import Pick
from engine.placement.search.exact import SMALL, Work
from engine.placement.search.unopened import Unopened
from engine.placement.slice_tail import sliced_counts, slicer
from engine.placement.slices import Layer, Slicer, Unfit, layers_of
from engine.reasons import Reason
from engine.results import Refusal

ANYWHERE: Final = -1
TO_THE_END: Final = 100_000_000
MEDIUM: Final = 1_024  # leaves
AS_A_RULE: Final = 5_000_000
A_LEAF: Final = 2
AT_ONCE: Final = 60_000  # a tree counted faster than this leaves no time to compare more containers


def budget(tree: Tree) -> Work:
    """How much search beyond the first container one placement may cost, in cells (about a nanosecond each).

    Small trees are searched to the end, medium ones as a rule. For large ones two greedy descents in each of a few
    containers are compared: as many as take no longer than counting.
    """
    if tree.size <= MEDIUM:
        return Work(TO_THE_END if tree.size <= SMALL else AS_A_RULE)
    return Work(max(A_LEAF * tree.size - AT_ONCE, 0))


class Fit(msgspec.Struct):
    """An answer as of now, to be read before anything else of the tree is counted (`known_shape`).

    ``rank`` is that of the requested level; the leaf rank for unconstrained. ``layers``: its slices.

    ``apart``: leaves that are not in a clique of another ComputeDomain, where there are others. ``leaves``: those that
    it may go to.
    """

    tree: Tree
    pod_set: PodSet
    rank: int
    known: CountedShape
    room: ConstrainedCounts
    work: Work
    prefer: Inner | None = None
    layers: tuple[Layer, ...] = ()
    alignment: Alignment | None = None
    unopened: Unopened | None = None
    apart: Mask | None = None
    leaves: Mask | None = None

    @classmethod
    def count_pod_set(
        cls, state: ClusterState, flavor: str, pod_set: PodSet, effort: int = 0, leaves: Mask | None = None
    ) -> "Fit | Refusal":
        """Count a pod set on a flavor; a refusal where the level or a constraint makes that impossible.

        ``leaves``: those that it may go to (`engine.placement.shares`); None: any.

        ``effort``: cells of search beyond greedy, at least; what the size of the tree allows is spent anyway. All pods
        go where the volumes of all of them reach; `engine.placement.pinned` has the rest.
        """
        if pod_set.pinned:
            pod_set = pod_set.together
        tree = state.tree(flavor)
        rank = None if tree is None else cls._rank(tree, pod_set)
        if tree is None or rank is None:
            levels = f"; its levels are: {', '.join(tree.flavor.levels)}" if tree is not None else ""
            text = f"flavor {flavor} has no level {pod_set.topology.level}{levels}"
            return Refusal(Reason.UNKNOWN_LEVEL, text, pod_set.name, flavor)
        if not tree.size:
            return Refusal(Reason.NO_NODES, _no_nodes(state, tree), pod_set.name, flavor)
        if lost := [level for level in _required(pod_set) if tree.lost(level)]:
            text = f"flavor {flavor}: none of its nodes has the label {lost[0]}, so the level has no domain"
            return Refusal(Reason.NO_NODES, text, pod_set.name, flavor)
        known = known_shape(state.cluster.columns, tree, pod_set)
        work = budget(tree)
        work.grant(effort)
        try:
            layers = layers_of(tree, pod_set.topology) if pod_set.topology.slices else ()
            counts = known.counts if leaves is None else Counts(tree, np.where(leaves, known.counts.leaf, 0))
            left = room(state, tree, pod_set, counts)
            inner = Inner.for_shape(state.cluster, tree, known.shape.inside)
            aligned = None
            if inner is not None:
                over_packing = state.alignment_over_packing
                aligned = Alignment(tree, state.cluster.table, inner, pod_set.requests, over_packing)
            spare, unopened = state.nodes_per_opened_domain, None
            if spare and tree.leaf and not layers:
                unopened = Unopened(tree, state.cluster.table, pod_set.requests, spare)
            apart = own_cliques(state, tree, pod_set.devices) if pod_set.devices is not None else None
            return cls(tree, pod_set, rank, known, left, work, inner, layers, aligned, unopened, apart, leaves)
        except Unfit as wrong:
            reason = Reason.UNKNOWN_LEVEL if wrong.unknown else Reason.INVALID_REQUEST
            return Refusal(reason, str(wrong), pod_set.name, flavor)
        except Unsupported as constraint:
            return Refusal(Reason.UNSUPPORTED_CONSTRAINT, str(constraint), pod_set.name, flavor)

    @staticmethod
    def _rank(tree: Tree, pod_set: PodSet) -> int | None:
        if pod_set.topology.policy is Policy.UNCONSTRAINED or pod_set.topology.level is None:
            return tree.leaf
        return tree.rank_of_level(pod_set.topology.level)

    def containers(self) -> Iterator[int]:
        """The ranks of which one domain may hold all pods, best first; ANYWHERE last where that is allowed."""
        ceiling, policy = self.room.ceiling, self.pod_set.topology.policy
        if policy is Policy.UNCONSTRAINED:
            yield ceiling
        elif policy is Policy.REQUIRED:
            yield max(self.rank, ceiling)
        else:
            # From the preferred level to wider ones, but not beyond the domain that the pods' own affinity demands.
            yield from range(max(self.rank, ceiling), max(ceiling, 0) - 1, -1)
            if ceiling < 0:
                yield ANYWHERE

    def counts_inside(self, container: int) -> Counts:
        """The counts that hold inside one domain of rank ``container``: of whole slices, where there are any."""
        return self.keep_whole_slices(self.room.counts_within(container))

    def keep_whole_slices(self, counts: Counts) -> Counts:
        """What is left of counts in whole slices."""
        return sliced_counts(self.tree, counts.leaf, self.layers, self.pod_set.count) if self.layers else counts

    def chooser(self, container: int) -> Chooser | Slicer:
        """A question about the counts that hold inside one domain of rank ``container``."""
        return self.question_for(self.room.counts_within(container), self.pod_set.count)

    def question_for(self, counts: Counts, need: int) -> Chooser | Slicer:
        """A question about so many pods on these counts."""
        if self.layers:
            return slicer(self.tree, counts.leaf, need, self.layers, self.work, self.prefer)
        return Chooser(self.tree, counts, need, self.work, self.prefer, self.unopened)

    def choose_best(self, container: int, ask: Callable[[Chooser | Slicer], Pick | None]) -> Pick | None:
        """What is chosen inside one domain of rank ``container``, aligned as well as can be.

        Where that is as good, in cliques that no other ComputeDomain uses.
        """
        if self.alignment is None and self.apart is None:
            return ask(self.chooser(container))
        leaf = self.room.counts.leaf
        found = self._best_of(leaf, container, ask)
        if self.apart is None or found is None:
            return found
        # Asked last and only to break a tie: a clique that is shared
        # with another ComputeDomain is a risk, and no refusal.
        apart = self._best_of(np.where(self.apart, leaf, 0), container, ask)
        return apart if apart is not None and apart.cost <= found.cost else found

    def _best_of(self, leaf: Ints, container: int, ask: Callable[[Chooser | Slicer], Pick | None]) -> Pick | None:
        room = self.room

        def picked(leaf: Ints) -> Pick | None:
            part = room if leaf is room.counts.leaf else replace(room, counts=Counts(self.tree, leaf))
            return ask(self.question_for(part.counts_within(container), self.pod_set.count))

        if self.alignment is None:
            return picked(leaf)
        # With any of these the count of a leaf depends on which others take pods, so single leaves cannot be exchanged.
        plain = not (self.layers or room.caps or room.alone or room.one)
        return self.alignment.best_pick(leaf, picked, exchange=plain)

    def pick(self) -> Pick | None:
        """The best placement; None where the pod set does not fit."""
        for container in self.containers():
            found = self.choose_best(container, partial(self._pick_inside, container))
            if found is not None or self.pod_set.topology.policy is Policy.UNCONSTRAINED:
                return found
        return None

    def _pick_inside(self, container: int, chooser: Chooser | Slicer) -> Pick | None:
        if self.pod_set.topology.policy is Policy.UNCONSTRAINED:
            return chooser.used_first(container)
        return chooser.pick_anywhere(self.rank) if container == ANYWHERE else chooser.in_one(container, self.rank)

    def assignment(self, pick: Pick) -> Assignment:
        """A pick as an assignment."""
        return Assignment.packed(self.pod_set, self.tree, pick.leaves, pick.amounts, self.pod_set.count)


def _required(pod_set: PodSet) -> Iterator[str]:
    """The levels without whose domains a pod set cannot be placed."""
    topology = pod_set.topology
    if topology.policy is Policy.REQUIRED and topology.level is not None:
        yield topology.level
    yield from (part.level for part in topology.slices)


def _no_nodes(state: ClusterState, tree: Tree) -> str:
    flavor = tree.flavor
    labels = ", ".join(f"{key}={value}" for key, value in flavor.node_labels.items()) or "any labels"
    lacking = [*state.cluster.outside(flavor)]
    if not lacking:
        return f"flavor {flavor.name}: no node has {labels}"
    levels = ", ".join(flavor.levels)
    text = f"flavor {flavor.name}: {len(lacking)} nodes have {labels}, but none has all level labels ({levels})"
    others = state.cluster.namesakes(lacking[0])
    why = f", whose {HOSTNAME_LABEL} is also that of {others[0]}" if others else ""
    return f"{text}; one of them is {lacking[0].name}{why}"

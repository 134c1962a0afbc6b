"""Pod sets whose pods are not alike in one thing: where the volumes of each of them reach.

All pods where all volumes reach is tried first. Where that fails, those whose volumes reach the same nodes are placed
one such part after the other, the one with the fewest nodes first, each as near to those before it as it goes; what is
required is held by all of them together. So there is a slot for each pod that its volumes reach. Pod sets with slices,
and those that share a domain with others, are placed where all volumes reach, or not at all.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Final

import msgspec
import numpy as np

from engine.arrays import Ints
from engine.cluster.assignment import Assignment, Slice, slices_of
from engine.cluster.filters import Mask, NodeFilter
from engine.cluster.levels import domain_labels
from engine.cluster.state import ClusterState
from engine.cluster.tree import Tree
from engine.model import Pinned, PodSet, Policy
from engine.placement import refusals, resize
from engine.placement.fit import ANYWHERE, Fit
from engine.placement.grow import Growth, leaves_of, merged
from engine.placement.search.descent import Pick
from engine.reservation_key import ReservationKey
from engine.results import Refusal

SITES: Final = 16  # domains of a level that are tried
# A placement of 256 parts on 5,120 nodes takes 80 ms; without a bound, 16 domains could cost many times that.
TRIALS: Final = 512  # parts that are placed for that in all, as long as any domain is left to try

REST: Final = Pinned(nodes=(), count=0)  # the pods that go anywhere


def place_pinned(
    state: ClusterState, flavor: str, pod_set: PodSet, effort: int = 0, leaves: Mask | None = None
) -> Assignment | Refusal:
    """One pod set on one flavor, or why it does not fit; ``leaves``: where it may go, or None. Changes nothing."""
    fit = Fit.count_pod_set(state, flavor, pod_set, effort, leaves)
    if isinstance(fit, Refusal):
        return fit
    pick = fit.pick()
    if pick is not None:
        return fit.assignment(pick)
    if pod_set.pinned and not pod_set.topology.slices:
        found = _place_apart(state, flavor, pod_set, effort, leaves)
        if found is not None:
            return found
        # Asked again, because the parts were counted in between: `fit` may lie in memory that they overwrote.
        fit = Fit.count_pod_set(state, flavor, pod_set, effort, leaves)
    return fit if isinstance(fit, Refusal) else refusals.does_not_fit(state, fit)


def extend(state: ClusterState, workload: str, pod_set: PodSet, by: int) -> Assignment | Refusal:
    """`resize.extend`, such that each pod has a slot that its volumes reach."""
    if not pod_set.pinned or by <= 0 or pod_set.topology.slices:
        return resize.extend(state, workload, pod_set, by)
    held = resize.held_of(state, workload, pod_set.name)
    tree = state.tree(held.flavor)
    if tree is None or tree.flavor.levels != held.levels:
        return resize.extend(state, workload, pod_set, by)  # which says why not
    last = pod_set
    checkpoint = state.begin()
    try:
        trial = _Trial(state, tree, leaves_of(tree, state, held.slices))
        for part, count in _unserved(state, held, pod_set, by):
            last = _pod_set_of_part(pod_set, part, count)
            why = trial.add(last)
            if why is not None:
                return why if isinstance(why, Refusal) else refusals.does_not_fit(state, why)
    finally:
        state.rollback(checkpoint)
    return merged(held, held.slices, trial.slices(), tree, last)


class _Trial:
    """Parts of a pod set that are placed one after the other, each near those before it; what each takes is held.

    A transaction of the caller's takes that back. ``used``: leaves that the pod set is on already. The cost of a part
    does not grow with the number of those before it.
    """

    def __init__(self, state: ClusterState, tree: Tree, used: Ints) -> None:
        self._state = state
        self._tree = tree
        self._used = used
        self._onto = np.zeros(tree.size, np.int64)
        self._parts = 0

    def add(self, part: PodSet) -> Fit | Refusal | None:
        """Place one more; why it cannot be, or what it does not fit, where nothing is held for it."""
        fit = Fit.count_pod_set(self._state, self._tree.flavor.name, part)
        if isinstance(fit, Refusal):
            return fit
        pick = self._pick_beside(fit, part.count) if len(self._used) else fit.pick()
        if pick is None:
            return fit
        self._onto[pick.leaves] += pick.amounts
        self._used = np.union1d(self._used, pick.leaves)
        self._parts += 1
        self._state.reserve(ReservationKey.for_trial("", "pinned", str(self._parts)), [fit.assignment(pick)])
        return None

    def _pick_beside(self, fit: Fit, count: int) -> Pick | None:
        growth = Growth(fit, self._used, self._used[:0], count)
        for rank in fit.containers():
            if rank == ANYWHERE:
                found = growth.pick(rank, 0)
            else:
                at = min(rank, fit.tree.last)
                domains = np.unique(fit.tree.owners[at][self._used])
                found = growth.pick(at, int(domains[0])) if len(domains) == 1 else None
            if found is not None:
                return found
        return None

    def slices(self) -> tuple[Slice, ...]:
        """Where all of them are."""
        leaves = np.flatnonzero(self._onto)
        return slices_of(self._tree, leaves, self._onto[leaves])


def _pod_set_of_part(pod_set: PodSet, part: Pinned, count: int) -> PodSet:
    """So many pods of a part as a pod set of their own."""
    own = pod_set.attached.own if part is REST else part.own
    return msgspec.structs.replace(
        pod_set,
        count=count,
        volume_nodes=(*pod_set.volume_nodes, *part.nodes),
        pinned=(),
        attached=msgspec.structs.replace(pod_set.attached, own=own),
    )


def _place_apart(
    state: ClusterState, flavor: str, pod_set: PodSet, effort: int, leaves: Mask | None
) -> Assignment | None:
    """The pods of each part where its volumes reach."""
    # Without the parts, so that the counts are those of a pod that goes anywhere: each part narrows them by itself.
    fit = Fit.count_pod_set(state, flavor, msgspec.structs.replace(pod_set, pinned=()), effort, leaves)
    if isinstance(fit, Refusal):
        return None
    masks = [NodeFilter(volumes=part.nodes).mask(state.cluster.columns, fit.tree.span) for part in pod_set.pinned]
    # Those parts first that reach few nodes; pods that go anywhere last.
    reached = [fit.tree.size if mask is None else int(mask.sum()) for mask in masks]
    left = pod_set.count
    parts: list[tuple[Pinned, int]] = []
    for part, _ in sorted(zip(pod_set.pinned, reached, strict=True), key=lambda one: one[1]):
        if (count := min(part.count, left)) > 0:
            left -= count
            parts.append((part, count))
    if left:
        parts.append((REST, left))
    # All of them before the first trial: the counts that they are read off do not outlive the questions of a trial.
    sites = [*_sites(fit, [mask for mask in masks if mask is not None], max(TRIALS // len(pod_set.pinned), 1))]
    for site in sites:
        found = _place_parts(
            state, fit.tree, msgspec.structs.replace(pod_set, node_selector=pod_set.node_selector | site), parts
        )
        if found is not None:
            # The volumes that each pod has alone are held alike for all, so what only some of them take is not.
            own = [part.own for part in pod_set.pinned]
            each = {limit: least for limit in pod_set.attached.own if (least := min(a.get(limit, 0) for a in own))}
            return Assignment(
                pod_set=pod_set.name,
                flavor=flavor,
                levels=fit.tree.flavor.levels,
                requests=pod_set.requests,
                slices=found,
                source=pod_set,
                attached=msgspec.structs.replace(pod_set.attached, own=each),
            )
    return None


def _sites(fit: Fit, reached: Sequence[Mask], most: int) -> Iterator[dict[str, str]]:
    """The labels of domains that have room for as many pods, the tightest first; {} for the flavor as a whole.

    ``reached``: the nodes of each part, of which a domain has some; ``most``: how many domains there are at most.
    """
    tree = fit.tree
    for container in fit.containers():
        if container == ANYWHERE or fit.pod_set.topology.policy is Policy.UNCONSTRAINED:
            yield {}
            continue
        rank = min(container, tree.last)
        counts, starts = fit.counts_inside(rank).counts_of_rank(rank), tree.bounds[rank][:-1]
        possible = counts >= fit.pod_set.count
        for mask in reached:
            # A domain that the volumes of some part do not reach at all is sifted out before anything is placed in it.
            possible &= np.logical_or.reduceat(mask, starts)
        enough = np.flatnonzero(possible)
        for domain in enough[np.argsort(counts[enough], kind="stable")][: min(SITES, most)].tolist():
            most -= 1
            yield domain_labels(tree.flavor.levels, tree.path(rank, domain))


def _place_parts(
    state: ClusterState, tree: Tree, pod_set: PodSet, parts: Collection[tuple[Pinned, int]]
) -> tuple[Slice, ...] | None:
    """The parts one after the other; where they have to be is in the node selector."""
    if pod_set.topology.policy is Policy.REQUIRED:
        topology = msgspec.structs.replace(pod_set.topology, policy=Policy.PREFERRED)
        pod_set = msgspec.structs.replace(pod_set, topology=topology)
    checkpoint = state.begin()
    try:
        trial = _Trial(state, tree, np.zeros(0, np.int64))
        placed = all(trial.add(_pod_set_of_part(pod_set, pinned, count)) is None for pinned, count in parts)
        return trial.slices() if placed else None
    finally:
        state.rollback(checkpoint)


def _unserved(state: ClusterState, held: Assignment, pod_set: PodSet, by: int) -> Iterator[tuple[Pinned, int]]:
    """The parts that ``by`` more pods are of: those first that have fewer slots than pods."""
    free: dict[str, int] = {}
    for piece in held.slices:
        for name, count in piece.nodes:
            free[name] = free.get(name, 0) + count
    names = [name for name in free if name in state.nodes]
    index = np.array([state.cluster.by_name[name].index for name in names], np.int64)
    reached: list[tuple[list[str], Pinned]] = []
    for part in pod_set.pinned:
        mask = NodeFilter(volumes=part.nodes).mask(state.cluster.columns, index)
        reached.append(([name for at, name in enumerate(names) if mask is None or bool(mask[at])], part))
    for inside, part in sorted(reached, key=lambda one: len(one[0])):
        need = part.count
        for name in inside:
            # A slot that serves a part is taken from the others, or one slot would count for two parts.
            taken = min(need, free[name])
            free[name] -= taken
            need -= taken
        if (some := min(need, by)) > 0:
            by -= some
            yield part, some
    if by > 0:
        yield REST, by

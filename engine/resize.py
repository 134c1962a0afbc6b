"""Assignments that change: more pods, fewer pods, pods moved off lost nodes. Nothing here changes the state."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from engine import refuse
from engine.choose import Chooser, Pick, cover
from engine.count import Counts
from engine.fit import ANYWHERE, Fit
from engine.ledger import with_slices
from engine.model import PodSet, Policy
from engine.order import natural
from engine.placement import Assignment, Refusal, Slice
from engine.reasons import Reason
from engine.state import ClusterState
from engine.table import Ints
from engine.tree import Path, Tree


def extend(state: ClusterState, workload: str, pod_set: PodSet, by: int) -> Assignment | Refusal:
    """The whole new assignment with ``by`` more pods; where the level is required, in the same domain.

    Room on nodes that are used already comes first, then the domains used already. Raises ValueError where the workload
    holds no such pod set.
    """
    held = _held(state, workload, pod_set.name)
    return held if by <= 0 else _grown(state, held, held.slices, pod_set, by, frozenset())


def replace(state: ClusterState, workload: str, pod_set: PodSet, lost: Collection[str]) -> Assignment | Refusal:
    """The whole new assignment with the slots on the ``lost`` nodes moved elsewhere (same required domain).

    Raises ValueError where the workload holds no such pod set.
    """
    held = _held(state, workload, pod_set.name)
    stays = [_without(part, lost) for part in held.slices]
    by = held.count - sum(part.count for part in stays)
    if not by:
        return held
    return _grown(state, held, [part for part in stays if part.count], pod_set, by, frozenset(lost))


def shrink(
    state: ClusterState, workload: str, pod_set: str, by: int, keep: Mapping[Path, int] | None = None
) -> Assignment:
    """The whole new assignment with ``by`` fewer pods: slots no pod claims first, from the end of rank order.

    ``keep``: slice values -> pods that are known to sit there though no claim was seen yet. Raises ValueError where the
    workload holds no such pod set.
    """
    held = _held(state, workload, pod_set)
    known = dict(state.unclaimed(workload, pod_set))
    counts = [part.count for part in held.slices]
    unused = [min(known.get(p.values, p.count), p.count - (keep or {}).get(p.values, 0)) for p in held.slices]
    left = _taken(counts, unused, by)
    _taken(counts, list(counts), left)
    slices = (_cut(part, count) for part, count in zip(held.slices, counts, strict=True) if count)
    return with_slices(held, slices)


def _taken(counts: list[int], most: list[int], by: int) -> int:
    """Lower ``counts`` by ``by`` in all, from the end, each by at most ``most``; returns what is left of ``by``."""
    for i in reversed(range(len(counts))):
        taken = max(min(most[i], by), 0)
        counts[i] -= taken
        by -= taken
    return by


def _held(state: ClusterState, workload: str, pod_set: str) -> Assignment:
    held = state.assignments(workload).get(pod_set)
    if held is None:
        raise ValueError(f"workload {workload!r} holds no pod set {pod_set!r}; reserve or restore it first")
    return held


def _cut(part: Slice, count: int) -> Slice:
    """The slice with fewer pods, taken from its last nodes."""
    nodes: list[tuple[str, int]] = []
    left = count
    for name, pods in part.nodes:
        if left:
            nodes.append((name, min(pods, left)))
            left -= nodes[-1][1]
    return Slice(part.values, count, tuple(nodes))


def _without(part: Slice, lost: Collection[str]) -> Slice:
    nodes = tuple((name, pods) for name, pods in part.nodes if name not in lost)
    gone = sum(pods for name, pods in part.nodes if name in lost)
    return Slice(part.values, part.count - gone, nodes)


def _grown(  # noqa: PLR0917  (a step of two public functions)
    state: ClusterState, held: Assignment, stays: Collection[Slice], pod_set: PodSet, by: int, lost: frozenset[str]
) -> Assignment | Refusal:
    fit = Fit.of(state, held.flavor, pod_set)
    if isinstance(fit, Refusal):
        return fit
    growth = _Growth(fit, _leaves_of(fit.tree, state, stays), _leaves_of(fit.tree, state, [], lost), by)
    for container, domain in growth.containers(held):
        pick = growth.pick(container, domain)
        if pick is not None:
            return _merged(held, stays, fit.tree.slices(pick.leaves, pick.amounts), fit.tree, pod_set)
    where = f"in the same {pod_set.topology.level}" if pod_set.topology.policy is Policy.REQUIRED else "anywhere"
    text = f"{by} more pods do not fit {where}: {refuse.message(state, fit)}"
    return Refusal(Reason.DOES_NOT_FIT, text, pod_set.name, held.flavor)


def _leaves_of(tree: Tree, state: ClusterState, slices: Collection[Slice], names: Collection[str] = ()) -> Ints:
    wanted = [*names, *(name for part in slices for name, _ in part.nodes)]
    index = [record.index for name in wanted if (record := state.cluster.by_name.get(name)) is not None]
    return np.unique(tree.leaves_among(np.array(index, np.int64)))


@dataclass(frozen=True)
class _Growth:
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
            if len(paths) == 1:
                domain = tree.find(min(rank, tree.last), paths.pop())
                if domain is not None:
                    yield min(rank, tree.last), domain

    def pick(self, rank: int, domain: int) -> Pick | None:
        """Used nodes first, then used domains from the narrowest on, then the container."""
        counts = self.fit.room.within(rank).leaf.copy()
        counts[self.lost] = 0
        tree = self.fit.tree
        if rank != ANYWHERE:
            first, last = tree.bounds[rank][domain : domain + 2].tolist()
            counts[:first] = counts[last:] = 0
        if int(counts.sum()) < self.by:
            return None
        onto = self._onto_used(counts)
        left = self.by - int(onto.sum())
        if left:
            counts -= onto
            counts[self.used] = 0
            self._add_rest(onto, counts, left, rank)
        leaves = np.flatnonzero(onto)
        return Pick(leaves, onto[leaves], (len(leaves),))

    def _onto_used(self, counts: Ints) -> Ints:
        onto = np.zeros_like(counts)
        room = counts[self.used]
        if int(room.sum()) <= self.by:
            onto[self.used] = room
            return onto
        picked, rest = cover(room, self.by, tight=True)
        onto[self.used[picked]] = room[picked]
        onto[self.used[picked[-1]]] = rest
        return onto

    def _add_rest(self, onto: Ints, counts: Ints, left: int, rank: int) -> None:
        """Put ``left`` pods onto unused nodes: in a used domain as narrow as can be, else anywhere in the container."""
        tree = self.fit.tree
        for narrow in range(tree.leaf - 1, rank, -1):
            owners = tree.owners[narrow]
            near = np.where(np.isin(owners, owners[self.used]), counts, 0)
            if int(near.sum()) >= left:
                counts = near
                break
        chooser = Chooser(tree, Counts(tree, counts), left, self.fit.work, self.fit.prefer)
        pick = chooser.anywhere(min(self.fit.rank, tree.leaf))
        assert pick is not None  # noqa: S101  (the sum was checked)
        onto[pick.leaves] += pick.amounts


def _merged(
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

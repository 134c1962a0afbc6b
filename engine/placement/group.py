"""Pod sets that belong together (a leader and its workers): one domain for all, the smaller sets with the first pods.

The largest pod set, or the one that has slices, leads the choice of the domain. The smaller ones go onto its first node
where there is room, or where room can be made by letting the large one use another node instead; else onto its next
nodes, else elsewhere in the domain.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import numpy as np

from engine.arrays import Ints
from engine.cluster.assignment import Assignment
from engine.cluster.filters import Mask
from engine.cluster.state import ClusterState
from engine.cluster.tree import Tree
from engine.model import PodSet
from engine.placement import refusals
from engine.placement.fit import ANYWHERE, Fit
from engine.placement.search.descent import Pick
from engine.reservation_key import ReservationKey
from engine.results import Refusal

COMPARED: Final = 8  # domains that take the group, compared before the best is taken
FIRST_NODES: Final = 12  # nodes tried as the common first node in each domain


class Together(msgspec.Struct, frozen=True):
    """The assignments of a group, and how good they are (less is better): domains used, then whether side by side."""

    assignments: dict[str, Assignment]
    cost: tuple[int, ...]
    apart: int


def place_group(
    state: ClusterState, tree: Tree, unit: Sequence[PodSet], leaves: Mask | None = None
) -> tuple[Assignment, ...] | Refusal:
    """Place all pod sets of a group in one domain of the level that they ask for; ``leaves``: where they may go."""
    large = max(unit, key=lambda pod_set: (refusals.is_sliced(pod_set), pod_set.count))
    small = [pod_set for pod_set in unit if pod_set is not large]
    containers: list[int] = []
    for pod_set in (large, *small):
        fit = Fit.count_pod_set(state, tree.flavor.name, pod_set, leaves=leaves)
        if isinstance(fit, Refusal):
            return fit
        containers = containers or [*fit.containers()]
    group = _Group(state, tree, large, small, leaves)
    for container in containers:
        best = group.best(container)
        if best is not None:
            return tuple(best.assignments[pod_set.name] for pod_set in unit)
    fit = Fit.count_pod_set(state, tree.flavor.name, large, leaves=leaves)
    return fit if isinstance(fit, Refusal) else refusals.does_not_fit(state, fit)


class _Group(msgspec.Struct, frozen=True):
    """The pod sets of a group on one flavor. Each question about one of them is asked when its answer is read.

    A `Fit` is not held while others are asked or a trial is under way: its counts lie in memory that these overwrite,
    and a rollback does not restore it.
    """

    state: ClusterState
    tree: Tree
    large: PodSet
    small: Sequence[PodSet]
    leaves: Mask | None = None

    def fit(self, pod_set: PodSet) -> Fit | None:
        """A pod set as things stand now; None where a constraint among the sets cannot be honoured."""
        now = Fit.count_pod_set(self.state, self.tree.flavor.name, pod_set, leaves=self.leaves)
        return now if isinstance(now, Fit) else None

    def best(self, container: int) -> Together | None:
        """The best of the first domains of rank ``container`` that take the group."""
        found: list[Together] = []
        for domain in self._domains(container):
            together = _Site(self, container, domain).best_together()
            if together is not None:
                found.append(together)
                if len(found) == COMPARED:
                    break
        return min(found, key=lambda one: (one.cost, one.apart)) if found else None

    def _domains(self, container: int) -> list[int]:
        """Domains where each pod set alone would fit, the tightest for the largest set first."""
        if container == ANYWHERE:
            return [0]
        # Each set is counted as if the others were not there: necessary for a domain to be tried, and not sufficient.
        tightest: Ints | None = None
        enough = np.ones(self.tree.count_domains(container), np.bool_)
        for pod_set in (self.large, *self.small):
            fit = self.fit(pod_set)
            if fit is None:
                return []
            room = fit.room.counts_within(container).counts_of_rank(container)
            enough &= room >= pod_set.count
            tightest = room.copy() if tightest is None else tightest
        domains = np.flatnonzero(enough)
        assert tightest is not None  # noqa: S101  (there is a large set)
        order: list[int] = domains[np.argsort(tightest[domains], kind="stable")].tolist()
        return order


class _Site(msgspec.Struct, frozen=True):
    """One domain (of rank ANYWHERE: the whole flavor) that is to hold the group."""

    group: _Group
    container: int
    domain: int

    @property
    def leaves(self) -> range:
        tree = self.group.tree
        if self.container == ANYWHERE:
            return range(tree.size)
        bounds = tree.bounds[self.container]
        return range(int(bounds[self.domain]), int(bounds[self.domain + 1]))

    def best_together(self) -> Together | None:
        """The large set first, or the small ones first on each of some nodes: the best of what works."""
        large = self.group.fit(self.group.large)
        alone = None if large is None else self._pick(large)
        if large is None or alone is None:
            return None
        placed = large.assignment(alone)
        # Counted before the first trial: what is to be compared is the room with none of the group there.
        room = self._room_of_small()
        if room is None:
            return None
        state, found = self.group.state, []
        for first in [None, *self._first_nodes(alone, room)]:
            checkpoint = state.begin()
            together = self._first_large(alone, placed) if first is None else self._first_small(first)
            state.rollback(checkpoint)
            if together is not None:
                found.append(together)
                # Nothing can be better: the large set is as well off
                # as alone, and the small ones are with its first pods.
                if together.cost <= alone.cost and not together.apart:
                    break
        return min(found, key=lambda one: (one.cost, one.apart)) if found else None

    def _room_of_small(self) -> Ints | None:
        """By leaf of the domain, the least that any small set finds; None where one of them cannot be placed."""
        leaves, least = self.leaves, None
        for pod_set in self.group.small:
            fit = self.group.fit(pod_set)
            if fit is None:
                return None
            room = fit.room.counts.leaf[leaves.start : leaves.stop]
            least = room.copy() if least is None else np.minimum(least, room, out=least)
        return least

    def _first_nodes(self, alone: Pick, room: Ints) -> Iterator[int]:
        """Leaves to try as the place of the small sets: those the large set would use, then those with most room."""
        start = self.leaves.start
        used = alone.leaves.tolist()[: FIRST_NODES // 2]
        yield from used
        # The node is to be the first one of all small sets, so it has room for each of them.
        others = [leaf + start for leaf in np.argsort(-room, kind="stable").tolist() if room[leaf] > 0]
        yield from [leaf for leaf in others if leaf not in used][: FIRST_NODES // 2]

    def _first_large(self, alone: Pick, placed: Assignment) -> Together | None:
        """The large set where it would be alone, then the small ones, from its first leaf on."""
        found: dict[str, Assignment] = {}
        self._reserve_trial(placed, found)
        return self._together(alone, found) if self._filled(int(alone.leaves[0]), found) else None

    def _first_small(self, first: int) -> Together | None:
        """The small sets from leaf ``first`` on, then the large one."""
        found: dict[str, Assignment] = {}
        fit = self.group.fit(self.group.large) if self._filled(first, found) else None
        pick = None if fit is None else self._pick(fit)
        if fit is None or pick is None:
            return None
        self._reserve_trial(fit.assignment(pick), found)
        return self._together(pick, found)

    def _together(self, pick: Pick, found: dict[str, Assignment]) -> Together:
        apart = sum(_count_apart(found[pod_set.name], int(pick.leaves[0])) for pod_set in self.group.small)
        return Together(found, pick.cost, apart)

    def _pick(self, fit: Fit) -> Pick | None:
        if self.container == ANYWHERE:
            return fit.choose_best(self.container, lambda chooser: chooser.pick_anywhere(fit.rank))
        domain = np.array([self.domain])
        return fit.choose_best(self.container, lambda chooser: chooser.in_one(self.container, fit.rank, domain))

    def _reserve_trial(self, made: Assignment, found: dict[str, Assignment]) -> None:
        # Reserved under the trial's own name; the caller's rollback takes it back.
        found[made.pod_set] = made
        self.group.state.reserve(ReservationKey.for_trial("", "group", made.pod_set), (made,))

    def _filled(self, first: int, found: dict[str, Assignment]) -> bool:
        """Whether all small sets fit, one after the other."""
        return all(self._fill(pod_set, first, found) for pod_set in self.group.small)

    def _fill(self, pod_set: PodSet, first: int, found: dict[str, Assignment]) -> bool:
        """Fill leaves from ``first`` on, in tree order, then the ones before it."""
        now, leaves = self.group.fit(pod_set), self.leaves
        if now is None:
            return False
        order = np.concatenate([np.arange(first, leaves.stop), np.arange(leaves.start, first)])
        fits = now.room.counts_within(ANYWHERE).leaf[order]
        amounts = np.clip(pod_set.count - (np.cumsum(fits) - fits), 0, fits)
        if int(amounts.sum()) < pod_set.count:
            return False
        onto = np.zeros(leaves.stop, np.int64)
        onto[order] = amounts
        chosen = onto.nonzero()[0]
        self._reserve_trial(now.assignment(Pick(chosen, onto[chosen], (len(chosen),))), found)
        return True


def _count_apart(assignment: Assignment, first: int) -> int:
    """How many leaves of a small set are not the first leaf of the large one."""
    assert assignment.packing is not None  # noqa: S101  (it was made here)
    return int((assignment.packing[1] != first).sum())

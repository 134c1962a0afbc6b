"""Pod sets that belong together (a leader and its workers): one domain for all, the smaller sets with the first pods.

The largest pod set leads the choice of the domain. The smaller ones go onto its first node where there is room, or
where room can be made by letting the large one use another node instead; else onto its next nodes, else elsewhere in
the domain.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import numpy as np

from engine.cluster.assignment import Assignment
from engine.cluster.state import ClusterState
from engine.cluster.tree import Tree
from engine.model import PodSet
from engine.placement import refusals
from engine.placement.fit import ANYWHERE, Fit
from engine.placement.search.descent import Pick
from engine.results import Refusal

COMPARED: Final = 8  # domains that take the group, compared before the best is taken
FIRST_NODES: Final = 12  # nodes tried as the common first node in each domain
_TRIAL: Final = "\0group"


class Together(msgspec.Struct, frozen=True):
    """The assignments of a group, and how good they are (less is better): domains used, then whether side by side."""

    assignments: dict[str, Assignment]
    cost: tuple[int, ...]
    apart: int


def place_group(state: ClusterState, tree: Tree, unit: Sequence[PodSet]) -> tuple[Assignment, ...] | Refusal:
    """Place all pod sets of a group in one domain of the level that the largest asks for."""
    large = max(unit, key=lambda pod_set: pod_set.count)
    small = [pod_set for pod_set in unit if pod_set is not large]
    flavor = tree.flavor.name
    fits = [Fit.of(state, flavor, pod_set) for pod_set in (large, *small)]
    wrong = next((fit for fit in fits if isinstance(fit, Refusal)), None)
    if wrong is not None:
        return wrong
    known = [fit for fit in fits if isinstance(fit, Fit)]
    for container in known[0].containers():
        best = _best(state, known, container)
        if best is not None:
            return tuple(best.assignments[pod_set.name] for pod_set in unit)
    return refusals.does_not_fit(state, known[0])


class _Site(msgspec.Struct, frozen=True):
    """One domain (of rank ANYWHERE: the whole flavor) that is to hold the group; ``fits``: the large set first."""

    state: ClusterState
    fits: Sequence[Fit]
    container: int
    domain: int

    @property
    def leaves(self) -> range:
        tree = self.fits[0].tree
        if self.container == ANYWHERE:
            return range(tree.size)
        bounds = tree.bounds[self.container]
        return range(int(bounds[self.domain]), int(bounds[self.domain + 1]))

    def best(self) -> Together | None:
        """The large set first, or the small ones first on each of some nodes: the best of what works."""
        alone = self._pick(self.fits[0])
        if alone is None:
            return None
        found = []
        for first in [None, *self._first_nodes(alone)]:
            checkpoint = self.state.begin()
            together = self._try(first)
            self.state.rollback(checkpoint)
            if together is not None:
                found.append(together)
                # Nothing can be better: the large set is as well off
                # as alone, and the small ones are with its first pods.
                if together.cost <= alone.cost and not together.apart:
                    break
        return min(found, key=lambda one: (one.cost, one.apart)) if found else None

    def _first_nodes(self, alone: Pick) -> Iterator[int]:
        """Leaves to try as the place of the small sets: those the large set would use, then those with most room."""
        leaves = self.leaves
        # The least that any small set finds: the node is to be the first one of all of them.
        room = np.minimum.reduce([fit.room.counts.leaf[leaves.start : leaves.stop] for fit in self.fits[1:]])
        used = alone.leaves.tolist()[: FIRST_NODES // 2]
        yield from used
        others = [leaf + leaves.start for leaf in np.argsort(-room, kind="stable").tolist() if room[leaf] > 0]
        yield from [leaf for leaf in others if leaf not in used][: FIRST_NODES // 2]

    def _try(self, first: int | None) -> Together | None:
        """Place the large set first (``first`` is None), or the small ones first, from leaf ``first`` on."""
        found: dict[str, Assignment] = {}
        large, *small = self.fits
        pick = None
        if first is None:
            pick = self._place_fit(large, found)
            if pick is None:
                return None
            first = int(pick.leaves[0])
        for fit in small:
            if not self._fill(fit, first, found):
                return None
        pick = pick or self._place_fit(large, found)
        if pick is None:
            return None
        apart = sum(_apart(found[fit.pod_set.name], int(pick.leaves[0])) for fit in small)
        return Together(found, pick.cost, apart)

    def _refit(self, fit: Fit) -> Fit | None:
        """The same question, as things stand now; None where a constraint among the sets cannot be honoured."""
        now = Fit.of(self.state, fit.tree.flavor.name, fit.pod_set)
        return now if isinstance(now, Fit) else None

    def _pick(self, fit: Fit) -> Pick | None:
        if self.container == ANYWHERE:
            return fit.best(self.container, lambda chooser: chooser.anywhere(fit.rank))
        domain = np.array([self.domain])
        return fit.best(self.container, lambda chooser: chooser.in_one(self.container, fit.rank, domain))

    def _place_fit(self, fit: Fit, found: dict[str, Assignment]) -> Pick | None:
        now = self._refit(fit)
        pick = None if now is None else self._pick(now)
        if now is not None and pick is not None:
            self._reserve_trial(now, pick, found)
        return pick

    def _reserve_trial(self, fit: Fit, pick: Pick, found: dict[str, Assignment]) -> None:
        name = fit.pod_set.name
        # Reserved under the trial's own name; the caller's rollback takes it back.
        found[name] = fit.assignment(pick)
        self.state.reserve(f"{_TRIAL}\0{name}", (found[name],))

    def _fill(self, fit: Fit, first: int, found: dict[str, Assignment]) -> bool:
        """Fill leaves from ``first`` on, in tree order, then the ones before it."""
        now, leaves = self._refit(fit), self.leaves
        if now is None:
            return False
        order = np.concatenate([np.arange(first, leaves.stop), np.arange(leaves.start, first)])
        fits = now.room.within(ANYWHERE).leaf[order]
        amounts = np.clip(fit.pod_set.count - (np.cumsum(fits) - fits), 0, fits)
        if int(amounts.sum()) < fit.pod_set.count:
            return False
        onto = np.zeros(leaves.stop, np.int64)
        onto[order] = amounts
        chosen = onto.nonzero()[0]
        self._reserve_trial(now, Pick(chosen, onto[chosen], (len(chosen),)), found)
        return True


def _best(state: ClusterState, fits: Sequence[Fit], container: int) -> Together | None:
    found: list[Together] = []
    for domain in _domains(fits, container):
        together = _Site(state, fits, container, domain).best()
        if together is not None:
            found.append(together)
            if len(found) == COMPARED:
                break
    return min(found, key=lambda one: (one.cost, one.apart)) if found else None


def _domains(fits: Sequence[Fit], container: int) -> list[int]:
    """Domains where each pod set alone would fit, the tightest for the largest set first."""
    if container == ANYWHERE:
        return [0]
    # Each set is counted as if the others were not there: necessary for a domain to be tried, and not sufficient.
    rooms = [fit.room.within(container).at(container) for fit in fits]
    enough = np.logical_and.reduce([room >= fit.pod_set.count for fit, room in zip(fits, rooms, strict=True)])
    domains = np.flatnonzero(enough)
    order: list[int] = domains[np.argsort(rooms[0][domains], kind="stable")].tolist()
    return order


def _apart(assignment: Assignment, first: int) -> int:
    """How many leaves of a small set are not the first leaf of the large one."""
    assert assignment.packing is not None  # noqa: S101  (it was made here)
    return int((assignment.packing[1] != first).sum())

"""Sets of zones, hints about them, and how the Topology Manager merges hints."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from localcluster.kubelets.hardware import BEST_EFFORT, SINGLE, bits


class Hint(NamedTuple):
    """A set of zones (None: any) and whether a provider prefers it."""

    mask: int | None
    preferred: bool


Hints = Mapping[str, Sequence[Hint] | None]  # of one provider; None: no preference, empty: impossible


@cache
def subsets(mask: int) -> tuple[int, ...]:
    """Every non-empty subset of a set of zones: smaller ones first, and those of one size by number."""
    members = [1 << bit for bit in bits(mask)]
    found = [0]
    for member in members:
        found += [subset | member for subset in found]
    return tuple(sorted(found[1:], key=lambda subset: (subset.bit_count(), subset)))


def sums(values: Sequence[int], zones: int) -> dict[int, int]:
    """For every subset of ``zones`` the sum of ``values`` (by zone position)."""
    return {mask: sum(values[position] for position in bits(mask)) for mask in subsets(zones)}


class Merger:
    """Merges hints for one machine under one policy.

    The kubelet walks the whole product of all hint lists. Here the product is folded, one list at a time, into the
    few outcomes that can still differ: which sets are still preferred by all, and which intersections occur.
    """

    def __init__(self, distances: Sequence[Sequence[int]], policy: str, *, prefer_closest: bool) -> None:
        """``distances`` is zone by zone; read only with ``prefer_closest``."""
        self._all = (1 << len(distances)) - 1
        self._distances = distances
        self._policy = policy
        self._closest = prefer_closest and policy != SINGLE

    def merge(self, providers: Iterable[Hints]) -> tuple[Hint, bool]:
        """The best hint, and whether the policy admits with it."""
        lists = list(_lists(providers))
        if self._policy == SINGLE:
            # Before the product, as the policy's own filter does it.
            lists = [
                [hint for hint in hints if hint.preferred and (hint.mask is None or hint.mask.bit_count() == 1)]
                for hints in lists
            ]
        best = self._merge_hints(lists)
        if self._policy == SINGLE and best.mask == self._all:
            best = Hint(None, best.preferred)
        return best, best.preferred or self._policy == BEST_EFFORT

    def _merge_hints(self, lists: Sequence[Sequence[Hint]]) -> Hint:
        if not all(lists):  # an empty list leaves the product empty
            return Hint(self._all, preferred=False)
        agreed = _agreed(lists)
        if agreed is not None:
            # None is left where nobody has a preference: all zones, preferred.
            masks = {self._all if mask is None else mask & self._all for mask in agreed} - {0}
            if masks:
                return Hint(min(masks, key=self._fitness), preferred=True)
        masks = {self._all}
        for hints in lists:
            # A set keeps each intersection once. There are at most 2^zones of them, however many lists are folded.
            masks = {mask if hint.mask is None else mask & hint.mask for mask in masks for hint in set(hints)}
        masks -= {0}
        if not masks:
            return Hint(self._all, preferred=False)
        # As many zones as the neediest resource takes, else the most below that, else the fewest above.
        need = max(
            (min((h.mask.bit_count() for h in hints if h.mask is not None), default=0) for hints in lists), default=0
        )
        # The need itself is among these, so the best case is a mask of just that width.
        below = [mask.bit_count() for mask in masks if mask.bit_count() <= need]
        size = max(below) if below else min(mask.bit_count() for mask in masks)
        least_bad = min((mask for mask in masks if mask.bit_count() == size), key=self._fitness)
        return Hint(least_bad, preferred=False)

    def _fitness(self, mask: int) -> tuple[int, float, int]:
        """Fewest zones first, then (where asked for) the closest ones, then the lowest numbers."""
        distance = 0.0
        if self._closest:
            members = list(bits(mask))
            distance = sum(self._distances[a][b] for a in members for b in members) / len(members) ** 2
        return mask.bit_count(), distance, mask


def _lists(providers: Iterable[Hints]) -> Iterator[Sequence[Hint]]:
    for provider in providers:
        if not provider:
            yield [Hint(None, preferred=True)]
        for hints in provider.values():
            if hints is None:
                yield [Hint(None, preferred=True)]
            else:
                # An empty list makes the merged hint not preferred, and does not end the search for one.
                yield hints or [Hint(None, preferred=False)]


def _agreed(lists: Sequence[Sequence[Hint]]) -> set[int | None] | None:
    """What all lists prefer: sets that each either prefers or does not mind; None where they do not agree."""
    agreed: set[int | None] = {None}
    for hints in lists:
        preferred = {hint.mask for hint in hints if hint.preferred}
        either: set[int | None] = {
            mask for mask in agreed if mask is not None and (mask in preferred or None in preferred)
        }
        if None in agreed:
            either |= preferred
        agreed = either
        if not agreed:
            return None
    return agreed

"""Which GPUs a container gets, of those that its kubelet would let it have.

The order of preference, each rule breaking the ties of the one before:

- ``require`` and ``prefer``: the largest sum of pair weights (with the pod's other devices); most pairs in one NUMA
  zone; the largest clique left free; the best connected devices left free (weights, then zones); the lowest devices.
  ``require`` admits cliques only.
- no annotation: the largest clique left free, then the same.

The result is what exhaustive search would find, for up to 16 devices that are free or the pod's own. For more,
``require`` still finds a set exactly where there is one; the best among them is found by greedy growth from each device
and by exchanges.
"""

from functools import lru_cache
from typing import Final

import msgspec
import numpy as np

from engine.kubelet.devices.links import (
    TABLE_DEVICES,
    Ints,
    LinkGraph,
    bits,
    cliques,
    largest_clique,
    mask_of,
    part,
    subsets,
    tables,
)

REQUIRE: Final = "require"
PREFER: Final = "prefer"
KEEP: Final = ""  # no annotation: keep the largest clique

_REMEMBERED: Final = 8192


class DeviceChoice(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What is asked of one choice; all sets are masks.

    ``free``: what nobody holds, on the whole machine. ``within``: what may be chosen (None: ``free``). ``must``: part
    of the result whatever else is (an init container's devices, or all that are aligned), counted in ``count``.
    ``held``: devices of the pod's other containers. ``later``: how many more devices of this resource the pod will
    want, and ``reach``: from where (None: ``free``).
    """

    count: int
    free: int
    mode: str = KEEP
    within: int | None = None
    must: int = 0
    held: int = 0
    later: int = 0
    reach: int | None = None


def best_set(graph: LinkGraph, free: int, count: int, mode: str = KEEP) -> int | None:
    """The best set of ``count`` of the free devices, as a mask; None where there is none."""
    return choose(graph, DeviceChoice(count=count, free=free, mode=mode))


@lru_cache(maxsize=_REMEMBERED)
def choose(graph: LinkGraph, wanted: DeviceChoice) -> int | None:
    """The best set for a container, as a mask; None where there is none: too few devices, or no clique."""
    free = wanted.free & graph.all
    within = (free if wanted.within is None else wanted.within & graph.all) & ~wanted.held | wanted.must
    if wanted.count < wanted.must.bit_count() or wanted.count > within.bit_count():
        return None
    relevant = free | within | wanted.held
    if graph.size <= TABLE_DEVICES:
        return _choose_by_table(graph, wanted, free, within)
    if relevant.bit_count() <= TABLE_DEVICES:
        kept = tuple(bits(relevant))

        def squeezed(mask: int) -> int:
            return mask_of([position for position, device in enumerate(kept) if mask >> device & 1])

        # The same wish with devices numbered by their position in ``kept``.
        small = msgspec.structs.replace(
            wanted,
            free=squeezed(wanted.free),
            within=squeezed(within),
            must=squeezed(wanted.must),
            held=squeezed(wanted.held),
            reach=None if wanted.reach is None else squeezed(wanted.reach),
        )
        found = choose(part(graph, relevant), small)
        return None if found is None else mask_of([kept[device] for device in bits(found)])
    return _choose_by_growth(graph, wanted, free, within)


def _choose_by_table(graph: LinkGraph, wanted: DeviceChoice, free: int, within: int) -> int | None:
    worth = tables(graph)
    sets = subsets(graph.size, wanted.count)
    sets = sets[((sets & ~within) == 0) & ((sets & wanted.must) == wanted.must)]
    reach = free if wanted.reach is None else wanted.reach & graph.all
    if wanted.mode == REQUIRE:
        # Those sets that, with what the pod holds, are cliques and can grow to all that the pod will want.
        joined = sets | wanted.held
        is_clique = worth.clique[joined] == wanted.count + wanted.held.bit_count()
        if wanted.later:
            is_clique = is_clique & (worth.clique[reach & worth.common[joined] & ~joined] >= wanted.later)
        sets = sets[is_clique]
    elif wanted.mode == PREFER and wanted.later:
        # Those sets that lie in the best one for the whole pod, where any does.
        whole = choose(
            graph,
            DeviceChoice(
                count=wanted.count + wanted.later,
                free=wanted.free,
                mode=PREFER,
                within=reach | within,
                must=wanted.must,
                held=wanted.held,
            ),
        )
        inside = sets if whole is None else sets[(sets & ~whole) == 0]
        sets = inside if len(inside) else sets
    if not len(sets):
        return None
    left = free & ~sets
    joined = sets | wanted.held
    closeness = (worth.weight[joined], worth.in_zone[joined])
    spared = worth.clique[left]
    rules = (spared, *closeness) if wanted.mode == KEEP else (*closeness, spared)
    return int(sets[_first_best(*rules, worth.weight[left], worth.in_zone[left])])


def _first_best(*rules: Ints) -> int:
    """The first position that is largest by the first rule, among those by the second, and so on."""
    where = np.flatnonzero(rules[0] == rules[0].max())
    for rule in rules[1:]:
        if len(where) == 1:
            break
        values = rule[where]
        where = where[values == values.max()]
    return int(where[0])


def _choose_by_growth(graph: LinkGraph, wanted: DeviceChoice, free: int, within: int) -> int | None:
    if wanted.mode != REQUIRE:
        return _grow(graph, wanted, free, within)
    own = wanted.must | wanted.held
    if not graph.is_clique(own):
        return None
    reach = free if wanted.reach is None else wanted.reach
    need = wanted.count - wanted.must.bit_count()
    if not need and not wanted.later:
        return wanted.must
    best: int | None = None
    for clique in cliques(graph, (within | reach) & graph.common(own) & ~own):
        if (clique & within).bit_count() < need or clique.bit_count() < need + wanted.later:
            continue
        found = _grow(graph, wanted, free, clique & within | wanted.must)
        if found is not None and (best is None or _rank(graph, wanted, free, found) > _rank(graph, wanted, free, best)):
            best = found
    return best


def _grow(graph: LinkGraph, wanted: DeviceChoice, free: int, within: int) -> int | None:
    """A well connected set: grown from each device by the one that adds most, then bettered by exchanges."""
    if within.bit_count() < wanted.count:
        return None
    best: int | None = None
    for start in bits(within):
        chosen = wanted.must
        if chosen.bit_count() < wanted.count:
            chosen |= 1 << start
        while chosen.bit_count() < wanted.count:
            chosen |= 1 << max(
                bits(within & ~chosen),
                key=lambda device, base=chosen: (*_gain(graph, base | wanted.held, device), -device),  # type: ignore[misc]
            )
        if best is None or _rank(graph, wanted, free, chosen) > _rank(graph, wanted, free, best):
            best = chosen
    if best is None:
        return None
    # Swap one device for another for as long as that betters the set; each round strictly does, so it ends.
    while True:
        swaps = [
            best & ~(1 << out) | 1 << device for out in bits(best & ~wanted.must) for device in bits(within & ~best)
        ]
        better = max(swaps, key=lambda swap: _rank(graph, wanted, free, swap), default=best)
        if _rank(graph, wanted, free, better) <= _rank(graph, wanted, free, best):
            return best
        best = better


def _gain(graph: LinkGraph, chosen: int, device: int) -> tuple[int, int]:
    row = graph.weights[device]
    return sum(row[other] for other in bits(chosen)), sum(graph.beside(device, other) for other in bits(chosen))


def _rank(graph: LinkGraph, wanted: DeviceChoice, free: int, chosen: int) -> tuple[int, ...]:
    """The order of preference of the module, as a key; larger is better.

    The largest clique left is what costs here, so it only counts where it leads.
    """
    left = free & ~chosen
    joined = chosen | wanted.held
    first = (largest_clique(graph, left),) if wanted.mode == KEEP else ()
    low = tuple(-device for device in bits(chosen))
    return (
        *first,
        graph.weight_of_set(joined),
        graph.pairs_in_zone(joined),
        graph.weight_of_set(left),
        graph.pairs_in_zone(left),
        *low,
    )


def fragmentation(graph: LinkGraph, free_after: int) -> int:
    """How far what is left is from the best connected set of its size on this machine: 0 (none) to 1000.

    A set is worth its weight, and one more for each pair in one NUMA zone: as finely as is needed to compare nodes,
    where `choose` compares weights first.
    """
    left = free_after & graph.all
    size = left.bit_count()
    if graph.size <= TABLE_DEVICES:
        worth = tables(graph)
        best, now = int(worth.peak[size]), int(worth.weight[left] + worth.in_zone[left])
    else:
        peak = best_set(graph, graph.all, size, PREFER) or 0
        best, now = (
            graph.weight_of_set(peak) + graph.pairs_in_zone(peak),
            graph.weight_of_set(left) + graph.pairs_in_zone(left),
        )
    return 0 if best <= now else 1000 * (best - now) // best

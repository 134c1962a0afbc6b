"""How well one more pod would be aligned on each node, as one number a node; less is better.

From the highest bits to the lowest:

- the zones that the pod is spread over, in halves: a node where that is not known, or where nothing is aligned, comes
  after those where one zone suffices and before those where two are needed;
- for a pod with ``gpu-link``, how loosely its devices are linked, at the worst where it is not known which it gets;
- the mean distance of its zones;
- how full its zones become, where a ``ZoneScore`` asks for that;
- in how many more pieces the free devices fall (cliques of GPUs; for XPUs delta MTF);
- for ties alone (``TIES``), how far the devices that stay free are from the best set of their size.

It is worked out for all columns of a kind together, from the zones of `engine.numa.batch.spread`. What links and
distances add is asked of `admit` once for equal layouts, zones and free devices. Where closed forms say nothing of a
shape on a kind, the exact admission is asked for each distinct state, as for the counts. A preference only: whether a
node takes a pod was decided before.
"""

from collections import Counter
from typing import Any, Final, NamedTuple

import numpy as np

from engine.arrays import Ints
from engine.kubelet.admit import MOST_ZONES
from engine.kubelet.machine import Layout, PodShape, State, TopologyPolicy
from engine.kubelet.rebuild import asked
from engine.numa.batch.masks import Workspace
from engine.numa.batch.sequential import UNKNOWN
from engine.numa.batch.spread import spread
from engine.numa.columns import View
from engine.numa.count_plans import CountPlan
from engine.numa.score import FULL, ZoneScore, breaks, broken_up, close, distance, fullness

NOT_KNOWN: Final = 3  # in half zones: after one zone, before two
WORST_ZONES: Final = 31  # in half zones: the node does not take the pod
_LOOSE, _APART, _FULL, _BREAKS, _LEFT = (1 << 17) - 1, (1 << 15) - 1, (1 << 10) - 1, (1 << 6) - 1, (1 << 10) - 1
_AS_BEFORE: Final = 32  # what is added to the pieces, so that fewer of them are a number too
TIES: Final = 10  # bits that decide among equally tight nodes only
# There are 58 bits, and 5 above them for the half zones: the number stays a positive int64.
AT_ZONES: Final = 17 + 15 + 10 + 6 + TIES  # where the half zones begin


class Rest(NamedTuple):
    """What else there is to a machine beside zones and how full they are (see the module), or to many, as arrays."""

    loose: Any = _LOOSE
    apart: Any = 0
    breaks: Any = 0
    left: Any = 0


def packed(halves: Any, full: Any, rest: Rest) -> Any:
    """One number of half zones, how full they become, and the rest; arrays of arrays.

    What is out of bounds counts as the bound.
    """
    found = halves
    for value, most, bits in (
        (rest.loose, _LOOSE, 17),
        (rest.apart, _APART, 15),
        (full, _FULL, 10),
        (rest.breaks + _AS_BEFORE, _BREAKS, 6),
        (rest.left, _LEFT, TIES),
    ):
        found = found << bits | (np.clip(value, 0, most) if isinstance(value, np.ndarray) else min(max(value, 0), most))
    return found


UNKNOWN_NODE: Final = int(packed(NOT_KNOWN, 0, Rest()))
WORST: Final = int(packed(WORST_ZONES, 0, Rest()))


def half_zones(alignments: Ints) -> Ints:
    """Of each of these numbers, the zones in halves."""
    found: Ints = alignments >> AT_ZONES
    return found


def exactly(layout: Layout, state: State, shape: PodShape, score: ZoneScore) -> int:
    """The number of one machine, by the exact admission."""
    admission = asked(layout, state, shape)
    if not admission.admitted:
        return WORST
    zones = admission.zones
    full = _full_of(layout, admission.after, zones, {name for _, held in admission.uses for name, _ in held}, score)
    rest = _rest(layout, state, shape, zones)
    halves = min(2 * zones.bit_count(), WORST_ZONES - 1) or NOT_KNOWN  # no more bits are left for them
    return int(packed(halves, full, rest))


def _full_of(layout: Layout, after: State, zones: int, held: set[str], score: ZoneScore) -> int:
    """How full the zones become together."""
    if score is ZoneScore.LEAST_NUMA_NODES:
        return 0
    used, members = [], [zone for zone in range(len(layout.zones)) if zones >> zone & 1]
    for row in [row for row, resource in enumerate(layout.resources) if resource in held]:
        whole = sum(max(layout.allocatable[zone][row], 0) for zone in members)
        if whole:
            used.append(FULL * (whole - sum(max(after.free[zone][row], 0) for zone in members)) // whole)
    return int(fullness(used, score))


def _rest(layout: Layout, state: State, shape: PodShape, zones: int) -> Rest:
    admission = asked(layout, state, shape)
    if not admission.admitted:
        return Rest()
    loose, after, amounts = _LOOSE, admission.after, Counter[str]()
    if shape.gpu_link:
        for _, held in admission.uses:
            amounts.update(dict(held))
        loose -= close(layout, dict(admission.devices), amounts, zones)
    return Rest(loose, distance(layout, zones), breaks(layout, state, after), broken_up(layout, after))


def alignments(view: View, plan: CountPlan, shape: PodShape, score: ZoneScore, space: Workspace) -> Ints:
    """The numbers of some columns of a kind; ``UNKNOWN`` where the exact admission has to be asked."""
    zones = spread(view, plan, space)
    halves = 2 * np.bitwise_count(np.maximum(zones, 0)).astype(np.int64)
    halves[zones == 0] = NOT_KNOWN
    if shape.wish is TopologyPolicy.BEST_EFFORT and plan.policy is TopologyPolicy.NONE:
        some = np.zeros((view.zones, view.width), np.bool_)
        for row in plan.whole.rows:
            some |= view.free(row) > 0
        # Nothing is aligned there, unless all that is free of what is asked for lies in one zone.
        halves[(halves == 2) & (some.sum(axis=0) != 1)] = NOT_KNOWN
    rest = _rests(view, plan, shape, zones)
    full = 0 if score is ZoneScore.LEAST_NUMA_NODES else _full(view, plan, zones, score)
    found: Ints = packed(halves, full, rest)
    # Last: no known zones are packed as no zones at all, which would be the best number of all.
    found[zones == UNKNOWN] = UNKNOWN
    return found


def _full(view: View, plan: CountPlan, zones: Ints, score: ZoneScore) -> Any:
    """How full the zones become together, of all columns."""
    inside = np.maximum(zones, 0) >> np.arange(view.zones)[:, None] & 1
    used = []
    for row, amount in plan.whole.pairs:
        whole = (view.kind.allocatable[row][:, view.layout] * inside).sum(axis=0)
        left = (view.free(row) * inside).sum(axis=0) - amount
        used.append(np.where(whole > 0, FULL * (whole - left) // np.maximum(whole, 1), 0))
    return fullness(used, score)


def _rests(view: View, plan: CountPlan, shape: PodShape, zones: Ints) -> Rest:
    """Of all columns. Asked once for equal layouts, zones and free linked devices."""
    traits = view.kind.traits
    linked = [row for row in plan.whole.rows if traits.resources[row] in {*traits.graphs, *traits.cliques}]
    if not linked:
        wide = (zones & (zones - 1) > 0).nonzero()[0]
        if not len(wide):
            return Rest()
        # A mask has `MOST_ZONES` bits at most, so layout and mask share one number without touching.
        keys, where = np.unique(view.layout[wide] << MOST_ZONES | zones[wide], return_inverse=True)
        inside = (1 << MOST_ZONES) - 1
        each = [distance(view.kind.layout_at[key >> MOST_ZONES], key & inside) for key in keys.tolist()]
        apart = np.zeros(view.width, np.int64)
        apart[wide] = np.array(each, np.int64)[where]
        return Rest(apart=apart)
    found = np.repeat(np.array(Rest(), np.int64)[:, None], view.width, axis=1)
    known: dict[tuple[object, ...], Rest] = {}
    layouts, masks = view.layout.tolist(), zones.tolist()
    for place, slot in enumerate(view.column_numbers):
        at, mask = view.kind.at[slot], masks[place]
        if at is None or mask <= 0:
            continue
        key = layouts[place], mask, *[at[1].devices[row] for row in linked if at[1].devices]
        rest = known.get(key)
        if rest is None:
            rest = known[key] = _rest(*at, shape, mask)
        found[:, place] = rest
    return Rest(*found)

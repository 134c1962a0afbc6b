"""What pods without a record hold in each zone, as far as the report and their own requests tell. Plain functions.

A pod of which nobody wrote down the zones is not guessed, and yet it holds something. The report says how much is used
in each zone by all pods together. Less what those with a record hold there, that is what the others may hold: no more
than they ask for in all, so that neither an old report nor a wrong one takes more of a zone than they could. Where one
zone alone has a resource, they hold all of it there.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Final

from engine.kubelet.machine import CPU, ContainerKind, Layout, NumaPlacement, PodShape
from engine.kubelet.rebuild import Amounts, places_of
from engine.kubelet.resource_requests import Pairs, asks_of

TAKES_KEPT: Final = 1 << 13
Rows = tuple[tuple[int, ...], ...]  # (zones, resources), in the units of a layout


@lru_cache(maxsize=TAKES_KEPT)
def amounts_in_zones(layout: Layout, shape: PodShape | None) -> Pairs:
    """(row, amount) that a pod holds of the zones of a layout while it runs; () where that is nothing or not known.

    What ordinary init containers got is not counted: exporters do not list it.
    """
    if shape is None:
        return ()
    found: dict[int, int] = {}
    asks = asks_of(layout.resources, layout.ignored, layout.kubelet, shape)
    for kind, _, ask in asks.containers:
        cpus = ((layout.resources.index(CPU), 1000 * ask.cpus),) if ask.cpus else ()
        for row, amount in (*cpus, *ask.memory, *ask.devices) if kind is not ContainerKind.INIT else ():
            found[row] = found.get(row, 0) + amount
    return tuple(
        [
            (row, amount)
            for row, amount in sorted(found.items())
            if amount and any(zone[row] >= 0 for zone in layout.allocatable)
        ]
    )


def held_apart(layout: Layout, available: Rows, need: Mapping[int, int], counted: Iterable[NumaPlacement]) -> Rows:
    """What pods without a record hold of each zone.

    ``available``: what the report says; ``need``: by row, what those pods ask for in all; ``counted``: what the report
    counts of pods with a record.
    """
    told = Amounts(layout, available)
    for placement in counted:
        told.apply_placement(placement, -1)
    found = [[0] * len(layout.resources) for _ in layout.zones]
    for row, amount in need.items():
        zones = [at for at, zone in enumerate(layout.allocatable) if zone[row] >= 0]
        for at in zones:
            # In use by the report, less what pods with a record hold: the rest belongs to those without one.
            unseen = layout.allocatable[at][row] - told.left[at][row]
            found[at][row] = amount if len(zones) == 1 else min(max(unseen, 0), amount)
    return tuple([tuple(zone) for zone in found])


def not_in_report(
    layout: Layout,
    available: Rows,
    sure: Collection[tuple[Pairs, NumaPlacement | None]],
    doubtful: Mapping[str, tuple[Pairs, NumaPlacement | None]],
) -> frozenset[str]:
    """Those pods among ``doubtful`` that a report cannot count yet: less is used than all of them hold.

    ``sure``: (what it takes, its record) of the pods that an earlier report counted; ``doubtful`` by key. A resource of
    which nothing is in use tells nothing: not every exporter counts every one.
    """
    told, used = Amounts(layout, available), [0] * len(layout.resources)
    for zone, left in zip(layout.allocatable, available, strict=True):
        for row, amount in enumerate(zone):
            used[row] += max(amount - left[row], 0) if amount >= 0 else 0
    # Taken before pods are counted off: a resource that is all accounted for is still one that the exporter counts.
    telling = {row for row, amount in enumerate(used) if amount}
    for pairs, placement in sure:
        _subtract_used(used, told, pairs, placement)
    late = []
    # By name: which of two pods the report is taken to count must not depend on the order of events.
    for key, (pairs, placement) in sorted(doubtful.items()):
        asked = [(row, amount) for row, amount in pairs if row in telling]
        enough = bool(asked) and all(amount <= used[row] for row, amount in asked)
        if not pairs or (enough and _is_accounted(layout, told, placement, telling)):
            _subtract_used(used, told, pairs, placement)
        else:
            late.append(key)
    return frozenset(late)


def _subtract_used(used: list[int], told: Amounts, pairs: Pairs, placement: NumaPlacement | None) -> None:
    for row, amount in pairs:
        used[row] -= amount
    if placement is not None:
        told.apply_placement(placement, -1)


def _is_accounted(layout: Layout, told: Amounts, placement: NumaPlacement | None, telling: Collection[int]) -> bool:
    """Whether so much is used in each zone of a placement, beside what is accounted for."""
    zones, rows = places_of(layout)
    return placement is None or all(
        layout.allocatable[zones[use.zone]][rows[resource]] - told.left[zones[use.zone]][rows[resource]] >= amount
        for use in placement.zones
        if use.zone in zones
        for resource, amount in use.amounts.items()
        if rows.get(resource) in telling and layout.allocatable[zones[use.zone]][rows[resource]] >= 0
    )

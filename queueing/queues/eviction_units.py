"""What may be evicted by itself: a workload, the slices that it has in one domain, or a pod that no queue admitted.

Rules
- A gang goes whole. One that declared it (`Workload.by_slices`) may lose all slices that it has in one domain of its
  widest slice level, and keeps the others. So its ranks stay whole slices, whatever moved before; what it lost it wants
  back as growth. This counts for workloads of one pod set; of its last domain it loses everything, and goes whole.
- A *unit* has a key (`engine.reservation_key`): the workload's; the same with a domain as its part; or that of a pod.
"""

from collections.abc import Collection, Iterable

from engine.cluster.assignment import Assignment, with_slices
from engine.reservation_key import HolderKey, ReservationKey
from queueing.model import Workload

Path = tuple[str, ...]


def slice_level(workload: Workload) -> str:
    """The level whose domains a workload may lose one by one; "" where it goes whole."""
    if not workload.by_slices or len(workload.pod_sets) != 1:
        return ""
    layers = workload.pod_sets[0].topology.slices
    return layers[0].level if layers else ""


def units_of(workload: Workload, parts: Iterable[Assignment]) -> list[HolderKey]:
    """The units of a workload that holds this."""
    level, found = slice_level(workload), dict[Path, None]()
    for part in parts:
        if level in part.levels:
            depth = part.levels.index(level) + 1
            found |= dict.fromkeys(piece.values[:depth] for piece in part.slices)
    # A workload that holds no slots, as all its pods are done, still holds quota to give back.
    return [ReservationKey.for_domain(workload.key, domain) for domain in found] or [workload.key]


def split(parts: Iterable[Assignment], domains: Collection[Path]) -> tuple[list[Assignment], list[Assignment]]:
    """(what is left, what is lost) when everything in some domains goes."""
    kept: list[Assignment] = []
    lost: list[Assignment] = []
    for part in parts:
        inside = [any(piece.values[: len(domain)] == domain for domain in domains) for piece in part.slices]
        if not any(inside):
            kept.append(part)
            continue
        pieces = list(zip(part.slices, inside, strict=True))
        lost.append(with_slices(part, [piece for piece, goes in pieces if goes]))
        if not all(inside):
            kept.append(with_slices(part, [piece for piece, goes in pieces if not goes]))
    return kept, lost

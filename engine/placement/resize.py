"""Assignments that change: more pods, fewer pods, pods moved off lost nodes. Nothing here changes the state."""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate

from engine.cluster.assignment import Assignment, Slice, slices_of, with_slices
from engine.cluster.state import ClusterState
from engine.cluster.tree import Path
from engine.model import PODS, PodSet, SliceLayer
from engine.placement import refusals
from engine.placement.fit import Fit
from engine.placement.grow import Growth, leaves_of, merged
from engine.placement.refill import Refill, refill
from engine.placement.search.descent import Pick
from engine.placement.slices import in_words
from engine.reasons import Reason
from engine.results import Refusal


def extend(state: ClusterState, workload: str, pod_set: PodSet, by: int) -> Assignment | Refusal:
    """The whole new assignment with ``by`` more pods; where the level is required, in the same domain.

    Room on nodes that are used already comes first, then the domains used already. With slices, those that are not
    whole are completed where they are, and more come whole. Raises ValueError where the workload holds no such pod set.
    """
    held = held_of(state, workload, pod_set.name)
    return held if by <= 0 else grown(state, held, held.slices, pod_set, by, frozenset())


def enlarge(state: ClusterState, workload: str, pod_set: PodSet, by: int) -> Assignment | Refusal:
    """The whole new assignment with ``by`` more pods, for pods that ask for more than those that it was made for.

    Slots that no pod claims and that their node is too small for now go elsewhere (same required domain). Pods that
    claim theirs stay, and take what they take. Raises ValueError where the workload holds no such pod set.
    """
    held = held_of(state, workload, pod_set.name)
    others = [part for name, part in state.assignments(workload).items() if name != pod_set.name]
    checkpoint = state.begin()
    try:
        larger = Assignment(
            pod_set=held.pod_set,
            flavor=held.flavor,
            levels=held.levels,
            requests=pod_set.requests,
            slices=held.slices,
            source=pod_set,
        )
        # Held at the larger size first: where that is too much, the
        # node's free amounts turn negative, which `_crowding` reads.
        state.reserve(workload, [*others, larger])
        gone = _crowding(state, workload, larger)
        if not gone:
            return larger if by <= 0 else grown(state, larger, larger.slices, pod_set, by, frozenset())
        stays = []
        for part in larger.slices:
            nodes = tuple((name, pods - gone.get(name, 0)) for name, pods in part.nodes if pods > gone.get(name, 0))
            if count := part.count - sum(gone.get(name, 0) for name, _ in part.nodes):
                stays.append(Slice(part.values, count, nodes))
        state.reserve(workload, [*others, with_slices(larger, stays)] if stays else others)
        return grown(state, larger, stays, pod_set, by + sum(gone.values()), frozenset(gone))
    finally:
        state.rollback(checkpoint)


def _crowding(state: ClusterState, workload: str, part: Assignment) -> dict[str, int]:
    """By node that is over-committed now: how many slots that no pod claims have to leave it."""
    gone: dict[str, int] = {}
    asks = {PODS: 1, **part.requests}
    for name in {name for piece in part.slices for name, _ in piece.nodes}:
        free = state.free_on_node(name)
        # Floor division of a negative number rounds a shortage up: a shortage of one byte is one slot too many.
        over = (-(free.get(resource, 0) // amount) for resource, amount in asks.items() if amount > 0)
        crowd = min(max(over, default=0), state.unclaimed_on(workload, part.pod_set, name))
        if crowd > 0:
            gone[name] = crowd
    return gone


def replace(state: ClusterState, workload: str, pod_set: PodSet, lost: Collection[str]) -> Assignment | Refusal:
    """The whole new assignment with the slots on the ``lost`` nodes moved elsewhere (same required domain).

    What is lost of a slice comes back in the slice's domain; slices that are lost whole may go to another. Raises
    ValueError where the workload holds no such pod set.
    """
    held = held_of(state, workload, pod_set.name)
    stays, by = [], 0
    for part in held.slices:
        nodes = tuple((name, pods) for name, pods in part.nodes if name not in lost)
        gone = sum(pods for name, pods in part.nodes if name in lost)
        by += gone
        if count := part.count - gone:
            stays.append(Slice(part.values, count, nodes))
    return grown(state, held, stays, pod_set, by, frozenset(lost)) if by else held


def shrink(  # noqa: PLR0917  (what is asked of whom, then two limits)
    state: ClusterState,
    workload: str,
    pod_set: str,
    by: int,
    keep: Mapping[Path, int] | None = None,
    slices: Sequence[SliceLayer] = (),
) -> Assignment:
    """The whole new assignment with ``by`` fewer pods: slots no pod claims first, from the end of rank order.

    ``keep``: slice values -> pods that are known to sit there though no claim was seen yet. ``slices``: of the pod set;
    those that no pod uses then go whole, before any is broken, and a tail (`engine.placement.slice_tail`) before them,
    where what remains has another one. Raises ValueError where the workload holds no such pod
    set.
    """
    held = held_of(state, workload, pod_set)
    known = dict(state.unclaimed(workload, pod_set))
    counts = [part.count for part in held.slices]
    unused = [min(known.get(p.values, p.count), p.count - (keep or {}).get(p.values, 0)) for p in held.slices]
    if slices:
        by = _slices_taken(held, counts, unused, by, slices)
    left = _lower_counts(counts, unused, by)
    # Where slots without pods do not suffice, slots with pods go, from the end of rank order too.
    _lower_counts(counts, list(counts), left)
    kept = (cut(part, count) for part, count in zip(held.slices, counts, strict=True) if count)
    return with_slices(held, kept)


def _slices_taken(held: Assignment, counts: list[int], unused: list[int], by: int, slices: Sequence[SliceLayer]) -> int:
    """Lower both by whole slices that nobody uses, and by what a tail has; returns what is left of ``by``."""
    size, total, left = slices[0].size, sum(counts), 0
    if len(slices) > 1 or slices[0].level not in held.levels or not (total % size or by % size):
        return _taken_whole(counts, unused, by, size)
    depth = held.levels.index(slices[0].level) + 1
    places: dict[Path, list[int]] = {}
    for at, part in enumerate(held.slices):
        places.setdefault(part.values[:depth], []).append(at)
    tail = total % size
    host = next((inside for inside in places.values() if sum(counts[at] for at in inside) % size == tail), [])
    if tail and by % size == 0:
        # It stays, and is out of sight meanwhile: whole slices are looked for in what is beside it.
        seen = list(counts), list(unused)
        _lower_inside(counts, unused, host, tail)
        kept = [
            [was - now for was, now in zip(*both, strict=True)] for both in zip(seen, (counts, unused), strict=True)
        ]
        left = _taken_whole(counts, unused, by, size)
        for values, more in zip((counts, unused), kept, strict=True):
            values[:] = [value + extra for value, extra in zip(values, more, strict=True)]
        return left
    if tail:
        gone = min(tail, by)
        left = _lower_inside(counts, unused, host, gone)
        by -= gone
    broken = by % size
    left += _taken_whole(counts, unused, by - broken, size)
    if broken:
        # One slice becomes a tail: the last one that has enough without pods, else the last of all.
        inside = [one for one in reversed(places.values()) if sum(counts[at] for at in one) >= broken]
        free = (one for one in inside if sum(unused[at] for at in one) >= broken)
        left += _lower_inside(counts, unused, next(free, inside[0] if inside else ()), broken)
    return left


def _lower_inside(counts: list[int], unused: list[int], inside: Sequence[int], by: int) -> int:
    """Lower both by ``by`` in some places, from the end, slots that no pod uses first; returns what is left of it."""
    for most in (unused, counts):
        for at in reversed(inside):
            taken = max(min(most[at], by), 0)
            counts[at] -= taken
            unused[at] = max(0, unused[at] - taken)
            by -= taken
    return by


def _lower_counts(counts: list[int], most: list[int], by: int) -> int:
    """Lower ``counts`` by ``by`` in all, from the end, each by at most ``most``; returns what is left of ``by``."""
    for i in reversed(range(len(counts))):
        taken = max(min(most[i], by), 0)
        counts[i] -= taken
        by -= taken
    return by


def _taken_whole(counts: list[int], unused: list[int], by: int, size: int) -> int:
    """Lower ``counts`` and ``unused`` by slices of ``size`` that nobody uses, from the end of rank order."""
    ends = list(accumulate(counts))
    # Slices are counted in rank order, so a slice may begin in the middle of one domain's slots.
    number = ends[-1] // size - 1 if ends else -1
    while number >= 0 and by >= size:
        low, high = number * size, (number + 1) * size
        first, last = bisect_right(ends, low), bisect_left(ends, high)
        if first == last:  # and so are those before it, down to the first that begins there
            begin = -(-(ends[first - 1] if first else 0) // size)
            gone = size * max(min(number - begin + 1, unused[first] // size, by // size), 0)
            counts[first] -= gone
            unused[first] -= gone
            by -= gone
            number = begin - 1
            continue
        inside = range(first, last + 1)
        parts = [min(ends[i], high) - max(ends[i - 1] if i else 0, low) for i in inside]
        if all(part <= unused[i] for i, part in zip(inside, parts, strict=True)):
            for i, part in zip(inside, parts, strict=True):
                counts[i] -= part
                unused[i] -= part
            by -= size
        number -= 1
    return by


def held_of(state: ClusterState, workload: str, pod_set: str) -> Assignment:
    """What a workload holds for a pod set. Raises ValueError where that is nothing."""
    held = state.assignments(workload).get(pod_set)
    if held is None:
        raise ValueError(f"workload {workload!r} holds no pod set {pod_set!r}; reserve or restore it first")
    return held


def cut(part: Slice, count: int) -> Slice:
    """The slice with fewer pods, taken from its last nodes."""
    nodes: list[tuple[str, int]] = []
    left = count
    for name, pods in part.nodes:
        if left:
            nodes.append((name, min(pods, left)))
            left -= nodes[-1][1]
    return Slice(part.values, count, tuple(nodes))


def grown(  # noqa: PLR0917  (a step of two public functions)
    state: ClusterState, held: Assignment, stays: Collection[Slice], pod_set: PodSet, by: int, lost: frozenset[str]
) -> Assignment | Refusal:
    """The assignment with ``by`` more pods beside the slots that stay, none of them on the ``lost`` nodes."""
    fit = Fit.count_pod_set(state, held.flavor, pod_set)
    if isinstance(fit, Refusal):
        return fit
    # Slices have one value a level: with other levels the old and the new ones could not be told apart or merged.
    if fit.tree.flavor.levels != held.levels:
        levels = ", ".join(held.levels)
        text = f"flavor {held.flavor} was created again without the levels by which the pods were placed: {levels}"
        return Refusal(Reason.NO_FLAVOR, text, pod_set.name, held.flavor)
    growth = Growth(fit, leaves_of(fit.tree, state, stays), leaves_of(fit.tree, state, [], lost), by)
    if fit.layers:
        return _refilled(state, held, stays, growth, lost)
    for container, domain in growth.containers(held):
        pick = growth.pick(container, domain)
        if pick is not None:
            return merged(held, stays, slices_of(fit.tree, pick.leaves, pick.amounts), fit.tree, pod_set)
    return refusals.no_room_for_more(state, growth, held)


def _refilled(
    state: ClusterState, held: Assignment, stays: Collection[Slice], growth: Growth, lost: frozenset[str]
) -> Assignment | Refusal:
    """The same for a pod set with slices."""
    fit, by = growth.fit, growth.by
    tree, pod_set = fit.tree, fit.pod_set
    found = refill(growth, held, stays, lost)
    if isinstance(found, Pick):
        return merged(held, stays, slices_of(tree, found.leaves, found.amounts), tree, pod_set)
    if found is Refill.NO_ROOM:
        return refusals.no_room_for_more(state, growth, held)
    reason = Reason.INVALID_REQUEST if found is Refill.UNEVEN else Reason.DOES_NOT_FIT
    text = f"{by} more pods do not fit{in_words(pod_set.topology)}: {found}"
    return Refusal(reason, text, pod_set.name, held.flavor)

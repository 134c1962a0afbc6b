"""Refusals, in words for a person: which level, how many pods, how close the best domain came, and what ran out."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from msgspec import structs

from engine.cluster.affinity import ONE_A_VALUE, ConstrainedCounts, device_caps, room
from engine.cluster.assignment import Assignment
from engine.cluster.fit_counts import Counts
from engine.cluster.levels import domain_in_words
from engine.cluster.state import ClusterState
from engine.model import PodSet, Policy
from engine.placement.explain import domain_fit
from engine.placement.fit import ANYWHERE, Fit
from engine.placement.grow import Growth
from engine.placement.slices import in_words
from engine.quantity import format_quantity
from engine.reasons import Reason
from engine.results import Refusal, WorkloadRequest

# How close a refusal is to a placement, closest first: of several flavors' refusals the closest is told.
GRAVITY: Final = (
    Reason.NUMA_ALIGNMENT,
    Reason.DOES_NOT_FIT,
    Reason.UNSUPPORTED_CONSTRAINT,
    Reason.NEVER_FITS,
    Reason.NO_NODES,
    Reason.UNKNOWN_LEVEL,
    Reason.NO_FLAVOR,
    Reason.INVALID_REQUEST,
)


def gravity(refusal: Refusal) -> int:
    """The place of a refusal's reason in GRAVITY."""
    return GRAVITY.index(refusal.reason)


def invalid(request: WorkloadRequest) -> Refusal | None:
    """What is wrong with a request by itself."""
    names: set[str] = set()
    if not request.pod_sets:
        return Refusal(Reason.INVALID_REQUEST, f"{request.key}: no pod sets; expected at least one")
    for pod_set in request.pod_sets:
        wrong = _wrong(pod_set, names)
        if wrong:
            return Refusal(Reason.INVALID_REQUEST, f"{request.key}, pod set {pod_set.name}: {wrong}", pod_set.name)
        names.add(pod_set.name)
    return _split_group(request.pod_sets) if len(request.pod_sets) > 1 else None


def _wrong(pod_set: PodSet, names: set[str]) -> str:
    if pod_set.name in names:
        return "the name is used twice; each pod set needs its own"
    if pod_set.count < 1:
        return f"count is {pod_set.count}; expected at least 1"
    if pod_set.topology.level is None and pod_set.topology.policy is not Policy.UNCONSTRAINED:
        return f"{pod_set.topology.policy.lower()} topology needs a level"
    low = [f"{name}={amount}" for name, amount in pod_set.requests.items() if amount < 0]
    if low:
        return f"negative request {', '.join(low)}"
    return _wrong_slices(pod_set) if pod_set.topology.slices else ""


def _wrong_slices(pod_set: PodSet) -> str:
    layers = pod_set.topology.slices
    if pod_set.group:
        return f"it is in group {pod_set.group} and has slices; only one of the two is possible"
    whole, what = pod_set.count, "count"
    for layer in layers:
        if layer.size < 1:
            return f"slices of {layer.size} in one {layer.level}; expected at least 1"
        if whole % layer.size:
            return f"{what} {whole} is no multiple of the slice size {layer.size} (in one {layer.level})"
        whole, what = layer.size, "slice size"
    return ""


def _split_group(pod_sets: Sequence[PodSet]) -> Refusal | None:
    """Pod sets of one group that ask for different domains."""
    first: dict[str, PodSet] = {}
    for pod_set in pod_sets:
        other = first.setdefault(pod_set.group, pod_set) if pod_set.group else pod_set
        if other.topology != pod_set.topology:
            text = (
                f"pod sets {other.name} and {pod_set.name} of group {pod_set.group} ask for different domains: "
                f"{_asked(other)} and {_asked(pod_set)}"
            )
            return Refusal(Reason.INVALID_REQUEST, text, pod_set.name)
    return None


def _asked(pod_set: PodSet) -> str:
    return f"{pod_set.topology.policy.lower()} {pod_set.topology.level or ''}".rstrip()


def flavors_for(state: ClusterState, request: WorkloadRequest, pod_set: PodSet) -> Iterator[str]:
    """The flavors to try for a pod set, in order."""
    level = pod_set.topology.level
    flavors = state.flavors
    if request.flavors:
        yield from (name for name in request.flavors if name in flavors)
        return
    wanted = {part.level for part in pod_set.topology.slices}
    if pod_set.topology.policy is not Policy.UNCONSTRAINED and level is not None:
        wanted.add(level)
    for name in sorted(flavors):
        if wanted.issubset(flavors[name].levels):
            yield name


def no_flavor(state: ClusterState, request: WorkloadRequest, pod_set: PodSet) -> Refusal:
    """No flavor can be asked at all."""
    if request.flavors:
        names = ", ".join(sorted(state.flavors)) or "none"
        text = f"no flavor is named {' or '.join(request.flavors)}; there are: {names}"
        return Refusal(Reason.NO_FLAVOR, text, pod_set.name)
    levels = sorted({level for flavor in state.flavors.values() for level in flavor.levels})
    wanted = [pod_set.topology.level, *(part.level for part in pod_set.topology.slices)]
    what = " and ".join(f"the level {level}" for level in dict.fromkeys(wanted) if level)
    text = f"no flavor has {what}; levels are: {', '.join(levels) or 'none'}"
    return Refusal(Reason.NO_FLAVOR, text, pod_set.name)


def does_not_fit(state: ClusterState, fit: Fit) -> Refusal:
    """Why ``fit.pick()`` found nothing."""
    pod_set, flavor = fit.pod_set, fit.tree.flavor.name
    if _caps_decide(fit):
        keys = ", ".join([c.topology_key for c in pod_set.spread] + [c.topology_key for c in pod_set.anti_affinity])
        text = f"topology spread or anti-affinity by {keys} cannot be honoured: it would need the pods spread evenly"
        return Refusal(
            Reason.UNSUPPORTED_CONSTRAINT, f"{text}, or more than one constraint at once", pod_set.name, flavor
        )
    reason = Reason.DOES_NOT_FIT if _fits_emptied(state, fit) else Reason.NEVER_FITS
    text = message(state, fit)
    if _fits_by_amounts(state, fit):
        reason = Reason.NUMA_ALIGNMENT if reason is Reason.DOES_NOT_FIT else reason
        never = "" if reason is Reason.NUMA_ALIGNMENT else ", nor would they if nothing ran on their nodes"
        text = f"{text}; the amounts would do, but kubelets would refuse pods{never}"
    return Refusal(reason, text, pod_set.name, flavor)


def message(state: ClusterState, fit: Fit) -> str:
    """How close it came: the best domain, and what it is short of."""
    container = list(fit.containers())[-1]
    counts = fit.counts(container)
    need, sliced = fit.pod_set.count, in_words(fit.pod_set.topology)
    if container == ANYWHERE:
        have = f"the {fit.tree.size} nodes of flavor {fit.tree.flavor.name} take {int(counts.at(0).sum())}{sliced}"
        return f"{need} pods do not fit: {have}{_short(state, fit, ANYWHERE, 0)}"
    fits = counts.at(container)
    best = int(fits.argmax())
    level = fit.tree.flavor.levels[container] if container <= fit.tree.last else "node"
    path = fit.tree.path(min(container, fit.tree.last), best if container <= fit.tree.last else 0)
    where = domain_in_words(path)
    text = f"{need} pods do not fit one {level}: the best of {len(fits)}, {where}, takes {int(fits[best])}{sliced}"
    return text + _short(state, fit, container, best)


def no_room_for_more(state: ClusterState, growth: Growth, held: Assignment) -> str:
    """Why no more pods fit beside those that are there: of where these may go, not of the best domain for all."""
    fit, by = growth.fit, growth.by
    level, required = fit.pod_set.topology.level, fit.pod_set.topology.policy is Policy.REQUIRED
    head = f"{by} more pods do not fit" if by > 1 else "1 more pod does not fit"
    head = f"{head} in the same {level}" if required else f"{head} anywhere"
    containers = [*growth.containers(held)]
    if not containers:
        depth = held.levels.index(level) + 1 if level in held.levels else len(held.levels)
        where = domain_in_words(held.slices[0].values[:depth]) if held.slices else f"flavor {held.flavor}"
        return f"{head}: {where} has no nodes any more that take its pods"
    rank, domain = containers[-1]
    tree, room = fit.tree, int(growth.room(rank, domain).sum())
    nodes = f"the {tree.size} nodes of flavor {tree.flavor.name} take"
    has = nodes if rank == ANYWHERE else f"{domain_in_words(tree.path(rank, domain))} takes"
    alone = replace(fit, pod_set=structs.replace(fit.pod_set, count=by))
    return f"{head}: {has} {room} more{_short(state, alone, rank, domain)}"


def _short(state: ClusterState, fit: Fit, container: int, domain: int) -> str:
    found = domain_fit(state, fit.tree, fit.pod_set, fit.room, container, domain)
    if not found.limit:
        return ""
    if found.limit == Reason.SLICES:
        return "; there is room for all pods one by one, but not for whole slices"
    if found.limit == Reason.NUMA_ALIGNMENT:
        return f"; {found.misaligned} of its {found.nodes} nodes take fewer by NUMA than by amounts ({found.refusal})"
    lacks = ", ".join(f"{format_quantity(name, amount)} more" for name, amount in found.missing.items())
    if found.limit == Reason.NODE_FEATURES:
        lacks = ", ".join(fit.pod_set.features)
    if found.limit == Reason.HOST_PORTS:
        ports = ", ".join(dict.fromkeys([term.host_port for term in fit.pod_set.anti_affinity if term.host_port]))
        lacks = f"host port {ports} allows one pod a node"
    others = found.excluded.get(Reason.OTHER_COMPUTE_DOMAIN, 0) if found.limit != Reason.OTHER_COMPUTE_DOMAIN else 0
    return "".join(
        [
            f"; short of {found.limit}",
            f" ({lacks or found.devices})" if lacks or found.devices else "",
            f"; {others} of its nodes belong to other ComputeDomains" if others else "",
        ]
    )


def _caps_decide(fit: Fit) -> bool:
    """Whether it would fit but for caps that are stricter than the constraint they stand for."""
    caps = [cap for cap in fit.room.caps if cap.reason is not Reason.INSUFFICIENT_DEVICES]
    exact = len(caps) == 1 and caps[0].reason in ONE_A_VALUE
    devices = tuple([cap for cap in fit.room.caps if cap.reason is Reason.INSUFFICIENT_DEVICES])
    left = ConstrainedCounts(fit.tree, fit.room.counts, devices, fit.room.ceiling, one=fit.room.one)
    return bool(caps) and not exact and _fits(fit, left)


def _fits_by_amounts(state: ClusterState, fit: Fit) -> bool:
    """Whether it would fit if no kubelet looked inside its node."""
    shape = fit.known.shape
    if shape.inside is None or not (state.machines or shape.seen_only or shape.refused(state.cluster.columns)):
        return False
    counts = Counts(fit.tree, fit.known.shape.fit_amounts(state.cluster.columns, fit.tree.span))
    return _fits(fit, room(state, fit.tree, fit.pod_set, counts))


def _fits_emptied(state: ClusterState, fit: Fit) -> bool:
    nodes = state.cluster.columns
    caps = (
        *(cap for cap in fit.room.caps if cap.reason in ONE_A_VALUE),
        *device_caps(state, fit.tree, fit.pod_set, emptied=True),
    )
    if not caps and not fit.layers:
        container = list(fit.containers())[-1]
        return fit.known.most_emptied(nodes, fit.tree, container) >= fit.pod_set.count
    emptied = Counts(fit.tree, fit.known.shape.fit_emptied(nodes, fit.tree))
    return _fits(fit, ConstrainedCounts(fit.tree, emptied, caps, fit.room.ceiling, fit.room.alone, fit.room.one))


def _fits(fit: Fit, left: ConstrainedCounts) -> bool:
    container = list(fit.containers())[-1]
    counts = fit.whole(left.within(container))
    most = counts.at(0).sum() if container == ANYWHERE else np.max(counts.at(container))
    return bool(most >= fit.pod_set.count)

"""Refusals, in words for a person: which level, how many pods, how close the best domain came, and what ran out."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from msgspec import structs
from msgspec.structs import replace

from engine.cluster.affinity import ConstrainedCounts, device_caps, room
from engine.cluster.assignment import Assignment
from engine.cluster.fit_counts import Counts
from engine.cluster.levels import domain_in_words, word_of
from engine.cluster.state import ClusterState
from engine.model import PodSet, Policy, amount_in_words
from engine.placement.explain import DEVICES, DomainFit, domain_fit
from engine.placement.fit import ANYWHERE, Fit
from engine.placement.grow import Growth
from engine.placement.never_fits import head_of, host_ports, too_small, why_never
from engine.placement.slices import in_words
from engine.reasons import Reason
from engine.results import Refusal, WorkloadRequest

# How close a refusal is to a placement, closest first: of several flavors' refusals the closest is reported.


def gravity(refusal: Refusal) -> tuple[int, int]:
    """How far a refusal is from a placement, the least first: by its reason, and then by how many pods would fit."""
    return refusal.reason.traits.gravity, -refusal.near


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
    whole, what = pod_set.count, "count"
    for layer in layers:
        if layer.size < 1:
            return f"slices of {layer.size} in one {layer.level}; expected at least 1"
        # The last slice of one layer may be a part of one; of several, the widest divides the pods, as in Kueue from
        # 0.20 on (PR 15640).
        if whole % layer.size and (len(layers) > 1 or layer.alone):
            return f"{what} {whole} is no multiple of the slice size {layer.size} (in one {layer.level})"
        whole, what = layer.size, "slice size"
    return ""


def _split_group(pod_sets: Sequence[PodSet]) -> Refusal | None:
    """Pod sets of one group that ask for different domains, or of which several have slices."""
    first: dict[str, PodSet] = {}
    sliced: dict[str, PodSet] = {}
    for pod_set in pod_sets:
        other = first.setdefault(pod_set.group, pod_set) if pod_set.group else pod_set
        if pod_set.group and is_sliced(pod_set) and (one := sliced.setdefault(pod_set.group, pod_set)) is not pod_set:
            text = (
                f"pod sets {one.name} and {pod_set.name} of group {pod_set.group} both have slices; only one pod set "
                "of a group can"
            )
            return Refusal(Reason.INVALID_REQUEST, text, pod_set.name)
        if other.topology.shares != pod_set.topology.shares:
            text = (
                f"pod sets {other.name} and {pod_set.name} of group {pod_set.group} limit the shares of domains "
                "differently; all pod sets of a group say the same"
            )
            return Refusal(Reason.INVALID_REQUEST, text, pod_set.name)
        if (other.topology.policy, other.topology.level) != (pod_set.topology.policy, pod_set.topology.level):
            text = (
                f"pod sets {other.name} and {pod_set.name} of group {pod_set.group} ask for different domains: "
                f"{_level_in_words(other)} and {_level_in_words(pod_set)}"
            )
            return Refusal(Reason.INVALID_REQUEST, text, pod_set.name)
    return None


def is_sliced(pod_set: PodSet) -> bool:
    """Whether it has slices that say anything: those of one pod, or of a leader alone, do not."""
    return pod_set.count > 1 and any(layer.size > 1 or layer.alone for layer in pod_set.topology.slices)


def _level_in_words(pod_set: PodSet) -> str:
    return f"{pod_set.topology.policy.lower()} {pod_set.topology.level or ''}".rstrip()


def flavors_for(state: ClusterState, request: WorkloadRequest, pod_set: PodSet) -> Iterator[str]:
    """The flavors to try for a pod set, in order."""
    level = pod_set.topology.level
    flavors = state.flavors
    if request.flavors:
        yield from (name for name in request.flavors if name in flavors)
        return
    wanted = {part.level for part in pod_set.topology.slices}
    wanted.update(pod_set.topology.limited_levels)
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
    topology = pod_set.topology
    wanted = [topology.level, *(part.level for part in topology.slices), *topology.limited_levels]
    what = " and ".join(f"the level {level}" for level in dict.fromkeys(wanted) if level)
    text = f"no flavor has {what}; levels are: {', '.join(levels) or 'none'}"
    return Refusal(Reason.NO_FLAVOR, text, pod_set.name)


def does_not_fit(state: ClusterState, fit: Fit) -> Refusal:
    """Why ``fit.pick()`` found nothing."""
    pod_set, flavor = fit.pod_set, fit.tree.flavor.name
    # First, because a cap may be stricter than its constraint: such pods must not hear that they never fit.
    if _caps_decide(fit):
        keys = ", ".join(
            dict.fromkeys([c.topology_key for c in pod_set.spread] + [c.topology_key for c in pod_set.anti_affinity])
        )
        text = f"topology spread or anti-affinity by {keys} cannot be honoured: it would need the pods spread evenly"
        return Refusal(
            Reason.UNSUPPORTED_CONSTRAINT, f"{text}, or more than one constraint at once", pod_set.name, flavor
        )
    # Waiting helps only where the emptied flavor would take the pods, so that is asked before how close they come.
    if not _fits_emptied(state, fit):
        return why_never(state, fit).refusal(fit)
    container = list(fit.containers())[-1]
    by_amounts = _by_amounts(state, fit)
    aligned = by_amounts is None or not _fits(fit, by_amounts)
    amounts = None if by_amounts is None else by_amounts.counts_within(container)
    best = _best_domain(fit, fit.counts_inside(container), container, amounts)
    found = domain_fit(state, fit.tree, pod_set, fit.room, container, best)
    reason = Reason.DOES_NOT_FIT if aligned else Reason.NUMA_ALIGNMENT
    return Refusal(reason, _how_close(fit, container, best, found), pod_set.name, flavor, found.fits)


def _best_domain(fit: Fit, counts: Counts, container: int, by_amounts: Counts | None) -> int:
    """The domain that takes most pods; of equal ones that which has the amounts for most."""
    if container == ANYWHERE:
        return 0
    fits = counts.counts_of_rank(container)
    if fit.leaves is not None:
        # One into which they may not go takes none for another reason than room.
        fits = np.where(np.logical_or.reduceat(fit.leaves, fit.tree.bounds[container][:-1]), fits, -1)
    best = int(fits.argmax())
    if by_amounts is None:
        return best
    # The kubelets may let in nothing anywhere; the domain with the amounts for most pods is then the one to tell about.
    ties = np.flatnonzero(fits == fits[best])
    return int(ties[by_amounts.counts_of_rank(container)[ties].argmax()])


def _how_close(fit: Fit, container: int, best: int, found: DomainFit) -> str:
    """``8 pods do not fit one rack: b1/r2, the best of 4, takes 3 and lacks 40 nvidia.com/gpu``."""
    head, tree = head_of(fit, container), fit.tree
    takes = f"{found.fits}{in_words(fit.pod_set.topology)}"
    if container == ANYWHERE:
        nodes = f"the {tree.size} nodes of flavor {tree.flavor.name} take"
        return f"{head}: {nodes} {takes}{_explain_shortage(fit, found, 'lack')}"
    named = container <= tree.last
    path = tree.path(container, best) if named else (*tree.paths[best], tree.names[best])
    others = tree.count_domains(container)
    of = f", the best of {others}," if others > 1 else ""
    return f"{head}: {domain_in_words(path)}{of} takes {takes}{_explain_shortage(fit, found)}"


def no_room_for_more(state: ClusterState, growth: Growth, held: Assignment) -> Refusal:
    """Why no more pods fit beside those that are there: of where these may go, not of the best domain for all."""
    fit, by, pod_set = growth.fit, growth.by, growth.fit.pod_set
    level, required = pod_set.topology.level, pod_set.topology.policy is Policy.REQUIRED
    head = f"{by} more pods do not fit" if by > 1 else "1 more pod does not fit"
    head = f"{head} in the same {word_of(level or '')}" if required else f"{head} anywhere"
    head += in_words(pod_set.topology)
    containers = [*growth.containers(held)]
    if not containers:
        depth = held.levels.index(level) + 1 if level in held.levels else len(held.levels)
        where = domain_in_words(held.slices[0].values[:depth]) if held.slices else f"flavor {held.flavor}"
        text = f"{head}: {where} has no nodes any more that take its pods"
        return Refusal(Reason.DOES_NOT_FIT, text, pod_set.name, held.flavor)
    rank, domain = containers[-1]
    if small := too_small(state, fit, rank, domain):
        return Refusal(Reason.NEVER_FITS, f"{head}: {small}", pod_set.name, held.flavor)
    tree, room = fit.tree, int(growth.count_room(rank, domain).sum())
    nodes = f"the {tree.size} nodes of flavor {tree.flavor.name} take"
    has = nodes if rank == ANYWHERE else f"{domain_in_words(tree.path(rank, domain))} takes"
    # The question is about the pods that are to come, so what is missing is reported for these alone.
    alone = replace(fit, pod_set=structs.replace(pod_set, count=by))
    found = domain_fit(state, tree, alone.pod_set, fit.room, rank, domain)
    text = f"{head}: {has} {room} more{_explain_shortage(alone, found, 'lack' if rank == ANYWHERE else 'lacks')}"
    return Refusal(Reason.DOES_NOT_FIT, text, pod_set.name, held.flavor, room)


# Why nodes take no pods at all, of several of them.
_OUT: Final = {
    Reason.NODE_NOT_READY: "not ready",
    Reason.NODE_UNSCHEDULABLE: "cordoned",
    Reason.NODE_TAINTED: "tainted without a toleration",
    Reason.NODE_SELECTOR: "not selected by spec.nodeSelector",
    Reason.NODE_AFFINITY: "not selected by spec.affinity.nodeAffinity",
    Reason.NODE_FEATURES: "without a feature that the pods use",
    Reason.CLAIM_NODE_AFFINITY: "not reached by the devices of the pods' claims",
    Reason.OTHER_COMPUTE_DOMAIN: "in other ComputeDomains",
    Reason.VOLUME_NODE_AFFINITY: "not reached by volumes of the pods",
    Reason.POD_AFFINITY: "without the pods that spec.affinity.podAffinity wants",
    Reason.POD_ANTI_AFFINITY: "kept from them by an anti-affinity",
    Reason.HOST_PORTS: "without the host port",
    Reason.TOPOLOGY_SPREAD: "kept from them by topologySpreadConstraints",
}


def _explain_shortage(fit: Fit, found: DomainFit, verb: str = "lacks") -> str:
    """What a domain lacks for the rest of the pods, and which of its nodes take none."""
    out = [
        f"{count} {'is' if count == 1 else 'are'} {_OUT[reason]}"
        for reason, count in found.excluded.items()
        if reason in _OUT
    ]
    left_out = f"; of its nodes {', '.join(out)}" if out else ""
    if not found.limit or found.limit in found.excluded.keys() & _OUT.keys():
        return left_out
    if found.limit == Reason.SLICES:
        return "; single pods would fit, but not whole slices"
    if found.limit == Reason.NUMA_ALIGNMENT:
        of = f"{found.misaligned} of its {found.nodes} nodes"
        return f"; it has the amounts, but the kubelets of {of} would refuse pods ({found.refusal}){left_out}"
    if found.limit == Reason.HOST_PORTS and (ports := host_ports(fit)):
        return f": {ports}{left_out}"
    lacks = " and ".join(amount_in_words(name, amount) for name, amount in found.missing.items())
    if not lacks and found.limit in {DEVICES, Reason.INSUFFICIENT_DEVICES}:
        lacks = DEVICES
    devices = f" ({found.devices})" if found.devices else ""
    if lacks:
        return f" and {verb} {lacks}{devices}{left_out}"
    return f"; the others are {_OUT[Reason(found.limit)]}{left_out}"  # a cap


def _caps_decide(fit: Fit) -> bool:
    """Whether it would fit but for caps that are stricter than the constraint they stand for."""
    caps = [cap for cap in fit.room.caps if cap.reason is not Reason.INSUFFICIENT_DEVICES]
    # One pod a value is the constraint itself, and no bound that is stricter, as long as no other cap comes on top.
    exact = len(caps) == 1 and caps[0].reason.traits.one_a_value
    devices = tuple([cap for cap in fit.room.caps if cap.reason is Reason.INSUFFICIENT_DEVICES])
    left = ConstrainedCounts(fit.tree, fit.room.counts, devices, fit.room.ceiling, one=fit.room.one)
    return bool(caps) and not exact and _fits(fit, left)


def _by_amounts(state: ClusterState, fit: Fit) -> ConstrainedCounts | None:
    """What would fit if no kubelet looked inside its node; None where none does."""
    shape = fit.known.shape
    if shape.inside is None or not (state.machines or shape.seen_only or shape.refuses_devices(state.cluster.columns)):
        return None
    amounts = fit.known.shape.fit_amounts(state.cluster.columns, fit.tree.span)
    counts = Counts(fit.tree, amounts if fit.leaves is None else np.where(fit.leaves, amounts, 0))
    return room(state, fit.tree, fit.pod_set, counts)


def _fits_emptied(state: ClusterState, fit: Fit) -> bool:
    nodes = state.cluster.columns
    caps = (
        *(cap for cap in fit.room.caps if cap.reason.traits.one_a_value),
        *device_caps(state, fit.tree, fit.pod_set, emptied=True),
    )
    if not caps and not fit.layers:
        container = list(fit.containers())[-1]
        return fit.known.most_emptied(nodes, fit.tree, container) >= fit.pod_set.count
    emptied = Counts(fit.tree, fit.known.shape.fit_emptied(nodes, fit.tree))
    return _fits(fit, ConstrainedCounts(fit.tree, emptied, caps, fit.room.ceiling, fit.room.alone, fit.room.one))


def _fits(fit: Fit, left: ConstrainedCounts) -> bool:
    container = list(fit.containers())[-1]
    counts = fit.keep_whole_slices(left.counts_within(container))
    most = counts.count_all() if container == ANYWHERE else np.max(counts.counts_of_rank(container))
    return bool(most >= fit.pod_set.count)

"""Why a pod set would not fit even with nothing else running: what no node has, or no domain has enough of, in words.

The first of these that holds is told, with what to do about it: no node is one that the pods may use; none has what one
pod asks for; none publishes the zones that it asks about, or its kubelet would refuse the pod; no domain is as large as
all pods together. Nodes that are only out of order for now count as if they were in order.
"""

import re
from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from engine.arrays import Ints
from engine.cluster.filters import Mask, refused_status, tolerates
from engine.cluster.fit_counts import Counts
from engine.cluster.levels import domain_in_words, word_of
from engine.cluster.state import ClusterState
from engine.kubelet.admit import empty
from engine.kubelet.device_manager import never_given
from engine.kubelet.machine import PodShape
from engine.kubelet.numa_policy import NUMA_POLICY, refused_unseen
from engine.model import Policy, amount_in_words
from engine.numa.refusal import kubelet_refusal
from engine.placement.beyond_nodes import SMALLER, beyond_nodes
from engine.placement.fit import ANYWHERE, Fit
from engine.placement.slices import in_words
from engine.quantity import format_quantity
from engine.reasons import Reason
from engine.results import Refusal

_ERROR: Final = re.compile(r"\bCEL (runtime|compile) error|must evaluate to bool")
_CORRECT: Final = "correct the pods, or the nodes"
_PUBLISH: Final = "`topogate install --agent` has nodes publish it"

# What a node must be or have for a filter, and the field that says so.
_MUST: Final = {
    Reason.NODE_AFFINITY: "meets spec.affinity.nodeAffinity",
    Reason.VOLUME_NODE_AFFINITY: "is reached by all volumes of the pods",
    Reason.CLAIM_NODE_AFFINITY: "is reached by the devices of the pods' claims",
}


class Never(msgspec.Struct, frozen=True):
    """``most``: how many pods the best domain takes with nothing else running; ``text`` ends with what to do."""

    reason: Reason
    text: str
    most: int = 0

    def refusal(self, fit: Fit) -> Refusal:
        """The same as an answer."""
        return Refusal(self.reason, self.text, fit.pod_set.name, fit.tree.flavor.name, self.most)


def why_never(state: ClusterState, fit: Fit) -> Never:
    """Of a pod set that does not fit the emptied flavor. Reads all its nodes once."""
    passing, must = _filtered(state, fit)
    if not passing.any():
        return Never(Reason.NEVER_FITS, f"no node{_name_flavor(state, fit)} {must}; {_CORRECT}")
    index = fit.tree.columns_of_leaves(np.flatnonzero(passing))
    if too_large := _too_large(state, fit, index):
        return Never(Reason.NEVER_FITS, too_large)
    # A copy, because the answer lies in memory of the tree, which the look for a reason below uses again.
    counts = fit.known.shape.fit_emptied(state.cluster.columns, fit.tree).copy()
    if not counts.any():
        return _explain_insides(state, fit, passing)
    return _too_many(state, fit, counts, passing, must)


def _name_flavor(state: ClusterState, fit: Fit) -> str:
    """Which flavor is meant, where there are several."""
    return f" of flavor {fit.tree.flavor.name}" if len(state.flavors) > 1 else ""


def head_of(fit: Fit, container: int) -> str:
    """``8 pods do not fit one rack``."""
    need, tree = fit.pod_set.count, fit.tree
    head = f"{need} pods do not fit" if need != 1 else "1 pod does not fit"
    if container == ANYWHERE:
        return head
    return f"{head} one {word_of(tree.flavor.levels[container]) if container <= tree.last else 'node'}"


def _filtered(state: ClusterState, fit: Fit) -> tuple[Mask, str]:
    """The leaves that its pods may use, and what each of them is or has that others are not or have not.

    Where there are some, and what its pods bring along keeps them off the others, nothing is said of that.
    """
    nodes, tree, node_filter = state.cluster.columns, fit.tree, fit.known.shape.filter
    selector, left = iter(node_filter.selector), np.ones(tree.size, np.bool_)
    labels: list[str] = []
    told: dict[Reason, str] = {}
    for reason, mask in node_filter.exclusion_masks(nodes, tree.span):
        label = "=".join(next(selector)) if reason is Reason.NODE_SELECTOR else ""
        if reason.traits.passing or mask.all():
            continue
        alone = not mask.any()
        if label:
            labels = [label] if alone else [*labels, label]
        told[reason] = f"has {' and '.join(labels)} (spec.nodeSelector)" if label else _must(state, fit, reason)
        left = left & mask
        if alone:
            return left, told[reason]
    attached = left.any() and any(reason.traits.attached for reason in told)
    return left, "" if attached else " and ".join(told.values())


def _must(state: ClusterState, fit: Fit, reason: Reason) -> str:
    if reason is Reason.NODE_FEATURES:
        return f"declares {', '.join(fit.pod_set.features)}"
    if reason is not Reason.NODE_TAINTED:
        return _MUST[reason]
    table, tolerations = state.cluster.table, fit.known.shape.filter.tolerations
    taints = (
        taint
        for code, status in enumerate(table.statuses)
        if table.status_uses[code] and refused_status(status, tolerations) is reason
        for taint in status.taints
        if not tolerates(tolerations, taint)
    )
    taint = next(taints)
    value = f"={taint.value}" if taint.value else ""
    return f"is free of taints such as {taint.key}{value}:{taint.effect} (spec.tolerations)"


def _too_large(state: ClusterState, fit: Fit, index: Ints) -> str:
    """What one pod asks for and none of these nodes has, in itself or together; "" where some node has all."""
    table, of, unpublished = state.cluster.table, _name_flavor(state, fit), fit.known.shape.unpublished
    if alone := beyond_nodes(table, fit.pod_set, index, of, unpublished):
        return alone
    together, asked = np.ones(len(index), np.bool_), list[str]()
    for resource, amount in table.needs(fit.pod_set).items():
        if amount > 0 and resource not in unpublished:
            together &= table.amounts(table.alloc, resource, index) >= amount
            asked.append(amount_in_words(resource, amount))
    if together.any():
        return ""
    return f"no node{of} has {' and '.join(asked[1:])} together; {SMALLER}"  # a pod is one of pods too


def _explain_insides(state: ClusterState, fit: Fit, passing: Mask) -> Never:
    """Where nodes have the amounts, and give no such pod its zones or devices."""
    shape, tree, of = fit.known.shape, fit.tree, _name_flavor(state, fit)
    seen = [name for name in tree.names if name in state.machines]
    if (
        shape.devices is not None
        and not state.cluster.columns.devices.count_if_unclaimed(shape.devices)[tree.span].any()
    ):
        node = tree.names[int(np.flatnonzero(passing)[0])]
        why = state.cluster.devices.explain_devices(node, shape.devices)
        text = f"no node{of} has the devices of a pod's claims ({node}: {why})"
        if _ERROR.search(why):  # the scheduler ends such a pod on whatever node
            return Never(Reason.NEVER_FITS, f"{text}; correct the expression in the claim or its DeviceClass")
        return Never(Reason.NEVER_FITS, f"{text}; {SMALLER}, or correct its claims")
    inside = shape.inside
    if inside is None:
        return Never(Reason.NEVER_FITS, f"no node{of} takes any; {_CORRECT}")
    refused = never_given(inside, state.cluster.columns.xpus)
    if refused is not None:
        return Never(Reason.NEVER_FITS, f"no node gives a pod what it asks for: {refused.message}; {SMALLER}")
    unseen = refused_unseen(inside)
    if unseen is not None and not seen:
        zones = f"its NUMA zones, which numa-policy: {inside.wish} needs"
        what = zones if unseen.reason == NUMA_POLICY else "how its GPUs are linked, which gpu-link: require needs"
        text = f"no node{of} publishes {what}"
        return Never(Reason.ZONES_UNKNOWN, f"{text}; {_PUBLISH}")
    node = seen[0] if seen else tree.names[0]
    why = f" ({told})" if (told := _kubelet_refusal(state, node, inside)) else ""
    return Never(Reason.NEVER_FITS, f"no kubelet{of} would admit such a pod{why}; {SMALLER}")


def _too_many(state: ClusterState, fit: Fit, leaf: Ints, passing: Mask, must: str) -> Never:
    """Where single pods fit: how many the best domain takes, and what of it is too small.

    ``must``: what keeps its pods off other nodes. Where that alone is the cause, smaller pods or a wider level would
    not help, and the message begins with it.
    """
    tree, container = fit.tree, [*fit.containers()][-1]
    caps = tuple(cap for cap in fit.room.caps if cap.reason.traits.one_a_value)
    emptied = replace(fit.room, counts=Counts(tree, leaf), caps=caps)
    counts = fit.keep_whole_slices(emptied.counts_within(container))
    at = counts.counts_of_rank(max(container, 0))
    best, most = (0, counts.count_all()) if container == ANYWHERE else (int(at.argmax()), int(at.max()))
    everywhere, fits = tree.columns_of_leaves(np.arange(tree.size)), int(leaf.sum())
    if must and fits < fit.pod_set.count and next(_sums(state, fit, everywhere), None) is None:
        few = int(passing.sum())
        those = "each of which" if few > 1 else "the one that"
        which = f"{few} of {tree.size} nodes{_name_flavor(state, fit)}, {those} {must}"
        text = f"{head_of(fit, ANYWHERE)}: they may use only {which}, and at most {fits} fit{'s' * (fits == 1)} there"
        return Never(Reason.NEVER_FITS, f"{text}; {_CORRECT}", most)
    first, last = (0, tree.size) if container == ANYWHERE else tree.bounds[container][best : best + 2].tolist()
    usable = np.flatnonzero(passing[first:last]) + first
    where = f"flavor {tree.flavor.name}"
    if container != ANYWHERE:
        path = tree.path(container, best) if container <= tree.last else (*tree.paths[best], tree.names[best])
        where = f"the largest, {domain_in_words(path)}," if tree.count_domains(container) > 1 else domain_in_words(path)
    where = f"{head_of(fit, container)}{_name_flavor(state, fit) if container != ANYWHERE else ''}: {where}"
    short = next(_sums(state, fit, tree.columns_of_leaves(usable)), "")
    wider = ""
    if fit.pod_set.topology.policy is Policy.REQUIRED:
        wider = f"{', for a wider level' if container > 0 else ''}, or with prefer-topology"
    if devices := _few_devices(state, fit, usable, most):
        return Never(Reason.NEVER_FITS, f"{where} takes {most}: {devices}; ask for fewer pods{wider}", most)
    if short:
        only = "" if len(usable) == last - first else " on the nodes that the pods may use"
        text = f"{where} has {short[0]} in all{only}; {short[1]} wanted; ask for fewer or smaller pods{wider}"
        return Never(Reason.NEVER_FITS, text, most)
    why, advice = _why_fewer(state, fit, usable, leaf)
    takes = f"{most}{in_words(fit.pod_set.topology)} with nothing else running"
    wider = "" if advice is _PUBLISH else wider
    return Never(Reason.NEVER_FITS, f"{where} takes {takes}{why}; {advice}{wider}", most)


def too_small(state: ClusterState, fit: Fit, rank: int, domain: int) -> str:
    """``b1/r2 has 32 nvidia.com/gpu in all; 48 are wanted``; "" where one domain has the amounts for all pods."""
    tree, (passing, _) = fit.tree, _filtered(state, fit)
    first, last = (0, tree.size) if rank == ANYWHERE else tree.bounds[rank][domain : domain + 2].tolist()
    usable = np.flatnonzero(passing[first:last]) + first
    where = f"flavor {tree.flavor.name}" if rank == ANYWHERE else domain_in_words(tree.path(rank, domain))
    have, wanted = next(_sums(state, fit, tree.columns_of_leaves(usable)), ("", ""))
    return f"{where} has {have} in all; {wanted} wanted" if have else ""


def _sums(state: ClusterState, fit: Fit, index: Ints) -> Iterator[tuple[str, str]]:
    """Of what these nodes have too little for all pods, most lacking first: how much there is, how much is wanted."""
    table, need = state.cluster.table, fit.pod_set.count
    have = {
        resource: (int(table.amounts(table.alloc, resource, index).sum()), fit.pod_set.cut.get(resource, amount) * need)
        for resource, amount in table.needs(fit.pod_set).items()
        if amount > 0 and resource not in fit.known.shape.unpublished
    }
    for resource, (total, wanted) in sorted(have.items(), key=lambda item: item[1][0] / item[1][1]):
        if total < wanted:
            are = "is" if wanted == 1 else "are"
            yield amount_in_words(resource, total), f"{format_quantity(resource, wanted)} {are}"


def _few_devices(state: ClusterState, fit: Fit, usable: Ints, most: int) -> str:
    """Whether devices of claims are what there is least of on these nodes; "" where something else is."""
    asked = fit.known.shape.devices
    if asked is None:
        return ""
    emptied = state.cluster.columns.devices.count_if_unclaimed(asked)[fit.tree.columns_of_leaves(usable)]
    if int(emptied.sum()) > most:
        return ""
    node = fit.tree.names[int(usable[int(emptied.argmin())])]
    return f"devices of claims are short ({node}: {state.cluster.devices.explain_devices(node, asked)})"


def _why_fewer(state: ClusterState, fit: Fit, usable: Ints, leaf: Ints) -> tuple[str, str]:
    """What else keeps pods out of a domain that has the amounts for all of them, and what to do.

    ``leaf``: what each node takes.
    """
    pod_set, nodes = fit.pod_set, f"{len(usable)} node{'s' * (len(usable) != 1)}"
    if ports := host_ports(fit):
        return f": {ports}, and it has {nodes}", "ask for fewer pods, without hostPort"
    if fit.layers and int(leaf[usable].sum()) >= pod_set.count:
        return ": single pods fit, but not whole slices", "ask for fewer pods, for smaller slices"
    if any(cap.reason.traits.one_a_value for cap in fit.room.caps):
        return ": their anti-affinity keeps them apart", "ask for fewer pods"
    shape = fit.known.shape
    if shape.inside is not None:
        # The same pods as if no kubelet looked inside: where more of them fit, the zones are what is short.
        amounts = replace(shape, inside=None, seen_only=False).fit_emptied(state.cluster.columns, fit.tree)
        fewer = usable[amounts[usable] > leaf[usable]]
        if len(fewer):
            node = fit.tree.names[int(fewer[0])]
            advice = "ask for fewer or smaller pods" if node in state.machines else _PUBLISH
            return (
                f": the amounts would do, but not the NUMA zones ({_kubelet_refusal(state, node, shape.inside)})",
                advice,
            )
    return f", on {nodes}", "ask for fewer or smaller pods"


def _kubelet_refusal(state: ClusterState, node: str, inside: PodShape) -> str:
    """What the kubelet of a node would say to the first pod that it would not take, were the node empty."""
    machine = state.machines.get(node)
    free = empty(machine.layout) if machine is not None else None
    return kubelet_refusal(node, machine, free, inside, xpus=state.cluster.columns.xpus)


def host_ports(fit: Fit) -> str:
    """Which ports of the host allow one of its pods a node; "" where none does."""
    ports = list(dict.fromkeys([term.host_port for term in fit.pod_set.anti_affinity if term.host_port]))
    if len(ports) > 1:
        return f"host ports {', '.join(ports)} allow one pod a node"
    return f"host port {ports[0]} allows one pod a node" if ports else ""

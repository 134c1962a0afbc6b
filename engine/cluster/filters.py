"""Which nodes a pod set may use at all, whatever is free on them: status, node selector, node affinity.

Semantics are kube-scheduler's (plugins NodeUnschedulable, TaintToleration, NodeAffinity and NodeDeclaredFeatures of
Kubernetes 1.37; what volumes reach, of VolumeBinding and VolumeZone, comes as terms like those of node affinity). Every
filter works on a whole column or on a few indices alike, so the same code makes a count and corrects it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.arrays import Ints
from engine.claim_zones.meeting import ClaimZones
from engine.cluster.node_columns import FEATURES, ExclusionStatus, Table
from engine.cluster.shared_volumes import SharedVolumes
from engine.devices.compute_domains import LABEL, domain_of, left_behind
from engine.devices.ledger import DeviceLedger
from engine.model import LabelRequirement, NodeTerm, PodSet, Taint, Toleration
from engine.numa.zone_ledger import NumaLedger
from engine.reasons import Reason

Mask = NDArray[np.bool_]
Selection = slice | Ints

FEW: Final = 8  # up to here, comparing a column with each code beats looking every node up
_STATUS_REASONS: Final = (Reason.NODE_NOT_READY, Reason.NODE_UNSCHEDULABLE, Reason.NODE_TAINTED)
_NAME: Final = "metadata.name"
# As in kube-scheduler's NodeUnschedulable, a pod that tolerates this taint may go to a cordoned node.
_UNSCHEDULABLE: Final = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


def tolerates(tolerations: Sequence[Toleration], taint: Taint) -> bool:
    """Whether any of the tolerations tolerates the taint."""
    return any(_tolerates(toleration, taint) for toleration in tolerations)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    # An operator that is not known tolerates nothing: the pod gets too few nodes, and never one that refuses it.
    return toleration.operator in {"", "Equal"} and bool(toleration.key) and toleration.value == taint.value


def refused_status(status: ExclusionStatus, tolerations: Sequence[Toleration]) -> Reason | None:
    """Why a node of this status takes no such pod; None where it does."""
    if not status.ready:
        return Reason.NODE_NOT_READY
    if status.unschedulable and not tolerates(tolerations, _UNSCHEDULABLE):
        return Reason.NODE_UNSCHEDULABLE
    if not all(tolerates(tolerations, taint) for taint in status.taints):
        return Reason.NODE_TAINTED
    return None


class NodeFilter(msgspec.Struct):
    """The node-level constraints of one pod set, the flavor's tolerations included.

    ``domain``: the ComputeDomain whose channels its pods ask for (`engine.devices.compute_domains`); "" for none.
    """

    tolerations: tuple[Toleration, ...] = ()
    selector: tuple[tuple[str, str], ...] = ()
    terms: tuple[NodeTerm, ...] | None = None
    volumes: tuple[tuple[NodeTerm, ...], ...] = ()
    claims: tuple[tuple[NodeTerm, ...], ...] = ()
    domain: str = ""
    features: tuple[str, ...] = ()

    @classmethod
    def for_pod_set(cls, pod_set: PodSet, flavor_tolerations: tuple[Toleration, ...]) -> "NodeFilter":
        """The filter of a pod set in a flavor."""
        return cls(
            pod_set.tolerations + flavor_tolerations,
            tuple(pod_set.node_selector.items()),
            pod_set.node_affinity,
            pod_set.volume_nodes,
            pod_set.claim_nodes,
            domain_of(pod_set.devices) if pod_set.devices is not None else "",
            pod_set.features,
        )

    def mask(self, nodes: "NodeColumns", selection: Selection) -> Mask | None:
        """True where a node passes; None where all do."""
        found: Mask | None = None
        if (
            nodes.table.in_order
            and self.terms is None
            and not (self.selector or self.volumes or self.claims or self.domain or self.features)
        ):
            return None
        for _, part in self.exclusion_masks(nodes, selection):
            found = part if found is None else found & part
        return found

    def exclusion_masks(self, nodes: "NodeColumns", selection: Selection) -> "Iterator[tuple[Reason, Mask]]":
        """(reason, mask) for each filter that can exclude anything; the order is the order of reasons in explain."""
        yield from self.statuses(nodes.table, selection)
        yield from self.labels(nodes, selection)
        if self.features:
            yield Reason.NODE_FEATURES, nodes.declare(self.features, selection)
        for terms in self.volumes:
            yield Reason.VOLUME_NODE_AFFINITY, self._any(nodes, terms, selection)
        for terms in self.claims:
            yield Reason.CLAIM_NODE_AFFINITY, self._any(nodes, terms, selection)
        if self.domain:
            yield Reason.OTHER_COMPUTE_DOMAIN, nodes.of_domain(self.domain, selection)

    def labels(self, nodes: "NodeColumns", selection: Selection) -> "Iterator[tuple[Reason, Mask]]":
        """The part that looks at labels and names: node selector and node affinity."""
        for key, value in self.selector:
            yield (
                Reason.NODE_SELECTOR,
                nodes.matches(LabelRequirement(key=key, operator="In", values=(value,)), selection),
            )
        if self.terms is not None:
            yield Reason.NODE_AFFINITY, self._any(nodes, self.terms, selection)

    def statuses(self, table: Table, selection: Selection) -> "Iterator[tuple[Reason, Mask]]":
        """One mask for each reason by which some node's status refuses the pods."""
        refused: dict[Reason | None, list[int]] = {}
        for code, uses in enumerate(table.status_uses):
            if uses and code:  # code 0 is a node that nothing keeps pods off
                refused.setdefault(refused_status(table.statuses[code], self.tolerations), []).append(code)
        for reason in _STATUS_REASONS:
            codes = refused.get(reason)
            if codes is not None:
                yield reason, ~_among(table.status[: table.size][selection], codes, len(table.statuses))

    def _any(self, nodes: "NodeColumns", terms: Sequence[NodeTerm], selection: Selection) -> Mask:
        masks = []
        for term in terms:
            # A term without any requirement selects no node, as the API says of an empty node selector term.
            parts = [nodes.matches(need, selection) for need in term.labels]
            parts += [nodes.match_names(need, selection) for need in term.fields]
            masks.append(np.logical_and.reduce(parts) if parts else nodes.constant(selection, value=False))
        return np.logical_or.reduce(masks) if masks else nodes.constant(selection, value=False)


class NodeColumns(msgspec.Struct, frozen=True):
    """What filters and counts read: the table, a label column for any key, the index of a node by name, the insides.

    ``volumes``: which volumes that several pods share are on which node. ``devices``: those that claims ask
    for; ``claim_zones``: in which zones these are. ``xpus``: resources that are given by the rules of XPUs, on every
    node.
    """

    table: Table
    labels: Callable[[str], tuple[Mapping[str, int], NDArray[np.int32]]]
    index: Callable[[str], int | None]
    numa: NumaLedger
    volumes: SharedVolumes
    devices: DeviceLedger
    claim_zones: ClaimZones
    xpus: tuple[str, ...]

    def constant(self, selection: Selection, *, value: bool) -> Mask:
        """The same answer for every node of the selection."""
        return np.full(self.table.size, value)[selection]

    def matches(self, need: LabelRequirement, selection: Selection) -> Mask:
        """Whether the nodes' labels meet one requirement."""
        values, codes = self.labels(need.key)
        if need.operator not in {"In", "NotIn"}:
            if need.operator == "DoesNotExist":
                wanted = [0]
            elif need.operator == "Exists":
                wanted = list(values.values())
            else:
                wanted = [code for value, code in values.items() if compares(need, value)]
            return _among(codes[selection], wanted, len(values) + 1)
        wanted = [values[value] for value in need.values if value in values]
        found = _among(codes[selection], wanted, len(values) + 1)
        # A node without the label is in no set of values, so NotIn lets it pass, as in a label selector.
        return found if need.operator == "In" else ~found

    def declare(self, features: Sequence[str], selection: Selection) -> Mask:
        """Which nodes declare all of these features."""
        values, codes = self.labels(FEATURES)
        wanted = [code for declared, code in values.items() if set(features).issubset(declared.split(","))]
        return _among(codes[selection], wanted, len(values) + 1)

    def of_domain(self, domain: str, selection: Selection) -> Mask:
        """Which nodes belong to no other ComputeDomain, or will not when those are gone who are thought away."""
        values, codes = self.labels(LABEL)
        found = _among(codes[selection], [0, *({values[domain]} if domain in values else ())], len(values) + 1)
        # While the search for victims takes claims as deallocated, a
        # node loses the label with the last claim of that domain's pods.
        if self.devices.holders.thinking and (left := left_behind(self.devices.holders)):
            found = found | self.match_names(LabelRequirement(key=_NAME, operator="In", values=tuple(left)), selection)
        return found

    def match_names(self, need: LabelRequirement, selection: Selection) -> Mask:
        """Whether the nodes' names (field metadata.name) meet one requirement; no other field exists."""
        if need.key != _NAME or need.operator not in {"In", "NotIn"}:
            return self.constant(selection, value=False)
        found = np.zeros(self.table.size, np.bool_)
        found[[at for at in map(self.index, need.values) if at is not None]] = True
        return (found if need.operator == "In" else ~found)[selection]


def compares(need: LabelRequirement, value: str) -> bool:
    """Gt and Lt: both sides are integers, else nothing matches."""
    try:
        have, limit = int(value), int(need.values[0])
    except (ValueError, IndexError):
        return False
    return have > limit if need.operator == "Gt" else need.operator == "Lt" and have < limit


def _among(codes: NDArray[np.int32], wanted: Sequence[int], known: int) -> Mask:
    found: Mask
    if len(wanted) == 1:
        found = codes == wanted[0]
        return found
    if len(wanted) <= FEW:
        found = np.zeros(len(codes), np.bool_)
        for code in wanted:
            found |= codes == code
        return found
    table = np.zeros(known, np.bool_)
    table[list(wanted)] = True
    looked_up: Mask = table[codes]
    return looked_up


def selects(selector: Sequence[LabelRequirement] | None, labels: Mapping[str, str]) -> bool:
    """Whether a label selector (None selects nothing, () everything) selects an object with these labels."""
    return selector is not None and all(_meets(need, labels.get(need.key)) for need in selector)


def _meets(need: LabelRequirement, value: str | None) -> bool:
    match need.operator:
        case "In":
            return value in need.values
        case "NotIn":
            return value not in need.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    return value is not None and compares(need, value)

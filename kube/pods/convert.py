"""Wire shapes to the engine's data, with the meaning that kube-scheduler gives them.

What the engine cannot express is put into ``unsupported`` of a term, so that it refuses the pod set with that text.

Host ports become labels and anti-affinity on them: a pod with a host port carries a label that no user can write (it is
no legal label key), and repels pods that carry it from its node.
"""

from collections.abc import Iterable, Mapping

from engine.claims.asks import DeviceAsk
from engine.kubelet.machine import NumaPlacement, PodShape
from engine.model import (
    HOSTNAME_LABEL,
    NOTHING_ATTACHED,
    UNKNOWN_VALUES,
    Amounts,
    Attached,
    Flavor,
    LabelRequirement,
    Node,
    NodeTerm,
    Pod,
    PodSet,
    PodTerm,
    SpreadConstraint,
    Taint,
    Toleration,
    TopologyRequest,
)
from engine.quantity import MOST, of_node
from kube import objects
from kube.pods import exclusive
from kube.pods.features import declared_features, needed_features
from kube.pods.requests import asked_for, is_sidecar, parsed, pod_requests
from kube.pods.shapes import pod_shape
from kube.versions import NEWEST, SchedulerRules

__all__ = ["flavor", "label_selector", "node", "node_terms", "occupies", "pod", "pod_requests", "pod_set", "pod_shape"]

# Labels whose value differs between the pods of one template: no single requirement stands for them.
INDEX_LABELS = frozenset({"batch.kubernetes.io/job-completion-index", "apps.kubernetes.io/pod-index"})
ANY_ADDRESSES = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 -- compared with, not bound to
FINISHED = frozenset({"Succeeded", "Failed"})
MOST_TERMS = 64  # of a pod that runs, which keep others off
_NOTHING = exclusive.Additions()


def node(wire: objects.Node, attachable: Amounts | None = None, rules: SchedulerRules = NEWEST) -> Node:
    """The node as placement sees it; one whose Ready condition is missing is not ready.

    ``attachable``: how many volumes, by limit (`engine.model.volumes_of`).
    """
    return Node(
        name=wire.metadata.name,
        labels=wire.metadata.labels or {},
        allocatable={name: of_node(amount) for name, amount in parsed(wire.status.allocatable).items()},
        attachable=attachable or {},
        taints=taints(wire.spec.taints),
        unschedulable=wire.spec.unschedulable,
        ready=objects.is_true(wire.status.conditions, "Ready"),
        features=declared_features(wire, rules),
    )


def occupies(wire: objects.Pod) -> bool:
    """Whether the pod takes room on a node: it is bound and has not finished (terminating pods still do)."""
    return bool(wire.spec.node_name) and wire.status.phase not in FINISHED


def pod(
    wire: objects.Pod,
    rules: SchedulerRules = NEWEST,
    claim: tuple[str, str] | None = None,
    *,
    shape: PodShape | None = None,
    placement: NumaPlacement | None = None,
    observed: bool = False,
    attached: Attached = NOTHING_ATTACHED,
    devices: DeviceAsk | None = None,
) -> Pod:
    """A pod bound to a node; ``claim`` is (workload key, pod set name) of the slot that it verifiably fills.

    ``shape`` and ``placement``: what its kubelet looks at and what it holds, where the node's inside is known;
    ``observed``: its node says so, it was not only predicted. ``attached``: its volumes;
    ``devices``: its claims that have no devices yet.
    """
    own, namespace = wire.metadata.labels or {}, wire.metadata.namespace
    apart = wire.spec.affinity.pod_anti_affinity if wire.spec.affinity else None
    labels, repelling = own, _repelling(apart, own, namespace)
    if common := exclusive.in_common(own, namespace):
        labels, repelling = labels | common, exclusive.with_common(repelling, own, common)
    if ports := _host_ports(wire.spec):
        labels = labels | _port_labels(ports)
    return Pod(
        key=objects.key(wire),
        node=wire.spec.node_name,
        requests=pod_requests(wire.spec, wire.status, rules),
        namespace=namespace,
        labels=labels,
        anti_affinity=repelling,
        claim=claim,
        shape=shape,
        placement=placement,
        observed=observed,
        attached=attached,
        devices=devices,
        terminating=wire.metadata.deletion_timestamp is not None,
    )


def pod_set(
    name: str,
    count: int,
    template: objects.PodTemplate,
    topology: TopologyRequest,
    namespace: str,
    *,
    group: str = "",
    shape: PodShape | None = None,
    without: Iterable[str] = (),
    added: exclusive.Additions = _NOTHING,
) -> PodSet:
    """A pod set of ``count`` pods of this template in ``namespace``, on none of the nodes in ``without``.

    ``added``: what others add to the pods that are made of it.
    """
    spec, labels = template.spec, template.metadata.labels or {}
    ports = _host_ports(spec)
    affinity = spec.affinity or objects.Affinity()
    nodes = affinity.node_affinity
    required = nodes.required_during_scheduling_ignored_during_execution if nodes else None
    terms = node_terms(required) if required is not None else None
    together = _pod_terms(affinity.pod_affinity, labels, namespace)
    apart = _pod_terms(affinity.pod_anti_affinity, labels, namespace)
    common = exclusive.in_common(labels, namespace)  # of a template that was made from a pod
    if common:
        together, apart = (exclusive.with_common(terms, labels, common) for terms in (together, apart))
    requests = pod_requests(spec)
    # Amounts stop at MOST, so that sums stay within 64 bits; messages tell what the pod really asks for.
    large = asked_for(spec, [resource for resource, amount in requests.items() if amount >= MOST])
    return PodSet(
        name=name,
        count=count,
        requests=requests,
        cut={resource: max(amount, MOST) for resource, amount in large.items()},
        topology=topology,
        namespace=namespace,
        # Ours come last: what a template says of these keys by itself does not count.
        labels={**labels, **common, **added.labels, **_port_labels(ports)},
        node_selector={**(spec.node_selector or {}), **added.node_selector},
        node_affinity=_terms_elsewhere(terms, tuple(sorted(without))),
        tolerations=tolerations(spec.tolerations) + added.tolerations,
        affinity=together + added.affinity,
        anti_affinity=apart + added.anti_affinity + tuple(_port_terms(ports)),
        spread=tuple(
            _spread(constraint, labels)
            for constraint in spec.topology_spread_constraints or ()
            if constraint.when_unsatisfiable == "DoNotSchedule"
        ),
        group=group,
        shape=shape,
        features=needed_features(spec),
    )


def flavor(wire: objects.ResourceFlavor) -> Flavor | None:
    """The flavor; None where it has no topology."""
    topology = wire.spec.topology
    if topology is None or not topology.levels:
        return None
    return Flavor(
        name=wire.metadata.name,
        levels=topology.levels,
        node_labels=wire.spec.node_labels or {},
        tolerations=tolerations(wire.spec.tolerations),
        taints=taints(wire.spec.node_taints),
        unknown=UNKNOWN_VALUES if topology.unknown_values is None else frozenset(topology.unknown_values),
    )


def taints(wire: Iterable[objects.Taint] | None) -> tuple[Taint, ...]:
    """Taints of a node, or of a flavor's nodes."""
    return tuple(Taint(key=each.key, effect=each.effect, value=each.value) for each in wire or ())


def tolerations(wire: Iterable[objects.Toleration] | None) -> tuple[Toleration, ...]:
    """Tolerations of pods, or of a flavor."""
    return tuple(
        Toleration(key=each.key, operator=each.operator or "Equal", value=each.value, effect=each.effect)
        for each in wire or ()
    )


def node_terms(wire: objects.NodeSelector) -> tuple[NodeTerm, ...]:
    """The terms of a node selector, ORed."""
    return tuple(
        NodeTerm(labels=_requirements(term.match_expressions), fields=_requirements(term.match_fields))
        for term in wire.node_selector_terms or ()
    )


def _terms_elsewhere(terms: tuple[NodeTerm, ...] | None, nodes: tuple[str, ...]) -> tuple[NodeTerm, ...] | None:
    """The same terms on other nodes than these. A term without requirements matches nothing, and stays so."""
    if not nodes:
        return terms
    others = LabelRequirement(key="metadata.name", operator="NotIn", values=nodes)
    if terms is None:
        return (NodeTerm(fields=(others,)),)
    return tuple(
        NodeTerm(labels=term.labels, fields=(*term.fields, others)) if term.labels or term.fields else term
        for term in terms
    )


def _requirements(wire: Iterable[objects.Requirement] | None) -> tuple[LabelRequirement, ...]:
    return tuple(
        LabelRequirement(key=each.key, operator=each.operator, values=each.values or ()) for each in wire or ()
    )


def label_selector(wire: objects.LabelSelector | None) -> tuple[LabelRequirement, ...] | None:
    """The requirements of a label selector: None selects nothing, () everything."""
    if wire is None:
        return None
    equal = (
        LabelRequirement(key=key, operator="In", values=(value,)) for key, value in (wire.match_labels or {}).items()
    )
    return (*equal, *_requirements(wire.match_expressions))


def _pod_terms(wire: objects.PodAffinity | None, labels: Mapping[str, str], namespace: str) -> tuple[PodTerm, ...]:
    required = wire.required_during_scheduling_ignored_during_execution if wire else None
    return tuple(_pod_term(term, labels, namespace) for term in required or ())


def _repelling(wire: objects.PodAffinity | None, labels: Mapping[str, str], namespace: str) -> tuple[PodTerm, ...]:
    """What keeps others off a pod that runs: each placement looks at it, so of many terms only the keys are kept.

    Such a pod keeps everybody off, by the first so many keys: rather too few places than a pod sent where none is.
    """
    found = wire.required_during_scheduling_ignored_during_execution if wire else None
    if found is None or len(found) <= MOST_TERMS:
        return _pod_terms(wire, labels, namespace)
    # The host's key is never one of the ones that are cut.
    keys = sorted({term.topology_key for term in found}, key=lambda key: (key != HOSTNAME_LABEL, key))
    return tuple(
        PodTerm(topology_key=key, selector=(), unsupported="such a large number of terms") for key in keys[:MOST_TERMS]
    )


def _pod_term(wire: objects.PodAffinityTerm, labels: Mapping[str, str], namespace: str) -> PodTerm:
    selector, unsupported = label_selector(wire.label_selector), ""
    # The API server takes matchLabelKeys only beside a labelSelector.
    if selector is not None:
        same, why = _label_keys(wire.match_label_keys, "In", labels, "matchLabelKeys")
        other, why_not = _label_keys(wire.mismatch_label_keys, "NotIn", labels, "mismatchLabelKeys")
        selector, unsupported = selector + same + other, why or why_not
    namespaces, where = _namespaces(wire, namespace)
    return PodTerm(
        topology_key=wire.topology_key, selector=selector, namespaces=namespaces, unsupported=unsupported or where
    )


def _namespaces(wire: objects.PodAffinityTerm, own: str) -> tuple[tuple[str, ...] | None, str]:
    """The namespaces (None: all) and what of them cannot be expressed."""
    chosen = wire.namespace_selector
    # Without a namespaceSelector an empty list means the pod's own namespace.
    if chosen is None:
        return wire.namespaces or (own,), ""
    if chosen.match_labels or chosen.match_expressions:
        return wire.namespaces or (), "a namespaceSelector by label"
    # An empty selector is that of all namespaces.
    return None, ""


def _label_keys(
    keys: Iterable[str] | None, operator: str, labels: Mapping[str, str], field: str
) -> tuple[tuple[LabelRequirement, ...], str]:
    """Requirements that the API server adds for matchLabelKeys: the pod's own value; keys it lacks do not count."""
    keys = tuple(keys or ())
    unsupported = next((f"{field} {key} (it differs from pod to pod)" for key in keys if key in INDEX_LABELS), "")
    return tuple(
        LabelRequirement(key=key, operator=operator, values=(labels[key],)) for key in keys if key in labels
    ), unsupported


def _spread(wire: objects.TopologySpreadConstraint, labels: Mapping[str, str]) -> SpreadConstraint:
    selector = label_selector(wire.label_selector)
    same, unsupported = _label_keys(wire.match_label_keys, "In", labels, "matchLabelKeys")
    # Honor is the default of one policy and Ignore that of the other: the table counts by these two.
    if wire.node_affinity_policy == "Ignore":
        unsupported = "nodeAffinityPolicy Ignore"
    if wire.node_taints_policy == "Honor":
        unsupported = "nodeTaintsPolicy Honor"
    return SpreadConstraint(
        topology_key=wire.topology_key,
        max_skew=wire.max_skew,
        # kube-scheduler counts no pod for an empty selector here, unlike in (anti-)affinity.
        selector=(selector + same or None) if selector is not None else None,
        min_domains=wire.min_domains or 1,
        unsupported=unsupported,
    )


HostPort = tuple[str, int, str]  # protocol, port, address ("" for any)


def _host_ports(spec: objects.PodSpec) -> list[HostPort]:
    containers = [*(spec.containers or ()), *filter(is_sidecar, spec.init_containers or ())]
    found = []
    for port in (port for container in containers for port in container.ports or ()):
        number = port.host_port or (port.container_port if spec.host_network else 0)  # filled in on pods alone
        if number:
            # No address, 0.0.0.0 and :: all mean every address of the node.
            found.append((port.protocol, number, "" if port.host_ip in ANY_ADDRESSES else port.host_ip))
    return found


def _port_key(port: HostPort, address: str | None = None) -> str:
    protocol, number, _ = port
    return f"hostPort:{protocol}:{number}" + (f":{address or '*'}" if address is not None else "")


def _port_labels(ports: list[HostPort]) -> dict[str, str]:
    return {key: "" for port in ports for key in (_port_key(port), _port_key(port, port[2]))}


def _port_terms(ports: list[HostPort]) -> Iterable[PodTerm]:
    """Repel pods with the same port: on any address if ours is on any, else on any or the same address."""
    for port in ports:
        address = port[2]
        keys = (_port_key(port, ""), _port_key(port, address)) if address else (_port_key(port),)
        words = f"{port[1]}" if port[0] == "TCP" else f"{port[1]}/{port[0]}"
        for key in keys:
            selector = (LabelRequirement(key=key, operator="Exists"),)
            yield PodTerm(topology_key=HOSTNAME_LABEL, selector=selector, namespaces=None, host_port=words)

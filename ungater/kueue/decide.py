"""What Kueue holds of a job, and how the job is to be looked at then: plain functions of what was seen.

Rules
- A job that Kueue suspends holds a place from the moment its quota is reserved until Kueue takes the quota back. In
  between it is looked at as Kueue will start it (`view`): with the count that was admitted, the node labels and
  tolerations of the flavors that were assigned, and Kueue's priority. So placing needs to know nothing of Kueue.
- Where several Workloads have one job (a new one is made before the old one is gone), one that has quota counts.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from crds.constants import DEFAULT_DOMAIN, GROUP
from engine.cluster.levels import domain_labels
from engine.reasons import Reason
from kube import objects
from kube.objects import Toleration, is_true
from ungater.model import kueue_objects as kueue
from ungater.model.conditions import WantedCondition
from ungater.model.job_view import JobView, controlled_by
from ungater.model.kueue_objects import REJECTED, RETRY, AdmissionCheck, KueueCheckState, KueueWorkload
from ungater.model.pod_slots import PodSetSlots

# --- the AdmissionCheck ----------------------------------------------------------------------------------------------


def ours(check: AdmissionCheck) -> bool:
    """Whether Topogate answers this check."""
    return check.spec.controller_name == kueue.CONTROLLER


def activity(check: AdmissionCheck, domain: str, flavors: Collection[str]) -> WantedCondition:
    """The condition Active: whether ClusterQueues with this check can admit. ``flavors``: ours that have a topology."""
    if domain == DEFAULT_DOMAIN:
        text = (
            f"Topogate reads and writes keys {DEFAULT_DOMAIN}/..., which are Kueue's: install it with a domain of its "
            "own, such as `topogate install --domain topogate.dev`"
        )
        return WantedCondition(kueue.ACTIVE, False, "DomainOfKueue", text)
    if check.spec.parameters:
        text = f"spec.parameters: {kueue.CONTROLLER} takes none; remove them"
        return WantedCondition(kueue.ACTIVE, False, "BadParametersRef", text)
    if not flavors:
        text = f"no ResourceFlavor of {GROUP} has a topology: create one with the levels of this cluster"
        return WantedCondition(kueue.ACTIVE, False, Reason.NO_FLAVOR, text)
    return WantedCondition(kueue.ACTIVE, True, "Active", "Topogate answers this check")


# --- what Kueue holds ------------------------------------------------------------------------------------------------


class Restriction(msgspec.Struct, frozen=True):
    """Where the pods of a job may go by what Kueue assigned, and how many there are (None: as the job says)."""

    count: int | None = None
    selector: Mapping[str, str] = msgspec.field(default_factory=dict)
    labels: tuple[str, ...] = ()  # that nodes must have, whatever their value
    tolerations: tuple[Toleration, ...] = ()


class KueueStanding(msgspec.Struct, frozen=True):
    """How Kueue stands to a job: ``restriction`` where it reserved quota and waits for us, or has been answered.

    ``evicted``: it is taking the quota back. ``missing``: what must be seen before anything can be placed; ``never``:
    why nothing of that kind ever is.
    """

    workload: str
    restriction: Restriction | None = None
    priority: int | None = None  # as Kueue has it; it orders those who wait for a place
    evicted: bool = False
    missing: str = ""
    never: Reason | None = None


class KueueObjects(msgspec.Struct, frozen=True):
    """Kueue's other kinds: our checks by name, flavors and topologies by name."""

    checks: Collection[str]
    flavors: Mapping[str, kueue.ResourceFlavor]
    topologies: Mapping[str, kueue.Topology]


def owner_id(workload: KueueWorkload) -> str:
    """The id of the job that controls a Workload; "" where none does."""
    owner = objects.controller_of(workload.metadata)
    if owner is None:
        return ""
    return controlled_by(workload.metadata.namespace, owner.kind, owner.api_version, owner.uid)


def checks_of(workload: KueueWorkload, observed: KueueObjects) -> tuple[KueueCheckState, ...]:
    """The entries of our checks."""
    return tuple(check for check in workload.status.admission_checks or () if check.name in observed.checks)


def has_quota(workload: KueueWorkload) -> bool:
    """Whether it has quota and is not losing it."""
    conditions = workload.status.conditions
    return (
        workload.status.admission is not None
        and is_true(conditions, kueue.QUOTA_RESERVED)
        and not is_true(conditions, kueue.EVICTED)
        and not is_true(conditions, kueue.FINISHED)
        and workload.spec.active
        and workload.metadata.deletion_timestamp is None
    )


def waits(workload: KueueWorkload) -> bool:
    """Whether it has quota and is not admitted yet."""
    return has_quota(workload) and not is_true(workload.status.conditions, kueue.ADMITTED)


def standing(workloads: Iterable[KueueWorkload], observed: KueueObjects) -> KueueStanding | None:
    """How Kueue stands to the job of these Workloads; None where our check has no part in it."""
    evicted: KueueStanding | None = None
    for workload in sorted(workloads, key=objects.key):
        checks = checks_of(workload, observed)
        if not checks:
            continue
        key = objects.key(workload)
        if has_quota(workload):
            # Kueue will take the quota back for such a check, of whomever, however long that takes: a place that is
            # found now would go with it.
            states = workload.status.admission_checks or ()
            if (other := next((check for check in states if check.state in {RETRY, REJECTED}), None)) is not None:
                missing = (
                    "" if other in checks else f"check {other.name} says {other.state}: Kueue takes the quota back"
                )
                return KueueStanding(key, missing=missing, evicted=True)
            restriction, missing = restrict(workload, observed)
            never = Reason.UNSUPPORTED_OWNER if len(_assigned(workload)) > 1 else None
            return KueueStanding(key, restriction, workload.spec.priority, missing=missing, never=never)
        if is_true(workload.status.conditions, kueue.EVICTED) and not is_true(
            workload.status.conditions, kueue.FINISHED
        ):
            evicted = KueueStanding(key, evicted=True)
    return evicted


def _assigned(workload: KueueWorkload) -> Sequence[kueue.KueuePodSetAssignment]:
    return workload.status.admission.pod_set_assignments if workload.status.admission else ()


def restrict(workload: KueueWorkload, observed: KueueObjects) -> tuple[Restriction | None, str]:
    """What Kueue assigned to the pods, or None and what keeps it from being known."""
    assignments = _assigned(workload)
    if len(assignments) != 1:
        return None, f"it has {len(assignments)} pod sets; beside Kueue only jobs with one are placed"
    assigned = assignments[0]
    selector: dict[str, str] = {}
    labels: dict[str, None] = {}
    tolerations: dict[Toleration, None] = {}
    for name in dict.fromkeys((assigned.flavors or {}).values()):
        flavor = observed.flavors.get(name)
        if flavor is None:
            return None, f"ResourceFlavor {name} of {kueue.GROUP} was not seen yet"
        selector = {**(flavor.spec.node_labels or {}), **selector}  # as Kueue merges them: the first one stays
        tolerations |= dict.fromkeys(flavor.spec.tolerations or ())
        if not flavor.spec.topology_name:
            continue
        if assigned.topology_assignment is not None:
            return None, (
                f"Kueue's ResourceFlavor {name} has topologyName {flavor.spec.topology_name}, so Kueue places the pods "
                "itself, and two cannot: remove topologyName, or the check from the ClusterQueue for this flavor "
                "(spec.admissionChecksStrategy.admissionChecks[].onFlavors)"
            )
        topology = observed.topologies.get(flavor.spec.topology_name)
        if topology is None:
            return None, f"Topology {flavor.spec.topology_name} of {kueue.GROUP} was not seen yet"
        labels |= dict.fromkeys(level.node_label for level in topology.spec.levels)
    return Restriction(assigned.count, selector, tuple(labels), tuple(tolerations)), ""


# --- the job as Kueue will start it ----------------------------------------------------------------------------------


def view(owner: JobView, stands: KueueStanding | None, workloads: Collection[str] = ()) -> JobView:
    """The job as everything else is to look at it. ``workloads``: the keys of all Workloads that Kueue has of it."""
    if owner.over:
        return owner
    if stands is not None and stands.evicted:
        why = f"Kueue takes back the quota of its Workload {stands.workload}"
        return replace(owner, suspended=True, waits_for=why)
    if not owner.suspended:
        return owner  # Kueue has started it, and put all of this into it; or has never heard of it
    if stands is None:
        why = f"Kueue has reserved no quota for its Workload {min(workloads)} yet" if workloads else ""
        return replace(owner, waits_for=why) if why else owner
    # Suspended still: without what Kueue assigned it is not known where its pods may go.
    if stands.restriction is None:
        return replace(owner, waits_for=stands.missing)
    pod_set, given = owner.pod_sets[0], stands.restriction
    most = pod_set.full if given.count is None else given.count
    spec = pod_set.template.spec
    # Each once, in order: equal views must have equal templates.
    tolerations = dict.fromkeys((*(spec.tolerations or ()), *given.tolerations))
    spec = msgspec.structs.replace(
        spec,
        node_selector={**given.selector, **(spec.node_selector or {})} or None,
        tolerations=tuple(tolerations) or None,
        affinity=_with_labels(spec.affinity, given.labels),
    )
    template = msgspec.structs.replace(pod_set.template, spec=spec)
    adapted = replace(pod_set, count=min(pod_set.count, most), full=min(pod_set.full, most), template=template)
    return replace(owner, suspended=False, priority=stands.priority, pod_sets=(adapted,))


def _with_labels(affinity: objects.Affinity | None, labels: Sequence[str]) -> objects.Affinity | None:
    """The same affinity, for nodes that have these labels. A term without requirements matches nothing, and stays."""
    if not labels:
        return affinity
    wanted = tuple(objects.Requirement(key=label, operator="Exists") for label in labels)
    affinity = affinity or objects.Affinity()
    required = (
        affinity.node_affinity.required_during_scheduling_ignored_during_execution if affinity.node_affinity else None
    )
    terms: tuple[objects.NodeSelectorTerm, ...] = (objects.NodeSelectorTerm(match_expressions=wanted),)
    if required is not None:
        terms = tuple(
            msgspec.structs.replace(term, match_expressions=(*(term.match_expressions or ()), *wanted))
            if term.match_expressions or term.match_fields
            else term
            for term in required.node_selector_terms or ()
        )
    selector = objects.NodeSelector(node_selector_terms=terms)
    node_affinity = objects.NodeAffinity(required_during_scheduling_ignored_during_execution=selector)
    return msgspec.structs.replace(affinity, node_affinity=node_affinity)


def strayed(slots: PodSetSlots, given: Restriction, labels_of: Callable[[str], Mapping[str, str] | None]) -> bool:
    """Whether slots lie outside of what Kueue assigned: they are of an earlier reservation, whose end was not seen.

    ``labels_of``: a node's labels, None where the node is not there.
    """
    for slot in slots.slots:
        labels = labels_of(slot.node) if slot.node else domain_labels(slots.levels, slot.values)
        if labels is None:
            continue
        # A domain names its levels alone: a label that it does not name says nothing against it.
        if any(labels.get(key, value) != value for key, value in given.selector.items()):
            return True
        # Of a node all labels are known, so one that is missing counts.
        if slot.node and not {*given.selector, *given.labels} <= labels.keys():
            return True
    return False

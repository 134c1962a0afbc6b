"""The queue kinds: as they are on the wire, and as queueing takes them."""

from datetime import datetime
from typing import Any

from engine.preemption.model import Strategy
from engine.quantity import parse, parse_part
from kube.objects import LabelSelector, Object, Quantity, ResourceFlavor, Struct
from kube.pods.convert import label_selector, taints, tolerations
from queueing import model

BY_USE = "UsageBasedAdmissionFairSharing"  # an admissionMode


class ResourceQuota(Struct, frozen=True):
    """Quota of one resource in one flavor."""

    name: str = ""
    nominal_quota: Quantity = 0
    borrowing_limit: Quantity | None = None
    lending_limit: Quantity | None = None


class FlavorQuotas(Struct, frozen=True):
    """Quotas of one flavor."""

    name: str = ""
    resources: tuple[ResourceQuota, ...] = ()


class ResourceGroup(Struct, frozen=True):
    """Resources that are taken together from one flavor."""

    covered_resources: tuple[str, ...] = ()
    flavors: tuple[FlavorQuotas, ...] = ()


class FlavorFungibility(Struct, frozen=True):
    """Whether to try the next flavor before borrowing or preempting in this one."""

    when_can_borrow: str = "MayStopSearch"
    when_can_preempt: str = "TryNextFlavor"
    preference: str | None = None


class BorrowWithinCohort(Struct, frozen=True):
    """Preemption in the cohort by a workload that itself borrows."""

    policy: str = "Never"
    max_priority_threshold: int | None = None


class Preemption(Struct, frozen=True):
    """Whom the queue's workloads may preempt."""

    reclaim_within_cohort: str = "Never"
    borrow_within_cohort: BorrowWithinCohort | None = None
    within_cluster_queue: str = "Never"
    non_preemptible: str = "ByClass"
    # No default: a stored queue that says nothing must leave both to the settings of the installation.
    strategy: str | None = None
    alpha: float | None = None


class AdmissionCheckRule(Struct, frozen=True):
    """One admission check, and the flavors that need it (None: all)."""

    name: str = ""
    on_flavors: tuple[str, ...] | None = None


class AdmissionChecks(Struct, frozen=True):
    """Checks that must be ready before admission."""

    admission_checks: tuple[AdmissionCheckRule, ...] = ()


class FairSharing(Struct, frozen=True):
    """The share of a queue or cohort beside the others of its parent."""

    weight: Quantity = "1"


class QueueAdmissionScope(Struct, frozen=True):
    """How the LocalQueues of a ClusterQueue share it, or the children of a Cohort."""

    admission_mode: str = ""


class ClusterQueueSpec(Struct, frozen=True):
    """Quota, order and preemption."""

    resource_groups: tuple[ResourceGroup, ...] | None = None
    cohort_name: str = ""
    queueing_strategy: str = "BestEffortFIFO"
    namespace_selector: LabelSelector | None = None
    flavor_fungibility: FlavorFungibility = FlavorFungibility()
    preemption: Preemption = Preemption()
    admission_checks_strategy: AdmissionChecks | None = None
    stop_policy: str = "None"
    fair_sharing: FairSharing | None = None
    admission_scope: QueueAdmissionScope | None = None


class ClusterQueue(Object, frozen=True):
    """A ClusterQueue; its status as it was written."""

    spec: ClusterQueueSpec = ClusterQueueSpec()
    status: dict[str, Any] | None = None


class CohortSpec(Struct, frozen=True):
    """Place in the tree, quota and weight."""

    parent_name: str = ""
    resource_groups: tuple[ResourceGroup, ...] | None = None
    fair_sharing: FairSharing | None = None
    admission_scope: QueueAdmissionScope | None = None


class Cohort(Object, frozen=True):
    """A Cohort; its status as it was written."""

    spec: CohortSpec = CohortSpec()
    status: dict[str, Any] | None = None


class LocalQueueSpec(Struct, frozen=True):
    """Which cluster queue serves the namespace's jobs."""

    cluster_queue: str = ""
    stop_policy: str = "None"
    fair_sharing: FairSharing | None = None


class LocalQueue(Object, frozen=True):
    """A LocalQueue; its status as it was written."""

    spec: LocalQueueSpec = LocalQueueSpec()
    status: dict[str, Any] | None = None


def cluster_queue(wire: ClusterQueue) -> model.ClusterQueue:
    """The ClusterQueue as queueing takes it. Raises ValueError where a quantity cannot be read."""
    spec = wire.spec
    return model.ClusterQueue(
        name=wire.metadata.name,
        groups=tuple(_group(group) for group in spec.resource_groups or ()),
        cohort=spec.cohort_name,
        strict=spec.queueing_strategy == "StrictFIFO",
        namespaces=label_selector(spec.namespace_selector),
        borrow_first=spec.flavor_fungibility.when_can_borrow == "MayStopSearch",
        preempt_first=spec.flavor_fungibility.when_can_preempt == "MayStopSearch",
        preempt_before_borrow=spec.flavor_fungibility.preference == "PreemptionOverBorrowing",
        preemption=_preemption(spec.preemption),
        stop=model.Stop(spec.stop_policy),
        weight=_weight(spec.fair_sharing),
        by_use=_goes_by_use(spec.admission_scope),
    )


def cohort(wire: Cohort) -> model.Cohort:
    """The Cohort as queueing takes it. Raises ValueError where a quantity cannot be read."""
    spec = wire.spec
    return model.Cohort(
        name=wire.metadata.name,
        groups=tuple(_group(group) for group in spec.resource_groups or ()),
        parent=spec.parent_name,
        weight=_weight(spec.fair_sharing),
        by_use=_goes_by_use(spec.admission_scope),
    )


def local_queue(wire: LocalQueue) -> model.LocalQueue:
    """The LocalQueue as queueing takes it. Raises ValueError where its weight cannot be read."""
    meta, spec = wire.metadata, wire.spec
    return model.LocalQueue(
        namespace=meta.namespace,
        name=meta.name,
        cluster_queue=spec.cluster_queue,
        stop=model.Stop(spec.stop_policy),
        weight=_weight(spec.fair_sharing),
    )


def stored_use(wire: Cohort | ClusterQueue | LocalQueue) -> tuple[dict[str, float], float] | None:
    """What its status says that a queue or cohort used over time, by resource in the engine's units, and as of when.

    None where it says nothing, or what nobody can read: then nothing is known of it.
    """
    try:
        found = (wire.status or {})["fairSharing"]["admissionFairSharingStatus"]
        at = datetime.fromisoformat(found["lastUpdate"]).timestamp()
        return {name: parse_part(name, amount) for name, amount in found["consumedResources"].items()}, at
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None


def _goes_by_use(scope: QueueAdmissionScope | None) -> bool:
    return scope is not None and scope.admission_mode == BY_USE


def _weight(sharing: FairSharing | None) -> int:
    """The weight of a queue, in thousandths. Raises ValueError where it is no quantity."""
    try:
        return parse("cpu", sharing.weight) if sharing is not None else 1000
    except ValueError as error:
        # Read as an amount of CPUs, which has thousandths too; the message names what it is.
        raise ValueError(f"spec.fairSharing.weight{str(error).removeprefix('cpu')}") from None


def plain_flavor(wire: ResourceFlavor) -> model.PlainFlavor | None:
    """The flavor as queueing takes it; None where it has a topology, for the engine has it then."""
    if wire.spec.topology is not None and wire.spec.topology.levels:
        return None
    return model.PlainFlavor(
        name=wire.metadata.name,
        node_labels=wire.spec.node_labels or {},
        tolerations=tolerations(wire.spec.tolerations),
        taints=taints(wire.spec.node_taints),
    )


def checks(wire: ClusterQueue, flavors: set[str]) -> tuple[str, ...]:
    """The admission checks that a workload in these flavors needs, by name."""
    strategy = wire.spec.admission_checks_strategy
    rules = strategy.admission_checks if strategy is not None else ()
    return tuple(rule.name for rule in rules if not rule.on_flavors or flavors.intersection(rule.on_flavors))


def _group(wire: ResourceGroup) -> model.ResourceGroup:
    return model.ResourceGroup(
        resources=wire.covered_resources,
        flavors=tuple(
            model.FlavorQuotas(flavor=flavor.name, resources={quota.name: _quota(quota) for quota in flavor.resources})
            for flavor in wire.flavors
        ),
    )


def _quota(wire: ResourceQuota) -> model.Quota:
    borrowing, lending = wire.borrowing_limit, wire.lending_limit
    return model.Quota(
        nominal=parse(wire.name, wire.nominal_quota),
        borrowing=None if borrowing is None else parse(wire.name, borrowing),
        lending=None if lending is None else parse(wire.name, lending),
    )


def _preemption(wire: Preemption) -> model.Preemption:
    borrowing = wire.borrow_within_cohort
    return model.Preemption(
        within=model.Within(wire.within_cluster_queue),
        reclaim=model.Reclaim(wire.reclaim_within_cohort),
        borrowing=borrowing is not None and borrowing.policy == "LowerPriority",
        threshold=borrowing.max_priority_threshold if borrowing is not None else None,
        non_preemptible=model.NonPreemptible(wire.non_preemptible),
        strategy=Strategy(wire.strategy) if wire.strategy is not None else None,
        alpha=wire.alpha,
    )

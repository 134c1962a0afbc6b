"""Wire shapes of the objects on hot paths: the fields we read and no other.

Every field has a default, so an object that lacks one, or has more than we know, still decodes. Structs are frozen and
untracked by the garbage collector: a cache keeps one a node and one a pod. ``key(obj)`` is an object's key in a cache.

It has more than 600 lines: each shape is a few, and they are made of each other.
"""

from typing import Any

import msgspec

Quantity = str | int | float
Quantities = dict[str, Quantity]
StrMap = dict[str, str]


class Struct(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename="camel", omit_defaults=True):
    """Base of the wire shapes: frozen, camelCase on the wire, defaults left out when encoded.

    A field with a list or a map may be None too: the API server sends null for an empty one of a few kinds.
    """


def detached(template: msgspec.Raw) -> msgspec.Raw:
    """A Raw is a view into the whole answer (megabytes of a list page): keep our bytes, let the rest go."""
    return template.copy()


class OwnerReference(Struct, frozen=True):
    """Who an object belongs to; at most one owner is the controller."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(Struct, frozen=True):
    """Metadata; timestamps are RFC 3339 text as sent, empty names mean absent.

    ``cut``: only a part of the object is kept (`kube.kept`); nothing on the wire is called so.
    """

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    generate_name: str = ""
    labels: StrMap | None = None
    annotations: StrMap | None = None
    owner_references: tuple[OwnerReference, ...] = ()
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    finalizers: tuple[str, ...] = ()
    cut: bool = False


class Object(Struct, frozen=True):
    """Anything with metadata."""

    metadata: ObjectMeta = ObjectMeta()


class Condition(Struct, frozen=True):
    """A status condition of any kind; nodes and pods send heartbeat times too, which nobody reads here."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    observed_generation: int = 0


# --- selectors and affinity -----------------------------------------------------------------------------------------


class Requirement(Struct, frozen=True):
    """One requirement of a label or node selector."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class LabelSelector(Struct, frozen=True):
    """A label selector; absent selects nothing, empty everything."""

    match_labels: StrMap | None = None
    match_expressions: tuple[Requirement, ...] | None = None


class NodeSelectorTerm(Struct, frozen=True):
    """A node selector term."""

    match_expressions: tuple[Requirement, ...] | None = None
    match_fields: tuple[Requirement, ...] | None = None


class NodeSelector(Struct, frozen=True):
    """Node selector terms, ORed."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] | None = None


class NodeAffinity(Struct, frozen=True):
    """Required node affinity; what is only preferred is not read."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None


class PodAffinityTerm(Struct, frozen=True):
    """One pod (anti-)affinity term."""

    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] | None = None
    topology_key: str = ""
    namespace_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] | None = None
    mismatch_label_keys: tuple[str, ...] | None = None


class PodAffinity(Struct, frozen=True):
    """Required pod (anti-)affinity."""

    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] | None = None


class Affinity(Struct, frozen=True):
    """The affinity of a pod."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Toleration(Struct, frozen=True):
    """A toleration; ``toleration_seconds`` concerns eviction, not placement, and goes into pod templates as it is."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class TopologySpreadConstraint(Struct, frozen=True):
    """A topology spread constraint."""

    max_skew: int = 1
    topology_key: str = ""
    when_unsatisfiable: str = ""
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: tuple[str, ...] | None = None


# --- nodes ----------------------------------------------------------------------------------------------------------


class Taint(Struct, frozen=True):
    """A node taint."""

    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(Struct, frozen=True):
    """Node spec."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] | None = None


class NodeInfo(Struct, frozen=True):
    """What the kubelet says of itself."""

    kubelet_version: str = ""


class NodeStatus(Struct, frozen=True):
    """Node status."""

    allocatable: Quantities | None = None
    conditions: tuple[Condition, ...] | None = None
    node_info: NodeInfo | None = None
    declared_features: tuple[str, ...] | None = None


class Node(Object, frozen=True):
    """A node."""

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


# --- pods -----------------------------------------------------------------------------------------------------------


class ContainerClaim(Struct, frozen=True):
    """A resource claim of its pod, by the name that it has there, whose devices a container uses."""

    name: str = ""


class ResourceRequirements(Struct, frozen=True):
    """Requests and limits of a container or a pod; ``claims``: devices that it has from its pod's resource claims."""

    requests: Quantities | None = None
    limits: Quantities | None = None
    claims: tuple[ContainerClaim, ...] | None = None


class ContainerPort(Struct, frozen=True):
    """A port; only host ports matter to placement."""

    container_port: int = 0
    host_port: int = 0
    host_ip: str = msgspec.field(name="hostIP", default="")
    protocol: str = "TCP"


class ContainerRestartRule(Struct, frozen=True):
    """What is done when a container ends in some way; only the action matters to placement."""

    action: str = ""


class VolumeMount(Struct, frozen=True):
    """Where a container has a volume; only options that some kubelets lack matter to placement."""

    bind_mount_options: tuple[str, ...] | None = None


class Container(Struct, frozen=True):
    """A container or init container; an init container with restart policy ``Always`` is a sidecar."""

    name: str = ""
    resources: ResourceRequirements | None = None
    ports: tuple[ContainerPort, ...] | None = None
    restart_policy: str | None = None
    restart_policy_rules: tuple[ContainerRestartRule, ...] | None = None
    volume_mounts: tuple[VolumeMount, ...] | None = None

    def __post_init__(self) -> None:
        if self.volume_mounts is not None:  # nearly all have mounts, and nearly none has options there
            kept = tuple([one for one in self.volume_mounts if one.bind_mount_options])
            msgspec.structs.force_setattr(self, "volume_mounts", kept or None)


class SchedulingGate(Struct, frozen=True):
    """A scheduling gate."""

    name: str = ""


class VolumeRequests(Struct, frozen=True):
    """What a claim asks for."""

    requests: Quantities | None = None


class ClaimSpec(Struct, frozen=True):
    """Spec of a PersistentVolumeClaim; an absent class is the default class, "" none at all."""

    access_modes: tuple[str, ...] | None = None
    selector: LabelSelector | None = None
    resources: VolumeRequests | None = None
    volume_name: str = ""
    storage_class_name: str | None = None
    volume_mode: str = ""
    volume_attributes_class_name: str = ""


class ClaimTemplate(Struct, frozen=True):
    """What the claim of an ephemeral volume is made of."""

    spec: ClaimSpec = ClaimSpec()


class ClaimSource(Struct, frozen=True):
    """The claim whose volume a pod has."""

    claim_name: str = ""


class EphemeralSource(Struct, frozen=True):
    """A volume whose claim is made for the pod, and goes with it."""

    volume_claim_template: ClaimTemplate | None = None


class Volume(Struct, frozen=True):
    """A volume of a pod, as far as it has a claim."""

    name: str = ""
    persistent_volume_claim: ClaimSource | None = None
    ephemeral: EphemeralSource | None = None


class PodResourceClaim(Struct, frozen=True):
    """Devices that a pod has: of a ResourceClaim that is there, or of one that is made for it of a template."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class SchedulingGroup(Struct, frozen=True):
    """The PodGroup (scheduling.k8s.io) of its namespace that a pod belongs to."""

    pod_group_name: str = ""


class PodSpec(Struct, frozen=True):
    """Pod spec, as far as placement reads it; of its volumes those that have a claim."""

    node_name: str = ""
    node_selector: StrMap | None = None
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] | None = None
    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None
    overhead: Quantities | None = None
    resources: ResourceRequirements | None = None
    scheduling_gates: tuple[SchedulingGate, ...] | None = None
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] | None = None
    priority: int | None = None
    priority_class_name: str = ""
    preemption_policy: str = ""
    scheduler_name: str = ""
    restart_policy: str = ""
    host_network: bool = False
    host_users: bool | None = None
    termination_grace_period_seconds: int | None = None
    volumes: tuple[Volume, ...] | None = None
    resource_claims: tuple[PodResourceClaim, ...] | None = None
    scheduling_group: SchedulingGroup | None = None
    runtime_class_name: str = ""

    def __post_init__(self) -> None:
        if self.volumes is not None:
            kept = tuple([one for one in self.volumes if one.persistent_volume_claim or one.ephemeral])
            msgspec.structs.force_setattr(self, "volumes", kept or None)

    @property
    def pod_group(self) -> str:
        """The name of its PodGroup (scheduling.k8s.io); "" for none."""
        return self.scheduling_group.pod_group_name if self.scheduling_group is not None else ""


class WaitingState(Struct, frozen=True):
    """What a container waits for."""

    reason: str = ""
    message: str = ""


class ContainerState(Struct, frozen=True):
    """The state of a container, as far as it waits."""

    waiting: WaitingState | None = None


class ContainerStatus(Struct, frozen=True):
    """What the kubelet gave a container: differs from its spec while a resize is under way."""

    name: str = ""
    state: ContainerState | None = None
    allocated_resources: Quantities | None = None
    resources: ResourceRequirements | None = None


class PodClaimStatus(Struct, frozen=True):
    """The ResourceClaim that was made for a claim of a pod; without a name none was needed."""

    name: str = ""
    resource_claim_name: str | None = None


class PodExtendedClaimStatus(Struct, frozen=True):
    """The ResourceClaim that the scheduler made for a pod's extended resources."""

    resource_claim_name: str = ""


class PodStatus(Struct, frozen=True):
    """Pod status."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    qos_class: str = ""
    observed_generation: int = 0
    nominated_node_name: str = ""
    conditions: tuple[Condition, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None
    allocated_resources: Quantities | None = None
    resources: ResourceRequirements | None = None
    resource_claim_statuses: tuple[PodClaimStatus, ...] | None = None
    extended_resource_claim_status: PodExtendedClaimStatus | None = None


class Pod(Object, frozen=True):
    """A pod."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class PodTemplate(Struct, frozen=True):
    """A pod template (of a Job or a Workload's pod set)."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()


# --- jobs -----------------------------------------------------------------------------------------------------------


class GangPolicy(Struct, frozen=True):
    """How many pods kube-scheduler places at once; None: not said (a Job's is its parallelism then)."""

    min_count: int | None = None


class GroupPolicy(Struct, frozen=True):
    """Without ``gang`` pods are scheduled one by one."""

    gang: GangPolicy | None = None


class TopologyKey(Struct, frozen=True):
    """The node label of which all pods of a group are to have one value."""

    key: str = ""


class GroupConstraints(Struct, frozen=True):
    """Where the pods of a group go."""

    topology: tuple[TopologyKey, ...] | None = None


class DisruptionMode(Struct, frozen=True):
    """``all``: its pods are disrupted together; else (``single``, or nothing) one by one."""

    all: dict[str, Any] | None = None


class GroupTerms(Struct, frozen=True):
    """What a PodGroup says, or a Job's spec.scheduling (Kubernetes 1.37), which has no priority."""

    scheduling_policy: GroupPolicy | None = None
    scheduling_constraints: GroupConstraints | None = None
    disruption_mode: DisruptionMode | None = None
    resource_claims: tuple[dict[str, Any], ...] | None = None
    priority: int | None = None


class PodGroup(Object, frozen=True):
    """A PodGroup of Kubernetes itself (scheduling.k8s.io)."""

    spec: GroupTerms = GroupTerms()


class PodConditionPattern(Struct, frozen=True):
    """A condition of a pod that failed; without a status it is True."""

    type: str = ""
    status: str = "True"


class PodFailureRule(Struct, frozen=True):
    """What is done about a pod that failed in some way."""

    action: str = ""
    on_pod_conditions: tuple[PodConditionPattern, ...] | None = None


class PodFailurePolicy(Struct, frozen=True):
    """What is done about pods that failed: what the first rule says that matches."""

    rules: tuple[PodFailureRule, ...] | None = None


class JobSpec(Struct, frozen=True):
    """Job spec; the template is kept raw; ``kube.pods.templates`` decodes it."""

    suspend: bool = False
    parallelism: int | None = None
    completions: int | None = None
    completion_mode: str = "NonIndexed"
    backoff_limit: int | None = None
    backoff_limit_per_index: int | None = None
    pod_failure_policy: PodFailurePolicy | None = None
    pod_replacement_policy: str = ""
    managed_by: str = ""
    selector: LabelSelector | None = None
    template: msgspec.Raw = msgspec.Raw(b"{}")
    scheduling: GroupTerms | None = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "template", detached(self.template))


class UncountedTerminatedPods(Struct, frozen=True):
    """Uids of finished pods that the Job status does not count yet."""

    succeeded: tuple[str, ...] | None = None
    failed: tuple[str, ...] | None = None


class JobStatus(Struct, frozen=True):
    """Job status."""

    active: int = 0
    ready: int | None = None
    terminating: int | None = None
    succeeded: int = 0
    failed: int = 0
    completed_indexes: str = ""
    failed_indexes: str | None = None
    start_time: str | None = None
    completion_time: str | None = None
    uncounted_terminated_pods: UncountedTerminatedPods | None = None
    conditions: tuple[Condition, ...] | None = None


class Job(Object, frozen=True):
    """A Job."""

    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


# --- flavors, namespaces and classes ----------------------------------------------------------------------------------


class FlavorTopology(Struct, frozen=True):
    """The levels of a flavor, widest first, what they may be asked for by, and which values name no domain."""

    levels: tuple[str, ...] = ()
    names: StrMap | None = None
    unknown_values: tuple[str, ...] | None = None


class ResourceFlavorSpec(Struct, frozen=True):
    """Resource flavor spec."""

    node_labels: StrMap | None = None
    node_taints: tuple[Taint, ...] | None = None
    tolerations: tuple[Toleration, ...] | None = None
    topology: FlavorTopology | None = None


class ResourceFlavor(Object, frozen=True):
    """A ResourceFlavor; its status as it was written."""

    spec: ResourceFlavorSpec = ResourceFlavorSpec()
    status: dict[str, Any] | None = None


class Namespace(Object, frozen=True):
    """A namespace; labels are in the metadata."""


class PriorityClass(Object, frozen=True):
    """A priority class."""

    value: int = 0
    global_default: bool = False
    preemption_policy: str = "PreemptLowerPriority"


class RuntimeOverhead(Struct, frozen=True):
    """What running a pod takes besides its containers."""

    pod_fixed: Quantities | None = None


class RuntimeScheduling(Struct, frozen=True):
    """Where pods of a RuntimeClass may go."""

    node_selector: StrMap | None = None
    tolerations: tuple[Toleration, ...] | None = None


class RuntimeClass(Object, frozen=True):
    """A RuntimeClass (node.k8s.io): what the API server adds to pods that name it."""

    overhead: RuntimeOverhead | None = None
    scheduling: RuntimeScheduling | None = None


class LimitRangeItem(Struct, frozen=True):
    """What a LimitRange has for containers or others, as far as it adds something to pods."""

    type: str = ""
    default: Quantities | None = None
    default_request: Quantities | None = None


class LimitRangeSpec(Struct, frozen=True):
    """Spec of a LimitRange."""

    limits: tuple[LimitRangeItem, ...] | None = None


class LimitRange(Object, frozen=True):
    """A LimitRange: what the API server adds to containers of its namespace that say nothing."""

    spec: LimitRangeSpec = LimitRangeSpec()


def key(obj: Object) -> str:
    """``namespace/name``, or ``name`` for a cluster-scoped object."""
    metadata = obj.metadata
    return f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name


def version_of(resource_version: str) -> int:
    """A resource version as a number, to tell which of two is newer; 0 where it is none."""
    return int(resource_version) if resource_version.isdigit() else 0


def controller_of(metadata: ObjectMeta) -> OwnerReference | None:
    """The controlling owner, if there is one."""
    for owner in metadata.owner_references:  # six times for each event of a pod: a generator would take twice as long
        if owner.controller:
            return owner
    return None


def condition(conditions: tuple[Condition, ...] | None, type_: str) -> Condition | None:
    """The condition of this type."""
    for found in conditions or ():  # some ten times at each look at a job: see `controller_of`
        if found.type == type_:
            return found
    return None


def is_true(conditions: tuple[Condition, ...] | None, type_: str) -> bool:
    """Whether the condition is there and True."""
    found = condition(conditions, type_)
    return found is not None and found.status == "True"

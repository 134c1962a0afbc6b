"""Settings of all components: a YAML file, then ``TOPOGATE_*`` environment variables on top.

In a cluster the file is key ``config.yaml`` of the ConfigMap ``topogate-config``, mounted at /etc/topogate. Keys in the
file are camelCase (``ungateBatchSeconds``), variables the field name in capitals (``TOPOGATE_UNGATE_BATCH_SECONDS``).
An unknown key or a wrong value is an error that names it: a typo never falls back to a default. A component that meets
one goes on with the last good settings, which the ungater keeps under key ``last-good.yaml`` beside the others; where
there are none, it does not start.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from crds.constants import DEFAULT_DOMAIN, NAMESPACE, Keys
from crds.device_annotations import DEFAULT as DEVICE_ANNOTATIONS
from crds.device_annotations import XPU_RESOURCE
from crds.device_settings import (
    CLASS_NAME,
    MAPPED_NAME,
    MOST_MAPPINGS,
    RESOURCE_NAME,
    DeviceAnnotation,
    DeviceClassMapping,
    ambiguous,
)
from crds.setting_words import expected
from crds.setting_words import value_in_words as shown_value

CONFIG_MAP: Final = "topogate-config"
CONFIG_KEY: Final = "config.yaml"
LAST_GOOD_KEY: Final = "last-good.yaml"
CONFIG_PATH = f"/etc/topogate/{CONFIG_KEY}"
ENV_PREFIX = "TOPOGATE_"
# A file of another kind has hundreds of unknown keys, and an event or a condition has to hold the message.
MOST_PROBLEMS = 8  # that one message names
LONGEST = 65_536  # characters of a file: all settings, with every list as long as it may be, are a tenth of it

Port = Annotated[int, Field(ge=0, le=65535)]  # 0: any free port
Seconds = Annotated[float, Field(gt=0, le=86_400)]

_LABEL_KEY = r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
_DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_DNS_NAME = CLASS_NAME
_PATTERNS: Final = {
    _DNS_LABEL: "lower-case letters, digits and dashes, as in topogate-system",
    _DNS_NAME: "lower-case letters, digits, dashes and dots, as in topogate.dev",
    _LABEL_KEY: "the key of a label, as in example.com/team",
    RESOURCE_NAME: "the name of a resource, as in nvidia.com/gpu",
    MAPPED_NAME: "the name of a resource, as in nvidia.com/gpu",
}
DnsLabel = Annotated[str, Field(min_length=1, max_length=63, pattern=_DNS_LABEL)]
DnsName = Annotated[str, Field(min_length=1, max_length=253, pattern=_DNS_NAME)]
ResourceName = Annotated[str, Field(min_length=1, max_length=317, pattern=RESOURCE_NAME)]


def _split_names(value: object) -> object:
    """A variable of the environment has names with commas in between."""
    return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value


def _structured(value: object) -> object:
    """A variable of the environment has YAML (or JSON) text."""
    try:
        return yaml.safe_load(value) if isinstance(value, str) else value
    # It stays the text that it is, and the field's own check says what was expected.
    except yaml.YAMLError:
        return value


Names = Annotated[tuple[ResourceName, ...], BeforeValidator(_split_names)]
DeviceAnnotations = Annotated[tuple[DeviceAnnotation, ...], BeforeValidator(_structured)]
DeviceClassMappings = Annotated[
    tuple[DeviceClassMapping, ...], Field(max_length=MOST_MAPPINGS), BeforeValidator(_structured)
]


ResourceWeights = Annotated[
    dict[ResourceName, Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]],
    Field(max_length=64),
    BeforeValidator(_structured),
]
# A year: what was used longer ago than many of these counts for nothing.
HalfLife = Annotated[float, Field(gt=0, le=31_536_000)]
RunSeconds = Annotated[int, Field(ge=0, le=31_536_000)]

LabelKeys = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=317, pattern=_LABEL_KEY)], ...],
    # Each label multiplies the series of the metrics.
    Field(max_length=4),
    BeforeValidator(_split_names),
]


class SettingsError(ValueError):
    """A setting that cannot be used; the text names the file or variable, the field, and what was expected."""


class Settings(BaseModel):
    """What can be set. Times are in seconds, sizes in bytes."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
    )

    domain: DnsName = DEFAULT_DOMAIN
    """The prefix of request annotations, the scheduling gate and the queue label."""
    namespace: DnsLabel = NAMESPACE
    """The namespace in which Topogate runs."""
    beside_kueue: bool = False
    """Topogate shares its domain with a Kueue in the cluster and serves namespaces with the label topogate.dev/served
    alone, which Kueue is to leave out. `topogate install --beside-kueue` sets it with all that goes with it."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level of messages that are logged."""
    log_format: Literal["json", "console", "auto"] = "auto"
    """The format of the log. auto: console on a terminal, json otherwise."""

    bind_address: str = "0.0.0.0"  # noqa: S104 - a pod serves on its own address
    """The address on which a component listens."""
    health_port: Port = 8081
    """The plain HTTP port of /healthz and /readyz. The ungater and the agent also serve /metrics here, unless
    metrics are authenticated."""
    metrics_port: Port = 8443
    """The TLS port of /metrics of the webhook, and of all components if metrics are authenticated."""
    metrics_authentication: Literal["none", "kubernetes"] = "none"
    """Who may read /metrics. none: everyone who can reach the port. kubernetes: holders of a token whose Kubernetes
    permissions allow it."""

    webhook_port: Port = 9443
    """The TLS port of /mutate-job, /mutate-jobset, /mutate-pod, /mutate-owner, /healthz and /readyz."""
    webhook_url: str = ""
    """The URL at which the API server reaches a webhook outside of the cluster. If empty, it uses the Service."""
    webhook_service: DnsLabel = "topogate-webhook"
    """The Service that the API server calls."""
    webhook_secret: DnsLabel = "topogate-webhook-cert"  # noqa: S105 - the Secret's name
    """The Secret that holds the certificates."""
    webhook_configuration: DnsName = "topogate-webhook"
    """The name of the MutatingWebhookConfiguration and the ValidatingWebhookConfiguration."""
    # The API server takes requests of 3 MiB (MaxRequestBodyBytes), and a review has the object before and after.
    webhook_max_body_bytes: int = Field(default=8 * 1024 * 1024, ge=1024)
    """The largest admission review that is read. A review contains the object twice."""
    webhook_max_connections: int = Field(default=256, ge=16, le=65536)
    """The number of simultaneous connections for reviews, about 100 KB each. Beyond it, slow connections and then
    those idle longest are closed to make room."""
    webhook_drain_seconds: Seconds = 10.0
    """How long a webhook that is stopping still answers."""

    certificate_source: Literal["self-signed", "cert-manager"] = "self-signed"
    """What issues the certificates."""
    ca_days: int = Field(default=3650, ge=1)
    """The lifetime of the certificate authority."""
    certificate_days: int = Field(default=365, ge=1)
    """The lifetime of a serving certificate."""
    certificate_renew_days: int = Field(default=60, ge=0)
    """How long before its end a certificate is renewed."""
    certificate_check_seconds: Seconds = 5.0
    """The interval between checks of the Secret and the caBundle."""
    certificate_settle_seconds: Seconds = 60.0
    """How long API servers have to notice a new authority before it signs anything."""

    ungate_batch_seconds: Seconds = 1.0
    """The longest wait for more pods of a pod set."""
    ungate_concurrency: int = Field(default=32, ge=1, le=1024)
    """The number of simultaneous patches."""
    expectation_timeout_seconds: Seconds = 30.0
    """How long Topogate waits to see one of its own writes again before it forgets about it."""
    replacement_timeout_seconds: Seconds = 300.0
    """How long a lost node's pods may take to get a new place."""
    unschedulable_patience_seconds: float = Field(default=10.0, ge=0, le=86_400)
    """A pod that was let go but that kube-scheduler refuses for this long gets another place. 0: never."""
    nominate_gated_pods: bool = False
    """Makes kube-scheduler keep the slots of gated pods from plain pods of no higher priority. It costs one call
    for each pod."""
    missing_pods_timeout_seconds: Seconds = 60.0
    """What is held for pods that were never created is given back this long after the admission, or after the last
    pod was created."""
    missing_pods_recovery_timeout_seconds: Seconds = 900.0
    """As missingPodsTimeoutSeconds, for pods that existed and are gone, and for pods that are created in order, one
    after others."""

    require_queue: bool = False
    """Refuses a Job, JobSet or pod that requests a topology but names no queue."""
    device_class_mappings: DeviceClassMappings = ()
    """Resources of queues, each with the DeviceClasses whose devices count as that resource when pods use resource
    claims."""
    fair_sharing: bool = False
    """Queues of a cohort take turns, and are preempted, according to their dominant resource share."""
    fair_use_half_life_seconds: HalfLife | None = None
    """LocalQueues of a ClusterQueue with an admissionScope take turns by what they used. What was used this long
    ago counts half. If absent, such a scope has no effect."""
    fair_use_sampling_seconds: HalfLife | None = None
    """How often use is counted, as in Kueue. If absent, every change counts from the moment at which it happens."""
    fair_use_resource_weights: ResourceWeights = {}
    """How much one unit (a core, a byte, a device) of each resource counts as use. Resources that are not named count
    1; memory, ephemeral-storage and hugepages count 0."""
    queue_patience_seconds: Seconds = 300.0
    """After a workload has waited this long, the workloads behind it leave it the quota that it needs, and its room
    if they can go elsewhere."""
    # In sixteen simulated months at load 1.0 the mean wait is 1.59 h with a week and 1.88 h with three days, and a week
    # uses 0.24 points more of the GPUs: large jobs wait for each other's closed rooms (docs/simulate.md).
    queue_hold_seconds: Annotated[float, Field(gt=0, le=31_536_000)] = 604_800.0
    """After a workload has waited this long, the workloads behind it leave it its room in any case, although the
    room stays idle until all of it is free."""
    # Bounded: a pod that never ends would keep its room idle for as long as somebody waits for it.
    leaving_patience_seconds: Annotated[float, Field(ge=0, le=3600)] = 60.0
    """How long the room of pods that are ending is kept for the first workload that fits once all of them are gone.
    0: it is not kept."""
    # A guard: a controller that changes boosts each second would else have workloads evict each other each second.
    priority_boost_rest_seconds: Annotated[float, Field(ge=0, le=31_536_000)] = 600.0
    """How long a boost of a Workload's priority counts before another value does, and how long an admitted workload
    keeps its boost. 0: every change counts at once, as in Kueue."""
    preemption_strategy: Literal["LeastPriority", "IncrementalMinimal"] = "LeastPriority"
    """How victims are chosen. LeastPriority: those with the lowest priority. IncrementalMinimal: the fewest, as in
    the paper on FlexTopo."""
    preemption_alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    """With IncrementalMinimal: the weight of the victims' priorities against the place where the preemptor
    lands."""
    preemption_same_zone: float = 1.0
    """With IncrementalMinimal: the score of a place in one NUMA zone."""
    preemption_same_socket: float = 0.5
    """With IncrementalMinimal: the score of a place in several zones of one socket. At most preemptionSameZone."""
    preemption_across: float = 0.0
    """With IncrementalMinimal: the score of a place across sockets. At most preemptionSameSocket."""
    preempt_plain_pods: bool = False
    """Queues that preempt may also evict pods of lower priority that no queue admitted."""
    eviction_patience_seconds: Seconds = 60.0
    """How long a preemption waits for a PodDisruptionBudget that refuses an eviction. After that, other victims are
    chosen."""
    # On by default: a tenant's budget that allows no eviction would keep borrowed quota for ever.
    reclaim_overrides_budgets: bool = True
    """When a queue takes back its nominal quota, the budgets of the workloads that borrow it no longer count after
    evictionPatienceSeconds."""
    reclaim_grace_seconds: Seconds = 600.0
    """The longest time to stop for pods that borrow, when nominal quota is taken back."""
    minimum_run_time_within_cluster_queue_seconds: RunSeconds = 0
    """How long a workload runs before workloads of the same ClusterQueue may have it evicted. This and the next two
    count where neither the ClusterQueue nor a cohort above it says it in minimumRunTime. 0: they may at once."""
    minimum_run_time_reclaim_seconds: RunSeconds = 0
    """How long a workload runs before workloads of other queues may have it evicted. 0: they may at once."""
    minimum_run_time_fair_sharing_seconds: RunSeconds | None = None
    """As minimumRunTimeReclaimSeconds, for evictions that shares decide on. If absent, that setting counts."""
    # None by default: a move stops pods that run, and what they have not saved is lost.
    moves_per_hour: int = Field(default=0, ge=0, le=1000)
    """How many running workloads may be moved in an hour, in the whole cluster and for whatever reason. 0: none."""
    move_rest_seconds: Seconds = 3600.0
    """The shortest time between a workload's admission, or its last move, and its next move. It doubles with each
    move."""
    pull_together: bool = True
    """If moves are allowed: a job that prefers a level, but was spread, is moved together when there is room."""
    replace_misaligned: bool = True
    """If moves are allowed: a pod that did not get the NUMA alignment or links that it asks for is moved to another
    node."""
    make_room: bool = True
    """If moves are allowed: small jobs are moved elsewhere for a job that has waited long for the domain they are
    in."""
    make_room_max_priority: int | None = Field(default=None, ge=-(2**31), le=2**31 - 1)
    """Jobs up to this priority also make room for a job with a lower priority. If absent, no job does."""
    wait_for_pods_ready_timeout_seconds: Seconds | None = None
    """How long after its admission all pods of a queued workload must be ready. Otherwise it is put back. If
    absent, there is no limit."""
    wait_for_pods_ready_recovery_timeout_seconds: Seconds | None = None
    """How long pods of a queued workload that were ready may take to be ready again. Otherwise it is put back. If
    absent, there is no limit."""
    requeuing_backoff_base_seconds: Seconds = 60.0
    """How long a workload that was put back waits before it is tried again. It doubles each time."""
    requeuing_backoff_max_seconds: Seconds = 3600.0
    """The longest time that a workload that was put back waits."""
    requeuing_backoff_limit_count: int | None = Field(default=None, ge=0)
    """A workload that was put back this often is deactivated. If absent, never."""
    workload_retention_seconds: float | None = Field(default=None, ge=0)
    """How long the Workload of a finished job is kept. If absent, as long as the job."""
    usage_labels: LabelKeys = ()
    """Labels of pods, such as those for user and team. Metrics count what is held by their values."""

    uncounted_resources: Names = ()
    """Resources that nodes do not publish and no scheduler counts, such as HAMi's nvidia.com/gpumem. They fit on
    any node."""
    numa_ignored_resources: Names = ()
    """Resources that are not aligned to NUMA zones, whatever the nodes report of their zones."""
    reconstruct_available: bool = True
    """Computes what is free in each zone from the known pods, instead of trusting NodeResourceTopology."""
    numa_score: Literal["LeastNUMANodes", "LeastAllocated", "MostAllocated", "BalancedAllocation"] = "LeastNUMANodes"
    """Ranks nodes that spread a pod over equally many zones at equal distances, by how full the zones become."""
    alignment_over_packing: Literal["Never", "UsedNodes", "UsedDomains", "Always"] = "Always"
    """Which nodes that align a pod better come before fuller ones: none, used nodes, nodes of used domains, or
    all."""
    # 400 Jobs of 5 GPUs open 25 racks of 128 GPUs with 0, 17 with 1 to 3, and 16 with 4 and more; 15.6 is the least.
    nodes_per_opened_domain: int = Field(default=4, ge=0, le=1000)
    """How many more nodes a job may use in a rack in use before it opens a rack in which nothing runs. 0: the
    fewest hosts come first."""
    xpu_resources: Names = (XPU_RESOURCE,)
    """Resources that are allocated by the rules of Kunlunxin XPUs."""
    device_annotations: DeviceAnnotations = tuple(DeviceAnnotation(**rule._asdict()) for rule in DEVICE_ANNOTATIONS)
    """Annotations that tell device plugins which devices were chosen."""

    kueue_never_fits: Literal["Reject", "Retry", "Wait"] = "Reject"
    """Under Kueue, what happens to a workload that can never be placed. Reject: it is tried again, then
    deactivated. Retry: it is tried forever. Wait: it keeps its quota."""
    # Nodes may be away for a moment, and what follows from never is final for the workload.
    kueue_never_fits_seconds: Seconds = 30.0
    """How long a workload must have had its quota and been impossible to place before kueueNeverFits applies. Until
    then, the check waits."""
    kueue_reject_seconds: Seconds = 600.0
    """With kueueNeverFits Reject: how long this must last before the workload is deactivated, in case nodes or
    flavors are added."""
    kueue_wait_seconds: float = Field(default=3600.0, ge=0, le=86_400)
    """Under Kueue, a workload without a place gives its quota to others for a minute after this long. It doubles
    each time. 0: never."""

    leader_election: bool = True
    """Whether a component takes a lease before it does anything."""
    lease_name: DnsLabel = "topogate-ungater"
    """The name of the Lease."""
    # A leader renews after 3 s, and has 7 s more for it until it gives up at 10 s (two thirds of the lease).
    lease_seconds: Seconds = 15.0
    """A leader that has not renewed its lease for this long has lost it."""
    lease_renew_seconds: Seconds = 3.0
    """A leader renews its lease at least this often."""
    lease_retry_seconds: Seconds = 2.0
    """How often the others try to get the lease."""

    agent_node_name: str = ""
    """The Kubernetes node that the agent runs on. If empty, this machine's host name."""
    agent_sysfs: str = "/sys"
    """The path at which the machine's sysfs is mounted."""
    agent_proc: str = "/proc"
    """The path at which the machine's procfs is mounted."""
    agent_kubelet_directory: str = "/var/lib/kubelet"
    """The kubelet's directory, which holds the state of its managers."""
    agent_kubelet_config: str = ""
    """The kubelet's configuration file. If empty, config.yaml in its directory."""
    agent_pod_resources_socket: str = ""
    """The kubelet's podresources socket. If empty, pod-resources/kubelet.sock in its directory."""
    agent_core_group_size: int = Field(default=8, ge=1, le=1024)
    """The number of cores in a CPUCoreGroup of the FlexTopo graph."""
    agent_publish_topology: Literal["auto", "always", "never"] = "auto"
    """Whether the agent writes the node's NodeResourceTopology. auto: unless another exporter does."""
    agent_observe_pods: bool = True
    """Whether the agent writes the observed placement of each pod."""
    agent_hardware_seconds: Seconds = 300.0
    """The interval between scans of the hardware."""
    agent_poll_seconds: Seconds = 30.0
    """The longest time between reads of the allocations when nothing announces a change."""
    agent_watch_seconds: Seconds = 0.5
    """The interval between checks of whether the kubelet's state files changed."""
    agent_write_seconds: Seconds = 1.0
    """The shortest time between two writes of the same object."""

    @property
    def keys(self) -> Keys:
        """Labels, annotations and gate under the configured domain."""
        return Keys(self.domain)

    @model_validator(mode="after")
    def _shares_kueues_domain(self) -> "Settings":
        if self.beside_kueue and self.domain != DEFAULT_DOMAIN:
            raise ValueError(f"besideKueue: expected domain {DEFAULT_DOMAIN}, which is Kueue's, found {self.domain}")
        return self

    @model_validator(mode="after")
    def _each_class_counts_once(self) -> "Settings":
        if (why := ambiguous(self.device_class_mappings)) is not None:
            raise ValueError(f"deviceClassMappings: {why}")
        return self

    @model_validator(mode="after")
    def _lease_times_are_ordered(self) -> "Settings":
        # Two thirds is when a leader stops by itself (`kube.lease.RENEW_DEADLINE`): a renewal must come before that.
        if not self.lease_retry_seconds < self.lease_renew_seconds < self.lease_seconds * 2 / 3:
            raise ValueError("expected leaseRetrySeconds < leaseRenewSeconds < two thirds of leaseSeconds")
        return self

    @model_validator(mode="after")
    def _wider_landings_are_worth_no_more(self) -> "Settings":
        if not self.preemption_same_zone >= self.preemption_same_socket >= self.preemption_across:
            raise ValueError("expected preemptionSameZone >= preemptionSameSocket >= preemptionAcross")
        return self

    @model_validator(mode="after")
    def _certificates_outlive_their_renewal(self) -> "Settings":
        # Else a certificate that is just made is due for renewal, and every check makes another one.
        if not self.certificate_renew_days < self.certificate_days <= self.ca_days:
            raise ValueError("expected certificateRenewDays < certificateDays <= caDays")
        return self


AT_START: Final = frozenset(
    {
        *("domain", "namespace", "log_level", "log_format", "bind_address", "health_port", "metrics_port"),
        *("metrics_authentication", "leader_election", "lease_name"),
        *("lease_seconds", "lease_renew_seconds", "lease_retry_seconds"),
        # By prefix: listeners, certificates and the agent's process take theirs when they start.
        *(name for name in Settings.model_fields if name.startswith(("webhook_", "certificate_", "ca_", "agent_"))),
    }
)
"""What a component goes by until it is started again; it takes all else while it runs."""


DECIDED: Final = frozenset(
    {
        *("domain", "namespace", "bindAddress", "healthPort", "metricsPort", "metricsAuthentication", "leaseName"),
        "besideKueue",
        *("webhookPort", "webhookUrl", "webhookService", "webhookSecret", "webhookConfiguration", "certificateSource"),
        *("agentNodeName", "agentSysfs", "agentProc", "agentKubeletDirectory", "agentPodResourcesSocket"),
    }
)
"""What goes by how Topogate is installed: ports, names and paths that objects of its manifests refer to."""


class ReadSettings(NamedTuple):
    """Settings in use, the text that they are of, and why a newer text is not used ("": it is the one)."""

    settings: Settings
    text: str
    problem: str = ""


def load(path: str | Path | None = None, env: Mapping[str, str] | None = None) -> Settings:
    """Read the settings: defaults, then the file, then the environment.

    ``path`` None: /etc/topogate/config.yaml where it exists, else defaults; a path that is named must exist. ``env``
    None: this process's. Raises SettingsError.
    """
    file = Path(CONFIG_PATH) if path is None else Path(path)
    text = "" if path is None and not file.exists() else _text(file)
    return parse(text, source=str(file), env=os.environ if env is None else env)


def load_good(path: str | Path, env: Mapping[str, str]) -> ReadSettings:
    """As `load`; where the file is wrong, by the last good one beside it, as they lie in the mounted ConfigMap."""
    file = Path(path)
    last_good = file.with_name(LAST_GOOD_KEY)
    return read_good(_text(file), _text(last_good) if last_good.exists() else None, source=str(file), env=env)


def read_good(text: str, last_good: str | None, *, source: str, env: Mapping[str, str] | None) -> ReadSettings:
    """The settings of a text, or those of the last good one where it is wrong. Raises SettingsError."""
    try:
        return ReadSettings(parse(text, source=source, env=env), text)
    except SettingsError as error:
        if last_good is None:
            raise
        # Settings that were good for an earlier version may give one twice; they still beat no start at all.
        good = parse(last_good, source=f"last good settings of {source}", env=env, twice=True)
        return ReadSettings(good, last_good, str(error))


def unread_keys(data: Mapping[str, str] | None, binary: Mapping[str, str] | None = None) -> Iterator[str]:
    """What is wrong with keys of the ConfigMap that nothing reads; each with its key first."""
    for field, keys in (("data", data or {}), ("binaryData", binary or {})):
        for key in sorted(keys):
            if field != "data" or key not in {CONFIG_KEY, LAST_GOOD_KEY}:
                yield f"{field}[{key[:80]}]: nothing reads this key: settings are data[{CONFIG_KEY}]"


def right_parts(text: str) -> Settings:
    """What is right in a text that is wrong, and defaults for the rest: for those who only look at a cluster."""
    try:
        values = _mapping(text, "", twice=True)
    except SettingsError:
        return Settings()
    known: dict[str, Any] = {}
    for key, value in values.items():
        try:
            # Beside the ones that are right so far, as some rules are about several settings together.
            from_mapping(known | {key: value})
        except SettingsError:
            continue
        known[key] = value
    return from_mapping(known)


def parse(text: str, *, source: str, env: Mapping[str, str] | None = None, twice: bool = False) -> Settings:
    """The settings of a file's text, and ``TOPOGATE_*`` variables on top. Raises SettingsError.

    ``twice``: it is in use already. Topogate 0.2.0 and earlier took the last one of a setting that is given twice.
    """
    return from_mapping(_mapping(text, source, twice=twice), source=source, env=env)


def from_mapping(
    values: Mapping[str, Any], *, source: str = "settings", env: Mapping[str, str] | None = None
) -> Settings:
    """Settings from plain values (camelCase or field names) and ``TOPOGATE_*`` variables. Raises SettingsError."""
    by_field = {_field_name(key): value for key, value in values.items()}
    # A setting under both of its spellings: which of the two was meant nobody knows.
    if len(by_field) < len(values):
        names = Counter(map(_field_name, values))
        raise SettingsError(_given_twice(source, next(name for name, count in names.items() if count > 1)))
    origin = dict.fromkeys(by_field, source)
    for field in Settings.model_fields:
        variable = ENV_PREFIX + field.upper()
        if env is not None and variable in env:
            by_field[field] = env[variable]
            # The variable wins, so the file is not what has to be mended.
            origin[field] = f"environment variable {variable}"
    try:
        return Settings.model_validate(by_field)
    except ValidationError as error:
        raise SettingsError(_explain(error, origin, source)) from error


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise SettingsError(f"{file}: cannot be read: {why}") from error


def _mapping(text: str, source: str, *, twice: bool = False) -> dict[str, Any]:
    """``twice``: of a setting that is given twice the last one counts; else it is an error. Raises SettingsError."""
    # Before it is parsed, as that takes long for a large text and the webhook parses what anybody sends.
    if len(text) > LONGEST:
        raise SettingsError(f"{source}: expected at most {LONGEST} characters, found {len(text)}")
    try:
        # The webhook reads what anybody sends: a few aliases inside each other stand for more than fits any memory.
        # Events expand nothing: the text is built only once it is known to have no alias.
        aliased = any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader))
        values = None if aliased else yaml.safe_load(text)
        again = None if aliased or twice else _repeated(yaml.compose(text, yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise SettingsError(f"{source}: is not YAML: {_yaml_problem(error)}") from error
    if aliased:
        raise SettingsError(f"{source}: expected each value in its place, found an alias (*name)")
    if again is not None:
        raise SettingsError(_given_twice(source, again))
    if values is None:
        return {}
    # YAML takes anything for a key: yes is a boolean, and 8 a number.
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise SettingsError(f"{source}: expected `key: value` lines, found {shown_value(values)}")
    return values


def _yaml_problem(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark) is not None:
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return str(error)


def _repeated(node: yaml.Node | None) -> str | None:
    """A key that a mapping has more than once; YAML forbids it, but PyYAML takes the last one."""
    parts: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        names = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        if again := next((name for name, count in names.items() if count > 1), None):
            return str(again)
        parts = [value for _, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        parts = node.value
    return next(filter(None, map(_repeated, parts)), None)


def _given_twice(source: str, key: str) -> str:
    shown = to_camel(key) if key in Settings.model_fields else key[:80]
    return f"{source}: {shown}: is given twice: keep one of the two"


def _field_name(key: str) -> str:
    """The model's field for a key of the file; the key itself where there is none, so that the error shows it."""
    return next((name for name in Settings.model_fields if key in {name, to_camel(name)}), key)


def _explain(error: ValidationError, origin: Mapping[str, str], source: str) -> str:
    lines = []
    for problem in error.errors(include_url=False):
        field = str(problem["loc"][0]) if problem["loc"] else ""
        where = origin.get(field, source)
        rest = "".join(f".{part}" for part in problem["loc"][1:])
        shown = f"{where}: {to_camel(field) if field in Settings.model_fields else field[:80]}{rest}"
        if problem["type"] == "extra_forbidden":
            lines.append(f"{shown}: unknown field" if rest else f"{shown}: unknown setting; {_suggestion(field)}")
        elif not field:
            lines.append(f"{where}: {problem['msg'].removeprefix('Value error, ')}")
        elif problem["type"] == "missing":
            lines.append(f"{shown}: is missing")
        else:
            lines.append(f"{shown}: {expected(problem, _PATTERNS)}, found {shown_value(problem['input'])}")
    return "\n".join(lines[:MOST_PROBLEMS])


def _suggestion(key: str) -> str:
    known = {to_camel(name).lower(): to_camel(name) for name in Settings.model_fields}
    # Cut, for comparing is quadratic in the length of the key.
    alike = get_close_matches(key[:100].replace("_", "").lower(), known, n=1)
    return f"did you mean {known[alike[0]]}?" if alike else "docs/api.md lists them all"

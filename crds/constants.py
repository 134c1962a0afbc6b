"""Every label, annotation, gate and name that Topogate reads or writes."""

from functools import cached_property

import msgspec

GROUP = "topogate.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
DEFAULT_DOMAIN = "kueue.x-k8s.io"
NAMESPACE = "topogate-system"
DEFAULT_QUEUE = "default"  # the LocalQueue of jobs that name none, in a namespace that has one
HOSTNAME_LABEL = "kubernetes.io/hostname"
MAX_LEVELS = 8

JOB_INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
# Where controllers write the rank of a pod, the first that is there counts; of groups under the configured domain.
POD_GROUP_INDEX = "pod-group-pod-index"
WORKER_INDEX = "leaderworkerset.sigs.k8s.io/worker-index"
RANK_LABELS = (
    JOB_INDEX_LABEL,
    WORKER_INDEX,
    "apps.kubernetes.io/pod-index",
    "training.kubeflow.org/replica-index",
)
JOB_SET_ROLE = "jobset.sigs.k8s.io/replicatedjob-name"
JOB_SET_INDEX = "jobset.sigs.k8s.io/job-index"

# What stands in spec.managedBy where the controller that Kubernetes or JobSet itself brings is meant.
JOB_CONTROLLER = "kubernetes.io/job-controller"
JOB_SET_CONTROLLER = "jobset.sigs.k8s.io/jobset-controller"

NUMA_POLICY = f"{GROUP}/numa-policy"
NUMA_RESOURCES = f"{GROUP}/numa-resources"
GPU_LINK = f"{GROUP}/gpu-link"
TOPOLOGY_QOS = f"{GROUP}/topology-qos"
EVICT_BY = f"{GROUP}/evict-by"
PREEMPTIBLE = f"{GROUP}/preemptible"  # "false" on a priority class or a job: it is nobody's victim
PREEMPTION_POLICY = f"{GROUP}/preemption-policy"  # on a WorkloadPriorityClass, as PriorityClasses have it as a field
SLICE = "slice"  # its value for gangs that may lose some of their slices
NUMA_PLACEMENT_PREDICTED = f"{GROUP}/numa-placement-predicted"
NUMA_PLACEMENT_OBSERVED = f"{GROUP}/numa-placement-observed"
ADMITTED_QUOTA = f"{GROUP}/admitted-quota"  # by which quota a pod runs that was let go (`crds.admitted_quota`)

# What others write on nodes, and read on pods.
GPU_STATES = "gpu-topology.acme.com/gpu-states"
XPU_INDEXES = "BAIDU_COM_DEVICE_IDX"

# On our Workloads: of which templates and requests of the job its pod sets are a copy.
COPY_OF = f"{GROUP}/copy-of"
OWNER = f"{GROUP}/owner"  # whose it is (`crds.names.owner_digest`): its name does not tell that
HELD = f"{GROUP}/held"
MIGRATED_FROM = f"{GROUP}/migrated-from"  # on what `topogate migrate` made: the object of Kueue, VERSION/KIND/NAME
# On a Workload: the nodes that its pods are to move to, as `topogate defrag --run` asks (`ungater.model.move_request`)
MOVE_TO = f"{GROUP}/move-to"

# Of a namespace: "true" where Topogate serves it beside a Kueue that has the same domain, which leaves it out then.
SERVED = f"{GROUP}/served"
# Of pods that Kueue started (0.19.2, pkg/constants/constants.go, PodSetLabel): their pod set in its Workload.
KUEUE_POD_SET = f"{DEFAULT_DOMAIN}/podset"
# Annotation of the same pods (0.19.2, apis/kueue/v1beta2/topology_types.go, WorkloadAnnotation): Kueue's Workload.
KUEUE_WORKLOAD = f"{DEFAULT_DOMAIN}/workload"

FINALIZER = f"{GROUP}/in-use"


# With `Keys.read`: what is never cut from an object that is too large to be kept whole (`kube.kept`).
_READ = (
    *(*RANK_LABELS, JOB_SET_ROLE, JOB_SET_INDEX, NUMA_POLICY, NUMA_RESOURCES, GPU_LINK, TOPOLOGY_QOS, EVICT_BY),
    *(PREEMPTIBLE, PREEMPTION_POLICY, NUMA_PLACEMENT_PREDICTED, NUMA_PLACEMENT_OBSERVED, ADMITTED_QUOTA, GPU_STATES),
    *(XPU_INDEXES, COPY_OF, OWNER, HELD, MOVE_TO, KUEUE_POD_SET),
)


class Keys(msgspec.Struct, frozen=True, dict=True):
    """The keys that live under the configurable ``domain`` (default ``kueue.x-k8s.io``)."""

    domain: str = DEFAULT_DOMAIN

    @cached_property
    def read(self) -> frozenset[str]:
        """All labels and annotations that decide anything here, whoever writes them."""
        # By reflection, so that a key that is added below cannot be missing here.
        names = [name for name, one in vars(Keys).items() if isinstance(one, cached_property) and name != "read"]
        found = [getattr(self, name) for name in names]
        return frozenset([key for one in found for key in ((one,) if isinstance(one, str) else one)]).union(_READ)

    @cached_property
    def gate(self) -> str:
        """The scheduling gate that holds a pod until its slot is known."""
        return f"{self.domain}/topology"

    @cached_property
    def workload(self) -> str:
        """Pod annotation: the name of the Workload the pod belongs to."""
        return f"{self.domain}/topology-workload"

    @cached_property
    def pod_set(self) -> str:
        """Pod annotation: the pod set of the Workload the pod belongs to."""
        return f"{self.domain}/topology-podset"

    @cached_property
    def queue_name(self) -> str:
        """Label on a job: its local queue."""
        return f"{self.domain}/queue-name"

    @cached_property
    def priority_class(self) -> str:
        """Label on a job: the WorkloadPriorityClass that its place in the queue comes from."""
        return f"{self.domain}/priority-class"

    @cached_property
    def min_parallelism(self) -> str:
        """Annotation on a job: with how few pods it may be admitted."""
        return f"{self.domain}/job-min-parallelism"

    @cached_property
    def max_execution(self) -> str:
        """Label on a job: for how many seconds it may be admitted."""
        return f"{self.domain}/max-exec-time-seconds"

    @cached_property
    def gated_by(self) -> str:
        """Annotation on a job: the controllers that hold it back until they agree."""
        return f"{self.domain}/admission-gated-by"

    @cached_property
    def required(self) -> tuple[str, ...]:
        """Annotations that ask for a required level; the first is the canonical one."""
        return (f"{self.domain}/require-topology", f"{self.domain}/podset-required-topology")

    @cached_property
    def preferred(self) -> tuple[str, ...]:
        """Annotations that ask for a preferred level (or ``auto``); the first is the canonical one."""
        return (f"{self.domain}/prefer-topology", f"{self.domain}/podset-preferred-topology")

    @cached_property
    def unconstrained(self) -> str:
        """Annotation ``"true"``: place anywhere it fits."""
        return f"{self.domain}/podset-unconstrained-topology"

    @cached_property
    def slice_level(self) -> str:
        """Annotation: the level that each slice of a pod set shares."""
        return f"{self.domain}/podset-slice-required-topology"

    @cached_property
    def slice_size(self) -> str:
        """Annotation: pods in a slice."""
        return f"{self.domain}/podset-slice-size"

    @cached_property
    def slice_layers(self) -> str:
        """Annotation: slices within slices, as JSON."""
        return f"{self.domain}/podset-slice-required-topology-constraints"

    @cached_property
    def pod_group(self) -> str:
        """Label or annotation on a pod: the group of pods that are one workload (`crds.request.group_named`)."""
        return f"{self.domain}/pod-group-name"

    @cached_property
    def pod_group_total(self) -> str:
        """Annotation on a pod: how many pods its group (or its controller) will have."""
        return f"{self.domain}/pod-group-total-count"

    @cached_property
    def role_hash(self) -> str:
        """Annotation on a pod of a group: its pod set, where not all pods of the group are alike."""
        return f"{self.domain}/role-hash"

    @cached_property
    def group(self) -> str:
        """Annotation: pod sets with the same one share a domain of the requested level."""
        return f"{self.domain}/podset-group-name"

    @cached_property
    def grouping(self) -> tuple[str, ...]:
        """Annotations on slices and groups of pod sets."""
        return (self.slice_level, self.slice_size, self.slice_layers, self.group)

    @cached_property
    def requests(self) -> tuple[str, ...]:
        """All annotations that carry a topology request."""
        return (*self.required, *self.preferred, self.unconstrained, *self.grouping)

"""The API's resources: group, version, plural and the URL path of an object.

Names come from the API server or were validated by it, except where a person typed them: paths are percent-encoded.
"""

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any
from urllib.parse import quote

import msgspec

_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*").fullmatch


def _escape(name: str) -> str:
    # Nearly every name is plain, and this is on the path of every call. Dots alone would walk up the path.
    return name if _PLAIN(name) else quote(name, safe="").replace(".", "%2E")


class Resource(msgspec.Struct, frozen=True, dict=True):
    """One resource of the API; ``group`` is empty for the core API."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @cached_property
    def api_version(self) -> str:
        """``group/version``, as objects carry it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @cached_property
    def root(self) -> str:
        """The path before ``namespaces/...`` or the plural."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """URL path of the collection, or of one object or its subresource.

        Raises:
            ValueError: a namespaced object is named without its namespace, or a name is empty.
        """
        path = self.root
        if self.namespaced:
            if namespace:
                path = f"{path}/namespaces/{_escape(namespace)}"
            elif name is not None:
                raise ValueError(f"{self.plural} {name!r}: a namespaced object needs its namespace")
        if name is None:
            return f"{path}/{self.plural}"
        if not name:
            raise ValueError(f"{self.plural}: the name of an object is not empty")
        path = f"{path}/{self.plural}/{_escape(name)}"
        return f"{path}/{subresource}" if subresource else path

    def describe(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """``pods default/web``, for messages."""
        what = f"{self.plural}/{subresource}" if subresource else self.plural
        where = "/".join(part for part in (namespace if self.namespaced else None, name) if part)
        return f"{what} {where}" if where else what

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
PODS = Resource("", "v1", "pods", "Pod")
SECRETS = Resource("", "v1", "secrets", "Secret")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
SERVICES = Resource("", "v1", "services", "Service")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
LIMIT_RANGES = Resource("", "v1", "limitranges", "LimitRange")
RUNTIME_CLASSES = Resource("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", namespaced=False)
PERSISTENT_VOLUME_CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
PERSISTENT_VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)
STORAGE_CLASSES = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False)
CSI_NODES = Resource("storage.k8s.io", "v1", "csinodes", "CSINode", namespaced=False)
CSI_DRIVERS = Resource("storage.k8s.io", "v1", "csidrivers", "CSIDriver", namespaced=False)
CSI_STORAGE_CAPACITIES = Resource("storage.k8s.io", "v1", "csistoragecapacities", "CSIStorageCapacity")
DEVICE_CLASSES = Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False)
RESOURCE_SLICES = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False)
DEVICE_TAINT_RULES = Resource("resource.k8s.io", "v1", "devicetaintrules", "DeviceTaintRule", namespaced=False)
RESOURCE_CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim")
CLAIM_TEMPLATES = Resource("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate")
RESOURCE_QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
STATEFUL_SETS = Resource("apps", "v1", "statefulsets", "StatefulSet")
DAEMON_SETS = Resource("apps", "v1", "daemonsets", "DaemonSet")
REPLICA_SETS = Resource("apps", "v1", "replicasets", "ReplicaSet")
CONTROLLER_REVISIONS = Resource("apps", "v1", "controllerrevisions", "ControllerRevision")
JOBS = Resource("batch", "v1", "jobs", "Job")
JOB_SETS = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
LEADER_WORKER_SETS = Resource("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "LeaderWorkerSet")
EVENTS = Resource("events.k8s.io", "v1", "events", "Event")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
# Of Kubernetes itself, off by default: the beta, and what servers have that enable the alpha alone.
POD_GROUPS = Resource("scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup")
POD_GROUPS_ALPHA = Resource("scheduling.k8s.io", "v1alpha3", "podgroups", "PodGroup")
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
POD_DISRUPTION_BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
ROLES = Resource("rbac.authorization.k8s.io", "v1", "roles", "Role")
ROLE_BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
CLUSTER_ROLES = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False)
CLUSTER_ROLE_BINDINGS = Resource(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False
)
SUBJECT_ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)
SELF_SUBJECT_ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)
API_SERVICES = Resource("apiregistration.k8s.io", "v1", "apiservices", "APIService", namespaced=False)
CUSTOM_RESOURCE_DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
MUTATING_WEBHOOKS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    namespaced=False,
)
VALIDATING_WEBHOOKS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
)
VALIDATING_ADMISSION_POLICIES = Resource(
    "admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", namespaced=False
)
VALIDATING_ADMISSION_POLICY_BINDINGS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicybindings",
    "ValidatingAdmissionPolicyBinding",
    namespaced=False,
)
MUTATING_ADMISSION_POLICIES = Resource(
    "admissionregistration.k8s.io", "v1", "mutatingadmissionpolicies", "MutatingAdmissionPolicy", namespaced=False
)
MUTATING_ADMISSION_POLICY_BINDINGS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingadmissionpolicybindings",
    "MutatingAdmissionPolicyBinding",
    namespaced=False,
)
TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
SELF_SUBJECT_REVIEWS = Resource(
    "authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False
)
WORKLOADS = Resource("topogate.dev", "v1alpha1", "workloads", "Workload")
LOCAL_QUEUES = Resource("topogate.dev", "v1alpha1", "localqueues", "LocalQueue")
COHORTS = Resource("topogate.dev", "v1alpha1", "cohorts", "Cohort", namespaced=False)
CLUSTER_QUEUES = Resource("topogate.dev", "v1alpha1", "clusterqueues", "ClusterQueue", namespaced=False)
RESOURCE_FLAVORS = Resource("topogate.dev", "v1alpha1", "resourceflavors", "ResourceFlavor", namespaced=False)
WORKLOAD_PRIORITY_CLASSES = Resource(
    "topogate.dev", "v1alpha1", "workloadpriorityclasses", "WorkloadPriorityClass", namespaced=False
)
FLEX_TOPOS = Resource("topogate.dev", "v1alpha1", "flextopos", "FlexTopo", namespaced=False)
NODE_RESOURCE_TOPOLOGIES = Resource(
    "topology.node.k8s.io", "v1alpha2", "noderesourcetopologies", "NodeResourceTopology", namespaced=False
)

KNOWN: Mapping[tuple[str, str], Resource] = {
    (resource.api_version, resource.kind): resource
    for resource in tuple(globals().values())
    if isinstance(resource, Resource)
}


def resource_of(obj: Mapping[str, Any]) -> Resource:
    """The resource that a manifest belongs to, by its ``apiVersion`` and ``kind``.

    Raises:
        ValueError: the kind is not one of those listed in this file.
    """
    key = (obj.get("apiVersion", ""), obj.get("kind", ""))
    if (found := KNOWN.get(key)) is None:
        name = obj.get("metadata", {}).get("name", "?")
        raise ValueError(f"object {name!r}: apiVersion {key[0]!r} kind {key[1]!r} is not a kind that Topogate handles")
    return found

"""Owners that tell how many pods they make, as far as they are read: services, and kinds of others.

Services are StatefulSets and ReplicaSets of apps/v1: their pods are all alike. Kinds of others make several kinds of
pods, and are served only where somebody installed them. Facts of their APIs: kubeflow.org/v1 (training operator: the
replica specs of each kind of job), kubeflow.org/v2beta1 (MPI operator: a Job makes the launcher), ray.io/v1 (KubeRay:
``GetWorkerGroupDesiredReplicas``). What their schemas let through may be anything: what cannot be read tells nothing.

Facts of services in Kubernetes 1.37: a StatefulSet without ``podManagementPolicy: Parallel`` makes a pod once the one
before it is ready. A Deployment writes how many pods it wants of its newest ReplicaSet into
``deployment.kubernetes.io/desired-replicas`` of each of its ReplicaSets, and the number of a revision into
``deployment.kubernetes.io/revision``; a rollout gives the newest one its pods bit by bit, as ``maxSurge`` and
``maxUnavailable`` allow.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from kube.objects import Object, ObjectMeta, Struct, controller_of
from kube.resources import REPLICA_SETS, STATEFUL_SETS, Resource
from kube.volumes.objects import trimmed

KUBEFLOW: Final = "kubeflow.org"
RAY: Final = "ray.io"
HEAD: Final = "headgroup"  # `ray.io/group` of the head
LAUNCHER: Final = "launcher"
MOST_PODS: Final = (1 << 31) - 1  # what the API takes
MOST_KINDS: Final = 8  # pod sets of a Workload

MPI_JOBS = Resource(KUBEFLOW, "v2beta1", "mpijobs", "MPIJob")
RAY_CLUSTERS = Resource(RAY, "v1", "rayclusters", "RayCluster")
REPLICATED: Final = (
    (MPI_JOBS, (Resource(KUBEFLOW, "v1", "mpijobs", "MPIJob"),)),
    (Resource(KUBEFLOW, "v1", "pytorchjobs", "PyTorchJob"), ()),
    (Resource(KUBEFLOW, "v1", "tfjobs", "TFJob"), ()),
    (Resource(KUBEFLOW, "v1", "xgboostjobs", "XGBoostJob"), ()),
    (Resource(KUBEFLOW, "v1", "jaxjobs", "JAXJob"), ()),
    (Resource(KUBEFLOW, "v1", "paddlejobs", "PaddleJob"), ()),
    (RAY_CLUSTERS, (Resource(RAY, "v1alpha1", "rayclusters", "RayCluster"),)),
    (STATEFUL_SETS, ()),
    (REPLICA_SETS, ()),
)  # each with its older versions
SERVICES: Final = frozenset({STATEFUL_SETS, REPLICA_SETS})
PARALLEL: Final = "Parallel"
DESIRED: Final = "deployment.kubernetes.io/desired-replicas"
REVISION: Final = "deployment.kubernetes.io/revision"
_Kind = tuple[str, int, Mapping[str, Any] | None]  # its name, how many, and its template
_ENDS = {"Succeeded": "Complete", "Failed": "Failed"}


class ReplicatedObject(Object, frozen=True):
    """One of them; what is in it is read by `replicas_of`. ``api_version``: the one that the API server gave it in."""

    api_version: str = ""
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")

    def __post_init__(self) -> None:
        # A Raw is a view into the whole answer: keep these bytes, let the rest go.
        msgspec.structs.force_setattr(self, "spec", self.spec.copy())
        msgspec.structs.force_setattr(self, "status", self.status.copy())


class Ordinals(Struct, frozen=True):
    """How the pods of a StatefulSet are numbered."""

    start: int = 0


class ServiceSpec(Struct, frozen=True):
    """What is read of the spec of a StatefulSet or ReplicaSet: nothing of its template, which its pods tell."""

    replicas: int = 1
    pod_management_policy: str = ""
    ordinals: Ordinals | None = None


class Service(Object, frozen=True):
    """A StatefulSet or ReplicaSet, with what is read of it: there may be tens of thousands, most of them old ones."""

    spec: ServiceSpec = ServiceSpec()

    def __post_init__(self) -> None:
        controlling = tuple([one for one in self.metadata.owner_references if one.controller])
        kept = trimmed(self.metadata, (DESIRED, REVISION), references=controlling)
        msgspec.structs.force_setattr(self, "metadata", kept)


Counted = ReplicatedObject | Service


def read_as(resource: Resource) -> type[Counted]:
    """The type that holds what is read of such an object."""
    return Service if resource in SERVICES else ReplicatedObject


class Replicas(msgspec.Struct, frozen=True):
    """How many pods of each kind there are to be, by the kind's name as pods have it in their label.

    ``templates``: labels and annotations of their templates. ``over``: why there are to be none any more. ``launcher``:
    the pod template of one that a Job makes, b"" where none does; ``late``: some are made only once others are ready.
    ``first``: the lowest rank, where that is told.
    """

    counts: Mapping[str, int]
    templates: Mapping[str, ObjectMeta]
    over: str = ""
    launcher: bytes = b""
    late: bool = False
    first: int = 0

    @property
    def total(self) -> int:
        """Pods in all."""
        return sum(self.counts.values())


def plain(kind: str) -> str:
    """The name of a kind of pods as a Workload takes it."""
    return kind.lower().replace("_", "-").replace(".", "-")


def replicas_of_service(one: Service, kind: str, role: str, *, newest: bool) -> Replicas:
    """What a StatefulSet or ReplicaSet tells of its only kind of pods, called ``role``.

    ``newest``: of a ReplicaSet, that it is of the revision that its Deployment goes to: it is to have all pods.
    """
    count, spec = one.spec.replicas, one.spec
    late = kind == STATEFUL_SETS.kind and spec.pod_management_policy != PARALLEL
    if newest:
        desired = _number_of_annotation((one.metadata.annotations or {}).get(DESIRED))
        count, late = max(count, desired), desired > count
    first = spec.ordinals.start if spec.ordinals is not None else 0
    return Replicas({role: min(max(count, 0), MOST_PODS)}, {}, late=late, first=max(first, 0))


def revision_of(one: Service) -> tuple[str, int] | None:
    """The uid of the Deployment whose revision a ReplicaSet is, and the revision's number; None where it is none."""
    controller = controller_of(one.metadata)
    if controller is None or controller.kind != "Deployment" or not controller.api_version.startswith("apps/"):
        return None
    return controller.uid, _number_of_annotation((one.metadata.annotations or {}).get(REVISION))


def replicas_of(one: ReplicatedObject, api_version: str) -> Replicas | None:
    """What an object tells; None where that cannot be read, or is more than a Workload holds."""
    try:
        spec, status = msgspec.json.decode(one.spec), msgspec.json.decode(one.status)
        group, _, version = api_version.partition("/")
        found = list(_READERS[group](spec))
        counts: dict[str, int] = {}
        templates: dict[str, ObjectMeta] = {}
        for kind, count, template in found:
            # Kinds whose names differ in case alone are one pod set: their pods cannot be told apart by a Workload.
            counts[plain(kind)] = counts.get(plain(kind), 0) + count
            templates[plain(kind)] = msgspec.convert((template or {}).get("metadata") or {}, ObjectMeta)
        # Only the v2beta1 operator has a Job make the launcher; the older one makes that pod itself.
        made = b""
        if group == KUBEFLOW and version != "v1":
            launcher = next((one for kind, one in _replica_specs(spec).items() if plain(kind) == LAUNCHER), None)
            made = msgspec.json.encode(launcher["template"]) if launcher is not None else b""
        late = bool(made) and spec.get("launcherCreationPolicy") == "WaitForWorkersReady"
        holding = (one.get("type") for one in status.get("conditions") or () if one.get("status") == "True")
        over = next((_ENDS[type_] for type_ in holding if type_ in _ENDS), "")
    # The kinds may be installed without a schema, so any type may stand anywhere, nested as deeply as JSON goes.
    except (msgspec.MsgspecError, AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return None
    if not 0 < sum(counts.values()) <= MOST_PODS or len(counts) > MOST_KINDS:
        return None
    return Replicas({kind: counts[kind] for kind in sorted(counts)}, templates, over, made, late)


def _of_kubeflow(spec: Mapping[str, Any]) -> Iterator[_Kind]:
    for kind, one in _replica_specs(spec).items():
        yield kind, _read_pod_count(one.get("replicas"), 1), one.get("template")


def _replica_specs(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next((value for name, value in spec.items() if name.endswith("ReplicaSpecs")), {})
    return found


def _of_ray(spec: Mapping[str, Any]) -> Iterator[_Kind]:
    yield HEAD, 1, spec["headGroupSpec"].get("template")
    for group in spec.get("workerGroupSpecs") or ():
        least, most = _read_pod_count(group.get("minReplicas"), 0), _read_pod_count(group.get("maxReplicas"), MOST_PODS)
        count = min(max(_read_pod_count(group.get("replicas"), least), least), most)
        # A worker group counts in replicas, each of which is as many pods as it has hosts.
        hosts = max(_read_pod_count(group.get("numOfHosts"), 1), 1)
        yield group["groupName"], 0 if group.get("suspend") else count * hosts, group.get("template")


# By group; an owner of any other group is not in `REPLICATED`.
_READERS: Final = {KUBEFLOW: _of_kubeflow, RAY: _of_ray}


def _read_pod_count(value: object, missing: int) -> int:
    """A number of pods. Raises ValueError where it is none."""
    if value is None:
        return missing
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST_PODS:
        raise ValueError(f"{value!r} is not a number of pods")
    return value


def _number_of_annotation(text: str | None) -> int:
    """The number that an annotation tells, 0 where it tells none: anybody may write one."""
    found = (
        # Python's int refuses texts of more than 4,300 digits by an error, and anybody may write the annotation.
        int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= len("2147483647") else 0
    )
    return min(found, MOST_PODS)

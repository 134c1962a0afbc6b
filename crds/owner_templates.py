"""Kinds that make pods of a template, and where in such an object labels and annotations of its pods stand.

Jobs and JobSets are not among them: the controller suspends these, and reads what they carry themselves. Facts of the
APIs: apps/v1; leaderworkerset.x-k8s.io/v1; KubeRay 1.6.2 (a RayService whose cluster changes goes over to another
cluster, a RayCluster keeps its pods); training operator 1.9 and MPI operator 0.8 (``*ReplicaSpecs``); Spark operator
2.5.1 (a changed spec runs the application again); AppWrapper 1.2.2 (components are objects, which are created as they
stand); Trainer up to 2.1 (``spec.labels``) and from 2.2 on (``spec.runtimePatches``, one entry a manager): a TrainJob
hands them to the JobSet that it makes.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, Literal, NamedTuple

from crds.constants import Keys
from crds.request import WISHES

Json = dict[str, Any]
Form = Literal["template", "object", "maps"]

MOST_PLACES: Final = 64  # of one object that are looked at: anybody may write thousands
ANY, REPLICA_SPECS = "*", "*ReplicaSpecs"
MANAGER: Final = "topogate.dev/webhook"  # whose entry in the runtimePatches of a TrainJob is ours
OURS: Final = f"manager={MANAGER}"


class Place(NamedTuple):
    """Where labels and annotations stand that pods get.

    ``path``: `ANY` is each element of a list or value of a map, `REPLICA_SPECS` each key with this end, and `OURS` the
    element of a list whose manager this is. ``form``: a pod template, a whole object, or the map that has ``labels``
    and ``annotations`` itself.
    """

    path: tuple[str, ...]
    form: Form = "template"

    @property
    def below(self) -> tuple[str, ...]:
        """The path of the map with labels and annotations below the place."""
        return () if self.form == "maps" else ("metadata",)


class OwnerKind(NamedTuple):
    """A kind of owner.

    ``rolls``: a changed template replaces pods that run. ``queues``: what it makes can wait. ``held``: its own
    annotation ``admission-gated-by`` holds it back, and not that of its pods.
    """

    group: str
    kind: str
    plural: str
    version: str
    places: tuple[Place, ...]
    rolls: bool = False
    queues: bool = True
    held: bool = False


def _ray(*path: str) -> tuple[Place, ...]:
    return Place((*path, "headGroupSpec", "template")), Place((*path, "workerGroupSpecs", ANY, "template"))


_POD = (Place(("spec", "template")),)
_GROUPS = tuple(Place(("spec", "leaderWorkerTemplate", role)) for role in ("leaderTemplate", "workerTemplate"))
_REPLICAS = (Place(("spec", REPLICA_SPECS, ANY, "template")),)
_SPARK = (Place(("spec", "driver"), "maps"), Place(("spec", "executor"), "maps"))
_WRAPPED = (Place(("spec", "components", ANY, "template"), "object"),)
# Which of the two a cluster has, nobody can tell from the object: its CRD drops the one that it does not know.
_TRAIN = (
    Place(("spec",), "maps"),
    Place(("spec", "runtimePatches", OURS, "trainingRuntimeSpec", "template", "metadata"), "maps"),
)

OWNERS: Final = (
    OwnerKind("apps", "Deployment", "deployments", "v1", _POD, rolls=True),
    OwnerKind("apps", "StatefulSet", "statefulsets", "v1", _POD, rolls=True),
    OwnerKind("leaderworkerset.x-k8s.io", "LeaderWorkerSet", "leaderworkersets", "v1", _GROUPS, rolls=True, held=True),
    OwnerKind("ray.io", "RayCluster", "rayclusters", "v1", _ray("spec")),
    OwnerKind("ray.io", "RayJob", "rayjobs", "v1", _ray("spec", "rayClusterSpec")),
    OwnerKind("ray.io", "RayService", "rayservices", "v1", _ray("spec", "rayClusterConfig"), rolls=True),
    OwnerKind("kubeflow.org", "PyTorchJob", "pytorchjobs", "v1", _REPLICAS),
    OwnerKind("kubeflow.org", "TFJob", "tfjobs", "v1", _REPLICAS),
    OwnerKind("kubeflow.org", "XGBoostJob", "xgboostjobs", "v1", _REPLICAS),
    OwnerKind("kubeflow.org", "JAXJob", "jaxjobs", "v1", _REPLICAS),
    OwnerKind("kubeflow.org", "PaddleJob", "paddlejobs", "v1", _REPLICAS),
    OwnerKind("kubeflow.org", "MPIJob", "mpijobs", "v1", _REPLICAS),
    OwnerKind("kubeflow.org", "MPIJob", "mpijobs", "v2beta1", _REPLICAS),
    OwnerKind("sparkoperator.k8s.io", "SparkApplication", "sparkapplications", "v1beta2", _SPARK, rolls=True),
    OwnerKind("workload.codeflare.dev", "AppWrapper", "appwrappers", "v1beta2", _WRAPPED),
    # Trainer 2.2.1 (jobset plugin, Build) resumes a JobSet that its TrainJob has not suspended, however often.
    OwnerKind("trainer.kubeflow.org", "TrainJob", "trainjobs", "v1alpha1", _TRAIN, queues=False),
)


def labels_for_pods(kind: OwnerKind, keys: Keys) -> tuple[str, ...]:
    """Labels on an owner that its pods get."""
    return (*((keys.queue_name,) if kind.queues else ()), keys.priority_class, keys.max_execution)


def annotations_for_pods(keys: Keys) -> tuple[str, ...]:
    """Annotations on an owner that its pods get."""
    return *keys.requests, *WISHES


def places_in(body: Json, place: Place) -> Iterator[tuple[str, Json]]:
    """Each map in an object where such a place is, with its JSON pointer; at most `MOST_PLACES`.

    What is absent, or no map, is passed over.
    """
    found = _walk(body, place.path, "")
    for _ in range(MOST_PLACES):
        one = next(found, None)
        if one is None:
            return
        yield one


def has_more_places(body: Json, place: Place) -> bool:
    """Whether an object has more of such places than are looked at."""
    return next(islice(_walk(body, place.path, ""), MOST_PLACES, None), None) is not None


def _walk(at: object, path: tuple[str, ...], pointer: str) -> Iterator[tuple[str, Json]]:
    if not path:
        if isinstance(at, dict):
            yield pointer, at
        return
    step, rest = path[0], path[1:]
    for key, value in _children(at, step):
        yield from _walk(value, rest, f"{pointer}/{escape_key(str(key))}")


def _children(at: object, step: str) -> Iterator[tuple[str | int, object]]:
    if isinstance(at, dict):
        if step == ANY:
            yield from at.items()
        elif step == REPLICA_SPECS:
            yield from ((key, value) for key, value in at.items() if key.endswith(REPLICA_SPECS[1:]))
        elif step in at:
            yield step, at[step]
    elif isinstance(at, list):
        if step == ANY:
            yield from enumerate(at)
        elif step == OURS:
            ours = ((number, one) for number, one in enumerate(at) if isinstance(one, dict))
            yield from ((number, one) for number, one in ours if one.get("manager") == MANAGER)


def escape_key(key: str) -> str:
    """A key as a segment of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def pointer_keys(pointer: str) -> list[str]:
    """The keys of a JSON pointer (RFC 6901): ~1 before ~0, or "~01" would become a slash."""
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


def dotted_path(pointer: str) -> str:
    """A JSON pointer as messages have it: ``spec.workerGroupSpecs[0].template``."""
    return "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in pointer_keys(pointer)).removeprefix(".")

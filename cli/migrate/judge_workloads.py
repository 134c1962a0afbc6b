"""Jobs, pods and their owners: they stay as they are, so their keys of Kueue are read here, or told."""

from collections.abc import Mapping
from typing import Final

from cli.cluster.dump import FoundObject
from cli.migrate.conversion import make_row
from cli.migrate.leaves import Leaf, list_leaves
from cli.migrate.rows import FieldVerdict, Row, left, refused
from crds.constants import POD_GROUP_INDEX, Keys
from crds.owner_templates import OWNERS
from ungater.model.kueue_objects import GROUP

KEYS: Final = Keys()
QUEUED_KINDS: Final = frozenset({"Pod", "Job", "JobSet", *(owner.kind for owner in OWNERS if owner.queues)})
_RESUMED: Final = frozenset({"Job", "JobSet"})  # which the controller suspends and resumes itself
_QUEUES: Final = ("labels", "annotations")
_NOT_NEEDED: Final = "remove it: nothing depends on it here"
TOLD: Final[Mapping[str, tuple[str, str]]] = {
    f"{GROUP}/{name}": told
    for name, told in {
        "job-completions-equal-parallelism": (
            "a Job whose parallelism changes keeps its completions",
            "set spec.completions together with spec.parallelism",
        ),
        "prebuilt-workload-name": (
            "a Workload is made for each job, and none that exists is used",
            "submit the job without it, and set priority and queue on the job",
        ),
        "elastic-job": ("not needed: a Job grows and shrinks while it runs", _NOT_NEEDED),
        "workload-slice-name": ("not needed: a Job grows and shrinks while it runs", _NOT_NEEDED),
        "pod-group-fast-admission": (
            "a pod group is admitted when all its pods exist",
            "create all pods of the group together",
        ),
        "pod-group-serving": (
            "a pod group ends when its pods have ended",
            "use a Deployment, StatefulSet or LeaderWorkerSet for a service",
        ),
        "retriable-in-group": (
            "a pod of a group that failed is replaced by a new pod of the group",
            "end the group by deleting its pods",
        ),
        "pod-index-offset": (
            "ranks count from the index that the owner writes",
            "leave it out where indexes start at 0; else number the pods from 0",
        ),
        "pod-group-pod-index-label": (
            "no annotation names the label that has the rank of a pod",
            f"write the index into the label {GROUP}/pod-group-pod-index",
        ),
        "safe-to-forcefully-delete": (
            "pods that hang on a lost node are not deleted by force",
            "Kubernetes does it with the taint node.kubernetes.io/out-of-service on the node",
        ),
        "priority-boost": (
            "it is read of Workloads alone, as in Kueue",
            "annotate the Workload that Topogate makes of the job",
        ),
    }.items()
}
# pkg/constants and pkg/controller/jobs/pod/constants of 0.19.2: pods of a live cluster have them, and keep them.
_WRITTEN: Final = frozenset(
    f"{GROUP}/{name}"
    for name in ("managed", "workload", "cluster-queue-name", "local-queue-name", "pod-suspending-parent")
)
_ELSEWHERE: Final = ("multikueue", "provreq.")


def judge_workload(found: FoundObject) -> list[Row]:
    """The row of a job, pod or owner, and one for each key of Kueue on it or its templates."""
    if not isinstance(version := found.body.get("apiVersion"), str) or not version:
        return [make_row(found, "", _OF_NOBODY)]
    said = [(leaf.field, judge_key(leaf)) for leaf in list_leaves(found.body) if is_key(leaf)]
    metadata = found.body.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    whole = left("no object of Kueue, and without its keys")
    if said:
        whole = FieldVerdict("taken", ours="as it is")
    if isinstance(labels, dict) and KEYS.queue_name in labels and found.kind not in QUEUED_KINDS:
        whole = _UNQUEUED.get(found.kind) or refused(
            f"the queue on a {found.kind} does not reach its pods, which would run outside of quota",
            f"put the label {KEYS.queue_name} on its pod templates",
        )
    elif said and found.kind not in _RESUMED:
        said.extend((leaf.field, _SUSPENDED) for leaf in list_leaves(found.body) if suspends_owner(leaf))
    return [make_row(found, "", whole), *(make_row(found, *each) for each in said)]


_UNQUEUED: Final[Mapping[str, FieldVerdict]] = {
    "TrainJob": refused(
        "Trainer resumes what a queue suspends, so its pods would run outside of quota",
        "submit its JobSet or PyTorchJob instead, or leave the queue out",
    )
}
_OF_NOBODY: Final = refused(
    "without a text as its apiVersion it is of nobody, and might be Kueue's", f"set apiVersion, as {GROUP}/v1beta2"
)
_SUSPENDED: Final = refused(
    "it is not suspended in a queue here, and nobody resumes it: its pods wait behind the gate", "remove the field"
)


def suspends_owner(leaf: Leaf) -> bool:
    """Whether the field keeps an owner from making pods, until Kueue resumes it."""
    return leaf.value is True and leaf.path in (("spec", "suspend"), ("spec", "runPolicy", "suspend"))


def is_key(leaf: Leaf) -> bool:
    """Whether it is a label or an annotation of Kueue."""
    if len(leaf.path) < 2 or leaf.path[-2] not in _QUEUES:
        return False
    return str(leaf.path[-1]).partition("/")[0].endswith(GROUP)


def judge_key(leaf: Leaf) -> FieldVerdict:
    """What becomes of one label or annotation."""
    key = str(leaf.path[-1])
    # Before the table: a key that is read by now needs no word. A boost is read of no job.
    if (key in KEYS.read and key != KEYS.priority_boost) or key == f"{KEYS.domain}/{POD_GROUP_INDEX}":
        return FieldVerdict("taken")
    if key in _WRITTEN:
        return left("Kueue wrote it itself: who served the object")
    if key in TOLD:
        return refused(*TOLD[key])
    if any(word in key for word in _ELSEWHERE):
        return refused("it is about other clusters or ProvisioningRequests, which Topogate has not", _NOT_NEEDED)
    return refused("nobody reads it here", _NOT_NEEDED)

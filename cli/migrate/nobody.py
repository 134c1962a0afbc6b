"""Who would queue a job: Topogate, Kueue, both, or nobody. Pure: what was read in, findings out."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from cli.migrate.judge_workloads import KEYS, is_key, judge_key
from cli.migrate.leaves import list_leaves
from cli.migrate.rows import Json
from cli.output import in_one_line, some
from crds.constants import SERVED
from kube import queues
from queueing.model import serves

Key = tuple[str, str]  # namespace and name


class NobodyFinding(msgspec.Struct, frozen=True):
    """What is wrong with some objects of a namespace. ``mend``: what to do."""

    about: str
    message: str
    mend: str


class ServingView(msgspec.Struct, frozen=True):
    """Who serves what. ``domain``: that of Topogate's keys, "" where it is not installed.

    ``namespaces``: their labels; ``classes``: names of WorkloadPriorityClasses of either group; ``beside``: Topogate
    serves namespaces with the label `SERVED` alone; ``left_out``: Kueue says that it leaves these out.
    """

    domain: str
    cluster_queues: Mapping[str, queues.ClusterQueue]
    local_queues: Mapping[Key, queues.LocalQueue]
    namespaces: Mapping[str, dict[str, str]]
    kueue_runs: bool
    kueue_queues: Collection[Key]
    classes: Collection[str]
    beside: bool = False
    left_out: bool = False

    @property
    def ours_reads(self) -> bool:
        """Whether Topogate reads Kueue's keys."""
        return self.domain == KEYS.domain


class QueuedObject(msgspec.Struct, frozen=True):
    """A job, pod or owner with the label of a queue, on itself."""

    kind: str
    namespace: str
    name: str
    queue: str
    priority_class: str
    unread: tuple[tuple[str, str, str], ...]  # keys that nobody reads, each with why, and what to do instead

    @property
    def title(self) -> str:
        """``job/train``."""
        return f"{self.kind.lower()}/{self.name}"


def read_queued(body: Json) -> QueuedObject | None:
    """What one object says; None where it names no queue, or is over."""
    meta = body.get("metadata") or {}
    labels = meta.get("labels") or {}
    if KEYS.queue_name not in labels or is_over(body):
        return None
    keys = [leaf for leaf in list_leaves(body) if is_key(leaf)]
    verdicts = [(str(leaf.path[-1]), judge_key(leaf)) for leaf in keys]
    # A key stands on the object and on its templates, and the report has it once.
    unread = {(key, one.why, one.instead): None for key, one in verdicts if one.outcome == "refused"}
    return QueuedObject(
        kind=str(body.get("kind")),
        namespace=meta.get("namespace", ""),
        name=meta.get("name", ""),
        queue=labels[KEYS.queue_name],
        priority_class=labels.get(KEYS.priority_class, ""),
        unread=tuple(unread),
    )


def is_over(body: Json) -> bool:
    """Whether a job or pod has ended, by what kinds of jobs say of that."""
    # The CRDs of owners say what a status is, and those may be without a schema.
    status = body.get("status")
    if not isinstance(status, dict):
        return False
    ended = ("Complete", "Failed", "Completed", "Succeeded")
    conditions = status.get("conditions")
    every = [one for one in conditions if isinstance(one, dict)] if isinstance(conditions, list) else []
    return status.get("phase") in ended or any(
        one.get("type") in ended and one.get("status") == "True" for one in every
    )


def find_unserved(view: ServingView, queued: Iterable[QueuedObject]) -> Iterator[NobodyFinding]:
    """One finding for all objects of a namespace that have the same fault."""
    together: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)
    for one in queued:
        for message, mend in judge_queued(view, one):
            together[one.namespace, message, mend].append(one.title)
    for (namespace, message, mend), titles in sorted(together.items()):
        yield NobodyFinding(f"{namespace}: {some(sorted(titles), 3)}", message, mend)


def judge_queued(view: ServingView, one: QueuedObject) -> Iterator[tuple[str, str]]:
    """(what is wrong, what to do) of one object."""
    # Kueue looks at no job while it does not run, whatever its queues say.
    by_kueue = view.kueue_runs and (one.namespace, one.queue) in view.kueue_queues
    if view.beside and view.left_out and SERVED in view.namespaces.get(one.namespace, {}):
        by_kueue = False
    why, mend = find_refusal(view, one)
    if by_kueue and not why:
        yield (
            f"both Kueue and Topogate have the queue {one.queue}, and each would start the job",
            _APART,
        )
    elif why and not by_kueue:
        yield f"nobody queues it: {why}", mend
    # Kueue makes no Workload for a job whose class is missing; Topogate takes the priority of its pods.
    known = one.priority_class in view.classes
    if one.priority_class and not known and not by_kueue:
        yield (
            f"there is no WorkloadPriorityClass {one.priority_class}",
            "`topogate migrate kueue --apply` makes those of Kueue; else create it",
        )
    for key, reason, instead in () if by_kueue else one.unread:
        yield f"{in_one_line(key)}: {reason}", instead


def find_refusal(view: ServingView, one: QueuedObject) -> tuple[str, str]:
    """Why Topogate does not queue it, and what to do; ("", "") where it does."""
    if not view.domain:
        return "Kueue does not, and Topogate is not installed", "`topogate install`, then `topogate migrate kueue`"
    if not view.ours_reads:
        mend = f"start Kueue, or remove it with its CRDs and install Topogate with `--domain {KEYS.domain}`"
        return f"Kueue does not, and Topogate reads the label {view.domain}/queue-name here", mend
    if view.beside and view.namespaces.get(one.namespace, {}).get(SERVED) != "true":
        mend = f"`kubectl label namespace {one.namespace} {SERVED}=true --overwrite`, or have Kueue serve it"
        return f"Topogate serves namespaces with the label {SERVED}=true alone, and {one.namespace} lacks it", mend
    local = view.local_queues.get((one.namespace, one.queue))
    if local is None:
        return f"namespace {one.namespace} has no LocalQueue {one.queue}", _APPLY
    queue = view.cluster_queues.get(local.spec.cluster_queue)
    if queue is None:
        return f"LocalQueue {one.queue} leads to ClusterQueue {local.spec.cluster_queue}, which is not there", _APPLY
    return find_unselected(queue, one.namespace, view.namespaces.get(one.namespace, {}))


_APART: Final = (
    "scale Kueue's Deployment to 0, or have each of them serve namespaces of its own (docs/move-from-kueue.md, Move "
    "while Kueue runs)"
)
_APPLY: Final = "`topogate migrate kueue --apply` makes it of Kueue's; else create it"


def find_unselected(queue: queues.ClusterQueue, namespace: str, labels: dict[str, str]) -> tuple[str, str]:
    """Why a ClusterQueue does not serve the namespace; ("", "") where it does."""
    name = queue.metadata.name
    try:
        served = serves(queues.cluster_queue(queue), labels)
    except ValueError as error:
        return f"ClusterQueue {name} cannot be read: {error}", "correct its quota"
    if served:
        return "", ""
    mend = f"kubectl edit clusterqueues.topogate.dev {name}: have spec.namespaceSelector select {namespace}"
    return f"ClusterQueue {name} does not select namespace {namespace}", mend

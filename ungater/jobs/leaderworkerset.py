"""LeaderWorkerSets as owners: each group, a leader and its workers, is one workload.

Rules
- A pod that a StatefulSet controls is of a group by its namespace and the labels ``leaderworkerset.sigs.k8s.io/name``
  and ``group-index``. Templates, size, queue and annotations are the LeaderWorkerSet's, so a group is placed whole
  though its workers come after its leader.
- A group is as its leader was made: a rolling update that has not come to it changes nothing. The label
  ``template-revision-hash`` of its pods names the ControllerRevision that keeps what the LeaderWorkerSet was then;
  without one, what it is now counts.
- With a leader template there are two pod sets, ``leader`` and ``workers``; else one, ``main``. Those that share a
  ``podset-group-name`` share a domain. The rank is ``worker-index``; workers count theirs from 1.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

import msgspec
from msgspec.structs import replace

from crds.constants import WORKER_INDEX, Keys
from crds.names import longer_name, owner_digest, workload_name
from crds.request import JOB_PATH, ParsedRequest, RequestError, parse_places, wishes_of
from engine.model import Policy
from kube.objects import ObjectMeta, Pod, PodTemplate, controller_of, is_true
from kube.parents import ControllerRevision, LeaderWorkerSet, LeaderWorkerTemplate, revised
from kube.pods.exclusive import GROUP_KEY, group_key_of
from ungater.jobs import exclusive_topology
from ungater.jobs.job import longest, one_queue, readable
from ungater.model.job_view import MAIN, JobView, PodSetView, Ranks
from ungater.model.pod_slots import finished, is_gated, role_given

KIND, API_VERSION = "LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1"
PREFIX = ":lws/"  # as `GROUPS`, no id of another owner begins so
NAME, GROUP = "leaderworkerset.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/group-index"
REVISION = "leaderworkerset.sigs.k8s.io/template-revision-hash"
LABELS = frozenset({NAME, GROUP, REVISION, GROUP_KEY})  # that are read of its pods
LEADER, WORKERS = "leader", "workers"
RevisionOf = Callable[[str, str], ControllerRevision | None]  # by ``namespace/name`` of the set, and hash
_decode = msgspec.json.Decoder(PodTemplate).decode


def group_key(pod: Pod) -> str:
    """What the pods of one group have in common; "" for other pods."""
    labels, controller = pod.metadata.labels or {}, controller_of(pod.metadata)
    name, index = labels.get(NAME), labels.get(GROUP)
    # Anybody may label pods so: of those, only pods of a StatefulSet are taken for pods of a group.
    if not name or not index or controller is None or controller.kind != "StatefulSet":
        return ""
    return f"{PREFIX}{pod.metadata.namespace}/{name}/{index}"


def set_of(key: str) -> str:
    """``namespace/name`` of the LeaderWorkerSet of a group."""
    return key.removeprefix(PREFIX).rpartition("/")[0]


def has_pods(workload: ObjectMeta, groups: Collection[str]) -> bool:
    """Whether a Workload, by its metadata, is that of a group with pods; ``groups``: the keys of those that have."""
    controller = controller_of(workload)
    if controller is None or controller.kind != KIND:
        return False
    name, uid = controller.name, controller.uid
    own = (group for group in groups if set_of(group) == f"{workload.namespace}/{name}")
    usual = ((group, _workload(name, uid, group.rpartition("/")[2])) for group in own)
    return any(workload.name in {one, longer_name(one, owner_digest(group, uid))} for group, one in usual)


def _workload(name: str, uid: str, index: str) -> str:
    return workload_name(KIND, f"{name}-{index}", f"{uid}/{index}")


def revision_key(revision: ObjectMeta) -> tuple[str, str] | None:
    """``namespace/name`` of the LeaderWorkerSet, and hash, that a revision is of; None where it tells none."""
    labels = revision.labels or {}
    name, named = labels.get(NAME), labels.get(REVISION)
    return (f"{revision.namespace}/{name}", named) if name and named else None


def is_revision(revision: ControllerRevision, whole: ObjectMeta) -> bool:
    """Whether it keeps what this LeaderWorkerSet was."""
    controller = controller_of(revision.metadata)
    # By uid: anybody may create a ControllerRevision with the labels, and an earlier set of the name left some too.
    return controller is not None and (controller.kind, controller.uid) == (KIND, whole.uid)


def _made_of(found: Iterable[Pod], whole: LeaderWorkerSet, revision_of: RevisionOf) -> LeaderWorkerTemplate:
    """What the pods of a group are made from: those that are to come are as its leader, or as the youngest of them."""
    meta = whole.metadata
    youngest = max(
        found,
        key=lambda pod: (
            pod.metadata.deletion_timestamp is None and not finished(pod),
            _role(pod) == LEADER,
            pod.metadata.creation_timestamp or "",
        ),
        default=None,
    )
    named = (youngest.metadata.labels or {}).get(REVISION) if youngest is not None else None
    revision = revision_of(f"{meta.namespace}/{meta.name}", named) if named else None
    kept = revised(revision) if revision is not None and is_revision(revision, meta) else None
    return kept or whole.spec.leader_worker_template


def owner_of_group(  # noqa: PLR0917  (what there is of it, and what it was)
    key: str,
    pods: Iterable[Pod],
    whole: LeaderWorkerSet,
    keys: Keys,
    before: JobView | None,
    revision_of: RevisionOf,
    *,
    workload: str = "",
) -> JobView:
    """The neutral view of one group. ``workload``: the name of its Workload, where that is not the usual one."""
    meta, found, index = whole.metadata, list(pods), key.rpartition("/")[2]
    shape = _made_of(found, whole, revision_of)
    size, labels = max(shape.size, 1), dict(meta.labels or {})  # whatever it says, there is a leader
    raws = [(MAIN, size, shape.worker_template)]
    if shape.has_leader:
        raws = [(LEADER, 1, shape.leader_template), (WORKERS, size - 1, shape.worker_template)]
    asking = (_decode(raw).metadata.annotations or {} for raw in (raws[0][2], raws[-1][2]))
    alone = exclusive_topology.of_groups(whole, shape, *asking)
    # The value that LeaderWorkerSet wrote; before the first pod is there, the value that it will write.
    value = next(filter(None, ((pod.metadata.labels or {}).get(GROUP_KEY) for pod in found)), "")
    added = exclusive_topology.to_group(
        meta.namespace, value or group_key_of(meta.namespace, f"{meta.name}-{index}"), alone
    )
    wrong, pod_sets = alone.wrong, []
    for name, count, raw in raws:
        pod_set, error = _pod_set(name, count, raw, meta.annotations or {}, keys, alone)
        labels = {**(pod_set.template.metadata.labels or {}), **labels}  # not its pods': one it replaced had its name
        wrong = wrong or error
        # A group of size 1 has no workers, and a Workload no pod set without pods.
        if count:
            pod_sets.append(replace(pod_set, added=added))
    most, error = longest(labels, keys)
    wrong = wrong or error
    alive = [pod for pod in found if not finished(pod)]
    # The key is by name: a set that was made again under it is another owner, with another Workload.
    same = before is not None and before.uid == meta.uid
    workload = before.workload if before is not None and same else workload or _workload(meta.name, meta.uid, index)
    # What a pod names counts where it does not go, and was let go for no other workload.
    own = (
        pod.metadata.labels or {}
        for pod in alive
        if is_gated(pod, keys.gate) or (pod.metadata.annotations or {}).get(keys.workload) == workload
        if pod.metadata.deletion_timestamp is None
    )
    named = [labels, *(one.template.metadata.labels or {} for one in pod_sets), *own]
    wrong = wrong or one_queue(named, keys)
    return JobView(
        kind=KIND,
        api_version=API_VERSION,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        known_as=key,
        part=index,
        created=before.created if before is not None else meta.creation_timestamp or "",
        pod_sets=tuple(pod_sets),
        wrong=wrong,
        gated=True,
        over="Deleted" if meta.deletion_timestamp is not None else "",
        queue=next(filter(None, (each.get(keys.queue_name) for each in named)), ""),
        priority_class=pod_sets[0].template.spec.priority_class_name,
        workload_class=labels.get(keys.priority_class, ""),
        most_execution=most,
        ready=sum(is_true(pod.status.conditions, "Ready") for pod in alive),
        workload=workload,
        role=partial(role_given, keys=keys, roles=frozenset(one.name for one in pod_sets), labelled=_role),
        in_order=whole.spec.startup_policy == "LeaderReady" or bool(alone.level),
        foretold=True,
        gated_by=(meta.annotations or {}).get(keys.gated_by, ""),
    )


def _pod_set(  # noqa: PLR0917  (what it is made of)
    name: str, count: int, raw: bytes, own: Mapping[str, str], keys: Keys, alone: exclusive_topology.Groups
) -> tuple[PodSetView, RequestError | None]:
    """The leader or the workers, and what is wrong with what they ask for; ``own``: the set's own annotations."""
    path = f"spec.leaderWorkerTemplate.{'leader' if name == LEADER else 'worker'}Template"
    template, wrong = readable(_decode(raw), f"{path}.spec")
    below = template.metadata.annotations or {}
    request: ParsedRequest | None = None
    wishes: Mapping[str, str] = {}
    try:
        request = parse_places([(own, JOB_PATH), (below, f"{path}.metadata.annotations")], keys)
        wishes = wishes_of(own, below, asks=request is not None)
    except RequestError as error:
        wrong = wrong or error
    made = PodSetView(
        name,
        count,
        count,
        template,
        bytes(raw),
        ranks=count,
        request=exclusive_topology.in_subgroups(
            request or ParsedRequest(Policy.UNCONSTRAINED, None, path), alone, count
        ),
        wishes=wishes,
        told_by=Ranks(WORKER_INDEX, 1 if name == WORKERS else 0),
        shared=alone.shared,
    )
    return made, wrong


def _role(pod: Pod) -> str:
    return LEADER if (pod.metadata.labels or {}).get(WORKER_INDEX) == "0" else WORKERS

"""Owners that make several kinds of pods and tell how many of each: Kubeflow's training jobs, and Ray's clusters.

Rules
- Their pods are one workload with a pod set for each kind, as many as the owner says. It is placed when all of them are
  there: what operators add to a template (an init container, say) is seen on pods alone.
- The launcher of an MPIJob is made by a Job. Where its template asks for a topology it is one of the pod sets, though
  it may come only once the workers are ready: what it asks for is then told by its template.
- A kind that asks for no topology and names no queue is gated by nobody, and no part of the workload.
- An owner that cannot be read, or that nobody sees, tells nothing: then each kind is a workload by itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from crds.constants import Keys
from crds.names import workload_name
from crds.request import RequestError, parse_places, parse_request, parse_wish
from engine.reasons import Reason
from kube.objects import Job, ObjectMeta, Pod, PodTemplate, controller_of
from kube.pods.requests import pod_requests
from kube.replicas import LAUNCHER, Replicas, Replicated, replicas_of
from ungater.jobs.kinds import RULES
from ungater.jobs.kinds.rule import Rule
from ungater.model.job_view import PodSetView, controlled_by, is_job, told_apart
from ungater.model.pod_slots import finished, is_gated

_decode = msgspec.json.Decoder(PodTemplate).decode


@dataclass(frozen=True)
class ReplicaCounts:
    """What one of them tells. ``launcher``: the pod set that a Job of its own makes."""

    kind: str
    api_version: str
    namespace: str
    name: str
    uid: str
    replicas: Replicas
    rule: Rule
    launcher: PodSetView | None = None
    over: str = ""

    @classmethod
    def of(cls, one: Replicated, kind: str, api_version: str, keys: Keys) -> "ReplicaCounts | None":
        """None where it cannot be read, or where there is nothing to tell."""
        read = replicas_of(one, api_version)
        rule = next((rule for rule in RULES if rule.group == api_version.partition("/")[0]), None)
        if read is None or rule is None:
            return None
        launcher = _launcher(read.launcher, keys) if read.launcher else None
        ours = {name for name, meta in read.templates.items() if _gated(meta, keys)}
        if read.launcher:
            ours = ours - {LAUNCHER} if launcher is None else ours | {LAUNCHER}
        counts = {name: count for name, count in read.counts.items() if name in ours}
        if not any(counts.values()):
            return None
        found, meta = replace(read, counts=counts, late=read.late and launcher is not None), one.metadata
        over = "Deleted" if meta.deletion_timestamp is not None else found.over
        return cls(kind, api_version, meta.namespace, meta.name, meta.uid, found, rule, launcher, over)

    @property
    def id(self) -> str:
        """As `JobView.id`."""
        return controlled_by(self.namespace, self.kind, self.api_version, self.uid)

    @property
    def workload(self) -> str:
        """The name of the Workload of all its pods."""
        return workload_name(self.kind, self.name, told_apart(self.id))

    def role(self, pod: Pod) -> str:
        """The kind of one of its pods, whoever controls that; "" where it tells none."""
        return self.rule.of_whole(pod)

    def makes(self, job: Job, keys: Keys) -> bool:
        """Whether a Job is that of its launcher, and gated like its pods."""
        owner, template = controller_of(job.metadata), job.spec.template
        mine = owner is not None and (owner.uid, job.metadata.namespace) == (self.uid, self.namespace)
        named = job.metadata.name == f"{self.name}-{LAUNCHER}"
        return self.launcher is not None and mine and named and is_gated(_decode(template), keys.gate)

    def roles(self, pods: Iterable[Pod]) -> list[str]:
        """The kinds of which there are pods, and the launcher."""
        found = {self.role(pod) for pod in pods} & set(self.replicas.counts)
        return sorted(found | ({LAUNCHER} if self.launcher is not None else set()))

    def complete(
        self, pod_sets: Sequence[PodSetView], pods: Iterable[Pod], *, placed: bool
    ) -> tuple[list[PodSetView], RequestError | None]:
        """The pod sets with as many pods as it tells, and what is missing as long as they are not ``placed``."""
        done, there = dict.fromkeys(self.replicas.counts, 0), dict.fromkeys(self.replicas.counts, 0)
        for pod in pods:
            if (role := self.role(pod)) in there:
                done[role] += pod.status.phase == "Succeeded"
                there[role] += not finished(pod)
        full = self.replicas.counts
        made = [
            replace(one, count=max(full[one.name] - done[one.name], 0), full=full[one.name], done=())
            for one in pod_sets
        ]
        wanted = {name: count for name, count in full.items() if name != LAUNCHER or self.launcher is None}
        found = sum(min(there[name] + done[name], count) for name, count in wanted.items())
        total = sum(wanted.values())
        if placed or found >= total:
            return made, None
        text = f"{found} of {total} pods are there; they are placed together when all are"
        return made, RequestError(Reason.PENDING, "spec", str(total), text)


@dataclass
class ReplicatedOwners:
    """Which owners tell how many pods they have, and whose pods are one workload for that.

    ``told``: by id; ``ids``: of those that are one; ``parts``: the keys of their pods, where that is not the id;
    ``unseen``: ids of owners that were not seen and may be soon, since when, and the keys of their pods.
    """

    told: dict[str, ReplicaCounts] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)
    parts: dict[str, set[str]] = field(default_factory=dict)
    unseen: dict[str, tuple[float, set[str]]] = field(default_factory=dict)

    def gone(self, uid: str, *, has_pods: bool) -> None:
        """An owner was deleted: its pods go after it, and are to the end what they were."""
        told = self.told.pop(uid, None)
        if told is not None and has_pods and uid in self.ids:
            self.told[uid] = replace(told, over="Deleted")
        else:
            self.ids.discard(uid)

    def forget(self, uid: str) -> None:
        """The workload of an owner is forgotten; the next one may be made otherwise."""
        self.ids.discard(uid)
        told = self.told.get(uid)
        if told is not None and told.over == "Deleted":
            del self.told[uid]


def maker_of(pod: Pod, keys: Keys) -> str:
    """The id of whoever may tell how many pods there are of each kind; "" where nobody does, or the pod tells it."""
    controller, labels = controller_of(pod.metadata), pod.metadata.labels or {}
    if controller is None or is_job(controller) or labels.get(keys.pod_group):
        return ""
    group = controller.api_version.partition("/")[0]
    total = keys.pod_group_total in (pod.metadata.annotations or {})
    if total or all(rule.group != group for rule in RULES):
        return ""
    return controlled_by(pod.metadata.namespace, controller.kind, controller.api_version, controller.uid)


def _gated(template: ObjectMeta, keys: Keys) -> bool:
    """Whether the webhook gates pods with these annotations and labels."""
    try:
        asks = parse_request(template.annotations or {}, keys) is not None
    except RequestError:
        asks = True
    return asks or keys.queue_name in (template.labels or {})


def _launcher(raw: bytes, keys: Keys) -> PodSetView | None:
    """The pod set of a launcher that asks for a topology."""
    try:
        template = _decode(raw)
        annotations: Mapping[str, str] = template.metadata.annotations or {}
        request = parse_places([(annotations, "spec.mpiReplicaSpecs.Launcher.template.metadata.annotations")], keys)
        parse_wish(annotations)
        pod_requests(template.spec)
    except (ValueError, msgspec.MsgspecError):
        return None
    return PodSetView(LAUNCHER, 1, 1, template, raw, request=request) if request is not None else None

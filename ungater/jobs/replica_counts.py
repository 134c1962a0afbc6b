"""Owners that tell how many pods they make: StatefulSets, ReplicaSets, Kubeflow's training jobs, and Ray's clusters.

Rules of those that make several kinds of pods
- Their pods are one workload with a pod set for each kind, as many as the owner says. It is placed when all of them are
  there: what operators add to a template (an init container, say) is seen on pods alone.
- The launcher of an MPIJob is made by a Job. Where its template asks for a topology it is one of the pod sets, though
  it may come only once the workers are ready: what it asks for is then told by its template.
- A kind that asks for no topology and names no queue is gated by nobody, and no part of the workload.
- An owner that cannot be read, or that nobody sees, tells nothing: then each kind is a workload by itself.

Rules of services, whose pods are all alike
- What a service tells counts where its pods require a domain, as it is the domain of all of them: the first pod has all
  placed, and those to come have their slots kept. Other pods go one by one.
- The newest revision of a Deployment is to have all pods that the Deployment is to have, though a rollout gives it a
  few at a time. It follows the older ones: where no domain has room for all of it, it begins where they are.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from crds.constants import Keys
from crds.names import longer_name, owner_digest, workload_name
from crds.request import RequestError, group_named, parse_places, parse_request, parse_wish
from engine.model import Policy
from engine.reasons import Reason
from kube.objects import Job, ObjectMeta, Pod, PodTemplate, controller_of
from kube.pods.requests import pod_requests
from kube.replicas import (
    LAUNCHER,
    Counted,
    Replicas,
    Service,
    replicas_of,
    replicas_of_service,
    revision_of,
)
from kube.resources import Resource
from ungater.jobs.kinds import RULES
from ungater.jobs.kinds.rule import Rule
from ungater.jobs.leaderworkerset import group_key
from ungater.model.job_view import MAIN, PodSetView, controlled_by, earlier_name, identity, is_job, told_apart
from ungater.model.pod_slots import finished, is_gated

_decode = msgspec.json.Decoder(PodTemplate).decode


class ReplicaCounts(msgspec.Struct, frozen=True):
    """What one of them tells. ``launcher``: the pod set that a Job of its own makes.

    ``goal``: what a ReplicaSet is to have in the end if it is the newest of its Deployment. ``follows``: the keys of
    the Workloads of older revisions.
    """

    kind: str
    api_version: str
    namespace: str
    name: str
    uid: str
    replicas: Replicas
    rule: Rule
    launcher: PodSetView | None = None
    over: str = ""
    goal: Replicas | None = None
    follows: tuple[str, ...] = ()

    @classmethod
    def read_counts(cls, one: Counted, kind: Resource, keys: Keys) -> "ReplicaCounts | None":
        """None where it cannot be read, or where there is nothing to tell."""
        if isinstance(one, Service):
            now, goal = (replicas_of_service(one, kind.kind, MAIN, newest=newest) for newest in (False, True))
            if not now.total:
                return None  # its pods go, and count for themselves as long as they are there
            meta, rule = one.metadata, next(rule for rule in RULES if rule.group == kind.group)
            newest = goal if revision_of(one) is not None else None
            return cls(kind.kind, kind.api_version, meta.namespace, meta.name, meta.uid, now, rule, goal=newest)
        # A cluster may serve an older version only, and each tells its counts in another form.
        api_version = one.api_version or kind.api_version
        read = replicas_of(one, api_version) if not one.metadata.cut else None
        made_by = next((rule for rule in RULES if rule.group == api_version.partition("/")[0]), None)
        if read is None or made_by is None:
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
        return cls(kind.kind, api_version, meta.namespace, meta.name, meta.uid, found, made_by, launcher, over)

    @property
    def id(self) -> str:
        """As `JobView.id`."""
        return controlled_by(self.namespace, self.kind, self.api_version, self.uid)

    @property
    def workloads(self) -> tuple[str, ...]:
        """The names that the Workload of all its pods may have: the usual one, then those that stand in for it."""
        usual = workload_name(self.kind, self.name, told_apart(self.id))
        earlier = earlier_name(self.kind, self.name, self.uid)
        return usual, longer_name(usual, owner_digest(self.id, self.uid)), earlier

    @property
    def has_one_kind(self) -> bool:
        """Whether it makes one kind of pods."""
        return not self.rule.pod_set

    @property
    def workload_keys(self) -> tuple[str, ...]:
        """``namespace/name`` of those."""
        return tuple([f"{self.namespace}/{name}" for name in self.workloads])

    def role(self, pod: Pod) -> str:
        """The kind of one of its pods, whoever controls that; "" where it tells none."""
        return self.rule.of_whole(pod)

    def makes(self, job: Job, keys: Keys) -> bool:
        """Whether a Job is that of its launcher, and gated like its pods."""
        owner, template = controller_of(job.metadata), job.spec.template
        # An owner reference names an owner in its own namespace: elsewhere, the same uid names nobody.
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
        # Each kind by itself: too many pods of one do not stand in for the ones that another lacks.
        found = sum(min(there[name] + done[name], count) for name, count in wanted.items())
        total = sum(wanted.values())
        if placed or found >= total:
            return made, None
        text = f"{found} of {total} pods are there; they are placed together when all are"
        return made, RequestError(Reason.PENDING, "spec", str(total), text)


class ReplicatedOwners(msgspec.Struct):
    """Which owners tell how many pods they have, and whose pods are one workload for that.

    ``told``: by id; ``ids``: of those that are one; ``parts``: the keys of their pods, where that is not the id;
    ``unseen``: ids of owners that were not seen and may be soon, since when, and the keys of their pods. ``revisions``:
    by the id of a Deployment, the ids of its ReplicaSets with their numbers; ``deployments``: the other way round.
    """

    told: dict[str, ReplicaCounts] = msgspec.field(default_factory=dict)
    ids: set[str] = msgspec.field(default_factory=set)
    parts: dict[str, set[str]] = msgspec.field(default_factory=dict)
    unseen: dict[str, tuple[float, set[str]]] = msgspec.field(default_factory=dict)
    revisions: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    deployments: dict[str, str] = msgspec.field(default_factory=dict)

    def counts_of_owner(self, uid: str) -> ReplicaCounts | None:
        """What an owner tells that all its pods are one workload of, as of now."""
        told = self.told.get(uid)
        if told is None or not (told.has_one_kind or uid in self.ids):
            return None
        numbers = self.revisions.get(self.deployments.get(uid, ""), {})
        # Of an older revision, the count of now is true: its pods leave as those of the newest come.
        if told.goal is None or any(number > numbers[uid] for number in numbers.values()):
            return told
        older = sorted(numbers.keys() & self.told.keys() - {uid}, key=lambda one: (-numbers[one], one))
        follows = tuple([key for one in older for key in self.told[one].workload_keys])
        return replace(told, replicas=told.goal, follows=follows)

    def note_revision(self, uid: str, one: Service | None, namespace: str) -> list[str]:
        """A ReplicaSet is there, changed or went (None); returns the ids of all ReplicaSets of its Deployment."""
        before, revision = self.deployments.pop(uid, ""), revision_of(one) if one is not None else None
        concerned = {*self.revisions.get(before, ())}
        if before and self.revisions[before].pop(uid, None) is not None and not self.revisions[before]:
            del self.revisions[before]
        if revision is not None:
            deployment = identity(namespace, revision[0])
            self.deployments[uid] = deployment
            self.revisions.setdefault(deployment, {})[uid] = revision[1]
            concerned |= {*self.revisions[deployment]}
        return sorted(concerned)

    def mark_deleted(self, uid: str, *, has_pods: bool) -> None:
        """An owner was deleted: its pods go after it, and are to the end what they were."""
        told = self.told.pop(uid, None)
        # Its pods may outlive it by their grace period: their workload must not fall apart into kinds meanwhile.
        if told is not None and has_pods and uid in self.ids:
            self.told[uid] = replace(told, over="Deleted")
        else:
            self.ids.discard(uid)

    def forget_owner(self, uid: str) -> None:
        """The workload of an owner is forgotten; the next one may be made otherwise."""
        self.ids.discard(uid)
        told = self.told.get(uid)
        if told is not None and told.over == "Deleted":
            del self.told[uid]


def maker_of(pod: Pod, keys: Keys) -> str:
    """The id of whoever may tell how many pods there are of each kind; "" where nobody does, or the pod tells it."""
    meta, controller = pod.metadata, controller_of(pod.metadata)
    if controller is None or is_job(controller) or group_named(meta.labels, meta.annotations, keys):
        return ""
    group = controller.api_version.partition("/")[0]
    total = keys.pod_group_total in (meta.annotations or {})
    rule = next((rule for rule in RULES if rule.group == group), None)
    if total or rule is None or (not rule.pod_set and (group_key(pod) or not requires_domain(pod, keys))):
        return ""
    return controlled_by(pod.metadata.namespace, controller.kind, controller.api_version, controller.uid)


def requires_domain(pod: Pod, keys: Keys) -> bool:
    """Whether a pod is to be in one domain with all others of its workload, or of its slice."""
    try:
        asks = parse_request(pod.metadata.annotations or {}, keys)
    except RequestError:
        return False
    return asks is not None and (asks.policy is Policy.REQUIRED or bool(asks.slices))


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

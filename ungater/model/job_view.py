"""A job of any kind as everything here sees it, whoever makes its pods: `ungater.jobs` makes these views."""

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from hashlib import blake2b

import msgspec
from msgspec.structs import replace

from crds.constants import EVICT_BY, SLICE
from crds.levels import LevelNames, with_label_keys
from crds.names import owner_digest, workload_name
from crds.request import WISHES, NumaWish, ParsedRequest, RequestError, parse_wish
from engine.kubelet.machine import PodShape
from engine.reasons import Reason
from kube.kept import CUT
from kube.objects import (
    Container,
    GroupTerms,
    Object,
    OwnerReference,
    Pod,
    PodSpec,
    PodTemplate,
    ResourceRequirements,
    StrMap,
)
from kube.pods.exclusive import Additions
from kube.pods.limits import over_limits
from kube.pods.shapes import pod_shape
from ungater.model.pod_set_slices import Interval
from ungater.model.pod_slots import number, rank_of

MAIN = "main"
# With the 4,096 entries of `_shape` that is 64 MiB at most, however tenants vary their pods.
REMEMBERED = 16 * 1024  # bytes of the containers of which the shape is remembered
JOB, JOB_API = "Job", "batch/v1"
JOB_SET, JOB_SET_API = "JobSet", "jobset.x-k8s.io/v1alpha2"
REPLICA_SET = "ReplicaSet", "apps/v1"
SERVICES = frozenset({REPLICA_SET, ("StatefulSet", "apps/v1")})
# With the API version: a kind called Job in a group of somebody's own has no spec.suspend that means this.
SUSPENDABLE = frozenset({(JOB, JOB_API), (JOB_SET, JOB_SET_API)})
_Parts = tuple[tuple[Container, ...] | None, tuple[Container, ...] | None, ResourceRequirements | None]
# Labels that the Job controller and its like write, of which most name one job.
_WRITTEN = re.compile(r"(^|\.)(kubernetes\.io|x-k8s\.io)/|^(controller-uid|job-name|pod-template-hash)$")
_encode = msgspec.json.encode
_ordered = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(_Parts).decode


class Ranks(msgspec.Struct, frozen=True):
    """How pods tell their rank: the number in ``label``, counted from ``first``.

    Where the pod set is several jobs alike, ``job_label`` tells which of ``jobs``, each with ``size`` ranks.
    """

    label: str
    first: int = 0
    job_label: str = ""
    jobs: int = 0
    size: int = 0

    def rank_of_pod(self, pod: Pod) -> int | None:
        """The rank of a pod; None where it does not tell one."""
        labels = pod.metadata.labels or {}
        rank = number(labels.get(self.label))
        if rank is None or rank < self.first:
            return None
        if not self.job_label:
            return rank - self.first
        job = number(labels.get(self.job_label))
        return None if job is None or rank >= self.size else job * self.size + rank


class PodSetView(msgspec.Struct, frozen=True, dict=True):
    """One pod set of an owner: how many slots it needs now, and the template as sent (``raw``) and as read."""

    name: str
    count: int
    full: int  # slots it needs when none of its pods has finished
    template: PodTemplate
    raw: bytes
    done: tuple[Interval, ...] = ()  # ranks that finished for good, as closed intervals in order
    ranks: int | None = None  # ranks run from 0 to this, None where pods have no rank
    least: int = 0  # how few pods are still of use; 0: all or nothing
    request: ParsedRequest | None = None
    wishes: Mapping[str, str] = msgspec.field(default_factory=dict)  # numa-policy and its like, as annotations
    told_by: Ranks | None = None  # where ranks are told; None: by whichever label is known (`RANK_LABELS`)
    idle: int = 0  # of ``count``: slots that no pod needs any more, of slices that others of their pods are still in
    # What other controllers add to its pods and the template does not have.
    added: Additions = msgspec.field(default_factory=Additions)
    shared: str = ""  # of what level all pods of the workload share one domain, whatever was asked for
    as_made: bool = False  # its template is what its pods turned out to be, and not what its owner says

    @cached_property
    def shape(self) -> PodShape:
        """What kubelets look at in its pods."""
        return shape_of(self.template.spec, {**(self.template.metadata.annotations or {}), **self.wishes})

    @cached_property
    def filter_key(self) -> str:
        """What a filter that nobody knows may look at in its pods: pods with the same are refused alike.

        Not what the admission itself adds to a template (the flavor's selector and tolerations, what checks annotate),
        nor what differs from job to job of one kind: names, and the labels that controllers write.
        """
        labels = self.template.metadata.labels or {}
        kept = sorted((name, value) for name, value in labels.items() if not _WRITTEN.search(name))
        # Each admission adds others of these: with them, a refusal would not be known again at the next admission.
        spec = msgspec.structs.replace(
            self.template.spec, node_selector=None, tolerations=None, scheduling_gates=None, scheduling_group=None
        )
        return blake2b(_ordered((kept, spec)), digest_size=16).hexdigest()

    @cached_property
    def excess(self) -> RequestError | None:
        """Which limit its template does not keep (`kube.pods.limits`): it would cost all others more than its share.

        What is kept in part (`kube.kept`) is no better known.
        """
        if self.template.metadata.cut:
            return RequestError(Reason.TOO_LARGE, "metadata", "", f"only a part of it is kept: {CUT}")
        found = next(over_limits(self.template, f"podSets[{self.name}].template."), None)
        if found is None:
            return None
        return RequestError(Reason.TOO_LARGE, found.field, str(found.found), found.message)

    def with_level_keys(self, names: LevelNames) -> "PodSetView":
        """The pod set with the label keys of the levels that it asks for by name."""
        found = None if self.request is None else with_label_keys(self.request, names)
        return self if found is self.request else replace(self, request=found)

    def rank_of_pod(self, pod: Pod) -> int | None:
        """The rank of one of its pods; None where it has none."""
        return rank_of(pod) if self.told_by is None else self.told_by.rank_of_pod(pod)

    def position(self, rank: int) -> int | None:
        """Place of a rank among those that are still to finish; None where it is done or out of range."""
        if self.ranks is not None and rank >= self.ranks:
            return None
        # Tuples compare by their start: the interval with this rank is at the index, or just before it.
        index = bisect_right(self.done, (rank, rank))
        if any(low <= rank <= high for low, high in self.done[max(0, index - 1) : index + 1]):
            return None
        return rank - sum(high - low + 1 for low, high in self.done[:index])


def is_job(controller: OwnerReference | None) -> bool:
    """Whether this is a Job: one of another API group that is called so is any controller."""
    return controller is not None and (controller.kind, controller.api_version) == (JOB, JOB_API)


def namespace_of(owner: str) -> str:
    """The namespace of a job, by its id: ``NAMESPACE/...``, or ``:KIND/NAMESPACE/...`` of groups of pods."""
    return owner.split("/", 2)[1 if owner.startswith(":") and "/" in owner else 0]


def id_of(owner: Object) -> str:
    """The id of a Job or JobSet."""
    return identity(owner.metadata.namespace, owner.metadata.uid)


def _main(_: Pod) -> str:
    return MAIN


def controlled_by(namespace: str, kind: str, api_version: str, uid: str) -> str:
    """The id of what a controller reference names.

    Anybody may write one with the uid of a Job or JobSet, and another kind: that names something else.
    """
    if (kind, api_version) in SUSPENDABLE:
        return identity(namespace, uid)
    return f"{identity(namespace, uid)}@{kind}.{api_version.rpartition('/')[0]}"  # its version may change


def told_apart(owner: str) -> str:
    """What of an id tells a job from all others of its namespace; the name of its Workload is made of it.

    The uid alone does not: a forged reference may name that of another kind's owner, and would get its Workload.
    """
    return owner.removeprefix(":") if owner.startswith(":") else owner.partition("/")[2]


def earlier_name(kind: str, name: str, uid: str, part: str = "") -> str:
    """The name that 0.1.0 gave to the Workload of an owner, or of a part of its pods: by the uid alone.

    Whoever takes one that is stored has to see whose it is (`ungater.model.workload_spec.belongs`).
    """
    return workload_name(kind, f"{name}-{part}", f"{uid}/{part}") if part else workload_name(kind, name, uid)


def identity(namespace: str, uid: str) -> str:
    """The id of an object that owns pods: who refers to it from another namespace means another one."""
    return f"{namespace}/{uid}"


class JobView(msgspec.Struct, frozen=True, dict=True):
    """A job of any kind that asks for a topology, as one moment saw it."""

    kind: str
    api_version: str
    namespace: str
    name: str
    uid: str
    created: str
    pod_sets: tuple[PodSetView, ...]
    wrong: RequestError | None  # what of its request cannot be honoured
    gated: bool  # the pod template carries our gate
    suspended: bool = False
    over: str = ""  # why it needs no slots any more: Complete, Failed or Deleted
    queue: str = ""
    priority_class: str = ""
    ready: int = 0
    workload: str = msgspec.field(default="")
    workload_class: str = ""  # the WorkloadPriorityClass
    most_execution: int | None = None  # seconds
    # Since when its controller knows that it is suspended, or was resumed, in seconds since the epoch.
    suspended_at: float | None = None
    resumed_at: float | None = None
    outcome: str = ""  # what the job's own condition says of its end
    version: int = 0  # its resourceVersion
    priority: int | None = None  # where another than us keeps its queue
    waits_for: str = ""  # why that other one has it suspended
    open_ended: bool = False  # nobody tells how many pods it will have
    scales: bool = False  # its owner tells how many pods it is to have, and any number of them is of use
    follows: tuple[str, ...] = ()  # the Workloads of older revisions, which leave bit by bit as its pods run
    members: tuple[tuple[str, str], ...] = ()  # of a group of pods: names and uids of those that own its Workload
    role: Callable[[Pod], str] = _main  # the name of a pod's pod set, where there are several
    known_as: str = ""  # its id, where that is not its namespace and uid alone
    part: str = ""  # what tells several workloads of one object apart: the kind of pods, or the group's index
    in_order: bool = False  # some of its pods are made only once others are ready or done
    foretold: bool = False  # its templates tell what pods will ask for that are to come after those that wait
    scheduling: GroupTerms | None = None  # what a Job says that its native PodGroup is to say
    whole: bool = False  # its pods are evicted together or not at all (`ungater.jobs.native_groups`)
    held_off: RequestError | None = None  # what keeps it from being placed; it keeps what it has
    gated_by: str = ""  # which controllers hold it back, as its annotation `admission-gated-by` says
    written: tuple[StrMap | None, StrMap | None] = (None, None)  # annotations and labels of a Job, which were read
    kinds: bool = False  # its pods tell of which kind they are: one of a kind that has no pod set belongs to none

    @cached_property
    def id(self) -> str:
        """What the controller knows it by: a uid alone tells nothing, as anybody may write one into a reference."""
        return self.known_as or identity(self.namespace, self.uid)

    @cached_property
    def owner(self) -> str:
        """What is written on its Workload, so that everybody knows whose that is."""
        return owner_digest(self.id, self.uid)

    @property
    def suspendable(self) -> bool:
        """Whether it is suspended while it waits; else its pods are there, behind the gate."""
        return (self.kind, self.api_version) in SUSPENDABLE

    def with_level_keys(self, names: LevelNames) -> "JobView":
        """The job with the label keys of the levels that it asks for by name."""
        pod_sets = tuple([one.with_level_keys(names) for one in self.pod_sets])
        same = all(now is was for now, was in zip(pod_sets, self.pod_sets, strict=True))
        return self if same else replace(self, pod_sets=pod_sets)

    @cached_property
    def request(self) -> ParsedRequest | RequestError | None:
        """What it asks for: the request of its first pod set that has one, or what is wrong with it."""
        if self.wrong is not None:
            return self.wrong
        # Before the request is read: a template over the limits is refused, whatever it asks for.
        excess = next((one.excess for one in self.pod_sets if one.excess is not None), None)
        return excess or next((one.request for one in self.pod_sets if one.request is not None), None)

    @property
    def count(self) -> int:
        """How many slots it needs now, in all."""
        return sum([one.count for one in self.pod_sets])

    @property
    def full(self) -> int:
        """How many it needs when none of its pods has finished."""
        return sum([one.full for one in self.pod_sets])

    @property
    def ending(self) -> bool:
        """Whether pods of it ended, and none is made in their place."""
        return self.count < self.full

    @property
    def has_one_pod_set(self) -> bool:
        """Whether all its pods are of one pod set, whatever they tell."""
        return len(self.pod_sets) == 1 and not self.kinds

    @property
    def by_slices(self) -> bool:
        """Whether it may lose some of its slices, and keeps the others. Not where the last one is a part of one.

        More pods come back into that one first, and what was lost would find its slices in two domains.
        """
        if len(self.pod_sets) != 1 or self.pod_sets[0].wishes.get(EVICT_BY) != SLICE:
            return False
        first = self.pod_sets[0]
        return first.request is None or not first.request.slices or first.full % first.request.slices[0].size == 0

    @property
    def one_by_one(self) -> bool:
        """Whether each pod more is of use by itself while it runs: it is no gang that needs all."""
        known = (self.kind, self.api_version)
        service = known in SERVICES and (self.open_ended or self.scales)
        return len(self.pod_sets) == 1 and (known == (JOB, JOB_API) or service)

    def pod_set_of(self, pod: Pod) -> PodSetView | None:
        """The pod set of one of its pods; None where it belongs to none of them."""
        if self.has_one_pod_set:
            return self.pod_sets[0]
        name = self.role(pod)
        return next((one for one in self.pod_sets if one.name == name), None)

    @property
    def key(self) -> str:
        """``namespace/name`` of the owner."""
        return f"{self.namespace}/{self.name}"

    @property
    def full_name(self) -> str:
        """Its name, with what tells several workloads of one object apart."""
        return f"{self.name}-{self.part}" if self.part else self.name

    @property
    def called(self) -> str:
        """The same to people of its namespace: ``Job train``."""
        return f"{self.kind} {self.full_name}"

    @property
    def title(self) -> str:
        """What people are told that it is: ``Job team-a/train``."""
        return f"{self.kind} {self.namespace}/{self.full_name}"

    @cached_property
    def workload_key(self) -> str:
        """``namespace/name`` of its Workload, which is the engine's name for the reservation."""
        return f"{self.namespace}/{self.workload}"


def shape_of(spec: PodSpec, annotations: Mapping[str, str], *, qos_class: str = "") -> PodShape:
    """The shape of a pod with the wishes in its annotations; one that cannot be read counts as none here."""
    wishes = tuple([(key, annotations[key]) for key in WISHES if key in annotations])
    parts = _encode((spec.init_containers, spec.containers, spec.resources))
    known = _shape if len(parts) <= REMEMBERED else _shape.__wrapped__  # anybody may make many large ones
    return known(parts, wishes, qos_class)


@lru_cache(maxsize=4096)  # most pods have a twin
def _shape(pod: bytes, wishes: tuple[tuple[str, str], ...], qos_class: str) -> PodShape:
    init_containers, containers, resources = _decode(pod)
    try:
        wish = parse_wish(dict(wishes))
    except RequestError:
        wish = NumaWish()
    return pod_shape(
        PodSpec(init_containers=init_containers, containers=containers, resources=resources),
        qos_class=qos_class,
        wish=wish.policy,
        wish_resources=wish.resources,
        gpu_link=wish.gpu_link,
    )

"""What the PodGroups of Kubernetes itself (scheduling.k8s.io), and a Job's spec.scheduling, say of a job.

Rules
- A group's level is required of all pod sets that name it (`crds.native_groups`); several of them share one domain.
- ``minCount`` is how many pods kube-scheduler places at once, and none before. So of an owner whose pods alone tell how
  many there are, so many are waited for; one that is to have fewer is refused, as none of its pods would ever run.
- ``disruptionMode: all``: its pods are evicted together or not at all.
- All pods of a group must have its priority from Kubernetes 1.37 on (``validatePodGroup`` of kube-scheduler), and one
  scheduler; else none of them is ever bound. A group without a class, and without a default one, has priority 0.
- A group that is not there, or that has claims of its own, keeps a job waiting: kube-scheduler lets no pod of it go, or
  gives it devices that are not counted here.
- All this is about jobs that wait for a place. One that has a place keeps it, whatever somebody does to its group.
"""

from collections.abc import Callable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from crds.constants import EVICT_BY, SLICE, Keys
from crds.native_groups import JOB_SCHEDULING, agreed
from crds.request import JOB_PATH, RequestError
from engine.reasons import Reason
from kube.objects import GroupTerms, PodGroup, PodSpec
from ungater.model.job_view import JOB, JOB_SET, JobView, PodSetView

Find = Callable[[str], PodGroup | None]  # by ``namespace/name``
PriorityOf = Callable[[PodSpec], int]
_SCHEDULER = "default-scheduler"
_MIN_COUNT = "schedulingPolicy.gang.minCount"


def groups_of(job: JobView) -> frozenset[str]:
    """The native PodGroups that the pod sets of a job name, as ``namespace/name``."""
    names = {one.template.spec.pod_group for one in job.pod_sets}
    return frozenset(f"{job.namespace}/{name}" for name in names if name)


def with_groups(job: JobView, find: Find | None, keys: Keys, priority_of: PriorityOf | None) -> JobView:
    """The job with what its groups say; what keeps it from being placed with them is its ``held_off``.

    ``find``: None where no groups are read. ``priority_of``: pods of a spec; None where kube-scheduler compares none.
    """
    # The usual job: nothing is looked up, and the same view is given back.
    if job.scheduling is None and not any(one.template.spec.pod_group for one in job.pod_sets):
        return job
    held_off: RequestError | None = None
    for said in _group_requests(job, find):
        try:
            job = _applied(job, said, keys, priority_of)
        except RequestError as error:
            held_off = held_off or error
    return replace(job, held_off=held_off)


class _Said(msgspec.Struct, frozen=True):
    """The ``terms`` that hold for some pod sets, and where they stand; None: the group is not there."""

    path: str
    terms: GroupTerms | None
    pod_sets: tuple[str, ...]

    @property
    def level(self) -> str:
        constraints = self.terms.scheduling_constraints if self.terms is not None else None
        found = (constraints.topology or ()) if constraints is not None else ()
        if len(found) > 1:
            text = f"{self.path}.schedulingConstraints.topology: Too many: {len(found)}: one level is supported"
            raise RequestError(Reason.UNSUPPORTED_CONSTRAINT, self.path, str(len(found)), text)
        return found[0].key if found else ""

    @property
    def least(self) -> int:
        """How many pods are placed at once at least; 0 where it says nothing."""
        policy = self.terms.scheduling_policy if self.terms is not None else None
        gang = policy.gang if policy is not None else None
        return (gang.min_count or 0) if gang is not None else 0

    @property
    def whole(self) -> bool:
        mode = self.terms.disruption_mode if self.terms is not None else None
        return mode is not None and mode.all is not None


def _group_requests(job: JobView, find: Find | None) -> Iterator[_Said]:
    if job.scheduling is not None:
        yield _Said(JOB_SCHEDULING, job.scheduling, tuple([one.name for one in job.pod_sets]))
    if find is None:
        return
    named: dict[str, list[str]] = {}
    for one in job.pod_sets:
        if name := one.template.spec.pod_group:
            named.setdefault(name, []).append(one.name)
    for name, pod_sets in sorted(named.items()):
        found = find(f"{job.namespace}/{name}")
        yield _Said(f"PodGroup {name}: spec", found.spec if found is not None else None, tuple(pod_sets))


def _applied(job: JobView, said: _Said, keys: Keys, priority_of: PriorityOf | None) -> JobView:
    """Raises RequestError."""
    if said.terms is None:
        name = said.path.partition(":")[0]
        text = f"{name} does not exist: kube-scheduler binds none of its pods until it does"
        raise RequestError(Reason.PENDING, "spec.schedulingGroup.podGroupName", name, text)
    if said.terms.resource_claims:
        text = f"{said.path}.resourceClaims: devices of claims that a whole PodGroup has are not counted"
        raise RequestError(Reason.RESOURCE_CLAIMS_NOT_COUNTED, f"{said.path}.resourceClaims", "", text)
    mine = [one for one in job.pod_sets if one.name in said.pod_sets]
    if said.path != JOB_SCHEDULING:  # the group that is made of it gets the class of the Job's pods
        _check_alike(mine, said, priority_of)
    if level := said.level:
        requests = {one.name: agreed(one.request, level, said.path) for one in mine}
        if len(mine) > 1 and not any(one.group or one.slices for one in requests.values()):
            # One group for all: kube-scheduler places a PodGroup in one domain, whatever pod sets its pods are of.
            requests = {name: replace(one, group=f"podgroup-{mine[0].name}") for name, one in requests.items()}
        pod_sets = [replace(one, request=requests[one.name]) if one.name in requests else one for one in job.pod_sets]
        job = replace(job, pod_sets=tuple(pod_sets))
    _check_count(job, mine, said, keys)
    if not said.whole:
        return job
    # By slices, a preemptor would plan on a part of the workload that the group does not let go.
    if (told := next((one for one in mine if one.wishes.get(EVICT_BY) == SLICE), None)) is not None:
        text = (
            f'{JOB_PATH}[{EVICT_BY}]: "{told.wishes[EVICT_BY]}" contradicts {said.path}.disruptionMode: "all": keep '
            "one of the two"
        )
        raise RequestError(Reason.CONTRADICTING_REQUESTS, f"{JOB_PATH}[{EVICT_BY}]", SLICE, text)
    return replace(job, whole=True)


def _check_alike(mine: Sequence[PodSetView], said: _Said, priority_of: PriorityOf | None) -> None:
    """Raises RequestError where kube-scheduler would never bind these pods together."""
    group = (said.terms.priority if said.terms is not None else None) or 0
    for one in mine:
        spec = one.template.spec
        if priority_of is not None and (priority := priority_of(spec)) != group:
            named = f' (priorityClassName "{spec.priority_class_name}")' if spec.priority_class_name else ""
            text = (
                f"{said.path}.priority: {group}: the pods of pod set {one.name} have priority {priority}{named}, and "
                "kube-scheduler binds no pods of another priority than that of their PodGroup: give both the same "
                "priorityClassName"
            )
            raise RequestError(Reason.CONTRADICTING_REQUESTS, f"{said.path}.priority", str(group), text)
    schedulers = sorted({one.template.spec.scheduler_name or _SCHEDULER for one in mine})
    if len(schedulers) > 1:
        name = said.path.partition(":")[0]
        text = (
            f"spec.schedulerName: pods of {name} name {' and '.join(schedulers)}, and kube-scheduler binds none of a "
            "PodGroup whose pods name several: give all of them one"
        )
        raise RequestError(Reason.CONTRADICTING_REQUESTS, "spec.schedulerName", schedulers[1], text)


def _check_count(job: JobView, mine: Sequence[PodSetView], said: _Said, keys: Keys) -> None:
    """Raises RequestError where fewer pods are there, or to be there, than are placed at once."""
    count, field = sum(one.full for one in mine), f"{said.path}.{_MIN_COUNT}"
    few = next((one for one in mine if 0 < one.least < said.least), None)
    if few is not None and len(mine) == 1:
        path = f"{JOB_PATH}[{keys.min_parallelism}]"
        raise _contradiction(f'{path}: "{few.least}"', field, said.least, "fewer never run")
    if count >= said.least:
        return
    if job.open_ended:
        text = f"{count} of {said.least} pods are there ({field}); they are placed together when all are"
        raise RequestError(Reason.PENDING, field, str(said.least), text)
    told_by = f"metadata.annotations[{keys.pod_group_total}]" if job.members else f"pods of {job.kind} {job.name}"
    told_by = {JOB: "spec.parallelism", JOB_SET: "spec.replicatedJobs"}.get(job.kind, told_by)
    raise _contradiction(f"{told_by}: {count}", field, said.least, "so few never run")


def _contradiction(ours: str, field: str, least: int, why: str) -> RequestError:
    text = f"{ours} contradicts {field}: {least}: kube-scheduler places {least} pods at once or none, and {why}"
    return RequestError(Reason.CONTRADICTING_REQUESTS, field, str(least), text)

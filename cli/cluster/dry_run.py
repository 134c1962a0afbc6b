"""What the controller would decide about objects that are not submitted: its own code, on a mirror of its memory.

Nothing is written: what would be stored is noted in the mirror, as if the write had succeeded at once.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from cli.cluster.cluster_snapshot import came
from engine.cluster.assignment import Assignment
from engine.reasons import Reason
from kube import objects
from kube.parents import JobSet, LeaderWorkerSet
from kube.pods.devices import ResourceClaim, ResourceClaimTemplate
from kube.workloads import WorkloadObject
from queueing.cycle.cycle import Admitted, Preempting, cycle
from queueing.preemption.plan import PlannedVictim
from ungater.cache.cache import Cache
from ungater.model.actions import Create, Dequeue, Enqueue, FreeCapacity, UpdateSpec
from ungater.model.admission import Admission
from ungater.model.workload_entry import WorkloadEntry
from ungater.model.workload_spec import new_workload
from ungater.model.workload_status import observed_of
from ungater.reconcile import reconcile
from ungater.scheduling import replacement

CYCLES: Final = 10_000  # of a controller with all that waits: a bound, not an expectation
LOOKS: Final = 64


class DryRunOutcome(msgspec.Struct):
    """What becomes of one workload. ``assignments``: where its pods go, now or once the victims are gone.

    ``admission``: what would be stored of it once it is placed.
    """

    entry: WorkloadEntry
    reason: Reason
    message: str
    placed: bool = False
    assignments: tuple[Assignment, ...] = ()
    victims: tuple[PlannedVictim, ...] = ()
    queue: str = ""
    admission: Admission | None = None


class _Stage(msgspec.Struct):
    cache: Cache
    now: float
    outcomes: dict[str, DryRunOutcome] = msgspec.field(default_factory=dict)

    def reconcile_job(self, entry: WorkloadEntry) -> None:
        """Have the controller look at a job until it asks for nothing that it could do without writing."""
        # One look makes the Workload, one brings its spec up to date, one finds nothing more to write.
        for _ in range(3):
            for step in reconcile.reconcile(entry, self.cache.rules, 0.0, self.now):
                match step:
                    case Create():
                        entry.observe(observed_of(_stored(self.cache, entry)))
                        # The answer changes what follows, as a write would: the next look begins with it.
                        break
                    case UpdateSpec():
                        # What is known of its Workload once that says what the job asks for now.
                        new, known = observed_of(_stored(self.cache, entry)), entry.observed
                        if known is None:
                            observed = new
                        else:
                            spec = ("counts", "queue", "least", "most_execution", "copy_of")
                            observed = replace(known, **{name: getattr(new, name) for name in spec})
                        entry.observe(observed)
                        break
                    case Enqueue(lost, until):
                        # Before the entry is put into its queue, which reads what it wants.
                        entry.want(lost, entry.asked, self.now)
                        self.cache.admissions.enqueue_entry(entry, until)
                    case Dequeue():
                        self.cache.admissions.dequeue_entry(entry)
                    case FreeCapacity():
                        self.cache.admissions.release_job(entry)
                    case _:
                        pass
            else:
                return

    def cycles(self, ours: dict[str, WorkloadEntry]) -> None:
        """Admission cycles until nobody is left to look at."""
        cache = self.cache
        for _ in range(CYCLES):
            made = cycle(cache.state, cache.queues, self.now, LOOKS)
            decided: list[Admitted | Preempting] = [*made.admitted, *made.preempting]
            for one in decided:
                # Workloads that wait already are decided too: they may take the room first.
                if one.key in ours:
                    entry = ours[one.key]
                    grant = one.grant
                    victims = one.victims if isinstance(one, Preempting) else ()
                    admission = self.cache.reservations.admission_of(entry, grant)
                    where = replacement.message_of(self.cache, entry, admission, one.message)
                    self.outcomes[entry.key] = DryRunOutcome(
                        entry,
                        Reason.PREEMPTING if victims else Reason.ADMITTED,
                        one.message if victims else where,
                        placed=isinstance(one, Admitted),
                        assignments=grant.assignments,
                        victims=victims,
                        queue=grant.queue if entry.job.queue else "",
                        admission=admission,
                    )
            if not made.more:
                return


def _stored(cache: Cache, entry: WorkloadEntry) -> WorkloadObject:
    """Its Workload, as the API server would have stored it."""
    named = cache.classes.rules.with_class(entry.job)
    body = new_workload(named, cache.priorities.priority_of_job(entry.job))
    # A uid that no API server gives, and that differs by entry: records are keyed by it.
    body["metadata"] |= {"uid": f"workload-{entry.id}", "resourceVersion": "1", "generation": 1}
    # Through JSON, so that what the codec drops or refuses is dropped or refused here too.
    return msgspec.json.decode(msgspec.json.encode(body), type=WorkloadObject)


def enqueue_entry(cache: Cache, entry: WorkloadEntry, now: float) -> None:
    """Have a job wait in the mirror, if the controller would."""
    _Stage(cache, now).reconcile_job(entry)


def rehearse(
    cache: Cache,
    jobs: Iterable[objects.Job],
    pods: Iterable[objects.Pod],
    now: float,
    *,
    job_sets: Iterable[JobSet] = (),
    leader_sets: Iterable[LeaderWorkerSet] = (),
    claims: Mapping[str, objects.ClaimSpec] | None = None,
    templates: Iterable[ResourceClaimTemplate] = (),
    device_claims: Iterable[ResourceClaim] = (),
) -> list[DryRunOutcome]:
    """What becomes of these jobs and pods if they are submitted now, at ``now`` (seconds since the epoch).

    All that wait already have their cycles first, as the next ones would admit them; then these are submitted, and have
    cycles together with those that still wait. Returns the outcomes in the order in which the workloads were met; what
    is not the controller's to place has none. ``claims``: by namespace
    and name, those that are made with them, where they are not there yet. ``templates``: of claims to devices;
    ``device_claims``: those that are made with them, where they are not there yet.
    """
    stage = _Stage(cache, now)
    # First all that is there, to its end: what would be admitted by the next cycle is not free for a newcomer.
    for entry in tuple(cache.entries.values()):
        stage.reconcile_job(entry)
    stage.cycles({})
    # The sets before and after tell which entries are new: an owner may make several.
    before = set(cache.entries)
    # Sets, claims and templates come before the pods that name them; a pod whose claim is unknown waits for it.
    cache.pod_groups.expect_leader_sets(leader_sets)
    cache.pod_volumes.expect(claims or {})
    for template in templates:
        cache.devices.on_template(came(template))
    for claim in device_claims:
        # A claim that is there may have devices; the manifest's has none and must not take its place.
        if cache.device_claims.claimed.known_claim(objects.key(claim)) is None:
            cache.devices.on_claim(came(claim))
    for job_set in job_sets:
        cache.jobs.on_jobset(came(job_set))
    for job in jobs:
        cache.jobs.on_job(came(job))
    for pod in pods:
        cache.pods.handle_pod(came(pod))
    cache.pod_groups.judge_unseen(0.0)  # all pods of a service are there, and it is not
    ours = {entry.key: entry for uid, entry in cache.entries.items() if uid not in before}
    for entry in ours.values():
        # Pods came one by one: the group's shape is known with the last of them.
        cache.pod_groups.regroup(entry)
        stage.reconcile_job(entry)
    stage.cycles(ours)
    return [stage.outcomes.get(key) or _waiting_outcome(cache, entry) for key, entry in ours.items()]


def _waiting_outcome(cache: Cache, entry: WorkloadEntry) -> DryRunOutcome:
    """Why one is not placed now."""
    if entry.job.suspended and not entry.job.queue:
        return DryRunOutcome(entry, Reason.SUSPENDED, reconcile.suspended_in_words(entry.job))
    if (why := reconcile.why_not_placed(entry, cache.rules)) is not None:
        return DryRunOutcome(entry, *why)
    queued = cache.queues.entries.get(entry.key)
    if queued is None or queued.refusal is None:
        return DryRunOutcome(entry, Reason.PENDING, "nothing was decided about it")
    return DryRunOutcome(
        entry, queued.refusal.reason, replacement.refused_text(cache, entry, queued.refusal), queue=queued.queue
    )

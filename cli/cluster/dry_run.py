"""What the controller would decide about objects that are not submitted: its own code, on a mirror of its memory.

Nothing is written: what would be stored is noted in the mirror, as if the write had succeeded at once.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from cli.cluster.cluster_snapshot import came
from engine.cluster.assignment import Assignment
from engine.reasons import Reason
from kube import objects
from kube.parents import JobSet, LeaderWorkerSet
from kube.pods.devices import ResourceClaim, ResourceClaimTemplate
from queueing.cycle.cycle import Admitted, Preempting, cycle
from queueing.preemption.plan import Victim
from ungater.cache.cache import Cache
from ungater.model.actions import Create, Dequeue, Enqueue, Free, UpdateSpec
from ungater.model.workload_entry import ObservedWorkload, WorkloadEntry
from ungater.model.workload_object import Workload, observed_of
from ungater.model.workload_spec import new_workload
from ungater.reconcile import reconcile
from ungater.scheduling import replacement

CYCLES: Final = 10_000  # of a controller with all that waits: a bound, not an expectation
LOOKS: Final = 64


@dataclass
class Outcome:
    """What becomes of one workload. ``assignments``: where its pods go, now or once the victims are gone."""

    record: WorkloadEntry
    reason: Reason
    message: str
    placed: bool = False
    assignments: tuple[Assignment, ...] = ()
    victims: tuple[Victim, ...] = ()
    queue: str = ""


@dataclass
class _Stage:
    memory: Cache
    now: float
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    def settle(self, record: WorkloadEntry) -> None:
        """Have the controller look at a job until it asks for nothing that it could do without writing."""
        for _ in range(3):
            for step in reconcile.reconcile(record, self.memory.rules, 0.0, self.now):
                match step:
                    case Create():
                        record.observe(observed_of(_stored(self.memory, record)))
                        break
                    case UpdateSpec():
                        record.observe(_respecified(self.memory, record))
                        break
                    case Enqueue(lost, until):
                        record.want(lost, record.asked, self.now)
                        self.memory.admissions.enter(record, until)
                    case Dequeue():
                        self.memory.admissions.leave(record)
                    case Free():
                        self.memory.admissions.free(record)
                    case _:
                        pass
            else:
                return

    def cycles(self, ours: dict[str, WorkloadEntry]) -> None:
        """Admission cycles until nobody is left to look at."""
        memory = self.memory
        for _ in range(CYCLES):
            made = cycle(memory.state, memory.queues, self.now, LOOKS)
            decided: list[Admitted | Preempting] = [*made.admitted, *made.preempting]
            for one in decided:
                if one.key in ours:
                    self._note(ours[one.key], one)
            if not made.more:
                return

    def _note(self, record: WorkloadEntry, made: Admitted | Preempting) -> None:
        grant = made.grant
        victims = made.victims if isinstance(made, Preempting) else ()
        where = replacement.message_of(
            self.memory, record, self.memory.reservations.admission_of(record, grant), made.message
        )
        self.outcomes[record.key] = Outcome(
            record,
            Reason.PREEMPTING if victims else Reason.ADMITTED,
            made.message if victims else where,
            placed=isinstance(made, Admitted),
            assignments=grant.assignments,
            victims=victims,
            queue=grant.queue if record.job.queue else "",
        )


def _stored(memory: Cache, record: WorkloadEntry) -> Workload:
    """Its Workload, as the API server would have stored it."""
    body = new_workload(record.job, memory.priorities.of(record.job))
    body["metadata"] |= {"uid": f"workload-{record.id}", "resourceVersion": "1", "generation": 1}
    return msgspec.json.decode(msgspec.json.encode(body), type=Workload)


def _respecified(memory: Cache, record: WorkloadEntry) -> ObservedWorkload | None:
    """What is known of its Workload once that says what the job asks for now."""
    new, known = observed_of(_stored(memory, record)), record.observed
    if known is None:
        return new
    spec = ("counts", "queue", "least", "most_execution", "copy_of")
    return replace(known, **{name: getattr(new, name) for name in spec})


def enter(memory: Cache, record: WorkloadEntry, now: float) -> None:
    """Have a job wait in the mirror, if the controller would."""
    _Stage(memory, now).settle(record)


def rehearse(
    memory: Cache,
    jobs: Iterable[objects.Job],
    pods: Iterable[objects.Pod],
    now: float,
    *,
    job_sets: Iterable[JobSet] = (),
    leader_sets: Iterable[LeaderWorkerSet] = (),
    claims: Mapping[str, objects.ClaimSpec] | None = None,
    templates: Iterable[ResourceClaimTemplate] = (),
    device_claims: Iterable[ResourceClaim] = (),
) -> list[Outcome]:
    """What becomes of these jobs and pods if they are submitted now, at ``now`` (seconds since the epoch).

    Who waits already has its turn in the same cycles, before or after them, as the queues say. Returns the outcomes in
    the order in which the workloads were met; what is not the controller's to place has none. ``claims``: by namespace
    and name, those that are made with them, where they are not there yet. ``templates``: of claims to devices;
    ``device_claims``: those that are made with them, where they are not there yet.
    """
    stage = _Stage(memory, now)
    for record in tuple(memory.entries.values()):
        stage.settle(record)
    stage.cycles({})
    before = set(memory.entries)
    memory.pod_groups.expect_leader_sets(leader_sets)
    memory.pod_volumes.expect(claims or {})
    for template in templates:
        memory.devices.on_template(came(template))
    for claim in device_claims:
        if memory.device_claims.claimed.known(objects.key(claim)) is None:
            memory.devices.on_claim(came(claim))
    for job_set in job_sets:
        memory.jobs.on_jobset(came(job_set))
    for job in jobs:
        memory.jobs.on_job(came(job))
    for pod in pods:
        memory.pods.on_pod(came(pod))
    ours = {record.key: record for uid, record in memory.entries.items() if uid not in before}
    for record in ours.values():
        memory.pod_groups.regroup(record)
        stage.settle(record)
    stage.cycles(ours)
    return [stage.outcomes.get(key) or _waits(memory, record) for key, record in ours.items()]


def _waits(memory: Cache, record: WorkloadEntry) -> Outcome:
    """Why one is not placed now."""
    if record.job.suspended and not record.job.queue:
        return Outcome(record, Reason.SUSPENDED, "the job is suspended: it is placed when it is resumed")
    if (why := reconcile.hindered(record, memory.rules)) is not None:
        return Outcome(record, *why)
    entry = memory.queues.entries.get(record.key)
    if entry is None or entry.refusal is None:
        return Outcome(record, Reason.PENDING, "nothing was decided about it")
    return Outcome(
        record, entry.refusal.reason, replacement.refused_text(memory, record, entry.refusal), queue=entry.queue
    )

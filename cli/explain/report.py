"""What is known of a job's placement: read from the cluster, one `Report` for each workload of an owner."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import suppress

import msgspec

from cli.cluster import cluster_snapshot, dry_run, installed, live_queues, room_report
from cli.cluster import required_evictions as reliefs
from cli.cluster.claimed_devices import HeldDevices
from cli.cluster.dump import Dump
from cli.cluster.owner_names import parse_owner
from cli.cluster.pod_zones import PodZone, pod_zones
from cli.cluster.required_evictions import Relief
from cli.cluster.room_report import Room, listed
from cli.explain import owners, queue_report
from cli.explain.growth import GrowthReport, growth
from cli.explain.last_warning import last_warning
from cli.explain.queue_report import QueuePlace
from cli.output import Failure
from cli.queues.report import NOT_SEEN, why
from cli.stored import last_word
from clock import SYSTEM, Clock
from crds.constants import JOB_CONTROLLER, NUMA_PLACEMENT_OBSERVED, NUMA_PLACEMENT_PREDICTED, Keys
from crds.numa_placement import decode
from crds.request import ParsedRequest
from engine.reasons import Reason, traits_of
from kube import objects
from kube.client import Client
from kube.errors import NotFound
from kube.pods import convert
from kube.resources import JOBS
from kube.told_events import ToldEvent
from kube.workloads import WorkloadObject
from ungater import kinds
from ungater.cache.cache import Cache
from ungater.cache.rules import queue_rules
from ungater.jobs.job import owner_of
from ungater.jobs.jobset import parent_of
from ungater.model.conditions import MOVING, PODS_READY
from ungater.model.job_view import JobView, PodSetView, id_of, identity
from ungater.model.pod_slots import PodSetSlots, is_gated
from ungater.model.workload_entry import WorkloadEntry
from ungater.model.workload_spec import belongs
from ungater.model.workload_status import observed_of
from ungater.reconcile import let_go
from ungater.reconcile.reconcile import left_alone
from ungater.writers.events import job_reference

NO_WORKLOAD = (
    "it has no Workload yet: `topogate doctor` says whether the controller runs, and the controller's log why it makes "
    "none"
)


class ExplainedPod(msgspec.Struct, frozen=True):
    """One pod of the job. ``node`` is empty while it is gated or not yet bound.

    ``zones`` is where it is inside its node, ``zones_from`` who says so: "observed" (the node's agent), "predicted"
    (when it was let go), or "".
    """

    name: str
    phase: str
    node: str
    rank: int | None
    gated: bool
    zones: tuple[PodZone, ...] = ()
    zones_from: str = ""
    reason: str = ""
    devices: tuple[str, ...] = ()  # of its claims


class Domain(msgspec.Struct, frozen=True):
    """Pods of the job in one domain of the narrowest level."""

    values: tuple[str, ...]
    slots: int
    pods: tuple[ExplainedPod, ...]
    pod_set: str = ""  # of an owner with several


class AskedPodSet(msgspec.Struct, frozen=True):
    """One pod set: how many pods it needs, what each of them asks for, and where they are to be."""

    name: str
    count: int
    per_pod: dict[str, str]
    policy: str
    level: str


class MachineTrouble(msgspec.Struct, frozen=True):
    """What is wrong with what one node publishes of its inside, and what its picture is from.

    ``unrecorded``: pods that hold something in its zones, and no record says in which.
    """

    node: str
    source: str
    problems: tuple[str, ...]
    disagreements: tuple[str, ...]
    unrecorded: int = 0


class Report(msgspec.Struct, frozen=True):
    """All that is known of a job's placement."""

    job: str
    workload: str
    state: str  # Waiting, Placed, Suspended, Finished, NotManaged
    reason: str
    message: str
    policy: str
    level: str
    count: int
    per_pod: dict[str, str]
    levels: tuple[str, ...]
    flavor: str
    domains: tuple[Domain, ...]
    without_slot: tuple[ExplainedPod, ...]
    room: tuple[Room, ...]
    machine_troubles: tuple[MachineTrouble, ...] = ()
    queue: QueuePlace | None = None
    relief: Relief | None = None
    kind: str = "Job"
    pod_sets: tuple[AskedPodSet, ...] = ()
    moving: str = ""  # that it is moved now, or how its last move ended
    growth: GrowthReport | None = None  # of one that is placed and waits for more pods
    hanging: str = ""  # of one that is placed: why pods of it do not run


async def report(client: Client, namespace: str, name: str, *, domain: str | None = None) -> Report:
    """Everything about one job (``NAME`` or ``KIND/NAME``): its only workload, or the first. Raises Failure."""
    return (await reports(client, namespace, name, domain=domain))[0]


async def reports(
    client: Client, namespace: str, name: str, *, domain: str | None = None, clock: Clock = SYSTEM
) -> tuple[Report, ...]:
    """Everything about each workload of an owner (``NAME`` or ``KIND/NAME``), from one reading of the cluster.

    Raises Failure where there is none.
    """
    kind, name = parse_owner(name)
    await installed.require(client)
    settings = await installed.settings_with_warning(client)
    keys = Keys(domain) if domain else settings.keys
    # Asked by itself: the Job may be there and of no interest to the controller, and then it is in no cache.
    job = None
    if kind in {"", "job"}:
        with suppress(NotFound):
            job = await client.get(JOBS, name, namespace, type=objects.Job)
    read = await cluster_snapshot.read(client)
    cache = cluster_snapshot.cache_of(read, settings.model_copy(update={"domain": keys.domain}), clock=clock)
    if job is None:
        found = owners.find(cache, namespace, kind, name)
    else:
        # The record of the Job, or that of the JobSet that made it; none where nothing is to be placed.
        entry, parent = cache.entries.get(id_of(job)), parent_of(job.metadata)
        if entry is None and parent is not None:
            entry = cache.entries.get(identity(job.metadata.namespace, parent.uid))
        if entry is None and job.spec.managed_by not in {"", JOB_CONTROLLER}:
            text = f"is {job.spec.managed_by}'s (spec.managedBy): Topogate neither queues nor places it"
            raise Failure(f"Job {job.metadata.name} in namespace {job.metadata.namespace} {text}")
        found = [entry] if entry is not None else []
    if job is None and not found:
        raise await owners.not_found(client, cache, namespace, kind, name)
    found_owners = [entry.job for entry in found] or ([owner_of(job, keys)] if job is not None else [])
    queued = any(owner.queue for owner in found_owners)
    # A second reading, of quota alone; a job without a queue does not pay for it.
    reading = await live_queues.read(client, queue_rules(settings), clock) if queued else None
    unmade = [one for one in found if one.observed is None and left_alone(one, keys) is None]
    # Only without a Workload, whose conditions would say it, and better.
    told = {one.id: await last_warning(client, job_reference(one)) for one in unmade}
    now = clock.now()
    return tuple([_report(read, cache, keys, reading, owner, now, told.get(owner.id)) for owner in found_owners])


def _report(
    read: Dump,
    cache: Cache,
    keys: Keys,
    reading: live_queues.QueueReading | None,
    owner: JobView,
    now: float,
    told: ToldEvent | None = None,
) -> Report:
    """All that is known of one workload. ``told``: the controller's last warning of one that is not stored."""
    found = cache.entries.get(owner.id)
    # `belongs` compares names and owners, and the key the namespace.
    workload = next(
        (one for one in read.of(kinds.WORKLOADS) if belongs(one, owner) and objects.key(one) == owner.workload_key),
        None,
    )
    slots = observed_of(workload).slots if workload else None
    if found is not None:
        pods = list(found.pods.values())
    else:
        pods = [
            pod
            for pod in read.of(kinds.PODS)
            if pod.metadata.namespace == owner.namespace
            and (of := objects.controller_of(pod.metadata))
            and of.uid == owner.uid
        ]
    domains, others = _domains(workload, owner, pods, keys, HeldDevices(cache.state))
    state, reason, message = _condition(owner, workload, slots) or _unsaid(owner, workload, found, told, keys)
    held, place = None, None
    if (
        reading is not None
        and owner.queue
        and workload is not None
        and (key := objects.key(workload)) in reading.workloads
    ):
        charged = cache.charged(found) if found is not None else None
        place = queue_report.place(reading, cache.state, key, charged, owner.title, keys=keys)
        held = reading.flavors_of(place.cluster_queue)
        if state == "Waiting" and key in reading.queues.entries:
            # Asked of the queues now; the stored condition may be of the last cycle.
            reason, message = why(reading, key)
    request = owner.request if isinstance(owner.request, ParsedRequest) else None
    pod_set = max(owner.pod_sets, key=lambda one: one.count)
    # This puts the job into its queue; what reads the cache as it was comes before.
    room, freed = _room_and_relief(cache, owner.id, reason, held, now) if state == "Waiting" else ((), None)
    # Of the nodes that the job's pods are on; of all nodes while it waits, as any of them may be why.
    nodes = {pod.spec.node_name for pod in pods}
    machines = [
        MachineTrouble(name, one.source, one.problems, one.disagreements, cache.state.unrecorded(name))
        for name, one in sorted(cache.topologies.described.items())
        if state == "Waiting" or name in nodes
    ]
    return Report(
        job=f"{owner.namespace}/{owner.full_name}",
        kind=owner.kind,
        workload=workload.metadata.name if workload else "",
        state=state,
        reason=reason,
        message=message,
        policy=str(request.policy) if request else "",
        level=(request.level or "") if request else "",
        count=owner.count,
        per_pod=listed(convert.pod_requests(pod_set.template.spec)),
        levels=slots.levels if slots else (),
        flavor=slots.flavor if slots else "",
        domains=domains,
        without_slot=others,
        room=room,
        machine_troubles=tuple(one for one in machines if one.problems or one.disagreements or one.unrecorded),
        queue=place,
        relief=freed,
        pod_sets=tuple([_asked_pod_set(one) for one in owner.pod_sets]),
        moving=_moving(workload) if state == "Placed" else "",
        growth=growth(cache, found, held, now) if state == "Placed" and found is not None else None,
        hanging=_hanging(found, workload) if state == "Placed" and found is not None else "",
    )


def _hanging(entry: WorkloadEntry, workload: WorkloadObject | None) -> str:
    """Why pods that have a place do not run: what the controller says, which knows more, or the pods themselves."""
    said = objects.condition(workload.status.conditions if workload else None, PODS_READY)
    if said is not None and said.status == "False" and said.reason and not traits_of(said.reason).ordinary:
        return said.message
    refused = {uid: entry.pods[uid] for uid, one in entry.unscheduled.items() if one.refused_at is not None}
    if refused:
        return let_go.message_of(entry, refused)
    return ""


def _moving(workload: WorkloadObject | None) -> str:
    found = objects.condition(workload.status.conditions if workload else None, MOVING)
    if found is None:
        return ""
    return f"it is moved: {found.message}" if found.status == "True" else found.message


def _asked_pod_set(pod_set: PodSetView) -> AskedPodSet:
    request = pod_set.request
    return AskedPodSet(
        name=pod_set.name,
        count=pod_set.count,
        per_pod=listed(convert.pod_requests(pod_set.template.spec)),
        policy=str(request.policy) if request else "",
        level=(request.level or "") if request else "",
    )


def _room_and_relief(
    cache: Cache, uid: str, reason: str, flavors: Collection[str] | None, now: float
) -> tuple[tuple[Room, ...], Relief | None]:
    """Of a job that waits: how much room there is for it, and what would have to be freed."""
    entry = cache.entries.get(uid)
    if entry is None:
        return (), None
    dry_run.enqueue_entry(cache, entry, now)
    room = room_report.rooms_of_entry(cache, entry, flavors)
    return room, reliefs.relief(cache, entry, reason, room)


def _condition(
    owner: JobView, workload: WorkloadObject | None, slots: PodSetSlots | None
) -> tuple[str, str, str] | None:
    """State in a word, then the reason and message of the condition that says it best; None where none does."""
    conditions = workload.status.conditions if workload else None
    if owner.request is None and not owner.queue and not owner.gated:
        return "NotManaged", "", "the job carries no topology request and no queue, so Topogate leaves it alone"
    # Finished comes before a stored assignment, which may not be cleared yet.
    if (said := last_word(conditions)) is not None:
        return said
    if slots is not None:
        return "Placed", "", "the assignment is stored"
    found = objects.condition(conditions, "QuotaReserved")
    return (_state_of_waiting(owner, found.reason), found.reason, found.message) if found is not None else None


def _unsaid(
    owner: JobView, workload: WorkloadObject | None, entry: WorkloadEntry | None, told: ToldEvent | None, keys: Keys
) -> tuple[str, str, str]:
    """The same of one of which no condition says anything: by the controller's own rule, or what it told."""
    if owner.over:
        return "Finished", "", owner.outcome or f"{owner.called} is {owner.over.lower()}"
    if entry is not None and (alone := left_alone(entry, keys)) is not None:
        return "NotManaged", str(alone.reason), alone.message
    if told is not None:
        return _state_of_waiting(owner), told.reason, told.note
    return _state_of_waiting(owner), "Pending", NO_WORKLOAD if workload is None else NOT_SEEN


def _state_of_waiting(owner: JobView, reason: str = "") -> str:
    """Its state; one that its own queue suspended is not its user's to resume, and one of another's queue has quota."""
    resting = reason in {"", Reason.SUSPENDED}
    return "Suspended" if owner.suspended and not owner.queue and resting else "Waiting"


def _domains(
    workload: WorkloadObject | None, owner: JobView, pods: Sequence[objects.Pod], keys: Keys, devices: HeldDevices
) -> tuple[tuple[Domain, ...], tuple[ExplainedPod, ...]]:
    """The slots of each pod set with their pods, and the pods without a slot."""
    admission = observed_of(workload).admission if workload is not None else None
    found: list[Domain] = []
    others: list[ExplainedPod] = []
    members: dict[str, list[objects.Pod]] = defaultdict(list)
    for pod in pods:
        pod_set = owner.pod_set_of(pod)
        members[pod_set.name if pod_set is not None else ""].append(pod)
    for pod_set in owner.pod_sets:
        part = admission.pod_set_named(pod_set.name) if admission is not None else None
        slots = part.slots if part is not None else None
        by_slot: dict[int | None, list[ExplainedPod]] = defaultdict(list)
        for pod in members.pop(pod_set.name, ()):
            placed = _placed_pod(pod, pod_set.rank_of_pod(pod), keys, devices)
            # A gated pod has no slot yet, whatever its selector says: a user may have written that.
            by_slot[None if slots is None or placed.gated else slots.of_selector(pod.spec.node_selector)].append(placed)
        for there in by_slot.values():
            there.sort(key=lambda pod: (pod.rank is None, pod.rank, pod.name))
        name = pod_set.name if len(owner.pod_sets) > 1 else ""
        found += (
            Domain(slot.values, slot.count, tuple(by_slot[index]), name)
            for index, slot in enumerate(slots.slots if slots else ())
        )
        others += by_slot[None]
    # `members` has lost those of known pod sets; what is left belongs to none.
    others += (_placed_pod(pod, None, keys, devices) for rest in members.values() for pod in rest)
    return tuple(found), tuple(others)


def _placed_pod(pod: objects.Pod, rank: int | None, keys: Keys, devices: HeldDevices) -> ExplainedPod:
    gated = is_gated(pod, keys.gate)
    phase = "Terminating" if pod.metadata.deletion_timestamp else pod.status.phase
    zones, source = _zones_of_pod(pod)
    return ExplainedPod(
        pod.metadata.name,
        phase,
        pod.spec.node_name,
        rank,
        gated,
        zones,
        source,
        pod.status.reason,
        devices.devices_of_pod(pod),
    )


def _zones_of_pod(pod: objects.Pod) -> tuple[tuple[PodZone, ...], str]:
    """Where the pod is inside its node, and who says so."""
    annotations = pod.metadata.annotations or {}
    # Observed wins over predicted, as the controller charges it.
    for key, source in ((NUMA_PLACEMENT_OBSERVED, "observed"), (NUMA_PLACEMENT_PREDICTED, "predicted")):
        placement = decode(annotations[key]) if key in annotations else None
        if placement is not None:
            return pod_zones(placement), source
    return (), ""

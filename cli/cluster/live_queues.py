"""The queues of a live cluster, read once and put together as the controller does after a restart.

Only quota and order are built here: no node is read and nothing is placed, so that asking stays cheap.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import TypeVar

import msgspec

from cli.reaching import INSPECT, MayNotLook, not_installed
from clock import SYSTEM, Clock
from crds.levels import NO_NAMES, LevelNames
from engine.cluster.state import ClusterState
from engine.model import Amounts, PodSet, Policy, TopologyRequest
from engine.reservation_key import ReservationKey
from engine.results import Refusal
from kube import objects
from kube.client import Client
from kube.errors import Forbidden, NotFound
from kube.objects import Condition, Namespace, Object, ResourceFlavor, is_true
from kube.pods import convert
from kube.pods.templates import template_of
from kube.queues import ClusterQueue, Cohort, LocalQueue, cluster_queue, cohort, local_queue, plain_flavor, stored_use
from kube.resources import CLUSTER_QUEUES, COHORTS, LOCAL_QUEUES, NAMESPACES, RESOURCE_FLAVORS, WORKLOADS
from kube.workloads import WholeWorkload, WorkloadPodSet
from queueing import model
from queueing.cycle.growth import hold_growth
from queueing.model import Rules
from queueing.queues.entry import AssumedAdmission
from queueing.queues.queues import Queues
from ungater.model.admission import read_quota
from ungater.model.conditions import read_run_times

One = TypeVar("One", bound=Object)


class QueueReading(msgspec.Struct, frozen=True):
    """What was there at ``now`` (seconds since the epoch).

    ``workloads``: by key, those that are in a queue and have not finished. ``inactive``: keys of those that are in a
    queue but not to be admitted. ``wrong``: objects that cannot be read, with why. ``names``: what flavors call their
    levels.
    """

    queues: Queues
    state: ClusterState  # flavors alone
    workloads: dict[str, WholeWorkload]
    inactive: tuple[str, ...]
    wrong: tuple[str, ...]
    now: float
    names: LevelNames = NO_NAMES

    def explain_refusal(self, key: str) -> Refusal | None:
        """Why it can wait in no queue as things are; None where it waits in one, or holds what it wants."""
        entry = self.queues.entries.get(key)
        return entry.refusal if entry is not None else None

    def condition(self, key: str) -> Condition:
        """Its condition QuotaReserved; an empty one where nobody wrote it yet."""
        return objects.condition(self.workloads[key].status.conditions, "QuotaReserved") or Condition()

    def has_flavor(self, name: str) -> bool:
        """Whether there is such a ResourceFlavor, with a topology or without."""
        return name in self.state.flavors or name in self.queues.config.plain

    def flavors_of(self, queue: str) -> tuple[str, ...]:
        """The flavors of a cluster queue, in the order in which they are tried; () where there is no such queue."""
        found = self.queues.quotas.queues.get(queue)
        return tuple(flavor.flavor for group in found.groups for flavor in group.flavors) if found is not None else ()


async def read(client: Client, rules: Rules | None = None, clock: Clock = SYSTEM) -> QueueReading:
    """List flavors, namespaces, queues and workloads of the whole cluster.

    Raises Failure where they may not be listed, or Topogate is not installed; KubeError.
    """
    try:
        async with (
            asyncio.TaskGroup() as group
        ):  # where one call fails the others are ended before the client is closed
            flavors = group.create_task(client.list(RESOURCE_FLAVORS, type=ResourceFlavor))
            namespaces = group.create_task(client.list(NAMESPACES, type=Namespace))
            cluster = group.create_task(client.list(CLUSTER_QUEUES, type=ClusterQueue))
            cohorts = group.create_task(_list_cohorts(client))
            local = group.create_task(client.list(LOCAL_QUEUES, type=LocalQueue))
            workloads = group.create_task(client.list(WORKLOADS, type=WholeWorkload))
    except ExceptionGroup as errors:
        error = errors.exceptions[0]
        if isinstance(error, NotFound):
            raise not_installed() from error
        if isinstance(error, Forbidden):
            raise MayNotLook(f"{error}. Positions and quota are of the whole cluster: {INSPECT}") from error
        raise error from None
    found = flavors.result(), namespaces.result(), cluster.result(), local.result(), workloads.result()
    listed, unread = cohorts.result()
    reading = build(*found, listed, rules=rules, now=clock.now())
    return msgspec.structs.replace(reading, wrong=(*reading.wrong, *unread))


async def _list_cohorts(client: Client) -> tuple[list[Cohort], tuple[str, ...]]:
    """The Cohorts, and what is to be told of them."""
    try:
        return await client.list(COHORTS, type=Cohort), ()
    except NotFound:
        # An installation of an earlier version has no such kind: its cohorts are flat.
        return [], ()
    except Forbidden as error:
        # The role of an earlier version names no such kind. All else can be shown, and may be wrong in a tree.
        return [], (f"{error}. All cohorts are shown without trees: {INSPECT}",)


def _take_in(found: Iterable[One], kind: str, take: Callable[[One], None]) -> Iterator[str]:
    """Take in objects; yields what is wrong with those that cannot be read."""
    for wire in found:
        try:
            take(wire)
        except ValueError as error:
            yield f"{kind} {wire.metadata.name}: {error}"


def build(
    flavors: Iterable[ResourceFlavor],
    namespaces: Iterable[Namespace],
    cluster: Iterable[ClusterQueue],
    local: Iterable[LocalQueue],
    workloads: Iterable[WholeWorkload],
    cohorts: Iterable[Cohort] = (),
    *,
    rules: Rules | None = None,
    now: float,
) -> QueueReading:
    """Put together what was listed."""
    state, queues, wrong, names = ClusterState(), Queues(rules), list[str](), LevelNames()
    for flavor in flavors:
        plain, rooms = plain_flavor(flavor), convert.flavor(flavor)
        if rooms is not None:
            state.set_flavor(rooms)
            names.set(rooms.name, rooms.levels, flavor.spec.topology.names if flavor.spec.topology else None)
        if plain is not None:
            queues.set_flavor(plain)
    for namespace in namespaces:
        queues.set_namespace(namespace.metadata.name, namespace.metadata.labels or {})
    all_cohorts, cluster_queues = list(cohorts), list(cluster)
    wrong += _take_in(all_cohorts, "Cohort", lambda wire: queues.set_cohort(cohort(wire)))
    wrong += _take_in(cluster_queues, "ClusterQueue", lambda wire: queues.set_cluster_queue(cluster_queue(wire)))
    # What was used over time goes by when it was stored, and by when each workload began to hold what it holds.
    queues.pass_time(now)
    both = [(False, one.metadata.name, stored_use(one)) for one in all_cohorts]
    both += [(True, queue.metadata.name, stored_use(queue)) for queue in cluster_queues]
    for is_queue, name, used in both:
        if used is not None:
            queues.quotas.over_time.restore_use((is_queue, name), *used)
    wrong.extend(_set_local_queues(queues, local))
    # A Workload without a queue is charged to no quota.
    unfinished = (one for one in workloads if not is_true(one.status.conditions, "Finished"))
    live = {objects.key(one): one for one in unfinished if one.spec.queue_name}
    _restore(queues, state, live.values(), now)
    waiting = [key for key in live if key not in queues.entries]
    for key in waiting:
        if live[key].spec.active:
            workload = live[key]
            # First into the queue, then put off: only what is in a queue has a turn to lose.
            queues.submit(_workload_for_order(workload), now, _since(workload, "False"))
            requeue = workload.status.requeue_state
            until = _seconds(requeue.requeue_at) if requeue is not None else 0.0
            if until > now:
                queues.delay_workload(key, until)
    queues.wake_due(now)  # who has waited for too long comes before what LocalQueues used
    inactive = sorted(key for key in waiting if not live[key].spec.active)
    return QueueReading(queues, state, live, tuple(inactive), tuple(wrong), now, names)


def _set_local_queues(queues: Queues, local: Iterable[LocalQueue]) -> Iterator[str]:
    """Take in LocalQueues and what they used over time; yields what is wrong with those that cannot be read."""
    for one in local:
        namespace, name = one.metadata.namespace, one.metadata.name
        try:
            queues.set_local_queue(local_queue(one))
        except ValueError as error:
            yield f"LocalQueue {namespace}/{name}: {error}"
        if (used := stored_use(one)) is not None:
            queues.use.restore_use(model.part_of(namespace, name), *used)


def _restore(queues: Queues, state: ClusterState, workloads: Iterable[WholeWorkload], now: float) -> None:
    held = [(one, grant) for one in workloads if (grant := _grant(one, queues)) is not None]
    # A nomination names victims, which have to hold their quota by then.
    for one, grant in sorted(held, key=lambda pair: pair[0].status.admission is None):  # victims first
        nominated = one.status.admission is None
        victims = () if one.status.admission is not None else _victims(one)
        since = None if nominated else _since(one, "True") or now
        queues.restore_workload(
            state, _workload_for_order(one), grant, now, nominated=victims, waits=nominated, since=since
        )
        queues.run_times.note_start(objects.key(one), *read_run_times(one.status.conditions, now))
    for one, grant in held:
        # After all of them: growth is held beside what its workload has.
        nomination = one.status.nomination
        if one.status.admission is not None and nomination is not None:  # it is to grow
            more = read_quota(grant.queue, nomination)
            growth = ReservationKey.for_growth(objects.key(one))
            workload = msgspec.structs.replace(_workload_for_order(one), key=growth)
            hold_growth(state, queues, workload, more, _victims(one), {})


def _since(workload: WholeWorkload, status: str) -> float | None:
    """Since when it holds quota, or (``False``) has none; None where nobody wrote that."""
    found = objects.condition(workload.status.conditions, "QuotaReserved")
    return _seconds(found.last_transition_time) or None if found is not None and found.status == status else None


def title_of(workload: WholeWorkload) -> str:
    """``Job team-a/train``, where an object controls the Workload; else its own name."""
    owner, meta = objects.controller_of(workload.metadata), workload.metadata
    kind, name = (owner.kind, owner.name) if owner is not None else ("Workload", meta.name)
    return f"{kind} {meta.namespace}/{name}"


def owner_name(workload: WholeWorkload) -> str:
    """``job/train``, where a job controls the Workload; else ``workload/NAME``."""
    owner = objects.controller_of(workload.metadata)
    return f"{owner.kind.lower()}/{owner.name}" if owner is not None else f"workload/{workload.metadata.name}"


def age(workload: WholeWorkload, now: float) -> float:
    """Seconds since it was made."""
    return max(0.0, now - _seconds(workload.metadata.creation_timestamp))


def requests(workload: WholeWorkload) -> dict[str, int]:
    """What all its pods ask for together, ``pods`` included."""
    found: dict[str, int] = {"pods": sum(pod_set.count for pod_set in workload.spec.pod_sets)}
    for pod_set in workload.spec.pod_sets:
        for resource, amount in convert.pod_requests(template_of(pod_set).spec).items():
            found[resource] = found.get(resource, 0) + amount * pod_set.count
    return found


def with_pods(
    workload: WholeWorkload, names: LevelNames, charged: Mapping[str, Amounts] | None = None
) -> model.Workload:
    """The workload as queueing takes it, its pod sets included. ``charged``: as `model.Workload` has it."""
    pod_sets = tuple(_pod_set(pod_set, workload.metadata.namespace, names) for pod_set in workload.spec.pod_sets)
    return msgspec.structs.replace(_workload_for_order(workload), pod_sets=pod_sets, charged=dict(charged or {}))


def _pod_set(wire: WorkloadPodSet, namespace: str, names: LevelNames) -> PodSet:
    asked = wire.topology_request
    policy = Policy(asked.policy) if asked is not None and asked.policy else Policy.UNCONSTRAINED
    level = names.level(asked.level) if asked is not None and asked.level else None
    topology = TopologyRequest(policy=policy, level=level)
    return convert.pod_set(wire.name, wire.count, template_of(wire), topology, namespace)


def _workload_for_order(workload: WholeWorkload) -> model.Workload:
    """The workload as far as order goes: no pods are placed here.

    One that was put back because of its own trouble comes after those who wait since, as the controller has it.
    """
    meta, spec, requeue = workload.metadata, workload.spec, workload.status.requeue_state
    # A count of 0 means that it was put back for the sake of others, which costs it no place.
    back = _seconds(requeue.requeue_at) if requeue is not None and requeue.count else 0.0
    return model.Workload(
        key=objects.key(workload),
        namespace=meta.namespace,
        queue=spec.queue_name,
        pod_sets=(),
        priority=workload.effective_priority,
        created=max(_seconds(meta.creation_timestamp), back),
        uid=meta.uid,
        owner=title_of(workload),
    )


def _grant(workload: WholeWorkload, queues: Queues) -> AssumedAdmission | None:
    """What it holds: admitted, or nominated with victims on their way out."""
    admission, nomination = workload.status.admission, workload.status.nomination
    if admission is not None:
        return read_quota(admission.cluster_queue, admission)
    local = queues.config.local.get((workload.metadata.namespace, workload.spec.queue_name))
    if nomination is not None and local is not None:
        return read_quota(local.cluster_queue, nomination)
    return None


def _victims(workload: WholeWorkload) -> Iterator[str]:
    nomination = workload.status.nomination
    if nomination is not None:
        yield from (
            f"{victim.namespace}/{victim.name}"
            for victim in nomination.victims
            # Single pods and parts of a workload give no quota back as a whole.
            if victim.kind != "Pod" and not victim.domains
        )


def _seconds(timestamp: str | None) -> float:
    return datetime.fromisoformat(timestamp).timestamp() if timestamp else 0.0

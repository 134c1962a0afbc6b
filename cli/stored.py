"""What the API server has stored of your own jobs: the answer if you may not look at the whole cluster.

The role ``view`` or ``edit`` in a namespace shows its Workloads, LocalQueues and pods, and so why a job waits and where
its pods are. What others hold, and how close each domain comes, takes the ClusterRole ``topogate-inspect``.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from cli.hold import Selection, not_allowed, selected, title
from cli.output import plain_table
from cli.reaching import INSPECT
from crds.constants import Keys
from kube import objects
from kube.client import Client
from kube.errors import Forbidden
from kube.objects import Condition
from kube.queues import LocalQueue
from kube.resources import LOCAL_QUEUES, PODS, WORKLOADS
from kube.workloads import WorkloadObject
from ungater.model.conditions import ADMITTED, FINISHED, PODS_READY, QUOTA_RESERVED
from ungater.model.life import RELEASE

PART: Final = f"This is what is stored in your namespace. The cluster's domains and who holds them: {INSPECT}"
WORKLOAD_KEY: Final = Keys("").workload  # under any domain, as the settings may not be read


class StoredPod(msgspec.Struct, frozen=True):
    """One pod of a job; ``node`` is empty until it is bound."""

    name: str
    phase: str
    node: str
    gated: bool


class StoredJob(msgspec.Struct, frozen=True, rename="camel"):
    """One workload. ``hanging``: why pods that have a place do not run."""

    kind: str
    job: str
    workload: str
    queue: str
    state: str  # Waiting, Placed, OnHold, Finished
    reason: str
    message: str
    hanging: str = ""
    pods: tuple[StoredPod, ...] = ()


class StoredQueue(msgspec.Struct, frozen=True, rename="camel"):
    """One LocalQueue. ``used``: amounts by resource, of all flavors in which it has some."""

    name: str
    cluster_queue: str
    pending: int
    admitted: int
    used: tuple[str, ...]
    inactive: str  # why it admits nothing


class StoredQueues(msgspec.Struct, frozen=True):
    """The queues of a namespace, and its jobs in them that have not finished."""

    queues: tuple[StoredQueue, ...]
    jobs: tuple[StoredJob, ...]


def last_word(conditions: tuple[Condition, ...] | None) -> tuple[str, str, str] | None:
    """State, reason and message of a workload that has finished or was admitted; None of another."""
    for type_, state in ((FINISHED, "Finished"), (ADMITTED, "Placed")):
        found = objects.condition(conditions, type_)
        if found is not None and found.status == "True":
            return state, found.reason, found.message
    return None


async def stored_jobs(client: Client, *, namespace: str | None, name: str) -> list[StoredJob]:
    """The workloads of an owner (``NAME`` or ``KIND/NAME``) with their pods. Raises Failure, KubeError."""
    where = namespace or client.connection.namespace
    found = selected(await _workloads(client, where), Selection((name,), None, every=False), where)
    pods = await client.list(PODS, where, type=objects.Pod)
    return [_stored(one, _pods_of(one, pods)) for one in found]


async def stored_queues(client: Client, *, namespace: str | None) -> StoredQueues:
    """The LocalQueues of a namespace and its jobs. Raises Failure, KubeError."""
    where = namespace or client.connection.namespace
    workloads = await _workloads(client, where)
    try:
        queues = await client.list(LOCAL_QUEUES, where, type=LocalQueue)
    except Forbidden as error:
        raise not_allowed(error, where, "list", "view", "LocalQueues") from error
    jobs = [_stored(one) for one in sorted(workloads, key=lambda one: one.metadata.name) if one.spec.queue_name]
    return StoredQueues(
        tuple(_queue(one) for one in sorted(queues, key=objects.key)),
        tuple(job for job in jobs if job.state != "Finished"),
    )


async def _workloads(client: Client, namespace: str) -> list[WorkloadObject]:
    try:
        return await client.list(WORKLOADS, namespace, type=WorkloadObject)
    except Forbidden as error:
        raise not_allowed(error, namespace, "list", "view") from error


def _stored(workload: WorkloadObject, pods: tuple[StoredPod, ...] = ()) -> StoredJob:
    conditions = workload.status.conditions
    ready = objects.condition(conditions, PODS_READY)
    state, reason, message = last_word(conditions) or _waiting_state(workload)
    hangs = state == "Placed" and ready is not None and ready.status == "False"
    kind, _, name = title(workload).partition(" ")
    return StoredJob(
        kind,
        f"{workload.metadata.namespace}/{name}",
        workload.metadata.name,
        workload.spec.queue_name,
        state,
        reason,
        message,
        f"{ready.reason}: {ready.message}" if hangs and ready is not None else "",
        pods,
    )


def _waiting_state(workload: WorkloadObject) -> tuple[str, str, str]:
    if not workload.spec.active:
        return "OnHold", "", RELEASE
    found = objects.condition(workload.status.conditions, QUOTA_RESERVED)
    if found is None:
        return "Waiting", "Pending", "the controller has not looked at it yet"
    return "Waiting", found.reason, found.message


def _pods_of(workload: WorkloadObject, pods: Sequence[objects.Pod]) -> tuple[StoredPod, ...]:
    name = workload.metadata.name
    each = (
        StoredPod(one.metadata.name, one.status.phase, one.spec.node_name, bool(one.spec.scheduling_gates))
        for one in pods
        # A tenant may write this annotation on pods of their own namespace, which is all that is listed here.
        if any(key.endswith(WORKLOAD_KEY) and of == name for key, of in (one.metadata.annotations or {}).items())
    )
    return tuple(sorted(each, key=lambda pod: pod.name))


def _queue(one: LocalQueue) -> StoredQueue:
    status: dict[str, Any] = one.status or {}
    used: dict[str, list[str]] = {}
    for flavor in status.get("flavorsReservation") or ():
        for resource in flavor.get("resources") or ():
            if str(resource.get("total", "0")) != "0":
                used.setdefault(resource["name"], []).append(f"{resource['total']} {resource['name']}")
    active: dict[str, Any] = next((each for each in status.get("conditions") or () if each.get("type") == "Active"), {})
    inactive = f"{active.get('reason')}: {active.get('message')}" if active.get("status") == "False" else ""
    return StoredQueue(
        one.metadata.name,
        one.spec.cluster_queue,
        int(status.get("pendingWorkloads") or 0),
        int(status.get("admittedWorkloads") or 0),
        tuple(text for _, texts in sorted(used.items()) for text in texts),
        inactive,
    )


def render_jobs(jobs: Sequence[StoredJob]) -> RenderableType:
    """The jobs as a person reads them."""
    parts: list[RenderableType] = []
    for job in jobs:
        queue = f"  queue {job.queue}" if job.queue else ""
        message = f"{job.reason}: {job.message}" if job.state == "Waiting" else job.message
        state = (job.state, "green" if job.state == "Placed" else "bold yellow")
        parts.append(Text.assemble((f"{job.kind} {job.job}", "bold"), f"{queue}\n", state, f"  {message}"))
        if job.hanging:
            parts.append(Text.assemble(("Not all of it runs", "bold yellow"), f"  {job.hanging}"))
        if job.pods:
            table = plain_table("~POD", "~PHASE", "~NODE")
            for pod in job.pods:
                table.add_row(pod.name, "Gated" if pod.gated else pod.phase, pod.node or "-")
            parts.append(table)
        parts.append(Text(""))
    return Group(*parts, Text(PART))


def render_queues(found: StoredQueues) -> RenderableType:
    """The queues and jobs as a person reads them."""
    if not found.queues:
        return Text("there is no LocalQueue in this namespace")
    table = plain_table("~LOCAL QUEUE", "~CLUSTER QUEUE", ">WAITING", ">ADMITTED", "~USED", "~NOT ACTIVE")
    for one in found.queues:
        row = (one.name, one.cluster_queue, str(one.pending), str(one.admitted), ", ".join(one.used) or "-")
        table.add_row(*row, one.inactive or "-")
    jobs = plain_table("~JOB", "~QUEUE", "~STATE", "~REASON", "~MESSAGE")
    for job in found.jobs:
        jobs.add_row(f"{job.kind} {job.job}", job.queue, job.state, job.reason, job.message)
    return Group(table, *((Text(""), jobs) if found.jobs else ()), Text(""), Text(PART))

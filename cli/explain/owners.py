"""The owner that ``topogate explain`` is asked about, in the controller's own cache."""

import re
from collections.abc import Mapping
from types import MappingProxyType

from cli.cluster.owner_names import MAKES
from cli.output import Failure, some
from kube.client import Client
from kube.errors import Forbidden, NotFound
from kube.resources import (
    DAEMON_SETS,
    DEPLOYMENTS,
    JOB_SETS,
    JOBS,
    LEADER_WORKER_SETS,
    PODS,
    REPLICA_SETS,
    STATEFUL_SETS,
    Resource,
)
from ungater.cache.cache import Cache
from ungater.model.job_view import JobView
from ungater.model.workload_entry import WorkloadEntry

NAMED = 3  # owners in a sentence
_KNOWN: Mapping[str, Resource] = MappingProxyType(
    {
        one.kind.lower(): one
        for one in (JOBS, JOB_SETS, LEADER_WORKER_SETS, STATEFUL_SETS, DEPLOYMENTS, REPLICA_SETS, DAEMON_SETS, PODS)
    }
)


def find(cache: Cache, namespace: str, kind: str, name: str) -> list[WorkloadEntry]:
    """The records of an owner's workloads, by their part: a LeaderWorkerSet has one for each group.

    None where nothing is known of it. Raises Failure where several owners have that name.
    """
    there = [entry for entry in cache.entries.values() if entry.job.namespace == namespace]
    alike = [entry for entry in there if _is(entry, kind, name)]
    # A group's own name (serve-0) means that group alone; the set's name means all of them.
    found = [entry for entry in alike if entry.job.full_name == name] or alike
    # Kinds have names of their own: Job train and JobSet train may both be there.
    if kind == "" and len({(one.job.kind, one.job.name) for one in found}) > 1:
        names = ", ".join(sorted(f"{one.job.kind.lower()}/{one.job.full_name}" for one in found))
        raise Failure(f"{name}: which of them: {names}?")
    return sorted(found, key=lambda one: _in_order(one.job))


async def not_found(client: Client, cache: Cache, namespace: str, kind: str, name: str) -> Failure:
    """Why nothing can be said of an owner: it is not there, or none of its pods is ours to place."""
    resource = _KNOWN.get(kind)
    # Before the API server is asked: the cache knows the owners of all namespaces already.
    if others := owners_elsewhere(cache, namespace, kind, name):
        what = resource.kind if resource is not None else kind or "Job"
        return Failure(f"no {what} {name} in namespace {namespace}, but there is {others}")
    if resource is not None:
        try:
            await client.get(resource, name, namespace)
        except NotFound:
            hint = f"`kubectl get {resource.plural} -n {namespace}` lists them"
            return Failure(f"no {resource.kind} {name} in namespace {namespace}; {hint}")
        except Forbidden:
            pass  # whoever may not look is told what is known of workloads
        else:
            text = "asks for no topology and names no queue, has no pods yet, or is another controller's"
            return Failure(f"{resource.kind} {name} in namespace {namespace} {text}: Topogate places nothing of it")
    kinds = sorted({one.job.kind for one in cache.entries.values() if one.job.namespace == namespace})
    what = kind or "Job or other owner of pods"
    has = f"those that have are of kind {', '.join(kinds)}" if kinds else "nothing there has"
    hint = f"{has}; `kubectl get workloads.topogate.dev -n {namespace}` lists what it knows"
    return Failure(f"no {what} {name} in namespace {namespace} has pods that Topogate places: {hint}")


def owners_elsewhere(cache: Cache, namespace: str, kind: str, name: str) -> str:
    """The owners of that name in other namespaces: ``Job train in team-a (-n team-a)``; "" where there is none."""
    alike = [
        entry.job for entry in cache.entries.values() if entry.job.namespace != namespace and _is(entry, kind, name)
    ]
    found = sorted({(owner.namespace, f"{owner.kind} {owner.name} in {owner.namespace}") for owner in alike})
    named_so = [f"{text} (-n {where})" for where, text in found]
    return some(named_so, NAMED, " and ")


def _is(entry: WorkloadEntry, kind: str, name: str) -> bool:
    owner = entry.job
    if kind == "workload":
        return owner.workload == name
    if kind == "pod":
        return any(pod.metadata.name == name for pod in entry.pods.values())
    if kind in MAKES:
        made, more = MAKES[kind]
        return owner.kind == made and re.fullmatch(re.escape(name) + more, owner.name) is not None
    return (not kind and owner.workload == name) or (
        kind in {"", owner.kind.lower()} and name in {owner.name, owner.full_name}
    )


def _in_order(owner: JobView) -> tuple[str, int, str]:
    # By number: group 10 comes after group 9.
    return owner.name, int(owner.part) if owner.part.isascii() and owner.part.isdigit() else -1, owner.part

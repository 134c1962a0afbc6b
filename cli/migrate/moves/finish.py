"""``--finish``: what is Kueue's is deleted, once everything of it is served here. There is no way back from it.

Rules
- Nothing is deleted before all is here: each namespace with a LocalQueue of Kueue is served, each object that is taken
  over has its counterpart, what runs is taken over, and no pod waits behind a gate that only Kueue takes away.
- Only what is Kueue's is deleted: objects and CustomResourceDefinitions of its group, webhook configurations that are
  about its group and lead to its namespace, its APIServices, and its Deployment. What else an installation has, its
  namespace, roles and Helm release, is named for its owner to delete.
- The webhook configurations go first: they refuse every Job where nobody answers. Kueue itself goes last: it converts
  its objects between versions, so without it some could not be read any more. Its finalizers are taken off, since it
  does that only for what is not in use.
- All that is to be deleted is shown, and asked for.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple

from cli.install.steps import read
from cli.install.waiting import wait_gone
from cli.migrate.apply_objects import FIELD_MANAGER
from cli.migrate.convert_queues import CLUSTER_QUEUE
from cli.migrate.migration import migrate_objects
from cli.migrate.moves import adoption, quiet
from cli.migrate.moves.backup import read_maps
from cli.migrate.moves.handover import release_pods
from cli.migrate.moves.kueue_spec import stop_policy
from cli.migrate.moves.phase_walk import MoveOptions, Tell, say_stopped
from cli.migrate.moves.preflight import find_missing_here, find_unset
from cli.migrate.moves.rights import needed_to_finish, require_rights
from cli.migrate.moves.sight import LOCAL_QUEUE, MoveSight, list_or_none, look_around, look_at_jobs, look_at_ours
from cli.migrate.rows import Json
from cli.migrate.source_objects import DEPLOYMENT, list_resources
from cli.output import Failure, some
from crds.constants import DEFAULT_DOMAIN, KUEUE_POD_SET, SERVED
from kube.client import Client
from kube.errors import Conflict, NotFound
from kube.objects import Pod, is_true
from kube.resources import (
    API_SERVICES,
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    DEPLOYMENTS,
    MUTATING_WEBHOOKS,
    PODS,
    VALIDATING_WEBHOOKS,
    Resource,
    resource_of,
)
from kube.workloads import WorkloadObject
from ungater.model.kueue_objects import FINISHED, GROUP, KueueWorkload
from ungater.model.pod_slots import finished

# Objects before what they refer to; kinds that are not here come after, and these CRDs last: while there is a
# ClusterQueue, a run that ended is begun again with all of its questions.
_ORDER: Final = ("Workload", LOCAL_QUEUE, CLUSTER_QUEUE)
_VISIBILITY: Final = f"visibility.{GROUP}"


class RemovedObject(NamedTuple):
    """One object that is deleted."""

    resource: Resource
    name: str
    namespace: str = ""


class KueueRemoval:
    """See the module. ``tell`` is called with each thing as a sentence, ``confirm`` with the question."""

    def __init__(self, client: Client, options: MoveOptions, tell: Tell, confirm: Callable[[str], bool]) -> None:
        self._client = client
        self._options = options
        self._tell = tell
        self._confirm = confirm
        self._notes: list[str] = []

    async def finish(self, *, keep: bool = False) -> None:
        """Delete what is Kueue's; with ``keep`` say only what that is. Raises Failure where something is not here."""
        kinds = {one.kind: one for one in await list_resources(self._client)}
        if CLUSTER_QUEUE in kinds:
            await self.require_moved(kinds)
        for text in self._notes:
            self._tell(f"note: {text}")
        removed = [one async for one in self.list_removed(kinds)]
        if not removed:
            self._tell("nothing of Kueue is left")
        else:
            for line in describe_removed(removed):
                self._tell(line)
        if removed and not keep:
            needed = needed_to_finish(kinds, self._options)
            await require_rights(self._client, needed, (), nothing="nothing was deleted")
            if not self._confirm(f"Delete {len(removed)} objects of Kueue? There is no way back from it."):
                raise Failure("nothing was deleted")
            # A question may stay open for hours, and what Kueue has begun meanwhile would end with its Workload.
            if CLUSTER_QUEUE in kinds:
                await self.require_moved(kinds)
            await self.remove_all(removed)
        # Of all namespaces: a pod may have outlived the LocalQueues of its own, and nobody else would free it. Also
        # where nothing is left: a run that ended between the last deletion and this one left them so.
        if not keep and (taken := await release_pods(self._client, partial(self._client.list, PODS))):
            self._tell(f"Kueue's finalizer was taken off {taken} pods")
        self._tell_rest(keep=keep)

    async def require_moved(self, kinds: Mapping[str, Resource]) -> None:
        """Raises Failure with all that keeps Kueue, which ``kinds`` are served of it."""
        client, options = self._client, self._options
        sight = await look_around(client, options.kueue_namespace, options.namespace)
        problems = [text async for text in find_missing_here(client, options.namespace)]
        workloads = await client.list(kinds["Workload"], type=KueueWorkload) if "Workload" in kinds else []
        problems += find_unmoved(sight, workloads)
        problems += [text async for text in self.find_uncovered(sight)]
        namespaces = list_concerned(sight, workloads)
        seen = await look_at_jobs(client, sight, namespaces)
        ours = await look_at_ours(client, sight, namespaces)
        problems += find_untaken(quiet.running_jobs(seen.workloads, seen.jobs), ours)
        problems += find_stuck(await client.list(PODS, type=Pod), sight.labels)
        if problems:
            raise say_stopped("nothing was deleted", problems)
        left = sum(
            KUEUE_POD_SET in (pod.metadata.labels or {}) and not finished(pod) and is_unmarked(pod) for pod in seen.pods
        )
        # Pods of owners that cannot be suspended are not taken over, and may run for years.
        if left:
            self._notes.append(f"{left} pods that Kueue started run outside of quota until they end")
        if text := await find_unset(client, sight, options.namespace):
            self._notes.append(text)

    async def find_uncovered(self, sight: MoveSight) -> AsyncIterator[str]:
        """What would be lost: objects that are refused or have no counterpart here."""
        report = migrate_objects(sight.read, self._options.without_checks)
        kinds = ("WorkloadPriorityClass", "ResourceFlavor", "Cohort", CLUSTER_QUEUE, LOCAL_QUEUE)
        for row in report.list_refused():
            if row.kind in kinds:
                yield f"{row.title} is refused, and has no counterpart here: {row.why}"
        for wanted in report.objects:
            resource, meta = resource_of(wanted), wanted["metadata"]
            namespace = meta.get("namespace", "") if resource.namespaced else ""
            stored = await read(self._client, resource, meta["name"], namespace)
            title = f"{wanted['kind']} {namespace}{'/' * bool(namespace)}{meta['name']}"
            if stored is None:
                yield f"{title} has no counterpart here: `topogate migrate kueue --apply` and `--move` make it"
            elif wanted["kind"] == CLUSTER_QUEUE and is_under_way(wanted["spec"], stored["spec"]):
                yield f"the move of {title} is not through: run `topogate migrate kueue --move {meta['name']}`"

    async def list_removed(self, kinds: Mapping[str, Resource]) -> AsyncIterator[RemovedObject]:
        """All of it, in the order in which it is deleted."""
        client, home = self._client, self._options.kueue_namespace
        for resource in (VALIDATING_WEBHOOKS, MUTATING_WEBHOOKS):
            for one in await client.list(resource):
                if is_webhook_of_kueue(one, home):
                    yield RemovedObject(resource, one["metadata"]["name"])
        # One that leads nowhere fails discovery, and without that no namespace of the cluster can be deleted.
        for one in await list_or_none(client, API_SERVICES):
            spec = one.get("spec") or {}
            if spec.get("group") == _VISIBILITY and (spec.get("service") or {}).get("namespace") == home:
                yield RemovedObject(API_SERVICES, one["metadata"]["name"])
        for kind in sort_kinds(kinds, last=False):
            for one in await list_or_none(client, kinds[kind]):
                meta = one["metadata"]
                yield RemovedObject(kinds[kind], meta["name"], meta.get("namespace", ""))
        found = await client.list(CUSTOM_RESOURCE_DEFINITIONS)
        crds = {one["spec"]["names"]["kind"]: one for one in found if one["spec"]["group"] == GROUP}
        for kind in sort_kinds(crds, last=True):
            yield RemovedObject(CUSTOM_RESOURCE_DEFINITIONS, crds[kind]["metadata"]["name"])
        if await read(client, DEPLOYMENTS, DEPLOYMENT, home) is not None:
            yield RemovedObject(DEPLOYMENTS, DEPLOYMENT, home)
        # The first one last: without it nobody looks for the others.
        for one in reversed(await read_maps(client, self._options.namespace)):
            yield RemovedObject(CONFIG_MAPS, one["metadata"]["name"], self._options.namespace)

    async def remove_all(self, removed: Collection[RemovedObject]) -> None:
        """Delete in order."""
        for one in removed:
            if one.resource.group == GROUP:
                await self.free_object(one)
            await delete_object(self._client, one)
            # With Kueue gone, an object that is still there could not be converted, and its kind would never go.
            if one.resource is CUSTOM_RESOURCE_DEFINITIONS:
                await wait_gone(self._client, [(one.resource, one.name, "")])
            # Thousands, which say nothing to whoever reads along.
            if one.resource.kind != "Workload":
                self._tell(f"{one.resource.kind.lower()}/{one.name} deleted")

    async def free_object(self, one: RemovedObject) -> None:
        """Take Kueue's finalizers off an object; those of others are for others to take off."""
        while True:
            found = await read(self._client, one.resource, one.name, one.namespace)
            meta = (found or {}).get("metadata") or {}
            rest = [name for name in meta.get("finalizers") or () if not name.startswith(f"{DEFAULT_DOMAIN}/")]
            if len(rest) == len(meta.get("finalizers") or ()):
                return
            body = {"metadata": {"resourceVersion": meta["resourceVersion"], "finalizers": rest}}
            try:
                await self._client.patch(
                    one.resource, one.name, one.namespace or None, body=body, field_manager=FIELD_MANAGER
                )
            except Conflict:
                continue  # its status is written often
            except NotFound:
                return

    def _tell_rest(self, *, keep: bool) -> None:
        home = self._options.kueue_namespace
        if keep:
            self._tell("nothing was deleted")
            return
        self._tell(
            f"left for you: namespace {home} with what else an installation of Kueue has (`helm uninstall`, or "
            f"`kubectl delete namespace {home}`, and the ClusterRoles and bindings that are named kueue-...)"
        )
        self._tell(
            "next: `topogate install --no-beside-kueue` has Topogate serve all namespaces; then the labels mean "
            f"nothing: `kubectl label namespaces --all {SERVED}-`"
        )


async def delete_object(client: Client, one: RemovedObject) -> None:
    """Delete it, and what belongs to it; one that is gone is no error."""
    try:
        await client.delete(one.resource, one.name, one.namespace or None, propagation="Background")
    except NotFound:
        return


def is_under_way(wanted: Json, stored: Json) -> bool:
    """Whether our queue is on hold, or outside of its cohort, as during a move."""
    return stop_policy(wanted) != stop_policy(stored) or wanted.get("cohortName") != stored.get("cohortName")


def find_unmoved(sight: MoveSight, workloads: Iterable[KueueWorkload]) -> Iterator[str]:
    """Namespaces with queues or workloads of Kueue that Topogate does not serve."""
    for name in sight.unserved_of(sorted({one.namespace for one in sight.view.local_queues})):
        queues = sorted({one.cluster_queue for one in sight.view.local_queues if one.namespace == name})
        yield f"namespace {name} is Kueue's: `topogate migrate kueue --move {' '.join(queues)}`"
    # Kueue ends the pods of a job whose Workload is deleted in a namespace of its own.
    alive = [one for one in workloads if not is_true(one.status.conditions, FINISHED)]
    for name in sight.unserved_of(sorted({one.metadata.namespace for one in alive})):
        titles = [f"Workload {one.metadata.name}" for one in alive if one.metadata.namespace == name]
        yield f"namespace {name} is Kueue's, and has {some(titles, 2)}: wait until the jobs have ended, or delete them"


def list_concerned(sight: MoveSight, workloads: Iterable[KueueWorkload]) -> list[str]:
    """Namespaces of which Kueue has queues, or workloads that have not ended."""
    # A LocalQueue may be deleted while its jobs run; nobody can take them over once their Workloads are gone.
    alive = {one.metadata.namespace for one in workloads if not is_true(one.status.conditions, FINISHED)}
    return sorted((alive | {one.namespace for one in sight.view.local_queues}) & sight.labels.keys())


def find_untaken(running: Mapping[str, str], ours: Mapping[str, WorkloadObject]) -> Iterator[str]:
    """What Kueue started and is not taken over; ``running``: titles by uid of jobs that run by Kueue's admission."""
    # By Kueue's admissions, and by what our Workloads say: either may lack what the other has.
    view = adoption.judge_adoption(running, ours)
    refused = {**dict.fromkeys(view.unanswered, "no controller has looked at it"), **view.refused}
    refused |= dict(adoption.list_left_running(ours))
    for title, why in sorted(refused.items()):
        yield f"{title} runs by Kueue's admission, and was not taken over: {why}; wait until it has ended, or mend that"


def find_stuck(pods: Iterable[Pod], labels: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Pods behind a gate that only Kueue takes away."""
    for pod in pods:
        if finished(pod) or pod.metadata.deletion_timestamp is not None:
            continue
        meta, served = pod.metadata, labels.get(pod.metadata.namespace, {}).get(SERVED) == "true"
        for gate in pod.spec.scheduling_gates or ():
            # In a served namespace the gate of places is Topogate's.
            if gate.name.startswith(f"{DEFAULT_DOMAIN}/") and not (served and gate.name == quiet.OUR_GATE):
                yield f"pod {meta.namespace}/{meta.name} waits behind Kueue's gate {gate.name}: wait, or delete it"


def is_unmarked(pod: Pod) -> bool:
    """Whether nobody here has let a pod go or taken it over."""
    return quiet.OUR_MARK not in (pod.metadata.annotations or {})


def is_webhook_of_kueue(configuration: Json, kueue_namespace: str) -> bool:
    """Whether a webhook configuration is about Kueue's group, and all of it leads to Kueue's namespace."""
    webhooks = configuration.get("webhooks") or []
    homes = {((one.get("clientConfig") or {}).get("service") or {}).get("namespace") for one in webhooks}
    groups = {group for one in webhooks for rule in one.get("rules") or () for group in rule.get("apiGroups") or ()}
    return homes == {kueue_namespace} and GROUP in groups


def sort_kinds(kinds: Iterable[str], *, last: bool) -> list[str]:
    """Kinds in the order in which their objects are deleted; ``last``: those of `_ORDER` at the end."""
    rest = sorted(set(kinds) - {*_ORDER})
    first = [kind for kind in _ORDER if kind in set(kinds)]
    return [*rest, *first] if last else [*first, *rest]


def describe_removed(removed: Collection[RemovedObject]) -> Iterator[str]:
    """What is deleted, a line for each kind, with the names where they are few."""
    counts = Counter(one.resource.kind for one in removed)
    for kind, count in counts.items():
        names = [
            f"{one.namespace}/{one.name}" if one.namespace else one.name for one in removed if one.resource.kind == kind
        ]
        yield f"to be deleted: {count} {kind}: {some(names, 6)}"

"""``--back``: ClusterQueues that moved, and their namespaces, to Kueue again; no pod that runs ends.

Rules
- `phases` says what is next, from what is there, as for the way here. Only queues with a backup go back.
- A job that runs is left alone by Kueue where it has an admitted Workload there, so those come before the label goes:
  one that was taken over has it still; for one that was started here it is made (`kueue_workloads`).
- A Workload of Kueue that holds quota for a job that is suspended by now would start it at once, past the queue, with
  places of long ago. It is deleted, and Kueue makes another, which waits.
- Kueue looks at a job when it changes, and not when the label of its namespace does. So each is changed: jobs that wait
  lose what our webhook stamped on them, and all get an annotation for a moment; those too that ended here, which hold
  their quota in Kueue until it looks at them.
"""

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from enum import StrEnum
from typing import Any, Final

from msgspec.structs import replace

from cli.install.steps import read
from cli.migrate.apply_objects import FIELD_MANAGER
from cli.migrate.convert_queues import CLUSTER_QUEUE
from cli.migrate.moves import kueue_spec, quiet
from cli.migrate.moves.backup import NAME, write_backups
from cli.migrate.moves.kueue_workloads import (
    IN_USE,
    holds_quota,
    is_our_gate,
    make_status,
    make_workload,
    places_of,
    says_the_same,
)
from cli.migrate.moves.meanwhile import find_homeless, require_unchanged
from cli.migrate.moves.phase_walk import MoveOptions, PhaseWalk, Tell, name_queues, say_stopped
from cli.migrate.moves.phases import MOST_TURNS, BackFacts, BackPhase, next_back_phase
from cli.migrate.moves.preflight import find_missing_there
from cli.migrate.moves.rights import needed_to_take_back, require_rights
from cli.migrate.moves.sight import MoveSight, list_in, list_or_none, look_at_jobs, look_at_ours
from cli.migrate.moves.steps import MoveStep, choose_step, flavors_of, root_of, tree_of
from cli.migrate.rows import Json
from cli.migrate.source_objects import DEPLOYMENT
from cli.output import Failure
from clock import SYSTEM, Clock
from crds.constants import MIGRATED_FROM, SERVED, Keys
from kube.client import Client
from kube.errors import Conflict, Invalid, KubeError, NotFound
from kube.objects import controller_of, is_true
from kube.resources import (
    CLUSTER_QUEUES,
    COHORTS,
    DEPLOYMENTS,
    JOB_SETS,
    JOBS,
    LOCAL_QUEUES,
    NAMESPACES,
    WORKLOADS,
    Resource,
)
from ungater.model.kueue_objects import FINISHED, KueueWorkload

PARTED_SECONDS: Final = 15.0  # `ungater.process.SHORTEST_PAUSE`, and for both to hear of it
WATCHED_SECONDS: Final = 10.0  # for which what runs is watched once Kueue looks at it again
_KEYS: Final = Keys()


class TakeBack(PhaseWalk[BackFacts]):
    """See the module."""

    def __init__(self, client: Client, options: MoveOptions, tell: Tell, clock: Clock = SYSTEM) -> None:
        super().__init__(client, options, tell, clock)
        self._unlabelled = set[str]()

    async def take_back(self, wanted: Collection[str]) -> None:
        """Hand the steps of these queues back; all that moved where none is named. Raises Failure with what to do."""
        sight = await self._look()
        step = self.choose_moved(sight, wanted)
        needed = needed_to_take_back(sight.kinds, self._options)
        await require_rights(self._client, needed, step.namespaces, nothing="nothing was moved back")
        problems = [text async for text in find_missing_there(self._client, sight, self._options.kueue_namespace)]
        # Kueue takes a namespace whole, with the queues that were made here after it moved.
        served = self._served_of(sight, step)
        problems += find_homeless(await self._list_in(sight, LOCAL_QUEUES, served), sight.view, step)
        if problems:
            raise say_stopped("nothing was moved back", problems)
        if not await is_available(self._client, self._options.kueue_namespace):
            raise Failure(
                "nothing was moved back: Kueue does not run, so nobody would serve its queues: start it first"
            )
        await self.walk_phases(sight, step, BackFacts())
        self._tell(f"{name_queues(step.queues)} {'are' if len(step.queues) > 1 else 'is'} served by Kueue again")

    def choose_moved(self, sight: MoveSight, wanted: Collection[str]) -> MoveStep:
        """The step of these queues. Raises Failure where none has moved, or one that shares a namespace has not."""
        moved = sight.view.moved
        if not moved:
            raise Failure(
                f"nothing was moved back: ConfigMap {sight.backups.namespace}/{NAME} has no queue, so none has moved"
            )
        step = choose_step(sight.view, wanted or moved)
        if left := [name for name in step.queues if name not in moved]:
            raise Failure(
                f"nothing was moved back: {name_queues(left)} shares namespaces with what is to go back, and has not "
                f"moved: `topogate migrate kueue --move {' '.join(step.queues)}` brings them together first"
            )
        return step

    def _served_of(self, sight: MoveSight, step: MoveStep) -> list[str]:
        # Any value: Kueue leaves a namespace out for the key alone.
        return [name for name in step.namespaces if name in sight.labels and SERVED in sight.labels[name]]

    def _choose_phase(self, sight: MoveSight, step: MoveStep, done: BackFacts) -> BackPhase:
        return next_back_phase(self._facts(sight, step, done))

    def _facts(self, sight: MoveSight, step: MoveStep, done: BackFacts) -> BackFacts:
        served = self._served_of(sight, step)
        ours = {name: sight.ours[name].get("spec") or {} for name in step.queues if name in sight.ours}
        live = {name: sight.live[name].get("spec") or {} for name in step.queues}
        # A queue without a backup is back already, and as it is: the backup goes last.
        before = {name: sight.view.specs[name] for name in step.queues if name in sight.view.moved}
        return replace(
            done,
            unheld=[name for name, spec in ours.items() if not kueue_spec.is_held(spec)],
            served=served,
            joined=[name for name, spec in ours.items() if not kueue_spec.is_alone(spec)],
            apart=[name for name, spec in before.items() if not kueue_spec.is_in_place(live[name], spec)],
            unreleased=[
                name
                for name, spec in before.items()
                if kueue_spec.stop_policy(live[name]) != kueue_spec.stop_policy(spec)
            ],
            kept=[*before],
        )

    async def _go_through(self, phase: StrEnum, sight: MoveSight, step: MoveStep, done: BackFacts) -> BackFacts:
        served = self._facts(sight, step, done).served
        match phase:
            case BackPhase.HOLD:
                await self._patch_ours(sight, step, lambda _: kueue_spec.patch_to_hold())
                self._tell(f"Topogate admits nothing more in {name_queues(step.queues)}")
            case BackPhase.SETTLE:
                await self.wait_quiet(sight, step, served)
                return replace(done, settled=True)
            case BackPhase.HAND_BACK:
                await self.hand_back_jobs(sight, served)
                return replace(done, handed=True)
            case BackPhase.LEAVE:
                await self.leave_cohorts(sight, step)
            case BackPhase.RETURN:
                await self._patch_theirs(sight, step, kueue_spec.patch_to_return)
            case BackPhase.UNSERVE:
                await self.unserve_namespaces(served)
            case BackPhase.WAKE:
                await self.wake_jobs(sight, step)
                return replace(done, woken=True)
            case BackPhase.RELEASE:
                await self._patch_theirs(sight, step, kueue_spec.patch_to_release)
                self._tell(f"Kueue admits again in {name_queues(step.queues)}")
            case BackPhase.REMOVE:
                await self.remove_ours(sight, step)
                return replace(done, removed=True)
            case BackPhase.FORGET:
                await write_backups(self._client, sight.backups, dict.fromkeys(step.queues))
        return done

    async def _list_in(self, sight: MoveSight, resource: Resource, namespaces: Collection[str]) -> list[Json]:
        return await list_in(self._client, sight, resource, namespaces, dict[str, Any])

    # --- queues ------------------------------------------------------------------------------------------------------

    async def _patch_ours(self, sight: MoveSight, step: MoveStep, patch: Callable[[Json], Json]) -> None:
        for name in step.queues:
            if name in sight.ours:
                body = patch(sight.ours[name].get("spec") or {})
                await self._client.patch(CLUSTER_QUEUES, name, body=body, field_manager=FIELD_MANAGER)

    async def _patch_theirs(self, sight: MoveSight, step: MoveStep, patch: Callable[[Json], Json]) -> None:
        for name in step.queues:
            if name in sight.view.moved:
                body = patch(sight.view.specs[name])
                await self._client.patch(sight.kinds[CLUSTER_QUEUE], name, body=body, field_manager=FIELD_MANAGER)

    async def leave_cohorts(self, sight: MoveSight, step: MoveStep) -> None:
        """Take our queues out of their trees, with the quota of the Cohorts, before Kueue lends that again."""
        roots = {tree_of(name, sight.view) for name in step.queues} - {""}
        for one in await list_or_none(self._client, COHORTS):
            name, spec = one["metadata"]["name"], one.get("spec") or {}
            if root_of(name, sight.view.parents) in roots and "resourceGroups" in spec and is_migrated(one):
                body = {"spec": {"resourceGroups": None}}
                await self._client.patch(COHORTS, name, body=body, field_manager=FIELD_MANAGER)
        await self._patch_ours(sight, step, kueue_spec.patch_to_leave)

    # --- what runs and what waits ------------------------------------------------------------------------------------

    async def wait_quiet(self, sight: MoveSight, step: MoveStep, served: Collection[str]) -> None:
        """Wait until Topogate has nothing under way. Raises Failure with what is; our queues go on then."""

        async def find_under_way() -> list[str]:
            seen = await look_at_jobs(self._client, sight, served)
            ours = await look_at_ours(self._client, sight, served)
            return [*quiet.find_unquiet_here(ours.values(), seen.jobs, seen.pods)]

        if not (under_way := await self.wait_still(find_under_way)):
            return
        # Jobs that wait would wait for ever: nobody would take the hold away.
        # One that is outside of its cohort by now stays on hold: it would admit by another quota.
        for name in step.queues:
            before = sight.view.specs[name]
            if name in sight.ours and kueue_spec.is_alone(sight.ours[name]["spec"]) == kueue_spec.is_alone(before):
                body = kueue_spec.patch_to_release(before)
                await self._client.patch(CLUSTER_QUEUES, name, body=body, field_manager=FIELD_MANAGER)
        what = f"nothing was moved back: after {self._options.patience:g} s Topogate still has something under way"
        raise say_stopped(f"{what}; its queues go on", under_way)

    async def hand_back_jobs(self, sight: MoveSight, served: Collection[str]) -> None:
        """Have Kueue's Workloads say what runs, and none that a job is to start which waits."""
        seen = await look_at_jobs(self._client, sight, served)
        mine, placed, count = await self._list_in(sight, WORKLOADS, served), placed_queues(sight), 0
        ours = {owner["uid"]: one for one in mine for owner in owners_of(one) if owner.get("controller")}
        for uid, job in seen.jobs.items():
            queue = (job["metadata"].get("labels") or {}).get(_KEYS.queue_name)
            if queue is None or quiet.has_ended(job):
                continue
            theirs = [one for one in seen.workloads if owner_uid(one) == uid]
            wanted = None
            try:
                if (its := ours.get(uid)) is not None and is_admitted_here(its) and not quiet.is_suspended(job):
                    is_placed = (job["metadata"]["namespace"], queue) in placed
                    wanted = {
                        **make_workload(its, job, placed=is_placed),
                        "status": make_status(its, job, checks_of(sight, its)),
                    }
                count += await self.hand_back_job(sight.kinds["Workload"], job, wanted, theirs)
            except (KubeError, KeyError, TypeError, ValueError) as error:
                raise Failure(
                    f"{quiet.title_of(job)} could not be handed back: {error}; its queue stays on hold, and it runs "
                    "on: run the command again, or have Topogate go on with --move"
                ) from error
        self._tell(f"Kueue has a Workload of each of {count} running jobs")

    async def hand_back_job(self, kind: Resource, job: Json, wanted: Json | None, theirs: list[KueueWorkload]) -> bool:
        """Whether a job is to run by Kueue's admission; ``wanted``: its Workload of Kueue, None where nothing is."""
        if quiet.is_suspended(job):
            for one in theirs:
                if holds_quota(one):
                    await self._delete_theirs(kind, one)
        # What was not taken over has a Workload of ours that is not admitted, and runs by Kueue's admission still.
        if wanted is None:
            return False
        status, matching = wanted["status"], None
        for one in theirs:
            if matching is None and quiet.is_admitted(one) and says_the_same(one, status):
                matching = one
            elif not is_true(one.status.conditions, FINISHED):
                await self._delete_theirs(kind, one)
        if matching is None:
            # The status goes right after: until then Kueue takes the pods for those of a workload without places.
            meta = wanted["metadata"]
            await self._client.create(kind, wanted, meta["namespace"], field_manager=FIELD_MANAGER)
        else:
            meta = {"name": matching.metadata.name, "namespace": matching.metadata.namespace}
            stored = await self._client.get(kind, meta["name"], meta["namespace"])
            if places_of(stored.get("status")) == places_of(status):
                return True
            # Only the places may change in an admission that is there.
            status = {"admission": status["admission"]}
        await self._client.patch(
            kind,
            meta["name"],
            meta["namespace"],
            body={"status": status},
            subresource="status",
            field_manager=FIELD_MANAGER,
        )
        return True

    async def _delete_theirs(self, kind: Resource, one: KueueWorkload) -> None:
        """Delete a Workload of Kueue, whose finalizer Kueue does not take off in a namespace that it leaves out."""
        meta = one.metadata
        rest = [name for name in meta.finalizers or () if name != IN_USE]
        with suppress(NotFound):
            body = {"metadata": {"uid": meta.uid, "finalizers": rest}}
            await self._client.patch(kind, meta.name, meta.namespace, body=body, field_manager=FIELD_MANAGER)
            await self._client.delete(kind, meta.name, meta.namespace, propagation="Background")

    async def unserve_namespaces(self, served: Collection[str]) -> None:
        """Take the label off, and wait until both have noticed. Raises Failure where somebody has put it on again."""
        require_unchanged(served, self._unlabelled, label=f"freed of the label {SERVED}")
        for name in served:
            with suppress(NotFound):
                body = {"metadata": {"labels": {SERVED: None}}}
                await self._client.patch(NAMESPACES, name, body=body, field_manager=FIELD_MANAGER)
                self._unlabelled.add(name)
                self._tell(f"namespace {name} is not labelled {SERVED} any more")
        # A label ends the controller's term after its pause, and Kueue's cache of namespaces may be late.
        await asyncio.sleep(PARTED_SECONDS)

    async def wake_jobs(self, sight: MoveSight, step: MoveStep) -> None:
        """Have Kueue look at each job, and watch what runs. Raises Failure where Kueue suspended something."""
        seen = await look_at_jobs(self._client, sight, step.namespaces)
        placed = placed_queues(sight)
        unfinished = {owner_uid(one) for one in seen.workloads if not is_true(one.status.conditions, FINISHED)}
        running = {}
        for uid, job in seen.jobs.items():
            meta = job["metadata"]
            queue = (meta.get("labels") or {}).get(_KEYS.queue_name)
            # One that ended here holds its quota in Kueue until Kueue has looked at it.
            if queue is None or (quiet.has_ended(job) and uid not in unfinished and not quiet.is_woken(job)):
                continue
            if quiet.has_ended(job):
                await self.wake_job(job, placed=True)
                continue
            if not quiet.is_suspended(job):
                running[uid] = quiet.title_of(job)
            await self.wake_job(job, placed=(meta["namespace"], queue) in placed)
        for one in seen.workloads:
            # Its job is gone, and nobody took its finalizer off while Kueue left its namespace out.
            if one.metadata.deletion_timestamp is not None and owner_uid(one) not in seen.jobs:
                await self._delete_theirs(sight.kinds["Workload"], one)
        await asyncio.sleep(WATCHED_SECONDS if running else 0)
        after = await look_at_jobs(self._client, sight, step.namespaces)
        ended = [title for uid, title in running.items() if uid in after.jobs and quiet.is_suspended(after.jobs[uid])]
        if ended:
            raise say_stopped(
                f"Kueue suspended jobs that ran; {name_queues(step.queues)} stay on hold in Kueue. Its log says why; "
                "run the command again to go on",
                ended,
            )

    async def wake_job(self, job: Json, *, placed: bool) -> None:
        """Change a job, and a job that waits back to what its user wrote."""
        resource = JOBS if job["kind"] == JOBS.kind else JOB_SETS
        meta = job["metadata"]
        woken = {"metadata": {"uid": meta["uid"], "annotations": {quiet.WOKEN: "true"}}}
        with suppress(NotFound):
            for turn in range(MOST_TURNS):
                try:
                    waits = quiet.is_suspended(job) and not quiet.has_ended(job)
                    changes = unstamp_job(job, placed=placed) if waits else {}
                    await self._patch_job(resource, meta, woken | changes)
                    break
                except Conflict:
                    if turn == MOST_TURNS - 1:
                        raise
                    # A JobSet that changed since would keep a gate that nobody takes away, and is read again.
                    job = await self._client.get(resource, meta["name"], meta["namespace"])
                    job = {"apiVersion": resource.api_version, "kind": resource.kind, **job}
                    # Another one of its name came after the label went: Kueue has seen it come.
                    if job["metadata"]["uid"] != meta["uid"]:
                        return
                except Invalid as error:
                    # Kubernetes lets a template change only until the first pod.
                    self._tell(f"note: {quiet.title_of(job)} keeps what Topogate stamped on its pod template: {error}")
                    await self._patch_job(resource, meta, woken)
                    break
            # Nothing is left on it; the second change wakes nobody more.
            await self._patch_job(
                resource, meta, {"metadata": {"uid": meta["uid"], "annotations": {quiet.WOKEN: None}}}
            )

    async def _patch_job(self, resource: Resource, meta: Json, body: Json) -> None:
        await self._client.patch(resource, meta["name"], meta["namespace"], body=body, field_manager=FIELD_MANAGER)

    # --- what is left of ours ----------------------------------------------------------------------------------------

    async def remove_ours(self, sight: MoveSight, step: MoveStep) -> None:
        """Delete our Workloads, and the queues that --move made."""
        # Workloads first: a queue that is deleted before them is waited for by its finalizer.
        for resource in (WORKLOADS, LOCAL_QUEUES):
            for one in await self._list_in(sight, resource, step.namespaces):
                if resource is WORKLOADS or is_migrated(one):
                    with suppress(NotFound):
                        await self._client.delete(resource, one["metadata"]["name"], one["metadata"]["namespace"])
        for name in step.queues:
            if name not in sight.ours:
                continue
            if not is_migrated(sight.ours[name]):
                self._tell(f"note: ClusterQueue {name} of topogate.dev stays, on hold: it was not made by --move")
                continue
            with suppress(NotFound):
                await self._client.delete(CLUSTER_QUEUES, name)
                self._tell(f"clusterqueue/{name} of topogate.dev deleted")


def unstamp_job(job: Json, *, placed: bool) -> Json:
    """The patch that takes what our webhook stamped off the templates of a job that waits; empty where it has nothing.

    ``placed``: its queue has a flavor with a topology in Kueue. In others Kueue admits no job that asks for places, and
    our webhook has each ask for any place.
    """
    spec = job.get("spec") or {}
    if "template" in spec:
        return {"spec": {"template": change}} if (change := _unstamp(spec["template"], placed=placed)) else {}
    found, changed = [], False
    for one in spec.get("replicatedJobs") or ():
        template = one["template"]["spec"]["template"]
        change = _unstamp(template, placed=placed)
        changed = changed or bool(change)
        of_job = {**one["template"]["spec"], "template": merge_patch(template, change)}
        found.append({**one, "template": {**one["template"], "spec": of_job}})
    # A merge patch replaces the list, so it is refused where the JobSet has changed since.
    version = {
        "metadata": {"resourceVersion": job["metadata"]["resourceVersion"], "annotations": {quiet.WOKEN: "true"}}
    }
    return {**version, "spec": {"replicatedJobs": found}} if changed else {}


def _unstamp(template: Json, *, placed: bool) -> Json:
    """What is to change in one template, as a merge patch."""
    gates = (template.get("spec") or {}).get("schedulingGates") or []
    if not any(map(is_our_gate, gates)):
        return {}
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    ours = [_KEYS.pod_set, _KEYS.workload, *([] if placed else [_KEYS.unconstrained])]
    # A key that is not there needs no null: a patch that changes nothing wakes nobody.
    gone = {key: None for key in ours if key in annotations}
    rest = [one for one in gates if not is_our_gate(one)]
    return {"spec": {"schedulingGates": rest or None}} | ({"metadata": {"annotations": gone}} if gone else {})


def merge_patch(body: Json, patch: Json) -> Json:
    """The body with a merge patch (RFC 7386)."""
    found = dict(body)
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merge_patch(found.get(key) or {}, value) if isinstance(value, dict) else value
    return found


def placed_queues(sight: MoveSight) -> set[tuple[str, str]]:
    """Namespace and name of Kueue's LocalQueues whose queue has a flavor with a topology."""
    view = sight.view
    with_places = {
        name for name, spec in view.specs.items() if any(one["name"] in view.topologies for one in flavors_of(spec))
    }
    return {(one.namespace, one.name) for one in view.local_queues if one.cluster_queue in with_places}


def checks_of(sight: MoveSight, ours: Json) -> list[str]:
    """The AdmissionChecks of Kueue's queue in which a job runs by our Workload."""
    spec = sight.view.specs.get(ours["status"]["admission"]["clusterQueue"]) or {}
    checks = (spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or ()
    return [one["name"] for one in checks]


async def is_available(client: Client, kueue_namespace: str) -> bool:
    """Whether a pod of Kueue is ready."""
    deployment = await read(client, DEPLOYMENTS, DEPLOYMENT, kueue_namespace)
    return bool(((deployment or {}).get("status") or {}).get("availableReplicas"))


def is_migrated(one: Json) -> bool:
    """Whether an object of ours was made of one of Kueue's."""
    return MIGRATED_FROM in (one["metadata"].get("annotations") or {})


def is_admitted_here(ours: Json) -> bool:
    """Whether a job runs by our Workload."""
    status = ours.get("status") or {}
    said = {one["type"]: one["status"] for one in status.get("conditions") or ()}
    return bool(status.get("admission")) and said.get("Admitted") == "True" and said.get("Evicted") != "True"


def owner_uid(one: KueueWorkload) -> str:
    """The uid of the job that a Workload is of; "" where none is named."""
    owner = controller_of(one.metadata)
    return owner.uid if owner is not None else ""


def owners_of(one: Json) -> list[Json]:
    """All that an object names as its owners."""
    return one["metadata"].get("ownerReferences") or []

"""``--move``: some ClusterQueues of Kueue, and their namespaces, to Topogate; no pod that runs ends.

Rules
- `phases` says what is next, from what is there. Whatever ends the command, the next one goes on from there.
- Nothing is written before the preflight: what keeps Kueue or Topogate from its part, and objects that are refused.
- Kueue's queues are on hold, and nothing of them is under way, before their namespaces are labelled; our queues are on
  hold until what runs is taken over. So at no time are there two who start a job of one namespace.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from enum import StrEnum
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from cli.install import installation
from cli.migrate.apply_objects import FIELD_MANAGER
from cli.migrate.convert_queues import CLUSTER_QUEUE
from cli.migrate.moves import adoption, kueue_spec, quiet
from cli.migrate.moves.backup import QueueBackup, write_backups
from cli.migrate.moves.meanwhile import find_lost_backups, find_newcomers, require_unchanged
from cli.migrate.moves.our_objects import StepObjects, require_taken
from cli.migrate.moves.phase_walk import (
    POLL_SECONDS,
    STILL_SECONDS,
    MoveOptions,
    PhaseWalk,
    Tell,
    name_queues,
    say_stopped,
)
from cli.migrate.moves.phases import MoveFacts, MovePhase, next_phase
from cli.migrate.moves.preflight import find_missing_here, find_missing_there, find_unset
from cli.migrate.moves.rights import needed_to_move, require_rights
from cli.migrate.moves.sight import MoveSight, list_in, look_at_jobs, look_at_ours, used_amounts
from cli.migrate.moves.steps import MoveStep, choose_step, find_notes
from cli.migrate.rows import Json
from cli.output import Failure, some
from clock import SYSTEM, Clock
from crds.constants import SERVED
from kube.client import Client
from kube.errors import Conflict, NotFound
from kube.objects import Pod
from kube.resources import JOB_SETS, JOBS, NAMESPACES, PODS

REFUSED_SECONDS: Final = 15.0  # for which a job may not be taken over before that counts: watches come late
KUEUE_FINALIZER: Final = "kueue.x-k8s.io/managed"  # of its plain pods (0.19.2, pkg/controller/jobs/pod)


class Handover(PhaseWalk[MoveFacts]):
    """See the module."""

    def __init__(self, client: Client, options: MoveOptions, tell: Tell, clock: Clock = SYSTEM) -> None:
        super().__init__(client, options, tell, clock)
        self._labelled = set[str]()

    async def move_queues(self, wanted: Collection[str]) -> None:
        """Move the steps of these queues; all where none is named. Raises Failure with what to do."""
        sight = await self._look()
        step = choose_step(sight.view, wanted)
        if not step.queues:
            raise Failure("Kueue has no ClusterQueue, so there is nothing to move")
        needed = needed_to_move(sight.kinds, self._options)
        await require_rights(self._client, needed, step.namespaces, nothing="nothing was moved")
        await self.check_step(sight, step)
        sight = await self.walk_phases(sight, step, MoveFacts())
        for text in find_newcomers(sight.view, step):
            self._tell(f"note: {text}")
        self._tell(f"{name_queues(step.queues)} {'are' if len(step.queues) > 1 else 'is'} served by Topogate")

    def _choose_phase(self, sight: MoveSight, step: MoveStep, done: MoveFacts) -> MovePhase:
        return next_phase(self._facts(sight, step, done))

    def _facts(self, sight: MoveSight, step: MoveStep, done: MoveFacts) -> MoveFacts:
        specs = {name: sight.live[name].get("spec") or {} for name in step.queues}
        return replace(
            done,
            unsaved=find_unsaved(sight, step),
            unheld=[name for name, spec in specs.items() if not kueue_spec.is_held(spec)],
            joined=[name for name, spec in specs.items() if not kueue_spec.is_alone(spec)],
            unserved=sight.unserved_of(step.namespaces),
            unreleased=self._objects(sight, step).find_stopped() if done.adopted else (),
        )

    def _objects(self, sight: MoveSight, step: MoveStep) -> StepObjects:
        return StepObjects(sight, step, self._options.without_checks)

    # --- before anything is written ----------------------------------------------------------------------------------

    async def check_step(self, sight: MoveSight, step: MoveStep) -> None:
        """Raises Failure where the step cannot be moved; says what there is to know of it."""
        client, options = self._client, self._options
        problems = [text async for text in find_missing_here(client, options.namespace)]
        problems += [text async for text in find_missing_there(client, sight, options.kueue_namespace)]
        problems += find_lost_backups(sight, step)
        if problems:
            raise say_stopped("nothing was moved", problems)
        objects = self._objects(sight, step)
        require_taken(objects.list_refused())
        # Only of namespaces to label: in the others a gate would keep an interrupted move from going on.
        seen = await look_at_jobs(client, sight, sight.unserved_of(step.namespaces))
        problems += quiet.find_obstacles(seen.jobs, seen.pods)
        problems += (
            f"ClusterQueue {name} of topogate.dev is in a cohort here, and its namespaces are Kueue's, so its quota "
            f"would be lent twice: move it too, or `kubectl delete clusterqueues.topogate.dev {name}`"
            for name in objects.find_lent_twice()
        )
        # Last, as it asks the API server for each object.
        problems += await objects.find_conflicts(client)
        notes = [*find_notes(sight.view, step, used_amounts(seen.workloads))]
        if not options.shared_nodes:
            problems += (f"{one.text}; {one.flag} moves it all the same" for one in notes if one.flag)
        if problems:
            raise say_stopped("nothing was moved", problems)
        self._tell(f"{name_queues(step.queues)} and namespace {some(step.namespaces) or '(none)'} move together")
        for note in notes:
            self._tell(f"note: {note.text}")
        if text := await find_unset(client, sight, options.namespace):
            self._tell(f"note: {text}")

    # --- phases ------------------------------------------------------------------------------------------------------

    async def _go_through(self, phase: StrEnum, sight: MoveSight, step: MoveStep, done: MoveFacts) -> MoveFacts:
        match phase:
            case MovePhase.BACK_UP:
                await self.back_up_queues(sight, step)
            case MovePhase.HOLD:
                if await patch_queues(
                    self._client, sight, step.queues, kueue_spec.is_held, lambda _: kueue_spec.patch_to_hold()
                ):
                    self._tell(f"Kueue admits nothing more in {name_queues(step.queues)}")
            case MovePhase.SETTLE:
                await self.wait_quiet(sight, step)
                return replace(done, settled=True)
            case MovePhase.MAKE:
                await self._apply(self._objects(sight, step).list_early())
                return replace(done, made=True)
            case MovePhase.LEAVE:
                if await patch_queues(self._client, sight, step.queues, kueue_spec.is_alone, kueue_spec.patch_to_leave):
                    self._tell(f"{name_queues(step.queues)} left the cohort in Kueue")
            case MovePhase.SERVE:
                await self.serve_namespaces(sight.unserved_of(step.namespaces))
            case MovePhase.ADOPT:
                await self.wait_adopted(sight, step)
                return replace(done, adopted=True)
            case MovePhase.RELEASE:
                await self._apply(self._objects(sight, step).list_final())
            case MovePhase.CLEAN:
                await self._clean(sight, step)
                await self._tell_left(sight, step)
                return replace(done, cleaned=True)
        return done

    async def back_up_queues(self, sight: MoveSight, step: MoveStep) -> None:
        """Keep what Kueue's queues are, before anything of them changes."""
        kept = {
            name: QueueBackup(sight.uid_of(name), sight.live[name].get("spec") or {})
            for name in find_unsaved(sight, step)
        }
        await write_backups(self._client, sight.backups, kept)

    async def wait_quiet(self, sight: MoveSight, step: MoveStep) -> None:
        """Wait until nothing was under way for some seconds. Raises Failure with what is; Kueue's queues go on then."""

        async def find_under_way() -> list[str]:
            seen = await look_at_jobs(self._client, sight, sight.unserved_of(step.namespaces))
            # On hold, Kueue takes no pod's gate away any more: to wait for one that came since would be in vain.
            if late := [*quiet.find_obstacles(seen.jobs, seen.pods)]:
                raise say_stopped(f"nothing was moved; {await self.undo_hold(step)}", late)
            return [*quiet.find_unquiet(seen.workloads, seen.jobs, seen.pods)]

        if not (under_way := await self.wait_still(find_under_way)):
            return
        # Jobs that wait would wait for ever: nobody would take the hold away.
        undone = await self.undo_hold(step)
        what = f"nothing was moved: after {self._options.patience:g} s Kueue still has something under way; {undone}"
        raise say_stopped(what, under_way)

    async def undo_hold(self, step: MoveStep) -> str:
        """Have Kueue go on, where no namespace of the step is labelled yet; what was done, in words."""
        sight = await self._look()
        # Kueue leaves out namespaces with the label, so its queue may not go on for them.
        if len(sight.unserved_of(step.namespaces)) < len(set(step.namespaces) & sight.labels.keys()):
            return "its queues stay on hold, since some of their namespaces have moved before: run the command again"
        for name in step.queues:
            if name in sight.view.moved:
                before = sight.view.specs[name]
                body = kueue_spec.patch_to_return(before, kueue_spec.stop_policy(before))
                await self._client.patch(sight.kinds[CLUSTER_QUEUE], name, body=body, field_manager=FIELD_MANAGER)
        # Last: without a backup, a queue on hold would be taken for one that was on hold before.
        await write_backups(self._client, sight.backups, dict.fromkeys(step.queues))
        return "its queues go on"

    async def _apply(self, objects: list[Json]) -> None:
        """Apply objects of ours, and say which changed."""
        async for one in installation.apply(self._client, objects, field_manager=FIELD_MANAGER):
            if one.outcome != "unchanged":
                self._tell(str(one))

    async def serve_namespaces(self, namespaces: list[str]) -> None:
        """Label namespaces, and wait until looks of Kueue's that are under way have ended.

        Raises Failure where somebody has taken the label off again.
        """
        require_unchanged(namespaces, self._labelled, label=f"labelled {SERVED}")
        for name in namespaces:
            body = {"metadata": {"labels": {SERVED: "true"}}}
            try:
                await self._client.patch(NAMESPACES, name, body=body, field_manager=FIELD_MANAGER)
            # Deleted since it was looked at: the other namespaces of the step move all the same.
            except NotFound:
                continue
            self._labelled.add(name)
            self._tell(f"namespace {name} is labelled {SERVED}=true")
        # Kueue asks for the label at the beginning of each look, and its cache may be late by as much.
        await asyncio.sleep(STILL_SECONDS)

    async def wait_adopted(self, sight: MoveSight, step: MoveStep) -> None:
        """Wait until what runs is taken over. Raises Failure with what is not; our queues stay on hold then."""
        start = self._clock.monotonic()
        while True:
            seen = await look_at_jobs(self._client, sight, step.namespaces)
            running = quiet.running_jobs(seen.workloads, seen.jobs)
            found = adoption.judge_adoption(running, await look_at_ours(self._client, sight, step.namespaces))
            waited = self._clock.monotonic() - start
            if found.is_complete:
                self._tell(f"{len(running)} running jobs are taken over" if running else "no job of it runs")
                return
            # A refusal may be of a moment: the controller hears of a job and of Kueue's Workload by two watches.
            if waited > self._options.patience or (not found.unanswered and waited > REFUSED_SECONDS):
                break
            await asyncio.sleep(POLL_SECONDS)
        told = [f"{title} was not taken over: {why}" for title, why in found.refused.items()]
        told += [
            f"{title} was not looked at yet: after other labels that changed lately the controller waits for up to ten "
            "minutes, so run the command again then; `topogate doctor` says whether one leads"
            for title in found.unanswered
        ]
        raise say_stopped(
            f"{name_queues(step.queues)} stay on hold, and what runs goes on: mend it and run the command again, or go "
            f"back with `topogate migrate kueue --back {' '.join(step.queues)}`",
            told,
        )

    async def _clean(self, sight: MoveSight, step: MoveStep) -> None:
        """Take Kueue's finalizer off plain pods: nobody does that any more, and they could not be deleted."""
        taken = await release_pods(self._client, partial(self._list_pods, sight, step))
        if taken:
            self._tell(f"Kueue's finalizer was taken off {taken} pods")
        # A --back that was interrupted may have left its annotation.
        for resource in (JOBS, JOB_SETS):
            for job in await list_in(self._client, sight, resource, step.namespaces, dict[str, Any]):
                if quiet.is_woken(job):
                    meta = job["metadata"]
                    body = {"metadata": {"uid": meta["uid"], "annotations": {quiet.WOKEN: None}}}
                    with suppress(NotFound, Conflict):
                        await self._client.patch(
                            resource, meta["name"], meta["namespace"], body=body, field_manager=FIELD_MANAGER
                        )

    async def _tell_left(self, sight: MoveSight, step: MoveStep) -> None:
        for title, why in sorted(adoption.list_left_running(await look_at_ours(self._client, sight, step.namespaces))):
            self._tell(f"note: {title} runs outside of its quota: {why}")
        # A tenant may create a pod between the last quiet look and the label, which Kueue's webhook gates still.
        for text in quiet.find_obstacles({}, await list_in(self._client, sight, PODS, step.namespaces, Pod)):
            self._tell(f"note: {text}")

    async def _list_pods(self, sight: MoveSight, step: MoveStep) -> list[Json]:
        return await list_in(self._client, sight, PODS, step.namespaces, dict[str, Any])


def find_unsaved(sight: MoveSight, step: MoveStep) -> list[str]:
    """Queues without a backup, or with one of before somebody changed them."""
    moved, kept = sight.view.moved, sight.backups.queues
    return [name for name in step.queues if name not in moved or sight.view.specs[name] != kept[name].spec]


async def patch_queues(
    client: Client,
    sight: MoveSight,
    names: Collection[str],
    is_done: Callable[[Json], bool],
    patch: Callable[[Json], Json],
) -> bool:
    """Patch those of Kueue's queues that need it, by their specs; whether all are patched now."""
    for name in names:
        live = sight.live[name]
        if is_done(live.get("spec") or {}):
            continue
        version = {"metadata": {"resourceVersion": live["metadata"]["resourceVersion"]}}
        body = {**version, **patch(live.get("spec") or {})}
        try:
            await client.patch(sight.kinds[CLUSTER_QUEUE], name, body=body, field_manager=FIELD_MANAGER)
        except Conflict:
            # Its status is written often. The next turn reads it again, and finds what is left to do.
            return False
    return True


async def release_pods(client: Client, list_pods: Callable[[], Awaitable[list[Json]]]) -> int:
    """Take Kueue's finalizer off all pods that ``list_pods`` returns; how many had it."""
    taken, left = 0, True
    while left:
        left = False
        for pod in await list_pods():
            meta = pod["metadata"]
            if KUEUE_FINALIZER not in (meta.get("finalizers") or ()):
                continue
            rest = [name for name in meta["finalizers"] if name != KUEUE_FINALIZER]
            # The version as a precondition: finalizers of others come and go.
            body = {"metadata": {"resourceVersion": meta["resourceVersion"], "finalizers": rest}}
            try:
                await client.patch(PODS, meta["name"], meta["namespace"], body=body, field_manager=FIELD_MANAGER)
            except Conflict:
                left = True
            except NotFound:
                continue
            else:
                taken += 1
    return taken

"""``topogate hold``, ``release`` and ``requeue``: jobs wait until somebody says otherwise, or give their place back.

All three write ``spec.active`` of a job's Workload, which every user with the role ``edit`` may change. A job that is
requeued is made inactive until the controller has begun to evict it, and active again at once: an eviction that has
begun goes on, and a workload that is active when it ends waits in its queue again.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Annotated, Final

import msgspec
import typer

from cli.cluster.installed import settings_with_warning
from cli.cluster.owner_names import MAKES, WHOM, parse_owner
from cli.connected import connected
from cli.option_groups import OptionGroup, with_groups
from cli.output import Context, Failure, Kubeconfig, stdout
from cli.reaching import not_installed
from crds.names import workload_name
from crds.spelling import meant
from engine.reasons import Reason
from kube.client import Client
from kube.errors import Forbidden, NotFound
from kube.objects import condition, controller_of, is_true
from kube.queues import LocalQueue
from kube.resources import LOCAL_QUEUES, WORKLOADS
from kube.workloads import WorkloadObject
from ungater.model.conditions import EVICTED, FINISHED
from ungater.model.life import RELEASE

GROUP: Final = "PodGroup"  # whose Workload has no controlling owner
POLL: Final = 0.25  # seconds
ELSEWHERE: Final = 3  # jobs in a sentence
ANSWER: Final = 60.0  # seconds in which the controller begins an eviction
# Each waits for an eviction to begin, so hundreds at once would poll the API server together.
AT_ONCE: Final = 8  # workloads that are requeued beside each other


class Change(Enum):
    """What is done with a job."""

    HOLD = "hold"
    RELEASE = "release"
    REQUEUE = "requeue"


class Selection(msgspec.Struct, frozen=True):
    """Which jobs are meant: those with these names, of a queue, or all of the namespace."""

    names: tuple[str, ...]
    queue: str | None
    every: bool

    def check(self) -> None:
        """Failure unless jobs are named in one way."""
        ways = sum((bool(self.names), self.queue is not None, self.every))
        if ways != 1:
            found = "none of the three" if ways == 0 else "more than one"
            raise Failure(f"expected names of jobs, or --queue QUEUE, or --all; found {found}")


class Which(OptionGroup, frozen=True):
    """The options of all three commands."""

    jobs: Annotated[list[str] | None, typer.Argument(metavar="JOB", help=WHOM)] = None
    namespace: Annotated[str | None, typer.Option("-n", "--namespace", help="Namespace of the jobs.")] = None
    every: Annotated[bool, typer.Option("--all", help="All jobs of the namespace.")] = False
    queue: Annotated[str | None, typer.Option("--queue", help="All jobs of this LocalQueue of the namespace.")] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done; the API server checks it.")
    ] = False
    kubeconfig: Kubeconfig = None
    context: Context = None

    def change(self, change: Change) -> None:
        """Change the jobs that are meant, and print a line of each. Raises Failure."""
        selection = Selection(tuple(self.jobs or ()), self.queue, self.every)
        selection.check()

        async def carry_out(client: Client) -> None:
            where = self.namespace or client.connection.namespace
            console = stdout()
            say = partial(console.print, soft_wrap=True)
            await change_all(client, change, selection, where, say, dry_run=self.dry_run)

        connected(carry_out, self.kubeconfig, self.context)


@with_groups
def hold_jobs(which: Which) -> None:
    """Hold jobs: one that waits is not started, and one that runs is evicted, until it is released.

    The same as spec.active false of their Workloads.
    """
    which.change(Change.HOLD)


@with_groups
def release_jobs(which: Which) -> None:
    """Release jobs that are on hold: they wait in their queue again.

    The same as spec.active true of their Workloads.
    """
    which.change(Change.RELEASE)


@with_groups
def requeue_jobs(which: Which) -> None:
    """Requeue jobs that run: their pods are evicted, and they wait in their queue again.

    What a job has not saved is lost. It may start again at once if nobody before it takes its room.
    """
    which.change(Change.REQUEUE)


async def change_all(
    client: Client, change: Change, selection: Selection, namespace: str, say: Callable[[str], None], *, dry_run: bool
) -> None:
    """Change what is selected, and say a line of each.

    Raises:
        Failure: a job is not there, before anything is changed; or you may not change it.
        KubeError: the API server did not do it.
    """
    try:
        there = await client.list(WORKLOADS, namespace, type=WorkloadObject)
    except NotFound as error:
        raise not_installed() from error
    except Forbidden as error:
        raise not_allowed(error, namespace, "list", "edit") from error
    try:
        found = selected(there, selection, namespace)
    except Failure as error:
        await settings_with_warning(client)  # nobody makes a Workload of a job that came while no controller led
        raise Failure(f"{error}{await _jobs_elsewhere(client, selection, namespace)}") from None
    if selection.queue is not None and not found:
        await _check_queue(client, selection.queue, namespace)
    # Groups of a LeaderWorkerSet share their owner, so the workload's name tells them apart.
    alike = Counter(map(title, found))
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(workload: WorkloadObject) -> None:
        name = title(workload)
        name += f" (workload {workload.metadata.name})" if alike[name] > 1 else ""
        async with gate:
            done = idle(workload, change)
            try:
                done = done or await _carry_out(client, change, workload, dry_run=dry_run)
            except NotFound:
                # It went between the list and the write; nothing is left to change.
                done = "is gone"
        say(f"{name}: {done}")

    try:
        async with asyncio.TaskGroup() as tasks:
            for workload in found:
                tasks.create_task(one(workload))
    except ExceptionGroup as errors:
        first = errors.exceptions[0]
        if isinstance(first, Forbidden):
            raise not_allowed(first, namespace, "patch", "edit") from first
        raise first from None
    if not found:
        say(f"no job in {f'queue {selection.queue} of ' if selection.queue else ''}namespace {namespace}")


async def _jobs_elsewhere(client: Client, selection: Selection, namespace: str) -> str:
    """Where jobs of these names are, for whoever may look; "" where there are none."""
    try:
        others = [
            one for one in await client.list(WORKLOADS, type=WorkloadObject) if one.metadata.namespace != namespace
        ]
    except Forbidden:
        return ""
    found = {
        f"{title(one)} in {one.metadata.namespace} (-n {one.metadata.namespace})"
        for text in selection.names
        for one in others
        if is_of(one, *parse_owner(text))
    }
    return f"; but there is {' and '.join(sorted(found)[:ELSEWHERE])}" if found else ""


async def _check_queue(client: Client, name: str, namespace: str) -> None:
    """Failure where there is no such LocalQueue."""
    try:
        known = [one.metadata.name for one in await client.list(LOCAL_QUEUES, namespace, type=LocalQueue)]
    except Forbidden:
        return
    if name not in known:
        hint = meant(name, known) or (f"there are {', '.join(sorted(known))}" if known else "there is none")
        raise Failure(f"no LocalQueue {name} in namespace {namespace}; {hint}")


def not_allowed(error: BaseException, namespace: str, verb: str, role: str, kind: str = "Workloads") -> Failure:
    """You may not do this with objects of a kind in a namespace, and what to ask for."""
    binding = f"kubectl create rolebinding NAME --clusterrole {role} --user YOU -n {namespace}"
    text = f"you may not {verb} {kind} (topogate.dev) in namespace {namespace}"
    return Failure(f"{text}: ask for the role {role} there (`{binding}`): {error}")


def selected(there: Sequence[WorkloadObject], selection: Selection, namespace: str) -> list[WorkloadObject]:
    """The workloads that are meant, each once, in the order of their names. Failure where one is not there."""
    if not selection.names:
        wanted = [one for one in there if selection.every or one.spec.queue_name == selection.queue]
        return sorted(wanted, key=lambda one: one.metadata.name)
    found: dict[str, WorkloadObject] = {}
    for text in selection.names:
        kind, name = parse_owner(text)
        alike = [one for one in there if is_of(one, kind, name)]
        owners = sorted({title(one) for one in alike})
        if not alike:
            raise Failure(
                f"{text}: there is no such job in namespace {namespace} that Topogate queues or places;"
                f" `kubectl get workloads.topogate.dev -n {namespace}` lists what there is"
            )
        if not kind and len(owners) > 1:
            raise Failure(f"{text}: which of them: {', '.join(owners)}? Name it as KIND/NAME")
        found |= {one.metadata.name: one for one in alike}
    return list(found.values())


def is_of(workload: WorkloadObject, kind: str, name: str) -> bool:
    """Whether it is the Workload of the owner that somebody named, as `cli.cluster.owner_names.parse_owner` read it.

    A name may be that of one group of a LeaderWorkerSet (``serve-0``), or of a group of pods, which own their Workload
    together: both stand in the name of the Workload only.
    """
    meta = workload.metadata
    if kind == "workload":
        return meta.name == name
    if not kind and meta.name == name:
        return True
    owner = controller_of(meta)
    if owner is not None and kind in MAKES:
        made, more = MAKES[kind]
        return owner.kind == made and re.fullmatch(re.escape(name) + more, owner.name) is not None
    whose = owner.kind if owner is not None else GROUP
    if kind not in {"", whose.lower()}:
        return False
    if owner is not None and (owner.name == name or not name.startswith(f"{owner.name}-")):
        return owner.name == name
    # The last part of a Workload's name is a hash with the owner's uid, which nobody types.
    return meta.name.rpartition("-")[0] == workload_name(whose, name, "").rpartition("-")[0]


def title(workload: WorkloadObject) -> str:
    """Whose it is: ``Job train``."""
    owner = controller_of(workload.metadata)
    if owner is not None:
        return f"{owner.kind} {owner.name}"
    head = workload.metadata.name.rpartition("-")[0]
    return f"{GROUP} {head.removeprefix(f'{GROUP.lower()}-')}"


def idle(workload: WorkloadObject, change: Change) -> str:
    """Why nothing is to be done; "" where something is."""
    if is_true(workload.status.conditions, FINISHED):
        return "has finished already"
    if change is Change.RELEASE:
        return "is not on hold" if workload.spec.active else ""
    if not workload.spec.active:
        return "is on hold" + (f": {RELEASE}" if change is Change.REQUEUE else " already")
    if change is Change.REQUEUE and workload.status.admission is None:
        return "waits already"
    return ""


async def _carry_out(client: Client, change: Change, workload: WorkloadObject, *, dry_run: bool) -> str:
    """What was done. Raises KubeError, Failure."""
    await _set_active(client, workload, active=change is Change.RELEASE, dry_run=dry_run)
    runs = workload.status.admission is not None
    if change is Change.HOLD:
        done = "on hold; its pods are evicted" if runs else "on hold"
    elif change is Change.RELEASE:
        done = "released; it waits again"
    else:
        done = "requeued; its pods are evicted, and it waits again"
        if not dry_run:
            await _evicted(client, workload)
    return f"{done} (dry run)" if dry_run else done


async def _evicted(client: Client, workload: WorkloadObject) -> None:
    """Wait until the eviction has begun, and make the workload active again however that ends."""
    meta = workload.metadata
    try:
        async with asyncio.timeout(ANSWER):
            while not _is_evicted(await client.get(WORKLOADS, meta.name, meta.namespace, type=WorkloadObject)):
                await asyncio.sleep(POLL)
    except TimeoutError:
        raise Failure(
            f"{title(workload)}: the controller has not begun to evict it for {ANSWER:g} seconds, so it runs on;"
            " `topogate doctor` says whether the controller runs"
        ) from None
    finally:
        # Also after Ctrl-C or an error: a job that was to be requeued must not stay on hold.
        await _set_active(client, workload, active=True, dry_run=False)


def _is_evicted(workload: WorkloadObject) -> bool:
    """Whether it is on its way out, or out already."""
    said = condition(workload.status.conditions, EVICTED)
    # Another eviction, such as a preemption, does not count: the controller has not acted on the hold yet.
    begun = said is not None and said.status == "True" and said.reason == Reason.DEACTIVATED
    return begun or workload.status.admission is None


async def _set_active(client: Client, workload: WorkloadObject, *, active: bool, dry_run: bool) -> None:
    meta = workload.metadata
    body = {"metadata": {"uid": meta.uid}, "spec": {"active": active}}  # of this job, not of one made since
    await client.patch(WORKLOADS, meta.name, meta.namespace, body=body, dry_run=dry_run)

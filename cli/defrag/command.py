"""``topogate defrag``: which moves would free the most whole domains; ``--run`` has them made."""

from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from cli.cluster import cluster_snapshot, installed
from cli.cluster import dump as dumps
from cli.cluster.dump import Dump
from cli.connected import connected
from cli.defrag.run import Run, WantedNodes
from cli.options import ClusterFiles
from cli.output import Context, Failure, Kubeconfig, Output, OutputFormat, emit, progress, stderr
from cli.snapshot import objects_of
from clock import SYSTEM
from crds.constants import DEFAULT_DOMAIN
from crds.request import resolve
from crds.settings import Settings
from engine.cluster.filters import selects
from engine.cluster.levels import domain_in_words
from engine.cluster.state import ClusterState
from engine.model import Policy, TopologyRequest
from kube import objects
from kube.client import Client
from kube.pods import convert
from simulator.defrag import Movable, defrag
from simulator.tally import measured
from simulator.world.site import main_flavor
from ungater import kinds
from ungater.cache.cache import Cache
from ungater.model.workload_entry import WorkloadEntry
from ungater.reconcile.moves import as_one
from ungater.scheduling import relocation

HARMLESS = frozenset({"DaemonSet", "Node"})  # owners of pods that are on every node, and come back where they were


class MoveView(msgspec.Struct, frozen=True):
    """A workload that would be evicted, and where its pods could go then: node -> pods."""

    workload: str
    job: str
    pods: int
    priority: int
    before: dict[str, int]
    after: dict[str, int]
    nodes: dict[str, tuple[str, ...]]  # the same by pod set, without counts


class StepView(msgspec.Struct, frozen=True):
    """Moves that belong together, and the domains that they make whole."""

    frees: tuple[str, ...]
    pods: int
    moves: tuple[MoveView, ...]


class LeftView(msgspec.Struct, frozen=True):
    """A workload that is left where it is, and why."""

    workload: str
    job: str
    why: str


class DefragReport(msgspec.Struct, frozen=True, rename="camel"):
    """The plan."""

    flavor: str
    level: str
    domains: int
    whole_now: int
    whole_then: int
    steps: tuple[StepView, ...]
    left: tuple[LeftView, ...]


class Tenants(msgspec.Struct):
    """Who is there: workloads that may move, those that may not and why, and nodes with what stays."""

    movable: dict[str, Movable]
    left: dict[str, str]
    jobs: dict[str, str]
    stays: set[str]


def command(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what could be done; the default.")] = False,
    run: Annotated[
        bool,
        typer.Option(
            "--run", help="Have the controller carry out the plan, move by move; within movesPerHour and budgets."
        ),
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=1.0, help="With --run: seconds until all pods of one move are to run again.")
    ] = 900.0,
    level: Annotated[
        str, typer.Option(help="Topology level whose domains are to become whole. Default: the one above the nodes.")
    ] = "",
    flavor: Annotated[str, typer.Option(help="ResourceFlavor. Default: the one with most GPUs.")] = "",
    files: ClusterFiles = None,
    max_priority: Annotated[
        int | None, typer.Option(help="Leave workloads of a higher priority where they are.")
    ] = None,
    domain: Annotated[str, typer.Option(help="Domain of the annotations and labels of jobs.")] = DEFAULT_DOMAIN,
    output: Output = OutputFormat.TABLE,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Plan which workloads to move so that the most domains become whole, and with --run have them moved.

    Fewest pods for each domain that is freed. Every target was checked by the engine: the pods fit there as their
    request says, with everything else where the plan has it. Without --run nothing is changed.
    """
    if run and (dry_run or files):
        raise Failure("--run carries out a plan for the live cluster: leave out --dry-run and -f")
    # By way of a snapshot's objects, so that budgets are in it as in a file.
    dump = dumps.read(files) if files else dumps.taken(dumps.live_objects(objects_of(kubeconfig, context)))
    found = report(dump, Settings(domain=domain), flavor, level, max_priority, run=run)
    emit(found, output, table=_table(found))
    if run and found.steps and not _carried_out(found, kubeconfig, context, timeout):
        raise Failure("not all of the plan was carried out; plan again when what is named above has changed")


def _carried_out(found: DefragReport, kubeconfig: str | None, context: str | None, timeout: float) -> bool:
    """Have all moves made; True where they were. Ctrl-C ends it: a move that began is ended by the controller."""
    steps = [[WantedNodes(move.workload, move.job, move.nodes) for move in step.moves] for step in found.steps]
    console = stderr()

    def say(line: str) -> None:
        console.print(line, soft_wrap=True)

    async def carry(client: Client) -> bool:
        return await Run(client, say, SYSTEM, timeout).steps(steps)

    try:
        return connected(carry, kubeconfig, context)
    except KeyboardInterrupt:
        raise Failure("interrupted: nothing more is begun; a move that began is ended by the controller") from None


def report(
    dump: Dump, settings: Settings, flavor: str, level: str, max_priority: int | None, *, run: bool = False
) -> DefragReport:
    """The plan for a cluster; ``run``: of what the controller would move. Failure where there is none."""
    cache = cluster_snapshot.cache_of(dump, settings)
    state = cache.state
    known = ", ".join(sorted(state.flavors)) or "none"
    if flavor and flavor not in state.flavors:
        raise Failure(f"--flavor {flavor}: there is no such ResourceFlavor with a topology; there is {known}")
    chosen = state.flavors[flavor] if flavor else main_flavor(state, measured(state))
    if chosen is None:
        raise installed.no_topology()
    # The narrowest level is mostly the host, and jobs lack whole racks.
    wanted = level or chosen.levels[-2 if len(chosen.levels) > 1 else -1]
    if wanted not in chosen.levels:
        raise Failure(f"--level {wanted}: flavor {chosen.name} has {', '.join(chosen.levels)}")
    found = tenants(dump, cache, max_priority, run=run)
    try:
        with progress("planning"):
            plan = defrag(state, chosen.name, wanted, found.movable, found.stays)
    except ValueError as error:
        raise Failure(str(error)) from None
    steps = tuple(
        StepView(
            tuple(domain_in_words(path) for path in step.freed),
            step.pods,
            tuple(
                MoveView(m.workload, found.jobs.get(m.workload, ""), m.pods, m.priority, m.before, m.after, m.nodes)
                for m in step.moves
            ),
        )
        for step in plan.steps
    )
    left = tuple(LeftView(key, found.jobs[key], why) for key, why in sorted(found.left.items()))
    return DefragReport(chosen.name, plan.level, plan.domains, *plan.whole, steps, left)


def tenants(dump: Dump, cache: Cache, max_priority: int | None, *, run: bool = False) -> Tenants:
    """Who may move."""
    state = cache.state
    movable: dict[str, Movable] = {}
    left: dict[str, str] = {}
    jobs: dict[str, str] = {}
    wires = {objects.key(pod): pod for pod in dump.of(kinds.PODS)}
    claimed: dict[str, list[str]] = {}
    for pod in state.pods.values():
        # Only pods that hold a slot of an assignment have a place that a move could give back.
        if pod.claim is not None and pod.claim[0] in state.workloads:
            claimed.setdefault(pod.claim[0], []).append(pod.key)
    for entry in cache.entries.values():
        key = entry.key
        if key not in state.workloads:
            continue
        pods = tuple(sorted(claimed.get(key, ())))
        jobs[key] = f"{entry.job.namespace}/{entry.job.name}"
        # The highest of its pods: --max-priority protects a workload with even one such pod.
        priority = max((wires[pod].spec.priority or 0 for pod in pods), default=0)
        made = _movable(cache, entry, pods, priority)
        why = made if isinstance(made, str) else _must_stay(dump, [wires[pod] for pod in pods], priority, max_priority)
        # Only --run asks what the controller refuses to move; a plan alone may assume that a person moves it.
        why = why or (relocation.unmovable(cache, entry) if run else "")
        if why or isinstance(made, str):
            left[key] = why
        else:
            movable[key] = made
    known = {pod for pods in claimed.values() for pod in pods}
    stays = set(_fixed(state, {key: pod for key, pod in wires.items() if key not in known}))
    return Tenants(movable, left, jobs, stays)


def _movable(cache: Cache, entry: WorkloadEntry, pods: tuple[str, ...], priority: int) -> Movable | str:
    """The workload as it would be placed again, or why that is not known."""
    if (wrong := entry.job.wrong) is not None:
        return f"its request cannot be read: {wrong}"
    held, pod_sets, flavors = cache.state.assignments(entry.key), [], []
    for owned in entry.job.pod_sets:
        if (now := held.get(owned.name)) is None:
            continue  # it has quota and no slots
        topology: TopologyRequest | None = TopologyRequest(policy=Policy.UNCONSTRAINED)
        if owned.request is not None:
            topology = resolve(owned.request, now.levels)
        # Levels of a flavor may change under a workload that runs.
        if topology is None:
            return f"flavor {now.flavor} has no longer the level that it requests"
        pod_sets.append(cache.pod_sets.pod_set(entry, owned, topology, now.count))
        flavors.append(now.flavor)
    return Movable(tuple(pod_sets), tuple(flavors), pods, priority, as_one(entry))


def _must_stay(dump: Dump, pods: Sequence[objects.Pod], priority: int, max_priority: int | None) -> str:
    """Why a workload must not be moved; "" where it may."""
    if max_priority is not None and priority > max_priority:
        return f"its priority is {priority}, above --max-priority {max_priority}"
    for budget in dump.of(kinds.BUDGETS):
        selector = convert.label_selector(budget.spec.selector)
        own = [
            pod
            for pod in pods
            if pod.metadata.namespace == budget.metadata.namespace and selects(selector, pod.metadata.labels or {})
        ]
        # A gang goes as a whole: a budget that lets a part go lets none of it go.
        if len(own) > budget.status.disruptions_allowed:
            allowed = budget.status.disruptions_allowed
            return f"PodDisruptionBudget {budget.metadata.name} lets {allowed} of its {len(own)} pods be evicted now"
    return ""


def _fixed(state: ClusterState, foreign: dict[str, objects.Pod]) -> Iterator[str]:
    """Nodes that cannot become idle: with pods that are not ours to move, or out of order."""
    for name, node in state.nodes.items():
        if not node.ready or node.unschedulable:
            yield name
    resource = measured(state)
    for key, pod in foreign.items():
        owner = objects.controller_of(pod.metadata)
        charged = state.pods.get(key)
        if charged is None or (owner is not None and owner.kind in HARMLESS):
            continue
        # Where devices count, a small foreign pod without one does not keep a node from being whole.
        if "/" not in resource or charged.requests.get(resource, 0):
            yield charged.node


def _table(found: DefragReport) -> Group:
    pods = sum(step.pods for step in found.steps)
    text = (
        f"{found.whole_now} of {found.domains} domains of {found.level} are whole; after {len(found.steps)} steps and "
        f"{pods} moved pods {found.whole_then} would be."
    )
    left = [Text(f"left: {one.job}: {one.why}") for one in found.left]
    if not found.steps:
        now = f"{found.whole_now} of {found.domains} domains of {found.level} are whole"
        return Group(Text(f"{now}; no move would free another."), *left)
    made = Table("STEP", "JOB", "PODS", "PRIORITY", "FROM", "TO", "FREES", box=None)
    for number, step in enumerate(found.steps, 1):
        for at, move in enumerate(step.moves):
            frees = ", ".join(step.frees) if at == 0 else ""
            before, after = _nodes(move.before), _nodes(move.after)
            made.add_row(str(number), move.job, str(move.pods), str(move.priority), before, after, frees)
    return Group(Text(text), made, *left)


def _nodes(where: dict[str, int]) -> str:
    return ", ".join(name if count == 1 else f"{name} ({count})" for name, count in where.items())

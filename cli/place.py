"""``topogate place -f FILE``: where the pods of a manifest would go, or exactly why not."""

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cli.cluster import cluster_snapshot, manifests, room_report
from cli.cluster import required_evictions as reliefs
from cli.cluster.claimed_devices import Predictor
from cli.cluster.dry_run import DryRunOutcome, rehearse
from cli.cluster.dump import FoundObject
from cli.cluster.manifests import NAMED, Maker, Manifest
from cli.cluster.pod_zones import PodZone, pod_zones, zones_in_words
from cli.cluster.required_evictions import Relief
from cli.cluster.room_report import CLOSEST, Room, listed
from cli.cluster.tried import Tried, tried
from cli.connected import connected
from cli.explain.rendering import short
from cli.options import InstalledDomain
from cli.output import Context, Failure, Kubeconfig, Output, OutputFormat, counted, emit, plain_table, stderr
from cli.reaching import CONNECTIONS, INSPECT, MayNotLook
from clock import SYSTEM
from crds.request import ParsedRequest
from engine.cluster.assignment import Assignment
from engine.cluster.state import ClusterState
from engine.reasons import Cure
from kube.pods import convert
from ungater.cache.cache import Cache
from ungater.model.conditions import timestamp
from ungater.model.pod_slots import rank_of
from ungater.model.workload_entry import WorkloadEntry

WAITS: Final = 3  # exit status: something would wait, or have to preempt
REFUSED: Final = 4  # exit status: something would not be accepted at all
DOMAINS: Final = 24  # in a table
_NO_EFFECT: Final = re.compile(r"([\w.]*(?:annotations|labels)\[[^\]]*\]) .*has no effect")


class PlaceState(StrEnum):
    """What would become of a workload."""

    PLACED = "Placed"
    PREEMPTS = "Preempts"  # placed once its victims are gone
    WAITS = "Waits"
    REFUSED = "Refused"  # the API server would not take it
    NOT_MANAGED = "NotManaged"  # kube-scheduler's alone
    ACCEPTED = "Accepted"  # by the API server; whoever asks may not see the nodes, and so not where it would go


class OnNode(msgspec.Struct, frozen=True):
    """Pods on one node. ``zones``: of each of them, where the inside of the node is known.

    ``devices``: of each of them, those that kube-scheduler would give to their claims, as things stand.
    """

    node: str
    pods: int
    zones: tuple[tuple[PodZone, ...], ...] = ()
    devices: tuple[tuple[str, ...], ...] = ()


class DomainPods(msgspec.Struct, frozen=True):
    """Pods in one domain of the narrowest level. ``first``: the rank of the first of them; ranks follow each other."""

    values: tuple[str, ...]
    pods: int
    first: int
    nodes: tuple[OnNode, ...]


class PlacedPodSet(msgspec.Struct, frozen=True, rename="camel"):
    """One pod set. ``domains`` is empty where its flavor has no topology, or it is not placed."""

    name: str
    count: int
    policy: str
    level: str
    per_pod: dict[str, str]
    ranked: bool = False
    flavor: str = ""
    levels: tuple[str, ...] = ()
    domains: tuple[DomainPods, ...] = ()


class VictimView(msgspec.Struct, frozen=True):
    """Who would be evicted."""

    workload: str
    job: str
    priority: int
    reason: str
    title: str = ""


class PlaceAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """What would become of one workload, or of an object that is none."""

    name: str
    namespace: str
    state: PlaceState
    reason: str
    message: str
    queue: str = ""
    pod_sets: tuple[PlacedPodSet, ...] = ()
    victims: tuple[VictimView, ...] = ()
    room: tuple[Room, ...] = ()
    relief: Relief | None = None
    warnings: tuple[str, ...] = ()
    kind: str = ""


def command(
    files: Annotated[
        list[str], typer.Option("-f", "--filename", metavar="FILE", help="Manifests; - is stdin. Repeat for more.")
    ],
    dry_run: Annotated[  # noqa: ARG001 -- scripts say it
        bool, typer.Option("--dry-run", help="Nothing is ever submitted, with it or without.")
    ] = True,
    namespace: Annotated[
        str | None, typer.Option("-n", "--namespace", help="Namespace of objects that name none.")
    ] = None,
    cluster: Annotated[
        list[str] | None,
        typer.Option("--cluster", metavar="FILE", help="A snapshot instead of the live cluster; repeat for more."),
    ] = None,
    domain: InstalledDomain = None,
    everything: Annotated[
        bool, typer.Option("--all", help=f"Show every domain where something waits, not the {CLOSEST} closest.")
    ] = False,
    output: Output = OutputFormat.TABLE,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Say where the pods of a manifest would go if it were submitted now, or exactly why not.

    Takes Jobs, JobSets, LeaderWorkerSets, Deployments, ReplicaSets, StatefulSets and Pods. The answer is the
    controller's own: its code, fed with one reading of the cluster. Nothing is submitted, and only reading rights are
    needed; who may create the objects also hears what the API server says to them.

    If you may not look at the nodes, it says whether the API server would accept the objects.

    The exit status is 0 if everything would be placed, 3 if something would wait, 4 if something would be refused.
    """
    try:
        dump, settings, own = cluster_snapshot.fetch(cluster, domain, kubeconfig, context)
    except MayNotLook:
        answers = _without_nodes(files, namespace, kubeconfig, context)
    else:
        where = namespace or own
        found = _read(files)
        # A snapshot has no API server that could be asked.
        heard = [] if cluster else _heard(found, where, kubeconfig, context)
        cache = cluster_snapshot.cache_of(dump, settings)
        now, asked = SYSTEM.now(), namespace or ""
        answers = report(cache, found, where, now, require_queue=settings.require_queue, heard=heard, asked=asked)
    emit(answers, output, table=render(answers, 0 if everything else CLOSEST))
    states = {answer.state for answer in answers}
    # The worst state decides: a script must not take a refusal for a wait.
    if PlaceState.REFUSED in states:
        raise typer.Exit(REFUSED)
    if states & {PlaceState.WAITS, PlaceState.PREEMPTS}:
        raise typer.Exit(WAITS)


def _read(files: Sequence[str]) -> list[FoundObject]:
    found, passed = manifests.read(files)
    if passed:
        stderr().print(f"not looked at: {', '.join(manifests.kinds_of(passed))}", soft_wrap=True)
    return found


def _without_nodes(
    files: Sequence[str], namespace: str | None, kubeconfig: str | None, context: str | None
) -> list[PlaceAnswer]:
    """What the API server says to the objects: all that can be told without a look at the nodes. Failure."""
    heard = _heard(_read(files), namespace, kubeconfig, context)
    accepted = f"the API server takes it; where its pods would go requires reading the nodes: {INSPECT}"
    return [
        PlaceAnswer(
            name=f"{one.kind.lower()}/{one.name}",
            namespace=own,
            state=PlaceState.REFUSED if refusal else PlaceState.ACCEPTED,
            reason="",
            message=refusal or accepted,
            kind=one.kind,
            warnings=warnings,
        )
        for one, own, refusal, warnings, _ in heard
        if one.kind not in NAMED or refusal or warnings
    ]


def _heard(
    found: Sequence[FoundObject], namespace: str | None, kubeconfig: str | None, context: str | None
) -> list[Tried]:
    work = partial(tried, namespace=namespace, objects=found)
    return connected(work, kubeconfig, context, connections=CONNECTIONS)


def report(
    cache: Cache,
    found: Sequence[FoundObject],
    namespace: str,
    now: float,
    *,
    require_queue: bool = False,
    heard: Sequence[Tried] = (),
    asked: str = "",
) -> list[PlaceAnswer]:
    """What would become of all of them, submitted together and in this order. Failure where an object is malformed.

    ``heard``: what the API server said to each of them; ``asked``: as `Maker` has it.
    """
    # One maker for all objects: uids that came twice would be one owner to the cache.
    maker = Maker(cache, cache.keys, namespace, timestamp(now), require_queue=require_queue, asked=asked)
    made = [maker.make_manifest(one) for one in found]
    for one, said in zip(made, heard, strict=False):  # none where the cluster is a snapshot
        # Our own webhook's refusal is reported in its own words; the API server's repeats them.
        if said.refusal and not said.unfit and not one.denied:
            one.deny(f"the API server would refuse it: {said.refusal}", "")
        told = {_about(text) for text in one.warnings} - {""}
        # Our own hint names the key that is closest; that of the admission policy one of a few.
        one.warn(*(text for text in said.warnings if _about(text) not in told))
    accepted = [one for one in made if not one.denied]
    jobs = [job for one in accepted for job in one.jobs]
    pods = [pod for one in accepted for pod in one.pods]
    try:
        outcomes = rehearse(
            cache,
            jobs,
            pods,
            now,
            job_sets=[job_set for one in accepted for job_set in one.job_sets],
            leader_sets=[leader_set for one in accepted for leader_set in one.leader_sets],
            claims={key: spec for one in accepted for key, spec in one.claims.items()},
            templates=[template for one in accepted for template in one.templates],
            device_claims=[claim for one in accepted for claim in one.device_claims],
        )
    except ValueError as error:
        raise Failure(str(error)) from None
    answers = [
        PlaceAnswer(
            one.title, one.namespace, PlaceState.REFUSED, one.reason, one.denied, warnings=one.warnings, kind=one.kind
        )
        for one in made
        if one.denied
    ]
    warnings = {warning: None for one in accepted for warning in one.warnings}
    # Each group of a LeaderWorkerSet is a workload of its own, which is reported by its own name.
    written_as = {pod.metadata.uid: one for one in accepted if not one.leader_sets for pod in one.pods}
    # One for all answers: devices that one workload would get are not told again for the next.
    predictor = Predictor(cache.state)
    answers += [_answer(cache, outcome, written_as, predictor) for outcome in outcomes]
    # By uid of the job or its pods: either may be what the user wrote.
    managed = {uid for outcome in outcomes for uid in (outcome.entry.job.uid, *outcome.entry.pods)}
    for one in accepted:
        if one.kind not in NAMED and not managed & _uids(one):
            text = "it asks for no topology and no queue: kube-scheduler places its pods alone"
            if not _uids(one):
                text = "it has no pods"
            answers.append(PlaceAnswer(one.title, one.namespace, PlaceState.NOT_MANAGED, "", text, kind=one.kind))
    if warnings and answers:
        # Once for all objects, as a person reads them from the top.
        answers[0] = msgspec.structs.replace(answers[0], warnings=(*answers[0].warnings, *warnings))
    return answers


def _about(warning: str) -> str:
    """The label or annotation of which it says that it has no effect, with its place; "": it says something else."""
    found = _NO_EFFECT.search(warning)
    return found[1] if found is not None else ""


def _uids(one: Manifest) -> set[str]:
    return {obj.metadata.uid for obj in (*one.jobs, *one.job_sets, *one.pods)}


def _answer(
    cache: Cache, outcome: DryRunOutcome, written_as: Mapping[str, Manifest], predictor: Predictor
) -> PlaceAnswer:
    """``written_as``: by uid of a pod, what the user wrote that it comes of."""
    entry, owner = outcome.entry, outcome.entry.job
    written = {(one.kind, one.title) for uid in entry.pods if (one := written_as.get(uid)) is not None}
    # Pods of a Deployment belong to a ReplicaSet that the user never wrote.
    kind, name = written.pop() if len(written) == 1 else (owner.kind, f"{owner.kind.lower()}/{owner.full_name}")
    state = PlaceState.PLACED if outcome.placed else PlaceState.PREEMPTS if outcome.victims else PlaceState.WAITS
    if state is PlaceState.WAITS and outcome.reason.traits.cure is Cure.REQUEST:
        state = PlaceState.REFUSED
    room: tuple[Room, ...] = ()
    if state is PlaceState.WAITS:
        # The domains for its largest pod set, of the flavors of its queue.
        local = cache.queues.config.local.get((owner.namespace, owner.queue)) if owner.queue else None
        queue = cache.queues.quotas.queues.get(local.cluster_queue) if local is not None else None
        flavors = None if queue is None else {quotas.flavor for group in queue.groups for quotas in group.flavors}
        room = room_report.rooms_of_entry(cache, entry, flavors)
    return PlaceAnswer(
        name=name,
        kind=kind,
        namespace=owner.namespace,
        state=state,
        reason=str(outcome.reason),
        message=outcome.message,
        queue=owner.queue,
        pod_sets=tuple(_pod_sets(cache.state, entry, {part.pod_set: part for part in outcome.assignments}, predictor)),
        victims=tuple(_victims(cache, outcome)),
        room=room,
        relief=reliefs.relief(cache, entry, outcome.reason, room) if state is PlaceState.WAITS else None,
    )


def _pod_sets(
    state: ClusterState, entry: WorkloadEntry, parts: Mapping[str, Assignment], predictor: Predictor
) -> Iterator[PlacedPodSet]:
    for owned in entry.job.pod_sets:
        part, request = parts.get(owned.name), owned.request
        domains: list[DomainPods] = []
        if part is not None:
            first, devices = 0, predictor.predict_devices(entry.key, part)
            for piece in part.slices:
                nodes = []
                for node, count in piece.nodes:
                    zones = tuple(map(pod_zones, state.placements(entry.key, part.pod_set, node)))
                    nodes.append(OnNode(node, count, zones, devices.get(node, ())))
                domains.append(DomainPods(piece.values, piece.count, first, tuple(nodes)))
                # Slices are in rank order, so the ranks of a piece follow those of the one before.
                first += piece.count
        yield PlacedPodSet(
            name=owned.name,
            count=part.count if part is not None else owned.count,
            policy=str(request.policy) if isinstance(request, ParsedRequest) else "",
            level=(request.level or "") if isinstance(request, ParsedRequest) else "",
            # Ranks are reported only where pods have them: else which pod goes where is open.
            ranked=owned.ranks is not None or any(rank_of(pod) is not None for pod in entry.pods.values()),
            per_pod=listed(convert.pod_requests(owned.template.spec)),
            flavor=part.flavor if part is not None else "",
            levels=part.levels if part is not None else (),
            domains=tuple(domains),
        )


def _victims(cache: Cache, outcome: DryRunOutcome) -> Iterator[VictimView]:
    for victim in outcome.victims:
        entry = cache.entries.of_workload(victim.key)
        job = f"{entry.job.namespace}/{entry.job.kind.lower()}/{entry.job.name}" if entry is not None else ""
        title = cache.queues.title_of(victim.key)
        yield VictimView(str(victim.key), job, victim.priority, str(victim.reason), title)


# --- for people ----------------------------------------------------------------------------------------------------


_SAID: Final = {PlaceState.WAITS: "Waiting"}  # as `topogate explain` says it
_STYLES: Final = {PlaceState.PLACED: "bold green", PlaceState.WAITS: "bold yellow", PlaceState.PREEMPTS: "bold yellow"}


def render(answers: Sequence[PlaceAnswer], most: int = CLOSEST) -> RenderableType:
    """The answers as a person reads them."""
    parts: list[RenderableType] = []
    for answer in answers:
        parts += [*_answer_lines(answer, most), Text("")]
    return Group(*parts[:-1])


def _answer_lines(answer: PlaceAnswer, most: int) -> Iterator[RenderableType]:
    pods = sum(one.count for one in answer.pod_sets)
    head = f"{answer.kind} {answer.namespace}/{answer.name.partition('/')[2]}"
    yield Text.assemble(
        (head, "bold"),
        f"  {counted(pods, 'pod')}" if pods else "",
        f", queue {answer.queue}" * bool(answer.queue),
    )
    told = answer.message
    if answer.reason and answer.state is not PlaceState.PLACED:
        told = f"{answer.reason}: {told}"
    yield Text.assemble((_SAID.get(answer.state, answer.state.value), _STYLES.get(answer.state, "bold")), f"  {told}")
    for one in answer.pod_sets:
        if one.domains:
            yield _landing_table(one, named=len(answer.pod_sets) > 1)
            yield from _zone_tables(one)
    if answer.victims:
        evicted = plain_table("WOULD BE EVICTED", "PRIORITY", "RULE")
        for victim in answer.victims:
            evicted.add_row(victim.title, str(victim.priority), victim.reason)
        yield evicted
    if answer.room:
        yield room_report.table(answer.room, pods, most)
        yield from room_report.notes(answer.room)
    if answer.relief is not None:
        yield Text("")
        yield from reliefs.render(answer.relief)
    for warning in answer.warnings:
        yield Text(f"Warning: {warning}", "yellow")


def _landing_table(one: PlacedPodSet, *, named: bool) -> Table:
    hosts = any(len(landing.nodes) != 1 or landing.nodes[0].node != landing.values[-1] for landing in one.domains)
    heads = [*map(short, one.levels), *["NODES"] * hosts, ">PODS", *["RANKS"] * one.ranked]
    table = plain_table(*heads, title=f"pod set {one.name}" if named else None, title_justify="left")
    before: tuple[str, ...] = ()
    for landing in one.domains[:DOMAINS]:
        cells = [v if landing.values[: i + 1] != before[: i + 1] else "" for i, v in enumerate(landing.values)]
        if hosts:
            cells.append(", ".join(f"{node.node} ({node.pods})" for node in landing.nodes))
        cells.append(str(landing.pods))
        if one.ranked:
            last = landing.first + landing.pods - 1
            cells.append(str(landing.first) if landing.pods == 1 else f"{landing.first}-{last}")
        table.add_row(*cells)
        before = landing.values
    more = one.domains[DOMAINS:]
    if more:
        table.add_row(
            f"and {len(more)} more domains with {sum(landing.pods for landing in more)} pods; -o json has all"
        )
    return table


def _zone_tables(one: PlacedPodSet) -> Iterator[Table]:
    """The NUMA zones and devices of each pod, where they are known."""
    nodes = [node for landing in one.domains for node in landing.nodes if node.zones or node.devices]
    if not nodes:
        return
    table = plain_table("NODE", "POD", "ZONES", "DEVICES")
    for node in nodes[:DOMAINS]:
        several = max(len(node.zones), len(node.devices))
        for at in range(several):
            zones, devices = (node.zones[at : at + 1] or ((),))[0], (node.devices[at : at + 1] or ((),))[0]
            table.add_row("" if at else node.node, f"{at + 1} of {several}", *zones_in_words(zones, devices))
    yield table

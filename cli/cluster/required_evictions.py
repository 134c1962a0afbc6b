"""What would have to be freed for a workload that waits for room, who holds it, and whether preemption may take it.

The smallest sacrifice is found by the search for victims itself, asked as if the workload outranked all others in one
queue: least highest priority first, then the least sum of priorities, then the fewest. What policies allow is another
question, and is answered beside it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from cli.cluster.holders import ClusterHolder, holders, nodes_of
from cli.cluster.room_report import Room, listed
from cli.output import plain_table
from engine.cluster.assignment import Assignment
from engine.cluster.levels import domain_in_words
from engine.cluster.state import ClusterState
from engine.reasons import Cure, Reason, Short, traits_of
from engine.reservation_key import Role, role_of
from engine.results import Refusal
from kube import objects
from queueing.cycle import growth
from queueing.cycle.nominate import Preempts, nominate
from queueing.messages import clock_time
from queueing.model import (
    ClusterQueue,
    LocalQueue,
    NonPreemptible,
    OutsidePod,
    Preemption,
    Reclaim,
    Rules,
    Within,
    Workload,
    asks_of,
    exceeds,
)
from queueing.preemption.cohort_reach import nodes_between
from queueing.preemption.plan import Plan
from queueing.queues.entry import AssumedAdmission, Entry
from queueing.queues.minimum_run_time import Taking, safe_until
from queueing.queues.queues import Queues
from ungater.cache.cache import Cache
from ungater.cache.held.reservations import UNQUEUED
from ungater.model.workload_entry import WorkloadEntry

HIGHEST: Final = (1 << 31) - 1  # no priority is higher
EVERYBODY: Final = "(everybody)"  # no legal name of a queue
NAMED: Final = 8
# Why a node takes no pods, whoever goes.
_OUT_OF_ORDER: Final = {
    Reason.NODE_NOT_READY: "not ready",
    Reason.NODE_UNSCHEDULABLE: "cordoned",
    Reason.NODE_TAINTED: "tainted",
}
_STAYS: Final = frozenset({"DaemonSet", "Node"})  # owners of pods that come back where they were


class HolderView(msgspec.Struct, frozen=True):
    """Who holds something. ``workload`` is empty for pods that Topogate did not place."""

    name: str
    namespace: str
    workload: str
    priority: int
    pods: int
    amounts: dict[str, str]
    title: str = ""  # Job team-a/train


class Relief(msgspec.Struct, frozen=True, rename="camel"):
    """What would help.

    ``domain`` is the one that comes closest now, ``fits`` how many pods it takes and ``missing`` what it lacks for the
    rest; ``held_by`` who holds some of that there, the lowest priority first. ``enough``: the least that would have to
    go so that the workload fits, in ``enough_in``; empty where nothing of that kind helps. ``preemption``: whether it
    may be taken from them.
    """

    flavor: str
    domain: tuple[str, ...]
    fits: int
    count: int
    missing: dict[str, str]
    held_by: tuple[HolderView, ...]
    enough: tuple[HolderView, ...]
    enough_in: tuple[str, ...]
    preemption: str


def relief(
    cache: Cache, entry: WorkloadEntry, reason: str, room: Sequence[Room], more: Mapping[str, int] | None = None
) -> Relief | None:
    """None where no room is lacking, or nobody knows how much. ``room``: the domains, the roomiest first.

    ``more``: how many pods it wants beside those it has, by pod set; None: it has none and wants all.
    """
    queued = cache.queues.entries.get(entry.key)
    traits = traits_of(reason)
    room_helps = (traits.short is Short.ROOM and traits.cure is Cure.OTHERS) or reason == Reason.BEHIND_OTHERS
    if queued is None or not room_helps:
        return None
    best = next((one for one in room if one.values), None)
    held: list[ClusterHolder] = []
    if best is not None and (tree := cache.state.tree(best.flavor)) is not None:
        within = len(best.values)
        held = holders(
            cache, [name for name, path in zip(tree.names, tree.paths, strict=True) if path[:within] == best.values]
        )
    # A holder of what is not short stands in nobody's way.
    short = set(best.missing) if best is not None else set()
    in_the_way = [one for one in held if one.workload != entry.key and short & one.amounts.keys()]
    enough, where = _required_victims(cache, queued, more)
    return Relief(
        flavor=best.flavor if best else "",
        domain=best.values if best else (),
        fits=best.fits if best else 0,
        count=sum(pod_set.count for pod_set in queued.workload.pod_sets) if more is None else sum(more.values()),
        missing=best.missing if best else {},
        held_by=tuple(map(_view, in_the_way)),
        enough=tuple(map(_view, enough)),
        enough_in=where,
        preemption=_preemption(cache, queued, enough) or _in_the_way(reason, best, in_the_way),
    )


def _view(one: ClusterHolder) -> HolderView:
    amounts = listed({name: amount for name, amount in sorted(one.amounts.items()) if amount})
    return HolderView(one.name, one.namespace, one.workload, one.priority, one.pods + one.slots, amounts, one.title)


# --- the least that would have to go ---------------------------------------------------------------------------------


def _required_victims(
    cache: Cache, queued: Entry, more: Mapping[str, int] | None
) -> tuple[list[ClusterHolder], tuple[str, ...]]:
    """Who would have to go, and where the workload would be then (what its slices have in common)."""
    state = cache.state
    # Everything below is tried on the live mirror; `rollback` takes it back, also where a search raises.
    checkpoint = state.begin()
    try:
        queues = _everybody(cache, queued.workload)
        plan = _plan(state, queues, queued.workload) if more is None else _plan_of_growth(state, queues, queued, more)
        if plan is None:
            return [], ()
        # Read before the rollback, which takes the assignments back.
        paths = [piece.values[: _depth(part)] for part in plan.assignments for piece in part.slices]
        gone = {victim.key for victim in plan.victims}
        outside = {
            one.outside.key for key, one in queues.holders.outside.items() if key in gone and one.outside is not None
        }
    finally:
        state.rollback(checkpoint)
    # The victims as holders of all that they hold, the lowest priority first.
    names = {node for key in gone for part in state.assignments(key).values() for node in nodes_of(part)}
    names |= {state.pods[key].node for key in outside}
    victims = [
        one for one in holders(cache, names) if one.workload in gone or (not one.workload and one.keys & outside)
    ]
    if not paths:
        return victims, ()
    # What the least and the greatest path share, all between them share: the domain that all of them are in.
    first, last = min(paths), max(paths)
    same = next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    return victims, first[:same]


def _plan(state: ClusterState, queues: Queues, workload: Workload) -> Plan | None:
    """Victims for all of it."""
    asked = _above_all(queues, workload)
    queues.submit(asked, 0.0)
    queued = queues.entries[asked.key]
    # Without a queue the submission was refused, and there is nothing to search for.
    found = nominate(state, queues, queued) if queued.queue else None
    return found.plan if isinstance(found, Preempts) else None


def _plan_of_growth(state: ClusterState, queues: Queues, queued: Entry, more: Mapping[str, int]) -> Plan | None:
    """Victims for the pods that it wants beside those it has."""
    held, key = queued.grant, queued.workload.base
    if held is None:
        return None
    parts = tuple(state.assignments(key).values())
    # No amounts: the one queue is unlimited, and quota is not what is asked about.
    grant = msgspec.structs.replace(held, queue=EVERYBODY, amounts={}, assignments=parts)
    queues.restore_workload(state, _above_all(queues, queued.workload), grant, 0.0)
    queues.wish(key, {name: grant.counts.get(name, 0) + count for name, count in more.items()})
    # Growth preempts only after it was refused for want of room.
    queues.entries[key].record_refusal(Refusal(Reason.DOES_NOT_FIT, ""))
    found = growth.nominate_growth(state, queues, key)
    return found.plan if found is not None else None


def _above_all(queues: Queues, workload: Workload) -> Workload:
    """The workload as if it outranked all others."""
    # All of it at once: `at_least` would let a part of the pods count as room enough.
    asked = msgspec.structs.replace(workload, queue="", priority=HIGHEST, pod_priority=HIGHEST, at_least={})
    queues.set_local_queue(LocalQueue(namespace=asked.namespace, name="", cluster_queue=EVERYBODY))
    return msgspec.structs.replace(asked, preempts=True, non_preemptible=NonPreemptible.NEVER)


def _depth(part: Assignment) -> int:
    """How many values name a domain of the level that was requested; of the narrowest but one, where none was."""
    level = part.source.topology.level if part.source is not None else None
    return part.levels.index(level) + 1 if level in part.levels else max(1, len(part.levels) - 1)


def _everybody(cache: Cache, workload: Workload) -> Queues:
    """All that hold something, and all other pods that could be evicted, in one queue that may preempt anybody."""
    victims = cache.queues.victim_rules(_queue_of(cache, workload))
    queues = Queues(Rules(victims=victims, pods=True))
    everything = Preemption(within=Within.LOWER, non_preemptible=NonPreemptible.BY_WORKLOAD)
    queues.set_cluster_queue(ClusterQueue(name=EVERYBODY, unlimited=True, preemption=everything))
    for key, queued in cache.queues.entries.items():
        held = cache.state.assignments(key)
        if queued.grant is None or not held or role_of(key) is Role.GROWTH or key == workload.key:
            continue  # what is kept for growth is nobody's who could be evicted
        # Priority alone cannot protect these from a workload that outranks everybody.
        spared = key in cache.queues.holders.non_preemptible
        said = NonPreemptible.BY_WORKLOAD if spared else NonPreemptible.NEVER
        one = msgspec.structs.replace(queued.workload, queue="", non_preemptible=said)
        queues.set_local_queue(LocalQueue(namespace=one.namespace, name="", cluster_queue=EVERYBODY))
        grant = AssumedAdmission(EVERYBODY, queued.grant.counts, {}, {}, tuple(held.values()))
        queues.restore_workload(cache.state, one, grant, 0.0)
    for pod in cache.state.pods.values():
        # The search takes the bound pods of a victim out of the engine's state, and puts them back.
        if pod.claim is not None and pod.claim[0] in queues.entries:
            queues.bind(pod.key, pod.claim[0])
    for wire in _foreign(cache):
        pod = cache.state.pods[objects.key(wire)]
        priority = wire.spec.priority or 0
        queues.holders.set_pod(
            OutsidePod(key=pod.key, uid=wire.metadata.uid, node=pod.node, priority=priority, requests=pod.requests)
        )
    return queues


def _foreign(cache: Cache) -> Iterator[objects.Pod]:
    """Bound pods that Topogate did not place and that would not come back to their node at once."""
    for name in cache.state.nodes:
        for wire in cache.stores.pods_on(name):
            owner, pod = objects.controller_of(wire.metadata), cache.state.pods.get(objects.key(wire))
            if pod is not None and pod.claim is None and (owner is None or owner.kind not in _STAYS):
                yield wire


# --- whether it may be taken -----------------------------------------------------------------------------------------


def _preemption(cache: Cache, queued: Entry, enough: Sequence[ClusterHolder]) -> str:
    workload = queued.workload
    queue = cache.queues.quotas.queues.get(_queue_of(cache, workload))
    asked, granted = asks_of(workload), queued.grant.asks if queued.grant is not None else {}
    # Asked first: it holds whoever is in the way.
    if any(name in asked and exceeds(asked[name], ask) for name, ask in granted.items()):
        return "preemption cannot help: pods that ask for more than was granted to each evict nobody"
    if not enough:
        return ""
    if queue is None or queue.name == UNQUEUED:
        return "preemption cannot help: a job without a queue evicts nobody"
    if not workload.preempts:
        return "preemption cannot help: it evicts nobody (preemptionPolicy Never, of its priority class or its pods)"
    if not queue.preemption.any:
        return f"preemption cannot help: ClusterQueue {queue.name} allows none (spec.preemption)"
    return _of_these(cache, workload, enough, queue)


def _in_the_way(reason: str, best: Room | None, held: Sequence[ClusterHolder]) -> str:
    """Why there is nobody whose eviction would help, as far as the closest domain tells."""
    if reason == Reason.BEHIND_OTHERS:
        return "no eviction is needed: what it would have is kept for others that come first"
    out = {name: best.excluded[name] for name in _OUT_OF_ORDER if name in best.excluded} if best is not None else {}
    if best is not None and out:
        nodes = ", ".join(f"{count} {_OUT_OF_ORDER[name]}" for name, count in out.items())
        return f"no eviction would help: nodes of {domain_in_words(best.values)} are out of order ({nodes})"
    if held:
        return "no eviction would help: what is in the way comes back by itself, or cannot be preempted"
    return "no eviction was found that would help"


def _of_these(cache: Cache, workload: Workload, enough: Sequence[ClusterHolder], queue: ClusterQueue) -> str:
    """The same of a queue that may preempt."""
    queues = [_holds_in(cache, one) for one in enough]
    kept = [
        f"{one.title} {why}"
        for one, name in zip(enough, queues, strict=True)
        if (why := _why_kept(cache, workload, queue, one, name))
    ]
    if kept:
        more = f"; {len(kept) - 1} more of them cannot be taken either" if len(kept) > 1 else ""
        return f"preemption cannot help: {kept[0]}{more}"
    foreign = sorted({name for name in queues if name and name != queue.name})
    if foreign:
        named = ", ".join(foreign)
        return f"preemption may help only as ClusterQueue {queue.name} may take from others: they are in {named}"
    return f"ClusterQueue {queue.name} may preempt them; it is looked at again in the next cycle"


def _holds_in(cache: Cache, one: ClusterHolder) -> str:
    """The cluster queue whose quota it holds; "": none."""
    queued = cache.queues.entries.get(one.workload)
    return queued.queue if queued is not None and queued.queue != UNQUEUED else ""


def _why_kept(cache: Cache, workload: Workload, queue: ClusterQueue, one: ClusterHolder, name: str) -> str:
    """Why policies protect one that would have to go from a workload of this queue, whatever quota is used; "": not.

    ``name``: the cluster queue that it holds quota of.
    """
    policy, own = queue.preemption, workload.priority
    if not name and (one.workload or not cache.queues.rules.pods):
        return "is not in any queue"
    if not name:
        lower, newer = one.priority < workload.outranks, False
    elif name == queue.name:
        if policy.within is Within.NEVER:
            return f"is in ClusterQueue {name} itself, which evicts none of its own (withinClusterQueue Never)"
        created = cache.queues.entries[one.workload].workload.created
        newer = policy.within is Within.LOWER_OR_NEWER and one.priority == own
        lower = one.priority < own or (newer and created > workload.created)
    else:
        if name not in cache.queues.quotas.members(queue.name):
            return f"is in ClusterQueue {name}, which is not in the cohort of ClusterQueue {queue.name}"
        if policy.reclaim is Reclaim.NEVER:
            return f"is in ClusterQueue {name}, and {queue.name} takes from no other (reclaimWithinCohort Never)"
        lower, newer = policy.reclaim is Reclaim.ANY or one.priority < own, False
    if lower:
        return _why_safe(cache, queue, one, name)
    return f"has its priority ({own}) and is no newer" if newer else f"has its priority ({own}) or a higher one"


def _why_safe(cache: Cache, queue: ClusterQueue, one: ClusterHolder, name: str) -> str:
    """Why it has not run for long enough to be taken by a workload of this queue; "": it has."""
    queued, nodes = cache.queues.entries.get(one.workload), cache.queues.quotas.tree.queues
    if queued is None or name not in nodes or queue.name not in nodes:
        return ""
    times = cache.queues.run_times
    if name == queue.name:
        minimum = times.minimum_above(nodes[name], Taking.WITHIN)
    else:
        # No search was made here that says by which right it would take: the least is what holds against all of them.
        minimum = times.least_above(nodes_between(nodes[queue.name], nodes[name])[-1])
    until = safe_until(queued.admitted_at, queued.ready_at, minimum.seconds)
    whose = f" of {minimum.source}" if minimum.source else ""
    return f"is safe from eviction until {clock_time(until)} (minimumRunTime{whose})" if until > times.now else ""


def _queue_of(cache: Cache, workload: Workload) -> str:
    local = cache.queues.config.local.get((workload.namespace, workload.queue))
    return local.cluster_queue if local is not None else ""


# --- for people ------------------------------------------------------------------------------------------------------


def render(found: Relief) -> Iterator[RenderableType]:
    """What would help, as a person reads it."""
    if found.domain:
        yield Text(f"Closest: {domain_in_words(found.domain)}")
    if found.held_by:
        yield _table("HELD THERE BY", found.held_by)
    if found.enough:
        where = f" in {domain_in_words(found.enough_in)}" if found.enough_in else ""
        yield Text(f"It would fit{where} if these were gone, and not with any of them left")
        yield _table("WOULD HAVE TO GO", found.enough)
    if found.preemption:
        yield Text(found.preemption[:1].upper() + found.preemption[1:])


def _table(head: str, found: Sequence[HolderView]) -> Table:
    table = plain_table(head, ">PRIORITY", ">PODS", "HOLDS")
    for one in found[:NAMED]:
        amounts = ", ".join(f"{amount} {name}" for name, amount in one.amounts.items() if name != "pods")
        ours = "" if one.workload else " (not placed by Topogate)"
        table.add_row(f"{one.title or one.name}{ours}", str(one.priority), str(one.pods), amounts)
    if len(found) > NAMED:
        table.add_row(f"and {len(found) - NAMED} more", "", "", "")
    return table

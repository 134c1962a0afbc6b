"""Who waits where, in which place, for what; and how much of each quota is used: `QueuesReport`."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import isinf

import msgspec

from cli.cluster import live_queues
from cli.cluster.live_queues import QueueReading, owner_name
from cli.output import Failure, counted
from cli.queues.cohorts import CohortView, consumed_over_time, path_of, share_over_time
from cli.queues.cohorts import views as cohort_views
from crds.spelling import meant
from engine.quantity import format_quantity
from engine.reasons import Reason
from engine.reservation_key import HolderKey
from engine.results import Refusal
from kube.objects import condition
from queueing.explain import explain
from queueing.model import LocalQueue
from queueing.queues.entry import Entry, Phase
from queueing.queues.queues import Queues
from queueing.status import Standing, Standings, standings

MOST_WORDS = 90  # characters of a message in a table
_OF_QUOTA = frozenset({str(Reason.INSUFFICIENT_QUOTA), str(Reason.EXCEEDS_QUOTA)})
NOT_SEEN = "the controller has not looked at it yet; is `topogate ungater` running?"


class QuotaUse(msgspec.Struct, frozen=True):
    """One quota of a cluster queue. ``used`` counts what is reserved; ``free``: what may be taken now, borrowed too.

    ``missing``: there is no such flavor, so nothing of it can be taken.
    """

    flavor: str
    resource: str
    nominal: str
    used: str
    borrowed: str
    free: str
    borrowing_limit: str | None = None
    lending_limit: str | None = None
    missing: bool = False


class WaitingWorkload(msgspec.Struct, frozen=True):
    """A workload that waits. ``position``: 1 is next; None where it is in no line: nominated, put off, or on hold."""

    position: int | None
    workload: str
    job: str
    local_queue: str
    priority: int  # with its boost
    age_seconds: int
    wants: dict[str, str]
    reason: str
    message: str
    short: str  # what it waits for in a few words
    victims: tuple[str, ...] = ()
    boost: int = 0


class LocalQueueUse(msgspec.Struct, frozen=True):
    """What workloads of one LocalQueue (``NAMESPACE/NAME``) hold of a cluster queue, and how many wait for how long.

    ``weight``, ``score`` and ``consumed`` (by resource) are of a cluster queue whose LocalQueues share it by what they
    used over time; ``score`` is None too where the weight is 0, which is last.
    """

    name: str
    pending: int
    admitted: int
    used: dict[str, str]  # by resource, in all flavors
    longest_wait_seconds: int | None
    weight: str | None = None
    score: float | None = None
    consumed: dict[str, str] | None = None


class RunTimeView(msgspec.Struct, frozen=True):
    """How long workloads of a cluster queue run at least before others may have them evicted.

    ``cohort``: from queues that it meets there first; "" from its own. ``source``: the ClusterQueue or Cohort that says
    so; "" the settings.
    """

    cohort: str
    seconds: float
    source: str


class QueueView(msgspec.Struct, frozen=True):
    """A cluster queue and who waits there.

    ``path``: the cohorts above it, the root first, as far as they are known; ``cohort``: the one that it names.
    ``uses``: of the local queues whose workloads are listed. ``by_use``: these take turns by what they used over time,
    and stand in that order. ``over_time``, ``consumed``: as of a `CohortView`. ``minimum_run_time``: () where none is
    set; ``safe``: how many are safe from somebody now.
    """

    name: str
    cohort: str
    path: tuple[str, ...]
    strategy: str
    active: bool
    reason: str
    message: str
    pending: int
    reserving: int
    admitted: int
    weighted_share: int | None
    local_queues: tuple[str, ...]
    quotas: tuple[QuotaUse, ...]
    waiting: tuple[WaitingWorkload, ...]
    uses: tuple[LocalQueueUse, ...]
    by_use: bool = False
    minimum_run_time: tuple[RunTimeView, ...] = ()
    safe: int = 0
    over_time: float | None = None
    consumed: dict[str, str] | None = None


class QueuesReport(msgspec.Struct, frozen=True):
    """What `topogate queues` says. ``inactive``: jobs (``namespace/name``) that are in a queue but not to be admitted.

    ``lost``: local queues that lead to no cluster queue, each in a sentence.
    """

    queues: tuple[QueueView, ...]
    cohorts: tuple[CohortView, ...]
    inactive: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


def report(reading: QueueReading, namespace: str | None = None, name: str | None = None) -> QueuesReport:
    """All cluster queues (``namespace`` None), those that serve a namespace, or the one that ``name`` means.

    Raises Failure where there is no such queue.
    """
    queues = reading.queues
    shown: dict[str, set[tuple[str, str]] | None]  # cluster queue -> the local queues whose workloads are listed
    if name is None:
        shown = dict.fromkeys(sorted(queues.quotas.queues)) if namespace is None else _serving(reading, namespace)
    elif namespace is not None and (local := queues.config.local.get((namespace, name))) is not None:
        shown = {local.cluster_queue: {(namespace, name)}}
    else:
        shown = {name: None}
    found = standings(queues, reading.state.flavors)
    lost = {
        key: _explain_lost(reading, key, found)
        for key, one in sorted(queues.config.local.items())
        if leads_nowhere(queues, one)
    }
    missing = [one for one in shown if one not in queues.quotas.queues]
    if missing:
        # A LocalQueue that leads nowhere is there all the same: it is reported before "no such queue".
        there = ", ".join(sorted(reading.queues.quotas.queues)) or "none"
        theirs = sorted(local for space, local in reading.queues.config.local if space == namespace)
        text = f"no LocalQueue {missing[0]} in namespace {namespace} and" if namespace else "there is"
        text = f"{text} no ClusterQueue {missing[0]}; cluster queues are: {there}"
        text = f"{text}; local queues of the namespace: {', '.join(theirs)}" if theirs else text
        raise Failure(lost.get((namespace or "", name or "")) or text)
    if not shown and queues.quotas.queues and not any(key[0] == namespace for key in lost):
        raise Failure(f"namespace {namespace} has no LocalQueue; `topogate queues -A` shows all")
    entries = _entries_by_queue(reading)
    views = tuple(_view(reading, one, found, only, entries.get(one, ())) for one, only in shown.items())
    held = (reading.workloads[key] for key in reading.inactive)
    inactive = sorted(
        f"{one.metadata.namespace}/{owner_name(one).partition('/')[2]}"
        for one in held
        if namespace in {None, one.metadata.namespace}
    )
    told_of = tuple(cohort_views(reading, found, None if name is None and namespace is None else list(shown)))
    told = () if name is not None else (text for key, text in lost.items() if namespace in {None, key[0]})
    return QueuesReport(views, told_of, tuple(inactive), reading.wrong, tuple(told))


def leads_nowhere(queues: Queues, local: LocalQueue) -> bool:
    """Whether it names a ClusterQueue that does not exist."""
    return local.cluster_queue not in queues.quotas.queues


def _explain_lost(reading: QueueReading, key: tuple[str, str], found: Standings) -> str:
    local, waiting = reading.queues.config.local[key], found.local[key].pending
    hint = meant(local.cluster_queue, reading.queues.quotas.queues)
    text = f"LocalQueue {'/'.join(key)} names ClusterQueue {local.cluster_queue}, which does not exist"
    text += f" ({hint})" if hint else ""
    return text + (f"; {waiting} workload{'s wait' if waiting > 1 else ' waits'} in it" if waiting else "")


def _serving(reading: QueueReading, namespace: str) -> dict[str, set[tuple[str, str]] | None]:
    shown: dict[str, set[tuple[str, str]]] = {}
    for key, local in sorted(reading.queues.config.local.items()):
        if key[0] == namespace and local.cluster_queue in reading.queues.quotas.queues:
            shown.setdefault(local.cluster_queue, set()).add(key)
    return dict(shown)


def _view(
    reading: QueueReading,
    name: str,
    found: Standings,
    only: set[tuple[str, str]] | None,
    entries: Sequence[tuple[str, Entry]],
) -> QueueView:
    queue, standing = reading.queues.quotas.queues[name], found.cluster[name]
    waiting = tuple(_waiting(reading, name, only, entries))
    local = sorted("/".join(key) for key, one in reading.queues.config.local.items() if one.cluster_queue == name)
    return QueueView(
        name=name,
        cohort=queue.cohort,
        path=path_of(reading.queues.quotas.tree.queues[name]),
        strategy="StrictFIFO" if queue.strict else "BestEffortFIFO",
        active=standing.active,
        reason=str(standing.reason),
        message=standing.message,
        pending=standing.pending,
        reserving=standing.reserving,
        admitted=standing.admitted,
        weighted_share=standing.share,
        local_queues=tuple(local),
        quotas=tuple(_uses(reading, name, standing)),
        waiting=waiting,
        uses=tuple(_local_uses(reading, name, found, only, waiting)),
        by_use=goes_by_use(reading, name),
        minimum_run_time=tuple(_run_times(reading, name)),
        safe=sum(_is_safe(reading, key) for key in reading.queues.holders.held_in(name)),
        over_time=share_over_time(standing),
        consumed=consumed_over_time(standing),
    )


def _run_times(reading: QueueReading, name: str) -> Iterator[RunTimeView]:
    for cohort, one in reading.queues.run_times.minimums_of(name):
        if one.seconds:
            yield RunTimeView(cohort, one.seconds, one.source)


def _is_safe(reading: QueueReading, key: HolderKey) -> bool:
    return reading.queues.run_times.last_end(reading.queues.entries[key]) > reading.now


def goes_by_use(reading: QueueReading, queue: str) -> bool:
    """Whether the LocalQueues of a cluster queue take turns by what they used over time."""
    line = reading.queues.pending.lines.get(queue)
    return line is not None and line.by_use


def _local_uses(
    reading: QueueReading,
    name: str,
    found: Standings,
    only: set[tuple[str, str]] | None,
    waiting: tuple[WaitingWorkload, ...],
) -> Iterator[LocalQueueUse]:
    # Scores are all 0 where LocalQueues do not go by them.
    local_queues = sorted(reading.queues.config.local.items(), key=lambda pair: (found.local[pair[0]].score, pair[0]))
    for key, local in local_queues:
        if local.cluster_queue != name or (only is not None and key not in only):
            continue
        standing = found.local[key]
        used: dict[str, int] = {}
        for (_, resource), amount in standing.reserved.items():
            used[resource] = used.get(resource, 0) + amount
        text = "/".join(key)
        yield LocalQueueUse(
            text,
            pending=found.local[key].pending,
            admitted=standing.admitted,
            used={resource: format_quantity(resource, amount) for resource, amount in used.items()},
            longest_wait_seconds=max((one.age_seconds for one in waiting if one.local_queue == text), default=None),
            weight=None if standing.consumed is None else f"{local.weight / 1000:g}",
            score=None if standing.consumed is None or isinf(standing.score) else standing.score,
            consumed=consumed_over_time(standing),
        )


def _uses(reading: QueueReading, name: str, standing: Standing) -> Iterator[QuotaUse]:
    quotas, groups = reading.queues.quotas, reading.queues.quotas.queues[name].groups
    limits = {(f.flavor, resource): quota for g in groups for f in g.flavors for resource, quota in f.resources.items()}
    for key, used in standing.reserved.items():
        flavor, resource = key
        limit = limits.get(key)
        borrowing, lending = (limit.borrowing, limit.lending) if limit is not None else (None, None)
        yield QuotaUse(
            flavor,
            resource,
            nominal=format_quantity(resource, quotas.nominal(name, key)),
            used=format_quantity(resource, used),
            borrowed=format_quantity(resource, standing.borrowed(standing.reserved, key) or 0),
            free=format_quantity(resource, quotas.available(name, key)),
            borrowing_limit=None if borrowing is None else format_quantity(resource, borrowing),
            lending_limit=None if lending is None else format_quantity(resource, lending),
            missing=not reading.has_flavor(flavor),
        )


def _entries_by_queue(reading: QueueReading) -> dict[str, list[tuple[str, Entry]]]:
    """Who is not admitted, by cluster queue."""
    found = defaultdict(list)
    for key, entry in reading.queues.entries.items():
        if entry.phase is not Phase.ADMITTED and isinstance(key, str):
            found[_led_to(reading, key)].append((key, entry))
    return found


def _waiting(
    reading: QueueReading, name: str, only: set[tuple[str, str]] | None, entries: Sequence[tuple[str, Entry]]
) -> Iterator[WaitingWorkload]:
    """Who is nominated, then the line in its order, then who is in none. ``entries``: all who are not admitted."""
    # Once for all: a line computes its order each time that it is asked for.
    places = {key: place for place, key in enumerate(reading.queues.waiting(name), 1)}
    here = [
        # False sorts first: the ones that only wait for their victims stand before the line.
        (entry.phase is not Phase.NOMINATED, places.get(key, len(places) + 1), entry.order, key)
        for key, entry in entries
    ]
    for *_, key in sorted(here):
        workload = reading.queues.entries[key].workload
        if only is None or (workload.namespace, workload.queue) in only:
            yield waiting_of(reading, key, places.get(key), next(iter(places), key))


def _led_to(reading: QueueReading, key: str) -> str:
    entry = reading.queues.entries[key]
    local = reading.queues.config.local.get((entry.workload.namespace, entry.workload.queue))
    # An entry without a place in a line still shows under the queue that its LocalQueue names.
    return entry.queue or (local.cluster_queue if local is not None else "")


def waiting_of(reading: QueueReading, key: str, position: int | None, first: str) -> WaitingWorkload:
    """One workload that waits, with why; ``first``: the next one of its line."""
    workload = reading.workloads[key]
    reason, message = why(reading, key)
    wants = live_queues.requests(workload)
    nomination = workload.status.nomination
    return WaitingWorkload(
        position=position,
        workload=key,
        job=owner_name(workload),
        local_queue=f"{workload.metadata.namespace}/{workload.spec.queue_name}",
        priority=workload.effective_priority,
        boost=workload.effective_priority - workload.spec.priority,
        age_seconds=int(live_queues.age(workload, reading.now)),
        wants={name: format_quantity(name, amount) for name, amount in wants.items()},
        reason=reason,
        message=message,
        short="; ".join(
            filter(None, (_summarize_reason(reading, key, reason, message), behind_lighter(reading, key, first)))
        ),
        victims=tuple(f"{one.namespace}/{one.name}" for one in nomination.victims) if nomination is not None else (),
    )


def _summarize_reason(reading: QueueReading, key: str, reason: str, message: str) -> str:
    """What it waits for in a few words: how much of which quota where that is it, else how its message begins."""
    if reason in _OF_QUOTA and (lacking := _lacking_quota(reading, key)):
        return f"quota: lacks {lacking}"
    nomination = reading.workloads[key].status.nomination
    if nomination is not None and reason == Reason.PREEMPTING:
        return f"{counted(len(nomination.victims), 'evicted workload')} to be gone"
    begin = message.partition(": ")[0]
    return begin if len(begin) <= MOST_WORDS else f"{begin[: MOST_WORDS - 1]}…"


def behind_lighter(reading: QueueReading, key: str, first: str) -> str:
    """Whose workload goes before one that waits because its LocalQueue used less over time; "": nobody's.

    ``first``: the next one of its line.
    """
    queues, entry = reading.queues, reading.queues.entries[key]
    if not goes_by_use(reading, entry.queue):
        return ""
    ours, theirs = entry.workload.part, queues.entries[first].workload.part
    score, lighter = queues.use.score_of(ours), queues.use.score_of(theirs)
    if entry.group is None or theirs == ours or lighter >= score:
        return ""
    return f"behind {theirs}, which used less ({lighter:.1f} against {'weight 0' if isinf(score) else f'{score:.1f}'})"


def _lacking_quota(reading: QueueReading, key: str) -> str:
    """How much more it wants than is left, in the first option of flavors."""
    queue = _led_to(reading, key)
    if queue not in reading.queues.quotas.queues:
        return ""
    found = explain(reading.state, reading.queues, queue, live_queues.with_pods(reading.workloads[key], reading.names))
    if isinstance(found, Refusal) or not found:
        return ""
    fits = [fit for fit in found[0].quotas if fit.lacking]
    return ", ".join(f"{format_quantity(fit.resource, fit.lacking)} {fit.resource} of {fit.flavor}" for fit in fits)


def why(reading: QueueReading, key: str) -> tuple[str, str]:
    """Reason and message of what it waits for: how things are now where that alone decides, else its condition."""
    workload, refusal = reading.workloads[key], reading.explain_refusal(key)
    if refusal is not None:
        return str(refusal.reason), refusal.message
    state = workload.status.requeue_state
    # Its condition is of the time before the eviction.
    if reading.queues.entries[key].phase is Phase.LATER and state is not None:
        return str(
            Reason.BACKING_OFF
        ), f"it was evicted, and comes back at {state.requeue_at} (return number {state.count})"
    found = condition(workload.status.conditions, "QuotaReserved")
    return (found.reason, found.message) if found is not None else (str(Reason.PENDING), NOT_SEEN)

"""The part of ``topogate explain`` about queues: the place in line, the quota that is lacking, who makes room."""

import re
from collections.abc import Iterator, Mapping
from math import isinf
from typing import Final

import msgspec
from rich.console import RenderableType
from rich.text import Text

from cli.cluster.live_queues import QueueReading, with_pods
from cli.output import counted, plain_table, some
from cli.queues.rendering import duration, priority_in_words
from cli.queues.report import behind_lighter, goes_by_use
from crds.constants import Keys
from engine.cluster.state import ClusterState
from engine.model import Amounts
from engine.quantity import format_quantity, readable
from engine.results import Refusal
from kube.objects import condition, is_true
from kube.workloads import WholeWorkload
from queueing.explain import OptionFit, explain
from queueing.messages import name_domains, safe_until_when
from queueing.queues.entry import Phase
from ungater.model.life import ON_HOLD
from ungater.reconcile.boosts import read_boost

NAMED = 3  # others in a sentence
KEYS: Final = Keys()


class QuotaLine(msgspec.Struct, frozen=True):
    """One quota that the job wants. ``free``: what may be taken now; ``most``: what the queue may ever use."""

    flavor: str
    resource: str
    wanted: str
    free: str
    lacking: str  # "0" where it suffices
    used: str
    nominal: str
    most: str
    never: bool


class QuotaOption(msgspec.Struct, frozen=True):
    """One combination of flavors, in the order in which they are tried.

    ``level``: how high up in the tree of cohorts it would borrow, 0 within the queue's own quota; ``lender``: from
    which cohort then.
    """

    flavors: tuple[str, ...]
    borrows: bool
    quotas: tuple[QuotaLine, ...]
    level: int = 0
    lender: str = ""


class VictimLine(msgspec.Struct, frozen=True):
    """Who makes room for the job; ``gone``: its pods are."""

    workload: str
    priority: int | None
    gone: bool
    job: str = ""  # as people know it


class QueuePlace(msgspec.Struct, frozen=True):
    """A job in its queue. ``position``: 1 is next; None where it waits in no line. ``waiting``: how many do.

    ``options``: what it wants of each flavor, while it waits. ``holds``: what it holds, by ``flavor/resource``.
    ``history``: what was done to it: evicted, preempted, put off; and until when others may not have it evicted.
    ``rivals``: sentences that name jobs or LocalQueues of others. ``tree``: sentences that name the cohorts above.
    """

    local_queue: str
    cluster_queue: str
    cohort: str
    priority: int  # with its boost
    position: int | None
    waiting: int
    boost: int = 0
    options: tuple[QuotaOption, ...] = ()
    no_option: str = ""
    holds: Mapping[str, str] = {}
    victims: tuple[VictimLine, ...] = ()
    history: tuple[str, ...] = ()
    rivals: tuple[str, ...] = ()
    tree: tuple[str, ...] = ()


def place(
    reading: QueueReading,
    state: ClusterState,
    key: str,
    charged: Mapping[str, Amounts] | None = None,
    title: str = "",
    *,
    keys: Keys = KEYS,
) -> QueuePlace:
    """Where a queued workload stands. ``state`` has the flavors; ``charged``: as `queueing.model.Workload` has it.

    ``title``: what the controller calls it in messages; "": what its Workload tells of that.
    """
    entry, workload = reading.queues.entries.get(key), reading.workloads[key]
    meta, spec = workload.metadata, workload.spec
    local = reading.queues.config.local.get((meta.namespace, spec.queue_name))
    name = entry.queue if entry is not None and entry.queue else local.cluster_queue if local is not None else ""
    queue = reading.queues.quotas.queues.get(name)
    # In the order of the queue, so the index is the place in the line.
    line = list(reading.queues.waiting(name))
    grant = entry.grant if entry is not None else None
    options: tuple[QuotaOption, ...] = ()
    refused = ""
    # One that holds its quota would be counted against itself.
    if queue is not None and grant is None:
        found = explain(state, reading.queues, name, with_pods(workload, reading.names, charged))
        if isinstance(found, Refusal):
            refused = found.message
        else:
            options = tuple(map(_option, found))
    amounts = grant.amounts.items() if grant is not None else ()
    behind = tuple(_behind(reading, key, title or reading.queues.title_of(key)))
    return QueuePlace(
        local_queue=spec.queue_name,
        cluster_queue=name,
        cohort=queue.cohort if queue is not None else "",
        priority=workload.effective_priority,
        boost=workload.effective_priority - spec.priority,
        position=line.index(key) + 1 if key in line else None,
        waiting=len(line),
        options=options,
        no_option=refused,
        holds={f"{flavor}/{resource}": format_quantity(resource, amount) for (flavor, resource), amount in amounts},
        victims=tuple(_victims(reading, key)),
        history=(
            *_history(reading, key, keys),
            *_run_time(reading, key, named=False),
            *_over_time(reading, key),
            *(() if behind else _claim(reading, key, options)),
        ),
        rivals=(*_before(reading, key), *behind),
        tree=(*_run_time(reading, key, named=True), *_over_time_in_cohorts(reading, key)),
    )


def _option(option: OptionFit) -> QuotaOption:
    lines = (
        QuotaLine(
            fit.flavor,
            fit.resource,
            wanted=format_quantity(fit.resource, fit.wanted),
            free=format_quantity(fit.resource, fit.left),
            lacking=format_quantity(fit.resource, fit.lacking),
            used=format_quantity(fit.resource, fit.used),
            nominal=format_quantity(fit.resource, fit.nominal),
            most=format_quantity(fit.resource, fit.most),
            never=fit.never,
        )
        for fit in option.quotas
    )
    return QuotaOption(option.flavors, option.borrows, tuple(lines), option.level, option.lender)


def _victims(reading: QueueReading, key: str) -> Iterator[VictimLine]:
    workload = reading.workloads[key]
    if workload.status.nomination is None:
        return
    for victim in workload.status.nomination.victims:
        name = f"{victim.namespace}/{victim.name}"
        if victim.kind == "Pod":
            yield VictimLine(f"pod {name}", victim.priority, gone=False, job=f"pod {name}")
            continue
        entry = reading.queues.entries.get(name)
        part = f" (its slices in {name_domains(victim.domains)})" if victim.domains else ""
        # An evicted victim may be queued again already; what counts is that it holds nothing.
        gone = entry is None or entry.phase is not Phase.ADMITTED
        yield VictimLine(name + part, victim.priority, gone, reading.queues.title_of(name) + part)


def _history(reading: QueueReading, key: str, keys: Keys) -> Iterator[str]:
    workload = reading.workloads[key]
    conditions, requeue = workload.status.conditions, workload.status.requeue_state
    if not workload.spec.active:
        yield f"{ON_HOLD[:1].upper()}{ON_HOLD[1:]}."
    yield from _boost(workload, keys)
    for kind in ("Evicted", "Preempted"):
        found = condition(conditions, kind)
        if found is not None and is_true(conditions, kind):
            yield f"{kind} ({found.reason}): {found.message}"
    if requeue is not None and requeue.count:
        back = f", and comes back at {requeue.requeue_at}" if requeue.requeue_at else ""
        times = "once" if requeue.count == 1 else f"{requeue.count} times"
        yield f"It was put back into the queue {times}{back}."


def _boost(workload: WholeWorkload, keys: Keys) -> Iterator[str]:
    """That another boost of its priority is asked for than the one that counts."""
    counted = workload.status.priority_boost
    # By its whole key: a tenant may write an annotation of this name in any other domain, and asks for nothing by it.
    asked = read_boost((workload.metadata.annotations or {}).get(keys.priority_boost, ""))
    if counted is not None and counted.value != asked:
        yield (
            f"Its boost of {counted.value} counts since {counted.since}; its annotation asks for {asked}, which counts "
            "later (priorityBoostRestSeconds)"
        )


def _run_time(reading: QueueReading, key: str, *, named: bool) -> Iterator[str]:
    """Until when one that runs is safe from whom; ``named``: only where that may name a cohort, else only where not."""
    entry, queues = reading.queues.entries.get(key), reading.queues
    if entry is None or entry.phase is not Phase.ADMITTED or entry.queue not in queues.quotas.queues:
        return
    # Its own queue, and all others together, have no name in it.
    if named is (len(queues.run_times.minimums_of(entry.queue)) > 2):
        said = safe_until_when(reading.queues, entry)
        if said:
            yield f"{said[:1].upper()}{said[1:]}"


def _over_time(reading: QueueReading, key: str) -> Iterator[str]:
    """What its LocalQueue used over time, where that decides on its turn."""
    entry = reading.queues.entries.get(key)
    if entry is None or entry.group is None:
        return
    if not goes_by_use(reading, entry.queue):
        return
    if key in entry.group.line.late:
        hold = duration(int(reading.queues.rules.hold))
        text = f"It has waited longer than {hold} (queueHoldSeconds), so it comes before those that have not"
        yield f"{text}, whatever their LocalQueues used"
        return
    score, part = reading.queues.use.score_of(entry.workload.part), entry.workload.part
    used = "has weight 0, so it comes last" if isinf(score) else f"has the score {score:.1f} for what it used over time"
    yield f"LocalQueue {part} {used}"


def _before(reading: QueueReading, key: str) -> Iterator[str]:
    """Whose LocalQueue used less, where that is why it waits."""
    entry = reading.queues.entries.get(key)
    # One that has waited for long comes before all that have not, whatever their LocalQueues used.
    if entry is None or entry.group is None or key in entry.group.line.late:
        return
    if lighter := behind_lighter(reading, key, next(iter(reading.queues.waiting(entry.queue)), key)):
        yield f"It waits {lighter}"


def _over_time_in_cohorts(reading: QueueReading, key: str) -> Iterator[str]:
    """What its ClusterQueue and the cohorts above that used over time beside others, where that decides on its turn."""
    entry, quotas = reading.queues.entries.get(key), reading.queues.quotas
    if entry is None or entry.group is None:
        return
    node = quotas.tree.queues[entry.queue]
    for one in (node, *node.path):
        if one.parent is None or not one.parent.by_use:
            continue
        infinite, share = quotas.over_time.score_of(one)
        lighter = sum(quotas.over_time.score_of(child) < (infinite, share) for child in one.parent.children.values())
        kind = "ClusterQueue" if one.is_queue else "Cohort"
        used = "has weight 0, so it comes last" if infinite else f"has the share {share:.1f} for what it used over time"
        yield f"{kind} {one.name} {used} in cohort {one.parent.name}, where {counted(lighter, 'other')} used less"


def _behind(reading: QueueReading, key: str, title: str) -> Iterator[str]:
    """Who says that what it needs is kept for it."""
    entry = reading.queues.entries.get(key)
    if entry is None or entry.grant is not None:
        return
    # Conditions name who has the room as text; the delimiters keep "Job a/b" from matching "Job a/b-2".
    told = re.compile(rf"kept for ([^:;]*(, | and ))?{re.escape(title)}(,|:| and )")
    behind = [
        reading.queues.title_of(one)
        for one in reading.workloads
        if one != key and told.search(reading.condition(one).message)
    ]
    if behind:
        yield f"What it needs is kept for it; behind it wait {some(sorted(behind), NAMED)}"


def _claim(reading: QueueReading, key: str, options: tuple[QuotaOption, ...]) -> Iterator[str]:
    """Whether room or quota is kept for it though nobody behind it says so: once it has waited long enough for that.

    Nothing is kept for one that can never be admitted.
    """
    entry, rules = reading.queues.entries.get(key), reading.queues.rules
    if entry is None or entry.grant is not None:
        return
    # Quota that is too small for ever keeps nothing back.
    possible = any(not any(line.never for line in option.quotas) for option in options)
    if possible and (waited := reading.now - entry.workload.created) >= rules.patience and entry.group is not None:
        yield (
            f"It has waited longer than {duration(int(rules.patience))} (queuePatienceSeconds): those behind it "
            "leave it the quota that it needs, and the room "
            + (
                f"where they fit elsewhere, after {duration(int(rules.hold))} in any case (queueHoldSeconds)"
                if waited < rules.hold
                else f"in any case, since it has waited longer than {duration(int(rules.hold))} (queueHoldSeconds)"
            )
            + ", unless another one comes before it that waits for the same flavor"
        )


def _borrowing(option: QuotaOption) -> str:
    """Whose quota it takes beside that of its queue."""
    if not option.borrows:
        return ""
    return f"borrows from cohort {option.lender} (level {option.level})" if option.lender else "borrows"


def render(found: QueuePlace) -> Iterator[RenderableType]:
    """The place as a person reads it."""
    where = f"cluster queue {found.cluster_queue}" if found.cluster_queue else "no cluster queue"
    cohort = f" (cohort {found.cohort})" if found.cohort else ""
    text = f"Queue {found.local_queue}: {where}{cohort}, priority {priority_in_words(found.priority, found.boost)}"
    if found.position is not None:
        text += f", place {found.position} of {found.waiting} that wait"
    yield Text(text)
    if found.holds and not found.victims:
        parts = ((amount, *name.partition("/")[::2]) for name, amount in found.holds.items())
        held = ", ".join(f"{amount} {resource} of {flavor}" for amount, flavor, resource in parts)
        yield Text(f"Quota: it holds {held}")
    if found.no_option:
        yield Text(f"No flavor of the queue can be given: {found.no_option}", "yellow")
    for line in (*found.history, *found.tree, *found.rivals):
        yield Text(line)
    if found.options:
        yield Text("")
        headings = (">WANTS", ">FREE", ">LACKING", ">USED", ">NOMINAL", ">AT MOST")
        quotas = plain_table("FLAVOR", "RESOURCE", *headings, "")
        for option in found.options:
            for quota in option.quotas:
                told = "never enough" if quota.never else _borrowing(option) if quota.lacking == "0" else ""
                style = "bold red" if quota.never else "yellow" if quota.lacking != "0" else ""
                # JSON has exact amounts; a table rounds bytes to units that people read.
                amounts = (quota.wanted, quota.free, quota.lacking, quota.used, quota.nominal, quota.most)
                wanted, free, lacking, *others = (readable(quota.resource, amount) for amount in amounts)
                cells = (wanted, free, lacking if quota.lacking != "0" else "", *others)
                quotas.add_row(quota.flavor, quota.resource, *cells, told, style=style)
        yield quotas
    if found.victims:
        yield Text("\nWhat it gets is kept for it until these have made room")
        victims = plain_table("VICTIM", "PRIORITY", "")
        for victim in found.victims:
            priority = "" if victim.priority is None else str(victim.priority)
            victims.add_row(victim.job, priority, "gone" if victim.gone else "on its way out")
        yield victims

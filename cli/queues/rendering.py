"""The queues of ``topogate queues`` as a person reads them."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cli.output import counted, plain_table
from cli.queues.cohorts import CohortView
from cli.queues.report import LocalQueueUse, QueuesReport, QueueView, WaitingWorkload
from engine.quantity import in_bytes, readable
from queueing.status import LENDS

NO_QUEUE = (
    "there is no ClusterQueue; jobs that name no queue are placed without one, and docs/queues.md says how to make some"
)
INDENT = "  "
SECONDS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def render(result: QueuesReport) -> RenderableType:
    """The report as a person reads it."""
    parts: list[RenderableType] = []
    for view in result.queues:
        parts += [*([Text("")] if parts else []), *_render_queue(view)]
    for _, tree in groupby(result.cohorts, key=lambda one: (*one.path, one.name)[0]):
        parts += [Text(""), *_render_tree(list(tree))]
    if not result.queues and not result.lost:
        parts.append(Text(NO_QUEUE))
    if result.lost:
        parts += [*([Text("")] if parts else []), *(Text(text, "bold yellow") for text in result.lost)]
    if result.inactive:
        hint = "spec.active is false; `topogate release` has them wait again"
        parts.append(Text(f"\nOn hold ({hint}): {', '.join(result.inactive)}"))
    parts += [Text(f"\nCannot be read: {text}", style="bold red") for text in result.wrong]
    return Group(*parts)


def _render_queue(view: QueueView) -> Iterator[RenderableType]:
    cohort = f"  cohort {view.cohort}" if view.cohort else ""
    counts = f"{view.pending} waiting, {view.admitted} admitted"
    shares = _shares(view)
    share = f"  {shares}" if shares else ""
    style = "green" if view.active else "bold yellow"
    yield Text.assemble((f"ClusterQueue {view.name}", "bold"), f"{cohort}  {view.strategy}  {counts}{share}")
    yield Text.assemble(("Active" if view.active else f"Not active ({view.reason})", style), f"  {view.message}")
    if view.minimum_run_time:
        yield Text(_run_time(view))
    if view.quotas:
        shared = (">BORROWED", ">MAY BORROW", ">LENDS") if view.cohort else ()
        table = plain_table("FLAVOR", "RESOURCE", ">USED", ">NOMINAL", ">FREE", *shared)
        for use in view.quotas:
            used, nominal, free, borrowed = (
                readable(use.resource, amount) for amount in (use.used, use.nominal, use.free, use.borrowed)
            )
            most, lent = (limit and readable(use.resource, limit) for limit in (use.borrowing_limit, use.lending_limit))
            offers = (nominal, free, *((borrowed, most or "any", lent or "all") if view.cohort else ()))
            name = f"{use.flavor} (no such ResourceFlavor)" if use.missing else use.flavor
            table.add_row(name, use.resource, used, *(["-"] * len(offers) if use.missing else offers))
        yield table
    if len(view.uses) > 1:
        yield Text("")
        # Who holds how much, by LocalQueue: one alone holds what the cluster queue does.
        over_time = (">SCORE", "~OVER TIME") if view.by_use else ()
        uses = plain_table("~LOCAL QUEUE", ">WAITING", ">LONGEST WAIT", ">ADMITTED", "~USED", *over_time)
        for one in view.uses:
            wait = "-" if one.longest_wait_seconds is None else duration(one.longest_wait_seconds)
            holds = ", ".join(
                f"{readable(resource, amount)} {resource}" for resource, amount in one.used.items() if amount != "0"
            )
            row = (one.name, str(one.pending), wait, str(one.admitted), holds or "-")
            uses.add_row(*row, *(_over_time(one) if view.by_use else ()))
        yield uses
    if view.waiting:
        yield Text("")
        yield waiting_table(view.waiting)


def _run_time(view: QueueView) -> str:
    """How long its workloads run at least, and how many have not yet."""
    parts = []
    for one in view.minimum_run_time:
        whom = "its own queue" if not one.cohort else f"queues of cohort {one.cohort}"
        whom = "other queues" if one.cohort and one is view.minimum_run_time[-1] else whom
        whose = "" if one.source in {"", f"ClusterQueue {view.name}"} else f" ({one.source})"
        parts.append(f"{duration(int(one.seconds))} against {whom}{whose}")
    safe = f"; {view.safe} of {view.admitted} admitted are safe from somebody now" if view.admitted else ""
    return f"Minimum run time: {', '.join(parts)}{safe}"


def _shares(one: QueueView | CohortView) -> str:
    """The shares of a queue or cohort in what its parent may use, in thousandths: now and over time."""
    told = [] if one.weighted_share is None else [f"share {one.weighted_share}"]
    if one.consumed is not None:
        told.append(f"over time {'-' if one.over_time is None else f'{one.over_time:.1f}'}")
    return ", ".join(told)


def _over_time(one: LocalQueueUse) -> tuple[str, str]:
    """The score of a LocalQueue, and of what it comes."""
    used = ", ".join(
        f"{float(amount):.1f} {resource}" for resource, amount in (one.consumed or {}).items() if not in_bytes(resource)
    )
    weight = "" if one.weight in {"1", None} else f", weight {one.weight}"
    return "-" if one.score is None else f"{one.score:.1f}", (used or "nothing") + weight


def waiting_table(waiting: Iterable[WaitingWorkload]) -> Table:
    """Who waits, in order."""
    table = plain_table(">PLACE", "~JOB", "QUEUE", ">PRIORITY", ">AGE", "~WANTS", "~REASON", "~WAITS FOR")
    for one in waiting:
        namespace, _, queue = one.local_queue.partition("/")
        wants = ", ".join(
            f"{readable(name, n)} {'pod' if (name, n) == ('pods', '1') else name}" for name, n in one.wants.items()
        )
        place = "-" if one.position is None else str(one.position)
        job = f"{namespace}/{one.job.partition('/')[2]}"
        priority = priority_in_words(one.priority, one.boost)
        table.add_row(place, job, queue, priority, duration(one.age_seconds), wants, one.reason, one.short)
    return table


def priority_in_words(priority: int, boost: int) -> str:
    """A priority, and how much of it is a boost: ``110 (90 + 20)``."""
    if not boost:
        return str(priority)
    return f"{priority} ({priority - boost} {'+' if boost > 0 else '-'} {abs(boost)})"


def _render_tree(cohorts: Sequence[CohortView]) -> Iterator[RenderableType]:
    """The cohorts of one tree, the root first, with their queues."""
    root = cohorts[0]
    yield Text(
        f"Cohort {root.name}" + (f", and {counted(len(cohorts) - 1, 'cohort')} below" * (len(cohorts) > 1)), "bold"
    )
    for one in cohorts:
        if not one.active:
            yield Text.assemble((f"Not active ({one.reason})", "bold yellow"), f"  {one.message}")
        elif one.exists and one.message != LENDS:
            yield Text.assemble((f"Cohort {one.name}", "bold yellow"), f"  {one.message}")
    table = plain_table(
        "FLAVOR", "RESOURCE", "COHORT, QUEUE", ">USED", ">NOMINAL", ">BORROWED", ">MAY BORROW", ">LENDS"
    )
    keys = dict.fromkeys((use.flavor, use.resource) for one in cohorts for use in one.quotas)
    for key in keys:
        words = key
        for row in _rows_of_tree(cohorts, key):
            table.add_row(*words, *row)
            words = "", ""  # they are those of the whole block
    if keys:
        yield table


def _rows_of_tree(cohorts: Sequence[CohortView], key: tuple[str, str]) -> Iterator[tuple[str, ...]]:
    resource = key[1]
    for one in cohorts:
        use = next((use for use in one.quotas if (use.flavor, use.resource) == key), None)
        if use is None:
            continue
        used, nominal, own, borrowed = (
            readable(resource, amount) for amount in (use.used, use.nominal, use.own, use.borrowed)
        )
        depth = len(one.path)
        # Only where there is somebody to borrow from do limits mean anything.
        most, lent = (limit and readable(resource, limit) for limit in (use.borrowing_limit, use.lending_limit))
        above = (borrowed, most or "any", lent or "all") if one.path else ("-", "-", "-")
        mine = f"{nominal} ({own} its own)" if use.own != "0" else nominal
        shares = _shares(one)
        yield (f"{INDENT * depth}{one.name}{f' ({shares})' if shares else ''}", used, mine, *above)
        for member in use.members:
            has, quota, more = (readable(resource, amount) for amount in (member.used, member.nominal, member.borrowed))
            over_time = f" (over time {member.over_time:.1f})" if member.over_time is not None else ""
            yield (f"{INDENT * (depth + 1)}{member.queue}{over_time}", has, quota, more, "", "")


def duration(seconds: int) -> str:
    """``90061`` seconds are ``1d1h``: the two largest units, as kubectl shows ages."""
    parts: list[str] = []
    for size, unit in SECONDS:
        if seconds >= size and len(parts) < 2:
            parts.append(f"{seconds // size}{unit}")
            seconds %= size
    return "".join(parts) or "0s"

"""The queues of ``topogate queues`` as a person reads them."""

from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cli.output import plain_table
from cli.queues.report import CohortView, LocalQueueUse, QueuesReport, QueueView, WaitingWorkload
from engine.quantity import in_bytes, readable

NO_QUEUE = (
    "there is no ClusterQueue; jobs that name no queue are placed without one, and docs/queues.md says how to make some"
)
SECONDS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def render(result: QueuesReport) -> RenderableType:
    """The report as a person reads it."""
    parts: list[RenderableType] = []
    for view in result.queues:
        parts += [*([Text("")] if parts else []), *_render_queue(view)]
    for cohort in result.cohorts:
        parts += [Text(""), *_render_cohort(cohort)]
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
    share = f"  share {view.weighted_share}" if view.weighted_share is not None else ""
    style = "green" if view.active else "bold yellow"
    yield Text.assemble((f"ClusterQueue {view.name}", "bold"), f"{cohort}  {view.strategy}  {counts}{share}")
    yield Text.assemble(("Active" if view.active else f"Not active ({view.reason})", style), f"  {view.message}")
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
        table.add_row(place, job, queue, str(one.priority), duration(one.age_seconds), wants, one.reason, one.short)
    return table


def _render_cohort(cohort: CohortView) -> Iterator[RenderableType]:
    yield Text(f"Cohort {cohort.name}", "bold")
    table = plain_table("FLAVOR", "RESOURCE", ">USED", ">NOMINAL", "BY QUEUE")
    for use in cohort.quotas:
        shares = (
            f"{one.queue} {readable(use.resource, one.used)} of {readable(use.resource, one.nominal)}"
            + (f" ({readable(use.resource, one.borrowed)} borrowed)" if one.borrowed != "0" else "")
            for one in use.members
        )
        used, nominal = (readable(use.resource, amount) for amount in (use.used, use.nominal))
        table.add_row(use.flavor, use.resource, used, nominal, ", ".join(shares))
    yield table


def duration(seconds: int) -> str:
    """``90061`` seconds are ``1d1h``: the two largest units, as kubectl shows ages."""
    parts: list[str] = []
    for size, unit in SECONDS:
        if seconds >= size and len(parts) < 2:
            parts.append(f"{seconds // size}{unit}")
            seconds %= size
    return "".join(parts) or "0s"

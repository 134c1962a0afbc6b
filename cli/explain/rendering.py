"""The reports of ``topogate explain`` as a person reads them."""

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cli.cluster import required_evictions as reliefs
from cli.cluster import room_report
from cli.cluster.pod_zones import zones_in_words
from cli.cluster.room_report import CLOSEST
from cli.explain import queue_report
from cli.explain.growth import GrowthReport, in_words
from cli.explain.report import Report
from cli.output import counted, plain_table, some

MOST_PODS = 40  # with their zones in a table
MOST_TROUBLES = 8


def render_all(results: Sequence[Report], most: int = CLOSEST) -> RenderableType:
    """The reports of an owner's workloads as a person reads them."""
    each = (render(result, most) for result in results)
    return Group(*(part for one in each for part in (one, Text(""))[: 2 if len(results) > 1 else 1]))


def render(result: Report, most: int = CLOSEST) -> RenderableType:
    """The report as a person reads it, with at most so many domains for one that waits (0: all)."""
    several = len(result.pod_sets) > 1
    what = counted(result.count, "pod")
    if not several:
        what += f" ({_each(result.per_pod)} each), {_wish(result.policy, result.level)}"
    for one in result.pod_sets if several else ():
        what += (
            f"\n  {one.name}  {counted(one.count, 'pod')} ({_each(one.per_pod)} each), {_wish(one.policy, one.level)}"
        )
    message = result.message
    if result.reason and result.state in {"Waiting", "Suspended", "NotManaged"}:
        message = f"{result.reason}: {message}"
    color = {"Placed": "bold green", "Waiting": "bold yellow"}.get(result.state, "bold")
    head = Text.assemble(
        (f"{result.kind} {result.job}", "bold"), f"  {what}\n",
        (result.state, color), f"  {message}" if message else "",
    )  # fmt: skip
    parts: list[RenderableType] = [head]
    if result.moving:
        parts.append(Text(result.moving))
    # The controller's condition may quote the refusal of the growth, which is reported in full below.
    if result.hanging and (result.growth is None or result.growth.message not in result.hanging):
        parts.append(Text.assemble(("Not all of it runs", "bold yellow"), f"  {result.hanging}"))
    if result.queue is not None:
        parts += [*queue_report.render(result.queue), Text("")]
    if result.domains:
        parts.append(_placement_table(result))
        parts.extend(_zone_tables(result))
    if result.room:
        parts.append(room_report.table(result.room, result.count, most))
        parts.extend(room_report.notes(result.room))
    if result.relief is not None:
        parts += [Text(""), *reliefs.render(result.relief)]
    parts += _growth(result.growth, most)
    # Such pods have no slots by design.
    by_quota_alone = result.state == "Placed" and not result.domains
    gated = sum(pod.gated for pod in result.without_slot)
    not_to_have_one = result.state == "NotManaged" and not gated
    if result.without_slot and result.state != "Finished" and not by_quota_alone and not not_to_have_one:
        parts.append(Text(f"{counted(len(result.without_slot), 'pod')} without a slot, {gated} of them gated"))
    parts.extend(_trouble_lines(result))
    return Group(*parts)


def _growth(found: GrowthReport | None, most: int) -> Iterator[RenderableType]:
    """What one lacks that waits to grow."""
    if found is None:
        return
    yield Text(f"\n{in_words(found)}")
    if found.room:
        yield room_report.table(found.room, found.pods, most)
        yield from room_report.notes(found.room)
    if found.relief is not None:
        yield from (Text(""), *reliefs.render(found.relief))


def _each(per_pod: Mapping[str, str]) -> str:
    return ", ".join(f"{amount} {name}" for name, amount in per_pod.items()) or "no requests"


def _wish(policy: str, level: str) -> str:
    return f"{policy.lower()} {level}".strip() or "no topology"


def _zone_tables(result: Report) -> Iterator[RenderableType]:
    """The NUMA zones and devices of each pod, where they are known."""
    pods = [pod for domain in result.domains for pod in domain.pods if pod.zones or pod.devices]
    if not pods:
        return
    table = plain_table("POD", "NODE", "ZONES", "DEVICES", "SAID BY")
    for pod in pods[:MOST_PODS]:
        table.add_row(pod.name, pod.node, *zones_in_words(pod.zones, pod.devices), pod.zones_from)
    yield Text("")
    yield table
    if len(pods) > MOST_PODS:
        yield Text(f"and {len(pods) - MOST_PODS} more pods; -o json has them all")


def _trouble_lines(result: Report) -> Iterator[RenderableType]:
    if not result.machine_troubles:
        return
    yield Text("\nWhat nodes publish of their inside", "bold yellow")
    for trouble in result.machine_troubles[:MOST_TROUBLES]:
        for text in (*trouble.disagreements, *trouble.problems):
            yield Text(f"  {trouble.node}: {text}")
        if trouble.unrecorded:
            pods = "1 pod holds" if trouble.unrecorded == 1 else f"{trouble.unrecorded} pods hold"
            yield Text(f"  {trouble.node}: {pods} something in its NUMA zones, and no record says in which")
    if len(result.machine_troubles) > MOST_TROUBLES:
        yield Text(f"  and {len(result.machine_troubles) - MOST_TROUBLES} more nodes; -o json has them all")


def short(level: str) -> str:
    """The last part of a level's key as a column head: ``topology-rack`` -> RACK."""
    return level.rsplit("/", 1)[-1].removeprefix("topology-").upper()


def _placement_table(result: Report) -> Table:
    several = any(domain.pod_set for domain in result.domains)
    members = "RANKS" if any(pod.rank is not None for domain in result.domains for pod in domain.pods) else "PODS"
    table = plain_table(*["POD SET"] * several, *map(short, result.levels), ">SLOTS", ">RUNNING", members)
    before: tuple[str, ...] = ()
    last = ""
    for domain in result.domains:
        before = before if domain.pod_set == last else ()
        # A value is printed where it differs from the line above: a tree reads better than repeated columns.
        shown = [value if domain.values[: i + 1] != before[: i + 1] else "" for i, value in enumerate(domain.values)]
        running = sum(pod.phase == "Running" for pod in domain.pods)
        head = [domain.pod_set if domain.pod_set != last else ""] if several else []
        last = domain.pod_set
        ranges: list[list[int]] = []
        for rank in sorted(pod.rank for pod in domain.pods if pod.rank is not None):
            if ranges and rank == ranges[-1][1] + 1:
                ranges[-1][1] = rank
            else:
                ranges.append([rank, rank])
        ranks = ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)
        who = ranks or some([pod.name for pod in domain.pods], 2)
        table.add_row(*head, *shown, str(domain.slots), str(running), who)
        before = domain.values
    return table

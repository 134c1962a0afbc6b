"""The trees of ``topogate tree`` as a person reads them."""

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cli.explain.rendering import short
from cli.output import plain_table, stdout
from cli.tree.report import DomainView, FlavorView, Tenant, TreeReport
from engine.cluster.levels import domain_in_words
from engine.model import HOSTNAME_LABEL
from engine.quantity import format_quantity, parse

NAMED: Final = 3  # workloads in one cell
GIB: Final = 1 << 30


def render(found: TreeReport, *, wide: bool = False) -> RenderableType:
    """The trees as a person reads them."""
    parts: list[RenderableType] = []
    # An output that is not UTF-8 cannot carry box characters: writing one would raise.
    utf = stdout().encoding.lower().startswith("utf")
    for view in found.flavors:
        top = view.tree
        free = ", ".join(f"{_amount(name, amount.free)} {name}" for name, amount in top.resources.items())
        parts += [
            Text.assemble((f"Flavor {view.name}", "bold"), f"  {top.nodes} nodes, free: {free or 'nothing'}"),
            _table(view, wide=wide, utf=utf),
            *_notes(view, wide=wide),
            Text(""),
        ]
    if found.outside:
        parts.append(Text(f"{found.outside} nodes are in no flavor with a topology: nothing is placed on them", "dim"))
    elif parts:
        parts.pop()
    return Group(*parts)


def _table(view: FlavorView, *, wide: bool, utf: bool) -> Table:
    resources = (*(name.rsplit("/", 1)[-1].upper() for name in view.tree.resources), *view.tree.devices)
    amounts = [f">{name} {part}" for name in resources for part in (("FREE", "USED", "ALL") if wide else ("FREE/ALL",))]
    starts = [f">STARTS {'/'.join(view.tree.starts)}"] if view.tree.starts else []
    tenants = _any_tenants(view.tree)
    names = " / ".join(map(short, view.levels))
    table = plain_table(names, ">NODES", ">OUT", ">IDLE", *amounts, *starts, *["HELD BY"] * tenants)
    table.columns[0].no_wrap = True
    for label, domain, alike in _rows(view.tree, fold=not wide, utf=utf):
        # Nodes that take nothing now.
        parts = ((domain.not_ready, "not ready"), (domain.cordoned, "cordoned"))
        cells = [
            str(domain.nodes * alike),
            ", ".join(f"{count * alike} {word}" for count, word in parts if count),
            str(domain.idle * alike),
        ]
        for name, amount in (*domain.resources.items(), *domain.devices.items()):
            free, have = (_amount(name, part, alike) for part in (amount.free, amount.allocatable))
            used = _amount(name, amount.used, alike, up=True)
            cells += (free, used, have) if wide else (f"{free}/{have}",)
        if view.tree.starts:
            cells.append("/".join(str(count * alike) for count in domain.starts.values()))
        if tenants:
            cells.append(_name_tenants(domain.tenants, alike, wide=wide))
        main = domain.resources.get(view.resource)
        if domain.not_ready + domain.cordoned == domain.nodes:
            style = "dim"
        elif domain.not_ready:
            style = "yellow"
        else:
            style = "green" if main is not None and main.free == main.allocatable != "0" else ""
        table.add_row(label, *cells, style=style)
    return table


def _rows(top: DomainView, *, fold: bool, utf: bool) -> Iterator[tuple[str, DomainView, int]]:
    """(label, domain, how many follow each other that are alike)."""
    yield domain_in_words(top.values) or "all", top, 1
    yield from _rows_below(top, "", fold=fold, utf=utf)


def _rows_below(above: DomainView, indent: str, *, fold: bool, utf: bool) -> Iterator[tuple[str, DomainView, int]]:
    last, branch, bar, gap = ("└─ ", "├─ ", "│  ", "   ") if utf else ("  ", "  ", "  ", "  ")
    groups = list(_alike(above.domains) if fold else ((one,) for one in above.domains))
    for number, group in enumerate(groups):
        first, end = group[0], group[-1]
        mark = last if number == len(groups) - 1 else branch
        dots = "…" if utf else "..."
        name = first.values[-1] + (f" {dots} {end.values[-1]}" if len(group) > 1 else "")
        yield indent + mark + name, first, len(group)
        if len(group) == 1:
            yield from _rows_below(first, indent + (gap if mark == last else bar), fold=fold, utf=utf)


def _alike(domains: Sequence[DomainView]) -> Iterator[tuple[DomainView, ...]]:
    """Neighbours without domains below that differ in nothing but their names are told in one line."""
    group: list[DomainView] = []
    for one in domains:
        # Domains with others below are never folded: what lies below may differ.
        if group and (one.domains or group[0].domains or _numbers(group[0]) != _numbers(one)):
            yield tuple(group)
            group = []
        group.append(one)
    if group:
        yield tuple(group)


def _numbers(domain: DomainView) -> tuple[object, ...]:
    return (
        domain.nodes,
        domain.not_ready,
        domain.cordoned,
        domain.idle,
        domain.resources,
        domain.devices,
        domain.tenants,
    )


def _any_tenants(domain: DomainView) -> bool:
    return bool(domain.tenants) or any(map(_any_tenants, domain.domains))


def _name_tenants(tenants: Sequence[Tenant], times: int, *, wide: bool) -> str:
    shown = tenants if wide else tenants[:NAMED]
    named = [
        f"{one.namespace}/{one.name} ({(one.pods + one.waiting_slots) * times}{'' if one.workload else ', not ours'}"
        f"{_had(one) if wide else ''})"
        for one in shown
    ]
    more = len(tenants) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")


def _had(tenant: Tenant) -> str:
    """The devices of its claims."""
    return "".join([f", {node}: {' '.join(devices)}" for node, devices in tenant.devices.items()])


def _amount(resource: str, text: str, times: int = 1, *, up: bool = False) -> str:
    """Bytes in GiB, so that the numbers of a column can be compared: no more than is there, or (``up``) no less."""
    amount = parse(resource, text) * times
    # Free is rounded down and used up: a cell must not promise memory that is not there.
    whole = -(-amount // GIB) if up else amount // GIB
    return f"{whole}Gi" if resource == "memory" else format_quantity(resource, amount)


def _notes(view: FlavorView, *, wide: bool) -> Iterator[Text]:
    names = ["nodes" if one.level == HOSTNAME_LABEL else f"{short(one.level).lower()}s" for one in view.whole]
    domains = ", ".join(f"{one.free} of {one.domains} {name}" for one, name in zip(view.whole, names, strict=True))
    yield Text(f"Free as a whole ({view.resource}): {domains}")
    if view.shown != view.levels[-1] and not wide:
        yield Text(
            f"Folded at {view.shown}; a DOMAIN, --level {short(view.levels[-1]).lower()} or -o wide show more", "dim"
        )
    if view.lacking:
        named = ", ".join(view.lacking[:NAMED]) + (", ..." if len(view.lacking) > NAMED else "")
        yield Text(f"{len(view.lacking)} nodes of the flavor lack a level's label and take no pods: {named}", "yellow")

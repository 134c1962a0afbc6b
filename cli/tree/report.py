"""The topology domains of a cluster, what they have, and what is free in them: `TreeReport`."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from cli.cluster.claimed_devices import HeldDevices, Names, class_asks
from cli.cluster.holders import holders
from cli.cluster.installed import no_topology
from cli.explain.rendering import short
from cli.output import Failure
from engine.claims.asks import DeviceAsk
from engine.cluster.capacity import GANGS, WHOLE, Capacity, measured
from engine.cluster.state import ClusterState
from engine.cluster.tree import Path, Tree
from engine.quantity import CPU, format_quantity
from kube.objects import key
from ungater.cache.cache import Cache

ROWS: Final = 48  # so many fit a screen: what has more is folded


class Amount(msgspec.Struct, frozen=True):
    """One resource in one domain. ``free``: on nodes that are ready and schedulable, so it need not be the rest."""

    allocatable: str
    used: str
    free: str


class Tenant(msgspec.Struct, frozen=True, rename="camel"):
    """Who holds something in a domain. ``workload`` is empty for pods that Topogate did not place.

    ``devices``: those that its pods have by claims, by node.
    """

    name: str
    namespace: str
    workload: str
    priority: int
    pods: int
    waiting_slots: int
    amounts: dict[str, str]
    devices: dict[str, tuple[str, ...]] = {}


class DomainView(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One domain. ``values``: one a level, widest first; () for the flavor as a whole.

    ``starts``: how many gangs of so many devices would start now inside of it (`Capacity.gangs`). ``devices``: by
    DeviceClass, for how many pods that claim one of it.
    """

    level: str
    values: tuple[str, ...]
    nodes: int
    not_ready: int
    cordoned: int
    idle: int
    resources: dict[str, Amount]
    starts: dict[str, int] = {}
    devices: dict[str, Amount] = {}
    tenants: tuple[Tenant, ...] = ()
    domains: "tuple[DomainView, ...]" = ()


class Whole(msgspec.Struct, frozen=True):
    """Of the domains of a level, how many are free as a whole."""

    level: str
    domains: int
    free: int


class FlavorView(msgspec.Struct, frozen=True, rename="camel"):
    """One flavor. ``lacking``: nodes that it selects and that have no place in its tree for want of a label."""

    name: str
    levels: tuple[str, ...]
    resource: str  # the one that idle and whole are about
    shown: str  # the narrowest level that is told
    whole: tuple[Whole, ...]
    lacking: tuple[str, ...]
    tree: DomainView


class TreeReport(msgspec.Struct, frozen=True):
    """All flavors with a topology. ``outside``: nodes that none of them selects."""

    flavors: tuple[FlavorView, ...]
    outside: int


class TreeWish(msgspec.Struct, frozen=True):
    """What to tell."""

    flavor: str = ""
    level: str = ""
    under: Path = ()
    resources: tuple[str, ...] = ()
    tenants: bool = False
    folded: bool = True


def report(cache: Cache, wish: TreeWish) -> TreeReport:
    """The trees. Failure where there is no such flavor, level, domain or resource."""
    state = cache.state
    if not state.flavors:
        raise no_topology()
    if wish.flavor and wish.flavor not in state.flavors:
        known = ", ".join(sorted(state.flavors))
        raise Failure(f"--flavor {wish.flavor}: there is no such ResourceFlavor with a topology; there is {known}")
    names = [wish.flavor] if wish.flavor else sorted(state.flavors)
    # What pods ask for that claim one device of a DeviceClass, for each that was asked for or is worth telling.
    ledger, found = state.cluster.devices, class_asks(state)
    kept = {
        name: ask
        for name, ask in found.items()
        if not wish.resources or any(name.endswith(text) for text in wish.resources)
    }
    # Counted as if nobody held any: a class whose devices are all taken is worth telling.
    asks = {
        name: ask for name, ask in kept.items() if ledger.count_if_unclaimed(ask).any() and not ledger.is_uncounted(ask)
    }
    resources = _resources(state, wish.resources, asks)
    trees = [tree for name in names if (tree := state.tree(name)) is not None and _has_level(tree, wish)]
    if not trees:
        levels = {name: state.flavors[name].levels for name in names}
        if wish.level and all(_level(found, wish.level) is None for found in levels.values()):
            there = "; ".join(f"flavor {name} has {', '.join(found)}" for name, found in levels.items())
            raise Failure(f"--level {wish.level}: there is no such level; {there}")
        tops = [one.path(0, at)[0] for name in names if (one := state.tree(name)) for at in range(one.count_domains(0))]
        there = ", ".join(tops[:8]) + (", ..." if len(tops) > len(tops[:8]) else "")
        raise Failure(
            f"there is no domain {'/'.join(wish.under)}: give one value a level, the widest first; the widest are "
            f"{there or 'none'}"
        )
    # Of all flavors, also the ones that are not shown: a node of another flavor is not outside.
    placed = {name for one in state.flavors if (tree := state.tree(one)) is not None for name in tree.names}
    views = tuple(_flavor(cache, tree, wish, resources, asks) for tree in trees)
    lacking = {name for view in views for name in view.lacking}
    return TreeReport(views, 0 if wish.flavor or wish.under else len(state.nodes.keys() - placed - lacking))


def _resources(state: ClusterState, wanted: Sequence[str], asks: Mapping[str, DeviceAsk]) -> tuple[str, ...]:
    """Those that were asked for, by their names or the ends of them; else all that are worth telling."""
    if not wanted:
        return measured(state)
    table = state.cluster.table
    every = slice(None)
    known = sorted(name for name in table.rows if int(table.published(table.alloc, name, every).sum()) > 0)
    found: dict[str, None] = {}
    for text in wanted:
        # "memory" must not also mean a vendor's resource that ends so.
        exact = [name for name in known if name == text] or [name for name in known if name.endswith(text)]
        if not exact and not any(name.endswith(text) for name in asks):
            raise Failure(f"--resource {text}: no node has it; there is {', '.join((*known, *asks)) or 'nothing'}")
        found |= dict.fromkeys(exact)
    return tuple(found)


def _level(levels: Sequence[str], text: str) -> int | None:
    """The rank of a level by its key or the end of it."""
    return next(
        (
            rank
            for rank, level in enumerate(levels)
            if text == level or text.lower() == short(level).lower() or level.endswith(("/" + text, "-" + text))
        ),
        None,
    )


def _has_level(tree: Tree, wish: TreeWish) -> bool:
    if wish.level and _level(tree.flavor.levels, wish.level) is None:
        return False
    if not wish.under:
        return True
    rank = len(wish.under) - 1
    return rank < len(tree.flavor.levels) and tree.find(rank, wish.under) is not None


class _Columns(msgspec.Struct, frozen=True):
    """The numbers of every domain of one rank, computed at once."""

    nodes: Sequence[int]
    not_ready: Sequence[int]
    cordoned: Sequence[int]
    idle: Sequence[int]
    amounts: Mapping[str, tuple[Sequence[int], Sequence[int], Sequence[int]]]
    starts: Mapping[str, Sequence[int]]
    devices: Mapping[str, tuple[Sequence[int], Sequence[int]]]


class _Teller:
    """Makes views of the domains of one tree."""

    def __init__(
        self,
        cache: Cache,
        tree: Tree,
        wish: TreeWish,
        resources: tuple[str, ...],
        asks: Mapping[str, DeviceAsk],
    ) -> None:
        self._cache = cache
        self._tree = tree
        self._wish = wish
        self._resources = resources
        self._asks = asks
        self.main = resources[0] if resources else CPU
        self.capacity = Capacity(cache.state, tree)
        self.deepest = self._depth()
        # Whole columns at once: one pass sums all domains of a rank.
        self._columns = {rank: self._read(rank) for rank in range(WHOLE, self.deepest + 1)}

    def _depth(self) -> int:
        """The rank to go down to: the one that was asked for; else the narrowest whose rows fit a screen."""
        tree, wish = self._tree, self._wish
        levels, least = tree.flavor.levels, max(0, len(wish.under) - 1)
        if wish.level:
            return max(least, _level(levels, wish.level) or 0)
        if not wish.folded:
            return len(levels) - 1
        deepest = least
        for rank in range(least + 1, len(levels)):
            # Every level above is printed too, so the rows of all of them count.
            if sum(self._count_shown(other) for other in range(least, rank + 1)) > ROWS:
                break
            deepest = rank
        # What was asked for by name is opened once, whatever its size.
        return min(deepest + 1, len(levels) - 1) if wish.under and deepest == least else deepest

    def _count_shown(self, rank: int) -> int:
        """How many domains of a rank there are to show."""
        tree, under = self._tree, self._wish.under
        if not under:
            return tree.count_domains(rank)
        return sum(tree.path(rank, at)[: len(under)] == under for at in range(tree.count_domains(rank)))

    def _read(self, rank: int) -> _Columns:
        capacity = self.capacity
        return _Columns(
            capacity.count_nodes(rank).tolist(),
            capacity.not_ready(rank).tolist(),
            capacity.cordoned(rank).tolist(),
            capacity.count_idle_nodes(self.main, rank).tolist(),
            {
                name: (
                    capacity.allocatable(name, rank).tolist(),
                    capacity.taken_amounts(name, rank).tolist(),
                    capacity.free_amounts(name, rank).tolist(),
                )
                for name in self._resources
            },
            {str(size): capacity.gangs(self.main, size, rank).tolist() for size in GANGS} if "/" in self.main else {},
            {name: self._equipped(ask, rank) for name, ask in self._asks.items()},
        )

    def _equipped(self, ask: DeviceAsk, rank: int) -> tuple[list[int], list[int]]:
        have, free = self.capacity.equipped(ask, rank)
        return have.tolist(), free.tolist()

    def view_of_domain(self, rank: int = WHOLE, at: int = 0) -> DomainView:
        """One domain with those below it."""
        tree, columns = self._tree, self._columns[rank]
        below = range(0)
        if rank != self.deepest and rank == WHOLE:
            below = range(tree.count_domains(0))
        elif rank != self.deepest:
            below = range(int(tree.children[rank][at]), int(tree.children[rank][at + 1]))
        amounts = {
            name: Amount(*(format_quantity(name, numbers[at]) for numbers in found))
            for name, found in columns.amounts.items()
        }
        return DomainView(
            level="" if rank == WHOLE else tree.flavor.levels[rank],
            values=() if rank == WHOLE else tree.path(rank, at),
            nodes=columns.nodes[at],
            not_ready=columns.not_ready[at],
            cordoned=columns.cordoned[at],
            idle=columns.idle[at],
            resources=amounts,
            starts={size: counts[at] for size, counts in columns.starts.items()},
            devices={
                name: Amount(str(have[at]), str(have[at] - free[at]), str(free[at]))
                for name, (have, free) in columns.devices.items()
            },
            # Only in the narrowest domains: wider ones would repeat them.
            tenants=self._tenants(rank, at) if self._wish.tenants and rank == self.deepest else (),
            domains=tuple(self.view_of_domain(rank + 1, each) for each in below),
        )

    def _tenants(self, rank: int, at: int) -> tuple[Tenant, ...]:
        bounds = self._tree.bounds[rank]
        names = self._tree.names[int(bounds[at]) : int(bounds[at + 1])]
        held = HeldDevices(self._cache.state)
        pods = {
            key(pod): (name, held.devices_of_pod(pod)) for name in names for pod in self._cache.stores.pods_on(name)
        }
        tenants = []
        for one in holders(self._cache, names):
            amounts = {name: format_quantity(name, amount) for name, amount in sorted(one.amounts.items()) if amount}
            by_node: dict[str, Names] = {}
            for node, devices in [pods[pod] for pod in sorted(one.keys) if pod in pods]:
                if devices:
                    by_node[node] = (*by_node.get(node, ()), *devices)
            tenants.append(
                Tenant(
                    one.name,
                    one.namespace,
                    one.workload,
                    one.priority,
                    one.pods,
                    one.slots,
                    amounts,
                    dict(sorted(by_node.items())),
                )
            )
        return tuple(tenants)

    def nodes_outside(self) -> tuple[str, ...]:
        """Nodes that the flavor selects without a place in the tree."""
        outside = self._cache.state.cluster.outside(self._tree.flavor)
        return tuple(sorted(node.name for node in outside))

    def whole_domains(self) -> tuple[Whole, ...]:
        """Every level's domains that are free as a whole."""
        levels = self._tree.flavor.levels
        return tuple(
            Whole(level, self._tree.count_domains(rank), self.capacity.count_whole_domains(self.main, rank))
            for rank, level in enumerate(levels)
        )


def _flavor(
    cache: Cache, tree: Tree, wish: TreeWish, resources: tuple[str, ...], asks: Mapping[str, DeviceAsk]
) -> FlavorView:
    teller = _Teller(cache, tree, wish, resources, asks)
    if wish.under:
        rank = len(wish.under) - 1
        top = teller.view_of_domain(rank, tree.find(rank, wish.under) or 0)
    else:
        top = teller.view_of_domain()
    levels = tree.flavor.levels
    return FlavorView(
        tree.flavor.name,
        levels,
        teller.main,
        levels[teller.deepest],
        teller.whole_domains(),
        teller.nodes_outside(),
        top,
    )

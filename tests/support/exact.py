"""The exact optimum of a placement, by dynamic programming over the tree of domains, and by brute force for tiny trees.

What is minimised, in this order:

1. the widening: required and preferred want one domain of the requested level; preferred else one domain of the next
   wider level, and so on up to the whole flavor;
2. the number of domains used at the requested level, then at each narrower one;
3. the number of nodes used.

Unconstrained asks for nothing but room.

With ``spare``, pods that all lie in one domain just above the hosts in which nothing runs count as on so many hosts
more, unless hosts are what was asked for: a rack is opened only where none in use takes them on ``spare`` hosts more.

Why the recursion is exact: the cost of a subtree that takes m pods is a vector (domains used at each counted level,
then nodes). Costs of sibling subtrees add up, and adding the same vector to both sides keeps a lexicographic order. So
the least cost of a parent for m pods is the least sum over the ways to split m among its children, and the children's
own least costs suffice: a knapsack. A vector is kept as one integer with a digit a component, and no component reaches
``_BASE``.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from support.checker import check, full_path
from support.scenario import Host, Scenario

_BASE = 1 << 20  # more than hosts or domains of any case

Plan = tuple  # nested pairs; a leaf is (host name, pods)
Table = list[
    tuple[int, Plan] | None
]  # by number of pods: least cost and a plan that has it; None where there is no room


@dataclass(frozen=True)
class Optimum:
    widening: int  # 0: one domain of the requested level; k: one domain k levels wider; level + 1: the whole flavor
    key: tuple[int, ...]  # domains at the requested level and each narrower one, then nodes
    pods: dict[str, int]  # host name -> pods, one assignment that is that good


def optimum(case: Scenario, spare: int = 0) -> Optimum | None:
    """Least widening and cost of any assignment; None where there is none."""
    inside = in_one_rack(case, spare)
    if spare and inside:
        cost, plan = min(inside, key=lambda entry: entry[0])
        return Optimum(widening=0, key=digits(case, cost), pods=dict(flatten(plan)))
    for widening, hosts_of_domains in enumerate(ladder(case)):
        tables = [cost_table(case, hosts, case_depth(case, widening)) for hosts in hosts_of_domains]
        fitting = [entry for table in tables if (entry := table[case.count]) is not None]
        if fitting:
            cost, plan = min(fitting, key=lambda entry: entry[0])
            return Optimum(widening=widening, key=digits(case, cost), pods=dict(flatten(plan)))
    return None


def in_one_rack(case: Scenario, spare: int) -> list[tuple[int, Plan]]:
    """Cost and plan of each domain just above the hosts that takes all; none where something narrower is asked for."""
    if case.level is None or not case.level <= case.rack:
        return []
    found = []
    for hosts in group(case.hosts, case.rack):
        entry = cost_table(case, hosts, case.rack + 1)[case.count]
        if entry is not None:
            opened = spare * all(host.idle for host in hosts) * (1 + _BASE * case.host_is_last)
            wider = sum(level_weight(case, depth) for depth in range(case.level, case.rack))
            found.append((entry[0] + wider + opened, entry[1]))
    return found


def opened(case: Scenario, given: Iterable[Mapping[str, Any]], spare: int) -> int:
    """How many hosts more than it uses an assignment counts as on."""
    paths = {full_path(case, tuple(part["values"])) for part in given}
    racks = {path[: case.rack + 1] for path in paths if path is not None}
    if case.level is None or case.level > case.rack or len(racks) != 1:
        return 0
    (rack,) = racks
    return spare * all(host.idle for host in case.hosts if host.path[: case.rack + 1] == rack)


def ladder(case: Scenario) -> Iterator[list[list[Host]]]:
    """The domains that may hold everything, from those of the requested level to the whole flavor."""
    if case.level is not None:
        for depth in range(case.level, -1, -1):
            yield group(case.hosts, depth)
            if case.mode == "required":
                return
    yield [list(case.hosts)]


def case_depth(case: Scenario, widening: int) -> int:
    """Depth below which a table of that rung starts: levels wider than it are the same for all its hosts."""
    return 0 if case.level is None else max(case.level - widening + 1, 0)


def group(hosts: Sequence[Host], depth: int) -> list[list[Host]]:
    """Hosts of each domain of one level. A domain is a value under its parents' values."""
    found: dict[tuple[str, ...], list[Host]] = {}
    for host in hosts:
        found.setdefault(host.path[: depth + 1], []).append(host)
    return [found[path] for path in sorted(found)]


def cost_table(case: Scenario, hosts: Sequence[Host], depth: int) -> Table:
    """Costs of a domain whose subdomains are at ``depth``; below the last level these are the hosts themselves."""
    if depth == len(case.levels):
        children = [host_table(host) for host in hosts]
    else:
        children = [cost_table(case, below, depth + 1) for below in group(hosts, depth)]
    best: Table = [(0, ())]
    for child in children:
        best = merge(best, child, case.count)
    own = level_weight(case, depth - 1)
    return [entry and (entry[0] + own * bool(pods), entry[1]) for pods, entry in enumerate(best)] + [None] * (
        case.count + 1 - len(best)
    )


def host_table(host: Host) -> Table:
    return [(0, ()), *((1, (host.name, pods)) for pods in range(1, host.capacity + 1))]


def merge(left: Table, right: Table, most: int) -> Table:
    """Least cost of each number of pods split between two."""
    best: Table = [None] * (min(most, len(left) + len(right) - 2) + 1)
    for here, mine in enumerate(left):
        for there, theirs in enumerate(right[: len(best) - here]):
            if mine is None or theirs is None:
                continue
            cost, known = mine[0] + theirs[0], best[here + there]
            if known is None or cost < known[0]:
                best[here + there] = (cost, (mine[1], theirs[1]))
    return best


def level_weight(case: Scenario, depth: int) -> int:
    """Weight of one domain of a level: nothing above the requested one, else a digit; nodes have the lowest digit."""
    if case.level is None or depth < case.level:
        return 0
    return _BASE ** (len(case.levels) - depth)


def digits(case: Scenario, cost: int) -> tuple[int, ...]:
    length = 1 if case.level is None else len(case.levels) - case.level + 1
    return tuple(cost // _BASE**place % _BASE for place in range(length - 1, -1, -1))


def flatten(plan: Plan) -> Iterator[tuple[str, int]]:
    if plan and isinstance(plan[0], str):
        yield plan
        return
    for part in plan:
        yield from flatten(part)


def slices(case: Scenario, pods: dict[str, int]) -> list[dict]:
    """An assignment of pods to hosts, told as slices of the last level."""
    counts: dict[tuple[str, ...], int] = {}
    for host in case.hosts:
        if pods.get(host.name):
            counts[host.path] = counts.get(host.path, 0) + pods[host.name]
    return [{"values": list(path), "count": count} for path, count in counts.items()]


def rank(case: Scenario, domains: tuple[int, ...], nodes: int, more: int = 0) -> tuple[int, tuple[int, ...]]:
    """Widening and key of an assignment that uses so many domains of each level and so many nodes.

    ``more``: hosts that count beyond these (`opened`).
    """
    if case.level is None:
        return 0, (nodes,)
    widening = next((w for w in range(case.level + 1) if domains[case.level - w] == 1), case.level + 1)
    counted = list(domains[case.level :])
    if case.host_is_last:
        counted[-1] += more
    return widening, (*counted, nodes + more)


def brute_force(case: Scenario, spare: int = 0) -> tuple[int, tuple[int, ...]] | None:
    """The best rank over every way to put the pods onto the hosts. For a handful of hosts only."""
    best = None
    for counts in itertools.product(*(range(min(host.capacity, case.count) + 1) for host in case.hosts)):
        if sum(counts) != case.count:
            continue
        pods = {host.name: count for host, count in zip(case.hosts, counts, strict=True)}
        given = slices(case, pods)
        verdict = check(case, given)
        nodes = sum(count > 0 for count in counts)
        ranked = rank(case, verdict.domains, nodes, opened(case, given, spare))
        if not verdict.problems and (best is None or ranked < best):
            best = ranked
    return best

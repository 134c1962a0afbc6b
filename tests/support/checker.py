"""Judges an assignment against the raw nodes, without the engine.

An answer is the JSON of ``topogate whatif place``: ``fits`` and ``slices`` of ``{"values", "count"}``. The peer names
only the host where that is the last level; the checker takes both spellings.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from support.scenario import Host, Scenario

Path = tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    problems: tuple[str, ...]
    domains: tuple[int, ...]  # domains used, one number a level
    nodes: int  # the fewest nodes that hold every slice


def check(case: Scenario, slices: Iterable[Mapping[str, Any]]) -> Verdict:
    """List everything that is wrong with the slices, and count the domains they use at every level."""
    by_domain = hosts_by_domain(case)
    problems: list[str] = []
    placed: dict[Path, int] = {}
    for part in slices:
        path, count = full_path(case, tuple(part["values"])), part["count"]
        if path is None or path not in by_domain:
            problems.append(f"slice {part['values']} names no domain")
            continue
        if path in placed:
            problems.append(f"two slices for {path}")
        if count <= 0:
            problems.append(f"slice {path} has count {count}")
        placed[path] = placed.get(path, 0) + count
    problems += over_full(by_domain, placed)
    if sum(placed.values()) != case.count:
        problems.append(f"{sum(placed.values())} pods placed, {case.count} wanted")
    domains = tuple(len({path[: depth + 1] for path in placed}) for depth in range(len(case.levels)))
    if case.mode == "required" and case.level is not None and domains[case.level] != 1:
        problems.append(f"required level {case.levels[case.level]} spans {domains[case.level]} domains")
    nodes = sum(fewest_nodes(by_domain[path], count) for path, count in placed.items())
    return Verdict(problems=tuple(problems), domains=domains, nodes=nodes)


def hosts_by_domain(case: Scenario) -> dict[Path, list[Host]]:
    found: dict[Path, list[Host]] = {}
    for host in case.hosts:
        found.setdefault(host.path, []).append(host)
    return found


def full_path(case: Scenario, values: Path) -> Path | None:
    if len(values) == len(case.levels):
        return values
    paths = {host.path for host in case.hosts if host.path[-1:] == values}
    return paths.pop() if len(paths) == 1 else None


def over_full(by_domain: Mapping[Path, list[Host]], placed: Mapping[Path, int]) -> list[str]:
    room = {path: sum(host.capacity for host in by_domain[path]) for path in placed}
    return [
        f"{path} got {count} pods, its nodes take {room[path]}" for path, count in placed.items() if count > room[path]
    ]


def fewest_nodes(hosts: Iterable[Host], count: int) -> int:
    """Fewest nodes of one domain that hold ``count`` pods: the roomiest first."""
    used = 0
    for capacity in sorted((host.capacity for host in hosts), reverse=True):
        if count <= 0:
            break
        count -= capacity
        used += 1
    return used

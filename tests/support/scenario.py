"""A placement case read as raw facts: which hosts there are and how many of the pods each one takes.

Deliberately independent of the engine: plain Python on the JSON of the case, pods counted by putting them onto the host
one after another until a resource runs out. What is counted here is what the checker and the exact solver believe.
"""

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HOSTNAME = "kubernetes.io/hostname"
PEER_CASES = Path(__file__).parent.parent / "data" / "tas.jsonl.gz"


@dataclass(frozen=True)
class Host:
    name: str
    path: tuple[str, ...]  # one value a level
    capacity: int  # pods of the request, never more than its count
    idle: bool = True  # whether nothing there holds what the pods ask for


@dataclass(frozen=True)
class Scenario:
    id: str
    levels: tuple[str, ...]
    hosts: tuple[Host, ...]
    mode: str
    level: int | None  # index of the requested level
    count: int

    @property
    def host_is_last(self) -> bool:
        return self.levels[-1] == HOSTNAME

    @property
    def rack(self) -> int:
        """The index of the level just above the hosts; -1 where there is none."""
        return len(self.levels) - 1 - self.host_is_last


def load_cases(path: Path = PEER_CASES) -> list[dict[str, Any]]:
    with gzip.open(path, "rt") as lines:
        return [json.loads(line) for line in lines]


def pods_on(node: dict[str, Any], per_pod: dict[str, int], at_most: int) -> int:
    """Put pods onto a node one by one; each takes ``per_pod`` and one of ``pods``."""
    used = node.get("used", {})
    free = {key: amount - used.get(key, 0) for key, amount in node["allocatable"].items()}
    takes = {**per_pod, "pods": 1}
    placed = 0
    while placed < at_most and all(free.get(key, 0) >= amount for key, amount in takes.items() if amount):
        for key, amount in takes.items():
            free[key] = free.get(key, 0) - amount
        placed += 1
    return placed


def is_idle(node: dict[str, Any], per_pod: dict[str, int]) -> bool:
    """No device in use, of those that are asked for; without devices, no more than a tenth of CPUs and memory."""
    used, has = node.get("used", {}), node["allocatable"]
    asked = [key for key, amount in per_pod.items() if amount]
    devices = [key for key in asked if "/" in key]
    if devices:
        return not any(used.get(key, 0) for key in devices)
    return all(used.get(key, 0) <= has.get(key, 0) // 10 for key in asked)


def scenario(case: dict[str, Any]) -> Scenario:
    levels, request = tuple(case["levels"]), case["request"]
    level = request.get("level")
    # A level that no node has stops nobody but those who require it; it is one domain without a name.
    carried = {key for node in case["nodes"] for key in node["labels"]} | {HOSTNAME}
    asked = () if request["mode"] == "required" and level not in carried else case["nodes"]
    hosts = [
        Host(
            name=node["name"],
            path=tuple(node["labels"].get(key, "") for key in levels),
            capacity=pods_on(node, request["perPod"], request["count"]),
            idle=is_idle(node, request["perPod"]),
        )
        for node in asked
        if all(key in node["labels"] for key in levels if key in carried)
    ]
    return Scenario(
        id=case["id"],
        levels=levels,
        hosts=tuple(hosts),
        mode=request["mode"],
        level=None if level is None else levels.index(level),
        count=request["count"],
    )

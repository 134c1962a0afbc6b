"""Seeded small placement cases with everything that trips a placer: repeated names, fragments, over-full nodes."""

import itertools
from random import Random
from typing import Any

from support.scenario import HOSTNAME, scenario

LEVELS = ("example.com/zone", "example.com/block", "example.com/rack")
GIB = 1 << 30


def small_case(seed: int, *, most_hosts: int = 14) -> dict[str, Any]:
    """A case of up to ``most_hosts`` hosts, in the form of ``topogate whatif place``."""
    random = Random(seed)
    wider = LEVELS[len(LEVELS) - random.randint(0, 3) :]
    levels = [*wider, HOSTNAME] if not wider or random.random() < 0.7 else [*wider]
    nodes = [_node(random, index) for index in range(random.randint(1, most_hosts))]
    case = {"id": f"seed-{seed}", "levels": levels, "nodes": nodes, "request": _request(random, levels)}
    case["request"]["count"] = _count(random, case)
    return case


def rugged_case(seed: int) -> dict[str, Any]:
    """A case of up to 144 hosts with all sorts of room, where largest first often misses the optimum."""
    random = Random(seed)
    levels = [*LEVELS[1:], HOSTNAME]
    blocks, racks, hosts = random.randint(1, 2), random.randint(2, 9), random.randint(2, 8)
    most = random.choice((3, 6, 10, 16))
    nodes = []
    for path in itertools.product(range(blocks), range(racks), range(hosts)):
        name = "n{}-{}-{}".format(*path)
        labels = dict(zip(levels, (f"b{path[0]}", f"r{path[1]}", name), strict=True))
        allocatable = {"nvidia.com/gpu": random.randint(0, most), "pods": 110}
        nodes.append({"name": name, "labels": labels, "allocatable": allocatable, "used": {}})
    room = sum(node["allocatable"]["nvidia.com/gpu"] for node in nodes)
    mode, level = random.choice(("required", "preferred")), random.choice(levels[:2])
    count = random.randint(1, max(room // random.choice((1, blocks)), 1))
    request = {"mode": mode, "level": level, "count": count, "perPod": {"nvidia.com/gpu": 1}}
    return {"id": f"rugged-{seed}", "levels": levels, "nodes": nodes, "request": request}


def opened_case(seed: int) -> dict[str, Any]:
    """A case of up to 48 hosts of 8 GPUs in racks, in some of which nothing runs: whether to open one of those?"""
    random = Random(seed)
    levels = [*LEVELS[random.choice((1, 2)) :], HOSTNAME]
    nodes = []
    for rack in range(random.randint(2, 8)):
        idle = random.random() < 0.4
        for host in range(random.randint(1, 6)):
            name = f"n{rack}-{host}"
            labels = {LEVELS[1]: f"b{rack % 2}", LEVELS[2]: f"r{rack}", HOSTNAME: name}
            used = {} if idle else {"nvidia.com/gpu": random.randint(0, 8)}
            allocatable = {"nvidia.com/gpu": 8, "pods": 110}
            nodes.append({"name": name, "labels": labels, "allocatable": allocatable, "used": used})
    mode, level = random.choice(("required", "preferred")), random.choice(levels)
    request = {"mode": mode, "level": level, "count": random.randint(1, 24), "perPod": {"nvidia.com/gpu": 1}}
    return {"id": f"opened-{seed}", "levels": levels, "nodes": nodes, "request": request}


def _node(random: Random, index: int) -> dict[str, Any]:
    name = f"n{index:02}"
    # Few values and no prefix of the parent: rack r1 is there under several blocks.
    values = (f"z{random.randint(0, 1)}", f"b{random.randint(0, 1)}", f"r{random.randint(0, 2)}")
    labels = dict(zip(LEVELS, values, strict=True)) | {HOSTNAME: name}
    if random.random() < 0.04:
        del labels[random.choice([*LEVELS, HOSTNAME])]
    allocatable = {
        "cpu": random.choice((4000, 8000, 16000, 32000)),
        "memory": random.choice((16, 32, 64)) * GIB,
        "pods": random.choice((3, 8, 110)),
    }
    if random.random() < 0.8:
        allocatable["nvidia.com/gpu"] = random.choice((2, 4, 8))
    return {"name": name, "labels": labels, "allocatable": allocatable, "used": _used(random, allocatable)}


def _used(random: Random, allocatable: dict[str, int]) -> dict[str, int]:
    if random.random() < 0.4:
        return {}
    # Up to a little more than there is: a node can be over-committed by others.
    return {key: int(amount * random.choice((0, 0.1, 0.5, 0.75, 1, 1.1))) for key, amount in allocatable.items()}


def _request(random: Random, levels: list[str]) -> dict[str, Any]:
    per_pod = {"cpu": random.choice((0, 500, 1000, 1500, 3000)), "memory": random.choice((1, 3, 8)) * GIB}
    if random.random() < 0.5:
        per_pod["nvidia.com/gpu"] = random.choice((1, 1, 2, 3))
    mode = random.choice(("required", "required", "preferred", "preferred", "preferred", "unconstrained"))
    level = {} if mode == "unconstrained" else {"level": random.choice(levels)}
    return {"mode": mode, **level, "count": 60, "perPod": per_pod}


def _count(random: Random, case: dict[str, Any]) -> int:
    """Mostly what fits, often just so, sometimes one too many."""
    room = sum(host.capacity for host in scenario(case).hosts)
    if random.random() < 0.2:
        return min(max(room + random.randint(-1, 1), 1), 60)
    return random.randint(1, max(min(room, 60) * 2 // 3, 1))

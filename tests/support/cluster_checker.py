"""Judges a cluster from the API server alone: plain JSON in, violations out. Shares no code with what it judges.

Checked:
- every Workload's slices are unique and name nodes that exist; required pod sets share one domain of their level
- no node is over-committed by the slots on it and its pods that are in no slot, nor by the pods bound to it
- no pod is ungated without an admission
- each ungated pod sits in a slice of its own job's Workload and, where bound, on a node with the slice's labels
- no slice has more pods than its count
- ranks, where asked, sit in rank order
"""

from collections import Counter, defaultdict
from typing import Any

GATE = "kueue.x-k8s.io/topology"
MARK = "kueue.x-k8s.io/topology-workload"
INDEX = "batch.kubernetes.io/job-completion-index"
Json = dict[str, Any]


async def snapshot(client, namespaces: set[str] | None = None) -> dict[str, list[Json]]:
    """Everything the checker reads; jobs, workloads and gated pods of these namespaces only."""
    from kube.resources import JOBS, NODES, PODS, WORKLOADS

    found = {
        name: await client.list(resource)
        for name, resource in (("pods", PODS), ("workloads", WORKLOADS), ("jobs", JOBS), ("nodes", NODES))
    }
    if namespaces is not None:
        for kind in ("workloads", "jobs"):
            found[kind] = [obj for obj in found[kind] if obj["metadata"]["namespace"] in namespaces]
    return found


def violations(cluster: dict[str, list[Json]]) -> list[str]:
    """Everything that is wrong, in words; empty where all is well."""
    jobs = {job["metadata"]["uid"]: job for job in cluster["jobs"]}
    nodes = {node["metadata"]["name"]: node for node in cluster["nodes"]}
    wrong: list[str] = []
    wrong += _duplicate_workloads(cluster["workloads"])
    live = [wl for wl in cluster["workloads"] if owner_of(wl) in jobs and not is_over(jobs[owner_of(wl)])]
    slots_on: dict[str, Counter] = defaultdict(Counter)
    seated: set[str] = set()
    for workload in live:
        mine = [pod for pod in cluster["pods"] if owner_of(pod) == owner_of(workload)]
        wrong += _check_workload(workload, mine, nodes, slots_on, seated)
    admitted = {owner_of(wl) for wl in live if _assignment(wl)}
    wrong += [
        f"pod {name_of(pod)} is ungated though its job has no admission"
        for pod in cluster["pods"]
        if owner_of(pod) in jobs
        and MARK in annotations_of(pod)
        and not is_gated(pod)
        and owner_of(pod) not in admitted
        and not has_ended(pod)
        and not is_over(jobs[owner_of(pod)])
    ]
    wrong += _overcommitted(cluster["pods"], nodes, slots_on, seated)
    return wrong


def settled(cluster: dict[str, list[Json]]) -> list[str]:
    """What is not yet as it should be in the end: a job with fewer running pods than it wants."""
    running = Counter(
        owner_of(pod)
        for pod in cluster["pods"]
        if pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
    )
    return [
        f"job {name_of(job)}: {running[job['metadata']['uid']]} of {_wanted(job)} pods run"
        for job in cluster["jobs"]
        if not is_over(job) and running[job["metadata"]["uid"]] != _wanted(job)
    ]


def rank_order(cluster: dict[str, list[Json]], job: str) -> list[str]:
    """Whether the pods of an Indexed job sit in the order of its Workload's slices."""
    uid = next(found["metadata"]["uid"] for found in cluster["jobs"] if found["metadata"]["name"] == job)
    workload = next(wl for wl in cluster["workloads"] if owner_of(wl) == uid)
    expected = [tuple(sorted(labels.items())) for labels, count in _slices(workload) for _ in range(count)]
    wrong = []
    for pod in cluster["pods"]:
        if owner_of(pod) != uid or has_ended(pod):
            continue
        rank = int(pod["metadata"]["labels"][INDEX])
        selector = pod["spec"].get("nodeSelector", {})
        if any(selector.get(key) != value for key, value in expected[rank]):
            wrong.append(f"rank {rank} sits at {selector}, rank order says {dict(expected[rank])}")
    return wrong


def _check_workload(workload, pods, nodes, slots_on, seated) -> list[str]:
    wrong, slices = [], _slices(workload)
    keys = [tuple(sorted(labels.items())) for labels, _ in slices]
    wrong += [f"{name_of(workload)}: slice {key} twice" for key, times in Counter(keys).items() if times > 1]
    used: Counter = Counter()
    for pod in pods:
        if is_gated(pod) or has_ended(pod) or MARK not in annotations_of(pod):
            continue
        selector = pod["spec"].get("nodeSelector", {})
        mine = [key for key in keys if all(selector.get(label) == value for label, value in key)]
        gone = pod["metadata"].get("deletionTimestamp") is not None
        if not mine:
            wrong += [] if gone else [f"pod {name_of(pod)} sits at {selector}, which is no slot of {name_of(workload)}"]
            continue
        if not (gone and not pod["spec"].get("nodeName")):
            used[mine[0]] += 1
        seated.add(pod["metadata"]["uid"])
        node = pod["spec"].get("nodeName")
        if node and node in nodes and not has_labels(nodes[node], dict(mine[0])):
            wrong.append(f"pod {name_of(pod)} is bound to {node}, outside of its slot {dict(mine[0])}")
    for key, (labels, count) in zip(keys, slices, strict=True):
        if used[key] > count:
            wrong.append(f"{name_of(workload)}: {used[key]} pods in slice {labels} of {count}")
        hosts = [name for name, node in nodes.items() if has_labels(node, labels)]
        if not hosts:
            wrong.append(f"{name_of(workload)}: slice {labels} names no node that exists")
        elif len(hosts) == 1:
            _take(slots_on[hosts[0]], workload, count)
    return wrong + _required(workload, slices)


def _required(workload, slices) -> list[str]:
    request = workload["spec"]["podSets"][0].get("topologyRequest", {})
    level = request.get("level")
    if request.get("policy") != "Required" or not slices:
        return []
    levels = workload["status"]["admission"]["podSetAssignments"][0]["topologyAssignment"]["levels"]
    upper = levels[: levels.index(level) + 1]
    domains = {tuple(labels[key] for key in upper) for labels, _ in slices}
    return [f"{name_of(workload)}: required {level}, but over {sorted(domains)}"] if len(domains) > 1 else []


def _overcommitted(pods, nodes, slots_on, seated) -> list[str]:
    bound: dict[str, Counter] = defaultdict(Counter)
    foreign: dict[str, Counter] = defaultdict(Counter)
    for pod in pods:
        node = pod["spec"].get("nodeName")
        if not node or has_ended(pod):
            continue
        for into in (bound,) if pod["metadata"]["uid"] in seated else (bound, foreign):
            for resource, amount in requests_of(pod["spec"]).items():
                into[node][resource] += amount
    wrong = []
    for name, node in nodes.items():
        room = {resource: number(value) for resource, value in node["status"].get("allocatable", {}).items()}
        for what, taken in (("pods", bound[name]), ("slots and foreign pods", slots_on[name] + foreign[name])):
            wrong += [
                f"node {name}: {what} take {total} of {room.get(resource, 0)} {resource}"
                for resource, total in taken.items()
                if total > room.get(resource, 0)
            ]
    return wrong


def _take(into: Counter, workload, count: int) -> None:
    for resource, each in requests_of(workload["spec"]["podSets"][0]["template"]["spec"]).items():
        into[resource] += each * count


def requests_of(spec) -> dict[str, float]:
    total: Counter = Counter({"pods": 1})
    for container in spec["containers"]:
        resources = container.get("resources", {})
        for resource, value in {**resources.get("limits", {}), **resources.get("requests", {})}.items():
            total[resource] += number(value)
    return total


def number(text: str | float) -> float:
    """A Kubernetes quantity as a number."""
    text = str(text)
    for suffix, factor in (
        ("Ki", 2**10),
        ("Mi", 2**20),
        ("Gi", 2**30),
        ("Ti", 2**40),
        ("m", 0.001),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
    ):
        if text.endswith(suffix):
            return float(text.removesuffix(suffix)) * factor
    return float(text)


def _duplicate_workloads(workloads) -> list[str]:
    owners = Counter(owner_of(workload) for workload in workloads)
    return [f"job {uid} has {count} Workloads" for uid, count in owners.items() if count > 1]


def _slices(workload) -> list[tuple[dict[str, str], int]]:
    assignment = _assignment(workload)
    return slices_of(assignment) if assignment else []


def slices_of(assignment: Json) -> list[tuple[dict[str, str], int]]:
    """The slots of a stored assignment: labels and how many, in rank order."""
    if "slices" in assignment:
        return [(entry["nodeLabels"], entry["count"]) for entry in assignment["slices"]]
    found = []
    for group in assignment["groups"]:
        counts = group.get("counts") or [group["count"]] * len(group["names"])
        for name, count in zip(group["names"], counts, strict=True):
            values = [*group["values"], group.get("prefix", "") + name]
            found.append((dict(zip(assignment["levels"], values, strict=True)), count))
    return found


def _assignment(workload) -> Json | None:
    admission = workload.get("status", {}).get("admission")
    return admission["podSetAssignments"][0].get("topologyAssignment") if admission else None


def _wanted(job) -> int:
    spec, status = job["spec"], job.get("status", {})
    if spec.get("suspend"):
        return 0
    if spec.get("completions") is None:
        return spec["parallelism"]
    return min(spec["parallelism"], spec["completions"] - status.get("succeeded", 0))


def is_over(job) -> bool:
    conditions = job.get("status", {}).get("conditions", [])
    return bool(job["metadata"].get("deletionTimestamp")) or any(
        found["type"] in {"Complete", "Failed"} and found["status"] == "True" for found in conditions
    )


def has_ended(pod) -> bool:
    return pod["status"].get("phase") in {"Succeeded", "Failed"}


def is_gated(pod) -> bool:
    return any(gate["name"] == GATE for gate in pod["spec"].get("schedulingGates", []))


def annotations_of(obj) -> dict[str, str]:
    return obj["metadata"].get("annotations", {})


def owner_of(obj) -> str:
    return next((ref["uid"] for ref in obj["metadata"].get("ownerReferences", []) if ref.get("controller")), "")


def has_labels(node, labels) -> bool:
    return all(node["metadata"]["labels"].get(key) == value for key, value in labels.items())


def name_of(obj) -> str:
    return f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"

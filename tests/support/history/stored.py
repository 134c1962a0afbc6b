"""What stored Workloads, pods and queues say, for those who judge."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from support.history.actors import requests, takes
from support.history.server import ROLE, Json, gated

from crds.constants import KUEUE_POD_SET, WORKER_INDEX

HOSTNAME = "kubernetes.io/hostname"
MAIN = "main"  # the pod set of those that have one


class Slots(NamedTuple):
    """So many slots of a pod set on a node."""

    pod_set: str
    labels: dict[str, str]
    count: int


Slices = list[Slots]


def slices_of(workload: Json) -> Slices:
    """Its slots."""
    return _slices(admission_of(workload))


def planned_of(workload: Json) -> Slices:
    """Those that it gets once others are gone."""
    return _slices((workload.get("status") or {}).get("nomination"))


def _slices(admission: Json | None) -> Slices:
    return [
        Slots(part["name"], entry["nodeLabels"], entry["count"])
        for part in (admission or {"podSetAssignments": []})["podSetAssignments"]
        for entry in (part.get("topologyAssignment") or {"slices": []})["slices"]
    ]


def count_of(slices: Slices, pod_set: str | None = None) -> int:
    """How many there are, in all or of a pod set."""
    return sum(each.count for each in slices if pod_set in {None, each.pod_set})


def taken(workload: Json, slices: Slices) -> Iterator[tuple[str, dict[str, int]]]:
    """What slots of it take: node, and amounts by resource."""
    amounts = {each["name"]: requests(each["template"]["spec"]) for each in workload["spec"]["podSets"]}
    for pod_set, labels, count in slices:
        yield labels[HOSTNAME], {name: amount * count for name, amount in amounts[pod_set].items()}


def pod_set_of(pod: Json, slices: Slices) -> str:
    """The pod set that a pod is of, in a Workload that has these slices."""
    labels = pod["metadata"].get("labels", {})
    if any(each.pod_set in {"leader", "workers"} for each in slices):
        return "leader" if labels.get(WORKER_INDEX) == "0" else "workers"
    return labels.get(ROLE, MAIN)


def slice_of(pod: Json, slices: Slices) -> int | None:
    """The slice that a pod was sent to."""
    selector, pod_set = pod["spec"].get("nodeSelector") or {}, pod_set_of(pod, slices)
    return next(
        (
            index
            for index, each in enumerate(slices)
            if each.pod_set == pod_set and all(selector.get(key) == value for key, value in _named(pod, each).items())
        ),
        None,
    )


def _named(pod: Json, slots: Slots) -> dict[str, str]:
    """What the selector of a pod in these slots says: of one that Kueue let go the host alone."""
    kueue = KUEUE_POD_SET in (pod["metadata"].get("labels") or {}) and "rack" not in pod["spec"].get("nodeSelector", {})
    return {HOSTNAME: slots.labels[HOSTNAME]} if kueue else slots.labels


def beyond_slots(pod: Json, workload: Json | None) -> dict[str, int]:
    """What a pod takes that the slots of its Workload do not: all of it, or what it asks for beyond its own slot.

    A Workload keeps the templates that it was admitted with: a rolling update has pods ask for more in the same slots.
    """
    slices, asked = slices_of(workload or {}), takes(pod)
    index = slice_of(pod, slices)
    if workload is None or index is None:
        return asked
    given = {each["name"]: requests(each["template"]["spec"]) for each in workload["spec"]["podSets"]}
    return {name: max(0, amount - given[slices[index].pod_set][name]) for name, amount in asked.items()}


def heads_for(pod: Json) -> str:
    """The node that a pod was sent to and is not on; "" where it is gated, or goes nowhere any more."""
    selector: Json = pod["spec"].get("nodeSelector") or {}
    return "" if gated(pod) or not holds(pod) else str(selector.get(HOSTNAME, ""))


def holds(pod: Json) -> bool:
    """Whether it takes its place: one that is deleted and was never bound does not."""
    return not pod["metadata"].get("deletionTimestamp") or bool(pod["spec"].get("nodeName"))


def admission_of(workload: Json) -> Any:
    """What it was given."""
    return (workload.get("status") or {}).get("admission")


def last_of(workload: Json, before: Json) -> Json:
    """Of two deleted Workloads of one name the last that was looked at: the other was made anew and deleted again."""
    return workload if workload.get("status") else before


def cpu_of(workload: Json) -> int:
    """What it takes of its queue."""
    return usage_of(admission_of(workload))


def usage_of(admission: Json | None) -> int:
    """What an admission takes of its queue."""
    parts = (admission or {"podSetAssignments": []})["podSetAssignments"]
    return sum(int((each.get("resourceUsage") or {}).get("cpu", 0)) for each in parts)


def granted_each(workload: Json) -> dict[str, int]:
    """By pod set, the cpu that an admission grants to each of its pods."""
    parts = (admission_of(workload) or {"podSetAssignments": []})["podSetAssignments"]
    given = {each["name"]: (each.get("resourceUsage") or {}).get("cpu") for each in parts if each.get("count")}
    return {each["name"]: int(cpu) // each["count"] for each in parts if (cpu := given.get(each["name"])) is not None}


def nominal_of(queue: Json) -> int:
    """A queue's own quota."""
    return int(queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"])


def name_of(obj: Json) -> str:
    """Its name, with that of its namespace."""
    return f"{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"

"""What the page tells of one host, one pod and one holder: plain facts, made of the objects of the API server.

Rules
- One resource is told of (GPUs, as a rule): an amount is of that one. CPUs count as whole ones.
- A pod is a workload's by the annotation that the ungater writes, within its namespace; else its controller's. What a
  tenant writes on pods of his own namespace can change nothing but how those are called.
- Names, messages and labels are text of others, and are carried as that.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import IntEnum
from typing import Final

import msgspec

from crds.constants import HOSTNAME_LABEL, NUMA_PLACEMENT_OBSERVED, NUMA_PLACEMENT_PREDICTED, Keys
from crds.graph import NUMA_NODE, zone_number
from crds.numa_placement import decode
from engine.kubelet.machine import NumaPlacement
from kube import objects
from kube.pods import convert
from kube.pods.requests import charged_requests
from kube.pods.templates import template_of
from kube.topologies import FlexTopo
from kube.versions import NEWEST
from kube.workloads import TopologyRequest, WholeWorkload, WorkloadObject
from ungater.model.pod_slots import finished, is_gated, rank_of
from ungater.model.unscheduled import REFUSED
from ungater.model.unstarted import container_waiting
from ungater.model.workload_status import observed_of

CPU: Final = "cpu"
GPU: Final = "nvidia.com/gpu"
MOST_TEXT: Final = 2000  # characters of a message
MOST_REASON: Final = 128
_STEPS: Final = ("QuotaReserved", "Admitted", "PodsReady", "Evicted", "Preempted", "Requeued")


class HostState(IntEnum):
    """Whether a host takes pods."""

    READY = 0
    NOT_READY = 1
    CORDONED = 2


class Host(msgspec.Struct, frozen=True):
    """A node and how much of the resource it has for pods."""

    name: str
    amount: int
    state: HostState


class ConditionStep(msgspec.Struct, frozen=True):
    """One condition of a Workload: since when it is as it is."""

    type: str
    status: bool
    at: float
    reason: str
    message: str


class Asked(msgspec.Struct, frozen=True):
    """What one pod set asks for: so many pods, ``amount`` of the resource for each, and how they are to lie.

    ``policy``: as in a Workload, "" where no topology is asked for.
    """

    name: str
    count: int
    amount: int
    policy: str = ""
    level: str = ""


class HolderFacts(msgspec.Struct, frozen=True):
    """Who holds or wants something: a workload of ours (``workload``: its name), or a controller ("").

    ``slots``: (value of the host name label, amount) that are kept for its pods; ``wants``: the amount of all its pods.
    ``reason``: why it waits, "" where it does not; ``since``: since when. ``asked``: empty where nobody knows.
    Times are seconds since the epoch.
    """

    namespace: str
    kind: str
    name: str
    workload: str = ""
    queue: str = ""
    cluster_queue: str = ""
    priority: int = 0
    created: float = 0.0
    admitted: float = 0.0
    count: int = 0
    wants: int = 0
    active: bool = True
    reason: str = ""
    message: str = ""
    since: float = 0.0
    evicted: bool = False
    asked: tuple[Asked, ...] = ()
    slots: tuple[tuple[str, int], ...] = ()
    steps: tuple[ConditionStep, ...] = ()

    @property
    def key(self) -> str:
        """By which pods name it."""
        return f"{self.namespace}/{self.workload}" if self.workload else f"{self.namespace}/{self.kind}/{self.name}"


class BoundPod(msgspec.Struct, frozen=True):
    """A pod: of whom, where, and which NUMA zones it is in. ``node`` is "" while it has none.

    ``bound``: when the scheduler gave it that, seconds since the epoch; 0 where nothing tells.
    """

    key: str
    holder: str
    owner: tuple[str, str]  # kind and name of whoever controls it
    node: str
    amount: int
    rank: int | None
    phase: str
    gated: bool
    bound: float = 0.0
    reason: str = ""
    placement: NumaPlacement | None = None
    observed: bool = False

    @property
    def zones(self) -> tuple[int, ...]:
        """The zones of its devices, as far as those are known; else all its zones."""
        uses = self.placement.zones if self.placement is not None else ()
        with_devices = tuple(use.zone for use in uses if use.devices or any("/" in name for name in use.amounts))
        return with_devices or tuple(use.zone for use in uses)


def main_resource(nodes: Iterable[objects.Node]) -> str:
    """The resource that a cluster is told by: GPUs, else the device of which there are most, else CPUs."""
    found: dict[str, int] = {}
    for node in nodes:
        for name, amount in convert.node(node).allocatable.items():
            if "/" in name and amount > 0:
                found[name] = found.get(name, 0) + amount
    if GPU in found:
        return GPU
    # Sorted first: equal amounts go by name, and a restart shows the same resource.
    return max(sorted(found), key=lambda name: found[name]) if found else CPU


def amount_of(resource: str, amounts: Mapping[str, int]) -> int:
    """How much of the resource: devices, or whole CPUs."""
    amount = max(amounts.get(resource, 0), 0)
    # Rounded up: half a CPU is not nothing.
    return -(-amount // 1000) if resource == CPU else amount


def host(node: objects.Node, resource: str) -> Host:
    """A node."""
    found = convert.node(node)
    state = HostState.READY if found.ready else HostState.NOT_READY
    if found.ready and found.unschedulable:
        state = HostState.CORDONED
    return Host(found.name, amount_of(resource, found.allocatable), state)


def pod(wire: objects.Pod, resource: str, keys: Keys) -> BoundPod | None:
    """A pod; None where it has ended, or is nobody's that matters here."""
    if finished(wire):
        return None
    meta, annotations = wire.metadata, wire.metadata.annotations or {}
    controller, workload = objects.controller_of(meta), annotations.get(keys.workload, "")
    owner = (controller.kind, controller.name) if controller is not None else ("Pod", meta.name)
    # By the spec, as quota is charged: a status is the word of whoever has the kubelet's credentials.
    amount = amount_of(resource, charged_requests(wire, {}, NEWEST))
    # A pod whose devices come by claims requests none of the resource and still holds some.
    if not workload and not amount and not wire.spec.resource_claims:
        return None
    observed = decode(annotations[NUMA_PLACEMENT_OBSERVED]) if NUMA_PLACEMENT_OBSERVED in annotations else None
    predicted = decode(annotations[NUMA_PLACEMENT_PREDICTED]) if NUMA_PLACEMENT_PREDICTED in annotations else None
    scheduled = objects.condition(wire.status.conditions, "PodScheduled")
    return BoundPod(
        key=objects.key(wire),
        holder=f"{meta.namespace}/{workload}" if workload else f"{meta.namespace}/{owner[0]}/{owner[1]}",
        owner=owner,
        node=wire.spec.node_name,
        amount=amount,
        rank=rank_of(wire),
        phase="Terminating" if meta.deletion_timestamp else wire.status.phase,
        gated=is_gated(wire, keys.gate),
        bound=seconds(scheduled.last_transition_time) if scheduled is not None and scheduled.status == "True" else 0.0,
        reason=wire.status.reason or _hangs(wire),
        placement=observed or predicted,
        observed=observed is not None,
    )


def _hangs(wire: objects.Pod) -> str:
    """Why a pod does not run that is behind no gate, in a word; "" where nothing tells."""
    if not wire.spec.node_name:
        found = objects.condition(wire.status.conditions, "PodScheduled")
        # A pod behind its gate has this condition too, with reason SchedulingGated: that is no refusal.
        return found.reason if found is not None and found.status == "False" and found.reason in REFUSED else ""
    waiting = container_waiting(wire)
    return waiting.reason[:MOST_REASON] if waiting is not None else ""


def asked(whole: WholeWorkload, resource: str) -> tuple[Asked, ...]:
    """What the pod sets of a Workload ask for."""
    found: list[Asked] = []
    for one in whole.spec.pod_sets:
        request = one.topology_request or TopologyRequest()
        amount = amount_of(resource, convert.pod_requests(template_of(one).spec))
        found.append(Asked(one.name, one.count, amount, request.policy, request.level or ""))
    return tuple(found)


def workload(wire: WorkloadObject, resource: str, wanted: tuple[Asked, ...] = ()) -> HolderFacts | None:
    """A Workload; None once it has finished. ``wanted``: what it asks for, where that is known."""
    conditions = wire.status.conditions or ()
    if objects.is_true(conditions, "Finished"):
        return None
    meta, controller, seen = wire.metadata, objects.controller_of(wire.metadata), observed_of(wire)
    waits = objects.condition(conditions, "QuotaReserved")
    # The admission decides: the usage is read from it, and the conditions are only shown.
    held = seen.admission is not None
    used = sum(amount_of(resource, dict(part.usage)) for part in seen.admission.parts) if seen.admission else 0
    slots: list[tuple[str, int]] = []  # amounts by host, of pod sets whose topology names hosts
    for part in seen.admission.parts if seen.admission is not None else ():
        if part.slots is None or not part.count or part.slots.levels[-1:] != (HOSTNAME_LABEL,):
            continue
        # Usage is of the whole pod set, and the pods of one set are alike.
        each = amount_of(resource, {name: amount // part.count for name, amount in part.usage.items()})
        if each:
            slots += ((slot.values[-1], slot.count * each) for slot in part.slots.slots)
    known = {one.type: one for one in conditions}
    steps = [
        ConditionStep(
            one.type, one.status == "True", seconds(one.last_transition_time), one.reason, one.message[:MOST_TEXT]
        )
        for one in map(known.get, _STEPS)
        if one is not None and one.last_transition_time
    ]
    admitted = objects.condition(conditions, "Admitted")
    return HolderFacts(
        namespace=meta.namespace,
        kind=controller.kind if controller is not None else "Workload",
        name=controller.name if controller is not None else meta.name,
        workload=meta.name,
        queue=seen.queue,
        cluster_queue=seen.admission.queue if seen.admission is not None else "",
        priority=seen.effective_priority,
        created=seen.created,
        admitted=seconds(admitted.last_transition_time) if admitted is not None and held else 0.0,
        count=sum(seen.counts),
        wants=used if held else sum(one.count * one.amount for one in wanted),
        active=seen.active,
        reason="" if held else (waits.reason if waits is not None else "Pending"),
        message="" if held or waits is None else waits.message[:MOST_TEXT],
        since=0.0 if held else (seconds(waits.last_transition_time) if waits is not None else 0.0) or seen.created,
        evicted=objects.is_true(conditions, "Evicted"),
        asked=wanted,
        slots=tuple(slots),
        steps=tuple(steps),
    )


def sockets(flex: FlexTopo) -> dict[int, int]:
    """The socket of each NUMA zone, as far as the agent tells."""
    found: dict[int, int] = {}
    for one in flex.spec.nodes or ():
        zone, socket = zone_number(one.id) if one.type == NUMA_NODE else None, (one.attributes or {}).get("socket", "")
        # Attributes are free text; `isdigit` alone accepts superscripts that `int` refuses.
        if zone is not None and socket.isascii() and socket.isdigit():
            found[zone] = int(socket)
    return found


def seconds(timestamp: str | None) -> float:
    """Seconds since the epoch; 0 for what is no time."""
    try:
        return datetime.fromisoformat(timestamp).timestamp() if timestamp else 0.0
    except (ValueError, OverflowError):
        return 0.0

"""The kubelets of all simulated machines in one process.

Rules
- The API server's order is the order of the node: a pod that has ended or is gone makes room before the next is
  admitted, because both come by the same watch.
- What a pod holds is written with its status in one request (annotation ``topogate.dev/kubelet-state``), so that a
  process that starts again takes over exactly what runs. A pod whose status was not written is admitted anew.
- A pod that runs or was refused is never admitted again; a pod without a machine is none of ours.
- What is published (NodeResourceTopology, FlexTopo, observed placements) comes later by a delay with jitter, as from a
  real agent, and only where it changed.
"""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import structlog

from clock import SYSTEM, Clock
from crds.constants import NUMA_PLACEMENT_OBSERVED
from kube.client import Client
from kube.errors import AlreadyExists, BadRequest, Conflict, Invalid, KubeError, NotFound
from kube.informer import Event, EventKind, Informer
from kube.objects import Object
from kube.patches import PatchType, guard
from kube.resources import EVENTS, FLEX_TOPOS, NODE_RESOURCE_TOPOLOGIES, NODES, PODS, Resource
from localcluster.kubelets import publish, statuses
from localcluster.kubelets.hardware import PlayedHardware, parse_cpu_list
from localcluster.kubelets.kubelet import ContainerHolding, PlayedKubelet
from localcluster.kubelets.memory import PlayedBlock
from localcluster.kubelets.pods import from_api
from localcluster.kubelets.refusals import AdmissionRefusal
from localcluster.kubelets.specs import KUBELET, MACHINE, build, parse_kubelet, parse_machine

STATE = "topogate.dev/kubelet-state"
WRITERS = 16
RETRY_SECONDS = 1.0
FINAL = ("Succeeded", "Failed")
Json = dict[str, Any]
log = structlog.get_logger()


class PodView(Object, frozen=True):
    """A pod, with spec and status as they are."""

    spec: Json = msgspec.field(default_factory=dict)
    status: Json = msgspec.field(default_factory=dict)


class NodeView(Object, frozen=True):
    """A node, with its status as it is."""

    status: Json = msgspec.field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Publishing:
    """What is published, and how long after a change (seconds, drawn anew each time)."""

    nrt: bool = True
    flex_topo: bool = True
    observed: bool = True
    delay: tuple[float, float] = (0.1, 1.0)
    seed: int = 0


@dataclass
class PlayedMachine:
    """One node that we play the kubelet of."""

    name: str
    kubelet: PlayedKubelet
    address: str
    pods: dict[str, publish.PodName] = field(default_factory=dict)  # that hold something, by uid
    since: str = ""  # when it was taken over
    dirty: bool = False  # something is to be published
    published: dict[Resource, Json] = field(default_factory=dict)

    def mark_dirty(self) -> None:
        """Something is to be published."""
        self.dirty = True

    def mark_clean(self) -> None:
        """All that there is now is about to be published."""
        self.dirty = False


class Machines:
    """All of them. ``run`` ends by cancellation only."""

    def __init__(self, client: Client, publishing: Publishing | None = None, clock: Clock = SYSTEM) -> None:
        """``client`` may watch nodes and pods, write pods' statuses and what is published."""
        self._client = client
        self._clock = clock
        self._publishing = publishing or Publishing()
        self._random = random.Random(self._publishing.seed)  # noqa: S311 -- jitter
        self._machines: dict[str, PlayedMachine] = {}
        self._nodes = Informer(client, NODES, NodeView, on_event=self._on_node, clock=clock)
        self._pods = Informer(
            client,
            PODS,
            PodView,
            # Only bound pods: a pending pod is no kubelet's.
            field_selector="spec.nodeName!=",
            indexers={"node": lambda pod: [pod.spec["nodeName"]]},
            on_event=self._on_pod,
            clock=clock,
        )
        self._done: set[str] = set()  # uids that were admitted or refused
        # From the clock, so that a process that starts again goes on above the numbers of the one before.
        self._order = self._nanoseconds()
        self._writes: asyncio.Queue[tuple[str, Callable[[], Awaitable[object]]]] = asyncio.Queue()
        self._tasks: asyncio.TaskGroup
        self.refused: dict[str, int] = {}  # by reason

    async def run(self, ready: Callable[[], None] | None = None) -> None:
        """Play; ``ready`` is called once every machine that is there is taken over."""
        async with asyncio.TaskGroup() as self._tasks:
            for _ in range(WRITERS):
                self._tasks.create_task(self._write())
            self._tasks.create_task(self._nodes.run())
            self._tasks.create_task(self._pods.run())
            await self._nodes.wait_synced()
            await self._pods.wait_synced()
            # After both watches are in sync: a machine is taken over with all its pods, or it would give away what they
            # hold.
            for node in list(self._nodes.store.values()):
                self._take_over(node)
            if ready is not None:
                ready()

    def _nanoseconds(self) -> int:
        return int(self._clock.now() * 1e9)

    def _second(self) -> str:
        return self._clock.utc().strftime("%Y-%m-%dT%H:%M:%SZ")

    # --- nodes -------------------------------------------------------------------------------------------------------

    def _on_node(self, event: Event[NodeView]) -> None:
        if event.new is None:
            self._machines.pop(event.key, None)
        elif self._pods.has_synced:
            # Before the pods are in sync, a node waits for the loop in `run`: its pods are not known yet.
            self._take_over(event.new)

    def _take_over(self, node: NodeView) -> None:
        """Start the kubelet of a node that has none yet, with what its pods hold already."""
        name, annotations = node.metadata.name, node.metadata.annotations or {}
        hardware = _hardware(name, annotations)
        if hardware is None:
            self._machines.pop(name, None)
            return
        settings = parse_kubelet(annotations.get(KUBELET, ""))
        known = self._machines.get(name)
        # Most events of a node change neither, and a new kubelet would forget what it gave out.
        if known and known.kubelet.hardware == hardware and known.kubelet.settings == settings:
            return
        addresses = [each["address"] for each in node.status.get("addresses", ()) if each["type"] == "InternalIP"]
        address = addresses[0] if addresses else "127.0.0.1"
        machine = PlayedMachine(name, PlayedKubelet(hardware, settings), address, since=self._second())
        self._machines[name] = machine
        pods = self._pods.by_index("node", name)
        active = [pod for pod in pods if pod.status.get("phase") not in FINAL and _state(pod)]
        # Running pods come first, in the order of their admissions: which memory a zone has left depends on it.
        for pod in sorted(active, key=_order):
            self._restore(machine, pod)
        # Only then the others are admitted, by their age as after a kubelet's restart.
        for pod in sorted(pods, key=lambda pod: (pod.metadata.creation_timestamp or "", pod.metadata.name)):
            self._apply_pod(machine, pod)
        self._mark_changed(machine)

    def _restore(self, machine: PlayedMachine, pod: PodView) -> None:
        machine.kubelet.restore_held(pod.metadata.uid, _restore_holdings(_state(pod) or {}, machine.kubelet.hardware))
        machine.pods[pod.metadata.uid] = publish.PodName(pod.metadata.namespace, pod.metadata.name)
        self._done.add(pod.metadata.uid)
        if not (pod.metadata.annotations or {}).get(NUMA_PLACEMENT_OBSERVED):
            self._observe(machine, pod)

    # --- pods --------------------------------------------------------------------------------------------------------

    def _on_pod(self, event: Event[PodView]) -> None:
        pod = event.new or event.old
        if pod is None or (machine := self._machines.get(pod.spec["nodeName"])) is None:
            return
        if event.kind is EventKind.DELETED:
            # Also for a pod that was never seen to end: what it holds has to come back.
            self._end_pod(machine, pod.metadata.uid)
            # Not before it is gone: an event of its last status must not admit it again.
            self._done.discard(pod.metadata.uid)
        else:
            self._apply_pod(machine, pod)

    def _apply_pod(self, machine: PlayedMachine, pod: PodView) -> None:
        """Do what the pod's state asks for."""
        uid = pod.metadata.uid
        if pod.status.get("phase") in FINAL:
            self._end_pod(machine, uid)
        elif uid not in self._done and pod.metadata.deletion_timestamp is None and _is_new(pod):
            # Not a pod that is being deleted: it is not started any more.
            self._admit(machine, pod)

    def _end_pod(self, machine: PlayedMachine, uid: str) -> None:
        if machine.pods.pop(uid, None) is not None:
            machine.kubelet.remove(uid)
            self._mark_changed(machine)

    def _admit(self, machine: PlayedMachine, pod: PodView) -> None:
        uid, name = pod.metadata.uid, publish.PodName(pod.metadata.namespace, pod.metadata.name)
        # Before the verdict: whatever comes of it, this process does not admit the pod a second time.
        self._done.add(uid)
        body = {"metadata": {"uid": uid}, "spec": pod.spec, "status": pod.status}
        admitted = from_api(body)
        verdict = machine.kubelet.admit_pod(admitted)
        if verdict.refusal is not None:
            refusal = verdict.refusal
            self.refused[refusal.reason] = self.refused.get(refusal.reason, 0) + 1
            log.info("pod refused", pod="/".join(name), node=machine.name, reason=refusal.reason)
            self._send(f"status of {name.name}", lambda: self._patch(pod, statuses.refused_status(refusal), {}))
            self._send(f"event on {name.name}", lambda: self._emit_refusal(machine, pod, refusal))
            return
        machine.kubelet.started(admitted)  # the status below says so
        # Strictly growing, though two admissions may come within one tick of the clock.
        self._order = max(self._order + 1, self._nanoseconds())
        machine.pods[uid] = name
        # Read after `started`, so that the record no longer has the memory of init containers.
        annotations = {STATE: publish.checkpoint(machine.kubelet, uid, self._order)}
        status = statuses.running(body, machine.address, self._second())
        self._send(f"status of {name.name}", lambda: self._patch(pod, status, annotations))
        self._observe(machine, pod)
        self._mark_changed(machine)

    def _observe(self, machine: PlayedMachine, pod: PodView) -> None:
        """Report where the pod sits, a while later."""
        found = publish.record(machine.kubelet, pod.metadata.uid) if self._publishing.observed else ""
        if found:
            self._write_later(lambda: self._patch(pod, None, {NUMA_PLACEMENT_OBSERVED: found}))

    # --- writing -----------------------------------------------------------------------------------------------------

    def _write_later(self, write: Callable[[], Awaitable[object]]) -> None:
        low, high = self._publishing.delay
        delay = self._random.uniform(low, high)
        asyncio.get_running_loop().call_later(delay, self._send, "what is published", write)

    def _send(self, what: str, write: Callable[[], Awaitable[object]]) -> None:
        self._writes.put_nowait((what, write))

    async def _write(self) -> None:
        """Carry out writes, again and again until they are through or pointless."""
        while True:
            what, write = await self._writes.get()
            try:
                await write()
            except (NotFound, Conflict) as gone:  # the pod, or this one of its name, is gone
                log.debug("nothing to write to any more", what=what, error=str(gone))
            except (BadRequest, Invalid) as error:
                log.error("writing was refused", what=what, error=str(error))  # noqa: TRY400 -- no bug of ours to trace
            except KubeError as error:  # the transport has tried a few times already
                log.warning("writing failed; it is tried again", what=what, error=str(error))
                asyncio.get_running_loop().call_later(RETRY_SECONDS, self._send, what, write)

    async def _patch(self, pod: PodView, status: Json | None, annotations: Mapping[str, str]) -> None:
        """Status and annotations in one request; refused where the pod is another one of the same name by now."""
        body: Json = {} if status is None else {"status": status}
        if annotations:
            body["metadata"] = {"annotations": dict(annotations)}
        await self._client.patch(
            PODS,
            pod.metadata.name,
            pod.metadata.namespace,
            body=guard(body, uid=pod.metadata.uid),
            content_type=PatchType.MERGE,
            subresource="status",
        )

    async def _emit_refusal(self, machine: PlayedMachine, pod: PodView, refusal: AdmissionRefusal) -> None:
        meta = pod.metadata
        regarding = {"apiVersion": "v1", "kind": "Pod", "namespace": meta.namespace, "name": meta.name, "uid": meta.uid}
        event = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            # A name may have 253 characters, and the time in hexadecimal comes behind it.
            "metadata": {"name": f"{meta.name[:200]}.{self._nanoseconds():x}", "namespace": meta.namespace},
            "eventTime": self._clock.utc().strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "type": "Warning",
            "reason": refusal.reason,
            "note": refusal.message,
            "action": "Admit",
            "reportingController": "kubelet",
            "reportingInstance": machine.name,
            "regarding": regarding,
        }
        await self._client.create(EVENTS, event, meta.namespace)

    # --- publishing --------------------------------------------------------------------------------------------------

    def _mark_changed(self, machine: PlayedMachine) -> None:
        # One publication is on its way already, and will tell this change too.
        if not machine.dirty and (self._publishing.nrt or self._publishing.flex_topo):
            machine.mark_dirty()
            self._write_later(lambda: self._publish(machine))

    async def _publish(self, machine: PlayedMachine) -> None:
        # The node went, or has another machine by now, whose state must not be overwritten by this one's.
        if self._machines.get(machine.name) is not machine:
            return
        # Before the state is read: a change that comes while this is written asks for another publication.
        machine.mark_clean()
        try:
            if self._publishing.nrt:
                body = publish.node_resource_topology(machine.name, machine.kubelet)
                await self._apply(machine, NODE_RESOURCE_TOPOLOGIES, body)
            if self._publishing.flex_topo:
                await self._publish_flex_topo(machine)
        except KubeError as error:  # such as a kind that is not installed yet
            log.debug("publishing failed; it is tried again", node=machine.name, error=str(error))
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self._mark_changed, machine)

    async def _publish_flex_topo(self, machine: PlayedMachine) -> None:
        await self._apply(
            machine,
            FLEX_TOPOS,
            {
                "apiVersion": FLEX_TOPOS.api_version,
                "kind": FLEX_TOPOS.kind,
                "metadata": {"name": machine.name},
                "spec": publish.flex_topo_spec(machine.kubelet.hardware),
            },
        )
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "Ready",
            "message": "the kubelet's state is known exactly",
            "lastTransitionTime": machine.since,
        }
        status = publish.flex_topo_status(machine.kubelet, machine.pods)
        status |= {"conditions": [ready], "observedAt": self._second()}
        body = {"status": status}
        await self._client.patch(
            FLEX_TOPOS, machine.name, body=body, content_type=PatchType.MERGE, subresource="status"
        )

    async def _apply(self, machine: PlayedMachine, resource: Resource, body: Json) -> None:
        """Create or bring up to date; nothing where it is as we wrote it last."""
        # By what was written, without asking the API server: most changes do not touch the spec.
        if machine.published.get(resource) == body:
            return
        try:
            await self._client.create(resource, body)
        except AlreadyExists:
            await self._client.patch(resource, machine.name, body=body, content_type=PatchType.MERGE)
        # After the write: one that failed has to be made again.
        machine.published[resource] = body


def _hardware(node: str, annotations: Mapping[str, str]) -> PlayedHardware | None:
    """The machine that a node's annotation describes; None without one, or where it cannot be read."""
    text = annotations.get(MACHINE)
    if not text:
        return None
    try:
        # For its error alone: a node with settings that cannot be read is not played at all.
        parse_kubelet(annotations.get(KUBELET, ""))
        return build(parse_machine(text), node)
    except ValueError as error:
        log.warning("node has a machine that cannot be played", node=node, error=str(error))
        return None


def _is_new(pod: PodView) -> bool:
    return pod.status.get("phase", "Pending") == "Pending" and not _state(pod)


def _state(pod: PodView) -> Json | None:
    text = (pod.metadata.annotations or {}).get(STATE)
    try:
        found = json.loads(text) if text else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _order(pod: PodView) -> tuple[int, str]:
    return int((_state(pod) or {}).get("order", 0)), pod.metadata.uid


def _restore_holdings(state: Json, hardware: PlayedHardware) -> dict[str, ContainerHolding]:
    return {
        name: ContainerHolding(
            parse_cpu_list(each.get("cpus", "")),
            {resource: frozenset(ids) for resource, ids in each.get("devices", {}).items()},
            [PlayedBlock(kind, hardware.zone_mask(tuple(zones)), size) for kind, zones, size in each.get("memory", ())],
        )
        for name, each in state.get("held", {}).items()
    }

"""The agent's cycle: look, work out, write what changed.

Rules
- Hardware is looked at rarely. Allocations are looked at when the kubelet's files change, when a pod of the node comes,
  changes or goes, and now and then in any case; never more often than the write interval.
- Hardware is read apart from all else: a driver that hangs delays nothing, and the last answer stays.
- Where nothing can be learnt about the kubelet, what was known stays published, and the condition says so.
- An API server that is away only delays: what could not be written is worked out and written afresh. So does a Node
  that is not there (yet): what is published belongs to it.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import structlog
from msgspec.structs import replace

from agent import graph, observed, status, zones
from agent.background import in_thread
from agent.kubelet.held import KubeletPod, KubeletReading, KubeletState, merge, uids, with_last
from agent.kubelet.reader import Reader, usable
from agent.machine import gpus, sysfs
from agent.machine.gpus import NO_GPUS
from agent.machine.hardware import Hardware
from agent.metrics import AgentMetrics
from agent.node import OwnNode, capacity, owner, version
from agent.observe import Observer
from agent.pods import MOST_KEPT, READ, NodePod, UidRoster, pod
from agent.publish import FlexTopoWriter, TopologyWriter
from agent.settings import AgentSettings
from clock import Clock
from engine.reasons import Reason
from kube.client import Client
from kube.connection.transport import backoff
from kube.errors import KubeError
from kube.events import EventRecorder, reference
from kube.informer import Event, Informer
from kube.kept import KeptParts
from kube.resources import NODES, PODS

log = structlog.get_logger()

SETTLE_SECONDS = 0.1  # the kubelet writes its files one after another
HARDWARE_TIMEOUT_SECONDS = 60.0
CAPACITY_SECONDS = 60.0  # how long the node's status may lag behind a change of its devices
RETRY_FIRST_SECONDS = 1.0
RETRY_MOST_SECONDS = 60.0
# One look may wait for several calls of 30 s each and then a pause of 60 s, and is alive all the same.
STUCK_SECONDS = 300.0
NO_HARDWARE = Hardware(zones=())


class NodeAgent:
    """One node's agent. ``nvml`` is the module ``pynvml`` or what stands in for it."""

    def __init__(
        self,
        settings: AgentSettings,
        client: Client,
        node: str,
        *,
        nvml: Any,
        metrics: AgentMetrics,
        recorder: EventRecorder,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._client = client
        self._name = node
        self._nvml = nvml
        self._metrics = metrics
        self._recorder = recorder
        self._clock = clock
        self._reader = Reader(settings, clock)
        self._roster = UidRoster(clock.monotonic)
        self._flex_topo = FlexTopoWriter(client, node, metrics, clock)
        self._topology = TopologyWriter(client, node, settings.agent_publish_topology, metrics)
        self._observer = Observer(client, metrics, clock.monotonic)
        self._pods: Informer[NodePod] = Informer(
            client,
            PODS,
            NodePod,
            field_selector=f"spec.nodeName={node}",
            on_event=self._on_pod,
            clock=clock,
            # Tenants write the annotations of their pods, and this process has 256 MiB for all pods of the node.
            kept=KeptParts(PODS.kind, READ, most=MOST_KEPT),
        )
        self._wake = asyncio.Event()
        self._hardware = NO_HARDWARE
        self._gpus = NO_GPUS
        self._looked = asyncio.Event()
        self._told: dict[str, str] = {}  # GPUs' faults that are events already
        self._node: OwnNode | None = None
        self._node_old = True  # it may be another one by now
        self._node_until = 0.0  # its status is read afresh until then
        self._last: KubeletReading | None = None
        self._held: KubeletState | None = None
        self._healthy: dict[str, set[str]] = {}
        self._remembered: dict[str, dict[str, tuple[int, ...]]] | None = None
        self._beat = clock.monotonic()
        self.ready = False

    @property
    def alive(self) -> bool:
        """Whether the cycle turns."""
        return self._clock.monotonic() - self._beat < STUCK_SECONDS + self._settings.agent_poll_seconds

    async def run(self) -> None:
        """Look and write, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pods.run())
                group.create_task(self._watch_hardware())
                group.create_task(self._watch_files())
                group.create_task(self._turn())
        finally:
            self._reader.close()

    # --- what wakes the cycle --------------------------------------------------------------------------------------

    def _on_pod(self, event: Event[NodePod]) -> None:
        if (wire := event.new or event.old) is not None:
            # Also for a pod that went: one that came and went between two looks is in neither list of pods.
            self._roster.record_uid(pod(wire).uid)
        self._wake.set()

    async def _watch_files(self) -> None:
        before = await in_thread(self._reader.signature)
        while True:
            await asyncio.sleep(self._settings.agent_watch_seconds)
            now = await in_thread(self._reader.signature)
            if now != before:
                before = now
                self._wake.set()

    async def _watch_hardware(self) -> None:
        looking = asyncio.create_task(self._look_at_hardware())
        while True:
            await asyncio.wait({looking}, timeout=HARDWARE_TIMEOUT_SECONDS)
            if not looking.done():
                log.error("looking at the hardware takes too long: what was known stays", node=self._name)
            elif (error := looking.exception()) is not None:
                log.error("looking at the hardware failed: what was known stays", node=self._name, exc_info=error)
            # Also where looking hangs or failed: allocations do not wait for a driver.
            self._looked.set()
            self._node_old = True
            # Now and then what is there is read again, for somebody may have deleted or changed it.
            self._flex_topo.forget_stored()
            self._topology.forget_stored()
            self._wake.set()
            await asyncio.sleep(self._settings.agent_hardware_seconds)
            if looking.done():  # one that hangs is not joined by another
                looking = asyncio.create_task(self._look_at_hardware())

    async def _turn(self) -> None:
        await self._looked.wait()
        while not self._pods.has_synced:
            # Alive while it waits: to restart the agent does not bring the API server back.
            self._beat = self._clock.monotonic()
            await asyncio.sleep(SETTLE_SECONDS)
        failures = 0
        while True:
            began = self._clock.monotonic()
            self._beat = began
            # Before the look: what happens while it runs wakes the next one.
            self._wake.clear()
            try:
                await self._look_and_write()
            except KubeError as error:
                pause = backoff(failures, first=RETRY_FIRST_SECONDS, most=RETRY_MOST_SECONDS)
                failures += 1
                # The Node may have been deleted and made again, and what is published belongs to the new one.
                self._node_old = True
                log.warning("not published", node=self._name, error=str(error), retry_seconds=round(pause, 1))
                # Not cut short by a wake: pods and files change on while the API server is away.
                await asyncio.sleep(pause)
                continue
            failures, self.ready = 0, True
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.agent_poll_seconds):
                    await self._wake.wait()
            rest = self._settings.agent_write_seconds - (self._clock.monotonic() - began)
            await asyncio.sleep(max(SETTLE_SECONDS, rest))

    # --- one look --------------------------------------------------------------------------------------------------

    async def _look_at_hardware(self) -> None:
        """Read the hardware."""
        settings, before = self._settings, self._gpus
        root, proc = Path(settings.agent_sysfs), Path(settings.agent_proc)
        with self._timed("hardware"):
            hardware = await in_thread(lambda: sysfs.read(root, proc))
        # At once: below a driver may hang, and the rest of the machine is published without it.
        self._hardware = hardware
        with self._timed("gpus"):
            self._gpus = await in_thread(lambda: gpus.read(self._nvml, hardware, before))
        faulty = sum(bool(gpu.fault) for gpu in self._gpus.gpus)
        self._metrics.gpus.labels("faulty").set(faulty)
        self._metrics.gpus.labels("healthy").set(len(self._gpus.gpus) - faulty)
        self._wake.set()

    @contextmanager
    def _timed(self, source: str) -> Iterator[None]:
        began = self._clock.monotonic()
        try:
            yield
        finally:
            self._metrics.read.labels(source).observe(self._clock.monotonic() - began)

    async def _look_and_write(self) -> None:
        # One list for the whole look: the store goes on changing while files are read.
        wires = list(self._pods.store.values())
        pods = [pod(wire) for wire in wires]
        reading = await self._read(pods)
        node = await self._look_at_node(reading)
        # After a restart: what the agent before published still knows the zones of devices that are unhealthy now.
        if self._remembered is None and usable(reading):
            found = await self._flex_topo.load()
            states = (found.status.devices if found else None) or ()
            self._remembered = {
                state.resource: {device.id: tuple(device.zones or ()) for device in state.devices or ()}
                for state in states
            }
        # Nothing is awaited between this and the question who is gone: a pod that came meanwhile was noted, and what it
        # holds in the files would be taken for that of one that went. Those that went since the list are still in it.
        listed = {one.uid for one in pods}
        pods += [one for one in map(pod, self._pods.store.values()) if one.uid not in listed]
        self._tell_faults(node)
        reading = replace(reading, version=version(node), capacity=capacity(node))
        known = usable(reading)
        if known:
            gone = self._roster.gone_holders(uids(reading), pods, complete=self._pods.has_synced)
            held = self._held = merge(reading, self._hardware, pods, gone, self._remembered)
            self._remembered = held.remembered
        else:
            held = replace(self._held or merge(reading, self._hardware, []), missing=reading.problems)
        self._metrics.exact.set(1 if known and not held.missing else 0)
        size, own = self._settings.agent_core_group_size, owner(node)
        spec = graph.spec(self._hardware, self._gpus, size)
        ready = status.ready(held, self._hardware, self._gpus)
        whole = status.status(held, self._hardware, self._gpus, pods, size) if known else None
        await self._flex_topo.write(spec, whole, ready, own)
        if known:
            await self._topology.write(zones.topology(self._name, held, self._hardware, pods), own)
        if known and self._settings.agent_observe_pods:
            placements = observed.placements(held, self._hardware)
            self._metrics.pods.set(len(placements))
            await self._observer.write(wires, placements, exact=not held.missing)
        self._metrics.published.set(self._clock.now())

    async def _read(self, pods: list[KubeletPod]) -> KubeletReading:
        with self._timed("kubelet"):
            reading = await in_thread(self._reader.read)
        if reading.answer is not None:
            last = self._last.answer if self._last else None
            reading = replace(reading, answer=with_last(reading.answer, last, pods))
        # Without it the policies read as the kubelet's defaults, which is further off than what held a moment ago.
        if reading.config is None and self._last is not None:
            reading = replace(reading, config=self._last.config)
        self._last = replace(reading, answer=reading.answer or (self._last.answer if self._last else None))
        return reading

    async def _look_at_node(self, reading: KubeletReading) -> OwnNode:
        """The node's status, where it may have changed: it says how many devices are unhealthy, and the version."""
        healthy = {name: set(ids) for name, ids in reading.answer.allocatable.devices.items()} if reading.answer else {}
        # The kubelet's own list changes at once; the node's status, which counts the unhealthy ones too, follows later.
        if healthy != self._healthy:
            self._healthy, self._node_until = healthy, self._clock.monotonic() + CAPACITY_SECONDS
        if self._node is None or self._node_old or self._clock.monotonic() <= self._node_until:
            self._node = await self._client.get(NODES, self._name, type=OwnNode)
            self._node_old = False
        return self._node

    def _tell_faults(self, node: OwnNode) -> None:
        """An event on the node for each GPU that failed or came back."""
        about = reference(NODES, node)
        faults = {gpu.address: gpu.fault for gpu in self._gpus.gpus}
        for gpu in self._gpus.gpus:
            name, told = gpu.uuid or gpu.address, self._told.get(gpu.address, "")
            # Once for each fault: the hardware is looked at every few minutes, and a GPU may stay faulty for weeks.
            if gpu.fault and gpu.fault != told:
                self._recorder.event(about, "Warning", Reason.GPU_FAULTY, "LookAtHardware", f"GPU {name}: {gpu.fault}")
            elif told and not gpu.fault:
                self._recorder.event(about, "Normal", Reason.GPU_RECOVERED, "LookAtHardware", f"GPU {name} is back")
        self._told = faults

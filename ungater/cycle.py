"""The heart of the controller: watches feed `Memory`, `decide` says what to do, this carries it out.

- One worker at a time looks at one job; the look is `decide`, a plain function, and what it returns is carried out in
  order. At most one awaited write a look: what was decided before it may be stale then, so the job is looked at again.
- Who needs a place waits in the pool; `Controller.cycle` is the admission cycle.
- Only the leader runs one of these. When the lease is lost the task is cancelled, and what is in memory goes with it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import structlog

from crds.settings import Settings
from engine.model import PodSet
from engine.placement import Assignment, Refusal
from engine.reasons import Reason
from kube.client import Client
from kube.errors import Conflict, KubeError
from kube.events import EventRecorder, reference
from kube.informer import Event, Informer
from kube.objects import Job, Node, ObjectReference, Pod, PriorityClass, ResourceFlavor, controller_of
from kube.resources import (
    FLEX_TOPOS,
    JOBS,
    NODE_RESOURCE_TOPOLOGIES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_FLAVORS,
    WORKLOADS,
)
from kube.topologies import FlexTopo, NodeResourceTopology
from ungater import conditions, decide, messages
from ungater.admission import Answer, ask, reason_text, shape
from ungater.conditions import Wanted
from ungater.inside import Options
from ungater.kueue.bridge import Bridge
from ungater.kueue.decide import NeverFits
from ungater.machines import Described
from ungater.memory import Memory
from ungater.metrics import Metrics
from ungater.optional import OptionalInformer
from ungater.predictions import Predictions
from ungater.record import Known, Record, Refused, Told, Trouble
from ungater.sender import Sender, seconds_of
from ungater.workloads import Workload
from ungater.workqueue import WorkQueue, backoff
from ungater.writer import REFUSED, Overtaken, Writer

WORKERS = 16  # looks at jobs, and creations of Workloads, at a time
WRITES = 16  # admissions under way
HEADS = 64  # placements before others get a turn
PAUSE = 0.05  # seconds between two cycles that only freed capacity asked for
SWEEP = 2.0  # seconds between looks at what nobody announces: deadlines, strays, gauges
LAZY_TICK = 0.5
LAZY_BATCH = 64
QUIET = 1.0  # seconds without a patch, after which lazy writes are welcome
LAZY_AT_MOST = 30.0  # seconds that a lazy write is put off while others are busy
DETAILS = 10.0  # seconds between two explanations of one refusal
SYNC_SECONDS = 120.0
FINE = "Normal"

_SAFER = "; until they agree the smaller amounts and the stricter policy count"

log = structlog.get_logger()


class Controller:
    """One term of leadership."""

    def __init__(self, settings: Settings, client: Client, metrics: Metrics, recorder: EventRecorder) -> None:
        self.client = client
        self.metrics = metrics
        self.recorder = recorder
        self.queue = WorkQueue()
        self.memory = Memory(
            settings.keys,
            self.queue.add,
            self._signal_pool,
            batch_seconds=settings.ungate_batch_seconds,
            options=Options.of(settings),
        )
        self.memory.inside.tell = self._tell_machine
        self.memory.troubles.tell = self._tell_trouble
        self.writer = Writer(client)
        self.sender = Sender(
            client,
            settings.keys,
            concurrency=settings.ungate_concurrency,
            timeout=settings.expectation_timeout_seconds,
            again=self.queue.add,
            metrics=metrics,
            recorder=recorder,
        )
        self._signal = asyncio.Event()
        self._writes = asyncio.Semaphore(WRITES)
        self._lazy: dict[str, float] = {}  # uid -> when its lazy write is due
        self._lazily: set[str] = set()  # uids whose lazy writes are to be made at the next look
        self._refusals: dict[bytes, tuple[int, int, Answer]] = {}  # shape -> pool generation, count, answer
        self._group: asyncio.TaskGroup | None = None
        self._pods: Informer[Pod] | None = None
        self._workloads: Informer[Workload] | None = None
        self._carry: dict[type, Callable[[Record, Any], Awaitable[bool]]] = {
            decide.Create: self._create,
            decide.Respec: self._respec,
            decide.Release: self._release,
            decide.Readmit: self._readmit,
            decide.Shrink: self._shrink,
            decide.Write: self._write,
        }
        self._looks = 0  # the id of a look in logs
        self._outcomes = {name: metrics.reconciles.labels(name) for name in ("done", "conflict", "error", "bug")}
        self.bridge = Bridge(client, self.memory, never_fits=NeverFits(settings.kueue_never_fits))
        self.ready = False

    # --- life ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """List, rebuild, then work, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                informers, optional = self._informers(), self._optional()
                for task in (*(each.run() for each in informers), *(each.run() for each in optional)):
                    group.create_task(task)
                for informer in informers:
                    await informer.wait_synced(SYNC_SECONDS)
                await asyncio.gather(*(informer.first() for informer in optional))
                nodes, flavors, classes, jobs, pods, _ = (tuple(informer.store.values()) for informer in informers)
                self.memory.load(nodes, flavors, classes, jobs, pods)
                self.ready = True
                log.info("leading", nodes=len(nodes), pods=len(pods), jobs=len(self.memory.records))
                for _ in range(WORKERS):
                    group.create_task(self._work())
                for loop in (self.sender.run, self._cycles, self._lazy_loop, self._sweep_loop, self.bridge.run):
                    group.create_task(loop())
        finally:
            self.ready = False
            self.queue.close()

    def _informers(self) -> "tuple[Informer[Any], ...]":
        memory, client = self.memory, self.client
        nodes = Informer(client, NODES, Node, on_event=memory.on_node)
        memory.inside.sources.node = nodes.store.get
        flavors = Informer(client, RESOURCE_FLAVORS, ResourceFlavor, on_event=self._on_flavor)
        classes = Informer(client, PRIORITY_CLASSES, PriorityClass, on_event=memory.on_class)
        jobs = Informer(client, JOBS, Job, on_event=memory.on_job)
        indexers = {"owner": _owner_uid, "node": _node_name}
        self._pods = pods = Informer(client, PODS, Pod, indexers=indexers, on_event=memory.on_pod)
        memory.pods_on = lambda name: pods.by_index("node", name)
        self._workloads = workloads = Informer(client, WORKLOADS, Workload, on_event=memory.on_workload)
        memory.pods_of = lambda uid: pods.by_index("owner", uid)
        memory.workload_of = workloads.store.get
        return nodes, flavors, classes, jobs, pods, workloads

    def _optional(self) -> "tuple[OptionalInformer[Any], ...]":
        """What nodes may publish of their inside, and Kueue's kinds."""
        memory, client = self.memory, self.client
        topologies = OptionalInformer(
            client, NODE_RESOURCE_TOPOLOGIES, NodeResourceTopology, on_event=memory.on_topology
        )
        flexes = OptionalInformer(client, FLEX_TOPOS, FlexTopo, on_event=memory.on_flex)
        memory.inside.sources.topology, memory.inside.sources.flex = topologies.get, flexes.get
        return topologies, flexes, *self.bridge.informers()

    def _on_flavor(self, event: Event[ResourceFlavor]) -> None:
        self.memory.on_flavor(event)
        self.bridge.flavors_changed()

    # --- one job -------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            uid = await self.queue.get()
            try:
                await self.reconcile(uid)
            finally:
                self.queue.done(uid)

    async def reconcile(self, uid: str) -> None:
        """Look at one job once. Failures of the API server only delay: the job is looked at again, later each time."""
        record = self.memory.records.get(uid)
        if record is None or record.busy:
            return  # gone; or its write ends soon and asks for another look
        self._looks += 1
        outcome, context = "done", {"workload": record.key, "reconcile": self._looks}
        try:
            instructions = decide.decide(record, self.memory.rules, time.monotonic())
            predictions = None
            for instruction in instructions:
                if isinstance(instruction, decide.Ungate):
                    if predictions is None and self.memory.state.machines:
                        predictions = Predictions(self.memory.state, record)
                    self._ungate(record, instruction, predictions)
                elif await self._carry_out(record, instruction):
                    if instruction is not instructions[-1] or not isinstance(instruction, decide.Write):
                        self.queue.add(uid)
                    break
            record.failures = 0
            self.bridge.looked(record)
        except Conflict as error:
            outcome = "conflict"
            log.info("workload changed meanwhile", error=str(error), **context)
            await self._refresh(record)
        except KubeError as error:
            outcome = "error"
            self._later(record)
            log.warning("API server refused or did not answer", error=str(error), failures=record.failures, **context)
        except Exception:
            outcome = "bug"
            self._later(record)
            log.exception("reconcile failed", **context)
        self._outcomes[outcome].inc()

    def _later(self, record: Record) -> None:
        record.failures += 1
        self.queue.add(record.uid, backoff(record.failures))

    async def _refresh(self, record: Record) -> None:
        record.failures += 1
        try:
            known = await self.writer.read(record.owner.namespace, record.owner.workload)
        except REFUSED:
            record.known = None
        else:
            self.memory.saw_workload(record, known)
        self.queue.add(record.uid, backoff(record.failures))

    async def _carry_out(self, record: Record, instruction: decide.Instruction) -> bool:
        """Do it; True where something was awaited, so that the rest may be stale."""
        memory = self.memory
        match instruction:
            case decide.Enter(lost):
                record.lost = lost
                self._enter(record)
            case decide.Leave():
                memory.pool.remove(record.uid)
            case decide.Free():
                memory.free(record)
            case decide.Tell():
                self._tell(record, instruction)
            case decide.Delete(pod, reason, message):
                self.recorder.event(reference(PODS, pod), "Warning", reason, "Replace", message)
                self.sender.delete(record, pod)
            case decide.ShrinkLater():
                record.shrink_at = time.monotonic() + decide.SHRINK_AFTER
                self.queue.add(record.uid, decide.SHRINK_AFTER)
            case _:
                return await self._carry[type(instruction)](record, instruction)
        return False

    def _ungate(self, record: Record, ungate: decide.Ungate, predictions: Predictions | None) -> None:
        if record.slots is None:
            return
        slot = record.slots.slots[ungate.index]
        placement = predictions.take(ungate.pod, slot) if predictions is not None else None
        more = self.memory.inside.annotations(slot.node, placement)
        self.sender.ungate(record, ungate.pod, slot, placement, more)

    def _enter(self, record: Record) -> None:
        owner, pod_set = record.owner, record.owner.pod_sets[0]
        held = record.slots.total if record.slots else 0
        token = f"{pod_set.count}-{held}-{hash(pod_set.raw)}-{owner.request}-{record.lost}"
        self.memory.pool.add(record.uid, self.memory.priority(owner), owner.created, token=token)
        self._signal.set()

    def _tell(self, record: Record, tell: decide.Tell) -> None:
        if tell.once:
            if tell.once in record.noted:
                return
            record.noted.add(tell.once)
        else:
            record.told = Told(str(tell.reason), tell.message, time.monotonic())
        regarding = reference(PODS, tell.pod) if tell.pod is not None else _job_reference(record)
        self.recorder.event(regarding, tell.type, tell.reason, tell.action, conditions.shorten(tell.message))

    # --- writes of one job ---------------------------------------------------------------------------------------

    async def _create(self, record: Record, _: decide.Create) -> bool:
        record.busy, known = True, None
        try:
            known = await self.writer.create(record.owner, self.memory.priority(record.owner))
        finally:
            record.busy = False
        if record.known is None:
            self.memory.saw_workload(record, known)
        return True

    async def _respec(self, record: Record, _: decide.Respec) -> bool:
        if record.known is not None:
            await self._writing(record, self.writer.spec(record.owner, record.known))
        return True

    async def _write(self, record: Record, write: decide.Write) -> bool:
        known = record.known
        if known is None:
            return False
        if conditions.merge(known.conditions, write.wanted, generation=known.generation, now=0.0) is None:
            self._lazy.pop(record.uid, None)
            return False
        if write.delay and record.uid not in self._lazily:
            self._lazy.setdefault(record.uid, time.monotonic() + write.delay)
            return False
        self._lazily.discard(record.uid)
        self._lazy.pop(record.uid, None)
        await self._writing(record, self.writer.conditions(record.owner.namespace, known, write.wanted))
        return True

    async def _release(self, record: Record, release: decide.Release) -> bool:
        """Remove the admission, and only then give the capacity away: nobody else may be told of it before."""
        record.closing = True
        if record.sending:
            self.queue.add(record.uid, PAUSE)  # a patch on its way may still use a slot
            return False
        if record.known is not None:
            await self._store(record, None, release.wanted)
        self.memory.free(record)
        return True

    async def _readmit(self, record: Record, _: decide.Readmit) -> bool:
        if record.slots is not None:
            await self._store(record, record.slots, _admitted("the admission was written again"))
        return True

    async def _shrink(self, record: Record, shrink: decide.Shrink) -> bool:
        record.shrink_at = None
        await self._store(record, shrink.slots, ())
        self.memory.hold(record, shrink.slots)
        self.memory.stir()
        return True

    async def _store(self, record: Record, slots: Any, wanted: tuple[Wanted, ...]) -> None:
        """Write an admission whose capacity is held already."""
        if record.known is None:
            return
        requests = record.assignment.requests if record.assignment else None
        pod_set = record.owner.pod_sets[0]
        reclaimable = max(0, pod_set.full - slots.total) if slots is not None else 0
        try:
            await self._writing(
                record,
                self.writer.admission(
                    record.owner.namespace, record.known, slots, wanted, requests=requests, reclaimable=reclaimable
                ),
            )
        except Overtaken as news:
            self.memory.saw_workload(record, news.found)

    async def _writing(self, record: Record, write: Awaitable[Known]) -> None:
        record.busy, known = True, None
        try:
            known = await write
        finally:
            self.memory.written(record, known)

    # --- the admission cycle -------------------------------------------------------------------------------------

    def _signal_pool(self) -> None:
        self._signal.set()

    async def _cycles(self) -> None:
        pool = self.memory.pool
        while True:
            wait = pool.next_time(time.monotonic())
            try:
                async with asyncio.timeout(SWEEP if wait is None else min(wait, SWEEP)):
                    await self._signal.wait()
            except TimeoutError:
                pass
            self._signal.clear()
            generation = pool.generation
            while self.cycle():
                await asyncio.sleep(0)
            if pool.generation != generation:
                await asyncio.sleep(PAUSE)

    def cycle(self) -> bool:
        """The admission cycle. Returns whether there is more to look at now."""
        memory, now = self.memory, time.monotonic()
        # 1. Heads: who waits and is worth a look, by priority, then age; a few at a time.
        heads = memory.pool.heads(HEADS, now)
        for uid in heads:
            record = memory.records.get(uid)
            if record is None or record.owner.over or record.owner.suspended:
                memory.pool.remove(uid)
                continue
            if record.busy or record.known is None:
                memory.pool.again(uid, now + PAUSE)
                continue
            # 2. Nominate: ask the engine, which knows what the heads before have taken.
            answer = self._ask(record)
            # 3. Refused: say why, and wait until something changes that could help.
            if isinstance(answer.result, Refusal):
                self._refuse(record, answer, now)
                continue
            # 4. Reserve in memory.
            memory.state.reserve(record.key, [answer.result])
            record.busy = True
            # 5. Store the admission, the write-ahead record. 6. Then let the pods go; or take the reservation back.
            if self._group is not None:
                self._group.create_task(self._admit(record, answer.result, answer.pod_set))
        return bool(heads) and memory.pool.next_time(now) == 0.0

    def _ask(self, record: Record) -> Answer:
        started, pool = time.perf_counter(), self.memory.pool
        key, count = b"", record.owner.pod_sets[0].count
        if record.slots is None:
            key = shape(record, self.memory)
            seen = self._refusals.get(key)
            if seen is not None and seen[0] == pool.generation and count >= seen[1]:
                return seen[2]
        answer = ask(self.memory, record)
        if key and answer.refusal is not None:
            if len(self._refusals) > 1024:
                self._refusals.clear()
            self._refusals[key] = (pool.generation, count, answer)
        name = "placed" if answer.refusal is None else "refused"
        self.metrics.placement.labels(name).observe(time.perf_counter() - started)
        return answer

    def _refuse(self, record: Record, answer: Answer, now: float) -> None:
        refusal = answer.refusal
        if refusal is None:
            return
        before = record.refused
        if before is not None and before.reason == refusal.reason and now - record.refused_at < DETAILS:
            return
        record.refused_at = now
        text = reason_text(self.memory.state, refusal, answer.pod_set, sorted(self.memory.flavors))
        if left_out := self.memory.troubles.listed(record):
            text += f"; left out for now, because their kubelets refused such a pod: {left_out}"
        record.refused = Refused(refusal.reason, text)
        if record.refused != before:
            log.info("waits", workload=record.key, reason=str(refusal.reason), message=text)
            self.queue.add(record.uid)

    async def _admit(self, record: Record, assignment: Assignment, pod_set: PodSet) -> None:
        """Store an admission that is reserved already, then have its pods ungated; else give the reservation back."""
        memory, known = self.memory, None
        slots = memory.slots_of(assignment)
        message = messages.admitted(slots, pod_set)
        try:
            async with self._writes:
                if record.known is None or record.uid not in memory.records:
                    raise Overtaken(record.known) if record.known else KubeError("the workload is gone")
                known = await self.writer.admission(
                    record.owner.namespace, record.known, slots, _admitted(message), requests=dict(assignment.requests)
                )
        except Overtaken as news:
            memory.undo(record)
            known = news.found
        except KubeError as error:
            memory.undo(record)
            record.failures += 1
            memory.pool.again(record.uid, time.monotonic() + backoff(record.failures))
            log.warning("admission was not stored", workload=record.key, error=str(error))
            if isinstance(error, REFUSED):
                record.known = None if error.status == 404 else record.known
        else:
            self._was_admitted(record, assignment, slots, message)
        finally:
            memory.written(record, known)
            if record.uid not in memory.records:
                memory.state.release(record.key)
            self.queue.add(record.uid)

    def _was_admitted(self, record: Record, assignment: Assignment, slots: Any, message: str) -> None:
        first, moved = record.slots is None, bool(record.lost)
        self.memory.admit(record, assignment, slots)
        self.memory.pool.remove(record.uid)
        reason, action = (Reason.REPLACED, "Replace") if moved else (Reason.RESIZED, "Resize")
        reason, action = (Reason.ADMITTED, "Admit") if first else (reason, action)
        self.recorder.event(_job_reference(record), FINE, reason, action, conditions.shorten(message))
        log.info("admitted", workload=record.key, message=message)
        if first:
            self.metrics.admitted.inc()
            self.metrics.admission.observe(max(0.0, time.time() - seconds_of(record.owner.created)))

    # --- what nobody announces -----------------------------------------------------------------------------------

    async def _lazy_loop(self) -> None:
        while True:
            await asyncio.sleep(LAZY_TICK)
            now = time.monotonic()
            quiet = now - self.sender.last_sent > QUIET and len(self.queue) == 0
            due = [uid for uid, at in self._lazy.items() if at <= now and (quiet or now - at > LAZY_AT_MOST)]
            for uid in due[:LAZY_BATCH]:
                del self._lazy[uid]
                self._lazily.add(uid)
                self.queue.add(uid)

    async def _sweep_loop(self) -> None:
        while True:
            await asyncio.sleep(SWEEP)
            now = time.monotonic()
            for uid, record in self.memory.records.items():
                if any(intent.deadline <= now for intent in record.intents.values()):
                    self.queue.add(uid)
            if self.memory.troubles.ended():
                self.memory.stir()
            self.metrics.set_machines(*self.memory.inside.counts())
            self._tell_strays()
            self.metrics.set_pending(self.memory.pending())

    def _tell_trouble(self, record: Record, trouble: Trouble) -> None:
        """A kubelet did otherwise than predicted: an event on the pod and on its job."""
        if trouble.refused:
            self.metrics.refusals.labels(trouble.reason).inc()
        else:
            self.metrics.misaligned.inc()
        reason = Reason.KUBELET_REFUSED if trouble.refused else Reason.MISALIGNED
        message = conditions.shorten(trouble.message)
        if trouble.refused:
            left_out = (
                f"; no pod like it goes to {trouble.node} for {trouble.seconds:.0f} s unless something changes there"
            )
            message = conditions.shorten(trouble.message + left_out)
        for regarding in (reference(PODS, trouble.pod), _job_reference(record)):
            self.recorder.event(regarding, "Warning", reason, "Place", message)
        log.warning("kubelet did otherwise", workload=record.key, reason=str(reason), message=message)

    def _tell_machine(self, name: str, before: Described, now: Described) -> None:
        """What is wrong with what a node publishes changed: an event on the node."""
        node = self.memory.inside.sources.node(name)
        regarding = reference(NODES, node) if node is not None else None
        news = (
            (Reason.MACHINE_DATA_DISAGREES, before.disagreements, now.disagreements, _SAFER),
            (Reason.MACHINE_DATA_INVALID, before.problems, now.problems, ""),
        )
        for reason, old, new, then in news:
            if new == old or regarding is None:
                continue
            text = conditions.shorten("; ".join(new) + then)
            if new:
                self.recorder.event(regarding, "Warning", reason, "Read", text)
                log.warning("machine data", node=name, reason=str(reason), message=text)
        if not now.problems and not now.disagreements and regarding is not None:
            message = f"what the node publishes of its inside can be used again: {now.source or 'nothing'}"
            self.recorder.event(regarding, FINE, Reason.MACHINE_DATA_VALID, "Read", message)

    def _tell_strays(self) -> None:
        """Say why gated pods of owners that are not served stay gated; not at once, as their job may follow them."""
        for uid, pod in self.memory.stray.items():
            if pod is None or time.time() - seconds_of(pod.metadata.creation_timestamp) < SWEEP:
                continue
            self.memory.stray[uid] = None
            owner = controller_of(pod.metadata)
            what = f"its owner, {owner.kind} {owner.name}, is" if owner else "it has no owner; a bare pod is"
            message = (
                f"the pod stays behind the scheduling gate {self.memory.keys.gate}: {what} not served yet, only Jobs "
                "with a topology request are. Make it again without the topology annotation"
            )
            self.recorder.event(reference(PODS, pod), "Warning", Reason.UNSUPPORTED_OWNER, "Place", message)


def _admitted(message: str) -> tuple[Wanted, ...]:
    return (
        Wanted(conditions.QUOTA_RESERVED, True, Reason.QUOTA_RESERVED, message),
        Wanted(conditions.ADMITTED, True, Reason.ADMITTED, message),
    )


def _owner_uid(pod: Pod) -> Iterable[str]:
    owner = controller_of(pod.metadata)
    return (owner.uid,) if owner is not None else ()


def _node_name(pod: Pod) -> Iterable[str]:
    return (pod.spec.node_name,) if pod.spec.node_name else ()


def _job_reference(record: Record) -> ObjectReference:
    owner = record.owner
    return ObjectReference(
        api_version=owner.api_version, kind=owner.kind, namespace=owner.namespace, name=owner.name, uid=owner.uid
    )

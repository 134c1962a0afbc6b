"""What is known of the cluster, fed by informer events: the engine's state and one record a job.

Rules
- An event costs O(1): a pod touches its charge in the engine and its entry in one record, nothing else.
- A pod counts as ours (`claim`) only if the job that controls it owns the Workload, our ungating patch marked it, and
  its node selector names one of the Workload's slots. What a user wrote on a pod decides nothing.
- `load` rebuilds everything from lists in a fixed order, so a restart ends in the same state as having been there.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from crds.constants import Keys
from engine.model import HOSTNAME_LABEL, PodSet, TopologyRequest
from engine.numa.machine import NumaPlacement
from engine.numa.score import ZoneScore
from engine.placement import Assignment, Slice
from engine.reasons import Reason
from engine.state import ClusterState
from kube import convert, objects
from kube.informer import Event
from kube.topologies import FlexTopo, NodeResourceTopology
from ungater import swaps
from ungater.decide import Rules
from ungater.inside import Inside, Options, worth_a_look
from ungater.jobs import MAIN, Owner, owner_of
from ungater.pool import Pool
from ungater.predictions import promise_again
from ungater.record import Known, Record
from ungater.slots import Slot, SlotMap, finished, is_gated
from ungater.troubles import Troubles, refused
from ungater.workloads import Workload, known_of

BATCH_A_POD = 0.0002  # seconds of waiting for more pods, for each pod the job has
LEAST_BATCH = 0.1

Enqueue = Callable[[str, float], None]


class Memory:
    """Everything the controller knows. Not a shell: no I/O, no tasks; keys to look at go to ``enqueue(uid, after)``."""

    def __init__(
        self,
        keys: Keys,
        enqueue: Enqueue,
        signal: Callable[[], None] = lambda: None,
        *,
        batch_seconds: float = 1.0,
        options: Options | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        options = options or Options()
        self.keys = keys
        self.state = ClusterState(
            reconstruct_available=options.reconstruct_available, numa_score=ZoneScore(options.numa_score)
        )
        self.inside = Inside(self.state, options)
        self.troubles = Troubles(enqueue, clock)
        self.troubles.broken = self.inside.broken
        self.pool = Pool()
        self.records: dict[str, Record] = {}  # by job uid
        self.flavors: dict[str, tuple[str, ...]] = {}
        self.priorities: dict[str, int] = {}
        self.default_priority = 0
        self.stray: dict[str, objects.Pod | None] = {}  # gated pods that no served job owns; None: it was told
        self.live = False
        self.pods_of: Callable[[str], Iterable[objects.Pod]] = lambda _: ()
        self.pods_on: Callable[[str], Iterable[objects.Pod]] = lambda _: ()  # by node name
        self.workload_of: Callable[[str], Workload | None] = lambda _: None
        self.view: Callable[[Owner], Owner] = lambda owner: owner  # a job as everything here is to look at it
        self._enqueue = enqueue
        self._signal = signal
        self._batch = batch_seconds
        self._rules: Rules | None = None

    # --- reading -------------------------------------------------------------------------------------------------

    @property
    def rules(self) -> Rules:
        """What holds for all jobs now."""
        if self._rules is None:
            self._rules = Rules(self.keys, dict(self.flavors), self._lost, self.troubles.avoided)
        return self._rules

    def priority(self, owner: Owner) -> int:
        """The priority of a job's pods, as the API server will give it to them."""
        if owner.priority_class:
            return self.priorities.get(owner.priority_class, 0)
        return self.default_priority

    def pod_set(self, record: Record, topology: TopologyRequest, count: int | None = None) -> PodSet:
        """The engine's view of the job's pods, which keep off nodes that refused such pods a short time ago."""
        owned = record.owner.pod_sets[0]
        return convert.pod_set(
            owned.name,
            owned.count if count is None else count,
            owned.template,
            topology,
            record.owner.namespace,
            shape=record.shape,
            without=self.troubles.avoided(record),
        )

    def stir(self) -> None:
        """Something changed that could help a workload that waits."""
        self.pool.wake()
        if len(self.pool):
            self._signal()

    # --- rebuilding ----------------------------------------------------------------------------------------------

    def load(
        self,
        nodes: Iterable[objects.Node],
        flavors: Iterable[objects.ResourceFlavor],
        classes: Iterable[objects.PriorityClass],
        jobs: Iterable[objects.Job],
        pods: Iterable[objects.Pod],
    ) -> None:
        """Build everything from what was listed; events count from here on. ``pods_of`` must answer already."""
        for wire in sorted(flavors, key=objects.key):
            self._set_flavor(wire)
        for priority_class in classes:
            self._set_class(priority_class)
        for node in sorted(nodes, key=objects.key):
            self.state.set_node(convert.node(node))
            self.inside.refresh(node.metadata.name)
        for job in sorted(jobs, key=objects.key):
            self._set_job(job)
        for pod in pods:
            self._charge(pod)
            if (record := self._record_of(pod)) is None:
                self._note_stray(pod)
            elif refused(pod):
                self.troubles.leave_out(record, pod)  # told by whoever led when it happened
        self.live = True

    # --- events --------------------------------------------------------------------------------------------------

    def on_node(self, event: Event[objects.Node]) -> None:
        """A node came, changed or went."""
        if not self.live:
            return
        if event.new is None:
            changed = self.state.remove_node(event.key)
            self.troubles.forget(event.key)
        elif changed := self.state.set_node(convert.node(event.new)):
            self.stir()
        if event.new is None or event.old is None or worth_a_look(event.old, event.new):
            self._look_inside(event.key)
        if changed and not self._usable(event.key):
            self._node_lost(event.key)

    def on_topology(self, event: Event[NodeResourceTopology]) -> None:
        """What a node's exporter publishes came, changed or went."""
        if self.live:
            self._look_inside(event.key)

    def on_flex(self, event: Event[FlexTopo]) -> None:
        """What our agent publishes of a node came, changed or went."""
        if self.live:
            self._look_inside(event.key)

    def on_flavor(self, event: Event[objects.ResourceFlavor]) -> None:
        """A flavor came, changed or went: who waits may have a place now, or never."""
        if not self.live:
            return
        if event.new is None:
            self.flavors.pop(event.key, None)
            self.state.remove_flavor(event.key)
        else:
            self._set_flavor(event.new)
        self._rules = None
        self.stir()
        for uid, record in self.records.items():
            if record.slots is None:
                self._enqueue(uid, 0.0)

    def on_class(self, event: Event[objects.PriorityClass]) -> None:
        """A priority class came or went; it counts for jobs that are looked at from now on."""
        if event.new is not None:
            self._set_class(event.new)
        else:
            self.priorities.pop(event.key, None)

    def on_job(self, event: Event[objects.Job]) -> None:
        """A job came, changed or went."""
        if not self.live:
            return
        if event.old is not None and (event.new is None or event.new.metadata.uid != event.old.metadata.uid):
            self._drop(event.old.metadata.uid)
        if event.new is not None:
            self._set_job(event.new)

    def on_workload(self, event: Event[Workload]) -> None:
        """A Workload changed: by our own hand, which we know already, or by another's, whose record then counts."""
        if not self.live:
            return
        workload = event.new or event.old
        reference = objects.controller_of(workload.metadata) if workload else None
        record = self.records.get(reference.uid) if reference else None
        if workload is None or record is None or workload.metadata.name != record.owner.workload:
            return
        if event.new is None:
            if record.known is not None and record.known.uid == workload.metadata.uid:
                record.known = None
                self._enqueue(record.uid, 0.0)
            return
        if not record.busy:
            self.saw_workload(record, known_of(workload))

    def on_pod(self, event: Event[objects.Pod]) -> None:
        """A pod came, changed or went."""
        if not self.live:
            return
        new, old = event.new, event.old
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._forget_pod(old)
            if new is None:
                return
        if new is None:
            return
        same = old is not None and old.metadata.uid == new.metadata.uid
        record = self._record_of(new)
        if not (same and old is not None and _charged_alike(old, new)):
            if record is not None and new.spec.node_name and self._marked(record, new):
                self._settle(record, new)
            self._charge(new)
        if record is None:
            self._note_stray(new)
        else:
            if self._marked(record, new):
                self.troubles.note(record, old if same else None, new)
            self._pod_of(record, old if same else None, new)

    # --- results of our own writes -------------------------------------------------------------------------------

    def saw_workload(self, record: Record, known: Known) -> None:
        """Take over what the API server has of a Workload; where its admission is not what is held, it wins."""
        if record.known is not None and known.uid == record.known.uid and known.version <= record.known.version:
            return
        record.known = known
        if known.slots is not None and not known.slots.same(record.slots) and not record.owner.over:
            self.hold(record, known.slots)
            self._enqueue(record.uid, 0.0)
        elif known.slots is None and record.slots is not None:
            self._enqueue(record.uid, 0.0)  # somebody removed the record: `decide` has it written again

    def written(self, record: Record, known: Known | None) -> None:
        """A write ended: its answer counts, and then whatever came from the API server meanwhile."""
        record.busy = False
        if known is not None:
            record.known = known
        latest = self.workload_of(record.key)
        if latest is not None and record.known is not None and latest.metadata.uid == record.known.uid:
            self.saw_workload(record, known_of(latest))

    def hold(self, record: Record, slots: SlotMap) -> None:
        """Have the engine hold exactly these slots, which are stored in the API server."""
        assignment = self.assignment(record, slots)
        self.state.restore(record.key, [assignment])
        record.assignment = self.state.assignments(record.key).get(MAIN, assignment)
        record.slots = self._with_nodes(slots, record.assignment)
        record.shrink_at, record.lost = None, ()
        for pod in record.pods.values():
            self._charge(pod)
        if not self.live:
            promise_again(self.state, self.inside, record)

    def admit(self, record: Record, assignment: Assignment, slots: SlotMap) -> None:
        """The admission is stored: from here on pods may go."""
        record.assignment, record.slots, record.refused, record.told = assignment, slots, None, None
        record.lost = ()
        for pod in record.pods.values():
            if pod.spec.node_name:
                self._charge(pod)

    def free(self, record: Record) -> None:
        """Give back all that the engine holds for the job."""
        record.slots = record.assignment = None
        record.intents.clear()
        record.exchanges.clear()
        record.shrink_at = record.patches = None
        record.closing = False
        if self.state.release(record.key):
            self.stir()

    def undo(self, record: Record) -> None:
        """A write failed for certain: hold what was held before it."""
        if record.assignment is None:
            self.state.release(record.key)
        else:
            self.state.reserve(record.key, [record.assignment])
        self.stir()

    def slots_of(self, assignment: Assignment) -> SlotMap:
        """The engine's assignment as slots, each with its node where it is one node."""
        by_host = assignment.by_host
        slots = (
            Slot(part.values, part.count, part.nodes[0][0] if by_host and len(part.nodes) == 1 else "")
            for part in assignment.slices
        )
        return SlotMap(assignment.levels, tuple(slots), assignment.flavor)

    # --- inside --------------------------------------------------------------------------------------------------

    def _set_flavor(self, wire: objects.ResourceFlavor) -> None:
        flavor = convert.flavor(wire)
        if flavor is None:
            self.flavors.pop(wire.metadata.name, None)
            self.state.remove_flavor(wire.metadata.name)
        else:
            self.flavors[flavor.name] = flavor.levels
            self.state.set_flavor(flavor)

    def _set_class(self, wire: objects.PriorityClass) -> None:
        self.priorities[wire.metadata.name] = wire.value
        if wire.global_default:
            self.default_priority = wire.value

    def _set_job(self, job: objects.Job) -> None:
        record = self.records.get(job.metadata.uid)
        own = owner_of(job, self.keys, record.own if record else None)
        if own.request is None and not own.gated:
            if record is not None:
                self._drop(own.uid)
            return
        if record is None:
            self._new_record(own)
            return
        record.own = own
        self.review(own.uid)

    def review(self, uid: str) -> None:
        """Look at a job anew: it changed, or what `view` says of it may have."""
        record = self.records.get(uid)
        if record is None or record.own is None:
            return
        before, record.owner = record.owner, self.view(record.own)
        if _worth_a_look(before, record.owner):
            self._enqueue(uid, 0.0)

    def _new_record(self, own: Owner) -> None:
        owner = self.view(own)
        record = self.records[owner.uid] = Record(owner, own=own)
        record.pods = {pod.metadata.uid: pod for pod in self.pods_of(owner.uid)}
        workload = self.workload_of(owner.workload_key)
        reference = objects.controller_of(workload.metadata) if workload else None
        if workload is not None and reference is not None and reference.uid == owner.uid:
            record.known = known_of(workload)
            if record.known.slots is not None and not owner.over and not owner.suspended:
                self.hold(record, record.known.slots)
        for uid in record.pods:
            self.stray.pop(uid, None)
        self._enqueue(owner.uid, 0.0)

    def _drop(self, uid: str) -> None:
        record = self.records.pop(uid, None)
        if record is not None:
            self.pool.remove(uid)
            self.free(record)

    def _record_of(self, pod: objects.Pod) -> Record | None:
        owner = objects.controller_of(pod.metadata)
        return self.records.get(owner.uid) if owner is not None else None

    def _pod_of(self, record: Record, old: objects.Pod | None, new: objects.Pod) -> None:
        uid = new.metadata.uid
        record.pods[uid] = new
        gated = is_gated(new, self.keys.gate)
        if not gated and uid in record.intents:
            del record.intents[uid]  # our own patch, seen at last
            return
        if old is not None and _same_to_slots(old, new, self.keys.gate):
            return
        self._enqueue(record.uid, self._delay(record))

    def _delay(self, record: Record) -> float:
        """How long to wait for more pods of the job: not at all once they are all there."""
        full = record.owner.pod_sets[0].full
        if len(record.pods) >= full:
            return 0.0
        return min(self._batch, LEAST_BATCH + BATCH_A_POD * full)

    def _forget_pod(self, pod: objects.Pod) -> None:
        uid = pod.metadata.uid
        self.stray.pop(uid, None)
        self._give_back(pod)
        record = self._record_of(pod)
        if record is None or record.pods.pop(uid, None) is None:
            return
        record.intents.pop(uid, None)
        record.deleting.pop(uid, None)
        record.noted.discard(uid)
        record.troubles.pop(uid, None)
        swaps.forget(record, pod)
        self._enqueue(record.uid, self._delay(record))

    def _charge(self, pod: objects.Pod) -> None:
        """Charge a bound pod that has not finished, with its claim; others take nothing."""
        if not pod.spec.node_name:
            return
        if finished(pod):
            self._give_back(pod)
            return
        shape, placement = self.inside.of_pod(pod, self._in_flight(pod))
        observed = placement is not None and self.inside.observed(pod)
        self.state.set_pod(convert.pod(pod, self._claim(pod), shape=shape, placement=placement, observed=observed))

    def _give_back(self, pod: objects.Pod) -> None:
        if self.state.remove_pod(objects.key(pod)):
            self.troubles.changed(pod.spec.node_name, self.records.values())
            self.stir()

    def _in_flight(self, pod: objects.Pod) -> NumaPlacement | None:
        record = self._record_of(pod)
        if record is None:
            return None
        intent = record.intents.get(pod.metadata.uid)
        return record.swaps.get(pod.metadata.uid) or (intent.placement if intent is not None else None)

    def _settle(self, record: Record, pod: objects.Pod) -> None:
        """Pods may come to their node in another order than was foreseen."""
        swaps.arrive(record, pod)
        other = swaps.settle(self.state, record, pod, self.pods_on(pod.spec.node_name), self._record_of)
        if other is not None:
            self._charge(other)

    def _claim(self, pod: objects.Pod) -> tuple[str, str] | None:
        record = self._record_of(pod)
        if record is None or record.slots is None:
            return None
        if not self._marked(record, pod):
            return None
        if record.slots.of_selector(pod.spec.node_selector) is None:
            return None
        return record.key, MAIN

    def _look_inside(self, name: str) -> None:
        """What a node publishes of its inside may have changed."""
        found = self.inside.refresh(name)
        if found.zones:
            for pod in self.pods_on(name):
                self._charge(pod)
        if found.anything:
            self.troubles.changed(name, self.records.values())
        if found.more:
            self.stir()

    def _marked(self, record: Record, pod: objects.Pod) -> bool:
        return (pod.metadata.annotations or {}).get(self.keys.workload) == record.owner.workload

    def _note_stray(self, pod: objects.Pod) -> None:
        """Remember a gated pod whose owner is no job that is served, so that somebody tells why it stays gated."""
        if not is_gated(pod, self.keys.gate) or pod.metadata.deletion_timestamp is not None:
            return
        self.stray.setdefault(pod.metadata.uid, pod)

    def assignment(self, record: Record, slots: SlotMap) -> Assignment:
        """Stored slots as the engine takes them back."""
        template = record.owner.pod_sets[0].template
        return Assignment(
            pod_set=MAIN,
            flavor=slots.flavor,
            levels=slots.levels,
            requests=convert.pod_requests(template.spec),
            shape=record.shape,
            slices=(Slice(values=slot.values, count=slot.count) for slot in slots.slots),
        )

    def _with_nodes(self, slots: SlotMap, held: Assignment) -> SlotMap:
        """The stored slots with the nodes on which the engine holds them, where each slice is one node."""
        if not held.by_host:
            return slots
        nodes = {part.values: part.nodes[0][0] for part in held.slices if len(part.nodes) == 1}
        named = (Slot(slot.values, slot.count, nodes.get(slot.values, "")) for slot in slots.slots)
        return SlotMap(slots.levels, tuple(named), slots.flavor)

    def _lost(self, slots: SlotMap, slot: Slot) -> bool:
        """Whether no pod can start in this slot now. Only a slice that is one host can be lost as a whole."""
        if slots.levels[-1:] != (HOSTNAME_LABEL,):
            return False
        if slot.node:
            return not self._usable(slot.node)
        return not any(node.labels.get(HOSTNAME_LABEL) == slot.values[-1] for node in self.state.nodes.values())

    def _usable(self, name: str) -> bool:
        node = self.state.nodes.get(name)
        return node is not None and node.ready and not node.unschedulable

    def _node_lost(self, name: str) -> None:
        for uid, record in self.records.items():
            if record.slots is not None and any(slot.node == name for slot in record.slots.slots):
                self._enqueue(uid, 0.0)

    def pending(self) -> Mapping[str, int]:
        """How many jobs wait for a place, by reason."""
        counts: dict[str, int] = {}
        for record in self.records.values():
            if record.slots is None and not record.owner.over:
                reason = str(record.refused.reason if record.refused else Reason.PENDING)
                counts[reason] = counts.get(reason, 0) + 1
        return counts


def _charged_alike(old: objects.Pod, new: objects.Pod) -> bool:
    """Whether both versions of a pod take the same from the same node."""
    return (
        old.spec == new.spec
        and finished(old) == finished(new)
        and old.metadata.labels == new.metadata.labels
        and old.metadata.annotations == new.metadata.annotations
    )


def _same_to_slots(old: objects.Pod, new: objects.Pod, gate: str) -> bool:
    """Whether nothing changed that decides which slot the pod holds or needs."""
    return (
        is_gated(old, gate) == is_gated(new, gate)
        and finished(old) == finished(new)
        and old.metadata.deletion_timestamp == new.metadata.deletion_timestamp
        and old.spec.node_selector == new.spec.node_selector
        and old.metadata.annotations == new.metadata.annotations
    )


def _worth_a_look(before: Owner, after: Owner) -> bool:
    """Whether a job changed in what is decided on; its pods' readiness counts only as all or not all."""
    return _quiet(before) != _quiet(after)


def _quiet(owner: Owner) -> Owner:
    pod_set = owner.pod_sets[0]
    ready = 1 if owner.ready >= pod_set.count > 0 else 0
    return replace(owner, ready=ready, pod_sets=(replace(pod_set, done=()),))

"""Pods on their way to nodes whose kubelets choose zones when a pod arrives, and pods that wait until those are there.

Rules
- On its way is a pod from the moment it is let go until it is known what it got: until its placement was observed or
  the node's report has it; where neither is published, until its kubelet has admitted it. After `PATIENCE` it counts
  no more.
- A pod is let go only where all that are on their way to its node, and it, are granted in every order, whatever ends
  meanwhile of what is young or being deleted (`engine.kubelet.arrival_orders`). Else it stays gated, and is looked at
  again by what happens on that node, or once it has waited for `PATIENCE`.
- Only pods that were let go are waited for, and those that wait longer than `TURN` for no other reason than such pods:
  nobody who comes later overtakes them. So no two pods wait for each other.
- A kubelet knows nothing of slots whose pods are still to come. Where a pod might take the zones that they need, it
  waits for those of workloads that were admitted before its own; they do not wait for it.
- A pod that has waited for `PATIENCE` goes, if it is granted as things stand. One that would be refused as things stand
  does not: after `MOVE` its node is left out, so that its slot goes elsewhere where there is room.
- Where devices of claims are to be in the zones of the rest, there is more to it (`ungater.numa.claim_turns`); for all
  other pods with claims, devices alone decide as well (`ungater.numa.device_turns`).
- One of a native PodGroup does not wait for pods of that group that have no node yet: kube-scheduler lets none of them
  go while one is gated. For all others it waits like any pod.
- All of it is in memory; after a restart what is on its way is seen from the pods, and waiting begins anew.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec.structs import replace

from clock import Clock
from engine.claims.asks import DeviceAsk
from engine.cluster.state import ClusterState
from engine.kubelet.arrival_orders import Free, certain, heeds, takes_zones
from engine.kubelet.machine import Layout, Machine, PodShape
from engine.reservation_key import HolderKey
from kube.objects import Pod, condition, key
from ungater.model.conditions import moment
from ungater.model.held_pods import HeldPod, HoldReason
from ungater.model.job_view import shape_of
from ungater.model.pod_slots import finished
from ungater.model.workload_entry import WorkloadEntry
from ungater.numa.claim_turns import ClaimTurns, SentPod, turn_of, wishes_zones
from ungater.numa.device_turns import AGAIN as DEVICES_AGAIN
from ungater.numa.device_turns import DeviceTurns
from ungater.numa.node_topologies import NodeTopologies
from ungater.numa.sent_pods import group_of, is_let_go

PATIENCE = 30.0  # seconds
YOUNG = 60.0  # seconds for which a pod that runs may end at any moment; an older one hardly ends in this very second
TURN = 1.0  # seconds after which one that waits for others on their way is not overtaken any more
MOVE = 2.0  # seconds after which a slot whose pod would be refused moves, where it can
AGAIN = 5.0  # seconds for which its node is left out then, unless something happens there
SETTLE = 0.05  # seconds: what happens on a node comes in bursts


class InFlightPods:
    """See the module.

    ``enqueue(uid, after)`` has a job looked at again; ``entry_of`` finds an entry by the key of its workload.
    """

    def __init__(
        self,
        state: ClusterState,
        inside: NodeTopologies,
        enqueue: Callable[[str, float], None],
        entry_of: Callable[[HolderKey], WorkloadEntry | None],
        *,
        clock: Clock,
    ) -> None:
        self._state = state
        self._claims = ClaimTurns(state, entry_of)
        self._devices = DeviceTurns(state, clock)
        self._inside = inside
        self._enqueue = enqueue
        self._entry_of = entry_of
        self._clock = clock
        self._on: dict[str, dict[str, SentPod]] = {}  # by node and key of the pod
        self._node_of: dict[str, str] = {}
        self._observing: set[str] = set()  # nodes of which placements were observed
        # By node: the entries of pods that wait, by the pods' uids.
        self._waiting: dict[str, dict[str, WorkloadEntry]] = {}
        self._left_out: dict[str, dict[tuple[str, PodShape], float]] = {}  # by uid of the workload: until when

    # --- what is on its way --------------------------------------------------------------------------------------

    def record_sent(self, entry: WorkloadEntry, pod: Pod, node: str) -> None:
        """A pod was let go to a node."""
        # From here on others wait for it as for one on its way, and not as for one that is held.
        self.stop_waiting(entry, pod.metadata.uid)
        self._devices.record_sent(entry, pod, node)
        machine, shape = self._state.machines.get(node), entry.shape_of(pod)
        claims = self._claims.ask_of(entry, pod) is not None
        if machine is not None and (claims or takes_zones(machine.layout, shape)):
            self._put_pod(node, key(pod), self._new(entry, pod, shape, claims=claims))

    def record_arrival(self, entry: WorkloadEntry | None, pod: Pod, node: str) -> None:
        """A pod is on a node, or was let go to it by whoever led before."""
        if not finished(pod) and self._devices.record_arrival(entry, pod, node):
            self.requeue_waiting(node)
        machine = self._state.machines.get(node)
        if finished(pod):
            self.forget_arrival(pod)
            return
        if machine is None:
            self._gone_inside(pod)
            return
        name, bound = key(pod), bool(pod.spec.node_name)
        seen = self._on.get(node, {}).get(name)
        if seen is None or seen.uid != pod.metadata.uid:
            shape = shape_of(pod.spec, pod.metadata.annotations or {}, qos_class=pod.status.qos_class)
            claims = wishes_zones(pod, shape)
            if not (claims or takes_zones(machine.layout, shape)):
                return
            seen = self._new(entry, pod, shape, claims=claims)
            self._put_pod(node, name, seen)
        # A pod's status changes often: only these four matter to those who wait for its node.
        before = seen.bound, seen.started, seen.settled, seen.leaving
        # Once: the time counts from its binding, and no later event begins it again.
        if bound and not seen.bound:
            said = condition(pod.status.conditions, "PodScheduled")
            at = moment(said.last_transition_time) if said is not None and said.status == "True" else None
            # The condition has the API server's wall time: only the time that has passed since is carried over.
            passed = max(0.0, self._clock.now() - at) if at is not None else 0.0
            seen.bind(self._clock.monotonic() - passed)
        # The kubelet writes the containers' statuses when it admits a pod.
        told = pod.status.container_statuses or pod.status.init_container_statuses
        started = pod.status.phase == "Running" or bool(told)
        seen.update(started=started, leaving=pod.metadata.deletion_timestamp is not None)
        if bound and self._inside.observed(pod):
            seen.mark_settled()
            self._observing.add(node)
        if before != (seen.bound, seen.started, seen.settled, seen.leaving):
            self.requeue_waiting(node)

    def forget_arrival(self, pod: Pod) -> None:
        """A pod is gone or has finished."""
        if at := self._devices.forget_arrival(pod):
            self.requeue_waiting(at)
        self._gone_inside(pod)

    def _gone_inside(self, pod: Pod) -> None:
        name = key(pod)
        node = self._node_of.get(name, "")
        # The event may be late: another pod may have the name, and be on its way, by now.
        if node and self._on[node][name].uid == pod.metadata.uid:
            self._drop(node, name)
            self.requeue_waiting(node)

    def requeue_waiting(self, node: str) -> None:
        """Something happened on a node: whoever waits for it is looked at again."""
        for uid in dict.fromkeys(entry.id for entry in self._waiting.get(node, {}).values()):
            self._left_out.pop(uid, None)
            self._enqueue(uid, SETTLE)

    def forget_node(self, node: str) -> None:
        """The node is gone."""
        self.requeue_waiting(node)
        self._devices.forget_node(node)
        for name in tuple(self._on.get(node, ())):
            self._drop(node, name)
        self._observing.discard(node)

    def _new(self, entry: WorkloadEntry | None, pod: Pod, shape: PodShape, *, claims: bool) -> SentPod:
        return SentPod(shape, self._clock.monotonic(), entry, pod.metadata.uid, group=group_of(pod), claims=claims)

    def _put_pod(self, node: str, name: str, seen: SentPod) -> None:
        before = self._node_of.get(name)
        if before is not None and before != node:
            self._drop(before, name)
        self._on.setdefault(node, {})[name] = seen
        self._node_of[name] = node

    def _drop(self, node: str, name: str) -> None:
        del self._on[node][name], self._node_of[name]
        if not self._on[node]:
            del self._on[node]

    def _coming(self, node: str, machine: Machine, now: float) -> Iterator[tuple[str, SentPod]]:
        """Those on their way; what is found to be settled or void is noted."""
        for name, seen in tuple(self._on.get(node, {}).items()):
            if seen.settled or now - seen.since >= PATIENCE:
                continue
            # Its patch failed, or it is being deleted: it does not come.
            if seen.entry is not None and not is_let_go(seen.entry, seen.uid):
                self._drop(node, name)
                continue
            # The kubelet's own state has it: what is free there is counted without what it holds.
            if seen.bound and name in (machine.holds or ()):
                seen.mark_settled()
                continue
            if seen.started and not machine.layout.exact and node not in self._observing:
                continue
            yield name, seen

    # --- who waits -----------------------------------------------------------------------------------------------

    def judge_pod(self, entry: WorkloadEntry, pod: Pod, node: str) -> HeldPod | None:
        """Why a pod is not let go to a node now; None: it may go."""
        machine, ask, shape = self._state.machines.get(node), self._claims.ask_of(entry, pod), entry.shape_of(pod)
        heeded = machine is not None and heeds(machine.layout, shape)
        now, held, group = self._clock.monotonic(), entry.held.get(pod.metadata.uid), group_of(pod)
        # Where its slot is on another node than before, the wait begins again there.
        if held is None or held.node != node:
            held = HeldPod(node, shape, now, claims=ask is not None)
        why, words, waiting = HoldReason.NONE, "", self._waiting.get(node, {})
        # Claims that are to be aligned are judged below, together with zones: here are all others.
        if ask is None:
            why, words = self._devices.why_not(entry, pod, node, held.since, waiting)
        if not (heeded or ask or why or self._claims.concern(machine, shape, node, self._on)):
            return None
        if not why and machine is not None and heeded:
            why = self._why_not(machine, entry, held, now, group)
        if not why:
            why, words = self._zones_apart(machine, entry, held, ask, now, group)
        return replace(held, why=why, words=words) if why else None

    def hold_pod(self, entry: WorkloadEntry, uid: str, held: HeldPod) -> None:
        """A pod stays gated that was judged so; its job is looked at again in time."""
        if (before := entry.held.get(uid)) is not None and before.node != held.node:
            self.stop_waiting(entry, uid)
        entry.held[uid] = held
        self._waiting.setdefault(held.node, {})[uid] = entry
        now = self._clock.monotonic()
        waited = now - held.since
        if held.why is HoldReason.REFUSED and waited >= MOVE:
            # For pods of this workload and shape alone: the node may well grant any other.
            self._left_out.setdefault(entry.id, {})[held.node, held.shape] = now + AGAIN
            self._enqueue(entry.id, 0.0)
        steps = (waited + AGAIN,) if held.why is HoldReason.PROMISED else ()  # those may get other slots without a word
        if held.why is HoldReason.DEVICES:
            steps = (waited + DEVICES_AGAIN,)
        self._enqueue(
            entry.id, min((step - waited for step in (MOVE, PATIENCE, *steps) if step > waited), default=AGAIN)
        )

    def _why_not(self, machine: Machine, entry: WorkloadEntry, held: HeldPod, now: float, group: str) -> HoldReason:
        node, layout = held.node, machine.layout
        coming = dict(self._coming(node, machine, now))
        free = self._free_without_coming(node, coming, now)
        if free is None:
            return HoldReason.NONE
        least, most = free
        # Those of its own group without a node come only once it goes too: each would wait for the other.
        waited_for = (seen for seen in coming.values() if seen.bound or not group or seen.group != group)
        shapes = [*(seen.shape for seen in waited_for), held.shape]
        waiting = [
            (other.since, other.shape)
            for other in self._held_there(node)
            if other.why is HoldReason.ORDER and now - other.since >= TURN
        ]
        # Only the first in the line: it holds back all behind it, and the next one follows when it has gone.
        first = min(waiting, key=lambda one: one[0], default=None)
        ahead = [first[1]] if first is not None and first[0] < held.since else []
        if certain(layout, least, most, [*shapes, *ahead]):
            # Slots whose pods do not come hold nobody up for longer than this.
            late = now - held.since >= PATIENCE
            return HoldReason.NONE if late else self._promised(layout, entry, node, Free(least, most), coming, held)
        # Not even alone is it granted by what is free for certain: it would be refused as things stand.
        if not certain(layout, least, least, [held.shape]):
            return HoldReason.REFUSED
        if now - held.since >= PATIENCE:
            return HoldReason.NONE
        # Granted alone whatever ends meanwhile: then it is the order among those on their way that may refuse it.
        return HoldReason.ORDER if certain(layout, least, most, [held.shape]) else HoldReason.ENDS

    def _free_without_coming(
        self, node: str, coming: Mapping[str, SentPod], now: float, young: float = YOUNG
    ) -> Free | None:
        """What is free there without those on their way, whatever ends meanwhile; None where that is not known.

        ``young``: for how long a pod may end that is not being deleted.
        """
        ending = [
            name
            for name, seen in self._on.get(node, {}).items()
            if seen.bound and name not in coming and (seen.leaving or now - seen.since < young)
        ]
        return self._state.free_for(node, [name for name, seen in coming.items() if seen.bound], ending)

    def _zones_apart(  # noqa: PLR0917
        self,
        machine: Machine | None,
        entry: WorkloadEntry,
        held: HeldPod,
        ask: DeviceAsk | None,
        now: float,
        group: str,
    ) -> tuple[HoldReason, str]:
        """Whether devices of claims and zones might not meet, the pod's or others'; and why, in words."""
        seen_there = self._coming(held.node, machine, now) if machine is not None else ()
        coming = {name: seen for name, seen in seen_there if seen.bound or not group or seen.group != group}
        late = now - held.since >= PATIENCE
        if ask is not None:
            # 0.0: young pods are taken to stay, or each of a gang's pods would wait for the others to grow old.
            return self._claims.apart(
                ask, held, coming, self._free_without_coming(held.node, coming, now, 0.0), late=late
            )
        if late or not (
            any(seen.claims for seen in coming.values())
            or self._claims.first_in_turn(held, self._held_there(held.node), now - TURN)
            or self._claims.promised(entry, held.node)
        ):
            return HoldReason.NONE, ""
        return HoldReason.ORDER, ""

    def foreseen(self, entry: WorkloadEntry, pod: Pod, node: str) -> Mapping[int, tuple[str, ...]]:
        """By zone, the devices that a pod's claims will be given if it is let go now; {} where that is not known."""
        machine, ask = self._state.machines.get(node), self._claims.ask_of(entry, pod)
        if machine is None or ask is None or any(True for _ in self._coming(node, machine, self._clock.monotonic())):
            return {}
        return self._state.cluster.claim_zones.devices_by_zone(node, ask)

    def _promised(  # noqa: PLR0917
        self, layout: Layout, entry: WorkloadEntry, node: str, free: Free, coming: Mapping[str, SentPod], held: HeldPod
    ) -> HoldReason:
        """Whether a pod that would be granted leaves zones for those that are still to come and go before it."""
        mine = turn_of(entry)
        shapes: list[PodShape] = []
        for workload, shape, count in self._state.unclaimed_inside(node):
            other = self._entry_of(workload)
            if other is None or other is entry or turn_of(other) > mine:
                continue
            # The ones that were let go are among `coming` already.
            let_go = sum(seen.entry is other and seen.shape == shape for seen in coming.values())
            shapes += [shape] * (count - let_go)
        if not shapes:
            return HoldReason.NONE
        others = [*(seen.shape for seen in coming.values()), *shapes]
        if certain(layout, *free, [*others, held.shape]) or not certain(layout, *free, others):
            return HoldReason.NONE  # there is room for all, or they are not sure of theirs without it either
        return HoldReason.PROMISED

    def _held_there(self, node: str) -> Iterator[HeldPod]:
        """The pods that wait for a node."""
        return (entry.held[uid] for uid, entry in self._waiting.get(node, {}).items())

    def stop_waiting(self, entry: WorkloadEntry, uid: str) -> None:
        """A pod waits no more: it is let go, gone, or has another slot."""
        held = entry.held.pop(uid, None)
        if held is None:
            return
        waiting = self._waiting.get(held.node, {})
        waiting.pop(uid, None)
        if not waiting:
            self._waiting.pop(held.node, None)

    def lose_turns(self, entry: WorkloadEntry, pods: Iterable[str]) -> None:
        """Pods (uids) that waited for their turn do not go now: who waits for them there is looked at again."""
        for uid in pods:
            if held := entry.held.get(uid):
                self.stop_waiting(entry, uid)
                self.requeue_waiting(held.node)

    def stop_all(self, entry: WorkloadEntry) -> None:
        """The job has no slots any more."""
        for uid in tuple(entry.held):
            self.stop_waiting(entry, uid)
        self._left_out.pop(entry.id, None)

    def sweep(self) -> bool:
        """Have those looked at again whose node was left out for long enough; to be called now and then.

        True: nodes are open for others that pods were kept off who wait there for their devices, and for too long.
        """
        now = self._clock.monotonic()
        for uid, found in tuple(self._left_out.items()):
            for place in [place for place, until in found.items() if until <= now]:
                del found[place]
                self._enqueue(uid, 0.0)
            if not found:
                self._left_out.pop(uid, None)
        return self._devices.give_up_waiting()

    def left_out(self, entry: WorkloadEntry, shape: PodShape, now: float | None = None) -> frozenset[str]:
        """The nodes that would refuse such pods of the job as things stand."""
        found = self._left_out.get(entry.id)
        if not found:
            return frozenset()
        now = self._clock.monotonic() if now is None else now
        return frozenset(node for (node, other), until in found.items() if other == shape and now < until)

"""Pods with claims: who goes to a node, and when, so that no pod is let go that gets no devices.

Rules
- On its way is a pod from the moment it is let go until its claims have devices. After `PATIENCE` it counts no more,
  whatever is heard of it then. Where one of a namespace took that long, its pods are waited for no longer than `SHORT`
  for an hour: else who has pods that no scheduler takes would hold up others once for each of them.
- A pod goes only where there are devices for it as things stand, and those on their way get theirs too, whoever is
  first and whatever comes free meanwhile (`engine.devices.turns`). Else it stays gated: until those have theirs, or
  devices come free.
- Who has not got its devices by then keeps no others off its node either that would else not wait with it
  (`DeviceLedger.wait_long`): a pod may name a scheduler that there is not, or stay behind a gate of its own.
- Where several nodes reach the devices, those on their way to any of these nodes count.
- Nobody overtakes one that has waited for its turn longer than `TURN`, as long as it is to go there
  (`ungater.model.actions.LoseTurns`).
- Where there are no devices and nobody is on the way, those that a pod had which is gone may still come back. After
  `MOVE` the pod's slot moves where it can, as that of one that its kubelet would refuse.
- Of a native PodGroup all go at once: its pods do not wait for each other.
- A pod that Topogate does not place, and a node that is none of a slot's, are not looked at.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from clock import Clock
from engine.claims.asks import DeviceAsk
from engine.cluster.state import ClusterState
from engine.devices.turns import DeviceTurn
from kube.objects import Pod, key
from ungater.model.held_pods import HoldReason
from ungater.model.workload_entry import WorkloadEntry
from ungater.numa.sent_pods import group_of, is_let_go

PATIENCE: Final = 120.0  # seconds: a scheduler that has much to do takes a while for each pod
# A tenant who makes one such pod after the other holds a node up for PATIENCE once, and for this long each time after.
SHORT: Final = 10.0  # seconds, where another pod of the namespace took too long
HOUR: Final = 3600.0
TURN: Final = 1.0  # seconds after which one that waits for its turn is not overtaken any more
MOVE: Final = 30.0  # seconds for which devices may still be given back before a slot moves
AGAIN: Final = 1.0  # seconds after which one that waits is looked at again, whatever was heard
LATER: Final = "pods on their way there get their devices first, as their order may decide which devices each one gets"
# A kubelet that starts deletes the slices of its node's drivers, which are back after 23 to 58 s (kubelet 1.37).
GONE: Final = "its ResourceSlices are gone"
NONE: Final = "the devices of their claims are not free there now"


class _Coming(msgspec.Struct, frozen=True):
    uid: str
    ask: DeviceAsk
    entry: WorkloadEntry
    since: float
    group: str


class DeviceTurns:
    """See the module."""

    def __init__(self, state: ClusterState, clock: Clock) -> None:
        self._state = state
        self._clock = clock
        self._on: dict[str, dict[str, _Coming]] = {}  # by node and key of the pod
        self._node_of: dict[str, str] = {}
        self._waits: dict[str, tuple[str, _Coming]] = {}  # by key: the node of each pod that has no devices yet
        self._late: dict[str, str] = {}  # by key: the uid of a pod that counts no more
        self._slow: dict[str, float] = {}  # by namespace: when one of its pods took too long

    def record_sent(self, entry: WorkloadEntry, pod: Pod, node: str) -> None:
        """A pod was let go to a node."""
        self._record_turn(entry, pod, node, self._clock.monotonic())

    def _record_turn(self, entry: WorkloadEntry, pod: Pod, node: str, since: float) -> None:
        ask, name = self._ask_of(entry, pod), key(pod)
        if ask is None or not node:
            return
        self._drop(name)
        made = _Coming(pod.metadata.uid, ask, entry, since, group_of(pod))
        self._on.setdefault(node, {})[name] = made
        self._node_of[name] = node
        self._waits[name] = node, made

    def record_arrival(self, entry: WorkloadEntry | None, pod: Pod, node: str) -> bool:
        """A pod is on a node, or was let go to it by whoever led before; True where it is on its way no more."""
        name = key(pod)
        known = self._on.get(self._node_of.get(name, ""), {}).get(name)
        if self._has_devices(name):
            self._late.pop(name, None)
            self._waits.pop(name, None)
            return self._drop(name)
        # A pod behind another gate that its owner relabels again and again gets no more time by that.
        if self._late.get(name) == pod.metadata.uid:
            return False
        if entry is not None and (known is None or known.uid != pod.metadata.uid):
            since = self._clock.monotonic()
            if name in self._waits:
                at, before = self._waits[name]
                if (at, before.uid) == (node, pod.metadata.uid):
                    since = before.since  # it has no more time for being changed
            self._record_turn(entry, pod, node, since)
        return False

    def forget_arrival(self, pod: Pod) -> str:
        """A pod is gone or has finished: the node that it was on its way to, "" for none."""
        name = key(pod)
        self._late.pop(name, None)
        self._waits.pop(name, None)
        node = self._node_of.get(name, "")
        # The event may be about an earlier pod of the name.
        same = bool(node) and self._on[node][name].uid == pod.metadata.uid
        return node if same and self._drop(name) else ""

    def forget_node(self, node: str) -> None:
        """The node is gone."""
        for name in tuple(self._on.get(node, ())):
            self._drop(name)
        self._waits = {name: one for name, one in self._waits.items() if one[0] != node}

    def give_up_waiting(self) -> bool:
        """Have pods that wait for devices for too long keep no others off their nodes; True where any did."""
        now, devices = self._clock.monotonic(), self._state.cluster.devices
        asks: dict[str, set[DeviceAsk]] = {}
        for name, (node, one) in self._waits.items():
            charged = self._state.pods.get(name)
            ask = charged.devices if charged is not None else one.ask
            if ask is not None and now - one.since >= PATIENCE and ask in devices.waiting.waiting_on_node(node):
                asks.setdefault(node, set()).add(ask)
        return devices.wait_long(asks)

    def why_not(
        self, entry: WorkloadEntry, pod: Pod, node: str, since: float, waiting: Mapping[str, WorkloadEntry]
    ) -> tuple[HoldReason, str]:
        """Why a pod does not go to a node now, in words too.

        ``since``: when it was to go first; ``waiting``: by uid of each pod that waits for the node, its workload.
        """
        ask = self._ask_of(entry, pod) if node else None
        if ask is None:
            return HoldReason.NONE, ""
        now, group = self._clock.monotonic(), group_of(pod)
        nodes = tuple(self._on) if self._state.cluster.devices.common.may_get_devices(node, ask) else ()
        coming = {
            one: Counter(each.ask for each in self._coming(one, now) if not group or each.group != group)
            for one in {*nodes, node}
        }
        # The first in the line counts as one on its way, so nobody overtakes it.
        coming[node].update(self._before(since, now, waiting))
        turn = self._state.cluster.devices.turn(node, ask, coming)
        if turn is DeviceTurn.NOW:
            return HoldReason.NONE, ""
        if turn is DeviceTurn.LATER:
            return HoldReason.DEVICES, LATER
        lacks = self._state.cluster.devices.missing_classes(node, ask)
        words = f"it has no devices of {', '.join(lacks)} at the moment ({GONE})" if lacks else NONE
        return HoldReason.REFUSED if now - since >= MOVE else HoldReason.DEVICES, words

    def _before(self, since: float, now: float, waiting: Mapping[str, WorkloadEntry]) -> list[DeviceAsk]:
        """What the one asks for that has waited longest for its turn, and longer than one ``since`` then."""
        found: list[tuple[float, str, WorkloadEntry]] = [
            (held.since, uid, entry)
            for uid, entry in waiting.items()
            for held in (entry.held[uid],)
            if held.why is HoldReason.DEVICES and held.words == LATER
            if held.since < min(since, now - TURN) and uid in entry.pods
        ]
        first = min(found, key=lambda one: one[:2], default=None)
        ask = self._ask_of(first[2], first[2].pods[first[1]]) if first is not None else None
        return [ask] if ask is not None else []

    def _coming(self, node: str, now: float) -> Iterator[_Coming]:
        for name, one in tuple(self._on.get(node, {}).items()):
            namespace = name.partition("/")[0]
            slow = now - self._slow.get(namespace, float("-inf")) < HOUR
            if self._has_devices(name) or not is_let_go(one.entry, one.uid):
                self._drop(name)
            # Its uid is remembered as late below: else its next event would make it a new one.
            elif now - one.since >= (SHORT if slow else PATIENCE):
                self._drop(name)
                self._late[name] = one.uid
                # After the full time alone: a pod that had the short one does not prolong the namespace's hour.
                if now - one.since >= PATIENCE:
                    self._slow = {where: at for where, at in self._slow.items() if now - at < HOUR}
                    self._slow[namespace] = now
            else:
                yield one

    def _ask_of(self, entry: WorkloadEntry, pod: Pod) -> DeviceAsk | None:
        part = self._state.assignments(entry.key).get(entry.pod_set_of(pod))
        return part.devices if part is not None else None

    def _has_devices(self, name: str) -> bool:
        charged = self._state.pods.get(name)
        # What a pod asks for stays charged to it until its claims have devices, which then count by themselves.
        return charged is not None and charged.devices is None

    def _drop(self, name: str) -> bool:
        node = self._node_of.pop(name, None)
        if node is None:
            return False
        del self._on[node][name]
        if not self._on[node]:
            del self._on[node]
        return True

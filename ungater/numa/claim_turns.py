"""Pods whose devices of claims are to be in the zones that their kubelet gives them: who goes to a node, and when.

Rules
- Such a pod goes only where its devices and zones meet as things stand (`engine.claim_zones`), and do so in any order
  beside those that are on their way, which have to be like it. Else it waits until those are there.
- Where they do not meet and nobody is on the way, its slot moves where it can, as that of a pod that would be refused.
- That a pod there ends in that very moment is not looked at, unless it is being deleted: each of a gang's pods would
  wait for the others to grow old.
- Others that take of zones wait for it, once it was let go, has waited for its turn, or is of a workload that was
  admitted before theirs.
"""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from engine.claims.asks import DeviceAsk
from engine.cluster.state import ClusterState
from engine.kubelet.arrival_orders import Free, takes_zones
from engine.kubelet.machine import Machine, PodShape
from engine.kubelet.numa_policy import LENIENT
from engine.reservation_key import HolderKey
from kube.objects import Pod, condition
from ungater.model.conditions import QUOTA_RESERVED, moment
from ungater.model.held_pods import HeldPod, HoldReason
from ungater.model.workload_entry import WorkloadEntry


class SentPod(msgspec.Struct):
    """A pod that was let go to a node, or is on it. ``since``: when that was, in seconds of the clock."""

    shape: PodShape
    since: float
    entry: WorkloadEntry | None  # of one that is on no node yet
    uid: str
    bound: bool = False
    started: bool = False  # its kubelet has admitted it
    settled: bool = False  # what it holds is known
    leaving: bool = False
    group: str = ""  # ``namespace/name`` of its native PodGroup
    claims: bool = False  # the devices of its claims are to be where its kubelet gives it CPUs

    def bind(self, since: float) -> None:
        """It came to its node."""
        # Without its entry: no patch can fail any more, so it is not asked whether the pod was let go.
        self.bound, self.entry, self.since = True, None, since

    def mark_settled(self) -> None:
        """What it holds is known."""
        self.settled = True

    def update(self, *, started: bool, leaving: bool) -> None:
        """Its kubelet was heard of, and whether it is being deleted."""
        # The kubelet admits a pod once: statuses that vanish later take nothing back.
        self.started = self.started or started
        self.leaving = leaving


class ClaimTurns:
    """See the module. ``entry_of``: the job of a workload."""

    def __init__(self, state: ClusterState, entry_of: Callable[[HolderKey], WorkloadEntry | None]) -> None:
        self._state = state
        self._entry_of = entry_of

    def ask_of(self, entry: WorkloadEntry, pod: Pod) -> DeviceAsk | None:
        """What a pod asks for whose devices are to be where its kubelet gives it zones; None for any other."""
        part = self._state.assignments(entry.key).get(entry.pod_set_of(pod))
        ask = part.devices if part is not None else None
        return ask if ask is not None and ask.aligned else None

    def concern(
        self, machine: Machine | None, shape: PodShape, node: str, on: Mapping[str, Mapping[str, SentPod]]
    ) -> bool:
        """Whether a pod that has no such claims might take zones that are foreseen for one that has.

        ``on``: pods by node and key.
        """
        if machine is None or not takes_zones(machine.layout, shape):
            return False
        waiting = self._state.cluster.devices.waiting.waiting_on_node(node)
        return any(one.aligned for one in waiting) or any(seen.claims for seen in on.get(node, {}).values())

    def apart(
        self, ask: DeviceAsk, held: HeldPod, coming: Mapping[str, SentPod], free: Free | None, *, late: bool
    ) -> tuple[HoldReason, str]:
        """Why a pod does not go now: its devices and zones do not meet, or might not in another order; in words too.

        ``coming``: by their keys, those on their way. ``late``: it has waited long enough for those.
        """
        pods = self._state.pods
        # The ones that have no devices yet: what they ask for is charged to them until then.
        without = sum(name not in pods or pods[name].devices is not None for name in coming)
        zones = self._state.cluster.claim_zones
        found = zones.forecast(held.node, ask, held.shape, free, (len(coming), without))
        if found.refused:
            waits = coming or (found.none and not late)  # devices that a pod had are given back when it is gone
            return HoldReason.ORDER if waits else HoldReason.REFUSED, found.refused
        alike = all(seen.shape == held.shape for seen in coming.values())
        return (HoldReason.NONE if late or (alike and found.sure) else HoldReason.ORDER), ""

    @staticmethod
    def first_in_turn(held: HeldPod, waiting: Iterable[HeldPod], before: float) -> bool:
        """Whether a pod with such claims has waited for those on their way since ``before``, and longer than this.

        ``waiting``: the pods that wait for the same node.
        """
        return any(
            one.claims and one.why is HoldReason.ORDER and one.since < min(held.since, before) for one in waiting
        )

    def promised(self, entry: WorkloadEntry, node: str) -> bool:
        """Whether pods with such claims are still to come to a node, of a workload that was admitted before."""
        mine = turn_of(entry)
        for workload, shape, _ in self._state.unclaimed_inside(node):
            other = self._entry_of(workload) if shape.wish not in LENIENT else None
            if other is None or other is entry or turn_of(other) > mine:
                continue
            parts = self._state.assignments(workload).values()
            if any(part.devices is not None and part.devices.aligned for part in parts):
                return True
        return False


def turn_of(entry: WorkloadEntry) -> tuple[float, int, str]:
    """The order in which workloads got their slots; of the same second, the important first."""
    known = entry.observed
    found = condition(known.conditions, QUOTA_RESERVED) if known is not None else None
    at = moment(found.last_transition_time) if found is not None and found.status == "True" else None
    return at if at is not None else float("inf"), -known.priority if known is not None else 0, entry.key


def wishes_zones(pod: Pod, shape: PodShape) -> bool:
    """Whether a pod that is there has claims and wishes zones."""
    claims = pod.spec.resource_claims or pod.status.extended_resource_claim_status is not None
    return shape.wish not in LENIENT and bool(claims)

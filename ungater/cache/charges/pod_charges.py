"""What each pod takes of its node in the engine, and which pods are on their way to one."""

import msgspec

from crds.constants import HOSTNAME_LABEL
from engine.kubelet.machine import NumaPlacement
from engine.model import Pod
from kube import objects
from kube.pods import convert
from kube.pods.requests import pod_requests
from queueing.model import exceeds
from ungater.cache.claims.claimed_devices import ClaimedDevices
from ungater.cache.claims.pod_volumes import PodVolumes
from ungater.cache.core import Core
from ungater.jobs.pod_group import mark_of
from ungater.model.class_rules import ClassRules
from ungater.model.pod_slots import finished, is_gated
from ungater.model.workload_entry import WorkloadEntry
from ungater.numa import placement_exchange
from ungater.reconcile.partial_eviction import may_be_evicted, outside


class Charges:
    """See the module.

    A pod counts as ours (`_claim`) only if the job that controls it owns the Workload, our ungating patch marked it,
    and its node selector names one of the Workload's slots. What a user wrote on a pod decides nothing.
    """

    def __init__(self, core: Core, class_rules: ClassRules, volumes: PodVolumes, claimed: ClaimedDevices) -> None:
        self._core = core
        self._keys = core.keys
        self._state = core.state
        self._stores = core.stores
        self._queues = core.queues
        self._entries = core.entries
        self._guard = core.guard
        self._scheduler = core.scheduler
        self._topologies = core.inside.topologies
        self._in_flight = core.inside.in_flight
        self._mismatches = core.inside.mismatches
        self._refusals = core.inside.refusals
        self._class_rules = class_rules
        self._volumes = volumes
        self._claimed = claimed
        self._overdrawn: set[str] = set()  # nodes of which pods took more than there was beside the slots

    def charge_pod(self, pod: objects.Pod) -> None:
        """Charge a pod that has not finished where it is bound, with its claim, or heads for; others take nothing."""
        if not pod.spec.node_name:
            # Its workload is gone while it is on its way: without a
            # charge its node would be given away before it arrives.
            if node := self._heads_for(pod):
                attached, devices = self._volumes.attached(pod), self._claimed.unknown_devices(pod)
                bound = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node))
                self._charge_node(convert.pod(bound, self._scheduler, attached=attached, devices=devices))
            elif objects.key(pod) in self._state.pods:
                self.discharge_pod(pod)
            return
        if finished(pod):
            self.discharge_pod(pod)
            return
        node = pod.spec.node_name
        # Read before the pod is charged: they say whether it is new, and what its charge changes.
        came, unrecorded = objects.key(pod) not in self._state.pods, self._state.unrecorded(node)
        try:
            shape, placement = self._topologies.placement_of_pod(pod, self._placement_sent(pod))
            observed = placement is not None and self._topologies.observed(pod)
            claim, attached = self._claim(pod), self._volumes.attached(pod)
            devices = self._claimed.unknown_devices(pod)
            made = convert.pod(
                pod,
                self._scheduler,
                claim,
                shape=shape,
                placement=placement,
                observed=observed,
                attached=attached,
                devices=devices,
            )
            less = self._charge_node(made)
        except Exception as error:  # noqa: BLE001  (told by the guard)
            self._guard.failed("pod", objects.key(pod), error)
            less = self._charge_node(Pod(key=objects.key(pod), node=node, requests={}))  # one pod, at least
        entry = self._entries.entry_of_pod(pod)
        makes_room = came and entry is not None and self._smaller_than_growth(entry, pod)
        has_claims = bool(pod.spec.resource_claims) or pod.status.extended_resource_claim_status is not None
        makes_room |= came and has_claims  # its slot kept devices beside those that it has by now
        # A pod that takes less than its slot leaves room when it comes, which no other event tells of.
        if less or makes_room or self._state.unrecorded(node) < unrecorded:
            self._core.queue_inadmissible(self._state.flavors_on(node))
        if entry is not None and (entry.job.queue or entry.job.scales):  # whose room somebody may ask for
            self._queues.bind(objects.key(pod), entry.key)
        self.note_outside(pod)

    def _charge_node(self, pod: Pod) -> bool:
        """Charge a node; whether it has more of something now, as a pod takes less than its slot.

        One that lost its workload on its way comes to a node that was given to somebody else meanwhile: those with
        slots there are to be looked at.
        """
        known = self._core.live and pod.node in self._state.nodes
        before = self._state.free_on_node(pod.node) if known else {}
        self._state.set_pod(pod)
        after = self._state.free_on_node(pod.node) if known else {}
        # Below zero, and further below than before: a node that is as short as before is not named again.
        if any(amount < min(0, before.get(name, 0)) for name, amount in after.items()):
            self._overdrawn.add(pod.node)
            self._core.signal()
        return any(after.get(name, 0) > amount for name, amount in before.items())

    def _smaller_than_growth(self, entry: WorkloadEntry, pod: objects.Pod) -> bool:
        """Whether a pod came to a slot that more pods of its workload would need more for: an edited template's.

        Growth counts empty slots by what is asked for now, and those with pods by what these take.
        """
        if entry.key not in self._queues.growing:
            return False
        name, takes = entry.pod_set_of(pod), pod_requests(pod.spec)
        return any(exceeds(pod_requests(one.template.spec), takes) for one in entry.job.pod_sets if one.name == name)

    def overdrawn(self) -> set[str]:
        """The nodes of which pods took more than there was beside the slots; each is told once."""
        found, self._overdrawn = self._overdrawn, set()
        return found

    def _heads_for(self, pod: objects.Pod) -> str:
        """The node that a pod was sent to which no workload has slots for any more, as it was orphaned on its way."""
        meta, host = pod.metadata, (pod.spec.node_selector or {}).get(HOSTNAME_LABEL, "")
        # A tenant may write any host name into a selector: only pods that carry our mark and no gate count.
        if self._keys.workload not in (meta.annotations or {}) or is_gated(pod, self._keys.gate) or finished(pod):
            return ""
        entry, node = self._entries.entry_of_pod(pod), self._state.nodes.get(host)
        # Its workload still holds its slot, and with it the room: charged as well, it would count twice.
        kept = entry is not None and self.marked(entry, pod)
        return "" if kept or node is None or meta.deletion_timestamp is not None else host

    def note_outside(self, pod: objects.Pod) -> None:
        """Have a pod that no queue admitted be a candidate, where settings allow that, until it is gone."""
        # What runs where Kueue serves is for Kueue to end.
        if not self._queues.rules.pods or not self._core.served.serves(pod.metadata.namespace):
            return
        key = objects.key(pod)
        spared = self._class_rules.is_protected(pod) or not may_be_evicted(pod, self._keys)
        if self._entries.entry_of_pod(pod) is not None or spared:
            self._queues.holders.remove_pod(key)
        elif pod.metadata.deletion_timestamp is None and pod.spec.node_name and not finished(pod):
            # A pod that ends does not come here: it becomes no candidate,
            # and remains one if it was, as a preemptor may wait for it.
            self._queues.holders.set_pod(outside(pod))

    def note_stop(self, pod: objects.Pod) -> None:
        """Have a bound pod count as leaving where it was told to stop, and somebody on its node ends it."""
        node, stops = pod.spec.node_name, pod.metadata.deletion_timestamp is not None
        # On a node whose kubelet does not answer it may stay for hours, so nobody is to wait for it.
        if stops and node and not finished(pod) and not self._core.dead(node):
            self._queues.leaving.pod_stops(objects.key(pod))

    def note_left(self, entry: WorkloadEntry) -> None:
        """Have the pods of a job that is over, or gone, count as leaving: who deletes owners deletes their pods.

        The garbage collector tells them one by one, and the first may be gone before the last is told.
        """
        for pod in entry.pods.values():
            if pod.spec.node_name and not finished(pod) and not self._core.dead(pod.spec.node_name):
                self._queues.leaving.pod_stops(objects.key(pod))

    def discharge_pod(self, pod: objects.Pod) -> None:
        """A pod takes nothing any more."""
        self._queues.unbind(objects.key(pod))
        self._queues.leaving.pod_gone(objects.key(pod))
        self._queues.holders.remove_pod(objects.key(pod))
        if pod.spec.node_name:
            self._state.cluster.devices.pod_ended(objects.key(pod))
        charged = self._state.pods.get(objects.key(pod))
        if charged is not None and self._state.remove_pod(charged.key):
            self._mismatches.shorten_backoff(charged.node, self._entries.values())
            self._refusals.shorten_backoff(charged.node, self._entries.values())
            # With anti-affinity its end may open whole domains, in any flavor.
            keeps_off = pod.spec.affinity is not None and pod.spec.affinity.pod_anti_affinity is not None
            self._core.queue_inadmissible(None if keeps_off else self._state.flavors_on(charged.node))

    def note_arrival(self, pod: objects.Pod) -> None:
        """A pod may be on its way to a node, or have come."""
        # Arrivals matter only inside nodes: without zones and devices every pod is spared the walk below.
        if not (self._state.machines or self._state.cluster.devices.published):
            return
        entry, node = self._entries.entry_of_pod(pod), pod.spec.node_name
        slots = entry.slots_of(pod) if entry is not None and not node else None
        if entry is not None and slots is not None and not is_gated(pod, self._keys.gate):
            index = slots.of_selector(pod.spec.node_selector) if self.marked(entry, pod) else None
            node = slots.slots[index].node if index is not None else ""
        if node:
            self._in_flight.record_arrival(entry, pod, node)

    def _placement_sent(self, pod: objects.Pod) -> NumaPlacement | None:
        entry = self._entries.entry_of_pod(pod)
        if entry is None:
            return None
        expectation = entry.expectations.get(pod.metadata.uid)
        # A pod that changed places with another one runs by the other's placement, not by that of its own patch.
        return entry.swaps.get(pod.metadata.uid) or (expectation.placement if expectation is not None else None)

    def recharge_pods(self, entry: WorkloadEntry, pod: objects.Pod) -> None:
        """Pods may come to their node in another order than was foreseen."""
        placement_exchange.arrive(entry, pod)
        other = placement_exchange.settle(
            self._state, entry, pod, self._stores.pods_on(pod.spec.node_name), self._entries.entry_of_pod
        )
        if other is not None:
            self.charge_pod(other)

    def _claim(self, pod: objects.Pod) -> tuple[str, str] | None:
        entry = self._entries.entry_of_pod(pod)
        if entry is None or not entry.slots_in or not self.marked(entry, pod):
            return None
        slots = entry.slots_of(pod)
        # The mark alone is no claim: a pod whose selector names no slot would fill one where it is not.
        if slots is None or slots.of_selector(pod.spec.node_selector) is None:
            return None
        return entry.key, entry.pod_set_of(pod)

    def marked(self, entry: WorkloadEntry, pod: objects.Pod) -> bool:
        """Whether a pod was let go for this workload."""
        return mark_of(pod, self._keys) == entry.job.workload or pod.metadata.uid in entry.adopting

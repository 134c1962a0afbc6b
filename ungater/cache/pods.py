"""What the event of a pod changes: its charge in the engine, its place in one entry, and who pays for it.

It costs the same in a cluster of any size: only the pods of its node, and workloads that name its PodGroup, may be
looked at with it.
"""

from collections.abc import Sequence

from kube import objects
from kube.informer import Event
from kube.pods.resizes import given_otherwise
from ungater.cache.charges.left_pods import LeftPods
from ungater.cache.charges.orphans import answers_for
from ungater.cache.charges.pod_charges import Charges
from ungater.cache.core import Core
from ungater.cache.owners import NamedGroups
from ungater.cache.pod_groups import PodGroups
from ungater.jobs.pod_group import owner_key
from ungater.model.pod_slots import finished, is_gated
from ungater.model.workload_entry import WorkloadEntry
from ungater.numa import placement_exchange
from ungater.numa.mismatches import refused_by_kubelet

BATCH_A_POD = 0.0002  # seconds of waiting for more pods, for each pod the job has
READY_AFTER = 1.0  # seconds: pods of a workload become ready together
LEAST_BATCH = 0.2  # on a busy cluster the pods of a job come within that, and are let go at one look


class PodEvents:
    """See the module. ``batch``: seconds for which more pods of a job are waited for, at most."""

    def __init__(  # noqa: PLR0917
        self,
        core: Core,
        groups: PodGroups,
        charges: Charges,
        left_pods: LeftPods,
        named_groups: NamedGroups,
        batch: float,
    ) -> None:
        self._core = core
        self._keys = core.keys
        self._state = core.state
        self._entries = core.entries
        self._owners = core.entries.owners
        self._enqueue = core.enqueue
        self._guard = core.guard
        self._in_flight = core.inside.in_flight
        self._mismatches = core.inside.mismatches
        self._coming = core.inside.coming
        self._pod_groups = groups
        self._charges = charges
        self._left_pods = left_pods
        self._named_groups = named_groups
        self._gated_orphans = core.entries.gated_orphans
        self._batch = batch

    def _group_changes(self, old: objects.Pod | None, new: objects.Pod | None) -> None:
        """Whoever names the PodGroup of a pod may be held up by it no more: no gate holds it, or it has ended."""
        if old is None or not old.spec.pod_group:
            return
        ends = old.metadata.deletion_timestamp is not None and not finished(old)
        gated = is_gated(old, self._keys.gate)
        # kube-scheduler looks at a group again only when one of its gates
        # goes, and counts pods that end (1.37): both events free others.
        if (gated and (new is None or not is_gated(new, self._keys.gate))) or (ends and (new is None or finished(new))):
            for uid in self._named_groups.naming(f"{old.metadata.namespace}/{old.spec.pod_group}"):
                self._enqueue(uid, LEAST_BATCH)

    def load(self, pod: objects.Pod) -> None:
        """A pod that is there at a start, once its job is known."""
        self._charges.charge_pod(pod)
        self._left_pods.pay(pod, self._entries.entry_of_pod(pod))
        self._charges.note_stop(pod)
        self._charges.note_arrival(pod)
        if (entry := self._entries.entry_of_pod(pod)) is None:
            self._gated_orphans.remember_pod(pod)
            return
        if self._charges.marked(entry, pod):
            self._coming.record_arrival(entry, pod)
            if refused_by_kubelet(pod):
                self._mismatches.leave_out(entry, pod)  # told by whoever led when it happened

    def handle_pod(self, event: Event[objects.Pod]) -> None:
        """A pod came, changed or went."""
        if not self._core.live:
            return
        new, old = event.new, event.old
        self._group_changes(old, new)
        # One event may tell of two pods: deleted and made again under its name while the watch was cut.
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._forget_pod(old)
            if new is None:
                return
        if new is None:
            return
        same = old is not None and old.metadata.uid == new.metadata.uid
        # Taken from the old owner before the new one gets it: in both entries it would take two slots.
        if same and old is not None and owner_key(old, self._keys) != owner_key(new, self._keys):
            self.remove_from_owner(old, new)
            same = False
        # Before its entry is asked for: this pod may be the one that makes it.
        self._pod_groups.gather(new)
        entry = self._entries.entry_of_pod(new)
        if not (same and old is not None and _charged_alike(old, new)):
            if entry is not None and new.spec.node_name and self._charges.marked(entry, new):
                with self._guard("pod", event.key):
                    # Before it is charged: pods of one workload may have come in
                    # another order than foreseen, and change places.
                    self._charges.recharge_pods(entry, new)
            self._charges.charge_pod(new)
            self._left_pods.pay(new, entry)
        elif (old.metadata.deletion_timestamp, new.metadata.deletion_timestamp).count(None) == 1:
            self._left_pods.pay(new, entry)  # where nobody ends it, it is not waited for
            self._state.mark_terminating(event.key)
        self._charges.note_stop(new)
        self._charges.note_arrival(new)
        if entry is None:
            self._gated_orphans.remember_pod(new)
        else:
            if self._charges.marked(entry, new):
                self._mismatches.compare_pod(entry, old if same else None, new)
                self._coming.record_arrival(entry, new)
            self._pod_of(entry, old if same else None, new)

    def remove_from_owner(self, old: objects.Pod, new: objects.Pod) -> None:
        """Somebody relabelled a pod, or it or its Job has another owner: it is nobody's twice.

        One whose patch is under way may run by it: it keeps its place in the workload that it leaves.
        """
        entry, uid = self._entries.entry_of_pod(old), old.metadata.uid
        # Asked before the pod is forgotten: afterwards nobody knows that a patch is under way.
        sent = entry.on_its_way(uid) if entry is not None else None
        self._forget_pod(old, charged=self._left_pods.unseen(old) and self._left_pods.unseen(new))
        if entry is None or sent is None or not answers_for(entry) or not is_gated(new, self._keys.gate):
            return
        self._left_pods.keep_place(entry, old, new, sent)

    def _pod_of(self, entry: WorkloadEntry, old: objects.Pod | None, new: objects.Pod) -> None:
        uid = new.metadata.uid
        entry.pods[uid] = new
        gated = is_gated(new, self._keys.gate)
        if not gated:
            entry.nominated.pop(uid, None)
        elif old is None or old.status.nominated_node_name != new.status.nominated_node_name:
            self._nominated(entry, new)
        if entry.id in self._entries.groups and _ready(old) != _ready(new):
            self._enqueue(entry.id, READY_AFTER)  # no owner tells how many of them are ready
        if not gated and uid in entry.expectations:
            sent = entry.expectations.pop(uid)  # our own patch, seen at last
            # Where the watch was cut, it is first seen to be let go when it is done already, or on its way out.
            ends = finished(new) or new.metadata.deletion_timestamp is not None
            # Its slot may have moved while the patch was under way: then the pod runs by a place that is not its own.
            if ends or not self._stands(entry, sent.values):
                self._enqueue(entry.id, 0.0)
            elif new.spec.pod_group:
                self._enqueue(entry.id, READY_AFTER)  # others of its PodGroup may hold it up
            return
        if old is not None and _same_to_slots(old, new, self._keys.gate):
            return
        self._enqueue(entry.id, self.delay(entry))

    def _nominated(self, entry: WorkloadEntry, pod: objects.Pod) -> None:
        """A gated pod says another nomination: where it is not the one that was sent, that is looked at."""
        sent = entry.nominated.get(pod.metadata.uid)
        if pod.status.nominated_node_name != (sent.node if sent is not None else ""):
            self._enqueue(entry.id, self.delay(entry))

    def _stands(self, entry: WorkloadEntry, values: Sequence[str]) -> bool:
        """Whether there is a slot with these values still, on a node that can take its pod where it is one node."""
        for slots in entry.slots_in.values():
            index = slots.index(tuple(values))
            if index is not None:
                name = slots.slots[index].node
                node = self._state.nodes.get(name)
                return not name or (node is not None and node.ready and not node.unschedulable)
        return False

    def delay(self, entry: WorkloadEntry) -> float:
        """How long to wait for more pods of the job: not at all once they are all there."""
        full = entry.job.full
        # Nobody knows how many pods come, so the whole batch is waited for while more come than there are slots.
        if entry.job.open_ended and (
            not entry.slots_in or len(entry.pods) > sum([slots.total for slots in entry.slots_in.values()])
        ):
            return self._batch
        if len(entry.pods) >= full:
            return 0.0
        # Longer for large jobs: their controller makes pods for seconds, and each look costs as much as there are pods.
        return min(self._batch, LEAST_BATCH + BATCH_A_POD * full)

    def _forget_pod(self, pod: objects.Pod, *, charged: bool = False) -> None:
        """A pod is gone, or leaves its owner; ``charged``: it may run, and is charged by itself on."""
        uid = pod.metadata.uid
        self._gated_orphans.forget_orphan(uid)
        self._charges.discharge_pod(pod)
        self._left_pods.remove_pod_of_owner(pod, charged=charged)
        self._in_flight.forget_arrival(pod)
        entry = self._entries.entry_of_pod(pod)
        self._owners.forget_owner(key := owner_key(pod, self._keys))
        self._pod_groups.pod_gone(key)
        if entry is None or entry.pods.pop(uid, None) is None:
            return
        entry.expectations.pop(uid, None)
        entry.deleting.pop(uid, None)
        entry.noted.discard(uid)
        entry.mismatches.pop(uid, None)
        entry.nominated.pop(uid, None)
        self._coming.forget_coming(entry, uid)
        self._in_flight.stop_waiting(entry, uid)
        placement_exchange.forget(entry, pod)
        self._enqueue(entry.id, self.delay(entry))


def _charged_alike(old: objects.Pod, new: objects.Pod) -> bool:
    """Whether both versions of a pod take the same from the same node."""
    return (
        old.spec == new.spec
        and finished(old) == finished(new)
        and old.metadata.labels == new.metadata.labels
        and old.metadata.annotations == new.metadata.annotations
        and old.status.resource_claim_statuses == new.status.resource_claim_statuses
        and old.status.extended_resource_claim_status == new.status.extended_resource_claim_status
        # An in-place resize ends in the status alone: the room that it leaves is free from then on.
        and (old.status is new.status or given_otherwise(old) == given_otherwise(new))
    )


def _ready(pod: objects.Pod | None) -> bool:
    return pod is not None and objects.is_true(pod.status.conditions, "Ready")


def _same_to_slots(old: objects.Pod, new: objects.Pod, gate: str) -> bool:
    """Whether nothing changed that decides which slot the pod holds or needs."""
    return (
        is_gated(old, gate) == is_gated(new, gate)
        and finished(old) == finished(new)
        and old.metadata.deletion_timestamp == new.metadata.deletion_timestamp
        and old.spec.node_selector == new.spec.node_selector
        and old.metadata.annotations == new.metadata.annotations
        and old.metadata.labels == new.metadata.labels
        and old.status.resource_claim_statuses == new.status.resource_claim_statuses
        and (not new.spec.resource_claims or old.spec.node_name == new.spec.node_name)  # others follow it to its claim
        # A pod that is resized to less, once its kubelet has done it, leaves quota that nothing else gives back.
        and old.spec.containers == new.spec.containers
        and old.spec.init_containers == new.spec.init_containers
        and old.spec.resources == new.spec.resources
        and (old.status is new.status or given_otherwise(old) == given_otherwise(new))
    )

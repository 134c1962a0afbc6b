"""Victims that are no whole workload: pods that no queue admitted, and slices of a gang that keeps the others.

Plain functions of what was seen, like `ungater.reconcile.reconcile`.

Rules
- A pod that no queue admitted may be evicted unless a DaemonSet or the node itself keeps it, another queue system
  admitted it, or its owner said that it is not safe to evict.
- A gang that loses slices has nothing else done to it until their pods are gone; then its admission is stored without
  them, and it wants them back like any job that grows.
"""

from crds.constants import DEFAULT_DOMAIN, Keys
from kube.objects import Pod, controller_of, key
from kube.pods import convert
from queueing.model import OutsidePod
from ungater.model.actions import (
    Action,
    EvictSome,
    RequeueAfter,
    Shrink,
)
from ungater.model.conditions import moment
from ungater.model.pod_slots import finished, is_gated
from ungater.model.workload_entry import WorkloadEntry
from ungater.reconcile.context import Losing, ReconcileContext

MIRROR = "kubernetes.io/config.mirror"  # on pods that stand for static ones
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
UNMOVED = frozenset({"DaemonSet", "Node"})  # owners whose pods belong to their node
AGAIN = 5.0  # seconds until another look while a patch to a slot is on its way


def may_be_evicted(pod: Pod, keys: Keys) -> bool:
    """Whether a pod that no queue of ours admitted may make room for one that was."""
    meta = pod.metadata
    annotations, owner = meta.annotations or {}, controller_of(meta)
    # The API server cannot end a static pod by its mirror: the kubelet
    # would make the mirror again, and no room comes free.
    if MIRROR in annotations or annotations.get(SAFE_TO_EVICT) == "false":
        return False
    if owner is not None and owner.kind in UNMOVED:
        return False
    # Both domains: under a domain of our own, a Kueue beside us may have admitted the pod by its quota.
    domains = {f"{keys.domain}/", f"{DEFAULT_DOMAIN}/"}
    return not any(name.startswith(tuple(domains)) for name in (*annotations, *(meta.labels or {})))


def outside(pod: Pod) -> OutsidePod:
    """Such a pod as queueing takes it."""
    meta = pod.metadata
    return OutsidePod(
        key=key(pod),
        uid=meta.uid,
        node=pod.spec.node_name,
        priority=pod.spec.priority or 0,
        requests=convert.pod_requests(pod.spec),
        created=moment(meta.creation_timestamp) or 0.0,
    )


def lost(entry: WorkloadEntry, losing: Losing, rules: ReconcileContext, now: float) -> list[Action]:
    """Evict the pods in some domains; once they are gone, store the admission without the slots there."""
    slots, keys = entry.slots, rules.keys
    if slots is None:
        return []
    at = {
        index: slot.count
        for index, slot in enumerate(slots.slots)
        if any(slot.values[: len(domain)] == domain for domain in losing.domains)
    }
    counted = rules.tally_pods(entry, entry.job.pod_sets[0], slots, entry.pods.values(), now)
    # Whoever waits for this room takes it once it is stored, so the last pod is gone by then.
    if at and not any(counted.used[index] for index in at):
        return [Shrink(slots.without_slots(at), slots.total - sum(at.values()), entry.job.pod_sets[0].name)]
    pods = [
        pod
        for pod in entry.pods.values()
        if not finished(pod) and not is_gated(pod, keys.gate) and slots.of_selector(pod.spec.node_selector) in at
    ]
    pods.sort(key=lambda pod: pod.metadata.name)
    # Asked for at every look: pods that were let go a moment ago show up in these slices only now.
    return [EvictSome(tuple((pod, losing.message) for pod in pods)), RequeueAfter(AGAIN)]

"""PodsReady: what a workload says of its pods once they have their slots.

Plain functions of what was seen, like `ungater.reconcile.reconcile`.
"""

from engine.reasons import Reason, traits_of
from kube.objects import is_true
from ungater.model import conditions as names
from ungater.model.actions import (
    Action,
    WriteConditions,
)
from ungater.model.conditions import WantedCondition
from ungater.model.workload_entry import WorkloadEntry

SOON = 4.0  # seconds: for what nobody waits for; often a later state makes the write needless

_HELD_LONG = 5.0  # seconds after which pods that wait for others on their way are worth a word


def said(entry: WorkloadEntry, now: float) -> list[Action]:
    """Which pods wait for others on their way, else whether all are ready."""
    held = [one for one in entry.held.values() if now - one.since >= _HELD_LONG]
    if not held:
        return ready(entry)
    nodes = sorted({one.node for one in held})
    more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
    why = next((one.words for one in held if one.words), "")
    if not why and any(one.claims for one in held):
        why = "they go one at a time, as their order decides from which NUMA zones devices and CPUs come"
    why = why or (
        "pods on their way there arrive first, and pods that end there soon make room: else the kubelet may refuse one"
    )
    pods = f"{len(held)} gated pods wait" if len(held) > 1 else "1 gated pod waits"
    message = f"{pods} for {', '.join(nodes[:3])}{more}: {why}"
    return [write_ready(Reason.WAITS_FOR_ARRIVALS, message, lost=None)]


def ready(entry: WorkloadEntry) -> list[Action]:
    """PodsReady."""
    owner, observed = entry.job, entry.observed
    was_ready = observed is not None and is_true(observed.conditions, names.PODS_READY)
    stuck = observed is not None and any(
        found.type == names.PODS_READY and traits_of(found.reason).stuck for found in observed.conditions
    )
    # The newest refusal, in order of insertion: the pod of an older one may have been replaced.
    refusal = next((mismatch for mismatch in reversed(entry.mismatches.values()) if mismatch.refused), None)
    writes: list[Action] = []
    if owner.ready >= owner.count > 0:
        astray = [mismatch for mismatch in entry.mismatches.values() if not mismatch.refused]
        message = f"all {owner.count} pods are ready" if owner.count > 1 else "its pod is ready"
        if astray:
            who = f"{len(astray)} of them" if owner.count > 1 else "it"
            message = f"{message}; {who} did not get the NUMA zones or devices that were predicted"
        if astray or not was_ready:
            writes.append(write_ready(Reason.PODS_READY, message, status=True))
    elif refusal is not None and not was_ready:
        again = f"its replacement goes to another node, or to this one after {refusal.seconds:.0f} s"
        writes.append(write_ready(Reason.KUBELET_REFUSED, f"{refusal.message}; {again}"))
    elif stuck or (was_ready and owner.count == owner.full):
        # `conditions.unready_at` goes by this reason where the admission and this moment fall into one second.
        conditions = observed.conditions if observed is not None else ()
        unready_at = names.unready_at(conditions, names.true_since(conditions, names.ADMITTED))
        reason = Reason.PODS_NOT_READY if was_ready or unready_at is not None else Reason.WAIT_FOR_START
        writes.append(write_ready(reason, f"{owner.ready} of {owner.count} pods are ready"))
    return writes


def write_ready(
    reason: Reason, message: str, *, status: bool = False, lost: tuple[str, ...] | None = ()
) -> WriteConditions:
    """The condition PodsReady. ``lost``: as in `WriteConditions`."""
    return WriteConditions((WantedCondition(names.PODS_READY, status, reason, message),), delay=SOON, lost=lost)

"""Pods that are alike come to their node in any order: one may get the zones that were promised another.

Those of one job are alike; those of two jobs where both were promised the same amounts, whatever the zones.
Then the two exchange their promises. What a pod got is charged as observed; the other is charged with what the first
was promised, so that no zone counts twice and none looks free. The other may be a pod on that node that was not
observed yet, or a slot whose pod is still on its way: then the exchange waits for it.
"""

from collections.abc import Callable, Iterable

from crds.constants import NUMA_PLACEMENT_OBSERVED, NUMA_PLACEMENT_PREDICTED
from crds.numa_placement import decode, misaligned
from engine.cluster.state import ClusterState
from engine.kubelet.machine import NumaPlacement
from engine.kubelet.rebuild import same_amounts
from kube.objects import Pod
from ungater.model.pod_slots import finished
from ungater.model.workload_entry import WorkloadEntry


def promised(entry: WorkloadEntry, pod: Pod) -> NumaPlacement | None:
    """What was predicted for a pod, or came to it by an exchange."""
    return entry.swaps.get(pod.metadata.uid) or _read(pod, NUMA_PLACEMENT_PREDICTED)


def arrive(entry: WorkloadEntry, pod: Pod) -> None:
    """A pod is on its node now: an exchange may wait for it there."""
    waiting = entry.exchanges.get((entry.pod_set_of(pod), pod.spec.node_name))
    # A pod takes part in one exchange: what came to it is its promise from then on.
    if not waiting or pod.metadata.uid in entry.swaps:
        return
    own = _read(pod, NUMA_PLACEMENT_PREDICTED)
    found = next((pair for pair in waiting if own is not None and same_amounts(pair[0], own)), None)
    if found is not None:
        waiting.remove(found)
        entry.swaps[pod.metadata.uid] = found[1]


def settle(
    state: ClusterState,
    entry: WorkloadEntry,
    pod: Pod,
    beside: Iterable[Pod],
    entry_of: Callable[[Pod], WorkloadEntry | None],
) -> Pod | None:
    """Look at what a pod really got; returns the pod that it exchanged with, which is to be charged again.

    ``beside``: the pods on its node; ``entry_of``: the workload of each. A pod of the same job goes first.
    """
    observed, mine = _read(pod, NUMA_PLACEMENT_OBSERVED), promised(entry, pod)
    if observed is None or mine is None or not misaligned(mine, observed):
        return None
    others = (other for other in beside if other.metadata.uid != pod.metadata.uid and not finished(other))
    waiting = [other for other in others if _read(other, NUMA_PLACEMENT_OBSERVED) is None]
    for other in sorted(waiting, key=lambda other: other.metadata.uid not in entry.pods):
        theirs_of = entry if other.metadata.uid in entry.pods else entry_of(other)
        theirs = promised(theirs_of, other) if theirs_of is not None else None
        if theirs_of is None or theirs is None or misaligned(theirs, observed):
            continue
        # Pods of one job have one shape; of two jobs only equal amounts tell that either promise fits the other pod.
        if theirs_of is not entry and _amounts(theirs) != _amounts(mine):
            continue
        theirs_of.swaps[other.metadata.uid], entry.swaps[pod.metadata.uid] = mine, theirs
        return other
    # No pod has it: a slot of its pod set, to which one will come, may.
    node, name = pod.spec.node_name, entry.pod_set_of(pod)
    left = list(state.placements(entry.key, name, node))
    at = next((at for at, theirs in enumerate(left) if not misaligned(theirs, observed)), None)
    if at is not None:
        entry.swaps[pod.metadata.uid] = left[at]
        # Before the slot's promise is replaced: its pod may have been sent already, and is known by that promise.
        entry.exchanges.setdefault((name, node), []).append((left[at], mine))
        left[at] = mine
        state.hold_placements(entry.key, name, node, left)
    return None


def _amounts(placement: NumaPlacement) -> list[list[tuple[str, int]]]:
    """What a placement takes of its zones, whichever they are."""
    return sorted(sorted((name, amount) for name, amount in use.amounts.items() if amount) for use in placement.zones)


def forget(entry: WorkloadEntry, pod: Pod) -> None:
    """A pod is gone; an exchange that waited for it does so no more."""
    entry.swaps.pop(pod.metadata.uid, None)
    # It took its exchange when it arrived.
    if pod.spec.node_name:
        return
    own = _read(pod, NUMA_PLACEMENT_PREDICTED) if entry.exchanges else None
    for waiting in entry.exchanges.values() if own is not None else ():
        found = next((pair for pair in waiting if own is not None and same_amounts(pair[0], own)), None)
        if found is not None:
            waiting.remove(found)
            return


def exchanged(entry: WorkloadEntry, place: tuple[str, str], placements: Iterable[NumaPlacement]) -> list[NumaPlacement]:
    """Promises of pods of a pod set on their way to a node (``place``), after the exchanges that wait there."""
    waiting = list(entry.exchanges.get(place, ()))
    found = []
    for placement in placements:
        pair = next((pair for pair in waiting if same_amounts(pair[0], placement)), None)
        if pair is not None:
            # Each exchange once: several pods may have been sent with equal promises.
            waiting.remove(pair)
        found.append(pair[1] if pair is not None else placement)
    return found


def _read(pod: Pod, key: str) -> NumaPlacement | None:
    text = (pod.metadata.annotations or {}).get(key)
    return decode(text) if text else None

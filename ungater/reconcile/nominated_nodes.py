"""For which pods behind the gate kube-scheduler keeps the room of their slots, where the settings say so.

Plain functions of what was seen, like `ungater.reconcile.reconcile`.

Rules of kube-scheduler (1.36.3 and 1.37.1: `pkg/scheduler/backend/queue/nominator.go`, `eventhandlers.go`, and
`addGENominatedPods` in `framework/runtime/framework.go`)
- A pod with `status.nominatedNodeName`, gated or not, counts as if it ran there when pods of its own or a lower
  priority are looked at. Pods of a higher priority pass it.
- Where the nomination is removed, changes, or its pod goes, those that wait are looked at again at once.
- It never nominates a gated pod. It removes nominations, also those of gated pods, where a pod of a higher priority has
  others evicted on their node.
- Once it starts anew, 1.36 knows of the nomination of a gated pod only when that pod changes; 1.37 at once.
- The API server removes the nomination of a pod that is bound (from 1.35 on), and refuses one after that.

Rules
- Kept is the room of a pod that goes as soon as what it waits for is over: it has a slot on one host, is what was
  admitted, and has no gate but ours (another's could keep the room after the slot is gone). One that goes at this look
  costs no call.
- Behind our gate nobody else nominates, so any other nomination there is removed, whoever wrote it: it would keep room
  that nobody holds, also from pods that are let go. That of a pod that ends too: a finalizer may keep it for ever.
- What kube-scheduler removed is written again after a pause that doubles, and so is what changes over and over.
"""

from collections.abc import Iterator, Mapping, Sequence

from crds.constants import Keys
from kube.objects import Pod
from ungater.model.actions import (
    Action,
    NominateNode,
    RequeueAfter,
    Ungate,
)
from ungater.model.nominated_node import AT_ONCE
from ungater.model.pod_set_slices import layers_of
from ungater.model.pod_slots import PodSetSlots, assign, finished, is_gated
from ungater.model.workload_entry import WorkloadEntry
from ungater.reconcile import granted
from ungater.reconcile.context import ReconcileContext


def in_slot(entry: WorkloadEntry, pod: Pod, index: int, keys: Keys) -> list[NominateNode]:
    """Have the room of a pod kept that is in this slice of its pod set and does not go yet; [] where there is none."""
    slots = entry.slots_of(pod)
    return _nominate_node(pod, slots, index, keys) if slots is not None else []


def _nominate_node(pod: Pod, slots: PodSetSlots, index: int, keys: Keys) -> list[NominateNode]:
    node = slots.slots[index].node
    # Another gate may stay for as long as its owner likes, and the nomination would keep the room with it.
    alone = is_gated(pod, keys.gate) and len(pod.spec.scheduling_gates or ()) == 1
    return [NominateNode(pod, node)] if node and alone and pod.metadata.deletion_timestamp is None else []


def before_admission(
    entry: WorkloadEntry, slots_in: Mapping[str, PodSetSlots], rules: ReconcileContext, now: float
) -> Iterator[NominateNode]:
    """The same for pods of a workload that lets none go yet: its checks are pending, or those who make room are there.

    ``slots_in``: what it holds already, by pod set.
    """
    if not rules.nominates:
        return
    others = {one.pod.metadata.uid for one in granted.of_other_queues(entry, rules.keys, now)}
    for pod_set in entry.job.pod_sets:
        if (slots := slots_in.get(pod_set.name)) is None:
            continue
        own = [pod for pod in entry.pods_of_pod_set(pod_set) if pod.metadata.uid not in others]
        counted = rules.tally_pods(entry, pod_set, slots, own, now)
        taken = None if pod_set.ranks is None else counted.ranks
        ranks = pod_set.ranks or pod_set.full
        layers = layers_of(pod_set.request.slices, slots.levels, ranks) if pod_set.request is not None else ()
        only = {uid: one.slots for uid, one in rules.choices(entry, slots, counted.waiting).items()}
        free, more = counted.free_slots(slots), granted.to_come(entry, rules)
        for pod, index in assign(
            counted.waiting, free, slots, pod_set.position, taken, layers, pod_set.rank_of_pod, only
        ):
            if granted.Barred.find_bar(entry, pod_set.name, pod, rules, more) is None:
                yield from _nominate_node(pod, slots, index, rules.keys)


def settled(entry: WorkloadEntry, steps: list[Action], rules: ReconcileContext, now: float) -> list[Action]:
    """The steps with those nominations alone that are to be written now, first: others wait for the room."""
    kept = {one.pod.metadata.uid: one.node for one in steps if isinstance(one, NominateNode)}
    going = {one.pod.metadata.uid: one for one in steps if isinstance(one, Ungate)}
    due: list[NominateNode] = []
    later: list[float] = []
    for uid, pod in entry.pods.items():
        # After the gate, a nomination is kube-scheduler's own business; a patch on its way may have removed the gate.
        if not is_gated(pod, rules.keys.gate) or finished(pod) or entry.on_its_way(uid) is not None:
            continue
        if (ungate := going.get(uid)) is not None:
            said, slots = ungate.pod.status.nominated_node_name, entry.slots_of(ungate.pod)
            # It goes now, and is nominated nowhere but where it goes.
            if not said or (slots is not None and said == slots.slots[ungate.index].node):
                continue
        found, again = due_now(entry, pod, kept.get(uid, ""), now)
        due += found
        later += again
    others = [one for one in steps if not isinstance(one, NominateNode)]
    return [*due, *others, *(RequeueAfter(when) for when in sorted(later)[:1])]


def due_now(entry: WorkloadEntry, pod: Pod, node: str, now: float) -> tuple[Sequence[NominateNode], Sequence[float]]:
    """What is to be written now so that a pod is nominated to a node ("": to none), and in how many seconds again."""
    said, sent = pod.status.nominated_node_name, entry.nominated.get(pod.metadata.uid)
    if said == node and (sent is None or sent.node == node):
        return (), ()
    # Neither a first removal nor the first few nodes are put off; what somebody writes back is answered after a pause.
    if sent is None or (node != sent.node and (not node or sent.attempts < AT_ONCE)) or now >= sent.again:
        return (NominateNode(pod, node),), ()
    # Room that it does not get is free at once, whenever it gets another.
    return (NominateNode(pod, ""),) if node != sent.node and sent.node else (), (sent.again - now,)

"""Pods of a PodGroup of Kubernetes itself (scheduling.k8s.io) are let go together.

Rules
- kube-scheduler takes the pods of a group that have no node yet together, and none of them while one is gated. Pods
  that run stay as they are.
- A group that it holds it looks at again when a gate is removed; not when a gated pod is deleted, but for a look every
  five minutes. So of a group all pods that have our gate are let go at one look, or none is. Gates of others are
  theirs: who removes the last one wakes the group.
- A pod that ends counts for its group as long as it has a node: with a level, the new pods are bound only once the last
  of them is gone (1.37), and without one they count towards the gang, so that one new pod may be bound alone. So new
  pods stay behind their gates until then, and are not late meanwhile (``ending_until``).
- Pods that wait for room to grow hold up those that have a place and are not there yet, such as one that was made
  again. For these there is a time. After it the workload is evicted as a whole, and asks for all its pods at once: all
  of them go then, or none, as their group wants it. What it waits for is told like any other reason. Of one that is
  moved they wait for pods that end, and for no longer than these take.
"""

from collections.abc import Iterable, Sequence
from math import inf

from engine.reasons import Reason
from kube.objects import Pod
from ungater.model.actions import (
    Action,
    EmitEvent,
    Evict,
    HoldUp,
    RequeueAfter,
    Ungate,
)
from ungater.model.pod_slots import finished, is_gated
from ungater.model.workload_entry import WorkloadEntry
from ungater.reconcile import nominated_nodes
from ungater.reconcile.context import ReconcileContext
from ungater.reconcile.moves import makes_way

PATIENCE = 300.0  # seconds, where the settings have no time for pods that lost their place


def hold_groups_together(
    entry: WorkloadEntry, steps: Sequence[Action], rules: ReconcileContext, now: float
) -> list[Action]:
    """The steps for a workload without those that would let go a part of a group; and what is done about that."""
    going = {one.pod.metadata.uid: one.pod for one in steps if isinstance(one, Ungate)}
    # Pods let go earlier that have no node yet count too: kube-scheduler holds them as long as one of their group is
    # gated.
    have_place = [
        *going.values(),
        *(
            pod
            for pod in entry.pods.values()
            if pod.spec.pod_group
            and not pod.spec.node_name
            and not is_gated(pod, rules.keys.gate)
            and not finished(pod)
            and pod.metadata.deletion_timestamp is None
        ),
    ]
    groups = _groups(have_place)
    waiting = {group: pod for group in groups if (pod := _waiting(entry, group, going, rules))}
    ends = {group: pod for group in groups if (pod := _ending(group, rules))}
    if not waiting and not ends:
        return [HoldUp(since=None), *steps] if entry.held_up_since is not None else list(steps)
    if not ends and (over := _evicted(entry, have_place, waiting, rules, now)) is not None:
        return [over]
    # Nothing else of the look is held up: deletions and reasons go on.
    held_up = {*waiting, *ends}
    kept: list[Action] = []
    for one in steps:
        # A patch that was sent before is sent again all the same: its pod may be without the gate already.
        if not isinstance(one, Ungate) or one.pod.metadata.uid in entry.expectations or _group(one.pod) not in held_up:
            kept.append(one)
        elif rules.nominates:  # the room of those that are held up may be kept meanwhile
            kept += nominated_nodes.in_slot(entry, one.pod, one.index, rules.keys)
    if ends:  # nobody is late before they are gone, so time begins then
        told = [
            EmitEvent(
                "Normal",
                Reason.POD_GROUP_HELD,
                "Ungate",
                f"its new pods stay gated until pod {pod.metadata.name} on node {pod.spec.node_name} has ended: "
                f"kube-scheduler still counts that pod in PodGroup {pod.spec.pod_group}",
                once=f"ending {group}",
            )
            for group, pod in ends.items()
        ]
        return [HoldUp(since=now, ending=True), *told, *kept, RequeueAfter(_patience(rules))]
    # While old pods of the group ended, no new one was late: the time begins when the last of them is gone.
    fresh = entry.held_up_since is None or entry.ending_until == inf
    since = now if fresh or entry.held_up_since is None else entry.held_up_since
    left = since + _patience(rules) - now
    return [
        *([HoldUp(since=now)] if fresh else ()),
        *kept,
        RequeueAfter(left if left > 0 else _patience(rules)),
    ]


def ending(entry: WorkloadEntry, rules: ReconcileContext) -> bool:
    """Whether gated pods of a workload wait for others of their PodGroup that end."""
    gated = [pod for pod in entry.pods.values() if pod.spec.pod_group and is_gated(pod, rules.keys.gate)]
    return any(_ending(group, rules) for group in _groups(gated))


def _ending(group: str, rules: ReconcileContext) -> Pod | None:
    """The first pod of a group that ends and has a node. One on a node that is gone or not ready nobody ends."""
    found = (
        pod
        for pod in rules.in_group(group)
        if pod.metadata.deletion_timestamp is not None
        and pod.spec.node_name
        and not finished(pod)
        and not rules.dead(pod.spec.node_name)
    )
    return min(found, key=lambda pod: pod.metadata.name, default=None)


def _waiting(entry: WorkloadEntry, group: str, going: Iterable[str], rules: ReconcileContext) -> Pod | None:
    """The first pod of a group that is gated, and goes neither now nor by a patch that was sent; None where all do."""
    found = (
        pod
        for pod in rules.in_group(group)
        if is_gated(pod, rules.keys.gate)
        and not finished(pod)
        and pod.metadata.uid not in going
        and entry.on_its_way(pod.metadata.uid) is None
    )
    return min(found, key=lambda pod: pod.metadata.name, default=None)


def _evicted(
    entry: WorkloadEntry, have_place: Iterable[Pod], waiting: dict[str, Pod], rules: ReconcileContext, now: float
) -> Evict | None:
    """The eviction of a workload whose pods were held up for too long; None before that."""
    if entry.held_up_since is None or now - entry.held_up_since < _patience(rules) or makes_way(entry):
        return None
    pod = min((pod for pod in have_place if _group(pod) in waiting), key=lambda pod: pod.metadata.name)
    text = (
        f"pod {pod.metadata.name} has a place and waited {_patience(rules):g} s for pod "
        f"{waiting[_group(pod)].metadata.name} of PodGroup {pod.spec.pod_group}, which has none: kube-scheduler binds "
        "all pods of a group or none, so they are placed again together"
    )
    return Evict(Reason.POD_GROUP_HELD, text)


def _patience(rules: ReconcileContext) -> float:
    return rules.life.replacement or PATIENCE


def _groups(pods: Iterable[Pod]) -> list[str]:
    return sorted({group for pod in pods if (group := _group(pod))})


def _group(pod: Pod) -> str:
    """``namespace/name`` of a pod's group; "" where it has none."""
    return f"{pod.metadata.namespace}/{pod.spec.pod_group}" if pod.spec.pod_group else ""

"""What to do about pods that were let go to their slots and do not run there.

Plain functions of what was seen, like `ungater.reconcile.reconcile`.

Rules
- kube-scheduler changes its mind, so a pod has the time of the settings (``unschedulablePatienceSeconds``) from when it
  was first seen to be refused. One for which kube-scheduler has others go is waited for longer.
- After that its node is left out for pods like it (`LeaveOut`), and the slots of which it has one move where the pods
  have another place; those of pods that have a node stay. A pod that is let go cannot be changed, so it is deleted once
  its slot has moved, and what its owner makes instead goes to the new one.
- Where there is no other place, or several were tried, a workload whose pods were not all ready yet is evicted as a
  whole, and placed where nobody refused it. Each time after the first ones it stays away for longer, so one that is
  refused everywhere costs little; it is not counted as its own trouble. Of one that ran, and of a service, the slot
  waits for a place as long as that of a lost node (``replacementTimeoutSeconds``).
- Where a slot is lost for a reason that Topogate knows, such as room that a plain pod took, it moves for that alone.
- A pod that nobody makes again is only told of, and so is one without a slot: it has no node that could be another.
- A pod that is bound and does not start is told of, with what it waits for, and counts against its node. Whether its
  workload is put back is a matter of ``waitForPodsReadyTimeoutSeconds``; where it is, such nodes are left out.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from engine.cluster.levels import domain_in_words
from engine.reasons import Reason
from kube.objects import Pod, controller_of
from ungater.model import conditions as names
from ungater.model import unstarted as unstarted_pods
from ungater.model.actions import (
    Action,
    Evict,
    LeaveOut,
    NotStarted,
    RequeueAfter,
)
from ungater.model.conditions import shorten
from ungater.model.job_view import SERVICES
from ungater.model.pod_slots import PodSetSlots, Tally
from ungater.model.unscheduled import Unscheduled
from ungater.model.workload_entry import WorkloadEntry
from ungater.reconcile.context import ReconcileContext

NOMINATED: Final = 60.0  # seconds for pods for which others go
MOVES: Final = 6  # refusals in a row after which it is placed anew rather than moved on
AT_ONCE: Final = 3  # refusals in a row after which it still comes back at once
# Seconds. A gang that is refused everywhere costs one admission in ten minutes in the end.
FIRST_PAUSE, LONGEST_PAUSE = 10.0, 600.0
_SHOWN: Final = 3

Late = Mapping[str, Pod]  # by uid: pods that were refused for too long


def late_pods(entry: WorkloadEntry, rules: ReconcileContext, now: float) -> Late:
    """The pods that kube-scheduler has refused for longer than it is waited for."""
    if not entry.unscheduled or rules.patience is None:
        return {}
    return {
        uid: entry.pods[uid]
        for uid, one in entry.unscheduled.items()
        if uid in entry.pods
        and (left := _seconds_left(one.refused_at, rules.patience, now, nominated=one.nominated)) is not None
        and left <= 0
    }


def _seconds_left(refused_at: float | None, patience: float, now: float, *, nominated: bool) -> float | None:
    """For how many seconds a pod is waited for yet; None for one that is not refused."""
    if refused_at is None:
        return None
    return refused_at + (max(patience, NOMINATED) if nominated else patience) - now


def _waited_for(one: Unscheduled, seconds: float, now: float) -> float | None:
    """For how many seconds a pod that is refused has less than so many."""
    return None if one.refused_at is None else one.refused_at + seconds - now


def moves_of(entry: WorkloadEntry, slots: PodSetSlots, counted: Tally, late: Late) -> dict[int, int]:
    """Slots that are to move as such pods hold them: slice -> how many, of those that no pod on its node holds."""
    if not late:
        return {}
    # Only pods whose owner makes them again: a slot that moves under any other pod would leave that pod without one.
    found = {
        index
        for pod in late.values()
        if _made_again(pod) and entry.slots_of(pod) is slots and (index := _index(slots, pod)) is not None
    }
    return {index: left for index in sorted(found) if (left := slots.slots[index].count - counted.bound[index]) > 0}


def _index(slots: PodSetSlots | None, pod: Pod) -> int | None:
    return slots.of_selector(pod.spec.node_selector) if slots is not None else None


def _made_again(pod: Pod) -> bool:
    return controller_of(pod.metadata) is not None


def left_out(
    entry: WorkloadEntry, late: Late, lost: Mapping[str, Sequence[int]], rules: ReconcileContext, now: float
) -> list[Action]:
    """Whose nodes are to be left out from now on, and when to look again.

    ``lost``: by pod set, slots that are lost for another reason.
    """
    done: list[Action] = []
    pods = [
        pod
        for uid, pod in late.items()
        if _made_again(pod)
        # Each pod counts against its node once for as long as the node is left out.
        and entry.unscheduled[uid].counted_until <= now
        and (index := _index(entry.slots_of(pod), pod)) is not None
        and index not in lost.get(entry.pod_set_of(pod), ())
    ]
    if pods:
        done.append(LeaveOut(tuple(sorted(pods, key=lambda pod: pod.metadata.name))))
    patience = rules.patience
    if patience is None:
        return done
    waits = [
        _seconds_left(one.refused_at, patience, now, nominated=one.nominated) for one in entry.unscheduled.values()
    ]
    # Nothing else wakes a workload whose pods stay Pending: no event comes when a time is over.
    waits += [one.counted_until - now for one in entry.unscheduled.values()]
    if rules.life.replacement is not None:
        waits += [_waited_for(one, rules.life.replacement, now) for one in entry.unscheduled.values()]
    soonest = min((left for left in waits if left is not None and left > 0), default=None)
    return done if soonest is None else [*done, RequeueAfter(soonest)]


def evicted(entry: WorkloadEntry, late: Late, rules: ReconcileContext, now: float, *, moving: bool) -> Evict | None:
    """The eviction of a workload whose pods are refused and have no other place; None where it goes on.

    ``moving``: slots of such pods are to move.
    """
    if not moving or not all(map(_made_again, late.values())):
        return None
    # All of its pods were ready since it was admitted, or some run that are of use without the others.
    serves = (entry.job.kind, entry.job.api_version) in SERVICES
    conditions = entry.observed.conditions if entry.observed is not None else ()
    runs = (
        (serves and any(pod.spec.node_name for pod in entry.pods.values()))
        or names.true_since(conditions, names.PODS_READY) is not None
        or names.unready_at(conditions, names.true_since(conditions, names.ADMITTED)) is not None
    )
    limit = rules.life.replacement
    if runs and (limit is None or all((_waited_for(entry.unscheduled[uid], limit, now) or 0.0) > 0 for uid in late)):
        return None
    # The scheduler looked for other places for the lost slots, and found none.
    if entry.lost and entry.refused is not None:
        why = f"there is no other place for it: {entry.refused.message}"
    elif not runs and entry.refusals > MOVES:
        why = f"this happened {entry.refusals} times in a row"
    else:
        return None
    text = shorten(f"{message_of(entry, late)}; {why}; all of its pods are placed again")
    return Evict(Reason.SCHEDULER_REFUSED, text)


def unstarted(entry: WorkloadEntry, now: float) -> list[Pod]:
    """The pods that have a node and do not start for longer than is usual, by name."""
    found = (
        entry.pods[uid]
        for uid, one in entry.unstarted.items()
        if uid in entry.pods and one.words and now - one.since >= unstarted_pods.PATIENCE
    )
    return sorted(found, key=lambda pod: pod.metadata.name)


def ignored(entry: WorkloadEntry) -> list[Pod]:
    """The pods that no scheduler has said anything of for long, by name."""
    found = (entry.pods[uid] for uid, one in entry.unscheduled.items() if one.ignored and uid in entry.pods)
    return sorted(found, key=lambda pod: pod.metadata.name)


def message_of_ignored(pods: Sequence[Pod]) -> str:
    """Which pods no scheduler looks at, and what may be the matter."""
    first, more = pods[0], f" (and {len(pods) - 1} more)" if len(pods) > 1 else ""
    if gates := [gate.name for gate in first.spec.scheduling_gates or ()]:
        return f"pod {first.metadata.name}{more} has a slot and waits for another scheduling gate: {', '.join(gates)}"
    name = first.spec.scheduler_name or "default-scheduler"
    return f"pod {first.metadata.name}{more} has a slot, and no scheduler has looked at it: does {name} run?"


def kept_it_from_running(entry: WorkloadEntry) -> tuple[Pod, ...]:
    """The pods whose nodes did not get their volumes or devices ready, of a workload that is put back for its time."""
    found = (entry.pods[uid] for uid, one in entry.unstarted.items() if uid in entry.pods and one.lacks)
    return tuple(sorted(found, key=lambda pod: pod.metadata.name))


def not_started(entry: WorkloadEntry, now: float) -> list[Action]:
    """What is done about them at first: they count against their node, and their events are asked for."""
    if not entry.unstarted:
        return []
    first = tuple([pod for pod in unstarted(entry, now) if not entry.unstarted[pod.metadata.uid].counted])
    return [NotStarted(first)] if first else []


def message_of_unstarted(entry: WorkloadEntry, pods: Sequence[Pod]) -> str:
    """Which pods do not start, where, and what they wait for."""
    first = entry.unstarted[pods[0].metadata.uid]
    more = f" (and {len(pods) - 1} more)" if len(pods) > 1 else ""
    return f"pod {pods[0].metadata.name}{more} is bound to {first.node} and does not start: {first.words}"


def pause(entry: WorkloadEntry) -> float:
    """For how many seconds a workload stays away that was evicted as kube-scheduler refuses its pods."""
    if entry.refusals <= AT_ONCE:
        return 0.0
    # The bound of the exponent: a float power beyond 1023 raises OverflowError.
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(entry.refusals - AT_ONCE - 1, 16))


def message_of(entry: WorkloadEntry, late: Late) -> str:
    """Which pods kube-scheduler does not take, to which nodes, and what it says."""
    first = min(late.values(), key=lambda pod: pod.metadata.name)
    more = f" (and {len(late) - 1} more)" if len(late) > 1 else ""
    places: set[str] = set()  # the nodes that were meant for them, or the domains
    for pod in late.values():
        slots = entry.slots_of(pod)
        index = _index(slots, pod)
        if slots is not None and index is not None:
            places.add(slots.slots[index].node or domain_in_words(slots.slots[index].values))
    shown = sorted(places - {""})
    others = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    where = f" to {', '.join(shown[:_SHOWN])}{others}, where its slot is" if shown else ""
    words = entry.unscheduled[first.metadata.uid].words
    return f"kube-scheduler does not bind pod {first.metadata.name}{more}{where}: {words}"


def consequence(entry: WorkloadEntry, late: Late, moving: bool) -> str:
    """What becomes of them, in words."""
    if not all(map(_made_again, late.values())):
        return "delete it to have it placed elsewhere: it has no controller that would create it again"
    if not moving:
        return "its workload has quota without slots, so it gets no other place"
    if entry.refused is not None:
        return f"there is no other place for it: {entry.refused.message}"
    return "its replacement gets another place"

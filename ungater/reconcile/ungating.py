"""What is done for the pods of a workload that is admitted and runs: the recipe of `running`.

Plain functions of what was seen, like `ungater.reconcile.reconcile`.
"""

from collections.abc import Collection

from engine.reasons import Reason
from ungater.model import conditions as names
from ungater.model.actions import (
    ANYWHERE,
    Action,
    Delete,
    Dequeue,
    EmitEvent,
    Enqueue,
    Evict,
    Release,
    RequeueAfter,
    Ungate,
)
from ungater.model.conditions import WantedCondition
from ungater.model.job_view import JOB
from ungater.model.pod_slots import Tally, finished, is_gated
from ungater.model.workload_entry import WorkloadEntry
from ungater.reconcile import as_made, granted, let_go, moves, nominated_nodes
from ungater.reconcile.context import ReconcileContext
from ungater.reconcile.granted import Barred
from ungater.reconcile.pod_set_ungating import PodSetUngating, keep_places
from ungater.reconcile.resize import give_back, resize
from ungater.reconcile.said import say_why

# PodGC waits 40 s (`quarantineTime` in pkg/controller/podgc/gc_controller.go) and then fails the pods of such a node.
NODE_BACK = 20.0  # seconds in which a deleted node may come back; Kubernetes gives it forty and more


def running(entry: WorkloadEntry, rules: ReconcileContext, now: float) -> list[Action]:
    """Pods go to their slots, those that are astray are replaced, and what is missing is asked for."""
    made = as_made.compared(entry, rules)
    if made.taken is not None:
        # The view of the job changes by this, and all below reads the view: the next look goes on.
        return [made.taken]
    elsewhere = granted.of_other_queues(entry, rules.keys, now)
    others = {*(one.pod.metadata.uid for one in elsewhere), *made.mixed}
    # Nothing is decided again under pods that run: those would have to go for it.
    if (made.mixed or entry.undecided) and granted.none_runs(entry, rules.keys.gate):
        unlike = _decided_again(entry)
        if made.mixed:
            unlike = names.nothing_held(Reason.PODS_CHANGE, as_made.mixed_message(entry, made.mixed))
        return _put_back(entry, unlike)
    late, moving = let_go.late_pods(entry, rules, now), moves.under_way(entry)

    # 1. Count the pods of each pod set with slots, and find where those go that wait.
    counted = _count_pods(entry, others, rules, now, moving=moving)
    looks = [
        PodSetUngating.from_pod_set(entry, pod_set, counted[pod_set.name], late, rules, now, made.kinds)
        for pod_set in entry.job.pod_sets
        if pod_set.name in counted
    ]

    # 2. Let pods without slots go, and bar the pods that are not what was admitted.
    anywhere, barred = _ungate_without_slots(entry, rules, now, others)
    again = as_made.made_again(entry, made.mixed, rules, now)
    barred += (*elsewhere, *(one for look in looks for one in look.barred))
    asked = granted.asked(entry, barred, rules)

    # 3. Give all back where none of them runs and something else would suit its pods.
    anew = granted.given_back(entry, barred, rules.keys.gate) or granted.anew(entry, asked, rules.keys.gate)
    # Slots are closed to its pods as they are made: a domain that was decided for other pods is no better where only
    # some of its slots are closed to these.
    otherwise = {one.name for one in entry.job.pod_sets if one.as_made}
    closed = any(look.lost and look.name in otherwise for look in looks)
    if anew or (closed and granted.none_runs(entry, rules.keys.gate) and (anew := _decided_again(entry))):
        return _put_back(entry, anew)

    # 4. Move slots where pods do not run, or place all of its pods again.
    out = let_go.left_out(entry, late, {look.name: look.lost for look in looks}, rules, now)
    if (ends := let_go.evicted(entry, late, rules, now, moving=any(look.stuck for look in looks))) is not None:
        return [*out, ends]
    out += let_go.not_started(entry, now)
    if not entry.slots_in:
        # 5 to 7 of one by quota alone: its pods went anywhere.
        told = say_why(entry, made, barred, looks, late, rules, now)
        return [*anywhere, *out, *again, *resize(entry, counted, asked, now, rules), *told]
    for look in looks:
        for _, index in look.going:
            look.counted.used[index] += 1  # let go at this look, so none of those that are left over
    out = [
        *_collect(entry, rules, now),
        *out,
        *(step for look in looks for step in _replace(entry, look.counted, now, moving=moving)),
        *(moves.steps(entry, counted) if moving else ()),
    ]

    # 5. Let pods go to their slots; those whose patch was lost first.
    out += [Ungate(pod, index) for look in looks for pod, index in look.counted.resend if not look.crowded(index)]
    out += [Ungate(pod, index) for look in looks for pod, index in look.going]
    for look in looks if rules.nominates else ():
        for pod, index in look.awaiting:
            out += nominated_nodes.in_slot(entry, pod, index, rules.keys)
    out += [*anywhere, *again]

    # 6. Resize: slots that nobody needs go back first, as a lost slot among them needs no other place.
    lost = {look.name: look.moves for look in looks if look.moves}
    urgent = any(look.urgent for look in looks)
    wishes = give_back(entry, counted, now, rules) if lost else resize(entry, counted, asked, now, rules)
    out += wishes or ([Enqueue(lost, asked=asked, urgent=urgent)] if lost else ())

    # 7. Say why pods wait.
    return [*out, *say_why(entry, made, barred, looks, late, rules, now)]


def _count_pods(
    entry: WorkloadEntry, others: Collection[str], rules: ReconcileContext, now: float, *, moving: bool
) -> dict[str, Tally]:
    """By pod set with slots, what its pods hold. ``others``: uids of those that get none."""
    counted = {
        pod_set.name: rules.tally_pods(
            entry,
            pod_set,
            slots,
            [pod for pod in entry.pods_of_pod_set(pod_set) if pod.metadata.uid not in others],
            now,
            rules.unkept(entry) if moving else None,
        )
        for pod_set in entry.job.pod_sets
        if (slots := entry.slots_in.get(pod_set.name)) is not None
    }
    for name, count in counted.items():
        # Before slots are given away: each pod that runs without a slot here takes one of those that look free.
        keep_places(entry.slots_in[name], count, [*entry.left_of(name), *count.ending])
    return counted


def _put_back(entry: WorkloadEntry, wanted: tuple[WantedCondition, ...]) -> list[Action]:
    """None of its pods runs, and what it holds is not what they need: it gives all back, and is decided again.

    One that is suspended while it waits goes step by step: its pods go with that, and others are made.
    """
    if not (entry.job.queue and entry.job.suspendable):
        return [Dequeue(), Release(wanted)]
    return [Evict(Reason(wanted[0].reason), wanted[0].message)]


def _decided_again(entry: WorkloadEntry) -> tuple[WantedCondition, ...]:
    again = any(one.changes for one in entry.made.values())
    message = (
        f"the pods of {entry.job.called} differ from its template in what decides where they may run: it is placed "
        "again by what its pods say"
    )
    return names.nothing_held(Reason.PODS_CHANGE if again else Reason.PODS_DIFFER, message)


def _ungate_without_slots(
    entry: WorkloadEntry, rules: ReconcileContext, now: float, others: Collection[str]
) -> tuple[list[Action], list[Barred]]:
    """Ungate pods that have quota and no slots: they may run on any node.

    A Job's pods have no gate then, because the patch that started it took it away (`ungater.jobs.pod_template`).

    ``others``: uids of those that name another queue.
    """
    done: list[Action] = []
    barred: list[Barred] = []
    if (entry.job.suspendable and entry.job.kind == JOB) or entry.admission is None:
        return done, barred
    more, keys = granted.to_come(entry, rules), rules.keys
    for pod_set in entry.job.pod_sets:
        if pod_set.name in entry.slots_in:
            continue
        left, waiting = entry.admitted(pod_set.name) - len(entry.left_of(pod_set.name)), []
        for pod in entry.pods_of_pod_set(pod_set):
            expectation = entry.expectations.get(pod.metadata.uid)
            if finished(pod) or (expectation is not None and expectation.gone):
                continue
            if not is_gated(pod, keys.gate) or expectation is not None:
                # A patch that was sent counts like a pod without a gate: it may have arrived by now.
                left -= 1
                # The gate is there after the deadline: the patch was lost, and is safe to send again.
                if expectation is not None and is_gated(pod, keys.gate) and expectation.deadline <= now:
                    done.append(Ungate(pod, ANYWHERE))
            elif pod.metadata.deletion_timestamp is None and pod.metadata.uid not in others:
                waiting.append(pod)
        waiting.sort(key=lambda pod: pod.metadata.name)
        for pod in waiting[: max(0, left)]:
            if (bar := Barred.find_bar(entry, pod_set.name, pod, rules, more)) is None:
                done.append(Ungate(pod, ANYWHERE))
            else:
                barred.append(bar)
    return done, barred


def _collect(entry: WorkloadEntry, rules: ReconcileContext, now: float) -> list[Action]:
    """Delete our pods on nodes that are there no more, before Kubernetes does: it would count each as a failure.

    A Job waits up to ten minutes after several failures until it makes new pods.
    """
    done: list[Action] = []
    due: list[float] = []
    for pod in entry.pods.values():
        name = pod.spec.node_name
        if not name or finished(pod) or rules.keys.workload not in (pod.metadata.annotations or {}):
            continue
        if (since := rules.missing(name)) is None:
            continue
        # A kubelet that registers again within this time keeps its pods.
        at = max(since + NODE_BACK, entry.deleting.get(pod.metadata.uid, 0.0))
        if at > now:
            due.append(at - now)
            continue
        text = f"node {name} was deleted: pod {pod.metadata.name} on it is deleted too, and its replacement gets a slot"
        # No kubelet is there to confirm the end of a grace period, so the object goes without one.
        done.append(Delete(pod, Reason.NODE_DELETED, text, at_once=True))
    return [*done, *(RequeueAfter(after) for after in sorted(due)[:1])]


def _replace(entry: WorkloadEntry, counted: Tally, now: float, *, moving: bool) -> list[Action]:
    """Pods that stand where they have no slot go; pods that were never ours to place are only pointed at.

    ``moving``: those that run are evicted, so that budgets hold (`ungater.reconcile.moves`).
    """
    astray = [pod for pod in counted.moved if not (moving and pod.spec.node_name)]
    done: list[Action] = [
        Delete(
            pod,
            Reason.SLOT_MOVED,
            f"pod {pod.metadata.name} was sent to a place that is no slot of {entry.job.called} any more: it is "
            "deleted, and its replacement gets a slot",
        )
        for pod in astray
        if entry.deleting.get(pod.metadata.uid, 0.0) <= now
    ]
    for pod in counted.strangers:
        if pod.metadata.uid not in entry.noted:
            message = (
                f"pod {pod.metadata.name} runs without a slot of {entry.job.called}, as its gate was not removed by "
                "Topogate: delete it to have it placed"
            )
            done.append(EmitEvent("Warning", Reason.NOT_GATED, "Place", message, pod=pod, once=pod.metadata.uid))
    waits_until = [entry.deleting[pod.metadata.uid] for pod in astray if pod.metadata.uid in entry.deleting]
    return [*done, *(RequeueAfter(due - now) for due in sorted(waits_until)[:1] if due > now)]

"""What jobs of all kinds need that wait for a place or have one: reasons that are told, pods that go to their slots.

Plain functions of what was seen, like `ungater.reconcile.reconcile`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from crds.constants import Keys
from engine.reasons import Reason
from kube.objects import Pod
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
    WriteConditions,
)
from ungater.model.conditions import WantedCondition
from ungater.model.job_view import JOB, PodSetView
from ungater.model.pod_slots import PodSetSlots, Tally, assign, finished, is_gated, tally
from ungater.model.workload_entry import WorkloadEntry
from ungater.reconcile import (
    as_made,
    granted,
    let_go,
    missing_pods,
    moves,
    nominated_nodes,
    pods_ready,
    volume_slots,
)
from ungater.reconcile.context import ReconcileContext
from ungater.reconcile.granted import Barred
from ungater.reconcile.pods_ready import SOON
from ungater.reconcile.resize import give_back, resize
from ungater.reconcile.volume_slots import VolumeSlots

DETAILS_AFTER = 10.0  # seconds: the same reason in other words
RETELL_AFTER = 60.0  # seconds between two events that only differ in their details

# PodGC waits 40 s (`quarantineTime` in pkg/controller/podgc/gc_controller.go) and then fails the pods of such a node.
NODE_BACK = 20.0  # seconds in which a deleted node may come back; Kubernetes gives it forty and more


def waits(entry: WorkloadEntry, reason: Reason, message: str, now: float) -> list[Action]:
    """Say why it waits: at once where the reason is new, lazily and rarely where only details are."""
    wanted = WantedCondition(names.QUOTA_RESERVED, False, reason, message)
    observed = entry.observed
    written = observed is not None and any(
        found.type == names.QUOTA_RESERVED and found.status == "False" and found.reason == str(reason)
        for found in observed.conditions
    )
    told: list[Action] = [WriteConditions((wanted,), delay=DETAILS_AFTER if written else 0.0)]
    if _is_news(entry, reason, message, now):
        told.append(EmitEvent("Warning", reason, "Admit", message))
    return told


def _is_news(entry: WorkloadEntry, reason: str, message: str, now: float) -> bool:
    told = entry.last_event
    if told is None or told.reason != reason:
        return True
    return told.message != message and now - told.at >= RETELL_AFTER


def running(entry: WorkloadEntry, rules: ReconcileContext, now: float) -> list[Action]:
    """Pods go to their slots, those that are astray are replaced, and what is missing is asked for."""
    made = as_made.compared(entry, rules)
    if made.taken is not None:
        # The view of the job changes by this, and all below reads the view: the next look goes on.
        return [made.taken]
    elsewhere = granted.of_other_queues(entry, rules.keys, now)
    others = {*(one.pod.metadata.uid for one in elsewhere), *made.mixed}
    if again := _unlike(entry, made, rules):
        return _put_back(entry, again)
    late = let_go.late_pods(entry, rules, now)
    if not entry.slots_in:
        return _by_quota_alone(entry, made, late, _let_go(entry, rules, now, others), elsewhere, rules, now)
    pod_sets, keys, moving = entry.job.pod_sets, rules.keys, moves.under_way(entry)
    counted = {
        pod_set.name: tally(
            slots,
            [pod for pod in entry.pods_of_pod_set(pod_set) if pod.metadata.uid not in others],
            entry.expectations,
            gate=keys.gate,
            mark=keys.workload,
            workload=entry.job.workload,
            now=now,
            rank=pod_set.rank_of_pod,
            dead=rules.dead,
            first=rules.unkept(entry) if moving else None,
        )
        for pod_set in pod_sets
        if (slots := entry.slots_in.get(pod_set.name)) is not None
    }
    for name, count in counted.items():
        # Before slots are given away below: each pod that runs without a slot here takes one of those that look free.
        _keep_places(entry.slots_in[name], count, [*entry.left_of(name), *count.ending])
    looks = [
        _PodSetUngating.from_pod_set(entry, pod_set, counted[pod_set.name], late, rules, now, made.kinds)
        for pod_set in pod_sets
        if pod_set.name in counted
    ]
    gone, barred = _let_go(entry, rules, now, others)
    gone += as_made.made_again(entry, made.mixed, rules, now)
    barred += (*elsewhere, *(one for look in looks for one in look.barred))
    asked = granted.asked(entry, barred, rules)
    anew = granted.given_back(entry, barred, keys.gate) or granted.anew(entry, asked, keys.gate)
    if anew or (anew := _misplaced(entry, looks, keys.gate)):
        return _put_back(entry, anew)
    lost = {look.name: look.moves for look in looks if look.moves}
    stuck = any(look.stuck for look in looks)
    out = let_go.left_out(entry, late, {look.name: look.lost for look in looks}, rules, now)
    if (ends := let_go.evicted(entry, late, rules, now, moving=stuck)) is not None:
        return [*out, ends]
    for look in looks:
        for _, index in look.going:
            look.counted.used[index] += 1  # let go at this look, so none of those that are left over
    return [
        *_collect(entry, rules, now),
        *out,
        *let_go.not_started(entry, now),
        *(step for look in looks for step in _replace(entry, look.counted, now, moving=moving)),
        *(moves.steps(entry, {look.name: look.counted for look in looks}) if moving else ()),
        *(Ungate(pod, index) for look in looks for pod, index in look.counted.resend if not look.crowded(index)),
        *(Ungate(pod, index) for look in looks for pod, index in look.going),
        *(_in_slots(entry, looks, rules) if rules.nominates else ()),
        *gone,
        *(
            # Slots that nobody needs go back first: a lost slot among them needs no other place.
            (give_back(entry, counted, now, rules) or [Enqueue(lost, asked=asked, urgent=any(map(_urgent, looks)))])
            if lost
            else resize(entry, counted, asked, now, rules)
        ),
        *(
            # One reason is reported at a time: two would replace each other in PodsReady at every look.
            _say_mixed(entry, made, now)
            or _say_why(entry, barred, rules, now)
            or _say_volumes(entry, looks, now)
            or _say_let_go(entry, late, now, moving=stuck)
            or _report_gated(entry, looks, now)
        ),
    ]


def _in_slots(entry: WorkloadEntry, looks: Sequence["_PodSetUngating"], rules: ReconcileContext) -> Iterator[Action]:
    for look in looks:
        for pod, index in look.awaiting:
            yield from nominated_nodes.in_slot(entry, pod, index, rules.keys)


def _put_back(entry: WorkloadEntry, wanted: tuple[WantedCondition, ...]) -> list[Action]:
    """None of its pods runs, and what it holds is not what they need: it gives all back, and is decided again.

    One that is suspended while it waits goes step by step: its pods go with that, and others are made.
    """
    if not (entry.job.queue and entry.job.suspendable):
        return [Dequeue(), Release(wanted)]
    return [Evict(Reason(wanted[0].reason), wanted[0].message)]


def _unlike(entry: WorkloadEntry, made: as_made.Comparison, rules: ReconcileContext) -> tuple[WantedCondition, ...]:
    """What is said of a workload whose pods are not those that it was decided for; () where some of them run."""
    # Nothing is decided again under pods that run: those would have to go for it.
    if not (made.mixed or entry.undecided) or not granted.none_runs(entry, rules.keys.gate):
        return ()
    if made.mixed:
        return names.nothing_held(Reason.PODS_CHANGE, as_made.mixed_message(entry, made.mixed))
    return _decided_again(entry)


def _misplaced(entry: WorkloadEntry, looks: Sequence["_PodSetUngating"], gate: str) -> tuple[WantedCondition, ...]:
    """What is said of one whose pods, as they are made, cannot start in slots that it has; () where some of them run.

    A domain that was decided for other pods is no better where only some of its slots are closed to these.
    """
    made = {one.name for one in entry.job.pod_sets if one.as_made}
    closed = any(look.lost and look.name in made for look in looks)
    return _decided_again(entry) if closed and granted.none_runs(entry, gate) else ()


def _decided_again(entry: WorkloadEntry) -> tuple[WantedCondition, ...]:
    again = any(one.changes for one in entry.made.values())
    message = (
        f"the pods of {entry.job.called} differ from its template in what decides where they may run: it is placed "
        "again by what its pods say"
    )
    return names.nothing_held(Reason.PODS_CHANGE if again else Reason.PODS_DIFFER, message)


def _by_quota_alone(  # noqa: PLR0917  (the parts of a look)
    entry: WorkloadEntry,
    made: as_made.Comparison,
    late: let_go.Late,
    going: tuple[list[Action], list[Barred]],
    elsewhere: Sequence[Barred],
    rules: ReconcileContext,
    now: float,
) -> list[Action]:
    """As `running`, of a workload that has quota and no slots; ``going``: as `_let_go`."""
    gone, barred = going
    barred += elsewhere
    asked = granted.asked(entry, barred, rules)
    if anew := granted.given_back(entry, barred, rules.keys.gate) or granted.anew(entry, asked, rules.keys.gate):
        return _put_back(entry, anew)
    told = _say_mixed(entry, made, now) or _say_why(entry, barred, rules, now)
    told = told or _say_let_go(entry, late, now, moving=False) or pods_ready.ready(entry)
    gone += [*let_go.left_out(entry, late, {}, rules, now), *let_go.not_started(entry, now)]
    gone += as_made.made_again(entry, made.mixed, rules, now)
    return [*gone, *resize(entry, {}, asked, now, rules), *told]


def _keep_places(slots: PodSetSlots, counted: Tally, left: Sequence[Pod]) -> None:
    """Pods that left the workload, or lost their slot, and run on keep a slot: that where they are, or any.

    So do those that are to go and have not gone yet, outside all slots or as too many in theirs: no more pods run than
    were admitted.
    """
    free = counted.free_slots(slots)
    at = [slots.of_selector(pod.spec.node_selector) for pod in left]
    outside = sum(slots.of_selector(pod.spec.node_selector) is None for pod in counted.moved)
    surplus = sum(max(0, used - slot.count) for slot, used in zip(slots.slots, counted.used, strict=True))
    anywhere = outside + surplus
    for index in at:
        if index is not None and free[index]:
            free[index] -= 1
            counted.used[index] += 1
        else:
            anywhere += 1
    for index, count in enumerate(free):
        kept = min(count, anywhere)
        counted.used[index] += kept
        anywhere -= kept


def _let_go(
    entry: WorkloadEntry, rules: ReconcileContext, now: float, others: Collection[str]
) -> tuple[list[Action], list[Barred]]:
    """Pods that have quota and no slots go anywhere; those of a Job were not gated (`ungater.jobs.pod_template`).

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


class _PodSetUngating(msgspec.Struct, frozen=True):
    """One pod set with slots: what its pods hold, who goes where now, and which slots need another place."""

    name: str
    slots: PodSetSlots
    counted: Tally
    going: tuple[tuple[Pod, int], ...]
    awaiting: tuple[tuple[Pod, int], ...]  # may go there, and wait until their claims are made
    lost: tuple[int, ...]
    refused: tuple[int, ...]
    stuck: tuple[int, ...]  # of those that are not lost: where kube-scheduler does not take pods
    moves: tuple[tuple[int, int], ...]
    unplaced: int
    barred: tuple[Barred, ...] = ()
    volumes: VolumeSlots = msgspec.field(default_factory=VolumeSlots)

    def crowded(self, index: int) -> bool:
        """Whether more pods are in a slice than it has slots now: a patch that failed is not tried until one went."""
        return self.counted.used[index] > self.slots.slots[index].count

    @classmethod
    def from_pod_set(  # noqa: PLR0917
        cls,
        entry: WorkloadEntry,
        pod_set: PodSetView,
        counted: Tally,
        late: let_go.Late,
        rules: ReconcileContext,
        now: float,
        kinds: Mapping[str, int],
    ) -> "_PodSetUngating":
        slots = entry.slots_in[pod_set.name]
        taken = None if pod_set.ranks is None else counted.ranks
        layers, choices = entry.layers_of(pod_set), rules.choices(entry, slots, counted.waiting)
        only = {uid: choice.slots for uid, choice in choices.items()}
        placed = assign(
            counted.waiting,
            counted.free_slots(slots),
            slots,
            pod_set.position,
            taken,
            layers,
            pod_set.rank_of_pod,
            only,
        )
        lost = _lost_slots(entry, pod_set, slots, counted, placed, rules)
        refused = _refused_slots(slots, counted, placed, rules.avoided(entry, pod_set, now))
        stuck = let_go.moves_of(entry, slots, counted, late)
        volumes = VolumeSlots.from_choices(slots, counted, placed, choices)
        # The last one wins where a slice is in several: of a lost or stuck slice more slots move than the free ones.
        moves = tuple(sorted({**volumes.moves, **refused, **stuck, **lost}.items()))
        # Of slots that others of their slice leave for their volumes, the rest stays.
        held_back = {*refused, *stuck, *lost}
        bars = _bars(entry, pod_set, [pod for pod, _ in placed], rules, kinds)
        barred = tuple(bars.values())
        free = [(pod, at) for pod, at in placed if at not in held_back and pod.metadata.uid not in bars]
        going = tuple([(pod, at) for pod, at in free if not granted.awaits_claims(entry, pod)])
        awaiting = tuple([(pod, at) for pod, at in free if granted.awaits_claims(entry, pod)])
        unplaced = len(counted.waiting) - len(placed)
        only_refused = tuple(sorted(refused.keys() - lost.keys()))
        only_stuck = tuple(sorted(stuck.keys() - lost.keys()))
        of_all = going, awaiting, tuple(sorted(lost)), only_refused, only_stuck, moves, unplaced, barred, volumes
        return cls(pod_set.name, slots, counted, *of_all)


def _bars(
    entry: WorkloadEntry, pod_set: PodSetView, pods: Sequence[Pod], rules: ReconcileContext, kinds: Mapping[str, int]
) -> dict[str, Barred]:
    """By uid, those of these pods that do not go. Pods that are equal and have no claims are judged by one of them."""
    more, found = granted.to_come(entry, rules), {}
    free: set[int] = set()
    for pod in pods:
        kind = kinds.get(pod.metadata.uid)
        if kind in free:
            continue
        if (bar := Barred.find_bar(entry, pod_set.name, pod, rules, more)) is not None:
            found[pod.metadata.uid] = bar
        # Claims are made for each pod by itself: equal specs may have claims that ask for different devices.
        elif kind is not None and not pod.spec.resource_claims:
            free.add(kind)
    return found


def _urgent(look: _PodSetUngating) -> bool:
    """Whether slots have to move on which nobody can run; those that volumes do not reach may stay as they are."""
    return bool(look.lost or look.refused or look.stuck)


def _lost_slots(  # noqa: PLR0917
    entry: WorkloadEntry,
    pod_set: PodSetView,
    slots: PodSetSlots,
    counted: Tally,
    placed: Sequence[tuple[Pod, int]],
    rules: ReconcileContext,
) -> dict[int, int]:
    """Slots that pods need and where none can start now: slice -> how many.

    Those of pods of the job that still run there stay: moving them would end those pods.
    """
    needed = sorted({index for _, index in placed} | {index for index, count in enumerate(counted.unbound) if count})
    lost = rules.lost(entry, pod_set, slots, needed) if needed else ()
    return {index: left for index in lost if (left := slots.slots[index].count - counted.bound[index]) > 0}


def _refused_slots(
    slots: PodSetSlots, counted: Tally, placed: Sequence[tuple[Pod, int]], avoided: Collection[str]
) -> dict[int, int]:
    """Slots on nodes that refused such a pod, as far as pods need them and none holds them: slice -> how many."""
    if not avoided:
        return {}
    free = counted.free_slots(slots)
    return {index: free[index] for index in {index for _, index in placed} if slots.slots[index].node in avoided}


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


def _say_why(entry: WorkloadEntry, barred: Sequence[Barred], rules: ReconcileContext, now: float) -> list[Action]:
    """Why pods stay gated, or are not there, whatever has room."""
    return _say_barred(entry, barred, now) or _say_of_no_kind(entry, rules.keys, now) or _say_missing(entry, rules, now)


def _say_mixed(entry: WorkloadEntry, made: as_made.Comparison, now: float) -> list[Action]:
    """Why pods stay gated that are not made like others."""
    if not made.mixed:
        return []
    return _warn(entry, Reason.PODS_CHANGE, as_made.mixed_message(entry, made.mixed), now)


def _say_of_no_kind(entry: WorkloadEntry, keys: Keys, now: float) -> list[Action]:
    """That pods wait of a kind that the workload has no slots for."""
    owner = entry.job
    if not owner.kinds:
        return []
    others = [pod for pod in entry.pods.values() if is_gated(pod, keys.gate) and owner.pod_set_of(pod) is None]
    first = min(others, key=lambda pod: pod.metadata.name, default=None)
    if first is None:
        return []
    kinds = ", ".join(f"{one.name} ({one.full})" for one in owner.pod_sets)
    message = (
        f"pod {first.metadata.name} is of kind {owner.role(first)}, and {owner.called} was placed with {kinds} alone: "
        f"annotation {keys.pod_group_total} must count the pods of all kinds"
    )
    return _warn(entry, Reason.PARTLY_PLACED, message, now)


def _say_barred(entry: WorkloadEntry, barred: Sequence[Barred], now: float) -> list[Action]:
    """Why pods that are not what was admitted stay gated."""
    found = granted.message_of(entry, barred)
    if found is None:
        return []
    return _warn(entry, *found, now)


def _say_volumes(entry: WorkloadEntry, looks: Sequence[_PodSetUngating], now: float) -> list[Action]:
    """Why pods stay gated for their volumes; slots that are lost are told of first."""
    found = volume_slots.message_of(entry, [look.volumes for look in looks])
    return _warn(entry, *found, now) if found is not None and not any(look.lost for look in looks) else []


def _say_let_go(entry: WorkloadEntry, late: let_go.Late, now: float, *, moving: bool) -> list[Action]:
    """That kube-scheduler does not take pods to their slots, or that pods do not start there."""
    if not late:
        unstarted = let_go.unstarted(entry, now)
        if unstarted:
            return _warn(entry, Reason.NOT_STARTED, let_go.message_of_unstarted(entry, unstarted), now)
        ignored = let_go.ignored(entry)
        return _warn(entry, Reason.NOT_SCHEDULED, let_go.message_of_ignored(ignored), now) if ignored else []
    message = f"{let_go.message_of(entry, late)}; {let_go.consequence(entry, late, moving=moving)}"
    return _warn(entry, Reason.SCHEDULER_REFUSED, message, now)


def _say_missing(entry: WorkloadEntry, rules: ReconcileContext, now: float) -> list[Action]:
    """That some of its pods were not made in time, as long as they are not there."""
    if not missing_pods.short(entry):
        return []
    return _warn(entry, Reason.PODS_MISSING, missing_pods.message(entry, rules.missing_pods), now)


def _warn(entry: WorkloadEntry, reason: Reason, message: str, now: float) -> list[Action]:
    said: list[Action] = [
        WriteConditions((WantedCondition(names.PODS_READY, False, reason, message),), delay=SOON, lost=())
    ]
    if _is_news(entry, reason, message, now):
        said.append(EmitEvent("Warning", reason, "Place", message))
    return said


def _report_gated(entry: WorkloadEntry, looks: Sequence[_PodSetUngating], now: float) -> list[Action]:
    """PodsReady, and why pods are still gated where some are."""
    owner = entry.job
    astray = [look.slots.slots[index].values[-1] for look in looks for index in (*look.lost, *look.refused)]
    total = sum(look.slots.total for look in looks)
    if entry.refused is not None and (astray or owner.count > total):
        reason, detail = Reason.PARTLY_PLACED, entry.refused.message
        message = f"{total} of {owner.count} pods have a slot: {detail}"
        if astray:
            why = "lost" if any(look.lost for look in looks) else "refused there"
            message = f"pods for {', '.join(astray[:3])} ({why}) have no other place in their domain: {detail}"
        nodes = {look.slots.slots[index].node for look in looks for index in look.lost}
        lost = tuple(sorted(filter(None, nodes)))
        said: list[Action] = [
            WriteConditions((WantedCondition(names.PODS_READY, False, reason, message),), delay=SOON, lost=lost)
        ]
        if _is_news(entry, reason, message, now):
            said.append(EmitEvent("Warning", reason, "Resize", message))
        return said
    unplaced = sum(look.unplaced for look in looks)
    if unplaced and owner.count <= total:
        message = f"{unplaced} gated pods wait for slots that other pods of it hold until they are gone"
        if unplaced == 1:
            message = "1 gated pod waits for a slot that another pod of it holds until that one is gone"
        return [
            WriteConditions(
                (WantedCondition(names.PODS_READY, False, Reason.SLOT_OCCUPIED, message),), delay=SOON, lost=()
            )
        ]
    return pods_ready.said(entry, now)

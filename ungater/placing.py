"""What jobs of all kinds need that wait for a place or have one: reasons that are told, pods that go to their slots.

Plain functions of what was seen, like `ungater.decide`.
"""

from collections.abc import Collection, Sequence

from engine.reasons import Reason
from kube.objects import Pod, is_true
from ungater import conditions as names
from ungater.conditions import Wanted
from ungater.instructions import (
    Delete,
    Enter,
    Instruction,
    Leave,
    Release,
    Respec,
    Rules,
    Shrink,
    ShrinkLater,
    Tell,
    Ungate,
    Write,
)
from ungater.record import Record
from ungater.slots import SlotMap, Tally, assign, finished, surplus, tally

SHRINK_AFTER = 1.0  # seconds: pods of a job finish together, and one write is enough for them
SOON = 4.0  # seconds: for what nobody waits for; often a later state makes the write needless
DETAILS_AFTER = 10.0  # seconds: the same reason in other words
RETELL_AFTER = 60.0  # seconds between two events that only differ in their details

_STUCK = frozenset({str(Reason.SLOT_OCCUPIED), str(Reason.PARTLY_PLACED)})


def waits(record: Record, reason: Reason, message: str, now: float) -> list[Instruction]:
    """Say why it waits: at once where the reason is new, lazily and rarely where only details are."""
    wanted = Wanted(names.QUOTA_RESERVED, False, reason, message)
    known = record.known
    written = known is not None and any(
        found.type == names.QUOTA_RESERVED and found.status == "False" and found.reason == str(reason)
        for found in known.conditions
    )
    told: list[Instruction] = [Write((wanted,), delay=DETAILS_AFTER if written else 0.0)]
    if _is_news(record, reason, message, now):
        told.append(Tell("Warning", reason, "Admit", message))
    return told


def _is_news(record: Record, reason: str, message: str, now: float) -> bool:
    told = record.told
    if told is None or told.reason != reason:
        return True
    return told.message != message and now - told.at >= RETELL_AFTER


def running(record: Record, rules: Rules, now: float) -> list[Instruction]:
    """Pods go to their slots, those that are astray are replaced, and what is missing is asked for."""
    slots, pod_set, keys = record.slots, record.owner.pod_sets[0], rules.keys
    if slots is None:
        return [*_resize_plain(record, now), *_ready(record)]
    counted = tally(
        slots,
        record.pods.values(),
        record.intents,
        gate=keys.gate,
        mark=keys.workload,
        workload=record.owner.workload,
        now=now,
        dead=rules.dead,
    )
    taken = None if pod_set.ranks is None else counted.ranks
    placed = assign(counted.waiting, counted.free(slots), slots, pod_set.position, taken, record.layers)
    lost = _lost(record, slots, counted, placed, rules)
    refused = _refused(slots, counted, placed, rules.avoided(record, now))
    moves = tuple(sorted({**refused, **lost}.items()))
    held_back = {index for index, _ in moves}
    return [
        *_replace(record, counted, now),
        *(Ungate(pod, index) for pod, index in counted.resend),
        *(Ungate(pod, index) for pod, index in placed if index not in held_back),
        *([Enter(moves)] if moves else _resize(record, slots, counted, now)),
        *_say(
            record,
            slots,
            sorted(lost),
            sorted(refused.keys() - lost.keys()),
            unplaced=len(counted.waiting) - len(placed),
            now=now,
        ),
    ]


def _lost(
    record: Record, slots: SlotMap, counted: Tally, placed: Sequence[tuple[Pod, int]], rules: Rules
) -> dict[int, int]:
    """Slots that pods need and where none can start now: slice -> how many.

    Those of pods of the job that still run there stay: moving them would end those pods.
    """
    needed = sorted({index for _, index in placed} | {index for index, count in enumerate(counted.unbound) if count})
    lost = rules.lost(record, slots, needed) if needed else ()
    return {index: left for index in lost if (left := slots.slots[index].count - counted.bound[index]) > 0}


def _refused(
    slots: SlotMap, counted: Tally, placed: Sequence[tuple[Pod, int]], avoided: Collection[str]
) -> dict[int, int]:
    """Slots on nodes that refused such a pod, as far as pods need them and none holds them: slice -> how many."""
    if not avoided:
        return {}
    free = counted.free(slots)
    return {index: free[index] for index in {index for _, index in placed} if slots.slots[index].node in avoided}


def _replace(record: Record, counted: Tally, now: float) -> list[Instruction]:
    """Pods that stand where they have no slot go; pods that were never ours to place are only pointed at."""
    done: list[Instruction] = [
        Delete(
            pod,
            Reason.SLOT_MOVED,
            f"pod {pod.metadata.name} was sent to a place that is no slot of workload {record.owner.workload} any "
            "more: it is deleted, and its replacement gets a slot",
        )
        for pod in counted.moved
        if record.deleting.get(pod.metadata.uid, 0.0) <= now
    ]
    for pod in counted.strangers:
        if pod.metadata.uid not in record.noted:
            message = (
                f"pod {pod.metadata.name} runs without a slot of workload {record.owner.workload}: its gate was not "
                "removed by Topogate. Delete it to have it placed"
            )
            done.append(Tell("Warning", Reason.NOT_GATED, "Place", message, pod=pod, once=pod.metadata.uid))
    return done


def _respec(record: Record) -> list[Instruction]:
    """The Workload's count follows the job's, except where the job has fewer pods because only those were admitted."""
    known, full = record.known, record.owner.pod_sets[0].full
    if known is None or known.count == full or (known.least and known.least <= full < known.count):
        return []
    return [Respec()]


def _resize(record: Record, slots: SlotMap, counted: Tally, now: float) -> list[Instruction]:
    pod_set = record.owner.pod_sets[0]
    done = _respec(record)
    if pod_set.count > slots.total:
        return [*done, Enter()]
    done.append(Leave())
    give = surplus(slots, counted, pod_set.count, record.layers) if pod_set.count < slots.total else {}
    smaller = slots.without(give)
    return [*done, *_shrink(record, smaller, smaller.total, now)] if give else done


def _resize_plain(record: Record, now: float) -> list[Instruction]:
    """The same for pods without slots: quota alone."""
    pod_set, part = record.owner.pod_sets[0], record.admission.part() if record.admission is not None else None
    done = _respec(record)
    if part is None or pod_set.count > part.count:
        return [*done, Enter()]
    keep = max(pod_set.count, sum(not finished(pod) for pod in record.pods.values()))
    done.append(Leave())
    return [*done, *_shrink(record, None, keep, now)] if keep < part.count else done


def _shrink(record: Record, slots: SlotMap | None, count: int, now: float) -> list[Instruction]:
    if record.shrink_at is None:
        return [ShrinkLater()]
    if record.shrink_at > now:
        return []
    if count:
        return [Shrink(slots, count)]
    if record.owner.queue:
        return []  # it ends soon, or keeps its quota for the pods to come
    message = "the job asks for no pods now (parallelism 0)"
    return [Release(tuple(Wanted(type_, False, Reason.PENDING, message) for type_ in names.HOLDING))]


def _say(
    record: Record, slots: SlotMap, lost: Sequence[int], refused: Sequence[int], *, unplaced: int, now: float
) -> list[Instruction]:
    """PodsReady, and why pods are still gated where some are."""
    pod_set = record.owner.pod_sets[0]
    if record.refused is not None and (lost or refused or pod_set.count > slots.total):
        reason, detail = Reason.PARTLY_PLACED, record.refused.message
        message = f"{slots.total} of {pod_set.count} pods have a slot; no room for the rest: {detail}"
        if lost or refused:
            where = ", ".join(slots.slots[index].values[-1] for index in (*lost, *refused)[:3])
            why = "is lost" if lost else "refused such a pod"
            message = f"{where} {why}, and its pods have no other place in their domain: {detail}"
        said: list[Instruction] = [Write((Wanted(names.PODS_READY, False, reason, message),), delay=SOON)]
        if _is_news(record, reason, message, now):
            said.append(Tell("Warning", reason, "Resize", message))
        return said
    if unplaced and pod_set.count <= slots.total:
        message = f"{unplaced} gated pods wait for a slot that a pod of the job still holds until it is gone"
        return [Write((Wanted(names.PODS_READY, False, Reason.SLOT_OCCUPIED, message),), delay=SOON)]
    return _ready(record)


def _ready(record: Record) -> list[Instruction]:
    """PodsReady."""
    pod_set, known = record.owner.pod_sets[0], record.known
    was_ready = known is not None and is_true(known.conditions, names.PODS_READY)
    if record.owner.ready >= pod_set.count > 0:
        astray = [trouble for trouble in record.troubles.values() if not trouble.refused]
        message = f"all {pod_set.count} pods are ready"
        if astray:
            message = f"{message}; {len(astray)} of them did not get the NUMA zones or devices that were predicted"
        known_so = was_ready and not astray
        return [] if known_so else [Write((Wanted(names.PODS_READY, True, Reason.PODS_READY, message),), delay=SOON)]
    refusal = next((trouble for trouble in reversed(record.troubles.values()) if trouble.refused), None)
    if refusal is not None and not was_ready:
        message = (
            f"{refusal.message}; its replacement goes to another node, or there again after {refusal.seconds:.0f} s"
        )
        return [Write((Wanted(names.PODS_READY, False, Reason.KUBELET_REFUSED, message),), delay=SOON)]
    stuck = known is not None and any(
        found.type == names.PODS_READY and found.reason in _STUCK for found in known.conditions
    )
    if stuck or (was_ready and pod_set.count == pod_set.full):
        message = f"{record.owner.ready} of {pod_set.count} pods are ready"
        return [Write((Wanted(names.PODS_READY, False, Reason.PODS_NOT_READY, message),), delay=SOON)]
    return []

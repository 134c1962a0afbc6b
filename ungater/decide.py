"""What to do about one job: a plain function of what was seen. No I/O and no clock: ``now`` is an argument.

Rules
- No pod is ungated unless ``record.slots`` is set, which happens only after the admission was stored.
- Never more pods in a slice than its count: only free slots are given, and an intent holds its slot.
- Whatever keeps a pod gated is said on the Workload and as an event.
- The same record gives the same instructions, in the same order.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from crds.constants import Keys
from crds.request import RequestError, check_level
from engine.reasons import Reason
from kube.objects import Pod, is_true
from ungater import conditions as names
from ungater.conditions import Wanted
from ungater.record import Moves, Record
from ungater.slots import Slot, SlotMap, Tally, assign, is_gated, surplus, tally

SHRINK_AFTER = 1.0  # seconds: pods of a job finish together, and one write is enough for them
SOON = 4.0  # seconds: for what nobody waits for; often a later state makes the write needless
DETAILS_AFTER = 10.0  # seconds: the same reason in other words
RETELL_AFTER = 60.0  # seconds between two events that only differ in their details


_STUCK = frozenset({str(Reason.SLOT_OCCUPIED), str(Reason.PARTLY_PLACED)})


class _Instruction(msgspec.Struct, frozen=True, gc=False):
    pass


class Create(_Instruction, frozen=True):
    """Make the Workload."""


class Respec(_Instruction, frozen=True):
    """Write the job's new counts into the Workload's spec."""


class Enter(_Instruction, frozen=True):
    """Wait for a place in the pool; with slots already, for more of them, or for others in place of the ``lost``."""

    lost: Moves = ()


class Leave(_Instruction, frozen=True):
    """Wait for a place no more."""


class Free(_Instruction, frozen=True):
    """Give all capacity back at once; nothing is written."""


class Release(_Instruction, frozen=True):
    """Remove the admission from the Workload, then give the capacity back."""

    wanted: tuple[Wanted, ...]


class Write(_Instruction, frozen=True):
    """Write conditions; one with a ``delay`` (seconds) waits that long and until there is nothing better to do."""

    wanted: tuple[Wanted, ...]
    delay: float = 0.0


class ShrinkLater(_Instruction, frozen=True):
    """Look again in a moment whether slots are to be given back."""


class Readmit(_Instruction, frozen=True):
    """Write the admission that is held again: somebody removed it or the whole Workload."""


class Shrink(_Instruction, frozen=True):
    """Write the smaller admission, then give the difference back."""

    slots: SlotMap


class Ungate(_Instruction, frozen=True):
    """Send this pod to this slice."""

    pod: Pod
    index: int


class Delete(_Instruction, frozen=True):
    """Delete a pod that stands where it has no slot; its owner makes another."""

    pod: Pod
    reason: Reason
    message: str


class Tell(_Instruction, frozen=True):
    """An event on the job, or on ``pod``; ``once`` names what is not to be said twice."""

    type: str
    reason: Reason
    action: str
    message: str
    pod: Pod | None = None
    once: str = ""


Instruction = (
    Create | Respec | Enter | Leave | Free | Release | Write | ShrinkLater | Readmit | Shrink | Ungate | Delete | Tell
)


@dataclass(frozen=True)
class Rules:
    """What holds for all jobs: our keys, each flavor's levels by its name, and which places are lost.

    ``avoided``: the nodes whose kubelet refused pods like those of the job, for as long as they are left out.
    """

    keys: Keys
    flavors: Mapping[str, tuple[str, ...]]
    lost: Callable[[SlotMap, Slot], bool] = lambda _slots, _slot: False  # whether no pod can start there (any more)
    avoided: Callable[[Record, float], Collection[str]] = lambda _record, _now: ()


def decide(record: Record, rules: Rules, now: float) -> list[Instruction]:  # noqa: PLR0911 - one line a state of the job
    """The instructions for one job, in the order in which they are to be carried out. Changes nothing."""
    owner = record.owner
    if owner.over:
        return _over(record)
    if owner.request is None or not held_back(record, rules.keys):
        return [Leave(), not_ours(record, rules.keys)]
    if record.known is None:
        return [Create()]
    if record.slots is None and record.known.slots is None and (why := trouble(record, rules)) is not None:
        return [Leave(), *_waits(record, *why, now)]
    if owner.suspended:
        return _suspended(record)
    if record.slots is None:
        return _place(record, now)
    if record.known.slots is None:
        return [Readmit()]
    return _admitted(record, rules, now)


def _over(record: Record) -> list[Instruction]:
    """The job needs nothing any more. Its Workload says so, unless it goes with the job."""
    done: list[Instruction] = [Leave(), Free()]
    if record.owner.over != "Deleted" and record.known is not None:
        message = f"Job {record.owner.name} is {record.owner.over.lower()}"
        done.append(Write((Wanted(names.FINISHED, True, record.owner.over, message),), delay=SOON))
    return done


def held_back(record: Record, keys: Keys) -> bool:
    """Whether our gate is on the job's pods: by its template, or by the webhook's on each pod."""
    return (
        record.owner.gated or record.slots is not None or any(is_gated(pod, keys.gate) for pod in record.pods.values())
    )


def not_ours(record: Record, keys: Keys) -> Tell:
    """Why a job that is ours to place by its request or by its gate is not by the other."""
    if record.owner.request is None:
        message = (
            f"the pod template carries the scheduling gate {keys.gate} but no topology request: its pods stay gated. "
            f"Make the job again with an annotation such as {keys.required[0]}, or without the gate"
        )
        return Tell("Warning", Reason.INVALID_REQUEST, "Gate", message, once="gate-without-request")
    message = (
        f"the job asks for a topology but its pod template lacks the scheduling gate {keys.gate}, so its pods are "
        "scheduled without it: it was made while Topogate's webhook was away. Make the job again"
    )
    return Tell("Warning", Reason.NOT_GATED, "Gate", message, once="request-without-gate")


def trouble(record: Record, rules: Rules) -> tuple[Reason, str] | None:
    """Why the job cannot be placed as it stands, whatever is free."""
    owner = record.owner
    if isinstance(owner.request, RequestError):
        return owner.request.reason, str(owner.request)
    if owner.queue:
        return Reason.QUEUES_NOT_SERVED, (
            f"the job names queue {owner.queue}, and queues are not served yet: it stays suspended. Remove the label "
            f"{rules.keys.queue_name} and make the job again to have it placed at once"
        )
    if owner.request is not None:
        try:
            check_level(owner.request, rules.flavors)
        except RequestError as error:
            return error.reason, str(error)
    if not owner.suspended and owner.pod_sets[0].count == 0:
        return Reason.PENDING, "the job asks for no pods now (parallelism 0)"
    return None


def _waits(record: Record, reason: Reason, message: str, now: float) -> list[Instruction]:
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


def _suspended(record: Record) -> list[Instruction]:
    message = f"Job {record.owner.name} is suspended; it is placed when it is resumed"
    wanted = [Wanted(names.QUOTA_RESERVED, False, Reason.SUSPENDED, message)]
    known = record.known
    wanted += (
        Wanted(type_, False, Reason.SUSPENDED, message)
        for type_ in (names.ADMITTED, names.PODS_READY)
        if known is not None and is_true(known.conditions, type_)
    )
    if record.slots is None and (known is None or known.slots is None):
        return [Leave(), Write(tuple(wanted), delay=SOON)]
    return [Leave(), Release(tuple(wanted))]


def _place(record: Record, now: float) -> list[Instruction]:
    if record.refused is None:
        return [Enter()]
    return [Enter(), *_waits(record, record.refused.reason, record.refused.message, now)]


def _admitted(record: Record, rules: Rules, now: float) -> list[Instruction]:
    slots, pod_set, keys = record.slots, record.owner.pod_sets[0], rules.keys
    if slots is None:
        raise AssertionError(f"{record.key}: no slots")
    counted = tally(
        slots,
        record.pods.values(),
        record.intents,
        gate=keys.gate,
        mark=keys.workload,
        workload=record.owner.workload,
        now=now,
    )
    taken = None if pod_set.ranks is None else counted.ranks
    placed = assign(counted.waiting, counted.free(slots), slots, pod_set.position, taken)
    lost = _lost(slots, counted, placed, rules)
    refused = _refused(slots, counted, placed, rules.avoided(record, now))
    moves = tuple(sorted({**refused, **{index: slots.slots[index].count for index in lost}}.items()))
    held_back = {index for index, _ in moves}
    return [
        *_replace(record, counted, now),
        *(Ungate(pod, index) for pod, index in counted.resend),
        *(Ungate(pod, index) for pod, index in placed if index not in held_back),
        *([Enter(moves)] if moves else _resize(record, slots, counted, now)),
        *_say(record, slots, lost, sorted(refused), unplaced=len(counted.waiting) - len(placed), now=now),
    ]


def _lost(slots: SlotMap, counted: Tally, placed: Sequence[tuple[Pod, int]], rules: Rules) -> tuple[int, ...]:
    """Slices that pods need and where none can start, because the node is gone, not ready or closed.

    A slice where a pod of the job still runs stays: the node may come back, and moving the slot would end that pod.
    """
    needed = {index for _, index in placed} | {index for index, count in enumerate(counted.unbound) if count}
    return tuple(
        index for index in sorted(needed) if not counted.bound[index] and rules.lost(slots, slots.slots[index])
    )


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


def _resize(record: Record, slots: SlotMap, counted: Tally, now: float) -> list[Instruction]:
    pod_set, known = record.owner.pod_sets[0], record.known
    done: list[Instruction] = []
    if known is not None and known.count != pod_set.full:
        done.append(Respec())
    if pod_set.count > slots.total:
        return [*done, Enter()]
    done.append(Leave())
    give = surplus(slots, counted, pod_set.count) if pod_set.count < slots.total else {}
    if not give:
        return done
    if record.shrink_at is None:
        return [*done, ShrinkLater()]
    if record.shrink_at > now:
        return done
    smaller = slots.without(give)
    if smaller.total:
        return [*done, Shrink(smaller)]
    message = "the job asks for no pods now (parallelism 0)"
    wanted = tuple(Wanted(type_, False, Reason.PENDING, message) for type_ in (names.QUOTA_RESERVED, names.ADMITTED))
    return [*done, Release(wanted)]


def _say(
    record: Record, slots: SlotMap, lost: Sequence[int], refused: Sequence[int], *, unplaced: int, now: float
) -> list[Instruction]:
    """PodsReady, and why pods are still gated where some are."""
    pod_set, known = record.owner.pod_sets[0], record.known
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

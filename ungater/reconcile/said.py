"""What is said of a workload that waits, or whose pods do, on its Workload and in events.

Plain functions of what was seen, like `ungater.reconcile.reconcile`.
"""

from collections.abc import Iterator, Sequence

from crds.names import listed_names
from engine.reasons import Reason
from ungater.model import conditions as names
from ungater.model.actions import Action, EmitEvent, WriteConditions
from ungater.model.conditions import WantedCondition
from ungater.model.pod_slots import is_gated
from ungater.model.workload_entry import WorkloadEntry
from ungater.reconcile import as_made, granted, let_go, missing_pods, pods_ready, volume_slots
from ungater.reconcile.context import ReconcileContext
from ungater.reconcile.granted import Barred
from ungater.reconcile.pod_set_ungating import PodSetUngating
from ungater.reconcile.pods_ready import write_ready

DETAILS_AFTER = 10.0  # seconds: the same reason in other words
RETELL_AFTER = 60.0  # seconds between two events that only differ in their details
_NAMES, _NAME = 3, 63  # of those that hold a workload back: how many are named, and with how many characters


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


def held_by(text: str, key: str) -> str:
    """Which controllers hold a workload back, and until when; ``text``: whatever annotation ``key`` says."""
    found = [name if len(name) <= _NAME else f"{name[:_NAME]}..." for name in listed_names(text)] or ['""']
    more = f" and {len(found) - _NAMES} more" if len(found) > _NAMES else ""
    told = "it removes its name" if len(found) == 1 else "each removes its name"
    where = f"metadata.annotations[{key}]"
    return f"admission is held back by {', '.join(found[:_NAMES])}{more}: {told} from {where} once it may start"


def _is_news(entry: WorkloadEntry, reason: str, message: str, now: float) -> bool:
    told = entry.last_event
    if told is None or told.reason != reason:
        return True
    return told.message != message and now - told.at >= RETELL_AFTER


def say_why(  # noqa: PLR0917
    entry: WorkloadEntry,
    made: as_made.Comparison,
    barred: Sequence[Barred],
    looks: Sequence[PodSetUngating],
    late: let_go.Late,
    rules: ReconcileContext,
    now: float,
) -> list[Action]:
    """Why pods stay gated or do not run, where something is the matter; else whether they are ready.

    One reason is reported at a time: two would replace each other in PodsReady at every look.
    """
    first = next(_reasons(entry, made, barred, looks, late, rules, now), None)
    if first is not None:
        return _warn(entry, *first, "Place", now)
    if not entry.slots_in:
        return pods_ready.ready(entry)
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
        return _warn(entry, reason, message, "Resize", now, tuple(sorted(filter(None, nodes))))
    unplaced = sum(look.unplaced for look in looks)
    if unplaced and owner.count <= total:
        message = f"{unplaced} gated pods wait for slots that other pods of it hold until they are gone"
        if unplaced == 1:
            message = "1 gated pod waits for a slot that another pod of it holds until that one is gone"
        return [write_ready(Reason.SLOT_OCCUPIED, message)]
    return pods_ready.said(entry, now)


def _reasons(  # noqa: PLR0917
    entry: WorkloadEntry,
    made: as_made.Comparison,
    barred: Sequence[Barred],
    looks: Sequence[PodSetUngating],
    late: let_go.Late,
    rules: ReconcileContext,
    now: float,
) -> Iterator[tuple[Reason, str]]:
    """(reason, message), the one to be said first."""
    if made.mixed:
        yield Reason.PODS_CHANGE, as_made.mixed_message(entry, made.mixed)
    if (found := granted.message_of(entry, barred)) is not None:
        yield found
    # Pods wait of a kind that the workload has no slots for.
    owner, keys = entry.job, rules.keys
    pods = entry.pods.values() if owner.kinds else ()
    others = [pod for pod in pods if is_gated(pod, keys.gate) and owner.pod_set_of(pod) is None]
    for first in sorted(others, key=lambda pod: pod.metadata.name)[:1]:
        kinds = ", ".join(f"{one.name} ({one.full})" for one in owner.pod_sets)
        message = (
            f"pod {first.metadata.name} is of kind {owner.role(first)}, and {owner.called} was placed with {kinds} "
            f"alone: annotation {keys.pod_group_total} must count the pods of all kinds"
        )
        yield Reason.PARTLY_PLACED, message
    if missing_pods.short(entry):
        yield Reason.PODS_MISSING, missing_pods.message(entry, rules.missing_pods)
    # Slots that are lost are told of first.
    if not any(look.lost for look in looks) and (
        found := volume_slots.message_of(entry, [look.volumes for look in looks])
    ):
        yield found
    if late:
        consequence = let_go.consequence(entry, late, moving=any(look.stuck for look in looks))
        yield Reason.SCHEDULER_REFUSED, f"{let_go.message_of(entry, late)}; {consequence}"
    elif unstarted := let_go.unstarted(entry, now):
        yield Reason.NOT_STARTED, let_go.message_of_unstarted(entry, unstarted)
    elif ignored := let_go.ignored(entry):
        yield Reason.NOT_SCHEDULED, let_go.message_of_ignored(ignored)


def _warn(  # noqa: PLR0917
    entry: WorkloadEntry, reason: Reason, message: str, action: str, now: float, lost: tuple[str, ...] = ()
) -> list[Action]:
    said: list[Action] = [write_ready(reason, message, lost=lost)]
    if _is_news(entry, reason, message, now):
        said.append(EmitEvent("Warning", reason, action, message))
    return said

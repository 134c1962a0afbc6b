"""What is said of a Workload that is admitted: its conditions, and the checks that are to answer."""

import msgspec

from engine.reasons import Reason
from kube.objects import condition
from ungater.model import conditions
from ungater.model.conditions import WantedCondition
from ungater.model.workload_entry import ObservedWorkload, WorkloadEntry


def admitted_as(
    observed: ObservedWorkload | None, message: str, checks: tuple[str, ...]
) -> tuple[WantedCondition, ...]:
    """What is said of one that holds quota and slots, once its ``checks`` are ready; none: at once."""
    wanted = [WantedCondition(conditions.QUOTA_RESERVED, True, Reason.QUOTA_RESERVED, message)]
    if checks:
        text = f"waits for admission check {', '.join(checks)}"
        wanted.append(WantedCondition(conditions.ADMITTED, False, Reason.PENDING, text))
    else:
        wanted.append(WantedCondition(conditions.ADMITTED, True, Reason.ADMITTED, message))
    for found in observed.conditions if observed is not None else ():
        if found.type in {conditions.EVICTED, conditions.PREEMPTED} and found.status == "True":
            text = f"it was admitted again; before: {found.message}"
            wanted.append(WantedCondition(found.type, False, Reason.QUOTA_RESERVED, text))
        # Else it would say for as long as it runs that it comes back later.
        elif found.type == conditions.REQUEUED and found.status == "False":
            wanted.append(
                WantedCondition(found.type, True, Reason.REQUEUED, f"it was admitted again; before: {found.message}")
            )
    return tuple(wanted)


def adopted_as(observed: ObservedWorkload | None) -> tuple[WantedCondition, ...]:
    """What is said of one that Kueue started and whose pods run on."""
    message = "it was taken over from Kueue, and its pods run on"
    return tuple(
        [
            msgspec.structs.replace(one, reason=Reason.ADOPTED) if one.type in conditions.HOLDING else one
            for one in admitted_as(observed, message, ())
        ]
    )


def admitted_still(observed: ObservedWorkload | None, message: str) -> tuple[WantedCondition, ...]:
    """What is said of one that holds less now; ``message``: where its pods are, "" where they have no slots."""
    conditions_of = observed.conditions if observed is not None and message else ()
    told = {conditions.QUOTA_RESERVED, conditions.ADMITTED}
    return tuple(
        [
            WantedCondition(found.type, True, found.reason, message)
            for found in conditions_of
            if found.type in told and found.status == "True"
        ]
    )


def is_news(entry: WorkloadEntry) -> bool:
    """Whether an event says that it was admitted.

    Of an owner always: people look there. Of pods without one, which kube-scheduler has an event for anyway, where
    they were told that they wait.
    """
    observed = entry.observed
    told = observed is not None and condition(observed.conditions, conditions.QUOTA_RESERVED) is not None
    return told or not entry.job.members


def not_ready(entry: WorkloadEntry) -> tuple[WantedCondition, ...]:
    """That its pods are not ready yet: if that becomes true again later, when it did says that they were once."""
    observed = entry.observed
    found = condition(observed.conditions, conditions.PODS_READY) if observed is not None else None
    if found is not None and found.status == "False":
        return ()
    text = "not all of its pods have been ready since it was admitted"
    return (WantedCondition(conditions.PODS_READY, False, Reason.WAIT_FOR_START, text),)


def pending(checks: tuple[str, ...], now: float) -> list[dict[str, str]]:
    """``status.admissionChecks`` of one whose checks nobody has answered yet. ``now``: seconds since the epoch."""
    at = conditions.timestamp(now)
    return [{"name": name, "state": "Pending", "lastTransitionTime": at, "message": ""} for name in checks]

"""Conditions of a Workload: what is wanted, merged into what is there; nothing is written where nothing changed."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from engine.reasons import Reason
from kube.objects import Condition, condition

QUOTA_RESERVED = "QuotaReserved"
ADMITTED = "Admitted"
PODS_READY = "PodsReady"
FINISHED = "Finished"
EVICTED = "Evicted"
PREEMPTED = "Preempted"
REQUEUED = "Requeued"
MOVE_REFUSED = "MoveRefused"  # what an administrator asked for begins no move, and why: apart from the last move
MOVING = "Moving"  # its pods go to other places, one move at a time; False: how the last move ended
HOLDING = (QUOTA_RESERVED, ADMITTED)  # of one that holds something
MAX_MESSAGE = 1024  # for people: the API server takes 32 kB
LAST_MOMENT = 253_402_300_799.0  # of the year 9999


class WantedCondition(msgspec.Struct, frozen=True, gc=False):
    """A condition as it should be; times are the writer's business."""

    type: str
    status: bool
    reason: Reason | str
    message: str


def nothing_held(reason: Reason, message: str) -> tuple[WantedCondition, ...]:
    """What is said of one that holds nothing any more, and why."""
    return tuple([WantedCondition(type_, False, reason, message) for type_ in HOLDING])


def merge(
    existing: Iterable[Condition] | None, wanted: Sequence[WantedCondition], *, generation: int, now: float
) -> tuple[Condition, ...] | None:
    """The whole list of conditions to write, or None where nothing would change.

    ``lastTransitionTime`` moves only where the status does; ``now`` is seconds since the epoch. A newer generation is
    written though nothing else changed: for `kubectl wait` (1.37) a condition of an older one is outdated. Conditions
    that are not in ``wanted`` stay as they are.
    """
    merged = {condition.type: condition for condition in existing or ()}
    before = dict(merged)
    for want in wanted:
        old, message = before.get(want.type), shorten(want.message)
        status, reason = "True" if want.status else "False", str(want.reason)
        kept = old is not None and old.status == status
        same = old is not None and kept and (old.reason, old.message) == (reason, message)
        # The old object itself, so that the list is unchanged, and nothing is written.
        if old is not None and same and old.observed_generation >= generation:
            merged[want.type] = old
            continue
        merged[want.type] = Condition(
            type=want.type,
            status=status,
            reason=reason,
            message=message,
            # Timeouts count from this moment: a new reason or message must not begin them again.
            last_transition_time=old.last_transition_time if old is not None and kept else timestamp(now),
            observed_generation=generation,
        )
    return tuple(merged.values()) if merged != before else None


def is_so(existing: Iterable[Condition] | None, wanted: Sequence[WantedCondition], *, generation: int = 0) -> bool:
    """Whether all of ``wanted`` is there already, said of this ``generation`` or a later one."""
    return merge(existing, wanted, generation=generation, now=0.0) is None


def outdated(existing: Iterable[Condition] | None, generation: int) -> tuple[WantedCondition, ...]:
    """What was said of an earlier generation, to be said again of this one."""
    return tuple(
        [
            WantedCondition(one.type, one.status == "True", one.reason, one.message)
            for one in existing or ()
            # A wanted condition is true or false: Unknown, which somebody else wrote, cannot be said again.
            if one.observed_generation < generation and one.status in {"True", "False"}
        ]
    )


def true_since(existing: tuple[Condition, ...] | None, type_: str) -> float | None:
    """Since when a condition is true, in seconds since the epoch; None where it is not."""
    found = condition(existing, type_)
    return moment(found.last_transition_time) if found is not None and found.status == "True" else None


def unready_at(existing: tuple[Condition, ...] | None, admitted_at: float | None) -> float | None:
    """Since when pods are not ready that were since the admission, for whatever reason is given now."""
    found = condition(existing, PODS_READY)
    if admitted_at is None or found is None or found.status != "False":
        return None
    at = moment(found.last_transition_time) or 0.0
    # In the second of the admission itself, False with any other reason may be what was written along with it.
    again = at >= admitted_at if found.reason == str(Reason.PODS_NOT_READY) else at > admitted_at
    return at if again else None


def read_run_times(existing: tuple[Condition, ...] | None, now: float) -> tuple[float | None, float | None]:
    """Since when a workload is admitted, and by when its pods were ready, in seconds since the epoch; None: not (yet).

    Where pods are ready no more, nothing says any longer since when they were: by when they ceased to be at the latest.
    """
    admitted_at = true_since(existing, ADMITTED)
    ready_at = true_since(existing, PODS_READY)
    if ready_at is None:
        ready_at = unready_at(existing, admitted_at)
    # The clock of whoever led before may be ahead of this one.
    return (
        None if admitted_at is None else min(admitted_at, now),
        None if ready_at is None else min(ready_at, now),
    )


def plain(conditions: Iterable[Condition]) -> list[dict[str, Any]]:
    """Conditions as the API takes them, every required field present."""
    return [
        {
            "type": condition.type,
            "status": condition.status,
            "reason": condition.reason,
            "message": condition.message,
            "lastTransitionTime": condition.last_transition_time,
            "observedGeneration": condition.observed_generation,
        }
        for condition in conditions
    ]


def timestamp(now: float) -> str:
    """RFC 3339 text, whole seconds, of seconds since the epoch; of those after the year 9999, its end."""
    # `fromtimestamp` raises ValueError for later years.
    return datetime.fromtimestamp(min(now, LAST_MOMENT), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def exact_timestamp(now: float) -> str:
    """As `timestamp`, to the microsecond."""
    return datetime.fromtimestamp(min(now, LAST_MOMENT), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def moment(stamp: str | None) -> float | None:
    """Seconds since the epoch of RFC 3339 text; None where there is none, or in a year 0 that Python does not know."""
    try:
        # RFC 3339 allows t and z in lower case.
        return datetime.fromisoformat(stamp.upper()).timestamp() if stamp else None
    except ValueError:
        return None


def shorten(message: str, limit: int = MAX_MESSAGE) -> str:
    """At most ``limit`` characters."""
    return message if len(message) <= limit else message[: limit - 1] + "…"

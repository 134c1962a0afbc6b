"""What is changed in a ClusterQueue of Kueue while it moves, and put back afterwards. Pure: merge patches."""

from collections.abc import Iterable
from typing import Final

from cli.migrate.rows import Json

HOLD: Final = "Hold"
FREE: Final = "None"
_LIMITS: Final = ("borrowingLimit", "lendingLimit")


def is_held(spec: Json) -> bool:
    """Whether the queue admits nothing."""
    return stop_policy(spec) != FREE


def stop_policy(spec: Json) -> str:
    """How the queue is stopped; the default where it does not say."""
    return str(spec.get("stopPolicy") or FREE)


def is_alone(spec: Json) -> bool:
    """Whether the queue is outside of any cohort, so that nothing of it is lent."""
    return not spec.get("cohortName")


def without_limits(groups: Iterable[Json] | None) -> list[Json]:
    """The resource groups of a queue that is outside of a cohort: the API refuses limits of borrowing there."""
    found = []
    for group in groups or ():
        flavors = []
        for flavor in group.get("flavors") or ():
            amounts = [{key: value for key, value in one.items() if key not in _LIMITS} for one in flavor["resources"]]
            flavors.append({**flavor, "resources": amounts})
        found.append({**group, "flavors": flavors})
    return found


def leave_cohort(spec: Json) -> Json:
    """The same spec, outside of any cohort."""
    # The order of fields stays: people compare the object with what they wrote.
    kept = {key: value for key, value in spec.items() if key != "cohortName"}
    return {**kept, "resourceGroups": without_limits(spec.get("resourceGroups"))} if "resourceGroups" in spec else kept


def is_in_place(spec: Json, before: Json) -> bool:
    """Whether the queue is in its cohort again, with its quota and limits of before."""
    names = ("cohortName", "resourceGroups")
    return all((spec.get(name) or None) == (before.get(name) or None) for name in names)


def patch_to_hold() -> Json:
    """Has the queue admit nothing more; what is admitted runs on."""
    return {"spec": {"stopPolicy": HOLD}}


def patch_to_leave(spec: Json) -> Json:
    """Takes the queue out of its cohort: what moved is not lent twice."""
    return {"spec": {"cohortName": None, "resourceGroups": leave_cohort(spec).get("resourceGroups")}}


def patch_to_return(before: Json, stopped: str = HOLD) -> Json:
    """Puts the queue back into its cohort; it stays on hold unless it is to be stopped otherwise."""
    names = ("cohortName", "resourceGroups")
    return {"spec": {**{name: before.get(name) for name in names}, "stopPolicy": stopped}}


def patch_to_release(before: Json) -> Json:
    """Stops the queue as it was stopped before, if it was."""
    return {"spec": {"stopPolicy": stop_policy(before)}}

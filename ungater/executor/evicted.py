"""What the conditions of a Workload that is on its way out tell."""

from engine.reasons import Reason
from kube.objects import condition
from ungater.model import conditions
from ungater.model.workload_entry import ObservedWorkload, WorkloadEntry


def is_victim(entry: WorkloadEntry) -> bool:
    """Whether it is on its way out for somebody else."""
    found = condition(entry.observed.conditions, conditions.EVICTED) if entry.observed is not None else None
    return found is not None and found.reason == str(Reason.PREEMPTED)


def is_reclaimed(entry: WorkloadEntry) -> bool:
    """Whether it is on its way out because another queue takes back its nominal quota."""
    found = condition(entry.observed.conditions, conditions.PREEMPTED) if entry.observed is not None else None
    return is_victim(entry) and found is not None and found.reason == str(Reason.RECLAIMED)


def admitted_for(observed: ObservedWorkload, now: float) -> int:
    """Seconds since it was admitted; 0 where it is not."""
    since = conditions.true_since(observed.conditions, conditions.ADMITTED)
    return max(0, int(now - since)) if since is not None else 0

"""One who is nominated: whether what was kept for it, and is free of its victims now, is still what it was."""

from engine.cluster.state import ClusterState
from queueing.model import Workload
from queueing.queues.entry import AssumedAdmission
from queueing.queues.queues import Queues


def obstacle(state: ClusterState, queues: Queues, key: str) -> str | None:
    """Why one whose victims are gone cannot have what was kept for it: "" where it can, None where it has to wait."""
    entry = queues.entries[key]
    grant = entry.grant
    if grant is None:
        return None
    if _overfull(state, queues, entry.workload, grant):
        return "a node of the room that was made for it is lost, or too small now"
    if _quota_suffices(queues, key, grant):
        return ""
    if queues.quotas.sharing(grant.queue, queues.evicting):
        return None  # it does once others have gone too, who were on their way out when it was planned
    return "the quota that was made free for it was lowered, or is used by others now"


def _quota_suffices(queues: Queues, key: str, grant: AssumedAdmission) -> bool:
    """Whether what a nominated workload is to get fits beside what others hold, but for what their victims hold too."""
    quotas = queues.quotas
    depth = quotas.begin()
    quotas.free_all([key, *queues.quotas.sharing(grant.queue, queues.promised())])
    fits = queues.limits(queues.entries[key]).fits(grant.amounts)
    quotas.rollback(depth)
    return fits


def _overfull(state: ClusterState, queues: Queues, workload: Workload, grant: AssumedAdmission) -> bool:
    """Whether a node is too small for what is to go there. What others wait for, their victims hold as well.

    Pods that no queue admitted may have come since, perhaps in place of those that were evicted: kube-scheduler lets
    ours preempt them. Evicting each of them here would go on for ever.
    """
    names = {name for part in grant.assignments for piece in part.slices for name, _ in piece.nodes}
    if any(name not in state.nodes for name in names):
        return True
    with queues.counted_once(state):
        short = {name for name in names if _is_short(state, name)}
        for entry in queues.outside.values() if short else ():
            pod = entry.outside
            if pod is not None and pod.node in short and pod.priority < workload.outranks:
                state.remove_pod(pod.key)
        return any(_is_short(state, name) for name in short)


def _is_short(state: ClusterState, name: str) -> bool:
    """Whether a node is to give more than it has."""
    return min(state.free(name).values(), default=0) < 0

"""What people are told when an action does not go as it was meant to. Plain functions, for events and conditions."""

from crds.constants import Keys
from kube.objects import Pod, controller_of


def not_created(error: object) -> str:
    """Its Workload is refused for good."""
    return f"its Workload cannot be created: {error}"


def unknown_class(keys: Keys, name: str) -> str:
    """Its label names no priority class."""
    return (
        f"label {keys.priority_class}: {name} is neither a WorkloadPriorityClass (of topogate.dev or kueue.x-k8s.io) "
        "nor the PriorityClass of the pods: the priority of the pods counts"
    )


def not_changed(action: str, error: object) -> str:
    """The API server refuses a patch of the job."""
    return f"the job could not be changed ({action.lower()}): {error}"


def no_place_for_checks(checks: str, labels: str, why: str) -> str:
    """Admission checks narrow its nodes to some that have no room."""
    return f"admission check {checks} wants nodes with {labels}, where it has no place: {why}"


def spared(why: str) -> str:
    """It stays after all."""
    return f"it was to be evicted, and stays: {why}"


def preemption_given_up(victim: str, why: str) -> str:
    """A budget refused for too long."""
    return f"the preemption of {victim} came to nothing, and another is looked for: {why}"


def quota_taken_back(grace: int) -> str:
    """Its pod takes long to stop, and holds what another queue takes back."""
    return f"its owner takes back the quota that it borrowed, so it has {grace} seconds to stop (reclaimGraceSeconds)"


def overridden(budget: str) -> str:
    """Why a budget does not count: what follows why a pod is evicted."""
    return f"; {budget}: that does not count for what was borrowed (reclaimOverridesBudgets)"


def no_owner_that_asks(pod: Pod, gate: str) -> str:
    """Why a gated pod of an owner that is not served stays gated."""
    owner = controller_of(pod.metadata)
    what = f"its owner, {owner.kind} {owner.name}," if owner else "its owner"
    return (
        f"the pod stays behind the scheduling gate {gate}: {what} is no Job that asks for a topology. Create it again "
        "without the topology annotation"
    )


def left_out(seconds: float, words: str) -> str:
    """A node starts no pods."""
    return (
        "pods of several workloads were bound to it and did not run, and none started since: no pod goes there for "
        f"{seconds:.0f} s; the last one: {words}"
    )


def avoided(node: str, seconds: float) -> str:
    """What follows that a kubelet refused a pod."""
    return f"; no pod like it goes to {node} for {seconds:.0f} s unless something changes there"


def zones_unreported(reason: str, resources: str) -> str:
    """A kubelet refused a pod for zones that its node does not tell."""
    return (
        f"its kubelet refused a pod for want of NUMA zones ({reason}), and nothing that is published of the node tells "
        f"the zones of {resources}: run the agent there, or mend what its exporter or device plugin leaves out"
    )


def usable_again(source: str) -> str:
    """What a node publishes was wrong, and is right."""
    return f"what the node publishes about its NUMA zones can be used again: {source or 'nothing'}"

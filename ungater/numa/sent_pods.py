"""What is asked about pods that were let go, whatever they are waited for."""

from kube.objects import Pod
from ungater.model.workload_entry import WorkloadEntry


def group_of(pod: Pod) -> str:
    """``namespace/name`` of its native PodGroup; "" for none."""
    return f"{pod.metadata.namespace}/{pod.spec.pod_group}" if pod.spec.pod_group else ""


def is_let_go(entry: WorkloadEntry, uid: str) -> bool:
    """Whether a pod is on its way, or on its node: its patch is sent, or seen to have arrived."""
    pod, expectation = entry.pods.get(uid), entry.expectations.get(uid)
    if pod is None or pod.metadata.deletion_timestamp is not None:
        return False
    return not expectation.gone if expectation is not None else not pod.spec.scheduling_gates

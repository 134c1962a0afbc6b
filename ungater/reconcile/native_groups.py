"""Pods that have their slots, and that kube-scheduler holds back for others of their PodGroup (scheduling.k8s.io).

Rules
- kube-scheduler takes the pods of a group that have no node yet together, and none of them while one is gated. Pods
  that run stay as they are. So pods that wait for room to grow hold up none but those that have to be made again.
- For these there is a time. After it the workload is evicted as a whole, and asks for all its pods at once: then all of
  them go, or none, as their group wants it. What it waits for then is told like any other reason.
- Nothing less helps. A gated pod that is deleted is made again, gated; and kube-scheduler looks at a group that it
  holds only when a gate is removed, or after five minutes.
"""

from crds.constants import Keys
from engine.reasons import Reason
from kube.objects import Pod
from ungater.model import conditions as names
from ungater.model.actions import Evict, Instruction, ReconcileContext, RequeueAfter
from ungater.model.conditions import WantedCondition
from ungater.model.pod_slots import finished, is_gated
from ungater.model.workload_entry import WorkloadEntry

PATIENCE = 300.0  # seconds, where the settings have no time for pods that lost their place


def note(entry: WorkloadEntry, keys: Keys, now: float) -> None:
    """See whether pods of a workload are held back; to be called before each look. ``now``: on the monotonic clock."""
    entry.hold_up(now if entry.admission is not None and _held(entry, keys) is not None else None)


def decide(entry: WorkloadEntry, rules: ReconcileContext, now: float) -> list[Instruction]:
    """What is to be done about pods that are held back; [] where none are."""
    if entry.held_up_since is None or (found := _held(entry, rules.keys)) is None:
        return []
    patience = rules.life.replacement or PATIENCE
    if (left := entry.held_up_since + patience - now) > 0:
        return [RequeueAfter(left)]
    pod, other = found
    text = (
        f"kube-scheduler held back pod {pod.metadata.name}, which has its place, for {patience:g} seconds, as pod "
        f"{other.metadata.name} of PodGroup {pod.spec.pod_group} waits for one: all pods are placed anew together"
    )
    wanted = (WantedCondition(names.EVICTED, True, Reason.POD_GROUP_HELD, text),)
    return [Evict(wanted, Reason.POD_GROUP_HELD, text)]


def _held(entry: WorkloadEntry, keys: Keys) -> tuple[Pod, Pod] | None:
    """A pod that was let go and has no node, and one of its group that is gated; the first by name."""
    going: dict[str, Pod] = {}
    waiting: dict[str, Pod] = {}
    for pod in entry.pods.values():
        group = pod.spec.pod_group
        if not group or pod.spec.node_name or finished(pod) or pod.metadata.deletion_timestamp is not None:
            continue
        if not is_gated(pod, keys.gate):
            where = going
        elif entry.on_its_way(pod.metadata.uid) is None:
            where = waiting
        else:
            continue
        known = where.setdefault(group, pod)
        if pod.metadata.name < known.metadata.name:
            where[group] = pod
    both = sorted(going.keys() & waiting.keys())
    return (going[both[0]], waiting[both[0]]) if both else None

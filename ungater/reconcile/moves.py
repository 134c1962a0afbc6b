"""A workload that is moved: its admission names the new places already, and its pods go there.

Rules
- That it is moved is stored with the new places (condition Moving), so a restart goes on with it.
- Pods that run are evicted, so that PodDisruptionBudgets hold; what their owner makes anew goes to the new places.
- Pods of Jobs go all at once, as none of them gets on without the others. Those of a StatefulSet or ReplicaSet go one
  at a time, each when the successor of the last one is ready: a service goes on meanwhile, with a budget or without.
- Whose ranks belong together, in slices or in one domain, goes as a whole (`as_one`), and all at once. So does a group
  of a LeaderWorkerSet, all of which is made anew when one of its pods goes, and who says ``disruptionMode: all``.
- A pod that is still where it was keeps one of the new places from its successor, as any that is to go does
  (`ungater.reconcile.ungating`): no more pods run than are admitted.
- A ReplicaSet makes a successor as soon as a pod begins to end, a StatefulSet once it is gone; how many pods they are
  to have nobody reads. So one that ends does not count beside its successor, and the successor counts before it is made
  (`one_for_one`): else it would be growth, which gets a place of its own, or the new place would be given back as one
  that nobody needs.
- It ends when nobody is anywhere else, and all its pods are on their nodes and ready. Who is elsewhere yet ten minutes
  after it began, with successors that are not ready or a long time to end, stays (`GiveUpMove`).
- One whose Workload is written again is moved too, where pods of it are in no slot: they may have been on their way.
"""

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from engine.reasons import Reason
from kube.objects import Pod, condition, controller_of, is_true
from ungater.jobs.leaderworkerset import KIND as LEADER_SETS
from ungater.model import conditions as names
from ungater.model.actions import (
    Action,
    EvictMoved,
    GiveUpMove,
    WriteConditions,
)
from ungater.model.conditions import WantedCondition
from ungater.model.job_view import SERVICES, JobView, is_job
from ungater.model.pod_slots import Tally, finished
from ungater.model.workload_entry import WorkloadEntry

AWAITED = 60.0  # seconds for which a pod that went is taken to have a successor that is still to come


def under_way(entry: WorkloadEntry) -> bool:
    """Whether it is moved now."""
    return entry.observed is not None and is_true(entry.observed.conditions, names.MOVING)


def makes_way(entry: WorkloadEntry) -> bool:
    """Whether it is moved, and pods that are to go are still there: their successors wait for these."""
    return under_way(entry) and any(map(_ends, entry.pods.values()))


def steps(entry: WorkloadEntry, counted: Mapping[str, Tally]) -> Iterator[Action]:
    """Evict who is to go, or give it up in time; nobody is left and all are up: say that it is over.

    ``counted``: by pod set.
    """
    pods = [pod for count in counted.values() for pod in count.moved if pod.spec.node_name]
    pods.sort(key=lambda pod: pod.metadata.name)
    ending = tuple([pod for name, count in counted.items() for pod in _ending(entry, name, count)])
    # Where more pods are in a slice than it has slots, some are still to go.
    leaving = any(
        count.ending
        or any(used > slot.count for slot, used in zip(entry.slots_in[name].slots, count.used, strict=True))
        for name, count in counted.items()
    )
    coming = any(count.waiting or sum(count.unbound) for count in counted.values())
    if pods:
        one = not as_one(entry) and not all(is_job(controller_of(pod.metadata)) for pod in pods)
        if one and not _all_ready(entry):  # the last one's successor is not there yet
            yield GiveUpMove(tuple(pods), ending, "the pods that replace those before them are not ready")
        else:
            why = f"{entry.job.called} is moved: {_moving_reason(entry)}"
            yield EvictMoved(tuple([(pod, why) for pod in pods]), one, ending)
    elif ending:
        yield GiveUpMove((), ending, "they take long to stop")
    elif not leaving and not coming and _all_ready(entry):
        text = f"it was moved: {_moving_reason(entry)}"
        yield WriteConditions((WantedCondition(names.MOVING, False, Reason.MOVED, text),))


def _ending(entry: WorkloadEntry, name: str, counted: Tally) -> list[Pod]:
    """Pods of a pod set that end, and are in no place that it has, or one too many in theirs."""
    slots, found = entry.slots_in[name], list(counted.ending)
    surplus = [used - slot.count for slot, used in zip(slots.slots, counted.used, strict=True)]
    for pod in entry.pods.values() if any(count > 0 for count in surplus) else ():
        index = slots.of_selector(pod.spec.node_selector) if entry.pod_set_of(pod) == name and _ends(pod) else None
        if index is not None and surplus[index] > 0:
            surplus[index] -= 1
            found.append(pod)
    return found


def movable(entry: WorkloadEntry) -> bool:
    """Whether its owner makes pods anew one for one, and it is known how many come.

    Of a service that does not tell how many pods it has only one may be away at a time, so it does not go as a whole.
    """
    return not entry.job.open_ended or (_of_service(entry.job) and not as_one(entry))


def as_one(entry: WorkloadEntry) -> bool:
    """Whether all of its pods go when one of them is moved."""
    # Pods keep together in slices, or with those of other pod sets.
    together = any(
        one.shared or (one.request is not None and (one.request.slices or one.request.group))
        for one in entry.job.pod_sets
    )
    return entry.job.whole or entry.job.kind == LEADER_SETS or together


def _of_service(job: JobView) -> bool:
    """Whether a ReplicaSet or StatefulSet makes its pods: one for each that goes."""
    return (job.kind, job.api_version) in SERVICES


def one_for_one(entry: WorkloadEntry, own: JobView, mark: str, now: float) -> JobView:
    """The job ``own`` with as many pods as it is to have while it is moved, where nobody tells how many.

    A pod that ends is not one of them, but its successor is, also before it is there: of pods that go one at a time,
    one is to come. If it does not in time, there were to be fewer pods. ``mark``: what our ungating patch writes.
    ``now``: as of `ungater.reconcile.missing_pods.note`.
    """
    if own.over or not own.open_ended or not _of_service(own) or not under_way(entry):
        return own
    # A ReplicaSet or StatefulSet has one template, so its view has one pod set.
    (pod_set,) = own.pod_sets
    ending = [pod for pod in entry.pods.values() if _ends(pod)]
    ends = sum((pod.metadata.annotations or {}).get(mark, own.workload) == own.workload for pod in ending)
    count = max(0, pod_set.count - ends)
    if count < entry.admitted(pod_set.name):
        seen, there = (entry.came or {}).get(pod_set.name), entry.count_existing(pod_set)
        # The count is unchanged for this long: the owner was scaled down, and no successor comes.
        late = seen is not None and seen.there == there and now - seen.changed_at >= AWAITED
        count += bool(ending) or not late
    return replace(own, pod_sets=(replace(pod_set, count=count, full=count),))


def moving_conditions(entry: WorkloadEntry, mark: str) -> tuple[WantedCondition, ...]:
    """What is said of a move where its Workload is written again: budgets hold for pods that are elsewhere."""
    if not movable(entry) or not astray(entry, mark):
        return ()
    text = "some of its pods are in places that it had before its Workload was written again"
    return (WantedCondition(names.MOVING, True, Reason.SLOT_MOVED, text),)


def astray(entry: WorkloadEntry, mark: str) -> bool:
    """Whether pods of it run in no slot that it has, or too many in one. ``mark``: what our ungating patch writes."""
    left: dict[tuple[str, int], int] = {}
    for pod in entry.pods.values():
        ours, slots = (pod.metadata.annotations or {}).get(mark) == entry.job.workload, entry.slots_of(pod)
        if not ours or slots is None or not pod.spec.node_name or finished(pod):
            continue
        index = slots.of_selector(pod.spec.node_selector)
        if index is None:
            return True
        at = (entry.pod_set_of(pod), index)
        left[at] = left.get(at, slots.slots[index].count) - 1
    return any(count < 0 for count in left.values())


def ended(entry: WorkloadEntry) -> list[Action]:
    """One that holds nothing is not moved any more."""
    if not under_way(entry):
        return []
    text = f"it gave back what it held while it was moved: {_moving_reason(entry)}"
    return [WriteConditions((WantedCondition(names.MOVING, False, Reason.EVICTED, text),))]


def _all_ready(entry: WorkloadEntry) -> bool:
    """Whether as many pods as it is to have are ready, none of them ends, and none is barred: it would be the next."""
    # Growth that has no place yet is not awaited: it may never get one, and the move would never end.
    wanted = sum(min(entry.wanted(one), entry.admitted(one.name)) for one in entry.job.pod_sets)
    return not entry.barred and not any(map(_ends, entry.pods.values())) and entry.job.ready >= wanted


def _ends(pod: Pod) -> bool:
    """Whether a pod is on its way out, and still there."""
    return pod.metadata.deletion_timestamp is not None and not finished(pod)


def _moving_reason(entry: WorkloadEntry) -> str:
    found = condition(entry.observed.conditions, names.MOVING) if entry.observed is not None else None
    return found.message if found is not None else ""

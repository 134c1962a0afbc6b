"""Slots of a workload that changes while it runs: more for more pods, and what fewer or smaller ones leave given back.

Plain functions of what was seen, like `ungater.reconcile.reconcile`.
"""

from collections.abc import Mapping

from engine.model import Amounts
from engine.reasons import Reason
from ungater.model import conditions as names
from ungater.model.actions import (
    Action,
    Dequeue,
    Enqueue,
    EvictSome,
    Release,
    RequeueAfter,
    Shrink,
    ShrinkLater,
    UpdateSpec,
)
from ungater.model.job_view import PodSetView
from ungater.model.pod_slots import PodSetSlots, Tally, surplus
from ungater.model.workload_entry import WorkloadEntry
from ungater.reconcile import granted
from ungater.reconcile.context import ReconcileContext

SHRINK_AFTER = 1.0  # seconds: pods of a job finish together, and one write is enough for them


def _spec_update(entry: WorkloadEntry) -> list[Action]:
    """The Workload's counts follow the job's, except where the job has fewer pods because only those were admitted."""
    observed, full = entry.observed, tuple([pod_set.full for pod_set in entry.job.pod_sets])
    if observed is None or observed.counts == full or len(observed.counts) != len(full):
        return []
    if observed.least and len(full) == 1 and observed.least <= full[0] < observed.counts[0]:
        return []
    return [UpdateSpec()]


def resize(
    entry: WorkloadEntry,
    counted: Mapping[str, Tally],
    asked: Mapping[str, Amounts],
    now: float,
    rules: ReconcileContext,
) -> list[Action]:
    """More pods, or more for each, are asked for; what fewer of them leave is given back."""
    outsiders = rules.outsiders(entry)
    wish = Enqueue(asked=asked) if entry.growing or asked else Dequeue()
    evict = [EvictSome(outsiders)] if outsiders else []
    return [*_spec_update(entry), wish, *evict, *give_back(entry, counted, now, rules)]


def give_back(entry: WorkloadEntry, counted: Mapping[str, Tally], now: float, rules: ReconcileContext) -> list[Action]:
    """What fewer pods leave, one pod set after the other."""
    wrong = entry.job.wrong is not None
    for pod_set in entry.job.pod_sets:
        # Of these two it is known all the same: pods that did not come in time, and pods of another queue.
        if wrong and not (pod_set.name in entry.late or pod_set.name in entry.barred):
            continue  # how many are to come is not known
        wanted = max(entry.wanted(pod_set), entry.count_existing(pod_set)) if wrong else entry.wanted(pod_set)
        if pod_set.name in counted:
            slots, kept = entry.slots_in[pod_set.name], counted[pod_set.name]
            if wanted >= slots.total:
                continue
            give = surplus(slots, kept, wanted, entry.layers_of(pod_set))
            # No slot that a pod holds is in `give`, so the smaller admission is true the moment it is stored.
            smaller = slots.without_slots(give)
            if give:
                return _shrink(entry, pod_set, smaller, smaller.total, now)
        else:
            # Without slots, quota is all that is held: as long as a pod exists it is paid for, wanted or not.
            keep = max(wanted, entry.count_existing(pod_set))
            if keep < entry.admitted(pod_set.name):
                return _shrink(entry, pod_set, None, keep, now)
    for pod_set in entry.job.pod_sets if not wrong else ():
        if (less := granted.less(entry, pod_set, rules)) is not None:
            held, count = entry.slots_in.get(pod_set.name), entry.admitted(pod_set.name)
            # The counts stay: only what is granted to each pod gets smaller.
            return _shrink(entry, pod_set, held, count, now, less)
    return []


def _shrink(  # noqa: PLR0917  (what is to be left of whom, and the clock)
    entry: WorkloadEntry,
    pod_set: PodSetView,
    slots: PodSetSlots | None,
    count: int,
    now: float,
    asks: Amounts | None = None,
) -> list[Action]:
    if entry.shrink_at is None:
        return [ShrinkLater()]
    if entry.shrink_at > now:
        return [RequeueAfter(entry.shrink_at - now)]  # another look came first
    others = sum(entry.admitted(other.name) for other in entry.job.pod_sets if other is not pod_set)
    # Something is left to be admitted. Where nothing is, the admission ends as a whole below.
    if count or others or entry.growing:
        return [Shrink(slots, count, pod_set.name, asks)]
    if entry.job.queue and entry.job.full:
        return []  # all its pods have finished: it ends soon. Or it keeps its quota for the pods to come
    message = "the job asks for no pods now (parallelism 0)"
    return [Release(names.nothing_held(Reason.PENDING, message))]

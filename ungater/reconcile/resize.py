"""Slots of a workload that changes while it runs: more for more pods, and what fewer or smaller ones leave given back.

Plain functions of what was seen, like `ungater.reconcile.reconcile`.
"""

from collections.abc import Mapping

from engine.model import Amounts
from engine.reasons import Reason
from ungater.model import conditions as names
from ungater.model.actions import Dequeue, Enqueue, Instruction, Release, RequeueAfter, Shrink, ShrinkLater, UpdateSpec
from ungater.model.conditions import WantedCondition
from ungater.model.job_view import PodSetView
from ungater.model.pod_slots import PodSetSlots, Tally, finished, surplus
from ungater.model.workload_entry import WorkloadEntry
from ungater.reconcile import granted

SHRINK_AFTER = 1.0  # seconds: pods of a job finish together, and one write is enough for them


def _respec(record: WorkloadEntry) -> list[Instruction]:
    """The Workload's counts follow the job's, except where the job has fewer pods because only those were admitted."""
    known, full = record.known, tuple([pod_set.full for pod_set in record.owner.pod_sets])
    if known is None or known.counts == full or len(known.counts) != len(full):
        return []
    if known.least and len(full) == 1 and known.least <= full[0] < known.counts[0]:
        return []
    return [UpdateSpec()]


def resize(
    record: WorkloadEntry, counted: Mapping[str, Tally], asked: Mapping[str, Amounts], now: float
) -> list[Instruction]:
    """More pods, or more for each, are asked for; what fewer of them leave is given back."""
    wish = Enqueue(asked=asked) if record.growing or asked else Dequeue()
    return [*_respec(record), wish, *give_back(record, counted, now)]


def give_back(record: WorkloadEntry, counted: Mapping[str, Tally], now: float) -> list[Instruction]:
    """What fewer pods leave, one pod set after the other."""
    wrong = record.owner.wrong is not None
    for pod_set in record.owner.pod_sets:
        if wrong and pod_set.name not in record.late:
            continue  # how many are to come is not known
        if pod_set.name in counted:
            slots, kept = record.slots_in[pod_set.name], counted[pod_set.name]
            if (wanted := record.wanted(pod_set)) >= slots.total:
                continue
            give = surplus(slots, kept, wanted, record.layers_of(pod_set))
            smaller = slots.without(give)
            if give:
                return _shrink(record, pod_set, smaller, smaller.total, now)
        else:
            keep = max(record.wanted(pod_set), sum(not finished(pod) for pod in record.pods_of(pod_set)))
            if keep < record.admitted(pod_set.name):
                return _shrink(record, pod_set, None, keep, now)
    for pod_set in record.owner.pod_sets if not wrong else ():
        if (less := granted.less(record, pod_set)) is not None:
            held, count = record.slots_in.get(pod_set.name), record.admitted(pod_set.name)
            return _shrink(record, pod_set, held, count, now, less)
    return []


def _shrink(  # noqa: PLR0917  (what is to be left of whom, and the clock)
    record: WorkloadEntry,
    pod_set: PodSetView,
    slots: PodSetSlots | None,
    count: int,
    now: float,
    asks: Amounts | None = None,
) -> list[Instruction]:
    if record.shrink_at is None:
        return [ShrinkLater()]
    if record.shrink_at > now:
        return [RequeueAfter(record.shrink_at - now)]  # another look came first
    others = sum(record.admitted(other.name) for other in record.owner.pod_sets if other is not pod_set)
    if count or others or record.growing:
        return [Shrink(slots, count, pod_set.name, asks)]
    if record.owner.queue:
        return []  # it ends soon, or keeps its quota for the pods to come
    message = "the job asks for no pods now (parallelism 0)"
    return [Release(tuple(WantedCondition(type_, False, Reason.PENDING, message) for type_ in names.HOLDING))]

"""Slots of a workload that changes while it runs: more for more pods, and what fewer or smaller ones leave given back.

Plain functions of what was seen, like `ungater.reconcile.reconcile`.
"""

from collections.abc import Iterator, Mapping

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
from ungater.model.pod_slots import Tally, surplus
from ungater.model.workload_entry import WorkloadEntry
from ungater.reconcile import granted
from ungater.reconcile.context import ReconcileContext

SHRINK_AFTER = 1.0  # seconds: pods of a job finish together, and one write is enough for them


def resize(
    entry: WorkloadEntry,
    counted: Mapping[str, Tally],
    asked: Mapping[str, Amounts],
    now: float,
    rules: ReconcileContext,
) -> list[Action]:
    """More pods, or more for each, are asked for; what fewer of them leave is given back."""
    observed, full = entry.observed, tuple([pod_set.full for pod_set in entry.job.pod_sets])
    counts = observed.counts if observed is not None else full
    # The Workload's counts follow the job's, except where the job has fewer pods because only those were admitted.
    fewer = observed is not None and observed.least and len(full) == 1 and observed.least <= full[0] < counts[0]
    update = [UpdateSpec()] if counts != full and len(counts) == len(full) and not fewer else []
    outsiders = rules.outsiders(entry)
    wish = Enqueue(asked=asked) if entry.growing or asked else Dequeue()
    evict = [EvictSome(outsiders)] if outsiders else []
    return [*update, wish, *evict, *give_back(entry, counted, now, rules)]


def give_back(entry: WorkloadEntry, counted: Mapping[str, Tally], now: float, rules: ReconcileContext) -> list[Action]:
    """What fewer pods leave, one pod set after the other."""
    first = next(_smaller(entry, counted, rules), None)
    done: list[Action] = []
    if first is not None:
        others = sum(entry.admitted(other.name) for other in entry.job.pod_sets if other.name != first.pod_set)
        if entry.shrink_at is None:
            done.append(ShrinkLater())
        elif entry.shrink_at > now:
            done.append(RequeueAfter(entry.shrink_at - now))  # another look came first
        # Something is left to be admitted. Where nothing is, the admission ends as a whole below.
        elif first.count or others or entry.growing:
            done.append(first)
        # A queued job that still asks for pods keeps what it has: it ends soon, or more pods come.
        # Every other job gives all of it back.
        elif not (entry.job.queue and entry.job.full):
            message = "the job asks for no pods now (parallelism 0)"
            done.append(Release(names.nothing_held(Reason.PENDING, message)))
    return done


def _smaller(entry: WorkloadEntry, counted: Mapping[str, Tally], rules: ReconcileContext) -> Iterator[Shrink]:
    """What pod sets are to keep that need less than they have."""
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
                yield Shrink(smaller, smaller.total, pod_set.name)
        else:
            # Without slots, quota is all that is held: as long as a pod exists it is paid for, wanted or not.
            keep = max(wanted, entry.count_existing(pod_set))
            if keep < entry.admitted(pod_set.name):
                yield Shrink(None, keep, pod_set.name)
    for pod_set in entry.job.pod_sets if not wrong else ():
        if (less := granted.less(entry, pod_set, rules)) is not None:
            # The counts stay: only what is granted to each pod gets smaller.
            yield Shrink(entry.slots_in.get(pod_set.name), entry.admitted(pod_set.name), pod_set.name, less)

"""Which of the options of one look is the best, and which one ends the search: flavor fungibility.

Rules, as in Kueue 0.19.2 (pkg/scheduler/flavorassigner/flavorassigner.go: ``shouldTryNextFlavor``, ``isPreferred``)
- An option in which the workload fits without borrowing ends the search. So does one in which it fits and borrows with
  ``whenCanBorrow: MayStopSearch``, one in which it preempts with ``whenCanPreempt: MayStopSearch``, and one in which it
  does both only with both. What was tried before it does not count then, and later options are not looked at.
- Of all that were tried the best counts. BorrowingOverPreemption, the default: one in which it fits before one in which
  it preempts in other queues alone, and this before one with victims in its own queue; of equals, where it has to
  borrow the least high up. PreemptionOverBorrowing: the other way round. Of equals the first.
- An option in which it can have nobody evicted counts as none.
"""

from enum import IntEnum
from typing import Final, NamedTuple

from engine.reasons import Reason
from queueing.model import ClusterQueue, Reclaim, Rules
from queueing.preemption.plan import Plan

# Plans that one look compares: each is a search for victims, and nobody bounds the flavors but the API.
MOST_PLANS: Final = 4


class OptionCost(IntEnum):
    """What an option costs others, the least first."""

    NOTHING = 0  # it fits
    OTHERS = 1  # victims of other queues alone (Kueue's reclaim)
    OWN = 2  # victims of its own queue too (Kueue's preempt)


class OptionPrice(NamedTuple):
    """Of an option that is possible: what it costs others, and how high up the queue borrows then."""

    cost: OptionCost
    level: int

    def rank_in(self, queue: ClusterQueue) -> tuple[int, int]:
        """What is compared, less first."""
        return (self.level, self.cost) if queue.preempt_before_borrow else (self.cost, self.level)

    def ends_search(self, queue: ClusterQueue) -> bool:
        """Whether no later option is tried."""
        # As in Kueue: where an option preempts and borrows, one TryNextFlavor of the two is enough to go on.
        if self.cost is not OptionCost.NOTHING and not queue.preempt_first:
            return False
        return queue.borrow_first or not self.level


def cost_of(plan: Plan) -> OptionCost:
    """What a plan costs others."""
    # Pods that no queue admitted are of nobody's queue: they count as others.
    return OptionCost.OWN if any(one.reason is Reason.IN_CLUSTER_QUEUE for one in plan.victims) else OptionCost.OTHERS


def is_unbeatable(price: OptionPrice, queue: ClusterQueue, rules: Rules) -> bool:
    """Whether no plan for another option can be better than one of this price."""
    reclaims = rules.pods or bool(queue.cohort and queue.preemption.reclaim is not Reclaim.NEVER)
    return price.level == 0 and price.cost <= (OptionCost.OTHERS if reclaims else OptionCost.OWN)

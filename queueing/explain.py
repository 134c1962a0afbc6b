"""What quota a workload wants, and how much of it is there: one entry an option, in the order in which they are tried.

Written to be read by people; not a hot path. Whether there is room is for `engine.placement.explain` to say.
"""

import msgspec

from engine.cluster.state import ClusterState
from engine.results import Refusal
from queueing.model import Workload
from queueing.queues.flavor_assigner import FlavorAssignment, options
from queueing.queues.queues import Queues
from queueing.queues.quota import Limits


class QuotaFit(msgspec.Struct, frozen=True):
    """One quota. ``left``: what may be taken now, borrowed quota included; ``most``: what may ever be used at once."""

    flavor: str
    resource: str
    wanted: int
    nominal: int
    used: int
    left: int
    most: int

    @property
    def lacking(self) -> int:
        """How much is missing now."""
        return max(0, self.wanted - self.left)

    @property
    def never(self) -> bool:
        """Whether even an idle system has not as much for this queue."""
        return self.wanted > self.most


class OptionFit(msgspec.Struct, frozen=True):
    """One combination of flavors. ``borrows``: what is wanted goes beyond the queue's nominal quota.

    ``level``: how high up it would borrow (`Quotas.borrowing_level`); ``lender``: the cohort at that height, "" at 0.
    """

    flavors: tuple[str, ...]
    quotas: tuple[QuotaFit, ...]
    borrows: bool
    level: int = 0
    lender: str = ""

    @property
    def lacking(self) -> bool:
        """Whether quota is missing."""
        return any(fit.lacking for fit in self.quotas)


def explain(state: ClusterState, queues: Queues, queue: str, workload: Workload) -> tuple[OptionFit, ...] | Refusal:
    """The options of a workload in a cluster queue; a Refusal where no flavor of it can be one.

    What the workload itself holds counts as used, so ask for who waits. Raises KeyError for a queue that is not there.
    """
    found = options(state, queues.quotas.queues[queue], queues.config.plain, workload)
    if not found.found and found.refusal is not None:
        return found.refusal
    limits = Limits(queues.quotas, queue, queues.quotas.is_protected(queue, workload))
    return tuple(_option(limits, option) for option in found.found)


def _option(limits: Limits, option: FlavorAssignment) -> OptionFit:
    quotas, queue = limits.quotas, limits.queue
    fits = tuple(
        QuotaFit(
            *key,
            wanted=wanted,
            nominal=quotas.nominal(queue, key),
            used=quotas.used(queue, key),
            left=limits.amount_left(key),
            most=limits.most(key),
        )
        for key, wanted in option.asked.items()
    )
    flavors = dict.fromkeys([*(flavor for flavor, _ in option.amounts), *option.rooms])
    level, tree = quotas.borrowing_level(queue, option.amounts), quotas.tree
    # Each cohort on the way up is higher than the one before it.
    lender = next((one.name for one in tree.queues[queue].path if level and tree.height_of(one) == level), "")
    return OptionFit(tuple(flavors), fits, quotas.borrows(queue, option.amounts), level, lender)

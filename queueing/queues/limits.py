"""What one workload may take of the quotas of a cluster queue, as one who may borrow or not."""

import msgspec

from queueing.model import FlavorResource, Quantities
from queueing.queues.quota import Missing, Quotas


class Limits(msgspec.Struct, frozen=True):
    """See the module. ``spared``: it is nobody's victim, and so may not borrow."""

    quotas: Quotas
    queue: str
    spared: bool

    def fits_limits(self, amounts: Quantities) -> bool:
        """Whether it may take these amounts now."""
        return self.quotas.fits_quota(self.queue, amounts, non_preemptible=self.spared)

    def ever(self, amounts: Quantities) -> bool:
        """Whether it may take these amounts when nobody uses anything."""
        return self.quotas.ever(self.queue, amounts, non_preemptible=self.spared)

    def missing_quota(self, amounts: Quantities) -> tuple[Missing, ...]:
        """Each quota that does not suffice."""
        return tuple(self.quotas.missing_quota(self.queue, amounts, non_preemptible=self.spared))

    def amount_left(self, key: FlavorResource) -> int:
        """How much it may take now."""
        return self.quotas.available(self.queue, key, non_preemptible=self.spared)

    def most(self, key: FlavorResource) -> int:
        """How much it may take when nobody uses anything."""
        return self.quotas.limit(self.queue, key, non_preemptible=self.spared)

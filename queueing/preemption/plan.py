"""Plans: whom to evict, and where the workload goes then."""

from functools import cached_property

import msgspec

from engine.cluster.assignment import Assignment
from engine.preemption.model import ChoiceRules, Key
from engine.reasons import Reason
from engine.reservation_key import HolderKey, Role, role_of
from queueing.preemption.fragmentation import NOTHING, Fragmentation
from queueing.preemption.landings import Landings
from queueing.queues.eviction_units import Path


class PlannedVictim(msgspec.Struct, frozen=True, gc=False):
    """A workload or pod that is to make room, and by which rule.

    ``domains``: it loses the slices that it has in these, each of them a victim of its own in sums and numbers; () it
    goes whole. ``cohort``: whose quota is taken back, where it is not that of the preemptor's queue. ``level``: by what
    victims are compared, its priority in most queues (`Candidates.level_of`).
    """

    key: HolderKey
    uid: str
    priority: int
    reason: Reason
    domains: tuple[Path, ...] = ()
    cohort: str = ""
    level: int = 0

    @property
    def is_pod(self) -> bool:
        """Whether it is a pod that no queue admitted."""
        return role_of(self.key) is Role.POD

    @property
    def units(self) -> int:
        """How many victims it counts as."""
        return len(self.domains) or 1


class Plan(msgspec.Struct, frozen=True, dict=True):
    """Evict these; then the workload goes there. ``landings``: of its pods inside their nodes, where that counts.

    ``level``: how high up its queue borrows for it then (`queueing.queues.quota.Quotas.borrowing_level`).
    """

    victims: tuple[PlannedVictim, ...]
    assignments: tuple[Assignment, ...]
    leftover: Fragmentation = NOTHING
    landings: Landings | None = None
    level: int = 0

    def key(self, rules: ChoiceRules) -> Key:
        """What is compared, less first."""
        return (*ranked(rules, *self.cost, self.landings), *self.leftover)

    @cached_property
    def cost(self) -> tuple[int, int, int]:
        """(highest level of a victim, sum of levels, victims): less is better."""
        total = sum(max(victim.level, 0) * victim.units for victim in self.victims)
        return max(victim.level for victim in self.victims), total, sum(victim.units for victim in self.victims)


def ranked(rules: ChoiceRules, highest: int, total: int, size: int, landings: Landings | None = None) -> Key:
    """What is compared of victims and of where the preemptor lands, less first.

    A negative priority counts as 0 in the sum. Where the number comes first, S weighs the sum and the landing against
    each other (Equation 1); the sum alone breaks its ties.
    """
    if not rules.by_count:
        return (highest, total, size) if landings is None else (highest, total, size, *landings.wide)
    # S is better the higher it is, and all else the lower: so it is negated.
    return (size, total) if landings is None else (size, -landings.score(rules, total), total)

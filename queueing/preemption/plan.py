"""Plans: whom to evict, and where the workload goes then."""

from dataclasses import dataclass

from engine.cluster.assignment import Assignment
from engine.preemption.model import Rules
from engine.reasons import Reason
from queueing.preemption.fragmentation import NOTHING, Fragmentation
from queueing.queues.eviction_units import Path, is_pod


@dataclass(frozen=True)
class Victim:
    """A workload or pod that is to make room, and by which rule.

    ``domains``: it loses the slices that it has in these, each of them a victim of its own in sums and numbers; () it
    goes whole.
    """

    key: str
    uid: str
    priority: int
    reason: Reason
    domains: tuple[Path, ...] = ()

    @property
    def is_pod(self) -> bool:
        """Whether it is a pod that no queue admitted; ``key`` is then ``namespace/name`` behind a prefix."""
        return is_pod(self.key)

    @property
    def units(self) -> int:
        """How many victims it counts as."""
        return len(self.domains) or 1


@dataclass(frozen=True)
class Plan:
    """Evict these; then the workload goes there."""

    victims: tuple[Victim, ...]
    assignments: tuple[Assignment, ...]
    leftover: Fragmentation = NOTHING

    def key(self, rules: Rules) -> tuple[int, ...]:
        """What is compared, less first."""
        return (*ranked(rules, *self.cost), *self.leftover)

    @property
    def cost(self) -> tuple[int, int, int]:
        """(highest priority of a victim, sum of priorities, victims): less is better."""
        total = sum(max(victim.priority, 0) * victim.units for victim in self.victims)
        return max(victim.priority for victim in self.victims), total, sum(victim.units for victim in self.victims)


def ranked(rules: Rules, highest: int, total: int, size: int) -> tuple[int, ...]:
    """What is compared of victims, less first. A negative priority counts as 0 in the sum."""
    return (size, total) if rules.by_count else (highest, total, size)

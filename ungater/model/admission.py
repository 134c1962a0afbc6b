"""What a workload was given, and what it gets once others are gone: as both are stored in its Workload."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.model import PODS, Amounts
from engine.preemption.model import Strategy
from ungater.model.job_view import MAIN
from ungater.model.pod_slots import PodSetSlots


@dataclass(frozen=True)
class PodSetAssignment:
    """One pod set of an admission. ``flavors``: by resource; ``usage``: what all its pods take; ``slots``: where."""

    name: str
    count: int
    flavors: Mapping[str, str]
    usage: Mapping[str, int]
    slots: PodSetSlots | None = None

    @property
    def asks(self) -> Amounts | None:
        """What one of its pods may take of a queue's quota; None where that is not known."""
        if not self.usage or not self.count:
            return None
        return {name: amount // self.count for name, amount in self.usage.items() if name != PODS}


@dataclass(frozen=True)
class Admission:
    """What a workload was given, as it is stored. ``queue``: the cluster queue, "" for a workload without a queue."""

    queue: str
    parts: tuple[PodSetAssignment, ...]

    def part(self, name: str = MAIN) -> PodSetAssignment | None:
        """One pod set of it."""
        return next((part for part in self.parts if part.name == name), None)

    @property
    def slots(self) -> PodSetSlots | None:
        """The slots of the first pod set that has some."""
        return next((part.slots for part in self.parts if part.slots is not None), None)

    @property
    def count(self) -> int:
        """Pods in all."""
        return sum(part.count for part in self.parts)

    def same(self, other: "Admission | None") -> bool:
        """Whether both give the same quota and the same slots."""
        return (
            other is not None
            and self.queue == other.queue
            and len(self.parts) == len(other.parts)
            and all(_alike(mine, theirs) for mine, theirs in zip(self.parts, other.parts, strict=True))
        )


def _alike(mine: PodSetAssignment, theirs: PodSetAssignment) -> bool:
    same_slots = theirs.slots is None if mine.slots is None else mine.slots.same(theirs.slots)
    return same_slots and (mine.name, mine.count, dict(mine.flavors), dict(mine.usage)) == (
        theirs.name,
        theirs.count,
        dict(theirs.flavors),
        dict(theirs.usage),
    )


@dataclass(frozen=True)
class Nomination:
    """A preemption under way, as it is stored. ``victims``: uid of each by its key, as queueing names it.

    ``domains``: by victim those in which it loses its slices, where it does not go whole.
    """

    admission: Admission
    victims: Mapping[str, str]
    priorities: Mapping[str, int] = field(default_factory=dict)
    domains: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    strategy: str = Strategy.LEAST_PRIORITY

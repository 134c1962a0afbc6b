"""What a workload was given, and what it gets once others are gone: as both are stored in its Workload."""

from collections.abc import Mapping
from itertools import takewhile
from typing import Final

import msgspec

from engine.cluster.levels import domain_in_words, word_of
from engine.model import PODS, Amounts
from engine.preemption.model import Strategy
from engine.reservation_key import HolderKey
from ungater.model.job_view import MAIN
from ungater.model.pod_slots import PodSetSlots

MOST_NAMED: Final = 3  # domains of a place, and
LONGEST_NAMED: Final = 40  # characters of their names; else they are counted


class PodSetAssignment(msgspec.Struct, frozen=True):
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
        # Usage is the amount of one pod times the count (`queueing.model.usage`).
        # `pods` is one for each, and no request names it.
        return {name: amount // self.count for name, amount in self.usage.items() if name != PODS}


class Admission(msgspec.Struct, frozen=True):
    """What a workload was given, as it is stored. ``queue``: the cluster queue, "" for a workload without a queue."""

    queue: str
    parts: tuple[PodSetAssignment, ...]

    def pod_set_named(self, name: str = MAIN) -> PodSetAssignment | None:
        """One pod set of it."""
        for part in self.parts:
            if part.name == name:
                return part
        return None

    @property
    def slots(self) -> PodSetSlots | None:
        """The slots of the first pod set that has some."""
        return next((part.slots for part in self.parts if part.slots is not None), None)

    @property
    def count(self) -> int:
        """Pods in all."""
        return sum(part.count for part in self.parts)

    @property
    def place(self) -> str:
        """Where its pods go, for a column: ``b1/r3/n2``, ``b1/r3: n1, n2``, ``b1: 5 racks``; "" without slots."""
        slots = [part.slots for part in self.parts if part.slots is not None and part.slots.slots]
        if len({one.levels for one in slots}) != 1:
            return ", ".join(dict.fromkeys(one.flavor for one in slots if one.flavor))
        levels, every = slots[0].levels, [slot.values for one in slots for slot in one.slots]
        # What the first and the last one in order have in common, all of them have.
        shared = [a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(min(every), max(every), strict=True))]
        if len(shared) == len(levels):
            return domain_in_words(shared)
        below = list(dict.fromkeys(values[len(shared)] for values in every))
        named = ", ".join(below)
        if len(below) > MOST_NAMED or len(named) > LONGEST_NAMED:
            named = f"{len(below)} {word_of(levels[len(shared)])}s"
        return ": ".join(filter(None, (domain_in_words(shared), named)))

    def same_grant(self, other: "Admission | None") -> bool:
        """Whether both give the same quota and the same slots."""
        return (
            other is not None
            and self.queue == other.queue
            and len(self.parts) == len(other.parts)
            and all(_alike(mine, theirs) for mine, theirs in zip(self.parts, other.parts, strict=True))
        )


def _alike(mine: PodSetAssignment, theirs: PodSetAssignment) -> bool:
    same_slots = theirs.slots is None if mine.slots is None else mine.slots.same_slots(theirs.slots)
    return same_slots and (mine.name, mine.count, dict(mine.flavors), dict(mine.usage)) == (
        theirs.name,
        theirs.count,
        dict(theirs.flavors),
        dict(theirs.usage),
    )


class Nomination(msgspec.Struct, frozen=True):
    """A preemption under way, as it is stored. ``victims``: uid of each by its key, as queueing names it.

    ``domains``: by victim those in which it loses its slices, where it does not go whole.
    """

    admission: Admission
    victims: Mapping[HolderKey, str]
    priorities: Mapping[HolderKey, int] = msgspec.field(default_factory=dict)
    domains: Mapping[HolderKey, tuple[tuple[str, ...], ...]] = msgspec.field(default_factory=dict)
    strategy: str = Strategy.LEAST_PRIORITY

"""One workload in the queues: where it stands, and what it was given. Plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from engine.cluster.assignment import Assignment
from engine.model import Amounts
from engine.results import Refusal
from queueing.model import Order, OutsidePod, Quantities, Workload
from queueing.queues.pending import EquivalenceClass


class Phase(StrEnum):
    """Where a workload stands in queueing."""

    STUCK = "Stuck"  # no queue takes it as things are configured
    LATER = "Later"  # put off until a time
    WAITING = "Waiting"
    NOMINATED = "Nominated"  # holds what it will get; its victims are not gone yet
    ADMITTED = "Admitted"


_GROWTH: Final = "growth "  # no legal start of a workload's key
OUTSIDE: Final = ""  # as a queue: that of the pods that no queue admitted
HOLDING = (Phase.NOMINATED, Phase.ADMITTED)


@dataclass(frozen=True)
class AssumedAdmission:
    """What a workload is given: ``counts`` of pods by pod set, a flavor for each resource, and where the pods go.

    ``asks``: by pod set, what one of its pods may take; () of one of which that is not known.

    This is what ``status.admission`` stores, and all that is needed to take a workload in again after a restart.
    """

    queue: str
    counts: Mapping[str, int]
    flavors: Mapping[str, Mapping[str, str]]
    amounts: Quantities
    assignments: tuple[Assignment, ...]
    asks: Mapping[str, Amounts] = field(default_factory=dict)


@dataclass(eq=False)
class Entry:
    """One workload. ``since``: when it began to wait; ``until``: put off to that time."""

    workload: Workload
    order: Order
    shape: bytes
    since: float
    phase: Phase = Phase.STUCK
    queue: str = ""
    until: float = 0.0
    group: EquivalenceClass | None = None
    grant: AssumedAdmission | None = None
    held_at: int = 0  # the priority it was listed with when it got its grant
    victims: set[str] = field(default_factory=set)
    refusal: Refusal | None = None
    pods: set[str] = field(default_factory=set)
    drained: bool = False
    outside: OutsidePod | None = None  # it is no workload but this pod
    errors: int = 0  # that it led to since it last changed, which nobody had foreseen


def growth_of(key: str) -> str:
    """Under which name a workload holds what more of its pods are to get once their victims are gone."""
    return _GROWTH + key


def is_growth(key: str) -> bool:
    """Whether what is held under this name is such growth."""
    return key.startswith(_GROWTH)


def base_of(key: str) -> str:
    """The workload itself."""
    return key.removeprefix(_GROWTH)

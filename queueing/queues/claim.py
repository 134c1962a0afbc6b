"""What is kept for one workload that has waited long. The rules are those of `queueing.cycle.backfill`."""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from engine.reservation_key import ReservationKey
from queueing.model import FlavorResource, Order
from queueing.queues.entry import Entry
from queueing.queues.flavor_assigner import FlavorAssignment


class BackfillLine(NamedTuple):
    """Those who wait for room to be kept in a flavor; with a ``pool``, they wait for its quota alone.

    ``part``: their LocalQueue, in a cluster queue where these take turns by use.
    """

    flavor: str
    pool: str = ""
    part: str = ""


class BackfillReservation(msgspec.Struct, eq=False):
    """What is kept for one workload.

    ``domains``: by flavor the path that is claimed (() the whole flavor); ``nodes``: as many of its nodes as would do,
    which are closed; ``whole``: flavors where all of the domain is, since those did not do. ``soft``: those behind it
    that fit nowhere else may take of the room. ``proved``: by flavor, the values of the first place that it would get
    were all gone that queues admitted, as of ``proved_at`` seconds of waiting. ``bars``: the quota that it lacks, with
    the cohort whose limit stops it there, below which it is kept from others ("": in all of its tree). ``ranked``: its
    place in the order when it was looked at last.
    """

    entry: Entry
    option: FlavorAssignment
    domains: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    nodes: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    whole: set[str] = msgspec.field(default_factory=set)
    failed: set[tuple[str, tuple[str, ...]]] = msgspec.field(default_factory=set)
    bars: dict[FlavorResource, str] = msgspec.field(default_factory=dict)
    seen: tuple[int, ...] = ()
    ranked: Order | None = None
    soft: bool = True
    lacks: bool = False  # quota, so that room is of no use to it
    hopeless: bool = False  # no domain would take it, whatever ends
    proved: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    proved_at: float = 0.0
    waited: float = 0.0

    def see(self, rooms: tuple[int, ...]) -> None:
        """It was looked at when so much had become free in the flavors that it wants."""
        self.seen = rooms

    def fell(self) -> bool:
        """Whether it comes later in the order than at the look before, which this one is from now on."""
        before, self.ranked = self.ranked, self.order
        return before is not None and before < self.order

    def age(self, waited: float, hold: float) -> None:
        """It has waited for so long, and from ``hold`` seconds on its room is closed to all behind it."""
        self.waited, self.soft = waited, waited < hold

    def prove(self, places: Mapping[str, tuple[str, ...]]) -> None:
        """It would fit at these places, by flavor, were all gone that queues admitted."""
        self.proved, self.proved_at = dict(places), self.waited

    def lack(self, quota: dict[FlavorResource, str]) -> None:
        """It is looked at anew, and this quota is lacking, or none."""
        self.hopeless, self.lacks = False, bool(quota)
        self.bars |= quota

    def mark_hopeless(self) -> None:
        """No domain would take it, whatever ends."""
        self.hopeless = True

    @property
    def refused(self) -> bool:
        """Whether it was looked at with what is kept for it, in vain."""
        return self.entry.group is not None and self.entry.group.inadmissible

    @property
    def key(self) -> str:
        """The workload."""
        return self.entry.workload.base

    @property
    def order(self) -> Order:
        """Its place in the order."""
        return self.entry.order

    @property
    def holder(self) -> ReservationKey:
        """Under which key the engine holds the room."""
        return ReservationKey.for_backfill(self.key)

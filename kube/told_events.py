"""Events (events.k8s.io/v1) as they are read: what a kubelet or a controller says of an object, and nobody else knows.

Nothing watches them: events are most of what changes in a cluster. They are asked for when somebody wants to know.
"""

from datetime import datetime

import msgspec

REPORTERS = "topogate.dev/"  # each component of Topogate by its name


class Regarding(msgspec.Struct, frozen=True, gc=False):
    """What an event is about."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    namespace: str = ""


class EventSeries(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """How often it came."""

    count: int = 1
    last_observed_time: datetime | None = None


class Stamp(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """When the event was stored."""

    creation_timestamp: datetime | None = None


class ToldEvent(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """An event of events.k8s.io/v1, as far as it is shown. Those of the older API have the deprecated fields."""

    metadata: Stamp = Stamp()
    regarding: Regarding = Regarding()
    type: str = ""
    reason: str = ""
    note: str = ""
    reporting_controller: str = ""
    event_time: datetime | None = None
    series: EventSeries | None = None
    deprecated_count: int | None = None
    deprecated_last_timestamp: datetime | None = None

    @property
    def ours(self) -> bool:
        """Whether Topogate says so, as far as it can be told: others may write events in its name."""
        return self.reporting_controller.startswith(REPORTERS)

    @property
    def last(self) -> float:
        """When it came last, in seconds since the epoch; 0 where it does not say."""
        # In this order: a series is told of by its last occurrence, an event of the older API by a deprecated field.
        times = (
            self.series.last_observed_time if self.series is not None else None,
            *(self.deprecated_last_timestamp, self.event_time, self.metadata.creation_timestamp),
        )
        return next((one.timestamp() for one in times if one is not None), 0.0)

    @property
    def times(self) -> int:
        """How often it came."""
        return max(1, self.series.count if self.series is not None else self.deprecated_count or 1)

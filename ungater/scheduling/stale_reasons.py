"""Who is to hear again why it waits, because the reason that it was told may hold no more.

Rules
- The text of a refusal takes long to make, so while its reason stays it is made once in some seconds
  (`queueing.cycle.cycle.DETAILS`). One whose text was left as it was is looked at again when that time is over: perhaps
  no event comes that would have it looked at.
- Namespaces have turns, and at most `EXPLAINED` refusals are explained in a cycle: somebody may have thousands.
- Who is behind others hears who they are and why they wait. When that changes all of a queue hear it, once in `BEHIND`
  seconds at most: they may be thousands, and each costs a write.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from engine.results import Refusal
from queueing.queues.queues import Queues
from queueing.queues.rotation import Rotation, of_namespace

BEHIND: Final = 300.0  # seconds
EXPLAINED: Final = 16  # each takes up to some milliseconds


class StaleReasons(msgspec.Struct):
    """Times are seconds since the epoch."""

    queues: Queues
    _heads: dict[str, float] = msgspec.field(default_factory=dict)  # workloads that are to be looked at, and when
    # By workload: the refusal to explain, and when to do so.
    _refusals: dict[str, tuple[float, Refusal]] = msgspec.field(default_factory=dict)
    _turns: Rotation[str] = msgspec.field(default_factory=Rotation)  # of those that may be explained
    # By ClusterQueue: when to update the reasons of the workloads behind its first.
    _lines: dict[str, float] = msgspec.field(default_factory=dict)
    _told: dict[str, float] = msgspec.field(default_factory=dict)  # by ClusterQueue: when they were told last

    def look_again(self, key: str, at: float) -> None:
        """One was refused, and its text left as it was."""
        self._heads.setdefault(key, at)

    def explain_again(self, key: str, refusal: Refusal, at: float) -> None:
        """A refusal was not explained, because one of that reason had just been."""
        self._refusals[key] = at, refusal

    def line_changed(self, key: str, now: float) -> None:
        """The first of those who wait in a ClusterQueue waits for something else, or waits no more."""
        entry = self.queues.entries.get(key)
        if entry is not None and entry.queue in self.queues.pending.lines:
            self._lines.setdefault(entry.queue, max(now, self._told.get(entry.queue, now) + BEHIND))

    def next_report_time(self) -> float | None:
        """When somebody is to hear something."""
        times = (at for table in (self._heads, self._lines) for at in table.values())
        return min((*times, *(at for at, _ in self._refusals.values())), default=None)

    def have_looked_again(self, now: float) -> None:
        """Those whose time has come are looked at by the next cycle, or told by it."""
        for key in [key for key, at in self._heads.items() if at <= now]:
            del self._heads[key]
            self.queues.look_again(key)
        # Names of queues that are gone would stay here for ever.
        for table in (self._lines, self._told):
            for name in table.keys() - self.queues.quotas.queues.keys():
                del table[name]
        for name in [name for name, at in self._lines.items() if at <= now]:
            del self._lines[name]
            self._told[name] = now
            for key in self.queues.waiting(name):
                self.queues.renew_message(key)

    def to_explain(self, now: float) -> Iterator[tuple[str, Refusal]]:
        """The refusals that are explained now."""
        self._turns.set_members([key for key, (at, _) in self._refusals.items() if at <= now], of_namespace)
        for key in self._turns.take_members(EXPLAINED):
            # Taken out only when its turn comes: the others wait for the next cycle.
            yield key, self._refusals.pop(key)[1]

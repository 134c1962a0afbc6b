"""Moves of workloads that run: how many there may be, of whom, and how soon again. Pure; times are arguments.

Rules
- A move makes pods of one workload go, and be placed again elsewhere. It never makes another's pods go.
- All moves count against one limit an hour, whoever wants them. One that begins counts, however it ends.
- Half of them, rounded up, are kept for those that an administrator asks for: no tenant can use up the others' (where
  one an hour is allowed, it is whose comes first).
- Who was moved is left alone for a time, which doubles with each move of it: nobody is moved to and fro.
- Of several the one goes first whose namespace was moved least in the last hour.
- Who is nobody's victim is not moved. Nor is who is on its way out or in, or wants more pods or others.
- What is known after a restart is what Workloads tell of their last move (`MoveLog.saw`).
"""

from typing import Final

import msgspec

from queueing.queues.entry import Phase, growth_of
from queueing.queues.queues import Queues

HOUR: Final = 3600.0
MOST_DOUBLINGS: Final = 4


class MoveRules(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """``per_hour``: moves in all; 0: none. ``rest``: seconds until one is moved after it was admitted, or moved.

    ``together``: who prefers a level and is spread is moved into one domain when there is room. ``misaligned``: pods
    that did not get the alignment that they ask for are moved to other nodes.
    """

    per_hour: int = 0
    rest: float = HOUR
    together: bool = True
    misaligned: bool = True


NO_MOVES: Final = MoveRules()


class _Moved(msgspec.Struct, frozen=True, gc=False):
    at: float
    times: int = 1


class _Begun(msgspec.Struct, frozen=True, gc=False):
    at: float
    key: str
    asked: bool = False  # by an administrator; after a restart nobody knows


class MoveLog:
    """The moves that began a short time ago. See the module's rules; keys are those of Workloads."""

    def __init__(self, rules: MoveRules) -> None:
        self.rules = rules
        self._begun: list[_Begun] = []  # in the last hour
        self._last: dict[str, _Moved] = {}

    def begin(self, key: str, now: float, *, asked: bool = False) -> None:
        """A workload is moved from now on; ``asked``: by an administrator."""
        self._forget(now)
        before = self._last.get(key)
        self._last[key] = _Moved(now, before.times + 1 if before is not None else 1)
        self._begun.append(_Begun(now, key, asked))

    def saw(self, key: str, at: float, now: float) -> None:
        """Its Workload says that it was moved then: that counts where nothing is known of it, after a restart."""
        if key in self._last or now - at > self._until_forgotten(1):
            return
        self._last[key] = _Moved(at)
        if now - at < HOUR:
            self._begun.append(_Begun(at, key))

    def left(self, now: float, *, asked: bool = False) -> int:
        """How many moves may begin now; ``asked``: of those that an administrator asks for."""
        lately = [one for one in self._begun if now - one.at < HOUR]
        left = max(0, self.rules.per_hour - len(lately))
        own = min(self.rules.per_hour, max(1, self.rules.per_hour // 2))
        return left if asked else min(left, max(0, own - sum(not one.asked for one in lately)))

    def resting(self, key: str, now: float) -> float:
        """For how many seconds it is left alone yet."""
        found = self._last.get(key)
        return max(0.0, found.at + self._rest(found.times) - now) if found is not None else 0.0

    def recent(self, namespace: str, now: float) -> int:
        """How many moves of workloads of a namespace began in the last hour."""
        return sum(now - one.at < HOUR and one.key.partition("/")[0] == namespace for one in self._begun)

    def _rest(self, times: int) -> float:
        return self.rules.rest * 2.0 ** min(times - 1, MOST_DOUBLINGS)

    def _until_forgotten(self, times: int) -> float:
        return max(HOUR, 2.0 * self._rest(times))

    def _forget(self, now: float) -> None:
        self._begun = [one for one in self._begun if now - one.at < HOUR]
        old = [key for key, moved in self._last.items() if now - moved.at > self._until_forgotten(moved.times)]
        for key in old:
            del self._last[key]


def hindered(queues: Queues, key: str) -> str:
    """Why one that is admitted is not moved now, as queueing has it; "" where it may be."""
    entry = queues.entries.get(key)
    hindrances = (
        (entry is None or entry.phase is not Phase.ADMITTED or entry.grant is None, "it is not admitted"),
        (key in queues.holders.non_preemptible, "it is non-preemptible"),
        (key in queues.evicting or key in queues.losing, "it is on its way out, or loses slices"),
        (key in queues.growing or growth_of(key) in queues.entries, "it wants more pods"),
        (key in queues.fresh or key in queues.storing, "its admission is being stored"),
        (key in queues.spared, "a PodDisruptionBudget refused to let its pods go a short time ago"),
    )
    return next((why for hinders, why in hindrances if hinders), "")

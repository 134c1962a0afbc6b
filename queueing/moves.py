"""Moves of workloads that run: how many there may be, of whom, and how soon again. Pure; times are arguments.

Rules
- A move makes pods of one workload go, and be placed again elsewhere. It never makes another's pods go.
- All moves count against one limit an hour, whoever wants them. One that begins counts, however it ends.
- Half of them, rounded up, are kept for those that an administrator asks for: no tenant can use up the others' (where
  one an hour is allowed, it is whose comes first).
- Who was moved is left alone for a time, which doubles with each move of it: nobody is moved to and fro.
- Of several the one goes first whose namespace was moved least in the last hour.
- Who is nobody's victim, for good or for its minimum run time, is not moved. Nor is who is on its way out or in, or
  wants more pods or others.
- What is known after a restart is what Workloads tell of their last move (`MoveLog.record_stored_move`).
"""

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Final

import msgspec

from engine.cluster.assignment import Assignment, slots_removed
from engine.cluster.state import ClusterState
from engine.reservation_key import HolderKey, ReservationKey
from engine.results import Refusal
from queueing.messages import clock_time
from queueing.queues.entry import AssumedAdmission, Phase
from queueing.queues.queues import Queues

LOOK: Final = 5.0  # seconds between two looks at who may be moved
LOOKED_AT: Final = 64  # workloads at one look
SEARCHES: Final = 8  # of them, those for which places are searched
HOUR: Final = 3600.0
# Sixteen rests at most; the log remembers a move for twice as long.
MOST_DOUBLINGS: Final = 4


class MoveRules(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """``per_hour``: moves in all; 0: none. ``rest``: seconds until one is moved after it was admitted, or moved.

    ``together``: who prefers a level and is spread is moved into one domain when there is room. ``misaligned``: pods
    that did not get the alignment that they ask for are moved to other nodes. ``room``: small ones go elsewhere
    where one waits for long that needs their domain (`queueing.making_room`); those up to ``room_priority`` also for
    one of a lower priority.
    """

    per_hour: int = 0
    rest: float = HOUR
    together: bool = True
    misaligned: bool = True
    room: bool = True
    room_priority: int | None = None


NO_MOVES: Final = MoveRules()


class _Moved(msgspec.Struct, frozen=True, gc=False):
    at: float
    times: int = 1


class _Begun(msgspec.Struct, frozen=True, gc=False):
    at: float
    key: str
    asked: bool = False  # by an administrator; after a restart nobody knows


class _Tried(msgspec.Struct, frozen=True, gc=False):
    """When a workload was looked at, and what was free then. ``until``: see `MoveTurns.record_vain_search`."""

    at: float
    free: tuple[int, ...]
    until: float


class MoveLog:
    """The moves that began a short time ago. See the module's rules; keys are those of Workloads."""

    def __init__(self, rules: MoveRules) -> None:
        self.rules = rules
        self._begun: list[_Begun] = []  # in the last hour
        self._last: dict[str, _Moved] = {}

    def begin_move(self, key: str, now: float, *, asked: bool = False) -> None:
        """A workload is moved from now on; ``asked``: by an administrator."""
        self._begun = [one for one in self._begun if now - one.at < HOUR]
        for old in [key for key, moved in self._last.items() if now - moved.at > self._until_forgotten(moved.times)]:
            del self._last[old]
        before = self._last.get(key)
        self._last[key] = _Moved(now, before.times + 1 if before is not None else 1)
        self._begun.append(_Begun(now, key, asked))

    def began(self, key: str) -> float | None:
        """When the last move of it began that is known; None where none is. After `end_move`, when it ended."""
        found = self._last.get(key)
        return found.at if found is not None else None

    def end_move(self, key: str, now: float) -> None:
        """A move of it came to nothing: its rest begins now, as the same move would be found again."""
        found = self._last.get(key)
        self._last[key] = _Moved(now, found.times if found is not None else 1)

    def record_stored_move(self, key: str, at: float, now: float) -> None:
        """Its Workload says that it was moved then: that counts where nothing is known of it, after a restart."""
        # This process knows its own moves better than a status; an old one must not start a rest again.
        if key in self._last or now - at > self._until_forgotten(1):
            return
        self._last[key] = _Moved(at)
        if now - at < HOUR:
            self._begun.append(_Begun(at, key))

    def moves_left(self, now: float, *, asked: bool = False) -> int:
        """How many moves may begin now; ``asked``: of those that an administrator asks for."""
        lately = [one for one in self._begun if now - one.at < HOUR]
        left = max(0, self.rules.per_hour - len(lately))
        # Unasked moves get half, rounded down but at least one; what administrators ask for may use all of it.
        own = min(self.rules.per_hour, max(1, self.rules.per_hour // 2))
        return left if asked else min(left, max(0, own - sum(not one.asked for one in lately)))

    def resting(self, key: str, now: float) -> float:
        """For how many seconds it is left alone yet."""
        found = self._last.get(key)
        return max(0.0, found.at + self._rest(found.times) - now) if found is not None else 0.0

    def rested(self, key: str, since: float, now: float) -> bool:
        """Whether one that was admitted ``since`` may be moved, as far as its rest goes."""
        return now - since >= self.rules.rest and self.resting(key, now) <= 0.0

    def recent(self, namespace: str, now: float) -> int:
        """How many moves of workloads of a namespace began in the last hour."""
        return sum(now - one.at < HOUR and one.key.partition("/")[0] == namespace for one in self._begun)

    def free_at(self, now: float) -> float:
        """When one more may begin that nobody asked for, if none begins until then."""
        waits = (one.at + HOUR for one in self._begun if one.at + HOUR > now)
        return now if self.moves_left(now) else next((at for at in sorted(waits) if self.moves_left(at)), now)

    def _rest(self, times: int) -> float:
        return self.rules.rest * 2.0 ** min(times - 1, MOST_DOUBLINGS)

    def _until_forgotten(self, times: int) -> float:
        # Remembered for twice the rest: forgotten sooner, its next rest would begin at the shortest again.
        return max(HOUR, 2.0 * self._rest(times))


class MoveTurns:
    """Who is looked at next: one of each namespace after the other, those first that had fewest moves lately.

    Without those for whom nothing changed since they were looked at: they would take the place of others.
    Within a namespace those come first that were looked at longest ago: who has many cannot keep others waiting.
    """

    def __init__(self, log: MoveLog) -> None:
        self._log = log
        self._tried: dict[str, _Tried] = {}

    def record_vain_search(self, key: str, now: float, free: tuple[int, ...] = (), until: float = 0.0) -> None:
        """One was looked at in vain, and is looked at again when something else is ``free`` than then.

        ``until``: or then, as there was room and its pods might not go; 0: there was none.
        """
        self._tried[key] = _Tried(now, free, until)

    def forget_turn(self, key: str) -> None:
        """One is to be looked at as if it never was."""
        self._tried.pop(key, None)

    def keep_known(self, known: Container[HolderKey]) -> None:
        """Forget all others: they are gone."""
        self._tried = {key: seen for key, seen in self._tried.items() if key in known}

    def unchanged(self, queues: Queues, key: str, now: float) -> bool:
        """Whether it was looked at, and what it would find is the same still."""
        before = self._tried.get(key)
        if before is None or key not in queues.entries:
            return False
        return before.free == queues.freed_so_far(key) and (not before.until or now < before.until)

    def in_order(self, wanting: Mapping[str, Iterable[str]], now: float) -> list[str]:
        """The keys of those that want to be moved, by namespace, in the order in which they are looked at."""
        found: list[tuple[int, float, str]] = []
        for namespace, keys in wanting.items():
            recent = self._log.recent(namespace, now)
            order = sorted((self._tried[key].at if key in self._tried else 0.0, key) for key in keys)
            # The second of a namespace counts as if its first had been
            # moved, so namespaces alternate within one look, too.
            found += [(recent + turn, at, key) for turn, (at, key) in enumerate(order)]
        return [key for *_, key in sorted(found)]


def relocated(
    state: ClusterState,
    key: str,
    grant: AssumedAdmission,
    pod_sets: Iterable[str],
    search: Callable[[str, Assignment], Assignment | Refusal | None],
) -> AssumedAdmission | Refusal | None:
    """What ``search`` finds for these pod sets in turn; the first refusal, or None where there is nothing to do.

    ``search``: given the name of a pod set and what it holds, all of it elsewhere; None where it stays. What the ones
    before it leave is no room for the next: their pods are there. The state is left as it was.
    """
    changed = False
    checkpoint = state.begin()
    try:
        for number, name in enumerate(pod_sets):
            held = state.assignments(key).get(name)
            if held is None or not held.slices:
                continue
            found = search(name, held)
            if isinstance(found, Refusal):
                return found
            if found is None:
                continue
            others = [part for part in state.assignments(key).values() if part.pod_set != name]
            state.reserve(key, [*others, found])
            # Taken until its pods are gone.
            state.reserve(ReservationKey.for_leaving(key, str(number)), slots_removed([held], [found]))
            changed = True
        now = state.assignments(key)
        parts = tuple([now[name] for name in grant.counts if name in now])
    finally:
        state.rollback(checkpoint)
    return msgspec.structs.replace(grant, assignments=parts) if changed else None


def instead(grant: AssumedAdmission, found: Iterable[Assignment]) -> AssumedAdmission:
    """The grant with these assignments instead of its own for the same pod sets."""
    by_name = {part.pod_set: part for part in found}
    parts = tuple([by_name.get(part.pod_set, part) for part in grant.assignments])
    return msgspec.structs.replace(grant, assignments=parts)


def why_not_moved(queues: Queues, key: str) -> str:
    """Why one that is admitted is not moved now, as queueing has it; "" where it may be."""
    entry, times = queues.entries.get(key), queues.run_times
    # By the longest of its minimums: a move is for nobody in particular, whose right to take from it could be asked.
    end = times.last_end(entry) if entry is not None else times.now
    at = clock_time(end) if end > times.now else ""
    hindrances = (
        (entry is None or entry.phase is not Phase.ADMITTED or entry.grant is None, "it is not admitted"),
        (key in queues.holders.non_preemptible, "it is non-preemptible"),
        (key in queues.holders.evicting or key in queues.holders.losing, "it is being evicted, in whole or in part"),
        (key in queues.growing or ReservationKey.for_growth(key) in queues.entries, "it wants more pods"),
        (key in queues.fresh or key in queues.storing, "its admission is being stored"),
        (key in queues.spared, "a PodDisruptionBudget refused to let its pods go a short time ago"),
        (bool(at), f"it has not run for its minimumRunTime, which it has at {at}"),
    )
    return next((why for hinders, why in hindrances if hinders), "")

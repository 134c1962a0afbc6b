"""Who of those that are connected may stay, so that neither a crowd nor large bodies fill the memory. No I/O, no clock.

A TLS connection takes some 100 KB, whether it asks anything or not, and anybody who reaches the port can make one.

Rules
- There are at most ``most`` connections, those with a handshake under way too. Half of them at most are *strangers*:
  they have had no review answered yet. So those who only connect take no place from the API servers that ask.
- When one more comes, the slow go first, the slowest before the others: strangers that have made us wait for
  `GRACE_SECONDS`, and whoever has begun a request and not brought the rest of it in that time. A stranger of which we
  have read nothing, though there is something to read, is not slow: we are (for `OURS_SECONDS`). Then goes the one that
  has been idle longest. A stranger takes a stranger's place where strangers have theirs filled.
- Where nobody is slow or idle the newcomer waits, until somebody is answered, leaves or is slow. So it is when API
  servers send very many reviews at once, each of which takes milliseconds.
- Where newcomers have had to wait for `PATIENCE_SECONDS` on end it is no such burst: then `SHORT_GRACE_SECONDS` make
  slow. So those who only connect and begin, however many, keep out nobody who sends a review at once.
- What came of bodies that are not whole is at most ``most_bytes`` together: beyond, the request that began first goes.
"""

from collections.abc import Callable, Iterable
from enum import StrEnum

GRACE_SECONDS = 1.0
SHORT_GRACE_SECONDS = 0.05
OURS_SECONDS = 5.0
PATIENCE_SECONDS = 3.0
# 256 connections that hold less come to 16 MiB, a quarter of what bodies may take together by default.
LARGE_BYTES = 64 * 1024  # who holds less is not asked to go for it
UNLIMITED = 1 << 62


class Why(StrEnum):
    """Why a connection had to go."""

    SLOW = "slow"
    IDLE = "idle"
    BODIES = "bodies"


def _nothing() -> bool:
    """There is nothing to end, and nothing to read."""
    return False


class CrowdPlace:
    """One connection's place. ``since``: when what it does now began.

    ``crowd``: None where there is room for all. ``end`` ends it at once; ``unread`` says whether its first bytes wait
    to be read.
    """

    __slots__ = ("_crowd", "end", "held", "idle", "known", "since", "unread")

    def __init__(
        self, crowd: "Crowd | None", now: float, end: Callable[[], object], unread: Callable[[], bool]
    ) -> None:
        self._crowd = crowd
        self.end = end
        self.unread = unread
        self.since = now
        self.idle = False  # it waits for its next request
        self.known = False  # it has had a review answered
        self.held = 0  # bytes of a body that is not whole

    def made(self, end: Callable[[], object]) -> None:
        """The connection is made: this ends it now."""
        self.end = end

    def mark_read(self) -> None:
        """Its first bytes were read: what is missing from now on is its own affair."""
        self.unread = _nothing

    def begin_request(self, now: float) -> None:
        """A request has begun, and is not whole."""
        # A request of which more comes keeps its beginning: one that trickles gets no more time for each byte.
        if self.idle:
            self.idle, self.since = False, now

    def begin_body(self, size: int) -> None:
        """So much of a body is there, and it is not whole."""
        if self._crowd is not None:
            self._crowd.count_bytes(self, size)

    def answered(self, now: float, *, known: bool) -> None:
        """It has its answer. ``known``: to a review."""
        self.idle, self.since = True, now
        if self._crowd is not None:
            self._crowd.release_place(self, known=known)

    def hold_bytes(self, size: int) -> int:
        """So many bytes of a body that is not whole are there; returns how many more than before."""
        more, self.held = size - self.held, size
        return more

    def get_known(self) -> bool:
        """It has had a review answered; True where that is the first."""
        was, self.known = self.known, True
        return not was

    def leave_crowd(self) -> None:
        """It is gone."""
        crowd, self._crowd = self._crowd, None
        # Both hold the connection, and it holds this place: without this they wait for the garbage collector.
        self.end = self.unread = _nothing
        if crowd is not None:
            crowd.remove(self)


class Crowd:
    """Those who are connected.

    ``strangers``: how many of them may be strangers; None: half. ``tell`` hears why somebody had to go.
    """

    def __init__(
        self,
        most: int = UNLIMITED,
        *,
        strangers: int | None = None,
        most_bytes: int = UNLIMITED,
        tell: Callable[[Why], None],
    ) -> None:
        self.most = most
        self.most_strangers = max(most // 2, 1) if strangers is None else strangers
        self.most_bytes = most_bytes
        self.held = 0
        self._on_room: Callable[[], None] | None = None  # called once, where a newcomer waits and may try again
        self._tell = tell
        self._places: dict[CrowdPlace, None] = {}
        self._strangers = 0
        self._full_since = self._full_last = float("-inf")

    def __len__(self) -> int:
        """How many are connected."""
        return len(self._places)

    def admit_connection(self, now: float, end: Callable[[], object], unread: Callable[[], bool]) -> CrowdPlace | None:
        """A place for a newcomer, for which another may have to go; None where it has to wait.

        ``end``, ``unread``: as `CrowdPlace` has them.
        """
        # Every newcomer is a stranger, so either limit keeps it out.
        if self._strangers >= self.most_strangers or len(self._places) >= self.most:
            gone = self._first_to_go(now)
            if gone is None:
                # A second in which nobody had to wait ends the pressure; the next one counts from here.
                if now - self._full_last > GRACE_SECONDS:
                    self._full_since = now
                self._full_last = now
                return None
            self._end_place(gone, Why.IDLE if gone.idle and gone.known else Why.SLOW)
        place = CrowdPlace(self, now, end, unread)
        self._places[place] = None
        self._strangers += 1
        return place

    def seconds_to_wait(self, now: float) -> float:
        """After how many seconds a newcomer that has to wait may try again, whatever happens until then."""
        longest = min((place.since for place in self._unsettled()), default=now)
        # Never 0: the listener would look again in each turn of the loop, and do nothing else.
        return max(longest + self._grace(now) - now, SHORT_GRACE_SECONDS / 10)

    def await_room(self, then: Callable[[], None]) -> None:
        """``then`` is called once, as soon as the newcomer that waits may try again."""
        self._on_room = then

    def stop_awaiting_room(self) -> None:
        """No newcomer waits, or it tries again by itself."""
        self._on_room = None

    def count_bytes(self, place: CrowdPlace, size: int) -> None:
        """``place`` holds so many bytes of a body that is not whole."""
        self.held += place.hold_bytes(size)
        while self.held > self.most_bytes and (large := [one for one in self._places if one.held >= LARGE_BYTES]):
            # The one whose bytes have just come goes last: it is the one that sends.
            others = [one for one in large if one is not place]
            self._end_place(min(others or large, key=_since), Why.BODIES)

    def release_place(self, place: CrowdPlace, *, known: bool) -> None:
        """``place`` has its answer."""
        self.held += place.hold_bytes(0)
        if known and place.get_known():
            self._strangers -= 1
        if self._on_room is not None:
            self._wake()

    def remove(self, place: CrowdPlace) -> None:
        """``place`` is free."""
        del self._places[place]
        self.held -= place.held
        self._strangers -= not place.known
        if self._on_room is not None:
            self._wake()

    def _first_to_go(self, now: float) -> CrowdPlace | None:
        late, ours = now - self._grace(now), now - OURS_SECONDS
        slow_ones = sorted((one for one in self._unsettled() if one.since <= late), key=_since)
        # To ask whether there is something to read is a system call, so it is asked of the slowest first.
        slow = next((one for one in slow_ones if one.since <= ours or not one.unread()), None)
        # An idle connection that is known makes no room for a stranger where strangers have all their places.
        if slow is not None or self._strangers >= self.most_strangers:
            return slow
        return min((place for place in self._places if place.idle and place.known), key=_since, default=None)

    def _unsettled(self) -> Iterable[CrowdPlace]:
        """Those that are slow, or may become it, and whose going makes room for a newcomer."""
        if self._strangers >= self.most_strangers:
            return (place for place in self._places if not place.known)
        return (place for place in self._places if not (place.idle and place.known))

    def _grace(self, now: float) -> float:
        pressed = now - self._full_last <= GRACE_SECONDS and now - self._full_since >= PATIENCE_SECONDS
        return SHORT_GRACE_SECONDS if pressed else GRACE_SECONDS

    def _end_place(self, place: CrowdPlace, why: Why) -> None:
        # Taken before it leaves, which forgets it. It leaves before it ends, as the end may lead back here.
        end = place.end
        place.leave_crowd()
        self._tell(why)
        end()

    def _wake(self) -> None:
        # Cleared first: the newcomer that is woken may have to wait again, and says so while it runs.
        wake, self._on_room = self._on_room, None
        if wake is not None:
            wake()


def _since(place: CrowdPlace) -> float:
    return place.since

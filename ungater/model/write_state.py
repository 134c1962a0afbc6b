"""What is being written for one workload."""

from asyncio import Lock

AT_ONCE = 3  # deletions of its Workload by others after which that is made again at once
LONGEST = 30.0  # seconds until it is made again at most: what others wait for is decided then
FORGOTTEN = 600.0  # seconds without a deletion after which the earlier ones count no more


class WriteState:
    """Writes of its Workload or job, one after the other, while nothing is decided; and patches of its pods.

    ``lock``: whoever writes holds it. ``patches``: ungating patches under way.
    """

    def __init__(self) -> None:
        self.lock = Lock()
        self.patches = 0
        self._writes = 0  # under way or due
        self._missed = False  # the workload was to be looked at meanwhile
        self._deletions = 0  # of its Workload by others, in a row
        self._deleted_at = 0.0  # the last of them

    @property
    def busy(self) -> bool:
        """Whether its Workload or job is being written, or is about to be."""
        return self._writes > 0

    def begin_write(self) -> None:
        """Its Workload or job is about to be written."""
        self._writes += 1

    def end_write(self) -> bool:
        """A write ended; True where it was the last one, and the workload was to be looked at meanwhile."""
        self._writes -= 1
        if self._writes or not self._missed:
            return False
        self._missed = False
        return True

    def must_wait(self) -> bool:
        """Whether nothing may be decided now; the end of the writes that are under way then asks for another look."""
        # An answer of false clears the mark: this look is the one that was missed.
        self._missed = self.busy
        return self._missed

    def note_deleted(self, now: float) -> None:
        """Somebody else deleted its Workload, at this time of the monotonic clock."""
        # From deletion to deletion: whoever deletes every few minutes goes on to be counted.
        self._deletions = self._deletions + 1 if now - self._deleted_at < FORGOTTEN else 1
        self._deleted_at = now

    @property
    def deleted_often(self) -> bool:
        """Whether somebody else deletes its Workload over and over."""
        return self._deletions > AT_ONCE

    def create_in(self, now: float) -> float:
        """Seconds until its Workload is made again: later each time where it is deleted over and over."""
        if not self.deleted_often:
            return 0.0
        # 1, 2, 4 ... seconds. Each creation costs a write of the object, one of its status, and events.
        pause = min(LONGEST, 2.0 ** min(self._deletions - AT_ONCE - 1, 10))
        return max(0.0, self._deleted_at + pause - now)

    def begin_patch(self) -> None:
        """An ungating patch goes to one of its pods."""
        self.patches += 1

    def end_patch(self) -> None:
        """The patch arrived, or is known to have failed, or nobody knows."""
        self.patches -= 1

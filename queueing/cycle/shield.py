"""What one workload costs when something about it was not foreseen: a place in line, and nobody else anything.

Rules
- An error that a workload leads to in a cycle ends what was tried for it. What it was given meanwhile it gives back.
- It is put off, for longer each time, and said to have failed. One that is admitted keeps what is stored, and what it
  wants more is tried again once something is free that was not.
- Nothing is swallowed: the shell logs every error with its trace, counts it, and tells people (`Failed`).
"""

from types import TracebackType
from typing import Final

import msgspec

from engine.cluster.state import ClusterState
from engine.reasons import Reason
from engine.results import Refusal
from queueing.queues.entry import Phase
from queueing.queues.queues import Queues

FIRST: Final = 30.0  # seconds until it is tried again, doubled each time
LONGEST: Final = 3600.0


class Failed(msgspec.Struct, frozen=True):
    """Nobody expected what a workload led to: it was put off until ``until`` (seconds, as `cycle`'s ``now``)."""

    key: str
    error: Exception
    until: float


class Shield(msgspec.Struct, frozen=True):
    """Keeps errors with the workloads that led to them; ``failed`` gets them."""

    state: ClusterState
    queues: Queues
    now: float
    failed: list[Failed]

    def __call__(self, key: str) -> "_Attempt":
        """Do something for a workload, as a context."""
        return _Attempt(self, key, self.state.depth, self.queues.quotas.depth)

    def failed_with(self, key: str, error: Exception, depths: tuple[int, int]) -> None:
        """What was tried for a workload ended so; ``depths``: of state and quotas, before it was tried."""
        # Undone before anything is given back: what the attempt had begun is on top of what the workload holds.
        self.state.rollback_to(depths[0])
        self.queues.quotas.rollback_to(depths[1])
        self._put_off(key, error)

    def _put_off(self, key: str, error: Exception) -> None:
        queues, entry = self.queues, self.queues.entries.get(key)
        # No workload has this key (any more), so there is nothing to put off; the error is reported all the same.
        if entry is None:
            self.failed.append(Failed(key, error, self.now))
            return
        # Doubled up to the longest wait. The exponent is bounded, as a float overflows at 2 to the power of 1,024.
        until = self.now + min(LONGEST, FIRST * 2.0 ** min(entry.count_error() - 1, 16))
        self.failed.append(Failed(key, error, until))
        queues.end_growth(self.state, key)
        # An admission that is stored stays held: giving it back here would let others into room where its pods run.
        if entry.phase is Phase.ADMITTED and (key not in self.queues.fresh or key in self.queues.storing):
            if key in queues.growing:  # else it would say so again as soon as it hears of the error
                queues.grow_later(key, queues.growing[key][0])
            return
        # An admission of this cycle that is not stored goes back whole, and with it whatever it wanted beside that.
        queues.wish(key, None)
        queues.release_workload(self.state, key)
        queues.delay_workload(key, until)
        entry.record_refusal(Refusal(Reason.INTERNAL_ERROR, in_words(error)))
        queues.pending.news.leave_party(key)


class _Attempt:
    """What is done for one workload. Made several times a look, so no generator: that costs five times as much."""

    __slots__ = ("_key", "_quotas", "_shield", "_state")

    def __init__(self, shield: Shield, key: str, state: int, quotas: int) -> None:
        self._shield = shield
        self._key = key
        self._state = state
        self._quotas = quotas

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        # Cancellation and exits are nobody's fault, and end the cycle.
        if not isinstance(error, Exception):
            return False
        self._shield.failed_with(self._key, error, (self._state, self._quotas))  # told in full: see the module
        return True


def in_words(error: Exception) -> str:
    """For people; the log has the trace."""
    return f"the controller could not handle it ({type(error).__name__}: {error}): this is an error of Topogate's"

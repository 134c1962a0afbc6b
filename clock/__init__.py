"""The clock: the one module of the product that reads the time. Whatever needs the time is handed a `Clock`.

It imports next to nothing, as `agent.copies` does, which runs on every node.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime


class Clock:
    """``now()``: seconds since the epoch; may jump. ``monotonic()``: seconds since some moment; never jumps."""

    __slots__ = ("monotonic", "now")

    def __init__(self, now: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self.now = now
        self.monotonic = monotonic

    def utc(self) -> datetime:
        """The same moment as ``now()``, in UTC."""
        return datetime.fromtimestamp(self.now(), UTC)


SYSTEM = Clock(time.time, time.monotonic)  # for processes and commands, which hand it on
cpu_seconds = time.process_time  # no time of day: the CPU time that this process has used

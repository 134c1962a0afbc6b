"""Errors that nobody expected: each is one object's, is counted and logged, and stops nothing else.

Whatever anybody may create, the API server stores. So what is done for one object is done within a `Guard`: its error
costs that object what was to be done, and no other object anything. An error is logged with its trace the first time,
and then no more than counted; metric and alert are there so that somebody looks.
"""

import asyncio
from collections.abc import Awaitable, Callable
from traceback import extract_tb
from types import TracebackType

import structlog

from clock import Clock
from ungater.workqueue import backoff

REMEMBERED = 1024  # errors that were logged
LONGEST_PAUSE = 30.0  # seconds until a loop that failed goes on

log = structlog.get_logger()


class Guard:
    """See the module. ``count(kind)`` counts an error."""

    def __init__(self, clock: Clock, count: Callable[[str], None]) -> None:
        self._clock = clock
        self._count = count
        self._logged: dict[tuple[str, str, str], None] = {}

    def __call__(self, kind: str, key: str) -> "_Guarded":
        """Do something for one object; what it raises ends here."""
        return _Guarded(self, kind, key)

    def failed(self, kind: str, key: str, error: Exception) -> None:
        """Something that was done for an object failed otherwise than foreseen."""
        self._count(kind)
        trace = extract_tb(error.__traceback__)
        # By the place and not by the text, which may name something else each time.
        where = f"{type(error).__name__} {trace[-1].filename}:{trace[-1].lineno}" if trace else type(error).__name__
        seen = (kind, key, where)
        if seen in self._logged:
            return
        # A tenant may cause errors of ever new objects: the log may repeat some then, and memory stays bounded.
        if len(self._logged) >= REMEMBERED:
            self._logged.clear()
        self._logged[seen] = None
        log.error("unexpected: this object is left alone, all others go on", kind=kind, object=key, exc_info=error)

    async def forever(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        """Run what never ends; where it fails, begin it again after a pause. Ends by cancellation only."""
        failures = 0
        while True:
            began = self._clock.monotonic()
            with self("loop", name):
                await loop()
            # A loop that ran for a while before it failed begins its pauses again.
            failures = failures + 1 if self._clock.monotonic() - began < LONGEST_PAUSE else 1
            await asyncio.sleep(backoff(failures, longest=LONGEST_PAUSE))


class _Guarded:
    """What is done for one object. A generator (`contextlib.contextmanager`) takes three times as long."""

    __slots__ = ("_guard", "_key", "_kind")

    def __init__(self, guard: Guard, kind: str, key: str) -> None:
        self._guard = guard
        self._kind = kind
        self._key = key

    def __enter__(self) -> None:
        """Nothing is to be done before it."""

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        """True where an error ends here: not a cancellation."""
        if not isinstance(error, Exception):
            return False
        self._guard.failed(self._kind, self._key, error)
        return True

"""How the components log: one JSON object a line, or coloured text on a terminal, always to standard error.

A line that cannot be written is lost, and nothing else: where a log is told of, something is being decided. So nothing
waits for whoever reads: what a full pipe does not take is kept, so much of it, and written before the next line.
"""

import json
import logging
import os
import select
import sys
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TextIO

import msgspec
import structlog

from clock import SYSTEM, Clock

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor


class LogSettings(Protocol):
    """What `crds.settings` says of logs."""

    @property
    def log_level(self) -> str:
        """From which level on lines are written."""

    @property
    def log_format(self) -> str:
        """``json``, ``console`` or ``auto``: by where they go."""


# Without local variables: keys and tokens are among them.
_tracebacks = structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False))


KEPT = 1 << 20  # bytes of lines that wait for a reader
ATOMIC = select.PIPE_BUF  # bytes that a pipe with room for anything takes at once


class LossyStream:
    """A stream that loses what it cannot write: its reader is gone or does not read, its disk is full, it is closed."""

    def __init__(self, stream: TextIO) -> None:
        self.lost = 0  # lines for which there was no room
        self._stream = stream
        self._begun = ""
        self._kept: deque[bytes] = deque()
        self._bytes = 0

    def write(self, text: str) -> int:
        """The length of ``text``, written or not; a line is written, or lost, as a whole."""
        self._begun += text
        if text.endswith("\n"):
            line, self._begun = self._begun.encode("utf-8", "backslashreplace"), ""
            # The newest lines are lost and not the oldest: half of one may have been written already.
            if self._bytes + len(line) > KEPT:
                self.lost += 1
            else:
                self._keep_line(line)
            self.flush()
        return len(text)

    def flush(self) -> None:
        """Write what is kept, as far as that waits for nobody."""
        with suppress(OSError, ValueError):
            self._write_kept()
            return
        self._kept.clear()  # nobody will ever read it
        self._bytes = 0

    def _keep_line(self, line: bytes) -> None:
        self._kept.append(line)
        self._bytes += len(line)

    def _write_kept(self) -> None:
        number = None
        with suppress(OSError):  # it has none: also a stream in memory
            number = self._stream.fileno()
        if number is None:
            while self._kept:
                self._stream.write(self._next(len(self._kept[0])).decode("utf-8", "replace"))
            self._stream.flush()
            return
        # `os.write` on a full pipe would block the event loop, and with it every decision.
        ready = select.poll()
        ready.register(number, select.POLLOUT)
        while self._kept and ready.poll(0):
            # POLLOUT promises room for this much; a larger write could still block.
            part = self._kept[0][:ATOMIC]
            self._next(os.write(number, part))
            # Only once all is written: the count then stands where the lines are missing.
            if self.lost and not self._kept:
                self._keep_line(f"{self.lost} lines of the log were lost: nobody read them in time\n".encode())
                self.lost = 0

    def _next(self, size: int) -> bytes:
        """So many bytes of the oldest line are written."""
        line = self._kept.popleft()
        self._bytes -= size
        if size < len(line):
            # The rest of a line comes before the next one, or two lines would be mixed.
            self._kept.appendleft(line[size:])
        return line[:size]


def configure(settings: LogSettings, clock: Clock = SYSTEM) -> None:
    """Set up structlog, and let the standard library's warnings (aiohttp, asyncio) look the same."""
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]

    def stamp(_logger: Any, _method: str, event: "EventDict") -> "EventDict":
        event["timestamp"] = clock.utc().isoformat().replace("+00:00", "Z")
        return event

    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        stamp,
    ]
    console = settings.log_format == "console" or (settings.log_format == "auto" and sys.stderr.isatty())
    to: Any = LossyStream(sys.stderr)
    render: list[Processor]
    if console:
        render = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    else:
        render = [_tracebacks, structlog.processors.JSONRenderer(serializer=_to_json)]
    structlog.configure(
        processors=[*shared, *render],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(file=to),
        cache_logger_on_first_use=True,
    )
    bridge = logging.StreamHandler(to)
    bridge.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    # Lines of libraries below WARNING, such as one a request, would bury our own.
    logging.basicConfig(level=max(level, logging.WARNING), handlers=[bridge], force=True)


def _to_json(event: Any, **_options: Any) -> str:
    try:
        return msgspec.json.encode(event, enc_hook=str).decode()
    except ValueError:  # half of a surrogate pair, in somebody's name
        return json.dumps(event, default=str)

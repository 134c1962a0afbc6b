"""How the components log: one JSON object a line, or coloured text on a terminal, always to standard error.

A line that cannot be written is lost, and nothing else: where a log is told of, something is being decided.
"""

import json
import logging
import sys
from contextlib import suppress
from dataclasses import dataclass
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


@dataclass(frozen=True)
class LossyStream:
    """A stream that loses what it cannot write: its reader is gone, its disk is full, somebody closed it."""

    stream: TextIO

    def write(self, text: str) -> int:
        """The length of ``text``, written or not."""
        with suppress(OSError, ValueError):
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        """As far as it can be flushed."""
        with suppress(OSError, ValueError):
            self.stream.flush()


def configure(settings: LogSettings, clock: Clock = SYSTEM) -> None:
    """Set up structlog, and let the standard library's warnings (aiohttp, asyncio) look the same."""
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        _stamper(clock),
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
    logging.basicConfig(level=max(level, logging.WARNING), handlers=[bridge], force=True)


def _stamper(clock: Clock) -> "Processor":
    """Like structlog's own, by this clock."""

    def stamp(_logger: Any, _method: str, event: "EventDict") -> "EventDict":
        event["timestamp"] = clock.utc().isoformat().replace("+00:00", "Z")
        return event

    return stamp


def _to_json(event: Any, **_options: Any) -> str:
    try:
        return msgspec.json.encode(event, enc_hook=str).decode()
    except ValueError:  # half of a surrogate pair, in somebody's name
        return json.dumps(event, default=str)

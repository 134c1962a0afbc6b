"""The Kubernetes events of one workload: of its Workload, of its owner and of its pods. Read when somebody asks.

Rules
- Nothing is watched: events are most of what changes in a cluster, and a workload is looked at now and then. An answer
  serves all who ask for the same for a few seconds; few are asked for at once.
- The API server does not find events by the workload of a pod, so those of the namespace's pods are read, `MOST_READ`
  at most. What was left out is said.
- Events of one reason become one row, with the newest note: a gang of hundreds is scheduled once for a reader.
- Names, reasons and notes are whatever somebody wrote: text, cut to a length.
"""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import Final

import msgspec
import structlog

from kube.client import Client
from kube.connection.answers import decode
from kube.errors import Forbidden, KubeError
from kube.resources import EVENTS
from kube.told_events import ToldEvent

MOST_READ: Final = 2000  # events of pods of a namespace
PAGE: Final = 500
MOST_ROWS: Final = 60
LONGEST: Final = 1024  # characters of a note
READ_SECONDS: Final = 5.0  # for one page
KEPT_SECONDS: Final = 5.0
KEPT: Final = 64  # answers
AT_ONCE: Final = 2
BEFORE: Final = 60.0  # seconds: what is older than that before the workload was made is of another of its name
POD: Final = "Pod"
WORKLOAD: Final = "Workload"
_PLAIN: Final = re.compile("[A-Za-z0-9.-]+")  # whatever somebody wrote as an owner, a selector it does not change

log = structlog.get_logger()


class EventRow(msgspec.Struct, frozen=True, array_like=True):
    """Events of one reason. ``objects``: of how many; ``name``: of the one that it came to last."""

    last: float
    type: str
    reason: str
    kind: str
    name: str
    objects: int
    times: int
    note: str
    reporter: str


class EventsAnswer(msgspec.Struct, frozen=True):
    """The rows, newest first. ``why``: why there are none, or not all."""

    rows: tuple[EventRow, ...] = ()
    why: str = ""


def rows(found: Iterable[ToldEvent], since: float) -> tuple[EventRow, ...]:
    """What of the events is shown: not older than ``since`` (seconds since the epoch), newest first."""
    same: dict[tuple[str, ...], list[ToldEvent]] = {}
    for one in found:
        # A Workload of a name that was used before would show the events of its namesake.
        if one.last >= since:
            same.setdefault((one.regarding.kind, one.type, one.reason), []).append(one)
    made: list[EventRow] = []
    for alike in same.values():
        last = max(alike, key=lambda one: (one.last, one.regarding.name))
        row = EventRow(
            last.last,
            _shorten_text(last.type, 32),
            _shorten_text(last.reason, 128),
            _shorten_text(last.regarding.kind, 64),
            _shorten_text(last.regarding.name, 253),
            len({one.regarding.name for one in alike}),
            sum(one.times for one in alike),
            _shorten_text(last.note, LONGEST),
            _shorten_text(last.reporting_controller, 128),
        )
        made.append(row)
    made.sort(key=lambda row: (-row.last, row.kind != WORKLOAD, row.kind, row.reason))
    of: dict[tuple[str, str], EventRow] = {}
    for row in made:  # what a Workload and its owner are told alike is said once
        if row.kind == WORKLOAD or (row.reason, row.note) not in of:
            of[row.reason, row.note] = row
    return tuple(row for row in made if of[row.reason, row.note] is row)[:MOST_ROWS]


def _shorten_text(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


class EventSubject(msgspec.Struct, frozen=True):
    """Of whom events are wanted. ``pods``: their names; ``created``: seconds since the epoch, 0: not known."""

    namespace: str
    workload: str
    owner: tuple[str, str]  # kind and name
    pods: frozenset[str]
    created: float


class Events:
    """Reads them from an API server. ``clock`` is monotonic."""

    def __init__(self, client: Client, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._few = asyncio.Semaphore(AT_ONCE)
        self._kept: OrderedDict[str, tuple[float, EventsAnswer]] = OrderedDict()
        self._asking: dict[str, asyncio.Task[EventsAnswer]] = {}

    async def events_of_workload(self, key: str, subject: EventSubject) -> EventsAnswer:
        """The events of the workload of this key. Never raises for a client's sake."""
        kept = self._kept.get(key)
        # The answer is the same for all viewers: the server has checked that this one may see the workload and list
        # events.
        if kept is not None and self._clock() - kept[0] < KEPT_SECONDS:
            return kept[1]
        if (task := self._asking.get(key)) is None:
            task = self._asking[key] = asyncio.create_task(self._fetch_answer(key, subject))
            task.add_done_callback(lambda _: self._asking.pop(key, None))
        # A viewer who leaves must not cancel the read for the others who wait for it.
        return await asyncio.shield(task)

    async def _fetch_answer(self, key: str, subject: EventSubject) -> EventsAnswer:
        found: list[ToldEvent] = []
        async with self._few:
            try:
                # A set: a Workload without an owner is its own owner, and is read once.
                for kind, name in {(WORKLOAD, subject.workload), subject.owner}:
                    # A comma or an equals sign in a name would widen the selector to objects of others.
                    if kind != POD and _PLAIN.fullmatch(kind) and _PLAIN.fullmatch(name):
                        selector = f"regarding.kind={kind},regarding.name={name}"
                        found += (await self._some(subject.namespace, selector, PAGE))[0]
                of_pods, all_read = await self._some(subject.namespace, f"regarding.kind={POD}", MOST_READ)
            except Forbidden:
                why = "this page may not list events: it takes ClusterRole topogate-inspect of this version"
                told = EventsAnswer(why=why)
            except KubeError as error:
                log.warning("events cannot be read", error=str(error))
                told = EventsAnswer(why="the API server gives no events now")
            else:
                found += [one for one in of_pods if one.regarding.name in subject.pods]
                why = "" if all_read else f"not all: the namespace has more than {MOST_READ:,} events of pods"
                told = EventsAnswer(rows(found, subject.created - BEFORE if subject.created else 0.0), why)
        self._kept[key] = self._clock(), told
        self._kept.move_to_end(key)
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return told

    async def _some(self, namespace: str, selector: str, most: int) -> tuple[list[ToldEvent], bool]:
        """As many events as that, page by page, and whether these are all."""
        found: list[ToldEvent] = []
        pages = self._client.pages(EVENTS, namespace, field_selector=selector, limit=PAGE, timeout=READ_SECONDS)
        async with aclosing(pages):
            async for page, fresh in pages:
                if fresh:
                    # A list that expired midway begins again: what was read so far would count twice.
                    found.clear()
                found += [decode(ToldEvent, item, EVENTS) for item in page.items or ()]
                if len(found) >= most:
                    return found[:most], not page.metadata.continue_
        return found, True


Reader = Callable[[str, EventSubject], Awaitable[EventsAnswer]]

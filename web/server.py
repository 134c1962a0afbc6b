"""The page over HTTP: static files, one picture, then changes as server-sent events; and questions about one thing.

- ``/``: the page. It asks for a token (or the key of a process at one's own machine), which stays in its memory.
- ``/api/picture``, ``/api/changes?since=N&epoch=E`` (events ``changes``, ``whole``, ``beat``), ``/api/host``,
  ``/api/workload``, ``/api/events``, ``/api/queues``, ``/api/explain``, ``/api/history``; ``POST /api/whatif`` with a
  manifest as its body, which changes nothing either.

Every request carries the token in its Authorization header: never in a URL, never in a cookie. What is in an answer is
what that viewer may see (`web.viewers.rights`); those who may see the same share one encoding (`web.hub`).
"""

import asyncio
import functools
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any, Final

import msgspec
import structlog
from aiohttp import web

from clock import Clock
from kube.topologies import FlexTopo
from ungater.numa.sources import DescribedMachine
from web import inside
from web.events import EventsAnswer, EventSubject, Reader
from web.hub import Hub
from web.prometheus import Prometheus
from web.prometheus_api import PrometheusError
from web.questions import QuestionError, Questions
from web.sight import Sight
from web.viewers.doors import HEADERS, door
from web.viewers.rights import Rights, ViewerVerdict

log = structlog.get_logger()

MOST_VIEWERS: Final = 200  # streams of changes
MOST_OF_ONE: Final = 16  # of one user
BEAT_SECONDS: Final = 10.0
PAUSE_SECONDS: Final = 1.0  # between two pieces for one viewer
SEND_SECONDS: Final = 20.0  # who has not read what was sent by then is let go
CHECK_SECONDS: Final = 60.0  # between two looks at what a viewer who stays may see
MOST_MANIFEST: Final = 256 * 1024
BODY_SECONDS: Final = 10.0
MOST_QUESTIONS: Final = 8  # that wait for their turn
QUESTION_SECONDS: Final = 60.0
ANSWER_SECONDS: Final = 5.0  # for which an answer serves whoever asks the same
ANSWERS: Final = 16
TYPES: Final = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
FILES: Final = {"/": "index.html", "/page.js": "page.js", "/page.css": "page.css", "/icon.svg": "icon.svg"}
_encode = msgspec.json.Encoder().encode
Inside = Callable[[str], tuple[DescribedMachine | None, FlexTopo | None]]
Handler = Callable[[web.Request, ViewerVerdict], Awaitable[web.StreamResponse]]


class PageHandlers:
    """The handlers.

    ``inside``: what is known of the inside of a host; ``heard``: seconds since the API server said anything, 0 where
    nothing is watched; ``keyed``: whether one key opens it, rather than tokens; ``events``: reads those of a workload;
    ``past``: whoever knows the last day better than the hub.
    """

    def __init__(
        self,
        hub: Hub,
        rights: Rights,
        questions: Questions,
        *,
        inside: Inside,
        heard: Callable[[], float],
        keyed: bool,
        clock: Clock,
        events: Reader | None = None,
        past: Prometheus | None = None,
    ) -> None:
        self._hub = hub
        self._rights = rights
        self._questions = questions
        self._inside = inside
        self._heard = heard
        self._keyed = keyed
        self._clock = clock
        self._events_of = events
        self._past = past
        self._turn = asyncio.Semaphore(1)
        self._asked = 0
        self._answers: OrderedDict[tuple[str, Sight], tuple[float, bytes]] = OrderedDict()
        self._viewers: dict[str, int] = {}

    @property
    def viewers(self) -> int:
        """How many streams there are."""
        return sum(self._viewers.values())

    def application(self, names: frozenset[str]) -> web.Application:
        """What answers requests for these names."""
        app = web.Application(middlewares=[door(names)], client_max_size=MOST_MANIFEST)
        for path, name in FILES.items():
            body = (files("web") / "static" / name).read_bytes()
            app.router.add_get(path, functools.partial(_static, body, TYPES[name.rpartition(".")[2]]))
        for name, handler in (
            ("me", self._me),
            ("picture", self._picture),
            ("changes", self._changes),
            ("host", self._host),
            ("workload", self._workload),
            ("events", self._events),
            ("history", self._history),
            ("queues", self._queues),
            ("explain", self._explain),
        ):
            app.router.add_get(f"/api/{name}", self._for_viewers(handler))
        app.router.add_get("/api/login", self._login)
        app.router.add_post("/api/whatif", self._for_viewers(self._whatif))
        return app

    def _for_viewers(self, handler: Handler) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def answer(request: web.Request) -> web.StreamResponse:
            seen = await self._see(request)
            if seen.status == 200 and seen.sight.nothing:
                text = (
                    f"{seen.user} may see nothing here: it takes the right to list nodes, or pods and workloads of a "
                    "namespace; ClusterRole topogate-inspect has all of it"
                )
                seen = ViewerVerdict(seen.user, status=403, text=text)
            if seen.status != 200:
                headers = {"WWW-Authenticate": "Bearer"} if seen.status == 401 else {}
                return web.Response(status=seen.status, text=seen.text, headers={**HEADERS, **headers})
            try:
                return await handler(request, seen)
            except QuestionError as error:
                return web.Response(status=422, text=str(error), headers=HEADERS)

        return answer

    async def _see(self, request: web.Request) -> ViewerVerdict:
        board = self._hub.board
        # Only namespaces with something to see cost a review.
        namespaces = {key.partition("/")[0] for key in board.all_holders()}
        return await self._rights.sight_of_viewer(request.headers.get("Authorization"), namespaces)

    # --- what there is -----------------------------------------------------------------------------------------------

    async def _login(self, _: web.Request) -> web.Response:
        """What the page asks for before it knows who looks."""
        return _json({"keyed": self._keyed})

    async def _me(self, _: web.Request, seen: ViewerVerdict) -> web.Response:
        return _json({"user": seen.user})

    async def _picture(self, request: web.Request, seen: ViewerVerdict) -> web.Response:
        packed = self._hub.picture(seen.sight)
        if "gzip" not in request.headers.get("Accept-Encoding", ""):
            return web.Response(status=406, text="gzip is needed", headers=HEADERS)
        headers = {**HEADERS, "Content-Encoding": "gzip", "Vary": "Authorization, Accept-Encoding"}
        return web.Response(body=packed, content_type="application/json", headers=headers)

    async def _host(self, request: web.Request, seen: ViewerVerdict) -> web.Response:
        name = request.query.get("name", "")
        if not seen.sight.hosts or name not in self._hub.board.hosts:
            return _absent()
        return _json(inside.machine(self._hub.board, seen.sight, name, *self._inside(name)))

    async def _workload(self, request: web.Request, seen: ViewerVerdict) -> web.Response:
        key = request.query.get("key", "")
        found = inside.workload(self._hub.board, key) if seen.sight.may_name(key.partition("/")[0]) else None
        return _absent() if found is None else _json(found)

    async def _events(self, request: web.Request, seen: ViewerVerdict) -> web.Response:
        key = request.query.get("key", "")
        one = self._hub.board.find_holder(key) if seen.sight.may_name(key.partition("/")[0]) else None
        if one is None:
            return _absent()
        if self._events_of is None:
            return _json(EventsAnswer(why="there are no events in a snapshot"))
        pods = frozenset(pod.key.partition("/")[2] for pod in self._hub.board.pods_of_holder(key))
        # Asked before the events are read: who may see a workload may not always list events.
        if why := await self._rights.no_events(request.headers.get("Authorization"), one.namespace):
            return _json(EventsAnswer(why=why))
        subject = EventSubject(one.namespace, one.workload, (one.kind, one.name), pods, one.created)
        return _json(await self._events_of(key, subject))

    async def _history(self, _: web.Request, seen: ViewerVerdict) -> web.Response:
        if not seen.sight.hosts:
            return _absent()
        told, history = {}, self._hub.history
        if self._past is not None:
            try:
                return _json(await self._past.columns(self._hub.board.resource, history.levels))
            except PrometheusError as error:
                told = {"why": str(error)}
        return _json(history.columns() | told)

    # --- questions ---------------------------------------------------------------------------------------------------

    async def _queues(self, _: web.Request, seen: ViewerVerdict) -> web.Response:
        return await self._answer_question(lambda: self._questions.queues(seen.sight), ("", seen.sight))

    async def _explain(self, request: web.Request, seen: ViewerVerdict) -> web.Response:
        key = request.query.get("key", "")
        # One answer for both: a 403 would tell that the workload exists.
        if not seen.sight.may_name(key.partition("/")[0]) or key not in self._hub.board.holders:
            return _absent()
        return await self._answer_question(lambda: self._questions.explain(key, seen.sight), (key, seen.sight))

    async def _whatif(self, request: web.Request, seen: ViewerVerdict) -> web.Response:
        if not seen.sight.hosts:
            return web.Response(status=403, text="where pods would go is for those who may list nodes", headers=HEADERS)
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await request.read()
        except TimeoutError:
            return web.Response(status=408, text="the manifest did not come in time", headers=HEADERS)
        try:
            text = body.decode()
        except UnicodeDecodeError:
            return web.Response(status=422, text="the manifest is no UTF-8 text", headers=HEADERS)
        namespace = request.query.get("namespace", "") or "default"
        return await self._answer_question(lambda: self._questions.place_manifest(text, namespace, seen.sight))

    async def _answer_question(
        self, question: Callable[[], Any], name: tuple[str, Sight] | None = None
    ) -> web.Response:
        """The answer; one that is asked for again by its name serves all who see the same for a few seconds."""
        kept = self._answers.get(name) if name is not None else None
        if kept is not None and self._clock.monotonic() - kept[0] < ANSWER_SECONDS:
            return _json_of(kept[1])
        # Each waiting question holds its viewer's connection and a whole manifest; the ninth tries again.
        if self._asked >= MOST_QUESTIONS:
            return web.Response(status=429, text="others ask too: try again in a moment", headers=HEADERS)
        self._asked += 1
        # The count goes down in the task, not here: it counts threads that still work, also those whose viewer has
        # left.
        asking = asyncio.create_task(self._in_turn(question))
        try:
            async with asyncio.timeout(QUESTION_SECONDS):
                # A thread does not end with whoever asked: it keeps its turn until it does.
                answer = await asyncio.shield(asking)
        except TimeoutError:
            return web.Response(status=503, text="it takes too long: try again later", headers=HEADERS)
        if name is not None:
            self._answers[name] = self._clock.monotonic(), answer
            if len(self._answers) > ANSWERS:
                self._answers.popitem(last=False)
        return _json_of(answer)

    async def _in_turn(self, question: Callable[[], Any]) -> bytes:
        try:
            async with self._turn:
                return _encode(await asyncio.to_thread(question))
        finally:
            self._asked -= 1

    # --- changes -----------------------------------------------------------------------------------------------------

    async def _changes(self, request: web.Request, seen: ViewerVerdict) -> web.StreamResponse:
        # Only `prepare` is awaited between this check and the count, so a few more streams may get in.
        if self.viewers >= MOST_VIEWERS or self._viewers.get(seen.user, 0) >= MOST_OF_ONE:
            return web.Response(status=429, text="too many viewers", headers={**HEADERS, "Retry-After": "30"})
        since = request.query.get("since", "")
        # A number of thousands of digits would cost time in `int`, or raise.
        version = int(since) if since.isascii() and since.isdigit() and len(since) < 16 else -1
        if request.query.get("epoch") != self._hub.epoch or version > self._hub.version:
            version = -1
        headers = {**HEADERS, "Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
        stream = web.StreamResponse(headers=headers)
        await stream.prepare(request)
        self._viewers[seen.user] = self._viewers.get(seen.user, 0) + 1
        try:
            await self._stream(request, stream, seen.sight, version)
        except (
            ConnectionError,
            TimeoutError,
        ):  # it left, or reads too slowly: it comes again and takes a whole picture
            if request.transport is not None:
                request.transport.abort()  # with what it did not read
        finally:
            self._viewers[seen.user] -= 1
            if not self._viewers[seen.user]:
                del self._viewers[seen.user]
        return stream

    async def _stream(self, request: web.Request, stream: web.StreamResponse, sight: Sight, version: int) -> None:
        clock = self._clock.monotonic
        checked = beat = clock()
        await _send(stream, "beat", _encode({"heard": self._heard()}))
        while True:
            if clock() - checked >= CHECK_SECONDS:
                checked = clock()
                # A token may be revoked, and a right withdrawn, while the stream lasts for hours.
                seen = await self._see(request)
                if seen.status != 200 or seen.sight != sight:
                    return  # it comes again, and is told what it may see now
            if version < 0 or (version < self._hub.version and self._hub.changes(sight, version) is None):
                await _send(stream, "whole", b"{}")
                return
            if version < self._hub.version and (piece := self._hub.changes(sight, version)) is not None:
                # No await since the piece was made, so it is of this version.
                version = self._hub.version
                await _send(stream, "changes", piece)
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            if clock() - beat >= BEAT_SECONDS:
                beat = clock()
                await _send(stream, "beat", _encode({"heard": self._heard()}))
            # A viewer who waits wakes for its beat at the latest.
            await self._hub.newer(version, BEAT_SECONDS)


async def _send(stream: web.StreamResponse, event: str, data: bytes) -> None:
    """One event; raises TimeoutError where the viewer does not read."""
    async with asyncio.timeout(SEND_SECONDS):
        await stream.write(b"event: " + event.encode() + b"\ndata: " + data + b"\n\n")


async def _static(body: bytes, kind: str, _: web.Request) -> web.Response:
    headers = {**HEADERS, "Cache-Control": "no-cache"}
    return web.Response(body=body, content_type=kind, charset="utf-8", headers=headers)


def _json(found: Any) -> web.Response:
    return _json_of(_encode(found))


def _json_of(body: bytes) -> web.Response:
    response = web.Response(body=body, content_type="application/json", headers=HEADERS)
    response.enable_compression()
    return response


def _absent() -> web.Response:
    return web.Response(status=404, text="there is nothing by that name that you may see", headers=HEADERS)

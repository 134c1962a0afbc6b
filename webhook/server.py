"""The webhook as a server: what is served where, readiness, drain.

- ``webhook_port``, TLS: POST /mutate-job, /mutate-jobset, /mutate-pod, /mutate-owner, /check-settings; GET /healthz,
  /readyz.
- ``metrics_port``, TLS: GET /metrics, /healthz, /readyz; metrics for those who may read them, where that is asked.
- ``health_port``, plain, for the kubelet: GET /healthz, /readyz.

It is ready once a certificate is loaded, its CA is published, and flavors and queues are listed. A review that comes
before they are waits for them a little, and is then decided without a look at the level, with a warning: the pods are
gated all the same, and the controller says on the Workload what is wrong with the level.

Drain: readyz fails at once, so that no new clients come; for ``webhook_drain_seconds`` everything is answered, but each
answer closes its connection, so that clients which keep theirs move on as well; then the listeners close, those who
have connected and sent nothing yet have a moment for that, and what is in flight is finished.

Each port has so many connections and no more (`webhook.crowd`): those of reviews by ``webhook_max_connections``.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

import structlog
from aiohttp import web

from certs.authority import Bundle
from certs.manager import CertificateManager
from certs.options import CertificateOptions
from certs.tls import ServerTls
from clock import SYSTEM, Clock
from engine.reasons import Reason
from kube.client import Client
from kube.events import EventRecorder, ObjectReference
from serving.access import Access, by_api_server
from serving.live_settings import SettingsChange, SettingsSource, SettingsWatch
from webhook.answers import (
    BODY_LATE,
    Answer,
    BodyBrokenError,
    BodyTooLargeError,
    ProtocolLog,
    read_body,
    text,
)
from webhook.connection import Answerer, ReviewServer
from webhook.crowd import Crowd, Why
from webhook.levels import FlavorLevels, LevelOffer, LevelSource
from webhook.listener import Listener
from webhook.metrics import CONTENT_TYPE, TOO_LARGE, PathStats, WebhookMetrics
from webhook.mutate import MutationRules
from webhook.review import (
    MALFORMED,
    Reply,
    Reviewer,
    Rulebook,
    for_jobs,
    for_jobsets,
    for_owners,
    for_pods,
    for_settings,
)

if TYPE_CHECKING:
    from crds.settings import Settings

log = structlog.get_logger(__name__)

COMPONENT = "topogate-webhook"
JOB_PATH, JOB_SET_PATH, POD_PATH, OWNER_PATH = "/mutate-job", "/mutate-jobset", "/mutate-pod", "/mutate-owner"
REVIEWERS: Mapping[str, Callable[[], Reviewer]] = {
    JOB_PATH: for_jobs,
    JOB_SET_PATH: for_jobsets,
    POD_PATH: for_pods,
    OWNER_PATH: for_owners,
}
SETTINGS_PATH = "/check-settings"
# The API server waits for 10 s (timeoutSeconds of the webhook), and other webhooks come after this one.
LEVELS_WAIT_SECONDS = 2.0
# An API server keeps an idle connection for 90 s. Were we to close it first, a review could be on its way just then.
KEEPALIVE_SECONDS = 150.0
LINGER_SECONDS = 5.0
HANDSHAKE_SECONDS = 10.0
GOODBYE_SECONDS = 5.0
LARGEST_BODIES = 8  # so many of the largest may be under way at once
SEEN_CONNECTIONS = 32  # of those who look at metrics and health: at most so many at each port
TELL_SECONDS = 10.0  # between two lines about connections that had to go
FINISH_SECONDS = 10.0  # for what is in flight at the end of a drain
LAST_SECONDS = 1.0  # for the first request of those that connected just before the end
LAST_LOOKS = 0.01

Handler = Callable[[web.BaseRequest], Awaitable[Reply]]
Routes = Mapping[str, tuple[str, Handler]]  # path -> method, handler
NOTHING: Mapping[str, Answerer] = {}
Conditions = Mapping[str, Callable[[], bool]]  # what must hold to be ready -> whether it does


class WebhookServer:
    """Serves reviews. An async context: bound inside, closed at once after it; call `drain` first to leave gracefully.

    ``conditions`` must all hold for readyz to say so. ``access``: who may read metrics; None: whoever reaches the port.
    """

    def __init__(
        self,
        settings: "Settings",
        levels: LevelSource,
        tls: ServerTls,
        *,
        conditions: Conditions | None = None,
        expiry: Callable[[], float | None],
        access: Access | None = None,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._levels = levels
        self._tls = tls
        self._conditions = dict(conditions or {})
        self._access = access
        self._clock = clock
        self._draining = False
        self._listeners: list[tuple[Listener, ReviewServer]] = []
        self._reviewing = Crowd(
            settings.webhook_max_connections,
            most_bytes=LARGEST_BODIES * settings.webhook_max_body_bytes,
            tell=self._note_closed,
        )
        self._told = -math.inf
        self.metrics = WebhookMetrics(
            (*REVIEWERS, SETTINGS_PATH), expiry, lambda: len(self._reviewing), lambda: not self.missing_parts()
        )
        self.port = self.metrics_port = self.health_port = 0

    async def __aenter__(self) -> Self:
        health: Routes = {"/healthz": ("GET", self._healthz), "/readyz": ("GET", self._readyz)}
        reviews: dict[str, tuple[str, Handler]] = {}
        short: dict[str, Answerer] = {}
        for path, make in REVIEWERS.items():
            reviewer = make()
            stats = self.metrics.paths[path]
            short[path] = self._answerer(reviewer, stats)
            reviews[path] = ("POST", self._reviews(reviewer, short[path], stats))
        settings = self._settings
        checks = self._settings_reviews(for_settings(settings.domain), self.metrics.paths[SETTINGS_PATH])
        reviews[SETTINGS_PATH] = ("POST", checks)
        seen: Routes = {"/metrics": ("GET", self._metrics), **health}
        port, most = settings.webhook_port, SEEN_CONNECTIONS
        # Crowds of their own: a crowd at the port for reviews must not fail the kubelet's probe, or we are restarted.
        looking, probing = (Crowd(most, strangers=most, tell=self._note_closed) for _ in range(2))
        try:
            self.port = await self._listen({**reviews, **health}, port, self._reviewing, secure=True, short=short)
            self.metrics_port = await self._listen(seen, settings.metrics_port, looking, secure=True)
            self.health_port = await self._listen(health, settings.health_port, probing, secure=False)
        except BaseException:
            await self._close()
            raise
        log.info("serving", port=self.port, metrics_port=self.metrics_port, health_port=self.health_port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    def missing_parts(self) -> tuple[str, ...]:
        """What it takes to be ready and is not there yet."""
        if self._draining:
            return ("draining",)
        return tuple(name for name, holds in self._conditions.items() if not holds())

    def take_settings(self, change: SettingsChange, _uid: str) -> None:
        """Go by other settings from the next review on. The ungater tells of them, for both."""
        self._settings = change.settings

    def settings_refused(self, _problem: str, _uid: str) -> None:
        """They are wrong: those in use go on."""

    def keeps_settings(self) -> bool:
        """The ungater keeps the last good ones."""
        return False

    async def drain(self, seconds: float) -> None:
        """Be unready from now on, and serve on for so long, closing each connection with its next answer."""
        # Unready before anything closes: endpoints take seconds to follow, and until then new clients come here.
        self._draining = True
        log.info("draining", seconds=seconds)
        await asyncio.sleep(seconds)

    async def _close(self) -> None:
        """Take no new connections, finish what is in flight, and close."""
        self._draining = True
        for listener, _ in self._listeners:
            # First, which still takes those in the kernel's queue: their clients hold these connections for made.
            listener.close()
        end = self._clock.monotonic() + LAST_SECONDS
        # A client that has connected and sent nothing yet is about to send a review.
        while self._clock.monotonic() < end and any(
            listener.making or http.unheard for listener, http in self._listeners
        ):
            await asyncio.sleep(LAST_LOOKS)
        for listener, http in self._listeners:
            # Before the shutdown: a handshake that ends later would make a connection that nobody closes.
            listener.abort()
            http.pre_shutdown()  # ends idle connections; without it, the next line waits for them to the deadline
        await asyncio.gather(*(http.shutdown(timeout=FINISH_SECONDS) for _, http in self._listeners))

    async def _listen(
        self, routes: Routes, port: int, crowd: Crowd, *, secure: bool, short: Mapping[str, Answerer] = NOTHING
    ) -> int:
        http = ReviewServer(
            self._dispatch(routes),
            routes=short,
            limit=self._settings.webhook_max_body_bytes,
            closing=lambda: self._draining,
            clock=self._clock,
            access_log=None,
            logger=ProtocolLog(self._clock.monotonic),
            keepalive_timeout=KEEPALIVE_SECONDS,
            lingering_time=LINGER_SECONDS,
            auto_decompress=False,  # a small body must not become a huge one
        )
        tls = self._tls.context if secure else None
        address, seconds = self._settings.bind_address, (HANDSHAKE_SECONDS, GOODBYE_SECONDS)
        listener = await Listener.bind(address, port, http, crowd, tls=tls, seconds=seconds, clock=self._clock)
        self._listeners.append((listener, http))
        return listener.port

    def _note_closed(self, why: Why) -> None:
        """Somebody had to go to make room."""
        self.metrics.closed[why] += 1
        # A crowd closes hundreds a second: the counter has them all, and the log a line now and then.
        if (now := self._clock.monotonic()) - self._told > TELL_SECONDS:
            self._told = now
            log.warning("connections are closed to make room", connections=len(self._reviewing), **self.metrics.closed)

    def _dispatch(self, routes: Routes) -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]:
        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            path, _, _ = request.raw_path.partition("?")  # the API server adds ?timeout=10s
            method, handler = routes.get(path, ("", None))
            if handler is None:
                reply = text(404, f"{', '.join(routes)} are served here")
            elif request.method != method and (request.method, method) != ("HEAD", "GET"):
                reply = text(405, f"{path} takes {method}")
            else:
                reply = await handler(request)
            return Answer(reply, self._clock, keep_alive=False)

        return handle

    def _rules(self, offer: LevelOffer | None) -> MutationRules:
        keys, require_queue = self._settings.keys, self._settings.require_queue
        if offer is None:
            return MutationRules(keys, None, require_queue=require_queue)
        return MutationRules(keys, offer.flavors, offer.queues, require_queue, offer.names)

    def _answerer(self, reviewer: Reviewer, stats: PathStats) -> Answerer:
        """The decision on a body that is whole; None as long as the flavors are not known."""
        levels, monotonic = self._levels, self._clock.monotonic
        offered: LevelOffer | None = None
        rulebook, settings = Rulebook(self._rules(None)), self._settings

        def answer(body: bytes) -> Reply | None:
            nonlocal rulebook, offered, settings
            start = monotonic()
            offer = levels.current_offer()
            if offer is None:
                return None
            # By identity, for both are replaced as a whole: a new rulebook forgets every decision under the old rules.
            if offered is not offer or settings is not self._settings:
                rulebook, offered, settings = Rulebook(self._rules(offer)), offer, self._settings
            reply = reviewer.answer(body, rulebook)
            stats.observe(reply.verdict, monotonic() - start)
            return reply

        return answer

    def _reviews(self, reviewer: Reviewer, answer: Answerer, stats: PathStats) -> Handler:
        async def review(request: web.BaseRequest) -> Reply:
            body = await self._body(request, stats)
            if isinstance(body, Reply):
                return body
            reply = answer(body)
            if reply is None:
                await self._levels.wait_for_levels(LEVELS_WAIT_SECONDS)
                reply = answer(body)
            # Without the level rather than refused: while flavors cannot be listed, objects are created and gated.
            if reply is None:
                reply = reviewer.answer(body, Rulebook(self._rules(None)))
                stats.observe(reply.verdict, LEVELS_WAIT_SECONDS)
            return reply

        return review

    def _settings_reviews(self, reviewer: Reviewer, stats: PathStats) -> Handler:
        """Beside all other reviews, one at a time: reading settings takes longer than any of those."""
        alone = asyncio.Lock()

        async def review(request: web.BaseRequest) -> Reply:
            body = await self._body(request, stats)
            if isinstance(body, Reply):
                return body
            async with alone:
                start = self._clock.monotonic()
                # In a thread: checking settings takes longer than a hundred reviews, which would all wait for it.
                reply = await asyncio.to_thread(reviewer.answer, body, Rulebook(self._rules(None)))
                stats.observe(reply.verdict, self._clock.monotonic() - start)
            return reply

        return review

    async def _body(self, request: web.BaseRequest, stats: PathStats) -> bytes | Reply:
        """The body of a review; where it did not come, the answer that says so."""
        try:
            return await read_body(request, self._settings.webhook_max_body_bytes)
        except BodyTooLargeError:
            stats.observe(TOO_LARGE, 0.0)
            return text(413, f"the body is larger than {self._settings.webhook_max_body_bytes} bytes")
        except BodyBrokenError as error:
            stats.observe(MALFORMED, 0.0)
            return text(400, f"the body did not arrive whole: {error}")
        except TimeoutError:
            stats.observe(MALFORMED, 0.0)
            return BODY_LATE

    async def _healthz(self, _request: web.BaseRequest) -> Reply:
        return text(200, "ok")

    async def _readyz(self, _request: web.BaseRequest) -> Reply:
        missing = self.missing_parts()
        return text(503, f"not ready: {', '.join(missing)}") if missing else text(200, "ok")

    async def _metrics(self, request: web.BaseRequest) -> Reply:
        if self._access is not None:
            verdict = await self._access.check(request.headers.get("Authorization"))
            if verdict.status != 200:
                return text(verdict.status, verdict.text)
        return Reply(200, await asyncio.to_thread(self.metrics.render), "", CONTENT_TYPE)


async def serve(
    settings: "Settings",
    client: Client,
    *,
    hosts: Sequence[str] = (),
    stop: asyncio.Event | None = None,
    on_bound: Callable[[WebhookServer], None],
    options: CertificateOptions | None = None,
    clock: Clock = SYSTEM,
    source: SettingsSource | None = None,
) -> None:
    """Run the webhook until ``stop`` is set, drain, and return.

    ``hosts``: further names of the serving certificate. ``on_bound`` is called once the ports are open. ``options``:
    where certificates live, where that is not what the settings say. ``source``: what the settings were made of;
    None where that is no ConfigMap, and so nothing is looked at again. Raises OSError where a port is taken.
    """
    tls = ServerTls()
    levels = FlavorLevels(client, clock)

    def load(bundle: Bundle) -> None:
        tls.load(bundle.cert_pem, bundle.key_pem)

    def tell(about: ObjectReference, kind: str, reason: Reason, message: str) -> None:
        recorder.event(about, kind, reason, "Certificates", message)

    recorder = EventRecorder(client, COMPONENT, clock=clock)
    options = options or CertificateOptions.from_settings(settings, hosts)
    manager = CertificateManager(client, options, load, notify=tell, monotonic=clock.monotonic)
    server = WebhookServer(
        settings,
        levels,
        tls,
        conditions={
            "no certificate is loaded": lambda: tls.loaded,
            "the CA is not published": lambda: manager.published,
            "flavors and queues are not listed": lambda: levels.current_offer() is not None,
        },
        expiry=lambda: manager.bundle.not_after.timestamp() if manager.bundle is not None else None,
        access=(
            Access(by_api_server(client), clock.monotonic) if settings.metrics_authentication == "kubernetes" else None
        ),
        clock=clock,
    )
    async with server, asyncio.TaskGroup() as group:
        background = [group.create_task(each.run()) for each in (levels, manager, recorder)]
        if source is not None:
            background.append(group.create_task(SettingsWatch(client, settings.namespace, source, server).run()))
        on_bound(server)
        await (stop or asyncio.Event()).wait()
        await server.drain(settings.webhook_drain_seconds)
        # Only after the drain: until then certificates rotate, and flavors change.
        for task in background:
            task.cancel()
    await manager.withdraw_replica()  # only now is no certificate served any more

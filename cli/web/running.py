"""Running the page: of a cluster that is watched, or of files; and writing it into one file."""

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path

import msgspec
import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry

from certs.tls import ServerTls
from cli import snapshot
from cli.cluster.dump import Dump, live_objects, objects_of
from cli.output import Failure
from cli.reaching import INSPECT, not_installed
from cli.web.questions import ClusterQuestions
from cli.web.snapshot import ClusterSnapshot
from clock import SYSTEM, Clock
from crds.settings import Settings
from kube.client import Client
from kube.connection.config import described
from kube.connection.lean_aiohttp import aiohttp
from kube.errors import Forbidden, NotFound
from kube.workloads import WholeWorkload
from serving.server import own_tls, serving
from ungater import kinds
from web import export
from web.board import Board
from web.events import Events
from web.hub import Hub
from web.live import Live
from web.prometheus import Prometheus
from web.prometheus_api import PrometheusApi
from web.server import PageHandlers
from web.viewers.doors import LOCAL, Entrance
from web.viewers.rights import KeyRights, ReviewedRights, Rights

LOOK_SECONDS = 60.0  # between two looks at the files of a certificate
Stop = Callable[[], asyncio.Event]
Say = Callable[[str], None]

log = structlog.get_logger()


class Wish(msgspec.Struct, frozen=True):
    """How the page is served.

    ``key`` opens it; "": everybody logs in. ``certificate``: files of it and of its key. ``prometheus``: the URL of one
    that has the metrics, "": none; ``labels``: of this cluster's series there. ``cluster``: what to call the cluster.
    """

    host: str
    port: int
    names: tuple[str, ...] = ()
    key: str = ""
    certificate: tuple[Path, Path] | None = None
    health_port: int | None = None
    out: Path | None = None
    prometheus: str = ""
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    cluster: str = ""


def of_files(files: Sequence[str], settings: Settings) -> ClusterSnapshot:
    """A cluster of files. Raises Failure."""
    return ClusterSnapshot(objects_of(files), settings, ", ".join(Path(file).name for file in files))


def taken_now(
    kubeconfig: str | None, context: str | None, settings: Settings, clock: Clock = SYSTEM
) -> ClusterSnapshot:
    """The live cluster as it is now. Raises Failure."""
    found = snapshot.objects_of(kubeconfig, context)
    return ClusterSnapshot(live_objects(found), settings, "the cluster", clock.now())


def name_of(kubeconfig: str | None, context: str | None) -> str:
    """What a person calls the cluster: its context; "" in a pod, which has none. Raises ConfigError."""
    return described(kubeconfig, context).context


def write(out: Path, found: ClusterSnapshot, settings: Settings, clock: Clock = SYSTEM, cluster: str = "") -> None:
    """The page with all that it shows, as one file. Raises Failure where that cannot be written."""
    clock = found.clock(clock)
    questions = ClusterQuestions(found.reading, settings, clock)
    hub = Hub(found.board, clock, cluster or found.source)
    hub.history.take_sample(found.board, clock.now())
    try:
        out.write_bytes(export.page(hub, questions, found.inside_of_host))
    except OSError as error:
        raise Failure(f"cannot write {out}: {error.strerror}") from error


async def serve_files(
    found: ClusterSnapshot, settings: Settings, wish: Wish, stop: Stop, say: Say, clock: Clock = SYSTEM
) -> None:
    """Serve the page of files until ``stop``. Raises OSError where the port is taken."""
    clock = found.clock(clock)
    hub = Hub(found.board, clock, wish.cluster or found.source)
    hub.publish()
    hub.history.take_sample(found.board, clock.now())
    questions = ClusterQuestions(found.reading, settings, clock)
    page = PageHandlers(
        hub, KeyRights(wish.key), questions, inside=found.inside_of_host, heard=lambda: 0.0, keyed=True, clock=clock
    )
    async with AsyncExitStack() as stack:
        await _open(stack, page, wish, say, clock)
        await stop().wait()


async def serve_cluster(
    settings: Settings,
    wish: Wish,
    kubeconfig: str | None,
    context: str | None,
    stop: Stop,
    say: Say,
    clock: Clock = SYSTEM,
) -> None:
    """Serve the page of a live cluster until ``stop``. Raises OSError where a port is taken; KubeError."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(await Client.connect(kubeconfig, context))
        live = Live(client, settings.keys, clock)
        # Before anything is served: informers would try again for ever, and a person would see an empty page.
        for informer in live.informers.every:
            try:
                await client.raw("GET", informer.resource.path(), params={"limit": "1"})
            except Forbidden as error:
                raise Failure(f"{error}. This command reads the whole cluster: {INSPECT}") from error
            except NotFound as error:
                raise not_installed() from error
        rights: Rights = KeyRights(wish.key) if wish.key else ReviewedRights(client, clock.monotonic)
        questions = ClusterQuestions(partial(reading, live), settings, clock)
        events = Events(client, clock.monotonic)
        # The Prometheus that was named, where one was.
        if not wish.prometheus:
            past = None
        else:
            session = await stack.enter_async_context(
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=ssl.create_default_context()))
            )
            past = Prometheus(PrometheusApi(session, wish.prometheus, wish.labels), clock)
        ready = asyncio.Event()
        if wish.health_port is not None:
            own = settings.model_copy(update={"health_port": wish.health_port, "metrics_port": 0})
            health = serving(own, client, CollectorRegistry(), ready=ready.is_set, alive=lambda: True, clock=clock)
            await stack.enter_async_context(health)

        async def opened(board: Board) -> Hub:
            hub = Hub(board, clock, wish.cluster or name_of(kubeconfig, context))
            page = PageHandlers(
                hub,
                rights,
                questions,
                inside=live.inside_of_host,
                heard=live.silent_seconds,
                keyed=bool(wish.key),
                clock=clock,
                events=events.events_of_workload,
                past=past,
            )
            await _open(stack, page, wish, say, clock)
            # After the page is open: a Service sends browsers to pods that are ready.
            ready.set()
            return hub

        # Whichever ends first ends both: a feed that has failed must not leave a page that stands still.
        stopped = stop()
        tasks = [asyncio.ensure_future(live.run(opened)), asyncio.create_task(stopped.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done():
                tasks[0].result()
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def reading(live: Live) -> tuple[Dump, Sequence[WholeWorkload]]:
    """All that is known of the cluster now."""
    found = live.informers
    dump = Dump(
        # A dump copies: it is read in a thread while the informers go on writing.
        {kind: found.list_objects(kind) for kind in kinds.KINDS},
        version=live.version,
        unread=[kind for kind in kinds.OPTIONAL if not found.serves(kind)],
    )
    return dump, list(live.templates.store.values())


async def _open(stack: AsyncExitStack, page: PageHandlers, wish: Wish, say: Say, clock: Clock) -> None:
    """Serve the page for as long as the stack is open."""
    names = frozenset({*LOCAL, *wish.names})
    runner = web.AppRunner(page.application(names), access_log=None, keepalive_timeout=30.0, shutdown_timeout=1.0)
    await runner.setup()
    entrance = Entrance(runner)
    # Before it is opened: a port that is taken raises, and the runner has to be cleaned up all the same.
    stack.push_async_callback(entrance.close)
    # Plain for a person at his own machine; else with the certificate of the files, or one that signs itself.
    if wish.certificate is None:
        # Plain only for a loopback address, as the command has made sure.
        tls = None if wish.key else own_tls(clock.utc())
    else:
        renewed = ServerTls()
        loaded = _load(renewed, wish.certificate, b"")
        task = asyncio.create_task(_renew(renewed, wish.certificate, loaded))
        stack.callback(task.cancel)
        tls = renewed.context
    await entrance.open(wish.host, wish.port, tls)
    scheme = "https" if tls is not None else "http"
    host = f"[{wish.host}]" if ":" in wish.host else wish.host
    if wish.key:
        say(f"{scheme}://{host}:{entrance.port}/#key={wish.key}")
    else:
        log.info("serving", port=entrance.port, names=sorted(names))


def _load(tls: ServerTls, certificate: tuple[Path, Path], before: bytes) -> bytes:
    """Serve with what the files have; returns that. Raises Failure."""
    try:
        found, key = (path.read_bytes() for path in certificate)
        # Nothing has changed in most looks, and a new context ends the resumption of TLS sessions.
        if found + key != before:
            tls.load(found, key)
    except (OSError, ssl.SSLError) as error:
        raise Failure(f"--tls-certificate {certificate[0]}: {error}") from error
    return found + key


async def _renew(tls: ServerTls, certificate: tuple[Path, Path], loaded: bytes) -> None:
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        with suppress(Failure):  # half of a pair is there: what was served before is served on
            loaded = _load(tls, certificate, loaded)

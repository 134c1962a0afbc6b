"""The agent as a process: /healthz, /readyz and /metrics beside the cycle, until it is told to stop."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pynvml
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from agent.cycle import Agent
from agent.metrics import Metrics
from crds.settings import Settings
from kube.client import Client
from kube.events import EventRecorder

COMPONENT = "topogate-agent"


async def run(
    settings: Settings,
    client: Client,
    *,
    stop: asyncio.Event,
    on_port: Callable[[int], None] | None = None,
) -> None:
    """Run the agent until ``stop`` is set. Raises OSError where its port is taken."""
    metrics = Metrics()
    recorder = EventRecorder(client, COMPONENT)
    node = settings.agent_node_name or socket.gethostname().lower()
    agent = Agent(settings, client, node, nvml=pynvml, metrics=metrics, recorder=recorder)
    async with _serving(settings.bind_address, settings.health_port, metrics, agent) as port:
        if on_port is not None:
            on_port(port)
        tasks = [asyncio.create_task(agent.run()), asyncio.create_task(recorder.run())]
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
        for task in (*tasks, stopping):
            task.cancel()
        with suppress(asyncio.CancelledError):
            await tasks[1]
        with suppress(asyncio.CancelledError):
            await tasks[0]  # raises what ended it


@asynccontextmanager
async def _serving(address: str, port: int, metrics: Metrics, agent: Agent) -> AsyncIterator[int]:
    async def healthz(_: web.Request) -> web.Response:
        return _answer(agent.alive, "stuck")

    async def readyz(_: web.Request) -> web.Response:
        return _answer(agent.ready, "not ready")

    async def scrape(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", scrape)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, address, port)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def _answer(holds: bool, otherwise: str) -> web.Response:
    return web.Response(text="ok\n") if holds else web.Response(status=503, text=f"{otherwise}\n")

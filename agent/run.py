"""The agent as a process: /healthz, /readyz and /metrics beside the cycle, until it is told to stop."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

from agent.cycle import NodeAgent
from agent.machine.nvml import Nvml
from agent.metrics import AgentMetrics
from agent.settings import AgentSettings
from clock import SYSTEM, Clock
from kube.client import Client
from kube.events import EventRecorder
from serving.server import serving

COMPONENT = "topogate-agent"


async def run(
    settings: AgentSettings,
    client: Client,
    *,
    stop: asyncio.Event,
    on_port: Callable[[int], None] | None = None,
    clock: Clock = SYSTEM,
) -> None:
    """Run the agent until ``stop`` is set. Raises OSError where its port is taken."""
    metrics = AgentMetrics()
    recorder = EventRecorder(client, COMPONENT, clock=clock)
    node = settings.agent_node_name or socket.gethostname().lower()
    agent = NodeAgent(settings, client, node, nvml=Nvml(), metrics=metrics, recorder=recorder, clock=clock)
    async with serving(
        settings, client, metrics.registry, ready=lambda: agent.ready, alive=lambda: agent.alive, clock=clock
    ) as ports:
        if on_port is not None:
            on_port(ports.health)
        tasks = [asyncio.create_task(agent.run()), asyncio.create_task(recorder.run())]
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
        for task in (*tasks, stopping):
            task.cancel()
        with suppress(asyncio.CancelledError):
            # The recorder first: the line after this may raise, and its last events would be lost.
            await tasks[1]
        with suppress(asyncio.CancelledError):
            await tasks[0]  # raises what ended it

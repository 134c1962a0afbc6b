"""The agent's own process: what ``topogate agent`` becomes once it has read and checked what it was told.

One runs on every node for ever, so it imports nothing that a command line, a settings file or an administrator's
kubeconfig needs.
"""

import asyncio
import signal
import sys

import msgspec

from agent.run import run
from agent.settings import AgentSettings
from cli import logs
from kube.client import Client
from kube.connection.tls_buffers import shrink_tls_buffers
from kube.errors import ConfigError


class Task(msgspec.Struct, frozen=True):
    """What the process is told."""

    settings: AgentSettings
    kubeconfig: str | None = None
    context: str | None = None


def main(text: str) -> None:
    """Run the agent until SIGTERM, as a Task in JSON says.

    An error that a person can act on is one line, and exit status 1.
    """
    task = msgspec.json.decode(text, type=Task)
    # Before anything that could log: warnings of the client have to come as JSON too.
    logs.configure(task.settings)
    shrink_tls_buffers()
    try:
        asyncio.run(_run(task))
    except OSError as error:
        hint = "give another port with --health-port"
        sys.exit(f"Error: the agent cannot serve on port {task.settings.health_port}: {error.strerror}; {hint}")
    except ConfigError as error:
        sys.exit(f"Error: {error}")


async def _run(task: Task) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with await Client.connect(task.kubeconfig, task.context, pool_size=8) as client:
        await run(task.settings, client, stop=stop)

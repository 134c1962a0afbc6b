"""The controller's own process: what ``topogate ungater`` becomes once it has read and checked what it was told."""

import asyncio
import gc
import signal
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from cli import logs
from cli.run import plain_settings
from kube.client import Client
from kube.connection.tls_buffers import shrink_tls_buffers
from kube.errors import ConfigError
from serving.live_settings import SettingsSource
from ungater.process import run

if TYPE_CHECKING:
    from crds.settings import Settings


class UngaterTask(msgspec.Struct, frozen=True):
    """What the process is told; ``source``: what the settings were made of, where that is the ConfigMap."""

    settings: dict[str, Any]
    source: SettingsSource | None = None
    kubeconfig: str | None = None
    context: str | None = None


def main(text: str) -> None:
    """Run the controller until SIGTERM, as a UngaterTask in JSON says.

    An error that a person can act on is one line, and exit status 1.
    """
    task = msgspec.json.decode(text, type=UngaterTask)
    settings = plain_settings.settings(task.settings)
    logs.configure(settings)
    shrink_tls_buffers()
    try:
        asyncio.run(_run(settings, task))
    except OSError as error:
        hint = "give another port with --health-port"
        sys.exit(f"Error: the controller cannot serve on port {settings.health_port}: {error.strerror}; {hint}")
    except ConfigError as error:
        sys.exit(f"Error: {error}")


async def _run(settings: "Settings", task: UngaterTask) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        # A signal ends the term and gives the lease back; killed, the next leader waits for it to run out.
        loop.add_signal_handler(number, stop.set)
    async with await Client.connect(task.kubeconfig, task.context) as client:
        await run(settings, client, stop=stop, on_port=lambda _port: settle_heap(), source=task.source)


def settle_heap() -> None:
    """Keep full garbage collections from walking modules and decoders, and from coming often.

    What is cached are structs that the collector does not track; a decoder leaves nothing to collect behind.
    """
    # What is garbage now would be frozen with the rest, and never freed.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)

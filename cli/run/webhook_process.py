"""The webhook's own process: what ``topogate webhook`` becomes once it has read and checked what it was told."""

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
from webhook.server import serve

if TYPE_CHECKING:
    from crds.settings import Settings


class WebhookTask(msgspec.Struct, frozen=True):
    """What the process is told.

    ``source``: what the settings were made of, where that is the ConfigMap. ``names``: further ones of a webhook
    outside of the cluster, for its certificate.
    """

    settings: dict[str, Any]
    source: SettingsSource | None = None
    names: tuple[str, ...] = ()
    kubeconfig: str | None = None
    context: str | None = None


def main(text: str) -> None:
    """Run the webhook until SIGTERM, then drain, as a WebhookTask in JSON says.

    An error that a person can act on is one line, and exit status 1.
    """
    task = msgspec.json.decode(text, type=WebhookTask)
    settings = plain_settings.settings(task.settings)
    logs.configure(settings)
    shrink_tls_buffers()
    try:
        asyncio.run(_run(settings, task))
    except OSError as error:
        sys.exit(f"Error: the webhook cannot serve: {error}")
    except ConfigError as error:
        sys.exit(f"Error: {error}")


async def _run(settings: "Settings", task: WebhookTask) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with await Client.connect(task.kubeconfig, task.context) as client:
        await serve(
            settings, client, hosts=task.names, stop=stop, on_bound=lambda _server: _settle_heap(), source=task.source
        )


def _settle_heap() -> None:
    """Modules and decoders stay for good: keep full garbage collections from walking them."""
    # What is garbage now would be frozen with the rest, and never freed.
    gc.collect()
    gc.freeze()

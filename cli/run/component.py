"""A component's own process: what ``topogate webhook``, ``ungater`` or ``agent`` becomes once its settings are checked.

It runs for ever, the agent on every node. So it imports nothing that a command line, a settings file or an
administrator's kubeconfig needs, and of the components only itself.
"""

import asyncio
import gc
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec

from cli import logs
from crds.constants import Keys
from kube.client import Client
from kube.connection.tls_buffers import shrink_tls_buffers
from kube.connection.transport import POOL_SIZE
from kube.errors import ConfigError

if TYPE_CHECKING:
    from crds.settings import Settings


class ComponentTask(msgspec.Struct, frozen=True):
    """The task of the process.

    ``source``: what the settings were made of, where that is the ConfigMap (`serving.live_settings.SettingsSource`).
    ``names``: further ones of a webhook outside of the cluster, for its certificate.
    """

    settings: dict[str, Any]
    source: dict[str, Any] | None = None
    names: tuple[str, ...] = ()
    kubeconfig: str | None = None
    context: str | None = None


Run = Callable[..., Awaitable[None]]  # with settings, a client, and the event that stops it


class ComponentRow(NamedTuple):
    """One component.

    ``load`` imports it: its settings, and what runs it. ``title``: what errors call it. ``connections``: of its client.
    ``ports``: whether it has several, so that an error has to say which is taken.
    """

    title: str
    load: Callable[[ComponentTask], tuple[Any, Run]]
    connections: int = POOL_SIZE
    ports: bool = False


def _load_webhook(task: ComponentTask) -> tuple[Any, Run]:
    from serving.live_settings import SettingsSource
    from webhook.server import serve

    source = msgspec.convert(task.source, SettingsSource | None)
    settle = partial(settle_heap, seldom=False)
    return plain_settings(task.settings), partial(serve, hosts=task.names, on_bound=lambda _: settle(), source=source)


def _load_ungater(task: ComponentTask) -> tuple[Any, Run]:
    from serving.live_settings import SettingsSource
    from ungater.process import run

    source = msgspec.convert(task.source, SettingsSource | None)
    return plain_settings(task.settings), partial(run, on_port=lambda _: settle_heap(), source=source)


def _load_agent(task: ComponentTask) -> tuple[Any, Run]:
    from agent.run import run
    from agent.settings import AgentSettings

    return msgspec.convert(task.settings, AgentSettings), run


COMPONENTS: Final[Mapping[str, ComponentRow]] = MappingProxyType(
    {
        "webhook": ComponentRow("webhook", _load_webhook, ports=True),
        "ungater": ComponentRow("controller", _load_ungater),
        "agent": ComponentRow("agent", _load_agent, connections=8),
    }
)


def main(component: str, text: str) -> None:
    """Run a component until SIGTERM, as a ComponentTask in JSON says.

    An error that a person can act on is one line, and exit status 1.
    """
    row, task = COMPONENTS[component], msgspec.json.decode(text, type=ComponentTask)
    settings, run = row.load(task)
    # Before anything that could log: warnings of the client have to come as JSON too.
    logs.configure(settings)
    shrink_tls_buffers()
    try:
        asyncio.run(_run(task, row, partial(run, settings)))
    except OSError as error:
        where = f" on port {settings.health_port}: {error.strerror}; give another port with --health-port"
        sys.exit(f"Error: the {row.title} cannot serve{f': {error}' if row.ports else where}")
    except ConfigError as error:
        sys.exit(f"Error: {error}")


async def _run(task: ComponentTask, row: ComponentRow, run: Run) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        # A signal ends the controller's term and gives the lease back; killed, the next leader waits for it to run out.
        loop.add_signal_handler(number, stop.set)
    async with await Client.connect(task.kubeconfig, task.context, pool_size=row.connections) as client:
        await run(client, stop=stop)


def settle_heap(*, seldom: bool = True) -> None:
    """Keep full garbage collections from walking modules and decoders, and (``seldom``) from coming often.

    What is cached are structs that the collector does not track; a decoder leaves nothing to collect behind.
    """
    # What is garbage now would be frozen with the rest, and never freed.
    gc.collect()
    gc.freeze()
    if seldom:
        gc.set_threshold(50_000, 20, 100)


# --- settings --------------------------------------------------------------------------------------------------------


class _PlainSettings(msgspec.Struct, frozen=True):
    """Settings with what is derived of them; the fields come with the task."""

    domain: str

    @property
    def keys(self) -> Keys:
        """Labels, annotations and gate under the configured domain."""
        return Keys(self.domain)


def plain_settings(values: Mapping[str, Any]) -> "Settings":
    """The settings whose plain values are told, as ``Settings.model_dump(mode="json")`` gives them.

    What reads and checks settings (`crds.settings`) takes 10 MiB of libraries.
    """
    # A setting that is a table by names of users' own, as of resources, stays one.
    plain = {name: value if isinstance(value, dict) else _as_plain_value(value) for name, value in values.items()}
    names = [name for name in plain if name != "domain"]
    return cast(
        "Settings", msgspec.defstruct("Settings", names, bases=(_PlainSettings,), frozen=True, kw_only=True)(**plain)
    )


def _as_plain_value(value: Any) -> Any:
    """Lists are tuples, and what has fields is read by their names, as in the settings themselves."""
    if isinstance(value, list):
        # A list could be changed by whoever has it, and not be hashed.
        return tuple(map(_as_plain_value, value))
    if isinstance(value, dict):
        made = msgspec.defstruct("Setting", list(value), frozen=True)
        return made(**{name: _as_plain_value(inner) for name, inner in value.items()})
    return value

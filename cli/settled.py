"""The settings of a component: those of its file; beside a cluster, where there is none, those of the installation.

One that started with defaults instead would look for other annotations, gates and queues than all others do. Where the
settings are wrong, the last good ones count, and a line says so.
"""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from cli.output import Failure
from clock import SYSTEM
from crds.settings import (
    CONFIG_KEY,
    CONFIG_MAP,
    CONFIG_PATH,
    LAST_GOOD_KEY,
    ReadSettings,
    Settings,
    SettingsError,
    from_mapping,
    load,
    load_good,
    read_good,
)

AGAIN_SECONDS = 1.0
FORBIDDEN_SECONDS = 15.0  # an API server that starts knows no roles for a moment, and forbids everything meanwhile

log = structlog.get_logger()


class Settled(NamedTuple):
    """The settings; where they are those of the ConfigMap, its text, and what the command line says on top."""

    settings: Settings
    source: dict[str, Any] | None


def settled(
    config: Path | None,
    given: Mapping[str, Any],
    kubeconfig: str | None,
    context: str | None,
    *,
    patient: bool = True,
) -> Settled:
    """The settings, with what was ``given`` on the command line. Raises Failure.

    While the API server cannot be reached a component waits for it. A command of a person (not ``patient``) says so
    at once, unless it runs in a pod, where nobody is there to read it.
    """
    path = config or Path(CONFIG_PATH)
    changes = {name: value for name, value in given.items() if value is not None}
    try:
        # A named file that is missing is an error; the default one may be absent outside of a cluster.
        if config is not None or path.exists():
            found = load_good(path, os.environ)
        else:
            found = asyncio.run(_installed(kubeconfig, context, patient=patient))
        settings = found.settings
        if changes:
            # Through the checks again: a flag may contradict what the file says.
            settings = from_mapping({**settings.model_dump(), **changes}, source="command line")
    except SettingsError as error:
        raise Failure(str(error)) from error
    if found.problem:
        log.warning("settings are refused, the last good ones count", error=found.problem)
    # Only the ConfigMap is watched for new settings, in a pod by its mount; another file is a person's own.
    return Settled(settings, {"text": found.text, "given": changes} if path == Path(CONFIG_PATH) else None)


async def _installed(kubeconfig: str | None, context: str | None, *, patient: bool) -> ReadSettings:
    """What the installation's ConfigMap says, and the environment on top; defaults where nothing is installed."""
    # Late, so that --help and a wrong setting answer at once.
    from cli.reaching import failure
    from kube.client import Client
    from kube.connection.config import in_pod
    from kube.errors import (
        ConfigError,
        ConnectionFailed,
        Forbidden,
        KubeError,
        KubeTimeout,
        NotFound,
        ServerError,
        Unauthorized,
    )
    from kube.resources import CONFIG_MAPS

    namespace = load().namespace
    name = f"ConfigMap {namespace}/{CONFIG_MAP}"
    try:
        client = await Client.connect(kubeconfig, context, pool_size=1)
    except ConfigError as error:
        raise Failure(str(error)) from error
    async with client:
        began = SYSTEM.monotonic()
        while True:
            try:
                found = await client.get(CONFIG_MAPS, CONFIG_MAP, namespace)
            except NotFound:
                # Nothing is installed yet: the component may be started first.
                return ReadSettings(load(), "")
            except Forbidden as error:
                if SYSTEM.monotonic() - began < FORBIDDEN_SECONDS:
                    await asyncio.sleep(AGAIN_SECONDS)
                    continue
                hint = "let it be read, or give the same settings with --config FILE"
                raise Failure(
                    f"the settings are in {name}, which this account may not read: {error}; {hint}"
                ) from error
            except (ConnectionFailed, KubeTimeout, ServerError) as error:
                if not patient and not in_pod(kubeconfig, context):
                    raise failure(error, kubeconfig, context) from error
                log.warning("settings cannot be read yet", source=name, server=client.connection.url, error=str(error))
                await asyncio.sleep(AGAIN_SECONDS)
            except Unauthorized as error:
                raise failure(error, kubeconfig, context) from error
            except KubeError as error:
                raise Failure(f"the settings in {name} cannot be read: {error}") from error
            else:
                data, source = found.get("data") or {}, f"{name}, key {CONFIG_KEY}"
                return read_good(data.get(CONFIG_KEY, ""), data.get(LAST_GOOD_KEY), source=source, env=os.environ)

"""The Topogate that is installed in a cluster, for commands that decide as it does: whether it is, and its settings."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from cli.cluster.leader import absence
from cli.output import Failure, stderr
from cli.reaching import not_installed
from crds.constants import NAMESPACE
from crds.settings import (
    CONFIG_KEY,
    CONFIG_MAP,
    LAST_GOOD_KEY,
    ReadSettings,
    Settings,
    SettingsError,
    read_good,
    right_parts,
)
from kube.client import Client
from kube.errors import Forbidden, KubeError, NotFound
from kube.lease import Lease
from kube.resources import CONFIG_MAPS, LEASES, MUTATING_WEBHOOKS, RESOURCE_FLAVORS
from manifests.render import LEASE, WEBHOOK_CONFIGURATION

KINDS_ALONE: Final = (
    "of Topogate only the kinds are installed, so nobody places or releases what waits: `topogate install` has that "
    "done again, and `topogate uninstall --ungate` releases pods that still wait"
)


async def settings_with_warning(client: Client) -> Settings:
    """The settings in use. Where nobody acts on what the command tells of, that is said first, on stderr.

    It costs no time: the Lease is read meanwhile. Without the right to read it, nothing is said.
    """
    # Read together; the warning comes before anything else on the terminal.
    found, why = await asyncio.gather(settings(client), _absence(client))
    # Without an election there is no Lease, and under another name it is another one.
    if why and found.leader_election and found.lease_name == LEASE:
        stderr().print(f"Warning: {why}", style="yellow", soft_wrap=True)
    return found


async def _absence(client: Client) -> str:
    lease = None
    try:
        lease = await client.get(LEASES, LEASE, NAMESPACE, type=Lease)
    except NotFound:
        try:
            # A missing Lease alone means that the controller has not started yet. Without the webhook nothing is
            # installed.
            await client.get(MUTATING_WEBHOOKS, WEBHOOK_CONFIGURATION)
        except NotFound:
            return KINDS_ALONE
        except KubeError:
            pass
    except KubeError:
        return ""
    # By the API server's clock: this machine's may be wrong by more than a Lease lasts.
    why = absence(lease, client.server_time())
    return f"{why}: `topogate doctor` says more" if why else ""


async def settings(client: Client) -> Settings:
    """The settings in use, from the installed configuration; defaults where it cannot be read."""
    try:
        found = await client.get(CONFIG_MAPS, CONFIG_MAP, NAMESPACE)
    except KubeError:
        return Settings()
    read = in_use(found, NAMESPACE)
    if read.problem:
        line = f"Warning: {read.problem}; the last good settings count (`topogate doctor` says more)"
        stderr().print(line, style="yellow", soft_wrap=True)
    return read.settings


def in_use(config_map: Mapping[str, Any], namespace: str) -> ReadSettings:
    """The settings that count: those of the ConfigMap, else the last good ones, else what of them is right."""
    data = config_map.get("data") or {}
    text, source = data.get(CONFIG_KEY, ""), f"ConfigMap {namespace}/{CONFIG_MAP}, key {CONFIG_KEY}"
    try:
        # The environment is that of this terminal and not of the components.
        return read_good(text, data.get(LAST_GOOD_KEY), source=source, env=None)
    except SettingsError as error:
        return ReadSettings(right_parts(text), text, str(error))


async def require(client: Client) -> None:
    """Raises Failure where Topogate is not installed; KubeError. Whoever may not ask is told what he may see."""
    try:
        # One object at most: the answer's status is all that is wanted.
        await client.raw("GET", RESOURCE_FLAVORS.path(), params={"limit": "1"})
    except NotFound as error:
        raise not_installed() from error
    except Forbidden:
        pass


def no_topology() -> Failure:
    """There is no flavor with a topology."""
    return Failure(
        "no ResourceFlavor has a topology (spec.topology), so there are no domains: `topogate install --topology auto` "
        "makes one of the labels that the nodes carry"
    )

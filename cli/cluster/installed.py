"""The Topogate that is installed in a cluster, for commands that decide as it does: whether it is, and its settings."""

import yaml

from cli.output import Failure
from cli.reaching import not_installed
from crds import settings as configuration
from crds.constants import NAMESPACE
from kube.client import Client
from kube.errors import Forbidden, KubeError, NotFound
from kube.resources import CONFIG_MAPS, RESOURCE_FLAVORS


async def settings(client: Client) -> configuration.Settings:
    """The settings in use, from the installed configuration; defaults where it cannot be read."""
    try:
        data = await client.get(CONFIG_MAPS, "topogate-config", NAMESPACE)
    except KubeError:
        return configuration.Settings()
    return configuration.from_mapping(yaml.safe_load(data["data"]["config.yaml"]) or {})


async def require(client: Client) -> None:
    """Raises Failure where Topogate is not installed; KubeError. Whoever may not ask is told what he may see."""
    try:
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

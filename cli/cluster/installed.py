"""The settings of the Topogate that is installed in a cluster, for commands that decide as it does."""

import yaml

from crds import settings as configuration
from crds.constants import NAMESPACE
from kube.client import Client
from kube.errors import KubeError
from kube.resources import CONFIG_MAPS


async def settings(client: Client) -> configuration.Settings:
    """The settings in use, from the installed configuration; defaults where it cannot be read."""
    try:
        data = await client.get(CONFIG_MAPS, "topogate-config", NAMESPACE)
    except KubeError:
        return configuration.Settings()
    return configuration.from_mapping(yaml.safe_load(data["data"]["config.yaml"]) or {})

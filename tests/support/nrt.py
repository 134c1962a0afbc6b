"""The CRD of NodeResourceTopology, which a cluster may or may not have."""

from pathlib import Path

import yaml
from support.jobs import until

from clock import SYSTEM
from kube.client import Client
from kube.errors import NotFound
from kube.resources import CUSTOM_RESOURCE_DEFINITIONS, NODE_RESOURCE_TOPOLOGIES
from ungater.optional import Discovery

CRD = yaml.safe_load((Path(__file__).parents[1] / "data" / "nrt-crd.yaml").read_text())
NAME = CRD["metadata"]["name"]


async def install_nrt(client: Client) -> None:
    await client.apply(CUSTOM_RESOURCE_DEFINITIONS, CRD, field_manager="test")
    await until(lambda: _served(client), "NodeResourceTopology to be served")


async def remove_nrt(client: Client) -> None:
    """Remove it with all its objects, and wait until it is no longer served."""
    try:
        await client.delete(CUSTOM_RESOURCE_DEFINITIONS, NAME)
    except NotFound:
        return

    async def gone() -> bool:
        try:
            await client.get(CUSTOM_RESOURCE_DEFINITIONS, NAME)
        except NotFound:
            return not await _served(client)
        return False

    await until(gone, "NodeResourceTopology to be gone")


async def _served(client: Client) -> bool:
    return await Discovery(client, SYSTEM).serves(NODE_RESOURCE_TOPOLOGIES, 0.0, surely=True)

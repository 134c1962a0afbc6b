"""The settings of the Topogate that is installed in a cluster, for commands that decide as it does."""

import yaml

from crds import settings as configuration
from crds.constants import NAMESPACE
from crds.preemption import victim_rules
from kube.client import Client
from kube.errors import KubeError
from kube.resources import CONFIG_MAPS
from queueing.model import Rules


async def settings(client: Client) -> configuration.Settings:
    """The settings in use, from the installed configuration; defaults where it cannot be read."""
    try:
        data = await client.get(CONFIG_MAPS, "topogate-config", NAMESPACE)
    except KubeError:
        return configuration.Settings()
    return configuration.from_mapping(yaml.safe_load(data["data"]["config.yaml"]) or {})


def rules(found: configuration.Settings) -> Rules:
    """What holds for all queues under these settings."""
    return Rules(
        patience=found.queue_patience_seconds,
        fair=found.fair_sharing,
        victims=victim_rules(found),
        pods=found.preempt_plain_pods,
        override=found.reclaim_overrides_budgets,
    )

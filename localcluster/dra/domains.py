"""A stand-in for NVIDIA's driver of ComputeDomains (``compute-domain.nvidia.com``).

It publishes what the driver does: a channel and a daemon's device of each machine. Its controller is
`channel_template`, and the plugins of all nodes together are `settle`: they label a node with the domain whose channel
is in use there. A domain is no more than its uid, and has no daemons.
"""

import uuid
from typing import Any

from kube.client import Client
from kube.patches import PatchType
from kube.resources import NODES, RESOURCE_CLAIMS

DOMAIN_DRIVER = "compute-domain.nvidia.com"
CHANNEL_CLASS = "compute-domain-default-channel.nvidia.com"
DAEMON_CLASS = "compute-domain-daemon.nvidia.com"
DOMAIN_LABEL = "resource.nvidia.com/computeDomain"
CLIQUE_LABEL = "nvidia.com/gpu.clique"
_CHANNEL = "channel"

Json = dict[str, Any]


def domain_devices() -> list[Json]:
    """Of one machine."""
    return [
        {"name": f"{kind}-0", "attributes": {"type": {"string": kind}, "id": {"int": 0}}}
        for kind in (_CHANNEL, "daemon")
    ]


def clique(block: str, rack: str) -> str:
    """The label of a rack's machines: ``<ClusterUUID>.<CliqueID>``."""
    return f"{uuid.uuid5(uuid.NAMESPACE_DNS, block)}.{rack}"


def channel_template(name: str, domain: str) -> Json:
    """The ResourceClaimTemplate that the controller makes for the ComputeDomain with this uid."""
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomainChannelConfig", "domainID": domain}
    devices = {
        "requests": [{"name": _CHANNEL, "exactly": {"deviceClassName": CHANNEL_CLASS}}],
        "config": [{"requests": [_CHANNEL], "opaque": {"driver": DOMAIN_DRIVER, "parameters": parameters}}],
    }
    return {"metadata": {"name": name}, "spec": {"spec": {"devices": devices}}}


async def settle(client: Client) -> dict[str, str]:
    """Label each node with the domain whose channel is in use there, no other; the domains by node.

    Raises RuntimeError where a node would be of two: the plugin prepares no second one. Raises kube.errors.KubeError.
    """
    wanted: dict[str, str] = {}
    for claim in await client.list(RESOURCE_CLAIMS):
        for node, domain in _used(claim):
            # Two claims on one node: the plugin prepares the first and fails the second.
            if wanted.setdefault(node, domain) != domain:
                raise RuntimeError(f"node {node} is of ComputeDomain {wanted[node]}, and a claim there is of {domain}")
    for found in await client.list(NODES):
        name, has = found["metadata"]["name"], found["metadata"].get("labels", {}).get(DOMAIN_LABEL)
        # Before any label of this node is written. The real plugin fails here too, until the old claim is unprepared.
        if has is not None and name in wanted and has != wanted[name]:
            raise RuntimeError(f"node {name} is of ComputeDomain {has}, and a claim there is of {wanted[name]}")
        if has != wanted.get(name):
            # None removes the label in a merge patch.
            body = {"metadata": {"labels": {DOMAIN_LABEL: wanted.get(name)}}}
            await client.patch(NODES, name, body=body, content_type=PatchType.MERGE)
    return wanted


def _used(claim: Json) -> list[tuple[str, str]]:
    """(node, domain) for each channel that a claim has."""
    devices = claim.get("status", {}).get("allocation", {}).get("devices", {})
    configs = (one.get("opaque", {}) for one in devices.get("config", ()))
    domain = next((one["parameters"]["domainID"] for one in configs if one.get("driver") == DOMAIN_DRIVER), "")
    results = [one for one in devices.get("results", ()) if one["driver"] == DOMAIN_DRIVER]
    return [(one["pool"], domain) for one in results if one["device"].startswith(_CHANNEL)]

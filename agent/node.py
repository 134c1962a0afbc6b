"""The Node object, as far as the agent reads it: the kubelet's version, and how many devices it counts."""

from typing import Any

from kube.objects import Object, Quantities, Struct
from kube.resources import NODES

_OWN = ("kubernetes.io/", "hugepages-", "attachable-volumes-")


class OwnNodeInfo(Struct, frozen=True):
    """What the kubelet says of itself."""

    kubelet_version: str = ""


class OwnNodeStatus(Struct, frozen=True):
    """Node status."""

    capacity: Quantities | None = None
    node_info: OwnNodeInfo = OwnNodeInfo()


class OwnNode(Object, frozen=True):
    """A node."""

    status: OwnNodeStatus = OwnNodeStatus()


def version(node: OwnNode) -> str:
    """The kubelet's version; "" where it does not say."""
    return node.status.node_info.kubelet_version


def capacity(node: OwnNode) -> dict[str, int]:
    """Devices by resource, unhealthy ones included."""
    counts = {name: str(amount) for name, amount in (node.status.capacity or {}).items()}
    return {
        name: int(amount)
        for name, amount in counts.items()
        # Devices come in whole numbers; what has a unit or a fraction is something else under a name with a domain.
        if "/" in name and not name.startswith(_OWN) and amount.isascii() and amount.isdigit()
    }


def owner(node: OwnNode) -> dict[str, Any]:
    """The owner reference to the node, for what goes with it."""
    return {"apiVersion": NODES.api_version, "kind": NODES.kind, "name": node.metadata.name, "uid": node.metadata.uid}

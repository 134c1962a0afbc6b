"""Simulated nodes (KWOK), whose pods run nothing: components of Topogate that run there would never answer."""

from collections.abc import Sequence
from typing import Final

from cli.output import Failure
from kube.client import Client
from kube.objects import Node
from kube.resources import NODES

MARK: Final = "kwok.x-k8s.io/node"  # an annotation of what KWOK manages by default, or a label of the same name
KWOK: Final = ("type", "kwok")  # the label of nodes that ``kwokctl scale node`` makes
WEBHOOK_URL: Final = "https://127.0.0.1:9443"  # where `topogate webhook` listens on the machine of a local cluster


def is_simulated(node: Node) -> bool:
    """Whether nothing runs on the node."""
    labels, (key, value) = node.metadata.labels or {}, KWOK
    return MARK in (node.metadata.annotations or {}) or MARK in labels or labels.get(key) == value


def all_simulated(nodes: Sequence[Node]) -> bool:
    """Whether there are nodes, and none on which anything runs."""
    # A cluster without nodes is one that grows from zero, not a simulated one.
    return bool(nodes) and all(map(is_simulated, nodes))


def install_command(webhook_url: str) -> str:
    """The command that installs Topogate, or brings it up to date; ``webhook_url`` empty: inside of the cluster."""
    return f"topogate install --out-of-cluster --webhook-url {webhook_url}" if webhook_url else "topogate install"


async def require_nodes_that_run_pods(client: Client, topology: str) -> None:
    """Raises Failure where all nodes are simulated; ``topology``: what ``--topology`` says."""
    nodes = await client.list(NODES, type=Node)
    if not all_simulated(nodes):
        return
    command = install_command(WEBHOOK_URL) + (f" --topology {topology}" if topology else "")
    raise Failure(
        f"the {len(nodes)} nodes of this cluster are simulated (KWOK): pods of Topogate would run nothing on them, and "
        f"its webhook would never answer. Type `{command}`, and start `topogate webhook` and `topogate ungater` on "
        "this machine: docs/tutorial-admin.md, Install. With --no-wait the objects are applied nevertheless"
    )

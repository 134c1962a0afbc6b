"""``topogate install --topology``: the flavor that one word makes of the nodes' labels."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from cli.install import installation
from cli.install.steps import Step
from cli.output import Failure
from cli.topology.choice import Choice, check, choose
from cli.topology.survey import labelled
from crds.constants import API_VERSION
from crds.names import is_object_name
from kube.client import Client
from kube.errors import NotFound
from kube.objects import Node, ResourceFlavor
from kube.resources import NODES, RESOURCE_FLAVORS


def group_of(text: str) -> dict[str, str]:
    """``KEY=VALUE,KEY=VALUE`` of ``--nodes``. Raises Failure."""
    found: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = (each.strip() for each in part.partition("="))
        if not key or not equals:
            raise Failure(f"--nodes {text!r}: expected KEY=VALUE, the label of the nodes that are meant")
        found[key] = value
    return found


def named(text: str) -> str:
    """What ``--flavor`` says; empty: nothing. Raises Failure before anything is applied."""
    if text and not is_object_name(text):
        raise Failure(f"--flavor {text}: expected lower-case letters, digits, dashes and dots, as in h100-east")
    return text


def meant(text: str | None) -> str:
    """What ``--topology`` says; None: nothing, which becomes "". Raises Failure before anything is looked at."""
    if text is not None:
        check(text)
    return text or ""


async def planned(client: Client, text: str, name: str, group: Mapping[str, str]) -> tuple[Choice, dict[str, Any]]:
    """What the word means on the nodes of the cluster, and the flavor. Raises Failure where it cannot be made."""
    choice = choose(labelled(await client.list(NODES, type=Node)), text, group)
    name = name or ("nodes" if choice.word == "labels" else choice.word)
    kept = await _check(client, name, choice)
    topology: dict[str, Any] = {"levels": [level.key for level in choice.levels], "names": {**choice.names, **kept}}
    body = {
        "apiVersion": API_VERSION,
        "kind": "ResourceFlavor",
        "metadata": {"name": name},
        "spec": {"nodeLabels": choice.group, "topology": topology},
    }
    return choice, body


async def applied(client: Client, body: dict[str, Any], *, dry_run: bool) -> Step:
    """Make the flavor. In a dry run before the kinds are there it cannot be tried."""
    if dry_run and not await _flavors(client):
        return Step(body["kind"], body["metadata"]["name"], "", "created", dry_run)
    return await anext(installation.apply(client, [body], dry_run=dry_run))


async def there(client: Client) -> dict[str, Any] | None:
    """A flavor with a topology that exists, as far as it is needed to say what jobs may ask for; None without one."""
    found = [one.spec.topology for one in await _flavors(client) if one.spec.topology and one.spec.topology.levels]
    return {"spec": {"topology": {"names": found[0].names or {}, "levels": list(found[0].levels)}}} if found else None


async def _flavors(client: Client) -> list[ResourceFlavor]:
    try:
        return await client.list(RESOURCE_FLAVORS, type=ResourceFlavor)
    except NotFound:
        return []  # the kinds are not there yet


async def _check(client: Client, name: str, choice: Choice) -> Mapping[str, str]:
    """A flavor keeps its levels, and two of the same nodes would count them twice. The names that it has to keep."""
    kept: Mapping[str, str] = {}
    levels = tuple(level.key for level in choice.levels)
    for one in await _flavors(client):
        topology, labels = one.spec.topology, one.spec.node_labels or {}
        if topology is None or not topology.levels:
            continue
        if one.metadata.name == name and topology.levels != levels:
            raise Failure(
                f"ResourceFlavor {name} exists with the levels {', '.join(topology.levels)}, and a flavor keeps its "
                f"levels: choose another name (--flavor) and other nodes (--nodes), or delete it first"
            )
        if one.metadata.name == name:
            kept = topology.names or {}
        elif all(choice.group.get(key, value) == value for key, value in labels.items()):
            raise Failure(
                f"ResourceFlavor {one.metadata.name} may have the same nodes already (nodeLabels {_pairs(labels)}), "
                f"and would count them twice: leave --topology away, take --flavor {one.metadata.name}, or tell "
                f"the nodes apart by --nodes KEY=VALUE"
            )
    return kept


def shown(choice: Choice, flavor: str) -> Group:
    """What was found, for a person."""
    table = Table(box=None, pad_edge=False)
    for name in ("LEVEL", "ASK FOR IT BY", "NODES", "DOMAINS", "NODES A DOMAIN"):
        table.add_column(name, justify="left" if name in {"LEVEL", "ASK FOR IT BY"} else "right", no_wrap=True)
    for level, found, domains in zip(choice.levels, choice.found, choice.domains, strict=True):
        names = ", ".join(level.names)
        table.add_row(level.key, names, f"{found.carried}/{found.nodes}", str(len(domains.values)), domains.sizes)
    what = f" with {', '.join(choice.accelerators)}" if choice.accelerators else ", none with accelerators"
    head = f"Topology of {choice.nodes} nodes{what}: {choice.title}"
    notes = [Text(f"Left out: {line}") for line in choice.left_out]
    notes += [Text(f"Note: {line}") for line in choice.notes]
    notes += [Text(f"Warning: {line}", style="yellow") for line in choice.warnings]
    return Group(Text(head), table, *notes, Text(f"Nodes of ResourceFlavor {flavor}: {_pairs(choice.group)}"))


def _pairs(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in labels.items())

"""``topogate install --topology``: the flavor that one word makes of the nodes' labels."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.text import Text

from cli.cluster import installed
from cli.install import installation
from cli.install.steps import InstallStep
from cli.output import Failure, plain_table
from cli.topology.choice import LevelChoice, check, choose
from cli.topology.survey import labelled, with_verb
from crds.constants import API_VERSION
from crds.names import is_object_name
from kube.client import Client
from kube.errors import NotFound
from kube.objects import FlavorTopology, Node, ResourceFlavor
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


def parse_flavor(text: str) -> str:
    """What ``--flavor`` says; empty: nothing. Raises Failure before anything is applied."""
    if text and not is_object_name(text):
        raise Failure(f"--flavor {text}: expected lower-case letters, digits, dashes and dots, as in h100-east")
    return text


def meant(text: str | None) -> str:
    """What ``--topology`` says; None: nothing, which becomes "". Raises Failure before anything is looked at."""
    if text is not None:
        check(text)
    return text or ""


async def planned(client: Client, text: str, name: str, group: Mapping[str, str]) -> tuple[LevelChoice, dict[str, Any]]:
    """What the word means on the nodes of the cluster, and the flavor. Raises Failure where it cannot be made."""
    nodes = labelled(await client.list(NODES, type=Node))
    choice = choose(nodes, text, group)
    name = name or ("nodes" if choice.word == "labels" else choice.word)
    flavors = [one for one in await _flavors(client) if one.spec.topology and one.spec.topology.levels]
    # A flavor keeps its levels, and two of the same nodes would count them twice. The names that it has to keep.
    kept: Mapping[str, str] = {}
    levels = tuple(level.key for level in choice.levels)
    for one in flavors:
        its_topology, labels = one.spec.topology or FlavorTopology(), one.spec.node_labels or {}
        if one.metadata.name == name and its_topology.levels != levels:
            raise Failure(
                f"ResourceFlavor {name} exists with the levels {', '.join(its_topology.levels)}, and a flavor keeps "
                f"its levels: choose another name (--flavor) and other nodes (--nodes), or delete it first"
            )
        if one.metadata.name == name:
            kept = its_topology.names or {}
            continue
        both = [node.name for node in nodes if {**labels, **choice.group}.items() <= node.labels.items()]
        # One key with two values: no node can be of both flavors, now or later.
        contradict = any(choice.group.get(key, value) != value for key, value in labels.items())
        if both and not contradict:
            raise Failure(
                f"{with_verb(both, 'is', 'are')} of ResourceFlavor {one.metadata.name} already (nodeLabels "
                f"{_pairs(labels)}), and would count twice: leave --topology away, take --flavor {one.metadata.name}, "
                f"or say which other nodes are meant by --nodes KEY=VALUE"
            )
        if not contradict:
            choice.notes.append(
                f"no node is of ResourceFlavor {one.metadata.name} ({_pairs(labels)}) too; one with the labels of both "
                "would count twice"
            )
    queued = (await installed.settings(client)).require_queue
    # Names that the flavor has already win: jobs may ask by them.
    names = {**_free_words(flavors, name, choice, queued=queued), **kept}
    topology: dict[str, Any] = {"levels": [level.key for level in choice.levels], "names": names}
    body = {
        "apiVersion": API_VERSION,
        "kind": "ResourceFlavor",
        "metadata": {"name": name},
        "spec": {"nodeLabels": choice.group, "topology": topology},
    }
    return choice, body


async def applied(client: Client, body: dict[str, Any], *, dry_run: bool) -> InstallStep:
    """Make the flavor. In a dry run before the kinds are there it cannot be tried."""
    # No flavors and no kind look alike here; in both cases it would be created.
    if dry_run and not await _flavors(client):
        return InstallStep(body["kind"], body["metadata"]["name"], "", "created", dry_run)
    return await anext(installation.apply(client, [body], dry_run=dry_run))


async def existing_flavor(client: Client) -> dict[str, Any] | None:
    """A flavor with a topology that exists, as far as it is needed to say what jobs may ask for; None without one."""
    found = [one.spec.topology for one in await _flavors(client) if one.spec.topology and one.spec.topology.levels]
    return {"spec": {"topology": {"names": found[0].names or {}, "levels": list(found[0].levels)}}} if found else None


async def _flavors(client: Client) -> list[ResourceFlavor]:
    try:
        return await client.list(RESOURCE_FLAVORS, type=ResourceFlavor)
    except NotFound:
        return []  # the kinds are not there yet


def _free_words(flavors: Sequence[ResourceFlavor], name: str, choice: LevelChoice, *, queued: bool) -> dict[str, str]:
    """The names of the levels but those that mean another level elsewhere: Jobs without a queue would be refused.

    ``queued``: all Jobs have a queue, in which a name means a level of its flavors.
    """
    words = dict(choice.names)
    for one in flavors:
        for word, level in ((one.spec.topology or FlavorTopology()).names or {}).items():
            if queued or one.metadata.name == name or words.get(word, level) == level:
                continue
            # Without a queue a Job cannot say which flavor it means, so an ambiguous word is refused for all.
            key = words.pop(word)
            others = [f'"{other}"' for other, meant in words.items() if meant == key] or [key]
            choice.notes.append(
                f'"{word}" means {level} in ResourceFlavor {one.metadata.name}, so it is no name of {key} here: ask '
                f"for that by {others[0]}. Where all Jobs name a queue, you can add the name (spec.topology.names)"
            )
    return words


def render_flavor(choice: LevelChoice, body: Mapping[str, Any]) -> Group:
    """What was found, for a person; ``body``: the flavor that is made of it."""
    flavor, words = body["metadata"]["name"], body["spec"]["topology"]["names"]
    table = plain_table("LEVEL", "ASK FOR IT BY", ">NODES", ">DOMAINS", ">NODES A DOMAIN")
    for column in table.columns:
        column.no_wrap = True
    for level, found, domains in zip(choice.levels, choice.found, choice.domains, strict=True):
        names = ", ".join(name for name in level.names if name in words)
        table.add_row(level.key, names, f"{found.carried}/{found.nodes}", str(len(domains.values)), domains.sizes)
    what = f" with {', '.join(choice.accelerators)}" if choice.accelerators else ", none with accelerators"
    head = f"Topology of {choice.nodes} nodes{what}: {choice.title}"
    notes = [Text(f"Left out: {line}") for line in choice.left_out]
    notes += [Text(f"Note: {line}") for line in choice.notes]
    notes += [Text(f"Warning: {line}", style="yellow") for line in choice.warnings]
    return Group(Text(head), table, *notes, Text(f"Nodes of ResourceFlavor {flavor}: {_pairs(choice.group)}"))


def _pairs(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in labels.items())

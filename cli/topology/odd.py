"""Labels that are odd: one node's where all domains but two have as many nodes as each other, and a tool's. Pure.

Racks that are named alike in every block hide a wrong block: the node is in a rack of that name there too. But then one
rack has a node too few, and the other one too many; or there is a rack of one node alone.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from cli.output import counted
from cli.topology.survey import Labelled, listed
from crds.constants import HOSTNAME_LABEL
from crds.topology_labels import OF_SPINES, SUPERSEDED, lopsided

LEAST_SAME: Final = 2  # domains of the usual size, beside the two
DIGITS: Final = "0123456789"
Path = tuple[str, ...]


class Odd(msgspec.Struct, frozen=True):
    """``nodes``: one of which has a wrong ``key``; one alone where names tell which. It is there and belongs here."""

    nodes: tuple[str, ...]
    key: str
    here: Path
    there: Path
    sizes: tuple[int, int, int]  # nodes here, there, and in every other domain

    @property
    def value(self) -> str:
        """What the label should be, as it seems."""
        return next(right for right, wrong in zip(self.here, self.there, strict=True) if right != wrong)

    def __str__(self) -> str:
        here, there, usual = self.sizes
        who = listed(self.nodes) if len(self.nodes) == 1 else f"one of {listed(self.nodes)}"
        has = f"{'/'.join(self.there)} has {counted(there, 'node')} and {'/'.join(self.here)} has {here}"
        return f"{who} seems to have a wrong {self.key}: {has}, while every other domain has {usual}"


def odd_one(nodes: Iterable[Labelled], keys: Sequence[str]) -> Odd | None:
    """The node that seems to have a wrong label of these levels (the widest first), where sizes of domains show one."""
    nodes = list(nodes)
    # From the narrowest: the first level whose domains have several nodes.
    for depth in range(len(keys), 1, -1):
        domains = _domains(nodes, keys[:depth])
        usual = Counter(map(len, domains.values())).most_common(1)[0][0] if domains else 0
        if usual > 1:  # else each node is a domain of its own
            other = {path: len(names) for path, names in domains.items() if len(names) != usual}
            # One wrong label changes exactly two domains. More that differ are how the cluster is built.
            if len(other) != 2 or len(domains) - 2 < LEAST_SAME:
                return None
            (there, many), (here, few) = sorted(other.items(), key=lambda one: one[1], reverse=True)
            if few == 1 and many == usual - 1 and many > 1:
                here, few, there, many = there, many, here, few  # a domain of one stranger alone
            elif (few, many) != (usual - 1, usual + 1):
                return None
            differ = [at for at, (one, two) in enumerate(zip(here, there, strict=True)) if one != two]
            # A path that differs in two levels takes two wrong labels: then it is no slip.
            if len(differ) != 1:
                return None
            suspects = domains[there]
            if many > 1:
                # The one whose name goes with those where it belongs (``b1-r1-h3``), else all of them.
                stems = {name.rstrip(DIGITS) for name in domains[here]}
                alike = [name for name in suspects if name.rstrip(DIGITS) in stems]
                suspects = alike if len(alike) == 1 else suspects
            return Odd(tuple(suspects), keys[differ[0]], here, there, (few, many, usual))
    return None


def lopsided_levels(nodes: Iterable[Labelled], keys: Sequence[str]) -> Iterator[tuple[str, str, int, int]]:
    """Levels that a dead cable may have divided, the level below, the most and the fewest of that in a domain."""
    nodes = list(nodes)
    for depth in range(1, len(keys)):
        parts: dict[Path, set[str]] = defaultdict(set)
        for path in _domains(nodes, keys[: depth + 1]):
            parts[path[:depth]].add(path[depth])
        counts = [len(inside) for inside in parts.values()]
        if keys[depth - 1] in OF_SPINES and lopsided(counts):
            yield keys[depth - 1], keys[depth], max(counts), min(counts)


def superseded(nodes: Iterable[Labelled], keys: Iterable[str]) -> list[str]:
    """Those of the labels that their tool gave up for others, which some of the nodes have."""
    carried = {key for node in nodes for key in node.labels}
    return [key for key in keys if SUPERSEDED.get(key) in carried]


def likely_value(nodes: Iterable[Labelled], name: str, key: str) -> str:
    """The domain of a node without one: that of all nodes whose names differ in the last number alone; "" without."""
    if key == HOSTNAME_LABEL:
        return name
    stem = name.rstrip(DIGITS)
    alike = {node.value(key) for node in nodes if node.name != stem and node.name.rstrip(DIGITS) == stem} - {""}
    return alike.pop() if len(alike) == 1 else ""


def _domains(nodes: Iterable[Labelled], keys: Sequence[str]) -> dict[Path, list[str]]:
    found: dict[Path, list[str]] = defaultdict(list)
    for node in nodes:
        path = tuple(map(node.value, keys))
        if all(path):
            found[path].append(node.name)
    return found

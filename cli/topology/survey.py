"""What labels nodes carry, and how they nest. Pure: nodes in, counts out."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from cli.output import some
from engine.model import UNKNOWN_VALUES, domain_value
from engine.quantity import parse
from kube.objects import Node

RARE: Final = 0.25  # of the domains: where no more lie in several of a wider level, their nodes' labels are wrong
COVERED: Final = 0.95  # of the nodes have to carry a label that is to be a level
_ACCELERATOR = re.compile(r"/.*(gpu|tpu|npu|xpu|gaudi|neuron|mlu|ascend|mig-)|^gpu\..*/", re.IGNORECASE)


class Labelled(msgspec.Struct, frozen=True):
    """A node: its labels, and the names of its accelerators (``nvidia.com/gpu``).

    ``unknown``: values of a level that name no domain (`engine.model.Flavor`).
    """

    name: str
    labels: Mapping[str, str]
    accelerators: tuple[str, ...] = ()
    unknown: frozenset[str] = UNKNOWN_VALUES

    def value(self, level: str) -> str:
        """Its domain of a level; "" where its labels name none."""
        return domain_value(self.labels, level, self.unknown)


class Coverage(msgspec.Struct, frozen=True):
    """One label key: which nodes name no domain by it, and how many nodes carry each value.

    ``unknown``: by value, those of the nodes without a domain that say that theirs is not known.
    """

    key: str
    nodes: int
    missing: tuple[str, ...]
    values: Mapping[str, int]
    unknown: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)

    @property
    def carried(self) -> int:
        """How many nodes have it."""
        return self.nodes - len(self.missing)

    @property
    def enough(self) -> bool:
        """Whether so many nodes have it that it may be a level: whoever sets it knows of those without a domain too."""
        told = self.carried + sum(map(len, self.unknown.values()))
        return self.carried > 0 and told >= COVERED * self.nodes

    @property
    def sizes(self) -> str:
        """How many nodes a domain has: ``8``, or ``4 to 8``."""
        least, most = min(self.values.values(), default=0), max(self.values.values(), default=0)
        return str(most) if least == most else f"{least} to {most}"


class Nesting(msgspec.Struct, frozen=True):
    """How the domains of ``narrow`` lie in those of ``wide``.

    ``straddling``: those that are in several, with the nodes in each. ``turned``: they are the wrong way round, as each
    domain of ``wide`` lies in one of ``narrow``.
    """

    wide: str
    narrow: str
    domains: int
    straddling: Mapping[str, Mapping[str, tuple[str, ...]]]
    turned: bool

    @property
    def nests(self) -> bool:
        """Whether most domains lie in one of the wider level."""
        # Half: a label that mostly straddles is not a narrower level with mistakes, but none.
        return 2 * len(self.straddling) <= self.domains

    @property
    def crossed(self) -> bool:
        """Whether every domain is in several of the wider level: either of the two might be the wider one."""
        return len(self.straddling) == self.domains > 0

    @property
    def mistaken(self) -> bool:
        """Whether a few nodes seem to carry a wrong label, rather than that racks of all blocks have the same names."""
        if not self.straddling or not self.nests:
            return False
        sizes = [len(nodes) for nodes in self.odd[1].values()]
        return 2 * min(sizes) < max(sizes) or len(self.straddling) <= RARE * self.domains

    @property
    def odd(self) -> tuple[str, Mapping[str, tuple[str, ...]]]:
        """One domain that is in several, with its nodes in each: that of which the fewest nodes are elsewhere."""
        return min(self.straddling.items(), key=lambda one: (min(len(nodes) for nodes in one[1].values()), one[0]))

    def __str__(self) -> str:
        value, parts = self.odd
        few = min(parts, key=lambda wide: (len(parts[wide]), wide))
        others = ", ".join(sorted(wide for wide in parts if wide != few))
        what = f"{len(self.straddling)} of {self.domains} domains of {self.narrow} lie in several of {self.wide}"
        return f"{what}: {value} is in {others}, but with {listed(parts[few])} in {few}"


def labelled(nodes: Iterable[Node]) -> list[Labelled]:
    """Nodes as they are looked at here, by name."""
    found = (
        Labelled(node.metadata.name, node.metadata.labels or {}, tuple(_accelerators(node.status.allocatable or {})))
        for node in nodes
    )
    return sorted(found, key=lambda node: node.name)


def _accelerators(amounts: Mapping[str, str | int | float]) -> Iterator[str]:
    for resource, amount in sorted(amounts.items()):
        try:
            # A device plugin that is gone leaves its resource with 0.
            if _ACCELERATOR.search(resource) and parse(resource, amount) > 0:
                yield resource
        except ValueError:
            continue


def coverage(nodes: Sequence[Labelled], key: str) -> Coverage:
    """Who carries a label, and with which values."""
    values: dict[str, int] = {}
    missing: list[str] = []
    unknown: dict[str, list[str]] = {}
    for node in nodes:
        if value := node.value(key):
            values[value] = values.get(value, 0) + 1
            continue
        missing.append(node.name)
        if said := node.labels.get(key):
            unknown.setdefault(said, []).append(node.name)
    told = {value: tuple(names) for value, names in sorted(unknown.items())}
    return Coverage(key, len(nodes), tuple(missing), values, told)


def domains(nodes: Sequence[Labelled], keys: Sequence[str]) -> Coverage:
    """Who carries all of these labels, and how many nodes each domain has: rack 1 of every block is one of its own."""
    paths = [(node.name, [node.value(key) for key in keys]) for node in nodes]
    # The joined path is a value now: a domain called "unknown" must not be read as one again.
    joined = [
        Labelled(name, {keys[-1]: "/".join(path) if all(path) else ""}, unknown=frozenset()) for name, path in paths
    ]
    return coverage(joined, keys[-1])


def nesting(nodes: Iterable[Labelled], wide: str, narrow: str) -> Nesting:
    """How one label's domains lie in another's, on the nodes that carry both."""
    inside: dict[str, dict[str, list[str]]] = {}
    outside: dict[str, set[str]] = {}
    for node in nodes:
        if (above := node.value(wide)) and (below := node.value(narrow)):
            inside.setdefault(below, {}).setdefault(above, []).append(node.name)
            outside.setdefault(above, set()).add(below)
    straddling = {
        value: {above: tuple(names) for above, names in parts.items()}
        for value, parts in inside.items()
        if len(parts) > 1
    }
    # Without straddling both orders nest, and the one that was given is as good.
    turned = bool(straddling) and all(len(below) == 1 for below in outside.values())
    return Nesting(wide, narrow, len(inside), straddling, turned)


def shared(nodes: Sequence[Labelled]) -> dict[str, str]:
    """Labels that all nodes carry with the same value."""
    found = dict(nodes[0].labels) if nodes else {}
    for node in nodes[1:]:
        found = {key: value for key, value in found.items() if node.labels.get(key) == value}
    return found


def candidates(nodes: Sequence[Labelled], known: Collection[str] = ()) -> list[Coverage]:
    """Label keys that might be levels: nearly all nodes carry them, with several values that several nodes share."""
    keys = {key for node in nodes for key in node.labels} - set(known)
    found = [coverage(nodes, key) for key in sorted(keys)]
    return sorted(
        # One value divides nothing, and a value a node groups nothing.
        (one for one in found if one.enough and 1 < len(one.values) < one.carried),
        key=lambda one: (len(one.values), one.key),
    )


def listed(names: Sequence[str], most: int = 4) -> str:
    """A few names, and how many more there are."""
    return f"node{'s' * (len(names) != 1)} {some(names, most)}"


def with_verb(names: Sequence[str], one: str, several: str) -> str:
    """The nodes and the verb that goes with their number: ``node a lacks``, ``nodes a, b lack``."""
    return f"{listed(names)} {one if len(names) == 1 else several}"


def unknown_in_words(found: Coverage, value: str, names: Sequence[str]) -> str:
    """What becomes of nodes whose label says that their domain of a level is not known."""
    counts, takes = ("it counts", "takes") if len(names) == 1 else ("they count", "take")
    said = with_verb(names, "has", "have")
    return (
        f"{said} {found.key}={value} ({len(names)} of {found.nodes}), which says that the place is not known: "
        f"{counts} as unlabelled and {takes} no pods"
    )

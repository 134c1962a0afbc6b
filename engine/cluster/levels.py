"""The values of a flavor's levels on its nodes, and levels that no node has any more.

Node labels are some tool's output. It may take a level off all nodes at its next look, as Topograph does where a switch
above the spines was one by mistake. Such a level is *lost*: it has one domain without a name, the value "", so that it
stops nobody who does not ask for it. Who requires it is refused (`engine.placement.fit`), no pod selects it
(`domain_labels`), and where it is back, nodes have their domains again. The host name is never lost.
"""

from collections.abc import Iterable, Sequence

from engine.cluster.tree import Path
from engine.model import HOSTNAME_LABEL, Flavor, Node


def selected(flavor: Flavor, node: Node) -> bool:
    """Whether the node carries the flavor's node labels."""
    return flavor.node_labels.items() <= node.labels.items()


def domain_labels(levels: Sequence[str], values: Sequence[str]) -> dict[str, str]:
    """The node labels of a domain, whose values may be those of the widest levels alone; without lost levels."""
    return {level: value for level, value in zip(levels, values, strict=False) if value}


def domain_in_words(values: Iterable[str]) -> str:
    """A domain for messages: ``b1/r2``; without lost levels."""
    return "/".join(filter(None, values))


def word_of(level: str) -> str:
    """A level in a word: ``rack`` for ``cloud-provider.com/topology-rack``, ``node`` for the host name."""
    return "node" if level == HOSTNAME_LABEL else level.rpartition("/")[2].removeprefix("topology-")


def path_of(flavor: Flavor, node: Node, lost: Sequence[str] = ()) -> Path | None:
    """The node's value at each level of the flavor; None where it is not one of the flavor's or lacks a label."""
    values = _values(flavor, node)
    if values is None or any(
        not value and level not in lost for level, value in zip(flavor.levels, values, strict=True)
    ):
        return None
    return values


class CarriedLevels:
    """How many of a flavor's nodes have a value of each level. ``lost``: the levels of which none has one."""

    def __init__(self, flavor: Flavor) -> None:
        self.flavor = flavor
        self.lost: tuple[str, ...] = ()
        self._nodes = 0
        self._carriers = [0] * len(flavor.levels)

    def count(self, before: Node | None, after: Node | None) -> bool:
        """A node came, changed or went; True where other levels are lost now."""
        for node, sign in ((before, -1), (after, 1)):
            values = _values(self.flavor, node) if node is not None else None
            if values is not None:
                self._nodes += sign
                self._carriers = [n + sign * bool(value) for n, value in zip(self._carriers, values, strict=True)]
        found = zip(self.flavor.levels, self._carriers, strict=True)
        # A flavor without nodes has lost nothing: its first node decides which levels there are.
        lost = tuple([level for level, n in found if self._nodes and not n and level != HOSTNAME_LABEL])
        changed, self.lost = lost != self.lost, lost
        return changed


def _values(flavor: Flavor, node: Node) -> Path | None:
    if not selected(flavor, node):
        return None
    labels = node.labels
    return tuple([flavor.value(labels, level) for level in flavor.levels])

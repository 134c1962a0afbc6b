"""The nodes and what is inside them, the flavors, and the tree of each flavor.

Trees are made anew only when asked for after a change: adding 5,000 nodes one by one marks them stale 5,000 times and
builds them once. All nodes share one table whose order is: the first flavor's nodes in tree order, then the next
flavor's that are not in an earlier one, then the rest.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engine.arrays import Ints
from engine.claim_zones.meeting import ClaimZones
from engine.cluster.filters import NodeColumns
from engine.cluster.levels import CarriedLevels, path_of, selected
from engine.cluster.natural_order import NaturalKey, natural_cache
from engine.cluster.node_columns import FEATURES, LabelColumn, Table
from engine.cluster.shared_volumes import SharedVolumes
from engine.cluster.tree import Path, Tree
from engine.devices.ledger import DeviceLedger
from engine.devices.node_counts import NodePlaces
from engine.model import HOSTNAME_LABEL, Flavor, Node
from engine.numa.node_zones import Reserved
from engine.numa.score import ZoneScore
from engine.numa.zone_ledger import NumaLedger

SortKey = tuple[tuple[NaturalKey, ...], NaturalKey]
NAMELESS: Final = 256  # records without node and pods that are kept until the order of nodes changes


class NodeRecord:
    """One node by name: its table index, and its path in each flavor it belongs to.

    ``node`` is None while only pods or reservations name it (it went away, or was not seen yet).
    """

    __slots__ = ("index", "keys", "name", "node", "paths", "pods")

    def __init__(self, name: str, index: int) -> None:
        self.name = name
        self.index = index
        self.node: Node | None = None
        self.paths: dict[str, Path] = {}
        self.keys: dict[str, SortKey] = {}
        self.pods = 0

    def appear(self, node: Node) -> None:
        """The node is there, as it is now."""
        self.node = node

    def vanish(self) -> None:
        """The node is gone; its pods may still be there."""
        self.node, self.paths, self.keys = None, {}, {}

    def belong(self, paths: dict[str, Path]) -> None:
        """It is of these flavors now."""
        self.paths, self.keys = paths, {}

    def move(self, index: int) -> None:
        """It has another place in the table."""
        self.index = index

    def count_pod(self, sign: int) -> None:
        """A pod came (1) or went (-1)."""
        self.pods += sign


class Nodes:
    """Records, table, insides, flavors and trees, kept consistent.

    ``reserved``: what is held on them. ``reconstruct``, ``score``: as `NumaLedger` has them. ``xpus``: as
    `ClusterState` has them.
    """

    def __init__(
        self,
        reserved: Reserved,
        *,
        xpus: Collection[str] = (),
        reconstruct: bool = True,
        score: ZoneScore = ZoneScore.LEAST_NUMA_NODES,
    ) -> None:
        self.table = Table()
        self.numa = NumaLedger(
            reserved, self._index, self._name, self.table.touch, reconstruct=reconstruct, score=score
        )
        self.volumes = SharedVolumes(self.table)
        places = NodePlaces(self._index, self._names)
        self.devices = DeviceLedger(places, self._labels, self.publishes, self.table.touch, self.table.relabelled)
        self.claim_zones = ClaimZones(self.devices, self.numa, self._name)
        parts = self.volumes, self.devices, self.claim_zones
        self.columns = NodeColumns(self.table, self._label_codes, self._index, self.numa, *parts, tuple(xpus))
        self.by_name: dict[str, NodeRecord] = {}
        self.at: list[NodeRecord] = []
        self.known: dict[str, Node] = {}
        self.view: Mapping[str, Node] = MappingProxyType(self.known)
        self._labelled: dict[str, int] = {}  # by label key: how many nodes have it
        self._hosts: dict[str, set[str]] = {}  # by host name (`HOSTNAME_LABEL`): the nodes that have it
        self._unlabelled = LabelColumn(0)
        self._nameless = 0  # records that nothing needs any more, since they were last dropped
        self.flavors: dict[str, Flavor] = {}
        self._levels: dict[str, CarriedLevels] = {}  # by flavor
        self._trees: dict[str, Tree] = {}
        self.stale = True
        self.moved = False
        self._natural = natural_cache()

    # -- changes ----------------------------------------------------------------------------------------------

    def record(self, name: str) -> NodeRecord:
        """The record of a node; an empty one where nobody named it before."""
        found = self.by_name.get(name)
        if found is None:
            found = self.by_name[name] = NodeRecord(name, self.table.add())
            self.at.append(found)
            self.numa.node_came(name)
            self.devices.clear_places()
        return found

    def set_node(self, node: Node) -> bool:
        """Take in a node; True where anything changed."""
        old = self.known.get(node.name)
        if old == node:
            return False
        record = self.record(node.name)
        self.known[node.name] = node
        record.appear(node)
        if old is None or (old.allocatable, old.attachable) != (node.allocatable, node.attachable):
            self.table.set_alloc(record.index, node.allocatable | node.attachable)
        if old is None or (old.taints, old.unschedulable, old.ready) != (node.taints, node.unschedulable, node.ready):
            self.table.set_status(record.index, node)
        if old is None or (old.labels, old.features) != (node.labels, node.features):
            self._count_labels(record, old, node)
            # Host names before labels: the path of this node depends on whether another node has its host name too.
            others = self._count_hosts(node.name, old, node)
            self.table.set_labels(record.index, _columns(node))
            self._count_levels(old, node)
            self._set_paths(record, node)
            # The others gained or lost a namesake by this change, so they enter or leave the trees.
            self._set_paths_of(others)
            self.devices.node_changed(node.name)
        # Amounts that only grow or shrink leave the answer as it is whether plugins or claims give a resource.
        elif old.allocatable != node.allocatable and _published(old) != _published(node):
            self.devices.node_changed(node.name)
        return True

    def _count_labels(self, record: NodeRecord, old: Node | None, new: Node | None) -> None:
        """Note which keys there are: a column is made of no other, and dropped with the last node that has its key."""
        before, after = (_columns(node).keys() if node is not None else set() for node in (old, new))
        for key in after - before:
            if key not in self._labelled:
                self.table.relabelled(record.index)  # whoever asked for it before was told that no node has it
            self._labelled[key] = self._labelled.get(key, 0) + 1
        for key in before - after:
            self._labelled[key] -= 1
            if not self._labelled[key]:
                del self._labelled[key]
                if self.table.labels.pop(key, None) is not None:
                    self.table.relabelled(record.index)

    def _count_hosts(self, name: str, old: Node | None, new: Node | None) -> list[str]:
        """Note which nodes have which host name; returns the others that share it from now on, or no more."""
        changed: list[str] = []
        before, after = (node.labels.get(HOSTNAME_LABEL, "") if node is not None else "" for node in (old, new))
        for host, names in ((host, self._hosts.setdefault(host, set())) for host in {before, after} - {""}):
            names.discard(name)
            # One other node gains its first namesake here, or loses its
            # last. Several others have each other, whatever this node does.
            changed += names if len(names) == 1 and before != after else ()
            if host == after:
                names.add(name)
            if not names:
                del self._hosts[host]
        return changed

    def namesakes(self, node: Node) -> list[str]:
        """The other nodes with its host name: a node selector for it would lead to any of them.

        None for the node that is called so. Pods are sent there by its name too (`metadata.name`), and else whoever has
        a kubelet's credentials closes other nodes by the label of his own.
        """
        host = node.labels.get(HOSTNAME_LABEL, "")
        return [] if host == node.name else sorted(self._hosts.get(host, set()) - {node.name})

    def _path_in(self, levels: CarriedLevels, node: Node) -> Path | None:
        """As `path_of`; None also where the flavor's hosts are told by a host name that is that of other nodes too."""
        if HOSTNAME_LABEL in levels.flavor.levels and self.namesakes(node):
            return None
        return path_of(levels.flavor, node, levels.lost)

    def _set_paths_of(self, names: Iterable[str]) -> None:
        for name in names:
            if (node := self.known.get(name)) is not None:
                self._set_paths(self.by_name[name], node)

    def _set_paths(self, record: NodeRecord, node: Node) -> None:
        found = ((name, self._path_in(levels, node)) for name, levels in self._levels.items())
        paths = {name: path for name, path in found if path is not None}
        if paths != record.paths:
            self.moved |= bool(record.paths)
            record.belong(paths)
            self.stale = True

    def _count_levels(self, old: Node | None, new: Node | None) -> None:
        """Note who has which levels: where one is lost, or is back, all nodes of a flavor have other paths."""
        for name, levels in self._levels.items():
            if levels.count(old, new):
                self._assign(name, levels)

    def remove_node(self, name: str) -> Node | None:
        """Forget a node but not what is charged to it; returns it, or None where it was not known."""
        node = self.known.pop(name, None)
        if node is not None:
            record = self.by_name[name]
            # Read before `vanish` clears the paths: a node of no flavor leaves every tree as it is.
            self.stale |= bool(record.paths)
            record.vanish()
            self.table.clear(record.index)
            self._count_labels(record, node, None)
            self._count_levels(node, None)
            self._set_paths_of(self._count_hosts(name, node, None))
            self.devices.node_changed(name)
        return node

    def drop_empty_record(self, record: NodeRecord) -> None:
        """The last pod left a node. Pods may name nodes that are not there: their records go once they are many."""
        if record.node is None:
            self._nameless += 1
            self.stale |= self._nameless >= NAMELESS

    def set_flavor(self, flavor: Flavor) -> Flavor | None:
        """Take in a flavor; returns the one of that name before."""
        old = self.flavors.get(flavor.name)
        if old != flavor:
            self.flavors[flavor.name] = flavor
            self._levels[flavor.name] = levels = CarriedLevels(flavor)
            for node in self.known.values():
                levels.count(None, node)
            self._assign(flavor.name, levels)
        return old

    def remove_flavor(self, name: str) -> Flavor | None:
        """Forget a flavor; returns it, or None."""
        old = self.flavors.pop(name, None)
        if old is not None:
            del self._levels[name]
            self._assign(name, None)
        return old

    def _assign(self, name: str, levels: CarriedLevels | None) -> None:
        for record in self.at:
            path = self._path_in(levels, record.node) if levels is not None and record.node is not None else None
            record.keys.pop(name, None)
            if path is None:
                record.paths.pop(name, None)
            else:
                record.paths[name] = path
        self.stale = self.moved = True

    # -- reading ----------------------------------------------------------------------------------------------

    def trees(self) -> dict[str, Tree]:
        """The trees by flavor name; call ``rebuild`` first where ``stale``."""
        return self._trees

    def lost_levels(self, flavor: str) -> tuple[str, ...]:
        """The levels of a flavor that none of its nodes has (`engine.cluster.levels`)."""
        levels = self._levels.get(flavor)
        return () if levels is None else levels.lost

    def has_label(self, key: str) -> bool:
        """Whether any node has a label."""
        return key in self._labelled

    def flavors_on(self, name: str) -> Collection[str]:
        """The flavors that a node is of; all of them where the node is not known."""
        record = self.by_name.get(name)
        return self.flavors.keys() if record is None or record.node is None else record.paths.keys()

    def _index(self, name: str) -> int | None:
        record = self.by_name.get(name)
        return None if record is None else record.index

    def _name(self, index: int) -> str:
        return self.at[index].name

    def _names(self) -> list[str]:
        return [record.name for record in self.at]

    def _labels(self, name: str) -> Mapping[str, str] | None:
        node = self.known.get(name)
        return None if node is None else node.labels

    def publishes(self, name: str, resource: str) -> bool:
        """Whether a node's device plugins have some of an extended resource."""
        node = self.known.get(name)
        return node is not None and node.allocatable.get(resource, 0) > 0

    def label_column(self, key: str) -> LabelColumn:
        """The column of a label key, made on first use (one pass over the nodes), then kept up to date.

        Of a key that no node has none is made: anybody may ask for any number of keys.
        """
        column = self.table.labels.get(key)
        if column is None and key not in self._labelled:
            # The one column of zeros that all unknown keys share; it only has to be as long as the table.
            if len(self._unlabelled.codes) < self.table.size:
                self._unlabelled = LabelColumn(self.table.capacity)
            return self._unlabelled
        if column is None:
            column = self.table.labels[key] = LabelColumn(self.table.capacity)
            for index, record in enumerate(self.at):
                node = record.node
                if node is None:
                    continue
                value = ",".join(node.features) or None if key == FEATURES else node.labels.get(key)
                if value is not None:
                    column.set(index, value)
        return column

    def _label_codes(self, key: str) -> tuple[Mapping[str, int], NDArray[np.int32]]:
        column = self.label_column(key)
        return column.values, column.codes[: self.table.size]

    # -- rebuilding -------------------------------------------------------------------------------------------

    def rebuild(self, kept: Iterable[NodeRecord] | None) -> Ints:
        """Bring table and trees into order. Returns the new index of each old one (-1: dropped).

        Records without node and pods are dropped unless among ``kept`` (None: drop none).
        """
        if kept is not None:
            among = set(kept)
            self._nameless = 0
            # A pod may name any node in `spec.nodeName`: without this,
            # records of nodes that never were would stay for ever.
            for record in [r for r in self.at if r.node is None and not r.pods and r not in among]:
                del self.by_name[record.name]
                self.devices.forget_node(record.name)
            if len(self.by_name) != len(self.at):
                self.at = [record for record in self.at if record.name in self.by_name]
        members = {name: self._members(name) for name in sorted(self.flavors)}
        order = list(dict.fromkeys(record for records in members.values() for record in records))
        if len(order) < len(self.at):
            known = set(order)
            order += sorted((record for record in self.at if record not in known), key=lambda record: record.name)
        moves = np.full(self.table.size, -1, np.int64)
        old = np.fromiter((record.index for record in order), np.int64, len(order))
        # A permutation empties the log, after which every count is made again, so it is left out where nothing moves.
        if len(order) != self.table.size or not np.array_equal(old, np.arange(len(order))):
            self.table.permute(old)
            self.numa.permute(old)
        moves[old] = np.arange(len(order))
        self.at = order
        for index, record in enumerate(order):
            record.move(index)
        self.devices.clear_places()
        for tree in self._trees.values():
            tree.kept.clear()  # whoever still holds the old tree must not hold its counts
        trees = {}
        for name, records in members.items():
            index_of_leaf = np.fromiter((record.index for record in records), np.int64, len(records))
            paths = [record.paths[name] for record in records]
            trees[name] = Tree(self.flavors[name], [record.name for record in records], paths, index_of_leaf)
        self._trees = trees
        self.stale = self.moved = False
        return moves

    def _members(self, flavor: str) -> list[NodeRecord]:
        found = [record for record in self.at if flavor in record.paths]
        found.sort(key=lambda record: self._sort_key(record, flavor))
        return found

    def _sort_key(self, record: NodeRecord, flavor: str) -> SortKey:
        key = record.keys.get(flavor)
        if key is None:
            natural = self._natural
            key = record.keys[flavor] = tuple(map(natural, record.paths[flavor])), natural(record.name)
        return key

    def outside(self, flavor: Flavor) -> Iterator[Node]:
        """Nodes the flavor selects that lack one of its level labels which others have, or share their host name."""
        for node in self.known.values():
            if selected(flavor, node) and flavor.name not in self.by_name[node.name].paths:
                yield node


def _columns(node: Node) -> dict[str, str]:
    """What label columns have of a node: its labels, and what it declares."""
    return {**node.labels, FEATURES: ",".join(node.features)} if node.features else node.labels


def _published(node: Node) -> set[str]:
    """The extended resources of which a node's device plugins have some."""
    return {name for name, amount in node.allocatable.items() if amount > 0 and "/" in name}

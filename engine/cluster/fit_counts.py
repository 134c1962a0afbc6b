"""How many pods of one shape fit each node and each domain; kept, and corrected when nodes change.

A shape is what the count depends on: requests, volumes, tolerations, selector, affinity, what kubelets look at. The
count of a node is the smallest of free // request over the requested resources (one of ``pods`` and the volumes of each
pod alone included), 0 where a filter excludes it, never negative; where the inside of the node is known, no more than
its kubelet would admit, and of pods with claims no more than there are devices for. Volumes that the pods share are
attached to a node once, where they are not yet.
"""

from typing import Final

import msgspec
import numpy as np

from engine.arrays import Ints, distinct, quotient
from engine.claims.asks import DeviceAsk
from engine.claims.read.asks import resources_of
from engine.cluster.filters import NodeColumns, NodeFilter, Selection
from engine.cluster.node_columns import Table
from engine.cluster.tree import SHAPES_KEPT, Tree
from engine.kubelet.device_manager import never_given
from engine.kubelet.machine import PodShape
from engine.kubelet.numa_policy import refused_unseen
from engine.kubelet.rebuild import inner
from engine.model import NOTHING_ATTACHED, PodSet

MOST: Final = (1 << 31) - 1  # pods in one tree that are told apart
PODS_OF_A_NODE: Final = 4096  # nobody asks a kubelet for more
_NOTHING: Final[frozenset[str]] = frozenset()
# With 1% of 5,000 nodes changed, a correction takes 80 to 210 us and a new count 45 to 80 us.
_SMALL: Final = 8192  # a tree of so many leaves is counted anew in the time that merging changes takes
_MANY: Final = 24  # of a larger one, if one leaf in so many changed


class Counts:
    """Pods that fit, for each domain of each rank of one tree. Those of `known_shape` are lent for a short time.

    ``peak`` bounds the leaf counts from above: corrections only raise it.
    """

    __slots__ = ("_peak", "_tree", "leaf", "levels", "seen")

    def __init__(self, tree: Tree, leaf: Ints, seen: int = 0) -> None:
        self._tree = tree
        self._peak = -1
        self.leaf = leaf
        self.levels: list[Ints | None] = [None] * tree.leaf + [leaf]
        self.seen = seen

    @property
    def peak(self) -> int:
        """No leaf takes more."""
        if self._peak < 0:
            self._peak = int(self.leaf[self.leaf.argmax()]) if len(self.leaf) else 0
        return self._peak

    def counts_of_rank(self, rank: int) -> Ints:
        """Counts of the domains of ``rank``. Do not modify."""
        found = self.levels[rank]
        if found is None:
            below = self.counts_of_rank(rank + 1)
            found = self.levels[rank] = np.add.reduceat(below, self._tree.children[rank][:-1]) if len(below) else below
        return found

    def count_all(self) -> int:
        """Pods that the whole tree takes."""
        return int(self.counts_of_rank(0).sum())

    def grid(self, rank: int) -> Ints | None:
        """What is below the domains of ``rank`` as a matrix, a row for each of them, zeros at the end; do not modify.

        None where the tree is irregular, or where leaves would have to be copied.
        """
        rows, columns = self._tree.grids[rank]
        below = self.counts_of_rank(rank + 1)
        # Only domains above the leaves are copied into a padded grid, as they are few;
        # leaf counts of a regular tree lie in memory of that size already (`Tree.lend`).
        if len(below) != rows * columns and rank + 1 < self._tree.leaf and rows:
            found = np.zeros(rows * columns, np.int64)
            found[: len(below)] = below
            return found.reshape(rows, columns)
        whole = below if below.base is None else below.base
        return whole.reshape(rows, columns) if rows and whole.size == rows * columns else None

    def caught_up(self, seen: int) -> None:
        """Every change before position ``seen`` of the log is in them."""
        self.seen = seen

    def correct(self, leaves: Ints, counts: Ints) -> None:
        """Set the counts of some leaves (unique), and what follows from them."""
        change = counts - self.leaf[leaves]
        self.leaf[leaves] = counts
        if self._peak >= 0 and len(counts):
            self._peak = max(self._peak, int(counts[counts.argmax()]))
        for rank, level in enumerate(self.levels[:-1]):
            if level is not None:
                # `add.at`, because several of the leaves may lie in one domain:
                # plain indexing keeps the change of the last one alone.
                np.add.at(level, self._tree.owners[rank][leaves], change)


class Shape(msgspec.Struct):
    """One pod's needs, compiled: (row, amount) with amount > 0, the node filter, and what kubelets look at.

    ``seen_only``: it asks for what nodes of whose inside nothing is known never promise. ``most``: more than that no
    node was ever asked to take. ``lacking``: what it needs and no node has, so that none takes any. ``shared``: by
    limit, how many volumes each pod has alone, and those that the pods share; ``unlimited``: limits that no node has.
    ``devices``: the pod's claims. ``by_plugin``: resources that it counts on device plugins for, whoever else may give
    them; ``unpublished``: those that devices of claims give, and no node publishes.
    """

    needs: list[tuple[int, int]]
    filter: NodeFilter
    inside: PodShape | None = None
    seen_only: bool = False
    most: int = 1
    lacking: tuple[str, ...] = ()
    shared: tuple[tuple[str, int, tuple[str, ...]], ...] = ()
    unlimited: tuple[str, ...] = ()
    devices: DeviceAsk | None = None
    by_plugin: tuple[str, ...] = ()
    unpublished: tuple[str, ...] = ()
    _cached: tuple[Ints, Ints] | None = None

    @property
    def _columns(self) -> tuple[Ints, Ints]:
        """Rows and amounts, both as columns."""
        if self._cached is None:
            needs = np.array(self.needs, np.int64)
            self._cached = needs[:, :1], needs[:, 1:]
        return self._cached

    @property
    def unknown(self) -> tuple[str, ...]:
        """What no node had when it was compiled: it is compiled anew once one has."""
        return self.lacking + self.unlimited + self.unpublished

    @classmethod
    def compile_shape(cls, table: Table, tree: Tree, pod_set: PodSet) -> "Shape":
        """Compile the shape of a pod set in a flavor."""
        rows, volumes = table.rows, pod_set.attached
        inside = inner(pod_set.shape)
        seen_only = inside is not None and refused_unseen(inside) is not None
        given = resources_of(pod_set.devices) if pod_set.devices is not None else _NOTHING
        for name in given:
            table.delegate(name)
        # A request for zero of a resource bounds nothing, and one
        # without a row is `lacking` or counted by devices alone.
        amounts = table.needs(pod_set)
        needs = [(rows[resource], amount) for resource, amount in amounts.items() if amount > 0 and resource in rows]
        which = NodeFilter.for_pod_set(pod_set, tree.flavor.tolerations)
        lacking = table.lacking_resources(amounts) if len(needs) < len(amounts) else ()
        counted = amounts.keys() - given - table.uncounted
        by_plugin = tuple([name for name in amounts if "/" in name and name in counted])
        if pod_set.devices is None and volumes is NOTHING_ATTACHED:
            return cls(needs, which, inside, seen_only, 1, lacking, by_plugin=by_plugin)
        unpublished = tuple(given - rows.keys())
        shared: dict[str, list[str]] = {}
        for limit, volume in volumes.shared:
            shared.setdefault(limit, []).append(volume)
        several = [(limit, volumes.own.get(limit, 0), tuple(names)) for limit, names in shared.items() if limit in rows]
        unlimited = tuple([limit for limit in {**volumes.own, **shared} if limit not in rows])
        return cls(
            *(needs, which, inside, seen_only, 1, lacking, tuple(several), unlimited),
            devices=pod_set.devices,
            by_plugin=by_plugin,
            unpublished=unpublished,
        )

    def fit(self, nodes: NodeColumns, selection: Selection, out: Ints | None = None, spare: Ints | None = None) -> Ints:
        """How many pods fit each selected node now. ``out`` and ``spare`` may lend memory of that size."""
        found = self.fit_amounts(nodes, selection, out, spare)
        if self.inside is not None:
            self.cut(nodes, selection, found)
        return found

    def cut(self, nodes: NodeColumns, selection: Selection, found: Ints) -> None:
        """Cut what fits by amounts to what kubelets admit, in place."""
        if self.refuses_devices(nodes):
            found[:] = 0
        elif self.inside is not None and nodes.numa.machines:
            _cut(found, nodes.numa.count_admitted(self.inside, self._up_to(found)), selection, blind=not self.seen_only)
        elif self.seen_only:
            found[:] = 0
        self._cut_to_zones(nodes, selection, found)

    def _cut_to_zones(self, nodes: NodeColumns, selection: Selection, found: Ints, *, emptied: bool = False) -> None:
        """Cut it, in place, to pods whose devices of claims come from the zones of the rest, where they wish so."""
        if self.devices is not None and self.devices.aligned and self.inside is not None:
            places = np.arange(nodes.table.size)[selection]
            nodes.claim_zones.cut(self.devices, self.inside, places, found, emptied=emptied)

    def fit_amounts(
        self, nodes: NodeColumns, selection: Selection, out: Ints | None = None, spare: Ints | None = None
    ) -> Ints:
        """The same by the amounts of whole nodes and by devices for claims alone."""
        # Without a row there is no column to compare: no node has the resource, so none takes a pod.
        if self.lacking:
            return _zeros(nodes.table.free[0][selection], out)
        if isinstance(selection, slice):
            found = self._count_amounts(nodes.table.free, selection, out, spare)
        else:
            found = self._few(nodes.table, selection)
        for limit, own, volumes in self.shared:
            rest = nodes.volumes.count_unattached(volumes, limit)[selection]
            attach(found, nodes.table.free[nodes.table.rows[limit]][selection], rest, own)
        if self.devices is not None:
            np.minimum(found, nodes.devices.count_by_node(self.devices)[selection], out=found)
        if nodes.table.delegated:
            self._keep_to_plugins(nodes.table, selection, found)
        mask = self.filter.mask(nodes, selection)
        if mask is not None:
            np.multiply(found, mask, out=found)
        return found

    def fit_emptied(self, nodes: NodeColumns, tree: Tree) -> Ints:
        """How many would fit each leaf if nothing ran on any node, and every node were in order and of no domain.

        The answer lies in memory that the next question is answered in.
        """
        selection = tree.span
        if self.lacking:
            return _zeros(tree.other, tree.other)
        found = self._count_amounts(nodes.table.alloc, selection, tree.other, tree.spare)
        for limit, own, volumes in self.shared:
            have = nodes.table.alloc[nodes.table.rows[limit]][selection]
            attach(found, have, np.full_like(have, len(volumes)), own)
        for reason, mask in self.filter.exclusion_masks(nodes, selection):
            if not reason.traits.passing:
                np.multiply(found, mask, out=found)
        if self.refuses_devices(nodes):
            found[:] = 0
        elif self.inside is not None and nodes.numa.machines:
            _cut(found, nodes.numa.count_if_empty(self.inside, self._up_to(found)), selection, blind=not self.seen_only)
        elif self.seen_only:
            found[:] = 0
        if self.devices is not None:
            np.minimum(found, nodes.devices.count_if_unclaimed(self.devices)[selection], out=found)
        self._keep_to_plugins(nodes.table, selection, found)
        self._cut_to_zones(nodes, selection, found, emptied=True)
        return found

    def _keep_to_plugins(self, table: Table, selection: Selection, found: Ints) -> None:
        """Leave out nodes, in place, on which devices of claims that were not asked for stand for a resource."""
        for name in self.by_plugin if table.delegated else ():
            if name in table.delegated and name in table.rows:
                found[table.published(table.alloc, name, selection) == 0] = 0

    def refuses_devices(self, nodes: NodeColumns) -> bool:
        """Whether no node gives such a pod its devices, be anything known of its inside or not."""
        return self.inside is not None and never_given(self.inside, nodes.xpus) is not None

    def _up_to(self, found: Ints) -> int:
        """A power of two that no count exceeds; it only grows, because each other one is another question."""
        self.most = max(self.most, min(1 << (int(found.max(initial=1)) - 1).bit_length(), PODS_OF_A_NODE))
        return self.most

    def _count_amounts(self, have: Ints, selection: Selection, out: Ints | None, spare: Ints | None) -> Ints:
        if not self.needs:  # a request of zero pods: only who says so gets here
            return np.full(have.shape[1], MOST, np.int64)[selection]
        found: Ints | None = None
        for row, amount in self.needs:
            part: Ints = have[row][selection]
            if found is None:
                found = part if amount == 1 else quotient(part, amount, out)
                continue
            if amount != 1:
                part = spare = quotient(part, amount, spare)
            out = found = np.minimum(found, part, out=out)
        assert found is not None  # noqa: S101  (there is at least one need)
        return np.maximum(found, 0, out=out)

    def _few(self, table: Table, index: Ints) -> Ints:
        """The same for a few nodes: one look into the table."""
        if not self.needs:
            return self._count_amounts(table.free, index, None, None)
        rows, amounts = self._columns
        whole = table.free.reshape(-1).take(rows * table.capacity + index)
        whole //= amounts
        found: Ints = np.minimum.reduce(whole)
        return np.maximum(found, 0, out=found)


def attach(found: Ints, have: Ints, missing: Ints, own: int) -> None:
    """Cut counts, in place, where volumes that the pods share are to be attached besides those of each pod alone."""
    left = have - missing
    most = np.maximum(left, 0) // own if own else np.where(left >= 0, MOST, 0)
    np.minimum(found, np.where(missing > 0, most, MOST), out=found)


def _zeros(like: Ints, out: Ints | None) -> Ints:
    found = np.empty_like(like) if out is None else out
    found[:] = 0
    return found


def _cut(found: Ints, admitted: Ints, selection: Selection, *, blind: bool) -> None:
    """Cut counts to what kubelets admit, by table index.

    Where that is -1 or missing it is not known: ``blind`` pods go there by amounts, others do not.
    """
    if isinstance(selection, slice):
        allowed = admitted[selection]
        part = found[: len(allowed)]
        if not blind:
            found[len(allowed) :] = 0
    else:
        inside = selection < len(admitted)
        allowed = np.full(len(selection), -1)
        allowed[inside] = admitted[selection[inside]]
        part = found
    if int(allowed.min(initial=0)) < 0:
        allowed = np.where(allowed < 0, part if blind else 0, allowed)
    np.minimum(part, allowed, out=part)


class CountedShape(msgspec.Struct):
    """A shape that was counted before.

    ``emptied``: by rank, the most that one domain would take if nothing ran; kept until nodes change.
    """

    shape: Shape
    counts: Counts
    emptied: dict[int, int] = msgspec.field(default_factory=dict)
    emptied_at: int = -1

    def apply_changes(self, nodes: NodeColumns, tree: Tree) -> None:
        """Apply every change since the counts were made."""
        table, shape, counts = nodes.table, self.shape, self.counts
        leaves = _changed_leaves(table, tree, counts.seen)
        if leaves is None:
            # The memory of the old counts serves the new ones, so the old `Counts` must not be read after this.
            self.counts = Counts(tree, shape.fit(nodes, tree.span, counts.leaf, tree.spare), table.log_end)
            return
        counts.correct(leaves, shape.fit(nodes, tree.columns_of_leaves(leaves)))
        counts.caught_up(table.log_end)

    def most_emptied(self, nodes: NodeColumns, tree: Tree, rank: int) -> int:
        """The most that one domain of ``rank`` (-1: the whole tree) would take if nothing ran."""
        # Each of the three only grows, also in a rollback, so equal sums mean that none has changed.
        version = nodes.table.alloc_version + nodes.table.labels_version + nodes.numa.layouts_version
        if self.emptied_at != version:
            self.emptied, self.emptied_at = {}, version
        if rank not in self.emptied:
            counts = Counts(tree, self.shape.fit_emptied(nodes, tree))
            self.emptied[rank] = int(counts.leaf.sum() if rank < 0 else counts.counts_of_rank(rank).max())
        return self.emptied[rank]


def known_shape(nodes: NodeColumns, tree: Tree, pod_set: PodSet) -> CountedShape:
    """The shape of a pod set with counts as of now, from the tree's cache where it was seen. Do not modify.

    The counts are good until the next question about this tree, of whatever shape: it may overwrite the memory that
    they lie in, and no rollback restores them. What is needed for longer is copied, or asked for again.
    """
    volumes = pod_set.attached
    key: tuple[object, ...] = (
        (*pod_set.requests.items(),),
        (*pod_set.node_selector.items(),),
        pod_set.tolerations,
        pod_set.node_affinity,
        pod_set.shape,
        pod_set.devices,
    )
    if pod_set.features:
        # Tagged, so that the features of one pod set are never taken for the claims of another.
        key = (*key, "features", pod_set.features)
    if pod_set.claim_nodes:
        key = (*key, "claims", pod_set.claim_nodes)
    if pod_set.volume_nodes or volumes is not NOTHING_ATTACHED:
        key = (*key, pod_set.volume_nodes, tuple(volumes.own.items()), volumes.shared)
    shapes: dict[object, CountedShape] = tree.kept
    known = shapes.pop(key, None)
    if known is not None and any(map(nodes.table.rows.__contains__, known.shape.unknown)):
        known = None  # a node has it now
    if known is None:
        shape = Shape.compile_shape(nodes.table, tree, pod_set)
        # The new shape takes the memory of the oldest one: whoever
        # still holds counts of that one sees them overwritten.
        out = shapes.pop(next(iter(shapes))).counts.leaf if len(shapes) >= SHAPES_KEPT else tree.lend()
        known = CountedShape(shape, Counts(tree, shape.fit(nodes, tree.span, out, tree.spare), nodes.table.log_end))
    elif known.counts.seen != nodes.table.log_end:
        known.apply_changes(nodes, tree)
    shapes[key] = known  # the newest is last, the first is the one to forget
    return known


def _changed_leaves(table: Table, tree: Tree, since: int) -> Ints | None:
    """The leaves (each once) that changed; None where counting anew is cheaper or the log is gone."""
    if since < table.log_start:
        return None
    batches: dict[int, Ints] = {}  # by identity: what is held and given back is the same array
    single: set[int] = set()
    changes = 0
    for entry in table.log[since - table.log_start :]:
        if isinstance(entry, int):
            single.add(entry)
        # The log keeps the arrays alive, so an id stands for one array for as long as this loop runs.
        elif id(entry[1]) not in batches:
            batches[id(entry[1])] = (
                entry[1] if entry[0] is tree else tree.leaves_among(entry[0].columns_of_leaves(entry[1]))
            )
            changes += len(entry[1])
    small = tree.size <= _SMALL
    if (changes + len(single)) * (3 if small else _MANY) > tree.size:
        return None
    parts = list(batches.values())
    if single:
        parts.append(tree.leaves_among(np.array(list(single), np.int64)))
    if len(parts) == 1:
        return parts[0]
    return None if small else distinct(np.sort(np.concatenate(parts)))

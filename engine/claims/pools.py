"""Pools: what a node can reach of the slices, and in which order it is looked at.

The rules are those of k8s.io/dynamic-resource-allocation (pools_incubating.go): pools by driver and name, those with
binding conditions last; slices by name; only the newest generation; what is not complete gives no device.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import TypeVar

import msgspec

from engine.claims import node_selectors
from engine.claims.features import Features
from engine.claims.model import Amounts, Device, DeviceNode, PoolId, Reach
from engine.claims.slices import ResourceSlice, repeated

_Key = TypeVar("_Key", bound=Hashable)


class Pool(msgspec.Struct, frozen=True):
    """A pool as a node sees it. ``invalid`` says what contradicts itself in it; then it has no slices."""

    pool_id: PoolId
    incomplete: bool = False
    invalid: str = ""
    slices: tuple[ResourceSlice, ...] = ()  # with devices for the node
    elsewhere: tuple[ResourceSlice, ...] = ()  # with devices for other nodes, which may use the same counters
    counter_sets: dict[str, Amounts] = msgspec.field(default_factory=dict)

    @property
    def name(self) -> str:
        """As messages name it."""
        return "/".join(self.pool_id)


class Inventory(msgspec.Struct):
    """All slices of a cluster, found by node, by a label that their nodes have, and by pool."""

    _of_node: dict[str, list[ResourceSlice]]
    _of_label: dict[tuple[str, str], list[ResourceSlice]]
    _shared: list[ResourceSlice]  # that any node may reach
    _of_pool: dict[PoolId, list[ResourceSlice]]

    @classmethod
    def from_slices(cls, slices: Iterable[ResourceSlice]) -> "Inventory":
        """Of all slices, in any order."""
        made = cls(defaultdict(list), defaultdict(list), [], defaultdict(list))
        for one in slices:
            made.add(one)
        return made

    def add(self, one: ResourceSlice) -> None:
        """A slice is there."""
        self._of_pool[one.pool_id].append(one)
        # Most slices are of one node. Those in ``_shared`` are looked at for every node, so few should get there.
        if node := one.reach.only:
            self._of_node[node].append(one)
        elif labels := _labels_of(one.reach):
            for label in labels:
                self._of_label[label].append(one)
        else:
            self._shared.append(one)

    def remove(self, one: ResourceSlice) -> None:
        """A slice that was added is there no more."""
        _drop(self._of_pool, one.pool_id, one)
        if node := one.reach.only:
            _drop(self._of_node, node, one)
        elif labels := _labels_of(one.reach):
            for label in labels:
                _drop(self._of_label, label, one)
        else:
            self._shared.remove(one)

    def nodes_of(self, pool: PoolId) -> set[str] | None:
        """The nodes that slices of a pool name; None where one of them names none: any node may reach it then."""
        names = {one.reach.only for one in self._of_pool.get(pool, ())}
        return None if "" in names else names

    @property
    def any_shared(self) -> bool:
        """Whether any slice names no node, so that several may reach its devices."""
        return bool(self._shared or self._of_label)

    def pools(self, node: DeviceNode, features: Features) -> tuple[Pool, ...]:
        """The pools that a node reaches, in the order in which devices are taken."""
        found: dict[PoolId, list[ResourceSlice]] = {}
        labels = node.labels.items() if self._of_label else ()
        # A slice stands under each of its labels, and a node may have several of them.
        labelled = {id(one): one for label in labels for one in self._of_label.get(label, ())}
        for one in (*self._of_node.get(node.name, ()), *labelled.values(), *self._shared):
            if not features.partitionable and (one.per_device is not None or one.counter_sets):
                continue
            if not features.compatibility_groups and one.outline.grouped:
                continue
            if not _relevant(one, node):
                continue
            # ``setdefault`` puts the first slice in, so the branches below add only later ones.
            slices = found.setdefault(one.pool_id, [one])
            if one.generation > slices[0].generation:
                found[one.pool_id] = [one]
            elif one.generation == slices[0].generation and one is not slices[0]:
                slices.append(one)
        pools = [self._pool(pool_id, slices, features) for pool_id, slices in found.items()]
        there = [pool for pool in pools if pool is not None]
        if len(there) > 1:
            # Pools with binding conditions come last.
            there.sort(key=lambda pool: (any(one.outline.conditional for one in pool.slices), pool.pool_id))
        return tuple(there)

    def _pool(self, pool_id: PoolId, slices: list[ResourceSlice], features: Features) -> Pool | None:
        """A pool; None where a newer generation is there, though not for this node."""
        newest = slices[0]
        # A node that reaches the whole pool need not know of newer slices elsewhere, as in pools_incubating.go.
        if len(slices) == newest.slices:
            return _built(pool_id, slices, [], features)
        everywhere = self._of_pool[pool_id]
        if any(one.generation > newest.generation for one in everywhere):
            return None
        same = [one for one in everywhere if one.generation == newest.generation]
        if not features.compatibility_groups:
            same = [one for one in same if not one.outline.grouped]
        if len(same) != newest.slices:
            return Pool(pool_id, incomplete=True)
        return _built(pool_id, slices, same, features)


def _labels_of(reach: Reach) -> set[tuple[str, str]]:
    """Labels of which each node has one that may reach something; none where that is not known of all of them."""
    found: set[tuple[str, str]] = set()
    for term in () if reach.all_nodes else reach.terms or ():
        # One requirement suffices to find candidates; `_relevant` checks the whole selector.
        need = next((one for one in term.labels if one.operator == "In"), None)
        if need is None:
            # One term without such a label may fit any node, so the whole slice has to be looked at everywhere.
            return set()
        found.update((need.key, value) for value in need.values)
    return found


def _drop(found: dict[_Key, list[ResourceSlice]], where: _Key, one: ResourceSlice) -> None:
    found[where].remove(one)
    if not found[where]:
        del found[where]


def reaches(reach: Reach, node: DeviceNode) -> bool:
    """Whether something can be used on a node."""
    if reach.node:
        return reach.node == node.name
    if reach.all_nodes:
        return True
    return reach.terms is not None and node_selectors.matches(reach.terms, node.name, node.labels)


def _relevant(one: ResourceSlice, node: DeviceNode) -> bool:
    if one.reach.node or one.reach.all_nodes or one.reach.terms is not None:
        return reaches(one.reach, node)
    return bool(one.per_device) and any(reaches(device.reach, node) for device in one.devices)


def _built(pool_id: PoolId, slices: list[ResourceSlice], everywhere: list[ResourceSlice], features: Features) -> Pool:
    if len(slices) == 1 and not everywhere and not slices[0].counter_sets:
        outline = slices[0].outline
        if not outline.counted and not outline.repeated:
            return Pool(pool_id, slices=(slices[0],))  # as most are, and nothing in it can contradict itself
    names = {one.name for one in slices}
    others = [one for one in everywhere if one.name not in names] if len(slices) < len(everywhere) else []
    with_counters = [one for one in (*sorted(slices, key=lambda one: one.name), *others) if one.counter_sets]
    # A slice with counter sets gives out no devices.
    holds_counters = {id(one) for one in with_counters} if features.partitionable else set()
    here = tuple(one for one in sorted(slices, key=lambda one: one.name) if id(one) not in holds_counters)
    elsewhere = tuple(one for one in others if id(one) not in holds_counters)
    twice = repeated([device.name for device in _devices_of_slices(here)])
    invalid = f"duplicate device name {twice}" if twice else ""
    if invalid or not features.partitionable:
        return Pool(pool_id, invalid=invalid, slices=() if invalid else here)
    counter_sets: dict[str, Amounts] = {}
    for name, counters in (one for part in with_counters for one in part.counter_sets):
        if name in counter_sets:
            return Pool(pool_id, invalid=f"duplicate counter set name {name}")
        counter_sets[name] = counters
    # Other nodes' devices as well: their use is subtracted from the same counters, so each must exist
    # (`PoolCounters.from_pool`).
    invalid = _unknown_counter(here, counter_sets) or _unknown_counter(elsewhere, counter_sets)
    if invalid:
        return Pool(pool_id, invalid=invalid)
    return Pool(pool_id, slices=here, elsewhere=elsewhere, counter_sets=counter_sets)


def _unknown_counter(slices: tuple[ResourceSlice, ...], counter_sets: dict[str, Amounts]) -> str:
    for device in _devices_of_slices(slices):
        for use in device.uses:
            counters = counter_sets.get(use.counter_set)
            if counters is None:
                return f"counter set {use.counter_set} not found"
            for name in use.counters:
                if name not in counters:
                    return f"counter {name} not found in counter set {use.counter_set}"
    return ""


def _devices_of_slices(slices: tuple[ResourceSlice, ...]) -> Iterable[Device]:
    return (device for one in slices for device in one.devices)

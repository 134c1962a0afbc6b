"""What tells nodes apart to pods with claims: nodes that look the same take as many.

Nodes look the same where their devices differ in nothing that is asked for: names and attributes that no selector and
no constraint reads do not count, the order of devices does. Which devices are in use is the same question to all pods;
what devices are is one for all that read the same of them.
"""

from collections.abc import Collection, Hashable, Iterable, Iterator
from functools import cached_property
from itertools import count as numbers
from typing import Final
from weakref import WeakKeyDictionary

import msgspec

from engine.claims.cel.selectors import FLAWS, WHOLE, Path, reading
from engine.claims.hardware import NodeHardware
from engine.claims.in_use import InUse
from engine.claims.pools import reaches
from engine.claims.searching.counters import PoolCounters
from engine.claims.slices import ResourceSlice

VIEWS_KEPT: Final = 128
_MOST_ATTRIBUTES: Final = 16  # that constraints compare; where they are more, the whole device counts
_READS: Final = 32  # that weigh as much as an answer about a node
_REMEMBERED: Final = 1 << 16
_TOLD: Final[frozenset[Path]] = frozenset({FLAWS, ("driver",), ("allowMultipleAllocations",)})  # by the view of all
_numbers = numbers()


class DeviceUse(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """What of a node's devices is in use, as far as that limits anybody.

    ``busy``: indexes of devices that are taken; ``shared``: what is taken of others; ``counters``: what is left of
    counters, where devices take any.
    """

    busy: tuple[int, ...]
    shared: tuple[Hashable, ...]
    counters: tuple[Hashable, ...]


class NodeDevices(msgspec.Struct, frozen=True, eq=False, dict=True):
    """A node's devices and which of them are in use; made anew when either changes."""

    hardware: NodeHardware
    in_use: InUse

    @cached_property
    def state(self) -> DeviceUse:
        """Equal for nodes with hardware that looks the same on which the same is in use."""
        hardware, in_use = self.hardware, self.in_use
        # By index: names differ from node to node, positions mean the same on nodes that look the same.
        busy = tuple(hardware.indexes(in_use.taken))
        shared: tuple[Hashable, ...] = ()
        if in_use.shared:
            shared = tuple(
                [
                    (index, tuple(sorted(in_use.consumed(one.device_id).items())))
                    for index, one in enumerate(hardware.candidates)
                    if in_use.is_shared(one.device_id)
                ]
            )
        counters: list[Hashable] = []
        for pool, _ in hardware.by_pool:
            # Most pools have no counters, and for them nothing is read.
            if any(one.outline.counted for one in pool.slices):
                found = PoolCounters.from_pool(pool, in_use)
                counters.append((frozenset(found.left.items()), frozenset(found.groups.items())))
        return DeviceUse(busy, shared, tuple(counters))


class DeviceView(msgspec.Struct, eq=False, weakref=True):
    """Hardware as those see it who read these paths and attributes of devices.

    ``own``: devices that are not the node's alone (`NodeHardware.common`) are told from others. ``base``: the view of
    those who read nothing, or only what is told of all devices: their drivers, whether they are shared, what of them is
    none.
    """

    paths: tuple[Path, ...]
    attributes: tuple[str, ...]
    own: bool
    base: "DeviceView | None" = None
    _of: "WeakKeyDictionary[NodeHardware, int]" = msgspec.field(default_factory=WeakKeyDictionary)
    _ids: dict[Hashable, int] = msgspec.field(default_factory=dict)
    _reads: int = 0  # in all of ``_ids``

    @property
    def reads(self) -> int:
        """Of each device."""
        return len(self.paths) + len(self.attributes)

    @property
    def remembered_answers(self) -> int:
        """How much is remembered, in answers about a node."""
        return len(self._of) + len(self._ids) + self._reads // _READS

    def forget_answers(self) -> None:
        """Forget how hardware looks: what is looked at again looks like none before."""
        self._of.clear()
        self._ids.clear()
        self._reads = 0

    def number_of_look(self, hardware: NodeHardware) -> int:
        """The same for hardware that looks the same."""
        found = self._of.get(hardware)
        if found is None:
            look = self._hardware_class(hardware)
            # Numbers come from one counter and are never used again, so what was counted for an old number stays true
            # and unused.
            if len(self._ids) >= _REMEMBERED:
                self.forget_answers()
            found = self._ids.get(look)
            if found is None:
                found = self._ids[look] = next(_numbers)
                self._reads += self.reads * hardware.size
            self._of[hardware] = found
        return found

    def _hardware_class(self, hardware: NodeHardware) -> Hashable:
        if self.base is None:
            # Without the pool's name, which holds the node's in most drivers. The driver stays: selectors read it.
            return tuple(
                [
                    (
                        pool.pool_id[0],
                        pool.incomplete,
                        bool(pool.invalid),
                        tuple([self._slice(hardware, one) for one in pool.slices]),
                    )
                    for pool, _ in hardware.by_pool
                ]
            )
        slices = [one for pool, _ in hardware.by_pool for one in pool.slices]
        reads: list[Hashable] = [
            self.base.number_of_look(hardware)
        ]  # it tells how many slices of how many devices follow
        reads += [one.looks(path) for path in self.paths for one in slices]
        for name in self.attributes:
            reads += [device.attribute(name) for one in slices for device in one.devices]
        return tuple(reads)

    def _slice(self, hardware: NodeHardware, one: ResourceSlice) -> Hashable:
        outline, reach = one.outline, one.reach
        skips = hardware.node.declared_features if one.skips_node_operations else None
        # All devices of the slice are reached alike then, and one entry says it for all.
        if not one.per_device and not (self.own and hardware.common):
            return outline.forms, outline.flaws, skips, bool(reach.node), len(reach.terms or ())
        places = [device.reach if one.per_device else reach for device in one.devices]
        devices = tuple(
            [
                (
                    self.own and (*one.pool_id, device.name) in hardware.common,
                    not one.per_device or reaches(place, hardware.node),
                    bool(place.node),
                    len(place.terms or ()),
                )
                for device, place in zip(one.devices, places, strict=True)
            ]
        )
        return outline.forms, outline.flaws, skips, devices


class DeviceViews(msgspec.Struct):
    """Views that pods of several kinds have in common."""

    _views: dict[tuple[tuple[Path, ...], tuple[str, ...], bool], DeviceView] = msgspec.field(default_factory=dict)

    def view_of_paths(self, paths: Iterable[Path], attributes: Collection[str], *, own: bool) -> DeviceView:
        """The view of those who read this."""
        # A claim with many constraints would make a look as long as all attributes of all devices.
        if len(attributes) > _MOST_ATTRIBUTES:
            return self._view((WHOLE,), (), own)
        return self._view(tuple([one for one in reading(paths) if one not in _TOLD]), tuple(sorted(attributes)), own)

    def __iter__(self) -> Iterator[DeviceView]:
        """All that are kept."""
        return iter(self._views.values())

    def _view(self, paths: tuple[Path, ...], attributes: tuple[str, ...], own: bool) -> DeviceView:
        key = paths, attributes, own
        found = self._views.pop(key, None)
        if found is None:
            if len(self._views) >= VIEWS_KEPT:
                # Kinds that hold the view go on with it. Another kind that reads the same then has a view of its own.
                del self._views[next(iter(self._views))]
            base = self._view((), (), own) if paths or attributes else None
            found = DeviceView(*key, base)
        self._views[key] = found  # the newest is last, the first is the one to forget
        return found

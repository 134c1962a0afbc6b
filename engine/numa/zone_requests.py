"""What a pod asks of the zones of one kind of layout, step by step as its kubelet looks at it, as rows and amounts.

In container scope each container is a step, in pod scope the whole pod is one; see `engine.kubelet.resource_requests`
for what is asked.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from engine.arrays import Ints
from engine.kubelet import resource_requests
from engine.kubelet.hints import DEVICES_WHERE_THEY_ARE
from engine.kubelet.machine import CPU, ContainerKind, PodShape, Scope, TopologyPolicy
from engine.numa.layout_class import Traits

PERMISSIVE = {TopologyPolicy.NONE, TopologyPolicy.BEST_EFFORT}  # refuse nothing for its zones


class ZoneRequest:
    """One step: (row of the resource, amount > 0) in ``pairs``; of ``present`` a zone only has to have some.

    ``memory``: how many rows are memory or huge pages. ``narrow``: something is asked for of which one zone always has
    enough (no devices at all), so that a strict kubelet takes no set of several. ``lends``: it is an init container's.
    ``column``: the amounts, as (rows, 1, 1). ``widths``: by layout of the kind, what `engine.numa.batch.zones` last
    found, and as of which layouts.
    """

    __slots__ = ("amounts", "column", "lends", "memory", "narrow", "pairs", "present", "rows", "widths")

    def __init__(
        self,
        pairs: Sequence[tuple[int, int]],
        present: Sequence[int] = (),
        memory: int = 0,
        *,
        narrow: bool = False,
        lends: bool = False,
    ) -> None:
        self.pairs = pairs
        self.rows = [row for row, _ in pairs]
        self.amounts = [amount for _, amount in pairs]
        self.column = np.array(self.amounts, np.int64).reshape(-1, 1, 1)
        self.present = present
        self.memory = memory
        self.narrow = narrow
        self.lends = lends
        self.widths: tuple[int, Ints] | None = None

    def note_widths(self, layouts: int, widths: Ints) -> tuple[int, Ints]:
        """Remember what was found as of so many layouts; returns it."""
        self.widths = layouts, widths
        return self.widths

    def memory_of(self, resources: Sequence[str]) -> list[tuple[int, int]]:
        """The pairs of memory and huge pages."""
        return [pair for pair in self.pairs if resource_requests.is_memory(resources[pair[0]])]


class Steps(NamedTuple):
    """``each`` step that asks for something, and the peak of the ``whole`` pod.

    ``lent``: init containers leave something to later ones. ``with_memory``: how many containers are given memory of
    zones. ``cut``: one asks for CPUs that are not whole cores where only those are given.
    """

    each: tuple[ZoneRequest, ...]
    whole: ZoneRequest
    lent: bool
    with_memory: int
    cut: bool


def steps_of(traits: Traits, shape: PodShape) -> Steps | None:
    """The steps; None where init containers and sidecars ask for what amounts do not tell."""
    asks = resource_requests.asks_of(traits.resources, traits.ignored, traits.kubelet, shape)
    absent = [traits.resources.index(name) for name in traits.absent]
    containers = [(kind, _drop_absent(ask, absent) if absent else ask) for kind, _, ask in asks.containers]
    inits = [ask for kind, ask in containers if kind is ContainerKind.INIT and ask != _NOTHING]
    apps_only = all([kind is ContainerKind.APP or ask == _NOTHING for kind, ask in containers])  # noqa: C419  (faster)
    whole = _drop_absent(asks.whole, absent) if absent else asks.whole
    if not apps_only and not _is_told(traits, whole, [ask for _, ask in containers], inits):
        return None
    steps: list[ZoneRequest] = []
    if traits.kubelet.scope is Scope.CONTAINER:
        steps = [
            _request_of(traits, ask, lends=kind is ContainerKind.INIT) for kind, ask in containers if ask != _NOTHING
        ]
    elif whole != _NOTHING:
        steps = [_request_of(traits, whole)]
    return Steps(
        each=tuple(steps),
        whole=steps[0] if len(steps) == 1 else _request_of(traits, whole),
        lent=bool(inits),
        with_memory=sum([bool(ask.memory) for _, ask in containers]),
        # As full-pcpus-only does, container by container and in both scopes: such a pod ends with SMTAlignmentError.
        cut=traits.threads > 1 and any(ask.cpus % traits.threads for _, ask in containers),
    )


def _is_told(
    traits: Traits,
    whole: resource_requests.ResourceRequest,
    asks: Sequence[resource_requests.ResourceRequest],
    inits: Sequence[resource_requests.ResourceRequest],
) -> bool:
    """Whether amounts tell what the containers of a pod leave each other."""
    rows = {row for row, _ in whole.memory}
    if any(row not in rows for ask in asks for row, _ in ask.memory):
        return False  # memory of init containers and sidecars only: the whole pod does not ask for it
    if not inits:
        return True
    if any(not amount for ask in asks for _, amount in ask.devices):
        return False
    if traits.kubelet.policy in PERMISSIVE and any(ask.memory for ask in inits):
        return False
    return not any(ask.cpus for ask in inits) or _lends_cpus(traits, asks)


def _lends_cpus(traits: Traits, asks: Sequence[resource_requests.ResourceRequest]) -> bool:
    """Whether later containers take the very CPUs that are lent: all are whole cores, picked in the same order."""
    kubelet = traits.kubelet
    # An init container may keep one thread of a core while the next
    # container gets a whole core: of three CPUs held, amounts show two.
    if kubelet.full_pcpus_only or any(ask.cpus % traits.siblings for ask in asks):
        return False
    picked = kubelet.prefer_align_cpus_by_uncorecache or kubelet.distribute_cpus_across_cores
    spread = kubelet.distribute_cpus_across_numa or kubelet.policy in PERMISSIVE
    return not (traits.exact and (picked or spread))


_NOTHING = resource_requests.ResourceRequest()


def _drop_absent(ask: resource_requests.ResourceRequest, absent: Sequence[int]) -> resource_requests.ResourceRequest:
    """Devices that no zone has are asked of nobody."""
    return ask._replace(devices=tuple([pair for pair in ask.devices if pair[0] not in absent]))


def _request_of(traits: Traits, step: resource_requests.ResourceRequest, *, lends: bool = False) -> ZoneRequest:
    devices = [pair for pair in step.devices if pair[1]]
    cpus = [(traits.resources.index(CPU), step.cpus * 1000)] if step.cpus else []
    # A device limit of 0 still gives hints in the kubelet (1.36.3), for zones that have such a device.
    bare = [row for row, amount in step.devices if not amount]
    # From 1.36 on the device manager makes masks of the zones with such a device alone, before that of all zones.
    where_they_are = traits.kubelet.version >= DEVICES_WHERE_THEY_ARE
    # What has few units comes first: where it is gone, nothing else needs a look.
    return ZoneRequest(
        [*devices, *cpus, *step.memory],
        bare if where_they_are else (),
        len(step.memory),
        narrow=bool(bare),
        lends=lends,
    )

"""What a pod asks of the zones of one kind of layout, step by step as its kubelet looks at it, as rows and amounts.

In container scope each container is a step, in pod scope the whole pod is one; see `engine.numa.pod` for what is asked.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from engine.numa import pod
from engine.numa.hints import DEVICES_WHERE_THEY_ARE
from engine.numa.machine import CPU, Kind, PodShape, Scope
from engine.numa.traits import Traits

if TYPE_CHECKING:
    from engine.table import Ints


class Ask:
    """One step: (row of the resource, amount > 0) in ``pairs``; of ``present`` a zone only has to have some.

    ``memory``: how many rows are memory or huge pages. ``narrow``: something is asked for of which one zone always has
    enough (no devices at all), so that a strict kubelet takes no set of several. ``column``: the amounts, as
    (rows, 1, 1). ``widths``: by layout of the kind, what `engine.numa.batch_zones` last found, and as of which layouts.
    """

    __slots__ = ("amounts", "column", "memory", "narrow", "pairs", "present", "rows", "widths")

    def __init__(
        self, pairs: Sequence[tuple[int, int]], present: Sequence[int] = (), memory: int = 0, *, narrow: bool = False
    ) -> None:
        self.pairs = pairs
        self.rows = [row for row, _ in pairs]
        self.amounts = [amount for _, amount in pairs]
        self.column = np.array(self.amounts, np.int64).reshape(-1, 1, 1)
        self.present = present
        self.memory = memory
        self.narrow = narrow
        self.widths: tuple[int, Ints] | None = None

    def memory_of(self, resources: Sequence[str]) -> list[tuple[int, int]]:
        """The pairs of memory and huge pages."""
        return [pair for pair in self.pairs if pod.is_memory(resources[pair[0]])]


def together(asks: Sequence[Ask]) -> Ask:
    """Several steps as one."""
    total: dict[int, int] = {}
    present: set[int] = set()
    memory = 0
    for ask in asks:
        present.update(ask.present)
        memory = max(memory, ask.memory)
        for row, amount in ask.pairs:
            total[row] = total.get(row, 0) + amount
    return Ask(sorted(total.items()), sorted(present), memory, narrow=any(ask.narrow for ask in asks))


def asks_of(traits: Traits, shape: PodShape) -> tuple[Ask, ...] | None:
    """The steps; those that ask for nothing are left out. None where init containers or sidecars ask for something.

    What those leave pinned for later containers is not expressed by amounts.
    """
    asks = pod.asks_of(traits.resources, traits.ignored, traits.kubelet, shape)
    absent = [row for row, name in enumerate(traits.resources) if name in traits.absent]
    containers = [(kind, _without(ask, absent)) for kind, _, ask in asks.containers]
    if any(ask != _NOTHING and kind is not Kind.APP for kind, ask in containers):
        return None
    whole = traits.kubelet.scope is Scope.POD
    steps = [_without(asks.whole, absent)] if whole else [ask for _, ask in containers]
    return tuple([_ask(traits, step) for step in steps if step != _NOTHING])


_NOTHING = pod.Ask()


def _without(ask: pod.Ask, absent: Sequence[int]) -> pod.Ask:
    """Devices that no zone has are asked of nobody."""
    return ask._replace(devices=tuple([pair for pair in ask.devices if pair[0] not in absent]))


def with_memory(traits: Traits, shape: PodShape) -> int:
    """How many containers are given memory of zones."""
    asks = pod.asks_of(traits.resources, traits.ignored, traits.kubelet, shape)
    return sum(bool(ask.memory) for _, _, ask in asks.containers)


def breaks_cores(traits: Traits, shape: PodShape) -> bool:
    """Whether a container asks for CPUs that are not whole cores where only those are given."""
    asks = pod.asks_of(traits.resources, traits.ignored, traits.kubelet, shape)
    return any(ask.cpus % traits.threads for _, _, ask in asks.containers)


def _ask(traits: Traits, step: pod.Ask) -> Ask:
    devices = [pair for pair in step.devices if pair[1]]
    cpus = [(traits.resources.index(CPU), step.cpus * 1000)] if step.cpus else []
    bare = [row for row, amount in step.devices if not amount]
    where_they_are = traits.kubelet.version >= DEVICES_WHERE_THEY_ARE
    # What has few units comes first: where it is gone, nothing else needs a look.
    return Ask([*devices, *cpus, *step.memory], bare if where_they_are else (), len(step.memory), narrow=bool(bare))

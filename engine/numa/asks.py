"""What a pod asks of the zones of one kind of layout, step by step as its kubelet looks at it.

In container scope each container is a step, in pod scope the whole pod is one. A step names only what is aligned there:
whole CPUs of Guaranteed pods under the static CPU manager, memory and huge pages of Guaranteed pods under the Static
memory manager, devices of any pod. What no zone reports is not aligned (the node's own amounts bound it), and what the
layout ignores is not either.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from engine.numa.machine import CPU, Container, Kind, PodShape, Qos, Scope
from engine.numa.traits import Traits, is_device, is_memory

if TYPE_CHECKING:
    from engine.table import Ints

_DEVICES_WHERE_THEY_ARE = (1, 36)  # since then, devices make hints of the zones that hold some only


class Ask:
    """One step: (row of the resource, amount > 0) in ``pairs``; of ``present`` a zone only has to have some.

    ``memory``: how many rows are memory or huge pages. ``column``: the amounts, as (rows, 1, 1).
    ``widths``: by layout of the kind, what `engine.numa.batch` last found, and as of which layouts.
    """

    __slots__ = ("amounts", "column", "memory", "pairs", "present", "rows", "widths")

    def __init__(self, pairs: Sequence[tuple[int, int]], present: Sequence[int] = (), memory: int = 0) -> None:
        self.pairs = pairs
        self.rows = [row for row, _ in pairs]
        self.amounts = [amount for _, amount in pairs]
        self.column = np.array(self.amounts, np.int64).reshape(-1, 1, 1)
        self.present = present
        self.memory = memory
        self.widths: tuple[int, Ints] | None = None


def together(asks: Iterable[Ask]) -> Ask:
    """Several steps as one."""
    total: dict[int, int] = {}
    present: set[int] = set()
    memory = 0
    for ask in asks:
        present.update(ask.present)
        memory = max(memory, ask.memory)
        for row, amount in ask.pairs:
            total[row] = total.get(row, 0) + amount
    return Ask(sorted(total.items()), sorted(present), memory)


def asks_of(traits: Traits, shape: PodShape) -> tuple[Ask, ...] | None:
    """The steps; those that ask for nothing are left out. None where init containers or sidecars ask for something.

    What those leave pinned for later containers is not expressed by amounts.
    """
    wants = [_wants(traits, shape, container) for container in shape.containers]
    if any(want and container.kind is not Kind.APP for want, container in zip(wants, shape.containers, strict=True)):
        return None
    if traits.kubelet.scope is Scope.POD:
        wants = [_together(wants)]
    return tuple([_ask(traits, want) for want in wants if want])


def _wants(traits: Traits, shape: PodShape, container: Container) -> dict[int, int]:
    """Amounts by row, zeros included where they constrain."""
    kubelet, found = traits.kubelet, {}
    rows = {resource: row for row, resource in enumerate(traits.resources) if resource not in traits.ignored}
    pinned = shape.qos is Qos.GUARANTEED and not shape.pod_level
    for resource, amount in container.requests if pinned else ():
        if resource in rows and amount > 0:
            whole = resource == CPU and kubelet.static_cpu and not amount % 1000
            if whole or (is_memory(resource) and kubelet.static_memory):
                found[rows[resource]] = amount
    for resource, amount in container.limits:
        if resource in rows and is_device(resource):
            found[rows[resource]] = amount
    return found


def _together(wants: Iterable[dict[int, int]]) -> dict[int, int]:
    total: dict[int, int] = {}
    for want in wants:
        for row, amount in want.items():
            total[row] = total.get(row, 0) + amount
    return total


def _ask(traits: Traits, want: dict[int, int]) -> Ask:
    # What has few units is asked first: where it is gone, nothing else needs a look.
    rows = sorted((row for row, amount in want.items() if amount), key=lambda row: (want[row] >= 1000, row))
    narrow = traits.kubelet.version >= _DEVICES_WHERE_THEY_ARE
    return Ask(
        [(row, want[row]) for row in rows],
        [row for row, amount in want.items() if not amount and narrow],
        sum(is_memory(traits.resources[row]) for row in rows),
    )

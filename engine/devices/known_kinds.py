"""The kinds of pods that were asked about, and the classes that they name; the latest are kept.

Anybody may make kinds that read what is another of each node. So what all of them remember of single nodes is limited:
the heaviest forget it. How many pods of them fit each node stays known, and costs steps where a node changes. Where
there are too many kinds, one goes of the namespace that has most.
"""

from typing import Final, Protocol

import msgspec

from engine.claims.asks import DeviceAsk
from engine.claims.budget import Budget
from engine.claims.cel.selectors import Selectors
from engine.claims.counting.looks import DeviceViews
from engine.claims.model import DeviceClass
from engine.claims.read.asks import claims_of
from engine.claims.searching.requests import RequestContext
from engine.devices.free_numbers import FreeNumbers
from engine.devices.kinds import Kind
from engine.devices.node_counts import NodeCounts
from engine.latest import LatestOfEach

# A template is a kind, and a tenant may write any number of templates.
KINDS_KEPT: Final = 128
# Some 40 MB at most. Without it, 128 kinds that read another value of each device take 1 to 2 KB a node and kind.
MOST_REMEMBERED: Final = 1 << 17  # answers about a node, some 300 bytes each


class Remembering(Protocol):
    """What remembers something of single nodes."""

    @property
    def remembered_answers(self) -> int:
        """How much, in answers about a node."""

    def forget_answers(self) -> None:
        """Forget it: it is found again where somebody asks."""


class Varying(msgspec.Struct, eq=False):
    """Pods that ask nodes for different claims: how many fit each, now and if nothing was held.

    ``keys``: of what is asked (`DeviceAsk.key`).
    """

    now: NodeCounts = msgspec.field(default_factory=NodeCounts)
    bare: NodeCounts = msgspec.field(default_factory=NodeCounts)
    keys: set[str] = msgspec.field(default_factory=set)


class KnownKinds:
    """See the module."""

    def __init__(self) -> None:
        self.classes: dict[str, DeviceClass] = {}
        self._selectors = Selectors()
        self._views = DeviceViews()
        self._kinds: LatestOfEach[str, Kind] = LatestOfEach(KINDS_KEPT)
        self._varying: LatestOfEach[DeviceAsk, Varying] = LatestOfEach(KINDS_KEPT)
        self.free = FreeNumbers(self.classes, self._selectors, self._views)

    def set_device_class(self, name: str, found: DeviceClass | None) -> None:
        """A DeviceClass came, changed or went."""
        if found is None:
            self.classes.pop(name, None)
        else:
            self.classes[name] = found
        # Selectors and views stay: they go by the text of expressions, whatever class has it.
        self._kinds.clear()
        self._varying.clear()
        self.free = FreeNumbers(self.classes, self._selectors, self._views)

    def devices_changed(self) -> None:
        """Nodes have other devices than before."""
        for kind in self._kinds.values():
            kind.devices_changed()
        self.free.devices_changed()

    def claim_changed(self, claim: str) -> None:
        """A claim has devices, or has none any more: who names it asks for something else."""
        # A list first: the loop takes entries out of what it walks over.
        for ask in [one for one in self._varying if claim in one.claims]:
            self._varying.discard(ask)

    def request_context(self, steps: int) -> RequestContext:
        """What requests refer to, with so many steps for one question."""
        return RequestContext(self.classes, self._selectors, Budget(steps))

    def counted(self, ask: DeviceAsk, tenant: str = "") -> Kind | Varying:
        """What knows how many of such pods fit each node. ``tenant``: the namespace that asks, where that is known."""
        return self.varying(ask, tenant) if ask.varies else self.kind(ask, tenant)

    def varying(self, ask: DeviceAsk, tenant: str = "") -> Varying:
        """The same of pods that ask nodes for different claims."""
        return self._varying.get_or_make(ask, Varying, tenant)

    def kind(self, ask: DeviceAsk, tenant: str = "") -> Kind:
        """The kind of pods that ask for just this."""
        return self._kinds.get_or_make(
            ask.key, lambda: Kind(claims_of(ask), self.classes, self._selectors, self._views), tenant
        )

    def tenant(self, ask: DeviceAsk) -> str:
        """The namespace that asked first; "" where that is not known."""
        return self._varying.owner(ask) if ask.varies else self._kinds.owner(ask.key)

    def trim(self) -> None:
        """Have the heaviest forget what they remember of nodes, as far as all together remember too much."""
        kinds, counters = self._kinds.values(), self.free.counters
        # A set: kinds and forms share views, and each is to be weighed once. Views in use may be out of ``_views`` by
        # now.
        views = {
            *self._views,
            *(one.view for one in counters),
            *(one.counted_view for one in kinds if one.counted_view is not None),
        }
        memories: list[tuple[int, Remembering]] = [(one.remembered_answers, one) for one in (*kinds, *counters, *views)]
        total = sum(weight for weight, _ in memories)
        # The heaviest first, so that small kinds do not pay for what one tenant makes the engine remember.
        for weight, memory in sorted(memories, key=lambda one: one[0], reverse=True):
            if total <= MOST_REMEMBERED:
                return
            memory.forget_answers()
            total -= weight

    def is_uncounted(self, ask: DeviceAsk) -> bool:
        """Whether pods with these claims are not counted, as that took too many steps: none fits any node."""
        varying = self._varying.get(ask) if ask.varies else None
        keys = varying.keys if varying is not None else () if ask.varies else {ask.key}
        return any(kind.is_refused for key in keys if (kind := self._kinds.get(key)) is not None)

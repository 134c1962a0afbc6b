"""The kinds of pods that were asked about, and the classes that they name; the latest are kept."""

from dataclasses import dataclass, field
from typing import Final

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
from engine.latest import Latest

KINDS_KEPT: Final = 128


@dataclass(eq=False, slots=True)
class Varying:
    """Pods that ask nodes for different claims: how many fit each, now and if nothing was held.

    ``keys``: of what is asked (`DeviceAsk.key`).
    """

    now: NodeCounts = field(default_factory=NodeCounts)
    bare: NodeCounts = field(default_factory=NodeCounts)
    keys: set[str] = field(default_factory=set)


class KnownKinds:
    """See the module."""

    def __init__(self) -> None:
        self.classes: dict[str, DeviceClass] = {}
        self._selectors = Selectors()
        self._views = DeviceViews()
        self._kinds: Latest[str, Kind] = Latest(KINDS_KEPT)
        self._varying: Latest[DeviceAsk, Varying] = Latest(KINDS_KEPT)
        self.free = FreeNumbers(self.classes, self._selectors, self._views)

    def set_class(self, name: str, found: DeviceClass | None) -> None:
        """A DeviceClass came, changed or went."""
        if found is None:
            self.classes.pop(name, None)
        else:
            self.classes[name] = found
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
        for ask in [one for one in self._varying if claim in one.claims]:
            del self._varying[ask]

    def known(self, steps: int) -> RequestContext:
        """What requests refer to, with so many steps for one question."""
        return RequestContext(self.classes, self._selectors, Budget(steps))

    def counted(self, ask: DeviceAsk) -> Kind | Varying:
        """What knows how many of such pods fit each node."""
        return self.varying(ask) if ask.varies else self.kind(ask)

    def varying(self, ask: DeviceAsk) -> Varying:
        """The same of pods that ask nodes for different claims."""
        return self._varying.get_or_make(ask, Varying)

    def kind(self, ask: DeviceAsk) -> Kind:
        """The kind of pods that ask for just this."""
        return self._kinds.get_or_make(
            ask.key, lambda: Kind(claims_of(ask), self.classes, self._selectors, self._views)
        )

    def refused(self, ask: DeviceAsk) -> bool:
        """Whether pods with these claims are not counted, as that took too many steps: none fits any node."""
        keys = {ask.key} if not ask.varies else self._varying[ask].keys if ask in self._varying else ()
        return any(kind.refused for key in keys if (kind := self._kinds.get(key)) is not None)

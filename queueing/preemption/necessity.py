"""Whom a plan surely needs, shown by numbers: so that a plan of many victims need not be tried without each of them."""

from collections.abc import Iterable

import msgspec
import numpy as np

from engine.arrays import Ints
from engine.cluster.state import ClusterState
from engine.placement.upper_bounds import UpperBounds
from engine.reservation_key import HolderKey
from queueing.preemption.domains import CandidateDomains, SlotHoldings
from queueing.queues.usage import Mask


class NecessityProof(msgspec.Struct):
    """Proof by numbers that victims are needed: with one left alone no domain could take the pod set. Nodes only."""

    site: CandidateDomains
    _free: list[Ints] = msgspec.field(default_factory=list)
    _fits: Ints = msgspec.field(default_factory=lambda: np.zeros(0, np.int64))
    _held: SlotHoldings | None = None
    _sure: Mask | None = None

    def start(self, state: ClusterState, taken: Iterable[HolderKey]) -> None:
        """Look at the state while all of ``taken`` are out."""
        site = self.site
        outlook = UpperBounds.compute_bounds(state, site.outlook.tree.flavor.name, site.outlook.pod_set)
        if outlook is None:
            return
        # Copied: victims that turn out not to be needed are charged
        # back here, while the engine's columns stay as they are.
        self._free = [free.copy() for free in outlook.free]
        self._fits = outlook.bound_leaves()
        self._held = site.holdings(taken)

    def surely(self, key: HolderKey) -> bool:
        """Whether every domain that could take the pod set now could not if this one were left alone."""
        if self._held is None or key not in self._held.numbers:
            return False
        if self._sure is None:
            self._sure = self._proven(self._held)
        return bool(self._sure[self._held.numbers[key]])

    def left_alone(self, key: HolderKey) -> None:
        """It stays, so what it holds is not free."""
        held = self._held
        if held is None or key not in held.numbers:
            return
        mine = held.owner == held.numbers[key]
        leaves = held.leaf[mine]
        self._fits[leaves] -= self._change(held)[mine]
        for free, amounts in zip(self._free, held.amounts, strict=True):
            free[leaves] -= amounts[mine]
        # One more that stays makes others more needed: what was proven holds, but more may be provable now.
        self._sure = None

    def _proven(self, held: SlotHoldings) -> Mask:
        """The same for all of them at once."""
        outlook, need = self.site.outlook, self.site.need
        domains = outlook.summed(self._fits)
        change, domain = self._change(held), outlook.owner[held.leaf]
        sure = np.ones(len(held.numbers), np.bool_)
        for at in (domains >= need).nonzero()[0].tolist():
            inside = domain == at
            lost = np.bincount(held.owner[inside], weights=change[inside], minlength=len(sure))
            # Needed in every domain that would do, or the workload would go elsewhere without this victim.
            sure &= domains[at] - lost < need
        return sure

    def _change(self, held: SlotHoldings) -> Ints:
        """How many pods fewer would fit the leaf of each holding, were its owner alone left there."""
        fits: Ints | None = None
        for (_, need), free, taken in zip(self.site.outlook.needs, self._free, held.amounts, strict=True):
            part = (free[held.leaf] - taken) // need
            fits = part if fits is None else np.minimum(fits, part)
        assert fits is not None  # noqa: S101  (one of pods is always needed)
        now = self._fits[held.leaf]
        # A node takes no more with this owner left there than it takes now.
        return now - np.minimum(np.maximum(fits, 0) * self.site.outlook.passing[held.leaf], now)

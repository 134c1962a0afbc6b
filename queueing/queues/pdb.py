"""What PodDisruptionBudgets let go, as far as that is known before a plan is made.

Rules
- The Eviction API has the last word. This keeps plans from being made that it would refuse: victims that go in vain
  because others of their plan may not.
- What a holder takes of a budget is the number of its pods that the budget selects. It goes whole, so where that is
  more than the budget allows now, the holder is nobody's victim (``guarded``).
- Several victims may be too many together for a budget that allows each of them: `exceeded_budget` names one to be left
  alone.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from engine.reservation_key import HolderKey

Takes = Mapping[str, int]  # pods by name of the budget


class Budgets:
    """See the module's rules. Holders and budgets have names."""

    def __init__(self) -> None:
        self.guarded: dict[HolderKey, None] = {}  # nobody's victims
        self._allowed: dict[str, int] = {}
        self._takes: dict[HolderKey, Takes] = {}
        self._holders: dict[str, set[str]] = {}  # by budget

    def allow(self, budget: str, pods: int) -> bool:
        """So many more pods may go; True where that is more than before."""
        before = self._allowed.get(budget, 0)
        self._allowed[budget] = pods
        # Only holders that this budget selects: a cluster has many budgets that change with every pod.
        for key in self._holders.get(budget, ()):
            self._judge(key)
        return pods > before

    def remove_budget(self, budget: str) -> None:
        """The budget is gone; whom it selected is told by `set_selected`."""
        self._allowed.pop(budget, None)

    def set_selected(self, key: str, takes: Takes) -> bool:
        """How many pods of a holder each budget selects, {} for none; True where it became somebody's victim again."""
        for budget in self._takes.pop(key, {}):
            self._holders[budget].discard(key)
            if not self._holders[budget]:
                del self._holders[budget]
        if takes:
            self._takes[key] = takes
            for budget in takes:
                self._holders.setdefault(budget, set()).add(key)
        # Asked before it is judged again: only a change wakes somebody.
        was = key in self.guarded
        self._judge(key)
        return was and key not in self.guarded

    def allows(self, key: str, pods: int) -> bool:
        """Whether so many pods of a holder may go, whichever they are."""
        # A budget that is not known (any more) allows nothing: a
        # wrong "no" costs a plan, a wrong "yes" an eviction in vain.
        return all(
            min(pods, taken) <= self._allowed.get(budget, 0) for budget, taken in self._takes.get(key, {}).items()
        )

    def exceeded_budget(
        self, victims: Collection[tuple[int, HolderKey]], leaving: Iterable[HolderKey] = ()
    ) -> str | None:
        """Of holders (priority, key) that are to go together, one that exceeds a budget: the important stay; or None.

        ``leaving``: those who go already, whose pods the budgets may not miss yet.
        """
        selected = [(priority, key) for priority, key in victims if isinstance(key, str) and key in self._takes]
        if not selected:
            return None
        left = Counter(self._allowed)
        # The budget's status lags behind evictions under way, so their pods are taken off here.
        for key in leaving:
            left.subtract(self._takes.get(key, {}))
        for _, key in sorted(selected):
            takes = self._takes[key]
            if any(pods > left[budget] for budget, pods in takes.items()):
                return key
            left.subtract(takes)
        return None

    def _judge(self, key: str) -> None:
        if any(pods > self._allowed.get(budget, 0) for budget, pods in self._takes.get(key, {}).items()):
            self.guarded[key] = None
        else:
            self.guarded.pop(key, None)

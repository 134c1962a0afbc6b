"""Who waits for devices on which node: pods that have none yet, and slots that no pod fills."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping

from engine.claims.asks import DeviceAsk


class WaitingPods:
    """See the module; ``changed`` notes that others wait on a node, ``nobody`` that none waits anywhere."""

    def __init__(self, changed: Callable[[str], object], nobody: Callable[[], None]) -> None:
        self._changed = changed
        self._nobody = nobody
        self._on: dict[str, dict[DeviceAsk, int]] = {}  # by node
        self._named: dict[str, Counter[str]] = {}  # by claim: how many wait by whose asks, by node
        self.aligned: set[str] = set()  # nodes on which pods wait whose devices have to be in the right zones

    def add(self, node: str, ask: DeviceAsk | None, units: int) -> None:
        """So many more pods, or slots, wait for devices on a node; fewer where it is below 0."""
        if ask is None:
            return
        waiting = self._on.setdefault(node, {})
        now = waiting.pop(ask, 0) + units
        if now:
            waiting[ask] = now
        elif not waiting:
            del self._on[node]
        # After the change: the last pod with a wish that goes opens the node for others again.
        (self.aligned.add if any(one.aligned for one in waiting) else self.aligned.discard)(node)
        for claim in ask.claims:
            nodes = self._named.setdefault(claim, Counter())
            nodes[node] += units
            if not nodes[node]:
                del nodes[node]
            if not nodes:
                del self._named[claim]
        self._changed(node)
        if not self._on:
            self._nobody()

    def promise(self, ask: DeviceAsk, before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
        """The slots of a reservation wait on other nodes, or are as many no more; returns ``now``, by node."""
        for name in {**before, **now}:
            if change := now.get(name, 0) - before.get(name, 0):
                self.add(name, ask, change)
        return {name: units for name, units in now.items() if units}

    def waiting_on_node(self, node: str) -> Mapping[DeviceAsk, int]:
        """How many wait on a node, by what they ask for. Do not modify."""
        return self._on.get(node, {})

    def nodes_with_waiting(self) -> Collection[str]:
        """Where anybody waits."""
        return self._on.keys()

    def naming(self, claim: str) -> Collection[str]:
        """Where anybody waits who names a claim."""
        return self._named.get(claim, {}).keys()

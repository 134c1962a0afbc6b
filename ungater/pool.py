"""Workloads that wait for a place, and when each is worth another look.

Rules
- Order: priority (high first), then creation time, then key. One that does not fit stops nobody behind it.
- One that was refused is looked at again only after something happened that could help it (`wake`), or when its own
  request changed (`add` with another token).
- A look costs the engine's time, so heads are taken a few at a time; between two such portions others get to run.
"""

import heapq

Order = tuple[int, str, str]


class Pool:
    """The waiting workloads by key. Pure: no clock; times are arguments."""

    def __init__(self) -> None:
        self._orders: dict[str, Order] = {}
        self._tokens: dict[str, str] = {}
        self._fresh: list[Order] = []  # heap of those worth a look; entries may be stale
        self._due: set[str] = set()
        self._later: dict[str, float] = {}  # not before that time, after a failed write
        self._woken = False
        self.generation = 0  # grows when something could help those who were refused

    def __len__(self) -> int:
        return len(self._orders)

    def __contains__(self, key: str) -> bool:
        return key in self._orders

    def add(self, key: str, priority: int, created: str, *, token: str = "") -> None:
        """Have a workload wait.

        ``token`` stands for what it asks for: one that waits already is looked at again only where that, or its turn,
        changed.
        """
        order = (-priority, created, key)
        if self._orders.get(key) == order and self._tokens.get(key) == token:
            return
        self._orders[key] = order
        self._tokens[key] = token
        self._due.discard(key)  # an entry of the old order in the heap is stale now
        self._push(key)

    def again(self, key: str, after: float = 0.0) -> None:
        """Look at one that waits again, not before the time ``after``."""
        if key in self._orders:
            self._later[key] = after
            self._push(key)

    def remove(self, key: str) -> None:
        """It waits no more."""
        self._orders.pop(key, None)
        self._tokens.pop(key, None)
        self._due.discard(key)
        self._later.pop(key, None)

    def wake(self) -> None:
        """Something changed that could help: everyone is worth another look. O(1): the next `heads` sees to it."""
        self.generation += 1
        self._woken = True

    def heads(self, limit: int, now: float) -> list[str]:
        """The next keys to look at, in order; each is handed out once until it is added or woken again."""
        self._stir()
        taken: list[str] = []
        held: list[Order] = []
        while self._fresh and len(taken) < limit:
            order = heapq.heappop(self._fresh)
            key = order[2]
            if key not in self._due or self._orders.get(key) != order:
                continue
            if self._later.get(key, 0.0) > now:
                held.append(order)
                continue
            self._later.pop(key, None)
            self._due.discard(key)
            taken.append(key)
        for order in held:
            heapq.heappush(self._fresh, order)
        return taken

    def next_time(self, now: float) -> float | None:
        """Seconds until one that waits for its time is due; 0 where one is due now; None where none is."""
        self._stir()
        if not self._due:
            return None
        return max(0.0, min(self._later.get(key, 0.0) for key in self._due) - now)

    def _stir(self) -> None:
        if self._woken:
            self._woken = False
            for key in self._orders:
                self._push(key)

    def _push(self, key: str) -> None:
        if key not in self._due:
            self._due.add(key)
            heapq.heappush(self._fresh, self._orders[key])

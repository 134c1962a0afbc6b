"""Nodes on which pod after pod does not run, whoever's: no pod of any kind goes there for a while.

Rules
- A refusal of a kubelet counts, and a pod whose volumes or devices do not get ready: of one workload once.
- After `SEVERAL` workloads within `WINDOW`, without a pod that started there meanwhile, the node is left out, for twice
  as long with each refusal after that (`ungater.numa.node_backoff`). A pod that starts there ends it.
- No more than a share of the nodes is left out at a time: pods that nobody could start say nothing of a node, and
  whoever makes such is not to close a cluster with them.
"""

from collections.abc import Callable
from typing import Final

from ungater.numa.node_backoff import Avoided, Refusals, listed

SEVERAL: Final = 3
WINDOW: Final = 600.0  # seconds
SHARE: Final = 20  # one of so many nodes; one at least
ANY: Final = "any pod"  # the shape of what is kept off


class NodeRefusals:
    """See the module. ``count``: how many nodes there are; ``tell``: of a node that is left out, why, and how long."""

    def __init__(
        self, count: Callable[[], int], tell: Callable[[str, str, float], None], clock: Callable[[], float]
    ) -> None:
        self._count = count
        self._tell = tell
        self._clock = clock
        self._seen: dict[str, dict[str, float]] = {}  # by node and workload: when it was refused there last
        self._left_out: Refusals[str] = Refusals()
        self._now: frozenset[str] = frozenset()
        self._until = 0.0
        self._looked = clock()

    def note(self, node: str, workload: str, words: str) -> None:
        """A pod of a workload was not taken by a node that it was bound to."""
        now = self._clock()
        seen = self._seen.setdefault(node, {})
        seen[workload] = now
        for name in [name for name, at in seen.items() if now - at >= WINDOW]:
            del seen[name]
        if len(seen) > SEVERAL:
            del seen[min(seen, key=lambda name: seen[name])]
        others = {one.node for one in self.left_out(now)} - {node}
        if len(seen) >= SEVERAL and len(others) < max(1, self._count() // SHARE):
            seconds = self._left_out.note(ANY, node, words, now)
            self._renew(now)
            self._tell(node, words, seconds)

    def started(self, node: str) -> None:
        """A pod started on a node: what went before is over."""
        if self._seen.pop(node, None) is not None:
            self._left_out.forget(node)
            self._renew(self._clock())

    def forget(self, node: str) -> None:
        """The node is gone."""
        self.started(node)

    def left_out(self, now: float | None = None) -> tuple[Avoided, ...]:
        """The nodes that no pod goes to now."""
        return self._left_out.avoided(ANY, self._clock() if now is None else now)

    def avoided(self, now: float | None = None) -> frozenset[str]:
        """The same by their names; asked for each pod set, so it is made only when it changes."""
        now = self._clock() if now is None else now
        if now >= self._until:
            self._renew(now)
        return self._now

    def listed(self) -> str:
        """The same for messages; "" where there is none."""
        now = self._clock()
        return listed(self.left_out(now), now)

    def _renew(self, now: float) -> None:
        found = self.left_out(now)
        self._now = frozenset(one.node for one in found)
        self._until = min((one.until for one in found), default=float("inf"))

    def ended(self) -> bool:
        """Whether a node may be tried again since this was asked last; what is old is forgotten."""
        since, self._looked = self._looked, self._clock()
        latest = {node: max(seen.values()) for node, seen in self._seen.items()}
        self._seen = {node: self._seen[node] for node, at in latest.items() if self._looked - at < WINDOW}
        return bool(self._left_out) and self._left_out.ended(since, self._looked)

"""Nodes on which pod after pod does not run, whoever's: no pod of any kind goes there for a while.

Rules
- A refusal of a kubelet counts, and a pod whose volumes or devices do not get ready: of one workload once.
- After `SEVERAL` workloads within `WINDOW`, without a pod that started there meanwhile, the node is left out, for twice
  as long with each refusal after that (`ungater.numa.node_backoff`). A pod that starts there ends it.
- Pods that do not get ready say nothing of a node where they are of one namespace alone: they may name a volume or a
  ConfigMap that is not there, and whoever makes such pods is not to close nodes to others. Only kubelets' refusals do.
- No more than a share of the nodes is left out at a time, and never the only one.
"""

from collections import Counter
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
        # By node and workload: when it was refused there last, and whether its kubelet did that.
        self._seen: dict[str, dict[str, tuple[float, bool]]] = {}
        self._left_out: Refusals[str] = Refusals()
        self._now: frozenset[str] = frozenset()
        self._until = 0.0
        self._looked = clock()

    def note_refused(self, node: str, workload: str, words: str) -> None:
        """The kubelet of a node did not admit a pod of a workload (``namespace/name``)."""
        self._record_refusal(node, workload, words, refused=True)

    def note_unready(self, node: str, workload: str, words: str) -> None:
        """The volumes or devices of a pod of a workload do not get ready on its node."""
        self._record_refusal(node, workload, words, refused=False)

    def _record_refusal(self, node: str, workload: str, words: str, *, refused: bool) -> None:
        now = self._clock()
        seen = self._seen.setdefault(node, {})
        seen[workload] = now, refused
        for name in [name for name, (at, _) in seen.items() if now - at >= WINDOW]:
            del seen[name]
        if len(seen) > SEVERAL:
            # Of the namespace that has most: others' say more, and are not to be pushed out by it.
            many = Counter(map(_namespace, seen))
            del seen[min(seen, key=lambda name: (-many[_namespace(name)], seen[name]))]
        # Without this node: one that is left out already may be left out for longer.
        others, count = {one.node for one in self.left_out(now)} - {node}, self._count()
        may = len(others) < max(1, count // SHARE) and count > 1
        tell_of_node = len({*map(_namespace, seen)}) > 1 or all(refused for _, refused in seen.values())
        if may and len(seen) >= SEVERAL and tell_of_node:
            seconds = self._left_out.record_refusal(ANY, node, words, now)
            self._renew(now)
            self._tell(node, words, seconds)

    def started(self, node: str) -> None:
        """A pod started on a node: what went before is over."""
        # Nothing to do for most: this is asked with every pod that starts.
        if self._seen.pop(node, None) is not None:
            self._left_out.forget_node(node)
            self._renew(self._clock())

    def forget_node(self, node: str) -> None:
        """The node is gone."""
        self.started(node)

    def left_out(self, now: float | None = None) -> tuple[Avoided, ...]:
        """The nodes that no pod goes to now."""
        return self._left_out.nodes_to_avoid(ANY, self._clock() if now is None else now)

    def avoided_names(self, now: float | None = None) -> frozenset[str]:
        """The same by their names; asked for each pod set, so it is made only when it changes."""
        now = self._clock() if now is None else now
        if now >= self._until:
            self._renew(now)
        return self._now

    def describe_refusals(self) -> str:
        """The same for messages; "" where there is none."""
        now = self._clock()
        return listed(self.left_out(now), now)

    def _renew(self, now: float) -> None:
        found = self.left_out(now)
        self._now = frozenset(one.node for one in found)
        self._until = min((one.until for one in found), default=float("inf"))

    def has_expired(self) -> bool:
        """Whether a node may be tried again since this was asked last; what is old is forgotten."""
        since, self._looked = self._looked, self._clock()
        # Nodes without a recent refusal are forgotten here, so the table does not grow with the cluster's age.
        latest = {node: max(at for at, _ in seen.values()) for node, seen in self._seen.items()}
        self._seen = {node: self._seen[node] for node, at in latest.items() if self._looked - at < WINDOW}
        return bool(self._left_out) and self._left_out.expired_between(since, self._looked)


def _namespace(workload: str) -> str:
    return workload.partition("/")[0]

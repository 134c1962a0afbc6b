"""Nodes that refused a pod: for how long no other pod of that shape goes there. Pure; times are arguments.

Rules
- The shape is what whoever refused looks at (a kubelet, kube-scheduler), so whatever else has the same shape keeps off
  too.
- A node is tried again after `LONG` seconds; where its machine changed since (a report, a pod that left), after
  `SHORT`. Both double with each refusal, up to their limits, so that a wrong prediction costs fewer and fewer pods.
- A refusal long after the last one counts as the first.
- No more than ``most`` refusals are kept: the oldest is forgotten for a new one, and costs another try at worst.
"""

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

import msgspec

Shape = TypeVar("Shape", bound=Hashable)

SHORT, SHORT_AT_MOST = 1.0, 60.0
LONG, LONG_AT_MOST = 15.0, 600.0
FORGET = 3600.0
MOST = 20_000


class _Entry(msgspec.Struct):
    reason: str
    at: float
    refusals: int = 1
    changed: bool = False

    def bring_forward(self) -> None:
        """Something inside its node changed: it is tried again earlier."""
        self.changed = True

    @property
    def until(self) -> float:
        first, most = (SHORT, SHORT_AT_MOST) if self.changed else (LONG, LONG_AT_MOST)
        # The bound of the exponent: a float power beyond 1023 raises OverflowError.
        return self.at + min(most, first * 2.0 ** min(self.refusals - 1, 16))


class Avoided(msgspec.Struct, frozen=True):
    """One node that is left out now: what its kubelet said, how often in a row, and when it may be tried again."""

    node: str
    reason: str
    refusals: int
    until: float


class Refusals(Generic[Shape]):
    """By shape and node."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._by_shape: dict[Shape, dict[str, _Entry]] = {}
        self._shapes_of: dict[str, set[Shape]] = {}
        self._oldest_first: dict[tuple[Shape, str], None] = {}

    def __bool__(self) -> bool:
        return bool(self._by_shape)

    def record_refusal(self, shape: Shape, node: str, reason: str, now: float) -> float:
        """A pod of this shape was refused; returns the seconds for which its node is left out."""
        entries = self._by_shape.setdefault(shape, {})
        before = entries.get(node)
        repeated = before is not None and now - before.at < FORGET
        entry = entries[node] = _Entry(reason, now, before.refusals + 1 if before is not None and repeated else 1)
        self._shapes_of.setdefault(node, set()).add(shape)
        # A dict keeps the place of a key that is set again: taken out first, it goes to the end.
        self._oldest_first.pop((shape, node), None)
        self._oldest_first[shape, node] = None
        # A tenant whose pods have ever new shapes, and are refused, takes no more memory than this.
        if len(self._oldest_first) > self._most:
            self._drop(*next(iter(self._oldest_first)))
        return entry.until - now

    def hasten_retry(self, node: str) -> bool:
        """Something inside the node changed; True where that brings its next try forward."""
        found = [self._by_shape[shape][node] for shape in self._shapes_of.get(node, ())]
        fresh = [entry for entry in found if not entry.changed]
        for entry in fresh:
            entry.bring_forward()
        return bool(fresh)

    def forget_node(self, node: str) -> None:
        """The node is gone."""
        for shape in tuple(self._shapes_of.get(node, ())):
            self._drop(shape, node)

    def nodes_to_avoid(self, shape: Shape | None, now: float) -> tuple[Avoided, ...]:
        """The nodes that pods of this shape keep off now, by name."""
        entries = self._by_shape.get(shape, {}) if shape is not None else {}
        return tuple(
            Avoided(node, entry.reason, entry.refusals, entry.until)
            for node, entry in sorted(entries.items())
            if now < entry.until
        )

    def expired_between(self, since: float, now: float) -> bool:
        """Whether some node may be tried again that could not be at ``since``; what is very old is forgotten."""
        entries = [(shape, node, entry) for shape, found in self._by_shape.items() for node, entry in found.items()]
        for shape, node, entry in entries:
            if now - entry.at >= FORGET:
                self._drop(shape, node)
        return any(since < entry.until <= now for _, _, entry in entries)

    def _drop(self, shape: Shape, node: str) -> None:
        del self._oldest_first[shape, node]
        del self._by_shape[shape][node]
        if not self._by_shape[shape]:
            del self._by_shape[shape]
        self._shapes_of[node].discard(shape)
        if not self._shapes_of[node]:
            del self._shapes_of[node]


def listed(avoided: Iterable[Avoided], now: float, most: int = 3) -> str:
    """For messages: ``n7 (TopologyAffinityError, again in 24 s)``; "" where there is none."""
    found = sorted(avoided, key=lambda each: (each.until, each.node))
    shown = [f"{each.node} ({each.reason}, again in {max(1, round(each.until - now))} s)" for each in found[:most]]
    more = len(found) - most
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")

"""How many workloads are in each domain, of those that belong together by `engine.model.ShareLimits`.

A *census* is of one namespace, of those that its limits select, and of one *unit*: a pod set, or those of one group,
by name. A workload counts once in each domain that any pod of the unit has a slot in, as Kueue counts it (from 0.20 on,
``occupiedDomainsForGroup`` in pkg/cache/scheduler/tas_spread_tree_count.go), and flavor by flavor.

Nothing is counted before somebody asks; from then on each change of what is held goes into the census, roll-backs too.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from engine.cluster.assignment import Assignment
from engine.cluster.reservations import Slots
from engine.cluster.tree import Path
from engine.model import PodSet
from engine.reservation_key import HolderKey, workload_of

# Of a namespace. Anybody may write selectors: the oldest census is dropped, and taken again when somebody asks.
MOST: Final = 64
# Namespaces come and go (one for each pull request), and nobody says here that one is gone.
MOST_NAMESPACES: Final = 256

Room = tuple[str, tuple[str, ...]]  # a flavor and the levels that it had
Parts = Mapping[str, Slots]


class Census(NamedTuple):
    """Which slots count: those of the unit in pods that a selector or an owner tells (`ShareLimits`)."""

    namespace: str
    unit: tuple[str, str]
    key: str
    values: tuple[str, ...]
    owner: str

    @classmethod
    def of_pod_set(cls, pod_set: PodSet) -> "Census | None":
        """What counts for a pod set with limits; None where it has none."""
        limits = pod_set.topology.shares
        if limits is None or not (limits.key or limits.owner):
            return None
        return cls(pod_set.namespace, _unit_of(pod_set), limits.key, limits.values, "" if limits.key else limits.owner)

    def has(self, assignment: Assignment) -> bool:
        """Whether an assignment counts."""
        source = assignment.source
        if source is None or source.namespace != self.namespace or _unit_of(source) != self.unit:
            return False
        if self.key:
            return source.labels.get(self.key) in self.values
        return source.topology.shares is not None and source.topology.shares.owner == self.owner

    def domains(self, parts: Parts) -> Iterator[tuple[Room, set[Path]]]:
        """By flavor, the domains of each level that a workload is in; () is the flavor as a whole."""
        found: dict[Room, set[Path]] = {}
        for slots in parts.values():
            part = slots.assignment
            if self.has(part):
                paths = {piece.values for piece in part.slices if piece.count}
                depths = range(len(part.levels) + 1)
                found.setdefault((part.flavor, part.levels), set()).update(
                    path[:depth] for path in paths for depth in depths
                )
        return iter(found.items())


class ShareIndex:
    """See the module. ``held``: what workloads hold, which others change."""

    def __init__(self, held: Mapping[HolderKey, Parts]) -> None:
        self._held = held
        # By namespace, so that what one tenant has counted costs the others nothing.
        self._taken: dict[str, dict[Census, dict[Room, Counter[Path]]]] = {}

    def note_change(self, holder: HolderKey, parts: Parts, sign: int) -> None:
        """A holder has (1) or has no more (-1) these slots. Only what a workload holds by itself counts."""
        if not self._taken or not isinstance(holder, str):
            return
        # A workload has all of its parts in one namespace, so the first source tells whose censuses it may be in.
        sources = (slots.assignment.source for slots in parts.values())
        namespace = next((source.namespace for source in sources if source is not None), "")
        for census, counts in self._taken.get(namespace, {}).items():
            self._add(census, counts, parts, sign)

    def occupied(self, census: Census, room: Room, own: HolderKey) -> Counter[Path]:
        """By domain, how many others are there; ``own``: the workload that asks, which does not count."""
        # Put back at the end, so that the first is the one for which nobody has asked for longest.
        taken = self._taken[census.namespace] = self._taken.pop(census.namespace, {})
        if len(self._taken) > MOST_NAMESPACES:
            del self._taken[next(iter(self._taken))]
        counts = taken.get(census)
        if counts is None:
            while len(taken) >= MOST:
                del taken[next(iter(taken))]
            counts = taken[census] = {}
            # 5 ms for 8,000 that hold something; without a selector once for each job that waits, as each is an owner.
            for holder, parts in self._held.items():
                if isinstance(holder, str):
                    self._add(census, counts, parts, 1)
        found = counts.get(room, Counter())
        if mine := dict(census.domains(self._held.get(workload_of(own), {}))).get(room):
            found = found.copy()
            found.subtract(mine)
            # A domain that only the asker is in is one that nobody uses; `Counter` would keep it with 0.
            found = +found
        return found

    @staticmethod
    def _add(census: Census, counts: dict[Room, Counter[Path]], parts: Parts, sign: int) -> None:
        for room, paths in census.domains(parts):
            here = counts.setdefault(room, Counter())
            for path in paths:
                here[path] += sign
                if not here[path]:
                    del here[path]


def _unit_of(pod_set: PodSet) -> tuple[str, str]:
    """With a word each, because a group and a pod set may have one name."""
    return ("group", pod_set.group) if pod_set.group else ("pod set", pod_set.name)

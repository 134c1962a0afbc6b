"""Which workload had which one evicted, so that no ring of workloads evicts each other for ever.

Three rights may form a ring, ``withinClusterQueue``, ``reclaimWithinCohort: Any`` and ``borrowWithinCohort``: H has L
of its own queue evicted, which it outranks, and borrows; B, of another queue, outranks H and has it evicted while it
borrows itself; L takes its queue's nominal quota back from B, whatever its priority; and H has L evicted again. The
weakest of the rights gives way: a workload that would have others evicted in order to use more than its own share
leaves those of other queues alone for which it was evicted, directly or through others. Within its own queue
priority decides, which cannot form a ring by itself.

Why that ends every ring. Let evictions go on for ever among workloads that do not change. Of those that evict without
end each is evicted without end too, so some of them form a ring, and each link of it is an eviction that comes again.
A link that goes beyond its own share is refused as soon as the others of its ring are noted. Rings of the other two
rights alone would have to be made of quota that somebody owns and takes back; `tests/unit/queueing/preemption/
test_endless_evictions.py` looks for them.
"""

from collections.abc import Iterable

import msgspec


class EvictionOrder(msgspec.Struct):
    """Evictions among workloads that are still there, by their keys. Kept in memory alone.

    After a restart a ring has one more turn before its links are noted again.
    """

    _takers: dict[str, set[str]] = msgspec.field(default_factory=dict)  # by victim: for whom it was evicted
    _victims: dict[str, set[str]] = msgspec.field(default_factory=dict)  # the same by taker

    def record_evictions(self, taker: str, victims: Iterable[str]) -> None:
        """Note that a workload has others evicted. One that grows may give up a part of itself, which is no ring."""
        for victim in victims:
            if victim == taker:
                continue
            self._takers.setdefault(victim, set()).add(taker)
            self._victims.setdefault(taker, set()).add(victim)

    def forget_workload(self, key: str) -> bool:
        """Forget one that is gone, or that wishes for something else now; True where anything was noted of it."""
        takers, victims = self._takers.pop(key, ()), self._victims.pop(key, ())
        for table, others in ((self._victims, takers), (self._takers, victims)):
            for one in others:
                table[one].discard(key)
                if not table[one]:
                    del table[one]
        return bool(takers or victims)

    def find_evicted(self, among: Iterable[str], *, beside: str) -> list[str]:
        """Those of some workloads that were evicted for one that is still there; [] if nothing is noted of ``beside``.

        That is the usual case of a workload that ends, and thousands may want more pods.
        """
        if beside not in self._takers and beside not in self._victims:
            return []
        return [one for one in among if one in self._takers]

    def takers_before(self, key: str) -> set[str]:
        """Those for whom it was evicted, and those for whom these were, and so on."""
        found: set[str] = set()
        more = [key]
        while more:
            fresh = self._takers.get(more.pop(), set()) - found
            found |= fresh
            more += fresh
        found.discard(key)
        return found

"""Who is to follow those that leave by themselves. The rules are those of `queueing.cycle.successors`."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from engine.cluster.assignment import Assignment
from engine.cluster.state import ClusterState
from queueing.model import FlavorResource, Quantities, Rank
from queueing.queues.entry import Entry
from queueing.queues.flavor_assigner import FlavorAssignment
from queueing.queues.held import Held
from queueing.queues.quota import Quotas


@dataclass(eq=False)
class Successor:
    """One who waits, and where it goes once they are gone.

    ``rank``: its place in the order, with nothing held for it. ``covered``: by cluster queue, what of its quota those
    have still who leave.
    """

    entry: Entry
    option: FlavorAssignment
    assignments: tuple[Assignment, ...]
    rank: Rank
    covered: dict[str, Quantities] = field(default_factory=dict)

    def aim(self, assignments: tuple[Assignment, ...]) -> None:
        """It goes there, as things are now."""
        self.assignments = assignments

    def cover(self, covered: dict[str, Quantities]) -> None:
        """Those who leave have so much of its quota."""
        self.covered = covered

    def line_up(self, rank: Rank) -> None:
        """Its place in the order, as things are now."""
        self.rank = rank

    def uncounted(self, *, before: bool) -> Iterator[tuple[FlavorResource, int]]:
        """What of its queue's usage does not count, while this is kept, for the rank of one that it comes ``before``.

        Nothing but what it will have of those who leave in other queues, which its queue does not use yet. For others
        all that counts for it.
        """
        if not before:
            yield from self.option.amounts.items()
        for queue, amounts in self.covered.items():
            if queue != self.entry.queue:
                yield from ((name, -amount) for name, amount in amounts.items())

    @property
    def key(self) -> str:
        """The workload."""
        return self.entry.workload.key

    @property
    def holder(self) -> str:
        """Under which key the engine and the quotas hold for it."""
        return f"{self.key}\0next"


@contextmanager
def without(state: ClusterState, quotas: Quotas, successors: Collection[Successor]) -> Iterator[None]:
    """Look at the state and the quotas without what is kept for these."""
    checkpoint, depth = state.begin(), quotas.begin()
    try:
        release_all(state, quotas, successors)
        yield
    finally:
        state.rollback(checkpoint)
        quotas.rollback(depth)


def release_all(state: ClusterState, quotas: Quotas, successors: Collection[Successor]) -> None:
    """Keep nothing for these."""
    held = [one.holder for one in successors]
    state.release_all(held)
    quotas.free_all(held)


def charge_coming(
    quotas: Quotas, successors: Iterable[Successor], back: Iterable[Held], spare: Mapping[str, Quantities]
) -> None:
    """Charge successors with what they will have of quota that is taken for free now, though those have it who leave.

    ``back``: what is taken for free; ``spare``: by queue, what comes back and is promised to nobody.
    """
    promised: dict[str, Quantities] = {}
    for held in back:
        total = promised.setdefault(
            held.queue, {name: -max(0, amount) for name, amount in spare.get(held.queue, {}).items()}
        )
        for name, amount in held.amounts.items():
            total[name] = total.get(name, 0) + amount
    for one in successors:
        charged = quotas.held[one.holder]
        amounts = dict(charged.amounts)
        for queue, covered in one.covered.items():
            for name, amount in covered.items():
                taken = min(amount, promised.get(queue, {}).get(name, 0))
                if taken > 0:
                    promised[queue][name] -= taken
                    amounts[name] = amounts.get(name, 0) + taken
        quotas.charge_workload(one.holder, Held(charged.queue, amounts))

"""Taking units out of the state and their quota away, and giving them back.

What is done here is undone by the roll-back of the state and the quotas to where whoever asked began.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Final

import msgspec

from engine.cluster.assignment import Assignment
from engine.model import Pod
from engine.reservation_key import HolderKey, Role, part_of, role_of, whole_of
from queueing.model import FlavorResource, Quantities
from queueing.preemption.candidates import Candidates
from queueing.preemption.cohort_reach import nodes_between, overuses
from queueing.preemption.fair_order import FairOrder, by_queue, largest_first
from queueing.preemption.fragmentation import held as held_on
from queueing.queues.cohort_tree import TreeNode
from queueing.queues.entry import Entry
from queueing.queues.eviction_units import split
from queueing.queues.held import Held

LEAP: Final = 16  # times as many as are gone that are taken at once, at most


class RemovedUnit(msgspec.Struct, frozen=True, gc=False):
    """A unit that was taken out, and what it takes to put it back; ``devices``: how many its claims gave back."""

    held: Held | None  # None of a pod: it has no quota
    pods: tuple[Pod, ...]
    devices: int = 0


@dataclass
class SimulatedRemoval:
    """Takes units for one who waits, as long as the rules still allow it."""

    candidates: Candidates
    before: dict[HolderKey, tuple[Assignment, ...]] = field(default_factory=dict)  # of those whose units were taken
    between: dict[str, tuple[TreeNode, ...]] = field(default_factory=dict)  # by queue, as they are asked for

    def __post_init__(self) -> None:
        who = self.candidates
        self.state, self.queues, self.entry, self.option = who.state, who.queues, who.entry, who.option
        self.limits = who.queues.limits(who.entry)

    def quota_reachable(self) -> bool:
        """Whether quota would suffice once every candidate that gives some back were gone: fails fast."""
        quotas = self.queues.quotas
        # Even an idle cohort has too little: no eviction brings that.
        if not self.limits.ever(self.option.asked):
            return False
        if self.quota_fits():
            return True
        depth, givers, fits, some, gone, taken = quotas.begin(), self.candidates.givers(), False, 1, list[Entry](), 0
        lacked = self._lacks()
        while not fits and (more := list(islice(givers, some))):
            gone += more
            # In no order and without pods: this only asks whether there is any point in searching.
            keys = self._take_each([other.workload.key for other in more])
            fits, taken = bool(keys) and self.quota_fits(), taken + len(keys)
            some = 1 if fits else self._more(len(gone), lacked)
        quotas.rollback(depth)
        return fits or (taken < len(gone) and self._may_suffice(gone, lacked) and self._suffice_in_order())

    def _may_suffice(self, givers: Sequence[Entry], lacked: dict[FlavorResource, int]) -> bool:
        """Whether those could suffice in another order who do not in that: a small one may have spared a large one."""
        leaving, contested, own = self.queues.leaving, self.candidates.contested, self.entry.queue
        most: dict[tuple[str, FlavorResource], tuple[int, int]] = {}
        for other in givers:
            amounts = other.grant.amounts if other.grant is not None else {}
            for key in lacked:
                if (amount := amounts.get(key, 0)) > 0:
                    total, largest = most.get((other.queue, key), (0, 0))
                    most[other.queue, key] = total + amount, max(largest, amount)
        left = dict(lacked)
        for (queue, key), (total, largest) in most.items():
            # Until the queue is back within its own, and the one that brings it there.
            bound = total if queue == own or len(contested) > 1 else leaving.overuse_left(queue, key) - 1 + largest
            left[key] -= min(total, bound)
        return all(amount <= 0 for amount in left.values())

    def _suffice_in_order(self) -> bool:
        """Whether quota suffices as the least important go first, as they do in a plan."""
        quotas, gone = self.queues.quotas, set[HolderKey]()
        depth = quotas.begin()
        try:
            for unit in self.in_fair_order(self.candidates.by_quota()):
                if unit not in gone and self._take_quota(unit):
                    gone.add(unit)
                    if self.quota_fits():
                        return True
            return False
        finally:
            quotas.rollback(depth)

    def _lacks(self) -> dict[FlavorResource, int]:
        """How much of which quota is lacking."""
        amounts, left = self.option.asked, self.limits.amount_left
        return {key: amount - have for key, amount in amounts.items() if amount > (have := left(key))}

    def _more(self, gone: int, lacked: dict[FlavorResource, int]) -> int:
        """How many more to take who might suffice, should they give back what those give who are gone.

        At least an eighth of these: the first may give far more than all who follow.
        """
        more = [-(-left * gone // max(lacked.get(key, left) - left, 1)) for key, left in self._lacks().items()]
        return min(max(max(more, default=gone), gone // 8), LEAP * gone)

    def quota_fits(self) -> bool:
        """Whether the quota suffices as things are."""
        quotas, queue, option = self.queues.quotas, self.entry.queue, self.option
        borrows = not self.candidates.mode.borrowing and quotas.borrows(queue, option.amounts)
        return not borrows and self.limits.fits_limits(option.asked)

    def take_all(self, units: Iterable[HolderKey], taken: dict[HolderKey, RemovedUnit]) -> bool:
        """Take out whom the rules still allow; True where anybody was taken."""
        # In order of importance: whether a queue may still be taken from depends on who was taken before.
        ranked = sorted({unit: None for unit in units if unit not in taken}, key=self.candidates.importance)
        # Noted before anything is taken: afterwards the quotas do not know it any more.
        held = {unit: self._quota_of_unit(unit) for unit in ranked}
        gone = self._take_each(ranked)
        whole: list[HolderKey] = []
        for unit in gone:
            key = whole_of(unit)
            # The assignments before its first unit went: slices are split from these, whichever of them goes next.
            if key not in self.before:
                self.before[key] = tuple(self.state.assignments(key).values())
            pods = self.pods_of_unit(unit)
            taken[unit] = RemovedUnit(held[unit], pods, self.count_devices(unit, pods) if pods else 0)
            for pod in pods:
                self.state.remove_pod(pod.key, deallocated=role_of(unit) is not Role.POD)
            if not part_of(unit):
                whole.append(key)
        self.state.release_all(whole)
        for key in dict.fromkeys(whole_of(unit) for unit in gone if part_of(unit)):
            self.reserve_rest(key, taken)
        return bool(gone)

    def _take_each(self, keys: list[HolderKey]) -> list[HolderKey]:
        """Take the quota of units away, one after the other, of those that may still be taken; returns those."""
        quotas, own = self.queues.quotas, self.entry.queue
        held = [quotas.held.get(key) for key in keys]
        # Nobody in its own queue borrows from the preemptor, so no rule has to be asked again between two of them.
        if all(one is not None and one.queue == own for one in held):
            quotas.free_all(keys)
            return keys
        gone = [key for key in keys if self._take_quota(key)]
        if self.candidates.mode.compares and any(self.queues.entry_of_unit(key).queue == own for key in gone):
            # Its own come last, and once they are gone its share is smaller, so that more may go.
            refused = dict.fromkeys(keys)
            for key in gone:
                del refused[key]
            gone += [key for key in refused if self._take_quota(key)]
        return gone

    def _take_quota(self, unit: HolderKey) -> bool:
        """Take a unit's quota away, if its queue may still be taken from."""
        if role_of(unit) is Role.POD:
            return True
        quotas, key = self.queues.quotas, whole_of(unit)
        held = quotas.held.get(key)
        given = self._quota_of_unit(unit)
        if held is None or given is None:
            return False
        if held.queue != self.entry.queue:
            if not all(
                overuses(self.queues.leaving, node, self.candidates.contested) for node in self._between(held.queue)
            ):
                return False
            if self.candidates.spared(key):
                return False
            if self.candidates.mode.compares and not self.candidates.comparison.allows(held.queue, given.amounts):
                return False
        if given is held:
            quotas.release_quota(key)
        else:
            left = {name: amount - given.amounts.get(name, 0) for name, amount in held.amounts.items()}
            quotas.charge_workload(key, msgspec.structs.replace(held, amounts=left))
        return True

    def in_fair_order(self, units: Sequence[HolderKey]) -> Iterable[HolderKey]:
        """Units that give back quota, the first to go first: by shares as they are then, where shares count."""
        tree, own = self.queues.quotas.tree, self.entry.queue
        if not self.candidates.mode.compares:
            return units
        queues = by_queue(units, lambda unit: self.queues.entry_of_unit(unit).queue)
        if tree.is_nested(tree.queues[own]):
            return FairOrder(self.candidates.comparison, queues).in_turn(self._amounts_of_unit)
        in_turn = largest_first(self.candidates.comparison, queues, lambda unit: self.candidates.importance(unit)[1:])
        # Units that are refused the first time get a second try, as in `_take_each`.
        return chain(in_turn, units) if own in queues else in_turn

    def may_go(self, taken: dict[HolderKey, RemovedUnit]) -> bool:
        """Whether the rules allow just these to be taken, now that some that were taken with them are back.

        One of another queue may have been allowed to go only while one of its own queue was gone.
        """
        if not self.candidates.mode.compares:
            return True
        quotas = self.queues.quotas
        depth = quotas.begin()
        for unit, one in taken.items():
            self.restore_quota(unit, one.held)
        gone = self._take_each(list(taken))
        quotas.rollback(depth)
        return len(gone) == len(taken)

    def _amounts_of_unit(self, unit: HolderKey) -> Quantities:
        held = self._quota_of_unit(unit)
        return held.amounts if held is not None else {}

    def _between(self, queue: str) -> tuple[TreeNode, ...]:
        """The node of another queue, and of the cohorts above it that are not above the preemptor."""
        found = self.between.get(queue)
        if found is None:
            nodes = self.queues.quotas.tree.queues
            found = self.between[queue] = nodes_between(nodes[self.entry.queue], nodes[queue])
        return found

    def _quota_of_unit(self, unit: HolderKey) -> Held | None:
        """The quota that a unit holds: all that its workload does, or the part of some of its slices."""
        key, domain = whole_of(unit), part_of(unit)
        held = self.queues.quotas.held.get(key)
        if held is None or not domain:
            return held
        grant = self.queues.entries[key].grant
        if grant is None:
            return None
        lost = sum(part.count for part in split(grant.assignments, [domain])[1])
        total = max(sum(grant.counts.values()), 1)
        # By pods, as all pods of its one pod set are charged alike.
        amounts = {name: amount // total * lost for name, amount in grant.amounts.items()}
        return msgspec.structs.replace(held, amounts=amounts)

    def pods_of_unit(self, unit: HolderKey) -> tuple[Pod, ...]:
        """The bound pods of a unit: a node is in one domain, so those on its nodes."""
        if not (keys := self.queues.entry_of_unit(unit).pods):
            return ()
        pods = [self.state.pods[pod] for pod in keys if pod in self.state.pods]
        nodes = self.nodes_of_unit(unit)
        return tuple([pod for pod in pods if nodes is None or pod.node in nodes])

    def nodes_of_unit(self, unit: HolderKey) -> set[str] | None:
        """The nodes of a unit that is a part of its workload; None where it is all of it."""
        if not (domain := part_of(unit)):
            return None
        lost = split(self.state.assignments(whole_of(unit)).values(), [domain])[1]
        return {name for part in lost for piece in part.slices for name, _ in piece.nodes}

    def count_devices(self, unit: HolderKey, pods: Iterable[Pod]) -> int:
        """How many devices the claims of a unit with these pods give back when it goes, as things are."""
        holders = self.state.cluster.devices.holders
        if role_of(unit) is Role.POD or not holders.reserved_pods:
            return 0
        return len(set(holders.devices_of([pod.key for pod in pods])))

    def amounts_by_node(self, unit: HolderKey, pods: Iterable[Pod], resources: frozenset[str]) -> dict[str, int]:
        """By node, what a unit with these pods has of some resources."""
        return (
            held_on((), pods, resources)
            if role_of(unit) is Role.POD
            else held_on(self.slots_of_unit(unit), (), resources)
        )

    def slots_of_unit(self, unit: HolderKey) -> Sequence[Assignment]:
        """The slots of a unit that is no pod."""
        key, domain = whole_of(unit), part_of(unit)
        parts = self.before.get(key) or tuple(self.state.assignments(key).values())
        return split(parts, [domain])[1] if domain else parts

    def reserve_rest(self, key: HolderKey, taken: Iterable[HolderKey]) -> None:
        """Have a workload hold what it held less its units that are taken."""
        domains = [part_of(unit) for unit in taken if whole_of(unit) == key]
        self.state.reserve(key, split(self.before[key], domains)[0])

    def restore_quota(self, unit: HolderKey, given: Held | None) -> None:
        """Give a unit its quota back."""
        if given is None:
            return
        quotas, key = self.queues.quotas, whole_of(unit)
        now = quotas.held.get(key)
        amounts = dict(given.amounts)
        if part_of(unit) and now is not None:
            amounts = {name: amount + amounts.get(name, 0) for name, amount in now.amounts.items()}
        quotas.charge_workload(key, msgspec.structs.replace(given, amounts=amounts))

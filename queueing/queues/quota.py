"""Quota: who uses how much of which flavor and resource, and how much each queue may still take.

Rules
- Usage is keyed by workload: holding twice, or letting go twice, changes nothing.
- A queue without a cohort may use its nominal quota. Queues of one cohort share what they lend: of each queue's nominal
  quota ``lending`` (default: all) is common, the rest is its own. A queue uses its own part first; what it uses beyond
  comes from the common part, at most ``borrowing`` beyond its nominal quota.
- Limits are checked by ``fits_quota``, never enforced by ``charge_workload``: what the API server says is held is held,
  also where a quota was lowered since; nothing more is admitted then until usage is below the limit again.
- ``begin`` .. ``rollback`` undoes everything in between, like the engine's transactions.
- A *non-preemptible* holder may not borrow: what all of them hold together stays within the nominal quota, so that
  whoever takes back its own finds it with others. Where that is no more so (a quota was lowered, a holder became one
  later), they hold what they hold, and are `overheld`.
- A holder that is *leaving* (a victim whose pods are not gone yet) still counts in full, so that nobody but the
  preemptor takes its room. A *nominated* preemptor counts too: until its victims are gone, both do.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import msgspec

from engine.reservation_key import HolderKey
from queueing.model import ClusterQueue, FlavorResource, Quantities, Quota, Workload
from queueing.queues.held import Held, summed

_NONE = Quota(nominal=0)


class Missing(msgspec.Struct, frozen=True):
    """How much of one quota is lacking. ``limit``: how much the queue could use at most if nobody else used any."""

    flavor: str
    resource: str
    lacking: int
    wanted: int
    used: int
    limit: int | None
    borrowing_limit: bool = False  # its own borrowing limit stops it, not what others use
    non_preemptible: int | None = None  # what others like it hold, where it may not borrow for being non-preemptible


class Quotas:
    """The usage of all cluster queues. Plain dicts; every question costs a few look-ups."""

    def __init__(self) -> None:
        self.queues: dict[str, ClusterQueue] = {}
        self.held: dict[HolderKey, Held] = {}
        self._quota: dict[str, dict[FlavorResource, Quota]] = {}
        self._used: dict[str, dict[FlavorResource, int]] = {}
        self._leaving: dict[str, dict[FlavorResource, int]] = {}
        self._non_preemptible: dict[str, dict[FlavorResource, int]] = {}  # of those that stay
        self._common: dict[str, dict[FlavorResource, int]] = {}  # by cohort: what its queues lend
        self._taken: dict[str, dict[FlavorResource, int]] = {}  # by cohort: how much of that is used
        self._members: dict[str, set[str]] = {}
        self._undo: list[Callable[[], object]] = []
        self._open: list[int] = []

    # -- queues -----------------------------------------------------------------------------------------------

    def set_queue(self, queue: ClusterQueue) -> None:
        """Take in a queue; what its workloads hold stays held. Not undone by a rollback."""
        old = self.queues.get(queue.name)
        self.queues[queue.name] = queue
        self._quota[queue.name] = {
            (flavor.flavor, resource): quota
            for group in queue.groups
            for flavor in group.flavors
            for resource, quota in flavor.resources.items()
        }
        self._regroup({old.cohort if old else "", queue.cohort})

    def remove_queue(self, name: str) -> None:
        """Forget a queue; what its workloads hold is remembered, should it come back."""
        old = self.queues.pop(name, None)
        if old is not None:
            self._quota.pop(name)
            self._regroup({old.cohort})

    def _regroup(self, cohorts: set[str]) -> None:
        for cohort in cohorts - {""}:
            members = {name for name, queue in self.queues.items() if queue.cohort == cohort}
            self._members[cohort] = members
            common: dict[FlavorResource, int] = {}
            taken: dict[FlavorResource, int] = {}
            for name in members:
                for key, quota in self._quota[name].items():
                    common[key] = common.get(key, 0) + quota.nominal - _unlent_part(quota)
                for key, used in self._used.get(name, {}).items():
                    # As Kueue counts it (resource_node.go): usage reaches the
                    # cohort only beyond what a queue does not lend.
                    own = _unlent_part(self._quota.get(name, {}).get(key, _NONE))
                    taken[key] = taken.get(key, 0) + max(0, used - own)
            self._common[cohort], self._taken[cohort] = common, taken

    def members(self, queue: str) -> set[str]:
        """The queues of its cohort, itself included."""
        cohort = self.queues[queue].cohort
        return self._members[cohort] if cohort else {queue}

    def pool(self, queue: str) -> str:
        """Whose usage its limits depend on: its cohort, else the queue itself."""
        found = self.queues.get(queue)
        return f"cohort {found.cohort}" if found is not None and found.cohort else f"queue {queue}"

    # -- usage ------------------------------------------------------------------------------------------------

    def sharing(self, queue: str, holders: Iterable[HolderKey]) -> list[HolderKey]:
        """Those who hold quota within the limits of a queue; that of others changes nothing for it."""
        same, held = self.members(queue) if queue in self.queues else {queue}, self.held
        return [key for key in holders if (one := held.get(key)) is not None and one.queue in same]

    def charge_workload(self, workload: HolderKey, held: Held) -> None:
        """Charge a workload to a queue; replaces what it held."""
        old = self.held.get(workload)
        if old == held:
            return
        if old is not None:
            self._charge(old, -1)
        self.held[workload] = held
        self._charge(held, 1)
        # Undone newest first, so the state that an entry goes back to is the one that it was made in.
        if self._open:
            self._undo.append(
                partial(self.release_quota, workload) if old is None else partial(self.charge_workload, workload, old)
            )

    def release_quota(self, workload: HolderKey) -> Held | None:
        """Give back what a workload held; returns it."""
        old = self.held.pop(workload, None)
        if old is not None:
            self._charge(old, -1)
            if self._open:
                self._undo.append(partial(self.charge_workload, workload, old))
        return old

    def free_all(self, workloads: Iterable[HolderKey]) -> None:
        """Give back what several workloads held, in one go."""
        # A dict, so a holder that is named twice is freed once.
        parts = {workload: self.held[workload] for workload in workloads if workload in self.held}
        sums = summed(parts.values())
        for workload in parts:
            del self.held[workload]
        for total in sums:
            self._charge(total, -1)
        if self._open:
            self._undo.append(partial(self._hold_again, parts, sums))

    def _hold_again(self, parts: Mapping[HolderKey, Held], sums: Iterable[Held]) -> None:
        """The opposite of ``free_all``, while nothing else changed."""
        self.held.update(parts)
        for total in sums:
            self._charge(total, 1)

    def mark_leaving(self, *workloads: HolderKey, leaving: bool = True) -> None:
        """Mark holders as victims on their way out, or as such that stay after all."""
        held = self.held
        # The ones that stand so already are left out, so that the undo turns back only what changed.
        changed = {key: old for key in workloads if (old := held.get(key)) is not None and old.leaving != leaving}
        for workload, old in changed.items():
            held[workload] = Held(old.queue, old.amounts, leaving, old.non_preemptible)
        for total in summed(changed.values()):
            found = self._leaving.setdefault(total.queue, {})
            stays = self._non_preemptible.setdefault(total.queue, {}) if total.non_preemptible else None
            for key, amount in total.amounts.items():
                _set(found, key, found.get(key, 0) + (amount if leaving else -amount))
                if stays is not None:
                    _set(stays, key, stays.get(key, 0) - (amount if leaving else -amount))
        if self._open:
            self._undo.append(partial(self.mark_leaving, *changed, leaving=not leaving))

    def _charge(self, held: Held, sign: int) -> None:
        name = held.queue
        queue = self.queues.get(name)
        used = self._used.setdefault(name, {})
        taken = self._taken.setdefault(queue.cohort, {}) if queue is not None and queue.cohort else None
        quotas = self._quota.get(name, {})
        apart: dict[FlavorResource, int] | None = None
        if held.leaving:
            apart = self._leaving.setdefault(name, {})
        elif held.non_preemptible:
            apart = self._non_preemptible.setdefault(name, {})
        for key, amount in held.amounts.items():
            before = used.get(key, 0)
            after = _set(used, key, before + sign * amount)
            if apart is not None:
                _set(apart, key, apart.get(key, 0) + sign * amount)
            if taken is not None:
                own = _unlent_part(quotas.get(key, _NONE))
                # Only what crosses the line between its own and the common part changes the cohort's sum.
                above = (after - own if after > own else 0) - (before - own if before > own else 0)
                if above:
                    _set(taken, key, taken.get(key, 0) + above)
        for amounts in (self._used, self._leaving, self._non_preemptible):
            if name in amounts and not amounts[name]:
                del amounts[name]

    # -- questions --------------------------------------------------------------------------------------------

    def nominal(self, queue: str, key: FlavorResource) -> int:
        """Its nominal quota; 0 where it has none."""
        return self._quota.get(queue, {}).get(key, _NONE).nominal

    def has_quota(self, queue: str, key: FlavorResource) -> bool:
        """Whether the queue has a quota for this flavor and resource."""
        return key in self._quota.get(queue, {})

    def used(self, queue: str, key: FlavorResource) -> int:
        """What its workloads hold, those that leave included."""
        return self._used.get(queue, {}).get(key, 0)

    def staying(self, queue: str, key: FlavorResource) -> int:
        """What its workloads hold, less those that are leaving."""
        return self.used(queue, key) - self._leaving.get(queue, {}).get(key, 0)

    def usage(self, queue: str) -> Mapping[FlavorResource, int]:
        """What its workloads hold, by flavor and resource."""
        return self._used.get(queue, {})

    def is_protected(self, queue: str, workload: Workload) -> bool:
        """Whether a workload of a queue is nobody's victim, as far as it does not borrow."""
        found = self.queues.get(queue)
        return found is not None and found.preemption.is_protected(workload)

    def overheld(self, queue: str, key: FlavorResource) -> int:
        """How much its non-preemptible workloads hold beyond its nominal quota."""
        return max(0, self._non_preemptible.get(queue, {}).get(key, 0) - self.nominal(queue, key))

    def available(self, queue: str, key: FlavorResource, *, non_preemptible: bool = False) -> int:
        """How much more it may take now; 0 where it is above a limit that was lowered.

        ``non_preemptible``: for one that may not borrow.
        """
        left = self._available(queue, key)
        if not non_preemptible:
            return left
        # The ones that stay count, whoever else borrows: borrowers of its
        # queue are evicted for one that is within the nominal quota.
        return min(left, max(0, self.nominal(queue, key) - self._non_preemptible.get(queue, {}).get(key, 0)))

    def _available(self, queue: str, key: FlavorResource) -> int:
        found = self.queues.get(queue)
        quota = self._quota.get(queue, {}).get(key)
        if found is None or quota is None:
            return 0
        used = self._used.get(queue, {}).get(key, 0)
        if not found.cohort:
            return max(0, quota.nominal - used)
        own = _unlent_part(quota)
        # Negative while a quota was lowered below what is used; the queue's own part stays available even then.
        common = self._common[found.cohort].get(key, 0) - self._taken[found.cohort].get(key, 0)
        if quota.borrowing is not None:
            common = min(common, quota.nominal + quota.borrowing - max(used, own))
        return max(0, own - used) + max(0, common)

    def limit(self, queue: str, key: FlavorResource, *, non_preemptible: bool = False) -> int:
        """How much it may use at most, when nobody else uses anything."""
        if non_preemptible:
            return min(self.limit(queue, key), self.nominal(queue, key))
        found = self.queues.get(queue)
        quota = self._quota.get(queue, {}).get(key)
        if found is None or quota is None:
            return 0
        if not found.cohort:
            return quota.nominal
        most = _unlent_part(quota) + self._common[found.cohort].get(key, 0)
        return most if quota.borrowing is None else min(most, quota.nominal + quota.borrowing)

    def fits_quota(self, queue: str, amounts: Quantities, *, non_preemptible: bool = False) -> bool:
        """Whether the queue may take these amounts now."""
        for key, amount in amounts.items():
            if amount <= 0:
                continue
            if amount > self._available(queue, key):
                return False
            if non_preemptible and amount > self.available(queue, key, non_preemptible=True):
                return False
        return True

    def ever(self, queue: str, amounts: Quantities, *, non_preemptible: bool = False) -> bool:
        """Whether the queue may take these amounts when nobody uses anything."""
        for key, amount in amounts.items():
            if amount > 0 and amount > self.limit(queue, key, non_preemptible=non_preemptible):
                return False
        return True

    def missing_quota(self, queue: str, amounts: Quantities, *, non_preemptible: bool = False) -> Iterator[Missing]:
        """Each quota that does not suffice."""
        for key, amount in amounts.items():
            if amount <= 0:
                continue
            left = available = self._available(queue, key)
            if non_preemptible:
                available = self.available(queue, key, non_preemptible=True)
            if amount > available:
                used, limit = self.used(queue, key), self.limit(queue, key)
                lasting = self._non_preemptible.get(queue, {}).get(key, 0) if available < left else None
                yield Missing(*key, amount - available, amount, used, limit, used + amount > limit, lasting)

    def borrows(self, queue: str, amounts: Quantities, less: Quantities | None = None) -> bool:
        """Whether it would use more than its nominal quota of one of these; ``less`` is taken away from its usage."""
        used, quotas = self._used.get(queue, {}), self._quota.get(queue, {})
        for key, amount in amounts.items():
            if amount > 0 and used.get(key, 0) - (less or {}).get(key, 0) + amount > quotas.get(key, _NONE).nominal:
                return True
        return False

    def overuse_of_queue(self, queue: str, key: FlavorResource) -> int:
        """How much it uses beyond its nominal quota, victims on their way out not counted."""
        return max(0, self.staying(queue, key) - self.nominal(queue, key))

    def share(self, queue: str, more: Quantities | None = None, less: Quantities | None = None) -> float:
        """Dominant resource share: the largest part of what the cohort lends that it uses beyond its nominal quota.

        In thousandths, divided by its weight. ``more`` is added to its usage, ``less`` taken away; those that leave do
        not count. 0 without a cohort or where nothing is borrowed; infinite where it borrows with weight 0.
        """
        found = self.queues[queue]
        if not found.cohort:
            return 0.0
        common = self._common[found.cohort]
        beyond: dict[str, int] = {}
        lent: dict[str, int] = {}
        keys = {*self._used.get(queue, {}), *(more or {})}
        for key in keys:
            usage = self.staying(queue, key) + (more or {}).get(key, 0) - (less or {}).get(key, 0)
            beyond[key[1]] = beyond.get(key[1], 0) + max(0, usage - self.nominal(queue, key))
        for key, amount in common.items():
            lent[key[1]] = lent.get(key[1], 0) + amount
        dominant = max((amount / lent[name] for name, amount in beyond.items() if lent.get(name)), default=0.0)
        if dominant <= 0:
            return 0.0
        # The weight is in thousandths too, hence a million.
        return dominant * 1e6 / found.weight if found.weight > 0 else float("inf")

    def shares(self, queue: str) -> bool:
        """Whether it is in a cohort."""
        return queue in self.queues and bool(self.queues[queue].cohort)

    def rank_of_queue(
        self, queue: str, more: Quantities, *, fair: bool, less: Quantities | None = None
    ) -> tuple[float, bool]:
        """What decides between queues whose workload goes first: its share with this (if ``fair``), if it borrows.

        ``less``: what comes back by itself.
        """
        if not self.shares(queue):
            return 0.0, False
        return self.share(queue, more=more, less=less) if fair else 0.0, self.borrows(queue, more, less)

    # -- transactions -----------------------------------------------------------------------------------------

    def begin(self) -> int:
        """Open a transaction; they nest."""
        self._open.append(len(self._undo))
        return len(self._open)

    def rollback(self, depth: int) -> None:
        """Undo every change since ``begin`` returned ``depth``."""
        mark = self._open[depth - 1]
        del self._open[depth - 1 :]
        while len(self._undo) > mark:
            undo = self._undo.pop()
            # Undoing must note no undo of its own; open transactions further out have their entries already.
            nested, self._open = self._open, []
            undo()
            self._open = nested

    @property
    def depth(self) -> int:
        """How many transactions are open."""
        return len(self._open)

    def rollback_to(self, depth: int) -> None:
        """Undo and close what was begun since so many transactions were open; nothing where that is closed."""
        if self.depth > depth:
            self.rollback(depth + 1)

    def commit(self, depth: int) -> None:
        """Keep every change since ``begin`` returned ``depth``; an outer transaction may still undo them."""
        del self._open[depth - 1 :]
        if not self._open:
            self._undo.clear()


def _set(amounts: dict[FlavorResource, int], key: FlavorResource, amount: int) -> int:
    """Note an amount; of none, nothing is kept: whoever makes pods could name any number of resources."""
    if amount:
        amounts[key] = amount
    else:
        amounts.pop(key, None)
    return amount


def _unlent_part(quota: Quota) -> int:
    """The part of the nominal quota that is not lent."""
    return 0 if quota.lending is None else max(0, quota.nominal - quota.lending)

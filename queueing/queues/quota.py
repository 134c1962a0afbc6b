"""Quota: who uses how much of which flavor and resource, and how much each queue may still take.

Rules
- Usage is keyed by workload: holding twice, or letting go twice, changes nothing.
- A queue without a cohort may use its nominal quota. Queues of one cohort share what they lend: of each queue's nominal
  quota ``lending`` (default: all) is common, the rest is its own. A queue uses its own part first; what it uses beyond
  comes from the common part, at most ``borrowing`` beyond its nominal quota. Cohorts share in the same way what is
  theirs (`queueing.queues.cohort_tree`).
- Limits are checked by ``fits_quota``, never enforced by ``charge_workload``: what the API server says is held is held,
  also where a quota was lowered since; nothing more is admitted then until usage is below the limit again.
- ``begin`` .. ``rollback`` undoes everything in between, like the engine's transactions.
- A *non-preemptible* holder may not borrow: what all of them hold together stays within the nominal quota, so that
  whoever takes back its own finds it with others. Where that is no more so (a quota was lowered, a holder became one
  later), they hold what they hold, and are `overheld`.
- A holder that is *leaving* (a victim whose pods are not gone yet) still counts in full, so that nobody but the
  preemptor takes its room. A *nominated* preemptor counts too: until its victims are gone, both do.
- What the children of a cohort used over time counts instead of their present shares where it says so
  (`queueing.queues.over_time.cohort_use`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final

import msgspec

from engine.reservation_key import HolderKey
from queueing.model import (
    NO_SHARE,
    ClusterQueue,
    Cohort,
    FlavorResource,
    Quantities,
    Quota,
    Share,
    UseRules,
    Workload,
    quotas_of,
)
from queueing.queues.cohort_tree import CohortTree, TreeNode, set_amount, sides_of
from queueing.queues.held import Held, summed
from queueing.queues.over_time.cohort_use import FairCohortUse

_NONE: Final = Quota(nominal=0)
_NOTHING: Final[Quantities] = {}
_UNKNOWN: Final = TreeNode("", is_queue=True)  # of a queue that nobody made and nothing is charged to


class Missing(msgspec.Struct, frozen=True):
    """How much of one quota is lacking. ``limit``: how much the queue could use at most if nobody else used any."""

    flavor: str
    resource: str
    lacking: int
    wanted: int
    used: int
    limit: int | None
    borrowing_limit: bool = False  # its own borrowing limit stops it, not what others use
    cohort: str = ""  # whose limit stops it, of those above the queue
    non_preemptible: int | None = None  # what others like it hold, where it may not borrow for being non-preemptible


class Quotas:
    """The usage of all cluster queues. Plain dicts; every question costs a few look-ups."""

    def __init__(self, use: UseRules | None = None) -> None:
        self.queues: dict[str, ClusterQueue] = {}
        self.held: dict[HolderKey, Held] = {}
        self.cohorts: dict[str, Cohort] = {}
        self.tree = CohortTree()
        self.over_time = FairCohortUse(self.tree, use)
        self._nodes = self.tree.queues
        self._non_preemptible: dict[str, dict[FlavorResource, int]] = {}  # of those that stay
        self._undo: list[Callable[[], object]] = []
        self._open: list[int] = []

    # -- queues -----------------------------------------------------------------------------------------------

    def set_queue(self, queue: ClusterQueue) -> None:
        """Take in a queue; what its workloads hold stays held. Not undone by a rollback."""
        self.queues[queue.name] = queue
        self.tree.set_queue(queue.name, quotas_of(queue.groups), queue.cohort, queue.weight)

    def remove_queue(self, name: str) -> None:
        """Forget a queue; what its workloads hold is remembered, should it come back."""
        if self.queues.pop(name, None) is not None:
            self.tree.remove_queue(name)

    def set_cohort(self, cohort: Cohort) -> None:
        """Take in a cohort; the queues and cohorts that name it are below it with all that they use."""
        self.cohorts[cohort.name] = cohort
        by_use = cohort.by_use and self.over_time.rules is not None
        self.tree.set_cohort(cohort.name, quotas_of(cohort.groups), cohort.parent, cohort.weight, by_use=by_use)
        self.over_time.note_scope(cohort.name, by_use=by_use)

    def remove_cohort(self, name: str) -> None:
        """Forget a cohort; those that name it share with each other what they lend, and with nobody else."""
        if self.cohorts.pop(name, None) is not None:
            self.tree.remove_cohort(name)
            self.over_time.note_scope(name, by_use=False)

    def members(self, queue: str) -> frozenset[str]:
        """The queues of its tree of cohorts, itself included."""
        return self.tree.members_of(self._nodes[queue])

    def queues_around(self, cohort: str) -> frozenset[str]:
        """The queues of the tree of a cohort; of all their trees, where it is one of those in a circle."""
        tree = self.tree
        found = tree.cohorts.get(cohort)
        nodes = [] if found is None else [found, *(tree.cohorts[name] for name in found.cycle)]
        return frozenset[str]().union(*(tree.members_of(node) for node in nodes))

    def pool(self, queue: str) -> str:
        """Whose usage its limits depend on: the cohort at the top of its tree, else the queue itself."""
        root = self._nodes.get(queue, _UNKNOWN).root
        return f"queue {queue}" if root.is_queue else f"cohort {root.name}"

    def cycle_of(self, queue: str) -> tuple[str, ...]:
        """The cohorts above a queue that are each other's parents: nothing of it is admitted then; () none are."""
        return self._nodes.get(queue, _UNKNOWN).root.cycle

    # -- usage ------------------------------------------------------------------------------------------------

    def pass_time(self, now: float) -> None:
        """It is so late, for use over time: said before anything changes what is used."""
        # Within a transaction usage is not what it is.
        if not self._open:
            self.over_time.advance_to(now)

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
            node = self.tree.queue_node(total.queue)
            for key, amount in total.amounts.items():
                self.tree.charge_node(node, key, 0, -amount if leaving else amount)
            if total.non_preemptible:
                self._charge_lasting(total, -1 if leaving else 1)
            if not node.exists:
                self.tree.drop_unused(node)
        if self._open:
            self._undo.append(partial(self.mark_leaving, *changed, leaving=not leaving))

    def _charge(self, held: Held, sign: int) -> None:
        tree = self.tree
        node = tree.queue_node(held.queue)
        # Searches for victims come here thousands of times a cycle. What changes before there is a scope is not missed:
        # with the first one the tree has a new version, and everything is counted.
        if self.over_time.scopes:
            self.over_time.changed[held.queue] = None
        staying = 0 if held.leaving else sign
        for key, amount in held.amounts.items():
            tree.charge_node(node, key, sign * amount, staying * amount)
        if held.non_preemptible and not held.leaving:
            self._charge_lasting(held, sign)
        if not node.exists:
            tree.drop_unused(node)

    def _charge_lasting(self, held: Held, sign: int) -> None:
        """Note how much is held by somebody who is non-preemptible and stays."""
        lasting = self._non_preemptible.setdefault(held.queue, {})
        for key, amount in held.amounts.items():
            set_amount(lasting, key, lasting.get(key, 0) + sign * amount)
        if not lasting:
            del self._non_preemptible[held.queue]

    # -- questions --------------------------------------------------------------------------------------------

    def nominal(self, queue: str, key: FlavorResource) -> int:
        """Its nominal quota; 0 where it has none."""
        return self._nodes.get(queue, _UNKNOWN).quota.get(key, _NONE).nominal

    def has_quota(self, queue: str, key: FlavorResource) -> bool:
        """Whether the queue has a quota for this flavor and resource."""
        return key in self._nodes.get(queue, _UNKNOWN).quota

    def used(self, queue: str, key: FlavorResource) -> int:
        """What its workloads hold, those that leave included."""
        return self._nodes.get(queue, _UNKNOWN).usage.get(key, 0)

    def staying(self, queue: str, key: FlavorResource) -> int:
        """What its workloads hold, less those that are leaving."""
        node = self._nodes.get(queue, _UNKNOWN)
        return node.usage.get(key, 0) - node.gone.get(key, 0)

    def usage(self, queue: str) -> Mapping[FlavorResource, int]:
        """What its workloads hold, by flavor and resource."""
        return self._nodes.get(queue, _UNKNOWN).usage

    def anyone_uses(self, queue: str, key: FlavorResource) -> bool:
        """Whether anybody in its tree of cohorts uses any of this."""
        return self.tree.uses_anything(self._nodes[queue], key)

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
        node = self._nodes.get(queue, _UNKNOWN)
        path = node.path
        # One that does not list a flavor borrows none of it.
        if key not in node.quota or (path[-1] if path else node).cycle:
            return 0
        return self.tree.available_to(node, key)

    def limit(self, queue: str, key: FlavorResource, *, non_preemptible: bool = False) -> int:
        """How much it may use at most, when nobody else uses anything."""
        if non_preemptible:
            return min(self.limit(queue, key), self.nominal(queue, key))
        node = self._nodes.get(queue, _UNKNOWN)
        path = node.path
        if key not in node.quota or (path[-1] if path else node).cycle:
            return 0
        return self.tree.potential_of(node, key)

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
                cohort = self._stopping_cohort(queue, key, used + amount)
                yield Missing(*key, amount - available, amount, used, limit, used + amount > limit, cohort, lasting)

    def _stopping_cohort(self, queue: str, key: FlavorResource, amount: int) -> str:
        """The cohort whose limit keeps a queue from using so much; "" where its own does, or others use the rest."""
        node = self._nodes.get(queue, _UNKNOWN)
        own = node.borrowing.get(key)
        if own is not None and amount > node.subtree.get(key, 0) + own:
            return ""
        found = self.tree.bottleneck(node, key)
        return found.name if found is not None else ""

    def use_of_cohort(self, cohort: str, key: FlavorResource) -> tuple[int, int]:
        """How much all below a cohort may use at most with what it borrows, and how much they use of that."""
        node = self.tree.cohorts[cohort]
        return node.subtree.get(key, 0) + node.borrowing.get(key, 0), node.usage.get(key, 0)

    def is_below(self, queue: str, cohort: str) -> bool:
        """Whether a queue is below a cohort; "" any."""
        return not cohort or any(node.name == cohort for node in self._nodes.get(queue, _UNKNOWN).path)

    def members_below(self, queue: str, cohort: str) -> frozenset[str]:
        """The queues of the tree of a queue that are below a cohort; "" all."""
        members = self.members(queue)
        return frozenset([name for name in members if self.is_below(name, cohort)]) if cohort else members

    def borrows(self, queue: str, amounts: Quantities, less: Quantities | None = None) -> bool:
        """Whether it would use more than its nominal quota of one of these; ``less`` is taken away from its usage."""
        node, away = self._nodes.get(queue, _UNKNOWN), less or _NOTHING
        used, quotas = node.usage, node.quota
        for key, amount in amounts.items():
            if amount > 0 and used.get(key, 0) - away.get(key, 0) + amount > quotas.get(key, _NONE).nominal:
                return True
        return False

    def borrowing_level(self, queue: str, amounts: Quantities, less: Quantities | None = None) -> int:
        """How high up it has to borrow for more of these amounts: 0 within its own quota, 1 in its cohort, and so on.

        ``less`` is taken away from its usage.
        """
        # Asked of each group of each queue in each cycle: most need not borrow, and above the others is but one cohort.
        if not self.borrows(queue, amounts, less):
            return 0
        node = self._nodes.get(queue, _UNKNOWN)
        if len(node.path) == 1 and self.tree.height_of(node.path[0]) == 1:
            return 1
        return self.tree.level_of(node, amounts, less or _NOTHING)

    def overuses_any(self, queue: str, keys: Iterable[FlavorResource]) -> bool:
        """Whether it or a cohort above it uses more than its own of one of these, those that leave not counted."""
        node = self._nodes.get(queue, _UNKNOWN)
        # Below the root: nobody takes anything back from all of a tree.
        nodes = (node, *node.path)[:-1]
        return any(
            one.usage.get(key, 0) - one.gone.get(key, 0) > one.subtree.get(key, 0) for key in keys for one in nodes
        )

    def overuse_of_queue(self, queue: str, key: FlavorResource) -> int:
        """How much it uses beyond its nominal quota, victims on their way out not counted."""
        return max(0, self.staying(queue, key) - self.nominal(queue, key))

    def share(self, queue: str, more: Quantities | None = None, less: Quantities | None = None) -> Share:
        """Its share in what the cohort above it may use (`queueing.model.Share`); nothing without a cohort.

        ``more`` is added to its usage, in which those that leave count; ``less`` is taken away.
        """
        return self.tree.share_of(self._nodes[queue], more or {}, less or {})

    def shares(self, queue: str) -> bool:
        """Whether it is in a cohort."""
        return queue in self.queues and bool(self.queues[queue].cohort)

    def rank_of_queue(
        self, queue: str, more: Quantities, *, fair: bool, less: Quantities | None = None
    ) -> tuple[int, Share]:
        """How high up it borrows more of these amounts, and its share with them; with ``fair`` sharing, 0 or 1 high.

        ``less``: what comes back by itself.
        """
        # Kueue's FairSharingPrioritizeNonBorrowing (since 0.17): on each level, who need not borrow comes first.
        if fair and self.shares(queue):
            return int(self.borrows(queue, more, less)), self.share_beside(self._nodes[queue], more, less, fair=True)
        share = self.share_beside(self._nodes[queue], more, less, fair=False) if self.over_time.scopes else NO_SHARE
        return self.borrowing_level(queue, more, less), share

    def share_beside(self, node: TreeNode, more: Quantities, less: Quantities | None = None, *, fair: bool) -> Share:
        """The share by which a queue or cohort is compared with the other children of its parent.

        By what it used over time where the parent says so; else of what it uses, with ``fair`` sharing; else nothing.
        """
        if node.parent is not None and node.parent.by_use:
            return self.over_time.share_of(node, more, less or {})
        return self.tree.share_of(node, more, less or {}) if fair else NO_SHARE

    def has_used_less(self, queue: str, other: str) -> bool:
        """Whether the lowest cohort above two queues goes by use over time, and the first one's side used less."""
        one, beside = self._nodes.get(queue), self._nodes.get(other)
        sides = sides_of(one, beside) if self.over_time.scopes and one is not None and beside is not None else None
        if sides is None or sides[0].parent is None or not sides[0].parent.by_use:
            return False
        # Also of one that borrows nothing now: what it used does not count less for that.
        mine, theirs = (self.over_time.score_of(node) for node in sides)
        return mine < theirs

    def competes_by_levels(self, queue: str, *, fair: bool) -> bool:
        """Whether shares decide at several levels of its tree, and not its own share alone."""
        return (fair or self.goes_by_use(queue)) and self.tree.is_nested(self._nodes.get(queue, _UNKNOWN))

    def goes_by_use(self, queue: str) -> bool:
        """Whether use over time decides anything in its tree."""
        return self.over_time.scopes > 0 and self.tree.is_scoped(self._nodes.get(queue, _UNKNOWN))

    def highest_level(self, queue: str, *, fair: bool) -> int:
        """The most that ``rank_of_queue`` may say of it."""
        node = self._nodes.get(queue, _UNKNOWN)
        return 1 if fair else self.tree.height_of(node.root)

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


class Limits(msgspec.Struct, frozen=True):
    """What one workload may take of the quotas of a queue. ``spared``: it is nobody's victim, and so may not borrow."""

    quotas: Quotas
    queue: str
    spared: bool

    def fits_limits(self, amounts: Quantities) -> bool:
        """Whether it may take these amounts now."""
        return self.quotas.fits_quota(self.queue, amounts, non_preemptible=self.spared)

    def ever(self, amounts: Quantities) -> bool:
        """Whether it may take these amounts when nobody uses anything."""
        return self.quotas.ever(self.queue, amounts, non_preemptible=self.spared)

    def missing_quota(self, amounts: Quantities) -> tuple[Missing, ...]:
        """Each quota that does not suffice."""
        return tuple(self.quotas.missing_quota(self.queue, amounts, non_preemptible=self.spared))

    def amount_left(self, key: FlavorResource) -> int:
        """How much it may take now."""
        return self.quotas.available(self.queue, key, non_preemptible=self.spared)

    def most(self, key: FlavorResource) -> int:
        """How much it may take when nobody uses anything."""
        return self.quotas.limit(self.queue, key, non_preemptible=self.spared)

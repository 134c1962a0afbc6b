"""What the children of a cohort used over time of what is not their own, where the cohort has them compared by it.

Rules
- Counted is what a queue or cohort uses *beyond* its own quota (`queueing.queues.cohort_tree.beyond_own`): its own is
  nobody else's to have. It decays as with LocalQueues (`queueing.queues.over_time.fair_use`), and always exactly: what
  is held changes at certain moments and is constant in between.
- The share is that of fair sharing, of what will have been used beyond ``AHEAD`` from now if all stays as it is: the
  largest part of what the parent may use, divided by the weight. So an admission counts at once, bytes drown nothing,
  and with a short half-life it is the present share. Who would borrow nothing has none.
- Changes of usage are noted, and counted before time goes on. Those of an open transaction are undone before that.
- By time alone shares cross: who may take nothing from others because it used more, or is kept out by the claim of a
  lighter one, is looked at again after ``PAUSE``.
"""

from collections.abc import Mapping
from math import inf
from typing import Final

import msgspec

from queueing.model import NO_SHARE, Quantities, Share, UseRules
from queueing.queues.cohort_tree import CohortTree, TreeNode, beyond_own
from queueing.queues.over_time.fair_use import AHEAD, LEAST

PAUSE: Final = 60.0  # seconds
NEXT_TO_NOTHING: Final = 1e-6  # of an amount: decay alone never ends
NodeName = tuple[bool, str]  # whether it is a queue, its name


class _NodeUse(msgspec.Struct):
    """A child of a cohort. ``consumed`` as of ``at``, by resource; ``used``: what it uses beyond its own since then.

    ``restored_at``: up to when what was stored before a restart says it.
    """

    at: float
    consumed: dict[str, float] = msgspec.field(default_factory=dict)
    used: dict[str, int] = msgspec.field(default_factory=dict)
    restored_at: float = -inf

    def consume(self, keep: float, now: float) -> None:
        """Time passed: so much is kept of what was consumed, and what is used takes the place of the rest."""
        used = self.used
        for resource in {*self.consumed, *used}:
            amount = used.get(resource, 0)
            left = amount + (self.consumed.get(resource, 0.0) - amount) * keep
            if left >= NEXT_TO_NOTHING or amount:
                self.consumed[resource] = left
            else:
                self.consumed.pop(resource, None)
        self.at = now

    def use_now(self, used: dict[str, int], past: float = 0.0) -> None:
        """So much is used from now on; ``past``: what part of the difference counts as consumed by now."""
        for resource in {*used, *self.used} if past else ():
            change = (used.get(resource, 0) - self.used.get(resource, 0)) * past
            self.consumed[resource] = max(0.0, self.consumed.get(resource, 0.0) + change)
        self.used = used


class FairCohortUse:
    """See the module. ``scopes``: how many cohorts have their children compared so; ``changed``: queues whose usage is.

    ``barred``: by queue, when one is looked at again that may take nothing until it, or its LocalQueue, used less.
    """

    def __init__(self, tree: CohortTree, rules: UseRules | None) -> None:
        self.rules = rules
        self.now = 0.0
        self.changed: dict[str, None] = {}
        self.barred: dict[str, float] = {}
        self._tree = tree
        self._scopes: set[str] = set()
        self.scopes = 0  # counted, as each charge of quota asks for it
        self._uses: dict[NodeName, _NodeUse] = {}
        self._version = -1  # of the tree in which all uses were counted

    def note_scope(self, cohort: str, *, by_use: bool) -> None:
        """The children of a cohort are compared by what they used over time, or not."""
        (self._scopes.add if by_use else self._scopes.discard)(cohort)
        self.scopes = len(self._scopes)

    def advance_to(self, now: float) -> None:
        """It is so late, in seconds; time never goes back."""
        if self.rules is None or now <= self.now:
            return
        if self.scopes or self._uses:
            # First: what changed did so at the time that is over now, and counts from there.
            self._count_changes()
        self.now = now

    def restore_use(self, name: NodeName, consumed: Mapping[str, float], at: float) -> None:
        """After a restart: what was stored of a queue or cohort, as of ``at``; before its workloads are taken in."""
        if self.rules is not None:
            # A time that is still to come is a clock that went wrong: nothing may be kept from falling until then.
            at = min(at, self.now)
            found = {resource: amount for resource, amount in consumed.items() if amount > 0}
            self._uses[name] = _NodeUse(at, found, restored_at=at)

    def count_past(self, queue: str, since: float) -> None:
        """What was just charged to a queue is held since then: it is taken in after a restart."""
        node = self._tree.queues.get(queue)
        # All cohorts above at once: once a later change counted them, nobody knows any more since when it was so.
        for one in (node, *node.path) if node is not None and self.scopes else ():
            self._count_use(one, since)

    def share_of(self, node: TreeNode, more: Quantities, less: Quantities) -> Share:
        """The share of a child of a cohort over time, if it used ``more`` now, or ``less``."""
        beyond = beyond_own(node, more, less)
        return self._share_for(node, beyond) if beyond else NO_SHARE

    def score_of(self, node: TreeNode) -> Share:
        """Its share over time, whether it borrows anything now or not."""
        self._count_changes()
        return self._share_for(node, beyond_own(node, {}, {}))

    def _share_for(self, node: TreeNode, beyond: dict[str, int]) -> Share:
        use, keep = self._brought_up(node), self._kept_after(AHEAD)
        consumed = use.consumed if use is not None else {}
        # By what is asked about and not by what was counted last: within a search for victims these differ.
        forecast = {
            name: (now := beyond.get(name, 0)) + (consumed.get(name, 0.0) - now) * keep for name in {*beyond, *consumed}
        }
        return self._tree.share_for(node, forecast)

    def consumed_by(self, node: TreeNode) -> dict[str, float]:
        """What a child of a cohort consumed by now, by resource in the engine's units."""
        self._count_changes()
        use = self._brought_up(node)
        return {} if use is None else {name: amount for name, amount in sorted(use.consumed.items()) if amount >= LEAST}

    def bar_queue(self, queue: str) -> None:
        """Somebody of a queue may take nothing from others, or of what is kept for them, until they used more."""
        self.barred.setdefault(queue, self.now + PAUSE)

    def pop_unbarred(self, now: float) -> list[str]:
        """The queues that are to be looked at again, in order."""
        due = [queue for queue, at in self.barred.items() if at <= now]
        for queue in due:
            del self.barred[queue]
        return sorted(due)

    # -- parts of it ------------------------------------------------------------------------------------------

    def _count_changes(self) -> None:
        """Count what is used now, of those where that may be another amount than before."""
        tree = self._tree
        if self._version != tree.version:
            # Quotas and edges change seldom, and each may change what is beyond whose own.
            self._version = tree.version
            for node in (*tree.queues.values(), *tree.cohorts.values()):
                self._count_use(node)
            self._drop_gone()
        else:
            nodes = (tree.queues.get(queue) for queue in self.changed)
            for node in {id(one): one for queue in nodes if queue is not None for one in (queue, *queue.path)}.values():
                self._count_use(node)
        # Within a transaction too: what undoes it charges these queues again, and so notes them again.
        self.changed.clear()

    def _count_use(self, node: TreeNode, since: float | None = None) -> None:
        """What a node uses by now counts from now on; where it is more than before, ``since`` then."""
        used = beyond_own(node, {}, {}) if node.parent is not None and node.parent.by_use else {}
        if used and node.parent is not None:
            # Of what nobody there has a quota of, a share is nothing. Whoever makes pods could name any number of such
            # resources; all would be remembered, and the API server would refuse a status with so many.
            lendable = self._tree.lendable_of(node.parent)
            used = {resource: amount for resource, amount in used.items() if resource in lendable}
        use = self._brought_up(node)
        if use is None:
            if not used:
                return
            use = self._uses[node.is_queue, node.name] = _NodeUse(self.now)
        # What ended before is in what was stored, as far as anybody knows of it.
        use.use_now(used, 0.0 if since is None else 1 - self._kept_after(self.now - max(since, use.restored_at)))
        if not used and not use.consumed:
            del self._uses[node.is_queue, node.name]

    def _drop_gone(self) -> None:
        """Of queues and cohorts that are gone, use counts until it decayed: they may be made again."""
        tree = self._tree
        for name in [one for one in self._uses if one[1] not in (tree.queues if one[0] else tree.cohorts)]:
            use = self._uses[name]
            use.consume(self._kept_after(self.now - use.at), self.now)
            use.use_now({})
            if not use.consumed:
                del self._uses[name]

    def _brought_up(self, node: TreeNode) -> _NodeUse | None:
        use = self._uses.get((node.is_queue, node.name))
        if use is not None and use.at < self.now:
            # Whatever changed since the last count did so at this moment, and took no time yet.
            use.consume(self._kept_after(self.now - use.at), self.now)
        return use

    def _kept_after(self, seconds: float) -> float:
        return 0.5 ** (max(0.0, seconds) / self.rules.half_life) if self.rules is not None else 1.0

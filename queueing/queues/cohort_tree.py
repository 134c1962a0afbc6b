"""Cohorts in a tree: what each of them and each cluster queue has and uses, by flavor and resource.

Rules, as in Kueue 0.19.2 (pkg/cache/scheduler/resource_node.go)
- *subtree*: of a queue its nominal quota; of a cohort its own and what its children lend. *local*: what is not lent,
  where ``lending`` says how much of the subtree is. *usage*: of a queue what its workloads hold; of a cohort what its
  children use beyond their local part.
- A root may use its subtree. Below it a node may use its local part and what its parent may take more, at most
  ``borrowing`` beyond its subtree. Less than nothing counts as nothing on each level: a quota that was lowered
  elsewhere takes from nobody what he does not lend.
- A cohort that somebody names and nobody made counts as one without quota, limits and parent.
- Cohorts that are each other's parents have none; nothing below them may be taken until one of them names another.
- What changes is passed up level by level, as far as it changes anything. No workload is looked at.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from queueing.model import NO_SHARE, FlavorResource, Quantities, Quota, Share


class TreeNode(msgspec.Struct, eq=False):
    """A cluster queue or a cohort; ``exists``: somebody made it, and ``declared`` names its parent there.

    ``path``: its parent, that one's, and so on; ``limited``: of these and itself the ones with limits, from the root
    down, without the root. ``gone``: how much less of ``usage`` there was without those that are leaving. ``cycle``:
    the cohorts that are each other's parents, where it is one of them. ``by_use``: its children are compared by what
    they used over time (`queueing.queues.over_time.cohort_use`); ``scoped``: of a root, whether those of any cohort
    below are.
    """

    name: str
    is_queue: bool
    exists: bool = False
    declared: str = ""
    parent: "TreeNode | None" = None
    children: "dict[tuple[bool, str], TreeNode]" = msgspec.field(default_factory=dict)
    cycle: tuple[str, ...] = ()
    weight: int = 1000
    by_use: bool = False
    quota: dict[FlavorResource, Quota] = msgspec.field(default_factory=dict)
    subtree: Quantities = msgspec.field(default_factory=dict)
    local: Quantities = msgspec.field(default_factory=dict)
    borrowing: Quantities = msgspec.field(default_factory=dict)
    usage: Quantities = msgspec.field(default_factory=dict)
    gone: Quantities = msgspec.field(default_factory=dict)
    path: "tuple[TreeNode, ...]" = ()
    limited: "tuple[TreeNode, ...]" = ()
    has_limits: bool = False
    height: int = 0
    # Made when asked for; of a version of the tree (``made_at``).
    made_at: int = -1
    potential: Quantities = msgspec.field(default_factory=dict)
    lendable: dict[str, int] = msgspec.field(default_factory=dict)
    members: frozenset[str] = frozenset()
    listed: frozenset[FlavorResource] = frozenset()
    scoped: bool = False

    @property
    def root(self) -> "TreeNode":
        """The top of its tree."""
        path = self.path
        return path[-1] if path else self

    def make_real(self, weight: int, *, by_use: bool) -> None:
        """Somebody made it, or changed it."""
        self.exists, self.weight, self.by_use = True, weight, by_use

    def make_implicit(self) -> None:
        """Nobody made it any more."""
        self.exists, self.weight, self.by_use = False, 1000, False

    def declare_parent(self, name: str) -> None:
        """It names its parent; that it is below it is for `join_parent` to say."""
        self.declared = name

    def note_cycle(self, names: tuple[str, ...]) -> None:
        """These are each other's parents, and it is one of them; () it is not."""
        self.cycle = names

    def join_parent(self, parent: "TreeNode") -> None:
        """It is a child of another one."""
        self.parent = parent
        parent.children[self.is_queue, self.name] = self

    def leave_parent(self) -> None:
        """It is nobody's child."""
        if self.parent is not None:
            del self.parent.children[self.is_queue, self.name]
        self.parent = None

    def set_limits(self, quota: dict[FlavorResource, Quota]) -> None:
        """Take over quotas, of which ``subtree`` and ``local`` do not know yet."""
        self.quota = quota
        self.borrowing = {key: one.borrowing for key, one in quota.items() if one.borrowing is not None}
        self.has_limits = bool(self.borrowing) or any(one.lending is not None for one in quota.values())

    def set_place(self) -> None:
        """Learn from the parent where in the tree it is."""
        parent = self.parent
        if parent is None:
            self.path = self.limited = ()
            return
        self.path = (parent, *parent.path)
        self.limited = (*parent.limited, self) if self.has_limits else parent.limited

    def set_height(self) -> None:
        """The cohorts on the longest way down to a queue, itself included (Kueue's getNodeHeight)."""
        # A cohort below which nobody is counts as a queue does.
        heights = (1 if child.is_queue else child.height + 1 for child in self.children.values())
        self.height = max(heights, default=0)

    def change_subtree(self, key: FlavorResource, more: int) -> None:
        """So much more quota; what is not lent follows."""
        subtree = set_amount(self.subtree, key, self.subtree.get(key, 0) + more)
        quota = self.quota.get(key)
        if quota is None or quota.lending is None:
            self.local.pop(key, None)
        else:
            set_amount(self.local, key, max(0, subtree - quota.lending))

    def drop_caches(self, version: int) -> None:
        """What was made of an older version of the tree counts no more."""
        self.made_at, self.potential, self.lendable = version, {}, {}

    def note_tree(self, queues: frozenset[str], listed: frozenset[FlavorResource], *, scoped: bool) -> None:
        """The queues of the tree of which it is the root, and all that anybody there has a quota of, if of nothing."""
        self.members, self.listed, self.scoped = queues, listed, scoped


class _HandedUp(NamedTuple):
    """What a node adds to its parent: quota, usage, and usage without those that are leaving."""

    lent: int
    used: int
    stays: int


NOTHING = _HandedUp(0, 0, 0)


class CohortTree:
    """See the module's rules. ``version`` grows with each change of a quota or an edge, and with no usage."""

    def __init__(self) -> None:
        self.queues: dict[str, TreeNode] = {}
        self.cohorts: dict[str, TreeNode] = {}
        self.version = 0

    # -- changes ----------------------------------------------------------------------------------------------

    def queue_node(self, name: str) -> TreeNode:
        """The node of a cluster queue; one that nobody made is alone in its tree."""
        found = self.queues.get(name)
        if found is None:
            found = self.queues[name] = TreeNode(name, is_queue=True)
        return found

    def set_queue(self, name: str, quota: dict[FlavorResource, Quota], cohort: str, weight: int) -> None:
        """Take in a queue, new or changed; what is charged to it goes where it goes."""
        node = self.queue_node(name)
        node.make_real(weight, by_use=False)
        moves = node.parent is None or node.declared != cohort
        if moves:
            self._detach(node)
        node.declare_parent(cohort)
        self._set_quota(node, quota)
        if moves and cohort:
            self._attach(node, self._cohort_node(cohort))
        else:
            self._place_below(node)

    def remove_queue(self, name: str) -> None:
        """Forget a queue; what is charged to it counts for nobody else any more."""
        node = self.queues[name]
        self._detach(node)
        node.make_implicit()
        node.declare_parent("")
        self._set_quota(node, {})
        self.drop_unused(node)

    def drop_unused(self, node: TreeNode) -> None:
        """Forget a queue that nobody made, once nothing is charged to it."""
        if not node.exists and not node.usage and not node.gone:
            self.queues.pop(node.name, None)

    def set_cohort(
        self, name: str, quota: dict[FlavorResource, Quota], parent: str, weight: int, *, by_use: bool
    ) -> None:
        """Take in a cohort, new or changed."""
        node = self._cohort_node(name)
        node.make_real(weight, by_use=by_use)
        self._set_quota(node, quota)
        self._declare(node, parent)

    def remove_cohort(self, name: str) -> None:
        """Forget a cohort: its children keep together, without what it was."""
        node = self.cohorts[name]
        node.make_implicit()
        self._set_quota(node, {})
        self._declare(node, "")
        self._drop_childless(node)

    def charge_node(self, node: TreeNode, key: FlavorResource, change: int, staying: int) -> None:
        """A queue uses so much more, of which ``staying`` is of those that do not leave."""
        # Once for each key of each workload that comes or goes, in searches for victims thousands of times a cycle: so
        # no calls, and nothing is looked up of limits and leaving ones where there are none.
        while True:
            usage = node.usage
            before = usage.get(key, 0)
            after = before + change
            if after:
                usage[key] = after
            else:
                usage.pop(key, None)
            gone, away, away_after = node.gone, 0, 0
            if gone or change != staying:
                away = gone.get(key, 0)
                away_after = away + change - staying
                if away_after:
                    gone[key] = away_after
                else:
                    gone.pop(key, None)
            parent = node.parent
            if parent is None:
                return
            own = node.local.get(key, 0) if node.local else 0
            if own:
                # Only what crosses the line between its own and the common part changes anything above.
                change = max(0, after - own) - max(0, before - own)
                staying = max(0, after - away_after - own) - max(0, before - away - own)
                if not (change or staying):
                    return
            node = parent

    def _cohort_node(self, name: str) -> TreeNode:
        found = self.cohorts.get(name)
        if found is None:
            found = self.cohorts[name] = TreeNode(name, is_queue=False)
        return found

    def _drop_childless(self, node: TreeNode) -> None:
        """Forget a cohort that nobody made and nobody names any more."""
        if not node.exists and not node.children and not node.is_queue:
            self.cohorts.pop(node.name, None)

    def _declare(self, node: TreeNode, parent: str) -> None:
        """Have a cohort name its parent, and find the circles of parents that this makes or breaks."""
        if node.declared == parent and (node.parent is not None or not parent or node.cycle):
            self._place_below(node)
            return
        mended = [self.cohorts[name] for name in node.cycle]
        node.declare_parent(parent)
        concerned = dict.fromkeys([node, *mended, *self._find_circle(node)])
        # All at once: with one edge set after the other there would be a circle in between.
        for one in concerned:
            self._detach(one)
        for one in concerned:
            one.note_cycle(_rotate(tuple([each.name for each in self._find_circle(one)])))
        for one in concerned:
            if one.declared and not one.cycle:
                self._attach(one, self._cohort_node(one.declared))
            else:
                self._place_below(one)

    def _find_circle(self, node: TreeNode) -> list[TreeNode]:
        """The cohorts on the way up from one that leads back to it, itself first; none where no way does."""
        way, seen, at = [node], {node.name}, node.declared
        while at and at not in seen and (found := self.cohorts.get(at)) is not None:
            way.append(found)
            seen.add(at)
            at = found.declared
        return way if at == node.name else []

    def _attach(self, node: TreeNode, parent: TreeNode) -> None:
        node.join_parent(parent)
        for key in node.subtree.keys() | node.usage.keys():
            self._pass_up(node, key, NOTHING)
        self._place_below(node)

    def _detach(self, node: TreeNode) -> None:
        parent = node.parent
        if parent is None:
            return
        for key in node.subtree.keys() | node.usage.keys():
            _add_to(parent, key, _handed_up(node, key), NOTHING)
        node.leave_parent()
        self._place_below(node)
        self._drop_childless(parent)

    def _set_quota(self, node: TreeNode, quota: dict[FlavorResource, Quota]) -> None:
        old = node.quota
        if old == quota:
            return
        node.set_limits(quota)
        for key in old.keys() | quota.keys():
            before = _handed_up(node, key)
            was, now = old.get(key), quota.get(key)
            node.change_subtree(key, (now.nominal if now else 0) - (was.nominal if was else 0))
            self._pass_up(node, key, before)
        self.version += 1

    def _pass_up(self, node: TreeNode, key: FlavorResource, before: _HandedUp) -> None:
        """A node handed up so much before it changed: tell those above it."""
        if node.parent is not None:
            _add_to(node.parent, key, before, _handed_up(node, key))

    def _place_below(self, node: TreeNode) -> None:
        """All nodes below one learn where in the tree they are, itself too."""
        self.version += 1
        # No recursion: nothing bounds how deep cohorts are.
        nodes = [node]
        while nodes:
            one = nodes.pop()
            one.set_place()
            nodes += one.children.values()

    # -- questions --------------------------------------------------------------------------------------------

    def is_nested(self, node: TreeNode) -> bool:
        """Whether there is a cohort in a cohort in its tree."""
        return self._measured(node.root).height > 1

    def is_scoped(self, node: TreeNode) -> bool:
        """Whether the children of any cohort of its tree are compared by what they used over time."""
        return self._measured(node.root).scoped

    def missing_parents(self) -> Iterator[tuple[str, str]]:
        """Cohorts, each with the parent that it names and nobody made."""
        for name, node in self.cohorts.items():
            if node.exists and node.declared:
                parent = self.cohorts.get(node.declared)
                if parent is None or not parent.exists:
                    yield name, node.declared

    def members_of(self, node: TreeNode) -> frozenset[str]:
        """The names of the queues of its tree."""
        return self._measured(node.root).members

    def height_of(self, node: TreeNode) -> int:
        """How many cohorts are on the longest way from it down to a queue, itself included; 0 for a queue."""
        return self._cached(node).height

    def _measured(self, root: TreeNode) -> TreeNode:
        """The root, with ``members`` and the heights in its tree as they are now."""
        if root.made_at == self.version:
            return root
        nodes, order = [root], list[TreeNode]()
        while nodes:
            one = nodes.pop()
            one.drop_caches(self.version)
            order.append(one)
            nodes += one.children.values()
        for one in reversed(order):
            one.set_height()
        listed = frozenset[FlavorResource]().union(*(one.quota for one in order))
        scoped = any(one.by_use for one in order)
        root.note_tree(frozenset([one.name for one in order if one.is_queue]), listed, scoped=scoped)
        return root

    def available_to(self, node: TreeNode, key: FlavorResource) -> int:
        """How much more a queue or cohort may take now."""
        path = node.path
        root = path[-1] if path else node
        left = root.subtree.get(key, 0) - root.usage.get(key, 0)
        for one in node.limited:
            own, used = one.local.get(key, 0), one.usage.get(key, 0)
            borrowing = one.borrowing.get(key)
            if borrowing is not None:
                left = min(left, one.subtree.get(key, 0) - max(used, own) + borrowing)
            # Negative while a quota was lowered below what is used; what is not lent stays available even then.
            left = max(0, left) + max(0, own - used)
        return max(0, left)

    def bottleneck(self, node: TreeNode, key: FlavorResource) -> TreeNode | None:
        """The lowest cohort above a queue whose own limit stops it, whoever else uses more; None where none does."""
        root, found = node.root, None
        left = root.subtree.get(key, 0) - root.usage.get(key, 0)
        for one in node.limited:
            if one is node:
                break
            own, used = one.local.get(key, 0), one.usage.get(key, 0)
            borrowing = one.borrowing.get(key)
            if borrowing is not None and (most := one.subtree.get(key, 0) - max(used, own) + borrowing) < left:
                left, found = most, one
            left = max(0, left) + max(0, own - used)
        return found

    def potential_of(self, node: TreeNode, key: FlavorResource) -> int:
        """How much it could use if nobody else used anything."""
        # Not by `_cached`: it is asked for each option of each that is looked at.
        if node.made_at != self.version:
            self._measured(node.root)
        found = node.potential.get(key)
        if found is not None:
            return found
        found = node.root.subtree.get(key, 0)
        for one in node.limited:
            found += one.local.get(key, 0)
            borrowing = one.borrowing.get(key)
            if borrowing is not None:
                found = min(found, one.subtree.get(key, 0) + borrowing)
        node.potential[key] = found
        return found

    def lendable_of(self, node: TreeNode) -> dict[str, int]:
        """By resource, what a cohort could use in all flavors of its tree: what its children's shares are parts of."""
        found = self._cached(node).lendable
        if not found:
            # Of what a part of the tree does not lend the root has none, and its children share it all the same.
            for key in node.root.listed:
                found[key[1]] = found.get(key[1], 0) + self.potential_of(node, key)
        return found

    def _cached(self, node: TreeNode) -> TreeNode:
        if node.made_at != self.version:
            self._measured(node.root)
        return node

    def handed_up_to(self, below: TreeNode, node: TreeNode, more: Quantities) -> Quantities:
        """How much more a node or a cohort above it uses, if the node uses so much more (or less, where negative)."""
        found: Quantities = {}
        for key, amount in more.items():
            at, change = below, amount
            while at is not node and at.parent is not None:
                own, used = at.local.get(key, 0), at.usage.get(key, 0)
                change = max(0, used + change - own) - max(0, used - own)
                at = at.parent
            found[key] = change
        return found

    def handed_along(self, below: TreeNode, more: Quantities) -> dict[int, Quantities]:
        """`handed_up_to` for a node and all cohorts above it, each by its ``id``, in one walk to the root."""
        found = {id(below): dict(more)}
        at, change = below, dict(more)
        while at.parent is not None:
            # What a node keeps for itself is used first; only what is beyond that counts at its parent.
            for key, amount in change.items():
                own, used = at.local.get(key, 0), at.usage.get(key, 0)
                change[key] = max(0, used + amount - own) - max(0, used - own)
            at = at.parent
            found[id(at)] = dict(change)
        return found

    def share_of(self, node: TreeNode, more: Quantities, less: Quantities) -> Share:
        """The share of a queue or cohort (`queueing.model.Share`); nothing at the top of a tree.

        ``more`` is added to what it uses, ``less`` taken away.
        """
        beyond = beyond_own(node, more, less) if node.parent is not None else None
        return self.share_for(node, beyond) if beyond else NO_SHARE

    def share_for(self, node: TreeNode, beyond: Mapping[str, float]) -> Share:
        """The share of a child of a cohort for which so much counts as used beyond its own, by resource."""
        parent = node.parent
        if parent is None:
            return NO_SHARE
        lendable = self.lendable_of(parent)
        # In this order of operations equal shares are equal numbers in Kueue too.
        parts = (float(over) * 1000.0 / float(lent) for name, over in beyond.items() if (lent := lendable.get(name)))
        ratio = max(parts, default=0.0)
        if ratio <= 0:
            return NO_SHARE
        return (False, ratio / (node.weight / 1000)) if node.weight > 0 else (True, ratio)

    def level_of(
        self, node: TreeNode, amounts: Mapping[FlavorResource, int], less: Mapping[FlavorResource, int]
    ) -> int:
        """How high a queue has to borrow for more of these amounts: the height of the lowest subtree that has them.

        0: within its own quota. ``less`` is taken away from what it uses. As Kueue's FindHeightOfLowestSubtreeThatFits
        (pkg/cache/scheduler/classical/hierarchical_preemption.go, 0.19.2); the highest of all resources counts.
        """
        found = 0
        for key, amount in amounts.items():
            used = node.usage.get(key, 0) - less.get(key, 0)
            if amount <= 0 or node.parent is None or used + amount <= node.subtree.get(key, 0):
                continue
            at, rest, back = node, amount, less.get(key, 0)
            for one in node.path:
                own = at.local.get(key, 0)
                if own or back:
                    before = at.usage.get(key, 0)
                    rest -= max(0, own - (before - back))
                    # What is taken away from a child is less by as much here as it was handed up.
                    back = max(0, before - own) - max(0, before - back - own)
                at = one
                if one.usage.get(key, 0) - back + rest <= one.subtree.get(key, 0):
                    break
            found = max(found, self.height_of(at))
        return found

    def uses_anything(self, node: TreeNode, key: FlavorResource) -> bool:
        """Whether anybody in its tree uses any of this."""
        if node.usage.get(key) or any(one.usage.get(key) for one in node.path):
            return True
        # What lies within parts that are not lent is not handed up.
        return any(self.queues[name].usage.get(key) for name in self.members_of(node))


def beyond_own(node: TreeNode, more: Quantities, less: Quantities) -> dict[str, int]:
    """What a node uses beyond its own quota, by resource over all flavors; ``more`` is added, ``less`` taken away."""
    usage, subtree, beyond = node.usage, node.subtree, dict[str, int]()
    for key in {*usage, *more} if more else usage:
        over = usage.get(key, 0) + more.get(key, 0) - less.get(key, 0) - subtree.get(key, 0)
        if over > 0:
            beyond[key[1]] = beyond.get(key[1], 0) + over
    return beyond


def sides_of(one: TreeNode, other: TreeNode) -> tuple[TreeNode, TreeNode] | None:
    """The two children of the lowest cohort above two queues, that of the first one first; None where there is none."""
    theirs = {id(node.parent): node for node in (other, *other.path) if node.parent is not None}
    for mine in (one, *one.path):
        if mine.parent is not None and (found := theirs.get(id(mine.parent))) is not None and found is not mine:
            return mine, found
    return None


def set_amount(amounts: Quantities, key: FlavorResource, amount: int) -> int:
    """Note an amount; of none, nothing is kept: whoever makes pods could name any number of resources."""
    if amount:
        amounts[key] = amount
    else:
        amounts.pop(key, None)
    return amount


def _handed_up(node: TreeNode, key: FlavorResource) -> _HandedUp:
    own, used = node.local.get(key, 0), node.usage.get(key, 0)
    stays = used - node.gone.get(key, 0)
    return _HandedUp(node.subtree.get(key, 0) - own, max(0, used - own), max(0, stays - own))


def _add_to(node: TreeNode, key: FlavorResource, before: _HandedUp, after: _HandedUp) -> None:
    """A child of a node handed up ``before`` and hands up ``after`` now; so on up to the root."""
    while before != after:
        mine = _handed_up(node, key)
        used, stays = after.used - before.used, after.stays - before.stays
        node.change_subtree(key, after.lent - before.lent)
        set_amount(node.usage, key, node.usage.get(key, 0) + used)
        set_amount(node.gone, key, node.gone.get(key, 0) + used - stays)
        if node.parent is None:
            return
        before, after, node = mine, _handed_up(node, key), node.parent


def _rotate(names: tuple[str, ...]) -> tuple[str, ...]:
    """A circle, the least name first, so that all in it tell it alike."""
    at = names.index(min(names)) if names else 0
    return names[at:] + names[:at]

"""From whom a queue may take in a tree of cohorts, without fair sharing.

Rules, as in Kueue 0.19.2 (pkg/scheduler/preemption/classical/hierarchical_preemption.go)
- From the queue up to the root: the first node within whose quota the request fits, less what is free in parts below
  that are not lent, is owed what it lacks. Its queue has *advantage* over all who are not below that node, as these use
  what is that node's own: it may take from them even while it borrows inside of it.
- Nobody loses anything below a node that is within its own quota, of the nodes that are between a victim and the lowest
  cohort above both. What leaves by itself does not count as used for this.
"""

from collections.abc import Collection, Iterator

from queueing.model import FlavorResource, Quantities
from queueing.queues.cohort_tree import TreeNode
from queueing.queues.entry import Entry
from queueing.queues.leaving import Leaving
from queueing.queues.quota import Quotas


def find_advantage(node: TreeNode, amounts: Quantities) -> int:
    """From which of ``node.path`` on a queue has advantage over those it meets there first; past the end: nowhere."""
    at, rest = node, {key: amount for key, amount in amounts.items() if amount > 0}
    for place, above in enumerate(node.path):
        if all(at.usage.get(key, 0) + amount <= at.subtree.get(key, 0) for key, amount in rest.items()):
            return place
        for key, amount in rest.items():
            rest[key] = max(0, amount - max(0, at.local.get(key, 0) - at.usage.get(key, 0)))
        at = above
    return len(node.path)


def overuses(leaving: Leaving, node: TreeNode, keys: Collection[FlavorResource]) -> bool:
    """Whether a queue or cohort uses more of one of these than is its own, and will not give that back by itself."""
    if node.is_queue:
        return any(leaving.overuse_left(node.name, key) > 0 for key in keys)
    return any(
        (over := node.usage.get(key, 0) - node.gone.get(key, 0) - node.subtree.get(key, 0)) > 0
        and over > _coming_back(leaving, node, key)
        for key in keys
    )


def _coming_back(leaving: Leaving, cohort: TreeNode, key: FlavorResource) -> int:
    """How much comes back below a cohort at most; part of it may be of what the queues there do not lend."""
    nodes = leaving.quotas.tree.queues
    each = ((nodes.get(name), amounts.get(key, 0)) for name, amounts in leaving.unasked.items())
    return sum(amount for node, amount in each if amount and node is not None and cohort in node.path)


def find_borrowers(leaving: Leaving, node: TreeNode, keys: Collection[FlavorResource]) -> Iterator[tuple[str, int]]:
    """The queues that may lose something to a queue, each with the place in its path of the cohort above both."""
    below = node
    for place, above in enumerate(node.path):
        nodes = [child for child in above.children.values() if child is not below]
        while nodes:
            one = nodes.pop()
            if overuses(leaving, one, keys):
                if one.is_queue:
                    yield one.name, place
                else:
                    nodes += one.children.values()
        below = above


def place_of(node: TreeNode, other: TreeNode) -> int:
    """The place in the path of a queue of the lowest cohort above it and another queue; past the end: there is none."""
    theirs = {id(one) for one in other.path}
    return next((at for at, one in enumerate(node.path) if id(one) in theirs), len(node.path))


def nodes_between(node: TreeNode, other: TreeNode) -> tuple[TreeNode, ...]:
    """Another queue, and the cohorts above it that are not above the first."""
    mine = {id(one) for one in node.path}
    return (other, *(one for one in other.path if id(one) not in mine))


def owed_cohort(quotas: Quotas, entry: Entry, queue: str) -> str:
    """The cohort that takes its quota back from a queue for one that holds a grant; "" where no cohort does."""
    nodes, grant = quotas.tree.queues, entry.grant
    if grant is None or entry.queue not in nodes or queue not in nodes:
        return ""
    node, depth = nodes[entry.queue], quotas.begin()
    # As it was when it was planned: without what it is to get.
    quotas.release_quota(entry.workload.key)
    wide = find_advantage(node, grant.amounts)
    quotas.rollback(depth)
    return node.path[wide - 1].name if 0 < wide <= place_of(node, nodes[queue]) < len(node.path) else ""

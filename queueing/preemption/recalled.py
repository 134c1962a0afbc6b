"""Quota that one on its way out has borrowed, and that somebody takes back meanwhile.

Rules
- One that leaves is nobody's victim, and a plan counts its quota as free. So nobody evicts it in order to take back
  what it borrowed, and yet somebody may wait until it is gone.
- A workload takes that back if it is nominated, or waits for what others hold, and is within the nominal quota of its
  queue with what it asks for: for one that borrows itself nobody has to hurry.
- From whom a queue may take is as for victims (`queueing.preemption.cohort_reach`), but what leaves counts as used.
"""

from collections.abc import Callable, Collection, Iterator

import msgspec

from engine.cluster.state import ClusterState
from engine.reasons import Cure
from queueing.model import FlavorResource, Reclaim
from queueing.preemption.cohort_reach import find_advantage, nodes_between, place_of
from queueing.queues.cohort_tree import TreeNode
from queueing.queues.held import Held
from queueing.queues.pending import EquivalenceClass
from queueing.queues.queues import Queues


class _Claim(msgspec.Struct, frozen=True):
    """Somebody takes back nominal quota of these. ``most``: up to which priority of who has it; None: of any."""

    node: TreeNode
    keys: frozenset[FlavorResource]
    most: int | None

    def reaches(self, other: TreeNode, held: Held, priority: int) -> bool:
        """Whether one that holds this in another queue, and leaves, has borrowed of it."""
        if self.node is other or (self.most is not None and priority > self.most):
            return False
        if place_of(self.node, other) >= len(self.node.path):
            return False
        # Only what both have to do with: a queue that borrows CPUs may keep the GPUs that are its own.
        keys = [key for key in self.keys if held.amounts.get(key, 0) > 0]
        return bool(keys) and all(_overuses(one, keys) for one in nodes_between(self.node, other))


def recalled_quota(state: ClusterState, queues: Queues) -> Callable[[Held, int], bool]:
    """Whether somebody takes back quota of what one holds that leaves, and has this priority; as things are now."""
    claims = dict.fromkeys((*_nominated(queues), *_waiting(state, queues)))
    nodes = queues.quotas.tree.queues

    def is_recalled(held: Held, priority: int) -> bool:
        other = nodes.get(held.queue)
        # Most have borrowed nothing: with 10,000 claims it took 2 ms to ask each of them.
        if other is None or not _overuses(other, held.amounts):
            return False
        return any(claim.reaches(other, held, priority) for claim in claims)

    return is_recalled


def _nominated(queues: Queues) -> Iterator[_Claim]:
    """What it is to get is charged to its queue already."""
    for key in queues.holders.nominated:
        entry = queues.entries[key]
        node, grant = queues.quotas.tree.queues.get(entry.queue), entry.grant
        if node is None or grant is None or not _may_reclaim(queues, entry.queue):
            continue
        keys = frozenset(key for key, amount in grant.amounts.items() if amount > 0)
        # By its own queue alone: a cohort that takes back lets budgets and grace periods be (`Mode.overriding`).
        if not any(node.usage.get(key, 0) > node.subtree.get(key, 0) for key in keys):
            yield _claim(queues, node, keys, entry.workload.priority)


def _waiting(state: ClusterState, queues: Queues) -> Iterator[_Claim]:
    for name, line in queues.pending.lines.items():
        node = queues.quotas.tree.queues.get(name)
        if node is None or not _may_reclaim(queues, name):
            continue
        for group in line.groups.values():
            for option in queues.options_of(state, group).found if _waits_for_others(queues, group) else ():
                # Place 0 of its path is its own queue: with what it asks for that is within its nominal quota.
                if not find_advantage(node, option.amounts):
                    keys = frozenset(key for key, amount in option.amounts.items() if amount > 0)
                    yield _claim(queues, node, keys, group.key[0])


def _waits_for_others(queues: Queues, group: EquivalenceClass) -> bool:
    """Whether the first of a group was refused for what others hold, and might have had them evicted."""
    if group.head is None or group.refusal is None or group.refusal.reason.traits.cure is not Cure.OTHERS:
        return False
    return group.inadmissible and queues.entries[group.head.key].workload.preempts


def _may_reclaim(queues: Queues, queue: str) -> bool:
    found = queues.quotas.queues.get(queue)
    return found is not None and found.preemption.reclaim is not Reclaim.NEVER


def _claim(queues: Queues, node: TreeNode, keys: frozenset[FlavorResource], priority: int) -> _Claim:
    lower = queues.quotas.queues[node.name].preemption.reclaim is Reclaim.LOWER
    return _Claim(node, keys, priority - 1 if lower else None)


def _overuses(node: TreeNode, keys: Collection[FlavorResource]) -> bool:
    return any(node.usage.get(key, 0) > node.subtree.get(key, 0) for key in keys)

"""Nobody is evicted for room that was free: judged in the moment in which a plan is made, with what is known then.

What is free is added up node by node, without the engine's search. So it says that one would have fitted only where
that is certain: within the nominal quota of its queue, its pod sets beside one another wherever they go. Of pod sets
that share a domain, and of more pods for a workload that is admitted, it says nothing.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from engine.cluster.state import ClusterState
from engine.model import PODS, PodSet, Policy
from queueing.cycle import cycle
from queueing.cycle.nominate import Outcome, Preempts
from queueing.queues.entry import Entry
from queueing.queues.flavor_assigner import FlavorAssignment
from queueing.queues.queues import Queues


@contextmanager
def judged_plans(say: Callable[[str], None]) -> Iterator[None]:
    """Each plan of a cycle is judged as it is made; ``say`` is told what is wrong."""
    decide = cycle.nominate

    def nominate(state: ClusterState, queues: Queues, entry: Entry) -> Outcome:
        outcome = decide(state, queues, entry)
        if isinstance(outcome, Preempts) and would_fit(state, queues, entry, outcome.option):
            victims = ", ".join(victim.key for victim in outcome.plan.victims)
            say(f"{entry.workload.key} preempts {victims}, and would fit in what is free")
        return outcome

    with patch.object(cycle, "nominate", nominate):
        yield


def would_fit(state: ClusterState, queues: Queues, entry: Entry, option: FlavorAssignment) -> bool:
    """Whether one surely could be admitted with nobody evicted."""
    quotas, queue = queues.quotas, entry.queue
    for key, amount in option.amounts.items():
        members = quotas.members(queue)
        left = sum(quotas.nominal(name, key) - quotas.used(name, key) for name in members)
        if quotas.used(queue, key) + amount > quotas.nominal(queue, key) or amount > left:
            return False
    return all(
        not part.group and part.count + sum(_beside(part, other) for other in parts if other is not part) <= room
        for flavor, parts in option.parts
        for part in parts
        for room in [_room(state, flavor, part)]
    )


def _room(state: ClusterState, flavor: str, part: PodSet) -> int:
    """Most pods of a pod set that fit in one domain of its level, where it has to be in one."""
    has, level = state.flavors[flavor], part.topology.level
    required = part.topology.policy is Policy.REQUIRED and level is not None
    upper = has.levels[: has.levels.index(level) + 1] if required else ()
    wanted = {PODS: 1, **part.requests}
    refused = {node for term in part.node_affinity or () for need in term.fields for node in need.values}
    room: Counter = Counter()
    for name, node in state.nodes.items():
        labels = [*has.node_labels.items(), *part.node_selector.items()]
        fits = node.ready and not node.unschedulable and all(node.labels.get(key) == value for key, value in labels)
        if fits and name not in refused and flavor in state.flavors_on(name):
            free = state.free(name)
            takes = min(free.get(resource, 0) // amount for resource, amount in wanted.items() if amount)
            room[tuple(node.labels[key] for key in upper)] += max(0, takes)
    return max(room.values(), default=0)


def _beside(part: PodSet, other: PodSet) -> int:
    """Places for pods of a pod set that those of another may take, wherever they go."""
    each = [-(-other.requests.get(resource, 0) // amount) for resource, amount in part.requests.items() if amount]
    return other.count * max(1, *each) if each else other.count

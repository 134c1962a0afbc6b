"""In which domain a rollout's new revision begins, where it gets no room or quota for all its pods at once.

The old revision leaves bit by bit, and only once pods of the new one run. So the new one begins with as many pods as
fit, but only in a domain that takes all of them: one that has the room now, where only quota lacks, or one that has it
once the old revision is gone. Begun in any other domain it would stand still there, and keep the old one from leaving.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from engine.cluster.assignment import Assignment
from engine.cluster.levels import domain_labels
from engine.cluster.state import ClusterState
from engine.model import Policy
from engine.results import Refusal
from queueing.model import Workload
from queueing.queues.flavor_assigner import FlavorAssignment, put
from queueing.queues.queues import Queues


def narrowed(
    state: ClusterState, queues: Queues, workload: Workload, options: Iterable[FlavorAssignment]
) -> Iterator[Workload]:
    """The workload as it asks for one of these domains alone; none where its pods need not keep together."""
    pod_set, *others = workload.pod_sets
    level = pod_set.topology.level
    if others or level is None or pod_set.topology.policy is not Policy.REQUIRED:
        return
    found: dict[tuple[tuple[str, str], ...], None] = {}
    for option in options:
        # First as things are: where quota alone lacks, it is the domain that has the room now.
        for gone in ((), workload.follows):
            domain = _domain(_place_after(state, queues, workload.base, option, gone), level)
            found |= {tuple(domain.items()): None} if domain else {}
    for labels in found:
        within = msgspec.structs.replace(pod_set, node_selector={**pod_set.node_selector, **dict(labels)})
        yield msgspec.structs.replace(workload, pod_sets=(within,))


def _place_after(
    state: ClusterState, queues: Queues, key: str, option: FlavorAssignment, gone: Iterable[str]
) -> tuple[Assignment, ...]:
    """Where all its pods would go once those workloads are gone, whatever the quota; () for nowhere."""
    checkpoint = state.begin()
    try:
        for other in gone:
            if (entry := queues.entries.get(other)) is not None:
                for pod in [pod for pod in entry.pods if pod in state.pods]:
                    state.remove_pod(pod)
                state.release_workload(other)
        found = put(state, key, option)
        return () if isinstance(found, Refusal) else found
    finally:
        state.rollback(checkpoint)


def _domain(placed: Iterable[Assignment], level: str) -> Mapping[str, str]:
    """The labels of the nodes of the domain of this level that pods were placed in."""
    for one in placed:
        upto = one.levels.index(level) + 1
        return domain_labels(one.levels[:upto], one.slices[0].values[:upto])
    return {}

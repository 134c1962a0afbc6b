"""Whether a workload would fit were all gone that queues admitted: else it waits for something other than room.

Pods that nobody has, volumes and devices that no node reaches, pods that no queue admitted: what ends brings none of
these. Whoever waits for them keeps no room from others, and holds up nobody. It costs one placement in the emptied
cluster, so it is asked of few: of one that is about to claim, and of the first in a StrictFIFO queue.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from msgspec import structs

from engine.cluster.assignment import Assignment
from engine.cluster.levels import domain_labels
from engine.cluster.state import ClusterState
from engine.results import Refusal
from queueing.model import looks_at_pods
from queueing.queues.flavor_assigner import FlavorAssignment, put
from queueing.queues.queues import Queues

Path = tuple[str, ...]


def fits_emptied(
    state: ClusterState, queues: Queues, key: str, option: FlavorAssignment, within: Mapping[str, Path] | None = None
) -> tuple[Assignment, ...] | None:
    """Where its pods would go; None where nowhere. ``within``: by flavor, the domain that is to hold them."""
    asked = _restrict_option(state, option, within) if within else option
    with _emptied(state, queues):
        found = put(state, key, asked)
    return None if isinstance(found, Refusal) else found


def asks_for_more_than_room(option: FlavorAssignment) -> bool:
    """Whether its pods ask for something that an emptied node may not have."""
    pod_sets = (pod_set for _, parts in option.parts for pod_set in parts)
    return any(
        looks_at_pods(one) or one.devices or one.shape or one.volume_nodes or one.claim_nodes or one.pinned
        for one in pod_sets
    )


@contextmanager
def _emptied(state: ClusterState, queues: Queues) -> Iterator[None]:
    checkpoint = state.begin()
    try:
        keys = list(queues.holders.keys())
        bound = {pod for key in keys for pod in queues.entries[key].pods if pod in state.pods}
        # Pods of a workload without a queue, which nobody evicts, are known by their slot alone.
        held = set(keys)
        bound |= {name for name, pod in state.pods.items() if pod.claim is not None and pod.claim[0] in held}
        for name in sorted(bound):
            # The devices of its claims count as free too: whoever waits
            # for devices that a workload has does not wait in vain.
            state.remove_pod(name, deallocated=True)
        # Room that claims keep is taken from what is free: kept on, the claimant itself would seem not to fit.
        state.release_all([*keys, *(claim.holder for claim in queues.claims.values())])
        yield
    finally:
        state.rollback(checkpoint)


def _restrict_option(state: ClusterState, option: FlavorAssignment, within: Mapping[str, Path]) -> FlavorAssignment:
    """The same, with all pods of a flavor in one domain."""
    parts = []
    for flavor, sets in option.parts:
        inside = domain_labels(state.flavors[flavor].levels, within.get(flavor, ()))
        restricted = [structs.replace(one, node_selector={**one.node_selector, **inside}) for one in sets]
        parts.append((flavor, tuple(restricted)))
    return FlavorAssignment(option.flavors, option.amounts, tuple(parts), option.beyond)

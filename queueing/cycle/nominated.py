"""One who is nominated: whether what was kept for it, and is free of its victims now, is still what it was.

Devices of claims come free later than pods go: when their claims are deallocated. Until then it waits, and once that
takes long it says for which claims. It is asked of the devices themselves, so a restart changes nothing.
"""

from collections import Counter

from engine.cluster.state import ClusterState
from engine.reservation_key import HolderKey
from queueing.model import Workload
from queueing.queues.entry import AssumedAdmission
from queueing.queues.queues import Queues


def obstacle(state: ClusterState, queues: Queues, key: HolderKey) -> str | None:
    """Why one whose victims are gone cannot have what was kept for it: "" where it can, None where it has to wait."""
    entry = queues.entries[key]
    grant = entry.grant
    if grant is None:
        return None
    # Room before quota before devices: what never comes back ends the nomination, however long the rest would take.
    if _overfull(state, queues, entry.workload):
        return "a node where room was made for it is gone, or is too small now"
    if _quota_suffices(queues, key, grant):
        return _of_devices(state, queues, key)
    if queues.quotas.sharing(grant.queue, queues.holders.going()):
        return None  # it does once others have gone too, who were on their way out when it was planned
    return "the quota that was freed for it was lowered, or others use it now"


def awaited_claims(state: ClusterState, queues: Queues, key: HolderKey) -> list[str]:
    """The claims that are to be deallocated on the nodes of one who is nominated and lacks devices."""
    if not _lacks_devices(state, queues, key):
        return []
    parts = [part for part in state.assignments(key).values() if part.devices is not None]
    names = {name for part in parts for piece in part.slices for name, _ in piece.nodes}
    return sorted({claim for name in names for claim in state.cluster.devices.lingering(name)})


def _of_devices(state: ClusterState, queues: Queues, key: HolderKey) -> str | None:
    """As `obstacle`, as far as the devices go that are kept for it."""
    if not _lacks_devices(state, queues, key):
        return ""
    # Asked again as if all claims without pods were deallocated:
    # devices that lack even then are gone, or somebody else's.
    with state.cluster.devices.deallocated():
        node = _lacks_devices(state, queues, key)
    return f"the devices that were kept for it on node {node} are gone, or others have them now" if node else None


def _lacks_devices(state: ClusterState, queues: Queues, key: HolderKey) -> str:
    """A node that has too few devices for what is to go there, beside all others that wait for some; "" for none."""
    parts = tuple(state.assignments(key).values())
    if all(part.devices is None for part in parts):
        return ""
    with queues.holders.counted_once(state):
        state.release_workload(key)
        for number, part in enumerate(parts):
            fits = state.cluster.devices.count_by_node(part.devices) if part.devices is not None else None
            units: Counter[str] = Counter()
            for piece in part.slices if fits is not None else ():
                units.update(dict(piece.nodes))
            for name, count in units.items():
                record = state.cluster.by_name.get(name)
                if fits is not None and (record is None or fits[record.index] < count):
                    return name
            if part.devices is not None and (name := state.cluster.devices.common.overdrawn(part.devices, units)):
                return name
            # Reserved part by part: the next pod set is counted beside the devices that this one takes.
            state.reserve(key, parts[: number + 1])
    return ""


def _quota_suffices(queues: Queues, key: HolderKey, grant: AssumedAdmission) -> bool:
    """Whether what a nominated workload is to get fits beside what others hold, but for what their victims hold too."""
    quotas = queues.quotas
    depth = quotas.begin()
    # Others who wait for victims hold quota that their victims hold as well; each of these sums counts once.
    quotas.free_all([key, *queues.quotas.sharing(grant.queue, queues.holders.promised())])
    fits = queues.limits(queues.entries[key]).fits_limits(grant.amounts)
    quotas.rollback(depth)
    return fits


def _overfull(state: ClusterState, queues: Queues, workload: Workload) -> bool:
    """Whether a node is too small for what is to go there. What others wait for, their victims hold as well.

    Pods that no queue admitted may have come since, perhaps in place of those that were evicted: kube-scheduler lets
    ours preempt them. Evicting each of them here would go on for ever.
    """
    # Not the grant's slices: after a restart those name no nodes.
    slices = [piece for part in state.assignments(workload.key).values() for piece in part.slices if piece.count]
    names = {name for piece in slices for name, _ in piece.nodes}
    # A slice without nodes is one whose domain left the tree: its room is gone.
    if any(not piece.nodes for piece in slices) or any(name not in state.nodes for name in names):
        return True
    with queues.holders.counted_once(state):
        short = {name for name in names if _is_short(state, name)}
        # Only where a node is short: plain pods are taken out by name, which costs a pass over all of them.
        for entry in queues.holders.outside.values() if short else ():
            pod = entry.outside
            if pod is not None and pod.node in short and pod.priority < workload.outranks:
                state.remove_pod(pod.key)
        return any(_is_short(state, name) for name in short)


def _is_short(state: ClusterState, name: str) -> bool:
    """Whether a node is to give more than it has."""
    return min(state.free_on_node(name).values(), default=0) < 0

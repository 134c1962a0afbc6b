"""Growth that others have to make room for: victims for more pods of a workload that is admitted.

Rules
- Who wants more pods than fit preempts for the difference as its queue's rules allow, like one that waits. What it has
  it keeps, whatever becomes of that: its growth is held beside it, under a key of its own
  (`ReservationKey.for_growth`), as a nominated workload holds what it is to get.
- Growth ends with what its workload holds (`Queues.release_workload`), or where that wants fewer pods.
- The new pods go where growth may go: into the same domain where the level is required.
- Where it fits once those are gone that leave by themselves, it has nobody evicted and waits for that.
- Pods that ask for more than was granted to each evict nobody: they get that when others end.
"""

from collections.abc import Iterable, Mapping

import msgspec

from engine.cluster.assignment import Assignment
from engine.cluster.levels import domain_labels
from engine.cluster.state import ClusterState
from engine.model import PodSet, Policy
from engine.placement.grow import merged
from engine.reasons import Cure, Reason
from engine.reservation_key import HolderKey, ReservationKey, workload_of
from engine.results import Refusal
from queueing import messages
from queueing.cycle import elastic, successors
from queueing.cycle.backfill import barring_claim
from queueing.cycle.nominated import obstacle
from queueing.model import Quantities, Workload, asks_of, exceeds, order, shape, usage
from queueing.preemption.plan import Plan
from queueing.preemption.promised_room import PromisedRoom
from queueing.preemption.search import plan
from queueing.queues.entry import AssumedAdmission, Entry, Phase
from queueing.queues.eviction_units import Path
from queueing.queues.flavor_assigner import FlavorAssignment
from queueing.queues.queues import Queues


class Grows(msgspec.Struct, frozen=True):
    """Once the victims are gone it gets ``grant`` beside what it has."""

    grant: AssumedAdmission
    plan: Plan


def nominate_growth(state: ClusterState, queues: Queues, key: str) -> Grows | None:
    """Victims for what one of those who grow was just refused; their room and quota are held then. None: nobody."""
    entry = queues.entries[key]
    grant, queue = entry.grant, queues.quotas.queues.get(entry.queue)
    # The refusal is the one that this cycle's try at growth left on the entry.
    if entry.refusal is None or entry.refusal.reason.traits.cure is not Cure.OTHERS or grant is None or queue is None:
        return None
    if not (queue.preemption.any and entry.workload.preempts):
        return None
    found = _growth_request(state, queues, entry, grant, elastic.wished(queues, key))
    if found is None:
        return None
    pod_sets, option = found
    # Under a name of its own: under the workload's key the engine
    # would replace the slots that it has with the new ones.
    workload = msgspec.structs.replace(
        entry.workload, key=ReservationKey.for_growth(key), pod_sets=pod_sets, at_least={}
    )
    more = Entry(workload, entry.order, entry.shape, 0.0, queue=entry.queue)
    # Until it has victims: whoever is admitted later may be one, and frees nothing that would have it tried again.
    queues.growing.victimless.add(key)
    # Quota that a claim keeps, and room that comes free by itself, come before evictions: victims would go in vain.
    if (
        barring_claim(queues, more, option) is not None
        or successors.place_once_gone(state, queues, more, option) is not None
    ):
        return None
    # Else it would wait for those whom the search for another workload left out.
    queues.run_times.begin_look()
    made = plan(state, queues, more, option)
    if made is None:
        if queues.run_times.await_end(more.queue) is not None:
            text = f"{entry.refusal.message}; {messages.safe_yet(queues)}"
            entry.record_refusal(msgspec.structs.replace(entry.refusal, message=text))
        return None
    queues.growing.victimless.discard(key)
    made = PromisedRoom(state, queues, more, option).cheaper(made)
    counts = {pod_set.name: pod_set.count for pod_set in pod_sets}
    asks = {name: ask for name, ask in asks_of(entry.workload).items() if name in counts}
    grown = AssumedAdmission(grant.queue, counts, option.flavors, option.amounts, made.assignments, asks)
    parts = {victim.key: victim.domains for victim in made.victims if victim.domains}
    hold_growth(state, queues, workload, grown, [victim.key for victim in made.victims], parts)
    entry.record_refusal(Refusal(Reason.PREEMPTING, messages.preempting(queues, made)))
    return Grows(grown, made)


def hold_growth(  # noqa: PLR0917  (what is held of whom, and for whom it waits)
    state: ClusterState,
    queues: Queues,
    more: Workload,
    grant: AssumedAdmission,
    nominated: Iterable[HolderKey],
    parts: Mapping[HolderKey, tuple[Path, ...]],
    *,
    stored: bool = False,
) -> None:
    """Hold what more pods of an admitted workload are to get. The last arguments are those of `Queues.grant`.

    ``more``: those pods alone, as a workload of the key that `ReservationKey.for_growth` gives.
    """
    base = workload_of(more.key)
    entry = queues.entries[more.key] = Entry(more, order(more), shape(more), 0.0)
    # Through the holders and not ``Queues.grant``: growth is in no line, and gets no message about why it waits.
    queues.holders.set_grant(state, entry, grant, nominated=nominated, parts=parts, stored=stored, waits=True)
    queues.count_use(entry)
    held = queues.entries[base].grant
    if base not in queues.growing and held is not None:  # after a restart: until it says itself what it wants
        wanted = {name: held.counts.get(name, 0) + count for name, count in grant.counts.items() if count}
        queues.growing[base] = wanted, ()


def settle_growth(state: ClusterState, queues: Queues, key: str) -> elastic.Resized | str | None:
    """What became of growth that is held for one: it has it now, it came to nothing (why), or it has to wait."""
    more = queues.entries[ReservationKey.for_growth(key)]
    entry, grown = queues.entries[key], more.grant
    wish = elastic.wished(queues, key) if key in queues.growing else None
    if (stopped := queues.config.find_stop(entry.workload, entry.queue)) is not None:
        queues.end_growth(state, key)
        return stopped
    if grown is None or entry.grant is None or entry.phase is not Phase.ADMITTED or key in queues.holders.evicting:
        queues.end_growth(state, key)
        return "the workload itself is evicted"
    # Its wish fell below what was planned for: held further, the difference would be given to pods that nobody makes.
    if wish is None or any(wish.get(name, 0) < count for name, count in _summed_counts(entry.grant, grown).items()):
        queues.end_growth(state, key)
        return "it wants fewer pods now"
    why = None if more.victims else obstacle(state, queues, more.workload.key)
    if why is None:
        return None
    # As it is packed: slices of a nomination that was read back after a restart lack their nodes, and beside slots that
    # have theirs they would be charged to none.
    packed = tuple(state.assignments(ReservationKey.for_growth(key)).values())
    # Ended before the whole is granted: else slots and quota of the difference
    # would be held twice for a moment, and the quota of a full queue overdrawn.
    held = queues.end_growth(state, key)
    grown = msgspec.structs.replace(grown, assignments=packed)
    # A flavor whose levels changed has other domains: slices of two trees cannot be merged into one assignment.
    whole = None if why or held is None else _merge_grants(state, entry, entry.grant, grown)
    if whole is None:
        queues.growing.try_again([key])
        return f"{why or 'its flavor was created again with other levels'}; it looks for room again"
    elastic.hold_resized(state, queues, entry, whole)
    if whole.counts == {**whole.counts, **wish}:
        del queues.growing[key]
    return elastic.Resized(key, whole)


def _summed_counts(grant: AssumedAdmission, grown: AssumedAdmission) -> dict[str, int]:
    return {name: grant.counts.get(name, 0) + count for name, count in grown.counts.items() if count}


def _growth_request(
    state: ClusterState, queues: Queues, entry: Entry, grant: AssumedAdmission, wish: Mapping[str, int]
) -> tuple[tuple[PodSet, ...], FlavorAssignment] | None:
    """The pods that it wants more, as a request of their own; None where they cannot be one, or no quota ever is."""
    more = {name: count - grant.counts.get(name, 0) for name, count in wish.items()}
    more = {name: count for name, count in more.items() if count > 0}
    asked = asks_of(entry.workload)
    # Dearer pods raise the charge of pods that run: that cannot be said as a request beside them.
    if not more or any(name in asked and exceeds(asked[name], ask) for name, ask in grant.asks.items()):
        return None
    flavors = elastic.flavors_of_growth(queues.quotas.queues[entry.queue], entry, more)
    if isinstance(flavors, Refusal):
        return None
    amounts: Quantities = {}
    pod_sets: list[PodSet] = []
    parts: dict[str, list[PodSet]] = {}
    for name, count in more.items():
        takes = usage(asked[name], count)
        for resource, flavor in flavors.get(name, {}).items():
            amounts[flavor, resource] = amounts.get((flavor, resource), 0) + takes.get(resource, 0)
        held = state.assignments(entry.workload.key).get(name)
        room = held.flavor if held is not None else elastic.room_of_growth(state, flavors.get(name, {}).values())
        levels = held.levels if held is not None else state.flavors[room].levels if room else ()
        pod_set = _pod_set_beside(elastic.sized(entry, levels, name, count), held)
        if pod_set is None:
            return None
        pod_sets.append(pod_set)
        if room:  # in a flavor without a topology it is not placed
            parts.setdefault(room, []).append(pod_set)
    named = {name: flavors[name] for name in more if name in flavors}
    # Evicting for what the queue may never use would only cost the victims their work.
    if not queues.limits(entry).ever(amounts):
        return None
    placed = tuple((room, tuple(sets)) for room, sets in parts.items())
    return tuple(pod_sets), FlavorAssignment(named, amounts, placed)


def _pod_set_beside(pod_set: PodSet, held: Assignment | None) -> PodSet | None:
    """A pod set that may go where more pods of this assignment may; None where they would complete a slice."""
    # A group is placed together; its other pod sets stand already, and are not in this request.
    pod_set = msgspec.structs.replace(pod_set, group="")
    layers = pod_set.topology.slices
    if held is None or not held.slices:
        return pod_set
    # A slice that is begun has to be completed where its other pods are; a request beside it could go elsewhere.
    if layers and (held.count % layers[0].size or pod_set.count % layers[0].size):
        return None
    if pod_set.topology.policy is not Policy.REQUIRED or pod_set.topology.level not in held.levels:
        return pod_set
    levels = held.levels[: held.levels.index(pod_set.topology.level) + 1]
    # The required domain is where the first slice stands; all others are in the same one by definition.
    domain = domain_labels(levels, held.slices[0].values)
    return msgspec.structs.replace(pod_set, node_selector=pod_set.node_selector | domain)


def _merge_grants(
    state: ClusterState, entry: Entry, grant: AssumedAdmission, grown: AssumedAdmission
) -> AssumedAdmission | None:
    """What it has and what it gets, as one."""
    parts = {part.pod_set: part for part in state.assignments(entry.workload.key).values()}
    for more in grown.assignments:
        held, tree = parts.get(more.pod_set), state.tree(more.flavor)
        if tree is None or tree.flavor.levels != more.levels or (held is not None and held.levels != more.levels):
            return None
        pod_set = elastic.sized(entry, more.levels, more.pod_set, more.count + (held.count if held else 0))
        parts[more.pod_set] = merged(more, held.slices if held else (), more.slices, tree, pod_set)
    amounts = dict(grant.amounts)
    for name, amount in grown.amounts.items():
        amounts[name] = amounts.get(name, 0) + amount
    return msgspec.structs.replace(
        grant,
        counts={**grant.counts, **_summed_counts(grant, grown)},
        flavors={**grant.flavors, **grown.flavors},
        amounts=amounts,
        assignments=tuple(parts.values()),
        asks={**grown.asks, **grant.asks},
    )

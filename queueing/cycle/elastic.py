"""Workloads that change while they hold something: more pods, fewer pods, pods that finished, pods off lost nodes.

Rules
- Fewer pods give back quota and slots at once (slots that no pod claims first). Pods that finished and are not made
  again (reclaimable) are such pods. Whoever has others told of that by an API server asks for growth alone, and for
  less once that is stored: until then two would have the same slots there.
- More pods need quota and room for the difference, beside the others where the level is required; all pod sets or none.
  Where nobody is evicted for them and each is of use by itself (`Workload.one_by_one`), as many as fit come at once.
  What does not fit now is tried again in the cycles after something was freed, in its place among those who wait
  (`queueing.cycle.turns`).
- So do pods that ask for more than was granted to each (`AssumedAdmission.asks`), as a rolling update may bring them:
  all pods of their pod set are charged alike. Slots that their node is too small for then go elsewhere, like those of
  lost nodes.
- A queue that is stopped gives nothing more to those that it admitted, as it admits nobody; they may shrink.
- The new grant replaces the stored one; nothing else of the workload changes.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from engine.cluster.assignment import Assignment, slots_removed
from engine.cluster.state import ClusterState
from engine.model import Amounts, PodSet, Policy
from engine.placement.place import enlarge, extend, place, shrink
from engine.reasons import Reason
from engine.reservation_key import ReservationKey
from engine.results import Refusal, WorkloadRequest
from queueing import messages
from queueing.cycle.backfill import await_crossing, barring_claim, reopen
from queueing.cycle.bisection import most
from queueing.model import AUTO, ClusterQueue, Quantities, asks_of, exceeds, usage
from queueing.queues.entry import AssumedAdmission, Entry, Phase
from queueing.queues.eviction_units import split
from queueing.queues.flavor_assigner import FlavorAssignment
from queueing.queues.queues import Queues


class Resized(msgspec.Struct, frozen=True):
    """Store the grant; ``counts`` are the pods by pod set now. ``refusal``: why it did not get all it wanted more."""

    key: str
    grant: AssumedAdmission
    refusal: Refusal | None = None

    @property
    def counts(self) -> Mapping[str, int]:
        """Pods by pod set."""
        return self.grant.counts


def resize(state: ClusterState, queues: Queues, key: str, counts: Mapping[str, int]) -> Resized | Refusal | None:
    """Give an admitted workload other numbers of pods; pod sets that are not named keep theirs.

    None where it has them already; a refusal where nothing changed. What shrinks is given back even where what should
    grow is refused. Raises ValueError where the workload is not admitted or has no such pod set.
    """
    entry = _admitted(queues, key)
    grant = _grant(entry)
    held = {pod_set.name: 0 for pod_set in entry.workload.pod_sets} | dict(grant.counts)
    dearer = {name for name in counts if _is_dearer(entry, name)}
    unknown = counts.keys() - held.keys()
    # Raised before anything changes, so that a caller with a wrong name leaves the grant as it is.
    if unknown:
        raise ValueError(f"{key} has no pod set {', '.join(sorted(unknown))}")
    fewer = {name: count for name, count in counts.items() if count < held[name]}
    more = {name: max(count, held[name]) for name, count in counts.items() if count > held[name] or name in dearer}
    # Given back first: what shrinks may be the very room and quota that the other pod set grows into.
    if fewer:
        hold_resized(state, queues, entry, _shrunk(state, entry, fewer))
    grown = _grown(state, queues, entry, more) if more else None
    if isinstance(grown, Refusal):
        return Resized(key, _grant(entry), grown) if fewer else grown
    if grown is not None:
        hold_resized(state, queues, entry, grown)
    return Resized(key, _grant(entry)) if fewer or more else None


def reclaim(state: ClusterState, queues: Queues, key: str, finished: Mapping[str, int]) -> Resized | Refusal | None:
    """Give back what finished pods took; ``finished``: by pod set, of those the workload wants, how many are done."""
    entry = _admitted(queues, key)
    wanted = {pod_set.name: pod_set.count for pod_set in entry.workload.pod_sets}
    held = _grant(entry).counts
    # Never more than it holds: ``wanted`` may be larger after an edit, and finished pods must not make a workload grow.
    counts = {name: min(held[name], max(0, wanted[name] - done)) for name, done in finished.items() if name in held}
    return resize(state, queues, key, counts)


def lose(state: ClusterState, queues: Queues, key: str) -> Resized | None:
    """Give up the slices that one is to lose (`Queues.losing`), as their pods are gone; None where it loses none.

    It does not want them back by itself: that is `Queues.wish`.
    """
    if (domains := queues.holders.losing.get(key)) is None:
        return None
    entry = _admitted(queues, key)
    kept, lost = split(state.assignments(key).values(), domains)
    counts = dict(_grant(entry).counts)
    for part in lost:
        counts[part.pod_set] -= part.count
    hold_resized(state, queues, entry, _with_fewer(entry, counts, kept))
    return Resized(key, _grant(entry))


def hold_elsewhere(state: ClusterState, queues: Queues, key: str, grant: AssumedAdmission) -> list[Assignment]:
    """Have one hold other places; returns those that it leaves: its pods are there yet, so somebody is to keep them."""
    entry = queues.entries[key]
    before = entry.grant
    queues.grant(state, key, grant)
    reopen(state, queues, entry)
    return slots_removed(before.assignments, grant.assignments) if before is not None else []


def may_grow(queues: Queues, key: str) -> bool:
    """Whether one that wants more pods may get them now: who is told to go, or loses slices, gets nothing meanwhile."""
    return key not in queues.holders.evicting and key not in queues.holders.losing


def eager(queues: Queues) -> list[str]:
    """Those who want more pods than they hold, where something was freed since they were refused."""
    return [
        key
        for key, (_, seen) in queues.growing.items()
        # A growth that waits for its victims holds its room already: a second try would take it twice.
        if may_grow(queues, key)
        and ReservationKey.for_growth(key) not in queues.entries
        and queues.freed_so_far(key) != seen
    ]


def wished(queues: Queues, key: str) -> dict[str, int]:
    """How many pods one of those that grow wants, of the pod sets that it still has: it may have changed since."""
    names = {pod_set.name for pod_set in queues.entries[key].workload.pod_sets}
    return {name: count for name, count in queues.growing[key][0].items() if name in names}


def lacking(queues: Queues, key: str) -> Quantities:
    """What quota one of those that grow would take more; {} where nothing tells in which flavors."""
    entry = queues.entries[key]
    grant, queue = _grant(entry), queues.quotas.queues.get(entry.queue)
    more = {name: count for name, count in wished(queues, key).items() if count >= grant.counts.get(name, 0)}
    flavors = flavors_of_growth(queue, entry, more) if queue is not None else {}
    return {} if isinstance(flavors, Refusal) else _difference(entry, more, flavors)


def why_not_grown(state: ClusterState, queues: Queues, key: str) -> Refusal | None:
    """Why one of those who grow would not get all that it wants more now; None where it would. Nothing changes."""
    entry = queues.entries[key]
    held = _grant(entry).counts
    more = {name: n for name, n in wished(queues, key).items() if n > held.get(name, 0) or _is_dearer(entry, name)}
    found = _grown(state, queues, entry, more) if more else None
    return found if isinstance(found, Refusal) else None


def grow(state: ClusterState, queues: Queues, key: str) -> list[Resized]:
    """Try to give one of them what it wants."""
    wish = wished(queues, key)
    found = resize(state, queues, key, wish)
    refusal = found if isinstance(found, Refusal) else found.refusal if found is not None else None
    del queues.growing[key]
    if refusal is not None:
        queues.grow_later(key, wish)  # at the end: the first was looked at longest ago
        queues.entries[key].record_refusal(refusal)
    return [found] if isinstance(found, Resized) else []


def grow_partly(state: ClusterState, queues: Queues, key: str) -> list[Resized]:
    """Give one that was refused as many pods as fit, where each is of use by itself; it goes on wanting the others.

    By bisection, whole slices of a pod set with slices.
    """
    entry, wish = queues.entries[key], wished(queues, key)
    held, refusal = _grant(entry).counts, entry.refusal
    more = {name: count for name, count in wish.items() if count > held.get(name, 0)}
    # Bisection over one number: with two pod sets, or a higher
    # charge for pods that run already, "more" has no single order.
    if not entry.workload.one_by_one or len(more) != 1 or any(_is_dearer(entry, name) for name in wish):
        return []
    ((name, wanted),) = more.items()
    topology, has = next(p for p in entry.workload.pod_sets if p.name == name).topology, held.get(name, 0)
    size = topology.slices[0].size if topology.slices else 1

    def with_more(units: int) -> AssumedAdmission | None:
        found = _grown(state, queues, entry, {name: has + units * size})
        return None if isinstance(found, Refusal) else found

    queues.count_search()  # it takes as many looks
    # All of it was refused a moment ago, so the search ends one unit below that.
    best = most(1, (wanted - has - 1) // size, with_more)
    if best is None:
        return []
    # Granting forgets what was refused, and the rest of the wish is still refused: the text is put back below.
    hold_resized(state, queues, entry, best)
    if refusal is not None:
        entry.record_refusal(refusal)
    queues.grow_later(key, wish)
    return [Resized(key, best, refusal)]


def _admitted(queues: Queues, key: str) -> Entry:
    entry = queues.entries.get(key)
    if entry is None or entry.phase is not Phase.ADMITTED:
        raise ValueError(f"{key} is not admitted")
    return entry


def _grant(entry: Entry) -> AssumedAdmission:
    assert entry.grant is not None  # noqa: S101  (admitted ones have one)
    return entry.grant


def _is_dearer(entry: Entry, name: str) -> bool:
    """Whether the pods of a pod set are known to ask for more than was granted to each."""
    granted = _grant(entry).asks.get(name)
    asked = asks_of(entry.workload).get(name, {})
    # A grant that was stored without ``asks`` says nothing of its pods: were they taken for dearer, each workload of
    # such a grant would be placed again, and be refused where nothing is free.
    return granted is not None and exceeds(asked, granted)


def _amounts(
    asks: Mapping[str, Amounts], counts: Mapping[str, int], flavors: Mapping[str, Mapping[str, str]]
) -> Quantities:
    """What quota so many pods take in these flavors. ``asks``: of one pod, by pod set."""
    found: Quantities = {}
    for name, requests in asks.items():
        takes = usage(requests, counts.get(name, 0))
        for resource, flavor in flavors.get(name, {}).items():
            found[flavor, resource] = found.get((flavor, resource), 0) + takes.get(resource, 0)
    return found


def sized(entry: Entry, levels: Sequence[str], name: str, count: int) -> PodSet:
    """The pod set as it was placed, with so many pods."""
    pod_set = next(p for p in entry.workload.pod_sets if p.name == name)
    topology = pod_set.topology
    # ``auto`` is the narrowest level of whichever flavor is tried; here that is the flavor in which it stands.
    if topology.level == AUTO:
        anywhere = msgspec.structs.replace(topology, policy=Policy.UNCONSTRAINED, level=None)  # as it stands already
        topology = msgspec.structs.replace(topology, level=levels[-1]) if levels else anywhere
    return msgspec.structs.replace(pod_set, count=count, topology=topology)


def _shrunk(state: ClusterState, entry: Entry, fewer: Mapping[str, int]) -> AssumedAdmission:
    grant, key = _grant(entry), entry.workload.base
    counts = {**grant.counts, **fewer}
    slices = {pod_set.name: pod_set.topology.slices for pod_set in entry.workload.pod_sets}
    parts = [
        shrink(state, key, part.pod_set, part.count - fewer[part.pod_set], slices=slices[part.pod_set])
        if part.pod_set in fewer
        else part
        for part in state.assignments(key).values()
    ]
    return _with_fewer(entry, counts, [part for part in parts if part.count])


def _with_fewer(entry: Entry, counts: Mapping[str, int], parts: Sequence[Assignment]) -> AssumedAdmission:
    """What it holds once it has so many pods, in these places."""
    grant = _grant(entry)
    # Charged at what was granted to each pod, though the template
    # asks for another amount by now: growth alone changes that.
    asks = {name: grant.asks.get(name, ask) for name, ask in asks_of(entry.workload).items()}
    amounts = _amounts(asks, counts, grant.flavors)
    return AssumedAdmission(grant.queue, counts, grant.flavors, amounts, tuple(parts), grant.asks)


def _grown(state: ClusterState, queues: Queues, entry: Entry, more: Mapping[str, int]) -> AssumedAdmission | Refusal:
    grant, key = _grant(entry), entry.workload.base
    queue = queues.quotas.queues.get(grant.queue)
    stopped = queues.config.find_stop(entry.workload, entry.queue)
    if queue is None or stopped is not None:
        gone = Refusal(Reason.NO_QUEUE, f"there is no ClusterQueue {grant.queue} any more")
        return gone if stopped is None else Refusal(Reason.QUEUE_STOPPED, stopped)
    flavors = flavors_of_growth(queue, entry, more)
    if isinstance(flavors, Refusal):
        return flavors
    delta = _difference(entry, more, flavors)
    if not queue.unlimited and (refused := _refuse_quota(queues, entry, delta)) is not None:
        return refused
    growing = (pod_set for pod_set in entry.workload.pod_sets if pod_set.name in more)
    if (refused := refuse_uncounted(state, entry, growing)) is not None:
        return refused
    # Each pod set is placed beside those before it; all of it is undone, since `hold_resized` holds the whole grant.
    checkpoint = state.begin()
    try:
        for name, count in more.items():
            found = _more(state, entry, name, count, flavors.get(name, {}).values())
            if isinstance(found, Refusal):
                return found
            others = [part for part in state.assignments(key).values() if part.pod_set != name]
            state.reserve(key, [*others, *found])
        parts = tuple(state.assignments(key).values())
    finally:
        state.rollback(checkpoint)
    asks, counts = _asks_then(entry, more), {**grant.counts, **more}
    return AssumedAdmission(grant.queue, counts, flavors, _amounts(asks, counts, flavors), parts, asks)


def refuse_uncounted(state: ClusterState, entry: Entry, pod_sets: Iterable[PodSet]) -> Refusal | None:
    """Why a workload may not have more of these pods yet; None where the devices that they ask for are counted.

    With counts that are too low it would have victims evicted for devices that are free.
    """
    counting, tenant = state.cluster.devices.counting, entry.workload.base.partition("/")[0]
    asks = dict.fromkeys([pod_set.devices for pod_set in pod_sets if pod_set.devices is not None])
    left = max([counting.uncounted(ask, tenant) for ask in asks], default=0)
    return messages.counting(left) if left else None


def _refuse_quota(queues: Queues, entry: Entry, delta: Quantities) -> Refusal | None:
    """Why an admitted workload may not take so much more quota; None where it may."""
    queue = _grant(entry).queue
    if names := queues.quotas.cycle_of(queue):
        return messages.cohort_cycle(names)
    missing = queues.limits(entry).missing_quota(delta)
    if missing:
        return messages.insufficient(queues, queue, missing)
    # A claimant's quota is kept from growth as from an admission:
    # a service could scale out for ever in front of it.
    claim = barring_claim(queues, entry, FlavorAssignment({}, delta, ()))
    if claim is not None:
        await_crossing(queues, claim, entry)
        return messages.kept_quota_refusal(queues.title_of(claim.key), queues.quotas.pool(queue))
    return None


def _asks_then(entry: Entry, more: Collection[str]) -> dict[str, Amounts]:
    """What one of its pods may take, by pod set, once these pod sets have grown."""
    granted = _grant(entry).asks
    return {**asks_of(entry.workload), **{name: ask for name, ask in granted.items() if name not in more}}


def _difference(entry: Entry, more: Mapping[str, int], flavors: Mapping[str, Mapping[str, str]]) -> Quantities:
    """What quota it takes beyond what it has, with so many pods in these pod sets."""
    grant = _grant(entry)
    amounts = _amounts(_asks_then(entry, more), {**grant.counts, **more}, flavors)
    return {name: amount - grant.amounts.get(name, 0) for name, amount in amounts.items()}


def flavors_of_growth(
    queue: ClusterQueue, entry: Entry, names: Collection[str]
) -> Mapping[str, Mapping[str, str]] | Refusal:
    """The flavors of all pod sets, by resource; of one that had no pods when it was admitted, those of the others.

    What pods ask for that they did not when they were admitted comes from the flavor of what belongs to it.
    """
    grant = _grant(entry)
    found = dict(grant.flavors)
    if queue.unlimited:
        return found
    others = {resource: flavor for chosen in found.values() for resource, flavor in chosen.items()}
    group_of = {resource: group.resources for group in queue.groups for resource in group.resources}
    for name, ask in asks_of(entry.workload).items():
        if name not in names:
            continue
        mine, granted = found.get(name) or {}, grant.asks.get(name, {})
        # A pod that asks for a further resource pays for it too: with the grant's flavors alone a tenant could have
        # devices for nothing by adding them to the template later.
        more = {one: amount for one, amount in ask.items() if one not in granted} if mine else usage(ask, 1)
        takes = [resource for resource, amount in more.items() if amount and resource in group_of]
        if mine and (bare := [resource for resource, amount in more.items() if amount and resource not in group_of]):
            text = f"cluster queue {queue.name} has no quota for {', '.join(bare)}"
            return Refusal(Reason.NO_QUOTA, text, pod_set=name)
        beside = {one: mine[other] for one in takes for other in group_of[one] if other in mine}
        chosen = {one: flavor for one in takes if (flavor := beside.get(one) or others.get(one)) is not None}
        if lacking := [resource for resource in takes if resource not in chosen]:
            when = "had no pods" if not mine else "did not ask for that"
            text = (
                f"pod set {name} {when} when the workload was admitted, so it has no flavor for "
                f"{', '.join(lacking)}: it gets one when the workload is admitted again"
            )
            return Refusal(Reason.INSUFFICIENT_QUOTA, text, pod_set=name)
        found[name] = {**mine, **chosen}
    return found


def _more(
    state: ClusterState, entry: Entry, name: str, count: int, granted: Collection[str]
) -> tuple[Assignment, ...] | Refusal:
    """The assignment of one pod set with more pods; none where it is in no flavor with a topology."""
    key = entry.workload.base
    held = state.assignments(key).get(name)
    if held is not None:
        pod_set = sized(entry, held.levels, name, count)
        # Larger pods may not fit where slots are, so ``enlarge`` moves
        # slots that no pod claims yet and whose node is too small.
        grown = enlarge if exceeds(pod_set.requests, held.requests) else extend
        found = grown(state, key, pod_set, count - held.count)
        return found if isinstance(found, Refusal) else (found,)
    rooms = _rooms(state, granted)
    if not rooms:
        return ()
    pod_set = sized(entry, state.flavors[rooms[0]].levels, name, count)
    placed = place(state, WorkloadRequest(key, (pod_set,), tuple(rooms)))
    return placed if isinstance(placed, Refusal) else placed.assignments


def _rooms(state: ClusterState, granted: Collection[str]) -> list[str]:
    """The flavors with a topology that a pod set without pods may go to."""
    if not granted:
        return sorted(state.flavors)  # it was placed without quota
    return [flavor for flavor in granted if flavor in state.flavors]


def room_of_growth(state: ClusterState, granted: Collection[str]) -> str:
    """The flavor in which a pod set that had no pods gets its first ones; "" where none has a topology."""
    return next(iter(_rooms(state, granted)), "")


def hold_resized(state: ClusterState, queues: Queues, entry: Entry, grant: AssumedAdmission) -> None:
    """Have one that is admitted hold this instead, and all who may be helped by that be looked at again."""
    before = _grant(entry)
    queues.grant(state, entry.workload.base, grant)
    # A change of places alone gives back nothing: waking everybody for it would cost a cycle of looks.
    if _less(grant, before):
        queues.gave_back(state, before)
    if _less(before, grant):
        queues.holds_more(entry.workload.base)


def _less(one: AssumedAdmission, other: AssumedAdmission) -> bool:
    """Whether it has less of some quota, or fewer slots."""
    return any(one.amounts.get(name, 0) < amount for name, amount in other.amounts.items()) or (
        sum(part.count for part in one.assignments) < sum(part.count for part in other.assignments)
    )

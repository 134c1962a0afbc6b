"""All who hold something: workloads that are admitted or nominated, and pods that no queue admitted.

Rules
- What is held is held twice, in the engine (slots) and here (quota), and both change together.
- A victim holds what it holds until its pods are gone; meanwhile it is nobody else's victim. The workload that it goes
  for is nominated as long as one of its victims is left.
- A victim may lose the slices that it has in some domains, and keep the rest (`queueing.queues.eviction_units`).
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from math import inf

import msgspec

from engine.cluster.state import ClusterState
from engine.reservation_key import HolderKey, ReservationKey
from queueing.model import OutsidePod, Workload, order
from queueing.queues.entry import OUTSIDE, AssumedAdmission, Entry, Phase
from queueing.queues.eviction_units import Path, slice_level, split
from queueing.queues.held import Held
from queueing.queues.quota import Quotas
from queueing.queues.usage import FlavorRows, SlotOwner, UsageIndex


class Holders:
    """See the module's rules. ``entries``: all workloads of the queues, by key."""

    def __init__(self, quotas: Quotas, entries: Mapping[HolderKey, Entry]) -> None:
        self.nominated: dict[HolderKey, None] = {}
        self._kept: set[HolderKey] = set()  # workloads in `evicting` whose pods a budget keeps
        self.evicting: dict[HolderKey, None] = {}  # whose pods are on their way out
        self.losing: dict[HolderKey, tuple[Path, ...]] = {}  # who loses the slices that it has in these domains
        self.non_preemptible: dict[HolderKey, None] = {}  # who is nobody's victim, as far as it does not borrow
        self.outside: dict[HolderKey, Entry] = {}  # pods that no queue admitted, by unit
        self.by_flavor: dict[str, int] = {}  # how many hold something of it
        self._quotas = quotas
        self._entries = entries
        self._usage = UsageIndex()
        self._held_in: dict[str, dict[HolderKey, None]] = {}
        self._priorities: dict[str, dict[int, int]] = {}
        self._numbers: dict[str, int] = {}

    # -- workloads --------------------------------------------------------------------------------------------

    def set_grant(
        self,
        state: ClusterState,
        entry: Entry,
        grant: AssumedAdmission,
        *,
        nominated: Iterable[HolderKey],
        parts: Mapping[HolderKey, tuple[Path, ...]],
        waits: bool,
        stored: bool,
    ) -> None:
        """Have a workload hold a grant instead of what it held; the other arguments as in ``Queues.grant``."""
        key = entry.workload.key
        if entry.grant is not None:
            self._list(entry, entry.grant, -1)
        # A stored plan may name victims that went while no controller was there: nobody waits for these.
        victims = {victim for victim in nominated if self._holds_domains(victim, parts.get(victim, ()))}
        entry.hold_grant(grant, victims, waits=waits)
        self._list(entry, grant, 1)
        # One that is evicted and resized meanwhile goes on leaving: charged as staying it would be a victim once more.
        self._quotas.charge_workload(key, Held(grant.queue, grant.amounts, leaving=key in self.evicting))
        self.update_protection(entry)
        self.losing.update((victim, parts[victim]) for victim in victims if victim in parts)
        self.mark_leaving(*(victim for victim in victims if victim not in parts))
        # The new grant holds nothing in the domains that it was to lose, so whoever waits for those has them.
        if key in self.losing and not split(grant.assignments, self.losing[key])[1]:
            self._end_shrink(key)
        # Stored slots are held wherever they are, full node or not: their pods run there.
        (state.restore_slots if stored else state.reserve)(key, grant.assignments)
        # As the engine packed them: what was given in may name domains without nodes.
        self._usage.record_usage(self._owner(entry), state.assignments(key))
        if entry.phase is Phase.NOMINATED:
            self.nominated[key] = None
        else:
            self.nominated.pop(key, None)

    def release_workload(self, state: ClusterState, key: HolderKey) -> AssumedAdmission | None:
        """Have a workload hold nothing, and its victims stay; returns what it held."""
        entry = self._entries.get(key)
        state.release_workload(key)
        self._quotas.release_quota(key)
        if entry is None or entry.grant is None:
            return None
        grant = entry.grant
        # Its victims stay after all: unmarked, so that they may be victims of somebody else.
        self._quotas.mark_leaving(*entry.victims, leaving=False)
        for victim in entry.victims:
            self.evicting.pop(victim, None)
            self.losing.pop(victim, None)
        entry.clear_grant()
        self._list(entry, grant, -1)
        self.evicting.pop(key, None)
        self._kept.discard(key)
        self.nominated.pop(key, None)
        self.non_preemptible.pop(key, None)
        self._usage.record_usage(SlotOwner(key), {})
        # Last: preemptors that waited for it see its quota and slots free.
        self._end_shrink(key)
        return grant

    def update_protection(self, entry: Entry) -> None:
        """Note whether one that holds something is nobody's victim, as its class, itself and its queue say now."""
        key, held = entry.workload.key, self._quotas.held.get(entry.workload.key)
        if held is None:
            return
        spared = self._quotas.is_protected(held.queue, entry.workload)
        if held.non_preemptible != spared:
            self._quotas.charge_workload(key, msgspec.structs.replace(held, non_preemptible=spared))
        if spared:
            self.non_preemptible[key] = None
        else:
            self.non_preemptible.pop(key, None)

    def update_owner(self, entry: Entry) -> None:
        """Note what one that holds something is as a victim, which has changed: its priority, its age, its units."""
        grant = entry.grant
        if grant is None:
            return
        self._count_priority(grant.queue, entry.held_at, -1)
        entry.relist()
        self._count_priority(grant.queue, entry.held_at, 1)
        # By the grant, which has the nodes of what is stored (`Entry.pack`); one that is nominated is
        # nobody's victim, and its columns are written once it is admitted.
        if entry.phase is Phase.ADMITTED:
            self._usage.record_usage(self._owner(entry), {part.pod_set: part for part in grant.assignments})

    def update_start(self, entry: Entry) -> None:
        """Note since when one that holds something is admitted, and its pods are ready."""
        self._usage.record_start(self._owner(entry))

    def mark_leaving(self, *keys: HolderKey) -> None:
        """Their pods are on their way out: they are nobody's victims any more, and hold on until ``release_workload``.

        Who holds nothing is left out.
        """
        entries, outside = self._entries, self.outside
        going = [
            key
            for key in keys
            if key in outside or ((entry := entries.get(key)) is not None and entry.grant is not None)
        ]
        # Marked in one go: sums by shape cost far less than one change for each of a hundred victims.
        self._quotas.mark_leaving(*going)
        for key in going:
            self.losing.pop(key, None)
            if key not in self.evicting:
                self._kept.discard(key)  # that was an earlier eviction
            self.evicting[key] = None

    def may_make_room(self, victim: HolderKey, taker: HolderKey) -> bool:
        """Whether the rules of the queues let one be evicted for another at all; how much that frees is not asked."""
        one, other = self._entries.get(victim), self._entries.get(taker)
        if one is None or other is None or one is other or one.grant is None:
            return False
        # Equal ones too, as a policy may take the newer one: a look in vain is cheap, one that is left out comes never.
        if one.queue == other.queue:
            # Equal ones too: a queue may let older ones take from newer ones.
            return one.workload.priority <= other.workload.priority
        return self._quotas.pool(one.queue) == self._quotas.pool(other.queue)

    def set_kept(self, key: HolderKey, *, kept: bool) -> None:
        """Note whether a budget has refused the eviction of a workload for longer than the controller waits for it."""
        if kept and key in self.evicting:
            self._kept.add(key)
        else:
            self._kept.discard(key)

    def going(self) -> list[HolderKey]:
        """The workloads in `evicting` that can be expected to go: no plan counts on what the others hold."""
        return [key for key in self.evicting if key not in self._kept]

    def _holds_domains(self, victim: HolderKey, domains: tuple[Path, ...]) -> bool:
        """Whether a victim holds what it is to give up."""
        if victim in self.outside:
            return True
        entry = self._entries.get(victim)
        if victim not in self._quotas.held or entry is None or entry.grant is None:
            return False
        # Slices that were given up before the restart are waited for by nobody.
        return not domains or bool(split(entry.grant.assignments, domains)[1])

    def _end_shrink(self, victim: HolderKey) -> None:
        """It gave up what it was to give up: nobody waits for it any more."""
        self.losing.pop(victim, None)
        for other in self.nominated:
            self._entries[other].victims.discard(victim)

    def _list(self, entry: Entry, grant: AssumedAdmission, by: int) -> None:
        """Note who holds quota of which queue, and something of which flavor."""
        if by > 0:
            self._held_in.setdefault(grant.queue, {})[entry.workload.key] = None
        else:
            self._held_in[grant.queue].pop(entry.workload.key, None)
        self._count_priority(grant.queue, entry.held_at, by)
        for flavor in flavors_of(grant):
            self.by_flavor[flavor] = self.by_flavor.get(flavor, 0) + by

    def _count_priority(self, queue: str, priority: int, by: int) -> None:
        counts = self._priorities.setdefault(queue, {})
        counts[priority] = counts.get(priority, 0) + by
        if not counts[priority]:
            del counts[priority]

    # -- pods that no queue admitted --------------------------------------------------------------------------

    def set_pod(self, pod: OutsidePod) -> None:
        """A bound pod that no queue admitted, and that may be evicted; it is in the engine's state."""
        unit = ReservationKey.for_pod(pod.key)
        found = self.outside.get(unit)
        if found is not None and found.outside == pod:
            return
        if found is not None:
            self._count_priority(OUTSIDE, found.workload.priority, -1)
        self._count_priority(OUTSIDE, pod.priority, 1)
        namespace = pod.key.partition("/")[0]
        workload = Workload(
            key=unit,
            namespace=namespace,
            queue="",
            pod_sets=(),
            priority=pod.priority,
            created=pod.created,
            uid=pod.uid,
        )
        self.outside[unit] = Entry(workload, order(workload), b"", 0.0, Phase.ADMITTED, pods={pod.key}, outside=pod)
        self._usage.note_pod(pod)

    def remove_pod(self, key: str) -> None:
        """Such a pod is gone, or may not be evicted any more; ``key``: ``namespace/name``."""
        unit = ReservationKey.for_pod(key)
        found = self.outside.pop(unit, None)
        if found is not None:
            self._count_priority(OUTSIDE, found.workload.priority, -1)
            self._usage.forget_pod(key)
            self.evicting.pop(unit, None)
            self._end_shrink(unit)

    # -- reading ----------------------------------------------------------------------------------------------

    def promised(self) -> list[HolderKey]:
        """Who holds room that its victims hold as well, until they are gone: nodes may look too full meanwhile."""
        return [key for key in self.nominated if self._entries[key].victims]

    @contextmanager
    def counted_once(self, state: ClusterState) -> Iterator[None]:
        """Look at the state without what is `promised`; nothing that is done to it meanwhile stays."""
        checkpoint = state.begin()
        try:
            state.release_all(self.promised())
            yield
        finally:
            state.rollback(checkpoint)

    def keys(self) -> Iterator[HolderKey]:
        """The workloads that hold something."""
        return (key for key, entry in self._entries.items() if entry.grant is not None)

    def held_in(self, queue: str) -> Iterator[HolderKey]:
        """Who holds quota of a cluster queue."""
        return iter(self._held_in.get(queue, ()))

    def first(self, queue: str) -> Iterator[HolderKey]:
        """Some who hold quota of a cluster queue, for messages: reading all of thousands would take long."""
        return islice(self.held_in(queue), 64)

    def lowest(self, queue: str) -> int | None:
        """The lowest priority of those who hold quota of a cluster queue, or of the pods in `OUTSIDE`."""
        return min(self._priorities.get(queue, ()), default=None)

    def number_of_queue(self, queue: str) -> int:
        """A number that stands for a cluster queue; -1 where it never held anything."""
        return self._numbers.get(queue, -1)

    @property
    def count_of_queues(self) -> int:
        """How many cluster queues have a number: all of 0 up to this."""
        return len(self._numbers)

    def usage(self, state: ClusterState, flavor: str) -> FlavorRows | None:
        """Who holds how much on the nodes of a flavor."""
        return self._usage.get(
            state,
            flavor,
            lambda: (self._owner(self._entries[key]) for key in self.keys()),
            lambda: (entry.outside for entry in self.outside.values() if entry.outside is not None),
        )

    def drop_dead(self, flavors: Iterable[str]) -> None:
        """Number those who hold something in these flavors again, where most numbers are of nobody by now."""
        self._usage.drop_dead(flavors)

    def _owner(self, entry: Entry) -> SlotOwner:
        workload = entry.workload
        number = self._numbers.setdefault(entry.queue, len(self._numbers))
        return SlotOwner(
            workload.key,
            workload.priority,
            workload.created,
            number,
            slice_level(workload),
            -inf if entry.admitted_at is None else entry.admitted_at,
            inf if entry.ready_at is None else entry.ready_at,
        )


def flavors_of(grant: AssumedAdmission | None) -> set[str]:
    """The flavors that a grant takes something of: one all of whose pods are done may still hold nothing of some."""
    if grant is None:
        return set()
    taken = {flavor for (flavor, _), amount in grant.amounts.items() if amount}
    return taken | {part.flavor for part in grant.assignments if part.slices}


def chosen_for(grant: AssumedAdmission) -> set[str]:
    """The flavors into which more pods go; none where that is any. One all of whose pods are done takes of none."""
    return {flavor for flavors in grant.flavors.values() for flavor in flavors.values()} | flavors_of(grant)


def helped_by(state: ClusterState, grant: AssumedAdmission) -> set[str]:
    """The flavors in which somebody may find room once a grant is gone: flavors may share nodes."""
    if any(part.source is not None and part.source.anti_affinity for part in grant.assignments):
        return flavors_of(grant) | state.flavors.keys()  # it kept others out of whole domains
    # The common case: no need to walk over the nodes.
    if len(state.flavors) <= 1:
        return flavors_of(grant)
    slices = [piece for part in grant.assignments for piece in part.slices]
    # Stored slots without nodes say nothing of which flavors share them, so all may be helped.
    if not all(piece.nodes for piece in slices):
        return flavors_of(grant) | state.flavors.keys()
    return flavors_of(grant).union(*(state.flavors_on(name) for piece in slices for name, _ in piece.nodes))

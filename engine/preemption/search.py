"""The best victims for one pod among the pods of many nodes, exactly, without trying every set.

After the paper on FlexTopo (Algorithms 1 and 2, Equation 1), for guaranteed, best-effort and topology-blind preemptors.

- *Sourcing* (`sourced`): of each block of each node the cheapest set of victims whose room, with what is free already,
  is large enough; the best first. Places come with bounds (`engine.preemption.roster`); the exact set of a place
  (`engine.preemption.cover`) is looked for only while its bound is not worse than what is known. Equal places are
  evaluated once.
- *Confirming*: a block that is large enough is necessary, not sufficient. The kubelet of the node
  (`engine.kubelet.admit`) is asked about the first candidate, with its victims gone; only where it refuses, or lands
  the pod worse than the block promised, are other sets of that node gone through, the cheapest first.

Order of `LeastPriority`: no victims at all, nodes whose inside is known, highest priority of a victim, sum of
priorities, number, landing, devices freed (what is freed beyond the need lies idle). Of `IncrementalMinimal`: the
first two the same, number of victims, S, devices freed. Ties go to the node that comes first by name.
"""

import heapq
from collections.abc import Iterator, Sequence
from itertools import count
from operator import itemgetter
from typing import Final, NamedTuple

import msgspec

from engine.kubelet.admission import AdmissionOutcome
from engine.kubelet.charge import charge
from engine.kubelet.machine import Layout, State, TopologyPolicy
from engine.kubelet.numa_policy import LENIENT
from engine.kubelet.rebuild import asked
from engine.kubelet.resource_requests import is_device
from engine.preemption.blocks import MachineNeeds, blocks_of, offers, wanted
from engine.preemption.cover import Item, by_cost
from engine.preemption.model import (
    NOBODY,
    Choice,
    ChoiceRules,
    Cost,
    Key,
    Landing,
    NodeRoom,
    Preemptor,
    TopologyQos,
    VictimPod,
)
from engine.preemption.one_room import OneRoom, RoomTable
from engine.preemption.roster import Bound, Roster, RosterPlace, RosterTable

MOST_ASKED: Final = 1 << 12  # sets of one node that its kubelet is asked about
MOST_SETS: Final = 1 << 15  # and that are gone through

Picked = tuple[int, ...]  # positions in the victims of a room


class Candidate(NamedTuple):
    """A set of victims that frees enough of a block; ``key`` as if the preemptor landed in that block."""

    key: Key
    rank: int
    place: RosterPlace
    picked: Picked
    wanted: MachineNeeds


def find(roster: Roster | OneRoom, preemptor: Preemptor, rules: ChoiceRules | None = None) -> Choice | None:
    """The best node and victims; None where no permitted set of victims makes room."""
    search = _Search(roster, preemptor, rules or ChoiceRules())
    return search.run()


def sourced(roster: Roster, preemptor: Preemptor, rules: ChoiceRules | None = None) -> Iterator[Candidate]:
    """The best candidate of each block that could take the preemptor, the best first."""
    return _Search(roster, preemptor, rules or ChoiceRules()).sourced()


class _Search(msgspec.Struct):
    roster: Roster | OneRoom
    preemptor: Preemptor
    rules: ChoiceRules
    asked: int = 0
    _walked: dict[str, "_Landed | None"] = msgspec.field(default_factory=dict)

    # -- sourcing ---------------------------------------------------------------------------------------------

    def sourced(self) -> Iterator[Candidate]:
        """See the function of that name."""
        ranks, number = self.roster.ranks(), count()
        heap: list[tuple[Key, int, int, Candidate | _Stream]] = []

        def follow(stream: _Stream) -> None:
            bound = stream.advance()
            if bound is not None:
                cost = Cost(bound.highest, bound.total, bound.size)
                key = self.rules.key(cost, self._promised(bound.place, stream.wanted), bound.freed)
                # The number is unique: without it entries of equal key would be compared by rooms, which have no order.
                heapq.heappush(heap, (key, ranks[bound.place.room.node], next(number), stream))

        for kind, tables in self.roster.tables():
            needs = wanted(kind, self.preemptor)
            for landing, table in tables.items():
                if needs is not None and landing in needs.blocks:
                    follow(_Stream(table, needs, self.preemptor.above, by_count=self.rules.by_count))
        while heap:
            bound, rank, _, one = heapq.heappop(heap)
            if isinstance(one, Candidate):
                yield one
                continue
            found = self._cheapest(one, rank)
            if found is not None:
                if found.key == bound and (not heap or (bound, rank) <= heap[0][:2]):
                    yield found  # what follows in its table is no better, or on a later node
                else:
                    heapq.heappush(heap, (found.key, rank, next(number), found))
            follow(one)

    def _cheapest(self, stream: "_Stream", rank: int) -> Candidate | None:
        """The cheapest set that covers what a place lacks."""
        (highest, _, least, _, place), needs = stream.bound, stream.wanted
        landing = self._promised(place, needs)
        # The place has room without victims, so no set is looked for.
        if not least:
            return Candidate(self.rules.key(Cost(), landing, 0), rank, place, (), needs)
        short: list[int] = []
        missing: list[int] = []
        free, by_count = place.free, self.rules.by_count
        for row, (_, amount) in zip(stream.rows, needs.needs, strict=True):
            if amount > free[row]:
                short.append(row)
                missing.append(amount - free[row])
        # By priority the least highest priority is known already, and no victim above it is of use.
        last = self.preemptor.above - 1 if by_count else highest
        eligible = [(at, offer) for at, offer in enumerate(place.offers) if offer.priority <= last]
        gains = itemgetter(*short) if len(short) > 1 else (lambda amounts: (amounts[short[0]],))
        items = [
            Item(gains(offer.gains), (1, offer.weight, offer.freed) if by_count else (offer.weight, 1, offer.freed))
            for _, offer in eligible
        ]
        found = self.roster.cheapest_cover(tuple(missing), tuple(items))
        if found is None:
            return None
        picked = tuple([eligible[position][0] for position in found])
        total = freed = 0
        most = NOBODY
        for at in picked:
            _, priority, weight, gives = place.offers[at]
            most, total, freed = max(most, priority), total + weight, freed + gives
        return Candidate(self.rules.key(Cost(most, total, len(picked)), landing, freed), rank, place, picked, needs)

    def _promised(self, place: RosterPlace, needs: MachineNeeds) -> Landing:
        """The best landing that a block allows; whoever asks for nothing inside is well off anywhere."""
        if self.preemptor.shape is None or self.preemptor.qos is TopologyQos.BLIND:
            return Landing.ACROSS
        return place.block.landing if needs.aligned or place.room.layout is None else Landing.ZONE

    def _key(self, room: NodeRoom, picked: Picked, landing: Landing) -> Key:
        victims = [room.victims[at] for at in picked]
        return self.rules.key(cost_of(victims), landing, freed_by(victims))

    # -- confirming -------------------------------------------------------------------------------------------

    def run(self) -> Choice | None:
        """See ``find``."""
        best: tuple[Key, int, _Landed] | None = None
        for candidate in self.sourced():
            if best is not None and (candidate.key, candidate.rank) >= best[:2]:
                break
            room = candidate.place.room
            landed = self._landed(
                room, candidate.picked, candidate.wanted, self._promised(candidate.place, candidate.wanted)
            )
            if landed is None or landed.key > candidate.key:
                # The best set of the node, by asking its kubelet about one set after the other, the cheapest first.
                if room.node not in self._walked:
                    self._walked[room.node] = _Walk(self, room, candidate.wanted).run()
                others = self._walked[room.node]
                landed = others if landed is None or (others is not None and others.key < landed.key) else landed
            if landed is not None and (best is None or (landed.key, candidate.rank) < best[:2]):
                best = landed.key, candidate.rank, landed
        if best is None:
            return None
        _, _, landed = best
        victims = tuple([landed.room.victims[at] for at in landed.picked])
        cost, admission = cost_of(victims), landed.admission
        return Choice(
            node=landed.room.node,
            victims=victims,
            cost=cost,
            landing=landed.landing,
            freed=freed_by(victims),
            score=self.rules.scoring.score(cost.total, landed.landing),
            devices=admission.devices if admission is not None else (),
            zones=admission.zones if admission is not None else 0,
        )

    def _landed(self, room: NodeRoom, picked: Picked, needs: MachineNeeds, promised: Landing) -> "_Landed | None":
        """What the kubelet says with these victims gone; None where it refuses."""
        # Nothing inside can refuse this pod, so what the block promises is what happens.
        if needs.asked is None or room.layout is None or room.state is None:
            return _Landed(self._key(room, picked, promised), room, picked, promised)
        self.asked += 1
        admission = asked(room.layout, state_without(room, picked), needs.asked)
        if not admission.admitted:
            return None
        landing = landing_of(room.layout, admission.zones)
        return _Landed(self._key(room, picked, landing), room, picked, landing, admission)


class _Stream:
    """The bounds of one table, one after the other."""

    bound: Bound

    def __init__(self, table: RosterTable | RoomTable, needs: MachineNeeds, above: int, *, by_count: bool) -> None:
        self.wanted = needs
        self.rows = table.rows_of(needs) or []
        self._bounds = table.bounds(needs, above, by_count=by_count)

    def advance(self) -> Bound | None:
        """The next bound; None where there is none."""
        found = next(self._bounds, None)
        if found is not None:
            self.bound = found
        return found


class _Landed(msgspec.Struct, frozen=True):
    """What the kubelet was seen to do."""

    key: Key
    room: NodeRoom
    picked: Picked
    landing: Landing
    admission: AdmissionOutcome | None = None


class _Walk(msgspec.Struct):
    """One node, set by set. Fails fast where the kubelet refuses with all gone (Algorithm 2)."""

    search: _Search
    room: NodeRoom
    wanted: MachineNeeds

    def run(self) -> _Landed | None:
        """The best; of equal cost the best landing. Past the limits victims are left alone one by one."""
        victims, useful = self.room.victims, self._useful()
        everyone = self._landing_of(tuple(useful))
        if everyone is None:
            shape, layout = self.wanted.asked, self.room.layout
            single = layout is not None and layout.kubelet.policy is TopologyPolicy.SINGLE
            # Other kubelets may choose other zones, against the pod's wish, once more of them are free; for these pods
            # more room never harms.
            if single or shape is None or shape.wish in LENIENT:
                return None
        # By priority first, as `by_cost` relies on it: a victim of a later position never makes a set cheaper.
        order = sorted(useful, key=lambda at: (victims[at].priority, self._class(at), at))
        classes = {one: number for number, one in enumerate(dict.fromkeys(self._class(at) for at in order))}
        same = [classes[self._class(at)] for at in order]
        rules, best = self.search.rules, self._landing_of(())

        def cost(chosen: Picked) -> tuple[int, ...]:
            found = cost_of([victims[order[at]] for at in chosen])
            return (found.size, found.total) if rules.by_count else found

        asked = self.search.asked
        for number, chosen in enumerate(by_cost(same, cost)):
            picked = tuple(sorted(order[at] for at in chosen))
            floor = rules.key(cost_of([victims[at] for at in picked]), Landing.ZONE, 0)
            # The sets to come cost as much or more, and none lands better than in one zone.
            if best is not None and best.key <= floor:
                return best
            if number >= MOST_SETS or self.search.asked - asked >= MOST_ASKED:
                break
            found = self._landing_of(picked) if self._has_amounts(picked) else None
            if found is not None and (best is None or found.key < best.key):
                best = found
        else:
            return best
        if best is not None or everyone is None:
            return best
        # All gone, and then everyone left alone whom it works without, the most important first.
        best = everyone
        for at in reversed(order):
            best = self._landing_of(tuple([other for other in best.picked if other != at])) or best
        return best

    def _class(self, at: int) -> tuple[object, ...]:
        """Equal for victims that give back the same, zone by zone."""
        victim = self.room.victims[at]
        uses = victim.placement.zones if victim.placement is not None else ()
        held = tuple(sorted((use.zone, *sorted(use.amounts.items())) for use in uses))
        # Without links one device is as good as another, so their names must not split a class.
        linked = self.room.layout is not None and any(self.room.layout.links)
        named = tuple(sorted(name for use in uses for names in use.devices.values() for name in names if linked))
        return victim.priority, held, tuple(sorted(victim.requests.items())), named

    def _useful(self) -> list[int]:
        """Victims that give back anything that is wanted."""
        rows = tuple([row for row, _ in self.wanted.needs])
        whole = blocks_of(self.room.layout)[-1:]
        return [
            at
            for at, victim in enumerate(self.room.victims)
            if victim.priority < self.search.preemptor.above and any(offers(self.room, victim, rows, whole)[0].gains)
        ]

    def _has_amounts(self, picked: Picked) -> bool:
        """Whether the node has the amounts with these gone."""
        free = dict(self.room.free)
        for at in picked:
            for resource, amount in self.room.victims[at].requests.items():
                free[resource] = free.get(resource, 0) + amount
        return all(free.get(name, 0) >= amount for (inside, name), amount in self.wanted.needs if not inside)

    def _landing_of(self, picked: Picked) -> _Landed | None:
        if not self._has_amounts(picked):
            return None
        return self.search._landed(self.room, picked, self.wanted, Landing.UNKNOWN)  # noqa: SLF001  (its own part)


def cost_of(victims: Sequence[VictimPod]) -> Cost:
    """(highest priority, sum, number)."""
    if not victims:
        return Cost()
    return Cost(max([one.priority for one in victims]), sum([one.weight for one in victims]), len(victims))


def freed_by(victims: Sequence[VictimPod]) -> int:
    """Devices that they give up."""
    return sum([amount for one in victims for resource, amount in one.requests.items() if is_device(resource)])


def landing_of(layout: Layout, zones: int) -> Landing:
    """How wide a landing on these zones is; one that takes nothing of zones is as good as can be."""
    if zones.bit_count() <= 1:
        return Landing.ZONE
    sockets = {zone.socket for at, zone in enumerate(layout.zones) if zones >> at & 1}
    return Landing.SOCKET if len(sockets) == 1 else Landing.ACROSS


def state_without(room: NodeRoom, picked: Picked) -> State:
    """The inside of a node with some of its victims gone."""
    layout, state = room.layout, room.state
    assert layout is not None  # noqa: S101  (only asked for machines)
    assert state is not None  # noqa: S101
    for at in picked:
        placement = room.victims[at].placement
        if placement is not None:
            state = charge(layout, state, placement, -1, room.device_ids)
    return state

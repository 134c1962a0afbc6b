"""Moves of jobs that run (docs/moves.md), in simulated time: who is moved, and where to, as the queue core decides it.

Jobs come together that prefer a level and are spread, and make room for one that waits long; those whose pods keep
together in slices or groups go all at once.
Nobody is moved whose pods hold devices of resource claims, and none that says so.
"""

from collections.abc import Callable, Iterable, Iterator

from engine.cluster.assignment import Assignment
from engine.cluster.state import ClusterState
from engine.model import PodSet, Policy
from engine.placement.relocate import gather, gather_all, spread
from engine.results import Refusal
from queueing.cycle.elastic import sized
from queueing.making_room import Going, RoomTurns, lift, make_room
from queueing.moves import LOOK, LOOKED_AT, SEARCHES, MoveLog, MoveRules, MoveTurns, instead, relocated, why_not_moved
from queueing.queues.entry import AssumedAdmission, Entry
from queueing.queues.queues import Queues
from simulator.model import SimulatedJob


class Mover:
    """See the module. Times are seconds since the simulation began."""

    def __init__(self, rules: MoveRules, state: ClusterState, queues: Queues) -> None:
        self._state = state
        self._queues = queues
        self._rules = rules
        self._log = MoveLog(rules)
        self._turns = MoveTurns(self._log)
        self._rooms = RoomTurns(rules)
        self._running: dict[str, float] = {}  # since when, of those that may be moved
        self._spread: dict[
            str, tuple[SimulatedJob, float]
        ] = {}  # those that could come together, and when they were admitted
        self._more = False  # the last look was cut short

    def record_placement(self, job: SimulatedJob, since: float) -> None:
        """A job's pods lie where they lie now; it was admitted ``since``."""
        # What was known of where it lay is void, its turn among the ones that found no room included.
        self.forget_moves(job.key)
        if not job.stays:
            self._running[job.key] = since
        if not job.stays and _is_spread(self._state, self._queues.entries[job.key]):
            self._spread[job.key] = job, since

    def forget_moves(self, key: str) -> None:
        """A job holds nothing any more."""
        self._spread.pop(key, None)
        self._running.pop(key, None)
        self._turns.forget_turn(key)

    def next_moves(self, now: float, steady: Callable[[str], bool]) -> Iterator[tuple[str, AssumedAdmission]]:
        """Who is moved now, with what each holds instead; that is to be held before the next one is asked for.

        ``steady``: whether all pods of a job run.
        """
        self._more = False
        yield from self._make_room(now, steady)
        searches, wanting = 0, dict[str, list[str]]()
        for key, (job, since) in self._spread.items() if self._log.moves_left(now) else ():
            if self._log.rested(key, since, now) and not self._turns.unchanged(self._queues, key, now):
                wanting.setdefault(job.namespace, []).append(key)
        for key in self._turns.in_order(wanting, now)[:LOOKED_AT]:
            if not self._log.moves_left(now):
                return
            # The rest waits for the next look: the controller has the same bound on the searches of a cycle.
            if searches >= SEARCHES:
                self._more = True
                return
            if why_not_moved(self._queues, key) or not steady(key):
                self._turns.record_vain_search(key, now)
                continue
            searches, free = searches + 1, self._queues.freed_so_far(key)
            found = _move_together(self._state, self._queues.entries[key])
            if found is None:
                self._turns.record_vain_search(key, now, free)
                continue
            self._log.begin_move(key, now)
            self._turns.forget_turn(key)
            yield key, found

    def _make_room(self, now: float, steady: Callable[[str], bool]) -> Iterator[tuple[str, AssumedAdmission]]:
        """Those who go for one who waits long."""

        def asks(key: str) -> Going | None:
            since = self._running.get(key)
            if (
                since is None
                or not self._log.rested(key, since, now)
                or why_not_moved(self._queues, key)
                or not steady(key)
            ):
                return None
            entry, held = self._queues.entries[key], self._state.assignments(key)
            pod_sets = tuple([sized(entry, part.levels, name, part.count) for name, part in held.items()])
            # A claim keeps its devices on the node that they are on, and its pods cannot go elsewhere with it.
            if any(pod_set.devices for pod_set in pod_sets):
                return None
            return Going(pod_sets, tuple(entry.pods), as_one=_as_one(entry.workload.pod_sets))

        for claim in self._rooms.due_claims(self._queues, now):
            if most := self._log.moves_left(now):
                found = make_room(
                    self._state,
                    self._queues,
                    claim,
                    most,
                    asks=asks,
                    allows=lambda _key, _grant: True,
                    priority=self._rules.room_priority,
                )
                self._rooms.record_search(self._queues, claim, now)
                if found:
                    lift(self._state, claim)
                for key in found:
                    # Counted before it is handed out: the next question
                    # asks the log how many moves are left in this hour.
                    self._log.begin_move(key, now)
                    self._turns.forget_turn(key)
                yield from found.items()

    def next_move_time(self, now: float) -> float | None:
        """When somebody may be moved, if nothing happens until then."""
        rest, resting, spread_ones = self._rules.rest, self._log.resting, self._spread.items()
        times = [max(since + rest, now + resting(key, now)) for key, (_, since) in spread_ones]
        if self._spread and not self._log.moves_left(now):
            times.append(self._log.free_at(now))
        if (room := self._rooms.next_search_time(self._queues, now)) is not None:
            times.append(room if self._log.moves_left(room) else self._log.free_at(room))
        if self._more:
            times.append(now + LOOK)
        return min((at for at in times if at > now), default=None)


def _as_one(pod_sets: Iterable[PodSet]) -> bool:
    """Whether pods have to keep together in slices, or with those of other pod sets."""
    return any(pod_set.topology.slices or pod_set.group for pod_set in pod_sets)


def _is_spread(state: ClusterState, entry: Entry) -> bool:
    """Whether some pod set prefers a level and uses several domains of it."""
    for name, held in state.assignments(entry.workload.key).items():
        pod_set = sized(entry, held.levels, name, held.count)
        wished = pod_set.topology.policy is Policy.PREFERRED and pod_set.topology.level in held.levels
        if wished and not pod_set.devices and spread(held, pod_set.topology.level)[-1] > 1:
            return True
    return False


def _move_together(state: ClusterState, entry: Entry) -> AssumedAdmission | None:
    """Fewer domains for pod sets that prefer a level and are spread; None where there is no room."""
    if entry.grant is None:
        return None
    key = entry.workload.base
    if _as_one(entry.workload.pod_sets):
        held = state.assignments(key)
        every = gather_all(state, key, [sized(entry, part.levels, name, part.count) for name, part in held.items()])
        return instead(entry.grant, every) if every is not None else None

    def search(name: str, held: Assignment) -> Assignment | None:
        return gather(state, key, sized(entry, held.levels, name, held.count))

    names = [pod_set.name for pod_set in entry.workload.pod_sets if not pod_set.devices]
    found = relocated(state, key, entry.grant, names, search)
    return None if isinstance(found, Refusal) else found

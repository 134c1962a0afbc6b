"""Moves of workloads that run (`queueing.moves`): who is looked at, what is begun, and what comes back.

A move is stored like any change of an admission, before its first pod goes: from then on the new places are the
workload's, and the old ones are taken by the pods that are still there. `ungater.reconcile.moves` has those evicted.
Where a budget refuses for too long after all, the pods that did not go get their old places back (`put_back`). Where
the workload would be spread wider then than it was, the budget is asked on, until the move is `GIVEN_UP`. So is one
then whose successors are not ready, or whose pods take long to end: nobody holds places for two by any of these.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import msgspec
import structlog

from clock import Clock
from engine.placement.relocate import spread
from engine.reasons import Reason
from engine.results import Refusal
from kube.events import EventRecorder
from kube.objects import Condition, Pod, condition
from queueing.making_room import Going, RoomTurns, lift, make_room
from queueing.moves import LOOK, LOOKED_AT, SEARCHES, MoveLog, MoveRules, MoveTurns
from queueing.queues.claim import BackfillReservation
from queueing.queues.entry import AssumedAdmission
from ungater.cache.cache import Cache
from ungater.metrics import ControllerMetrics
from ungater.model import conditions, move_request
from ungater.model.conditions import WantedCondition, moment
from ungater.model.move_request import MoveRequest
from ungater.model.workload_entry import WorkloadEntry
from ungater.reconcile.moves import as_one, movable
from ungater.scheduling import move_messages, old_places, relocation
from ungater.writers.events import emit

GIVEN_UP = 600.0  # seconds after a move began until it ends with those that did not go, however the pods are then
SPARE = 60.0  # seconds in which a pod that ends by then is not given up
FORBIDDEN = 60.0  # seconds until one is looked at again whose pods might not go, though nothing was freed

log = structlog.get_logger()


class News(msgspec.Struct, frozen=True):
    """What is stored with other slots, and what is done once it is."""

    conditions: tuple[WantedCondition, ...] = ()
    stored: Callable[[], None] | None = None


NO_NEWS = News()
ENDS = frozenset({Reason.MOVED, Reason.EVICTION_BLOCKED, Reason.PODS_NOT_READY, Reason.EVICTED})  # of a move


class Move(msgspec.Struct, frozen=True):
    """What is to be done for one workload, and why, for a person."""

    grant: AssumedAdmission
    reason: Reason
    message: str


class Moves:
    """See the module. ``replace`` holds and stores other slots of a workload, ``say`` stores conditions."""

    def __init__(
        self,
        cache: Cache,
        rules: MoveRules,
        replace: Callable[[WorkloadEntry, AssumedAdmission, News], None],
        say: Callable[[WorkloadEntry, tuple[WantedCondition, ...]], None],
        *,
        metrics: ControllerMetrics,
        recorder: EventRecorder,
        clock: Clock,
    ) -> None:
        self._cache = cache
        self._rules = rules
        self._replace = replace
        self._say = say
        self._metrics = metrics
        self._recorder = recorder
        self._clock = clock
        self._log = MoveLog(rules)
        self._turns = MoveTurns(self._log)
        self._rooms = RoomTurns(rules)
        self._before: dict[str, AssumedAdmission] = {}  # by workload that is moved: what it held
        self._next = 0.0
        self._remembered = False

    def start_moves(self) -> None:
        """Begin what may begin now."""
        now = self._clock.now()
        if now < self._next:
            return
        self._next = now + LOOK
        self._remember(now)
        self._answer_requests(now)
        for claim in self._rooms.due_claims(self._cache.queues, now):
            with self._cache.guard("workload", claim.key):
                # Asked for each of them: the one before may have used up what is left of this hour.
                if most := self._log.moves_left(now):
                    self._make_room(claim, most, now)
        if not self._log.moves_left(now):
            return
        searches = 0
        for entry in self._in_turn(now)[:LOOKED_AT]:
            if searches >= SEARCHES or not self._log.moves_left(now):
                return
            with self._cache.guard("workload", entry.key):
                searches += self._try(entry, now)

    def _make_room(self, claim: BackfillReservation, most: int, now: float) -> None:
        """Those go for one who waits long that are small beside it, and have another place."""
        cache = self._cache

        def asks(key: str) -> Going | None:
            entry = cache.entries.of_workload(key)
            return relocation.going(cache, entry) if entry is not None and self._has_rested(entry, now) else None

        def allows(key: str, grant: AssumedAdmission) -> bool:
            entry = cache.entries.of_workload(key)
            return entry is not None and not relocation.kept(cache, entry, grant)

        self._rooms.record_search(cache.queues, claim, now)
        found = make_room(
            cache.state, cache.queues, claim, most, asks=asks, allows=allows, priority=self._rules.room_priority
        )
        if found:
            lift(cache.state, claim)
        for key, grant in found.items():
            entry = cache.entries.of_workload(key)
            if entry is not None:
                whom = cache.queues.title_of(claim.key)
                text = move_messages.makes_room(whom)
                self._begin(entry, Move(grant, Reason.ROOM_MADE, text), now)

    def _answer_requests(self, now: float) -> None:
        """What administrators ask for (`ungater.model.move_request`) is begun, or refused with a reason, at once."""
        for entry in self._cache.entries.values():
            observed = entry.observed
            if observed is None or not observed.move_to or entry.writes.busy:
                continue
            with self._cache.guard("workload", entry.key):
                request, said = move_request.parse(observed.move_to), _move_condition(entry)
                told = (said, condition(observed.conditions, conditions.MOVE_REFUSED))
                # The answer names the request, so that each is answered once, over a restart too.
                if request is None or request.until < now or any(one and request.mark in one.message for one in told):
                    continue
                if said is not None and said.status == "True":
                    continue  # what is said of the move under way stays until it is over: its pods go by that
                move = self._asked_for(entry, request, now)
                if isinstance(move, Move):
                    self._begin(entry, move, now)
                else:
                    self._say(entry, (move,))

    def _asked_for(self, entry: WorkloadEntry, request: MoveRequest, now: float) -> Move | WantedCondition:
        """The move, or what is said instead."""
        cache, reason = self._cache, Reason.PENDING
        why = relocation.why_not_relocated(cache, entry)
        if not self._log.moves_left(now, asked=True):
            reason, why = Reason.MOVES_USED_UP, move_messages.used_up(self._rules.per_hour)
        found = None if why else relocation.moved_to(cache, entry, request.nodes)
        if isinstance(found, Refusal):
            reason, why = found.reason, found.message
        elif found is not None and (why := relocation.kept(cache, entry, found)):
            reason = Reason.PENDING
        if not why and isinstance(found, AssumedAdmission):
            return Move(found, Reason.DEFRAGMENTED, move_messages.asked_for(request.mark))
        if not why:
            reason, why = Reason.NOTHING_TO_MOVE, "it is there already"
        return WantedCondition(conditions.MOVE_REFUSED, True, reason, move_messages.not_moved(request.mark, why))

    def _remember(self, now: float) -> None:
        """Take in what Workloads tell of moves before this process began, once; forget who is gone."""
        known = self._cache.queues.entries
        self._turns.keep_known(known)
        self._before = {key: held for key, held in self._before.items() if key in known}
        if self._remembered:
            return
        self._remembered = True
        for entry in self._cache.entries.values():
            said = _move_condition(entry)
            # A move began, unless the condition is of a version that told of refusals there.
            began = said is not None and (said.status == "True" or said.reason in ENDS)
            at = moment(said.last_transition_time) if said is not None and began else None
            if at is not None:
                # The clock of whoever led before may be ahead of this one.
                self._log.record_stored_move(entry.key, min(at, now), now)

    def _in_turn(self, now: float) -> list[WorkloadEntry]:
        """Who wants to be moved, in order (`MoveTurns`)."""
        mine: dict[str, dict[str, WorkloadEntry]] = {}
        for entry in self._cache.entries.values():
            with self._cache.guard("workload", entry.key):
                if self._wants(entry, now) and not self._turns.unchanged(self._cache.queues, entry.key, now):
                    mine.setdefault(entry.job.namespace, {})[entry.key] = entry
        found = {key: entry for entries in mine.values() for key, entry in entries.items()}
        return [found[key] for key in self._turns.in_order(mine, now)]

    def _wants(self, entry: WorkloadEntry, now: float) -> bool:
        if not movable(entry):
            return False
        misaligned = self._rules.misaligned and entry.mismatches and self._cache.unkept(entry)
        # The cheap questions, which end it for most: all workloads are asked.
        if not misaligned and not (self._rules.together and relocation.is_spread(entry)):
            return False
        return self._has_rested(entry, now)

    def _has_rested(self, entry: WorkloadEntry, now: float) -> bool:
        observed = entry.observed
        since = conditions.true_since(observed.conditions, conditions.QUOTA_RESERVED) if observed is not None else None
        return since is not None and self._log.rested(entry.key, since, now)

    def _try(self, entry: WorkloadEntry, now: float) -> bool:
        """Begin a move of one that wants it; True where places were searched for."""
        if relocation.why_not_relocated(self._cache, entry):
            self._turns.record_vain_search(entry.key, now)
            return False
        free, until = self._cache.queues.freed_so_far(entry.key), 0.0
        # Made one at a time: the second search is saved where the first move begins.
        for move in self._found(entry):
            if not (why := relocation.kept(self._cache, entry, move.grant)):
                self._begin(entry, move, now)
                return True
            until = now + FORBIDDEN
            log.debug("not moved", workload=entry.key, reason=str(move.reason), message=why)
        self._turns.record_vain_search(entry.key, now, free, until)
        return True

    def _found(self, entry: WorkloadEntry) -> Iterator[Move]:
        """The moves that would help it, the more urgent first."""
        cache = self._cache
        unkept = cache.unkept(entry) if self._rules.misaligned else {}
        if unkept and (grant := relocation.realigned(cache, entry, unkept)) is not None:
            texts = [f"pod {entry.pods[uid].metadata.name} {why}" for uid, why in sorted(unkept.items())]
            yield Move(grant, Reason.REALIGNED, move_messages.realigned(texts))
        if self._rules.together and (grant := relocation.gather_pod_sets(cache, entry)) is not None:
            yield Move(grant, Reason.TOGETHER, _fewer(entry, grant))

    def _begin(self, entry: WorkloadEntry, move: Move, now: float) -> None:
        self._log.begin_move(entry.key, now, asked=move.reason == Reason.DEFRAGMENTED)
        self._turns.forget_turn(entry.key)
        if entry.grant is not None:
            # Before `_replace`, after which the entry holds the new places.
            self._before[entry.key] = entry.grant
        wanted = (WantedCondition(conditions.MOVING, True, move.reason, move.message),)
        told = partial(self._emit_move, entry, move.reason, move.message, "begun")
        self._replace(entry, move.grant, News(wanted, told))

    def put_back(self, entry: WorkloadEntry, pods: Iterable[Pod], why: str, ending: Iterable[Pod] = ()) -> bool:
        """These pods of one that is moved do not go: they get the places back where they are. False: not now.

        Until the move is `GIVEN_UP` it may be spread no wider then than it was (after a restart nobody knows where
        that was: than it is to be), and who goes as a whole comes back as a whole. After that see `give_up_move`.
        """
        pods, said, late = list(pods), _move_condition(entry), self._seconds_left(entry) <= 0
        # Before the time is over, the ones that end already are taken to go.
        grant = old_places.restored(self._cache, entry, [*pods, *(self._lingering(ending) if late else ())])
        if grant is None or entry.grant is None or said is None:
            return False
        if not late:
            held = entry.grant.assignments
            if as_one(entry) and len(pods) < sum(part.count for part in held):
                return False  # a part of it is elsewhere
            before = self._before.get(entry.key, entry.grant).assignments
            if old_places.is_wider_than_before(entry, (before, held), grant.assignments):
                return False
        self._end_move(entry, said, grant, Reason.EVICTION_BLOCKED, why)
        return True

    def give_up_move(self, entry: WorkloadEntry, pods: Iterable[Pod], why: str, ending: Iterable[Pod] = ()) -> float:
        """Ten minutes after it began it holds no places for two: seconds until this is to be asked again; 0: over.

        It holds the places then where pods of it are, and for those that are to come what is left of the new ones.
        ``pods``: of old places, not asked to go; ``ending``: asked, of which those stay too that take long. Nothing
        where one of them gets no place: then as many pods are in the new ones as there are, and none is kept empty.
        """
        if (left := self._seconds_left(entry)) > 0:
            return left
        ending, said = list(ending), _move_condition(entry)
        stay = [*pods, *self._lingering(ending)]
        grant = old_places.restored(self._cache, entry, stay) if stay else None
        if grant is None or said is None:
            return SPARE if ending else 0.0
        self._end_move(entry, said, grant, Reason.PODS_NOT_READY, why)
        return 0.0

    def _end_move(
        self, entry: WorkloadEntry, said: Condition, grant: AssumedAdmission, reason: Reason, why: str
    ) -> None:
        """What did not go stays where it is, and the workload is left alone from now on, as after a move."""
        self._log.end_move(entry.key, self._clock.now())
        mark = move_request.mark_in(said.message)
        text = move_messages.given_up(mark, why)
        wanted = (WantedCondition(conditions.MOVING, False, reason, text),)
        outcome = "blocked" if reason == Reason.EVICTION_BLOCKED else "late"
        self._replace(entry, grant, News(wanted, partial(self._emit_move, entry, reason, text, outcome)))

    def _lingering(self, ending: Iterable[Pod]) -> list[Pod]:
        """Those that end, and not soon: whoever deletes a pod says how long that may take."""
        soon = self._clock.now() + SPARE
        return [pod for pod in ending if (moment(pod.metadata.deletion_timestamp) or 0.0) > soon]

    def _seconds_left(self, entry: WorkloadEntry) -> float:
        """Seconds until its move is `GIVEN_UP`; it began when its Workload tells, or when this process knows.

        A tenant may have deleted the Workload since: the one that is written again tells of a later moment.
        """
        now, said = self._clock.now(), _move_condition(entry)
        told = moment(said.last_transition_time) if said is not None else None
        known = (at for at in (told, self._log.began(entry.key)) if at is not None)
        return min(known, default=now) + GIVEN_UP - now

    def _emit_move(self, entry: WorkloadEntry, reason: Reason, message: str, outcome: str) -> None:
        self._metrics.moves.labels(str(reason), outcome).inc()
        emit(self._recorder, entry, "Normal", reason, "Move", message=message)
        log.info("moves" if outcome == "begun" else "moves no more", workload=entry.key, message=message)


def _move_condition(entry: WorkloadEntry) -> Condition | None:
    """What its Workload tells of its last move."""
    return condition(entry.observed.conditions, conditions.MOVING) if entry.observed is not None else None


def _fewer(entry: WorkloadEntry, grant: AssumedAdmission) -> str:
    """How many pods go, and what for, for a person."""
    gone = sum(sum(slots.values()) for slots in relocation.leaving(entry, grant).values())
    total = sum(part.count for part in grant.assignments)
    before = {part.pod_set: part for part in entry.grant.assignments} if entry.grant is not None else {}
    gains = []
    for owned in entry.job.pod_sets:
        part, old = next((one for one in grant.assignments if one.pod_set == owned.name), None), before.get(owned.name)
        if part is None or old is None or part == old or owned.request is None:
            continue
        level = old_places.level(owned, part)
        gains += [
            move_messages.gain(now, then, part.levels[depth])
            for depth, (then, now) in enumerate(zip(spread(old, level), spread(part, level), strict=True))
            if now < then
        ]
    return move_messages.less_spread_message(gone, total, gains)

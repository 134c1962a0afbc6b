"""The simulation: events in order of time, one admission cycle of the queue core after each moment.

A recipe
1. What happens at one moment: jobs end, victims are gone, refused pods are made again, jobs arrive (in this order).
2. Cycles, as the controller runs them, until the queue core has nobody left to look at. What they decide happens at
   once: who is admitted starts (see `simulator.world.site`), victims are gone after their grace period.
3. One row of the series.

Rules
- A job that starts has all its pods on nodes, or it waits with some of them until kubelets take the rest. One that
  loses slices runs on with the other pods, and gets more of them as it grows.
- A job that the controller would give nothing, whatever room there is, waits for ever: nobody changes it here.
- Every job ends exactly once, and nothing that a job held is left then.
- Equal input gives equal results: events at one moment are in the order of their kind and of the jobs' names.
"""

import heapq
from collections.abc import Callable, Collection, Iterable
from enum import IntEnum
from math import inf
from typing import Final

from msgspec.structs import replace

from engine.reservation_key import workload_of
from queueing.cycle import elastic
from queueing.cycle.cycle import Decisions, cycle
from queueing.moves import MoveRules
from queueing.queues.entry import AssumedAdmission
from queueing.queues.eviction_units import Path
from simulator.entering import queues_of, waiting
from simulator.model import NAMESPACE, Placing, SchedulingPolicy, SimulatedCluster, SimulatedJob, SimulatorOptions
from simulator.moves import Mover
from simulator.results import End, JobOutcome, Result
from simulator.tally import JobTally
from simulator.tracks import Track
from simulator.world.site import Site, Where

# As the Job controller of Kubernetes 1.37 makes failed pods again.
FIRST_RETRY: Final = 10.0
LAST_RETRY: Final = 600.0
LOOKS: Final = 64  # of one cycle
IDLE_LOOKS: Final = 3  # in a row that nothing came of, when time alone is left: then nothing will


class EventKind(IntEnum):
    """What happens; at one moment the lower one first."""

    END = 0
    GONE = 1  # the pods of a victim
    LOST = 2  # the pods in some domains of one that keeps the others
    MOVED = 3  # the pods of one that go elsewhere
    RETRY = 4  # pods that kubelets refused are made again
    ARRIVE = 5
    LOOK = 6  # time alone may change something


Event = tuple[float, EventKind, str, int]  # (time, kind, job, which of its starts; of an end, of its turns)


class Simulation:
    """See the module. ``run`` once."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        jobs: Iterable[SimulatedJob],
        policy: SchedulingPolicy,
        options: SimulatorOptions | None = None,
    ) -> None:
        self.policy = policy
        self.options = options or SimulatorOptions()
        self.site = Site(cluster, policy, self.options.seed)
        self.tracks = {job.key: Track(job, job.duration) for job in jobs}
        self.queues = queues_of(cluster, policy, self.options, [track.job for track in self.tracks.values()])
        self.tally = JobTally(self.site.state)
        rules = MoveRules(per_hour=self.options.moves_per_hour, room_priority=self.options.make_room_max_priority)
        self.mover = Mover(rules, self.site.state, self.queues) if policy.moving else None
        self.now = 0.0
        self.done = 0
        self.cycles = 0
        self._looks: set[float] = set()
        self._idle = 0
        self._real = len(self.tracks)  # events that change something themselves
        self._events: list[Event] = [(t.job.arrival, EventKind.ARRIVE, key, 0) for key, t in self.tracks.items()]
        heapq.heapify(self._events)

    def run(
        self,
        until: float | None = None,
        watch: Callable[["Simulation"], object] | None = None,
        *,
        picture: float | None = None,
    ) -> Result:
        """All of it, or up to a time. ``watch`` is called after each moment.

        ``picture``: when to note who holds which devices; None: in the middle of the window.
        """
        handlers = {
            EventKind.END: self._end_job,
            EventKind.GONE: self._gone,
            EventKind.LOST: self._replace_lost,
            EventKind.MOVED: self._restart_pods,
            EventKind.RETRY: self._retry,
            EventKind.ARRIVE: self._arrive,
        }
        window = max((track.job.arrival for track in self.tracks.values()), default=0.0)
        window = window if until is None else min(window, until)
        pictured, instances = (window / 2 if picture is None else picture), None
        while self._events and self._idle < IDLE_LOOKS and (until is None or self._events[0][0] <= until):
            self.now = self._events[0][0]
            if instances is None and self.now > pictured:
                instances = self.tally.instances(self.site.kubelets)
            while self._events and self._events[0][0] == self.now:
                _, kind, key, number = heapq.heappop(self._events)
                # Taken off before stale events are passed by: each one was counted when it was pushed.
                self._real -= kind is not EventKind.LOOK
                # A look has no handler: it only makes a moment, and so a cycle.
                handle, track = handlers.get(kind), self.tracks.get(key)
                if handle is None or track is None:
                    continue
                # An event of an earlier start, or an end foreseen at an
                # earlier pace, is void: the job was evicted or changed since.
                if kind is EventKind.ARRIVE or number == (track.turn if kind is EventKind.END else track.starts):
                    handle(track)
            # Looks that time asks for could go on for ever; while real events are to come, something may still change.
            self._idle = 0 if self._decide() or self._real else self._idle + 1
            self.tally.row(self.now)
            if watch is not None:
                watch(self)
        outcomes = tuple(self._outcome(track) for track in self.tracks.values())
        if not window:
            # All jobs arrived at 0: the window lasts until the last of those that ran ended.
            started = [one for one in outcomes if one.started is not None]
            ended = [one.finished for one in started if one.finished is not None]
            window = until if until is not None and len(ended) < len(started) else max(ended, default=0.0)
        made = self.tally.result(self.policy, outcomes, window)
        return replace(made, cycles=self.cycles, pictured=pictured, instances=instances or ())

    # -- what happens -----------------------------------------------------------------------------------------

    def _arrive(self, track: Track) -> None:
        self.tally.waits(track.job, 1)
        if track.job.hindered:
            track.record_waiting(track.job.hindered)
            return
        self.queues.submit(waiting(track.job, self.policy), self.now)

    def _end_job(self, track: Track) -> None:
        """Its work is done: its pods end, all at once or one after the other."""
        where = track.where
        # While pods are left the job goes on: the end comes again for the next of them.
        if self.options.apart and where is not None and len(where.pods) > 1 and self._end_one(track, where):
            self._schedule_event(self.options.apart, EventKind.END, track)
            return
        self._leave_nodes(track)
        track.finish(self.now)
        self.done += 1
        self.queues.pass_time(self.now)
        self.queues.remove_workload(self.site.state, track.job.key)

    def _end_one(self, track: Track, where: Where) -> bool:
        """The last of its pods ends, and none is made in its place; False where its grant cannot be less."""
        key, pod_set = track.job.key, where.pods[-1][1].name
        wanted = sum(each.count for each in track.job.pod_sets if each.name == pod_set)
        left = sum(each.name == pod_set for _, each, _ in where.pods) - 1
        if not isinstance(
            elastic.reclaim(self.site.state, self.queues, key, {pod_set: wanted - left}), elastic.Resized
        ):
            return False
        gone = where.end_one(self.site.state.assignments(key).values(), pod_set)
        self.tally.count_nodes_taken(gone, -1)
        self.site.clear(gone, self.queues)
        self.queues.leaving.pod_ended(key)
        return True

    def _gone(self, track: Track) -> None:
        self._leave_nodes(track)
        self.tally.waits(track.job, 1)
        self.queues.release_and_requeue(self.site.state, track.job.key, self.now)

    def _retry(self, track: Track) -> None:
        """Pods that were refused are there again: their kubelets look at them once more."""
        if track.where is None or track.leaving:
            return
        self._offer(track, track.where)

    def _leave_nodes(self, track: Track) -> None:
        """Its pods are gone."""
        if self.mover is not None:
            self.mover.forget_moves(track.job.key)
        if track.where is not None:
            self.tally.count_nodes_taken(track.where, -1)
            # Before `leave_nodes` says that the job does not run: only a running one is taken off the count.
            self.tally.count_running(-int(track.running))
            self.site.clear(track.where, self.queues)
        track.leave_nodes()

    # -- what is decided --------------------------------------------------------------------------------------

    def _decide(self) -> bool:
        """Run cycles until nobody is left to look at, then moves; True where anybody got something, or is moved."""
        anything = False
        limit = LOOKS if self.policy.placing is Placing.TOPOLOGY else 1  # a scheduler takes one after the other
        while True:
            made = cycle(self.site.state, self.queues, self.now, limit)
            self.cycles += 1
            self._carry_out(made)
            anything = anything or bool(made.admitted or made.preempting or made.evict)
            helped = any(self.site.gives_devices(self.tracks[one.key].job) for one in made.admitted)
            if not (made.more or helped):
                break
        # Nobody is to be looked at now: who runs may be moved.
        for key, grant in self.mover.next_moves(self.now, self._is_steady) if self.mover is not None else ():
            anything = True
            # The next move is sought only after this one is held:
            # `next_moves` is a generator and reads the state as it goes.
            track, left = self.tracks[key], elastic.hold_elsewhere(self.site.state, self.queues, key, grant)
            if track.where is not None:
                self.site.send_off(track.where, left, self.queues)
            self.tally.count_running(-int(track.running))
            track.move(self.now, self.options.checkpoint)
            self._schedule_event(self.options.grace, EventKind.MOVED, track)
        for after in (made.next_time, self.mover.next_move_time(self.now) if self.mover is not None else None):
            # Each cycle names the same next time again: one event for it is enough.
            if after is not None and self.now < after < inf and after not in self._looks:
                self._looks.add(after)
                heapq.heappush(self._events, (after, EventKind.LOOK, "", 0))
        return anything

    def _is_steady(self, key: str) -> bool:
        track = self.tracks[key]
        return track.running and track.where is not None and not track.where.going

    def _restart_pods(self, track: Track) -> None:
        """The pods of a job that go elsewhere are gone from where they were: they are made again there."""
        where, grant = track.where, self.queues.entries[track.job.key].grant
        if where is None or grant is None:
            return
        gone = where.parted()
        self.tally.count_nodes_taken(gone, -1)
        self.site.clear(gone, self.queues)
        self.queues.pending.room_freed(
            dict.fromkeys(flavor for _, _, node in gone.pods for flavor in self.site.flavors_on(node))
        )
        self._grow(track, grant)
        if self.mover is not None:
            self.mover.record_placement(track.job, track.admitted)

    def _carry_out(self, made: Decisions) -> None:
        for admitted in made.admitted:
            self._start(self.tracks[admitted.key], admitted.grant)
        # Growth before victims, as the controller carries it out: a job may grow and lose the same slices in one cycle.
        for resized in made.resized:
            self._grow(self.tracks[resized.key], resized.grant)
        for planned in made.preempting:
            for victim in planned.victims:
                if victim.domains:
                    self._take_slices(self.tracks[workload_of(victim.key)], victim.domains)
                else:
                    self._evict(self.tracks[workload_of(victim.key)])
        for drained in made.evict:
            self._evict(self.tracks[drained.key])
        for waits in (*made.waiting, *made.given_up):
            track = self.tracks[waits.key]
            track.record_waiting(self.site.uncounted(track.job) or f"{waits.reason}: {waits.message}")

    def _start(self, track: Track, grant: AssumedAdmission) -> None:
        job = track.job
        where = self.site.put(job, grant, self.queues)
        self.tally.waits(job, -1)
        self.tally.count_nodes_taken(where, 1)
        got = sum(grant.counts.values())
        longer = job.pods / got if got else 1.0
        # Where the pods really are: placing by count puts them elsewhere than the grant of the queue core says.
        spread = self.tally.spread(job, where)
        track.start(self.now, where, grant.counts, spread, slowdown=self.options.slowdown, longer=longer)
        # In simulated time pods are ready as soon as they are there.
        self.queues.run_times.note_start(job.key, self.now, self.now)
        if self.mover is not None:
            self.mover.record_placement(job, self.now)
        self._offer(track, where)

    def _take_slices(self, track: Track, domains: Collection[Path]) -> None:
        """The pods in some domains are told to go; the others run on."""
        where, grant = track.where, self.queues.entries[track.job.key].grant
        if where is None or grant is None or track.leaving:
            return
        where.send_away(self.site.inside_of(where, domains, grant.assignments[0].levels))
        self._change_pace(track, where)
        self._schedule_event(self.options.grace, EventKind.LOST, track)

    def _replace_lost(self, track: Track) -> None:
        """Pods that were told to go are gone, and their job is to have others instead.

        Where nobody waits any more for their room, they are made again where they were.
        """
        where, key = track.where, track.job.key
        if where is None:
            return
        gone, grant = where.parted(), self.queues.entries[key].grant
        self.tally.count_nodes_taken(gone, -1)
        self.site.clear(gone, self.queues)
        if elastic.lose(self.site.state, self.queues, key) is not None:
            self.queues.wish(key, track.wanted)
            self._change_pace(track, where)
        elif grant is not None:
            self._grow(track, grant)

    def _grow(self, track: Track, grant: AssumedAdmission) -> None:
        """It has more pods than before."""
        where = track.where
        if where is None:
            return
        more = self.site.grown(where, grant)
        self.tally.count_nodes_taken(more, 1)
        track.add_pods()
        if not track.running:
            self._change_pace(track, where)
        self._offer(track, where)

    def _change_pace(self, track: Track, where: Where) -> None:
        """Some of its pods do nothing from now on, or do again."""
        track.note_work(self.now)
        working = where.working if track.running else len(where.pods) - len(where.going)
        longer = track.job.pods / working if working else inf
        track.lie(self.tally.spread(track.job, where), slowdown=self.options.slowdown, longer=longer)
        if track.running:
            self._end_later(track)

    def _closed(self, track: Track) -> set[str]:
        """The nodes that others have closed to a job, as they wait for longer than the rules' ``hold``."""
        claims, of_this = self.queues.claims.values(), self.queues.entries[track.job.key].order
        hard = (claim for claim in claims if not claim.soft and claim.order < of_this)
        return {name for claim in hard for names in claim.nodes.values() for name in names}

    def _end_later(self, track: Track) -> None:
        if track.pace < inf:
            self._schedule_event((track.left - track.done) * track.pace, EventKind.END, track)

    def _offer(self, track: Track, where: Where) -> None:
        """Kubelets take the pods that do not run yet, or refuse them."""
        refused = self.site.offer(where, self.queues)
        track.count_refusals(len(refused))
        if not refused and track.running:
            self._change_pace(track, where)
        elif not refused:
            crossing = self.site.crossing(where, self.tally.resource)
            avoidable = self.site.avoidable(where, self.tally.resource) if crossing else 0
            kept = avoidable - self.site.avoidable(where, self.tally.resource, self._closed(track)) if avoidable else 0
            track.run(self.now, crossing, avoidable, kept, self.site.split(where))
            self.tally.count_running(1)
            self._end_later(track)
        elif track.tries >= self.options.retries:
            self._leave_nodes(track)
            track.fail_job(self.now, f"kubelets refused its pods: {refused[0]}")
            self.done += 1
            self.queues.remove_workload(self.site.state, track.job.key)
        else:
            # The delay goes by the refusals before this one, so it is worked out before `try_again` counts it.
            self._schedule_event(min(FIRST_RETRY * 2**track.tries, LAST_RETRY), EventKind.RETRY, track)
            track.try_again()
            if track.running:
                self._change_pace(track, where)

    def _evict(self, track: Track) -> None:
        """It is told to go."""
        if track.where is None or track.leaving:
            return
        self.tally.count_running(-int(track.running))
        track.record_eviction(self.now, self.options.checkpoint)
        self._schedule_event(self.options.grace, EventKind.GONE, track)

    def _schedule_event(self, seconds: float, kind: EventKind, track: Track) -> None:
        self._real += 1
        number = track.turn if kind is EventKind.END else track.starts
        heapq.heappush(self._events, (self.now + seconds, kind, track.job.key, number))

    # -- what came of it --------------------------------------------------------------------------------------

    def _outcome(self, track: Track) -> JobOutcome:
        job = track.job
        end = track.end or (End.RUNNING if track.where is not None else End.WAITING)
        return JobOutcome(
            name=job.key if job.namespace != NAMESPACE else job.name,
            arrival=job.arrival,
            duration=job.duration,
            pods=job.pods,
            amount=self.tally.amount(job),
            priority=job.priority,
            queue=job.queue,
            topology=wish_of(job),
            end=end,
            started=track.started,
            finished=track.finished,
            wait=None if track.started is None else track.started - job.arrival,
            # An eviction raises `starts` too, so that events of the start that it ended are void.
            starts=track.starts - track.evictions,
            evictions=track.evictions,
            moves=track.moves,
            lost=track.lost,
            refusals=track.refusals,
            crossing=track.crossing,
            avoidable=track.avoidable,
            kept=track.kept,
            split=track.split,
            aligned=track.aligned,
            domains=track.domains,
            reason=track.reason if end is not End.FINISHED else "",
        )


def wish_of(job: SimulatedJob) -> str:
    """What it wishes, as traces spell it."""
    topology = job.pod_sets[0].topology
    return str(topology.policy).lower() + (f"={topology.level}" if topology.level else "")

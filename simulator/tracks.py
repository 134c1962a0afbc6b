"""One job as it goes on: what it did, what it lost, and what is to happen to it."""

from collections.abc import Mapping

import msgspec

from simulator.model import SimulatedJob
from simulator.results import End
from simulator.world.site import Where

Spread = tuple[dict[str, int], bool | None]  # as `simulator.tally.JobTally.spread` has it


class Track(msgspec.Struct, eq=False):
    """One job as it goes on.

    ``left``: seconds of work when it started last, and ``done`` so many of them until ``since``. ``tries``: how often
    its pods were refused since it started, or grew. ``turn`` changes whenever its end does. ``wanted``: how many pods
    it started with, by pod set.
    """

    job: SimulatedJob
    left: float
    where: Where | None = None
    running: bool = False
    leaving: bool = False
    since: float = 0.0  # when all its pods began to run, or its pace changed
    done: float = 0.0
    pace: float = 1.0  # seconds a second of work takes
    starts: int = 0
    turn: int = 0
    tries: int = 0
    refusals: int = 0
    evictions: int = 0
    moves: int = 0
    admitted: float = 0.0  # when it started last
    lost: float = 0.0
    started: float | None = None
    finished: float | None = None
    end: End | None = None
    reason: str = ""
    aligned: bool | None = None
    crossing: int = 0
    avoidable: int = 0
    kept: int = 0
    split: int = 0
    domains: dict[str, int] = msgspec.field(default_factory=dict)
    wanted: dict[str, int] = msgspec.field(default_factory=dict)

    def record_waiting(self, reason: str) -> None:
        """It waits, for this reason."""
        self.reason = reason

    def start(
        self, now: float, where: Where, counts: Mapping[str, int], spread: Spread, *, slowdown: float, longer: float
    ) -> None:
        """Its pods are sent to nodes.

        ``counts``: how many, by pod set. ``longer``: how much longer it takes for having fewer pods than it wishes;
        ``slowdown``: and for not being aligned.
        """
        self.where, self.tries, self.reason, self.done, self.admitted = where, 0, "", 0.0, now
        self.wanted = dict(counts)
        self.starts += 1
        self.lie(spread, slowdown=slowdown, longer=longer)

    def lie(self, spread: Spread, *, slowdown: float, longer: float) -> None:
        """Its pods lie so, from now on; the arguments as in ``start``."""
        self.domains, self.aligned = spread
        self.pace = (slowdown if self.aligned is False else 1.0) * longer
        # The end that was foreseen at the old pace is void.
        self.turn += 1

    def note_work(self, now: float) -> None:
        """Its pace changes: what it did so far is done."""
        if self.running:
            # Both at once, before the pace changes: work is counted at the pace at which it was done.
            self.done, self.since = self._worked(now), now

    def _worked(self, now: float) -> float:
        return self.done + (now - self.since) / self.pace

    def add_pods(self) -> None:
        """It has more pods, which kubelets did not see yet."""
        self.tries = 0

    def run(self, now: float, crossing: int, avoidable: int, kept: int, split: int) -> None:
        """All its pods run."""
        self.running, self.since = True, now
        self.crossing, self.avoidable, self.kept, self.split = crossing, avoidable, kept, split
        self.started = now if self.started is None else self.started

    def count_refusals(self, pods: int) -> None:
        """Kubelets refused so many of its pods."""
        self.refusals += pods

    def try_again(self) -> None:
        """Its pods that were refused will be made again."""
        self.tries += 1

    def record_eviction(self, now: float, checkpoint: float) -> None:
        """It is told to go; what it did since its last checkpoint is lost."""
        self._stop(now, checkpoint)
        self.evictions += 1
        self.starts += 1  # whatever was to happen to this start does not
        self.leaving = True

    def move(self, now: float, checkpoint: float) -> None:
        """Some of its pods go elsewhere, and it stands still until they are there: none gets on without the others."""
        self._stop(now, checkpoint)
        self.moves += 1

    def _stop(self, now: float, checkpoint: float) -> None:
        if self.running:
            worked = self._worked(now)
            # Checkpoints count from the last start, at which the job went on from its last checkpoint.
            kept = worked // checkpoint * checkpoint if checkpoint else 0.0
            self.left = max(self.left - kept, 0.0)
            self.lost += worked - kept
        self.turn += 1
        self.running, self.done = False, 0.0

    def leave_nodes(self) -> None:
        """Its pods are gone."""
        self.where, self.running, self.leaving = None, False, False

    def finish(self, now: float) -> None:
        """All its work is done."""
        self.left, self.end, self.finished = 0.0, End.FINISHED, now

    def fail_job(self, now: float, reason: str) -> None:
        """Kubelets refused its pods for good."""
        self.end, self.finished, self.reason = End.REFUSED, now, reason

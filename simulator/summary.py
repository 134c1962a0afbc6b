"""A simulation in a few figures.

Averages over time count the *window* alone, from 0 until the last job arrived: what follows is a cluster that empties.
Where all jobs arrive at 0, it is the time until the last one ended; where none ran, there is nothing to average.
Waiting times are of every job that ever started.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from simulator.results import End, JobOutcome, Result

HOUR = 3600.0
Floats = NDArray[np.float64]


class WaitSummary(msgspec.Struct, frozen=True):
    """Seconds from arrival until all pods ran."""

    jobs: int
    mean: float
    median: float
    p90: float
    p99: float
    longest: float


class LevelSummary(msgspec.Struct, frozen=True):
    """Averages over the window of `simulator.fragments`, of one level."""

    level: str
    stranded: float
    whole: float
    largest: float


class Summary(msgspec.Struct, frozen=True, rename="camel"):
    """One policy.

    ``window``: seconds over which averages are taken. ``utilisation``: share of the resource that jobs hold;
    ``useful``: that is work which counted.
    ``stuck``: jobs that never started, by reason (of `engine.reasons`).
    ``wishing``: jobs with several pods that wish a level and started; ``aligned``: of these, in one domain of it.
    ``small``, ``medium``, ``large``: waiting times of jobs within one server, of several, and of 16 servers or more.
    ``lost``, in amounts times hours: what evictions and moves undid.
    ``crossing``: pods with devices of several sockets though
    one has as many; ``avoidable``: those of them that would not on another node that had room for them;
    ``kept``: those of these for which all such nodes were closed for who waits for longer than ``--hold``;
    ``split``: pods with something of more NUMA zones than on an empty machine.
    """

    policy: str
    resource: str
    jobs: int
    finished: int
    refused: int
    unfinished: int
    stuck: dict[str, int]
    window: float
    utilisation: float
    useful: float
    makespan: float
    wait: WaitSummary
    small: WaitSummary
    medium: WaitSummary
    large: WaitSummary
    waiting: float
    wishing: int
    aligned: int
    evictions: int
    lost: float
    refusals: int
    crossing: int
    avoidable: int
    kept: int
    split: int
    levels: tuple[LevelSummary, ...]
    moves: int | msgspec.UnsetType = msgspec.UNSET  # where the policy moves anybody


def summarise(result: Result) -> Summary:
    """The figures of one simulation."""
    # How many seconds of the window each row of the series holds: a row counts for the
    # seconds until the next; rows behind the window are cut to it and count for none.
    times = np.minimum(np.array([*result.series.times, result.window], float), result.window)
    weights: Floats = np.maximum(np.diff(times), 0.0)
    outcomes = result.outcomes
    server = int(result.capacity.max(initial=1)) or 1
    capacity = max(int(result.capacity.sum()), 1)
    used = np.array([float(row.sum()) for row in result.series.used])
    # One pod is in one domain of any level, so it says nothing about alignment.
    wishing = [one for one in outcomes if one.aligned is not None and one.pods > 1]
    ended = [one.finished for one in outcomes if one.finished is not None]
    # Seconds of useful work that finished jobs did within the window, as if each had done it in one go at its end.
    done = sum(
        max(min(one.finished, result.window) - (one.finished - one.duration), 0.0) * one.amount
        for one in outcomes
        if one.end is End.FINISHED and one.finished is not None
    )
    return Summary(
        policy=result.policy.name,
        resource=result.resource,
        jobs=len(outcomes),
        finished=_count_outcomes(outcomes, lambda one: one.end is End.FINISHED),
        refused=_count_outcomes(outcomes, lambda one: one.end is End.REFUSED),
        unfinished=_count_outcomes(outcomes, lambda one: one.finished is None),
        stuck=dict(sorted(Counter(one.reason.partition(":")[0] for one in outcomes if one.end is End.WAITING).items())),
        window=result.window,
        utilisation=_average(used, weights) / capacity,
        useful=done / (capacity * result.window) if result.window else 0.0,
        makespan=max(ended, default=0.0),
        wait=waits(outcomes),
        small=waits(one for one in outcomes if one.amount <= server),
        medium=waits(one for one in outcomes if server < one.amount < 16 * server),
        large=waits(one for one in outcomes if one.amount >= 16 * server),
        waiting=_average(np.array(result.series.waiting, float), weights),
        wishing=len(wishing),
        aligned=sum(bool(one.aligned) for one in wishing),
        evictions=sum(one.evictions for one in outcomes),
        lost=sum(one.lost * one.amount for one in outcomes) / HOUR,
        refusals=sum(one.refusals for one in outcomes),
        crossing=sum(one.crossing for one in outcomes),
        avoidable=sum(one.avoidable for one in outcomes),
        kept=sum(one.kept for one in outcomes),
        split=sum(one.split for one in outcomes),
        levels=tuple(
            LevelSummary(
                level,
                _average(np.array([row[at].stranded for row in result.series.levels]), weights),
                _average(np.array([row[at].whole for row in result.series.levels], float), weights),
                _average(np.array([row[at].largest for row in result.series.levels], float), weights),
            )
            for at, level in enumerate(result.levels)
        ),
        moves=sum(one.moves for one in outcomes) if result.policy.moving else msgspec.UNSET,
    )


def waits(outcomes: Iterable[JobOutcome]) -> WaitSummary:
    """Of those that started."""
    found = np.array([one.wait for one in outcomes if one.wait is not None], float)
    if not len(found):
        return WaitSummary(0, 0.0, 0.0, 0.0, 0.0, 0.0)
    median, p90, p99 = np.percentile(found, (50, 90, 99)).tolist()
    return WaitSummary(len(found), float(found.mean()), median, p90, p99, float(found.max()))


def _average(values: Floats, weights: Floats) -> float:
    total = float(weights.sum())
    return float((values * weights).sum()) / total if total else 0.0


def _count_outcomes(outcomes: Sequence[JobOutcome], holds: Callable[[JobOutcome], bool]) -> int:
    return sum(1 for one in outcomes if holds(one))

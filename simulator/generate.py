"""Jobs as clusters for machine learning see them, from a seed. docs/simulate.md argues the figures.

- Sizes: of a `Mix`. Most jobs are small, most GPU time is in large ones, unless it says otherwise.
- Durations: log-normal, so heavy-tailed; larger jobs run longer. All are scaled alike until the jobs offer ``load`` of
  what the cluster can do in the time, and none is longer than ``LONGEST`` of it.
- Arrivals: a rhythm of days and weeks.
- Pods: of a whole node each where a job takes several, or of one unit each, as the mix has it. Jobs of several pods
  mostly wish a rack, or a block where no rack takes them.

The same arguments give the same jobs: random numbers come from ``random.Random(seed)`` alone.
"""

import random
from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import accumulate, repeat
from typing import Final, TypeVar

import msgspec

from engine.model import Amounts, PodSet, Policy, TopologyRequest
from simulator.model import QUEUE, SimulatedJob, guaranteed

HOUR: Final = 3600
DAY: Final = 24 * HOUR


class Mix(msgspec.Struct, frozen=True):
    """What jobs there are. ``sizes``: units, jobs in a hundred, median hours.

    ``spread``: standard deviation of the logarithm of durations. ``single``: each pod has one unit.
    """

    sizes: tuple[tuple[int, float, float], ...]
    spread: float = 1.4
    single: bool = False


TRAINING: Final = Mix(
    (
        (1, 32.0, 2.0),
        (2, 9.0, 2.5),
        (4, 9.0, 3.0),
        (8, 20.0, 4.0),
        (16, 10.0, 6.0),
        (32, 8.0, 8.0),
        (64, 6.0, 10.0),
        (128, 4.0, 14.0),
        (256, 1.6, 20.0),
        (512, 0.4, 24.0),
    )
)
# 70% of one worker, 25% of two to four, 5% of eight, as Gavel (OSDI 2020, section 7) draws them after Microsoft's
# Philly.
WORKERS: Final = Mix(((1, 70.0, 4.0), (2, 10.0, 4.0), (3, 5.0, 4.0), (4, 10.0, 4.0), (8, 5.0, 4.0)), 1.8, single=True)
# After Kalos of Acme (arXiv 2403.07648): nine of ten evaluate, on few GPUs and for minutes; a few percent, which train
# on hundreds, have nearly all GPU time.
MODELS: Final = Mix(
    (
        (1, 60.0, 0.1),
        (4, 15.0, 0.1),
        (8, 14.0, 0.2),
        (16, 4.0, 2.0),
        (64, 3.5, 8.0),
        (256, 2.5, 12.0),
        (512, 0.7, 16.0),
        (1024, 0.3, 24.0),
    )
)
# Nobody's trace: gangs of workers of one GPU each that share nodes badly, so that parts of nodes are left over.
UNEVEN: Final = Mix(
    (
        (1, 20.0, 3.0),
        (3, 20.0, 4.0),
        (5, 20.0, 4.0),
        (6, 12.0, 5.0),
        (7, 8.0, 5.0),
        (12, 10.0, 6.0),
        (20, 7.0, 8.0),
        (40, 3.0, 8.0),
    ),
    single=True,
)


class JobMix(StrEnum):
    """The names of `MIXES`."""

    TRAINING = "training"
    WORKERS = "workers"
    MODELS = "models"
    UNEVEN = "uneven"


MIXES: Final = {
    JobMix.TRAINING: TRAINING,
    JobMix.WORKERS: WORKERS,
    JobMix.MODELS: MODELS,
    JobMix.UNEVEN: UNEVEN,
}
SHORTEST: Final = 60.0
LONGEST: Final = 1 / 3  # of the whole time
# Jobs an hour of the day, in relation: few at night, a dip at noon.
HOURS: Final = (4, 3, 2, 2, 2, 2, 3, 5, 8, 11, 12, 12, 9, 10, 12, 12, 12, 11, 9, 8, 8, 7, 6, 5)
WEEKEND: Final = 0.5
PRIORITIES: Final = ((1000, 10), (100, 65), (10, 25))  # production, normal, whenever there is room
WISHES: Final = ((Policy.REQUIRED, 60), (Policy.PREFERRED, 25), (Policy.UNCONSTRAINED, 15))


_Choice = TypeVar("_Choice")


class JobSite(msgspec.Struct, frozen=True):
    """What jobs are made for.

    ``unit``: one GPU and its part of the rest, or an eighth of a node without GPUs; ``units``: of one node. ``levels``:
    label keys and how many nodes a domain has, narrowest first, the nodes themselves left out. ``nodes``: in all.
    """

    unit: Amounts
    units: int
    levels: tuple[tuple[str, int], ...]
    nodes: int


def generate(
    site: JobSite,
    count: int,
    seed: int,
    *,
    span: float = 30 * DAY,
    load: float = 0.85,
    queues: Sequence[str] = (),
    mix: Mix = TRAINING,
) -> tuple[SimulatedJob, ...]:
    """``count`` jobs that arrive within ``span`` seconds, by arrival.

    ``load``: units times seconds of all jobs, in relation to those of the site. ``queues``: LocalQueues they go to, the
    first ones more often.
    """
    # The order of the draws below is part of the result: another order gives other jobs for the same seed.
    dice = random.Random(seed)  # noqa: S311  (a simulation, not a secret)
    arrivals = sorted(_arrival(dice, span) for _ in range(count))
    # No job wants more than half of all.
    fitting = [size for size in mix.sizes if size[0] <= max(site.nodes * site.units // 2, 1)]
    sizes: list[tuple[int, float]] = []  # units and hours of each job
    for _ in range(count):
        units, median = _weighted(dice, [((units, median), share) for units, share, median in fitting])
        sizes.append((units, median * dice.lognormvariate(0.0, mix.spread)))
    durations = _scaled(sizes, load * site.nodes * site.units * span, longest=span * LONGEST)
    width = len(str(count))
    made = []
    for number, (arrival, (units, _), duration) in enumerate(zip(arrivals, sizes, durations, strict=True), 1):
        nodes = -(-units // site.units)
        pods, each = (units, 1) if mix.single else (1, units) if nodes == 1 else (nodes, site.units)
        requests = {resource: amount * each for resource, amount in site.unit.items()}
        pod_set = PodSet(
            name="main",
            count=pods,
            requests=requests,
            topology=_wish(dice, site, pods, nodes),
            namespace="default",
            shape=guaranteed(requests),
        )
        made.append(
            SimulatedJob(
                name=f"job-{number:0{width}}",
                arrival=float(round(arrival)),
                duration=float(max(round(duration), 1)),
                pod_sets=(pod_set,),
                priority=_weighted(dice, PRIORITIES),
                queue=_weighted(dice, ((name, 1 / place) for place, name in enumerate(queues or (QUEUE,), 1))),
            )
        )
    return tuple(made)


def _arrival(dice: random.Random, span: float) -> float:
    """Any time within ``span``, likelier when people work; the simulation begins at midnight before a Monday."""
    while True:
        at = dice.random() * span
        weight = HOURS[int(at // HOUR) % 24] * (WEEKEND if int(at // DAY) % 7 >= 5 else 1.0)
        # Draws are thrown away in quiet hours, which gives the rhythm without a table of the whole span.
        if dice.random() * max(HOURS) < weight:
            return at


def _scaled(sizes: Sequence[tuple[int, float]], work: float, *, longest: float) -> list[float]:
    """Durations in seconds that make ``work`` in all where bounds allow: by bisection over one factor for all."""

    def at(factor: float) -> list[float]:
        return [min(max(hours * HOUR * factor, SHORTEST), longest) for _, hours in sizes]

    low, high = 0.0, 1e6
    # More halvings of a million than a float has digits, so the factor does not depend on where the search stops.
    for _ in repeat(None, 80):
        middle = (low + high) / 2
        total = sum(units * duration for (units, _), duration in zip(sizes, at(middle), strict=True))
        low, high = (middle, high) if total < work else (low, middle)
    # The lower end: but for the bounds of single jobs they never offer more than the load.
    return at(low)


def _wish(dice: random.Random, site: JobSite, pods: int, nodes: int) -> TopologyRequest:
    """The narrowest level one domain of which takes all pods; nobody requires one that could hardly become free."""
    policy = _weighted(dice, WISHES)
    level = next((key for key, there in site.levels if nodes <= there), None)
    if pods == 1 or policy is Policy.UNCONSTRAINED or not site.levels:
        return TopologyRequest(policy=Policy.UNCONSTRAINED)
    if level is None:
        return TopologyRequest(policy=Policy.PREFERRED, level=site.levels[-1][0])
    return TopologyRequest(policy=policy, level=level)


def _weighted(dice: random.Random, choices: Iterable[tuple[_Choice, float]]) -> _Choice:
    pairs = list(choices)
    sums = list(accumulate(weight for _, weight in pairs))
    # `random` is below 1, so some sum is always above.
    at = dice.random() * sums[-1]
    return next(value for (value, _), total in zip(pairs, sums, strict=True) if at < total)

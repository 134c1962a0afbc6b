"""Random trees of cohorts with random streams of workloads, as data for two schedulers; and what ours makes of them.

The same stream is given to a real Kueue by `support.kueue_trees`. Priorities are drawn without repetition within a
tree, and steps lie seconds apart: neither side has a tie to break by names or by the second of a time.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from engine.cluster.state import ClusterState
from engine.model import PodSet, Policy, TopologyRequest
from queueing.cycle.cycle import cycle
from queueing.model import (
    ClusterQueue,
    Cohort,
    FlavorQuotas,
    LocalQueue,
    PlainFlavor,
    Preemption,
    Quota,
    Reclaim,
    ResourceGroup,
    Rules,
    Within,
    Workload,
)
from queueing.queues.queues import Queues

NAMESPACE = "default"
RESOURCES = ("example.com/a", "example.com/b")
FLAVORS = ("f0", "f1")
STEP_SECONDS = 60.0
MOST_CYCLES = 500


class Submit(NamedTuple):
    """A workload of one pod comes; ``units`` of each resource that its queue has."""

    name: str
    queue: str
    priority: int
    units: dict[str, int]


class End(NamedTuple):
    """One that is admitted ends: the one at this part (0 to 1) of their names in order."""

    at: float


class Stream(NamedTuple):
    """A tree, and what happens in it, one thing after the other: both sides come to rest in between."""

    seed: int
    fair: bool
    cohorts: tuple[Cohort, ...]
    queues: tuple[ClusterQueue, ...]
    steps: tuple[Submit | End, ...]

    @property
    def name(self) -> str:
        """What all names of its objects begin with."""
        return f"{'f' if self.fair else 'c'}{self.seed}"


class Move(NamedTuple):
    """A workload was admitted, or evicted for another one, ``taker``; ``what``: its flavor, or the reason."""

    name: str
    what: str
    taker: str = ""


class Seen(NamedTuple):
    """What a side has made of one step: who is admitted after it in which flavor, and what moved in it, in order."""

    admitted: frozenset[tuple[str, str]]
    moves: tuple[Move, ...]

    @property
    def evicted(self) -> Counter[tuple[str, str]]:
        """Who was evicted, and why, how often."""
        return Counter((move.name, move.what) for move in self.moves if move.taker)


def stream(seed: int, *, fair: bool) -> Stream:
    """The stream of a seed: 1 to 4 levels, 2 to 8 queues, 1 or 2 flavors of 1 or 2 resources, 12 to 24 steps."""
    dice = random.Random(f"{seed} {fair}")
    name = f"{'f' if fair else 'c'}{seed}"
    keys = RESOURCES[: dice.choice((1, 1, 2))], FLAVORS[: dice.choice((1, 1, 2))]
    limits, unit = dice.random() < 0.5, dice.choice((0, 0, 1, 2, 4))
    cohorts = [Cohort(name=f"{name}-top", groups=_quotas(dice, *keys, root=True, limits=False))]
    for level in range(1, dice.randint(1, 4)):
        above = [one for one in cohorts if one.name.count("-") == level]
        for at in range(dice.randint(1, 3)):
            parent = dice.choice(above).name
            made = _quotas(dice, *keys, root=False, limits=limits) if dice.random() < 0.5 else ()
            weight = dice.choice((0, 500, 1000, 1000, 1000, 3000))
            cohorts.append(Cohort(name=f"{parent}-{level}{at}", groups=made, parent=parent, weight=weight))
    queues = tuple(
        ClusterQueue(
            name=f"{name}-q{at}",
            groups=_quotas(dice, *keys, root=False, limits=limits, every=True),
            cohort=dice.choice(cohorts).name,
            borrow_first=dice.random() < 0.5,
            preempt_first=dice.random() < 0.3,
            weight=dice.choice((0, 500, 1000, 1000, 1000, 3000)),
            preemption=_preemption(dice, fair=fair),
        )
        for at in range(dice.randint(2, 8))
    )
    priorities = iter(dice.sample(range(1, 1000), 60))
    steps: list[Submit | End] = []
    for step in range(dice.randint(12, 24)):
        if step > 4 and dice.random() < 0.25:
            steps.append(End(dice.random()))
            continue
        units = {key: unit or dice.randint(1, 8) for key in keys[0]}
        steps.append(Submit(f"{name}-{step:02}", dice.choice(queues).name, next(priorities), units))
    return Stream(seed, fair, tuple(cohorts), queues, tuple(steps))


def _quotas(
    dice: random.Random,
    resources: tuple[str, ...],
    flavors: tuple[str, ...],
    *,
    root: bool,
    limits: bool,
    every: bool = False,
) -> tuple[ResourceGroup, ...]:
    def quota() -> Quota:
        nominal = dice.choice((0, 2, 4, 4, 8, 8))
        if root or not limits:
            return Quota(nominal=nominal)
        lending = dice.choice((None, None, 0, 2)) if nominal >= 2 else None
        return Quota(nominal=nominal, borrowing=dice.choice((None, None, 0, 2, 6)), lending=lending)

    named = flavors if every else flavors[: dice.randint(1, len(flavors))]
    quotas = tuple(FlavorQuotas(flavor=flavor, resources={key: quota() for key in resources}) for flavor in named)
    return (ResourceGroup(resources=resources, flavors=quotas),)


def _preemption(dice: random.Random, *, fair: bool) -> Preemption:
    reclaim = dice.choice(list(Reclaim))
    borrowing = not fair and reclaim is not Reclaim.NEVER and dice.random() < 0.4
    return Preemption(
        within=dice.choice((Within.NEVER, Within.LOWER, Within.LOWER)),
        reclaim=reclaim,
        borrowing=borrowing,
        threshold=dice.choice((None, 300)) if borrowing else None,
    )


def resolved(event: Submit | End, admitted: Iterable[tuple[str, str]]) -> Submit | str:
    """An event as both sides are given it: with the name of the one that ends; "" where nobody runs."""
    if isinstance(event, Submit):
        return event
    names = sorted(name for name, _ in admitted)
    return names[int(event.at * len(names))] if names else ""


Step = tuple[Submit | str, Seen]
Answer = list[Step]


class Ours:
    """Our queues with the tree of a stream."""

    def __init__(self, stream: Stream) -> None:
        self.state = ClusterState()
        self.queues = queues = Queues(Rules(patience=float("inf"), leaving=0.0, fair=stream.fair))
        self.admitted: set[str] = set()
        self._now = 0.0
        queues.set_namespace(NAMESPACE, {})
        for flavor in FLAVORS:
            queues.set_flavor(PlainFlavor(name=flavor))
        for cohort in stream.cohorts:
            queues.set_cohort(cohort)
        for queue in stream.queues:
            queues.set_cluster_queue(queue)
            queues.set_local_queue(LocalQueue(namespace=NAMESPACE, name=queue.name, cluster_queue=queue.name))

    def play(self, event: Submit | str) -> Seen:
        """What they make of one step: a workload comes, or the one of this name ends ("": none does)."""
        self._now += STEP_SECONDS
        if isinstance(event, Submit):
            self.queues.submit(_workload(event, self._now), self._now)
        elif event:
            self.queues.remove_workload(self.state, event)
            self.admitted.discard(event)
        moves = tuple(self._settle())
        return Seen(frozenset((name, self._flavor(name)) for name in self.admitted), moves)

    def _settle(self) -> Iterator[Move]:
        """Cycles until nothing moves; victims are gone at once, as a workload without pods is."""
        for at in range(MOST_CYCLES):
            found = cycle(self.state, self.queues, self._now + at / 1000)
            for one in found.admitted:
                self.admitted.add(one.key)
                yield Move(one.key, self._flavor(one.key))
            for taker in found.preempting:
                for victim in taker.victims:
                    key = str(victim.key)
                    self.admitted.discard(key)
                    self.queues.release_and_requeue(self.state, key, self._now)
                    yield Move(key, victim.reason.value, taker.key)
            if not (found.more or found.admitted or found.preempting):
                return
        raise AssertionError("no end of evictions")

    def _flavor(self, name: str) -> str:
        grant = self.queues.entries[name].grant
        assert grant is not None
        return next(iter(grant.flavors["main"].values()))


def answers_of_ours(stream: Stream, answer: Answer) -> Answer:
    """What ours makes of the events that another side was given."""
    ours = Ours(stream)
    return [(event, ours.play(event)) for event, _ in answer]


def _workload(event: Submit, created: float) -> Workload:
    topology = TopologyRequest(policy=Policy.UNCONSTRAINED, level=None)
    pod_set = PodSet(name="main", count=1, requests=event.units, topology=topology, namespace=NAMESPACE)
    return Workload(
        key=event.name,
        namespace=NAMESPACE,
        queue=event.queue,
        pod_sets=(pod_set,),
        priority=event.priority,
        created=created,
        uid=event.name,
    )

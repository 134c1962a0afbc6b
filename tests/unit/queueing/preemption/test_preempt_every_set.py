"""Plans of gangs against every set of candidates: priority sum, number, what is left fragmented; several pod sets."""

import os
import random
from itertools import combinations

import pytest
from support.queue_factories import (
    GPU,
    HOST,
    RACK,
    make_pod_set,
    make_queue,
    make_queues,
    make_state,
    make_workload,
    run,
    submit,
)

from engine.preemption.model import ChoiceRules as VictimRules
from engine.preemption.model import Strategy
from engine.results import Refusal
from queueing.cycle.cycle import cycle
from queueing.model import Preemption, Rules, Within
from queueing.preemption.search import plan
from queueing.queues.entry import Phase
from queueing.queues.flavor_assigner import put

LOWER = Preemption(within=Within.LOWER)
CASES = int(os.environ.get("TOPOGATE_VICTIM_CASES", "120"))


class Cluster:
    """A small full cluster of one queue, and one of high priority that wants in, with one pod set or several."""

    def __init__(self, seed, *, several=False, racks=3, owners=8):
        self.dice = dice = random.Random(f"{several}/{seed}")
        self.state = make_state(dice.randint(1, racks), 2, gpu=4)
        self.rules = VictimRules(strategy=dice.choice(list(Strategy)))
        self.queues = make_queues(make_queue("q", 1000, preemption=LOWER), rules=Rules(victims=self.rules))
        for i in range(owners):
            level, more = dice.choice((RACK, HOST, None)), {"priority": dice.randint(-1, 2), "created": float(i)}
            submit(
                self.queues,
                make_workload(f"w{i}", count=dice.randint(1, 3), gpu=dice.choice((1, 2, 4)), level=level, **more),
            )
        run(self.state, self.queues)
        for key in [key for key, entry in self.queues.entries.items() if entry.phase is not Phase.ADMITTED]:
            self.queues.remove_workload(self.state, key)
        cycle(self.state, self.queues, 2.0)
        sets = [
            make_pod_set(dice.randint(1, 2), gpu=dice.choice((2, 4)), level=dice.choice((RACK, HOST)), name=name)
            for name in ("main", "side")[: 2 if several else 1]
        ]
        submit(self.queues, make_workload("x", pod_sets=tuple(sets), priority=3, created=50.0))
        self.entry = self.queues.entries["x"]
        (self.option,) = self.queues.options_of(self.state, self.entry.group).found
        self.priority = {
            key: entry.workload.priority
            for key, entry in self.queues.entries.items()
            if entry.phase is Phase.ADMITTED and entry.workload.priority < 3
        }

    def partly_free(self, comes=()):
        """How many nodes have some GPUs free and some in use."""
        free = {name: self.state.free_on_node(name)[GPU] for name in self.state.nodes}
        for part in comes:
            for piece in part.slices:
                for name, count in piece.nodes:
                    free[name] -= count * part.requests[GPU]
        return sum(0 < left < 4 for left in free.values())

    def key(self, victims):
        """What is compared of a set that makes room; None where it does not."""
        before = self.partly_free()
        checkpoint = self.state.begin()
        gone = [part for key in victims for part in self.state.assignments(key).values()]
        self.state.release_all(victims)
        found = put(self.state, "x", self.option)
        broken = None if isinstance(found, Refusal) else self.partly_free(found) - before
        self.state.rollback(checkpoint)
        if broken is None:
            return None
        values = [self.priority[key] for key in victims]
        total, freed = sum(max(value, 0) for value in values), sum(part.count * part.requests[GPU] for part in gone)
        order = (len(values), total) if self.rules.by_count else (max(values), total, len(values))
        return (*order, freed, broken)

    def best(self):
        sets = [some for size in range(1, len(self.priority) + 1) for some in combinations(self.priority, size)]
        return min((key for some in sets if (key := self.key(some)) is not None), default=None)


@pytest.mark.parametrize("several", [False, True])
def test_the_plan_of_few_candidates_is_the_best_of_all_sets(several):
    compared = told_apart = 0
    for seed in range(CASES):
        one = Cluster(seed, several=several, racks=2 if several else 3, owners=6 if several else 8)
        if not isinstance(put(one.state, "x", one.option), Refusal) or not 0 < len(one.priority) <= (
            6 if several else 8
        ):
            continue
        version = one.state.version
        found = plan(one.state, one.queues, one.entry, one.option)
        assert one.state.version == version
        best = one.best()
        assert (found is None) == (best is None), seed
        if found is None:
            continue
        assert found.key(one.rules) == best, seed
        assert one.key([victim.key for victim in found.victims]) == best, seed
        compared += 1
        told_apart += len({one.key((key,)) for key in one.priority} - {None}) > 1
    assert compared > CASES // 4
    assert told_apart > CASES // 60


def test_of_equal_victims_those_go_that_leave_least_broken():
    state, queues = make_state(1, 3, gpu=8), make_queues(make_queue("q", 100, preemption=LOWER))
    submit(queues, make_workload("whole", gpu=8), make_workload("half", gpu=4, created=1.0))
    submit(queues, make_workload("other", gpu=4, created=2.0), make_workload("last", gpu=8, priority=9))
    run(state, queues)
    cycle(state, queues, 2.0)
    submit(queues, make_workload("x", gpu=4, priority=5, created=3.0))
    (planned,) = run(state, queues).preempting
    (victim,) = planned.victims
    assert victim.key in {"half", "other"}, "nothing is left over"


@pytest.mark.parametrize("seed", range(40))
def test_of_many_candidates_a_plan_for_several_pod_sets_holds_and_needs_every_victim(seed):
    one = Cluster(seed, several=True, racks=5, owners=24)
    if not isinstance(put(one.state, "x", one.option), Refusal):
        return
    found = plan(one.state, one.queues, one.entry, one.option)
    everybody = one.key(tuple(one.priority)) if one.priority else None
    assert (found is None) == (everybody is None)
    if found is None:
        return
    names = [victim.key for victim in found.victims]
    assert one.key(names) is not None
    assert not any(len(names) > 1 and one.key([key for key in names if key != left]) for left in names)

"""Nobody evicts each other for ever: closed sets of workloads that never end, in random trees, come to rest.

Whoever is evicted comes back at once. As nobody ends and nobody comes, the only thing that could go on is that they
evict each other. `TOPOGATE_TREES=50000 pytest tests/unit/queueing/preemption/test_endless_evictions.py` tries more;
each tree is told by its seed. Some two in 3,000 do go on, like the three workloads at the end: in one cohort too.
"""

import os
import random
from collections import Counter

import pytest
from support.queue_factories import HOST, RACK, make_cohort, make_queue, make_queues, make_state, make_workload

from engine.reasons import Reason
from queueing.cycle.cycle import cycle
from queueing.model import Preemption, Reclaim, Rules, UseRules, Within

TREES = int(os.environ.get("TOPOGATE_TREES", "300"))
BATCH = 50


class Closed:
    """A random tree and a closed set of workloads; ``evictions``: (who takes, who goes), in order.

    ``by_use``: some of its cohorts go by use over time, and cycles lie so far apart that shares cross.
    """

    def __init__(self, seed, *, by_use=False):
        self.dice = dice = random.Random(f"endless {seed}")
        # Of its own, so that the trees are the same with and without.
        self.scopes = random.Random(f"scopes {seed}")
        self.by_use, self.step = by_use, self.scopes.choice([1.0, 60.0, 600.0]) if by_use else 1.0
        fair = dice.random() < 0.4
        use = UseRules(half_life=self.scopes.choice([300.0, 3000.0])) if by_use else None
        self.queues = make_queues(*self.specs(), rules=Rules(fair=fair, patience=1e9, leaving=0.0, use=use))
        self.make_cohorts()
        # Sometimes room lacks as well as quota.
        self.state = make_state(dice.choice([1, 3, 4]), dice.choice([2, 4, 4]))
        self.evictions, self.reasons = [], Counter()
        self.now = 1.0
        self.submit()

    def specs(self):
        dice = self.dice
        self.cohorts = [f"c{number}" for number in range(dice.randint(1, 6))]
        for number in range(dice.randint(2, 6)):
            reclaim = dice.choice([Reclaim.ANY, Reclaim.ANY, Reclaim.LOWER, Reclaim.LOWER, Reclaim.NEVER])
            policy = Preemption(
                within=dice.choice(list(Within)),
                reclaim=reclaim,
                borrowing=reclaim is not Reclaim.NEVER and dice.random() < 0.7,
                threshold=dice.choice([None, None, None, 1]),
            )
            yield make_queue(
                f"q{number}",
                dice.choice([0, 4, 4, 8]),
                cohort=dice.choice(self.cohorts),
                borrowing=dice.choice([None, None, 0, 4, 8]),
                lending=dice.choice([None, None, 0, 4]),
                weight=dice.choice([0, 500, 1000, 1000, 3000]),
                strict=dice.random() < 0.2,
                preemption=policy,
            )

    def make_cohorts(self):
        """Four levels at most, and a root without limits."""
        dice, depth = self.dice, {"c0": 0}
        self.queues.set_cohort(make_cohort("c0", dice.choice([0, 0, 8]), by_use=self.goes_by_use()))
        for name in self.cohorts[1:]:
            parent = dice.choice([one for one, level in depth.items() if level < 3])
            depth[name] = depth[parent] + 1
            cohort = make_cohort(
                name,
                dice.choice([0, 0, 4, 8]),
                parent,
                borrowing=dice.choice([None, None, 0, 4, 8]),
                lending=dice.choice([None, None, 0, 4, 8]),
                weight=dice.choice([0, 500, 1000, 1000, 3000]),
                by_use=self.goes_by_use(),
            )
            self.queues.set_cohort(cohort)

    def goes_by_use(self):
        return self.by_use and self.scopes.random() < 0.6

    def submit(self):
        dice = self.dice
        self.count = dice.randint(4, 24)
        for at in range(self.count):
            shape = {"gpu": dice.choice([1, 2, 3, 4, 6, 8]), "level": HOST}
            if dice.random() < 0.2:
                shape = {
                    "count": dice.choice([2, 3]),
                    "gpu": dice.choice([2, 4]),
                    "level": dice.choice([RACK, HOST, None]),
                }
            workload = make_workload(
                f"w{at}",
                dice.choice([*self.queues.quotas.queues]),
                # Those who come later are more important more often, or nobody would be evicted.
                priority=dice.choice([0, 0, at * 4 // self.count]),
                created=float(at // dice.choice([1, 3])),
                **shape,
            )
            self.queues.submit(workload, self.now)
            # Most come while others run already.
            while dice.random() < 0.7:
                self.cycle()

    def cycle(self):
        """One cycle; all its victims are gone and wait again. Whether it decided anything."""
        self.now += self.step
        made = cycle(self.state, self.queues, self.now)
        assert not made.failed
        for one in made.preempting:
            for victim in one.victims:
                self.evictions.append((one.key, victim.key))
                self.reasons[victim.reason] += 1
                self.queues.release_and_requeue(self.state, victim.key, self.now)
        return bool(made.admitted or made.preempting or made.more)

    def run(self):
        """Cycles until nothing happens any more; the last evictions where that does not come."""
        idle = 0
        for _ in range(40 * self.count):
            # Where nothing happens shares may still cross.
            idle = 0 if self.cycle() else idle + 1
            if idle > (20 if self.by_use else 0):
                return []
            if len(self.evictions) > 8 * self.count:
                break
        return self.evictions[-4 * self.count :]


@pytest.mark.parametrize("by_use", [False, True])
@pytest.mark.parametrize("first", range(0, TREES, BATCH))
def test_nobody_evicts_each_other_for_ever(first, by_use):
    endless = {}
    for seed in range(first, min(first + BATCH, TREES)):
        closed = Closed(seed, by_use=by_use)
        if found := closed.run():
            endless[seed] = " ".join(f"{taker}>{victim}" for taker, victim in found[-12:])
    assert endless == {}


@pytest.mark.parametrize("by_use", [False, True])
def test_there_are_evictions_by_every_rule(by_use):
    """Else the test above shows nothing."""
    found, different = Counter(), 0
    for seed in range(100):
        closed = Closed(seed, by_use=by_use)
        closed.run()
        found.update(closed.reasons)
        different += bool(closed.queues.quotas.over_time.scopes and closed.evictions)
    assert different > 20 if by_use else different == 0
    for reason in (Reason.IN_CLUSTER_QUEUE, Reason.RECLAIMED, Reason.RECLAIMED_WHILE_BORROWING, Reason.FAIR_SHARING):
        assert found[reason] > 3, found


def test_three_rules_do_not_make_a_circle():
    """One borrows and evicts who is less important; the owner takes that back; its own queue prefers who is older."""
    queues = make_queues(
        make_queue("own", 4, cohort="c", preemption=Preemption(within=Within.LOWER_OR_NEWER, reclaim=Reclaim.ANY)),
        make_queue("bold", 0, cohort="c", preemption=Preemption(reclaim=Reclaim.ANY, borrowing=True)),
        make_queue("lender", 6, cohort="c"),
        rules=Rules(patience=1e9, leaving=0.0),
    )
    state = make_state(1, 2)
    queues.submit(make_workload("old", "own", level=HOST), 0.0)
    cycle(state, queues, 1.0)
    queues.submit(make_workload("important", "bold", level=HOST, priority=2, created=1.0), 1.0)
    queues.submit(make_workload("young", "own", gpu=3, level=HOST, created=2.0), 2.0)
    evictions = []
    for now in range(2, 26):
        for one in cycle(state, queues, float(now)).preempting:
            for victim in one.victims:
                evictions.append((one.key, victim.key))
                queues.release_and_requeue(state, victim.key, float(now))
    assert len(evictions) == len(set(evictions))

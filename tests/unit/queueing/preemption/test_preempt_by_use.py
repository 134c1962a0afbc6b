"""Victims of a queue whose LocalQueues share it over time: those of who used most go first, before priority."""

import random
from itertools import combinations

import pytest
from support.queue_factories import keys, make_queue, make_queues, make_state, make_workload, run, submit

from engine.results import Refusal
from queueing.model import LocalQueue, Preemption, Reclaim, Rules, UseRules, Within
from queueing.preemption.search import plan
from queueing.queues.flavor_assigner import put

USE = UseRules(half_life=600.0)
LOWER = Preemption(within=Within.LOWER)
WHOLE = Preemption(within=Within.LOWER, reclaim=Reclaim.ANY)


def shared(*queues, parts=("a", "b"), by_use=True, nominal=16, **more):
    made = make_queues(
        make_queue("q", nominal, by_use=by_use, **{"preemption": LOWER, **more}), *queues, rules=Rules(use=USE)
    )
    for part in parts:
        made.set_local_queue(LocalQueue(namespace="ns", name=part, cluster_queue="q"))
    return made


def used(queues, **consumed):
    for part, amount in consumed.items():
        queues.use.restore_use(f"ns/{part}", {"nvidia.com/gpu": amount}, queues.use.now)


def taken(found):
    return [victim.key for one in found.preempting for victim in one.victims]


@pytest.mark.parametrize(("by_use", "victim"), [(True, "heavy"), (False, "light")])
def test_the_heavy_local_queue_loses_its_important_workload_before_the_light_one_its_least(by_use, victim):
    """As in Kueue 0.19.2, pkg/scheduler/preemption/common/ordering.go, whose comment says the opposite of its code."""
    state, queues = make_state(1, 2), shared(by_use=by_use)
    submit(queues, make_workload("heavy", "a", priority=50), make_workload("light", "b", priority=10))
    assert len(keys(run(state, queues, 1.0))) == 2
    used(queues, a=40.0)
    submit(queues, make_workload("high", "b", priority=100, created=5.0))
    assert taken(run(state, queues, 5.0)) == [victim]


def test_within_one_local_queue_the_lowest_priority_goes_and_then_the_newest():
    state, queues = make_state(2, 2), shared(nominal=32)
    levels = (("a1", 5, 0.0), ("a2", 3, 1.0), ("a3", 3, 2.0), ("b1", 1, 0.0))
    submit(queues, *(make_workload(key, key[0], priority=high, created=at) for key, high, at in levels))
    assert len(keys(run(state, queues, 3.0))) == 4
    used(queues, a=40.0)
    submit(queues, make_workload("high", "b", priority=9, created=4.0))
    assert taken(run(state, queues, 4.0)) == ["a3"]


def test_who_may_be_taken_is_decided_by_priority_alone():
    state, queues = make_state(1, 2), shared()
    submit(queues, make_workload("heavy", "a", priority=50), make_workload("light", "b", priority=10))
    run(state, queues, 1.0)
    used(queues, a=40.0)
    submit(queues, make_workload("middle", "b", priority=20, created=5.0))
    assert taken(run(state, queues, 5.0)) == ["light"], "heavy is more important than it"


def test_borrowers_of_other_queues_go_before_the_own_ones_whatever_those_used():
    state = make_state(1, 2)
    queues = shared(make_queue("other", 0, cohort="x"), cohort="x", preemption=WHOLE, nominal=16)
    submit(queues, make_workload("mine", "a"), make_workload("theirs", "other", priority=7, created=1.0))
    assert len(keys(run(state, queues, 1.0))) == 2
    used(queues, a=90.0)
    submit(queues, make_workload("high", "b", priority=9, created=5.0))
    assert taken(run(state, queues, 5.0)) == ["theirs"]


@pytest.mark.parametrize("seed", range(60))
def test_no_other_set_of_victims_has_a_lower_level(seed):
    """Against every subset: the least highest place by (score, priority) of those that suffice."""
    dice = random.Random(seed)
    state, queues = make_state(2, 2), shared(parts="abc", nominal=32, preemption=Preemption())
    number = 0
    while True:
        count = dice.choice((1, 1, 2))
        made = make_workload(f"w{number}", dice.choice("abc"), count, gpu=4, priority=dice.randrange(4), created=number)
        submit(queues, made)
        number += 1
        if not keys(run(state, queues, 1.0)) or number > 12:
            break
    for part in "abc":
        used(queues, **{part: float(dice.randrange(0, 200, 50))})
    queues.set_cluster_queue(make_queue("q", 32, by_use=True, preemption=LOWER))
    held = [key for key in queues.holders.held_in("q") if queues.entries[key].grant is not None]
    submit(queues, make_workload("high", "c", dice.choice((1, 2)), priority=9, created=99.0))
    entry = queues.entries["high"]
    (option,) = queues.options_of(state, entry.group).found
    queues.fresh.clear()
    found = plan(state, queues, entry, option)
    place = {
        key: (-queues.use.score_of(queues.entries[key].workload.part), queues.entries[key].workload.priority)
        for key in held
    }
    best = None
    for size in range(1, len(held) + 1):
        for chosen in combinations(held, size):
            most = max(place[key] for key in chosen)
            if (best is None or most < best) and suffices(state, queues, entry, option, chosen):
                best = most
    if best is None:
        assert found is None
    else:
        assert max(place[victim.key] for victim in found.victims) == best


def suffices(state, queues, entry, option, chosen):
    """Whether one would fit with these gone."""
    depth, checkpoint = queues.quotas.begin(), state.begin()
    for key in chosen:
        queues.quotas.release_quota(key)
        state.release_workload(key)
    placed = not isinstance(put(state, "high", option), Refusal)
    found = placed and queues.quotas.fits_quota(entry.queue, option.amounts)
    state.rollback(checkpoint)
    queues.quotas.rollback(depth)
    return found

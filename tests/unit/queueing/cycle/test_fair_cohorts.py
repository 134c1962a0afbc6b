"""Queues of a cohort take turns by what they used over time of what is not their own; whom that has evicted, or not.

One node of 8 GPUs; cohort c has 8 of its own; the half-life is 600 s.
"""

import pytest
from support.queue_factories import (
    GPU,
    HOST,
    keys,
    make_cohort,
    make_queue,
    make_queues,
    make_state,
    make_workload,
    run,
    submit,
)

from queueing.cycle.cycle import cycle
from queueing.model import Preemption, Reclaim, Rules, UseRules
from queueing.queues.held import Held

USE = UseRules(half_life=600.0)
KEY = ("tas", GPU)
TAKES = Preemption(reclaim=Reclaim.ANY)


def rules(*, fair=False, patience=1e9, hold=1e9):
    return Rules(fair=fair, patience=patience, hold=hold, use=USE, leaving=0.0)


def scoped(*queues, fair=False, own=8, cohorts=(), **more):
    """Cohort c by use; ``queues``: ClusterQueues, or names of such without a quota of their own in c."""
    made = make_queues(rules=rules(fair=fair, **more))
    made.set_cohort(make_cohort("c", own, by_use=True))
    for cohort in cohorts:
        made.set_cohort(cohort)
    for queue in queues:
        add_queue(made, queue if not isinstance(queue, str) else make_queue(queue, 0, cohort="c"))
    return made


def add_queue(queues, queue):
    queues.set_cluster_queue(queue)
    source = make_queues(queue).config.local[("ns", queue.name)]
    queues.set_local_queue(source)


def used(queues, now, **consumed):
    """The queues or cohorts used so many GPUs beyond their own, up to now."""
    queues.pass_time(now)
    for name, amount in consumed.items():
        is_queue = name in queues.quotas.tree.queues
        queues.quotas.over_time.restore_use((is_queue, name), {GPU: float(amount)}, now)


def one(key, queue, gpu=8, **more):
    return make_workload(key, queue, gpu=gpu, level=HOST, **more)


def finish(state, queues, key, now):
    queues.pass_time(now)
    queues.remove_workload(state, key)


@pytest.mark.parametrize("fair", [True, False])
@pytest.mark.parametrize(("later", "first"), [(484.0 - 10, "b2"), (484.0 + 10, "a2")])
def test_one_that_had_all_has_its_turn_again_once_the_others_used_as_much(fair, later, first):
    """a held all until 1,200 s, then b: as much each 484 s later (`test_cohort_use`). a's job is more important."""
    state, queues = make_state(1, 1), scoped("a", "b", fair=fair)
    submit(queues, one("a1", "a"))
    assert keys(run(state, queues, 0.0)) == ["a1"]
    submit(queues, one("a2", "a", priority=9, created=1.0), one("b1", "b", created=2.0), now=2.0)
    finish(state, queues, "a1", 1200.0)
    assert keys(run(state, queues, 1200.0)) == ["b1"]
    submit(queues, one("b2", "b", created=1201.0), now=1201.0)
    finish(state, queues, "b1", 1200.0 + later)
    assert keys(run(state, queues, 1200.0 + later)) == [first]


@pytest.mark.parametrize("fair", [True, False])
def test_admissions_of_one_cycle_alternate_and_a_weight_of_two_gets_twice_as_many(fair):
    for weight, expected in ((1000, "abab"), (2000, "aba")):
        state = make_state(1, 1)
        queues = scoped(make_queue("a", 0, cohort="c", weight=weight), "b", fair=fair)
        for number in range(6):
            submit(queues, one(f"a{number}", "a", 1, created=number), one(f"b{number}", "b", 1, created=number))
        got = [key[0] for key in keys(run(state, queues))]
        assert "".join(got).startswith(expected)
        assert (got.count("a"), got.count("b")) == ((4, 4) if weight == 1000 else (5, 3))


def test_who_need_not_borrow_goes_first_whatever_it_used():
    state = make_state(1, 1)
    queues = scoped(make_queue("owner", 8, cohort="c"), "light", own=0)
    used(queues, 1.0, owner=80)
    submit(queues, one("o1", "owner", created=2.0), one("l1", "light", priority=9), now=2.0)
    assert keys(run(state, queues, 2.0)) == ["o1"]


@pytest.mark.parametrize("fair", [True, False])
def test_use_over_time_comes_before_priority_and_the_present_share_and_without_the_scope_it_does_not(fair):
    for by_use, expected in ((True, "l1"), (False, "h1")):
        state, queues = make_state(1, 1), scoped("heavy", "light", fair=fair)
        queues.set_cohort(make_cohort("c", 8, by_use=by_use))
        used(queues, 1.0, heavy=6)
        # light has more at present; heavy has used more by far.
        queues.charge_pod("ns/pod", Held("light", {KEY: 1}))
        submit(queues, one("h1", "heavy", 4, priority=9), one("l1", "light", 4), now=2.0)
        assert keys(run(state, queues, 2.0))[0] == expected


def deep(*, fair=False, **consumed):
    """org by use, above research (vision, speech) and product (ads); no quota but org's."""
    cohorts = (
        make_cohort("org", 8, by_use=True),
        make_cohort("research", 0, "org"),
        make_cohort("product", 0, "org"),
    )
    queues = scoped(fair=fair, cohorts=cohorts)
    for name, cohort in (("vision", "research"), ("speech", "research"), ("ads", "product")):
        add_queue(queues, make_queue(name, 0, cohort=cohort, preemption=TAKES))
    used(queues, 1.0, **consumed)
    return queues


@pytest.mark.parametrize("fair", [True, False])
def test_in_a_tree_the_cohorts_are_compared_by_what_all_below_them_used(fair):
    # ads itself used nothing, the cohort product did; research did not, though vision did before it came there.
    queues = deep(fair=fair, vision=6, research=1, product=3)
    submit(queues, one("a1", "ads", 4, priority=9), one("v1", "vision", 4), one("s1", "speech", 4), now=2.0)
    # Inside of research nothing goes by use: time and names decide (fair: equal shares).
    assert keys(run(make_state(1, 1), queues, 2.0)) == ["s1", "v1"]


@pytest.mark.parametrize("fair", [True, False])
def test_after_a_start_those_who_waited_long_have_the_others_before_them_by_use_too(fair):
    """`ByRank`: who waited long and was not looked at yet comes after those before it, and by leaves it would not."""
    queues = deep(fair=fair, research=1, product=3)
    queues.rules = Rules(fair=fair, patience=100.0, hold=1e9, use=USE, leaving=0.0)
    queues.pending._rules = queues.rules
    submit(queues, one("old", "ads", created=-500.0), one("v1", "vision", priority=-1, created=1.0), now=1.0)
    queues.entries["old"].since = -500.0
    queues.pending.aging.insert(0, (-400.0, "old"))
    assert keys(run(make_state(1, 1), queues, 2.0)) == ["v1"]


def fair_pair(**consumed):
    """q1 holds nothing, q2 all: two of 4; both borrow."""
    state = make_state(1, 1)
    queues = scoped(*(make_queue(name, 0, cohort="c", preemption=TAKES) for name in ("q1", "q2")), fair=True)
    submit(queues, one("q2-a", "q2", 4), one("q2-b", "q2", 4, created=1.0), now=1.0)
    assert len(keys(run(state, queues, 1.0))) == 2
    used(queues, 2.0, **consumed)
    queues.quotas.over_time.changed["q2"] = None
    return state, queues


def test_with_fair_sharing_one_that_used_more_over_time_evicts_nobody_until_it_did_not():
    """Looked at again each minute. By hand, 300 s ahead, where k = 0.7071 is left of what is counted now and x of 2 s:

    q1 with its 4 is at 4 * (1 - k) + 6 * x * k, q2 at 8 - 8 * x * k: as much at x = 0.69, 321 s later.
    """
    state, queues = fair_pair(q1=6)
    submit(queues, one("q1-a", "q1", 4, created=3.0), now=3.0)
    found = run(state, queues, 3.0)
    assert (found.preempting, keys(found)) == ([], [])
    assert queues.next_change_time() == 63.0
    times = []
    while (at := queues.next_change_time()) < 1e6:
        times.append(at)
        if found := run(state, queues, at).preempting:
            break
    assert found[0].key == "q1-a"
    assert times == [63.0, 123.0, 183.0, 243.0, 303.0, 363.0]


def test_one_that_grows_and_may_take_nothing_for_what_its_queue_used_is_looked_at_again_too():
    """It is in no line: what wakes those who wait there does not wake it."""
    state = make_state(1, 1)
    queues = scoped(*(make_queue(name, 0, cohort="c", preemption=TAKES) for name in ("q1", "q2")), fair=True)
    submit(queues, one("q1-a", "q1", 2), *(one(f"q2-{at}", "q2", 2, created=1.0 + at) for at in range(3)), now=1.0)
    assert len(keys(run(state, queues, 1.0))) == 4
    used(queues, 2.0, q1=6)
    queues.quotas.over_time.changed["q2"] = None
    queues.wish("q1-a", {"main": 2})
    assert run(state, queues, 3.0).preempting == []
    times = []
    while (at := queues.next_change_time()) < 1e6:
        times.append(at)
        if found := cycle(state, queues, at).preempting:
            break
    assert [victim.key for one in found for victim in one.victims] == ["q2-2"]
    assert times[0] == 63.0


def test_with_fair_sharing_one_that_used_less_takes_by_its_present_share_at_once():
    state, queues = fair_pair()
    submit(queues, one("q1-a", "q1", 4, created=3.0), now=3.0)
    assert [one.key for one in run(state, queues, 3.0).preempting] == ["q1-a"]


def test_what_is_its_own_is_taken_back_at_once_whatever_was_used():
    state = make_state(1, 1)
    queues = scoped(make_queue("owner", 8, cohort="c", preemption=TAKES), "light", own=0, fair=True)
    submit(queues, one("l1", "light"), now=1.0)
    run(state, queues, 1.0)
    used(queues, 2.0, owner=80)
    submit(queues, one("o1", "owner", created=2.0), now=2.0)
    assert [one.key for one in run(state, queues, 2.0).preempting] == ["o1"]


@pytest.mark.parametrize("fair", [True, False])
@pytest.mark.parametrize(("heavy", "victim"), [("x", "x1"), ("y", "y1")])
def test_who_takes_back_its_own_takes_it_from_the_one_that_used_most(fair, heavy, victim):
    """Before priority, as between LocalQueues: x1 is the more important one. Quota alone lacks: there are two nodes."""
    state = make_state(1, 2)
    queues = scoped(make_queue("owner", 8, cohort="c", preemption=TAKES), "x", "y", own=0, fair=fair)
    submit(queues, one("x1", "x", 4, priority=5), one("y1", "y", 4), now=1.0)
    assert len(keys(run(state, queues, 1.0))) == 2
    used(queues, 2.0, **{heavy: 6})
    submit(queues, one("o1", "owner", 4, priority=9, created=2.0), now=2.0)
    made = run(state, queues, 2.0).preempting
    assert [victim.key for one in made for victim in one.victims] == [victim]


@pytest.mark.parametrize("fair", [True, False])
def test_in_a_tree_the_child_that_used_most_loses_first_and_below_it_as_ever(fair):
    state = make_state(1, 2)
    queues = deep(fair=fair)
    add_queue(queues, make_queue("owner", 8, cohort="org", preemption=TAKES))
    queues.set_cohort(make_cohort("org", 0, by_use=True))
    work = one("v1", "vision", 2, priority=1), one("s1", "speech", 2, priority=2), one("a1", "ads", 4)
    submit(queues, *work, now=2.0)
    assert len(keys(run(state, queues, 2.0))) == 3
    used(queues, 3.0, research=9)
    submit(queues, one("o1", "owner", 2, priority=9, created=3.0), now=3.0)
    made = run(state, queues, 3.0).preempting
    assert [victim.key for one in made for victim in one.victims] == ["v1"]


@pytest.mark.parametrize(("hold", "admitted"), [(1e6, ["l1"]), (100.0, [])])
def test_a_soft_claim_of_a_heavy_queue_stops_no_lighter_one_and_a_hard_one_does(hold, admitted):
    state, queues = make_state(1, 1), scoped("heavy", "light", patience=50.0, hold=hold)
    submit(queues, one("h1", "heavy", 4), now=1.0)
    run(state, queues, 1.0)
    submit(queues, one("h-large", "heavy", 8, created=1.0), now=1.0)
    run(state, queues, 1.0)
    run(state, queues, 200.0)
    assert list(queues.claims) == ["h-large"]
    assert queues.claims["h-large"].soft == (hold > 1000.0)
    submit(queues, one("l1", "light", 4, created=201.0), now=201.0)
    assert keys(run(state, queues, 201.0)) == admitted


def test_one_that_is_late_is_not_kept_out_by_claims_of_lighter_ones_that_came_later():
    """Else a stream of lighter claimants would keep it out for ever."""
    state, queues = make_state(1, 1), scoped("heavy", "light", patience=50.0, hold=1000.0)
    submit(queues, one("l1", "light", 4), one("h0", "heavy", 2), now=1.0)
    assert len(keys(run(state, queues, 1.0))) == 2
    used(queues, 2.0, heavy=80)
    submit(queues, one("l-large", "light", 8, priority=0, created=2.0), now=2.0)
    run(state, queues, 2.0)
    run(state, queues, 100.0)
    assert list(queues.claims) == ["l-large"]
    submit(queues, one("h1", "heavy", 2, created=-2000.0), now=101.0)
    assert keys(run(state, queues, 101.0)) == []
    queues.entries["h1"].since = -2000.0  # it waits for so long, after a restart
    queues.look_again("h1")
    assert keys(run(state, queues, 102.0)) == ["h1"]


def kept_out(*, hold, priority=0):
    """h1 of heavy, which waits from 1 s on and claims nothing, would fit since 600 s; a claim of light's keeps it out.

    That one waits from 500 s on.
    """
    state = make_state(1, 1)
    queues = scoped(make_queue("heavy", 0, cohort="c", claims=False), "light", patience=50.0, hold=hold)
    submit(queues, one("l1", "light", 4), one("l2", "light", 4), now=1.0)
    assert len(keys(run(state, queues, 1.0))) == 2
    submit(queues, one("h1", "heavy", 2, priority=priority, created=1.0), now=1.0)
    submit(queues, one("l-large", "light", 8, created=2.0), now=500.0)
    run(state, queues, 500.0)
    run(state, queues, 551.0)
    assert list(queues.claims) == ["l-large"]
    finish(state, queues, "l2", 600.0)
    used(queues, 600.0, heavy=8000)
    assert keys(run(state, queues, 600.0)) == []
    return state, queues


def when_admitted(state, queues, last):
    """When the next one is admitted, if only time passes."""
    while (at := queues.next_change_time()) is not None and at <= last:
        if keys(run(state, queues, at)) == ["h1"]:
            return at
    return None


def test_one_that_becomes_late_is_looked_at_again_as_claims_of_lighter_ones_stop_it_no_more():
    assert when_admitted(*kept_out(hold=1000.0), 1400.0) == 1001.0


def test_one_that_a_claim_of_a_lighter_queue_keeps_out_gets_in_within_a_minute_of_their_crossing():
    state, queues = kept_out(hold=1e6)
    lighter = False
    while not lighter:
        at = queues.next_change_time()
        assert at <= queues.quotas.over_time.now + 60.0
        queues.pass_time(at)
        lighter = not queues.quotas.has_used_less("light", "heavy")
        assert keys(run(state, queues, at)) == (["h1"] if lighter else [])


def test_one_that_comes_before_a_claim_by_order_is_looked_at_again_once_that_is_hard():
    state, queues = kept_out(hold=1000.0, priority=9)
    queues.entries["h1"].since = 600.0  # it waits anew
    assert when_admitted(state, queues, 1599.0) == 1500.0


def test_two_queues_of_two_cohorts_do_not_evict_each_other_for_ever_as_their_shares_cross():
    state = make_state(1, 1)
    queues = deep(fair=True)
    submit(queues, *(one(f"{name}{at}", name, 4, created=at) for name in ("ads", "vision") for at in range(3)))
    evictions, now = [], 1.0
    for _ in range(400):
        now += 30.0
        for made in cycle(state, queues, now).preempting:
            for victim in made.victims:
                evictions.append((made.key, victim.key))
                queues.release_and_requeue(state, victim.key, now)
    assert len(evictions) == len(set(evictions))
    assert len(evictions) < 6


def test_time_alone_changes_nothing_where_nobody_waits_for_it():
    state, queues = make_state(1, 1), scoped("a", "b")
    submit(queues, one("a1", "a"))
    run(state, queues, 1.0)
    submit(queues, one("b1", "b", created=1.0), now=1.0)
    run(state, queues, 1.0)
    assert (queues.next_change_time(), queues.quotas.over_time.barred) == (1e9, {}), "its patience alone"

"""What the children of a cohort used over time beyond their own. Numbers by hand; half-life 600 s, looked 300 s ahead.

8 GPUs held from 0 to 1,200 s consume 6 (8 - 8 * 1/4), and half of that 600 s later.
"""

import random

import pytest
from support.queue_factories import GPU, make_cohort, make_queue

from queueing.model import NO_SHARE, UseRules
from queueing.queues.held import Held
from queueing.queues.quota import Quotas

KEY = ("tas", GPU)
EXACT = UseRules(half_life=600.0)
SAMPLED = UseRules(half_life=600.0, sampling=300.0)
HALF_A_LIFE = 0.5**0.5  # what is left of something after the 300 s that shares look ahead


def scoped(*queues, own=8, rules=EXACT, by_use=True):
    """Cohort c with a quota of its own, and queues of it: names, or ClusterQueues."""
    made = Quotas(rules)
    made.set_cohort(make_cohort("c", own, by_use=by_use))
    for queue in queues or ("a", "b"):
        made.set_queue(make_queue(queue, 0, cohort="c") if isinstance(queue, str) else queue)
    return made


def hold(quotas, queue, amount, at, key=None):
    quotas.pass_time(at)
    quotas.charge_workload(key or queue, Held(queue, {KEY: amount}))


def release(quotas, key, at):
    quotas.pass_time(at)
    quotas.release_quota(key)


def share(quotas, queue, more=0, at=None):
    if at is not None:
        quotas.pass_time(at)
    node = quotas.tree.queues.get(queue) or quotas.tree.cohorts[queue]
    return quotas.share_beside(node, {KEY: more}, fair=False)


def consumed(quotas, name, at):
    quotas.pass_time(at)
    node = quotas.tree.queues.get(name) or quotas.tree.cohorts[name]
    return quotas.over_time.consumed_by(node).get(GPU, 0.0)


@pytest.mark.parametrize("rules", [EXACT, SAMPLED])
def test_the_curve_of_example_e_as_a_share_of_what_the_cohort_has(rules):
    """Exact with a sampling interval too: Kueue 0.19.2 has nothing to follow here."""
    quotas = scoped(rules=rules)
    hold(quotas, "a", 8, 0.0)
    found = [share(quotas, "a", at=at)[1] for at in (0.0, 300.0, 600.0, 900.0, 1200.0)]
    assert [round(one, 1) for one in found] == [292.9, 500.0, 646.4, 750.0, 823.2]
    assert share(quotas, "a")[1] == pytest.approx(6.586 * 1000 / 8, abs=0.1)
    release(quotas, "a", 1200.0)
    assert share(quotas, "a") == NO_SHARE, "who borrows nothing has no share"
    asked = [share(quotas, "a", 2, at)[1] for at in (1200.0, 1500.0, 1800.0)]
    # What it would have used 300 s later: 2 + (6 - 2) * keep, and so on from 4.243 and 3.
    assert asked == [pytest.approx((2 + (used - 2) * HALF_A_LIFE) * 125, abs=0.1) for used in (6.0, 4.243, 3.0)]


def test_after_its_history_one_that_held_all_meets_the_other_after_484_seconds():
    """a held 8 until 1,200 s, b since then: 6 * x = 8 - 8 * x where x = 4/7 is left, 600 * log2(7/4) s later."""
    quotas = scoped()
    hold(quotas, "a", 8, 0.0)
    release(quotas, "a", 1200.0)
    hold(quotas, "b", 8, 1200.0)
    for later, first in ((483.0, "b"), (486.0, "a")):
        used = {name: consumed(quotas, name, 1200.0 + later) for name in "ab"}
        assert min(used, key=used.get) == first, used
    assert used == {name: pytest.approx(3.43, abs=0.02) for name in "ab"}


def test_what_is_its_own_is_not_counted_and_what_it_borrows_is():
    quotas = scoped(make_queue("a", 8, cohort="c"), "b")
    hold(quotas, "a", 8, 0.0)
    assert (consumed(quotas, "a", 1200.0), share(quotas, "a")) == (0.0, NO_SHARE)
    hold(quotas, "a", 4, 1200.0, key="more")
    assert consumed(quotas, "a", 1800.0) == pytest.approx(2.0)
    # Less of its own: 8 more are borrowed from now on.
    quotas.set_queue(make_queue("a", 0, cohort="c"))
    assert consumed(quotas, "a", 2400.0) == pytest.approx(12 + (2 - 12) / 2)


def test_resources_that_nobody_there_has_a_quota_of_are_not_remembered():
    """A pod says itself by which quota it runs, and may name any number of resources."""
    quotas = scoped()
    quotas.pass_time(0.0)
    quotas.charge_workload("pod", Held("a", {KEY: 8} | {("tas", f"x.org/r{at}"): 1 for at in range(300)}))
    quotas.pass_time(600.0)
    assert quotas.over_time.consumed_by(quotas.tree.queues["a"]) == {GPU: 4.0}


def test_looks_in_between_and_many_workloads_in_place_of_one_change_nothing():
    seldom, often = scoped(), scoped()
    hold(seldom, "a", 8, 0.0)
    for number in range(8):
        hold(often, "a", 1, 0.0, key=f"w{number}")
    for at in range(1, 1200, 7):
        share(often, "a", 3, float(at))
        often.over_time.consumed_by(often.tree.queues["a"])
    assert share(often, "a", at=1200.0) == pytest.approx(share(seldom, "a", at=1200.0))


def test_what_a_transaction_tries_leaves_nothing_and_counts_while_it_is_open():
    quotas = scoped()
    hold(quotas, "a", 2, 0.0)
    before = share(quotas, "a", at=600.0)
    depth = quotas.begin()
    quotas.charge_workload("tried", Held("a", {KEY: 6}))
    quotas.pass_time(900.0)
    assert share(quotas, "a") > before
    quotas.rollback(depth)
    assert share(quotas, "a") == before
    assert consumed(quotas, "a", 1200.0) == pytest.approx(2 - 2 / 4)


def test_the_weight_divides_and_without_any_weight_it_is_last():
    quotas = scoped(make_queue("a", 0, cohort="c", weight=2000), "b", make_queue("none", 0, cohort="c", weight=0))
    for name in ("a", "b", "none"):
        hold(quotas, name, 2, 0.0)
    shares = [share(quotas, name, at=600.0) for name in ("a", "b", "none")]
    assert shares[0][1] * 2 == pytest.approx(shares[1][1])
    assert sorted(shares) == shares
    assert shares[2][0]


def test_a_clock_that_goes_back_changes_nothing():
    quotas = scoped()
    hold(quotas, "a", 8, 1000.0)
    before = share(quotas, "a", at=1300.0)
    assert share(quotas, "a", at=900.0) == before


def test_a_cohort_is_compared_by_what_all_below_it_use_of_others():
    quotas = scoped("x")
    quotas.set_cohort(make_cohort("team", 4, "c"))
    for name in ("a", "b"):
        quotas.set_queue(make_queue(name, 0, cohort="team"))
    for name in ("a", "b"):
        hold(quotas, name, 4, 0.0)
    assert consumed(quotas, "team", 600.0) == pytest.approx(2.0), "8 used, 4 of its own, half of the rest"
    assert consumed(quotas, "a", 600.0) == 0.0, "team does not go by use"
    assert quotas.has_used_less("x", "a")
    assert not quotas.has_used_less("a", "b")
    assert not quotas.has_used_less("a", "x")


def test_without_a_half_life_or_a_scope_nothing_is_counted():
    for rules, by_use in ((None, True), (EXACT, False)):
        quotas = scoped(rules=rules, by_use=by_use)
        hold(quotas, "a", 8, 0.0)
        assert (consumed(quotas, "a", 900.0), share(quotas, "a"), quotas.over_time.changed) == (0.0, NO_SHARE, {})


def test_a_scope_that_comes_counts_from_then_on_and_one_that_goes_is_forgotten_as_it_decays():
    quotas = scoped(by_use=False)
    hold(quotas, "a", 8, 0.0)
    quotas.pass_time(600.0)
    quotas.set_cohort(make_cohort("c", 8, by_use=True))
    quotas.pass_time(601.0)
    assert consumed(quotas, "a", 1200.0) == pytest.approx(4.0, abs=0.01)
    quotas.set_cohort(make_cohort("c", 8))
    assert share(quotas, "a", 1) == NO_SHARE
    assert consumed(quotas, "a", 1800.0) == pytest.approx(2.0, abs=0.01)


def test_a_queue_that_is_made_again_goes_on_from_what_it_used():
    quotas = scoped()
    hold(quotas, "a", 8, 0.0)
    release(quotas, "a", 1200.0)
    quotas.remove_queue("a")
    quotas.pass_time(1500.0)
    quotas.set_queue(make_queue("a", 0, cohort="c"))
    assert consumed(quotas, "a", 1800.0) == pytest.approx(3.0)


def test_after_a_restart_what_still_runs_is_counted_as_if_nothing_had_happened():
    through = scoped("a", "b", own=64)
    hold(through, "a", 2, 0.0, "ended")
    hold(through, "a", 4, 100.0, "early")
    release(through, "ended", 500.0)
    stored = {name: consumed(through, name, 500.0) for name in "ab"}
    hold(through, "a", 1, 700.0, "late")
    hold(through, "b", 3, 800.0, "other")
    again = Quotas(EXACT)
    again.pass_time(1000.0)
    again.over_time.restore_use((True, "a"), {GPU: stored["a"]}, 500.0)
    again.set_cohort(make_cohort("c", 64, by_use=True))
    for name in "ab":
        again.set_queue(make_queue(name, 0, cohort="c"))
    for key, queue, amount, since in (("late", "a", 1, 700.0), ("early", "a", 4, 100.0), ("other", "b", 3, 800.0)):
        hold(again, queue, amount, 1000.0, key)
        again.over_time.count_past(queue, since)
    for name in "ab":
        assert consumed(again, name, 1000.0) == pytest.approx(consumed(through, name, 1000.0)), name
        assert share(again, name, at=1500.0) == pytest.approx(share(through, name, at=1500.0)), name


def test_a_time_that_is_still_to_come_in_what_was_stored_is_now():
    quotas = scoped()
    quotas.pass_time(1000.0)
    quotas.over_time.restore_use((True, "a"), {GPU: 6.0}, 1e12)
    assert consumed(quotas, "a", 1600.0) == pytest.approx(3.0)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_changes_it_is_the_integral_of_what_is_used_beyond(seed):
    """Against the sum over every second, in random trees whose quotas change."""
    dice = random.Random(f"cohort use {seed}")
    quotas = Quotas(EXACT)
    for name, parent in (("root", ""), ("x", "root"), ("y", "x")):
        quotas.set_cohort(make_cohort(name, 8, parent, by_use=dice.random() < 0.7, lending=dice.choice([None, 2])))
    for number in range(4):
        quotas.set_queue(make_queue(f"q{number}", dice.choice([0, 4]), cohort=dice.choice("xy"), lending=2))
    expected, now = {}, 0.0
    quotas.pass_time(0.0)
    for at in range(60):
        if dice.random() < 0.3:
            quotas.release_quota(f"w{dice.randrange(max(at, 1))}")
        else:
            quotas.charge_workload(f"w{at}", Held(f"q{dice.randrange(4)}", {KEY: dice.randint(1, 6)}))
        if dice.random() < 0.1:
            quotas.set_queue(make_queue("q0", dice.choice([0, 4, 8]), cohort=dice.choice("xy")))
        passed = dice.choice([0.0, 1.0, 90.0, 700.0])
        for node in (*quotas.tree.queues.values(), *quotas.tree.cohorts.values()):
            before = expected.get(node.name, 0.0)
            counts = node.parent is not None and node.parent.by_use
            over = max(0, node.usage.get(KEY, 0) - node.subtree.get(KEY, 0)) if counts else 0
            expected[node.name] = over + (before - over) * 0.5 ** (passed / 600.0)
        now += passed
        quotas.pass_time(now)
    for node in (*quotas.tree.queues.values(), *quotas.tree.cohorts.values()):
        found = quotas.over_time.consumed_by(node).get(GPU, 0.0)
        assert found == pytest.approx(expected[node.name] if expected[node.name] >= 0.01 else 0.0, abs=1e-4), node.name

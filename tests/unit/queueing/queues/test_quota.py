"""Quota: limits, lending and borrowing, usage keyed by workload, transactions, shares."""

import random

import pytest
from support.queue_factories import GPU, make_queue

from queueing.queues.held import Held
from queueing.queues.quota import Quotas

KEY = ("tas", GPU)


def quotas(*queues):
    made = Quotas()
    for queue in queues:
        made.set_queue(queue)
    return made


def hold(made, workload, queue, amount):
    made.charge_workload(workload, Held(queue, {KEY: amount}))


def left(made, *names):
    return [made.available(name, KEY) for name in names]


def test_without_a_cohort_nominal_is_all():
    made = quotas(make_queue("a", 10), make_queue("b", 5))
    hold(made, "w", "a", 7)
    assert left(made, "a", "b") == [3, 5]
    assert (made.limit("a", KEY), made.fits_quota("a", {KEY: 3}), made.fits_quota("a", {KEY: 4})) == (10, True, False)
    (missing,) = made.missing_quota("a", {KEY: 5})
    assert (missing.lacking, missing.used, missing.limit) == (2, 7, 10)


def test_a_cohort_lends_what_is_unused():
    made = quotas(make_queue("a", 10, cohort="c"), make_queue("b", 5, cohort="c"))
    hold(made, "w", "a", 12)
    assert left(made, "a", "b") == [3, 3]
    assert made.overuse_of_queue("a", KEY) == 2
    assert made.borrows("b", {KEY: 5}) is False
    assert made.borrows("b", {KEY: 6}) is True


def test_limits_of_borrowing_and_lending():
    made = quotas(make_queue("a", 10, cohort="c", borrowing=2), make_queue("b", 8, cohort="c", lending=3))
    assert left(made, "a", "b") == [12, 18]
    hold(made, "w", "a", 11)
    assert left(made, "a", "b") == [1, 7]  # one of the three lent is taken, so b has its own five and two
    hold(made, "v", "b", 8)
    assert made.available("a", KEY) == 0


def test_own_quota_that_is_not_lent_stays_when_the_cohort_is_over_full():
    made = quotas(make_queue("a", 10, cohort="c"), make_queue("b", 8, cohort="c", lending=3))
    hold(made, "w", "a", 13)
    made.set_queue(make_queue("a", 2, cohort="c"))
    assert left(made, "a", "b") == [0, 5]


def test_holding_twice_and_letting_go_twice_changes_nothing():
    made = quotas(make_queue("a", 10, cohort="c"), make_queue("b", 5, cohort="c"))
    for _ in range(2):
        hold(made, "w", "a", 12)
    assert left(made, "b") == [3]
    for _ in range(2):
        made.release_quota("w")
    assert left(made, "a", "b") == [15, 15]


def test_usage_outlives_its_queue():
    made = quotas(make_queue("a", 10))
    hold(made, "w", "a", 4)
    made.remove_queue("a")
    assert made.available("a", KEY) == 0
    made.set_queue(make_queue("a", 10, cohort="c"))
    assert made.available("a", KEY) == 6


def test_those_who_leave_count_for_others_but_not_as_borrowed():
    made = quotas(make_queue("a", 4, cohort="c"), make_queue("b", 4, cohort="c"))
    hold(made, "w", "a", 6)
    made.mark_leaving("w")
    assert (made.available("b", KEY), made.overuse_of_queue("a", KEY), made.used("a", KEY)) == (2, 0, 6)
    made.mark_leaving("w", leaving=False)
    assert made.overuse_of_queue("a", KEY) == 2


def test_a_share_is_the_dominant_part_of_what_is_lent_by_weight():
    made = quotas(
        make_queue("a", 8, cohort="c"),
        make_queue("b", 8, cohort="c", weight=2000),
        make_queue("d", 8, cohort="c", weight=0),
    )
    assert made.share("a") == (False, 0.0)
    hold(made, "w", "a", 14)
    assert made.share("a") == (False, 250)  # 6 of 24, in thousandths
    assert made.share("b", more={KEY: 14}) == (False, 125)
    assert made.share("d", more={KEY: 9}) == (True, pytest.approx(1000 / 24))
    assert made.share("a", less={KEY: 6}) == (False, 0.0)
    assert quotas(make_queue("alone", 4)).share("alone", more={KEY: 9}) == (False, 0.0)


def test_of_amounts_that_were_given_back_and_of_queues_that_nobody_made_nothing_is_kept():
    made = quotas(make_queue("a", 10, cohort="c"))
    before = [dict(made.tree.queues), dict(made.tree.cohorts["c"].usage)]
    for name in ("a", "forged"):
        made.charge_workload("w", Held(name, {("tas", "cpu"): 0, ("x", "made/up"): 0, KEY: 4}))
        assert set(made.usage(name)) == {KEY}
        made.mark_leaving("w")
        assert made.staying(name, KEY) == 0
        made.release_quota("w")
    assert [made.tree.queues, made.tree.cohorts["c"].usage] == before


def test_a_rollback_undoes_everything_nested_or_not():
    dice = random.Random(5)
    made = quotas(*(make_queue(f"q{i}", 20, cohort="c" if i else "", lending=i or None) for i in range(4)))
    opened = []
    for _ in range(2000):
        match dice.randrange(6):
            case 0:
                opened.append((snapshot(made), made.begin()))
            case 1 if opened:
                before, depth = opened.pop()
                made.rollback(depth)
                assert snapshot(made) == before
            case 2 if opened and dice.random() < 0.3:
                made.commit(opened.pop()[1])
            case 3:
                made.release_quota(f"w{dice.randrange(9)}")
            case 4:
                made.mark_leaving(f"w{dice.randrange(9)}", leaving=dice.random() < 0.5)
            case _:
                hold(made, f"w{dice.randrange(9)}", f"q{dice.randrange(4)}", dice.randrange(12))
    for before, depth in reversed(opened):
        made.rollback(depth)
        assert snapshot(made) == before


def test_several_are_given_back_and_marked_together_as_one_by_one():
    dice = random.Random(7)
    for _ in range(200):
        together, singly = (
            quotas(*(make_queue(f"q{i}", 20, cohort="c", lending=i or None) for i in range(3))) for _ in "ab"
        )
        shared = [{KEY: dice.randrange(5), ("tas", "cpu"): dice.randrange(3)} for _ in range(3)]
        for number in range(12):
            amounts = dice.choice([*shared, dict(dice.choice(shared))])
            held = Held(f"q{dice.randrange(3)}", amounts, dice.random() < 0.3, dice.random() < 0.3)
            for made in (together, singly):
                made.charge_workload(f"w{number}", held)
        before, depth = everything(together), together.begin()
        for _ in range(3):
            some, leaving = [f"w{number}" for number in dice.sample(range(15), 5)], dice.random() < 0.5
            together.mark_leaving(*some, leaving=leaving)
            for key in some:
                singly.mark_leaving(key, leaving=leaving)
            gone = [f"w{number}" for number in dice.sample(range(15), 3)]
            together.free_all(gone)
            for key in gone:
                singly.release_quota(key)
            assert everything(together) == everything(singly)
        together.rollback(depth)
        assert everything(together) == before


def everything(made):
    nodes = [(node.name, dict(node.usage), dict(node.gone)) for node in nodes_of(made) if node.usage or node.gone]
    return dict(made.held), nodes, {name: dict(of) for name, of in made._non_preemptible.items() if of}


def nodes_of(made):
    by_name = {**made.tree.queues, **{f"cohort {name}": node for name, node in made.tree.cohorts.items()}}
    return [by_name[name] for name in sorted(by_name)]


def snapshot(made):
    names = [f"q{i}" for i in range(4)]
    return dict(made.held), left(made, *names), [made.staying(name, KEY) for name in names]


def test_a_deleted_queue_is_forgotten_though_one_that_holds_none_of_it_is_told_to_go():
    quotas = Quotas()
    quotas.charge_workload("w", Held("gone", {}))
    quotas.mark_leaving("w")
    assert not quotas.tree.queues

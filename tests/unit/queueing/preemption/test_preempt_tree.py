"""Who may take from whom in a tree of cohorts: advantage, quotas of cohorts, the reasons that victims are told."""

import msgspec
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

from engine.reasons import Reason
from queueing.model import Preemption, Reclaim, Rules, Within
from queueing.preemption.cohort_reach import find_advantage, overuses, owed_cohort
from queueing.queues.cohort_tree import CohortTree

KEY = ("tas", GPU)
RECLAIM = Preemption(reclaim=Reclaim.ANY)


def example(held, *, preemption=RECLAIM, rules=None, size=4, priority=None):
    """Example A of QUEUES-PARITY, each queue with so much in pieces of one size; ``priority``: by name of the piece."""
    queues = make_queues(
        make_queue("vision", 12, lending=8, cohort="research", preemption=preemption),
        make_queue("speech", 8, borrowing=4, cohort="research"),
        make_queue("ads", 16, cohort="product"),
        rules=rules,
    )
    queues.set_cohort(make_cohort("org", 8))
    queues.set_cohort(make_cohort("research", 4, "org", borrowing=6, lending=10))
    queues.set_cohort(make_cohort("product", 0, "org"))
    state = make_state(2, 5)
    fill(state, queues, held, size=size, priority=priority or {})
    return state, queues


def fill(state, queues, held, *, size, priority):
    pieces = [
        make_workload(
            name,
            queue,
            gpu=size if at else size + amount % size,
            level=HOST,
            created=float(at),
            priority=priority.get(name, 0),
        )
        for queue, amount in held.items()
        for at in range(amount // size)
        for name in [f"{queue}-{at}"]
    ]
    submit(queues, *pieces)
    assert sorted(keys(run(state, queues))) == sorted(one.key for one in pieces)
    assert {name: queues.quotas.used(name, KEY) for name in held} == held


def asks(state, queues, amount, queue="vision", **more):
    """Who goes for one that asks for so much, by name, with the reason."""
    # In pods that fit anywhere: all that lacks is quota.
    submit(queues, make_workload("asks", queue, amount // 2, gpu=2, level=None, created=99.0, **more))
    made = run(state, queues, 100.0)
    assert keys(made) == []
    return {victim.key: victim.reason for one in made.preempting for victim in one.victims}


@pytest.mark.parametrize("least", ["speech-1", "ads-3"])
def test_example_b1(least):
    # vision is within its nominal quota, so it takes from both branches: the piece of the least priority.
    held = {"vision": 8, "speech": 12, "ads": 28}
    everyone = [f"{queue}-{at}" for queue, amount in held.items() for at in range(amount // 4)]
    state, queues = example(held, priority={name: 0 if name == least else 1 for name in everyone})
    assert asks(state, queues, 4) == {least: Reason.RECLAIMED}


B2 = {"vision": 12, "speech": 4, "ads": 32}


def test_example_b2_takes_two_pieces_of_the_other_branch():
    # vision is over its own 12, but research has 20, and uses 12 of them beside what vision does not lend.
    state, queues = example(B2)
    assert find_advantage(queues.quotas.tree.queues["vision"], {KEY: 6}) == 1
    assert asks(state, queues, 6) == {"ads-6": Reason.RECLAIMED, "ads-7": Reason.RECLAIMED}
    (made,) = [entry for entry in queues.entries.values() if entry.victims]
    assert owed_cohort(queues.quotas, made, "ads") == "research"


def test_example_b2_that_asks_for_ten_takes_nobody():
    state, queues = example(B2)
    assert find_advantage(queues.quotas.tree.queues["vision"], {KEY: 8}) == 1
    assert find_advantage(queues.quotas.tree.queues["vision"], {KEY: 10}) == 2
    assert asks(state, queues, 10) == {}


def test_a_victim_is_told_which_cohort_takes_its_quota_back():
    state, queues = example(B2)
    submit(queues, make_workload("asks", "vision", gpu=6, level=HOST, created=99.0))
    (made,) = run(state, queues, 100.0).preempting
    text = "preempted to make room for asks: cohort research takes back its quota for cluster queue vision"
    assert {made.message_to(victim) for victim in made.victims} == {text}


def test_a_flat_rule_would_take_nobody_in_both_cases():
    state, queues = example(B2)
    for name in ("org", "research", "product"):
        queues.remove_cohort(name)
    assert asks(state, queues, 6) == {}


def test_advantage_asks_for_the_priority_that_reclaim_allows():
    # Kueue 0.19.2, classifyPreemptionVariant: the policy first, whatever the comment beside it says.
    policy = msgspec.structs.replace(RECLAIM, reclaim=Reclaim.LOWER)
    state, queues = example(B2, preemption=policy, priority={f"ads-{at}": at // 4 for at in range(8)})
    assert asks(state, queues, 6, priority=1) == {"ads-2": Reason.RECLAIMED, "ads-3": Reason.RECLAIMED}


def test_without_advantage_borrow_within_cohort_counts_up_to_its_threshold():
    policy = msgspec.structs.replace(RECLAIM, borrowing=True, threshold=0)
    state, queues = example(B2, preemption=policy, priority={f"ads-{at}": at // 4 for at in range(8)})
    found = asks(state, queues, 8, priority=5)
    assert found == {"ads-2": Reason.RECLAIMED, "ads-3": Reason.RECLAIMED}, "research is owed 8"
    state, queues = example(
        {"vision": 12, "speech": 8, "ads": 28}, preemption=policy, priority={f"ads-{at}": at // 4 for at in range(7)}
    )
    found = asks(state, queues, 6, priority=5)
    assert found == {f"ads-{at}": Reason.RECLAIMED_WHILE_BORROWING for at in (2, 3)}


def test_with_borrowing_allowed_those_over_whom_it_has_advantage_are_taken_back_from_all_the_same():
    # The mildest mode first: what research is owed, then what vision may take while it borrows.
    policy = msgspec.structs.replace(RECLAIM, borrowing=True)
    held = {"vision": 8, "speech": 12, "ads": 28}
    state, queues = example(held, preemption=policy)
    assert find_advantage(queues.quotas.tree.queues["vision"], {KEY: 6}) == 2
    found = asks(state, queues, 6, priority=5)
    assert set(found.values()) == {Reason.RECLAIMED_WHILE_BORROWING}


def test_a_cohort_within_its_quota_loses_nobody_though_its_queue_borrows():
    queues = make_queues(
        make_queue("owner", 8, cohort="org", preemption=RECLAIM),
        make_queue("borrows", 0, cohort="team"),
        make_queue("lends", 8, cohort="team"),
        make_queue("other", 0, cohort="org"),
    )
    queues.set_cohort(make_cohort("team", 0, "org"))
    state = make_state(1, 4)
    fill(state, queues, {"borrows": 8, "other": 8}, size=4, priority={"other-0": 9, "other-1": 9})
    assert asks(state, queues, 4, "owner") == {"other-1": Reason.RECLAIMED}


def test_candidates_end_when_their_cohort_is_back_within_its_quota():
    queues = make_queues(
        make_queue("owner", 12, cohort="org", preemption=RECLAIM),
        make_queue("ads", 0, cohort="product"),
        make_queue("other", 0, cohort="org"),
    )
    queues.set_cohort(make_cohort("product", 16, "org"))
    queues.set_cohort(make_cohort("org", 0))
    state = make_state(1, 4)
    # Product uses 20 of its 16: the first piece of ads may go, and the second may not any more.
    fill(state, queues, {"ads": 20, "other": 8}, size=4, priority={f"other-{at}": 9 for at in range(2)})
    found = asks(state, queues, 8, "owner")
    assert sorted(found) == ["ads-4", "other-1"]


@pytest.mark.parametrize(("held", "amount", "goes"), [({"vision": 8, "speech": 12, "ads": 28}, 4, 1), (B2, 4, 0)])
def test_budgets_yield_to_the_queues_own_quota_alone(held, amount, goes):
    state, queues = example(held, rules=Rules(override=True))
    for name in [key for key in queues.entries if queues.entries[key].queue != "vision"]:
        queues.budgets.set_selected(name, {"keep": 1})
    assert len(asks(state, queues, amount)) == goes


def test_what_comes_back_by_itself_below_a_cohort_is_not_taken_from_it():
    state, queues = example(B2)
    # 16 of the 32 of ads end by themselves, as product is to have 16.
    for at in range(4):
        queues.leaving.pod_ended(f"ads-{at}")
    queues.leaving.review_leaving(state, 100.0)
    tree = queues.quotas.tree
    nodes = tree.queues["ads"], tree.cohorts["product"]
    assert [overuses(queues.leaving, node, {KEY}) for node in nodes] == [False, False]
    queues.leaving.workload_gone("ads-0")
    queues.leaving.review_leaving(state, 100.0)
    assert [overuses(queues.leaving, node, {KEY}) for node in nodes] == [True, True]


def test_own_queue_last():
    policy = Preemption(reclaim=Reclaim.ANY, within=Within.LOWER)
    state, queues = example(B2, preemption=policy)
    assert set(asks(state, queues, 10, priority=1).values()) == {Reason.IN_CLUSTER_QUEUE}


FAIR = Rules(fair=True)
D = {"vision": 12, "speech": 10, "ads": 22}


@pytest.mark.parametrize(("size", "amount", "goes"), [(2, 6, ["ads-10"]), (4, 6, ["ads-4"]), (2, 8, []), (4, 8, [])])
def test_example_d(size, amount, goes):
    # research 117.6 with it, product 176.5: without 2 of ads 117.6, the first pass; without 4 58.8, so the second.
    state, queues = example(D, rules=FAIR, size=size)
    tree = queues.quotas.tree
    shares = [
        tree.share_of(tree.cohorts[name], {KEY: more}, {})[1] for name, more in (("research", amount), ("product", 0))
    ]
    assert shares == pytest.approx([{6: 117.6, 8: 176.5}[amount], 176.5], abs=0.1)
    assert asks(state, queues, amount) == dict.fromkeys(goes, Reason.FAIR_SHARING)


def test_within_nominal_takes_without_comparing():
    # FairSharingPreemptWithinNominal: vision is owed 4, though its share of memory or its weight may be anything.
    state, queues = example({"vision": 8, "speech": 12, "ads": 28}, rules=FAIR)
    queues.set_cluster_queue(make_queue("vision", 12, lending=8, cohort="research", weight=0, preemption=RECLAIM))
    assert asks(state, queues, 4) == {"ads-6": Reason.RECLAIMED}


def test_two_of_weight_zero_compare_unweighted():
    def both(held):
        queues = make_queues(
            make_queue("a", 0, cohort="c", weight=0, preemption=RECLAIM),
            make_queue("b", 0, cohort="c", weight=0),
            make_queue("lender", 24, cohort="c"),
            rules=FAIR,
        )
        state = make_state(1, 4)
        fill(state, queues, held, size=4, priority={})
        return asks(state, queues, 4, "a")

    assert both({"a": 4, "b": 20}) == {"b-4": Reason.FAIR_SHARING}
    assert both({"a": 12, "b": 12}) == {}


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("weight", "asked", "goes"),
    [(2000, 8, {"a-0": Reason.IN_CLUSTER_QUEUE, "b-0": Reason.FAIR_SHARING}), (1000, 5, {})],
    ids=["both are needed", "its own is not needed"],
)
def test_another_queue_loses_what_it_may_once_those_of_the_own_queue_are_gone_that_have_to_go(
    nested, weight, asked, goes
):
    # a has 4 of 10, b 6. With weight 2, 8 in place of the 4 are a share below that of b, beside them they are not. With
    # weight 1 the same holds for 5, but the 6 of b would be room enough: the 4 would stay, and a have 9 of 10. Kueue
    # 0.19.2 has b evicted for that (pkg/scheduler/preemption/preemption.go: fairPreemptions compares without the 4,
    # and fillBackWorkloads has them stay).
    names = ("left", "right") if nested else ("org", "org")
    queues = make_queues(
        make_queue("a", 0, cohort=names[0], weight=weight, preemption=Preemption(Within.LOWER, Reclaim.ANY)),
        make_queue("b", 0, cohort=names[1]),
        make_queue("lender", 10, cohort="org"),
        rules=FAIR,
    )
    if nested:
        queues.set_cohort(make_cohort("left", 0, "org", weight=weight))
        queues.set_cohort(make_cohort("right", 0, "org"))
    state = make_state(1, 4)
    for name, amount in (("a", 4), ("b", 6)):
        submit(queues, make_workload(f"{name}-0", name, amount, gpu=1, level=None))
    assert len(keys(run(state, queues))) == 2
    submit(queues, make_workload("asks", "a", asked, gpu=1, level=None, created=99.0, priority=1))
    made = run(state, queues, 100.0)
    assert {victim.key: victim.reason for one in made.preempting for victim in one.victims} == goes


def test_the_largest_share_from_the_root_down_loses_first_though_its_queue_has_a_smaller_one():
    queues = make_queues(
        make_queue("mine", 0, cohort="org", preemption=RECLAIM),
        make_queue("small", 0, cohort="large"),
        make_queue("other", 0, cohort="large"),
        make_queue("greedy", 0, cohort="modest"),
        make_queue("lender", 40, cohort="org"),
        rules=FAIR,
    )
    queues.set_cohort(make_cohort("large", 0, "org"))
    queues.set_cohort(make_cohort("modest", 0, "org"))
    state = make_state(1, 8)
    fill(state, queues, {"small": 8, "other": 16, "greedy": 16}, size=4, priority={})
    # large has 24 of 40, modest 16; in large other has more than small, and less than greedy has in modest.
    assert asks(state, queues, 4, "mine") == {"other-3": Reason.FAIR_SHARING}


def test_in_a_cohort_of_one_level_the_share_that_is_the_largest_then_loses_next():
    # greedy has 16 in two pieces, other 12 in three: once a piece of greedy is gone, other has the largest share. Kueue
    # 0.19.2 asks for the largest share before each victim (pkg/scheduler/preemption/fairsharing/ordering.go).
    queues = make_queues(
        make_queue("mine", 0, cohort="org", weight=2000, preemption=RECLAIM),
        make_queue("greedy", 0, cohort="org"),
        make_queue("other", 0, cohort="org"),
        make_queue("lender", 28, cohort="org"),
        rules=FAIR,
    )
    state = make_state(1, 4)
    fill(state, queues, {"greedy": 16}, size=8, priority={})
    fill(state, queues, {"other": 12}, size=4, priority={})
    assert asks(state, queues, 12, "mine") == dict.fromkeys(["greedy-1", "other-2"], Reason.FAIR_SHARING)


def test_own_cohort_counts_with_what_is_asked_for():
    queues = make_queues(
        make_queue("mine", 0, cohort="team", preemption=RECLAIM),
        make_queue("beside", 0, cohort="team"),
        make_queue("far", 0, cohort="org"),
        make_queue("lender", 24, cohort="org"),
        rules=FAIR,
    )
    queues.set_cohort(make_cohort("team", 0, "org"))
    state = make_state(1, 4)
    fill(state, queues, {"beside": 12, "far": 12}, size=4, priority={})
    # With the 4 that mine wants team has 16 of 24 and far 12: it takes from its own side.
    assert asks(state, queues, 4, "mine") == {"beside-2": Reason.FAIR_SHARING}


def test_a_fair_search_costs_a_tree_of_a_thousand_levels_no_more_than_its_depth(monkeypatch):
    """Every step of the way down asked for the whole way up: 0.14 s in a tree of 1,000 levels."""

    def steps(depth):
        queues = make_queues(
            make_queue("a", 8, cohort=f"c{depth}", preemption=RECLAIM),
            make_queue("b", 8, cohort=f"c{depth}"),
            make_queue("lends", 16, cohort="c0"),
            rules=FAIR,
        )
        queues.set_cohort(make_cohort("c0", 0))
        for level in range(1, depth + 1):
            queues.set_cohort(make_cohort(f"c{level}", 0, f"c{level - 1}"))
        state = make_state(1, 8)
        submit(queues, *(make_workload(f"b-{at}", "b", level=None, created=float(at)) for at in range(4)))
        run(state, queues)
        for at in range(4):
            queues.stored(f"b-{at}")
        submit(queues, make_workload("waits", "a", level=None, created=9.0))
        walked = 0
        handed_up_to, handed_along = CohortTree.handed_up_to, CohortTree.handed_along

        def up_to(tree, below, node, more):
            nonlocal walked
            walked += 1 + ([below, *below.path].index(node) if node in below.path else 0)
            return handed_up_to(tree, below, node, more)

        def along(tree, below, more):
            nonlocal walked
            walked += 1 + len(below.path)
            return handed_along(tree, below, more)

        monkeypatch.setattr(CohortTree, "handed_up_to", up_to)
        monkeypatch.setattr(CohortTree, "handed_along", along)
        (found,) = run(state, queues).preempting
        monkeypatch.undo()
        assert (found.key, [victim.key for victim in found.victims]) == ("waits", ["b-3"])
        return walked

    few, many = steps(50), steps(200)
    assert few > 50
    assert many < 5 * few


@pytest.mark.parametrize("asked", [1, 5, 9, 30])
def test_what_is_handed_up_a_path_is_the_same_in_one_walk(asked):
    _, queues = example({"vision": 12, "speech": 8, "ads": 20})
    tree = queues.quotas.tree
    for node in tree.queues.values():
        for amount in (asked, -asked):
            found = tree.handed_along(node, {KEY: amount})
            for above in (node, *node.path):
                assert found[id(above)] == tree.handed_up_to(node, above, {KEY: amount})

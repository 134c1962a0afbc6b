"""Which flavor: Kueue's modes and levels (0.19.2, pkg/scheduler/flavorassigner/flavorassigner.go), and its preference.

Each flavor of these tests has a state of its own: what is free in it, whom the preemptor may evict there, and whether
it borrows then. f1 is the first in the queue's order.
"""

import pytest
from support.queue_factories import GPU, make_queue, make_queues, make_state, make_workload, run, submit

from queueing.cycle import nominate
from queueing.model import Preemption, Reclaim, Within

BOTH = Preemption(within=Within.LOWER, reclaim=Reclaim.ANY)
BORROWING = Preemption(within=Within.LOWER, reclaim=Reclaim.ANY, borrowing=True)
MAY_STOP, TRY_NEXT = True, False
FLAVORS = ("f1", "f2", "f3")
SIZE = 6


class Flavors:
    """Queue q of cohort c, with the room and the workloads that each flavor is said to have."""

    def __init__(self, *, borrow, preempt, preference=False, preemption=BORROWING, cohort="c", **flavors):
        self.state = make_state(1, 4, flavors=FLAVORS, gpu=32)
        own = {name: one.get("nominal", 0) for name, one in flavors.items()}
        other = {name: one.get("lent", 0) for name, one in flavors.items()}
        rules = {"borrow_first": borrow, "preempt_first": preempt, "preempt_before_borrow": preference}
        self.queues = make_queues(
            make_queue("q", own, cohort=cohort, preemption=preemption, **rules),
            make_queue("lender", other, cohort=cohort),
            *(make_queue(f"in-{name}", {name: 0}, cohort="c") for name in flavors),
        )
        for name, one in flavors.items():
            # Holders get where they are to be through queues of that one flavor, which then are the queues in question.
            for number, (queue, size, priority) in enumerate(one.get("held", ())):
                self.put(f"{name}-{number}", queue, name, size, priority)

    def put(self, key, queue, flavor, size, priority):
        workload = make_workload(key, queue, gpu=size, level=None, priority=priority)
        only = self.queues.quotas.queues[queue]
        groups = make_queue(queue, {flavor: 1000}).groups
        self.queues.set_cluster_queue(type(only)(name=queue, groups=groups))
        submit(self.queues, workload)
        assert [one.key for one in run(self.state, self.queues).admitted] == [key]
        self.queues.set_cluster_queue(only)

    def outcome(self, size=SIZE, priority=50):
        """(the flavor, the victims) of a workload that comes now."""
        submit(self.queues, make_workload("w", gpu=size, level=None, priority=priority, created=5.0), now=5.0)
        made = run(self.state, self.queues, 6.0)
        for one in made.admitted:
            return one.grant.flavors["main"][GPU], []
        for one in made.preempting:
            return one.grant.flavors["main"][GPU], sorted(str(victim.key) for victim in one.victims)
        return None


# What a flavor may be to the workload of 6: where it fits, with whom gone it would fit, and at which level then.
FITS = {"nominal": 6}
BORROWS = {"nominal": 4, "lent": 2}
RECLAIMS = {"nominal": 6, "held": [("in", 6, 0)]}
EVICTS_OWN = {"nominal": 6, "held": [("q", 6, 0)]}
# The lender's other workloads are within its own quota; of the preemptor's cohort only 2 are left of what it borrows.
BORROWS_AND_RECLAIMS = {"nominal": 4, "lent": 2, "held": [("in", 2, 0)]}
BORROWS_AND_EVICTS_OWN = {"nominal": 4, "lent": 2, "held": [("q", 2, 0)]}
NOBODY = {"nominal": 6, "held": [("q", 6, 100)]}  # all have a higher priority


def flavor(name, what):
    return {**what, "held": [(f"in-{name}" if q == "in" else q, size, p) for q, size, p in what.get("held", ())]}


def chosen(*kinds, borrow=TRY_NEXT, preempt=TRY_NEXT, preference=False, **more):
    flavors = {name: flavor(name, what) for name, what in zip(FLAVORS, kinds, strict=False)}
    found = Flavors(borrow=borrow, preempt=preempt, preference=preference, **more, **flavors).outcome()
    return None if found is None else found[0]


def test_what_each_flavor_is_here():
    for what, victims in (
        (FITS, []),
        (BORROWS, []),
        (RECLAIMS, ["f1-0"]),
        (EVICTS_OWN, ["f1-0"]),
        (BORROWS_AND_RECLAIMS, ["f1-0"]),
        (BORROWS_AND_EVICTS_OWN, ["f1-0"]),
    ):
        assert Flavors(borrow=TRY_NEXT, preempt=TRY_NEXT, f1=flavor("f1", what)).outcome() == ("f1", victims)
    assert Flavors(borrow=TRY_NEXT, preempt=TRY_NEXT, f1=flavor("f1", NOBODY)).outcome() is None


def test_a_flavor_in_which_it_would_preempt_and_borrow_does_not_end_the_search_where_borrowing_tries_the_next_one():
    # `shouldTryNextFlavor`: whenCanPreempt MayStopSearch stops only at what whenCanBorrow does not pass over.
    for both in (BORROWS_AND_RECLAIMS, BORROWS_AND_EVICTS_OWN):
        assert chosen(both, FITS, preempt=MAY_STOP) == "f2"
        assert chosen(both, BORROWS, preempt=MAY_STOP) == "f2"
        assert chosen(both, FITS, borrow=MAY_STOP, preempt=MAY_STOP) == "f1"
    for one in (RECLAIMS, EVICTS_OWN):
        assert chosen(one, FITS, preempt=MAY_STOP) == "f1"
        assert chosen(one, FITS) == "f2"


@pytest.mark.parametrize("preference", [False, True])
def test_the_flavor_that_ends_the_search_wins_whatever_was_tried_before_it(preference):
    # As in Kueue, where the loop breaks with it: whenCanPreempt MayStopSearch goes before borrowing in an earlier one.
    assert chosen(BORROWS, EVICTS_OWN, preempt=MAY_STOP, preference=preference) == "f2"
    # And borrowing with MayStopSearch before preempting in an earlier one.
    assert chosen(EVICTS_OWN, BORROWS, FITS, borrow=MAY_STOP, preference=preference) == "f2"


@pytest.mark.parametrize(
    ("kinds", "by_default", "preferred"),
    [
        ((BORROWS, EVICTS_OWN), "f1", "f2"),  # example G of QUEUES-PARITY
        ((BORROWS, RECLAIMS), "f1", "f2"),
        ((EVICTS_OWN, RECLAIMS), "f2", "f2"),  # reclaim before preempt at one level
        ((BORROWS_AND_RECLAIMS, EVICTS_OWN), "f1", "f2"),  # by mode first, or by level first
        ((BORROWS_AND_EVICTS_OWN, RECLAIMS), "f2", "f2"),
        ((BORROWS_AND_EVICTS_OWN, EVICTS_OWN), "f2", "f2"),  # by level where the modes are one
        ((NOBODY, BORROWS), "f2", "f2"),  # no candidates: as no flavor
        ((BORROWS, NOBODY), "f1", "f1"),
        ((EVICTS_OWN, BORROWS, RECLAIMS), "f2", "f3"),
        ((EVICTS_OWN, EVICTS_OWN), "f1", "f1"),  # of equals the first
    ],
)
def test_the_best_of_the_flavors_that_were_tried(kinds, by_default, preferred):
    # `isPreferred`, with both whenCan... saying TryNextFlavor.
    assert chosen(*kinds) == by_default
    assert chosen(*kinds, preference=True) == preferred


def test_without_a_cohort_the_preference_changes_nothing():
    for kinds in ((EVICTS_OWN, FITS), (FITS, EVICTS_OWN), (EVICTS_OWN, EVICTS_OWN), (NOBODY, EVICTS_OWN)):
        found = [chosen(*kinds, preference=preference, cohort="") for preference in (False, True)]
        assert found[0] == found[1]
        assert found[0] is not None


def test_a_flavor_without_the_domain_is_passed_over_though_its_quota_suffices():
    # Kueue 0.19.2 decides by quota alone, and waits (kubernetes-sigs/kueue 13658, 10824).
    state = make_state(1, 2, flavors=("f1", "f2"))
    state.remove_node("f1-0")
    queues = make_queues(make_queue("q", {"f1": 16, "f2": 16}))
    submit(queues, make_workload("w", count=2))  # two whole nodes of one rack
    (admitted,) = run(state, queues).admitted
    assert admitted.grant.flavors["main"][GPU] == "f2"


@pytest.mark.parametrize(("cohort", "looked_at"), [("c", 4), ("", 1)])
def test_a_look_compares_a_few_plans_at_most(cohort, looked_at, monkeypatch):
    # Where nobody can be reclaimed from, the first plan is as good as any, and ends the look.
    planned, plan = [], nominate.plan
    monkeypatch.setattr(nominate, "plan", lambda *given: planned.append(given[-1]) or plan(*given))
    flavors = [f"f{number}" for number in range(1, 9)]
    state = make_state(1, 1, flavors=flavors)
    queues = make_queues(make_queue("q", dict.fromkeys(flavors, 8), cohort=cohort, preemption=BOTH))
    submit(queues, *(make_workload(f"runs-{name}") for name in flavors))
    assert len(run(state, queues).admitted) == 8
    submit(queues, make_workload("w", priority=5, created=1.0))
    (made,) = run(state, queues, 2.0).preempting
    assert made.grant.flavors["main"][GPU] == "f1"
    assert len(planned) == looked_at

"""How cohorts stand: what is below them added up, what they borrow of their parents, and what is wrong with a tree."""

import pytest
from support.queue_factories import GPU, make_cohort, make_queue, make_queues, make_state, make_workload, run, submit

from engine.reasons import Reason
from queueing.model import Rules, Stop
from queueing.queues.entry import AssumedAdmission
from queueing.status import INFINITE_SHARE, LENDS, MOST_FLAVORS, MOST_RESOURCES, body, standings

KEY = ("tas", GPU)


def organisation(**rules):
    """Example A of Kueue's rules: org has 8 of its own, research 4; vision, speech and ads have 12, 8 and 16."""
    queues = make_queues(
        make_queue("vision", 12, cohort="research", lending=8),
        make_queue("speech", 8, cohort="research", borrowing=4),
        make_queue("ads", 16, cohort="product"),
        rules=Rules(**rules),
    )
    queues.set_cohort(make_cohort("org", 8))
    queues.set_cohort(make_cohort("research", 4, "org", borrowing=6, lending=10))
    queues.set_cohort(make_cohort("product", 0, "org"))
    return queues


def hold(queues, **amounts):
    """What a workload of each of these queues holds."""
    for name, amount in amounts.items():
        queues.submit(make_workload(f"ns/{name}", name), 0.0)
        queues.grant(make_state(), f"ns/{name}", AssumedAdmission(name, {"main": 0}, {}, {KEY: amount}, ()))


def told(queues):
    """By cohort: total and borrowed of the GPUs."""
    found = {}
    for name, standing in standings(queues, ("tas",)).cohorts.items():
        ((flavor),) = body(standing)["flavorsReservation"]
        ((usage),) = flavor["resources"]
        found[name] = usage["total"], usage["borrowed"]
    return found


def test_a_cohort_holds_what_all_queues_below_it_hold_and_borrows_what_is_beyond_its_subtree():
    queues = organisation()
    hold(queues, vision=16, speech=10, ads=20)
    # research: of 20 that it has with its queues 4 are vision's own, which count for nobody else; 22 of 20 are used.
    assert told(queues) == {"org": ("46", "0"), "research": ("26", "2"), "product": ("20", "4")}


def test_what_a_queue_holds_of_its_own_and_lends_to_nobody_is_not_borrowed_by_its_cohort():
    queues = organisation()
    hold(queues, vision=12)
    assert told(queues)["research"] == ("12", "0")


def test_those_who_wait_and_those_who_hold_are_added_up():
    state, queues = make_state(), organisation()
    submit(
        queues,
        make_workload("ns/a", "vision", gpu=8),
        make_workload("ns/b", "speech", count=9),
        make_workload("ns/c", "ads", gpu=8),
    )
    run(state, queues)
    found = standings(queues, ("tas",), unchecked={"ns/c"}).cohorts
    numbers = {name: (one.pending, one.reserving, one.admitted) for name, one in found.items()}
    assert numbers == {"org": (1, 2, 1), "research": (1, 1, 1), "product": (0, 1, 0)}


def test_the_status_of_a_cohort_has_no_field_that_its_kind_lacks():
    assert set(body(standings(organisation(), ()).cohorts["org"])) == {
        *("pendingWorkloads", "reservingWorkloads", "admittedWorkloads", "flavorsReservation", "fairSharing")
    }


def test_every_quota_is_named_also_where_nothing_is_used():
    assert told(organisation()) == {"org": ("0", "0"), "research": ("0", "0"), "product": ("0", "0")}


def test_shares_of_cohorts_by_their_weights():
    queues = organisation(fair=True)
    hold(queues, vision=16, speech=10, ads=20)
    found = {name: one.share for name, one in standings(queues, ("tas",)).cohorts.items()}
    # Of the 34 that org may use: 2 and 4 are 58.8 and 117.6 thousandths; Kueue 0.19.2 rounds up (fair_sharing.go).
    assert found == {"org": None, "research": 59, "product": 118}
    queues.set_cohort(make_cohort("product", 0, "org", weight=2000))
    assert standings(queues, ("tas",)).cohorts["product"].share == 59
    queues.set_cohort(make_cohort("product", 0, "org", weight=0))
    assert standings(queues, ("tas",)).cohorts["product"].share == INFINITE_SHARE


def test_a_share_is_never_more_than_its_field_holds():
    queues = make_queues(
        make_queue("q", 0, cohort="c", weight=1), make_queue("d", 1, cohort="c"), rules=Rules(fair=True)
    )
    hold(queues, q=2**62)  # the API server would refuse the whole status for one number beyond 64 bits
    assert standings(queues, ("tas",)).cluster["q"].share == INFINITE_SHARE


def test_a_share_that_is_whole_is_not_rounded_up():
    queues = make_queues(make_queue("a", 0, cohort="x"), make_queue("b", 100, cohort="x"), rules=Rules(fair=True))
    hold(queues, a=29)
    assert standings(queues, ("tas",)).cluster["a"].share == 290


def activity(queues, *names):
    found = standings(queues, ("tas",)).cohorts
    return [(found[name].active, found[name].reason, found[name].message) for name in names]


def test_cohorts_that_are_in_order():
    assert activity(organisation(), "org", "research") == [(True, Reason.READY, LENDS)] * 2


def test_a_parent_that_is_missing_is_told_and_stops_nothing():
    queues = organisation()
    queues.remove_cohort("org")
    text = "there is no Cohort org, its parent: it counts as one without quota or limits"
    assert activity(queues, "research", "product") == [(True, Reason.READY, text)] * 2
    assert standings(queues, ("tas",)).cluster["ads"].active


def test_a_circle_is_told_to_all_in_it_and_below_it_and_to_nobody_beside_it():
    queues = organisation()
    queues.set_cohort(make_cohort("org", 8, "research"))
    queues.set_cluster_queue(make_queue("other", 4, cohort="elsewhere"))
    text = (
        "cohorts org and research are each other's parents (org → research → org): nothing of the queues below"
        " is admitted until one of them has another parentName"
    )
    stopped = (False, Reason.COHORT_CYCLE, text)
    assert activity(queues, "org", "research", "product") == [stopped] * 3
    found = standings(queues, ("tas",))
    assert {name: one.message for name, one in found.cluster.items() if not one.active} == dict.fromkeys(
        ("vision", "speech", "ads"), text
    )
    assert found.local["ns", "ads"].message == f"ClusterQueue ads: {text}"
    assert found.cohorts["elsewhere"].active
    queues.set_cohort(make_cohort("org", 8))
    assert all(one.active for one in standings(queues, ("tas",)).cluster.values())


def test_what_is_held_below_a_circle_is_still_told():
    queues = organisation()
    hold(queues, vision=12)
    queues.set_cohort(make_cohort("org", 8, "research"))
    found = standings(queues, ("tas",)).cohorts
    assert (found["research"].reserved[KEY], found["org"].reserved[KEY]) == (12, 0)


def test_a_circle_is_told_of_a_queue_that_is_stopped_too():
    queues = organisation()
    queues.set_cohort(make_cohort("org", 8, "org"))
    queues.set_cluster_queue(make_queue("ads", 16, cohort="product", stop=Stop.HOLD))
    assert standings(queues, ("tas",)).cluster["ads"].reason is Reason.COHORT_CYCLE


@pytest.mark.parametrize(("flavors", "resources"), [(MOST_FLAVORS + 40, 1), (1, MOST_RESOURCES + 9)])
def test_a_status_holds_no_more_than_the_api_server_takes(flavors, resources):
    queues = make_queues(make_queue("q", 1, cohort="x"))
    amounts = {(f"f{flavor}", f"r{one}"): 1 for flavor in range(flavors) for one in range(resources)}
    queues.submit(make_workload("ns/q"), 0.0)
    queues.grant(make_state(), "ns/q", AssumedAdmission("q", {"main": 0}, {}, amounts, ()))
    found = standings(queues, ("tas",))
    for one in (found.cohorts["x"], found.cluster["q"]):
        rows = body(one)["flavorsReservation"]
        assert len(rows) == min(flavors + 1, MOST_FLAVORS)
        assert len(rows[-1]["resources"]) == min(resources, MOST_RESOURCES)

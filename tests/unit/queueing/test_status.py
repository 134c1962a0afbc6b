"""How queues stand, as it is written into their status: counted from the workloads, whatever happened to them."""

import pytest
from support.queue_factories import GPU, make_cohort, make_queue, make_queues, make_state, make_workload, run, submit

from engine.reasons import Reason
from queueing.model import (
    ClusterQueue,
    FlavorQuotas,
    LabelRequirement,
    LocalQueue,
    PlainFlavor,
    Preemption,
    Quota,
    Reclaim,
    ResourceGroup,
    Rules,
    Stop,
    UseRules,
)
from queueing.queues.entry import AssumedAdmission
from queueing.queues.held import Held
from queueing.status import COHORT_NO_EFFECT, INFINITE_SHARE, LENDS, NO_EFFECT, body, standings


def standing(queues, name="q", state=None, **more):
    return standings(queues, (state or make_state()).flavors, **more).cluster[name]


def gpus(usages):
    """(flavor, total, borrowed) of the GPUs."""
    return [(u["name"], r["total"], r.get("borrowed")) for u in usages for r in u["resources"] if r["name"] == GPU]


def test_pending_reserving_and_admitted_are_counted_with_what_they_hold():
    state, queues = make_state(), make_queues(make_queue("q", 16))
    submit(queues, *(make_workload(f"w{i}", created=float(i)) for i in range(5)))
    run(state, queues)
    found = standings(queues, state.flavors, unchecked={"w1"})
    for one in (found.cluster["q"], found.local["ns", "q"]):
        assert (one.pending, one.reserving, one.admitted) == (3, 2, 1)
    cluster, local = body(found.cluster["q"]), body(found.local["ns", "q"])
    assert gpus(cluster["flavorsReservation"]) == [("tas", "16", "0")]
    assert gpus(cluster["flavorsUsage"]) == [("tas", "8", "0")]
    assert gpus(local["flavorsReservation"]) == [("tas", "16", None)], (
        "a local queue owns nothing, so it borrows nothing"
    )
    assert cluster["fairSharing"] is None


def test_a_pod_that_no_workload_answers_for_is_used_and_is_no_workload():
    state, queues = make_state(), make_queues(make_queue("q", 16))
    submit(queues, make_workload("w"))
    run(state, queues)
    queues.charge_pod("ns/left", Held("q", {("tas", GPU): 8}))
    found = standing(queues)
    assert gpus(body(found)["flavorsUsage"]) == gpus(body(found)["flavorsReservation"]) == [("tas", "16", "0")]
    assert (found.reserving, found.admitted) == (1, 1)
    queues.charge_pod("ns/left", None)
    assert gpus(body(standing(queues))["flavorsUsage"]) == [("tas", "8", "0")]


def test_what_is_borrowed_is_told():
    state = make_state()
    queues = make_queues(make_queue("q", 8, cohort="x"), make_queue("lender", 24, cohort="x"))
    submit(queues, make_workload("w", count=2), make_workload("other", "lender"))
    run(state, queues)
    assert gpus(body(standing(queues))["flavorsUsage"]) == [("tas", "16", "8")]
    assert gpus(body(standing(queues, "lender"))["flavorsUsage"]) == [("tas", "8", "0")]


def test_a_queue_that_waits_for_its_victims_is_pending_and_reserving():
    state = make_state()
    queues = make_queues(
        make_queue("q", 16, cohort="x", preemption=Preemption(reclaim=Reclaim.ANY)), make_queue("b", 16, cohort="x")
    )
    submit(queues, *(make_workload(f"b{i}", "b", created=float(i)) for i in range(4)))
    run(state, queues)
    submit(queues, make_workload("w", created=9.0))
    assert len(run(state, queues).preempting) == 1
    one = standing(queues)
    assert (one.pending, one.reserving, one.admitted) == (1, 1, 0)
    found = body(one)
    assert (gpus(found["flavorsReservation"]), gpus(found["flavorsUsage"])) == (
        [("tas", "8", "0")],
        [("tas", "0", "0")],
    )


def test_one_that_is_put_off_or_led_nowhere_is_pending_too():
    state = make_state()
    queues = make_queues(make_queue("q", 16, namespaces=None), make_queue("r", 16))
    submit(queues, make_workload("w"), make_workload("late", "r"), make_workload("lost", "nowhere"))
    queues.delay_workload("late", 100.0)
    run(state, queues)
    found = standings(queues, state.flavors)
    assert {name: one.pending for name, one in found.cluster.items()} == {"q": 1, "r": 1}
    assert {name: one.pending for (_, name), one in found.local.items()} == {"q": 1, "r": 1}


def test_a_flavor_that_left_the_quota_is_told_while_it_is_held():
    state, queues = make_state(flavors=("tas", "old")), make_queues(make_queue("q", flavors=("tas",)))
    submit(queues, make_workload("w"))
    run(state, queues)
    queues.set_cluster_queue(make_queue("q", flavors=("old",)))
    assert gpus(body(standing(queues, state=state))["flavorsUsage"]) == [("old", "0", "0"), ("tas", "8", "8")]


def test_amounts_are_quantities():
    quotas = {"cpu": Quota(nominal=1500), "memory": Quota(nominal=2**36)}
    group = ResourceGroup(resources=tuple(quotas), flavors=(FlavorQuotas(flavor="tas", resources=quotas),))
    queues = make_queues(ClusterQueue(name="q", groups=(group,)))
    queues.submit(make_workload("w"), 0.0)
    amounts = {("tas", "cpu"): 2500, ("tas", "memory"): 2**35}
    queues.grant(make_state(), "w", AssumedAdmission("q", {"main": 0}, {}, amounts, ()))
    (found,) = body(standing(queues))["flavorsUsage"]
    assert found["resources"] == [
        {"name": "cpu", "total": "2500m", "borrowed": "1"},
        {"name": "memory", "total": "32Gi", "borrowed": "0"},
    ]


def test_shares_where_fair_sharing_is_on():
    state = make_state()
    specs = make_queue("q", 8, cohort="x", weight=500), make_queue("none", 0, cohort="x", weight=0), make_queue("alone")
    queues = make_queues(*specs, make_queue("lender", 8, cohort="x"), rules=Rules(fair=True))
    submit(queues, make_workload("w"), make_workload("z", "none"))
    run(state, queues)
    found = {name: body(one)["fairSharing"] for name, one in standings(queues, state.flavors).cluster.items()}
    assert found["q"] == {"weightedShare": 0}
    assert found["none"] == {"weightedShare": INFINITE_SHARE}
    assert found["alone"] is None, "nobody to share with"
    queues.remove_workload(state, "z")
    submit(queues, make_workload("more"))
    run(state, queues)
    assert body(standing(queues))["fairSharing"] == {"weightedShare": 1000}, "half of what is lent, at half a weight"
    queues.set_cluster_queue(make_queue("lender", 15, cohort="x"))
    # 8 of 23, doubled: 695.65. Up, as Kueue's roundedWeightedShare (0.19.2).
    assert body(standing(queues))["fairSharing"] == {"weightedShare": 696}


def activity(queue, *, flavors=("tas",), local=None):
    queues = make_queues(queue)
    if local is not None:
        queues.set_local_queue(local)
    found = standings(queues, flavors)
    return [(one.active, one.reason, one.message) for one in (found.cluster["q"], found.local["ns", "q"])]


def test_an_active_queue():
    ready = (True, Reason.READY, "can admit workloads")
    assert activity(make_queue()) == [ready, ready]
    assert activity(ClusterQueue(name="q"))[0][2].startswith("has no resourceGroups")


def test_a_stopped_queue_says_so_where_it_is_stopped():
    cluster, local = activity(make_queue(stop=Stop.HOLD))
    assert cluster[:2] == (False, Reason.QUEUE_STOPPED)
    assert local == (
        False,
        Reason.QUEUE_STOPPED,
        "ClusterQueue q: it is stopped (stopPolicy Hold): nothing is admitted",
    )
    stopped = LocalQueue(namespace="ns", name="q", cluster_queue="q", stop=Stop.DRAIN)
    cluster, local = activity(make_queue(), local=stopped)
    assert cluster[0]
    assert local == (False, Reason.QUEUE_STOPPED, "it is stopped (stopPolicy HoldAndDrain): nothing is admitted")


def test_a_queue_without_its_flavors():
    cluster, local = activity(make_queue(flavors=("gone", "lost")))
    text = f"there is no ResourceFlavor gone, lost: nothing that asks for {GPU} is admitted"
    assert cluster == (False, Reason.NO_FLAVOR, text)
    assert local == (False, Reason.NO_FLAVOR, f"ClusterQueue q: {text}")
    text = "can admit workloads, but there is no ResourceFlavor gone, which is skipped"
    assert activity(make_queue(flavors=("gone", "tas")))[0] == (True, Reason.READY, text)


def test_a_flavor_without_a_topology_is_a_flavor():
    queues = make_queues(make_queue(flavors=("plain",)))
    queues.set_flavor(PlainFlavor(name="plain"))
    assert standings(queues, ()).cluster["q"].active


def test_a_local_queue_whose_cluster_queue_is_missing_or_does_not_serve_it():
    nowhere = LocalQueue(namespace="ns", name="q", cluster_queue="nowhere")
    assert activity(make_queue(), local=nowhere)[1] == (False, Reason.NO_QUEUE, "there is no ClusterQueue nowhere")
    others = (LabelRequirement(key="team", operator="In", values=("other",)),)
    cluster, local = activity(make_queue(namespaces=others))
    assert cluster[0]
    text = "the namespaceSelector of ClusterQueue q does not select namespace ns"
    assert local == (False, Reason.NAMESPACE_NOT_SELECTED, text)


def test_a_scope_without_a_half_life_is_told_where_the_queue_is_active():
    scoped = make_queue("q", by_use=True)
    assert standing(make_queues(scoped)).message == f"can admit workloads; {NO_EFFECT}"
    assert standing(make_queues(make_queue("q", by_use=True, stop=Stop.HOLD))).message.endswith("nothing is admitted")
    rules = Rules(use=UseRules(half_life=600.0))
    assert standing(make_queues(scoped, rules=rules)).message == "can admit workloads"


def test_a_scope_of_a_cohort_without_a_half_life_is_told_where_the_cohort_is_active():
    queues = make_queues(make_queue("q", 0, cohort="c"))
    queues.set_cohort(make_cohort("c", 8, by_use=True))
    told = standings(queues, ("tas",)).cohorts["c"]
    assert (told.active, told.message) == (True, f"{LENDS}; {COHORT_NO_EFFECT}")
    assert told.consumed is None


def test_what_queues_and_cohorts_used_over_time_is_told_where_their_parent_goes_by_that():
    queues = make_queues(make_queue("q", 0, cohort="c"), rules=Rules(use=UseRules(half_life=600.0)))
    queues.set_cohort(make_cohort("c", 0, "org"))
    queues.set_cohort(make_cohort("org", 8, by_use=True))
    queues.pass_time(1.0)
    queues.charge_pod("ns/pod", Held("q", {("tas", GPU): 4}))
    queues.pass_time(601.0)
    found = standings(queues, ("tas",))
    team = found.cohorts["c"]
    # Half of the 4 so far, and 300 s later 4 - 2 * 0.7071 of the 8 that org has.
    assert (team.consumed, team.consumed_at) == ({GPU: pytest.approx(2.0)}, 601.0)
    assert team.score == pytest.approx((4 - 2 * 0.5**0.5) * 125)
    assert (found.cohorts["org"].consumed, found.cluster["q"].consumed) == (None, None)

"""Nobody starves: one that waited for long keeps the room and the quota it needs from those behind it."""

import msgspec
import pytest
from support.queue_factories import (
    GPU,
    HOST,
    keys,
    make_node,
    make_pod_set,
    make_queue,
    make_queues,
    make_state,
    make_workload,
    run,
    submit,
)

from engine.model import LabelRequirement, Pod, PodTerm, Policy
from engine.reasons import Reason
from queueing.cycle.cycle import cycle
from queueing.cycle.elastic import reclaim
from queueing.model import ClusterQueue, Preemption, Reclaim, Rules, Within

LOWER = Preemption(within=Within.LOWER)
PATIENT = Rules(patience=1e9)
RULES = Rules(patience=100.0, hold=100.0)


def stream(state, queues, *, until, small="small", queue="q"):
    """Small workloads that come every 10 s, run for 50 s and are always more than fit; returns when `large` starts."""
    running = [(key, 10 * i - 40) for i, key in enumerate(sorted(queues.holders.keys()))]  # one ends every 10 s
    made = 0
    for now in range(10, until, 10):
        for key in [key for key, begun in running if now - begun >= 50]:
            queues.remove_workload(state, key)
        running = [(key, begun) for key, begun in running if now - begun < 50]
        for _ in range(3):
            made += 1
            queues.submit(make_workload(f"{small}{made:04}", queue, created=float(now)), float(now))
        found = cycle(state, queues, float(now))
        while found.more:
            more = cycle(state, queues, float(now))
            found.admitted.extend(more.admitted)
            found.more = more.more
        if "large" in keys(found):
            return now
        running += [(key, now) for key in keys(found)]
    return None


@pytest.mark.parametrize("strict", [True, False])
def test_a_large_required_job_behind_a_stream_of_small_ones(strict):
    starts = {}
    for rules in (PATIENT, RULES):
        state = make_state(3, 2)
        queues = make_queues(make_queue("q", 48, strict=strict), make_queue("other", 48), rules=rules)
        submit(queues, *(make_workload(f"first{i}", created=float(i)) for i in range(5)))
        assert len(keys(cycle(state, queues, 5.0))) == 5
        submit(queues, make_workload("large", "other", count=2, created=6.0))
        starts[rules.patience] = stream(state, queues, until=1000)
    assert starts[1e9] is None, "without claims it starves, so this test shows something"
    assert starts[100.0] <= 5 + 100 + 60


def test_the_rest_of_the_cluster_stays_in_use_meanwhile():
    state = make_state(3, 2)
    queues = make_queues(make_queue("q", 48), make_queue("other", 48), rules=RULES)
    submit(queues, *(make_workload(f"w{i}", created=float(i)) for i in range(6)))
    assert len(keys(cycle(state, queues, 5.0))) == 6
    submit(queues, make_workload("large", "other", count=2, created=6.0), now=6.0)
    submit(queues, *(make_workload(f"x{i}", created=10.0 + i) for i in range(6)), now=10.0)
    cycle(state, queues, 10.0)
    cycle(state, queues, 200.0)  # now it claims a rack
    (claim,) = queues.claims.values()
    rack = claim.domains["tas"]
    gone = [key for key in ("w0", "w1", "w2", "w3", "w4", "w5") if rack_of(state, key) != rack[0]]
    queues.remove_workload(state, gone[0])
    assert keys(cycle(state, queues, 201.0)) == ["x0"]  # room elsewhere is for the others
    mine = [key for key in ("w0", "w1", "w2", "w3", "w4", "w5") if key not in gone]
    queues.remove_workload(state, mine[0])
    assert keys(cycle(state, queues, 202.0)) == []  # room there is not
    queues.remove_workload(state, mine[1])
    assert keys(cycle(state, queues, 203.0)) == ["large"]
    assert not queues.claims
    assert rack_of(state, "large") == rack[0]


def test_one_that_waits_for_quota_keeps_no_nodes_idle():
    state = make_state(1, 4)
    queues = make_queues(make_queue("mine", 16), make_queue("other", 48), rules=RULES)
    submit(queues, make_workload("runs", "mine", count=2))
    cycle(state, queues, 1.0)
    submit(queues, make_workload("large", "mine", count=2, created=2.0), now=2.0)
    cycle(state, queues, 2.0)
    cycle(state, queues, 200.0)
    assert list(queues.claims) == ["large"]
    submit(queues, make_workload("x0", "other", created=3.0), now=200.0)
    assert keys(cycle(state, queues, 201.0)) == ["x0"]
    queues.remove_workload(state, "x0")
    submit(queues, make_workload("x1", "other", count=2, created=4.0), now=202.0)
    assert keys(cycle(state, queues, 202.0)) == ["x1"]
    queues.set_cluster_queue(make_queue("mine", 32))
    queues.pending.room_freed(["tas"])
    submit(queues, make_workload("x2", "other", created=5.0), now=203.0)
    assert keys(cycle(state, queues, 203.0)) == [], "it could use room now, and keeps what becomes free"
    queues.remove_workload(state, "x1")
    submit(queues, make_workload("x3", "other", created=6.0), now=204.0)
    assert keys(cycle(state, queues, 204.0))[:1] == ["large"]


@pytest.mark.parametrize(("since", "gets_in"), [(2.0, []), (150.0, ["small"])])
def test_after_a_restart_it_counts_how_long_one_has_waited(since, gets_in):
    state = make_state(1, 2)
    queues = make_queues(make_queue("q", 48), rules=RULES)
    submit(queues, make_workload("runs"))
    cycle(state, queues, 1.0)
    queues.submit(make_workload("large", count=2, created=2.0), 200.0, since)
    submit(queues, make_workload("small", created=3.0), now=200.0)
    assert keys(cycle(state, queues, 200.0)) == gets_in
    assert list(queues.claims) == ([] if gets_in else ["large"])


@pytest.mark.parametrize("strict", [True, False])
def test_after_a_restart_who_has_waited_long_is_looked_at_before_another_queue_has_its_turn(strict):
    state = make_state(1, 2)
    queues = make_queues(make_queue("q", 48, strict=strict), make_queue("other", 48), rules=RULES)
    submit(queues, make_workload("runs"))
    cycle(state, queues, 1.0)
    queues.submit(make_workload("never", priority=1, count=3, created=1.0), 200.0, 1.0)  # holds up nobody
    queues.submit(make_workload("large", count=2, created=2.0), 200.0, 2.0)
    queues.submit(make_workload("late", count=1, created=3.0), 200.0, 3.0)
    submit(queues, make_workload("small", "other", created=2.5), now=200.0)
    assert keys(cycle(state, queues, 200.0)) == []
    assert list(queues.claims) == ["large"]


@pytest.mark.parametrize("limit", [2, 64])
def test_after_a_restart_who_has_waited_long_passes_nobody_who_may_evict_it(limit):
    """What it got before that one was looked at, it would lose in the same second."""
    state, queues = make_state(1, 1), make_queues(make_queue("q", 8, preemption=LOWER), rules=RULES)
    queues.submit(make_workload("old", created=1.0), 200.0, 1.0)
    queues.submit(make_workload("first", gpu=4, priority=1, created=199.0), 200.0, 199.0)
    queues.submit(make_workload("second", gpu=2, priority=1, created=199.0), 200.0, 199.0)
    made = [cycle(state, queues, 200.0, limit) for _ in range(4)]
    assert [key for each in made for key in keys(each)] == ["first", "second"]
    assert not any(each.preempting for each in made)
    assert list(queues.claims) == ["old"]


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("limit", [4, 64])
def test_after_a_restart_who_has_waited_long_borrows_nothing_of_who_need_not(before, limit):
    """That one of another queue may evict it too: what it borrowed it would lose in the next cycle."""
    reclaims = Preemption(reclaim=Reclaim.ANY)
    queues = make_queues(
        make_queue("a", 0, cohort="c", preemption=reclaims),
        make_queue("b", 8, cohort="c", preemption=reclaims),
        rules=RULES,
    )
    state = make_state(1, 1)
    queues.submit(make_workload("old", "a", created=1.0), 200.0, 1.0)
    for at in range(before):
        queues.submit(make_workload(f"large{at}", "b", 2, created=198.0), 200.0, 198.0)  # would borrow, and never fits
    queues.submit(make_workload("owner", "b", created=199.0), 200.0, 199.0)
    made = [cycle(state, queues, 200.0, limit) for _ in range(4)]
    assert [key for each in made for key in keys(each)] == ["owner"]
    assert not any(each.preempting for each in made)
    assert list(queues.claims) == ["old"]


@pytest.mark.parametrize("limit", [4, 64])
def test_after_a_restart_the_first_of_a_queue_borrows_nothing_in_the_place_of_one_behind_it(limit):
    """Who need not borrow gives its place to the first of its queue, which another queue may then evict again."""
    reclaims = Preemption(reclaim=Reclaim.ANY)
    queues = make_queues(
        make_queue("a", 8, cohort="c", preemption=reclaims),
        make_queue("b", 16, cohort="c", preemption=reclaims),
        rules=RULES,
    )
    state = make_state(1, 2)
    queues.submit(make_workload("old", "a", count=3, created=1.0), 200.0, 1.0)
    queues.submit(make_workload("borrows", "a", count=2, priority=1, created=198.0), 200.0, 198.0)
    queues.submit(make_workload("behind", "a", gpu=4, priority=1, created=199.0), 200.0, 199.0)
    queues.submit(make_workload("owner", "b", count=2, created=199.0), 200.0, 199.0)
    made = [cycle(state, queues, 200.0, limit) for _ in range(4)]
    assert [key for each in made for key in keys(each)] == ["owner"]
    assert not any(each.preempting for each in made)


def claimed(state, queues, *, large, now=200.0):
    """``large`` waits behind one that runs on every node, and claims; the keys of those that run, by node."""
    submit(queues, *(make_workload(f"w{i}", created=float(i)) for i in range(state.tree("tas").size)))
    cycle(state, queues, 5.0)
    submit(queues, large, now=6.0)
    cycle(state, queues, 10.0)
    cycle(state, queues, now)
    assert list(queues.claims) == [large.key]
    on = {state.assignments(key)["main"].slices[0].nodes[0][0]: key for key in sorted(queues.holders.keys())}
    return on, queues.claims[large.key]


def test_only_so_many_nodes_of_the_domain_are_kept_as_would_do():
    state, queues = make_state(1, 4), make_queues(make_queue("q", 96), rules=RULES)
    submit(queues, *(make_workload(f"half{i}", gpu=4, created=float(i)) for i in range(8)))
    assert len(keys(cycle(state, queues, 5.0))) == 8
    submit(queues, make_workload("large", count=2, created=6.0), now=6.0)
    cycle(state, queues, 10.0)
    cycle(state, queues, 200.0)
    (claim,) = queues.claims.values()
    assert len(claim.nodes["tas"]) == 2
    on = {key: state.assignments(key)["main"].slices[0].nodes[0][0] for key in sorted(queues.holders.keys())}
    mine = next(key for key in on if on[key] in claim.nodes["tas"])
    other = next(key for key in on if on[key] not in claim.nodes["tas"])
    queues.remove_workload(state, mine)
    submit(queues, make_workload("late", gpu=4, created=7.0), now=201.0)
    assert keys(cycle(state, queues, 201.0)) == [], "half of a node that is kept"
    queues.remove_workload(state, other)
    assert keys(cycle(state, queues, 202.0)) == ["late"]
    assert state.assignments("late")["main"].slices[0].nodes[0][0] == on[other]


def test_nodes_on_which_more_is_free_are_kept_instead():
    state, queues = make_state(1, 4), make_queues(make_queue("q", 96), rules=RULES)
    on, claim = claimed(state, queues, large=make_workload("large", count=2, created=6.0))
    before = set(claim.nodes["tas"])
    others = [node for node in on if node not in before]
    queues.remove_workload(state, on[others[0]])
    assert keys(cycle(state, queues, 201.0)) == []
    assert others[0] in claim.nodes["tas"]
    assert len(before & set(claim.nodes["tas"])) == 1


def test_a_request_that_may_be_spread_keeps_as_many_nodes_as_would_do():
    state, queues = make_state(2, 2), make_queues(make_queue("q", 96), rules=RULES)
    wide = make_pod_set(3, policy=Policy.PREFERRED)
    on, claim = claimed(state, queues, large=make_workload("large", pod_sets=(wide,), created=6.0))
    assert claim.domains["tas"] == ()
    (other,) = on.keys() - set(claim.nodes["tas"])
    queues.remove_workload(state, on[other])
    submit(queues, make_workload("late", created=7.0), now=200.0)
    assert keys(cycle(state, queues, 201.0)) == []
    assert other in claim.nodes["tas"], "it is free, so it is kept instead of one that is not"


def test_where_those_nodes_do_not_do_all_of_the_domain_is_kept():
    state, queues = make_state(1, 3), make_queues(make_queue("q", 96), rules=RULES)
    state.set_pod(Pod(key="ns/alien", node="tas-0", requests={}, labels={"app": "x"}, namespace="ns"))
    shy = PodTerm(topology_key=HOST, selector=(LabelRequirement("app", "In", ("x",)),), namespaces=("ns",))
    large = make_workload("large", pod_sets=(make_pod_set(2, anti_affinity=(shy,)),), created=6.0)
    on, claim = claimed(state, queues, large=large)
    for now, node in enumerate(("tas-0", "tas-1"), 201):
        queues.remove_workload(state, on[node])
        assert keys(cycle(state, queues, float(now))) == []
    queues.pending.room_freed(["tas"])
    cycle(state, queues, 203.0)
    cycle(state, queues, 204.0)
    assert "tas" in claim.whole
    submit(queues, make_workload("late", created=7.0), now=204.0)
    queues.remove_workload(state, on["tas-2"])
    assert keys(cycle(state, queues, 205.0))[:1] == ["large"]


def test_room_is_left_to_it_where_that_costs_nobody_anything():
    state, queues = make_state(2, 2), make_queues(make_queue("q", 96), rules=Rules(patience=100.0, hold=1000.0))
    on, claim = claimed(state, queues, large=make_workload("large", count=2, created=6.0))
    mine = list(claim.nodes["tas"])
    (one, other) = sorted(on.keys() - set(mine))
    queues.remove_workload(state, on[mine[0]])
    queues.remove_workload(state, on[one])
    submit(queues, make_workload("late", created=7.0), now=200.0)
    assert keys(cycle(state, queues, 201.0)) == ["late"]
    assert state.assignments("late")["main"].slices[0].nodes[0][0] == one, "it fits elsewhere"
    submit(queues, make_workload("later", created=8.0), now=202.0)
    assert keys(cycle(state, queues, 202.0)) == ["later"]
    assert state.assignments("later")["main"].slices[0].nodes[0][0] == mine[0], "it fits nowhere else"
    assert list(queues.claims) == ["large"]
    queues.remove_workload(state, "later")
    submit(queues, make_workload("latest", created=9.0), now=1100.0)
    assert keys(cycle(state, queues, 1100.0)) == [], "it has waited so long that the room is closed"
    queues.remove_workload(state, on[mine[1]])
    assert keys(cycle(state, queues, 1101.0))[:1] == ["large"]
    assert other in on


def rack_of(state, key):
    return state.assignments(key)["main"].slices[0].values[0]


def test_one_of_higher_priority_is_not_stopped_by_a_claim():
    state = make_state(1, 2)
    queues = make_queues(make_queue("q", 48), rules=RULES)
    submit(queues, make_workload("w0"), make_workload("w1"))
    cycle(state, queues, 1.0)
    submit(queues, make_workload("large", count=2, created=2.0), now=2.0)
    cycle(state, queues, 2.0)
    cycle(state, queues, 200.0)
    assert list(queues.claims) == ["large"]
    submit(queues, make_workload("urgent", priority=1, created=3.0), make_workload("late", created=4.0), now=200.0)
    queues.remove_workload(state, "w0")
    assert keys(cycle(state, queues, 201.0)) == ["urgent"]
    assert list(queues.claims) == ["large"]


def test_who_would_have_the_room_of_a_claim_is_told_whose_it_is():
    state = make_state(1, 2)
    queues = make_queues(make_queue("q", 48), rules=RULES)
    submit(queues, make_workload("w0"), make_workload("w1"))
    cycle(state, queues, 1.0)
    submit(queues, make_workload("large", count=2, created=2.0), now=2.0)
    cycle(state, queues, 2.0)
    cycle(state, queues, 200.0)
    queues.remove_workload(state, "w0")
    submit(queues, make_workload("late", created=4.0), make_workload("more", count=3, created=5.0), now=200.0)
    told = {one.key: one for one in cycle(state, queues, 201.0).waiting}
    assert told["late"].reason is Reason.BEHIND_OTHERS
    assert "kept for large, which has waited long" in told["late"].message
    assert told["more"].reason is not Reason.BEHIND_OTHERS, "it would not fit anyway"
    queues.remove_workload(state, "large")
    assert keys(cycle(state, queues, 202.0)) == ["late"]


def test_without_a_queue_nobody_keeps_room_from_others():
    state = make_state(1, 2)
    queues = make_queues(make_queue("q", 48), ClusterQueue(name="none", unlimited=True, claims=False), rules=RULES)
    submit(queues, make_workload("w0"), make_workload("w1"))
    cycle(state, queues, 1.0)
    submit(queues, make_workload("greedy", "none", count=2, created=2.0), now=2.0)
    for now in (2.0, 200.0, 400.0):
        cycle(state, queues, now)
    assert not queues.claims
    queues.remove_workload(state, "w0")
    submit(queues, make_workload("late", created=4.0), now=401.0)
    assert keys(cycle(state, queues, 401.0)) == ["late"]


def test_quota_is_kept_from_those_who_borrow_it():
    state = make_state(1, 4)
    queues = make_queues(make_queue("mine", 16, cohort="c"), make_queue("lent", 16, cohort="c"), rules=RULES)
    submit(queues, *(make_workload(f"b{i}", "lent", created=float(i)) for i in range(4)))
    assert len(keys(cycle(state, queues, 5.0))) == 4
    submit(queues, make_workload("large", "mine", count=2, created=6.0), now=6.0)
    submit(queues, *(make_workload(f"x{i}", "lent", created=10.0 + i) for i in range(4)), now=10.0)
    cycle(state, queues, 10.0)
    cycle(state, queues, 200.0)
    queues.remove_workload(state, "b0")
    found = cycle(state, queues, 201.0)
    assert keys(found) == []
    queues.remove_workload(state, "b1")
    assert keys(cycle(state, queues, 202.0)) == ["large"]


def test_without_room_ever_there_is_no_claim():
    state = make_state(2, 1)
    queues = make_queues(make_queue("q", 48), rules=RULES)
    submit(queues, make_workload("never", count=2), make_workload("w0", created=1.0), make_workload("w1", created=2.0))
    cycle(state, queues, 1.0)
    submit(queues, make_workload("x", created=3.0))
    for now in range(200, 2000, 200):
        cycle(state, queues, float(now))
    assert list(queues.claims) == ["x"]
    queues.remove_workload(state, "w0")
    assert keys(cycle(state, queues, 3000.0)) == ["x"]


def two_sets(key, *sizes, **more):
    """Pod sets that each need one rack."""
    sets = tuple(make_pod_set(size, name=f"s{at}") for at, size in enumerate(sizes))
    return make_workload(key, pod_sets=sets, **more)


def test_pod_sets_that_fit_one_by_one_and_never_together_claim_nothing():
    state = make_state(2, 2)
    queues = make_queues(make_queue("q", 96), rules=RULES)
    submit(queues, make_workload("w0"), make_workload("w1", created=1.0))
    cycle(state, queues, 1.0)
    submit(queues, two_sets("never", 2, 2, 2, created=2.0), now=2.0)
    cycle(state, queues, 2.0)
    for now in range(200, 2000, 200):
        cycle(state, queues, float(now))
        assert f"never{chr(0)}claim" not in state.workloads
        submit(queues, make_workload(f"x{now}", created=float(now)), now=float(now))
        assert keys(cycle(state, queues, float(now))) == [f"x{now}"]
        queues.remove_workload(state, f"x{now}")


def test_pod_sets_that_fit_together_once_others_end_claim_the_flavor():
    state = make_state(2, 2)
    queues = make_queues(make_queue("q", 96), rules=RULES)
    submit(queues, make_workload("w0"), make_workload("w1", created=1.0))
    cycle(state, queues, 1.0)
    submit(queues, two_sets("large", 2, 2, created=2.0), now=2.0)
    cycle(state, queues, 2.0)
    cycle(state, queues, 200.0)
    assert list(queues.claims) == ["large"]
    submit(queues, make_workload("x", created=3.0), now=201.0)
    queues.remove_workload(state, "w0")
    assert keys(cycle(state, queues, 201.0)) == []
    queues.remove_workload(state, "w1")
    assert keys(cycle(state, queues, 202.0)) == ["large"]


def test_one_all_of_whose_pods_are_done_is_nobody_whose_end_is_waited_for():
    state = make_state(2, 2)
    queues = make_queues(make_queue("q", 96, strict=True), rules=RULES)
    submit(queues, make_workload("done", count=2))
    cycle(state, queues, 1.0)
    reclaim(state, queues, "done", {"main": 2})
    submit(queues, two_sets("never", 2, 2, 2, created=2.0), make_workload("x", created=3.0), now=2.0)
    cycle(state, queues, 2.0)
    cycle(state, queues, 200.0)
    assert "x" in state.workloads
    assert not queues.claims


def test_a_claim_ends_with_its_workload_and_gives_all_back():
    state = make_state(1, 2)
    queues = make_queues(make_queue("q", 48), rules=RULES)
    submit(queues, make_workload("w0"), make_workload("w1"))
    cycle(state, queues, 1.0)
    submit(queues, make_workload("large", count=2, created=2.0), make_workload("x", created=3.0), now=2.0)
    cycle(state, queues, 2.0)
    cycle(state, queues, 200.0)
    queues.remove_workload(state, "w0")
    found = cycle(state, queues, 201.0)
    assert keys(found) == []
    assert {one.key: one.reason for one in found.waiting} == {} or Reason.DOES_NOT_FIT in {
        o.reason for o in found.waiting
    }
    queues.remove_workload(state, "large")
    assert keys(cycle(state, queues, 202.0)) == ["x"]
    assert set(state.workloads) == {"w1", "x"}


def test_a_claimed_rack_that_is_lost_is_given_up_for_another():
    state = make_state(2, 2)
    queues = make_queues(make_queue("q", 64), rules=RULES)
    submit(queues, *(make_workload(f"w{i}", created=float(i)) for i in range(4)))
    cycle(state, queues, 1.0)
    submit(queues, make_workload("large", count=2, created=9.0), now=9.0)
    cycle(state, queues, 9.0)
    cycle(state, queues, 200.0)
    (claim,) = queues.claims.values()
    first = claim.domains["tas"]
    lost = next(node.name for node in state.nodes.values() if node.labels["rack"] == first[0])
    state.remove_node(lost)
    queues.pending.room_freed(["tas"])
    cycle(state, queues, 201.0)
    (claim,) = queues.claims.values()
    assert claim.domains["tas"] != first
    state.set_node(make_node(lost, first[0]))
    assert make_pod_set().requests == {GPU: 8}


def test_who_was_kept_out_by_a_claim_has_its_turn_once_the_claimant_falls_behind():
    state, queues = make_state(1, 4), make_queues(make_queue("q", 32), rules=Rules(patience=10.0, hold=20.0))
    submit(queues, make_workload("ns/service", count=2, priority=3))
    run(state, queues, 1.0)
    large = make_workload("ns/large", count=4, priority=5, created=2.0)
    submit(queues, large, now=2.0)
    run(state, queues, 2.0)
    run(state, queues, 50.0)
    submit(queues, make_workload("ns/small", priority=1, created=3.0), now=50.0)
    queues.wish("ns/service", {"main": 3})
    found = run(state, queues, 51.0)
    assert (list(queues.claims), keys(found), found.resized) == (["ns/large"], [], [])
    # Its boost ended, say. Nothing is given back by that, and no other event comes.
    submit(queues, msgspec.structs.replace(large, priority=-1), now=52.0)
    found = run(state, queues, 52.0)
    assert keys(found) == ["ns/small"]
    assert [(one.key, one.counts) for one in found.resized] == [("ns/service", {"main": 3})]


def test_who_is_back_within_its_own_quota_waits_for_no_claim_of_another_queue():
    state = make_state(1, 4)
    queues = make_queues(
        make_queue("a", 16, cohort="c"), make_queue("b", 16, cohort="c"), rules=Rules(patience=10.0, hold=20.0)
    )
    submit(queues, make_workload("ns/a", "a"), make_workload("ns/b", "b"))
    run(state, queues, 1.0)
    submit(queues, make_workload("ns/large", "a", count=4, created=2.0), now=2.0)
    run(state, queues, 2.0)
    run(state, queues, 50.0)
    submit(queues, make_workload("ns/w", "b", count=2, created=3.0), now=50.0)
    found = run(state, queues, 51.0)
    assert (list(queues.claims), keys(found)) == (["ns/large"], [])
    # The claim goes on. But what it keeps is not what the queue has of its own, which is whole again.
    queues.remove_workload(state, "ns/b")
    assert keys(run(state, queues, 52.0)) == ["ns/w"]
    assert list(queues.claims) == ["ns/large"]

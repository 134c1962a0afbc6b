"""LocalQueues of one ClusterQueue take turns by what they used: lower score first, before priority, then time."""

import msgspec
import pytest
from support.queue_factories import keys, make_queue, make_queues, make_state, make_workload, run, submit

from queueing.cycle.cycle import cycle
from queueing.model import LocalQueue, Preemption, Rules, UseRules, Within

USE = UseRules(half_life=600.0)
NO_CLAIMS = Rules(patience=1e9, hold=1e9, use=USE)


def shared(nominal=16, *, parts=("a", "b"), rules=NO_CLAIMS, weights=None, **more):
    """ClusterQueue q, by use, with these LocalQueues of namespace ns."""
    queues = make_queues(make_queue("q", nominal, by_use=True, **more), rules=rules)
    for part in parts:
        weight = (weights or {}).get(part, 1000)
        queues.set_local_queue(LocalQueue(namespace="ns", name=part, cluster_queue="q", weight=weight))
    return queues


def one_node(key, part, **more):
    """Eight GPUs: one node."""
    return make_workload(key, part, **more)


def used(queues, **consumed):
    """The LocalQueues used so many GPUs over time, up to now."""
    for part, amount in consumed.items():
        queues.use.restore_use(f"ns/{part}", {"nvidia.com/gpu": amount}, queues.use.now)


def parts_of(found):
    return "".join(key[0] for key in keys(found))


def test_example_e_the_lower_score_goes_before_a_higher_priority():
    state, queues = make_state(1, 1), shared(64, weights={"a": 2000})
    used(queues, a=6.0 * 2**0.5, b=4.343 * 2**0.5)  # the score looks half a half-life ahead, when so much is left
    assert [round(queues.use.score_of(f"ns/{part}"), 3) for part in "ab"] == [3.0, 4.343]
    submit(queues, one_node("b1", "b", priority=1000), one_node("a1", "a"))
    assert list(queues.waiting("q")) == ["a1", "b1"]
    assert keys(run(state, queues)) == ["a1"]


def test_without_a_half_life_or_a_scope_priority_decides_as_ever():
    for by_use, use in ((True, None), (False, USE)):
        queues = make_queues(make_queue("q", 64, by_use=by_use), rules=Rules(use=use))
        for part in "ab":
            queues.set_local_queue(LocalQueue(namespace="ns", name=part, cluster_queue="q"))
        used(queues, b=8.0)
        submit(queues, one_node("b1", "b", priority=1), one_node("a1", "a"))
        assert keys(run(make_state(1, 1), queues)) == ["b1"]


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("use", [USE, UseRules(half_life=600.0, sampling=300.0)])
def test_admissions_of_one_cycle_alternate(strict, use):
    state = make_state(1, 5)
    queues = shared(40, strict=strict, rules=msgspec.structs.replace(NO_CLAIMS, use=use))
    submit(queues, *(one_node(f"{part}{i}", part, created=float(i)) for part in "ab" for i in range(9)))
    assert parts_of(cycle(state, queues, 1.0)) == "ababa", "three against two, as the first of them came first"


def test_a_weight_of_two_gets_twice_as_many():
    state, queues = make_state(3, 3), shared(72, weights={"a": 2000})
    submit(queues, *(one_node(f"{part}{i}", part, created=float(i)) for part in "ab" for i in range(9)))
    found = parts_of(run(state, queues))
    assert (found.count("a"), found.count("b")) == (6, 3)


def test_a_weight_of_nothing_gets_what_is_left():
    state, queues = make_state(1, 3), shared(24, weights={"a": 0})
    submit(queues, *(one_node(f"a{i}", "a", priority=9) for i in range(3)), one_node("b0", "b", created=5.0))
    assert keys(run(state, queues)) == ["b0", "a0", "a1"]


def test_within_one_local_queue_priority_decides_and_then_time():
    queues = shared(64)
    submit(
        queues,
        *(one_node(key, "a", created=float(at), priority=high) for key, at, high in (("a2", 2, 0), ("a1", 1, 0))),
        one_node("a0", "a", created=9.0, priority=5),
        one_node("b0", "b", created=99.0),
    )
    used(queues, b=1.0)
    assert list(queues.waiting("q")) == ["a0", "a1", "a2", "b0"]


def test_a_strict_queue_has_another_first_once_the_first_was_admitted():
    state, queues = make_state(1, 2), shared(16, strict=True)
    used(queues, b=1.0)
    submit(queues, one_node("a0", "a"), one_node("a1", "a", created=1.0), one_node("b0", "b", created=2.0))
    assert keys(run(state, queues)) == ["a0", "b0"]
    assert list(queues.waiting("q")) == ["a1"]


def test_one_that_does_not_fit_holds_up_a_strict_queue_only_while_its_local_queue_is_first():
    state, queues = make_state(1, 2), shared(16, strict=True)
    queues.pass_time(0.0)
    used(queues, b=6.0)
    submit(queues, one_node("b-runs", "b"))
    assert keys(run(state, queues, 1.0)) == ["b-runs"]
    submit(queues, make_workload("a-large", "a", count=2, created=2.0), one_node("b-small", "b", created=3.0), now=3.0)
    found = run(state, queues, 3.0)
    assert keys(found) == []
    assert found.next_time == 3.0 + 60.0, "nothing else would have the scores compared again"
    used(queues, a=20.0)
    assert keys(run(state, queues, 63.0)) == ["b-small"], "a used more by now, so it is not the first any more"


def test_two_local_queues_with_one_shape_do_not_share_a_refusal():
    state, queues = make_state(1, 2), shared({"tas": 16})
    submit(queues, one_node("a0", "a"), one_node("b0", "b"))
    run(state, queues)
    submit(queues, one_node("a1", "a", created=2.0), one_node("b1", "b", created=3.0), now=3.0)
    found = run(state, queues, 3.0)
    assert {one.key for one in found.waiting} == {"a1", "b1"}
    assert queues.entries["a1"].group is not queues.entries["b1"].group
    queues.remove_workload(state, "b0")
    assert keys(run(state, queues, 4.0)) == ["b1"], "b uses nothing now; a1 of the same shape came first and waits on"


def test_one_that_came_late_and_uses_little_goes_before_a_stream_of_a_heavy_one():
    state, queues = make_state(1, 1), shared(8)
    begun, order = {}, []
    for now in range(0, 2400, 60):
        for key, at in list(begun.items()):
            if now - at >= 60:
                queues.pass_time(float(now))
                queues.remove_workload(state, key)
                del begun[key]
        submit(queues, one_node(f"a{now:04}", "a", created=float(now), priority=1), now=float(now))
        if now == 1200:
            submit(queues, *(one_node(f"b{i}", "b", created=1200.0) for i in range(9)), now=1200.0)
        admitted = keys(run(state, queues, float(now)))
        begun |= dict.fromkeys(admitted, now)
        order += admitted
    after = [key[0] for key in order if key[0] == "b" or int(key[1:]) >= 1200]
    assert after[:9] == ["b"] * 9, "a used the node for 20 minutes"


def test_one_that_has_waited_for_too_long_goes_first_whatever_its_local_queue_used():
    state = make_state(1, 1)
    queues = shared(8, rules=Rules(patience=1e9, hold=1000.0, use=USE))
    used(queues, a=50.0)
    submit(queues, one_node("a-old", "a"), one_node("b0", "b", priority=9), now=0.0)
    assert keys(run(state, queues, 1.0)) == ["b0"]
    submit(queues, one_node("b1", "b", created=990.0, priority=9), now=990.0)
    queues.use.advance_to(999.0)
    used(queues, a=50.0)
    assert list(queues.waiting("q")) == ["b1", "a-old"]
    assert cycle(state, queues, 999.0).next_time == 1000.0, "time alone has it go first"
    queues.remove_workload(state, "b0")
    assert keys(run(state, queues, 1000.0)) == ["a-old"]
    submit(queues, one_node("a-late", "a", created=1.0), now=1000.0)
    queues.entries["a-late"].restart(0.0)
    queues.pending.remove_entry(queues.entries["a-late"])
    queues.submit(one_node("a-late", "a", created=1.0), 1001.0)
    run(state, queues, 1001.0)
    assert list(queues.waiting("q")) == ["a-late", "b1"], "one that joins again is as late as it was"


def test_one_that_is_late_waits_for_no_equal_one_before_it_that_is_not():
    state = make_state(1, 1)
    queues = shared(8, rules=Rules(patience=1e9, hold=100.0, use=USE))
    submit(queues, one_node("a-runs", "a", created=1.0))
    run(state, queues, 1.0)
    submit(queues, one_node("a-waits", "a", created=2.0), now=10.0)
    queues.release_and_requeue(state, "a-runs", 105.0)  # it comes first of the two again, and waits anew
    submit(queues, one_node("b", "b", created=3.0), now=105.0)
    used(queues, a=50.0)
    queues.wake_due(150.0)
    assert list(queues.waiting("q")) == ["a-waits", "b", "a-runs"]
    assert keys(run(state, queues, 150.0)) == ["a-waits"]


def test_a_line_that_goes_by_use_no_more_has_nobody_who_is_late():
    state, queues = make_state(1, 1), shared(8, rules=Rules(patience=1e9, hold=100.0, use=USE))
    submit(queues, one_node("a-new", "a", created=2.0), now=10.0)
    submit(queues, one_node("a-old", "a", created=1.0), now=105.0)
    queues.set_cluster_queue(make_queue("q", 8))
    queues.wake_due(150.0)
    assert keys(run(state, queues, 150.0)) == ["a-old"]


def test_one_that_was_evicted_is_late_no_more():
    state = make_state(1, 1)
    queues = shared(8, rules=Rules(patience=1e9, hold=1000.0, use=USE))
    submit(queues, one_node("a-old", "a", count=2), now=0.0)
    run(state, queues, 1000.0)
    assert queues.pending.lines["q"].late == {"a-old"}
    queues.delay_workload("a-old", 1500.0)
    run(state, queues, 1500.0)
    assert queues.pending.lines["q"].late == set()
    assert queues.next_change_time() == 2500.0


@pytest.mark.parametrize(("hold", "admitted"), [(1e9, ["b0"]), (100.0, [])])
def test_a_soft_claim_of_a_heavy_local_queue_stops_no_lighter_one_and_a_hard_one_does(hold, admitted):
    state = make_state(1, 2)
    queues = shared(16, rules=Rules(patience=100.0, hold=hold, use=USE))
    submit(queues, one_node("a0", "a"), make_workload("a-large", "a", count=2, created=1.0))
    assert keys(run(state, queues, 1.0)) == ["a0"]
    run(state, queues, 200.0)
    assert list(queues.claims) == ["a-large"]
    assert queues.claims["a-large"].soft == (hold > 1000.0)
    submit(queues, one_node("b0", "b", created=201.0), now=201.0)
    assert keys(run(state, queues, 201.0)) == admitted


def kept_out(*, growth=False):
    """b1 of b, which used much, wants the half of q that is free; a claim of a, which holds the other half, keeps it.

    ``growth``: b0, which asks for little, wants more pods instead.
    """
    state = make_state(1, 2)
    queues = shared(16, rules=Rules(patience=100.0, hold=1e9, use=USE))
    used(queues, b=40.0)
    running = [make_workload("a0", "a", gpu=7)] + [make_workload("b0", "b", gpu=1)] * growth
    submit(queues, *running)
    assert len(keys(run(state, queues, 1.0))) == len(running)
    submit(queues, make_workload("a-large", "a", count=2, created=1.0), now=1.0)
    run(state, queues, 1.0)
    run(state, queues, 200.0)
    assert list(queues.claims) == ["a-large"]
    if growth:
        queues.wish("b0", {"main": 2})
    else:
        submit(queues, make_workload("b1", "b", gpu=2, created=201.0), now=201.0)
    made = run(state, queues, 201.0)
    assert (keys(made), made.resized) == ([], [])
    return state, queues


@pytest.mark.parametrize("growth", [False, True])
def test_one_that_a_claim_of_a_lighter_local_queue_keeps_out_gets_in_within_a_minute_of_their_crossing(growth):
    state, queues = kept_out(growth=growth)
    lighter = False
    while not lighter:
        at = queues.next_change_time()
        assert at <= queues.use.now + 60.0
        queues.use.advance_to(at)
        lighter = queues.use.score_of("ns/b") < queues.use.score_of("ns/a")
        made = run(state, queues, at)
        got_in = [*keys(made), *(one.key for one in made.resized)]
        assert got_in == (["b0" if growth else "b1"] if lighter else [])
    assert queues.quotas.over_time.barred == {}


def test_the_claim_of_a_queue_goes_to_the_local_queue_that_is_first():
    state = make_state(1, 2)
    queues = shared(16, rules=Rules(patience=100.0, hold=1e9, use=USE))
    used(queues, a=20.0)
    submit(queues, one_node("b0", "b"), one_node("c0", "b"))
    assert len(keys(run(state, queues, 1.0))) == 2
    queues.use.advance_to(2.0)
    used(queues, b=0.0, a=90.0)
    submit(queues, make_workload("a-large", "a", count=2, created=2.0, priority=9), now=2.0)
    submit(queues, make_workload("b-large", "b", count=2, created=3.0), now=3.0)
    run(state, queues, 3.0)
    run(state, queues, 200.0)
    assert list(queues.claims) == ["b-large"]


def test_a_scope_that_comes_or_goes_takes_everybody_along():
    state, queues = make_state(1, 2), shared(0)
    used(queues, b=9.0)
    submit(queues, one_node("b0", "b"), one_node("a0", "a", created=5.0))
    run(state, queues)
    assert list(queues.waiting("q")) == ["a0", "b0"]
    assert all(group.inadmissible for group in queues.pending.lines["q"].groups.values())
    queues.set_cluster_queue(make_queue("q", 0))
    assert list(queues.waiting("q")) == ["b0", "a0"]
    assert len(queues.pending.lines["q"].groups) == 1
    queues.set_cluster_queue(make_queue("q", 8, by_use=True))
    assert list(queues.waiting("q")) == ["a0", "b0"]
    assert len(queues.pending.lines["q"].groups) == 2
    assert keys(run(state, queues, 2.0)) == ["a0"]


def test_scores_of_one_cluster_queue_say_nothing_to_another():
    state = make_state(1, 1)
    queues = shared(8, cohort="x")
    queues.set_cluster_queue(make_queue("other", 8, cohort="x"))
    queues.set_local_queue(LocalQueue(namespace="ns", name="o", cluster_queue="other"))
    used(queues, a=20.0, b=30.0)
    submit(queues, one_node("o0", "o", created=2.0), one_node("a0", "a", created=1.0), one_node("b0", "b"))
    assert keys(run(state, queues)) == ["a0"], "of q a is first, and between queues time decides"


def test_two_local_queues_do_not_evict_each_other_for_ever():
    state = make_state(1, 1)
    queues = shared(8, preemption=Preemption(within=Within.LOWER))
    submit(queues, one_node("a0", "a", priority=5))
    run(state, queues, 1.0)
    evictions, now = 0, 600.0
    queues.pass_time(now)
    queues.remove_workload(state, "a0")
    submit(queues, one_node("b0", "b"), one_node("a1", "a", priority=5, created=2.0), now=now)
    for _ in range(50):
        now += 60.0
        found = run(state, queues, now)
        for one in found.preempting:
            evictions += len(one.victims)
            for victim in one.victims:
                queues.release_and_requeue(state, str(victim.key), now)
    # The important one of the heavy LocalQueue takes back what the score had just given: once, as in Kueue 0.19.2.
    assert evictions == 1
    assert keys(found) == []
    assert queues.entries["a1"].grant is not None


def test_many_local_queues_cost_no_more_looks_than_one():
    state = make_state(1, 1)
    parts = [f"p{i:03}" for i in range(500)]
    queues = shared(8, parts=parts)
    submit(queues, one_node("first", parts[0]))
    assert keys(run(state, queues, 1.0)) == ["first"]
    for number in range(2000):
        queues.submit(one_node(f"w{number:04}", parts[number % 500], created=2.0 + number), 2.0)
    found = run(state, queues, 3.0)
    assert found.admitted == []
    queues.remove_workload(state, "first")
    before = queues.searches
    found = cycle(state, queues, 4.0, limit=8)
    assert keys(found) == ["w0001"], "the first LocalQueue used something, all others nothing"
    assert queues.searches == before


def test_those_that_came_and_went_are_not_remembered_until_they_would_be_late():
    state, queues = make_state(1, 1), shared(8, rules=Rules(patience=10.0, hold=1e6, use=USE))
    submit(queues, one_node("stays", "a", count=2), now=0.0)
    for number in range(5000):
        queues.submit(one_node(f"w{number}", "a"), 1.0 + number)
        queues.remove_workload(state, f"w{number}")
        if number % 100 == 0:
            queues.wake_due(1.0 + number)
    assert len(queues.pending._becoming_late) < 2000
    queues.wake_due(1e6)
    assert queues.pending.lines["q"].late == {"stays"}


def test_scores_cross_while_nothing_happens():
    state, queues = make_state(1, 2), shared(16)
    submit(queues, one_node("b-runs", "b"))
    run(state, queues, 1.0)
    used(queues, a=4.0, b=0.0)
    submit(queues, one_node("a0", "a", created=2.0), one_node("b0", "b", created=3.0))
    line = queues.pending.lines["q"]
    assert line.next().head.key == "b0", "2.3 against 2.8"
    queues.pass_time(301.0)
    assert line.next().head.key == "a0", "4.0 against 2.0"
    queues.remove_workload(state, "b-runs")
    queues.pass_time(302.0)
    used(queues, b=0.0)
    assert line.next().head.key == "b0"


def test_the_half_of_looks_that_goes_by_turns_goes_by_score_within_the_queue():
    state, queues = make_state(1, 8), shared(64)
    used(queues, a=90.0)
    submit(queues, *(one_node(f"a{i}", "a", created=float(i), priority=i) for i in range(5)))
    submit(queues, *(one_node(f"b{i}", "b", created=9.0 + i, priority=i) for i in range(5)))
    assert parts_of(cycle(state, queues, 1.0, limit=8)) == "bbbbbaaa"

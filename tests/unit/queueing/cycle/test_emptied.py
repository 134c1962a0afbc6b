"""Who waits for something other than room keeps none of it, and holds up nobody."""

import pytest
from msgspec import structs
from support.queue_factories import (
    GPU,
    HOST,
    RACK,
    keys,
    make_pod_set,
    make_queue,
    make_queues,
    make_state,
    make_workload,
    run,
    submit,
)

from engine.model import LabelRequirement, NodeTerm, Pod, PodTerm
from queueing.cycle.cycle import cycle
from queueing.cycle.emptied import fits_emptied
from queueing.cycle.rollout import narrowed
from queueing.model import Rules
from queueing.queues.flavor_assigner import options

RULES = Rules(patience=100.0, hold=200.0)
NOBODY = PodTerm(topology_key=RACK, selector=(LabelRequirement("there-is", "In", ("nobody",)),), namespaces=("ns",))
NOWHERE = (NodeTerm(labels=(LabelRequirement("zone", "In", ("nowhere",)),)),)
HOPELESS = {
    "pods that nobody has": {"affinity": (NOBODY,)},
    "a volume that no node reaches": {"volume_nodes": (NOWHERE,)},
}
FULL = 10_000.0


def friends(state, node):
    """A pod that no queue admitted, near which somebody wants to be."""
    state.set_pod(Pod(key="ns/friend", node=node, requests={}, labels={"there-is": "nobody"}, namespace="ns"))


def never(count=4, queue="m", **asks):
    return make_workload("never", queue, pod_sets=(make_pod_set(count, **asks),), created=2.0)


@pytest.mark.parametrize("asks", HOPELESS.values(), ids=HOPELESS)
def test_one_that_can_never_run_closes_no_room_however_long_it_waits(asks):
    """Cases/attack-04: it closed a block for as long as it waited, at the cost of one CPU of quota."""
    state = make_state(2, 4)
    queues = make_queues(make_queue("m", 64), make_queue("a", 64), rules=RULES)
    submit(queues, make_workload("anchor", "m", created=1.0))
    run(state, queues, 1.0)
    submit(queues, never(**asks), now=2.0)
    for now in (2.0, 150.0, 300.0, 600.0, FULL):
        cycle(state, queues, now)
        assert not queues.claims
    submit(queues, *(make_workload(f"x{i}", "a", created=FULL) for i in range(8)), now=FULL)
    assert keys(run(state, queues, FULL)) == [f"x{i}" for i in range(7)]


def test_one_that_can_never_run_keeps_no_quota_from_those_who_borrow():
    state = make_state(2, 4)
    queues = make_queues(make_queue("m", 16, cohort="c"), make_queue("a", 16, cohort="c"), rules=RULES)
    submit(queues, *(make_workload(f"b{i}", "a", created=float(i)) for i in range(4)))
    assert len(keys(run(state, queues, 5.0))) == 4
    submit(queues, never(2, affinity=(NOBODY,)), now=6.0)
    for now in (6.0, 150.0, 300.0):
        cycle(state, queues, now)
    submit(queues, make_workload("x", "a", created=301.0), now=301.0)
    queues.remove_workload(state, "b0")
    assert keys(run(state, queues, 302.0)) == ["x"]


def test_the_room_that_is_kept_is_where_it_would_fit_and_not_where_most_is_free():
    """The pods that it is to be near are no queue's, and in the rack that is full."""
    state = make_state(2, 2)
    queues = make_queues(make_queue("m", 64), make_queue("a", 64), rules=RULES)
    friends(state, "tas-0")
    submit(queues, *(make_workload(f"w{i}", "a", created=float(i)) for i in range(4)))
    run(state, queues, 1.0)
    free = next(key for key in sorted(queues.holders.keys()) if rack_of(state, key) == "tas-r1")
    submit(queues, never(2, affinity=(NOBODY,)), now=2.0)
    cycle(state, queues, 2.0)
    queues.remove_workload(state, free)
    cycle(state, queues, 300.0)
    assert [claim.domains["tas"] for claim in queues.claims.values()] == [("tas-r0",)]
    submit(queues, make_workload("x", "a", created=3.0), now=301.0)
    assert keys(run(state, queues, 301.0)) == ["x"]
    for key in [key for key in list(queues.holders.keys()) if rack_of(state, key) == "tas-r0"]:
        queues.remove_workload(state, key)
    assert keys(run(state, queues, 302.0)) == ["never"]


def test_a_claim_ends_once_it_would_not_fit_any_more():
    state = make_state(2, 2)
    queues = make_queues(make_queue("m", 64), make_queue("a", 64), rules=RULES)
    friends(state, "tas-0")
    submit(queues, *(make_workload(f"w{i}", "a", created=float(i)) for i in range(4)))
    run(state, queues, 1.0)
    submit(queues, never(2, affinity=(NOBODY,)), now=2.0)
    cycle(state, queues, 2.0)
    cycle(state, queues, 300.0)
    assert list(queues.claims) == ["never"]
    state.remove_pod("ns/friend")
    for now in (301.0, 401.0, 402.0):
        cycle(state, queues, now)
    assert not queues.claims


def test_many_that_can_never_run_are_looked_at_one_a_cycle_and_the_honest_one_behind_them_claims():
    state = make_state(1, 2)
    queues = make_queues(make_queue("m", 64), make_queue("a", 64), rules=RULES)
    submit(queues, make_workload("runs", "a"))
    run(state, queues, 1.0)
    for i in range(5):
        body = make_pod_set(2, affinity=(NOBODY,), labels={"number": str(i)})
        submit(queues, make_workload(f"never{i}", "m", pod_sets=(body,), created=2.0), now=2.0)
    submit(queues, make_workload("large", "a", count=2, created=3.0), now=3.0)
    run(state, queues, 3.0)
    before = queues.searches
    for now in range(300, 306):
        cycle(state, queues, float(now))
        assert queues.searches - before <= 2 * (now - 299)
    assert list(queues.claims) == ["large"]


@pytest.mark.parametrize("asks", HOPELESS.values(), ids=HOPELESS)
def test_one_that_can_never_run_holds_up_nobody_in_a_strict_queue(asks):
    state = make_state(2, 2)
    queues = make_queues(make_queue("q", 64, strict=True), rules=RULES)
    submit(queues, make_workload("runs", created=1.0))
    run(state, queues, 1.0)
    submit(queues, never(2, "q", **asks), make_workload("next", created=3.0), now=3.0)
    assert keys(run(state, queues, 3.0)) == ["next"]


def test_one_that_waits_for_room_holds_up_those_behind_it_in_a_strict_queue():
    """Also where its pods are to be near others, which are there."""
    state = make_state(1, 2)
    queues = make_queues(make_queue("q", 64, strict=True), rules=RULES)
    friends(state, "tas-0")
    submit(queues, make_workload("runs", created=1.0))
    run(state, queues, 1.0)
    submit(queues, never(2, "q", affinity=(NOBODY,)), make_workload("next", created=3.0), now=3.0)
    assert keys(run(state, queues, 3.0)) == []
    queues.remove_workload(state, "runs")
    assert keys(run(state, queues, 4.0)) == ["never"]


def rack_of(state, key):
    return state.assignments(key)["main"].slices[0].values[0]


def test_the_state_is_as_it_was_after_each_look():
    state = make_state(2, 2)
    queues = make_queues(make_queue("q", 64, strict=True), rules=RULES)
    submit(queues, make_workload("runs", created=1.0))
    run(state, queues, 1.0)
    before = state.assignments("runs")
    submit(queues, never(2, "q", affinity=(NOBODY,)), now=3.0)
    run(state, queues, 3.0)
    assert state.assignments("runs") == before
    assert state.depth == 0
    assert GPU in before["main"].requests
    assert HOST in before["main"].levels


def test_a_domain_of_a_level_that_no_node_has_is_of_no_name():
    """A level that all nodes lost has one domain, whose value is ""; no node has such a label."""
    state, queues = make_state(1, 2), make_queues(make_queue("m", 64))
    for node in list(state.nodes.values()):
        state.set_node(structs.replace(node, labels={key: value for key, value in node.labels.items() if key != RACK}))
    wide = make_workload("wide", "m", count=1, level=HOST)
    (option,) = options(state, queues.quotas.queues["m"], queues.config.plain, wide).found
    assert fits_emptied(state, queues, "wide", option, {"tas": ("",)}) is not None
    (within,) = narrowed(state, queues, wide, [option])
    assert within.pod_sets[0].node_selector.keys() == {HOST}, "where a rollout begins"

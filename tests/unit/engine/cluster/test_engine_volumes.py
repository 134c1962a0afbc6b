"""Volumes: which nodes they reach, and how many of a driver a node takes."""

import msgspec
from support.engine_factories import BLOCK, HOST, RACK, ask, make_node, make_pod, make_pod_set, make_state, nodes_of

from engine.cluster.shared_volumes import SharedVolumes
from engine.model import Attached, LabelRequirement, NodeTerm, Policy, volumes_of
from engine.placement.explain import explain
from engine.reasons import Reason
from engine.results import Placement, Refusal

LIMIT = volumes_of("ebs")
OTHER = volumes_of("nfs")


def own(count, limit=LIMIT):
    return Attached(own={limit: count})


def shared(*volumes, limit=LIMIT):
    return Attached(shared=tuple((limit, volume) for volume in volumes))


def limited(name, count, **more):
    return make_node(name, attachable={LIMIT: count}, **more)


def within(key, *values):
    return (NodeTerm(labels=(LabelRequirement(key=key, operator="In", values=values),)),)


def anywhere(count, **more):
    return make_pod_set(count, Policy.UNCONSTRAINED, **more)


def held(state, key, pod_set):
    answer = ask(state, pod_set, key=key)
    assert isinstance(answer, Placement), answer
    state.reserve(key, answer.assignments)
    return nodes_of(answer)


def left(state, name):
    return state.free_on_node(name)[LIMIT]


# -- which nodes ------------------------------------------------------------------------------------------------


def test_pods_go_where_all_their_volumes_reach():
    state = make_state([make_node(f"n{i}", rack=f"r{i}") for i in range(3)])
    both = within(RACK, "r1", "r2"), within(HOST, "n0", "n2")
    assert nodes_of(ask(state, make_pod_set(2, volume_nodes=both))) == {"n2": 2}
    refused = ask(state, make_pod_set(2, volume_nodes=(*both, within(RACK, "r0"))))
    assert (refused.reason, "no node is reached by all volumes of the pods" in refused.message) == (
        Reason.NEVER_FITS,
        True,
    )


def test_explain_counts_the_nodes_that_volumes_do_not_reach():
    state = make_state([make_node("n0"), make_node("n1", rack="r2")])
    found = explain(state, "tas", make_pod_set(2, volume_nodes=(within(RACK, "r2"),)))
    assert [(one.fits, dict(one.excluded)) for one in found] == [(0, {Reason.VOLUME_NODE_AFFINITY: 1}), (8, {})]


def test_a_volume_that_reaches_no_node_lets_nobody_in():
    state = make_state([make_node("n0")])
    assert isinstance(ask(state, anywhere(1, volume_nodes=((),))), Refusal)


# -- how many ---------------------------------------------------------------------------------------------------


def test_each_pod_takes_its_own_volumes_of_the_limit():
    state = make_state([limited("n0", 5), limited("n1", 4, rack="r2")])
    assert nodes_of(ask(state, anywhere(3, attached=own(2)))) == {"n0": 2, "n1": 1}
    assert held(state, "w", make_pod_set(2, attached=own(2))) == {"n0": 2}
    assert left(state, "n0") == 1
    assert held(state, "v", anywhere(2, attached=own(2))) == {"n1": 2}
    refused = ask(state, anywhere(1, attached=own(2)))
    assert (refused.reason, LIMIT in refused.message) == (Reason.DOES_NOT_FIT, True)


def test_a_node_that_names_no_limit_takes_any_number():
    state = make_state([limited("n0", 1), make_node("n1", rack="r2")])
    assert nodes_of(ask(state, make_pod_set(8, attached=own(100)))) == {"n1": 8}
    state.set_node(make_node("n2", rack="r3"))
    state.remove_node("n1")
    assert nodes_of(ask(state, make_pod_set(8, attached=own(100)))) == {"n2": 8}


def test_a_driver_that_no_node_limits_is_no_matter():
    state = make_state([limited("n0", 1)])
    assert nodes_of(ask(state, anywhere(3, attached=own(9, OTHER)))) == {"n0": 3}
    assert nodes_of(ask(state, anywhere(3, attached=shared("a", "b", limit=OTHER)))) == {"n0": 3}


def test_what_was_attached_before_a_limit_is_known_counts_against_it():
    bound = make_pod("default/a", "n0", attached=shared("v1", "v2"))
    state = make_state([make_node("n0")], pods=[bound, make_pod("default/b", "n0", attached=own(1))])
    held(state, "w", anywhere(2, attached=Attached(own={LIMIT: 1}, shared=((LIMIT, "v2"), (LIMIT, "v3")))))
    state.set_node(limited("n0", 9))
    assert left(state, "n0") == 9 - 2 - 1 - 2 - 1
    state.release_workload("w")
    state.remove_pod("default/a")
    state.remove_pod("default/b")
    assert left(state, "n0") == 9


def test_a_limit_may_change_and_go():
    state = make_state([limited("n0", 4)])
    held(state, "w", anywhere(2, attached=own(2)))
    state.set_node(limited("n0", 3))
    assert left(state, "n0") == -1
    assert isinstance(ask(state, anywhere(1, attached=own(1))), Refusal)
    assert nodes_of(ask(state, anywhere(1))) == {"n0": 1}
    state.set_node(make_node("n0"))
    assert nodes_of(ask(state, anywhere(1, attached=own(1)))) == {"n0": 1}


def test_a_volume_that_pods_share_is_attached_once():
    state = make_state([limited("n0", 2)])
    pods = [make_pod(f"default/{i}", "n0", attached=shared("v")) for i in range(3)]
    for pod in pods:
        state.set_pod(pod)
    assert left(state, "n0") == 1
    for pod, more in zip(pods, (1, 1, 2), strict=True):
        state.remove_pod(pod.key)
        assert left(state, "n0") == more


def test_slots_that_share_a_volume_have_it_attached_once_a_node():
    state = make_state([limited("n0", 1), limited("n1", 1)])
    assert held(state, "w", make_pod_set(12, attached=shared("v"))) == {"n0": 8, "n1": 4}
    assert (left(state, "n0"), left(state, "n1")) == (0, 0)
    assert nodes_of(ask(state, anywhere(3, attached=shared("v")))) == {"n1": 3}
    assert isinstance(ask(state, anywhere(1, attached=shared("other"))), Refusal)
    state.release_workload("w")
    assert nodes_of(ask(state, anywhere(8, attached=shared("other")))) == {"n0": 8}


def test_pods_in_their_slots_and_the_slots_that_are_left_have_one_volume():
    state = make_state([limited("n0", 2)])
    held(state, "w", anywhere(2, attached=shared("v")))
    first = make_pod("default/a", "n0", attached=shared("v"), claim=("w", "main"))
    state.set_pod(first)
    assert left(state, "n0") == 1
    state.set_pod(make_pod("default/b", "n0", attached=shared("v"), claim=("w", "main")))
    assert left(state, "n0") == 1
    state.release_workload("w")
    assert left(state, "n0") == 1
    state.remove_pod("default/a")
    state.remove_pod("default/b")
    assert left(state, "n0") == 2


def test_volumes_that_pods_share_and_their_own_count_together():
    state = make_state([limited("n0", 7)])
    pods = Attached(own={LIMIT: 2}, shared=((LIMIT, "v"), (LIMIT, "w")))
    assert isinstance(ask(state, make_pod_set(3, attached=pods)), Refusal)
    state.set_pod(make_pod("default/a", "n0", attached=shared("v")))
    assert nodes_of(ask(state, make_pod_set(2, attached=pods))) == {"n0": 2}
    assert isinstance(ask(state, make_pod_set(3, attached=pods)), Refusal)
    state.set_pod(make_pod("default/b", "n0", attached=shared("w", "v")))
    assert isinstance(ask(state, make_pod_set(3, attached=pods)), Refusal)
    assert nodes_of(ask(state, make_pod_set(2, attached=pods))) == {"n0": 2}


def test_a_node_that_is_over_its_limit_takes_more_pods_of_what_it_has():
    state = make_state([limited("n0", 1)], pods=[make_pod("default/a", "n0", attached=shared("v", "w"))])
    assert left(state, "n0") == -1
    assert nodes_of(ask(state, anywhere(3, attached=shared("v")))) == {"n0": 3}
    assert isinstance(ask(state, anywhere(1, attached=shared("x"))), Refusal)


def test_counts_that_are_kept_are_corrected_when_volumes_come_and_go():
    state = make_state([limited(f"n{i}", 1, rack=f"r{i}") for i in range(3)])
    wish = anywhere(1, attached=shared("v"))
    assert nodes_of(ask(state, wish)) == {"n0": 1}
    state.set_pod(make_pod("default/a", "n0", attached=shared("other")))
    assert nodes_of(ask(state, wish)) == {"n1": 1}
    state.set_pod(make_pod("default/b", "n1", attached=shared("another")))
    state.set_pod(make_pod("default/c", "n0", attached=shared("v")))
    assert nodes_of(ask(state, wish)) == {"n0": 1}


def test_a_trial_leaves_no_volume_behind():
    state = make_state([limited("n0", 3), limited("n1", 3, rack="r2")])
    held(state, "w", make_pod_set(2, attached=Attached(own={LIMIT: 1}, shared=((LIMIT, "v"),))))
    before = {name: state.free_on_node(name) for name in ("n0", "n1")}
    checkpoint = state.begin()
    state.release_all(["w"])
    held(state, "x", make_pod_set(1, attached=shared("v", "y", "z")))
    state.set_pod(make_pod("default/a", "n1", attached=shared("v")))
    state.set_node(limited("n1", 1, rack="r2"))
    state.rollback(checkpoint)
    assert {name: state.free_on_node(name) for name in ("n0", "n1")} == before
    state.release_workload("w")
    assert [left(state, name) for name in ("n0", "n1")] == [3, 3]


def test_volumes_stay_where_they_are_when_the_order_of_nodes_changes():
    state = make_state([limited("n5", 2, rack="r5")], pods=[make_pod("default/a", "n5", attached=shared("v"))])
    held(state, "w", anywhere(1, attached=shared("w")))
    state.set_node(limited("n0", 0, rack="r0"))
    assert nodes_of(ask(state, anywhere(2, attached=shared("v", "w")))) == {"n5": 2}
    state.remove_pod("default/a")
    state.release_workload("w")
    assert left(state, "n5") == 2


def test_a_pod_that_fills_a_slot_has_its_own_node_looked_at_and_no_other(monkeypatch):
    state = make_state([limited(f"n{at}", 2, gpu=2) for at in range(9)])
    held(state, "w", anywhere(18, attached=shared("v")))
    looked, hold_on = [], SharedVolumes.hold_on

    def noted(self, before, record, *, some):
        looked.append((record.name, some))
        hold_on(self, before, record, some=some)

    monkeypatch.setattr(SharedVolumes, "hold_on", noted)
    monkeypatch.setattr(SharedVolumes, "hold_volumes", None)
    for key in "ab":
        state.set_pod(make_pod(f"default/{key}", "n3", claim=("w", "main"), attached=shared("v")))
    assert looked == [("n3", True), ("n3", False)]
    state.remove_pod("default/a")
    state.remove_pod("default/b")
    assert looked[2:] == [("n3", True), ("n3", True)]
    monkeypatch.undo()
    assert [left(state, f"n{at}") for at in range(9)] == [1] * 9
    state.release_workload("w")
    assert [left(state, f"n{at}") for at in range(9)] == [2] * 9


def test_volumes_that_no_node_limits_have_no_vector_made_for_them():
    state = make_state([make_node("n0")])
    state.set_pod(make_pod("default/a", "n0", attached=shared(*map(str, range(99)))))
    assert not any(limit == LIMIT for key in state.cluster.table._vectors for limit, _ in key)


def test_pods_share_a_volume_inside_one_answer():
    state = make_state([limited("n0", 1, gpu=4), limited("n1", 1, gpu=4, block="b2")])
    one = make_pod_set(2, name="a", attached=shared("v"), level=BLOCK)
    other = make_pod_set(2, name="b", attached=shared("w"), level=BLOCK)
    answer = ask(state, one, other)
    assert [nodes_of(answer, at) for at in (0, 1)] == [{"n0": 2}, {"n1": 2}]
    same = msgspec.structs.replace(other, attached=shared("v"))
    assert [nodes_of(ask(state, one, same), at) for at in (0, 1)] == [{"n0": 2}, {"n0": 2}]

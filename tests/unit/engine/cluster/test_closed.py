"""Slots where no pod can start any more, and nodes that take no pods for want of a label."""

import msgspec
import pytest
from support.engine_factories import GPU, HOST, LEVELS, RACK, make_flavor, make_node, make_pod, make_pod_set, make_state

from engine.cluster.filters import NodeFilter
from engine.cluster.unlabeled import helpful, in_words, unlabeled
from engine.cluster.unusable_slots import SlotNodes, closed
from engine.model import LabelRequirement, NodeTerm, Taint, Toleration

TAINT = Taint(key="repair", effect="NoSchedule")
TOLERATION = Toleration(key="repair", operator="Exists")
SLOT = (("b1", "r1", "n1"), "n1")


def is_closed(node, pod_set=None, flavor=None, *, slot=SLOT, levels=LEVELS, pods=()):
    state = make_state([node] if node is not None else [], flavor or make_flavor(levels=levels), pods)
    (answer,) = closed(state, "tas", levels, pod_set or make_pod_set(1), [slot])
    return answer


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (make_node(), False),
        (None, True),
        (make_node(ready=False), True),
        (make_node(unschedulable=True), True),
        (make_node(taints=(TAINT,)), True),
        (make_node(taints=(Taint(key="repair", effect="PreferNoSchedule"),)), False),
        (make_node(rack="r2"), True),
        (make_node("n2"), True),
        (make_node(labels={HOST: "other"}), True),
    ],
)
def test_a_slot_is_closed_where_its_node_takes_no_such_pod(node, expected):
    assert is_closed(node) is expected


def test_what_pods_or_their_flavor_tolerate_closes_nothing():
    node = make_node(taints=(TAINT,))
    assert not is_closed(node, make_pod_set(1, tolerations=(TOLERATION,)))
    assert not is_closed(node, flavor=make_flavor(tolerations=(TOLERATION,)))


def test_selectors_affinity_and_the_flavors_labels_count():
    assert is_closed(make_node(), make_pod_set(1, node_selector={"disk": "fast"}))
    assert not is_closed(make_node(labels={"disk": "fast"}), make_pod_set(1, node_selector={"disk": "fast"}))
    away = NodeTerm(labels=(LabelRequirement(key="disk", operator="Exists"),))
    assert is_closed(make_node(), make_pod_set(1, node_affinity=(away,)))
    pool = make_flavor(node_labels={"pool": "gpu"})
    assert is_closed(make_node(), flavor=pool)
    assert not is_closed(make_node(labels={"pool": "gpu"}), flavor=pool)


def test_a_flavor_that_is_gone_or_has_other_levels_now_asks_for_nothing():
    state = make_state([make_node()], make_flavor(node_labels={"pool": "gpu"}))
    assert closed(state, "other", LEVELS, make_pod_set(1), [SLOT]) == [False]
    state.set_flavor(make_flavor(levels=LEVELS[1:], node_labels={"pool": "gpu"}))
    assert closed(state, "tas", LEVELS, make_pod_set(1), [SLOT]) == [False]


def test_a_node_that_became_too_small_is_closed_to_those_who_ask_for_what_it_lacks():
    pods = [make_pod("a", gpu=8)]
    assert is_closed(make_node(gpu=7), pods=pods)
    assert not is_closed(make_node(gpu=8), pods=pods)
    assert not is_closed(make_node(gpu=7), make_pod_set(1, requests={"cpu": 1}), pods=pods)


def test_a_domain_of_several_nodes_is_closed_when_all_of_them_are():
    levels = LEVELS[:2]
    nodes = [make_node("n1", ready=False), make_node("n2")]
    state = make_state(nodes, make_flavor(levels=levels))
    slots = [(("b1", "r1"), ""), (("b1", "r7"), "")]
    assert closed(state, "tas", levels, make_pod_set(1), slots) == [False, True]
    state.set_node(make_node("n2", unschedulable=True))
    assert closed(state, "tas", levels, make_pod_set(1), slots) == [True, True]


def bare(name, **more):
    node = make_node(name, **more)
    return msgspec.structs.replace(node, labels={key: text for key, text in node.labels.items() if key != RACK})


def test_nodes_without_a_label_are_named_with_what_they_could_take():
    state = make_state([make_node(), bare("n2"), bare("n3", unschedulable=True), bare("n4", gpu=3)])
    assert [(one.node, one.missing) for one in unlabeled(state, "tas")] == [(n, (RACK,)) for n in ("n2", "n3", "n4")]
    found = helpful(state, "tas", make_pod_set(4, gpu=2))
    assert [(one.node, one.fits) for one in found] == [("n2", 4), ("n4", 1)]
    assert helpful(state, "tas", make_pod_set(4, requests={GPU: 9})) == ()
    assert in_words(found) == f"2 nodes lack the label of a level: n2 ({RACK}), n4 ({RACK})"
    assert (in_words(()), unlabeled(state, "none"), helpful(state, "none", make_pod_set(1))) == ("", (), ())


def test_slots_that_volumes_reach_are_found_with_one_comparison_for_all_slots(monkeypatch):
    state = make_state([make_node(f"n{at}", rack=f"r{at // 2}") for at in range(6)])
    masks, mask = [], NodeFilter.mask
    monkeypatch.setattr(NodeFilter, "mask", lambda *one: masks.append(one) or mask(*one))
    within = (NodeTerm(labels=(LabelRequirement(key=RACK, operator="In", values=("r1",)),)),)
    hosts = SlotNodes(state, "tas", LEVELS, [(("b1", f"r{at // 2}", f"n{at}"), f"n{at}") for at in (0, 2, 3, 9)])
    assert hosts.reached((within,)) == {1, 2, 3}  # of a node that is gone `closed` tells
    assert len(masks) == 1
    assert hosts.reached(()) == {0, 1, 2, 3}


@pytest.mark.parametrize("flavor", ["tas", "unknown"])
def test_a_slot_without_nodes_of_its_own_is_reached_where_any_node_of_its_domain_is(flavor):
    levels = LEVELS[:2]
    state = make_state([make_node(f"n{at}", rack=f"r{at // 2}") for at in range(6)], make_flavor(levels=levels))
    within = (NodeTerm(labels=(LabelRequirement(key=HOST, operator="In", values=("n3", "n4")),)),)
    racks = SlotNodes(state, flavor, levels, [(("b1", f"r{at}"), "") for at in range(4)])
    assert racks.reached((within,)) == {1, 2, 3}

"""Explain: for every domain how many pods fit, and what limits it."""

import pytest
from support.engine_factories import BLOCK, GPU, RACK, make_flavor, make_node, make_pod, make_pod_set, make_state, racks

from engine.model import Policy, Taint
from engine.placement.explain import explain
from engine.reasons import Reason


def test_every_domain_of_the_requested_level_in_tree_order():
    state = racks({"b1/r1": [8, 3], "b1/r2": [4], "b2/r1": [12]})
    found = explain(state, "tas", make_pod_set(12))
    assert [(fit.values, fit.fits, fit.limit, fit.missing) for fit in found] == [
        (("b1", "r1"), 11, GPU, {GPU: 1}),
        (("b1", "r2"), 4, GPU, {GPU: 8}),
        (("b2", "r1"), 12, "", {}),
    ]


def test_another_level_may_be_asked_for():
    state = racks({"b1/r1": [8, 3], "b1/r2": [4], "b2/r1": [12]})
    assert [fit.fits for fit in explain(state, "tas", make_pod_set(12), BLOCK)] == [15, 12]
    assert [fit.fits for fit in explain(state, "tas", make_pod_set(12, Policy.UNCONSTRAINED))] == [15, 12]


def test_excluded_nodes_are_counted_by_their_first_reason():
    nodes = [
        make_node("ok"),
        make_node("down", ready=False, unschedulable=True),
        make_node("cordoned", unschedulable=True),
        make_node("tainted", taints=(Taint(key="x", effect="NoSchedule"),)),
        make_node("wrong", labels={"disk": "hdd"}),
        make_node("full", labels={"disk": "ssd"}),
    ]
    nodes = [
        type(n)(**{f: getattr(n, f) for f in n.__struct_fields__} | {"labels": {"disk": "ssd"} | n.labels})
        for n in nodes
    ]
    state = make_state(nodes, pods=[make_pod("p", "full", 8)])
    (fit,) = explain(state, "tas", make_pod_set(9, node_selector={"disk": "ssd"}))
    assert (fit.fits, fit.nodes, fit.limit, fit.missing) == (8, 2, GPU, {GPU: 1})
    assert fit.excluded == {
        Reason.NODE_NOT_READY: 1,
        Reason.NODE_UNSCHEDULABLE: 1,
        Reason.NODE_TAINTED: 1,
        Reason.NODE_SELECTOR: 1,
        Reason.INSUFFICIENT_RESOURCE: 1,
    }


def test_where_no_node_passes_the_reason_is_the_limit():
    state = make_state([make_node("a", ready=False), make_node("b", ready=False), make_node("c", unschedulable=True)])
    (fit,) = explain(state, "tas", make_pod_set(1))
    assert (fit.fits, fit.nodes, fit.limit) == (0, 0, Reason.NODE_NOT_READY)


def test_the_resource_that_runs_out_first_is_named():
    state = make_state([make_node("a", cpu=3000), make_node("b", cpu=3000)])
    (fit,) = explain(state, "tas", make_pod_set(9, requests={GPU: 1, "cpu": 1000}))
    assert (fit.fits, fit.limit, fit.missing) == (6, "cpu", {"cpu": 3000})
    (fit,) = explain(make_state([make_node("a", pods=2)]), "tas", make_pod_set(3))
    assert (fit.fits, fit.limit, fit.missing) == (2, "pods", {"pods": 1})


def test_nodes_that_lack_a_level_label_are_told():
    bare = make_node("bare")
    labels = {key: value for key, value in bare.labels.items() if key != RACK}
    state = make_state([make_node("whole"), type(bare)(name="bare", labels=labels)])
    *_, last = explain(state, "tas", make_pod_set(1))
    assert (last.values, last.fits, last.excluded) == ((), 0, {Reason.MISSING_LEVEL_LABEL: 1})


def test_what_does_not_exist_is_named():
    state = make_state([], make_flavor())
    with pytest.raises(ValueError, match="no flavor 'x'; there are: tas"):
        explain(state, "x", make_pod_set(1))
    with pytest.raises(ValueError, match="no level 'x'; levels are: cloud/block"):
        explain(state, "tas", make_pod_set(1, level="x"))
    assert explain(state, "tas", make_pod_set(1)) == ()

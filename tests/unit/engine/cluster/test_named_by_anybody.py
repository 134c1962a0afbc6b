"""What pods name and no node has: it costs nothing, is never found, and counts as soon as a node has it."""

import numpy as np
import pytest
from support.engine_factories import (
    BLOCK,
    GPU,
    HOST,
    RACK,
    ask,
    make_node,
    make_pod,
    make_pod_set,
    nodes_of,
    placed,
    racks,
)

from engine.cluster.filters import NodeFilter
from engine.cluster.node_columns import _SPARE
from engine.cluster.nodes import NAMELESS
from engine.model import LabelRequirement, NodeTerm, Policy, Taint
from engine.placement.explain import explain
from engine.quantity import LARGEST, MOST, bounded, of_node, parse
from engine.reasons import Reason
from engine.results import Refusal

OTHER = "example.com/other"


def with_names(count, **more):
    return make_pod_set(requests={GPU: 1, **{f"example.com/r{n}": 1 for n in range(count)}}, **more)


def test_resources_that_no_node_has_make_no_rows():
    state = racks({"b1/r1": [8, 8]})
    rows = dict(state.cluster.table.rows)
    answer = ask(state, with_names(500))
    assert isinstance(answer, Refusal)
    assert answer.reason is Reason.NEVER_FITS
    assert "example.com/r0" in answer.message
    state.set_pod(make_pod(node="n0", requests={f"example.com/s{n}": 1 for n in range(500)}))
    state.set_pod(make_pod("default/q", node="nowhere", requests={f"example.com/t{n}": 1 for n in range(500)}))
    explain(state, "tas", with_names(500))
    assert dict(state.cluster.table.rows) == rows


def test_one_that_asks_for_what_a_node_has_only_later_fits_then():
    state = racks({"b1/r1": [8, 8]})
    wish = make_pod_set(requests={OTHER: 2})
    assert isinstance(ask(state, wish), Refusal)
    state.set_node(make_node("n2", allocatable={OTHER: 3}))
    assert nodes_of(ask(state, wish)) == {"n2": 1}


def test_what_was_asked_for_before_is_charged_once_a_node_has_it():
    state = racks({"b1/r1": [8, 8]})
    asks = {OTHER: 2}
    state.set_node(make_node("n2", gpu=4))
    state.set_pod(make_pod("default/early", node="n2", requests=asks))
    (part,) = placed(ask(state, make_pod_set(count=1, gpu=4))).assignments
    state.reserve("w", [part])
    state.set_node(make_node("n2", gpu=4, allocatable={OTHER: 3}))
    assert state.free_on_node("n2")[OTHER] == 1
    state.set_node(make_node("n0", allocatable={OTHER: 3}))
    assert state.free_on_node("n0")[OTHER] == 3
    state.remove_pod("default/early")
    assert state.free_on_node("n2")[OTHER] == 3


def test_slots_too_are_charged_once_a_node_has_what_they_hold():
    state = racks({"b1/r1": [8]})
    state.set_node(make_node("other", allocatable={OTHER: 9}))
    asked = make_pod_set(count=2, requests={GPU: 1, OTHER: 2})
    (part,) = placed(ask(state, asked)).assignments
    again = racks({"b1/r1": [8]})
    again.set_node(make_node("other"))
    again.restore_slots("w", [part])
    checkpoint = again.begin()
    again.release_workload("w")
    again.set_node(make_node("other", allocatable={OTHER: 9}))
    again.rollback(checkpoint)
    again.set_node(make_node("other", allocatable={OTHER: 9}))
    assert again.free_on_node("other")[OTHER] == 9 - 4
    again.set_pod(make_pod("default/p", node="other", requests={OTHER: 1}, claim=("w", "main")))
    assert again.free_on_node("other")[OTHER] == 9 - 2 - 1
    again.release_workload("w")
    assert again.free_on_node("other")[OTHER] == 9 - 1


def test_label_keys_that_no_node_has_make_no_columns():
    state = racks({"b1/r1": [8, 8]})
    for n in range(500):
        selector = {f"example.com/k{n}": "v"}
        terms = (NodeTerm(labels=(LabelRequirement(key=f"example.com/a{n}", operator="Exists"),)),)
        assert isinstance(ask(state, make_pod_set(node_selector=selector)), Refusal)
        assert isinstance(ask(state, make_pod_set(node_affinity=terms)), Refusal)
    assert set(state.cluster.table.labels) <= {BLOCK, RACK, HOST}
    absent = (NodeTerm(labels=(LabelRequirement(key="example.com/a1", operator="DoesNotExist"),)),)
    assert nodes_of(ask(state, make_pod_set(node_affinity=absent)))


def test_a_label_that_a_node_gets_later_is_found_and_its_column_goes_with_it():
    state = racks({"b1/r1": [8, 8]})
    wish = make_pod_set(node_selector={"disk": "fast"})
    assert isinstance(ask(state, wish), Refusal)
    state.set_node(make_node("n1", labels={"disk": "fast"}))
    assert nodes_of(ask(state, wish)) == {"n1": 1}
    assert "disk" in state.cluster.table.labels
    state.set_node(make_node("n1"))
    assert isinstance(ask(state, wish), Refusal)
    assert "disk" not in state.cluster.table.labels
    state.set_node(make_node("n0", labels={"disk": "fast"}))
    assert nodes_of(ask(state, wish)) == {"n0": 1}
    state.remove_node("n0")
    assert isinstance(ask(state, wish), Refusal)


def test_nodes_that_are_not_there_leave_nothing_once_their_pods_are_gone():
    state = racks({"b1/r1": [8, 8]})
    state.tree("tas")
    for n in range(4 * NAMELESS):
        state.set_pod(make_pod(f"default/p{n}", node=f"nowhere-{n}"))
        state.remove_pod(f"default/p{n}")
        state.tree("tas")
    assert len(state.cluster.by_name) <= 2 + NAMELESS
    assert state.free_on_node("n0")[GPU] == 8


def test_values_and_statuses_of_nodes_that_are_gone_are_dropped():
    state = racks({"b1/r1": [8, 8]})
    for n in range(3 * _SPARE):
        gone = make_node(f"gone-{n}", taints=(Taint(key="deleted-at", value=str(n), effect="NoSchedule"),))
        state.set_node(gone)
        NodeFilter.for_pod_set(make_pod_set(node_selector={HOST: "n0"}), ()).mask(state.cluster.columns, slice(0, 1))
        state.remove_node(gone.name)
        state.tree("tas")
    table = state.cluster.table
    assert len(table.statuses) <= 2 * _SPARE
    assert len(table.labels[HOST].values) <= 2 * (_SPARE + table.capacity)
    assert nodes_of(ask(state, make_pod_set(node_selector={HOST: "n1"}))) == {"n1": 1}


@pytest.mark.parametrize("resource", ["memory", "cpu", GPU])
def test_amounts_that_no_machine_has_never_fit(resource):
    state = racks({"b1/r1": [8, 8]})
    state.set_node(make_node("huge", allocatable={resource: of_node(LARGEST)}))
    wish = make_pod_set(requests={resource: bounded(LARGEST)}, policy=Policy.UNCONSTRAINED)
    answer = ask(state, wish)
    assert isinstance(answer, Refusal)
    assert answer.reason is Reason.NEVER_FITS


def test_many_giants_on_one_node_do_not_turn_its_amounts_round():
    state = racks({"b1/r1": [8, 8]})
    for n in range(300):
        state.set_pod(make_pod(f"default/p{n}", node="n0", gpu=0, requests={"memory": bounded(LARGEST)}))
    assert state.free_on_node("n0")["memory"] < -299 * MOST
    assert state.cluster.table.free.dtype == np.int64
    assert nodes_of(ask(state, make_pod_set(requests={"memory": 1}))) == {"n1": 1}
    for n in range(300):
        state.remove_pod(f"default/p{n}")
    assert state.free_on_node("n0")["memory"] == state.free_on_node("n1")["memory"]


@pytest.mark.parametrize("text", ["9223372036854775807", "1E9999", "9" * 5000, "16Ei", "1e+400"])
def test_whatever_is_written_is_an_amount(text):
    assert parse("memory", text) == LARGEST
    assert bounded(parse("memory", text)) == MOST


@pytest.mark.parametrize("text", ["1e-9999", "0." + "0" * 5000 + "1", "1n"])
def test_the_least_amount_is_not_rounded_away(text):
    assert parse("memory", text) == 1


def test_thousands_of_resources_of_one_node_have_the_table_laid_out_once():
    """Each row by itself had it copied whole, thousands of times."""
    state = racks({"b1/r1": [8, 8]})
    table = state.cluster.table
    before = table.layout
    state.set_node(make_node("odd", allocatable={f"a.b/{n}": n for n in range(3000)}))
    assert table.layout == before + 1
    assert len(table.rows) == table.alloc.shape[0] == table.free.shape[0] > 3000
    index = state.cluster.by_name["odd"].index
    assert table.free[table.rows["a.b/2999"], index] == 2999

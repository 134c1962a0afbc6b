"""Nodes with one host name label: kube-scheduler sends a pod with that node selector to any of them."""

import msgspec
import pytest
from support.cases import objects, of_kind
from support.engine_factories import HOST, ask, make_node, make_pod_set, make_state, nodes_of

from engine.cluster.unlabeled import in_words, unlabeled
from engine.results import Placement
from kube import objects as wire
from kube.pods import convert


def same(name):
    return make_node(name, gpu=3, labels={HOST: "same"})


def test_they_take_no_pods_where_the_host_name_is_a_level():
    state = make_state([same("a"), same("b")])
    refusal = ask(state, make_pod_set(1, gpu=3, level=HOST))
    assert refusal.message.endswith("one of them is a, whose kubernetes.io/hostname is also that of b")
    own = "kubernetes.io/hostname of its own: same is also that of"
    found = unlabeled(state, "tas")
    assert [one.missing for one in found] == [(f"{own} b",), (f"{own} a",)]
    assert in_words(found) == f"2 nodes lack the label of a level: a ({own} b), b ({own} a)"


def test_other_nodes_are_used():
    state = make_state([same("a"), same("b"), make_node("c", gpu=3)])
    assert nodes_of(ask(state, make_pod_set(1, gpu=3))) == {"c": 1}


def test_a_node_that_takes_the_host_name_of_another_closes_itself_and_not_the_other():
    """A kubelet may set this label of its own node to anything (NodeRestriction, Kubernetes 1.37)."""
    state = make_state([make_node("victim", gpu=3), make_node("liar", gpu=3)])
    state.set_node(make_node("liar", gpu=3, labels={HOST: "victim"}))
    assert nodes_of(ask(state, make_pod_set(1, gpu=3, level=HOST))) == {"victim": 1}
    assert [one.node for one in unlabeled(state, "tas")] == ["liar"]
    state.set_node(make_node("victim", gpu=3, labels={HOST: "other"}))
    assert sorted(state.tree("tas").names) == ["liar", "victim"], "nobody else has either name now"


@pytest.mark.parametrize("change", ["relabelled", "removed"])
def test_a_node_takes_pods_once_its_host_name_is_its_own(change):
    state = make_state([same("a"), same("b")])
    if change == "removed":
        state.remove_node("b")
    else:
        state.set_node(make_node("b", gpu=3))
    assert isinstance(ask(state, make_pod_set(1, gpu=3, level=HOST)), Placement)
    assert not unlabeled(state, "tas")
    state.set_node(same("d"))
    assert [one.node for one in unlabeled(state, "tas")] == ["a", "d"]


def test_of_three_that_share_one_all_take_pods_once_each_has_its_own():
    state = make_state([same("a"), same("b"), same("c")])
    state.set_node(make_node("a", gpu=3))
    assert [one.node for one in unlabeled(state, "tas")] == ["b", "c"]
    state.set_node(make_node("b", gpu=3))
    assert not unlabeled(state, "tas")


def test_the_nodes_of_the_case_are_left_out_beside_the_free_one():
    bodies = [*of_kind("hostname-twice", "objects.json", "Node"), *objects("hostname-twice", "free.json")]
    nodes = [convert.node(msgspec.convert(body, wire.Node)) for body in bodies]
    (raw,) = of_kind("hostname-twice", "objects.json", "ResourceFlavor")
    state = make_state(nodes, convert.flavor(msgspec.convert(raw, wire.ResourceFlavor)))
    name = raw["metadata"]["name"]
    assert [one.node for one in unlabeled(state, name)] == ["h-twice-a", "h-twice-b"]
    assert state.tree(name).names == ["h-twice-c"]

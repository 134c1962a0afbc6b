"""Labels of levels are some tool's output: values that name no domain, and levels that every node lost.

What Topograph 1.0.0 writes: a node without a known switch gets ``tier-0: no-topology`` and loses its other tiers; a
level above the spines comes and goes for all nodes at once.
"""

import msgspec
import pytest
from support.engine_factories import (
    BLOCK,
    HOST,
    LEVELS,
    RACK,
    ask,
    make_flavor,
    make_node,
    make_pod_set,
    make_state,
    nodes_of,
)

from engine.cluster.levels import domain_in_words, domain_labels
from engine.cluster.unlabeled import in_words, unlabeled
from engine.cluster.unusable_slots import closed
from engine.model import Policy, SliceLayer, TopologyRequest
from engine.placement.explain import explain
from engine.reasons import Reason


def without(node, *levels, **values):
    labels = {key: value for key, value in node.labels.items() if key not in levels}
    return msgspec.structs.replace(node, labels=labels | values)


RACKS = [make_node(f"{rack}-{at}", rack=rack) for rack in ("r1", "r2") for at in range(3)]
UNKNOWN = [make_node(f"u{at}", rack="no-topology") for at in range(4)]


def four(policy=Policy.REQUIRED, level=RACK, **more):
    return make_pod_set(4, gpu=8, policy=policy, level=level, **more)


def test_nodes_whose_rack_is_not_known_are_no_rack():
    refusal = ask(make_state([*RACKS, *UNKNOWN]), four())
    assert refusal.reason is Reason.NEVER_FITS
    assert "the largest, b1/r1, has 24 nvidia.com/gpu in all; 32 are wanted" in refusal.message
    assert set(nodes_of(ask(make_state([*RACKS, *UNKNOWN]), four(level=BLOCK)))).isdisjoint({"u0", "u1", "u2", "u3"})


def test_a_rack_that_becomes_unknown_later_is_none_from_then_on():
    state = make_state([*RACKS, make_node("r1-3", rack="r1")])
    assert nodes_of(ask(state, four())) == {f"r1-{at}": 1 for at in range(4)}
    state.set_node(make_node("r1-3", rack="no-topology"))
    assert ask(state, four()).reason is Reason.NEVER_FITS
    state.set_node(make_node("r1-3", rack="r1"))
    assert nodes_of(ask(state, four()))["r1-3"] == 1


def test_the_slot_of_a_node_whose_rack_became_unknown_is_closed_as_after_any_change_of_labels():
    state = make_state([make_node("n1"), make_node("n2")])
    slot = (("b1", "r1", "n1"), "n1")
    assert closed(state, "tas", LEVELS, make_pod_set(1), [slot]) == [False]
    state.set_node(make_node("n1", rack="unknown"))
    assert closed(state, "tas", LEVELS, make_pod_set(1), [slot]) == [True]


def test_which_values_name_no_domain_is_the_flavors_to_say():
    own = msgspec.structs.replace(make_flavor(), unknown=frozenset({"r1"}))
    assert ask(make_state(RACKS, own), four(level=BLOCK)).reason is Reason.NEVER_FITS
    every = msgspec.structs.replace(make_flavor(), unknown=frozenset())
    assert set(nodes_of(ask(make_state([*RACKS, *UNKNOWN], every), four()))) == {"u0", "u1", "u2", "u3"}


def test_a_host_may_be_called_unknown():
    assert nodes_of(ask(make_state([make_node("unknown")]), make_pod_set(1, level=HOST))) == {"unknown": 1}


def test_nodes_without_a_domain_are_told_with_what_their_label_says():
    found = unlabeled(make_state([*RACKS, UNKNOWN[0], without(make_node("x"), BLOCK)]), "tas")
    assert in_words(found) == f"2 nodes lack the label of a level: u0 ({RACK}=no-topology), x ({BLOCK})"


# -- levels that every node lost ------------------------------------------------------------------------------


def lost(level=BLOCK, nodes=RACKS):
    return [without(node, level) for node in nodes]


def test_a_level_that_every_node_lost_stops_nobody_who_does_not_ask_for_it():
    state = make_state(lost())
    assert state.cluster.lost_levels("tas") == (BLOCK,)
    three = make_pod_set(3, gpu=8)
    assert {name.partition("-")[0] for name in nodes_of(ask(state, three))} == {"r1"}
    assert sum(nodes_of(ask(state, four(Policy.PREFERRED, BLOCK))).values()) == 4
    assert sum(nodes_of(ask(state, make_pod_set(4, gpu=8, policy=Policy.UNCONSTRAINED, level=None))).values()) == 4
    assert unlabeled(state, "tas") == ()


@pytest.mark.parametrize(
    "topology",
    [
        TopologyRequest(policy=Policy.REQUIRED, level=BLOCK),
        TopologyRequest(policy=Policy.PREFERRED, level=BLOCK, slices=(SliceLayer(level=BLOCK, size=1),)),
    ],
)
def test_who_requires_a_level_that_every_node_lost_waits_and_is_told_why(topology):
    refusal = ask(make_state(lost()), msgspec.structs.replace(make_pod_set(1), topology=topology))
    assert refusal.reason is Reason.NO_NODES
    assert refusal.message == f"flavor tas: none of its nodes has the label {BLOCK}, so the level has no domain"


def test_no_pod_is_sent_by_a_label_that_its_node_does_not_have():
    (part, *_) = ask(make_state(lost()), make_pod_set(1)).assignments[0].slices
    assert part.values == ("", "r1", "r1-0")
    assert domain_labels(LEVELS, part.values) == {RACK: "r1", HOST: "r1-0"}
    assert closed(make_state(lost()), "tas", LEVELS, make_pod_set(1), [(part.values, "r1-0")]) == [False]
    assert closed(make_state(RACKS), "tas", LEVELS, make_pod_set(1), [(part.values, "r1-0")]) == [False]


def test_a_level_that_comes_back_has_its_domains_again_at_once():
    state = make_state(RACKS)
    for node in lost():
        state.set_node(node)
    assert state.cluster.lost_levels("tas") == (BLOCK,)
    assert ask(state, four(level=BLOCK)).reason is Reason.NO_NODES
    for node in RACKS:
        state.set_node(node)
    assert state.cluster.lost_levels("tas") == ()
    assert sum(nodes_of(ask(state, four(level=BLOCK))).values()) == 4


def test_a_level_that_some_nodes_have_is_not_lost():
    state = make_state([*lost(nodes=RACKS[1:]), RACKS[0]])
    assert [one.node for one in unlabeled(state, "tas")] == [node.name for node in RACKS[1:]]
    state.remove_node(RACKS[0].name)
    assert unlabeled(state, "tas") == ()
    assert sum(nodes_of(ask(state, make_pod_set(2, gpu=8))).values()) == 2


def test_all_nodes_of_an_unknown_rack_have_lost_the_level():
    state = make_state(UNKNOWN)
    assert ask(state, four()).reason is Reason.NO_NODES
    assert sum(nodes_of(ask(state, four(level=BLOCK))).values()) == 4


def test_a_host_name_is_never_lost():
    state = make_state([without(make_node("n1"), HOST)])
    assert state.cluster.lost_levels("tas") == ()
    assert ask(state, make_pod_set(1)).reason is Reason.NO_NODES


def test_explain_shows_no_domain_of_a_lost_level():
    (entry,) = explain(make_state(lost()), "tas", make_pod_set(1), BLOCK)
    assert (entry.values, entry.excluded) == ((), {Reason.MISSING_LEVEL_LABEL: 6})
    assert [one.values for one in explain(make_state(lost()), "tas", make_pod_set(1), RACK)] == [("", "r1"), ("", "r2")]


def test_a_lost_level_leaves_no_gap_in_the_name_of_a_domain():
    assert domain_in_words(("", "r1", "n1")) == "r1/n1"
    assert domain_in_words(("b1", "r1")) == "b1/r1"

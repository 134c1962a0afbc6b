"""Inter-pod affinity, anti-affinity and spread: honoured in the count, or refused with the reason."""

import pytest
from support.engine_factories import (
    BLOCK,
    HOST,
    RACK,
    ask,
    make_flavor,
    make_node,
    make_pod,
    make_pod_set,
    make_state,
    nodes_of,
    placed,
    racks,
)

from engine.cluster.assignment import Assignment, Slice
from engine.model import LabelRequirement, PodTerm, Policy, SpreadConstraint
from engine.placement.explain import explain
from engine.reasons import Reason
from engine.results import Placement

WEB = {"app": "web"}
IS_WEB = (LabelRequirement(key="app", operator="In", values=("web",)),)


def term(key=HOST, selector=IS_WEB, **more):
    return PodTerm(topology_key=key, selector=selector, **more)


def spread(key=HOST, skew=1, selector=IS_WEB, **more):
    return SpreadConstraint(topology_key=key, max_skew=skew, selector=selector, **more)


def web(key="default/web", node="n0", **more):
    return make_pod(key, node, **({"namespace": "default", "labels": WEB} | more))


def pods(count, **more):
    return make_pod_set(count, **({"namespace": "default", "policy": Policy.UNCONSTRAINED} | more))


# -- anti-affinity of others ----------------------------------------------------------------------------------


def test_the_required_anti_affinity_of_existing_pods_keeps_ours_away():
    state = racks({"b1/r1": [8, 8], "b1/r2": [8]})
    state.set_pod(web(anti_affinity=(term(RACK),), labels={}))
    assert nodes_of(ask(state, pods(4, labels=WEB))) == {"n2": 4}
    assert nodes_of(ask(state, pods(4))) == {"n0": 4}  # not selected: not concerned
    assert nodes_of(ask(state, pods(4, labels=WEB, namespace="other"))) == {"n0": 4}
    state.remove_pod("default/web")
    assert nodes_of(ask(state, pods(24, labels=WEB))) == {"n0": 8, "n1": 8, "n2": 8}


def test_namespaces_of_a_term():
    for namespaces, concerned in ((None, True), (("a", "b"), True), (("b",), False)):
        state = racks({"b1/r1": [8], "b1/r2": [8]})
        state.set_pod(web(anti_affinity=(term(RACK, namespaces=namespaces),)))
        answer = ask(state, pods(4, labels=WEB, namespace="a"))
        assert (list(nodes_of(answer)) == ["n1"]) is concerned, namespaces


def test_a_term_that_could_not_be_expressed_keeps_away_too_much_rather_than_too_little():
    state = racks({"b1/r1": [8], "b1/r2": [8]})
    state.set_pod(web(anti_affinity=(term(RACK, unsupported="a namespaceSelector by label"),)))
    assert list(nodes_of(ask(state, pods(4, labels=WEB, namespace="a")))) == ["n1"]


def test_terms_that_look_into_other_namespaces_are_not_looked_at():
    state = racks({"b1/r1": [8], "b1/r2": [8]})
    state.set_pod(web("other/a", namespace="other", anti_affinity=(term(), term(namespaces=("third",)))))
    state.set_pod(web("other/b", namespace="other", anti_affinity=(term(namespaces=("a", "b")),)))
    at = state.cluster.at
    assert [len(list(state.affinity_index.repelling(at, name))) for name in ("default", "other", "third", "a")] == [
        1,
        2,
        2,
        1,
    ]
    state.remove_pod("other/a")
    state.remove_pod("other/b")
    assert not state.affinity_index.any_repel


def test_slots_whose_nodes_come_later_repel_from_then_on_and_no_longer_than_they_are_held():
    alone = pods(1, labels={"app": "db"}, anti_affinity=(term(RACK),))
    slots = Assignment(
        pod_set="main",
        flavor="tas",
        levels=(BLOCK, RACK, HOST),
        requests=alone.requests,
        slices=[Slice(("b1", "r1", "n0"), 1)],
        source=alone,
    )
    state = make_state()
    state.restore_slots("db", [slots])
    state.set_node(make_node("n0"))
    state.set_node(make_node("n1", rack="r2"))
    assert nodes_of(ask(state, pods(1, labels=WEB))) == {"n1": 1}
    state.release_workload("db")
    assert not state.affinity_index.any_repel


def test_slots_that_are_only_held_repel_too():
    state = racks({"b1/r1": [8], "b1/r2": [8]})
    lonely = pods(1, labels={"app": "db"}, anti_affinity=(term(RACK),))
    state.reserve("db", placed(ask(state, lonely, key="db")).assignments)
    assert list(nodes_of(ask(state, pods(4, labels=WEB)))) == ["n1"]
    state.release_workload("db")
    assert list(nodes_of(ask(state, pods(4, labels=WEB)))) == ["n0"]


# -- our anti-affinity ----------------------------------------------------------------------------------------


def test_our_anti_affinity_keeps_away_from_others():
    state = racks({"b1/r1": [8, 8], "b2/r1": [8]})
    state.set_pod(web())
    assert list(nodes_of(ask(state, pods(1, anti_affinity=(term(HOST),))))) == ["n1"]
    # rack r1 of block b2 has the same label value: for Kubernetes it is one topology domain
    assert ask(state, pods(1, anti_affinity=(term(RACK),))).reason is Reason.DOES_NOT_FIT
    assert list(nodes_of(ask(state, pods(1, anti_affinity=(term(BLOCK),))))) == ["n2"]


def test_pods_that_repel_one_another_get_one_node_each():
    state = racks({"b1/r1": [8, 8, 8], "b1/r2": [8]})
    apart = {"labels": WEB, "anti_affinity": (term(HOST),)}
    assert nodes_of(ask(state, pods(3, policy=Policy.REQUIRED, **apart))) == {"n0": 1, "n1": 1, "n2": 1}
    assert ask(state, pods(4, policy=Policy.REQUIRED, **apart)).reason is Reason.NEVER_FITS
    assert len(nodes_of(ask(state, pods(4, **apart)))) == 4


def test_pods_that_repel_one_another_by_rack():
    state = racks({"b1/r1": [8, 8], "b1/r2": [8], "b2/r3": [8]})
    apart = {"labels": WEB, "anti_affinity": (term(RACK),)}
    answer = ask(state, pods(3, **apart))
    assert len({part.values[1] for part in placed(answer).assignments[0].slices}) == 3
    assert len(nodes_of(ask(state, pods(2, policy=Policy.REQUIRED, level=BLOCK, **apart)))) == 2
    assert not isinstance(ask(state, pods(3, policy=Policy.REQUIRED, level=BLOCK, **apart)), Placement)
    assert not isinstance(ask(state, pods(2, policy=Policy.REQUIRED, level=RACK, **apart)), Placement)


def test_pod_sets_of_one_workload_repel_one_another():
    state = racks({"b1/r1": [8, 8]})
    one = pods(1, name="a", labels=WEB, anti_affinity=(term(HOST),))
    other = pods(1, name="b", labels=WEB, anti_affinity=(term(HOST),))
    answer = ask(state, one, other)
    assert nodes_of(answer, 0).keys() != nodes_of(answer, 1).keys()


# -- affinity -------------------------------------------------------------------------------------------------


def test_affinity_follows_existing_pods():
    state = racks({"b1/r1": [8], "b1/r2": [8, 8], "b2/r9": [8]})
    state.set_pod(web(node="n1"))
    assert set(nodes_of(ask(state, pods(12, affinity=(term(RACK),))))) <= {"n1", "n2"}
    assert ask(state, pods(16, affinity=(term(RACK),))).reason is Reason.DOES_NOT_FIT
    assert ask(state, pods(1, affinity=(term("no/such"),))).reason is Reason.DOES_NOT_FIT


def test_affinity_with_nobody_there_fits_nowhere():
    state = racks({"b1/r1": [8]})
    refusal = ask(state, pods(1, affinity=(term(RACK),)))
    assert refusal.reason is Reason.DOES_NOT_FIT
    (fit,) = explain(state, "tas", pods(1, affinity=(term(RACK),)), RACK)
    assert (fit.fits, fit.excluded) == (0, {Reason.POD_AFFINITY: 1})


def test_pods_that_attract_one_another_share_a_domain():
    state = racks({"b1/r1": [8], "b1/r2": [8], "b2/r3": [9]})
    together = {"labels": WEB, "affinity": (term(RACK),)}
    assert len(nodes_of(ask(state, pods(9, policy=Policy.PREFERRED, level=HOST, **together)))) == 1
    assert ask(state, pods(10, policy=Policy.PREFERRED, **together)).reason is Reason.NEVER_FITS
    assert nodes_of(ask(state, pods(9, **together))) == {"n2": 9}
    assert ask(state, pods(10, **together)).reason is Reason.NEVER_FITS


def test_attraction_by_a_key_that_is_no_level_is_refused_in_words():
    nodes = [make_node("n0", labels={"zone": "a"}), make_node("n1", rack="r2", labels={"zone": "b"})]
    refusal = ask(make_state(nodes), pods(2, labels=WEB, affinity=(term("zone"),)))
    assert refusal.reason is Reason.UNSUPPORTED_CONSTRAINT
    assert "zone" in refusal.message
    assert nodes_of(ask(make_state(nodes[:1]), pods(2, labels=WEB, affinity=(term("zone"),)))) == {"n0": 2}


# -- spread ---------------------------------------------------------------------------------------------------


def test_spread_counts_what_is_there():
    state = racks({"b1/r1": [8], "b1/r2": [8], "b1/r3": [8]})
    state.set_pod(web("default/a", "n0"))
    state.set_pod(web("default/b", "n1"))
    assert nodes_of(ask(state, pods(1, labels=WEB, spread=(spread(RACK),)))) == {"n2": 1}
    assert len(nodes_of(ask(state, pods(4, labels=WEB, spread=(spread(RACK, 2),))))) == 3


def test_spread_of_others_only_masks():
    state = racks({"b1/r1": [8], "b1/r2": [8]})
    for key in "ab":
        state.set_pod(web(key, "n0"))
    assert nodes_of(ask(state, pods(5, spread=(spread(RACK),)))) == {"n1": 5}


def test_a_domain_that_is_full_still_counts_for_the_least():
    state = racks({"b1/r1": [8], "b1/r2": [8]})
    state.set_pod(make_pod("full", "n1", 8))
    state.set_pod(web("default/a", "n0"))
    assert not isinstance(ask(state, pods(1, labels=WEB, spread=(spread(RACK),))), Placement)


def test_too_few_domains_count_as_empty():
    state = racks({"b1/r1": [8]})
    state.set_pod(web("default/a", "n0"))
    assert isinstance(ask(state, pods(1, labels=WEB, spread=(spread(RACK),))), Placement)
    wants_two = spread(RACK, min_domains=2)
    assert not isinstance(ask(state, pods(1, labels=WEB, spread=(wants_two,))), Placement)


def test_min_domains_are_counted_where_a_pod_is_let_go_to_one_domain():
    """Kubernetes 1.37.1: the selector leaves one domain, so the least counts as 0, and maxSkew - 1 may be there."""
    state = racks({"b1/r1": [8], "b1/r2": [8], "b1/r3": [8]})
    by_rack, by_two = spread(RACK, min_domains=2), spread(RACK, 2, min_domains=2)
    for number in range(3):
        assert isinstance(ask(state, pods(1, labels=WEB, spread=(by_rack,))), Placement)
        state.set_pod(web(f"default/{number}", f"n{number}"))
    refusal = ask(state, pods(1, labels=WEB, spread=(by_rack,)))
    assert (refusal.reason, RACK in refusal.message) == (Reason.UNSUPPORTED_CONSTRAINT, True)
    assert isinstance(ask(state, pods(1, labels=WEB, spread=(by_two,))), Placement)
    assert isinstance(ask(state, pods(1, labels=WEB, spread=(spread(RACK),))), Placement), "one domain is enough for it"
    assert not isinstance(ask(state, pods(1, spread=(spread(RACK, 0, min_domains=2),))), Placement), "not one of them"


def test_min_domains_that_are_within_the_lowest_level_count_as_ever():
    """Two hosts in each rack, and the rack is the lowest level: two values are left of hostname, and none of zone."""
    nodes = [make_node(f"n{i}", rack=f"r{i // 2}", labels={"zone": f"z{i // 2}"}) for i in range(4)]
    state = make_state(nodes, make_flavor(levels=(BLOCK, RACK)))
    for number in range(4):
        state.set_pod(web(f"default/{number}", f"n{number}"))
    assert isinstance(ask(state, pods(1, labels=WEB, spread=(spread(HOST, min_domains=2),))), Placement)
    assert not isinstance(ask(state, pods(1, labels=WEB, spread=(spread(HOST, min_domains=3),))), Placement)
    assert not isinstance(ask(state, pods(1, labels=WEB, spread=(spread("zone", min_domains=2),))), Placement)


def test_pods_that_terminate_do_not_count_in_spread_and_do_in_anti_affinity():
    """Kubernetes 1.37.1: kube-scheduler passes over them where it counts pods of a spread constraint."""
    state = racks({"b1/r1": [8], "b1/r2": [8]})
    one = pods(1, labels=WEB, spread=(spread(RACK),), requests={"cpu": 1})
    for number in range(2):
        state.set_pod(web(f"default/{number}", "n0", terminating=True))
    assert nodes_of(ask(state, one)) == {"n0": 1}
    apart = pods(1, labels=WEB, anti_affinity=(term(RACK),))
    assert nodes_of(ask(state, apart)) == {"n1": 1}
    near = pods(1, labels=WEB, affinity=(term(RACK),))
    assert nodes_of(ask(state, near)) == {"n0": 1}


def test_a_pod_counts_in_spread_until_it_terminates_and_takes_its_room_until_it_is_gone():
    state = racks({"b1/r1": [8], "b1/r2": [8]})
    wanted = pods(1, labels=WEB, spread=(spread(RACK),))
    for key, node in (("a", "n0"), ("b", "n1"), ("c", "n1")):
        state.set_pod(web(key, node))
    assert nodes_of(ask(state, wanted)) == {"n0": 1}
    before = state.free_on_node("n1")
    for key in ("b", "c", "c", "nobody"):
        state.mark_terminating(key)
    assert nodes_of(ask(state, wanted)) == {"n1": 1}
    assert state.free_on_node("n1") == before
    state.remove_pod("b")
    assert sorted((group.terminating, *group.on.values()) for group in state.pod_groups()) == [(False, 1), (True, 1)]
    assert state.free_on_node("n1") != before


def test_nodes_without_the_key_take_none():
    state = make_state([make_node("n0", labels={"zone": "a"}), make_node("n1")])
    assert nodes_of(ask(state, pods(1, labels=WEB, spread=(spread("zone"),)))) == {"n0": 1}


def test_an_even_spread_that_is_beyond_the_count_is_refused_as_unsupported():
    state = racks({"b1/r1": [8], "b1/r2": [8]})
    refusal = ask(state, pods(4, labels=WEB, spread=(spread(RACK),)))
    assert refusal.reason is Reason.UNSUPPORTED_CONSTRAINT
    assert RACK in refusal.message
    assert ask(state, pods(40, labels=WEB, spread=(spread(RACK),))).reason is Reason.NEVER_FITS


# -- what cannot be expressed ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "constraint",
    [
        {"affinity": (term(unsupported="matchLabelKeys"),)},
        {"anti_affinity": (term(unsupported="matchLabelKeys"),)},
        {"spread": (spread(unsupported="matchLabelKeys"),)},
    ],
)
def test_what_could_not_be_expressed_is_refused_with_its_text(constraint):
    state = racks({"b1/r1": [8]})
    refusal = ask(state, pods(1, **constraint))
    assert refusal.reason is Reason.UNSUPPORTED_CONSTRAINT
    assert "matchLabelKeys" in refusal.message
    assert {fit.limit for fit in explain(state, "tas", pods(1, **constraint))} == {Reason.UNSUPPORTED_CONSTRAINT}


def test_a_selector_of_none_selects_nothing_and_an_empty_one_everything():
    state = racks({"b1/r1": [8], "b1/r2": [8]})
    state.set_pod(web(labels={}))
    nothing, everything = term(RACK, selector=None), term(RACK, selector=())
    assert nodes_of(ask(state, pods(4, anti_affinity=(nothing,)))) == {"n0": 4}
    assert nodes_of(ask(state, pods(1, anti_affinity=(everything,)))) == {"n1": 1}


def test_constraints_hold_where_the_host_is_no_level():
    nodes = [make_node(f"n{i}", gpu=8) for i in range(3)]
    state = make_state(nodes, make_flavor(levels=(BLOCK, RACK)))
    answer = ask(state, pods(3, labels=WEB, anti_affinity=(term(HOST),)))
    assert nodes_of(answer) == {"n0": 1, "n1": 1, "n2": 1}

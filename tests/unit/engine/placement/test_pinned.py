"""Pod sets whose pods have volumes of their own that reach different nodes."""

from support.engine_factories import BLOCK, HOST, RACK, ask, make_node, make_pod_set, make_state, nodes_of

from engine.cluster.assignment import Assignment
from engine.cluster.state import ClusterState
from engine.model import LabelRequirement, NodeTerm, Pinned, Policy
from engine.placement import pinned as pinned_sets
from engine.placement.explain import explain
from engine.placement.place import extend, replace
from engine.reasons import Reason
from engine.results import Placement, Refusal


def within(key, *values):
    return (NodeTerm(labels=(LabelRequirement(key=key, operator="In", values=values),)),)


def pinned(**counts):
    """Pods by rack, as in r1=2."""
    return tuple(Pinned(nodes=(within(RACK, rack),), count=count) for rack, count in counts.items())


def two_blocks(gpu=2):
    return make_state([make_node(f"n{i}", f"b{i // 2}", f"r{i}", gpu=gpu) for i in range(4)])


def test_all_pods_go_where_all_their_volumes_reach_where_that_is_possible():
    both = Pinned(nodes=(within(RACK, "r1", "r2"),), count=1), Pinned(nodes=(within(RACK, "r2", "r3"),), count=1)
    answer = ask(two_blocks(), make_pod_set(2, Policy.PREFERRED, RACK, pinned=both))
    assert nodes_of(answer) == {"n2": 2}


def test_each_pod_has_a_slot_that_its_volumes_reach():
    answer = ask(two_blocks(), make_pod_set(4, Policy.UNCONSTRAINED, pinned=pinned(r0=1, r2=2)))
    assert nodes_of(answer) == {"n0": 2, "n2": 2}
    assert ask(two_blocks(), make_pod_set(3, Policy.UNCONSTRAINED, pinned=pinned(r2=3))).reason is Reason.NEVER_FITS


def test_pods_of_several_volumes_share_the_domain_that_is_required():
    assert nodes_of(ask(two_blocks(), make_pod_set(3, level=BLOCK, pinned=pinned(r2=1, r3=2)))) == {"n2": 1, "n3": 2}
    refused = ask(two_blocks(), make_pod_set(3, level=BLOCK, pinned=pinned(r0=1, r3=2)))
    assert (refused.reason, "no node is reached by all volumes of the pods" in refused.message) == (
        Reason.NEVER_FITS,
        True,
    )


def test_domains_that_a_volume_does_not_reach_are_not_tried():
    many = [make_node(f"n{at}", f"b{at // 2:02}", f"r{at}", gpu=2) for at in range(2 * pinned_sets.SITES + 4)]
    answer = ask(make_state(many), make_pod_set(3, level=BLOCK, pinned=pinned(r34=1, r35=2)))
    assert nodes_of(answer) == {"n34": 1, "n35": 2}


def test_how_many_domains_are_tried_does_not_grow_with_the_ways_in_which_volumes_differ(monkeypatch):
    placed = []
    tried = pinned_sets._place_parts
    monkeypatch.setattr(pinned_sets, "_place_parts", lambda *one: placed.append(one) or tried(*one))
    blocks = range(pinned_sets.SITES)
    state = make_state([make_node(f"n{at}-{gpu}", f"b{at}", f"r{gpu}", gpu=gpu) for at in blocks for gpu in (10, 100)])
    some = tuple(Pinned(nodes=(within(RACK, "r10", f"none{number}"),), count=1) for number in range(100))
    assert isinstance(ask(state, make_pod_set(100, level=BLOCK, pinned=some)), Refusal)
    assert 0 < len(placed) * len(some) <= pinned_sets.TRIALS


def test_a_part_costs_the_same_however_many_were_placed_before_it(monkeypatch):
    held = []
    reserve = ClusterState.reserve

    def noted(state, workload, assignments):
        held.extend(piece for part in assignments for piece in part.slices)
        reserve(state, workload, assignments)

    monkeypatch.setattr(ClusterState, "reserve", noted)
    state = make_state([make_node(f"n{at}", "b", f"r{at}", gpu=2) for at in range(64)])
    hosts = tuple(Pinned(nodes=(within(HOST, f"n{at}"),), count=1) for at in range(64))
    answer = ask(state, make_pod_set(64, Policy.UNCONSTRAINED, pinned=hosts[:32]))
    assert isinstance(answer, Placement)
    assert len(held) <= 64
    state.reserve("w", answer.assignments)
    held.clear()
    assert isinstance(extend(state, "w", make_pod_set(96, Policy.UNCONSTRAINED, pinned=hosts), 32), Assignment)
    assert len(held) <= 64


def test_one_host_for_each_pod():
    hosts = tuple(Pinned(nodes=(within(HOST, f"n{i}"),), count=1) for i in range(4))
    answer = ask(two_blocks(), make_pod_set(4, Policy.PREFERRED, RACK, pinned=hosts))
    assert nodes_of(answer) == {f"n{i}": 1 for i in range(4)}


def test_who_reaches_few_nodes_comes_before_who_reaches_many():
    wide = Pinned(nodes=(within(RACK, "r0", "r1"),), count=2)
    answer = ask(two_blocks(), make_pod_set(4, Policy.UNCONSTRAINED, pinned=(wide, *pinned(r0=2))))
    assert nodes_of(answer) == {"n0": 2, "n1": 2}


def test_more_pods_come_where_their_volumes_reach():
    state = two_blocks()
    held = ask(state, make_pod_set(2, Policy.UNCONSTRAINED, pinned=pinned(r0=1, r2=1)))
    state.reserve("w", held.assignments)
    more = make_pod_set(4, Policy.UNCONSTRAINED, pinned=pinned(r0=1, r2=1, r3=2))
    before = state.version
    assert nodes_of(Placement((extend(state, "w", more, 2),))) == {"n0": 1, "n2": 1, "n3": 2}
    assert state.version == before
    refused = extend(state, "w", make_pod_set(5, Policy.UNCONSTRAINED, pinned=pinned(r0=1, r2=1, r3=3)), 3)
    assert isinstance(refused, Refusal)


def test_slots_that_nobody_needs_at_a_place_serve_the_others():
    state = two_blocks()
    state.reserve("w", ask(state, make_pod_set(2, Policy.UNCONSTRAINED)).assignments)
    found = extend(state, "w", make_pod_set(3, Policy.UNCONSTRAINED, pinned=pinned(r0=1)), 1)
    assert sum(part.count for part in found.slices) == 3


def test_lost_slots_move_to_where_all_volumes_reach():
    state = two_blocks()
    state.reserve("w", ask(state, make_pod_set(2, Policy.UNCONSTRAINED)).assignments)
    moved = replace(state, "w", make_pod_set(2, Policy.UNCONSTRAINED, pinned=pinned(r3=1)), {"n0"})
    assert nodes_of(Placement((moved,))) == {"n3": 2}


def test_explain_shows_what_all_pods_reach():
    (*_, last) = explain(two_blocks(), "tas", make_pod_set(2, level=BLOCK, pinned=pinned(r0=1, r3=1)))
    assert (last.fits, last.limit) == (0, Reason.VOLUME_NODE_AFFINITY)

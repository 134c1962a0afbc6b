"""Shares of domains (`podset-topology-spreading`): by hand, after Kueue's KEP-13746, and against all racks."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.engine_factories import BLOCK, HOST, LEVELS, RACK, ask, make_flavor, make_pod_set, placed, racks, stored

from engine.cluster.share_index import MOST, MOST_NAMESPACES, Census, ShareIndex
from engine.model import Policy, ShareLimits, ShareRule, SliceLayer, TopologyRequest
from engine.placement.place import extend
from engine.placement.place import replace as replace_lost
from engine.placement.relocate import away
from engine.reasons import Reason
from engine.reservation_key import ReservationKey
from engine.results import Refusal

APP = {"app": "main"}


def limits(*rules, key="app", values=("main",), owner=""):
    made = [ShareRule(level=level, most=most, required=required) for level, most, required in rules]
    return ShareLimits(rules=tuple(made), key=key, values=() if not key else values, owner=owner)


def limited(count=1, shares=None, *, labels=None, namespace="ns", slices=(), level=RACK, **more):
    """A pod set in one rack, of which no rack is to have over the share."""
    shares = shares or limits((RACK, 340, True))
    topology = TopologyRequest(policy=Policy.REQUIRED, level=level, shares=shares, slices=slices)
    own = APP if labels is None else labels
    return replace(make_pod_set(count, namespace=namespace, labels=own, **more), topology=topology)


def plain(count=1, *, labels=None, namespace="ns", level=RACK, **more):
    own = APP if labels is None else labels
    return make_pod_set(count, level=level, namespace=namespace, labels=own, **more)


def admit(state, key, *pod_sets):
    """Place and hold it; the rack that it is in, or the refusal."""
    answer = ask(state, *pod_sets, key=key)
    if isinstance(answer, Refusal):
        return answer
    state.reserve(key, answer.assignments)
    return answer.assignments[0].slices[0].values[1]


def hold(state, key, rack, **more):
    """One pod of another workload in a rack."""
    assert admit(state, key, replace(plain(**more), node_selector={RACK: rack})) == rack


def three(room=8):
    return racks({"b1/r1": [room], "b1/r2": [room], "b2/r3": [room]})


def test_racks_take_turns_as_in_the_table_of_the_kep():
    # KEP-13746, "Admission constraint formula": 34% over three domains.
    state = three()
    assert [admit(state, f"ns/{at}", limited()) for at in range(6)] == ["r1", "r2", "r3", "r1", "r2", "r3"]


def test_one_that_is_exactly_at_the_share_takes_one_more():
    # "The <= means a domain whose current share is exactly maxShareAllowingPlacement percent is still eligible".
    state = racks({"b1/r1": [1, 1, 1], "b1/r2": [1, 1, 1]})
    half = limits((RACK, 500, True))
    assert Counter(admit(state, f"ns/{at}", limited(shares=half)) for at in range(6)) == {"r1": 3, "r2": 3}


def test_without_a_rule_they_go_to_one_rack():
    state = three()
    assert {admit(state, f"ns/{at}", plain()) for at in range(6)} == {"r1"}


def test_what_has_the_label_counts_without_a_rule_of_its_own():
    state = three()
    hold(state, "ns/other", "r1")
    assert admit(state, "ns/a", limited()) == "r2"


@pytest.mark.parametrize(
    "other",
    [{"labels": {"app": "else"}}, {"labels": {}}, {"namespace": "elsewhere"}, {"name": "workers"}],
    ids=["another value", "no label", "another namespace", "another pod set"],
)
def test_others_do_not_count(other):
    state = three()
    hold(state, "ns/other", "r1", **other)
    assert admit(state, "ns/a", limited()) == "r1"


def test_another_flavor_counts_apart():
    state = three()
    state.set_flavor(make_flavor("second"))
    state.reserve("ns/other", placed(ask(state, plain(), flavors=("second",))).assignments)
    (part,) = placed(ask(state, limited(), flavors=("tas",))).assignments
    assert part.slices[0].values[1] == "r1"


def test_what_is_kept_for_others_does_not_count():
    state = three()
    answer = placed(ask(state, plain()))
    state.reserve(ReservationKey.for_successor("ns/other"), answer.assignments)
    assert admit(state, "ns/a", limited()) == "r1"


def test_without_a_selector_those_of_one_owner_count():
    state = three()
    mine, others = (limits((RACK, 340, True), key="", owner=owner) for owner in ("uid-1", "uid-2"))
    assert admit(state, "ns/0", limited(shares=mine)) == "r1"
    assert admit(state, "ns/1", limited(shares=others)) == "r1"
    assert admit(state, "ns/2", limited(shares=mine)) == "r2"


def test_a_required_rule_has_it_wait_and_names_domain_and_share():
    state = racks({"b1/r1": [8], "b1/r2": [1]})
    assert [admit(state, f"ns/{at}", limited(shares=limits((RACK, 450, True)))) for at in range(2)] == ["r2", "r1"]
    refused = admit(state, "ns/2", limited(shares=limits((RACK, 450, True))))
    assert refused.reason is Reason.DOES_NOT_FIT
    assert refused.message == (
        "no rack of flavor tas may take one more: rack b1/r1 has 1 of 2 that belong together, more than 45%, rack "
        "b1/r2 has 1 of 2 that belong together, more than 45%. A share of 45% needs at least 3 of them, and there are 2"
    )


def test_a_refusal_for_want_of_room_names_what_is_closed():
    state = racks({"b1/r1": [8], "b1/r2": [1]})
    assert admit(state, "ns/0", limited()) == "r2"
    state.release_workload("ns/0")
    assert admit(state, "ns/0", limited(2)) == "r1"
    refused = admit(state, "ns/1", limited(2))
    assert refused.reason is Reason.DOES_NOT_FIT
    assert refused.message == (
        "2 pods do not fit one rack: b1/r2, the best of 2, takes 1 and lacks 1 nvidia.com/gpu; rack b1/r1 has 1 of 1 "
        "that belong together, more than 34%"
    )


def test_a_preferred_rule_takes_the_least_used_when_all_are_over():
    state = three()
    soft = limits((RACK, 100, False))
    found = [admit(state, f"ns/{at}", limited(shares=soft)) for at in range(6)]
    assert found == ["r1", "r2", "r3", "r1", "r2", "r3"]
    hold(state, "ns/more", "r1")
    hold(state, "ns/again", "r2")
    assert admit(state, "ns/last", limited(shares=soft)) == "r3"


def test_a_preferred_rule_gives_way_to_room():
    state = racks({"b1/r1": [8], "b1/r2": [1]})
    soft = limits((RACK, 340, False))
    assert admit(state, "ns/0", limited(2, shares=soft)) == "r1"
    assert admit(state, "ns/1", limited(2, shares=soft)) == "r1"


def test_racks_in_use_that_may_have_more_come_before_unused_ones():
    # spreadTier of tas_spreading.go: used and under the share, then unused. 60% opens two racks and no third, though
    # the third would be the tightest for all that come later.
    state = racks({"b1/r1": [8], "b1/r2": [8], "b2/r3": [8]})
    found = []
    for at in range(6):
        found.append(admit(state, f"ns/{at}", limited(shares=limits((RACK, 600, True)))))
        if at == 1:
            hold(state, "ns/filler", "r3", labels={}, count=6)
    assert set(found) == {"r1", "r2"}


def test_a_rule_of_a_wider_level_closes_all_racks_of_a_block():
    state = racks({"b1/r1": [8], "b1/r2": [8], "b2/r3": [8], "b2/r4": [8]})
    both = limits((BLOCK, 500, True), (RACK, 250, True))
    assert [admit(state, f"ns/{at}", limited(shares=both)) for at in range(4)] == ["r1", "r3", "r2", "r4"]


def test_a_rule_below_the_required_level_is_refused():
    refused = ask(three(), limited(shares=limits((HOST, 340, True))))
    assert refused.reason is Reason.INVALID_REQUEST
    assert "narrower than the rack that has to have all pods" in refused.message


def test_a_flavor_without_the_level_takes_none_where_it_is_required():
    refused = ask(three(), limited(shares=limits(("cloud/zone", 340, True))), flavors=("tas",))
    assert (refused.reason, "no level cloud/zone" in refused.message) == (Reason.UNKNOWN_LEVEL, True)
    assert ask(three(), limited(shares=limits(("cloud/zone", 340, True)))).reason is Reason.NO_FLAVOR
    assert admit(three(), "ns/a", limited(shares=limits(("cloud/zone", 340, False)))) == "r1"


def test_slices_groups_and_shares_hold_together():
    state = racks({"b1/r1": [2, 2], "b1/r2": [2, 2], "b2/r3": [2, 2]})
    shares = limits((RACK, 340, True))

    def together(at):
        workers = limited(3, shares, name="workers", group="g", slices=(SliceLayer(level=HOST, size=2),))
        return admit(state, f"ns/{at}", limited(1, shares, name="leader", group="g"), workers)

    assert [together(at) for at in range(3)] == ["r1", "r2", "r3"]
    for at in range(3):
        parts = state.assignments(f"ns/{at}").values()
        assert len({piece.values[1] for part in parts for piece in part.slices}) == 1


def test_pod_sets_of_a_group_limit_alike():
    refused = ask(three(), limited(name="a", group="g"), plain(name="b", group="g"))
    assert (refused.reason, "limit the shares of domains differently" in refused.message) == (
        Reason.INVALID_REQUEST,
        True,
    )


def test_growth_and_lost_slots_stay_where_the_pods_are():
    # Its rack has all of those that count, and would take no other workload.
    state = racks({"b1/r1": [2, 2, 2], "b1/r2": [2]})
    assert admit(state, "ns/a", limited(2)) == "r2"
    state.release_workload("ns/a")
    state.reserve("ns/a", placed(ask(state, replace(limited(2), node_selector={RACK: "r1"}))).assignments)
    hold(state, "ns/b", "r1")
    assert {piece.values[1] for piece in extend(state, "ns/a", limited(4), 2).slices} == {"r1"}
    (name, _), *_ = state.assignments("ns/a")["main"].slices[0].nodes
    moved = replace_lost(state, "ns/a", limited(2), {name})
    assert {piece.values[1] for piece in moved.slices} == {"r1"}


def test_a_move_breaks_no_required_rule():
    state = racks({"b1/r1": [2, 2], "b1/r2": [2]})
    hold(state, "ns/b", "r2")
    assert admit(state, "ns/a", limited()) == "r1"
    (node,) = (name for piece in state.assignments("ns/a")["main"].slices for name, _ in piece.nodes)
    state.set_node(replace(state.nodes["n0" if node == "n1" else "n1"], unschedulable=True))
    # Its other host of r1 takes nobody, and r2 has all of those that it belongs to.
    assert isinstance(away(state, "ns/a", [limited()]), Refusal)
    state.release_workload("ns/b")
    assert [piece.values[1] for piece in away(state, "ns/a", [limited()])[0].slices] == ["r2"]


def test_a_trial_that_is_rolled_back_changes_no_count():
    state = three()
    assert admit(state, "ns/a", limited()) == "r1"
    checkpoint = state.begin()
    state.release_all(["ns/a"])
    hold(state, "ns/b", "r2")
    assert admit(state, "ns/c", limited()) == "r1"
    state.rollback(checkpoint)
    assert admit(state, "ns/c", limited()) == "r2"


def test_what_is_read_back_counts_as_what_was_given():
    # As `Reservations.assignment` does it after a restart: values and counts, with the pod set they are of.
    before, after = three(), three()
    assert [admit(before, f"ns/{at}", limited()) for at in range(2)] == ["r1", "r2"]
    for key in ("ns/1", "ns/0"):
        (part,) = before.assignments(key).values()
        again = stored(part)
        again.source = part.source
        after.restore_slots(key, [again])
    assert admit(after, "ns/2", limited()) == admit(before, "ns/2", limited()) == "r3"


RACKS = ("r1", "r2", "r3", "r4")
steps = st.lists(
    st.tuples(
        st.sampled_from(["limited", "plain", "end"]), st.integers(1, 3), st.sampled_from([250, 340, 450, 500, 700, 999])
    ),
    max_size=14,
)


@settings(max_examples=300, deadline=None)
@given(steps, st.lists(st.integers(1, 6), min_size=4, max_size=4), st.sampled_from([True, False]))
def test_every_placement_is_what_trying_all_racks_says(history, rooms, required):
    state = racks({f"b{1 + at // 2}/{rack}": [room] for at, (rack, room) in enumerate(zip(RACKS, rooms, strict=True))})
    free, there = dict(zip(RACKS, rooms, strict=True)), {}
    for number, (step, count, most) in enumerate(history):
        if step == "end":
            if there:
                key, (rack, pods) = next(iter(there.items()))
                del there[key]
                free[rack] += pods
                state.release_workload(key)
            continue
        counts, total = Counter(rack for rack, _ in there.values()), len(there)
        possible = [rack for rack in RACKS if free[rack] >= count]
        over = {rack for rack in RACKS if 1000 * counts[rack] > most * total}
        if step == "limited":
            if required:
                possible = [rack for rack in possible if rack not in over]
            tier = {rack: (2, counts[rack]) if rack in over else (int(not counts[rack]), 0) for rack in RACKS}
            best = min((tier[rack] for rack in possible), default=None)
            possible = [rack for rack in possible if tier[rack] == best]
        pod_set = limited(count, limits((RACK, most, required))) if step == "limited" else plain(count)
        found = admit(state, key := f"ns/{number}", pod_set)
        if not possible:
            assert isinstance(found, Refusal)
            continue
        assert found in possible
        free[found] -= count
        there[key] = found, count


changes = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "release", "begin", "rollback", "commit", "release all", "node"]),
        st.integers(0, 4),
        st.sampled_from(RACKS),
    ),
    max_size=20,
)


@settings(max_examples=200, deadline=None)
@given(changes)
def test_what_is_counted_is_what_a_new_count_says_after_any_changes(history):
    state = racks({f"b1/{rack}": [8] for rack in RACKS})
    census, open_ = Census.of_pod_set(limited()), []
    state.share_index.occupied(census, ("tas", LEVELS), "ns/none")
    for step, number, rack in history:
        key = f"ns/{number}"
        if step == "reserve":
            answer = ask(state, replace(plain(1 + number), node_selector={RACK: rack}), key=key)
            state.reserve(key, () if isinstance(answer, Refusal) else answer.assignments)
        elif step == "release":
            state.release_workload(key)
        elif step == "release all":
            state.release_all([key, "ns/0"])
        elif step == "node":
            name = f"n{RACKS.index(rack)}"
            state.set_node(replace(state.nodes[name], unschedulable=not state.nodes[name].unschedulable))
        elif step == "begin":
            open_.append(state.begin())
        elif open_ and step == "rollback":
            state.rollback(open_.pop())
        elif open_ and step == "commit":
            state.commit(open_.pop())
        counted, anew = (
            index.occupied(census, ("tas", LEVELS), "ns/none")
            for index in (state.share_index, ShareIndex(state.ledger.held))
        )
        assert +counted == +anew


def test_more_selectors_than_are_kept_are_counted_all_the_same():
    state = three()
    assert admit(state, "ns/a", limited()) == "r1"
    for at in range(MOST + 1):
        shares = limits((RACK, 340, True), values=(f"v{at}",))
        assert admit(state, f"ns/{at}", limited(shares=shares, labels={}, gpu=0)) == "r1"
    hold(state, "ns/b", "r2")
    assert admit(state, "ns/c", limited()) == "r3"


def test_namespaces_that_went_are_not_counted_for_ever():
    state = three()
    for at in range(MOST_NAMESPACES + 50):
        assert admit(state, f"ns{at}/a", limited(namespace=f"ns{at}", labels=APP, gpu=0)) == "r1"
        state.release_workload(f"ns{at}/a")
    assert len(state.share_index._taken) == MOST_NAMESPACES
    # Of one that was dropped everything is counted again.
    assert [admit(state, f"ns0/{at}", limited(namespace="ns0", gpu=0)) for at in range(3)] == ["r1", "r2", "r3"]


def test_the_domain_that_only_the_one_that_asks_is_in_is_an_unused_one():
    """Domains in use come first, and its own is none: it would stay where it is, and spread what belongs together."""
    state = racks({"b1/r1": [4], "b1/r2": [4], "b1/r3": [1]})
    hold(state, "ns/b", "r2")
    hold(state, "ns/c", "r3")
    assert admit(state, "ns/a", replace(plain(2), node_selector={RACK: "r1"})) == "r1"
    moved = ask(state, limited(2, limits((RACK, 600, True))), key="ns/a")
    assert moved.assignments[0].slices[0].values[1] == "r2"

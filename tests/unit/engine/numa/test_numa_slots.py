"""Zones of slots: decided one after another, claimed by pods, kept, decided anew, given back."""

import msgspec
import pytest
from support.engine_factories import GPU, RACK, ask, make_flavor, make_node, nodes_of, placed, stored
from support.numa_factories import (
    BEST_EFFORT,
    RESTRICTED,
    SINGLE,
    left,
    make_machine,
    make_shape,
    node_for,
    on_zone,
    pod_on,
    pods_of,
    state_of,
    zones_of,
)

from engine.cluster.assignment import Assignment, Slice
from engine.kubelet.machine import Qos
from engine.model import Policy
from engine.numa.zone_ledger import MOST_SLOTS
from engine.placement.explain import explain
from engine.placement.place import replace, shrink
from engine.reasons import Reason
from engine.results import Refusal

TWO = ({"cpu": 4, GPU: 2}, {"cpu": 4, GPU: 2})
SHAPE = make_shape({"cpu": 2, GPU: 1})


def four_slots(**more):
    """A machine with room for four pods, all of them reserved."""
    state = state_of(make_machine(*TWO, **more))
    state.reserve("w", placed(ask(state, pods_of(SHAPE, 4), key="w")).assignments)
    return state


def slots(state, node="n0"):
    return zones_of(state.placements("w", "main", node))


def claim(state, key, zone, gpu=1, node="n0", *, observed=False):
    placement = on_zone(zone, cpu=2, gpu=gpu)
    state.set_pod(pod_on(key, SHAPE, placement, node, ("w", "main"), observed=observed))


@pytest.mark.parametrize("exact", [False, True])
def test_slots_get_their_zones_one_after_another(exact):
    state = four_slots(exact=exact)
    assert slots(state) == [(0,), (0,), (1,), (1,)]
    assert left(state) == [0, 0]
    assert left(state, GPU) == [0, 0]
    assert state.release_workload("w")
    assert left(state) == [4, 4]
    assert state.state_inside("n0") == state.machines["n0"].state


def test_nothing_is_decided_where_nothing_is_known():
    state = four_slots()
    assert state.placements("w", "main", "n1") == ()
    assert state.placements("w", "other", "n0") == ()
    assert state.state_inside("n1") is None
    state.remove_machine("n0")
    assert slots(state) == []
    assert state.state_inside("n0") is None
    state.set_machine(make_machine(*TWO))
    assert slots(state) == [(0,), (0,), (1,), (1,)]


def test_a_pod_set_without_a_shape_takes_nothing_inside():
    state = state_of(make_machine(*TWO))
    pod_set = pods_of(SHAPE, 4)
    fields = {field: getattr(pod_set, field) for field in pod_set.__struct_fields__} | {"shape": None}
    state.reserve("w", placed(ask(state, type(pod_set)(**fields), key="w")).assignments)
    assert slots(state) == []
    assert left(state) == [4, 4]


@pytest.mark.parametrize("exact", [False, True])
def test_a_pod_that_was_seen_takes_the_slot_of_what_it_holds(exact):
    state = four_slots(exact=exact)
    assert len(slots(state)) == 4
    claim(state, "a", 1, observed=True)
    assert slots(state) == [(0,), (0,), (1,)]
    assert left(state) == [0, 0]
    state.remove_pod("a")
    assert slots(state) == [(0,), (0,), (1,), (1,)]


def test_what_is_observed_counts_and_the_other_slots_stay():
    state = state_of(make_machine(*TWO))
    state.reserve("w", placed(ask(state, pods_of(SHAPE, 2), key="w")).assignments)
    assert slots(state) == [(0,), (0,)]
    claim(state, "a", 0)
    claim(state, "a", 1)  # predicted on zone 0, observed on zone 1
    assert slots(state) == [(0,)]
    assert left(state) == [2, 2]


@pytest.mark.parametrize("exact", [False, True])
def test_a_slot_whose_zone_was_taken_by_another_is_decided_anew(exact):
    state = state_of(make_machine({"cpu": 3}, {"cpu": 3}, exact=exact))
    shape = make_shape({"cpu": 3})
    state.reserve("w", placed(ask(state, pods_of(shape, 2), key="w")).assignments)
    assert slots(state) == [(0,), (1,)]
    second = {"claim": ("w", "main"), "observed": True}
    state.set_pod(pod_on("second", shape, on_zone(1, cpu=3), **second))
    assert slots(state) == [(0,)]
    state.set_pod(pod_on("second", shape, on_zone(0, cpu=3), **second))  # it came first after all
    assert slots(state) == [(1,)]
    assert left(state) == [0, 0]


def test_a_claim_without_a_placement_of_its_own_holds_what_was_decided_for_the_first_slot():
    state = four_slots()
    assert len(slots(state)) == 4
    state.set_pod(pod_on("a", SHAPE, claim=("w", "main")))
    assert slots(state) == [(0,), (1,), (1,)]
    assert left(state) == [0, 0]
    state.remove_pod("a")
    assert slots(state) == [(0,), (0,), (1,), (1,)]


def test_a_decision_is_newer_than_a_prediction_and_an_observation_newer_than_both():
    state = four_slots()
    state.release_workload("w")
    state.set_pod(pod_on("before", SHAPE, on_zone(0, cpu=4, gpu=2)))
    state.reserve("w", placed(ask(state, pods_of(SHAPE), key="w")).assignments)
    assert slots(state) == [(1,)]  # with this the pod is let go
    state.remove_pod("before")
    assert slots(state) == [(0,)]  # but this is what its kubelet will choose
    claim(state, "a", 1)
    assert left(state) == [2, 4]
    state.set_pod(pod_on("a", SHAPE, on_zone(1, cpu=2, gpu=1), "n0", ("w", "main"), observed=True))
    assert left(state) == [4, 2]


def test_a_pod_on_another_node_of_the_slice_takes_a_slot_from_the_first_node():
    state = state_of(make_machine(*TWO), make_machine(*TWO, node="n1"))
    state.set_flavor(make_flavor(levels=("cloud/block", RACK)))
    state.reserve("w", placed(ask(state, pods_of(SHAPE, 4), key="w")).assignments)
    assert len(slots(state)) == 4
    claim(state, "a", 0, node="n1")
    assert len(slots(state)) == 3
    assert left(state, node="n1") == [2, 4]


def test_slots_are_decided_anew_as_others_go_because_so_will_the_kubelet():
    state = state_of(make_machine(*TWO))
    state.set_pod(pod_on("first", SHAPE, on_zone(0, cpu=4, gpu=2)))
    state.reserve("w", placed(ask(state, pods_of(SHAPE), key="w")).assignments)
    assert slots(state) == [(1,)]
    state.remove_pod("first")
    assert slots(state) == [(0,)]
    assert left(state) == [2, 4]


def test_fewer_slots_keep_the_first_zones_and_moved_ones_are_given_back():
    state = state_of(make_machine(*TWO), make_machine(*TWO, node="n1"))
    state.reserve("w", placed(ask(state, pods_of(SHAPE, 4), key="w")).assignments)
    assert slots(state) == [(0,), (0,), (1,), (1,)]
    state.reserve("w", [shrink(state, "w", "main", 1)])
    assert slots(state) == [(0,), (0,), (1,)]
    state.reserve("w", [replace(state, "w", pods_of(SHAPE, 3), {"n0"})])
    assert slots(state) == []
    assert slots(state, "n1") == [(0,), (0,), (1,)]
    assert left(state) == [4, 4]


def test_restored_slots_get_zones_once_their_shape_is_known():
    state = four_slots()
    (held,) = state.assignments("w").values()
    other = state_of(make_machine(*TWO))
    other.restore_slots("w", [stored(held)])
    assert slots(other) == []
    known = Assignment(
        pod_set="main",
        flavor=held.flavor,
        levels=held.levels,
        requests=held.requests,
        slices=[Slice(part.values, part.count) for part in held.slices],
        shape=SHAPE,
    )
    other.release_workload("w")
    other.restore_slots("w", [known])
    assert slots(other) == [(0,), (0,), (1,), (1,)]
    claim(other, "a", 0)
    other.restore_slots("w", [known])
    assert slots(other) == [(0,), (1,), (1,)]


def test_a_machine_may_be_reported_before_its_node_and_outlive_it():
    machine = make_machine(*TWO, node="late")
    state = state_of(machine, nodes=False)
    state.set_node(make_node("other", rack="r0", gpu=0))
    assert isinstance(ask(state, pods_of(SHAPE)), Refusal)
    state.set_node(node_for(machine))
    assert isinstance(ask(state, pods_of(SHAPE, 5)), Refusal)
    assert nodes_of(ask(state, pods_of(SHAPE, 4))) == {"late": 4}
    state.remove_node("late")
    assert isinstance(ask(state, pods_of(SHAPE)), Refusal)
    state.set_node(node_for(machine))
    state.set_pod(pod_on("p", SHAPE, on_zone(0, cpu=4, gpu=1), "late"))
    assert nodes_of(ask(state, pods_of(SHAPE, 2))) == {"late": 2}
    assert isinstance(ask(state, pods_of(SHAPE, 3)), Refusal)


def test_an_equal_report_changes_nothing():
    state = state_of(make_machine(*TWO))
    version = state.version
    assert state.set_machine(make_machine(*TWO)) is False
    assert state.remove_machine("n1") is False
    assert state.version == version


def test_what_full_state_counts_already_is_not_counted_again():
    empty = make_machine(*TWO, exact=True)
    state = state_of(empty)
    pod = pod_on("p", SHAPE, on_zone(0, cpu=2, gpu=1))
    state.set_pod(pod)
    charged = state.state_inside("n0")
    assert left(state) == [2, 4]
    state.set_machine(make_machine(*TWO, exact=True, state=charged, holds={"p": pod.placement}))
    assert state.state_inside("n0") == charged
    state.remove_pod("p")
    assert left(state) == [4, 4]
    assert left(state, GPU) == [2, 2]


def test_devices_that_are_named_are_the_ones_that_are_taken():
    machine = make_machine({"cpu": 4, GPU: 4}, exact=True, ids=[3], device_ids={GPU: ("a", "b", "c", "d")})
    state = state_of(machine)
    state.reserve("w", placed(ask(state, pods_of(SHAPE, 2), key="w")).assignments)
    first, second = state.placements("w", "main", "n0")
    assert [use.devices for use in (*first.zones, *second.zones)] == [{GPU: ("a",)}, {GPU: ("b",)}]
    state.set_pod(pod_on("late", SHAPE, second, claim=("w", "main")))
    assert state.placements("w", "main", "n0") == (first,)
    assert devices_left(state) == ["c", "d"]
    foreign = on_zone(3, cpu=0, gpu=1)
    taken = msgspec.structs.replace(foreign.zones[0], devices={GPU: ("a",)})
    state.set_pod(pod_on("foreign", make_shape({GPU: 1}), msgspec.structs.replace(foreign, zones=(taken,))))
    (again,) = state.placements("w", "main", "n0")  # its device is gone: it gets another
    assert again.zones[0].devices == {GPU: ("c",)}
    assert devices_left(state) == ["d"]


def devices_left(state):
    machine, free = state.machines["n0"], state.state_inside("n0").devices
    row = machine.layout.resources.index(GPU)
    return [name for at, name in enumerate(machine.device_ids[GPU]) if free[row] >> at & 1]


def test_full_state_admits_pods_that_it_does_not_know_yet_even_without_a_record():
    state = state_of(make_machine(*TWO, exact=True))
    state.set_pod(pod_on("just-bound", SHAPE))
    assert left(state) == [2, 4]


def test_a_pod_that_took_a_decided_slot_stays_charged_until_the_next_report():
    state = state_of(make_machine(*TWO, available=TWO), reconstruct_available=False)
    state.reserve("w", placed(ask(state, pods_of(SHAPE), key="w")).assignments)
    assert left(state) == [2, 4]
    claim(state, "a", 0)
    assert left(state) == [2, 4]
    claim(state, "a", 0, gpu=0)  # the same pod, seen again
    assert left(state) == [2, 4]
    state.set_machine(make_machine(*TWO, available=({"cpu": 2, GPU: 1}, {"cpu": 4, GPU: 2})))
    assert left(state) == [2, 4]
    state.remove_pod("a")
    assert left(state) == [2, 4]  # its slot waits for the next pod
    state.release_workload("w")
    assert left(state) == [4, 4]


# -- counts and refusals ----------------------------------------------------------------------------------------


def test_pods_that_are_not_aligned_count_by_amounts():
    state = state_of(make_machine({"cpu": 3}, {"cpu": 3}))
    burstable = make_shape({"cpu": 2}, qos=Qos.BURSTABLE)
    assert nodes_of(ask(state, pods_of(burstable, 3))) == {"n0": 3}
    aligned = ask(state, pods_of(make_shape({"cpu": 2}), 3))
    assert aligned.reason is Reason.NEVER_FITS
    assert nodes_of(ask(state, pods_of(make_shape({"cpu": 2}), 2))) == {"n0": 2}


def test_of_domains_that_take_none_the_one_with_the_amounts_is_told():
    """The best of four zeros was the first by name, which was full, and so the advice was about that one."""
    full, split = make_machine({"cpu": 4}, {"cpu": 4}, node="n0"), make_machine({"cpu": 4}, {"cpu": 4}, node="n1")
    state = state_of(full, split, rack_of={"n0": "r1", "n1": "r2"})
    for zone in (0, 1):
        state.set_pod(pod_on(f"n0/{zone}", make_shape({"cpu": 4}), on_zone(zone, cpu=4), "n0"))
        state.set_pod(pod_on(f"n1/{zone}", make_shape({"cpu": 2}), on_zone(zone, cpu=2), "n1"))
    pods = pods_of(make_shape({"cpu": 3}), 1)
    refusal = ask(state, pods)
    assert refusal.reason is Reason.NUMA_ALIGNMENT
    assert "b1/r2, the best of 2, takes 0; it has the amounts" in refusal.message
    closest = max(explain(state, "tas", pods), key=lambda fit: fit.closeness)
    assert closest.values == ("b1", "r2")


def test_a_refusal_by_numa_says_how_many_nodes_and_why():
    names = [f"n{i}" for i in range(3)]
    state = state_of(*(make_machine({"cpu": 4}, {"cpu": 4}, node=name) for name in names))
    for name in names:
        state.set_pod(pod_on(f"{name}/a", make_shape({"cpu": 2}), on_zone(0, cpu=2), name))
        state.set_pod(pod_on(f"{name}/b", make_shape({"cpu": 2}), on_zone(1, cpu=2), name))
    refusal = ask(state, pods_of(make_shape({"cpu": 3}), 2))
    assert refusal.reason is Reason.NUMA_ALIGNMENT
    assert "takes 0" in refusal.message
    assert "it has the amounts, but the kubelets of 3 of its 3 nodes would refuse pods" in refusal.message
    assert "TopologyAffinityError" in refusal.message
    never = ask(state, pods_of(make_shape({"cpu": 5}), 2))
    assert never.reason is Reason.NEVER_FITS


def test_pods_are_not_sent_to_a_kubelet_that_would_compare_hints_for_minutes():
    nic = "nvidia.com/rdma_nic"
    zones = [{"cpu": 4, "memory": 8, GPU: 1, nic: 1}] * 8
    state = state_of(make_machine(*zones, policy=RESTRICTED))
    four, three = make_shape({"cpu": 1, "memory": 1, GPU: 1, nic: 1}), make_shape({"cpu": 1, "memory": 1, GPU: 1})
    assert nodes_of(ask(state, pods_of(three, 8))) == {"n0": 8}
    refusal = ask(state, pods_of(four))
    assert refusal.reason is Reason.NEVER_FITS
    assert "4,228,250,625 combinations of hints, for about 11 minutes" in refusal.message
    state.set_machine(make_machine(*zones, policy=RESTRICTED, node="n1"))
    state.set_node(node_for(make_machine(*zones, node="n1")))
    assert isinstance(ask(state, pods_of(four)), Refusal)
    state.set_machine(make_machine(*zones, policy=SINGLE, node="n1"))
    assert nodes_of(ask(state, pods_of(four, 8))) == {"n1": 8}
    state.remove_machine("n0")
    assert nodes_of(ask(state, pods_of(four, 16))) == {"n0": 8, "n1": 8}


def test_where_amounts_are_short_too_the_refusal_is_about_amounts():
    state = state_of(make_machine({"cpu": 4}, {"cpu": 4}))
    state.set_pod(pod_on("a", make_shape({"cpu": 3}), on_zone(0, cpu=3)))
    state.set_pod(pod_on("b", make_shape({"cpu": 3}), on_zone(1, cpu=3)))
    refusal = ask(state, pods_of(make_shape({"cpu": 4}), 1))
    assert refusal.reason is Reason.DOES_NOT_FIT
    assert "NUMA" not in refusal.message
    assert "cpu" in refusal.message


def test_trial_placements_of_several_pod_sets_see_each_other():
    state = state_of(make_machine({"cpu": 4}, {"cpu": 4}))
    three = make_shape({"cpu": 3})
    answer = ask(state, pods_of(three, name="a"), pods_of(three, name="b"))
    assert [nodes_of(answer, part) for part in (0, 1)] == [{"n0": 1}, {"n0": 1}]
    assert isinstance(ask(state, pods_of(three, 2, name="a"), pods_of(make_shape({"cpu": 2}), name="b")), Refusal)
    assert left(state) == [4, 4]


def test_groups_count_by_kubelet():
    state = state_of(*(make_machine({"cpu": 4}, {"cpu": 4}, node=f"n{i}") for i in range(2)))
    leader, workers = make_shape({"cpu": 2}), make_shape({"cpu": 3})
    group = {"group": "g", "policy": Policy.REQUIRED}
    answer = ask(state, pods_of(leader, name="leader", **group), pods_of(workers, 3, name="workers", **group))
    assert nodes_of(answer, 0).keys() | nodes_of(answer, 1).keys() == {"n0", "n1"}
    full = ask(state, pods_of(leader, name="leader", **group), pods_of(workers, 4, name="workers", **group))
    assert isinstance(full, Refusal)


def test_best_effort_nodes_take_what_amounts_allow():
    state = state_of(make_machine({"cpu": 3}, {"cpu": 3}, policy=BEST_EFFORT))
    assert nodes_of(ask(state, pods_of(make_shape({"cpu": 2}), 3))) == {"n0": 3}


def test_of_slots_that_no_kubelet_has_room_for_few_are_decided():
    (held,) = four_slots().assignments("w").values()
    many = Assignment(
        pod_set="main",
        flavor=held.flavor,
        levels=held.levels,
        requests={},
        slices=[Slice(part.values, 10**9) for part in held.slices],
        shape=make_shape({"cpu": 0}),
    )
    state = state_of(make_machine(*TWO))
    state.restore_slots("w", [many])
    assert len(state.placements("w", "main", "n0")) == MOST_SLOTS

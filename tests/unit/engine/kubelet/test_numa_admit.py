"""What one kubelet says to one pod: the acceptance cases, scopes, init containers, options, versions."""

import msgspec
import pytest
from support.numa_factories import (
    BEST_EFFORT,
    GPU,
    NONE,
    RESTRICTED,
    SINGLE,
    full_state,
    make_layout,
    make_shape,
    units,
)

from engine.kubelet.admit import MOST_ZONES, admit, empty, hangs, placement_of
from engine.kubelet.charge import charge, release
from engine.kubelet.machine import (
    Container,
    ContainerKind,
    DeviceLayout,
    Layout,
    MemoryCells,
    PodShape,
    Qos,
    Scope,
    State,
    TopologyPolicy,
)

NIC = "nvidia.com/rdma_nic"
BOTH = pytest.mark.parametrize("exact", [False, True])
STRICT = pytest.mark.parametrize("policy", [SINGLE, RESTRICTED])
POD = {"scope": Scope.POD}


def pod(*containers, qos=Qos.GUARANTEED, **more):
    """Containers like {"cpu": 3} or ("init", {"cpu": 3})."""
    made = []
    for at, one in enumerate(containers):
        kind, amounts = one if isinstance(one, tuple) else ("app", one)
        shape = make_shape(amounts, qos=qos)
        requests, limits = shape.containers[0].requests, shape.containers[0].limits
        made.append(Container(name=f"c{at}", kind=ContainerKind(kind), requests=requests, limits=limits))
    return PodShape(containers=tuple(made), qos=qos, **more)


def state_of(layout, *zones):
    """What is left: for each zone amounts in whole CPUs, GiB and devices; what is not named is free."""
    state = full_state(layout) if layout.exact else State(free=layout.allocatable)
    rows = {resource: row for row, resource in enumerate(layout.resources)}
    free, cpus, devices = [list(row) for row in state.free], state.cpus, list(state.devices)
    for zone, amounts in enumerate(zones):
        for resource, amount in units(amounts).items():
            free[zone][rows[resource]] = amount
        if layout.exact and "cpu" in amounts:
            inside = [cpu for core in layout.zones[zone].cores for cpu in core]
            cpus &= ~sum(1 << cpu for cpu in inside[amounts["cpu"] :])
        if layout.exact and GPU in amounts:
            listed = [at for at, one in enumerate(layout.devices[rows[GPU]]) if one.zones >> zone & 1]
            devices[rows[GPU]] &= ~sum(1 << at for at in listed[amounts[GPU] :])
    return State(free=tuple(map(tuple, free)), cpus=cpus, devices=tuple(devices), memory=state.memory)


def ask(layout, wanted, *left):
    return admit(layout, state_of(layout, *left), wanted)


def answer(layout, wanted, *left):
    """The zones, or the reason of a refusal."""
    admission = ask(layout, wanted, *left)
    if not admission.admitted:
        assert admission.after == state_of(layout, *left)
        return admission.reason
    return {layout.zones[zone].id for zone, _ in admission.uses}


def in_turn(layout, *pods):
    """The zones or the reason of each of several pods, one after another."""
    state, found = state_of(layout), []
    for each in pods:
        admission = admit(layout, state, each)
        found.append({zone for zone, _ in admission.uses} if admission.admitted else admission.reason)
        state = admission.after
    return found


def amounts(admission):
    return {zone: dict(taken) for zone, taken in admission.uses}


REFUSED = "TopologyAffinityError"
UNEXPECTED = "UnexpectedAdmissionError"

# -- A: acceptance cases --------------------------------------------------------------------------------------------


@BOTH
def test_a1_gpus_over_two_zones_and_cpus_of_one_do_not_go_together(exact):
    layout = make_layout({GPU: 4, "cpu": 16}, {GPU: 4, "cpu": 16}, policy=RESTRICTED, exact=exact)
    assert answer(layout, pod({GPU: 6, "cpu": 10})) == REFUSED


@BOTH
def test_a2_what_needs_two_zones_of_everything_gets_the_first_one_whole(exact):
    layout = make_layout({GPU: 4, "cpu": 16}, {GPU: 4, "cpu": 16}, policy=RESTRICTED, exact=exact)
    admission = ask(layout, pod({GPU: 6, "cpu": 24}))
    assert amounts(admission) == {0: {"cpu": 16000, GPU: 4}, 1: {"cpu": 8000, GPU: 2}}
    assert admission.steps == (("c0", 0b11, True, True),)


@BOTH
def test_a3_one_cpu_spoils_gpus_of_two_zones_but_best_effort_takes_it(exact):
    zones = ({GPU: 2, "cpu": 64},) * 2
    assert answer(make_layout(*zones, policy=RESTRICTED, exact=exact), pod({GPU: 4, "cpu": 1})) == REFUSED
    layout = make_layout(*zones, policy=BEST_EFFORT, exact=exact)
    admission = ask(layout, pod({GPU: 4, "cpu": 1}))
    assert admission.admitted
    assert not admission.steps[0].preferred


@BOTH
def test_a4_a_whole_machine_is_restricted_but_never_single(exact):
    zones = ({GPU: 4, "cpu": 32},) * 2
    assert answer(make_layout(*zones, policy=RESTRICTED, exact=exact), pod({GPU: 8, "cpu": 64})) == {0, 1}
    assert answer(make_layout(*zones, policy=SINGLE, exact=exact), pod({GPU: 8, "cpu": 64})) == REFUSED


@BOTH
@pytest.mark.parametrize("gpus", [4, 1])
def test_a5_a6_widths_come_from_what_is_installed(exact, gpus):
    layout = make_layout({GPU: 4, "cpu": 95}, {GPU: 4, "cpu": 96}, policy=RESTRICTED, exact=exact)
    left = ({GPU: 3, "cpu": 45}, {GPU: 3, "cpu": 46})
    assert answer(layout, pod({GPU: gpus, "cpu": 50}), *left) == REFUSED
    assert answer(layout, pod({GPU: 3, "cpu": 40}), *left) == {0}


@BOTH
def test_reserved_cpus_count_in_the_width(exact):
    layout = make_layout({"cpu": 16}, {"cpu": 16}, policy=RESTRICTED, exact=exact)
    assert answer(layout, pod({"cpu": 15}), {"cpu": 14}, {"cpu": 14}) == REFUSED
    assert answer(layout, pod({"cpu": 17}), {"cpu": 14}, {"cpu": 14}) == {0, 1}


@BOTH
@STRICT
def test_a7_two_of_three_pods_run_though_all_three_fit_by_count(exact, policy):
    layout = make_layout({"cpu": 4}, {"cpu": 4}, policy=policy, exact=exact)
    assert in_turn(layout, pod({"cpu": 3}), pod({"cpu": 3}), pod({"cpu": 2})) == [{0}, {1}, REFUSED]


@BOTH
def test_a7_best_effort_takes_one_cpu_of_each_zone(exact):
    layout = make_layout({"cpu": 4}, {"cpu": 4}, policy=BEST_EFFORT, exact=exact)
    assert in_turn(layout, pod({"cpu": 3}), pod({"cpu": 3}), pod({"cpu": 2})) == [{0}, {1}, {0, 1}]
    three = in_turn(layout, pod({"cpu": 3}), pod({"cpu": 3}), pod({"cpu": 3}))
    assert three[2] == UNEXPECTED


@BOTH
def test_a8_containers_of_one_pod_follow_each_other(exact):
    zones = ({"cpu": 4},) * 2
    layout = make_layout(*zones, policy=SINGLE, exact=exact)
    assert answer(layout, pod({"cpu": 3}, {"cpu": 3}, {"cpu": 2})) == REFUSED
    admission = ask(layout, pod({"cpu": 3}, {"cpu": 3}))
    assert [step.merged for step in admission.steps] == [0b01, 0b10]
    assert answer(make_layout(*zones, policy=SINGLE, exact=exact, **POD), pod({"cpu": 3}, {"cpu": 3})) == REFUSED
    admission = ask(make_layout(*zones, policy=RESTRICTED, exact=exact, **POD), pod({"cpu": 3}, {"cpu": 3}))
    assert admission.steps == (("*", 0b11, True, True),)


@BOTH
def test_a9_the_first_two_of_three_zones(exact):
    layout = make_layout({GPU: 2}, {GPU: 2}, {GPU: 2}, policy=RESTRICTED, exact=exact)
    assert answer(layout, pod({GPU: 4})) == {0, 1}


@BOTH
def test_a10_zones_that_have_enough_left(exact):
    layout = make_layout({GPU: 4}, {GPU: 4}, {GPU: 4}, policy=RESTRICTED, exact=exact)
    assert answer(layout, pod({GPU: 6}), {GPU: 1}) == {1, 2}
    assert answer(layout, pod({GPU: 3}), {GPU: 1}) == {1}


@BOTH
def test_a11_ties_go_by_number(exact):
    layout = make_layout(*({GPU: 8},) * 4, policy=RESTRICTED, exact=exact)
    assert answer(layout, pod({GPU: 10}), {GPU: 2}, {GPU: 5}, {GPU: 5}, {GPU: 8}) == {1, 2}


@BOTH
def test_a12_gpus_here_and_cpus_there(exact):
    layout = make_layout({GPU: 2}, {"cpu": 4}, policy=SINGLE, exact=exact)
    assert answer(layout, pod({GPU: 1, "cpu": 1})) == REFUSED


@BOTH
def test_a13_fits_the_machine_but_no_zone(exact):
    layout = make_layout({GPU: 2, "cpu": 4}, {GPU: 2, "cpu": 4}, policy=SINGLE, exact=exact)
    assert answer(layout, pod({GPU: 3, "cpu": 6})) == REFUSED


@BOTH
def test_a14_none_and_best_effort_pass_what_fits_somehow(exact):
    for policy in (NONE, BEST_EFFORT):
        layout = make_layout({"cpu": 4}, {"cpu": 4}, policy=policy, exact=exact)
        assert answer(layout, pod({"cpu": 6})) == {0, 1}
        assert answer(layout, pod({"cpu": 9})) == UNEXPECTED
    assert ask(make_layout({"cpu": 4}, {"cpu": 4}, policy=NONE, exact=exact), pod({"cpu": 6})).steps == ()


@BOTH
def test_a15_devices_are_aligned_for_every_qos_class_and_cpus_are_not(exact):
    layout = make_layout({GPU: 2, "cpu": 16}, {GPU: 2, "cpu": 16}, policy=SINGLE, exact=exact)
    for qos in (Qos.BURSTABLE, Qos.BEST_EFFORT):
        assert answer(layout, pod({GPU: 3}, qos=qos)) == REFUSED
    assert answer(layout, pod({GPU: 2, "cpu": 20}, qos=Qos.BURSTABLE)) == {0}
    assert answer(layout, pod({GPU: 2, "cpu": 20})) == REFUSED


@BOTH
def test_a16_a_shared_gpu_drops_out_and_the_rest_is_aligned(exact):
    layout = make_layout({"cpu": 4, "memory": 8}, {"cpu": 4, "memory": 8}, policy=SINGLE, exact=exact)
    assert answer(layout, pod({"cpu": 4, "memory": 4, "nvidia.com/mig-1g.5gb": 1})) == {0}
    assert answer(layout, pod({"cpu": 5, "memory": 4, "nvidia.com/mig-1g.5gb": 1})) == REFUSED


@BOTH
def test_b1_what_no_zone_reports_is_not_aligned_and_what_one_reports_is(exact):
    wanted = pod({"cpu": 2, GPU: 3})
    assert answer(make_layout({"cpu": 4}, {"cpu": 4}, exact=exact), wanted) == {0}
    assert answer(make_layout({"cpu": 4, GPU: 2}, {"cpu": 4}, exact=exact), wanted) == REFUSED


# -- F: scope and init containers -----------------------------------------------------------------------------------


@BOTH
def test_f1_scopes(exact):
    zones = ({GPU: 4},) * 2
    by_container = make_layout(*zones, policy=RESTRICTED, exact=exact)
    assert [step.merged for step in ask(by_container, pod({GPU: 3}, {GPU: 3})).steps] == [0b01, 0b10]
    by_pod = make_layout(*zones, policy=RESTRICTED, exact=exact, **POD)
    assert ask(by_pod, pod({GPU: 3}, {GPU: 3})).steps == (("*", 0b11, True, True),)
    with_memory = make_layout(*({GPU: 4, "memory": 16},) * 2, policy=RESTRICTED, exact=exact, **POD)
    assert answer(with_memory, pod({GPU: 3, "memory": 8}, {GPU: 3, "memory": 8})) == REFUSED


@BOTH
def test_f1_an_init_container_lends_its_devices(exact):
    by_container = make_layout({GPU: 4}, {GPU: 4}, policy=RESTRICTED, exact=exact)
    admission = ask(by_container, pod(("init", {GPU: 4}), {GPU: 4}))
    assert [step.merged for step in admission.steps] == [0b01, 0b01]
    assert amounts(admission) == {0: {GPU: 4}}
    by_pod = make_layout({GPU: 4}, {GPU: 4}, policy=RESTRICTED, exact=exact, **POD)
    assert ask(by_pod, pod(("init", {GPU: 8}), {GPU: 2})).steps == (("*", 0b11, True, True),)


@BOTH
def test_an_init_container_pins_the_containers_after_it(exact):
    wide = make_layout({"cpu": 8}, {"cpu": 8}, policy=RESTRICTED, exact=exact)
    assert answer(wide, pod(("init", {"cpu": 12}), {"cpu": 2})) == REFUSED
    single = make_layout({"cpu": 8}, {"cpu": 8}, policy=SINGLE, exact=exact)
    assert answer(single, pod(("init", {"cpu": 2}), {"cpu": 6}), {"cpu": 2}) == REFUSED
    for policy in (SINGLE, RESTRICTED):
        by_pod = make_layout({"cpu": 8}, {"cpu": 8}, policy=policy, exact=exact, **POD)
        assert answer(by_pod, pod(("init", {"cpu": 2}), {"cpu": 6}), {"cpu": 2}) == {1}


@BOTH
def test_a_sidecar_keeps_what_it_has_and_runs_beside_init_containers(exact):
    layout = make_layout({"cpu": 8}, {"cpu": 8}, policy=SINGLE, exact=exact, **POD)
    assert answer(layout, pod(("sidecar", {"cpu": 2}), ("init", {"cpu": 6}), {"cpu": 6})) == {0}
    assert answer(layout, pod(("sidecar", {"cpu": 3}), ("init", {"cpu": 6}), {"cpu": 5})) == REFUSED
    assert answer(layout, pod(("init", {"cpu": 6}), ("sidecar", {"cpu": 3}), {"cpu": 5})) == {0}


def test_an_init_container_may_hold_other_cpus_than_the_container_after_it():
    """Seen on kubelet 1.37.1: it has the last thread of a core, the container gets a whole one; two are asked for."""
    two = make_layout({"cpu": 6}, exact=True)
    cores = msgspec.structs.replace(two.zones[0], cores=((0, 3), (1, 4), (2, 5)))
    layout = msgspec.structs.replace(two, zones=(cores,))
    state = msgspec.structs.replace(full_state(layout), cpus=0b100110)  # of core 1 one thread, and core 2
    known = admit(layout, state, pod(("init", {"cpu": 1}), {"cpu": 2}))
    assert (known.admitted, known.cpus.bit_count()) == (True, 3)


@pytest.mark.parametrize(
    ("threads", "wanted", "held"),
    [
        (2, (("init", {"cpu": 1}), {"cpu": 2}), 3),
        (2, (("init", {"cpu": 2}), {"cpu": 3}), 5),
        (2, (("init", {"cpu": 1}), ("init", {"cpu": 1}), {"cpu": 1}), 3),
        (2, (("init", {"cpu": 2}), {"cpu": 4}), 4),  # whole cores are picked in the same order
        (1, (("init", {"cpu": 1}), {"cpu": 2}), 2),
        (2, (("sidecar", {"cpu": 1}), {"cpu": 2}), 3),
    ],
)
def test_by_amounts_a_pod_holds_as_many_cpus_as_its_containers_may_have_beside_its_init_containers(
    threads, wanted, held
):
    """Else one pod more is predicted than the kubelet has CPUs for; what the pod itself needs is not more."""
    layout = msgspec.structs.replace(make_layout({"cpu": 8}), threads=threads)
    admission = ask(layout, pod(*wanted))
    assert amounts(admission) == {0: {"cpu": held * 1000}}
    assert admission.after.free == ((8000 - held * 1000,),)


def test_by_amounts_a_pod_is_admitted_where_its_init_containers_leave_just_enough():
    layout = msgspec.structs.replace(make_layout({"cpu": 8}), threads=2)
    admission = ask(layout, pod(("init", {"cpu": 1}), {"cpu": 2}), {"cpu": 2})
    assert (admission.admitted, amounts(admission)) == (True, {0: {"cpu": 2000}})


@BOTH
def test_memory_of_an_init_container_is_used_again_but_pins_nothing(exact):
    layout = make_layout({"memory": 16}, {"memory": 16}, policy=SINGLE, exact=exact)
    admission = ask(layout, pod(("init", {"memory": 10}), {"memory": 12}))
    assert amounts(admission) == {0: units({"memory": 12})}
    left = ({"memory": 6}, {"memory": 16})
    assert answer(layout, pod(("init", {"memory": 4}), {"memory": 12}), *left) == {0, 1}


# -- what counts how ------------------------------------------------------------------------------------------------


@BOTH
def test_fractions_of_cpus_are_not_pinned_and_memory_of_the_same_pod_is(exact):
    layout = make_layout({"cpu": 4, "memory": 8}, {"cpu": 4, "memory": 8}, policy=SINGLE, exact=exact)
    half = Container(
        name="c", requests=(("cpu", 4500), ("memory", 8 << 30)), limits=(("cpu", 4500), ("memory", 8 << 30))
    )
    admission = ask(layout, PodShape(containers=(half,), qos=Qos.GUARANTEED))
    assert amounts(admission) == {0: units({"memory": 8})}


@BOTH
def test_managers_that_are_off_and_ignored_resources_align_nothing(exact):
    zones = ({"cpu": 4, "memory": 8},) * 2
    off = make_layout(*zones, policy=SINGLE, exact=exact, static_cpu=False, static_memory=False)
    assert answer(off, pod({"cpu": 6, "memory": 12})) == set()
    layout = make_layout(*zones, policy=SINGLE, exact=exact)
    assert answer(layout, pod({"cpu": 4, "memory": 12})) == REFUSED
    fields = {name: getattr(layout, name) for name in Layout.__struct_fields__} | {"ignored": ("memory",)}
    assert answer(Layout(**fields), pod({"cpu": 4, "memory": 12})) == {0}


@BOTH
def test_pod_level_resources_align_devices_only(exact):
    layout = make_layout({"cpu": 4, GPU: 2}, {"cpu": 4, GPU: 2}, policy=SINGLE, exact=exact)
    assert answer(layout, pod({"cpu": 6, GPU: 2}, pod_level=True)) == {0}
    assert answer(layout, pod({"cpu": 6, GPU: 3}, pod_level=True)) == REFUSED


@BOTH
def test_a_limit_of_no_device_still_constrains(exact):
    layout = make_layout({"cpu": 4}, {"cpu": 4, GPU: 2}, policy=SINGLE, exact=exact)
    assert answer(layout, pod({"cpu": 2})) == {0}
    assert answer(layout, pod({"cpu": 2, GPU: 0})) == {1}
    assert answer(layout, pod({"cpu": 2, GPU: 0}), {}, {"cpu": 1}) == REFUSED


@BOTH
def test_since_1_36_devices_are_looked_for_only_where_there_are_some(exact):
    zones = ({"cpu": 8, GPU: 1}, {"cpu": 8})
    now = make_layout(*zones, policy=BEST_EFFORT, exact=exact)
    before = make_layout(*zones, policy=BEST_EFFORT, exact=exact, version=(1, 35))
    wanted = pod({"cpu": 12, GPU: 1})
    assert ask(now, wanted).steps[0][1:3] == (0b01, False)
    assert ask(before, wanted).steps[0][1:3] == (0b11, False)
    none = pod({"cpu": 2, GPU: 0})
    elsewhere = ({"cpu": 8}, {"cpu": 8, GPU: 1})
    assert answer(make_layout(*elsewhere, policy=SINGLE, exact=exact), none) == {1}
    assert answer(make_layout(*elsewhere, policy=SINGLE, exact=exact, version=(1, 35)), none) == {0}


@BOTH
def test_memory_that_no_zones_have_refuses_whatever_the_policy(exact):
    for policy in (NONE, BEST_EFFORT, RESTRICTED, SINGLE):
        layout = make_layout({"memory": 8}, {"memory": 8}, policy=policy, exact=exact)
        assert answer(layout, pod({"memory": 20})) == UNEXPECTED
        assert answer(layout, pod({"memory": 6})) == {0}


@BOTH
def test_closer_zones_first_where_the_option_says_so(exact):
    distances = [(10, 30, 20), (30, 10, 30), (20, 30, 10)]
    zones = ({GPU: 2},) * 3
    near = {"policy": RESTRICTED, "exact": exact, "distances": distances}
    assert answer(make_layout(*zones, **near), pod({GPU: 4})) == {0, 1}
    assert answer(make_layout(*zones, **near, prefer_closest_numa_nodes=True), pod({GPU: 4})) == {0, 2}
    blind = make_layout(*zones, policy=RESTRICTED, exact=exact, prefer_closest_numa_nodes=True)
    assert answer(blind, pod({GPU: 4})) == {0, 1}


@BOTH
def test_zones_are_told_by_their_kubelet_ids(exact):
    layout = make_layout({"cpu": 4}, {"cpu": 4}, ids=(0, 2), policy=SINGLE, exact=exact)
    admission = ask(layout, pod({"cpu": 3}), {"cpu": 1})
    assert [use.zone for use in placement_of(layout, admission).zones] == [2]


# -- full state only ------------------------------------------------------------------------------------------------


def test_unhealthy_devices_count_in_the_width():
    layout = make_layout({GPU: 2, "cpu": 8}, {GPU: 2, "cpu": 8}, policy=RESTRICTED, exact=True)
    row = layout.resources.index(GPU)
    devices = list(layout.devices)
    devices[row] = (DeviceLayout(1, healthy=False), DeviceLayout(1), DeviceLayout(2, healthy=False), DeviceLayout(2))
    fields = {name: getattr(layout, name) for name in Layout.__struct_fields__} | {"devices": tuple(devices)}
    ill = Layout(**fields)
    assert admit(ill, empty(ill), pod({GPU: 2})).reason == REFUSED
    assert admit(ill, empty(ill), pod({GPU: 1})).zones == 0b01
    all_ill = Layout(**fields | {"devices": (*layout.devices[:row], (DeviceLayout(1, healthy=False),))})
    assert admit(all_ill, empty(all_ill), pod({GPU: 0})).message.startswith("Allocate failed due to no healthy devices")


def test_memory_of_several_zones_makes_a_group_that_serves_nobody_else():
    layout = make_layout(*({"memory": 16},) * 3, policy=RESTRICTED, exact=True)
    first = admit(layout, empty(layout), pod({"memory": 20}))
    assert amounts(first) == {0: units({"memory": 16}), 1: units({"memory": 4})}
    assert [cells.cells for cells in first.after.memory] == [0b011, 0b011, 0b100]
    assert admit(layout, first.after, pod({"memory": 10})).zones == 0b100
    second = admit(layout, first.after, pod({"memory": 12}))
    assert second.zones == 0b100
    assert admit(layout, second.after, pod({"memory": 18})).reason == UNEXPECTED
    assert release(layout, second.after, second) == first.after
    gone = release(layout, release(layout, second.after, second), first)
    assert gone == empty(layout)


def test_a_placement_gives_its_memory_group_back():
    layout = make_layout(*({"memory": 16},) * 3, policy=RESTRICTED, exact=True)
    admission = admit(layout, empty(layout), pod({"memory": 20}))
    placement = placement_of(layout, admission)
    assert charge(layout, empty(layout), placement, 1) == admission.after
    assert charge(layout, admission.after, placement, -1) == empty(layout)


def test_memory_taken_zone_by_zone_makes_no_group():
    layout = make_layout({"memory": 16}, {"memory": 16}, policy=SINGLE, exact=True)
    admission = admit(layout, empty(layout), pod({"memory": 10}, {"memory": 12}))
    charged = charge(layout, empty(layout), placement_of(layout, admission), 1)
    assert charged == admission.after
    assert charged.memory == (MemoryCells(0b01, 1), MemoryCells(0b10, 1))


def test_named_devices_are_the_ones_that_are_charged():
    layout = make_layout({GPU: 4}, {GPU: 4}, policy=SINGLE, exact=True)
    ids = {GPU: tuple(f"GPU-{at}" for at in range(8))}
    first = admit(layout, empty(layout), pod({GPU: 2}))
    second = admit(layout, first.after, pod({GPU: 2}))
    placement = placement_of(layout, second, ids)
    assert placement.zones[0].devices == {GPU: ("GPU-2", "GPU-3")}
    assert charge(layout, empty(layout), placement, 1, ids).devices == (0b11110011,)
    assert charge(layout, second.after, placement, -1, ids) == first.after


def test_a_void_placement_changes_nothing():
    layout = make_layout({"cpu": 4}, {"cpu": 4}, exact=True)
    other = make_layout({"cpu": 4}, {"cpu": 4}, ids=(0, 7), exact=True)
    placement = placement_of(other, admit(other, empty(other), pod({"cpu": 3}, {"cpu": 3})))
    assert charge(layout, empty(layout), placement, 1) == empty(layout)


# -- what kubelets choke on -----------------------------------------------------------------------------------------


def test_eight_zones_and_four_resources_hang_a_kubelet_that_does_not_look_at_single_zones_only():
    zones = ({"cpu": 8, "memory": 8, GPU: 1, NIC: 1},) * 8
    wanted = pod({"cpu": 1, "memory": 1, GPU: 1, NIC: 1})
    for policy in (RESTRICTED, BEST_EFFORT):
        assert hangs(make_layout(*zones, policy=policy), wanted) == 255**4
    assert hangs(make_layout(*zones, policy=SINGLE), wanted) == 8**4
    assert hangs(make_layout(*zones, policy=NONE), wanted) == 0
    assert hangs(make_layout(*zones[:2], policy=RESTRICTED), wanted) == 3**4


def test_more_zones_than_can_be_looked_at_are_not_steered_to():
    zones = ({"cpu": 4, "memory": 8},) * (MOST_ZONES + 1)
    admission = ask(make_layout(*zones, policy=RESTRICTED), pod({"cpu": 2}))
    assert admission.reason == REFUSED
    assert "cannot be predicted" in admission.message
    assert answer(make_layout(*zones, policy=NONE), pod({"cpu": 2})) == {0}


# -- the pod's own wish ---------------------------------------------------------------------------------------------


def wish(policy, *resources):
    return {"wish": TopologyPolicy(policy), "wish_resources": resources}


@BOTH
def test_a_wish_for_one_zone_refuses_what_best_effort_would_spread(exact):
    layout = make_layout({"cpu": 4, GPU: 2}, {"cpu": 4, GPU: 2}, policy=BEST_EFFORT, exact=exact)
    wanted = {"cpu": 2, GPU: 3}
    assert answer(layout, pod(wanted)) == {0, 1}
    admission = ask(layout, pod(wanted, **wish("single-numa-node")))
    assert admission.reason == "NumaPolicy"
    assert "from one NUMA zone; here they may come from zones 0, 1" in admission.message
    of_cpus_alone = answer(layout, pod(wanted, **wish("single-numa-node", "cpu")))
    assert of_cpus_alone == ({0, 1} if exact else "NumaPolicy")  # amounts do not tell which of both zones it will be
    assert answer(layout, pod(wanted, **wish("single-numa-node", GPU))) == "NumaPolicy"
    assert answer(layout, pod(wanted, **wish("best-effort"))) == {0, 1}
    assert answer(layout, pod({"cpu": 2, GPU: 2}, **wish("single-numa-node"))) == {0}


@BOTH
def test_a_restricted_wish_allows_as_many_zones_as_are_needed(exact):
    layout = make_layout(*({"cpu": 4, GPU: 2},) * 4, policy=BEST_EFFORT, exact=exact)
    assert answer(layout, pod({"cpu": 2, GPU: 4}, **wish("restricted"))) == {0, 1}
    spread = ({GPU: 1}, {GPU: 1}, {GPU: 1}, {GPU: 1})
    admission = ask(layout, pod({"cpu": 2, GPU: 4}, **wish("restricted")), *spread)
    assert admission.reason == "NumaPolicy"
    assert "from 2 NUMA zones at most" in admission.message


def test_a_wish_for_one_socket():
    layout = make_layout(*({"cpu": 4},) * 4, policy=BEST_EFFORT, exact=True)
    zones = tuple(type(zone)(id=zone.id, socket=at // 2, cores=zone.cores) for at, zone in enumerate(layout.zones))
    fields = {name: getattr(layout, name) for name in Layout.__struct_fields__} | {"zones": zones}
    sockets = Layout(**fields)
    assert answer(sockets, pod({"cpu": 7}, **wish("socket"))) == {0, 1}
    assert answer(sockets, pod({"cpu": 7}), {"cpu": 1}) == {1, 2}  # though zones 2 and 3 have room and share a socket
    assert answer(sockets, pod({"cpu": 7}, **wish("socket")), {"cpu": 1}) == "NumaPolicy"
    assert answer(sockets, pod({"cpu": 9}, **wish("socket"))) == "NumaPolicy"


def test_where_sockets_are_not_known_a_wish_for_one_means_one_zone():
    layout = make_layout(*({"cpu": 4},) * 4, policy=BEST_EFFORT)
    assert answer(layout, pod({"cpu": 7}, **wish("socket"))) == "NumaPolicy"
    assert answer(layout, pod({"cpu": 4}, **wish("socket"))) == {0}


def test_without_alignment_a_wish_holds_only_where_nothing_else_can_happen():
    """Policy none: CPUs are picked as always, but devices come in any order."""
    layout = make_layout({"cpu": 4, GPU: 2}, {"cpu": 4, GPU: 2}, policy=NONE, exact=True)
    one = wish("single-numa-node", GPU)
    assert answer(layout, pod({"cpu": 1, GPU: 1}, **one)) == "NumaPolicy"
    assert answer(layout, pod({"cpu": 1, GPU: 1}, **one), {GPU: 0}) == {0, 1}
    assert answer(layout, pod({"cpu": 4}, **wish("single-numa-node"))) == {0}
    amounts_alone = make_layout({"cpu": 4}, {"cpu": 4}, policy=NONE)
    assert answer(amounts_alone, pod({"cpu": 4}, **wish("single-numa-node"))) == "NumaPolicy"
    assert answer(amounts_alone, pod({"cpu": 4}, **wish("single-numa-node")), {"cpu": 0}) == {1}


@BOTH
def test_a_wish_for_what_is_not_pinned_says_what_would_be_needed(exact):
    layout = make_layout({"cpu": 4, GPU: 2}, {"cpu": 4, GPU: 2}, policy=BEST_EFFORT, exact=exact)
    floating = pod({"cpu": 2, GPU: 1}, qos=Qos.BURSTABLE, **wish("single-numa-node", "cpu"))
    assert "whole CPUs of Guaranteed pods" in ask(layout, floating).message
    assert answer(layout, pod({"cpu": 2, GPU: 1}, qos=Qos.BURSTABLE, **wish("single-numa-node"))) == {0}
    unknown = pod({"cpu": 2, NIC: 1}, **wish("single-numa-node", NIC))
    assert "no NUMA zone of the node has it" in ask(layout, unknown).message
    assert answer(layout, pod({"cpu": 2}, **wish("single-numa-node", NIC))) == {0}


def test_a_socket_with_as_many_free_cpus_as_sockets_have_on_average_is_taken_whole():
    """The kubelet's own slip on uneven machines: 13 of 14 CPUs are free, 13 is the average, so CPU 0 goes out too."""
    layout = make_layout({"cpu": 14}, {"cpu": 13}, policy=BEST_EFFORT, exact=True)
    zones = tuple(type(zone)(id=zone.id, socket=at, cores=zone.cores) for at, zone in enumerate(layout.zones))
    changed = {"zones": zones, "reserved_cpus": 1 | 1 << 14}
    uneven = Layout(**{name: getattr(layout, name) for name in Layout.__struct_fields__} | changed)
    before = empty(uneven)
    assert before.cpus & 1 == 0
    admission = admit(uneven, before, pod({"cpu": 21}))
    assert admission.cpus & 1
    assert admission.cpus.bit_count() == 21
    assert release(uneven, admission.after, admission).cpus == before.cpus

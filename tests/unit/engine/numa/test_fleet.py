"""Counts by columns are those of admission itself, pod after pod; and they stay so as machines change."""

import random

import numpy as np
import pytest
from support.fleet_factories import GIB, GPU, POLICIES, Dice

from engine.kubelet.admit import admit
from engine.kubelet.machine import (
    CPU,
    MEMORY,
    Container,
    ContainerKind,
    Kubelet,
    Layout,
    PodShape,
    Qos,
    State,
    TopologyPolicy,
    Zone,
)
from engine.numa import fleet as fleet_module
from engine.numa.alignment import NOT_KNOWN, exactly, half_zones
from engine.numa.batch.admitted import UNKNOWN, count, count_one
from engine.numa.batch.masks import Workspace
from engine.numa.columns import View
from engine.numa.count_plans import plan_for
from engine.numa.fleet import NO_MACHINE, Fleet
from engine.numa.score import ZoneScore

MOST = 40


def zones_needed(fleet, shape):
    """Over how many zones one more pod is spread on each machine; 0 where nothing of it is aligned."""
    halves = half_zones(fleet.alignments(shape, ZoneScore.LEAST_NUMA_NODES)).tolist()
    return [0 if half == NOT_KNOWN else half // 2 for half in halves]


def one_after_another(layout, state, shape, most=MOST):
    """The meaning of a count, without any shortcut."""
    for found in range(most):
        admission = admit(layout, state, shape)
        if not admission.admitted:
            return found
        state = admission.after
    return most


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("exact", [False, True])
def test_counts_are_what_sequential_admission_grants(policy, exact):
    wrong, admitted, several = [], 0, 0
    for seed in range(30):
        dice = Dice(random.Random(f"{policy} {exact} {seed}"), [policy], exact=exact, odd=0.3 if seed % 2 else 0.0)
        layout = dice.layout()
        fleet = Fleet()
        machines = [dice.state(layout) for _ in range(12)]
        for index, state in enumerate(machines):
            fleet.set(index, layout, state)
        for _ in range(3):
            shape = dice.shape(layout)
            want = [one_after_another(layout, state, shape) for state in machines]
            got = fleet.count_by_machine(shape, MOST).tolist()
            fits = fleet.feasible(shape).tolist()
            admitted += sum(found > 0 for found in want)
            several += sum(1 < found < MOST for found in want)
            if got != want or fits != [found > 0 for found in want]:
                wrong.append((seed, got, want, fits))
    assert not wrong
    assert admitted > 200
    assert several > 80


def test_one_machine_alone_counts_as_it_does_among_many():
    compared = 0
    for seed in range(300):
        dice = Dice(random.Random(f"one {seed}"), POLICIES, exact=bool(seed % 2))
        layout = dice.layout()
        fleet = Fleet()
        for index in range(12):
            fleet.set(index, layout, dice.state(layout))
        (kind,) = fleet._kinds.values()
        shape = dice.shape(layout)
        plan = plan_for(kind.traits, shape)
        if plan is None:
            continue
        for most in (1, MOST):
            many = count(View(kind, slice(0, kind.used)), plan, most, Workspace()).tolist()
            one = []
            for slot in range(kind.used):
                view = View(kind, slice(slot, slot + 1))
                one.append(count_one(view, kind.at[slot][1], plan, most, Workspace()))
            assert one == many
            compared += sum(found not in {0, UNKNOWN} for found in many)
    assert compared > 1000


def make_layout(policy=TopologyPolicy.SINGLE, zones=2, **settings):
    return Layout(
        zones=tuple([Zone(id=zone) for zone in range(zones)]),
        resources=(CPU, MEMORY, GPU),
        capacity=((8000, 16 * GIB, 2),) * zones,
        allocatable=((8000, 16 * GIB, 2),) * zones,
        kubelet=Kubelet(policy=policy, static_cpu=True, static_memory=True, **settings),
    )


def make_state(*cpus):
    return State(free=tuple([(cpu * 1000, 16 * GIB, 2) for cpu in cpus]))


def make_shape(cpu=2, gpu=1):
    asked = ((CPU, cpu * 1000), (MEMORY, GIB), (GPU, gpu))
    return PodShape(containers=(Container(name="main", requests=asked, limits=asked),), qos=Qos.GUARANTEED)


def test_an_index_without_machine_has_no_count_and_refuses_nothing():
    fleet = Fleet()
    fleet.set(2, make_layout(), make_state(8, 1))
    fleet.grow_to(4)
    assert len(fleet) == 4
    assert fleet.count_by_machine(make_shape(), MOST).tolist() == [NO_MACHINE, NO_MACHINE, 2, NO_MACHINE]
    assert fleet.feasible(make_shape(cpu=9)).tolist() == [True, True, False, True]
    assert fleet.remove(2)
    assert not fleet.remove(2)
    assert fleet.count_by_machine(make_shape(), MOST).tolist() == [NO_MACHINE] * 4


def test_counts_are_cut_to_what_was_asked_for_and_made_anew_for_more():
    fleet = Fleet()
    fleet.set(0, make_layout(), make_state(8, 8))
    assert fleet.count_by_machine(make_shape(), 2).tolist() == [2]
    assert fleet.count_by_machine(make_shape(), 10).tolist() == [4]
    assert fleet.count_by_machine(make_shape(), 3).tolist() == [3]


def test_a_pod_that_asks_for_nothing_aligned_fits_as_often_as_wanted():
    fleet = Fleet()
    for index, policy in enumerate(POLICIES):
        fleet.set(index, make_layout(policy), make_state(0, 0))
    shape = PodShape(containers=(Container(name="main", requests=((CPU, 500),)),), qos=Qos.BURSTABLE)
    assert fleet.count_by_machine(shape, 7).tolist() == [7] * len(POLICIES)
    assert zones_needed(fleet, shape) == [0] * len(POLICIES)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_pod_that_asks_for_none_of_a_device_is_counted_wherever_its_machines_stand(policy):
    fleet = Fleet()
    for index in range(9):
        fleet.set(index, make_layout(policy if index % 2 else POLICIES[0]), make_state(index, 8))
    asked = ((GPU, 0),)
    shape = PodShape(containers=(Container(name="main", requests=asked, limits=asked),), qos=Qos.GUARANTEED)
    for most in (1, 7):
        assert fleet.count_by_machine(shape, most).tolist() == [most] * 9
        for index in (1, 5, 7):  # these alone are counted again
            fleet.set(index, make_layout(policy), make_state(index + most, 8))
        assert fleet.count_by_machine(shape, most).tolist() == [most] * 9


def test_equal_machines_are_evaluated_once(monkeypatch):
    asked = []
    monkeypatch.setattr(fleet_module, "admit", lambda *question: asked.append(question) or admit(*question))
    layout = make_layout(TopologyPolicy.RESTRICTED, align_by_socket=True)  # which no closed form knows
    fleet = Fleet()
    for index in range(50):
        fleet.set(index, layout, make_state(3, index % 2))
    first = fleet.count_by_machine(make_shape(), 1).tolist()
    assert first == [1] * 50
    assert len(asked) == 2
    fleet.set(7, layout, make_state(3, 0))
    fleet.count_by_machine(make_shape(), 1)
    assert len(asked) == 2  # that state was seen before


def test_machines_that_come_change_move_and_go_are_counted_as_from_nothing():
    dice = Dice(random.Random(11), POLICIES)
    layouts = [dice.layout() for _ in range(5)]
    shapes = [dice.shape(random.Random(5).choice(layouts)) for _ in range(4)]
    fleet, machines = Fleet(), {}
    for step in range(400):
        action = dice.random.random()
        if action < 0.75 or not machines:
            index, layout = dice.random.randrange(30), dice.random.choice(layouts)
            state = dice.state(layout)
            changed = machines.get(index) != (layout, state)
            assert fleet.set(index, layout, state) == changed
            machines[index] = layout, state
        elif action < 0.9:
            index = dice.random.choice(sorted(machines))
            fleet.remove(index)
            del machines[index]
        else:
            order = dice.random.sample(range(len(fleet)), dice.random.randint(len(fleet) // 2, len(fleet)))
            fleet.permute(np.array(order))
            machines = {new: machines[old] for new, old in enumerate(order) if old in machines}
        if step % 3:
            continue
        fresh = Fleet()
        fresh.grow_to(len(fleet))
        for index, machine in machines.items():
            fresh.set(index, *machine)
        for shape in shapes[: 1 + step % 4]:
            assert fleet.count_by_machine(shape, MOST).tolist() == fresh.count_by_machine(shape, MOST).tolist()
            assert fleet.feasible(shape).tolist() == fresh.feasible(shape).tolist()
            assert fleet.in_one_zone(shape, MOST).tolist() == fresh.in_one_zone(shape, MOST).tolist()
            assert [fleet.alignments(shape, score).tolist() for score in ZoneScore] == [
                fresh.alignments(shape, score).tolist() for score in ZoneScore
            ]


def test_more_changes_than_the_log_holds_are_not_forgotten():
    fleet, layout, shape = Fleet(), make_layout(), make_shape()
    for index in range(3000):
        fleet.set(index, layout, make_state(8, 8))
    assert fleet.count_by_machine(shape, MOST).tolist() == [4] * 3000
    for turn in range(fleet_module.LOG_KEPT + 10):
        fleet.set(5, layout, make_state(turn % 2, 2))
    fleet.set(6, layout, make_state(0, 0))
    assert fleet.count_by_machine(shape, MOST)[:8].tolist() == [4, 4, 4, 4, 4, 1, 0, 4]


@pytest.mark.parametrize(
    ("policy", "cpus", "shape", "zones"),
    [
        (TopologyPolicy.SINGLE, (1, 3), make_shape(), 1),
        (TopologyPolicy.SINGLE, (1, 1), make_shape(), 2),  # does not fit
        (TopologyPolicy.RESTRICTED, (1, 3), make_shape(), 1),
        (TopologyPolicy.BEST_EFFORT, (3, 3), make_shape(), 1),
        (TopologyPolicy.BEST_EFFORT, (1, 1, 1), make_shape(), 2),
    ],
)
def test_zones_needed_are_those_the_next_pod_is_spread_over(policy, cpus, shape, zones):
    fleet = Fleet()
    fleet.set(0, make_layout(policy, zones=len(cpus)), make_state(*cpus))
    assert zones_needed(fleet, shape) == [zones]


def test_a_strict_kubelet_spreads_as_zones_needed_says():
    compared = 0
    for seed in range(400):
        dice = Dice(random.Random(f"spread {seed}"), POLICIES[:2], exact=bool(seed % 2))
        layout = dice.layout()
        state, shape = dice.state(layout), dice.shape(layout)
        fleet = Fleet()
        fleet.set(0, layout, state)
        admission = admit(layout, state, shape)
        if admission.admitted:
            assert zones_needed(fleet, shape) == [admission.zones.bit_count()], seed
            compared += admission.zones > 0
    assert compared > 100


def test_alignment_by_columns_is_that_of_admission_where_the_kubelet_is_strict():
    compared = 0
    for seed in range(120):
        dice = Dice(random.Random(f"alignment {seed}"), POLICIES[:2], exact=bool(seed % 2))
        layout = dice.layout()
        states, shape = [dice.state(layout) for _ in range(10)], dice.shape(layout)
        fleet = Fleet()
        for index, state in enumerate(states):
            fleet.set(index, layout, state)
        for score in ZoneScore:
            found = fleet.alignments(shape, score).tolist()
            for index, state in enumerate(states):
                if admit(layout, state, shape).admitted:
                    assert found[index] == exactly(layout, state, shape, score), (seed, index, score)
                    compared += 1
    assert compared > 1000


def test_pods_in_one_zone_are_those_before_the_first_that_admission_spreads():
    compared = 0
    for seed in range(400):
        dice = Dice(random.Random(f"whole {seed}"), POLICIES[:3], exact=bool(seed % 2))
        layout = dice.layout()
        states, shape = [dice.state(layout) for _ in range(4)], dice.shape(layout)
        if len(shape.containers) > 1:
            continue
        fleet = Fleet()
        for index, state in enumerate(states):
            fleet.set(index, layout, state)
        want = [fleet_module.granted(layout, state, shape, MOST, 1) for state in states]
        assert fleet.in_one_zone(shape, MOST).tolist() == want, seed
        compared += sum(0 < found < MOST for found in want)
    assert compared > 100


def test_a_wish_of_a_pod_whose_init_container_alone_asks_for_memory_is_judged():
    init = Container(name="init", kind=ContainerKind.INIT, requests=((MEMORY, GIB),), limits=((MEMORY, GIB),))
    app = make_shape().containers[0]
    app = Container(name="app", requests=app.requests[:1], limits=app.limits[:1])
    pod = PodShape(containers=(init, app), qos=Qos.GUARANTEED, wish=TopologyPolicy.RESTRICTED)
    fleet = Fleet()
    fleet.set(0, make_layout(TopologyPolicy.BEST_EFFORT), make_state(8, 8))
    assert fleet.count_by_machine(pod, 3).tolist() == [3]

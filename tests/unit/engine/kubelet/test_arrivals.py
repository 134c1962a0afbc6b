"""Pods on their way to a machine: where all is said to go well, it does in every order and whatever ends meanwhile."""

import os
import random
from itertools import permutations

import msgspec
import pytest
from support.fleet_factories import Dice

from engine.kubelet.admit import admit, placement_of
from engine.kubelet.arrival_orders import certain, heeds
from engine.kubelet.charge import charge, release
from engine.kubelet.machine import (
    CPU,
    Container,
    ContainerKind,
    Kubelet,
    Layout,
    PodShape,
    Qos,
    Scope,
    State,
    TopologyPolicy,
    Zone,
)

GPU = "nvidia.com/gpu"
CHOOSY = [TopologyPolicy.SINGLE, TopologyPolicy.RESTRICTED]
CASES = int(os.environ.get("TOPOGATE_ARRIVAL_CASES", "120"))  # of each kind


def container(name="c", kind=ContainerKind.APP, **amounts):
    named = {"cpu": CPU, "gpu": GPU}
    asked = tuple(sorted((named[key], amount * (1000 if key == "cpu" else 1)) for key, amount in amounts.items()))
    return Container(name=name, kind=kind, requests=asked, limits=asked)


def shape(*containers, qos=Qos.GUARANTEED):
    return PodShape(containers=containers, qos=qos)


def machine(*free, scope=Scope.CONTAINER, policy=TopologyPolicy.SINGLE, installed=(16, 2)):
    """Zones with (CPUs, GPUs) free, of so many installed; amounts alone are known."""
    most = tuple((cpus * 1000, gpus) for cpus, gpus in [installed] * len(free))
    layout = Layout(
        zones=tuple(Zone(id=at) for at in range(len(free))),
        resources=(CPU, GPU),
        capacity=most,
        allocatable=most,
        kubelet=Kubelet(policy=policy, scope=scope, static_cpu=True),
    )
    return layout, State(free=tuple((cpus * 1000, gpus) for cpus, gpus in free))


PLAIN, WIDE = shape(container(cpu=4)), shape(container(cpu=8, gpu=1))
WITH_INIT = shape(container("i", ContainerKind.INIT, cpu=6), container(cpu=6, gpu=1))


def test_a_pod_that_is_alone_and_granted_is_certain():
    layout, state = machine((8, 1), (8, 0))
    assert certain(layout, state, state, [WITH_INIT])
    assert certain(layout, state, state, [WIDE])


def test_one_whose_first_container_goes_where_no_device_is_left_is_not():
    layout, state = machine((8, 0), (8, 1))
    assert not certain(layout, state, state, [WITH_INIT])  # its init container takes zone 0
    assert certain(layout, state, state, [WIDE])


def test_an_end_that_opens_a_zone_without_a_device_makes_it_doubtful():
    layout, now = machine((4, 0), (8, 1))
    _, later = machine((16, 0), (8, 1))
    assert certain(layout, now, now, [WITH_INIT])
    assert not certain(layout, now, later, [WITH_INIT])
    assert certain(layout, now, later, [WIDE])  # placed at once: more room never hurts


def test_an_end_that_opens_a_zone_with_a_device_does_not():
    layout, now = machine((4, 1), (8, 1))
    _, later = machine((16, 1), (8, 1))
    assert certain(layout, now, later, [WITH_INIT])


def test_another_pod_that_may_come_first_makes_it_doubtful():
    layout, state = machine((8, 1), (8, 0), (8, 1))
    assert certain(layout, state, state, [WITH_INIT])
    small = shape(container(gpu=1), qos=Qos.BURSTABLE)
    assert not certain(layout, state, state, [WITH_INIT, small])  # it may take the device of zone 0


def test_plain_pods_may_block_each_other_too():
    layout, state = machine((8, 1), (4, 0))
    assert not certain(layout, state, state, [WIDE, PLAIN])  # the small one may take half of zone 0
    layout, state = machine((12, 1), (4, 0))
    assert certain(layout, state, state, [WIDE, PLAIN])


def test_pods_that_are_alike_and_plain_wait_for_nothing():
    layout, state = machine((8, 2), (8, 2))
    _, later = machine((16, 2), (16, 2))
    assert certain(layout, state, later, [WIDE, WIDE])
    assert not certain(layout, state, later, [WIDE] * 3)  # there is no room for the third


@pytest.mark.parametrize("policy", [TopologyPolicy.NONE, TopologyPolicy.BEST_EFFORT])
def test_where_the_kubelet_does_not_insist_nothing_is_doubtful(policy):
    layout, state = machine((8, 0), (8, 1), policy=policy)
    assert not heeds(layout, WITH_INIT)
    assert certain(layout, state, state, [WITH_INIT, WIDE, PLAIN])


def test_pods_of_which_nothing_is_aligned_do_not_count():
    layout, _ = machine((8, 1))
    assert not heeds(layout, shape(container(cpu=2), qos=Qos.BURSTABLE))


def test_many_kinds_where_there_is_plenty_are_certain_at_once():
    layout, state = machine(*[(16, 2)] * 8)
    kinds = [shape(container(cpu=cpus)) for cpus in range(1, 9)] + [WIDE]
    assert certain(layout, state, state, kinds, budget=0)


def test_as_many_zones_as_pods_of_all_kinds_are_enough():
    layout, state = machine((8, 1), (8, 1), (8, 1))
    small = shape(container(gpu=1), qos=Qos.BURSTABLE)
    assert certain(layout, state, state, [WIDE, small, small], budget=0)
    assert not certain(layout, state, state, [WIDE, small, small, small], budget=0)


def test_too_many_orders_to_look_at_count_as_doubt():
    layout, state = machine((16, 2), (16, 2), (16, 2))
    small = shape(container(gpu=1), qos=Qos.BURSTABLE)
    assert certain(layout, state, state, [WITH_INIT, small, PLAIN])
    assert not certain(layout, state, state, [WITH_INIT, small, PLAIN], budget=1)


def made(seed, *, exact):
    """A machine with pods on it, of which some may end, and pods that fit one after the other."""
    dice = Dice(random.Random(seed), CHOOSY, exact=exact, odd=dice_odd(seed))
    layout = dice.layout()
    state, running = dice.state(layout), []
    for _ in range(dice.random.randint(0, 12)):
        admission = admit(layout, state, dice.shape(layout))
        if admission.admitted:
            running.append(admission)
            state = admission.after
    pool = [dice.shape(layout) for _ in range(dice.random.choice([1, 3, 8]))]
    coming, after = [], state
    for _ in range(12):
        if len(coming) == 4:
            break
        pod = dice.random.choice(pool)
        admission = admit(layout, after, pod)
        if admission.admitted:
            coming.append(pod)
            after = admission.after
    return dice.random, layout, state, running, coming


def dice_odd(seed):
    return (0.0, 0.3)[seed % 2]


@pytest.mark.parametrize("exact", [False, True])
def test_where_nothing_ends_it_is_certain_exactly_if_every_order_grants_all(exact):
    told = {True: 0, False: 0}
    for seed in range(CASES):
        _, layout, state, _, coming = made(seed, exact=exact)
        if len(coming) < 2:
            continue
        granted = all(all_granted(layout, state, order) for order in set(permutations(coming)))
        assert certain(layout, state, state, coming, budget=1 << 12) == granted, seed
        told[granted] += len(set(coming)) > 1
    assert told[True] > CASES // 20
    assert told[False] >= CASES // 100


def all_granted(layout, state, order):
    for pod in order:
        admission = admit(layout, state, pod)
        if not admission.admitted:
            return False
        state = admission.after
    return True


@pytest.mark.parametrize("exact", [False, True])
def test_what_is_certain_is_granted_in_any_order_and_whatever_ends_meanwhile(exact):
    """By the kubelet: a wish of ours on top may be broken by what ends, as where more is free more zones will do."""
    sure = several = 0
    for seed in range(CASES):
        dice, layout, state, running, coming = made(seed, exact=exact)
        ending = [admission for admission in running if dice.random() < 0.6]
        coming = [msgspec.structs.replace(pod, wish=TopologyPolicy.NONE, gpu_link="") for pod in coming]
        most = state
        for admission in ending:
            most = release(layout, most, admission)
        if not coming or not ending or not certain(layout, state, most, coming):
            continue
        sure += 1
        several += len(set(coming)) > 1
        for _ in range(12):
            assert not play(dice, layout, state, (list(ending), list(coming))), seed
    assert sure > CASES // 10
    assert several > CASES // 50


def play(dice, layout, state, events):
    """One course of events: pods come and others end, in some order; not all need to end. Returns a refusal."""
    ending, coming = events
    dice.shuffle(coming)
    dice.shuffle(ending)
    ending = ending[: dice.randint(0, len(ending))]
    while coming:
        if ending and dice.random() < 0.5:
            state = release(layout, state, ending.pop())
            continue
        admission = admit(layout, state, coming.pop())
        if not admission.admitted:
            return f"{admission.reason}: {admission.message}"
        state = admission.after
    return ""


def test_what_a_placement_gives_back_is_what_its_pod_took():
    """The controller knows placements only, where these tests release admissions."""
    layout, state = machine((8, 1), (8, 1))
    admission = admit(layout, state, WITH_INIT)
    assert charge(layout, admission.after, placement_of(layout, admission), -1) == state

"""Admissions that hand out devices by their links, and XPUs by their rules, one pod after another."""

import random

import msgspec
import pytest
from published_links import DATA, MESH_PCIE, published

from engine.kubelet.admit import admit, placement_of
from engine.kubelet.charge import charge
from engine.kubelet.devices.links import bits, from_words
from engine.kubelet.devices.xpu import XpuBoard, board
from engine.kubelet.machine import (
    Container,
    ContainerKind,
    DeviceLayout,
    Kubelet,
    Layout,
    NumaPlacement,
    PodShape,
    Qos,
    Scope,
    State,
    TopologyPolicy,
    Zone,
)
from engine.numa.fleet import Fleet

GPU, XPU = "nvidia.com/gpu", "kunlunxin.com/xpu"
MESH = published("v100-dgx1", pcie=MESH_PCIE)
SWITCH = published("hgx-h100")
P800 = board([1] * 4 + [2] * 4)
NONE, BEST, RESTRICTED, SINGLE = (
    TopologyPolicy.NONE,
    TopologyPolicy.BEST_EFFORT,
    TopologyPolicy.RESTRICTED,
    TopologyPolicy.SINGLE,
)


def machine(rules, *, resource=GPU, policy=NONE, scope=Scope.CONTAINER, taken=(), exact=True):
    """Two zones with four devices each, of which some are taken."""
    free = 0xFF & ~sum(1 << device for device in taken)
    numbers = tuple(((free >> 4 * zone & 0xF).bit_count(),) for zone in (0, 1))
    devices = tuple(DeviceLayout(zones=1 << (device // 4)) for device in range(8))
    layout = Layout(
        zones=(Zone(id=0, distances=(10, 20)), Zone(id=1, distances=(20, 10))),
        resources=(resource,),
        capacity=((4,), (4,)),
        allocatable=((4,), (4,)),
        kubelet=Kubelet(policy=policy, scope=scope),
        devices=(devices,) if exact else (),
        links=() if rules is None else (rules,),
        exact=exact,
    )
    return layout, State(free=numbers, devices=(free,) if exact else ())


def pod(*amounts, resource=GPU, link="", inits=()):
    containers = [
        Container(name=f"i{n}", kind=ContainerKind.INIT, limits=((resource, amount),)) for n, amount in enumerate(inits)
    ]
    containers += [Container(name=f"c{n}", limits=((resource, amount),)) for n, amount in enumerate(amounts)]
    return PodShape(containers=tuple(containers), qos=Qos.BURSTABLE, gpu_link=link)


def given(layout, state, shape, most=20):
    """The devices of pod after pod until one is refused, and that refusal."""
    found = []
    for _ in range(most):
        admission = admit(layout, state, shape)
        if not admission.admitted:
            return found, admission
        taken = dict(admission.devices)[layout.resources[0]]
        assert taken & ~state.devices[0] == 0
        assert admission.after.devices[0] == state.devices[0] & ~taken
        found.append(set(bits(taken)))
        state = admission.after
    return found, None


def counted(layout, state, shape, most=20):
    """The same number from the batch."""
    fleet = Fleet()
    fleet.set(0, layout, state)
    return int(fleet.count_by_machine(shape, most)[0])


@pytest.mark.parametrize("policy", [NONE, BEST, RESTRICTED])
def test_require_gives_cliques_until_none_is_left(policy):
    layout, state = machine(MESH, policy=policy)
    found, refusal = given(layout, state, pod(4, link="require"))
    assert found == [{0, 1, 2, 3}, {4, 5, 6, 7}]
    assert not refusal.admitted
    layout, state = machine(MESH, policy=policy)
    found, _ = given(layout, state, pod(3, link="require"))
    assert [MESH.is_clique(sum(1 << gpu for gpu in gpus)) for gpus in found] == [True, True]


def test_require_refuses_what_amounts_would_take():
    layout, state = machine(MESH, taken=(3, 7))
    found, refusal = given(layout, state, pod(4, link="require"))
    assert (found, refusal.reason) == ([], "GpuLink")
    assert refusal.message == "needs 4 of nvidia.com/gpu in one NVLink clique, and the largest free one has 3"
    assert len(given(layout, state, pod(4))[0]) == 1
    assert len(given(layout, state, pod(4, link="prefer"))[0]) == 1


def test_the_batch_counts_what_the_choice_grants():
    for taken in [(), (3,), (3, 7), (0, 1, 4), (1, 2, 3, 5, 6, 7)]:
        for shape in [pod(n, link=link) for n in (1, 2, 3, 4) for link in ("require", "prefer", "")]:
            layout, state = machine(MESH, taken=taken)
            assert counted(layout, state, shape) == len(given(layout, state, shape)[0]), (taken, shape)


def test_prefer_takes_the_best_connected():
    layout, state = machine(MESH)
    found, _ = given(layout, state, pod(2, link="prefer"))
    assert found == [{2, 3}, {6, 7}, {0, 4}, {1, 5}]
    # Aligned to one zone, the second pod's zone is the kubelet's choice, and the pair in it is the best there.
    layout, state = machine(MESH, policy=RESTRICTED)
    found, _ = given(layout, state, pod(2, link="prefer"))
    assert found == [{2, 3}, {0, 1}, {6, 7}, {4, 5}]


def test_without_annotation_the_broken_half_is_used_first():
    layout, state = machine(SWITCH, taken=(5,))
    found, _ = given(layout, state, pod(1))
    assert [gpus < {4, 6, 7} for gpus in found[:3]] == [True] * 3
    layout, state = machine(None, taken=(5,))
    assert given(layout, state, pod(1))[0][0] == {0}


def test_zones_of_the_admission_hold():
    layout, state = machine(MESH, policy=SINGLE, taken=(2, 3))
    found, refusal = given(layout, state, pod(2, link="prefer"))
    assert found == [{0, 1}, {6, 7}, {4, 5}]
    assert refusal.reason == "TopologyAffinityError"


def test_all_gpus_of_a_pod_are_one_clique():
    layout, state = machine(MESH, taken=(0, 3))
    found, refusal = given(layout, state, pod(2, 2, link="require"))
    assert found == [{4, 5, 6, 7}]
    assert refusal.reason == "GpuLink"
    assert given(layout, state, pod(1, 3, link="require"))[0] == [{4, 5, 6, 7}]
    assert given(layout, state, pod(1, 1, 1, link="require"))[0][0] <= {4, 5, 6, 7}
    assert given(layout, state, pod(2, 3, link="require"))[1].reason == "GpuLink"


def test_an_init_containers_gpus_are_used_again():
    layout, state = machine(MESH, taken=(0, 1))
    found, _ = given(layout, state, pod(2, inits=(2,), link="prefer"), most=1)
    assert found == [{2, 3}]
    layout, state = machine(MESH)
    assert [len(gpus) for gpus in given(layout, state, pod(4, inits=(2,), link="require"))[0]] == [4, 4]


def test_pod_scope():
    layout, state = machine(MESH, policy=RESTRICTED, scope=Scope.POD)
    found, _ = given(layout, state, pod(2, 2, link="require"))
    assert found == [{0, 1, 2, 3}, {4, 5, 6, 7}]


@pytest.mark.parametrize(
    ("taken", "count", "cards"),
    [
        ((), 1, {0}),
        ((), 2, {0, 1}),
        ((), 4, {0, 1, 2, 3}),
        ((), 8, {0, 1, 2, 3, 4, 5, 6, 7}),
        ((0, 1, 2), 1, {3}),
        ((0, 1, 2), 2, {4, 5}),
        ((0, 1, 2, 3), 1, {4}),
        ((0, 4), 2, {1, 2}),
        ((0, 1, 4), 1, {5}),
        ((0,), 8, None),
        ((), 3, None),
        ((0, 1, 2, 4, 5, 6), 2, None),
    ],
)
def test_the_worked_examples_of_xpus_as_admissions(taken, count, cards):
    layout, state = machine(P800, resource=XPU, taken=taken)
    shape = pod(count, resource=XPU)
    found, refusal = given(layout, state, shape)
    if cards is None:
        assert found == []
        # Too few cards in all is the kubelet's own refusal.
        assert refusal.reason == ("UnexpectedAdmissionError" if count > 8 - len(taken) else "XpuAllocation")
    else:
        assert found[0] == cards
    assert counted(layout, state, shape) == len(found)
    numbers, amounts = machine(XpuBoard(), resource=XPU, taken=taken, exact=False)
    alone = admit(numbers, amounts, shape)
    assert alone.admitted == (cards is not None)
    assert counted(numbers, amounts, shape) == len(found)
    if cards is not None:
        taken_there = [len(cards & set(range(4))), len(cards & set(range(4, 8)))]
        assert [a[0] - b[0] for a, b in zip(amounts.free, alone.after.free, strict=True)] == taken_there


def test_cards_of_which_the_plugin_says_no_zone_are_chosen_by_fours_and_named():
    layout, state = machine(P800, resource=XPU)
    zoneless = tuple(DeviceLayout(zones=0) for _ in range(8))
    layout = msgspec.structs.replace(
        layout, devices=(zoneless,), links=(board([0] * 8),), capacity=((-1,), (-1,)), allocatable=((-1,), (-1,))
    )
    state = State(free=((-1,), (-1,)), devices=(0xFF,))
    ids = {XPU: tuple(f"xpu{card}" for card in range(8))}
    named, before = [], []
    for count in (1, 2, 4, 1):
        admission = admit(layout, state, pod(count, resource=XPU))
        (use,) = placement_of(layout, admission, ids).zones
        assert use.amounts == {}
        named.append(use.devices[XPU])
        before.append((state, NumaPlacement(zones=(use,))))
        assert charge(layout, state, before[-1][1], 1, ids).devices == admission.after.devices
        state = admission.after
    assert named == [("xpu0",), ("xpu1", "xpu2"), ("xpu4", "xpu5", "xpu6", "xpu7"), ("xpu3",)]
    assert admit(layout, state, pod(1, resource=XPU)).reason == "UnexpectedAdmissionError"
    for earlier, placement in reversed(before):
        state = charge(layout, state, placement, -1, ids)
        assert state.devices == earlier.devices


def test_xpus_with_aligned_zones():
    layout, state = machine(P800, resource=XPU, policy=SINGLE, taken=(0, 1, 2))
    found, refusal = given(layout, state, pod(2, resource=XPU))
    assert found == [{4, 5}, {6, 7}]
    assert refusal.reason == "TopologyAffinityError"
    layout, state = machine(P800, resource=XPU, policy=RESTRICTED)
    assert given(layout, state, pod(8, resource=XPU))[0] == [set(range(8))]


def test_amounts_alone_grant_a_require_where_it_surely_holds():
    for rules, taken, count, granted in [(SWITCH, (0,), 4, 1), (MESH, (), 4, 1), (MESH, (0,), 4, 0), (None, (), 2, 0)]:
        layout, state = machine(rules, taken=taken, exact=False)
        admission = admit(layout, state, pod(count, link="require"))
        assert admission.admitted == bool(granted), (rules, taken, count)
        assert admission.reason == ("" if granted else "GpuLink")
    layout, state = machine(MESH, policy=SINGLE, taken=(0,), exact=False)
    assert admit(layout, state, pod(2, link="require")).admitted


def test_graphs_that_are_equal_give_equal_layouts():
    layout, state = machine(MESH)
    again, _ = machine(published("v100-dgx1", pcie=MESH_PCIE))
    assert layout == again
    assert hash(layout) == hash(again)
    assert admit(layout, state, pod(2)) == admit(again, msgspec.structs.replace(state), pod(2))


def test_a_require_is_refused_where_nothing_is_known_of_the_gpus():
    known, state = machine(SWITCH)
    silent = [
        (msgspec.structs.replace(known, ignored=(GPU,)), state),
        (msgspec.structs.replace(known, links=()), state),
        machine(P800, resource=XPU),
    ]
    for layout, free in silent:
        for shape, granted in [
            (pod(2, link="require"), 0),
            (pod(1, 1, link="require"), 0),
            (pod(1, link="require"), 1),
        ]:
            admission = admit(layout, free, shape)
            assert admission.admitted == bool(granted), (layout, shape)
            assert admission.reason == ("" if granted else "GpuLink")
            assert bool(counted(layout, free, shape, 1)) == bool(granted)
    # An init container and an app have one after the other.
    assert admit(*silent[1], pod(1, inits=(1,), link="require")).admitted
    assert not admit(*silent[1], pod(1, inits=(2,), link="require")).admitted


def some_machine(dice):
    """Four or eight zones with devices by links or cards by rules, some taken, and NICs without either."""
    zones = dice.choice([4, 8])
    zone_of = [device * zones // 8 for device in range(8)]
    masks = [1 << zone for zone in zone_of]
    exact, xpus = dice.random() < 0.6, dice.random() < 0.25
    name = dice.choice(["v100-dgx1", "dgx-a100", "titanv-8x", "4090-8x"])
    rules = (board(masks) if exact else XpuBoard()) if xpus else from_words(DATA[name]["matrix"], zones=masks)
    free = [dice.getrandbits(8) | dice.getrandbits(8) for _ in range(2)]
    amounts = tuple((8 // zones, 8 // zones) for _ in range(zones))
    devices = tuple(DeviceLayout(zones=mask) for mask in masks)
    layout = Layout(
        zones=tuple(Zone(id=zone) for zone in range(zones)),
        resources=(XPU if xpus else GPU, "rdma/nic"),
        capacity=amounts,
        allocatable=amounts,
        kubelet=Kubelet(policy=dice.choice([NONE, BEST, RESTRICTED, SINGLE]), scope=dice.choice(list(Scope))),
        devices=(devices, devices) if exact else (),
        links=(rules, None),
        exact=exact,
    )
    left = tuple(tuple(sum(1 for d in range(8) if zone_of[d] == z and f >> d & 1) for f in free) for z in range(zones))
    return layout, State(free=left, devices=tuple(free) if exact else ())


@pytest.mark.parametrize("seed", range(3))
def test_the_batch_counts_as_one_admission_after_another(seed):
    dice = random.Random(seed)
    for _ in range(80):
        layout, state = some_machine(dice)
        containers = []
        for at in range(dice.choice([1, 1, 2])):
            limits = {layout.resources[0]: dice.choice([0, 1, 2, 2, 3, 4, 5])}
            if dice.random() < 0.5:
                limits["rdma/nic"] = dice.choice([1, 2, 3])
            containers.append(Container(name=f"c{at}", limits=tuple(sorted(limits.items()))))
        link = dice.choice(["", "prefer", "require"])
        shape = PodShape(containers=tuple(containers), qos=Qos.BURSTABLE, gpu_link=link)
        granted, left = 0, state
        while granted < 4 and (admission := admit(layout, left, shape)).admitted:
            granted, left = granted + 1, admission.after
        assert counted(layout, state, shape, 4) == granted, (layout, state, shape)


@pytest.mark.parametrize(
    ("amounts", "declared", "free", "granted"),
    [
        ((2, 2), 0b1111, (4, 0), True),
        ((4,), 0b1111, (4, 4), True),
        ((2, 2), 0b1111, (4, 4), False),  # the other container may get two that the node did not list yet
        ((2, 2), 0b0011, (2, 0), False),  # enough for one of them alone
        ((2, 2), 0b0011, (4, 4), False),
    ],
)
def test_several_containers_get_one_clique_only_where_the_list_of_free_devices_is_whole(
    amounts, declared, free, granted
):
    layout, _ = machine(MESH, exact=False)
    state = State(free=tuple((amount,) for amount in free), declared_free=((GPU, declared),))
    assert admit(layout, state, pod(*amounts, link="require")).admitted is granted

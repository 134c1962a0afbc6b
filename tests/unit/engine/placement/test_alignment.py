"""Alignment before tightness: of equally many nodes and domains, those are taken on which pods are best aligned."""

from itertools import combinations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engine_factories import BLOCK, GPU, HOST, RACK, ask, make_pod_set, nodes_of, racks
from support.numa_factories import (
    BEST_EFFORT,
    NONE,
    RESTRICTED,
    at,
    make_machine,
    make_shape,
    on_zone,
    pod_on,
    pods_of,
    state_of,
)

from engine.kubelet.devices.links import from_words
from engine.kubelet.devices.xpu import XpuBoard, board
from engine.kubelet.machine import Container, DeviceLayout, Kubelet, Layout, PodShape, Qos, State, Zone
from engine.model import PodTerm, Policy, SliceLayer, TopologyRequest
from engine.numa.alignment import WORST, WORST_ZONES, exactly, half_zones
from engine.numa.score import AlignmentOverPacking as Over
from engine.numa.score import ZoneScore, pieces
from engine.placement.fit import Fit, budget
from engine.placement.numa.alignment import Alignment
from engine.placement.place import extend

XPU = "kunlunxin.com/xpu"
PAIR = make_shape({GPU: 2})
HALF = at(*[(zone, {GPU: 1}) for zone in range(4)])  # one of the two GPUs of each zone
EVERYWHERE = [(Policy.REQUIRED, RACK), (Policy.REQUIRED, HOST), (Policy.PREFERRED, RACK), (Policy.UNCONSTRAINED, None)]


def halves(*used, rack_of=None, policy=BEST_EFFORT, **more):
    """Nodes of four zones with two GPUs each; on those that are used, a GPU of each zone is taken."""
    machines = [make_machine(*[{GPU: 2}] * 4, node=f"n{i}", policy=policy) for i in range(len(used))]
    state = state_of(*machines, rack_of=rack_of, **more)
    for i, half in enumerate(used):
        if half:
            state.set_pod(pod_on(f"p{i}", make_shape({GPU: 4}), HALF, f"n{i}"))
    return state


@pytest.mark.parametrize(("policy", "level"), EVERYWHERE)
@pytest.mark.parametrize("wish", [NONE, BEST_EFFORT])
def test_a_pod_goes_to_the_empty_node_that_aligns_it_and_not_split_to_the_half_full_one(policy, level, wish):
    state = halves(True, False, True)
    shape = make_shape({GPU: 2}, wish=wish)
    assert nodes_of(ask(state, pods_of(shape, 1, policy, level))) == {"n1": 1}


def test_where_the_full_node_aligns_it_as_well_the_pod_goes_there():
    state = halves(True, False)
    assert nodes_of(ask(state, pods_of(make_shape({GPU: 1})))) == {"n0": 1}


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(("policy", "level"), EVERYWHERE)
def test_an_xpu_goes_where_one_task_less_fills_the_node(exact, policy, level):
    """00000111 (score 2000) before 00001111 (score 0), though that one is fuller."""
    rules = board([1] * 4 + [2] * 4) if exact else XpuBoard()
    machines = [
        make_machine({XPU: 4}, {XPU: 4}, node=f"n{i}", exact=exact, policy=NONE, links={XPU: rules}) for i in range(2)
    ]
    state = state_of(*machines)
    for node, cards in enumerate((4, 3)):
        state.set_pod(pod_on(f"p{node}", make_shape({XPU: cards}), at((0, {XPU: cards})), f"n{node}"))
    assert nodes_of(ask(state, pods_of(make_shape({XPU: 1}), 1, policy, level))) == {"n1": 1}


def test_a_wish_for_alignment_leads_to_the_kubelet_that_aligns():
    """The first node is fuller, but its kubelet aligns nothing: its GPUs may come from anywhere."""
    machines = [make_machine({GPU: 4}, {GPU: 4}, node=f"n{i}", policy=(NONE, BEST_EFFORT)[i]) for i in range(2)]
    state = state_of(*machines)
    state.set_pod(pod_on("p", make_shape({GPU: 1}), on_zone(0, gpu=1), "n0"))
    for qos in (Qos.GUARANTEED, Qos.BURSTABLE):
        wish = make_shape({GPU: 2}, wish=BEST_EFFORT, qos=qos)
        assert nodes_of(ask(state, pods_of(wish))) == {"n1": 1}
    assert nodes_of(ask(state, pods_of(make_shape({GPU: 2})))) == {"n0": 1}


def switched(size, kind):
    return from_words([["X" if a == b else kind for b in range(size)] for a in range(size)], zones=[1] * size)


@pytest.mark.parametrize("exact", [True, False])
def test_a_pod_that_prefers_links_goes_where_its_devices_are_linked_fastest(exact):
    """The first node is fuller, and its GPUs have no links; which of them it gets need not be known."""
    machines = [
        make_machine(
            {GPU: 4}, node=f"n{i}", exact=exact, policy=RESTRICTED, links={GPU: switched(4, ("SYS", "NV12")[i])}
        )
        for i in range(2)
    ]
    state = state_of(*machines)
    state.set_pod(pod_on("p", make_shape({GPU: 1}), on_zone(0, gpu=1), "n0"))
    assert nodes_of(ask(state, pods_of(make_shape({GPU: 2}, gpu_link="prefer")))) == {"n1": 1}
    assert nodes_of(ask(state, pods_of(make_shape({GPU: 2})))) == {"n0": 1}


def test_where_it_is_not_known_which_devices_a_pod_gets_the_loosest_pair_of_its_zones_counts():
    """Pairs of NV12 in the first node, NV1 between all in the second: four are all of a zone, two may be any."""
    pairs = [["X" if a == b else "NV12" if a // 2 == b // 2 else "SYS" for b in range(4)] for a in range(4)]
    graphs = [from_words(pairs, zones=[1] * 4), switched(4, "NV1")]
    machines = [
        make_machine({GPU: 4}, node=f"n{i}", policy=RESTRICTED, links={GPU: graph}) for i, graph in enumerate(graphs)
    ]
    state = state_of(*machines)
    for gpus, best in ((2, "n1"), (4, "n0")):  # a third of 12 links is more than one
        assert nodes_of(ask(state, pods_of(make_shape({GPU: gpus}, gpu_link="prefer")))) == {best: 1}


def test_of_many_equal_nodes_the_one_with_the_fastest_links_is_found_wherever_it_is():
    graphs = [switched(4, "NV18" if i == 30 else "NV12") for i in range(40)]
    machines = [
        make_machine({GPU: 4}, node=f"n{i}", exact=True, policy=RESTRICTED, links={GPU: graph})
        for i, graph in enumerate(graphs)
    ]
    assert nodes_of(ask(state_of(*machines), pods_of(make_shape({GPU: 2}, gpu_link="prefer")))) == {"n30": 1}


def test_close_zones_come_before_a_full_node():
    """The first node takes one such pod, the second two, on zones that are closer."""
    machines = [
        make_machine(*[{GPU: 2}] * 4, node=f"n{i}", policy=RESTRICTED, distances=apart(far))
        for i, far in enumerate((32, 12))
    ]
    state = state_of(*machines)
    state.set_pod(pod_on("p", PAIR, at((0, {GPU: 1}), (1, {GPU: 1})), "n0"))
    assert nodes_of(ask(state, pods_of(make_shape({GPU: 4})))) == {"n1": 1}
    assert nodes_of(ask(state, pods_of(PAIR))) == {"n0": 1}


def apart(far):
    return tuple(tuple(10 if one == other else far for other in range(4)) for one in range(4))


PAIRS = from_words([["X" if a == b else "NV4" if a // 2 == b // 2 else "SYS" for b in range(8)] for a in range(8)])


@pytest.mark.parametrize(
    ("free", "best"),
    [
        ((0b00000011, 0b00000111), "n1"),  # the odd one, and the pair stays whole
        ((0b00010101, 0b00001111), "n0"),  # odd ones alone, before a pair is broken
        ((0b00000001, 0b11111111), "n0"),  # the last one
        ((0b00000011, 0b11111111), "n0"),  # a pair is broken either way: the fuller node
    ],
)
def test_a_gpu_is_taken_where_that_breaks_no_linked_pair(free, best):
    machines = [make_machine({GPU: 8}, node=f"n{i}", exact=True, policy=NONE, links={GPU: PAIRS}) for i in range(2)]
    for i, mask in enumerate(free):
        left = msgspec.structs.replace(machines[i].state, free=((mask.bit_count(),),), devices=(mask,))
        machines[i] = msgspec.structs.replace(machines[i], state=left)
    state = state_of(*machines)
    assert nodes_of(ask(state, pods_of(make_shape({GPU: 1})))) == {best: 1}


def test_pieces_are_cliques_and_do_not_matter_where_all_are_alike():
    assert [pieces(PAIRS, free) for free in (0, 0b1, 0b11, 0b111, 0b10101, 0b11111111)] == [0, 1, 1, 2, 3, 4]
    assert pieces(switched(8, "NV12"), 0b111) == 0
    assert pieces(switched(8, "SYS"), 0b111) == 0


@pytest.mark.parametrize(
    ("score", "best"),
    [
        (ZoneScore.LEAST_NUMA_NODES, "n1"),  # no matter: the fullest node
        (ZoneScore.LEAST_ALLOCATED, "n2"),
        (ZoneScore.MOST_ALLOCATED, "n0"),
        (ZoneScore.BALANCED_ALLOCATION, "n3"),
    ],
)
def test_zones_are_filled_as_the_score_says_before_nodes_are(score, best):
    """The pod goes to zone 0 of each node, where other shares are in use; the nodes take 5, 2, 4 and 3 such pods."""
    used = [{"cpu": 6, GPU: 6}, {"cpu": 4, GPU: 1}, {}, {"cpu": 2, GPU: 3}]
    second = {GPU: 8, "cpu": 8}, {GPU: 0, "cpu": 0}
    machines = [make_machine({GPU: 8, "cpu": 8}, second[i > 0], node=f"n{i}") for i in range(4)]
    state = state_of(*machines, numa_score=score)
    for i, amounts in enumerate(used):
        if amounts:
            state.set_pod(pod_on(f"p{i}", make_shape(amounts), at((0, amounts)), f"n{i}"))
    assert nodes_of(ask(state, pods_of(make_shape({GPU: 1, "cpu": 2})))) == {best: 1}


# -- domains and several nodes ------------------------------------------------------------------------------------


def test_of_domains_with_equally_many_nodes_the_aligned_one_comes_before_the_tight_one():
    rack_of = {f"n{i}": f"r{i // 2:02}" for i in range(60)}
    used = [True] * 60
    used[50] = used[51] = False
    state = halves(*used, rack_of=rack_of)
    assert nodes_of(ask(state, pods_of(PAIR))) in ({"n50": 1}, {"n51": 1})
    assert nodes_of(ask(state, pods_of(PAIR, 4, Policy.REQUIRED, RACK))) == {"n50": 4}


def test_as_many_of_the_nodes_that_are_needed_align_as_can():
    """Nodes of 10 GPUs in zones of 2, and of 8 in zones of 4: both take two pods of four, the latter align them."""
    machines = [
        make_machine(*([{GPU: 4}] * 2 if i > 2 else [{GPU: 2}] * 5), node=f"n{i}", policy=BEST_EFFORT) for i in range(5)
    ]
    state = state_of(*machines)
    state.set_pod(pod_on("p", make_shape({"cpu": 1}), None, "n3"))
    assert nodes_of(ask(state, pods_of(make_shape({GPU: 4}), 2))) == {"n3": 2}
    found = nodes_of(ask(state, pods_of(make_shape({GPU: 4}), 5)))
    assert found["n3"] == found["n4"] == 2
    assert len(found) == 3


def test_the_nodes_that_align_are_taken_though_others_take_more():
    """Five pods of two GPUs: one node takes four split, two aligned ones take three and two."""
    sizes = [[{GPU: 1}] * 8, [{GPU: 2}] * 3, [{GPU: 2}] * 2, [{GPU: 1}] * 2]
    machines = [make_machine(*zones, node=f"n{i}", policy=BEST_EFFORT) for i, zones in enumerate(sizes)]
    assert nodes_of(ask(state_of(*machines), pods_of(PAIR, 5))) == {"n1": 3, "n2": 2}


def test_all_pods_of_a_node_count_and_not_the_first_alone():
    """Both take four pods: on the first node, where a GPU of two zones is taken, one of them would come out split."""
    machines = [make_machine(*[{GPU: zone}] * 2, node=f"n{i}", policy=BEST_EFFORT) for i, zone in enumerate((5, 6))]
    state = state_of(*machines)
    state.set_pod(pod_on("p", PAIR, at((0, {GPU: 1}), (1, {GPU: 1})), "n0"))
    state.set_pod(pod_on("q", make_shape({GPU: 2}), at((0, {GPU: 1}), (1, {GPU: 1})), "n1"))
    assert nodes_of(ask(state, pods_of(PAIR, 4))) == {"n0": 4}
    state.set_pod(pod_on("p", PAIR, at((0, {GPU: 2})), "n0"))
    for policy in (Policy.REQUIRED, Policy.UNCONSTRAINED):
        assert nodes_of(ask(state, pods_of(PAIR, 4, policy))) == {"n1": 4}
        assert nodes_of(ask(state, pods_of(PAIR, 3, policy))) == {"n0": 3}


def test_where_a_pod_must_be_split_the_others_of_its_node_are_not_forgotten():
    """Six pods on two nodes: of 5 + 3 and 6 + 2 free GPUs, the first splits one pod of four."""
    machines = [make_machine({GPU: 6}, {GPU: 6}, node=f"n{i}", policy=BEST_EFFORT) for i in range(3)]
    state = state_of(*machines)
    for i, left in enumerate(((5, 3), (6, 2), (4, 4))):
        taken = [(zone, {GPU: 6 - free}) for zone, free in enumerate(left) if free < 6]
        state.set_pod(pod_on(f"p{i}", make_shape({GPU: 4}), at(*taken), f"n{i}"))
    assert nodes_of(ask(state, pods_of(PAIR, 8))).keys() == {"n1", "n2"}
    assert nodes_of(ask(state, pods_of(PAIR, 12))) == {"n0": 4, "n1": 4, "n2": 4}


def test_more_pods_are_put_where_they_are_aligned():
    state = halves(False, True, False)
    state.reserve("w", ask(state, pods_of(PAIR, 4)).assignments)
    assert nodes_of(state.assignments("w")["main"]) == {"n0": 4}
    assert nodes_of(extend(state, "w", pods_of(PAIR, 5), 1)) == {"n0": 4, "n2": 1}


@pytest.mark.parametrize(("level", "slices_of"), [(RACK, HOST), (RACK, RACK), (HOST, HOST)])
def test_slices_are_aligned(level, slices_of):
    state = halves(True, False, True, rack_of={"n0": "r1", "n1": "r1", "n2": "r1"})
    topology = TopologyRequest(policy=Policy.REQUIRED, level=level, slices=(SliceLayer(level=slices_of, size=2),))
    pod_set = msgspec.structs.replace(pods_of(PAIR, 2), topology=topology)
    assert nodes_of(ask(state, pod_set)) == {"n1": 2}


def test_pods_that_keep_apart_are_aligned():
    state = halves(True, True, False, False)
    pod_set = msgspec.structs.replace(
        pods_of(PAIR, 2), labels={"app": "a"}, anti_affinity=(PodTerm(topology_key=HOST, selector=()),)
    )
    assert nodes_of(ask(state, pod_set)) == {"n2": 1, "n3": 1}


def test_pod_sets_of_a_group_are_aligned():
    state = halves(True, False, rack_of={"n0": "r1", "n1": "r1"})
    leader, workers = pods_of(PAIR, 1, name="leader", group="g"), pods_of(PAIR, 2, name="workers", group="g")
    for part in ask(state, leader, workers).assignments:
        assert nodes_of(part).keys() == {"n1"}


# -- what it may cost ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("over", "node"), [(Over.NEVER, "n0"), (Over.USED_NODES, "n0"), (Over.USED_DOMAINS, "n2"), (Over.ALWAYS, "n2")]
)
def test_an_idle_node_of_a_used_domain_is_given_up_where_the_setting_says_so(over, node):
    state = halves(True, True, False, alignment_over_packing=over)
    assert nodes_of(ask(state, pods_of(PAIR))) == {node: 1}


@pytest.mark.parametrize(
    ("over", "node"), [(Over.NEVER, "n0"), (Over.USED_NODES, "n0"), (Over.USED_DOMAINS, "n0"), (Over.ALWAYS, "n2")]
)
def test_an_idle_domain_is_given_up_where_the_setting_says_so(over, node):
    rack_of = {"n0": "r1", "n1": "r1", "n2": "r2", "n3": "r2"}
    state = halves(True, True, False, False, rack_of=rack_of, alignment_over_packing=over)
    assert nodes_of(ask(state, pods_of(PAIR, 1, Policy.PREFERRED))) == {node: 1}


@pytest.mark.parametrize("over", [Over.USED_NODES, Over.USED_DOMAINS, Over.ALWAYS])
def test_a_used_node_that_aligns_is_taken_whatever_the_setting(over):
    """The third node is not as full as the first two, and not idle."""
    state = halves(True, True, False, False, alignment_over_packing=over)
    state.set_pod(pod_on("p", make_shape({GPU: 1}), on_zone(0, gpu=1), "n2"))
    assert nodes_of(ask(state, pods_of(PAIR))) == {"n2": 1}


def test_of_idle_nodes_the_better_one_is_taken_though_no_more_may_be():
    machines = [
        make_machine({GPU: 4}, node=f"n{i}", exact=True, policy=RESTRICTED, links={GPU: switched(4, kind)})
        for i, kind in enumerate(("NV6", "NV12", "NV18", "NV12"))
    ]
    for over in (Over.USED_NODES, Over.USED_DOMAINS):
        state = state_of(*machines, alignment_over_packing=over)
        assert nodes_of(ask(state, pods_of(make_shape({GPU: 4}, gpu_link="prefer")))) == {"n2": 1}


# -- against every choice -----------------------------------------------------------------------------------------


class Numbers:
    """A preference by one number a leaf; below ``several``, so many of its pods come out in one zone each."""

    several = 2

    def __init__(self, tree, numbers, whole=None):
        self.tree = tree
        self.ranks = np.array(numbers)
        self.whole = whole

    def in_one_zone(self, leaf):
        return None if self.whole is None else np.minimum(leaf, self.whole)

    def choose_leaves(self, leaves, count):
        return np.sort(np.argsort(self.ranks[leaves], kind="stable")[:count])

    def rate_domains(self, rank, domains):
        return np.zeros(len(domains), np.int64)


rooms = st.lists(st.integers(0, 4), min_size=1, max_size=5)
trees = st.dictionaries(st.sampled_from(["b1/r1", "b1/r2", "b2/r1", "b2/r2"]), rooms, min_size=1)


@settings(max_examples=150, deadline=None)
@given(trees, st.integers(1, 16), st.sampled_from(list(Policy)), st.sampled_from([BLOCK, RACK, HOST]), st.data())
def test_no_choice_of_as_many_domains_and_nodes_has_a_better_worst_node(tree, count, policy, level, data):
    state = racks(tree)
    fit = Fit.count_pod_set(state, "tas", make_pod_set(count, policy, level))
    plain = fit.pick()
    numbers = data.draw(st.lists(st.integers(0, 3), min_size=fit.tree.size, max_size=fit.tree.size))
    fit.prefer, fit.work = Numbers(fit.tree, numbers), budget(fit.tree)
    fit.alignment = Alignment(fit.tree, state.cluster.table, fit.prefer, fit.pod_set.requests, Over.ALWAYS)
    found = fit.pick()
    assert (plain is None) is (found is None)
    if plain is None:
        return
    fits = fit.known.counts.leaf
    assert found.cost == plain.cost
    assert int(found.amounts.sum()) == count
    assert (found.amounts > 0).all()
    assert (found.amounts <= fits[found.leaves]).all()
    assert found.leaves.tolist() == sorted(set(found.leaves.tolist()))
    worst = max(numbers[leaf] for leaf in found.leaves.tolist())
    better = [leaf for leaf in range(fit.tree.size) if fits[leaf] and numbers[leaf] < worst]
    for leaves in combinations(better, len(found.leaves)):
        assert int(fits[list(leaves)].sum()) < count or not as_good(fit, leaves, plain.cost)


@settings(max_examples=150, deadline=None)
@given(trees, st.integers(1, 16), st.sampled_from([Policy.REQUIRED, Policy.UNCONSTRAINED]), st.data())
def test_where_any_choice_of_as_many_nodes_splits_no_pod_none_is_split(tree, count, policy, data):
    state = racks(tree)
    fit = Fit.count_pod_set(state, "tas", make_pod_set(count, policy, RACK))
    plain, size = fit.pick(), fit.tree.size
    if plain is None:
        return
    numbers, whole = (data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size)) for _ in range(2))
    whole = np.minimum(np.maximum(whole, 1), fit.known.counts.leaf)  # one zone suffices: at least one pod is whole
    fit.prefer, fit.work = Numbers(fit.tree, numbers, whole), budget(fit.tree)
    fit.alignment = Alignment(fit.tree, state.cluster.table, fit.prefer, fit.pod_set.requests, Over.ALWAYS)
    found = fit.pick()
    assert found.cost == plain.cost
    assert int(found.amounts.sum()) == count
    assert (found.amounts <= fit.known.counts.leaf[found.leaves]).all()
    single = [leaf for leaf in range(size) if whole[leaf] and numbers[leaf] < Numbers.several]
    for leaves in combinations(single, len(found.leaves)):
        if int(whole[list(leaves)].sum()) >= count and as_good(fit, leaves, plain.cost):
            assert (found.amounts <= whole[found.leaves]).all()
            assert all(leaf in single for leaf in found.leaves.tolist())
            return


def as_good(fit, leaves, cost):
    """Whether a choice of leaves is in one domain of the required level, and uses no more domains than ``cost``."""
    used = [len({path[: rank + 1] for path in map(fit.tree.paths.__getitem__, leaves)}) for rank in range(3)]
    if fit.pod_set.topology.policy is Policy.UNCONSTRAINED:
        return True
    if fit.pod_set.topology.policy is Policy.PREFERRED:
        return False  # which domain holds them all is not known here
    return used[fit.rank] == 1 and tuple(used[-len(cost) :]) <= cost


@pytest.mark.parametrize("score", list(ZoneScore))
@pytest.mark.parametrize("zones", [15, 16, 20])
def test_a_pod_over_many_zones_comes_before_a_node_that_does_not_take_it(zones, score):
    layout = Layout(
        zones=tuple(Zone(id=zone) for zone in range(zones)),
        resources=(GPU,),
        capacity=((1,),) * zones,
        allocatable=((1,),) * zones,
        kubelet=Kubelet(),
        devices=(tuple(DeviceLayout(zones=1 << zone) for zone in range(zones)),),
        exact=True,
    )
    state = State(free=((1,),) * zones, devices=((1 << zones) - 1,))
    shape = PodShape(containers=(Container(name="c", limits=((GPU, zones),)),), qos=Qos.BURSTABLE)
    found = np.array([exactly(layout, state, shape, score), WORST], np.int64)
    assert half_zones(found).tolist() == [30, WORST_ZONES]
    more = PodShape(containers=(Container(name="c", limits=((GPU, zones + 1),)),), qos=Qos.BURSTABLE)
    assert exactly(layout, state, more, score) == WORST

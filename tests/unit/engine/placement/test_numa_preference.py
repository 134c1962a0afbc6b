"""Which of equal nodes and domains is taken, by what is inside; and that nothing else changes by it."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engine_factories import BLOCK, GPU, HOST, RACK, ask, make_node, make_pod_set, nodes_of, racks
from support.numa_factories import (
    BEST_EFFORT,
    NONE,
    RESTRICTED,
    SINGLE,
    at,
    make_machine,
    make_shape,
    node_for,
    on_zone,
    pod_on,
    pods_of,
    state_of,
)

from engine.kubelet.devices.links import from_words
from engine.kubelet.devices.xpu import XpuBoard, board
from engine.kubelet.machine import Qos, TopologyPolicy
from engine.model import Policy
from engine.numa.score import AlignmentOverPacking, ZoneScore
from engine.placement.fit import Fit, budget
from engine.placement.place import extend
from engine.reasons import Reason

PAIR = make_shape({GPU: 2})
SPLIT = at((0, {GPU: 1}), (1, {GPU: 1}))
TOGETHER = at((0, {GPU: 2}))
EVERYWHERE = [(Policy.REQUIRED, RACK), (Policy.REQUIRED, HOST), (Policy.PREFERRED, RACK), (Policy.UNCONSTRAINED, None)]


def two_of_four_used(*used, policy=BEST_EFFORT, racks=None, **more):
    """A node of two zones with two GPUs each, for each placement of a pod that runs there; None: nothing runs."""
    machines = [make_machine({GPU: 2}, {GPU: 2}, node=f"n{i}", policy=policy) for i in range(len(used))]
    state = state_of(*machines, rack_of=racks, **more)
    for i, placement in enumerate(used):
        if placement is not None:
            state.set_pod(pod_on(f"p{i}", PAIR, placement, f"n{i}"))
    return state


@pytest.mark.parametrize(("policy", "level"), EVERYWHERE)
@pytest.mark.parametrize("kubelet", [BEST_EFFORT, NONE])
def test_a_node_where_the_pod_comes_out_aligned_is_taken_first(policy, level, kubelet):
    state = two_of_four_used(SPLIT, TOGETHER, SPLIT, policy=kubelet)
    assert nodes_of(ask(state, pods_of(PAIR, 1, policy, level))) == {"n1": 1}


@pytest.mark.parametrize(("policy", "level"), [(Policy.REQUIRED, RACK), (Policy.UNCONSTRAINED, None)])
def test_several_aligned_nodes_are_taken_before_others(policy, level):
    state = two_of_four_used(SPLIT, TOGETHER, SPLIT, TOGETHER)
    assert nodes_of(ask(state, pods_of(PAIR, 2, policy, level))) == {"n1": 1, "n3": 1}
    assert nodes_of(ask(state, pods_of(PAIR, 3, policy, level))) == {"n0": 1, "n1": 1, "n3": 1}


def test_of_equal_racks_the_one_with_aligned_nodes_is_taken():
    used = [SPLIT, SPLIT, SPLIT, TOGETHER, TOGETHER, SPLIT]
    state = two_of_four_used(*used, racks={f"n{i}": f"r{i // 2}" for i in range(6)})
    assert nodes_of(ask(state, pods_of(PAIR, 1))) == {"n3": 1}
    assert nodes_of(ask(state, pods_of(PAIR, 2, Policy.PREFERRED))) in ({"n2": 1, "n3": 1}, {"n4": 1, "n5": 1})


def test_many_equal_nodes_are_looked_through():
    used = [SPLIT] * 60 + [TOGETHER] + [SPLIT] * 9
    state = two_of_four_used(*used)
    assert nodes_of(ask(state, pods_of(PAIR))) == {"n60": 1}


@pytest.mark.parametrize(("over", "node"), [(AlignmentOverPacking.NEVER, "n1"), (AlignmentOverPacking.ALWAYS, "n0")])
def test_the_tightest_node_comes_before_the_aligned_one_only_where_the_setting_says_so(over, node):
    state = two_of_four_used(None, SPLIT, alignment_over_packing=over)
    assert nodes_of(ask(state, pods_of(PAIR))) == {node: 1}


def test_fewer_nodes_come_before_aligned_ones():
    state = two_of_four_used(TOGETHER, TOGETHER, None)
    assert nodes_of(ask(state, pods_of(PAIR, 2))) == {"n2": 2}


def test_extending_prefers_too():
    state = two_of_four_used(None, SPLIT, TOGETHER)
    state.reserve("w", ask(state, pods_of(PAIR, 2)).assignments)
    assert nodes_of(state.assignments("w")["main"]) == {"n0": 2}
    assert nodes_of(extend(state, "w", pods_of(PAIR, 3), 1)) == {"n0": 2, "n2": 1}


def test_a_node_whose_inside_is_not_known_comes_after_aligned_and_before_split_ones():
    state = two_of_four_used(SPLIT, None, TOGETHER)
    state.remove_machine("n1")
    state.set_pod(pod_on("p1", PAIR, None, "n1"))
    assert nodes_of(ask(state, pods_of(PAIR))) == {"n2": 1}
    state.remove_node("n2")
    assert nodes_of(ask(state, pods_of(PAIR))) == {"n1": 1}


def test_close_zones_come_before_distant_ones():
    far, near = ((10, 32), (32, 10)), ((10, 12), (12, 10))
    zones = ({GPU: 2, "cpu": 4}, {GPU: 2, "cpu": 4})
    machines = [
        make_machine(*zones, node=f"n{i}", policy=RESTRICTED, distances=distances)
        for i, distances in enumerate((far, near, far))
    ]
    state = state_of(*machines)
    assert nodes_of(ask(state, pods_of(make_shape({GPU: 4, "cpu": 6})))) == {"n1": 1}
    assert nodes_of(ask(state, pods_of(make_shape({GPU: 2, "cpu": 2})))) == {"n0": 1}


@pytest.mark.parametrize(
    ("score", "best"),
    [
        (ZoneScore.LEAST_NUMA_NODES, "n0"),
        (ZoneScore.LEAST_ALLOCATED, "n2"),
        (ZoneScore.MOST_ALLOCATED, "n1"),
        (ZoneScore.BALANCED_ALLOCATION, "n0"),
    ],
)
def test_zones_are_filled_as_the_score_says(score, best):
    """Each node has room for one more pod, which has to go to zone 0; the CPUs that are used there differ."""
    machines = [make_machine({GPU: 4, "cpu": 8}, {GPU: 0, "cpu": 8}, node=f"n{i}") for i in range(3)]
    state = state_of(*machines, numa_score=score)
    for i, cpus in enumerate((2, 6, 0)):
        state.set_node(node_for(machines[i], pods=2))
        state.set_pod(pod_on(f"p{i}", make_shape({GPU: 1, "cpu": 6}), at((0, {GPU: 1, "cpu": cpus})), f"n{i}"))
    assert nodes_of(ask(state, pods_of(make_shape({GPU: 1, "cpu": 2})))) == {best: 1}


@pytest.mark.parametrize("kubelet", [BEST_EFFORT, NONE])
@pytest.mark.parametrize("qos", [Qos.GUARANTEED, Qos.BURSTABLE])
def test_a_workload_with_its_own_wish_lands_only_where_it_holds(kubelet, qos):
    state = two_of_four_used(SPLIT, TOGETHER, SPLIT, policy=kubelet)
    wish = make_shape({GPU: 2}, qos=qos, wish=SINGLE)
    assert nodes_of(ask(state, pods_of(wish))) == {"n1": 1}
    refusal = ask(state, pods_of(wish, 2))
    # Where nothing is aligned, the GPUs of an empty node may come from anywhere: there the wish never holds.
    assert refusal.reason is (Reason.NUMA_ALIGNMENT if kubelet is BEST_EFFORT else Reason.NEVER_FITS)
    assert "NumaPolicy" in refusal.message
    assert nodes_of(ask(state, pods_of(make_shape({GPU: 2}, qos=qos), 2))).keys() >= {"n1"}


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("policy", ["single-numa-node", "restricted", "socket"])
def test_a_node_that_publishes_nothing_takes_no_pod_with_a_wish_for_its_zones(known, policy):
    seen = make_machine({GPU: 4}, node="n1")
    state = state_of(*([seen] if known else []))
    state.set_node(make_node("n0", rack="r1", gpu=4))
    shape = make_shape({GPU: 2}, wish=TopologyPolicy(policy))
    refusal = ask(state, pods_of(shape, 3 if known else 2))
    unknown = f"n0: NumaPolicy: asks for {policy}, and the NUMA zones of this node are not known"
    nobody = f"no node publishes its NUMA zones, which numa-policy: {policy} needs; `topogate install --agent` "
    assert refusal.reason is (Reason.NEVER_FITS if known else Reason.ZONES_UNKNOWN)
    assert (unknown if known else nobody) in refusal.message
    assert "`topogate install --agent` has nodes publish it" in refusal.message
    for lenient in (TopologyPolicy.NONE, TopologyPolicy.BEST_EFFORT):
        assert nodes_of(ask(state, pods_of(make_shape({GPU: 2}, wish=lenient), 3 if known else 2)))
    if known:
        assert nodes_of(ask(state, pods_of(shape, 2))) == {"n1": 2}
        state.remove_machine("n1")
        assert ask(state, pods_of(shape, 1)).reason is Reason.ZONES_UNKNOWN
        state.set_machine(seen)
        assert nodes_of(ask(state, pods_of(shape, 2))) == {"n1": 2}


def test_a_wish_about_what_no_kubelet_pins_for_the_pod_goes_anywhere():
    state = state_of()
    state.set_node(make_node("n0", rack="r1", gpu=4))
    floats = make_shape({"cpu": 2}, qos=Qos.BURSTABLE, wish=SINGLE)
    assert nodes_of(ask(state, pods_of(floats))) == {"n0": 1}
    named = make_shape({"cpu": 2, GPU: 1}, wish=SINGLE, wish_resources=("example.com/nic",))
    assert nodes_of(ask(state, pods_of(named))) == {"n0": 1}
    named = make_shape({"cpu": 2, GPU: 1}, wish=SINGLE, wish_resources=("example.com/nic", GPU))
    assert ask(state, pods_of(named)).reason is Reason.ZONES_UNKNOWN


def test_linked_devices_are_kept_together():
    """Both nodes have three GPUs left; only on the second, two of them that are linked stay free."""
    linked = [["NV12" if one // 2 == other // 2 else "SYS" for other in range(8)] for one in range(8)]
    for at_self in range(8):
        linked[at_self][at_self] = "X"
    links = {GPU: from_words(linked, zones=[0] * 8)}
    machines = [make_machine({GPU: 8}, node=f"n{i}", exact=True, links=links) for i in range(2)]
    left_over = (0b00010101, 0b00000111)
    for i, free in enumerate(left_over):
        state = msgspec.structs.replace(machines[i].state, free=((3,),), devices=(free,))
        machines[i] = msgspec.structs.replace(machines[i], state=state)
    assert nodes_of(ask(state_of(*machines), pods_of(make_shape({GPU: 1})))) == {"n1": 1}
    machines[0] = msgspec.structs.replace(machines[0], state=machines[1].state)
    assert nodes_of(ask(state_of(*machines), pods_of(make_shape({GPU: 1})))) == {"n0": 1}


def test_single_zone_nodes_in_tree_order_where_nothing_differs():
    machines = [make_machine({GPU: 2}, {GPU: 2}, node=f"n{i}", policy=SINGLE) for i in range(3)]
    state = state_of(*machines)
    assert nodes_of(ask(state, pods_of(PAIR))) == {"n0": 1}
    state.set_node(node_for(machines[0], "r9"))
    assert nodes_of(ask(state, pods_of(PAIR))) == {"n0": 1}


def switched(size, kind, generation=0):
    return from_words(
        [["X" if a == b else kind for b in range(size)] for a in range(size)], zones=[1] * size, generation=generation
    )


@pytest.mark.parametrize("link", ["prefer", "require"])
def test_a_pod_that_asks_for_links_gets_the_machine_where_they_are_fast(link):
    graphs = [switched(4, "NV12", 3), switched(4, "NV18", 4), switched(4, "NV18", 5), switched(4, "NV18", 4)]
    machines = [
        make_machine({GPU: 4}, node=f"n{i}", exact=True, policy=RESTRICTED, links={GPU: graph})
        for i, graph in enumerate(graphs)
    ]
    shape = make_shape({GPU: 2}, gpu_link=link)
    assert nodes_of(ask(state_of(*machines), pods_of(shape))) == {"n2": 1}
    assert nodes_of(ask(state_of(*machines), pods_of(make_shape({GPU: 2})))) == {"n0": 1}
    # The same machines again, where the fast one is full.
    state = state_of(*machines)
    state.set_pod(pod_on("other", make_shape({GPU: 4}), on_zone(0, gpu=4), "n2"))
    assert nodes_of(ask(state, pods_of(shape))) == {"n1": 1}


@pytest.mark.parametrize("exact", [True, False])
def test_xpus_go_where_the_fewest_tasks_still_fill_the_node(exact):
    xpu = "kunlunxin.com/xpu"
    rules = board([1] * 4 + [2] * 4) if exact else XpuBoard()

    def machine(i):
        return make_machine({xpu: 4}, {xpu: 4}, node=f"n{i}", exact=exact, policy=NONE, links={xpu: rules})

    # Six cards are used on both: 4 + 2 leaves room for a pair, 3 + 3 for two singles.
    state = state_of(machine(0), machine(1))
    taken = [[(1, 4), (0, 2)], [(0, 3), (1, 3)]]
    for node, parts in enumerate(taken):
        for zone, count in parts:
            shape = make_shape({xpu: count})
            state.set_pod(pod_on(f"p{node}{zone}", shape, at((zone, {xpu: count})), f"n{node}"))
    assert nodes_of(ask(state, pods_of(make_shape({xpu: 1})))) == {"n1": 1}
    assert nodes_of(ask(state, pods_of(make_shape({xpu: 2})))) == {"n0": 1}


class Numbers:
    """A preference by one number a leaf."""

    def __init__(self, tree, numbers):
        self.tree = tree
        self.numbers = np.array(numbers)

    def choose_leaves(self, leaves, count):
        return np.sort(np.argsort(self.numbers[leaves], kind="stable")[:count])

    def rate_domains(self, rank, domains):
        bounds = self.tree.bounds[rank]
        return np.array([self.numbers[bounds[at] : bounds[at + 1]].sum() for at in domains.tolist()])


rooms = st.lists(st.integers(0, 4), min_size=1, max_size=6)
trees = st.dictionaries(st.sampled_from(["b1/r1", "b1/r2", "b1/r3", "b2/r1", "b2/r2"]), rooms, min_size=1)


@settings(max_examples=150, deadline=None)
@given(trees, st.integers(1, 25), st.sampled_from(list(Policy)), st.sampled_from([BLOCK, RACK, HOST]), st.data())
def test_a_preference_costs_no_domain_and_takes_the_best_of_equal_nodes(tree, count, policy, level, data):
    state = racks(tree)
    fit = Fit.count_pod_set(state, "tas", make_pod_set(count, policy, level))
    plain = fit.pick()
    numbers = data.draw(st.lists(st.integers(0, 3), min_size=fit.tree.size, max_size=fit.tree.size))
    fit.prefer, fit.work = Numbers(fit.tree, numbers), budget(fit.tree)
    preferred = fit.pick()
    assert (plain is None) is (preferred is None)
    if plain is None:
        return
    fits = fit.known.counts.leaf
    assert preferred.cost == plain.cost
    assert int(preferred.amounts.sum()) == count
    assert (preferred.amounts <= fits[preferred.leaves]).all()
    racks_used = {fit.tree.paths[leaf][:2] for leaf in preferred.leaves.tolist()}
    if len(racks_used) > 1 or policy is Policy.UNCONSTRAINED:
        return
    chosen = set(preferred.leaves.tolist())
    for used in chosen:
        for other in set(range(fit.tree.size)) - chosen:
            if fit.tree.paths[other][:2] in racks_used and fits[other] == fits[used]:
                assert numbers[used] <= numbers[other]


def test_a_pod_that_requires_links_goes_to_no_node_that_is_silent_about_them():
    linked = make_machine({GPU: 4}, node="n1", exact=True, links={GPU: switched(4, "NV12")})
    silent = [
        make_machine({GPU: 4}, node="n0"),
        make_machine({"cpu": 4}, node="n0"),
        make_machine({GPU: 4}, node="n0", exact=True),
    ]
    shape = make_shape({GPU: 2}, gpu_link="require")
    for machine in silent:
        state = state_of(machine, linked)
        state.set_node(make_node("n0", rack="r1", gpu=4))
        assert nodes_of(ask(state, pods_of(shape))) == {"n1": 1}
        refusal = ask(state, pods_of(shape, 3))
        assert refusal.reason is Reason.NUMA_ALIGNMENT or refusal.reason is Reason.NEVER_FITS
        assert "needs NVLinks between its nvidia.com/gpu, and none are known on this node" in refusal.message
        assert nodes_of(ask(state, pods_of(make_shape({GPU: 1}, gpu_link="require"), 8, Policy.UNCONSTRAINED)))


@pytest.mark.parametrize("known", [True, False])
def test_a_node_that_publishes_nothing_takes_no_pod_that_requires_links(known):
    linked = make_machine({GPU: 4}, node="n1", exact=True, links={GPU: switched(4, "NV12")})
    state = state_of(*([linked] if known else []))
    state.set_node(make_node("n0", rack="r1", gpu=4))
    shape = make_shape({GPU: 2}, gpu_link="require")
    refusal = ask(state, pods_of(shape, 3 if known else 2))
    unknown = "needs NVLinks between its nvidia.com/gpu, and none are known on this node"
    nobody = "no node publishes how its GPUs are linked, which gpu-link: require needs"
    assert refusal.reason is (Reason.NEVER_FITS if known else Reason.ZONES_UNKNOWN)
    assert (unknown if known else nobody) in refusal.message
    assert nodes_of(ask(state, pods_of(make_shape({GPU: 2}, gpu_link="prefer"))))
    if known:
        assert nodes_of(ask(state, pods_of(shape, 2))) == {"n1": 2}
        state.remove_machine("n1")
        assert ask(state, pods_of(shape, 1)).reason is Reason.ZONES_UNKNOWN
        state.set_machine(linked)
        assert nodes_of(ask(state, pods_of(shape, 2))) == {"n1": 2}

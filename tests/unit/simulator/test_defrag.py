"""Plans to make domains whole: small ones by hand, tiny ones against every way to put the workloads."""

import random
from itertools import product

import pytest
from sim_factories import GPU, RACK, make_cluster, make_job

from engine.cluster.assignment import Assignment, Slice
from engine.cluster.state import ClusterState
from engine.model import HOSTNAME_LABEL, Pod
from simulator.defrag import Movable, defrag


def make_state(racks=2, hosts=2, gpus=8):
    state, cluster = ClusterState(), make_cluster(racks, hosts, gpus=gpus)
    for flavor in cluster.flavors:
        state.set_flavor(flavor)
    for node in cluster.nodes:
        state.set_node(node)
    return state


def put(state, name, nodes, **how):
    """A workload whose pods are on these nodes, one each (a node may be there more than once)."""
    (pod_set,) = make_job(name, pods=len(nodes), **how).pod_sets
    slices = [Slice((node[:2], node), nodes.count(node), ((node, nodes.count(node)),)) for node in dict.fromkeys(nodes)]
    state.reserve(
        name,
        [
            Assignment(
                pod_set="main",
                flavor="default",
                levels=(RACK, HOSTNAME_LABEL),
                requests=pod_set.requests,
                slices=slices,
                source=pod_set,
            )
        ],
    )
    keys = []
    for number, node in enumerate(nodes):
        keys.append(f"{name}-{number}")
        state.set_pod(Pod(key=keys[-1], node=node, requests=pod_set.requests, claim=(name, "main")))
    return Movable(pod_sets=(pod_set,), flavors=("default",), pods=tuple(keys))


def snapshot(state):
    return (
        {node: state.free_on_node(node) for node in state.nodes},
        {key: dict(parts) for key, parts in state.workloads.items()},
        dict(state.pods),
    )


def check(state, plan, movable):
    """Carried out step by step nothing is over-full, every request holds, and what is promised is freed."""
    begin = state.begin()
    for step in plan.steps:
        for move in step.moves:
            for pod in movable[move.workload].pods:
                state.remove_pod(pod)
            state.release_workload(move.workload)
        for move in step.moves:
            requests = movable[move.workload].pod_sets[0].requests
            for node, count in move.after.items():
                for number in range(count):
                    key = f"{move.workload}-{node}-{number}"
                    state.set_pod(Pod(key=key, node=node, requests=requests, claim=(move.workload, "main")))
        assert all(amount >= 0 for node in state.nodes for amount in state.free_on_node(node).values())
        used = {state.nodes[pod.node].labels[RACK] for pod in state.pods.values()}
        assert not {path[0] for path in step.freed} & used
        for move in step.moves:
            assert sum(move.after.values()) == move.pods == sum(move.before.values())
            topology = movable[move.workload].pod_sets[0].topology
            if topology.policy == "Required":
                assert len({state.nodes[node].labels[topology.level] for node in move.after}) == 1
    state.rollback(begin)


def test_one_move_frees_a_rack():
    state = make_state()
    movable = {"a": put(state, "a", ["r0h0"], gpus=4), "b": put(state, "b", ["r1h1"], gpus=4)}
    before = snapshot(state)
    plan = defrag(state, "default", RACK, movable)
    assert snapshot(state) == before
    assert plan.whole == (0, 1)
    (step,) = plan.steps
    assert (step.pods, len(step.moves), len(step.freed)) == (1, 1, 1)
    check(state, plan, movable)


def test_fewest_pods_are_moved_for_a_rack():
    state = make_state(3)
    movable = {
        "gang": put(state, "gang", ["r0h0", "r0h1"], gpus=2),
        "single": put(state, "single", ["r1h0"], gpus=2),
        "full": put(state, "full", ["r2h0"], gpus=4),
    }
    plan = defrag(state, "default", RACK, movable)
    assert plan.whole == (0, 2)
    assert sum(step.pods for step in plan.steps) == 2
    assert [move.workload for step in plan.steps for move in step.moves].count("gang") == 0
    check(state, plan, movable)


def test_what_must_stay_stays():
    state = make_state()
    movable = {"a": put(state, "a", ["r0h0"], gpus=4), "b": put(state, "b", ["r1h1"], gpus=4)}
    assert defrag(state, "default", RACK, {"b": movable["b"]}).steps[0].moves[0].workload == "b"
    assert defrag(state, "default", RACK, {}).steps == ()
    assert defrag(state, "default", RACK, movable, ["r0h1"]).steps[0].moves[0].workload == "b"
    assert defrag(state, "default", RACK, movable, ["r0h1", "r1h0"]).steps == ()


def test_a_required_rack_is_kept_and_full_ones_move_nowhere():
    state = make_state(3)
    movable = {
        "gang": put(state, "gang", ["r0h0", "r0h1"], gpus=4, required=RACK),
        "x": put(state, "x", ["r1h0", "r1h1"], gpus=4),
        "y": put(state, "y", ["r2h0", "r2h1"], gpus=8),
    }
    plan = defrag(state, "default", RACK, movable)
    assert plan.whole == (0, 1)
    check(state, plan, movable)
    narrow = make_state(2)
    movable = {
        "gang": put(narrow, "gang", ["r0h0", "r0h1"], gpus=4, required=RACK),
        "x": put(narrow, "x", ["r1h0", "r1h0"], gpus=4),
        "z": put(narrow, "z", ["r1h1"], gpus=2),
    }
    # Into rack 0 go x and z, out of it goes nobody: gang fits no rack beside x.
    plan = defrag(narrow, "default", RACK, movable)
    check(narrow, plan, movable)
    assert all(move.workload != "gang" for step in plan.steps for move in step.moves)


def test_several_at_once_where_one_after_the_other_does_not_get_as_far():
    state = make_state(4, 1)
    movable = {
        name: put(state, name, [f"r{at}h0"], gpus=gpus)
        for at, (name, gpus) in enumerate(zip("abcd", (5, 3, 5, 3), strict=True))
    }
    plan = defrag(state, "default", RACK, movable)
    assert plan.whole == (0, 2)
    check(state, plan, movable)


def test_a_level_that_is_not_there():
    with pytest.raises(ValueError, match="no level"):
        defrag(make_state(), "default", "example.com/row", {})


def optimum(state, movable):
    """The most whole racks of all ways to put every workload somewhere, by GPUs alone (all pods are single ones)."""
    nodes = sorted(state.nodes)
    racks = sorted({state.nodes[node].labels[RACK] for node in nodes})
    sizes = [(one.pod_sets[0].requests[GPU], one.pod_sets[0].count) for one in movable.values()]
    flat = [gpus for gpus, count in sizes for _ in range(count)]
    best = 0
    for where in product(nodes, repeat=len(flat)):
        used = dict.fromkeys(nodes, 0)
        for node, gpus in zip(where, flat, strict=True):
            used[node] += gpus
        if max(used.values()) <= 8:
            best = max(best, sum(all(not used[n] for n in nodes if n[:2] == rack) for rack in racks))
    return best


@pytest.mark.parametrize("seed", range(40))
def test_against_every_way_to_put_the_workloads(seed):
    dice = random.Random(seed)
    state = make_state(3, dice.choice((1, 2)))
    movable = {}
    for number in range(dice.randint(2, 4)):
        gpus = dice.choice((1, 2, 3, 4, 5, 6))
        free = [node for node in sorted(state.nodes) if state.free_on_node(node)[GPU] >= gpus]
        if not free:
            continue
        movable[f"w{number}"] = put(state, f"w{number}", [dice.choice(free)], gpus=gpus)
    before = snapshot(state)
    plan = defrag(state, "default", RACK, movable)
    assert snapshot(state) == before
    check(state, plan, movable)
    assert plan.whole[1] == optimum(state, movable)

"""Giving back what several workloads hold in one go is giving it back one by one, and rolls back."""

import random

from support.engine_factories import GPU, RACK, make_node, make_pod_set, racks

from engine.model import Pod
from engine.placement.place import place
from engine.results import WorkloadRequest


def test_the_same_as_one_by_one_and_undone_without_a_trace():
    dice = random.Random(1)
    for _ in range(30):
        state, keys = racks({f"b{i // 2}/r{i}": [8, 8, 8] for i in range(4)}), []
        for number in range(8):
            found = place(state, WorkloadRequest(f"w{number}", (make_pod_set(dice.randint(1, 4), level=RACK),)))
            if hasattr(found, "assignments"):
                state.reserve(f"w{number}", found.assignments)
                keys.append(f"w{number}")
        name = next(iter(state.nodes))
        state.set_pod(Pod(key="ns/p", node=name, requests={GPU: 1}, claim=(keys[0], "main")))
        gone = [*dice.sample(keys, dice.randint(1, len(keys))), "nobody"]
        before = {node: state.free_on_node(node) for node in state.nodes}
        held = {key: state.assignments(key) for key in keys}
        one = state.begin()
        for key in gone:
            state.release_workload(key)
        expected = {node: state.free_on_node(node) for node in state.nodes}
        state.rollback(one)
        other = state.begin()
        state.release_all(gone)
        assert {node: state.free_on_node(node) for node in state.nodes} == expected
        assert not any(state.assignments(key) for key in gone)
        if dice.random() < 0.3:
            state.set_node(make_node("zz-new", "b9", "r9"))
            state.tree("tas")
            state.remove_node("zz-new")
        state.rollback(other)
        assert {node: state.free_on_node(node) for node in state.nodes} == before
        assert {key: state.assignments(key) for key in keys} == held

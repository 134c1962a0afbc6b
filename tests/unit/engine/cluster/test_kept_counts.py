"""Counts that are kept of a shape are what counting anew gives, on a tree where changes are merged and corrected."""

import numpy as np
from support.engine_factories import LEVELS, make_node, make_pod, make_pod_set, make_state

from engine.cluster.assignment import Assignment
from engine.cluster.fit_counts import Counts, Shape, known_shape
from engine.model import Policy

NODES = 8_400
SHAPE = {"requests": {"cpu": 7_000, "memory": 2**33, "nvidia.com/gpu": 1}}


def wide_state():
    return make_state([make_node(f"n{i}", f"b{i // 512}", f"r{i // 16}", gpu=i % 9) for i in range(NODES)])


def scattered(state, dice, count):
    """One pod on each of so many nodes."""
    tree = state.tree("tas")
    leaves = np.sort(dice.choice(tree.size, count, replace=False))
    pod_set = make_pod_set(count, Policy.UNCONSTRAINED, requests={"cpu": 30_000, "nvidia.com/gpu": 1})
    return Assignment.packed(pod_set, tree, leaves, np.ones(count, np.int64), count)


def test_kept_counts_are_fresh_counts_whatever_changed_in_between():
    state, dice = wide_state(), np.random.default_rng(5)
    tree, columns = state.tree("tas"), state.cluster.columns
    pod_set = make_pod_set(1, **SHAPE)
    corrected = 0
    for turn in range(60):
        before = known_shape(columns, tree, pod_set).counts
        for number in range(int(dice.integers(0, 4))):
            key = f"w{dice.integers(0, 6)}"
            if dice.random() < 0.4:
                state.release_workload(key)
            else:
                state.reserve(key, [scattered(state, dice, int(dice.choice([1, 40, 250])))])
            if dice.random() < 0.4:
                state.set_pod(make_pod(f"default/p{turn}-{number}", f"n{dice.integers(0, NODES)}", gpu=2))
        kept = known_shape(columns, tree, pod_set).counts
        corrected += kept is before
        fresh = Counts(tree, Shape.compile_shape(columns.table, tree, pod_set).fit(columns, tree.span))
        assert kept.peak >= fresh.peak
        for rank in range(tree.leaf + 1):
            assert kept.counts_of_rank(rank).tolist() == fresh.counts_of_rank(rank).tolist()
    assert 20 < corrected < 60  # both ways were taken


def test_a_level_as_a_matrix_has_a_row_for_each_domain_and_zeros_at_the_end():
    state = wide_state()
    tree = state.tree("tas")
    counts = known_shape(state.cluster.columns, tree, make_pod_set(1, **SHAPE)).counts
    for rank in range(len(LEVELS) - 1):
        rows = counts.grid(rank)
        assert rows.sum(axis=1).tolist() == counts.counts_of_rank(rank).tolist()
        assert rows.reshape(-1)[: tree.count_domains(rank + 1)].tolist() == counts.counts_of_rank(rank + 1).tolist()

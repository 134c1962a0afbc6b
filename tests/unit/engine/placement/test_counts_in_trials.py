"""Counts that are kept in memory of the tree decide as fresh ones do, whatever a placement asks in between."""

import random

import pytest
from support.engine_factories import BLOCK, GPU, HOST, RACK, ask, make_node, make_pod_set, make_state

from engine.cluster import fit_counts
from engine.cluster.fit_counts import CountedShape, Counts, Shape
from engine.model import LabelRequirement, NodeTerm, Pinned, PodTerm, Policy
from engine.placement import fit as fits
from engine.placement.place import extend
from engine.results import Placement

SEEDS = 300
KEPT = (1, 64)  # shapes that a tree keeps: with one, each question overwrites what the one before it found


def counted_anew(nodes, tree, pod_set):
    """What `known_shape` says, in memory of its own."""
    shape = Shape.compile_shape(nodes.table, tree, pod_set)
    found = tree.lend()
    found[:] = shape.fit(nodes, tree.span)
    return CountedShape(shape, Counts(tree, found, nodes.table.log_end))


def a_cluster(dice):
    nodes = [(block, rack) for block in range(dice.randint(1, 2)) for rack in range(dice.randint(1, 3))]
    nodes = [path for path in nodes for _ in range(dice.randint(1, 3))]
    return make_state(
        [
            make_node(
                f"n{at}", f"b{block}", f"r{block}{rack}", gpu=dice.randint(1, 5), labels={"app": dice.choice("ab")}
            )
            for at, (block, rack) in enumerate(nodes)
        ]
    )


def a_group(dice):
    policy, level = dice.choice([Policy.PREFERRED, Policy.REQUIRED]), dice.choice([RACK, BLOCK])
    amounts = [{GPU: 1}, *({GPU: dice.randint(0, 3), "cpu": 1_000 + at} for at in range(dice.randint(1, 2)))]
    apart = (
        (PodTerm(topology_key=HOST, selector=(LabelRequirement(key="app", operator="In", values=("small",)),)),)
        if dice.random() < 0.3
        else ()
    )
    return [
        make_pod_set(
            dice.randint(2, 8) if at == 0 else dice.randint(1, 2),
            *(policy, level),
            name=f"set{at}",
            requests=requests,
            group="g",
            labels={"app": "small" if at else "large"},
            anti_affinity=apart if at else (),
        )
        for at, requests in enumerate(amounts)
    ]


def a_pinned_set(dice):
    racks = dice.sample(["r00", "r01", "r02", "r10", "r11"], 3)
    parts = tuple(
        Pinned(
            nodes=((NodeTerm(labels=(LabelRequirement(key=RACK, operator="In", values=(rack, racks[0])),)),),), count=2
        )
        for rack in racks[: dice.randint(1, 3)]
    )
    policy, level = dice.choice([Policy.PREFERRED, Policy.REQUIRED, Policy.UNCONSTRAINED]), dice.choice([RACK, BLOCK])
    return [make_pod_set(dice.randint(2, 8), policy, level, name="pinned", pinned=parts)]


def several_sets(dice):
    return [make_pod_set(dice.randint(1, 6), Policy.PREFERRED, RACK, name=f"set{at}", gpu=at) for at in range(1, 4)]


def outcome(seed, asked):
    """The placement of two workloads one after the other, and of more pods beside the second."""
    dice = random.Random(f"{seed} {asked.__name__}")
    state = a_cluster(dice)
    before = ask(state, make_pod_set(dice.randint(1, 3), Policy.UNCONSTRAINED))
    state.reserve("other", before.assignments if isinstance(before, Placement) else ())
    pod_sets = asked(dice)
    first = ask(state, *pod_sets)
    if not isinstance(first, Placement):
        return first
    state.reserve("w", first.assignments)
    last = pod_sets[-1]
    return first, extend(state, "w", last, 1), ask(state, *pod_sets)


@pytest.mark.parametrize("asked", [a_group, a_pinned_set, several_sets])
def test_a_placement_is_what_fresh_counts_make_it(asked, monkeypatch):
    for seed in range(SEEDS):
        with monkeypatch.context() as patch:
            patch.setattr(fits, "known_shape", counted_anew)
            right = outcome(seed, asked)
        for kept in KEPT:
            with monkeypatch.context() as patch:
                patch.setattr(fit_counts, "SHAPES_KEPT", kept)
                assert outcome(seed, asked) == right, (seed, kept)

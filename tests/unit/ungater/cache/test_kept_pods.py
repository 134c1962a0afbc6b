"""Whether pods that run are where a pod set with slices wants them, when its Workload was deleted."""

import pytest
from support.owned import KEYS, make_owner, make_pod

from engine.model import Flavor, PodSet, Policy, SliceLayer, TopologyRequest
from ungater.cache.held.kept_pods import KeptPods, are_together

LEVELS = ("block", "rack", "kubernetes.io/hostname")
SLICED = {KEYS.required[0]: "block", KEYS.slice_level: "rack", KEYS.slice_size: "4"}


def together(ranks_by_rack, count, inner=()):
    """Whether so many ranks of ``count`` may be in these racks."""
    owner = make_owner(parallelism=count, indexed=True, request=SLICED)
    pods = tuple(
        make_pod(f"p{rank}", owner=owner, rank=rank, at=("b", rack, f"h-{rack}"), node=f"h-{rack}")
        for rack, ranks in ranks_by_rack.items()
        for rank in ranks
    )
    pods = tuple(_selected(pod) for pod in pods)
    kept = KeptPods(owner.pod_sets[0], pods, None, Flavor(name="tas", levels=LEVELS), {}, {})
    layers = (SliceLayer(level="rack", size=4), *inner)
    topology = TopologyRequest(policy=Policy.REQUIRED, level="block", slices=layers)
    wish = PodSet(name="main", count=count, requests={}, topology=topology)
    return are_together([kept], {"main": wish}, {"main": kept.assignment(wish)})


def _selected(pod):
    assert set(pod.spec.node_selector) >= set(LEVELS)
    return pod


@pytest.mark.parametrize(
    ("racks", "count", "right"),
    [
        ({"r1": range(4), "r2": range(4, 8)}, 8, True),
        ({"r1": range(4), "r2": range(4, 8), "r3": (8, 9)}, 10, True),
        ({"r1": (*range(4), 8, 9), "r2": range(4, 8)}, 10, True),
        ({"r1": range(4), "r2": range(4, 8), "r3": (8,), "r4": (9,)}, 10, False),
        ({"r1": (0, 1, 2, 3, 4), "r2": (5, 6, 7, 8, 9)}, 10, False),
        ({"r1": (0, 1, 2, 8), "r2": (3, 4, 5, 6, 7, 9)}, 10, False),
        ({"r1": range(4), "r2": (4, 5)}, 8, False),
    ],
)
def test_the_last_slice_alone_may_be_a_part_of_one(racks, count, right):
    assert together(racks, count) is right


def test_slices_within_slices_are_all_whole():
    host = (SliceLayer(level="kubernetes.io/hostname", size=2),)
    assert together({"r1": range(4), "r2": range(4, 8)}, 8, host)
    assert not together({"r1": range(4), "r2": (4, 5)}, 6, host)

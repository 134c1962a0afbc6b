"""What is taken away of an assignment whose slices have lost pods, so that none is whole."""

import pytest

from engine.cluster.assignment import Assignment, Slice
from engine.model import SliceLayer
from engine.placement.resize import _slices_taken


@pytest.mark.parametrize("counts", [[2, 2], [1, 2, 2, 2], [4, 2], [3, 4, 1], [1, 1, 1]])
@pytest.mark.parametrize("by", [1, 2, 3, 4])
def test_what_is_not_taken_of_slices_is_told_to_the_last_pod(counts, by):
    slices = tuple(
        Slice(values=(f"r{at}", f"h{at}"), count=count, nodes=((f"h{at}", count),)) for at, count in enumerate(counts)
    )
    held = Assignment(pod_set="main", flavor="gpu", levels=("rack", "host"), requests={}, slices=slices)
    left, unused = list(counts), list(counts)
    by = min(by, sum(counts))
    rest = _slices_taken(held, left, unused, by, [SliceLayer(level="rack", size=4)])
    assert sum(counts) - sum(left) + rest == by
    assert all(0 <= now <= was for now, was in zip(left, counts, strict=True))

"""The walk of a pod event to its patch is the one that docs/develop.md shows, and enters no module twice."""

from collections import Counter
from itertools import groupby

import pytest
from support.imports import ROOT
from support.walk import walks

SEEDS = (1, 3)  # in which no pod is first told of by a list, as its watch was cut


@pytest.fixture(scope="module")
def walked():
    found = Counter(walk for seed in SEEDS for walk in walks(seed))
    assert sum(found.values()) > 5
    return found


def test_each_pod_walks_as_the_guide_shows(walked):
    block = (ROOT / "docs" / "develop.md").read_text().partition("## The walk of a pod event")[2].split("```")[1]
    rows = [line.partition("  ") for line in block.splitlines() if line]
    shown = [(file, name) for file, _, rest in rows for name in rest.split("#")[0].replace(",", " ").split()]
    assert {tuple(shown)} == set(walked)


def test_the_walk_enters_no_module_twice(walked):
    for walk in walked:
        visits = Counter(file for file, _ in groupby(walk, key=lambda hop: hop[0]))
        assert set(visits.values()) == {1}

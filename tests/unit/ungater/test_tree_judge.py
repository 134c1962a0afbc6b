"""The judge of histories with trees of cohorts knows what a tree leaves a queue, by the stored objects alone."""

from collections import Counter

import pytest
from support.history.loop import Loop
from support.history.server import Server, make_object
from support.history.trees import LAG, CohortTrees

from kube import resources

WITH_TREE = 0  # a seed


def group(nominal, **limits):
    quota = {"name": "cpu", "nominalQuota": str(nominal), **{name: str(value) for name, value in limits.items()}}
    return [{"coveredResources": ["cpu"], "flavors": [{"name": "gpu", "resources": [quota]}]}]


class World:
    """Queue a (2) and queue b (6, of which it lends 3) below cohort t0, which has 1 of its own."""

    def __init__(self, loop):
        self.server = Server(loop)
        self.trees = CohortTrees(self.server, WITH_TREE, lambda *_: None)
        assert self.trees.there
        self.server.judge = lambda key, *_: self.trees.saw(key)
        self.make("cohorts", resources.COHORTS, "t0", {"resourceGroups": group(1)})
        self.make("clusterqueues", resources.CLUSTER_QUEUES, "a", {"resourceGroups": group(2), "cohortName": "t0"})
        spec = {"resourceGroups": group(6, lendingLimit=3), "cohortName": "t0"}
        self.make("clusterqueues", resources.CLUSTER_QUEUES, "b", spec)

    def make(self, plural, resource, name, spec):
        self.server.create(plural, make_object(resource, name, spec), "admin")

    def change(self, plural, name, **spec):
        self.server.change(self.server.get(plural, name), lambda new: new["spec"].update(spec), "admin")


@pytest.fixture
def loop():
    made = Loop(None, 1000)
    yield made
    made.close()


@pytest.fixture
def world(loop):
    return World(loop)


def test_a_queue_takes_no_more_than_what_is_lent(world):
    # 2 of its own, 1 of the cohort, and 3 of the 6 of b.
    assert world.trees.allows("a", 6, Counter())
    assert not world.trees.allows("a", 7, Counter())
    assert world.trees.surely_left("a", Counter(b=4)) == 5
    assert world.trees.surely_left("b", Counter(a=6)) == 3


def test_what_was_so_of_late_is_allowed(world, loop):
    world.change("cohorts", "t0", resourceGroups=group(0))
    assert world.trees.surely_left("a", Counter()) == 5
    assert world.trees.allows("a", 6, Counter())
    loop.now += LAG + 1
    assert not world.trees.allows("a", 6, Counter())


def test_nothing_is_left_below_cohorts_that_are_each_others_parents(world):
    world.make("cohorts", resources.COHORTS, "t1", {"parentName": "t0"})
    assert world.trees.surely_left("a", Counter()) == 6
    world.change("cohorts", "t0", parentName="t1")
    assert world.trees.surely_left("a", Counter()) == 0
    world.trees.rest()
    assert world.trees.surely_left("a", Counter()) == 6


def test_a_parent_that_is_missing_has_nothing(world):
    world.change("clusterqueues", "a", cohortName="missing")
    assert world.trees.surely_left("a", Counter()) == 2

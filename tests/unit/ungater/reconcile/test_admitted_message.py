"""What is said of where pods went, whatever somebody wrote into the status of their Workload."""

import pytest
from support.owned import slot_map

from engine.model import PodSet, Policy, TopologyRequest
from ungater.model.pod_slots import PodSetSlots
from ungater.reconcile.messages import admitted

PODS = PodSet(name="main", count=2, requests={"cpu": 1}, topology=TopologyRequest(policy=Policy.REQUIRED, level="rack"))


def test_it_names_the_domain():
    assert admitted(slot_map(("b/r/n1", 2)), PODS).startswith("2 pods in b/r")


@pytest.mark.parametrize("levels", [(), ("rack",)])
def test_slots_without_a_level_or_without_a_place_are_counted(levels):
    assert admitted(PodSetSlots(levels=levels, slots=()), PODS) == "0 pods"

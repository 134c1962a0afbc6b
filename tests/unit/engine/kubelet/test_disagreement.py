"""What a kubelet's TopologyAffinityError means: which resources disagree about zones, and what would agree."""

import pytest
from support.numa_factories import BEST_EFFORT, NONE, RESTRICTED, SINGLE, make_machine, make_shape

from engine.kubelet.admit import admit
from engine.kubelet.disagreement import disagreement
from engine.kubelet.machine import Scope

GPU = "nvidia.com/gpu"
ZONE = {"cpu": 4, GPU: 4}


def say(*containers, available=None, policy=RESTRICTED, **more):
    machine = make_machine(ZONE, ZONE, available=available, policy=policy, **more)
    shape = make_shape(*containers)
    told = disagreement(machine.layout, machine.state, shape)
    assert admit(machine.layout, machine.state, shape).admitted == (told == "")
    return told


@pytest.mark.parametrize("policy", [RESTRICTED, SINGLE])
def test_what_needs_more_zones_than_the_rest_is_told_how_much_would_agree(policy):
    said = say({"cpu": 6, GPU: 2}, policy=policy)
    needs = "2 nvidia.com/gpu need 1 zone and 6 cpu need 2 zones"
    assert said == f"{policy}: {needs}; they would agree with at most 4 cpu in a pod"
    assert say({"cpu": 4, GPU: 2}, policy=policy) == "", "and so it is"


def test_under_restricted_what_needs_equally_many_zones_agrees():
    assert say({"cpu": 6, GPU: 6}) == ""
    assert say({"cpu": 6, GPU: 6}, policy=SINGLE) == (
        "single-numa-node: 6 nvidia.com/gpu need 2 zones and 6 cpu need 2 zones; "
        "they would agree with at most 4 nvidia.com/gpu and 4 cpu in a pod"
    )


def test_what_is_free_in_different_zones_is_told_with_the_zones():
    assert say({"cpu": 3, GPU: 2}, available=({"cpu": 4, GPU: 0}, {"cpu": 0, GPU: 4})) == (
        "restricted: 2 nvidia.com/gpu would come from zone 1, 3 cpu would come from zone 0; "
        "they would agree if one zone had all of them free"
    )


def test_what_no_zone_has_free_is_told_alone():
    said = say({"cpu": 3, GPU: 2}, available=({"cpu": 2, GPU: 4}, {"cpu": 2, GPU: 4}))
    assert said == "restricted: one zone with 3 cpu free would do, and none is left"


def test_in_container_scope_the_container_that_is_refused_is_told_of():
    said = say({"cpu": 4, GPU: 4}, {"cpu": 4, GPU: 4}, {"cpu": 1}, scope=Scope.CONTAINER)
    assert said == "restricted: one zone with 1 cpu free would do, and none is left"


@pytest.mark.parametrize("policy", [BEST_EFFORT, NONE])
def test_kubelets_that_align_nothing_by_force_disagree_about_nothing(policy):
    machine = make_machine(ZONE, ZONE, policy=policy)
    assert disagreement(machine.layout, machine.state, make_shape({"cpu": 6, GPU: 2})) == ""

"""A rack in which nothing runs is left whole where one in use takes the pods on a few nodes more."""

from collections import Counter

import pytest
from support.engine_factories import BLOCK, GPU, HOST, RACK, make_pod

from engine.cluster.state import ClusterState
from engine.model import Flavor, Node, PodSet, Policy, TopologyRequest
from engine.placement.place import place
from engine.results import Placement, WorkloadRequest


def cluster(*, spare, racks=4, hosts=4, others=0):
    """One block of racks r0, r1, ...; ``others``: nodes of another flavor between those of this one."""
    state = ClusterState(nodes_per_opened_domain=spare)
    state.set_flavor(Flavor(name="f", levels=(BLOCK, RACK, HOST), node_labels={"group": "f"}))
    for number in range(racks * hosts):
        labels = {BLOCK: "b", RACK: f"r{number // hosts}", HOST: f"n{number}", "group": "f"}
        state.set_node(Node(name=f"n{number}", labels=labels, allocatable={GPU: 8, "cpu": 64_000, "pods": 110}))
        for other in range(others):
            name = f"n{number}-{other}"
            state.set_node(Node(name=name, labels={HOST: name}, allocatable={GPU: 8, "cpu": 64_000, "pods": 110}))
    return state


def put(state, key, count, *, level=RACK, policy=Policy.REQUIRED, requests=None):
    """(rack, nodes) of a job that is placed in one rack and held."""
    wish = TopologyRequest(policy=policy, level=None if policy is Policy.UNCONSTRAINED else level)
    asked = PodSet(name="main", count=count, requests=requests or {GPU: 1, "cpu": 1000}, topology=wish)
    found = place(state, WorkloadRequest(key, (asked,), ("f",)))
    assert isinstance(found, Placement), found
    state.reserve(key, found.assignments)
    (part,) = found.assignments
    (rack,) = {one.values[1] for one in part.slices}
    return rack, sum(len(one.nodes) for one in part.slices)


def with_fives(spare=4, racks=4, jobs=4, **more):
    """A cluster with a job of five GPUs on each node of the first rack: three are free on each."""
    state = cluster(spare=spare, racks=racks, **more)
    for number in range(jobs):
        assert put(state, f"five{number}", 5) == ("r0", 1)
    return state


@pytest.mark.parametrize(
    ("level", "spare", "racks", "on"),
    [
        (RACK, 0, 25, {1: 400}),
        (RACK, 1, 17, {1: 272, 2: 128}),
        (RACK, 3, 17, {1: 272, 2: 128}),
        (RACK, 4, 16, {1: 256, 2: 128, 5: 16}),
        (BLOCK, 0, 40, {1: 400}),
        (BLOCK, 4, 16, {1: 256, 2: 128, 5: 16}),
    ],
)
def test_400_jobs_of_five_on_640_nodes(level, spare, racks, on):
    """As docs/how-it-works.md has it: 2,000 GPUs are 15.6 racks."""
    state = cluster(spare=spare, racks=40, hosts=16)
    found = [put(state, f"j{number}", 5, level=level) for number in range(400)]
    assert len({rack for rack, _ in found}) == racks
    assert Counter(nodes for _, nodes in found) == on


def test_it_takes_no_more_nodes_where_that_opens_no_rack():
    state = with_fives()
    state.set_pod(make_pod("default/p", "n4"))
    assert put(state, "job", 5) == ("r1", 1)


@pytest.mark.parametrize(("spare", "expected"), [(2, ("r1", 1)), (3, ("r0", 4))])
def test_it_opens_a_rack_rather_than_use_too_many_nodes(spare, expected):
    state = cluster(spare=spare, racks=2)
    for number in range(4):
        assert put(state, f"most{number}", 7)[0] == "r0"
    assert put(state, "job", 4) == expected, "one node of its own, or four with a GPU each"


@pytest.mark.parametrize("policy", [Policy.REQUIRED, Policy.PREFERRED])
@pytest.mark.parametrize("level", [RACK, BLOCK])
@pytest.mark.parametrize("others", [0, 2])
def test_it_holds_for_all_who_ask_for_a_rack_or_more(policy, level, others):
    state = with_fives(others=others)
    assert put(state, "job", 5, policy=policy, level=level) == ("r0", 2)
    assert put(with_fives(spare=0, others=others), "job", 5, policy=policy, level=level) == ("r1", 1)


def test_who_asks_for_hosts_or_for_nothing_gets_the_fewest_hosts():
    assert put(with_fives(), "job", 5, policy=Policy.REQUIRED, level=HOST) == ("r1", 1)
    assert put(with_fives(), "job", 5, policy=Policy.PREFERRED, level=HOST) == ("r1", 1)
    assert put(with_fives(), "job", 9, policy=Policy.PREFERRED, level=HOST) == ("r1", 2), "three in r0"
    assert put(with_fives(), "job", 5, policy=Policy.UNCONSTRAINED) == ("r1", 1)


def test_of_racks_in_use_the_one_with_the_fewest_nodes_is_taken_then_the_tightest():
    state = with_fives(racks=4)
    for node in range(4, 12):
        state.set_pod(make_pod(f"default/{node}", f"n{node}", gpu=4))
    assert put(state, "six", 6) == ("r0", 2)
    assert put(state, "seven", 7) == ("r1", 2), "three in r0"
    assert put(state, "eight", 8) == ("r1", 2), "r2 has as much room on the same two nodes, and more on others"
    assert put(state, "more", 8) == ("r2", 2)


def test_a_rack_that_others_use_is_in_use():
    state = cluster(spare=1)
    for node in range(4):
        state.set_pod(make_pod(f"default/{node}", f"n{node}", gpu=5))
    assert put(state, "job", 5) == ("r0", 2)


def test_for_pods_without_devices_a_rack_is_idle_that_only_daemon_sets_use():
    state = cluster(spare=4, racks=3)
    for node in range(12):
        state.set_pod(make_pod(f"kube-system/{node}", f"n{node}", requests={GPU: 0, "cpu": 500}))
    for node in range(4):
        state.set_pod(make_pod(f"default/{node}", f"n{node}", requests={GPU: 0, "cpu": 40_000}))
    assert put(state, "job", 30, requests={"cpu": 1000}) == ("r0", 2)
    assert put(state, "gpus", 5) == ("r0", 1), "nobody there has any"

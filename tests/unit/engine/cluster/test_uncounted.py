"""Resources that nodes do not publish and no scheduler counts, such as the shares of HAMi's extender.

Fact of kube-scheduler 1.37: the plugin NodeResourcesFit passes over an extender's ``managedResources`` with
``ignoredByScheduler``.
"""

import pytest
from support.engine_factories import GPU, ask, make_flavor, make_node, make_pod_set, nodes_of

from crds.settings import Settings, from_mapping
from engine.cluster.state import ClusterState
from engine.results import Placement, Refusal
from ungater.numa.node_topologies import TopologyOptions

SHARE = "nvidia.com/gpumem"


def state_of(*nodes, uncounted=(SHARE,)):
    state = ClusterState(uncounted=uncounted)
    state.set_flavor(make_flavor())
    for node in nodes:
        state.set_node(node)
    return state


def asking(count=1, share=40_000, gpu=1):
    return make_pod_set(count, requests={GPU: gpu, SHARE: share})


def test_pods_that_ask_for_one_fit_by_all_else():
    state = state_of(make_node("n", gpu=4))
    assert nodes_of(ask(state, asking(4))) == {"n": 4}
    refusal = ask(state, asking(5))
    assert isinstance(refusal, Refusal)
    assert f"b1/r1 has 4 {GPU} in all; 5 are wanted" in refusal.message


def test_without_the_setting_they_fit_nowhere():
    assert isinstance(ask(state_of(make_node("n", gpu=4), uncounted=()), asking()), Refusal)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_node_that_publishes_one_has_no_more_than_that(when):
    state = state_of(make_node("m", gpu=4)) if when == "before" else state_of()
    state.set_node(make_node("n", gpu=4, allocatable={GPU: 4, SHARE: 50_000, "pods": 9}))
    found = ask(state, asking(2, gpu=1))
    assert (nodes_of(found) == {"m": 2}) if when == "before" else isinstance(found, Refusal)


def test_what_pods_take_of_one_is_never_short():
    state = state_of(make_node("n", gpu=8))
    for number in range(8):
        placed = ask(state, asking(share=1 << 30))
        assert isinstance(placed, Placement)
        state.reserve(f"w{number}", placed.assignments)
    table = state.cluster.table
    assert int(table.published(table.alloc, SHARE, slice(None)).sum()) == 0, "it is told as what nobody has"


def test_the_setting_names_them():
    settings = from_mapping({"uncountedResources": [SHARE]})
    assert TopologyOptions.from_settings(settings).uncounted_resources == (SHARE,)
    assert Settings().uncounted_resources == ()

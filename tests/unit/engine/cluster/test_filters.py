"""Every filter that keeps pods off a node, each with a node that passes beside one that does not."""

import pytest
from support.engine_factories import GPU, HOST, RACK, ask, make_flavor, make_node, make_pod_set, make_state, nodes_of

from engine.model import LabelRequirement, NodeTerm, Policy, Taint, Toleration
from engine.reasons import Reason
from engine.results import Refusal

GPU_TAINT = Taint(key="gpu", value="yes", effect="NoSchedule")


def fits_on(nodes, flavor=None, **pod_set):
    """Names of the nodes that take one pod."""
    found = set()
    for node in nodes:
        state = make_state([node], flavor)
        if not isinstance(ask(state, make_pod_set(**pod_set)), Refusal):
            found.add(node.name)
    # The same answer when all nodes are there at once, one slot on each.
    state = make_state(nodes, flavor)
    wide = make_pod_set(**({"policy": Policy.UNCONSTRAINED, "gpu": 8} | pod_set | {"count": len(found)}))
    if found:
        assert set(nodes_of(ask(state, wide))) <= found
    return found


def label(key, operator, *values):
    return (NodeTerm(labels=(LabelRequirement(key=key, operator=operator, values=values),)),)


def test_flavor_node_labels_select():
    flavor = make_flavor(node_labels={"group": "tas"})
    nodes = [make_node("in", labels={"group": "tas"}), make_node("other", labels={"group": "x"}), make_node("none")]
    assert fits_on(nodes, flavor) == {"in"}


def test_a_node_without_a_level_label_is_no_node_of_the_flavor():
    bare = make_node("bare")
    labels = {key: value for key, value in bare.labels.items() if key != RACK}
    assert fits_on([make_node("whole"), type(bare)(name="bare", labels=labels, allocatable=bare.allocatable)]) == {
        "whole"
    }


def test_node_selector():
    nodes = [make_node("ssd", labels={"disk": "ssd"}), make_node("hdd", labels={"disk": "hdd"}), make_node("none")]
    assert fits_on(nodes, node_selector={"disk": "ssd"}) == {"ssd"}
    assert fits_on(nodes, node_selector={"disk": "nvme"}) == set()
    assert fits_on(nodes, node_selector={"disk": "ssd", HOST: "ssd"}) == {"ssd"}


@pytest.mark.parametrize(
    ("terms", "names"),
    [
        (label("gen", "In", "3", "4"), {"g3", "g4"}),
        (label("gen", "NotIn", "3"), {"g4", "g10", "text", "none"}),
        (label("gen", "Exists"), {"g3", "g4", "g10", "text"}),
        (label("gen", "DoesNotExist"), {"none"}),
        (label("gen", "Gt", "3"), {"g4", "g10"}),
        (label("gen", "Lt", "10"), {"g3", "g4"}),
        (label("gen", "Gt", "x"), set()),
        (label("gen", "In"), set()),
        (label("gen", "Sideways", "3"), set()),
        (label("gen", "In", *map(str, range(20))), {"g3", "g4", "g10"}),
        (label("gen", "In", "3") + label("gen", "In", "10"), {"g3", "g10"}),
        ((), set()),
        ((NodeTerm(),), set()),
        ((NodeTerm(fields=(LabelRequirement(key="metadata.name", operator="In", values=("g3", "absent")),)),), {"g3"}),
        (
            (NodeTerm(fields=(LabelRequirement(key="metadata.name", operator="NotIn", values=("g3",)),)),),
            {"g4", "g10", "text", "none"},
        ),
        ((NodeTerm(fields=(LabelRequirement(key="metadata.uid", operator="In", values=("g3",)),)),), set()),
        (
            (
                NodeTerm(
                    labels=(LabelRequirement(key="gen", operator="Exists"),),
                    fields=(LabelRequirement(key="metadata.name", operator="NotIn", values=("g3",)),),
                ),
            ),
            {"g4", "g10", "text"},
        ),
    ],
)
def test_required_node_affinity(terms, names):
    nodes = [make_node(f"g{gen}", labels={"gen": str(gen)}) for gen in (3, 4, 10)]
    nodes += [make_node("text", labels={"gen": "new"}), make_node("none")]
    assert fits_on(nodes, node_affinity=terms) == names


@pytest.mark.parametrize(
    ("tolerations", "fits"),
    [
        ((), False),
        ((Toleration(key="gpu", value="yes"),), True),
        ((Toleration(key="gpu", value="no"),), False),
        ((Toleration(key="gpu", operator="Exists"),), True),
        ((Toleration(operator="Exists"),), True),
        ((Toleration(key="gpu", operator="Exists", effect="NoExecute"),), False),
        ((Toleration(key="gpu", operator="Exists", effect="NoSchedule"),), True),
        ((Toleration(key="other", operator="Exists"),), False),
        ((Toleration(key="gpu", operator="Lt", value="yes"),), False),
    ],
)
def test_taints_and_tolerations(tolerations, fits):
    tainted = make_node("tainted", taints=(GPU_TAINT,))
    assert fits_on([tainted], tolerations=tolerations) == ({"tainted"} if fits else set())
    assert fits_on([tainted], make_flavor(tolerations=tolerations)) == ({"tainted"} if fits else set())


def test_every_hard_taint_must_be_tolerated_and_soft_ones_need_not():
    both = make_node("both", taints=(GPU_TAINT, Taint(key="x", effect="NoExecute")))
    soft = make_node("soft", taints=(Taint(key="x", effect="PreferNoSchedule"),))
    assert fits_on([both, soft], tolerations=(Toleration(key="gpu", operator="Exists"),)) == {"soft"}
    assert fits_on([both, soft], tolerations=(Toleration(operator="Exists"),)) == {"both", "soft"}


def test_readiness_is_never_tolerated():
    nodes = [make_node("up"), make_node("down", ready=False)]
    assert fits_on(nodes, tolerations=(Toleration(operator="Exists"),)) == {"up"}


def test_unschedulable_is_tolerable():
    nodes = [make_node("up"), make_node("cordoned", unschedulable=True)]
    assert fits_on(nodes) == {"up"}
    tolerated = (Toleration(key="node.kubernetes.io/unschedulable", operator="Exists"),)
    assert fits_on(nodes, tolerations=tolerated) == {"up", "cordoned"}


def test_every_requested_resource_counts_and_pods_too():
    nodes = [
        make_node("roomy"),
        make_node("no-gpu", gpu=0),
        make_node("no-cpu", cpu=500),
        make_node("no-pods", pods=0),
        make_node("fpga", allocatable={"fpga": 1}),
    ]
    assert fits_on(nodes, requests={GPU: 1, "cpu": 1000}) == {"roomy", "fpga"}
    assert fits_on(nodes, requests={"fpga": 1}) == {"fpga"}
    assert fits_on(nodes, requests={"unheard-of": 1}) == set()
    assert fits_on(nodes, requests={"unheard-of": 0}) == {"roomy", "no-gpu", "no-cpu", "fpga"}
    assert fits_on(nodes, requests={}) == {"roomy", "no-gpu", "no-cpu", "fpga"}


def test_a_filter_is_applied_to_nodes_that_change_later():
    state = make_state([make_node("n1"), make_node("n2")])
    both = make_pod_set(16, node_selector={"disk": "ssd"})
    assert isinstance(ask(state, both), Refusal)
    for name in ("n1", "n2"):
        state.set_node(make_node(name, labels={"disk": "ssd"}))
    assert nodes_of(ask(state, both)) == {"n1": 8, "n2": 8}
    state.set_node(make_node("n2", labels={"disk": "ssd"}, taints=(GPU_TAINT,)))
    assert isinstance(ask(state, both), Refusal)
    assert nodes_of(ask(state, make_pod_set(8, node_selector={"disk": "ssd"}))) == {"n1": 8}
    state.set_node(make_node("n2", labels={"disk": "ssd"}))
    assert nodes_of(ask(state, both)) == {"n1": 8, "n2": 8}


def test_many_different_taints_are_told_apart():
    nodes = [make_node(f"n{i}", taints=(Taint(key=f"k{i}", effect="NoSchedule"),)) for i in range(30)]
    state = make_state(nodes)
    tolerations = tuple(Toleration(key=f"k{i}", operator="Exists") for i in (3, 17))
    assert nodes_of(ask(state, make_pod_set(16, tolerations=tolerations))) == {"n3": 8, "n17": 8}
    refusal = ask(state, make_pod_set(17, tolerations=tolerations))
    assert refusal.reason is Reason.NEVER_FITS


def test_pods_go_only_to_nodes_that_declare_all_the_features_that_they_use():
    """Plugin NodeDeclaredFeatures of kube-scheduler 1.37."""
    nodes = [make_node("both", features=("A", "B")), make_node("one", features=("A",)), make_node("none")]
    assert fits_on(nodes, features=("A",)) == {"both", "one"}
    assert fits_on(nodes, features=("A", "B")) == {"both"}
    assert fits_on(nodes, features=("C",)) == set()
    assert fits_on(nodes) == {"both", "one", "none"}


def test_what_a_node_declares_may_change():
    state = make_state([make_node("n1"), make_node("n2", features=("A",))])
    needs = make_pod_set(1, Policy.UNCONSTRAINED, gpu=8, features=("A",))
    assert nodes_of(ask(state, needs)) == {"n2": 1}
    state.set_node(make_node("n1", features=("A", "B")))
    state.set_node(make_node("n2"))
    assert nodes_of(ask(state, needs)) == {"n1": 1}
    state.set_node(make_node("n1", labels={"x": "y"}))
    refused = ask(state, needs)
    assert (refused.reason, "no node declares A" in refused.message) == (Reason.NEVER_FITS, True)
    state.set_node(make_node("n3", features=("A",)))
    assert nodes_of(ask(state, needs)) == {"n3": 1}

"""``topogate install`` says at once where pods of its components would never answer."""

import pytest

from cli.cluster.simulated_nodes import all_simulated, is_simulated, require_nodes_that_run_pods
from cli.output import Failure
from kube.objects import Node, ObjectMeta
from kube.resources import NODES

KWOK = {"kwok.x-k8s.io/node": "fake"}


def node(**metadata):
    return Node(metadata=ObjectMeta(name="n", **metadata))


class Cluster:
    def __init__(self, *nodes):
        self.nodes = nodes

    async def list(self, resource, *, type):  # noqa: A002
        assert (resource, type) == (NODES, Node)
        return self.nodes


@pytest.mark.parametrize("marked", [{"annotations": KWOK}, {"labels": KWOK}, {"labels": {"type": "kwok"}}])
def test_nodes_of_kwok_are_told_by_their_annotation_or_label(marked):
    assert is_simulated(node(**marked))
    assert not is_simulated(node(labels={"type": "gpu"}))


def test_one_node_that_is_not_simulated_is_enough():
    assert all_simulated([node(annotations=KWOK)])
    assert not all_simulated([node(annotations=KWOK), node()])
    assert not all_simulated([])


async def test_an_installation_on_simulated_nodes_is_refused_with_the_command_that_works():
    with pytest.raises(Failure) as refused:
        await require_nodes_that_run_pods(Cluster(node(annotations=KWOK), node(labels=KWOK)), "auto")
    said = str(refused.value)
    assert said.startswith("the 2 nodes of this cluster are simulated (KWOK)")
    assert "`topogate install --out-of-cluster --webhook-url https://127.0.0.1:9443 --topology auto`" in said
    assert "--no-wait" in said
    await require_nodes_that_run_pods(Cluster(node(annotations=KWOK), node()), "")

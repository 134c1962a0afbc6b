"""The flavor of ``--topology``: its name, and what others leave to it: nodes, and names of levels."""

import pytest

from cli.install import flavor
from cli.install.flavor import parse_flavor, planned
from cli.output import Failure
from crds.settings import Settings
from kube.objects import FlavorTopology, Node, NodeStatus, ObjectMeta, ResourceFlavor, ResourceFlavorSpec
from kube.resources import NODES, RESOURCE_FLAVORS


@pytest.mark.parametrize("name", ["", "h100", "h100-east", "a.b"])
def test_a_name_that_the_cluster_takes_is_kept(name):
    assert parse_flavor(name) == name


@pytest.mark.parametrize("name", ["Bad_Name", "-a", "a-", "a..b", "a b", "a\n", "a" * 254])
def test_a_name_that_the_cluster_would_refuse_is_refused_before_the_install(name):
    with pytest.raises(Failure, match="expected lower-case letters"):
        parse_flavor(name)


RACK, LAYER, HOST = (
    "cloud-provider.com/topology-rack",
    "topology.k8s.aws/network-node-layer-3",
    "kubernetes.io/hostname",
)


class Cluster:
    """Stands in for the client: two kinds of nodes, and the flavor of the first."""

    def __init__(self, **labels_of_all):
        self.nodes = [self.node(f"a{at}", {"pool": "a", RACK: f"r{at // 2}", **labels_of_all}) for at in range(4)]
        self.nodes += [self.node(f"b{at}", {"kind": "eks", LAYER: f"l{at // 2}", **labels_of_all}) for at in range(4)]
        topology = FlavorTopology(levels=(RACK, HOST), names={"rack": RACK, "host": HOST})
        spec = ResourceFlavorSpec(node_labels={"pool": "a"}, topology=topology)
        self.flavors = [ResourceFlavor(metadata=ObjectMeta(name="first"), spec=spec)]

    @staticmethod
    def node(name, labels):
        status = NodeStatus(allocatable={"nvidia.com/gpu": "8"})
        return Node(metadata=ObjectMeta(name=name, labels={HOST: name, **labels}), status=status)

    async def list(self, resource, *, type):  # noqa: A002
        return {NODES: self.nodes, RESOURCE_FLAVORS: self.flavors}[resource]


@pytest.fixture
def set_to(monkeypatch):
    def settings(**given):
        async def read(_client):
            return Settings(**given)

        monkeypatch.setattr(flavor.installed, "settings", read)

    settings()
    return settings


async def test_a_second_pool_gets_a_flavor_of_its_own_whose_names_change_nothing_for_jobs_that_are_there(set_to):
    choice, body = await planned(Cluster(), "auto", "second", {"kind": "eks"})
    assert body["spec"]["nodeLabels"] == {"kind": "eks"}
    assert body["spec"]["topology"]["levels"] == [LAYER, HOST]
    assert body["spec"]["topology"]["names"] == {"layer-3": LAYER, "host": HOST}
    assert any(f'"rack" means {RACK} in ResourceFlavor first' in note and '"layer-3"' in note for note in choice.notes)
    assert any("no node is of ResourceFlavor first (pool=a) too" in note for note in choice.notes)


async def test_where_all_jobs_name_a_queue_a_rack_is_a_rack_in_each_pool(set_to):
    set_to(require_queue=True)
    _, body = await planned(Cluster(), "auto", "second", {"kind": "eks"})
    assert body["spec"]["topology"]["names"] == {"layer-3": LAYER, "rack": LAYER, "host": HOST}


async def test_nodes_of_another_flavor_are_refused_by_their_names(set_to):
    cluster = Cluster()
    cluster.nodes[4] = cluster.node("b0", {**cluster.nodes[4].metadata.labels, "pool": "a"})
    with pytest.raises(Failure, match=r"node b0 is of ResourceFlavor first already \(nodeLabels pool=a\).*--nodes"):
        await planned(cluster, "auto", "second", {"kind": "eks"})


async def test_several_kinds_of_nodes_are_told_with_the_command_for_each(set_to):
    with pytest.raises(Failure, match="There are several kinds of nodes, so run it once for each") as refused:
        await planned(Cluster(), "auto", "", {})
    assert "--topology eks --nodes kind=eks (4 nodes)" in str(refused.value)
    assert "--topology local --nodes pool=a (4 nodes)" in str(refused.value)
    zoned = Cluster(**{"kubernetes.io/os": "linux"})
    for at, node in enumerate(zoned.nodes):
        node.metadata.labels["topology.kubernetes.io/zone"] = f"z{at // 2}"
    zoned.flavors = []
    choice, _ = await planned(zoned, "auto", "", {})
    assert (choice.word, any("several kinds of nodes" in note for note in choice.notes)) == ("zone", True)

"""How the doctor has a kubelet's policy changed.

Fact of Kubernetes 1.37: with a stricter ``topologyManagerPolicy`` a kubelet that restarts admits all that runs again,
and fails what is not aligned; with another
``cpuManagerPolicy`` it ends at every start until ``cpu_manager_state`` is gone.
"""

import re
from pathlib import Path

import pytest

from cli.doctor import nodes
from cli.doctor.nodes import NodesView
from crds.constants import NUMA_POLICY
from kube.objects import FlavorTopology, Node, NodeStatus, ObjectMeta, ResourceFlavor, ResourceFlavorSpec
from kube.topologies import FlexTopo, FlexTopoStatus, KubeletConfig

HOST = "kubernetes.io/hostname"
DOCS = Path(__file__).parents[4] / "docs"


def mended():
    meta = ObjectMeta(name="n1", labels={"pool": "a", "rack": "r1", HOST: "n1"})
    node = Node(metadata=meta, status=NodeStatus(allocatable={"cpu": "8", "nvidia.com/gpu": "8"}))
    topology = FlavorTopology(levels=("rack", HOST))
    spec = ResourceFlavorSpec(node_labels={"pool": "a"}, topology=topology)
    kubelet = KubeletConfig(topology_manager_policy="none", cpu_manager_policy="none")
    flexes = {"n1": FlexTopo(status=FlexTopoStatus(kubelet=kubelet))}
    flavor, asked = (
        ResourceFlavor(metadata=ObjectMeta(name="gpu"), spec=spec),
        [("Job a/b", {NUMA_POLICY: "restricted"})],
    )
    return [one.mend for one in nodes.findings(NodesView([node], [flavor], {}, flexes, asked, agent=True))]


@pytest.mark.parametrize("policy", ["topologyManagerPolicy: restricted", "cpuManagerPolicy: static"])
def test_a_node_is_drained_before_its_kubelet_gets_another_policy(policy):
    (mend,) = [one for one in mended() if policy in one]
    steps = ["kubectl drain n1", "stop its kubelet", f"set {policy}", "start it", "kubectl uncordon n1"]
    assert [*map(mend.index, steps)] == sorted(map(mend.index, steps))
    assert "restart" not in mend


def test_the_state_of_the_cpu_manager_is_deleted_while_its_kubelet_is_stopped():
    (mend,) = [one for one in mended() if "cpuManagerPolicy" in one]
    at = mend.index("cpu_manager_state")
    assert mend.index("stop its kubelet") < at < mend.index("start it")


def test_the_section_that_is_named_is_there():
    page, section = re.search(r"docs/(\S+\.md), (.+)\)", mended()[0]).groups()
    assert f"## {section}\n" in (DOCS / page).read_text()

"""`topogate place` and `whatif admit` on what tools really wrote about nodes: their labels, and their zones."""

import json
from pathlib import Path

import msgspec
import yaml
from typer.testing import CliRunner

from cli.main import app
from cli.topology.choice import choose
from cli.topology.survey import labelled
from crds.constants import HOSTNAME_LABEL
from kube.objects import Node

DATA = Path(__file__).resolve().parents[2] / "data/labels"
ZONES = DATA.parent / "zones"


def test_a_required_rack_is_never_made_of_nodes_whose_switch_is_not_known(tmp_path):
    """Topograph 1.0.0: 3 nodes on leaf-a, 3 on leaf-b, 4 with `no-topology`; 4 pods of a whole node each."""
    nodes = json.loads((DATA / "no-topology.json").read_text())["items"]
    found = choose(labelled(msgspec.convert(nodes, list[Node], strict=False)), "auto")
    topology = {"levels": [level.key for level in found.levels], "names": found.names}
    flavor = {
        "apiVersion": "topogate.dev/v1alpha1",
        "kind": "ResourceFlavor",
        "metadata": {"name": "auto"},
        "spec": {"nodeLabels": found.group, "topology": topology},
    }
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump_all([flavor, *nodes]))
    command = [
        "place",
        "-f",
        str(DATA / "job-of-a-rack.yaml"),
        "--dry-run",
        "--cluster",
        str(tmp_path / "cluster.yaml"),
    ]
    result = CliRunner().invoke(app, command)
    assert "Placed" not in result.output
    assert "4 pods do not fit one tier-0: the largest, leaf-a, has 24 nvidia.com/gpu in all; 32 are wanted" in " ".join(
        result.output.split()
    )


def test_zones_that_contradict_their_node_keep_no_pod_off_it(tmp_path):
    """NFD 0.19.0 on NUMA nodes 0 and 2: kubelet 1.37.1 admits the next pod of 14 CPUs, on node 2."""
    flavor = {
        "apiVersion": "topogate.dev/v1alpha1",
        "kind": "ResourceFlavor",
        "metadata": {"name": "local"},
        "spec": {
            "nodeLabels": {"kubernetes.io/os": "linux"},
            "topology": {
                "levels": [*(f"cloud-provider.com/topology-{name}" for name in ("block", "rack")), HOSTNAME_LABEL],
                "names": {"rack": "cloud-provider.com/topology-rack"},
            },
        },
    }
    items = json.loads((ZONES / "nfd-0-and-2.json").read_text())["items"]
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump_all([flavor, *items]))
    job = ZONES / "job-of-14-cpus.json"
    result = CliRunner().invoke(
        app, ["place", "-f", str(job), "--dry-run", "--cluster", str(tmp_path / "cluster.yaml")]
    )
    assert "Placed" in result.output, result.output
    assert "TopologyAffinityError" not in result.output


def test_a_case_whose_zones_contradict_each_other_is_not_predicted_by_them():
    command = ["whatif", "admit", "--from", "nrt", str(ZONES / "nfd-0-and-2.jsonl")]
    answers = [json.loads(line) for line in CliRunner().invoke(app, command).stdout.splitlines()]
    assert [answer["admitted"] for answer in answers] == [True, True, True]
    assert all("zone node-1 has no capacity and no costs" in answer["warning"] for answer in answers)

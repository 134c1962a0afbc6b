"""A flavor that `--topology auto` makes of labels that some tool wrote, and where `topogate place` puts a job there."""

import json
from pathlib import Path

import msgspec
import yaml
from typer.testing import CliRunner

from cli.main import app
from cli.topology.choice import choose
from cli.topology.survey import labelled
from kube.objects import Node

DATA = Path(__file__).resolve().parents[3] / "tests/data/labels"


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
    assert "4 pods do not fit one fabric.topograph.run/tier-0: the best of 2, leaf-a, takes 3" in " ".join(
        result.output.split()
    )

"""What `topogate place --dry-run` says of reported cases (`tests/data/cases`): the reason that holds, or one line."""

import json

import pytest
from support.cases import CASES
from typer.testing import CliRunner

from cli.main import app
from cli.output import Failure

NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n", "labels": {"example.net/rack": "1", "kubernetes.io/hostname": "n", "pool": "gpu"}},
    "status": {
        "allocatable": {"cpu": "8", "memory": "64Ti", "pods": "9"},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}
FLAVOR = {
    "apiVersion": "topogate.dev/v1alpha1",
    "kind": "ResourceFlavor",
    "metadata": {"name": "gpu"},
    "spec": {"nodeLabels": {"pool": "gpu"}, "topology": {"levels": ["example.net/rack", "kubernetes.io/hostname"]}},
}


def place(cluster, manifest):
    result = CliRunner().invoke(app, ["place", "--dry-run", "--cluster", str(cluster), "-f", str(manifest)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return " ".join(f"{result.stdout} {result.stderr}".split())


def case(name, cluster="cluster.json", manifest="job.json"):
    return place(CASES / name / cluster, CASES / name / manifest)


def test_a_host_port_is_named_where_it_allows_one_pod_a_node():
    said = case("host-port-message")
    assert "takes 2 with nothing else running: host port 29500 allows one pod a node, and it has 2 nodes" in said
    assert "PodAntiAffinity" not in said


def test_two_host_ports_are_told_like_one(tmp_path):
    body = json.loads((CASES / "host-port-message" / "job.json").read_text())
    (container,) = body["items"][0]["spec"]["template"]["spec"]["containers"]
    container["ports"].append({"containerPort": 29501, "hostPort": 29501, "protocol": "UDP"})
    (tmp_path / "job.json").write_text(json.dumps(body))
    said = place(CASES / "host-port-message" / "cluster.json", tmp_path / "job.json")
    assert "host ports 29500, 29501/UDP allow one pod a node" in said


def test_amounts_that_no_node_has_are_told_as_they_were_asked_for():
    assert "a pod asks for 7Ei memory, and no node has more than 768Gi; ask for less in each pod" in case(
        "huge-amount-message"
    )


def test_sums_of_amounts_beyond_64_bits_are_told_too(tmp_path):
    body = json.loads((CASES / "huge-amount-message" / "job.json").read_text())
    spec = body["items"][0]["spec"]
    spec |= {"parallelism": 9, "completions": 9}
    containers = spec["template"]["spec"]["containers"]
    containers.append(containers[0] | {"name": "other"})
    (tmp_path / "job.json").write_text(json.dumps(body))
    command = ["place", "--dry-run", "--cluster", str(CASES / "huge-amount-message" / "cluster.json"), "-o", "json"]
    result = CliRunner().invoke(app, [*command, "-f", str(tmp_path / "job.json")])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "and no node has more than 768Gi" in result.output


@pytest.mark.parametrize(("memory", "placed"), [("64Ti", True), ("70368744177665", False)])
def test_a_machine_of_64_tebibytes_takes_what_asks_for_all_of_it(tmp_path, memory, placed):
    (tmp_path / "cluster.json").write_text(json.dumps({"kind": "List", "items": [NODE, FLAVOR]}))
    body = json.loads((CASES / "huge-amount-message" / "job.json").read_text())
    job = body["items"][0]
    job["spec"] |= {"parallelism": 1, "completions": 1}
    job["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["memory"] = memory
    (tmp_path / "job.json").write_text(json.dumps(job))
    assert ("Placed" in place(tmp_path / "cluster.json", tmp_path / "job.json")) == placed


def test_a_truth_value_as_a_key_is_text_as_for_kubectl():
    """kubectl reads an unquoted ``on:`` as the key "true"."""
    assert "Placed 1 pod" in case("yaml-bool-key", "cluster.yaml", "job.yaml")


@pytest.mark.parametrize("key", ["~", "? [a, b]\n", "? !!binary aGVsbG8=\n"])
@pytest.mark.parametrize("which", ["cluster", "manifest"])
def test_a_key_that_is_no_text_ends_in_one_line_with_its_place(tmp_path, key, which):
    odd = tmp_path / "odd.yaml"
    odd.write_text(f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: x}}\n{key}: a\n")
    files = {"cluster": CASES / "yaml-bool-key" / "cluster.yaml", "manifest": CASES / "yaml-bool-key" / "job.yaml"}
    files[which] = odd
    with pytest.raises(Failure) as found:
        place(files["cluster"], files["manifest"])
    assert str(found.value).startswith(f"{odd}: line 4, column")
    assert "\n" not in str(found.value)

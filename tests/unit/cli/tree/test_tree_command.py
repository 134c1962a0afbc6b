"""`topogate tree` on snapshots: numbers, folding, who holds what, and bad input."""

import io
import json

import msgspec
import pytest
from rich.console import Console
from support.snapshots import FLAVOR, GPU, HOST, RACK, foreign, node
from support.snapshots import let_go as running
from typer.testing import CliRunner

from cli.main import app
from cli.output import Failure
from cli.tree.rendering import render
from cli.tree.report import TreeReport

NODES = [node(f"r{rack}h{host}", f"r{rack}") for rack in (1, 2) for host in (1, 2)]


def run(tmp_path, *items, args=()):
    path = tmp_path / "c.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [FLAVOR, *items]}))
    result = CliRunner().invoke(app, ["tree", "-f", str(path), *args])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


def tree(tmp_path, *items, args=()):
    return json.loads(run(tmp_path, *items, args=("-o", "json", *args)))


def test_free_used_and_whole(tmp_path):
    items = [*NODES, *running("a", ["r1h1"], 4, priority=5), foreign("ds", "r2h1", 1, "DaemonSet")]
    (flavor,) = tree(tmp_path, *items)["flavors"]
    assert flavor["whole"] == [{"level": RACK, "domains": 2, "free": 0}, {"level": HOST, "domains": 4, "free": 2}]
    top = flavor["tree"]
    assert top["resources"][GPU] == {"allocatable": "32", "used": "5", "free": "27"}
    assert [rack["resources"][GPU]["free"] for rack in top["domains"]] == ["12", "15"]
    assert [host["values"] for host in top["domains"][0]["domains"]] == [["r1", "r1h1"], ["r1", "r1h2"]]


def test_slots_whose_pods_do_not_run_are_used(tmp_path):
    job, workload, *_ = running("a", ["r1h1", "r1h1"], 4)
    (flavor,) = tree(tmp_path, *NODES, job, workload, args=("--workloads",))["flavors"]
    host = flavor["tree"]["domains"][0]["domains"][0]
    assert host["resources"][GPU] == {"allocatable": "8", "used": "8", "free": "0"}
    (holder,) = host["tenants"]
    assert (holder["name"], holder["pods"], holder["waitingSlots"], holder["amounts"][GPU]) == ("job/a", 0, 2, "8")


def test_nodes_that_are_out(tmp_path):
    cordoned = node("r1h3", "r1", unschedulable=True)
    dead = node("r1h4", "r1")
    dead["status"]["conditions"][0]["status"] = "False"
    lost = node("stray", "r1")
    del lost["metadata"]["labels"][RACK]
    (flavor,) = tree(tmp_path, *NODES, cordoned, dead, lost)["flavors"]
    rack = flavor["tree"]["domains"][0]
    assert (rack["nodes"], rack["notReady"], rack["cordoned"]) == (4, 1, 1)
    assert rack["resources"][GPU] == {"allocatable": "32", "used": "0", "free": "16"}
    assert flavor["lacking"] == ["stray"]
    text = run(tmp_path, *NODES, cordoned, dead, lost)
    assert "1 not ready, 1 cordoned" in text
    assert "1 nodes of the flavor lack a level's label" in text


def test_who_holds_what(tmp_path):
    items = [*NODES, *running("a", ["r1h1"], 4, priority=5), foreign("mine", "r1h1", 2)]
    text = run(tmp_path, *items, args=("--workloads", "--resource", "gpu"))
    line = next(line for line in text.splitlines() if "r1h1" in line)
    assert "kube-system/pod/mine (1, not ours), team/job/a (1)" in line
    assert "2/8" in line


def test_a_large_cluster_is_folded_and_opened(tmp_path):
    many = [node(f"r{rack}h{host}", f"r{rack}") for rack in range(30) for host in range(20)]
    text = run(tmp_path, *many)
    assert len(text.splitlines()) < 40
    assert f"Folded at {RACK}" in text
    opened = run(tmp_path, *many, *running("a", ["r7h3"], 4), args=("r7",))
    assert "r7h0 … r7h2" in opened
    assert "r7h4 … r7h19" in opened
    assert "r8" not in opened
    assert len(run(tmp_path, *many, args=("-o", "wide")).splitlines()) > 600


def test_nothing_is_coloured_in_a_pipe(tmp_path):
    assert "\x1b" not in run(tmp_path, *NODES)


def test_two_flavors_and_nodes_outside(tmp_path):
    other = {
        **FLAVOR,
        "metadata": {"name": "a100"},
        "spec": {"nodeLabels": {"gpu": "a100"}, "topology": {"levels": [RACK]}},
    }
    special = node("x", "r9")
    special["metadata"]["labels"]["gpu"] = "a100"
    found = tree(tmp_path, *NODES, special, other)
    assert [flavor["name"] for flavor in found["flavors"]] == ["a100", "tas"]
    assert found["flavors"][0]["tree"]["nodes"] == 1
    only = tree(tmp_path, *NODES, special, other, args=("--flavor", "a100"))
    assert [flavor["name"] for flavor in only["flavors"]] == ["a100"]
    assert tree(tmp_path, *NODES, special, other, args=("--level", "hostname"))["flavors"][0]["name"] == "tas"


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("--flavor", "no"), "no such ResourceFlavor"),
        (("--level", "no"), "no such level"),
        (("--resource", "no"), "no node has it"),
        (("r9",), "no domain r9"),
        (("r1/r1h1/deeper",), "no domain"),
    ],
)
def test_bad_input_is_told(tmp_path, args, text):
    with pytest.raises(Failure, match=text):
        run(tmp_path, *NODES, args=args)


def test_without_a_topology_there_is_no_tree(tmp_path):
    path = tmp_path / "c.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": NODES}))
    result = CliRunner().invoke(app, ["tree", "-f", str(path)])
    assert isinstance(result.exception, Failure)
    assert "topogate install --topology auto" in str(result.exception)


def test_how_many_gangs_would_start_now(tmp_path):
    items = [*NODES, *running("a", ["r1h1"], 4)]
    (flavor,) = tree(tmp_path, *items)["flavors"]
    assert flavor["tree"]["starts"] == {"8": 3, "64": 0, "512": 0}
    assert [rack["starts"]["8"] for rack in flavor["tree"]["domains"]] == [1, 2]
    text = run(tmp_path, *items)
    assert "STARTS 8/64/512" in text
    assert "3/0/0" in next(line for line in text.splitlines() if line.startswith("all"))
    racks = [node(f"r1h{host}", "r1") for host in range(64)]
    assert "64/8/1" in run(tmp_path, *racks)
    bare = [dict(one, status={**one["status"], "allocatable": {"cpu": "4", "pods": "9"}}) for one in NODES]
    assert "STARTS" not in run(tmp_path, *bare)


def gpus(name, count):
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.example.com", "nodeName": name, "pool": pool}
    spec |= {"devices": [{"name": f"gpu-{number}"} for number in range(count)]}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


def device_class(name, **spec):
    spec |= {"selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}]}
    meta = {"name": name, "creationTimestamp": "2026-11-21T00:00:00Z"}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": meta, "spec": spec}


def test_devices_of_claims_by_their_class(tmp_path):
    held = {"request": "one", "driver": "gpu.example.com", "pool": "r2h1", "device": "gpu-0"}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "held", "namespace": "team"},
        "status": {"allocation": {"devices": {"results": [held]}}},
    }
    none = device_class("none.example.com")
    none["spec"]["selectors"][0]["cel"]["expression"] = "device.driver == 'none.example.com'"
    classes = [device_class("gpu.example.com"), device_class("a.example.com", extendedResourceName="e.com/gpu"), none]
    items = [*NODES, *classes, gpus("r2h1", 4), gpus("r2h2", 4), claim]
    (flavor,) = tree(tmp_path, *items)["flavors"]
    assert flavor["tree"]["devices"] == {"gpu.example.com": {"allocatable": "8", "used": "1", "free": "7"}}
    assert [rack["devices"]["gpu.example.com"]["free"] for rack in flavor["tree"]["domains"]] == ["0", "7"]
    text = run(tmp_path, *items, args=("--resource", "gpu.example.com"))
    assert "gpu.example.com FREE/ALL" in text
    assert "7/8" in text
    cordoned = [one if one["metadata"]["name"] != "r2h2" else node("r2h2", "r2", unschedulable=True) for one in items]
    (flavor,) = tree(tmp_path, *cordoned)["flavors"]
    assert flavor["tree"]["devices"]["gpu.example.com"]["free"] == "3"
    assert "devices" not in tree(tmp_path, *NODES)["flavors"][0]["tree"]


def test_who_holds_which_devices_of_claims(tmp_path):
    job, workload, *pods = running("a", ["r1h1", "r1h2"], 0)
    claims = []
    for number, pod in enumerate(pods):
        name = f"a-gpu-{number}"
        pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
        pod["status"]["resourceClaimStatuses"] = [{"name": "gpu", "resourceClaimName": name}]
        result = {
            "request": "one",
            "driver": "gpu.example.com",
            "pool": pod["spec"]["nodeName"],
            "device": f"gpu-{number}",
        }
        claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
        claim |= {"metadata": {"name": name, "namespace": pod["metadata"]["namespace"]}}
        claims.append(claim | {"status": {"allocation": {"devices": {"results": [result]}}}})
    items = [*NODES, device_class("gpu.example.com"), gpus("r1h1", 4), gpus("r1h2", 4), job, workload, *pods, *claims]
    (flavor,) = tree(tmp_path, *items, args=("--workloads", "--level", "rack"))["flavors"]
    (tenant,) = flavor["tree"]["domains"][0]["tenants"]
    assert tenant["devices"] == {"r1h1": ["gpu.example.com/gpu-0"], "r1h2": ["gpu.example.com/gpu-1"]}
    found = msgspec.convert(tree(tmp_path, *items, args=("--workloads",)), TreeReport)
    console = Console(file=io.StringIO(), width=300, color_system=None)
    console.print(render(found, wide=True))
    assert "team/job/a (1, r1h1: gpu.example.com/gpu-0)" in console.file.getvalue()


def test_memory_is_told_as_no_more_than_is_free_and_no_less_than_is_used(tmp_path):
    """Who reads 64Gi free, and asks for them, is to find them."""
    host = node("r1h1", "r1")
    host["status"]["allocatable"]["memory"] = "64Gi"
    little = foreign("ds", "r1h1", 1, "DaemonSet")
    little["spec"]["containers"][0]["resources"] = {"requests": {"memory": "100Mi"}}
    assert "63Gi/64Gi" in run(tmp_path, host, little, args=("--resource", "memory"))

"""`topogate defrag` on snapshots: what moves, what is left and why, and how it is told."""

import json

import yaml
from typer.testing import CliRunner

from cli.main import app
from cli.output import Failure
from crds.names import workload_name

RACK, HOST, GPU = "example.com/rack", "kubernetes.io/hostname", "nvidia.com/gpu"
DOMAIN = "kueue.x-k8s.io"


def node(name, rack, **spec):
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {RACK: rack, HOST: name}},
        "spec": spec,
        "status": {
            "allocatable": {"cpu": "96", "memory": "512Gi", GPU: "8", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


FLAVOR = {
    "apiVersion": "topogate.dev/v1alpha1",
    "kind": "ResourceFlavor",
    "metadata": {"name": "tas"},
    "spec": {"topology": {"levels": [RACK, HOST]}},
}


def container(gpus):
    return {"name": "main", "resources": {"limits": {"cpu": "1", GPU: str(gpus)}}}


def running(name, where, gpus, *, priority=0, require=RACK, labels=None):
    """A job of ours with one pod on each of these nodes: Job, Workload, pods."""
    uid, work = f"uid-{name}", workload_name("Job", name, f"uid-{name}")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid, "controller": True}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": uid,
            "annotations": {f"{DOMAIN}/require-topology": require},
        },
        "spec": {
            "parallelism": len(where),
            "completions": len(where),
            "completionMode": "Indexed",
            "template": {"spec": {"containers": [container(gpus)]}},
        },
    }
    slices = [{"nodeLabels": {RACK: node[:2], HOST: node}, "count": where.count(node)} for node in dict.fromkeys(where)]
    workload = {
        "apiVersion": "topogate.dev/v1alpha1",
        "kind": "Workload",
        "metadata": {"name": work, "namespace": "team", "ownerReferences": [owner]},
        "spec": {"podSets": [{"name": "main", "count": len(where)}]},
        "status": {
            "admission": {
                "podSetAssignments": [
                    {
                        "name": "main",
                        "flavors": {GPU: "tas"},
                        "count": len(where),
                        "topologyAssignment": {"levels": [RACK, HOST], "slices": slices},
                    }
                ]
            }
        },
    }
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{name}-{at}",
                "namespace": "team",
                "uid": f"{uid}-{at}",
                "labels": labels or {},
                "annotations": {f"{DOMAIN}/topology-workload": work},
                "ownerReferences": [owner],
            },
            "spec": {
                "nodeName": host,
                "nodeSelector": {RACK: host[:2], HOST: host},
                "priority": priority,
                "containers": [container(gpus)],
            },
            "status": {"phase": "Running"},
        }
        for at, host in enumerate(where)
    ]
    return [job, workload, *pods]


def foreign(name, where, gpus, kind=""):
    owners = [{"apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "o", "controller": True}] if kind else []
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "kube-system", "uid": f"uid-{name}", "ownerReferences": owners},
        "spec": {"nodeName": where, "containers": [container(gpus)]},
        "status": {"phase": "Running"},
    }


NODES = [node(f"r{rack}h{host}", f"r{rack}") for rack in (1, 2) for host in (1, 2)]
TWO = [*running("a", ["r1h1"], 4, priority=5), *running("b", ["r2h2"], 4)]


def plan(tmp_path, *items, args=()):
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump_all([FLAVOR, *NODES, *items]))
    result = CliRunner().invoke(app, ["defrag", "--dry-run", "-f", str(path), "-o", "json", *args])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return json.loads(result.stdout)


def test_a_move_that_frees_a_rack(tmp_path):
    found = plan(tmp_path, *TWO, foreign("ds", "r2h1", 0, "DaemonSet"))
    assert (found["level"], found["domains"], found["wholeNow"], found["wholeThen"]) == (RACK, 2, 0, 1)
    (step,) = found["steps"]
    (move,) = step["moves"]
    assert (step["frees"], step["pods"]) == (["r1"], 1)
    assert (move["job"], move["before"], move["after"], move["priority"]) == ("team/a", {"r1h1": 1}, {"r2h2": 1}, 5)
    assert found["left"] == []


def test_what_is_left_and_why(tmp_path):
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "keep", "namespace": "team"},
        "spec": {"selector": {"matchLabels": {"app": "b"}}},
        "status": {"disruptionsAllowed": 0},
    }
    items = [*running("a", ["r1h1"], 4, priority=5), *running("b", ["r2h2"], 4, labels={"app": "b"})]
    found = plan(tmp_path, *items, budget, args=["--max-priority", "4"])
    assert found["steps"] == []
    assert [(one["job"], why) for one in found["left"] for why in (one["why"],)] == [
        ("team/a", "its priority is 5, above --max-priority 4"),
        ("team/b", "PodDisruptionBudget keep lets 0 of its 1 pods be evicted now"),
    ]
    budget["status"] = {"disruptionsAllowed": 1}
    (step,) = plan(tmp_path, *items, budget, args=["--max-priority", "4"])["steps"]
    assert step["frees"] == ["r2"]


def test_foreign_pods_with_devices_and_nodes_out_of_order_make_no_whole_rack(tmp_path):
    (step,) = plan(tmp_path, *TWO, foreign("p", "r1h2", 1))["steps"]
    assert step["frees"] == ["r2"]
    (step,) = plan(tmp_path, *TWO, foreign("p", "r1h2", 0))["steps"]
    assert step["frees"] == ["r1"]
    cordoned = node("r1h3", "r1", unschedulable=True)
    (step,) = plan(tmp_path, *TWO, cordoned)["steps"]
    assert step["frees"] == ["r2"]


def test_a_gang_moves_only_where_all_of_it_fits_its_rack(tmp_path):
    gang = running("gang", ["r1h1", "r1h2"], 6)
    assert plan(tmp_path, *gang, *running("b", ["r2h2"], 4))["steps"] == []
    (step,) = plan(tmp_path, *gang, *running("b", ["r2h2"], 2))["steps"]
    assert (step["frees"], [move["job"] for move in step["moves"]]) == (["r2"], ["team/b"])


def test_hosts_are_a_level_too(tmp_path):
    items = [*running("a", ["r1h1"], 4), *running("b", ["r1h2"], 4)]
    found = plan(tmp_path, *items, args=["--level", HOST])
    assert (found["domains"], found["wholeNow"], found["wholeThen"]) == (4, 2, 3)


def test_the_table_and_what_is_wrong(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump_all([FLAVOR, *NODES, *TWO]))
    shown = CliRunner().invoke(app, ["defrag", "--dry-run", "-f", str(path)]).stdout
    assert "0 of 2 domains of example.com/rack are whole" in shown
    assert "team/a" in shown
    for args, says in (
        (["-f", str(path)], "--dry-run"),
        (["--dry-run", "-f", str(path), "--level", "row"], "--level row"),
        (["--dry-run", "-f", str(path), "--flavor", "x"], "--flavor x"),
    ):
        failed = CliRunner().invoke(app, ["defrag", *args])
        assert isinstance(failed.exception, Failure)
        assert says in str(failed.exception)

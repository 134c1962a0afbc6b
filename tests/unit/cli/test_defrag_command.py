"""`topogate defrag` on snapshots: what moves, what is left and why, and how it is told."""

import json

import yaml
from support.snapshots import FLAVOR, HOST, RACK, foreign, node, running
from typer.testing import CliRunner

from cli.main import app
from cli.output import Failure

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
    assert CliRunner().invoke(app, ["defrag", "-f", str(path)]).stdout == shown, "it only plans unless it is told"
    for args, says in (
        (["--run", "-f", str(path)], "leave out"),
        (["--run", "--dry-run"], "leave out"),
        (["--dry-run", "-f", str(path), "--level", "row"], "--level row"),
        (["--dry-run", "-f", str(path), "--flavor", "x"], "--flavor x"),
    ):
        failed = CliRunner().invoke(app, ["defrag", *args])
        assert isinstance(failed.exception, Failure)
        assert says in str(failed.exception)

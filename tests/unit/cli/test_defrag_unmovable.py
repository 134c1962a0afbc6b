"""Whom a plan of `topogate defrag --run` leaves out: all whom the controller would refuse to move."""

import pytest
import yaml
from support.snapshots import FLAVOR, HOST, node, steady

from cli.cluster import dump as dumps
from cli.defrag import command
from crds.settings import Settings

NODES = [node(f"r{rack}h{host}", f"r{rack}") for rack in (1, 2) for host in (1, 2)]
SPARED = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "spared", "annotations": {"topogate.dev/preemptible": "false"}},
    "value": 0,
}


def plan(tmp_path, *items, run=True):
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump_all([FLAVOR, SPARED, *NODES, *items]))
    return command.report(dumps.read([str(path)]), Settings(), "", "", None, run=run)


def everywhere(key, value):
    """Written into the spec of the pods and of the template that they are made of."""

    def change(job, pods):
        for spec in (job["spec"]["template"]["spec"], *(pod["spec"] for pod in pods)):
            spec[key] = value

    return change


def not_safe(_, pods):
    pods[0]["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] = "false"


def in_slices(job, _):
    notes = {
        "kueue.x-k8s.io/podset-slice-required-topology": HOST,
        "kueue.x-k8s.io/podset-slice-size": "1",
    }
    job["metadata"]["annotations"].update(notes)


def not_ready(job, pods):
    job["status"]["ready"] = 0
    pods[0]["status"]["conditions"] = []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (not_safe, "pod moves-0 is not safe to evict"),
        (everywhere("terminationGracePeriodSeconds", 601), "pod moves-0 may take more than 600 s to stop"),
        (everywhere("resourceClaims", [{"name": "c", "resourceClaimName": "c"}]), "resource claims"),
        (everywhere("priorityClassName", "spared"), "non-preemptible"),
        (not_ready, "not all of its pods run in their slots and are ready"),
    ],
)
def test_one_that_the_controller_would_not_move_is_left_and_the_others_are_moved(tmp_path, change, says):
    job, workload, *pods = steady("moves", ["r1h1"], 4)
    other = steady("other", ["r2h2"], 4)
    items = [*other, job, workload, *pods]
    assert plan(tmp_path, *items).left == ()
    change(job, pods)
    found = plan(tmp_path, *items)
    ((left, why),) = [(one.job, one.why) for one in found.left]
    assert left == "team/moves"
    assert says in why
    assert [move.job for step in found.steps for move in step.moves] == ["team/other"]


def test_one_with_slices_is_moved_as_a_whole(tmp_path):
    job, workload, *pods = steady("moves", ["r1h1"], 4)
    in_slices(job, pods)
    found = plan(tmp_path, job, workload, *pods)
    assert found.left == ()
    other = steady("other", ["r2h2"], 4)
    found = plan(tmp_path, *other, job, workload, *pods)
    moves = [move for step in found.steps for move in step.moves]
    assert moves
    assert all(not set(move.before) & set(move.after) for move in moves if move.job == "team/moves")


def test_a_plan_that_nobody_carries_out_has_them_too(tmp_path):
    job, workload, *pods = steady("moves", ["r1h1"], 4)
    not_safe(job, pods)
    assert plan(tmp_path, job, workload, *pods, run=False).left == ()

"""Objects as facts: odd ones are no error, and what a tenant writes changes nothing of others'."""

import msgspec
import pytest
from support.web_cluster import items

from cli.cluster.dump import FoundObject
from cli.web.snapshot import ClusterSnapshot
from clock import SYSTEM
from crds.constants import Keys
from crds.settings import Settings
from kube import objects
from kube.workloads import WorkloadObject
from localcluster.nodes import BLOCK_LABEL
from web import facts
from web.inside import workload
from web.picture import HOLDER, holder_row


@pytest.fixture(scope="module")
def snapshot():
    bodies = items(2, 3, 4, machines=6)
    return ClusterSnapshot(
        (FoundObject("made", b"", 0, None, body, body["kind"]) for body in bodies), Settings(), "made"
    )


def read_pod(**metadata):
    body = {
        "metadata": {"name": "p", "namespace": "team", **metadata},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "resources": {"limits": {facts.GPU: "2"}}}]},
        "status": {"phase": "Running"},
    }
    return facts.pod(msgspec.convert(body, objects.Pod), facts.GPU, Keys())


def test_all_amounts_of_a_cluster_are_told(snapshot):
    board = snapshot.board
    pods = [one for one in board.pods.values() if one.node]
    told = [one for name in board.hosts for one in board.row(name).held]
    assert sum(one.used for one in told) == sum(one.amount for one in pods) > 0
    slots = sum(amount for one in board.holders.values() for _, amount in one.slots)
    ours = sum(one.amount for one in pods if board.holders.get(one.holder))
    assert sum(one.promised for one in told) == slots - ours


def test_a_snapshot_is_as_old_as_its_news_unless_it_was_taken_now(snapshot):
    bodies = items(1, 1, 1)
    taken = ClusterSnapshot(
        (FoundObject("made", b"", 0, None, body, body["kind"]) for body in bodies), Settings(), "made", 5e9
    )
    assert taken.clock(SYSTEM).now() == 5e9, "nothing has happened in it for years"
    assert 0 < snapshot.clock(SYSTEM).now() == snapshot.taken < 5e9


def test_a_workload_waits_starts_and_runs(snapshot):
    rows = [dict(zip(HOLDER, holder_row(snapshot.board, key), strict=True)) for key in snapshot.board.all_holders()]
    by_state = {row["state"]: row for row in rows}
    assert {"waiting", "running", "foreign"} <= by_state.keys()
    assert by_state["waiting"]["wants"] > 0
    assert by_state["waiting"]["clusterQueue"] in {"language", "vision", "speech", "research"}
    assert by_state["running"]["running"] == by_state["running"]["count"]


def test_a_workload_tells_what_it_asked_for_and_since_when_it_waits(snapshot):
    waits = next(one for one in snapshot.board.holders.values() if one.reason == "DoesNotFit")
    (asked,) = workload(snapshot.board, waits.key)["asked"]
    assert asked == ["main", waits.count, 8, "Required", BLOCK_LABEL]
    assert waits.wants == waits.count * 8
    assert waits.created < waits.since < waits.created + 60, "the condition tells, and not its age"
    runs = next(one for one in snapshot.board.holders.values() if one.admitted)
    assert runs.since == 0.0
    assert runs.asked


def test_a_workload_of_which_no_template_is_known_tells_no_request():
    wire = {"metadata": {"name": "w", "namespace": "team"}, "spec": {"podSets": [{"name": "main", "count": 2}]}}
    found = facts.workload(msgspec.convert(wire, WorkloadObject), facts.GPU)
    assert (found.asked, found.wants, found.reason, found.since) == ((), 0, "Pending", 0.0)


def test_a_pod_is_a_workloads_within_its_own_namespace_alone():
    forged = read_pod(annotations={Keys().workload: "../other/work"})
    assert forged.holder == "team/../other/work"
    assert forged.holder.partition("/")[0] == "team"


def test_a_pod_tells_when_it_was_bound():
    at = "2026-11-23T12:00:00Z"
    body = {
        "metadata": {"name": "p", "namespace": "team"},
        "spec": {"containers": [{"resources": {"limits": {facts.GPU: "1"}}}]},
    }

    def bound(**condition):
        status = {"conditions": [{"type": "PodScheduled", "lastTransitionTime": at, **condition}]}
        return facts.pod(msgspec.convert({**body, "status": status}, objects.Pod), facts.GPU, Keys()).bound

    assert bound(status="True") == facts.seconds(at)
    assert bound(status="False", reason="SchedulingGated") == 0.0


@pytest.mark.parametrize(
    ("node", "status", "reason"),
    [
        ("", {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}, "Unschedulable"),
        ("", {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]}, ""),
        ("n", {"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull"}}}]}, "ErrImagePull"),
        ("n", {"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}, ""),
    ],
)
def test_a_pod_tells_why_it_does_not_run(node, status, reason):
    spec = {"nodeName": node, "containers": [{"resources": {"limits": {facts.GPU: "1"}}}]}
    body = {"metadata": {"name": "p", "namespace": "team"}, "spec": spec, "status": status}
    assert facts.pod(msgspec.convert(body, objects.Pod), facts.GPU, Keys()).reason == reason


def test_a_pod_without_a_controller_is_its_own_holder():
    assert read_pod().holder == "team/Pod/p"


@pytest.mark.parametrize("record", ["", "{", "[]", '[{"zone": "node-9999", "amount": {}}]', "x" * 10_000])
def test_a_placement_that_cannot_be_read_is_none(record):
    found = read_pod(annotations={"topogate.dev/numa-placement-observed": record})
    assert found.placement is None
    assert found.zones == ()


@pytest.mark.parametrize("text", [None, "", "yesterday", "9999999999-01-01", "2024-01-01T00:00:00Z"])
def test_a_time_that_cannot_be_read_is_none(text):
    assert facts.seconds(text) in {0.0, 1704067200.0}

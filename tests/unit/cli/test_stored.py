"""What `explain`, `queues` and `place` answer from, if whoever asks may not look at the whole cluster."""

import msgspec
from rich.console import Console

from cli import stored
from kube.objects import Pod
from kube.queues import LocalQueue
from kube.workloads import WholeWorkload

OWNER = [{"kind": "Job", "name": "train", "uid": "u", "controller": True}]


def workload(*conditions, active=True):
    said = [{"type": kind, "status": status, "reason": why, "message": text} for kind, status, why, text in conditions]
    body = {
        "metadata": {"name": "job-train-0123456789", "namespace": "ns", "ownerReferences": OWNER},
        "spec": {"active": active, "queueName": "team"},
        "status": {"conditions": said},
    }
    return msgspec.convert(body, WholeWorkload)


def state(*conditions, **more):
    found = stored._stored(workload(*conditions, **more))
    return found.state, found.reason, found.message


def text(made):
    console = Console(width=160)
    with console.capture() as captured:
        console.print(made)
    return captured.get()


def test_what_its_conditions_say_is_the_state_of_a_job():
    waits = ("QuotaReserved", "False", "DoesNotFit", "4 pods do not fit")
    placed = ("Admitted", "True", "Admitted", "4 pods in b1/r1")
    assert state() == ("Waiting", "Pending", "the controller has not looked at it yet")
    assert state(waits) == ("Waiting", "DoesNotFit", "4 pods do not fit")
    assert state(waits, active=False) == ("OnHold", "", "`topogate release` has it wait again")
    assert state(placed) == ("Placed", "Admitted", "4 pods in b1/r1")
    assert state(placed, ("Finished", "True", "Succeeded", "done")) == ("Finished", "Succeeded", "done")


def test_pods_that_have_a_place_and_do_not_run_are_told():
    placed = ("Admitted", "True", "Admitted", "4 pods in b1/r1")
    found = stored._stored(workload(placed, ("PodsReady", "False", "SchedulerRefused", "0/4 nodes")))
    assert found.hanging == "SchedulerRefused: 0/4 nodes"
    assert "Not all of it runs  SchedulerRefused: 0/4 nodes" in text(stored.render_jobs([found]))


def pod(name, workload_name, node="", gates=()):
    annotations = {"any.example.com/topology-workload": workload_name, "other": "job-train-0123456789"}
    meta = {"name": name, "namespace": "ns", "annotations": annotations}
    spec = {"nodeName": node, "schedulingGates": [{"name": gate} for gate in gates]}
    return msgspec.convert({"metadata": meta, "spec": spec, "status": {"phase": "Pending"}}, Pod)


def test_pods_are_those_that_name_the_workload_under_any_domain():
    there = [
        pod("b", "job-train-0123456789", "n1"),
        pod("a", "job-train-0123456789", gates=["g"]),
        pod("c", "job-other-0123456789"),
    ]
    found = stored._pods_of(workload(), there)
    assert [(one.name, one.node, one.gated) for one in found] == [("a", "", True), ("b", "n1", False)]


def test_a_queue_is_told_with_what_it_uses_and_why_it_admits_nothing():
    usage = [{"name": name, "resources": [{"name": "gpu", "total": total}]} for name, total in (("x", "8"), ("y", "0"))]
    status = {
        "pendingWorkloads": 2,
        "flavorsReservation": usage,
        "conditions": [{"type": "Active", "status": "False", "reason": "QueueStopped", "message": "it is on hold"}],
    }
    made = msgspec.convert(
        {"metadata": {"name": "team", "namespace": "ns"}, "spec": {"clusterQueue": "all"}, "status": status}, LocalQueue
    )
    queue = stored._queue(made)
    assert queue == stored.StoredQueue("team", "all", 2, 0, ("8 gpu",), "QueueStopped: it is on hold")
    shown = text(stored.render_queues(stored.StoredQueues((queue,), ())))
    assert "QueueStopped: it is on hold" in shown
    assert "topogate-inspect" in shown
    empty = msgspec.convert({"metadata": {"name": "new", "namespace": "ns"}}, LocalQueue)
    assert stored._queue(empty) == stored.StoredQueue("new", "", 0, 0, (), "")

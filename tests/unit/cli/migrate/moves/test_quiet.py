"""What of Kueue is under way, and what cannot be handed over."""

import msgspec
import pytest

from cli.migrate.moves.quiet import find_obstacles, find_unquiet, running_jobs
from kube.objects import Pod
from ungater.model.kueue_objects import KueueWorkload

PODSET = {"kueue.x-k8s.io/podset": "main"}


def job(name="train", *, suspend=False, labels=None, uid="u", **more):
    template = {"metadata": {"labels": PODSET if labels is None else labels}, "spec": {}}
    return {
        "kind": "Job",
        "metadata": {"name": name, "namespace": "team", "uid": uid},
        "spec": {"suspend": suspend, "template": template, **more},
    }


def workload(*true, admission=True, uid="u"):
    status = {"conditions": [{"type": one, "status": "True"} for one in true]}
    if admission:
        status["admission"] = {"clusterQueue": "q"}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": uid, "controller": True}
    meta = {"name": "job-train", "namespace": "team", "ownerReferences": [owner]}
    return msgspec.convert({"metadata": meta, "status": status}, KueueWorkload)


def pod(*, node="n", labels=None, gates=(), phase="Running", ending=False):
    meta = {"name": "p", "namespace": "team", "labels": PODSET if labels is None else labels}
    if ending:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    spec = {"nodeName": node, "schedulingGates": [{"name": one} for one in gates]}
    return msgspec.convert({"metadata": meta, "spec": spec, "status": {"phase": phase}}, Pod)


RESERVED, RUNS = ("QuotaReserved",), ("QuotaReserved", "Admitted")


@pytest.mark.parametrize(
    ("one", "body", "said"),
    [
        (workload(*RUNS), job(), None),
        (workload(admission=False), job(suspend=True), None),
        (workload(*RESERVED), job(suspend=True), "has its quota reserved, and is not admitted yet"),
        (workload(*RUNS, "Evicted"), job(), "is being evicted"),
        (workload("Evicted", admission=False), job(suspend=True), None),
        (workload(*RUNS), job(suspend=True), "Job team/train is admitted, and not started yet"),
        (workload(*RUNS), job(labels={}), "would be suspended here"),
        (workload(*RUNS, "Finished"), job(suspend=True), None),
        (workload(*RUNS), None, None),
    ],
)
def test_workloads_between_two_states_are_under_way(one, body, said):
    found = [*find_unquiet([one], {"u": body} if body else {}, [])]
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


@pytest.mark.parametrize(
    ("one", "count"),
    [
        (pod(), 0),
        (pod(node="", phase="Pending"), 1),
        (pod(node="", gates=["kueue.x-k8s.io/topology"], phase="Pending"), 1),
        (pod(node="", ending=True), 0),
        (pod(node="", phase="Failed"), 0),
        (pod(node="", labels={}), 0),
    ],
)
def test_a_pod_of_kueue_without_a_node_is_under_way(one, count):
    assert [*find_unquiet([], {}, [one])] == ["pod team/p is not on a node yet"] * count


def test_each_template_of_a_jobset_counts():
    def replicated(*labels):
        pods = [{"template": {"spec": {"template": {"metadata": {"labels": one}}}}} for one in labels]
        return {**job(), "kind": "JobSet", "spec": {"replicatedJobs": pods}}

    assert [*find_unquiet([workload(*RUNS)], {"u": replicated(PODSET, PODSET)}, [])] == []
    assert len([*find_unquiet([workload(*RUNS)], {"u": replicated(PODSET, {})}, [])]) == 1


def test_pods_at_the_gate_of_kueue_and_jobs_in_other_clusters_cannot_be_handed_over():
    gated = pod(node="", gates=["kueue.x-k8s.io/admission"], phase="Pending")
    (text,) = find_obstacles({}, [gated, pod()])
    assert text.startswith("pod team/p waits behind Kueue's gate kueue.x-k8s.io/admission")
    (text,) = find_obstacles({"u": job(managedBy="kueue.x-k8s.io/multikueue")}, [])
    assert text.startswith("Job team/train runs in another cluster")


def test_jobs_that_run_by_kueue_are_to_be_taken_over():
    ended = {**job(), "status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    assert running_jobs([workload(*RUNS)], {"u": job()}) == {"u": "Job team/train"}
    assert running_jobs([workload(*RUNS)], {"u": job(suspend=True)}) == {}
    assert running_jobs([workload(*RUNS)], {"u": ended}) == {}
    assert running_jobs([workload(*RESERVED)], {"u": job()}) == {}
    assert running_jobs([workload(*RUNS, "Evicted")], {"u": job()}) == {}

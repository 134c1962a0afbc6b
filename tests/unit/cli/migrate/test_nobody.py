"""`--check`: who would queue a job."""

import pytest

from cli.migrate.check import differing_fields, render_findings
from cli.migrate.nobody import ServingView, find_unserved, read_queued
from kube.objects import LabelSelector, ObjectMeta
from kube.queues import ClusterQueue, ClusterQueueSpec, LocalQueue, LocalQueueSpec


def view(**changes):
    queue = ClusterQueue(
        metadata=ObjectMeta(name="q"), spec=ClusterQueueSpec(namespace_selector=LabelSelector(match_labels={"a": "b"}))
    )
    local = LocalQueue(metadata=ObjectMeta(name="l", namespace="team"), spec=LocalQueueSpec(cluster_queue="q"))
    plain = {
        "domain": "kueue.x-k8s.io",
        "cluster_queues": {"q": queue},
        "local_queues": {("team", "l"): local},
        "namespaces": {"team": {"a": "b"}},
        "kueue_runs": False,
        "kueue_queues": frozenset(),
        "classes": frozenset({"high"}),
    }
    return ServingView(**plain | changes)


def job(name="j", queue="l", *, labels=None, annotations=None, status=None):
    meta = {
        "name": name,
        "namespace": "team",
        "labels": {"kueue.x-k8s.io/queue-name": queue, **(labels or {})},
        "annotations": annotations or {},
    }
    return {"kind": "Job", "metadata": meta, "status": status}


def said(seen, *bodies):
    return [one.message for one in find_unserved(seen, filter(None, map(read_queued, bodies)))]


def test_a_job_that_topogate_queues_has_no_finding():
    assert said(view(), job(labels={"kueue.x-k8s.io/priority-class": "high"})) == []


def test_a_job_that_kueue_alone_queues_has_no_finding():
    beside = view(domain="topogate.dev", kueue_runs=True, kueue_queues={("team", "k")}, classes=())
    assert said(beside, job(queue="k", annotations={"kueue.x-k8s.io/elastic-job": "true"})) == []


SERVED = {"team": {"a": "b", "topogate.dev/served": "true"}}
BESIDE = {"beside": True, "left_out": True, "kueue_runs": True, "kueue_queues": {("team", "l")}}


def test_beside_kueue_the_label_of_the_namespace_says_who_queues_a_job():
    assert said(view(**BESIDE, namespaces=SERVED), job()) == []
    assert said(view(**BESIDE), job()) == []


def test_a_namespace_that_is_served_and_not_left_out_by_kueue_is_told():
    (found,) = find_unserved(view(**BESIDE | {"left_out": False}, namespaces=SERVED), [read_queued(job())])
    assert found.message == "both Kueue and Topogate have the queue l, and each would start the job"
    assert "Move while Kueue runs" in found.mend


def test_a_namespace_without_the_label_and_without_kueue_is_told():
    (found,) = find_unserved(view(**BESIDE | {"kueue_runs": False}), [read_queued(job())])
    assert found.message == (
        "nobody queues it: Topogate serves namespaces with the label topogate.dev/served=true alone, and team lacks it"
    )
    assert found.mend.startswith("`kubectl label namespace team topogate.dev/served=true --overwrite`")


def test_a_namespace_with_another_value_is_nobodys_since_kueue_leaves_it_out():
    other = {"team": {"a": "b", "topogate.dev/served": "yes"}}
    (found,) = find_unserved(view(**BESIDE, namespaces=other), [read_queued(job())])
    assert found.message.startswith("nobody queues it: Topogate serves namespaces with the label")


@pytest.mark.parametrize(
    ("changes", "body", "message"),
    [
        ({"domain": ""}, job(), "nobody queues it: Kueue does not, and Topogate is not installed"),
        (
            {"domain": "topogate.dev", "kueue_queues": {("team", "l")}},
            job(),
            "nobody queues it: Kueue does not, and Topogate reads the label topogate.dev/queue-name here",
        ),
        ({}, job(queue="k"), "nobody queues it: namespace team has no LocalQueue k"),
        (
            {"cluster_queues": {}},
            job(),
            "nobody queues it: LocalQueue l leads to ClusterQueue q, which is not there",
        ),
        ({"namespaces": {}}, job(), "nobody queues it: ClusterQueue q does not select namespace team"),
        (
            {"kueue_runs": True, "kueue_queues": {("team", "l")}},
            job(),
            "both Kueue and Topogate have the queue l, and each would start the job",
        ),
        ({}, job(labels={"kueue.x-k8s.io/priority-class": "low"}), "there is no WorkloadPriorityClass low"),
        (
            {},
            job(annotations={"kueue.x-k8s.io/pod-group-serving": "true"}),
            "kueue.x-k8s.io/pod-group-serving: a pod group ends when its pods have ended",
        ),
    ],
)
def test_each_fault_has_its_finding(changes, body, message):
    seen = view(**changes)
    assert said(seen, body) == [message]
    (found,) = find_unserved(seen, [read_queued(body)])
    assert found.about == "team: job/j"
    assert found.mend


def test_jobs_with_the_same_fault_are_one_finding():
    (found,) = find_unserved(view(), [read_queued(job(f"j{at}", "k")) for at in range(5)])
    assert found.about == "team: job/j0, job/j1, job/j2 and 2 more"


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Succeeded"},
        {"phase": "Failed"},
        {"conditions": [{"type": "Complete", "status": "True"}]},
        {"conditions": ["odd", {"type": "Completed", "status": "True"}]},
    ],
)
def test_what_is_over_waits_for_nobody(status):
    assert read_queued(job(status=status)) is None


def test_what_names_no_queue_is_nobodys_business():
    assert read_queued({"kind": "Job", "metadata": {"name": "j", "labels": None}}) is None


def test_defaults_that_a_server_adds_are_no_difference():
    wanted = {"kind": "ClusterQueue", "metadata": {"name": "q"}, "spec": {"preemption": {}, "stopPolicy": "Hold"}}
    stored = {"metadata": {}, "spec": {"preemption": {"withinClusterQueue": "Never"}, "stopPolicy": "Hold", "x": 1}}
    assert [*differing_fields(wanted, stored)] == []
    assert [*differing_fields({"spec": {"a": "1Gi", "b": 4}}, {"spec": {"a": 1 << 30, "b": "4000m"}})] == []
    assert [*differing_fields({"spec": {"a": "x", "b": 4}}, {"spec": {"a": "y"}})] == ["spec.a", "spec.b"]
    stored["spec"]["stopPolicy"] = "None"
    assert [*differing_fields(wanted, stored)] == ["spec.stopPolicy"]


def test_no_finding_is_told_too():
    (line,) = render_findings([]).renderables
    assert line.plain.startswith("Each job that names a queue is queued")

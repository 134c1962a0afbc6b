"""Keys of Kueue on jobs, pods and owners, which stay as they are."""

import pytest
import yaml
from support.migrating import migrated

from cli.migrate.judge_workloads import TOLD
from cli.migrate.migration import migrate_objects
from cli.migrate.source_objects import read_files
from crds.owner_templates import OWNERS

QUEUE = {"kueue.x-k8s.io/queue-name": "q"}


def job(kind="Job", *, labels=None, annotations=None, template=None):
    meta = {"name": "j", "labels": labels or {}, "annotations": annotations or {}}
    return {"apiVersion": "x/v1", "kind": kind, "metadata": meta, "spec": {"template": {"metadata": template or {}}}}


def judged(body):
    return [(row.field, row.outcome) for row in migrated(body).rows]


def test_a_job_with_keys_that_are_read_is_taken():
    required = {"kueue.x-k8s.io/podset-required-topology": "rack"}
    body = job(labels={**QUEUE, "team": "a"}, template={"annotations": required})
    assert judged(body) == [
        ("", "taken"),
        ("metadata.labels[kueue.x-k8s.io/queue-name]", "taken"),
        ("spec.template.metadata.annotations[kueue.x-k8s.io/podset-required-topology]", "taken"),
    ]


def test_an_object_without_keys_is_left():
    assert judged(job()) == [("", "left")]


@pytest.mark.parametrize(
    "key",
    [
        *TOLD,
        "kueue.x-k8s.io/unheard",
        "provreq.kueue.x-k8s.io/maxRunDurationSeconds",
        "kueue.x-k8s.io/multikueue-origin",
    ],
)
def test_each_key_that_nobody_reads_is_told_with_what_to_do(key):
    (row,) = [one for one in migrated(job(annotations={key: "1"})).rows if one.field]
    assert row.outcome == "refused"
    assert row.why
    assert row.instead


def test_the_group_of_a_pod_is_a_label_or_an_annotation():
    key = "kueue.x-k8s.io/pod-group-name"
    assert judged(job("Pod", labels={key: "g"}))[1] == (f"metadata.labels[{key}]", "taken")
    assert judged(job("Pod", annotations={key: "g"}))[1] == (f"metadata.annotations[{key}]", "taken")


def test_the_rank_of_a_pod_is_read_from_the_label_that_a_refusal_names():
    key = "kueue.x-k8s.io/pod-group-pod-index"
    assert judged(job("Pod", labels={key: "3"}))[1] == (f"metadata.labels[{key}]", "taken")


@pytest.mark.parametrize("name", ["managed", "workload", "cluster-queue-name", "local-queue-name"])
def test_what_kueue_wrote_on_a_pod_of_a_live_cluster_is_nobodys_to_remove(name):
    key = f"kueue.x-k8s.io/{name}"
    assert judged(job("Pod", labels={key: "true"}))[1] == (f"metadata.labels[{key}]", "left")


@pytest.mark.parametrize("kind", ["Job", "JobSet", "Pod", *(one.kind for one in OWNERS if one.queues)])
def test_the_queue_on_an_owner_that_is_queued_is_taken(kind):
    assert judged(job(kind, labels=QUEUE))[0] == ("", "taken")


@pytest.mark.parametrize(
    "kind", ["Sandbox", "PipelineRun", "Workflow", "MiniCluster", "CronJob", "TrainJob", "Unheard"]
)
def test_the_queue_on_an_owner_whose_pods_do_not_get_it_is_refused(kind):
    assert judged(job(kind, labels=QUEUE))[0] == ("", "refused")
    assert judged(job(kind, template={"labels": QUEUE}))[0] == ("", "taken")


@pytest.mark.parametrize("spec", [{"suspend": True}, {"runPolicy": {"suspend": True}}])
def test_nobody_resumes_an_owner_that_kueue_would(spec):
    (field,) = [f"spec.{key}" if value is True else f"spec.{key}.suspend" for key, value in spec.items()]
    assert (field, "refused") in judged(job("PyTorchJob", labels=QUEUE) | {"spec": spec})
    assert (field, "refused") not in judged(job("Job", labels=QUEUE) | {"spec": spec})
    assert judged(job("PyTorchJob") | {"spec": spec}) == [("", "left")]


def test_odd_metadata_is_passed_over():
    assert judged({"apiVersion": "v1", "kind": "Pod", "metadata": [1], "spec": {"labels": "x"}})[0] == ("", "left")


@pytest.mark.parametrize("version", [{}, {"apiVersion": ""}, {"apiVersion": None}, {"apiVersion": 7}])
def test_an_object_that_does_not_say_whose_it_is_is_refused(version, tmp_path):
    """It may be a queue of Kueue's whose first line was lost, and nothing is left out without a word."""
    for kind in ("ClusterQueue", "Service"):
        body = {**version, "kind": kind, "metadata": {"name": "q"}}
        (tmp_path / "a.yaml").write_text(yaml.safe_dump(body))
        report = migrate_objects(read_files([str(tmp_path / "a.yaml")]))
        assert [(row.outcome, row.name) for row in report.rows] == [("refused", "q")]
        assert report.has_refusals(), "the exit status is 3"

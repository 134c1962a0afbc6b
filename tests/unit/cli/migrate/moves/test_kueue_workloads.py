"""What Kueue needs to let a job run on that was started here."""

import copy

import msgspec

from cli.migrate.moves.kueue_workloads import (
    counts_of,
    holds_quota,
    make_status,
    make_workload,
    places_of,
    says_the_same,
    strip_template,
)
from cli.migrate.moves.take_back import unstamp_job
from crds.kueue.assignment import decode
from ungater.model.kueue_objects import KueueWorkload

GATE = "kueue.x-k8s.io/topology"
STAMPED = {
    "metadata": {
        "labels": {"a": "b"},
        "annotations": {
            "kueue.x-k8s.io/topology-podset": "main",
            "kueue.x-k8s.io/podset-required-topology": "rack",
            "kueue.x-k8s.io/podset-unconstrained-topology": "true",
            "mine": "1",
        },
    },
    "spec": {"schedulingGates": [{"name": GATE}, {"name": "other"}], "containers": [{"name": "c"}]},
}
SINCE = "2026-01-01T00:00:00Z"


def job(**spec):
    labels = {"kueue.x-k8s.io/queue-name": "team", "kueue.x-k8s.io/priority-class": "high"}
    meta = {"name": "train", "namespace": "x", "uid": "u", "labels": labels, "resourceVersion": "7"}
    body = {"parallelism": 4, "completions": 4, "template": STAMPED, **spec}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": body}


def ours(count=4, *, levels=("rack", "kubernetes.io/hostname"), **spec):
    slices = [{"nodeLabels": dict(zip(levels, ("r1", host)[-len(levels) :], strict=True)), "count": 2} for host in "ba"]
    part = {
        "name": "main",
        "count": count,
        "flavors": {"cpu": "f", "nvidia.com/gpu": "f"},
        "resourceUsage": {"cpu": f"{count * 500}m", "nvidia.com/gpu": count, "pods": count},
        "topologyAssignment": {"levels": list(levels), "slices": slices},
    }
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": SINCE} for kind in ("QuotaReserved", "Admitted")
    ]
    made = {"podSets": [{"name": "main", "count": 4, "template": STAMPED}], "priority": 7, "priorityClassName": "high"}
    status = {"conditions": conditions, "admission": {"clusterQueue": "q", "podSetAssignments": [part]}}
    return {"spec": made | spec, "status": status | {"accumulatedPastExecutionTimeSeconds": 60}}


def test_the_workload_is_of_the_job_and_without_stamps():
    made = make_workload(ours(maximumExecutionTimeSeconds=900), job())
    meta, spec = made["metadata"], made["spec"]
    assert meta["ownerReferences"][0] | {"blockOwnerDeletion": None} == {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": "train",
        "uid": "u",
        "controller": True,
        "blockOwnerDeletion": None,
    }
    assert meta["finalizers"] == ["kueue.x-k8s.io/resource-in-use"]
    assert meta["labels"] == {"kueue.x-k8s.io/job-uid": "u"}
    assert (spec["queueName"], spec["priority"], spec["maximumExecutionTimeSeconds"]) == ("team", 7, 900)
    assert spec["priorityClassRef"] == {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "high"}
    (pods,) = spec["podSets"]
    assert pods["template"]["spec"]["schedulingGates"] == [{"name": "other"}]
    assert "kueue.x-k8s.io/topology-podset" not in pods["template"]["metadata"]["annotations"]
    assert pods["topologyRequest"] == {"required": "rack", "podIndexLabel": "batch.kubernetes.io/job-completion-index"}


def test_in_a_queue_without_a_topology_it_asks_for_no_place():
    free = copy.deepcopy(STAMPED)
    del free["metadata"]["annotations"]["kueue.x-k8s.io/podset-required-topology"]
    kept = ours(podSets=[{"name": "main", "count": 4, "template": free}])
    for placed, request in ((True, {"unconstrained": True}), (False, {})):
        (pods,) = make_workload(kept, job(), placed=placed)["spec"]["podSets"]
        assert {key: value for key, value in pods["topologyRequest"].items() if key != "podIndexLabel"} == request


def test_it_has_the_name_that_its_pods_say():
    body = job()
    named = copy.deepcopy(STAMPED)
    named["metadata"]["annotations"]["kueue.x-k8s.io/workload"] = "job-train-12345"
    assert make_workload(ours(), job(template=named))["metadata"]["name"] == "job-train-12345"
    assert make_workload(ours(), body)["metadata"]["name"].startswith("job-train-")


def test_a_class_of_kubernetes_is_told_from_one_of_kueue():
    ref = make_workload(ours(priorityClassName="pods"), job())["spec"]["priorityClassRef"]
    assert ref == {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "pods"}


def test_it_is_admitted_as_the_job_runs_by_host_and_since_then():
    status = make_status(ours(), job())
    (part,) = status["admission"]["podSetAssignments"]
    assert part["count"] == 4
    assert part["resourceUsage"] == {"cpu": "2", "nvidia.com/gpu": "4"}, "without resources that no flavor pays for"
    assert decode(part["topologyAssignment"]) == (("kubernetes.io/hostname",), [(("b",), 2), (("a",), 2)])
    said = {one["type"]: (one["status"], one["lastTransitionTime"]) for one in status["conditions"]}
    assert said == dict.fromkeys(("QuotaReserved", "Admitted", "PodsReady"), ("True", SINCE))
    assert status["accumulatedPastExecutionTimeSeconds"] == 60


def test_checks_of_its_queue_count_as_passed():
    assert "admissionChecks" not in make_status(ours(), job())
    (check,) = make_status(ours(), job(), ["nodes"])["admissionChecks"]
    assert (check["name"], check["state"], check["lastTransitionTime"]) == ("nodes", "Ready", SINCE)


def test_levels_without_hosts_stay():
    (part,) = make_status(ours(levels=("rack",)), job())["admission"]["podSetAssignments"]
    assert decode(part["topologyAssignment"])[0] == ("rack",)


def test_all_pods_of_a_job_count_where_some_have_lost_their_slots():
    (part,) = make_status(ours(count=3), job())["admission"]["podSetAssignments"]
    # Kueue 0.19.2, validateAdmission: a multiple of the count.
    assert (part["count"], part["resourceUsage"]) == (4, {"cpu": "2", "nvidia.com/gpu": "4"})


def test_pods_are_counted_as_kueue_does():
    assert counts_of(job(parallelism=4, completions=2)) == [2]
    assert counts_of(job(parallelism=4, completions=None)) == [4]
    replicated = [
        {"replicas": 3, "template": {"spec": {"parallelism": 2, "completions": 2}}},
        {"template": {"spec": {"parallelism": 5, "completions": 4}}},
    ]
    assert counts_of({"spec": {"replicatedJobs": replicated}}) == [6, 4]


def kueue(status):
    return msgspec.convert({"metadata": {"name": "w"}, "status": status}, KueueWorkload)


def test_a_workload_says_the_same_by_queue_counts_and_flavors_wherever_its_pods_are():
    wanted = make_status(ours(), job())
    assert says_the_same(kueue(wanted), wanted)
    elsewhere = copy.deepcopy(wanted)
    del elsewhere["admission"]["podSetAssignments"][0]["topologyAssignment"]
    assert says_the_same(kueue(elsewhere), wanted)
    assert places_of(elsewhere) != places_of(wanted) == places_of(copy.deepcopy(wanted))
    for change in ({"count": 3}, {"flavors": {"cpu": "g", "nvidia.com/gpu": "f"}}, {"name": "other"}):
        other = copy.deepcopy(wanted)
        other["admission"]["podSetAssignments"][0] |= change
        assert not says_the_same(kueue(other), wanted)
    assert not says_the_same(kueue({**wanted, "admission": {**wanted["admission"], "clusterQueue": "p"}}), wanted)
    assert not says_the_same(kueue({}), wanted)
    assert holds_quota(kueue(wanted))
    assert not holds_quota(kueue({}))


def test_a_template_that_was_never_stamped_stays_as_it_is():
    plain = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": []}}
    assert strip_template(plain) == plain
    assert unstamp_job(job(template=plain), placed=True) == {}


def test_a_job_that_waits_loses_the_gate_and_what_came_with_it():
    change = unstamp_job(job(), placed=True)["spec"]["template"]
    assert change["spec"] == {"schedulingGates": [{"name": "other"}]}
    assert change["metadata"]["annotations"] == {"kueue.x-k8s.io/topology-podset": None}
    gone = unstamp_job(job(), placed=False)["spec"]["template"]["metadata"]["annotations"]
    assert gone["kueue.x-k8s.io/podset-unconstrained-topology"] is None, "Kueue admits no such job without a topology"


def test_a_jobset_gets_its_list_whole_and_only_as_it_was_read():
    replicated = [{"name": "a", "template": {"spec": {"parallelism": 1, "template": STAMPED}}}]
    body = {**job(), "kind": "JobSet", "spec": {"replicatedJobs": replicated}}
    change = unstamp_job(body, placed=True)
    assert change["metadata"]["resourceVersion"] == "7"
    (one,) = change["spec"]["replicatedJobs"]
    assert one["template"]["spec"]["template"] == strip_template(STAMPED)
    assert (one["name"], one["template"]["spec"]["parallelism"]) == ("a", 1)

"""ClusterQueue, LocalQueue and checks of Kueue 0.19.2 as ours."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.migrating import group, made_of, migrated, of_kueue, outcome_of, rows_of

from kube import queues
from kube.connection.answers import decode
from kube.resources import CLUSTER_QUEUES

CHECKED = {"admissionChecksStrategy": {"admissionChecks": [{"name": "check", "onFlavors": ["f0"]}]}}


def queue(**spec):
    return of_kueue("ClusterQueue", "q", {"namespaceSelector": {}, "resourceGroups": [group("4")], **spec})


def check(controller, **spec):
    return of_kueue("AdmissionCheck", "check", {"controllerName": controller, **spec})


def test_a_queue_is_taken_as_it_is_with_where_it_came_from():
    report = migrated(queue(cohortName="all", stopPolicy="Hold", queueingStrategy="StrictFIFO"))
    assert report.objects == [
        {
            "apiVersion": "topogate.dev/v1alpha1",
            "kind": "ClusterQueue",
            "metadata": {
                "name": "q",
                "annotations": {"topogate.dev/migrated-from": "kueue.x-k8s.io/v1beta2/ClusterQueue/q"},
            },
            "spec": {
                "namespaceSelector": {},
                "resourceGroups": [group("4")],
                "cohortName": "all",
                "stopPolicy": "Hold",
                "queueingStrategy": "StrictFIFO",
            },
        }
    ]
    assert outcome_of(report, "ClusterQueue", "q") == "taken"
    assert "inactive until it exists" in report.rows[0].why  # there is no ResourceFlavor f0
    assert rows_of(report)["spec.cohortName", "taken"] != ""


@pytest.mark.parametrize("limit", ["borrowingLimit", "lendingLimit"])
def test_a_limit_without_a_cohort_is_left_out_and_told(limit):
    report = migrated(queue(resourceGroups=[group("4", **{limit: "2"})]))
    assert made_of(report, "ClusterQueue", "q")["spec"]["resourceGroups"] == [group("4")]
    assert "nobody to" in rows_of(report)[f"spec.resourceGroups[0].flavors[0].resources[0].{limit}", "changed"]
    kept = migrated(queue(cohortName="all", resourceGroups=[group("4", **{limit: "2"})]))
    assert made_of(kept, "ClusterQueue", "q")["spec"]["resourceGroups"] == [group("4", **{limit: "2"})]


def test_words_of_v1beta1_are_those_of_v1beta2():
    old = of_kueue(
        "ClusterQueue",
        "q",
        {
            "cohort": "all",
            "admissionChecks": ["check"],
            "flavorFungibility": {"whenCanBorrow": "Borrow", "whenCanPreempt": "Preempt"},
        },
        version="v1beta1",
    )
    report = migrated(old, check("topogate.dev/topology"))
    spec = made_of(report, "ClusterQueue", "q")["spec"]
    assert spec == {
        "cohortName": "all",
        "flavorFungibility": {"whenCanBorrow": "MayStopSearch", "whenCanPreempt": "MayStopSearch"},
    }
    changed = {field for field, outcome in rows_of(report, "ClusterQueue") if outcome == "changed"}
    assert {"spec.cohort", "spec.admissionChecks", "spec.flavorFungibility.whenCanBorrow"} <= changed
    assert old["spec"]["cohort"] == "all"


def test_both_forms_of_checks_are_refused_as_kueue_refuses_them():
    old = queue(admissionChecks=["check"], **CHECKED) | {"apiVersion": "kueue.x-k8s.io/v1beta1"}
    assert outcome_of(migrated(old), "ClusterQueue", "q") == "refused"


def test_the_check_of_topogate_is_part_of_admission():
    report = migrated(queue(**CHECKED), check("topogate.dev/topology"))
    assert "admissionChecksStrategy" not in made_of(report, "ClusterQueue", "q")["spec"]
    assert outcome_of(report, "ClusterQueue", "q") == "changed"
    assert outcome_of(report, "AdmissionCheck", "check") == "left"


@pytest.mark.parametrize("checks", [[], [check("kueue.x-k8s.io/provisioning-request")], [check("acme.com/audit")]])
def test_a_check_of_somebody_else_refuses_its_queue(checks):
    report = migrated(queue(**CHECKED), *checks)
    assert report.objects == []
    (row,) = [one for one in report.rows if one.kind == "ClusterQueue" and not one.field]
    assert row.outcome == "refused"
    assert "jobs would start unchecked" in row.why
    assert row.instead == "leave the check out: --without-checks check"


def test_a_check_that_is_left_out_takes_what_belongs_to_it_along():
    parameters = {"apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig", "name": "growth"}
    objects = [
        queue(**CHECKED),
        check("kueue.x-k8s.io/provisioning-request", parameters=parameters),
        of_kueue("ProvisioningRequestConfig", "growth", {"provisioningClassName": "x"}),
        of_kueue("ProvisioningRequestConfig", "other", {"provisioningClassName": "x"}),
    ]
    report = migrated(*objects, without=["check"])
    assert made_of(report, "ClusterQueue", "q")["spec"].keys() == {"namespaceSelector", "resourceGroups"}
    assert outcome_of(report, "AdmissionCheck", "check") == "changed"
    assert outcome_of(report, "ProvisioningRequestConfig", "growth") == "changed"
    assert outcome_of(report, "ProvisioningRequestConfig", "other") == "refused"


def test_other_clusters_are_refused_with_what_to_do():
    report = migrated(
        of_kueue("MultiKueueCluster", "c", {"kubeConfig": {"location": "secret"}}, version="v1beta1"),
        of_kueue("MultiKueueConfig", "all", {"clusters": ["c"]}),
    )
    assert {row.outcome for row in report.rows if not row.field} == {"refused"}
    assert all("in each cluster" in row.instead for row in report.rows if row.outcome == "refused")


@pytest.mark.parametrize(
    ("spec", "field", "why"),
    [
        ({"resourceGroups": [group("1", resource=f"r{at}") for at in range(17)]}, "spec.resourceGroups", "at most 8"),
        ({"resourceGroups": [group("-1")]}, "spec.resourceGroups[0].flavors[0].resources[0].nominalQuota", "0 or more"),
        ({"resourceGroups": [group(1.5)]}, "spec.resourceGroups[0].flavors[0].resources[0].nominalQuota", "quantity"),
        ({"resourceGroups": [group(True)]}, "spec.resourceGroups[0].flavors[0].resources[0].nominalQuota", "quantity"),
        ({"resourceGroups": "all"}, "spec.resourceGroups", "expected a mapping or a list, found 'all'"),
        ({"stopPolicy": {}}, "spec.stopPolicy", "expected a value"),
        ({"stopPolicy": "Maybe"}, "spec.stopPolicy", "Maybe"),
        ({"cohortName": "All"}, "spec.cohortName", "All"),
        ({"newField": {"a": [1]}}, "spec.newField.a[0]", "does not know the field"),
        ({"preemption": {"strategy": "LeastPriority"}}, "spec.preemption.strategy", "does not know the field"),
        ({"resourceGroups": [{"[]": 1}]}, "spec.resourceGroups[0][[]]", "does not know the field"),
        (
            {"namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "Exists"}] * 65}},
            "spec.namespaceSelector.matchExpressions",
            "at most 64",
        ),
    ],
)
def test_what_would_be_lost_or_not_taken_refuses_the_queue(spec, field, why):
    report = migrated(queue(**spec))
    assert report.objects == []
    assert outcome_of(report, "ClusterQueue", "q") == "refused"
    assert why in rows_of(report)[field, "refused"]


def test_null_is_no_field():
    report = migrated(queue(stopPolicy=None, cohortName=None, preemption=None))
    assert made_of(report, "ClusterQueue", "q")["spec"].keys() == {"namespaceSelector", "resourceGroups"}
    assert outcome_of(report, "ClusterQueue", "q") == "taken"


def test_a_better_flavor_later_is_told_and_refuses_nothing():
    policy = {"migration": {"mode": "TryPreferredFlavors", "constraints": {"lastAcceptableFlavorName": "f0"}}}
    report = migrated(queue(concurrentAdmissionPolicy=policy))
    assert made_of(report, "ClusterQueue", "q") is not None
    assert "stays in the flavor" in rows_of(report)["spec.concurrentAdmissionPolicy.migration.mode", "refused"]


def test_no_admission_fair_sharing_is_nothing():
    report = migrated(queue(admissionScope={"admissionMode": "NoAdmissionFairSharing"}))
    assert "admissionScope" not in made_of(report, "ClusterQueue", "q")["spec"]
    assert outcome_of(report, "ClusterQueue", "q") == "changed"


def test_metadata_of_installers_and_servers_stays_behind():
    meta = {
        "uid": "u",
        "finalizers": ["kueue.x-k8s.io/resource-in-use", "acme.com/keep"],
        "labels": {"team": "a", "app.kubernetes.io/managed-by": "Helm"},
        "annotations": {
            "note": "b",
            "kubectl.kubernetes.io/last-applied-configuration": "{}",
            "kueue.x-k8s.io/preemption-config-name": "hero",
        },
        "ownerReferences": [{"uid": "o", "kind": "X"}],
        "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}],
    }
    report = migrated(queue() | {"metadata": {"name": "q", **meta}, "status": {"pendingWorkloads": 3}})
    made = made_of(report, "ClusterQueue", "q")["metadata"]
    assert made["labels"] == {"team": "a"}
    assert made["annotations"].keys() == {"note", "topogate.dev/migrated-from"}
    assert made.keys() == {"name", "labels", "annotations"}
    refused = {field for field, outcome in rows_of(report) if outcome == "refused"}
    assert refused == {
        "metadata.finalizers[1]",
        "metadata.annotations[kueue.x-k8s.io/preemption-config-name]",
        "metadata.ownerReferences[0].uid",
        "metadata.ownerReferences[0].kind",
    }


@pytest.mark.parametrize("body", [{}, {"metadata": None}, {"metadata": []}, {"metadata": {}}, {"metadata": "q"}])
def test_an_object_without_a_name_is_refused(body):
    for kind in ("ClusterQueue", "LocalQueue", "ResourceFlavor", "Topology", "AdmissionCheck", "Unheard"):
        report = migrated({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, **body})
        assert report.objects == []
        assert report.rows[0].kind == kind


def test_a_kind_that_nobody_knows_is_refused_and_a_workload_is_of_its_job():
    report = migrated(
        of_kueue("CapacityProvider", "c", {"a": 1}, version="v1alpha1"),
        of_kueue("Workload", "job-a", {"queueName": "q"}, namespace="team"),
    )
    assert outcome_of(report, "CapacityProvider", "c") == "refused"
    assert outcome_of(report, "Workload", "job-a") == "left"


def test_a_local_queue_follows_its_cluster_queue():
    local = of_kueue("LocalQueue", "l", {"clusterQueue": "q", "stopPolicy": "Hold"}, namespace="team")
    report = migrated(local, queue(), of_kueue("ResourceFlavor", "f0", {}))
    assert [one["kind"] for one in report.objects] == ["ResourceFlavor", "ClusterQueue", "LocalQueue"]
    assert made_of(report, "LocalQueue", "l")["spec"] == {"clusterQueue": "q", "stopPolicy": "Hold"}
    assert made_of(report, "LocalQueue", "l")["metadata"]["namespace"] == "team"
    assert all(row.why == "" for row in report.rows if not row.field)
    (row, *_) = migrated(local, queue(unheard=1)).rows
    assert row.why == "ClusterQueue q is refused: the queue is inactive until it exists"
    (row, *_) = migrated(local).rows
    assert row.why == "ClusterQueue q is not among what was read: the queue is inactive until it exists"


@pytest.mark.parametrize("preference", ["PreemptionOverBorrowing", "BorrowingOverPreemption"])
def test_which_flavor_is_preferred_is_taken_over(preference):
    words = {"whenCanBorrow": "TryNextFlavor", "whenCanPreempt": "TryNextFlavor", "preference": preference}
    report = migrated(queue(flavorFungibility=words))
    assert made_of(report, "ClusterQueue", "q")["spec"]["flavorFungibility"] == words
    assert outcome_of(report, "ClusterQueue", "q") == "taken"


def test_a_preference_that_nobody_knows_is_refused():
    report = migrated(queue(flavorFungibility={"preference": "Cheapest"}))
    assert outcome_of(report, "ClusterQueue", "q") == "refused"
    why = rows_of(report)["spec.flavorFungibility.preference", "refused"]
    assert "PreemptionOverBorrowing" in why, why


def test_weights_and_fair_use_of_local_queues_are_taken():
    local = of_kueue("LocalQueue", "l", {"clusterQueue": "q", "fairSharing": {"weight": "2"}}, namespace="team")
    scope = {"admissionMode": "UsageBasedAdmissionFairSharing"}
    report = migrated(local, queue(admissionScope=scope))
    assert made_of(report, "LocalQueue", "l")["spec"]["fairSharing"] == {"weight": "2"}
    assert made_of(report, "ClusterQueue", "q")["spec"]["admissionScope"] == scope


NAMES = st.from_regex(r"[a-z]{1,8}", fullmatch=True)
QUANTITIES = st.one_of(st.integers(0, 1000), st.from_regex(r"[0-9]{1,4}(m|Gi|k)?", fullmatch=True))
POLICIES = {
    "withinClusterQueue": ["Never", "LowerPriority", "LowerOrNewerEqualPriority"],
    "reclaimWithinCohort": ["LowerPriority", "Any"],
}


@st.composite
def specs(draw):
    names = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
    spec = {"cohortName": draw(NAMES), "resourceGroups": []}
    for name in names:
        quota = {"name": name, "nominalQuota": draw(QUANTITIES)}
        quota |= {"borrowingLimit": draw(QUANTITIES)} if draw(st.booleans()) else {}
        flavor = {"name": f"flavor-{name}", "resources": [quota]}
        spec["resourceGroups"].append({"coveredResources": [name], "flavors": [flavor]})
    for key, values in (("queueingStrategy", ["StrictFIFO", "BestEffortFIFO"]), ("stopPolicy", ["None", "Hold"])):
        if draw(st.booleans()):
            spec[key] = draw(st.sampled_from(values))
    spec["preemption"] = {key: draw(st.sampled_from(values)) for key, values in POLICIES.items()}
    if draw(st.booleans()):
        spec["namespaceSelector"] = draw(st.sampled_from([{}, {"matchLabels": {"a": "b"}}]))
    if draw(st.booleans()):
        spec["fairSharing"] = {"weight": draw(QUANTITIES)}
    return spec


@given(specs())
def test_what_is_made_is_read_as_what_kueue_said(spec):
    made = made_of(migrated(of_kueue("ClusterQueue", "q", spec)), "ClusterQueue", "q")
    assert made["spec"] == spec
    wire = decode(queues.ClusterQueue, msgspec.json.encode(made), CLUSTER_QUEUES)
    read = queues.cluster_queue(wire)
    assert read.cohort == spec["cohortName"]
    assert read.strict == (spec.get("queueingStrategy") == "StrictFIFO")
    assert (read.namespaces is None) == ("namespaceSelector" not in spec)
    assert str(read.preemption.within) == spec["preemption"]["withinClusterQueue"]
    assert len(read.groups) == len(spec["resourceGroups"])


@pytest.mark.parametrize("rule", [{"onFlavors": ["a"]}, {"name": None, "onFlavors": ["a"]}, {"name": 5}])
def test_a_check_without_a_name_is_refused_without_the_advice_to_leave_out_none(rule):
    body = of_kueue("ClusterQueue", "q", {"admissionChecksStrategy": {"admissionChecks": [rule]}})
    whole = migrated(body).rows[0]
    assert whole.outcome == "refused"
    assert "expected the name of a check" in whole.why
    assert "--without-checks" not in whole.instead

"""Kueue's Configuration (0.19.2, v1beta1 and v1beta2) as settings."""

import pytest
from support.migrating import configuration, migrated, rows_of

from cli.migrate.convert_settings import assumed_settings, leaves_served_out
from cli.migrate.durations import seconds_of

HALF_AN_HOUR = {"waitForPodsReadyTimeoutSeconds": 1800, "waitForPodsReadyRecoveryTimeoutSeconds": 1800}
OFF = {"featureGates": {"DisableWaitForPodsReady": True}}


def settings(version="v1beta2", **parts):
    return migrated(configuration(version, **parts)).settings


def test_no_wait_for_pods_ready_is_half_an_hour():
    """apis/config/v1beta2/defaults.go of 0.19.2: absent is {timeout: 30m, recoveryTimeout: 30m}."""
    assert settings() == HALF_AN_HOUR
    assert settings(waitForPodsReady={"timeout": "0s"}) == HALF_AN_HOUR
    assert "v1beta2: not off" in rows_of(migrated(configuration()))["waitForPodsReady.timeout", "changed"]


def test_a_configuration_that_is_not_found_is_kueues_defaults():
    found, rows = assumed_settings("not found in kueue-system")
    assert found == HALF_AN_HOUR
    assert (rows[0].field, rows[0].outcome, rows[0].why) == ("", "changed", "not found in kueue-system")


def test_v1beta1_without_enable_is_none():
    assert settings("v1beta1") == {}
    assert settings("v1beta1", waitForPodsReady={"timeout": "5m"}) == {}


def test_v1beta1_enabled_is_five_minutes_and_blocks():
    report = migrated(configuration("v1beta1", waitForPodsReady={"enable": True}))
    assert report.settings == {"waitForPodsReadyTimeoutSeconds": 300, "waitForPodsReadyRecoveryTimeoutSeconds": 300}
    assert ("waitForPodsReady.blockAdmission", "refused") in rows_of(report)


def test_the_gate_turns_it_off():
    assert settings(waitForPodsReady={"timeout": "5m"}, **OFF) == {}


def test_times_and_backoff_are_taken():
    strategy = {"timestamp": "Eviction", "backoffLimitCount": 3, "backoffBaseSeconds": 10, "backoffMaxSeconds": 100}
    parts = {"timeout": "1h30m", "recoveryTimeout": "500ms", "requeuingStrategy": strategy}
    assert settings(waitForPodsReady=parts) == {
        "waitForPodsReadyTimeoutSeconds": 5400,
        "waitForPodsReadyRecoveryTimeoutSeconds": 0.5,
        "requeuingBackoffLimitCount": 3,
        "requeuingBackoffBaseSeconds": 10,
        "requeuingBackoffMaxSeconds": 100,
    }


def test_more_than_a_day_is_a_day():
    report = migrated(configuration(waitForPodsReady={"timeout": "48h", "recoveryTimeout": "1m"}))
    assert report.settings["waitForPodsReadyTimeoutSeconds"] == 86_400
    assert "more than a day" in rows_of(report)["waitForPodsReady.timeout", "changed"]


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        ({"waitForPodsReady": {"timeout": "5"}}, "waitForPodsReady.timeout"),
        ({"waitForPodsReady": {"timeout": {}}}, "waitForPodsReady.timeout"),
        ({"waitForPodsReady": {"recoveryTimeout": "0s"}}, "waitForPodsReady.recoveryTimeout"),
        ({"waitForPodsReady": {"blockAdmission": True}}, "waitForPodsReady.blockAdmission"),
        (
            {"waitForPodsReady": {"requeuingStrategy": {"timestamp": "Creation"}}},
            "waitForPodsReady.requeuingStrategy.timestamp",
        ),
        (
            {"waitForPodsReady": {"requeuingStrategy": {"backoffLimitCount": -1}}},
            "waitForPodsReady.requeuingStrategy.backoffLimitCount",
        ),
        ({"manageJobsWithoutQueueName": True}, "manageJobsWithoutQueueName"),
        ({"managedJobsNamespaceSelector": {"matchLabels": {"a": "b"}}}, "managedJobsNamespaceSelector.matchLabels.a"),
        ({"fairSharing": {"preemptionStrategies": ["LessThanInitialShare"]}}, "fairSharing.preemptionStrategies[0]"),
        ({"resources": {"excludeResourcePrefixes": ["acme.com"]}}, "resources.excludeResourcePrefixes[0]"),
        ({"resources": {"transformations": [{"input": "a"}]}}, "resources.transformations[0].input"),
        ({"resources": {"quotaCheckStrategy": "IgnoreUndeclared"}}, "resources.quotaCheckStrategy"),
        (
            {"objectRetentionPolicies": {"workloads": {"afterDeactivatedByKueue": "1h"}}},
            "objectRetentionPolicies.workloads.afterDeactivatedByKueue",
        ),
        ({"integrations": {"frameworks": ["acme.com/thing"]}}, "integrations.frameworks[0]"),
        ({"integrations": {"externalFrameworks": ["Foo.v1.example.com"]}}, "integrations.externalFrameworks[0]"),
        ({"featureGates": {"FlavorFungibility": False}}, "featureGates.FlavorFungibility"),
        ({"featureGates": {"Unheard": True}}, "featureGates.Unheard"),
        ({"featureGates": {"MultiKueue": "yes"}}, "featureGates.MultiKueue"),
        ({"unheard": {"a": 1}}, "unheard.a"),
    ],
)
def test_what_topogate_does_not_do_is_refused_in_words(parts, field):
    report = migrated(configuration(**parts))
    refused = [row for row in report.rows if row.outcome == "refused" and row.field]
    assert [row.field for row in refused] == [field]
    assert refused[0].why
    assert refused[0].instead


def test_fair_sharing_is_on_where_kueue_has_it_on():
    both = {"preemptionStrategies": ["LessThanOrEqualToFinalShare", "LessThanInitialShare"]}
    assert settings(fairSharing=both, **OFF) == {"fairSharing": True}
    assert settings("v1beta1", fairSharing={"enable": False}) == {}
    assert settings("v1beta1", fairSharing={"enable": True}) == {"fairSharing": True}


def test_device_classes_are_taken_and_their_sources_refused():
    mapping = {"name": "acme.com/gpu", "deviceClassNames": ["gpu.acme.com"]}
    report = migrated(
        configuration(resources={"deviceClassMappings": [{**mapping, "sources": [{"counter": {"a": 1}}]}]})
    )
    assert report.settings["deviceClassMappings"] == [mapping]
    assert ("resources.deviceClassMappings[0].sources[0].counter.a", "refused") in rows_of(report)


def test_finished_workloads_are_kept_as_long():
    policies = {"workloads": {"afterFinished": "168h", "afterDeactivatedByKueue": None}}
    assert settings(objectRetentionPolicies=policies, **OFF) == {"workloadRetentionSeconds": 604_800}


def test_the_selector_that_is_kueues_default_says_nothing():
    expression = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", "kueue-system"]}
    report = migrated(configuration(managedJobsNamespaceSelector={"matchExpressions": [expression]}))
    assert not report.has_refusals()
    beside = [expression, {"key": "topogate.dev/served", "operator": "DoesNotExist"}]
    also = [expression, {"key": "topogate.dev/served", "operator": "NotIn", "values": ["true"]}]
    for one in (beside, also):
        body = configuration(managedJobsNamespaceSelector={"matchExpressions": one})
        assert leaves_served_out(body)
        assert not migrated(body).has_refusals()
    report = migrated(
        configuration(managedJobsNamespaceSelector={"matchExpressions": [*beside, beside[1] | {"key": "a"}]})
    )
    assert report.has_refusals()


def test_the_configuration_of_the_release_refuses_nothing():
    """The keys of config/components/manager/controller_manager_config.yaml of 0.19.2."""
    report = migrated(
        configuration(
            health={"healthProbeBindAddress": ":8081"},
            metrics={"bindAddress": ":8443"},
            webhook={"port": 9443},
            leaderElection={"leaderElect": True, "resourceName": "c1f6bfd2.kueue.x-k8s.io"},
            controller={"groupKindConcurrency": {"Job.batch": 5}},
            clientConnection={"qps": 300, "burst": 500},
            integrations={"frameworks": ["batch/job", "ray.io/rayservice", "pod", "trainer.kubeflow.org/trainjob"]},
        )
    )
    assert not report.has_refusals()
    assert report.settings == HALF_AN_HOUR
    assert "cannot be queued" in rows_of(report)["integrations.frameworks[3]", "changed"]
    assert "also 14 that are not" in rows_of(report)["integrations.frameworks", "changed"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5m", 300), ("1h0m0s", 3600), ("0s", 0), ("0", 0), ("1.5h", 5400), ("500ms", 0.5), ("168h", 604_800), ("+1s", 1)],
)
def test_durations_of_go(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["5", "", "m", "-5m", "5 m", "1d", 5, None, ["5m"], "1" * 1000 + "h", "1s" * 17])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match="expected a duration such as 5m"):
        seconds_of(text)


def test_how_long_workloads_are_safe_is_taken():
    """Fields of Kueue's pull request 12996; each of the two is off by itself."""
    said = {"reclaimWithinCohort": {"minAdmitDuration": "10m"}, "fairSharing": {"minAdmitDuration": "1500ms"}}
    reclaim, shares = "minimumRunTimeReclaimSeconds", "minimumRunTimeFairSharingSeconds"
    gate = {"featureGates": {"PreemptionProtection": True, **OFF["featureGates"]}}
    report = migrated(configuration(preemptionProtection=said, **gate))
    assert report.settings == {reclaim: 600, shares: 2}
    assert not any(outcome == "refused" for _, outcome in rows_of(report))
    alone = {"reclaimWithinCohort": {"minAdmitDuration": "10m"}}
    assert settings(preemptionProtection=alone, **OFF) == {reclaim: 600, shares: 0}
    assert settings(preemptionProtection={"fairSharing": {"minAdmitDuration": "5s"}}, **OFF) == {shares: 5}
    report = migrated(configuration(preemptionProtection={"fairSharing": {"minAdmitDuration": "10000h"}}, **OFF))
    assert ("preemptionProtection.fairSharing.minAdmitDuration", "refused") in rows_of(report)


def test_half_life_sampling_and_weights_are_taken():
    part = {"usageHalfLifeTime": "168h", "usageSamplingInterval": "1m", "resourceWeights": {"cpu": 2, "memory": 0}}
    assert settings(admissionFairSharing=part, **OFF) == {
        "fairUseHalfLifeSeconds": 604_800,
        "fairUseSamplingSeconds": 60,
        "fairUseResourceWeights": {"cpu": 2, "memory": 0},
    }


def test_sampling_is_five_minutes_where_nothing_is_said():
    """apis/config/v1beta2/defaults.go of 0.19.2."""
    report = migrated(configuration(admissionFairSharing={"usageHalfLifeTime": "10m"}, **OFF))
    assert report.settings == {"fairUseHalfLifeSeconds": 600, "fairUseSamplingSeconds": 300}
    assert ("admissionFairSharing.resourceWeights", "changed") in rows_of(report)


@pytest.mark.parametrize("part", [{}, {"usageHalfLifeTime": "0s", "usageSamplingInterval": "5m"}])
def test_no_half_life_is_off(part):
    assert "fairUseHalfLifeSeconds" not in settings(admissionFairSharing=part, **OFF)
    assert not migrated(configuration(admissionFairSharing=part)).has_refusals()

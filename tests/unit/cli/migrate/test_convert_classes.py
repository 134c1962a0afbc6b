"""WorkloadPriorityClass of Kueue 0.19.2 as ours."""

import pytest
from support.migrating import made_of, migrated, of_kueue, outcome_of, rows_of


@pytest.mark.parametrize("version", ["v1beta2", "v1beta1"])
def test_value_and_description_are_taken(version):
    report = migrated(of_kueue("WorkloadPriorityClass", "high", value=-5, description="Serves.", version=version))
    made = made_of(report, "WorkloadPriorityClass", "high")
    assert (made["apiVersion"], made["value"], made["description"]) == ("topogate.dev/v1alpha1", -5, "Serves.")
    assert outcome_of(report, "WorkloadPriorityClass", "high") == "taken"


def test_the_class_default_is_told():
    report = migrated(of_kueue("WorkloadPriorityClass", "default", value=1))
    assert "from 0.20 on" in rows_of(report)["metadata.name", "changed"]


@pytest.mark.parametrize("value", ["5", 1 << 31, 1.5, None, True])
def test_a_value_that_is_no_priority_is_refused(value):
    assert migrated(of_kueue("WorkloadPriorityClass", "odd", value=value)).objects == []


def test_classes_come_first():
    local = of_kueue("LocalQueue", "l", {"clusterQueue": "q"}, namespace="team")
    report = migrated(local, of_kueue("ResourceFlavor", "f"), of_kueue("WorkloadPriorityClass", "a", value=1))
    assert [one["kind"] for one in report.objects] == ["WorkloadPriorityClass", "ResourceFlavor", "LocalQueue"]

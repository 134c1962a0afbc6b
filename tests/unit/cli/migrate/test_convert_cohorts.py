"""Cohorts of Kueue 0.19.2 as ours, and the queues below them."""

import pytest
from support.migrating import group, made_of, migrated, of_kueue, outcome_of, rows_of


def cohort(name, parent="", *, version="v1beta2", **spec):
    return of_kueue("Cohort", name, ({"parentName": parent} if parent else {}) | spec, version=version)


def queue(name, parent):
    return of_kueue("ClusterQueue", name, {"cohortName": parent})


def test_a_queue_below_a_refused_cohort_is_refused_and_its_children_too():
    report = migrated(queue("q", "child"), cohort("child", "org"), cohort("org", unheard=1), queue("free", "other"))
    assert outcome_of(report, "Cohort", "org") == "refused"
    assert outcome_of(report, "Cohort", "child") == "refused"
    assert outcome_of(report, "ClusterQueue", "q") == "refused"
    assert [one["metadata"]["name"] for one in report.objects] == ["free"]
    (row,) = [one for one in report.rows if one.name == "q" and not one.field]
    assert (row.why, row.instead) == ("its Cohort child is refused", "see the row of Cohort child")


@pytest.mark.parametrize("version", ["v1beta2", "v1beta1"])
def test_quota_limits_weight_and_parent_are_taken(version):
    """A cohort may lend more than its own quota: what is below it lends too (Kueue: validateCohort)."""
    spec = {
        "resourceGroups": [group("4", borrowingLimit="6", lendingLimit="10")],
        "fairSharing": {"weight": "2"},
    }
    report = migrated(cohort("research", "org", version=version, **spec), cohort("org"))
    assert made_of(report, "Cohort", "research")["spec"] == {"parentName": "org", **spec}
    assert outcome_of(report, "Cohort", "research") == "taken"


def test_parents_come_first_and_queues_after_them():
    report = migrated(queue("q", "a"), cohort("a", "b"), cohort("b", "c"), cohort("c"))
    assert [one["metadata"]["name"] for one in report.objects] == ["c", "b", "a", "q"]


def test_a_limit_of_a_root_is_left_out_and_told():
    report = migrated(cohort("org", resourceGroups=[group("4", lendingLimit="1")]))
    assert made_of(report, "Cohort", "org")["spec"]["resourceGroups"] == [group("4")]
    field = "spec.resourceGroups[0].flavors[0].resources[0].lendingLimit"
    assert "without parentName" in rows_of(report)[field, "changed"]


def test_a_circle_is_told():
    report = migrated(cohort("a", "b"), cohort("b", "a"), cohort("c", "a"))
    assert {one["metadata"]["name"] for one in report.objects} == {"a", "b", "c"}
    said = {row.name: row.why for row in report.rows if row.field == "spec.parentName" and row.why}
    assert said["a"].startswith("a circle, a → b → a: its queues are inactive")
    assert said["c"].startswith("a circle, a → b → a:")


def test_a_cohort_that_is_its_own_parent_is_refused():
    report = migrated(cohort("self", "self"))
    assert "cannot be its own parent" in rows_of(report)["spec.parentName", "refused"]

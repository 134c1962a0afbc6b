"""Names of Kueue's Workloads: the table of Kueue 0.19.2 (pkg/controller/jobframework/workload_names_test.go)."""

import pytest

from crds.kueue.names import kueue_workload_name

LONG = (
    "marketing-campaign-autumn-2024-region-north-america-department-digital-strategy-sub-department-social-media-"
    "engagement-tracker-and-analytics-dashboard-v2-final-revision-by-engineering-team-lead-senior-architect-"
    "validation-checked-approved-by-legal-and-ops-dept"
)
SHORTENED = (
    "job-marketing-campaign-autumn-2024-region-north-america-department-digital-strategy-sub-department-social-media-"
    "engagement-tracker-and-analytics-dashboard-v2-final-revision-by-engineering-team-lead-senior-architect-"
    "validation-checked-approved-by-l-218b8"
)


@pytest.mark.parametrize(("name", "wanted"), [("name", "job-name-ef3a1"), (LONG, SHORTENED)])
def test_a_workload_is_named_as_kueue_names_it(name, wanted):
    assert kueue_workload_name("Job", "batch/v1", name, "uid") == wanted


def test_jobs_that_share_a_name_have_workloads_of_their_own():
    """Kueue's hash is of kind, group, name and uid; the version of the API is not in it."""
    made = {
        kueue_workload_name(kind, version, "a", uid)
        for kind, version, uid in (
            ("Job", "batch/v1", "1"),
            ("Job", "batch/v1", "2"),
            ("Job", "example.com/v1", "1"),
            ("JobSet", "jobset.x-k8s.io/v1alpha2", "1"),
        )
    }
    assert len(made) == 4
    assert kueue_workload_name("Job", "batch/v2", "a", "1") in made

"""What is written into the status of Cohorts, and that it is written once."""

from support.queue_factories import make_cohort, make_queue, make_queues

from kube.objects import ObjectMeta
from kube.queues import Cohort
from kube.resources import COHORTS
from ungater.status.queues import Source, changes

NOW = 1_700_000_000.0


def made(status=None, *, name="org"):
    return Cohort(metadata=ObjectMeta(name=name, uid=f"uid-{name}", generation=2), status=status)


def written(queues, *cohorts):
    source = Source(queues, lambda: ("tas",), lambda: cohorts, tuple, tuple, set)
    return list(changes(source, NOW))


def queues_of(*cohorts):
    queues = make_queues(make_queue("q", 8, cohort="org"))
    for one in cohorts:
        queues.set_cohort(one)
    return queues


def test_a_cohort_is_written_once_and_again_where_it_changes():
    queues = queues_of(make_cohort("org", 4))
    (patch,) = written(queues, made())
    assert (patch.resource, patch.id, patch.urgent) == (COHORTS, "uid-org", True)
    (active,) = patch.status["conditions"]
    assert (active["type"], active["status"], active["reason"], active["observedGeneration"]) == (
        "Active",
        "True",
        "Ready",
        2,
    )
    assert patch.status["flavorsReservation"][0]["resources"][0]["total"] == "0"
    assert written(queues, made(patch.status)) == []
    queues.set_cohort(make_cohort("org", 4, "org"))
    (again,) = written(queues, made(patch.status))
    assert (list(again.status), again.urgent) == (["conditions"], True)
    assert again.status["conditions"][0]["reason"] == "CohortCycle"


def test_a_cohort_that_was_not_taken_in_yet_is_left_alone():
    assert written(queues_of(), made(name="new"), made()) == []


def test_a_condition_of_somebody_else_stays():
    other = {
        "type": "Seen",
        "status": "True",
        "reason": "R",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    (patch,) = written(queues_of(make_cohort("org")), made({"conditions": [other]}))
    assert [one["type"] for one in patch.status["conditions"]] == ["Seen", "Active"]

"""What happens to a workload is said once: on the job; of a group, whose first pod may go, on its Workload too."""

import msgspec
import pytest
from support.owned import make_record

from engine.reasons import Reason
from ungater.model.conditions import QUOTA_RESERVED, WantedCondition, merge
from ungater.model.workload_entry import WorkloadEntry
from ungater.scheduling.admission_conditions import is_news
from ungater.writers.events import emit


class Recorder:
    def __init__(self):
        self.told = []

    def event(self, regarding, _type, reason, _action, note):
        self.told.append((regarding.kind, regarding.name, str(reason), note))


@pytest.fixture
def entry():
    return make_record()


def test_a_happening_is_one_event_on_the_job(entry):
    recorder = Recorder()
    emit(recorder, entry, "Warning", Reason.DOES_NOT_FIT, "Admit", message="no rack takes it")
    assert recorder.told == [("Job", "train", "DoesNotFit", "no rack takes it")]


def test_of_a_group_its_workload_is_told_too_as_its_first_pod_may_go(entry):
    recorder = Recorder()
    job = msgspec.structs.replace(entry.job, members=(("first", "uid-1"), ("second", "uid-2")))
    emit(recorder, WorkloadEntry(job, entry.observed), "Warning", Reason.DOES_NOT_FIT, "Admit", message="no")
    assert [told[:2] for told in recorder.told] == [("Pod", "first"), ("Workload", job.workload)]


def test_an_owner_hears_that_it_was_admitted_and_pods_alone_where_they_heard_that_they_wait(entry):
    assert is_news(entry)
    pods = WorkloadEntry(msgspec.structs.replace(entry.job, members=(("first", "uid-1"),)), entry.observed)
    assert not is_news(pods)
    said = [WantedCondition(QUOTA_RESERVED, False, Reason.DOES_NOT_FIT, "no rack takes it")]
    conditions = merge((), said, generation=1, now=1.0) or ()
    observed = msgspec.structs.replace(entry.observed, conditions=conditions)
    assert is_news(WorkloadEntry(pods.job, observed))

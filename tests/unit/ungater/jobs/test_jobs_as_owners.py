"""What the controller reads of a Job."""

import pytest
from support.owned import KEYS, make_job, make_owner

from crds.request import RequestError
from engine.model import Policy
from ungater.jobs.job import owner_of


@pytest.mark.parametrize(
    ("job", "count", "full"),
    [
        ({"parallelism": 4}, 4, 4),
        ({"parallelism": 4, "completions": 10}, 4, 4),
        ({"parallelism": 4, "completions": 10, "status": {"succeeded": 7}}, 3, 4),
        ({"parallelism": 4, "completions": 10, "status": {"succeeded": 10}}, 0, 4),
        ({"parallelism": 8, "completions": 4}, 4, 4),
        ({"parallelism": 4, "completions": None}, 4, 4),
        ({"parallelism": 4, "completions": None, "status": {"succeeded": 1, "active": 2}}, 2, 4),
        ({"parallelism": 4, "indexed": True, "status": {"succeeded": 1, "failedIndexes": "2-3"}}, 1, 4),
        ({"parallelism": 0, "completions": 4}, 0, 0),
    ],
)
def test_slots_needed(job, count, full):
    pod_set = make_owner(**job).pod_sets[0]
    assert (pod_set.count, pod_set.full) == (count, full)


def test_each_pod_more_of_a_job_is_of_use_by_itself():
    assert make_owner(parallelism=4).one_by_one


def test_ranks_that_are_done_make_room_in_rank_order():
    status = {"completedIndexes": "0,2-4", "failedIndexes": "7"}
    pod_set = make_owner(parallelism=10, indexed=True, status=status).pod_sets[0]
    assert [pod_set.position(rank) for rank in range(12)] == [None, 0, None, None, None, 1, 2, None, 3, 4, None, None]


def test_over_means_finished_or_being_deleted():
    complete = {"conditions": [{"type": "Complete", "status": "True"}]}
    failed = {"conditions": [{"type": "Failed", "status": "True"}]}
    going = {"conditions": [{"type": "FailureTarget", "status": "True"}]}
    found = [make_owner(status=status).over for status in (complete, failed, going)]
    assert [*found, make_owner(deleted=True).over] == ["Complete", "Failed", "", "Deleted"]


def test_the_request_may_stand_on_the_job_and_a_contradiction_is_kept_to_be_told():
    assert make_owner().request.policy is Policy.REQUIRED
    both = make_owner(request={KEYS.required[0]: "rack", KEYS.preferred[0]: "block"})
    assert isinstance(both.request, RequestError)


def test_an_unchanged_template_is_not_read_again():
    before = make_owner()
    after = owner_of(make_job(status={"ready": 3}), KEYS, before)
    assert after.pod_sets[0].template is before.pod_sets[0].template
    assert after.ready == 3
    other = owner_of(make_job(spec={"priorityClassName": "high"}), KEYS, before)
    assert other.priority_class == "high"


def test_wishes_stand_on_the_job_or_its_template_and_a_bad_one_is_kept_to_be_told():
    policy = "topogate.dev/numa-policy"
    rack = {KEYS.required[0]: "rack"}
    assert make_owner(request={**rack, policy: "restricted"}).pod_sets[0].wishes == {policy: "restricted"}
    assert make_owner(request={policy: "restricted"}).request is None
    bad = make_owner(request={**rack, policy: "tight"}).request
    assert isinstance(bad, RequestError)
    assert bad.field == f"spec.template.metadata.annotations[{policy}]"


@pytest.mark.parametrize("garbage", ["", ",", "-1", "1-", "x", "0-x", "1,,2", "²"])
def test_indexes_that_are_none_are_passed_over(garbage):
    owner = make_owner(indexed=True, status={"completedIndexes": f"0,{garbage},3"})
    assert {(0, 0), (3, 3)} <= set(owner.pod_sets[0].done)

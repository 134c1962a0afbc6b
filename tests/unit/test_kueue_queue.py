"""The stand-in's queue does what Kueue's own does with who is evicted and who waits."""

from datetime import UTC, datetime

import pytest
from support.kueue_queue import BATCH, STRICT, Queue

NOW = 1_800_000_000.0


def at(seconds):
    return datetime.fromtimestamp(NOW + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def workload(name, created=0, *, priority=0, evicted=None, requeued=None, requeue_at=None, pods=None):
    conditions = []
    if evicted is not None:
        conditions.append(
            {"type": "Evicted", "status": "True", "reason": "AdmissionCheck", "lastTransitionTime": at(evicted)}
        )
    if requeued is not None:
        conditions.append({"type": "Requeued", "status": str(requeued), "reason": "x", "lastTransitionTime": at(0)})
    status = {"conditions": conditions}
    if requeue_at is not None:
        status["requeueState"] = {"requeueAt": at(requeue_at)}
    return {
        "metadata": {"uid": name, "creationTimestamp": at(created)},
        "spec": {"priority": priority, "podSets": [{"name": "main", "count": 1, "template": {"spec": pods or name}}]},
        "status": status,
    }


def name_of(found):
    return found and found["metadata"]["uid"]


def tried_in_vain(queue, *waiting):
    """Each is popped once, and has no quota."""
    for each in waiting:
        queue.push(each, NOW)
    for _ in waiting:
        queue.requeue(queue.pop(), NOW)


def test_the_higher_priority_comes_first_then_the_older_one_and_who_was_evicted_counts_from_then():
    queue = Queue()
    for each in (workload("old", 0, evicted=50), workload("young", 40), workload("urgent", 60, priority=1)):
        queue.push(each, NOW)
    assert [name_of(queue.pop()) for _ in range(4)] == ["urgent", "young", "old", None]


def test_who_is_evicted_is_popped_before_those_that_wait_are_woken():
    queue = Queue()
    tried_in_vain(queue, workload("waits", 10))
    queue.wake_later(NOW)  # quota is given back
    queue.push(workload("evicted", 0, evicted=20, requeued=False), NOW)
    queue.wake(NOW + BATCH / 2)
    assert queue.pop() is None, "its requeueing is the next write"
    queue.push(workload("evicted", 0, evicted=20, requeued=True), NOW + BATCH / 2)
    assert name_of(queue.pop()) == "evicted"
    queue.admitted()
    queue.wake(NOW + BATCH)
    assert name_of(queue.pop()) == "waits", "too late: the quota is gone"


def test_where_the_order_is_strict_those_that_wait_are_there_and_come_first():
    queue = Queue(STRICT)
    tried_in_vain(queue, workload("waits", 10))
    queue.push(workload("evicted", 0, evicted=20, requeued=True), NOW)
    assert name_of(queue.pop()) == "waits"


@pytest.mark.parametrize(
    ("changes", "comes_back"),
    [
        ({"requeued": False}, True),
        ({"requeue_at": 5}, True),
        ({"requeued": True, "requeue_at": 5}, False),  # nothing changed that it looks at
    ],
)
def test_who_backs_off_is_neither_tried_nor_woken_and_comes_back_by_the_condition_requeued(changes, comes_back):
    queue = Queue()
    queue.push(workload("away", **changes), NOW)
    queue.wake_later(NOW)
    queue.wake(NOW + BATCH)
    assert queue.pop() is None
    queue.push(workload("away", requeued=True), NOW + 5)
    assert name_of(queue.pop()) == ("away" if comes_back else None)


def test_one_that_waits_stays_there_unless_eviction_or_requeueing_changed():
    queue = Queue()
    queue.push(workload("waits", requeued=True), NOW)
    queue.requeue(queue.pop(), NOW, no_fit=False)
    changed = workload("waits", requeued=True)
    changed["status"]["admissionChecks"] = [{"name": "c", "state": "Pending"}]
    queue.push(changed, NOW)
    assert queue.pop() is None
    queue.push(workload("waits", requeued=True, evicted=3), NOW)
    assert name_of(queue.pop()) == "waits"


def test_what_is_woken_while_one_is_looked_at_brings_that_one_back_too():
    queue = Queue()
    queue.push(workload("first"), NOW)
    popped = queue.pop()
    queue.wake_later(NOW - BATCH)
    queue.wake(NOW)
    queue.requeue(popped, NOW)
    assert name_of(queue.pop()) == "first"


def test_one_that_is_looked_at_is_not_pushed_a_second_time_and_may_be_deleted():
    queue = Queue()
    queue.push(workload("first"), NOW)
    queue.pop()
    queue.push(workload("first"), NOW)
    assert queue.pop() is None
    queue.delete("first")
    queue.push(workload("first"), NOW)
    assert name_of(queue.pop()) == "first"


def test_one_of_the_shape_of_another_that_found_no_quota_waits_with_it_and_is_woken_with_it():
    queue = Queue()
    tried_in_vain(queue, workload("waits", 10, pods="alike"))
    queue.wake_later(NOW)
    queue.push(workload("evicted", 0, evicted=20, requeued=True, pods="alike"), NOW)
    assert queue.pop() is None
    queue.wake(NOW + BATCH)
    assert [name_of(queue.pop()) for _ in range(2)] == ["waits", "evicted"]

"""What decides about pods changes all the time: their defaults, their class, their size, how many there are to be.

LimitRanges and RuntimeClasses are an administrator's to write; a tenant may ask for one that changes.
"""

import msgspec
import pytest
from support.looked_at import LookedAt
from support.owned import make_job, make_pod
from support.queue_factories import GPU, keys, make_queue, make_queues, make_state, make_workload, run, submit
from support.queued_world import entry_of, filled, queued

from kube.objects import LimitRange, RuntimeClass
from queueing.cycle.elastic import resize
from queueing.queues.entry import Phase
from ungater.model.actions import Evict, Release
from ungater.model.job_view import id_of

CPU = [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]


@pytest.fixture
def world():
    return filled(LookedAt())


def runtime_class(world, cpu):
    body = {"metadata": {"name": "flaps"}, "overhead": {"podFixed": {"cpu": cpu}}}
    world.put("runtime_class", msgspec.convert(body, RuntimeClass))


def limit_range(world, cpu):
    limit = {"type": "Container", "defaultRequest": {"cpu": cpu}, "default": {"cpu": cpu}}
    body = {"metadata": {"name": "d", "namespace": "ns"}, "spec": {"limits": [limit]}}
    world.put("limit_range", msgspec.convert(body, LimitRange))


def goes_on(world, record):
    return not [one for one in world.look(record) if isinstance(one, Evict | Release)]


def running(world, name="train", **spec):
    job = make_job(name, parallelism=2, spec=spec)
    world.put("job", job)
    world.settle()
    record = entry_of(world, job)
    for pod in ("a", "b"):
        world.put("pod", make_pod(f"{name}-{pod}", owner=record.job))
    assert world.let_go(record) == [f"{name}-a", f"{name}-b"]
    return record


def test_a_runtime_class_that_is_deleted_and_made_again_larger_each_time_evicts_nobody_who_runs(world):
    runtime_class(world, "100m")
    record = running(world, runtimeClassName="flaps", containers=CPU)
    held = record.grant
    for number in range(10):
        world.drop("runtime_class", world.stores["runtime_class"]["flaps"])
        world.settle()
        runtime_class(world, f"{number + 1}")
        world.settle()
        assert goes_on(world, record)
        assert record.grant is held


def test_a_limit_range_that_changes_all_the_time_has_no_job_of_another_namespace_looked_at(world):
    theirs = make_job("honest", parallelism=2)
    theirs = msgspec.structs.replace(theirs, metadata=msgspec.structs.replace(theirs.metadata, namespace="honest"))
    world.put("job", theirs)
    world.put("job", make_job("mallory", parallelism=2, spec={"containers": [{"name": "c"}]}))
    world.settle()
    world.asked.clear()
    for number in range(20):
        limit_range(world, f"{number % 2 + 1}")
    assert world.asked
    assert id_of(theirs) not in world.asked


def test_a_job_whose_defaults_change_all_the_time_keeps_its_place_and_gets_no_better_one(world):
    queued(world, "mallory", 4, spec={"containers": [{"name": "c"}]})
    limit_range(world, "8")
    world.settle()
    record = world.memory.entries.of_workload(next(iter(world.memory.queues.entries)))
    before = world.memory.queues.entries[record.key]
    order, since = before.order, before.since
    for number in range(20):
        limit_range(world, f"{number % 2 + 8}")
        world.settle()
    after = world.memory.queues.entries[record.key]
    assert (after.order, after.since) == (order, since)
    assert record.admission is None


def test_a_pod_that_grows_behind_its_gate_after_its_job_was_admitted_does_not_go(world):
    job = make_job("mallory", parallelism=2)
    world.put("job", job)
    world.settle()
    record = entry_of(world, job)
    pods = [make_pod(name, owner=record.job) for name in ("a", "b")]
    for pod in pods:
        world.put("pod", pod)
    world.look(record)  # it was compared, and may go
    more = [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]
    grown = make_pod("a", owner=record.job, spec={"containers": more})
    world.put("pod", grown)
    assert "a" not in world.let_go(record)


def test_parallelism_that_flaps_between_all_and_nothing_keeps_no_room_from_whoever_waits():
    """What it gives back goes to the one who waits; then it waits itself, and takes nothing beyond the quota."""
    state, queues = make_state(1, 4), make_queues(make_queue("q", 32))
    submit(queues, make_workload("mallory", count=4))
    assert keys(run(state, queues)) == ["mallory"]
    submit(queues, make_workload("honest", count=4, created=1.0))
    for number in range(6):
        if number % 2 == 0:
            resize(state, queues, "mallory", {"main": 0})
            queues.wish("mallory", None)
        else:
            queues.wish("mallory", {"main": 4})
        run(state, queues, 2.0 + number)
        assert queues.quotas.used("q", ("tas", GPU)) <= 32
        assert queues.entries["honest"].phase is Phase.ADMITTED
        assert state.assignments("mallory") == {}

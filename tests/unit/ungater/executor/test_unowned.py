"""Workloads that are nobody's any more are removed; those of anybody stay."""

import msgspec
import pytest
from support.owned import make_job, make_owner, make_pod, slot_map
from support.world import FLAVOR, NODES, World, stored_workload

from ungater.executor.unowned import AFTER, StrayPods, UnownedWorkloads


def workload(**meta):
    made = stored_workload(make_owner(), slot_map(("b/r/n1", 1)))
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, **meta))


def looks(found, *, served=False, there=False, bare=False):
    unowned = UnownedWorkloads(lambda _key: served, lambda _namespace, _owner: there, lambda _meta: bare)
    assert unowned.to_remove([found], 100.0) == []
    assert unowned.to_remove([found], 99.0 + AFTER) == []
    return unowned.to_remove([found], 100.0 + AFTER) == [found]


def test_one_that_its_owner_left_behind_goes_after_a_while():
    assert looks(workload(owner_references=()))


def test_so_does_that_of_a_job_that_is_not_ours_any_more():
    assert looks(workload(), there=True)
    assert not looks(workload()), "of an owner that is gone it goes with it; of other kinds not all are known"
    assert looks(workload(), bare=True), "of pods all are known"


@pytest.mark.parametrize("found", [workload(), workload(owner_references=())])
def test_that_of_a_job_that_is_known_stays(found):
    assert not looks(found, served=True, there=True, bare=True)


def test_one_that_goes_already_is_left_alone():
    assert not looks(workload(owner_references=(), deletion_timestamp="2026-11-21T00:00:00Z"))


def test_time_counts_from_when_it_became_so_and_for_each_by_itself():
    unowned = UnownedWorkloads(lambda _key: False, lambda _namespace, _owner: False, lambda _meta: False)
    first, second = workload(owner_references=(), uid="1"), workload(owner_references=(), uid="2")
    unowned.to_remove([first], 0.0)
    unowned.to_remove([first, second], 30.0)
    assert unowned.to_remove([first, second], AFTER) == [first]
    unowned.to_remove([second], 70.0)
    assert unowned.to_remove([first, second], 90.0) == [second]


def test_the_memory_says_whose_workloads_are_known():
    world = World()
    world.put("flavor", FLAVOR)
    for node in NODES:
        world.put("node", node)
    world.put("job", make_job())
    (record,) = world.memory.entries.values()
    assert world.memory.pod_groups.serves(record.key)
    world.put("job", make_job(managed="example.com/other"))
    assert not world.memory.pod_groups.serves(record.key)
    world.memory.pod_groups.leave_out(record.key)
    assert world.memory.pod_groups.serves(record.key), "it is being removed already"


# -- gated pods of owners that are not served --------------------------------------------------------------------------


def told(*, there, pod=None):
    """The pods that two looks tell something."""
    pod = pod or make_pod("a", owner=make_owner())
    strays = StrayPods(lambda _namespace, _owner: there)
    assert strays.to_tell({"uid": pod}) == [], "its Job may be heard of a moment later"
    return strays.to_tell({"uid": pod})


def test_a_pod_whose_job_was_deleted_hears_nothing_as_it_goes_too():
    """`Warning UnsupportedOwner` came for waiting Jobs that somebody deleted, until the garbage collector had been."""
    assert told(there=False) == []
    assert len(told(there=True)) == 1, "a Job that is there, and asks for nothing"


def test_a_pod_of_an_owner_of_another_kind_is_told_why_it_stays_gated():
    pod = make_pod("a", owner=make_owner())
    (owner,) = pod.metadata.owner_references
    other = msgspec.structs.replace(owner, kind="DaemonSet", api_version="apps/v1")
    pod = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=(other,)))
    assert len(told(there=False, pod=pod)) == 1

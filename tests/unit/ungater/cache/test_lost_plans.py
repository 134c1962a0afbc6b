"""The plan of a preemption ends with what it is stored in: a plan that no Workload has would tell no victim."""

import msgspec
import pytest
from support.owned import make_known
from support.queued_world import entry_of, filled, queued
from support.world import World

from kube.objects import ObjectMeta
from kube.workloads import ObservedStatus, StoredNomination, WorkloadObject
from queueing.cycle.cycle import cycle
from queueing.queues.entry import Phase
from ungater.model import workload_status
from ungater.model.admission import Nomination


def stored_as(record, uid, version, **status):
    """The Workload of a job as the API server has it."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": record.job.name, "uid": record.job.uid}
    meta = ObjectMeta(
        name=record.job.workload,
        namespace="ns",
        uid=uid,
        resource_version=str(version),
        owner_references=({**owner, "controller": True},),
    )
    plain = msgspec.to_builtins(WorkloadObject(metadata=meta, status=ObservedStatus(**status)))
    return msgspec.convert(plain, WorkloadObject)


def plan_in_words(record, nomination):
    body = workload_status.nomination_patch(record.observed, (), nomination, 0.0)["status"]["nomination"]
    return msgspec.convert(body, StoredNomination)


class Planned:
    """A job that waits until another one of a lower priority is gone, as its Workload says."""

    def __init__(self):
        self.world = filled(World(), preemption={"withinClusterQueue": "LowerPriority"})
        low = queued(self.world, "low", 4)
        self.world.admit(low)
        self.victim = entry_of(self.world, low)
        self.record = entry_of(self.world, queued(self.world, "high", 2))
        self.memory = self.world.memory
        self.record.observed = make_known(self.record.job, priority=100)
        self.memory.admissions.enqueue_entry(self.record)
        (plan,) = self.cycle()
        admission = self.memory.reservations.admission_of(self.record, plan.grant)
        nomination = Nomination(admission, {one.key: one.uid for one in plan.victims}, {self.victim.key: 0})
        self.says("wl-1", 50, nomination=plan_in_words(self.record, nomination))
        assert self.phase is Phase.NOMINATED
        assert self.victim.key in self.memory.queues.holders.evicting
        self.world.asked.clear()

    def cycle(self):
        return cycle(self.memory.state, self.memory.queues, 0.0).preempting

    def says(self, uid, version, **status):
        self.world.put("workload", stored_as(self.record, uid, version, **status))

    def delete(self):
        self.world.drop("workload", self.world.stores["workload"][self.record.key])

    @property
    def phase(self):
        return self.memory.queues.entries[self.record.key].phase


@pytest.fixture
def planned():
    return Planned()


@pytest.mark.parametrize("how", ["deleted", "deleted unseen", "not found", "made anew", "taken out"])
def test_a_plan_ends_with_what_it_is_stored_in_and_is_made_again(planned, how):
    """After a restart nothing is known of it. Until then its victims, were their Workloads deleted, would stay."""
    workloads = planned.memory.workloads
    if how == "deleted":
        planned.delete()
    elif how == "deleted unseen":
        planned.world.stores["workload"].pop(planned.record.key)
        for workloads._clock in (lambda: 0.0, lambda: 3600.0):
            workloads.judge_unstored()
    elif how == "not found":
        workloads.found_gone(planned.record)
    else:
        planned.says("wl-2" if how == "made anew" else "wl-1", 60)
    assert planned.phase is Phase.WAITING
    assert planned.victim.key not in planned.memory.queues.holders.evicting
    assert planned.victim.id in planned.world.asked, "it may stay after all"
    planned.record.observed = make_known(planned.record.job, priority=100)
    planned.memory.admissions.enqueue_entry(planned.record)
    (again,) = planned.cycle()
    assert [one.key for one in again.victims] == [planned.victim.key]


def test_a_plan_stays_while_it_is_being_stored_and_with_what_else_is_said(planned):
    stored = planned.world.stores["workload"][planned.record.key].status.nomination
    planned.says("wl-1", 60, nomination=stored, requeue_state=None)
    assert planned.phase is Phase.NOMINATED
    planned.record.writes.begin_write()
    planned.says("wl-1", 70)
    assert planned.phase is Phase.NOMINATED, "a write is under way, whose answer has it"
    planned.says("wl-1", 80, nomination=stored)
    planned.memory.workloads.written(planned.record, None)
    assert planned.phase is Phase.NOMINATED


def test_a_plan_stays_that_a_job_made_which_came_again_under_the_name_of_one_that_went(planned):
    """An answer about the Workload of the first may be under way still."""
    late, memory = planned.record, planned.memory
    memory.views.drop(late.id)
    planned.world.stores["workload"].pop(late.key)
    memory.views.add_job(late.own)
    again = memory.entries[late.id]
    again.observed = make_known(again.job, priority=100)
    memory.admissions.enqueue_entry(again)
    assert planned.cycle()
    memory.admissions.drop_plan(late)
    assert planned.phase is Phase.NOMINATED


def test_what_is_held_for_growth_ends_with_what_it_is_stored_in_and_what_it_has_stays():
    world = filled(World(), preemption={"withinClusterQueue": "LowerPriority"})
    low, grows = queued(world, "low"), queued(world, "grows")
    for job in (low, grows):
        world.admit(job)
    victim, record, memory = entry_of(world, low), entry_of(world, grows), world.memory
    uid = memory.queues.entries[victim.key].workload.uid
    nomination = Nomination(victim.admission, {victim.key: uid}, {victim.key: 0})
    workload = memory.queues.entries[record.key].workload
    stored = world.stores["workload"][record.key]
    status = msgspec.structs.replace(stored.status, nomination=plan_in_words(record, nomination))
    meta = msgspec.structs.replace(stored.metadata, resource_version="50")
    world.put("workload", msgspec.structs.replace(stored, metadata=meta, status=status))
    memory.reservations.nominate_growth(record, nomination, workload)
    assert memory.reservations.preemptors_of(victim.key)
    world.drop("workload", world.stores["workload"][record.key])
    assert not memory.reservations.preemptors_of(victim.key)
    assert victim.key not in memory.queues.holders.evicting
    assert (record.slots.total, memory.queues.entries[record.key].phase) == (2, Phase.ADMITTED)

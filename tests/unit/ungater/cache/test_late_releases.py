"""What is given back by a write that ends after its job went: nothing that anybody else has by then."""

import msgspec
import pytest
from support.owned import make_pod
from support.queued_world import entry_of, filled, queued
from support.world import World

CPU = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
END = {
    "an eviction ends": lambda memory, entry: memory.admissions.release_and_requeue(entry),
    "an admission ends for good": lambda memory, entry: memory.admissions.release_job(entry),
}
NOT_STORED = {"an admission is not stored": lambda memory, entry: memory.admissions.forget_assumed(entry)}


@pytest.fixture
def world():
    return filled(World())


@pytest.mark.parametrize("ends", END.values(), ids=END)
def test_a_pod_that_runs_by_now_is_charged_on_though_its_former_job_saw_it_behind_its_gate(world, ends):
    job = queued(world, "train")
    world.admit(job)
    late, memory = entry_of(world, job), world.memory
    gated = make_pod("p", owner=late.job, spec=CPU)
    world.put("pod", gated)
    world.drop("job", job)
    runs = make_pod("p", owner=late.job, node="r1-h1", phase="Running", spec=CPU)
    meta = msgspec.structs.replace(runs.metadata, owner_references=())
    world.put("pod", msgspec.structs.replace(runs, metadata=meta))
    assert memory.state.pods["ns/p"].node == "r1-h1"
    ends(memory, late)
    assert memory.state.pods["ns/p"].node == "r1-h1"


@pytest.mark.parametrize("ends", (END | NOT_STORED).values(), ids=END | NOT_STORED)
def test_what_a_job_holds_that_was_made_again_stays(world, ends):
    """As where somebody takes the label off that names its queue, and writes it again while a write is on its way."""
    job = queued(world, "train")
    world.admit(job)
    late, memory = entry_of(world, job), world.memory
    memory.views.drop(late.id)
    world.stores["workload"].pop(late.key)
    memory.views.add_job(late.own)
    world.admit(job)
    again = entry_of(world, job)
    assert again is not late
    held = memory.queues.entries[again.key].grant
    ends(memory, late)
    assert memory.queues.entries[again.key].grant is held
    assert memory.queues.quotas.used("cq", ("gpu", "cpu")) == 2000
    assert memory.state.assignments(again.key)

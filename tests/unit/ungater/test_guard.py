"""Errors that nobody foresaw: one object's each, told once, and the end of nothing."""

import asyncio

import pytest
import structlog
from structlog.testing import capture_logs
from support.owned import KEYS, make_job, slot_map
from support.world import NODES, World, stored_workload

from clock import SYSTEM
from kube.objects import key
from kube.pods import convert
from ungater import guard as guarding
from ungater.guard import Guard
from ungater.model.job_view import id_of


class PoisonError(Exception):
    pass


@pytest.fixture
def logged():
    structlog.reset_defaults()
    with capture_logs() as found:
        yield found


def test_an_error_is_counted_each_time_and_logged_once(logged):
    kinds = []
    guard = Guard(SYSTEM, kinds.append)
    for name in ("a", "a", "b"):
        with guard("pod", name):
            raise PoisonError
    assert kinds == ["pod"] * 3
    assert [one["object"] for one in logged] == ["a", "b"]
    assert isinstance(logged[0]["exc_info"], PoisonError)


def test_what_ends_the_process_is_not_kept():
    for error in (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
        with pytest.raises(error), Guard(SYSTEM, [].append)("pod", "a"):
            raise error


async def test_a_loop_that_fails_begins_again(monkeypatch):
    monkeypatch.setattr(guarding, "backoff", lambda *_, **__: 0.0)
    began, kinds = [], []

    async def loop():
        began.append(1)
        if len(began) < 3:
            raise PoisonError
        await asyncio.sleep(60)

    task = asyncio.create_task(Guard(SYSTEM, kinds.append).forever("loop", loop))
    while len(began) < 3:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert kinds == ["loop"] * 2


@pytest.fixture
def poisoned(monkeypatch):
    """Whatever is called poison cannot be read."""
    real = convert.pod_requests

    def requests(spec, status=None):
        if any(one.name == "poison" for one in spec.containers or ()):
            raise PoisonError
        return real(spec, status)

    monkeypatch.setattr(convert, "pod_requests", requests)


def bound(name, node, *, container="c"):
    from support.owned import make_pod

    spec = {"containers": [{"name": container, "resources": {"requests": {"cpu": "1"}}}]}
    return make_pod(name, gated=False, node=node, spec=spec)


def test_a_poisoned_pod_takes_one_of_pods_and_all_others_are_taken_in(poisoned):
    world = World()
    for node in NODES:
        world.put("node", node)
    name = key(NODES[0])
    for at, container in enumerate(("c", "poison", "c")):
        world.put("pod", bound(f"p{at}", name, container=container))
    again = world.restarted()
    for memory in (world.memory, again):
        assert set(memory.state.pods) == {"ns/p0", "ns/p1", "ns/p2"}
        assert memory.state.pods["ns/p1"].requests == {}


def test_a_job_whose_workload_cannot_be_read_is_no_half_entry_that_a_start_waits_for(monkeypatch):
    world = World()
    from ungater.cache import views as module

    real = module.observed_of

    def observed_of(workload):
        if workload.metadata.name.startswith("job-poison"):
            raise PoisonError
        return real(workload)

    jobs = [make_job(name) for name in ("a", "poison", "z")]
    for job in jobs:
        world.put("job", job)
        world.put("workload", stored_workload(world.memory.entries[id_of(job)].job, slot_map(("b/r1/n1", 1))))
    monkeypatch.setattr(module, "observed_of", observed_of)
    again = world.restarted()
    assert set(again.entries) == set(again.entries._ids.values()) == {id_of(jobs[0]), id_of(jobs[2])}


def test_a_poisoned_job_does_not_end_a_start(monkeypatch):
    world = World()
    from ungater.cache import jobs as module

    real = module.owner_of

    def owner_of(job, *rest):
        if job.metadata.name == "poison":
            raise PoisonError
        return real(job, *rest)

    monkeypatch.setattr(module, "owner_of", owner_of)
    jobs = [make_job(name) for name in ("a", "poison", "z")]
    for job in jobs:
        world.stores["job"][key(job)] = job
    assert set(world.restarted().entries) == {id_of(jobs[0]), id_of(jobs[2])}
    assert KEYS.gate

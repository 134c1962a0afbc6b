"""How long workloads have run is read from their status, so that a restart changes nothing of who is safe."""

import msgspec
import pytest
from support.kueue_started import beside_kueue, run_by_kueue, started_job
from support.owned import KEYS, make_job, make_pod
from support.queued_world import entry_of, filled, queued
from support.used_over_time import BEGAN as NOW
from support.used_over_time import Clock
from support.world import World, stored_workload

from crds.admitted_quota import AdmittedQuota, encode
from crds.constants import ADMITTED_QUOTA
from queueing.model import Rules, RunTime
from ungater.cache.cache import Cache
from ungater.guard import Guard
from ungater.jobs.job import owner_of
from ungater.model import conditions
from ungater.model.conditions import ADMITTED, PODS_READY, QUOTA_RESERVED, WantedCondition
from ungater.model.job_view import id_of
from ungater.scheduling.replacement import message_of


class Running(World):
    """A queue of four CPUs with a job that runs in it."""

    def __init__(self, *, minimum=RunTime()):  # noqa: B008  (a frozen struct)
        self.clock, self.minimum, self.version, self.signals = Clock(), minimum, 7, 0
        super().__init__()
        filled(self)
        self.job = queued(self, "train")
        self.admit(self.job)

    def make(self):
        options = {"clock": self.clock, "guard": Guard(self.clock, [].append), "queueing": Rules(minimum=self.minimum)}
        return Cache(KEYS, self.look_ups(), self._ask, self._signal, notices=self, **options)

    def _signal(self):
        self.signals += 1

    def tell(self, *said, at, status=True):
        """Its Workload says these conditions since then."""
        stored = self.stores["workload"][entry_of(self, self.job).key]
        wanted = tuple(WantedCondition(one, status, "Said", "") for one in said)
        merged = conditions.merge(stored.status.conditions, wanted, generation=1, now=at)
        self.version += 1
        meta = msgspec.structs.replace(stored.metadata, resource_version=str(self.version))
        told = msgspec.structs.replace(stored.status, conditions=merged)
        self.put("workload", msgspec.structs.replace(stored, metadata=meta, status=told))

    def times(self, memory=None):
        """Since when it is admitted and its pods are ready, as the queues have it."""
        (entry,) = (memory or self.memory).queues.entries.values()
        return entry.admitted_at, entry.ready_at


def test_what_its_workload_says_counts_and_a_controller_that_starts_reads_it_again():
    world = Running()
    assert world.times() == (None, None)
    world.tell(QUOTA_RESERVED, ADMITTED, at=NOW - 100)
    assert world.times() == (NOW - 100, None)
    world.tell(PODS_READY, at=NOW - 40)
    assert world.times() == world.times(world.restarted()) == (NOW - 100, NOW - 40)


def test_after_a_restart_one_whose_pods_are_not_ready_for_a_moment_counts_from_when_they_ceased_to_be():
    world = Running()
    world.tell(QUOTA_RESERVED, ADMITTED, at=NOW - 100)
    world.tell(PODS_READY, at=NOW - 100, status=False)
    assert world.times(world.restarted()) == (NOW - 100, None)
    world.tell(PODS_READY, at=NOW - 90)
    world.tell(PODS_READY, at=NOW - 40, status=False)
    assert world.times() == (NOW - 100, NOW - 90)
    assert world.times(world.restarted()) == (NOW - 100, NOW - 40)
    world.tell(PODS_READY, at=NOW - 5)
    assert world.times() == (NOW - 100, NOW - 90)
    assert world.times(world.restarted()) == (NOW - 100, NOW - 5)


def test_one_that_is_admitted_again_does_not_count_from_what_its_pods_were_before():
    world = Running()
    world.tell(PODS_READY, at=NOW - 300, status=False)
    world.tell(QUOTA_RESERVED, ADMITTED, at=NOW - 100)
    assert world.times() == world.times(world.restarted()) == (NOW - 100, None)


def test_one_whose_checks_are_not_ready_has_not_begun():
    world = Running()
    world.tell(QUOTA_RESERVED, at=NOW - 100)
    world.tell(ADMITTED, at=NOW - 100, status=False)
    assert world.times() == world.times(world.restarted()) == (None, None)


def test_the_clock_of_another_controller_that_is_ahead_makes_nobody_safe_for_longer():
    world = Running()
    world.tell(QUOTA_RESERVED, ADMITTED, PODS_READY, at=NOW + 5000)
    assert world.times() == (NOW, NOW)


def test_one_that_is_taken_over_from_kueue_has_begun_before_that_is_stored():
    """The answer to the write may be late, and its pods run meanwhile."""
    world, clock, job = beside_kueue(), Clock(), started_job()
    run_by_kueue(world, job, ["r2-h1", "r2-h2"])
    memory = world.restarted(clock=clock)
    (queued_as,) = memory.queues.entries.values()
    assert (queued_as.admitted_at, queued_as.ready_at) == (NOW, None)
    # Its pods are seen once more, before anything is stored.
    clock.at += 20
    entry = memory.entries[id_of(job)]
    memory.count_pods(entry, clock.at)
    assert queued_as.admitted_at == NOW
    # What its Workload says counts instead, as after a restart; the first that it says, should it be deleted later.
    world.memory = memory
    stored = stored_workload(entry.job, entry.admission)
    for version, said_at in (("8", NOW + 5), ("9", NOW + 15)):
        admitted = conditions.merge((), (WantedCondition(ADMITTED, True, "Adopted", ""),), generation=1, now=said_at)
        meta = msgspec.structs.replace(stored.metadata, resource_version=version)
        status = msgspec.structs.replace(stored.status, conditions=admitted)
        world.put("workload", msgspec.structs.replace(stored, metadata=meta, status=status))
        assert queued_as.admitted_at == NOW + 5


def test_one_whose_workload_was_deleted_while_nobody_was_there_has_begun_before_it_is_stored_again():
    world = Running()
    del world.stores["workload"][entry_of(world, world.job).key]
    started = make_job("train", parallelism=2, labels={KEYS.queue_name: "team"})
    world.stores["job"]["ns/train"] = started
    quota, owner = encode(AdmittedQuota("cq", {"cpu": "gpu"})), owner_of(started, KEYS)
    for number, host in enumerate(("h1", "h2")):
        pod = make_pod(f"train-{number}", owner=owner, at=("b", "r2", f"r2-{host}"), node=f"r2-{host}", phase="Running")
        marks = {**pod.metadata.annotations, KEYS.pod_set: "main", ADMITTED_QUOTA: quota}
        meta = msgspec.structs.replace(pod.metadata, annotations=marks)
        world.stores["pod"][f"ns/train-{number}"] = msgspec.structs.replace(pod, metadata=meta)
    assert world.times(world.restarted()) == (NOW, None)


@pytest.mark.parametrize(("until", "signalled"), [(NOW + 500, True), (NOW + 1, False)])
def test_who_waits_for_it_is_looked_at_earlier_where_its_pods_become_ready(until, signalled):
    world = Running(minimum=RunTime(reclaim=100.0))
    world.tell(QUOTA_RESERVED, ADMITTED, at=NOW - 10)
    times = world.memory.queues.run_times
    times.wake_due(NOW)
    times.leave_out_safe(entry_of(world, world.job).key, until, until, times.minimums_of("cq")[0][1])
    times.await_end("cq")
    before = world.signals
    world.tell(PODS_READY, at=NOW)
    assert list(times.end_times()) == [NOW + 100 if signalled else until]
    assert (world.signals > before) == signalled


def test_its_workload_tells_how_long_it_runs_at_least():
    world = Running(minimum=RunTime(within=300.0))
    entry = entry_of(world, world.job)
    said = message_of(world.memory, entry, entry.admission, "admitted by cluster queue cq")
    assert said.startswith("admitted by cluster queue cq; ")
    assert said.endswith("; it is not evicted to make room for its own queue in its first 300 s (minimumRunTime)")
    plain = Running()
    entry = entry_of(plain, plain.job)
    assert "minimumRunTime" not in message_of(plain.memory, entry, entry.admission, "admitted by cluster queue cq")

"""Pods that have years to stop, and hold borrowed quota that its owner takes back."""

import unittest.mock

import msgspec
import pytest
from support.owned import KEYS, make_job, make_known, make_pod
from support.queued_world import cluster_queue, entry_of, filled, queued, read
from support.world import World

from clock import Clock
from crds.admitted_quota import AdmittedQuota, encode
from crds.constants import ADMITTED_QUOTA
from kube.queues import LocalQueue
from queueing.cycle.cycle import cycle
from ungater.executor.eviction import ReclaimRules
from ungater.executor.lingering import LingeringPods
from ungater.model.conditions import timestamp

WALL = 1_000_000.0


def named(queue, name):
    return msgspec.structs.replace(queue, metadata=msgspec.structs.replace(queue.metadata, name=name))


class Lent:
    """Job ``train`` has borrowed all CPUs of queue ``owner``, is suspended, and its pod stops when it likes."""

    def __init__(self, left, *, waits=True):
        self.world = world = filled(World(), 0, cohortName="c")
        owner = cluster_queue(4, cohortName="c", preemption={"reclaimWithinCohort": "Any"})
        world.put("cluster_queue", named(owner, "owner"))
        local = {"metadata": {"namespace": "ns", "name": "owners"}, "spec": {"clusterQueue": "owner"}}
        world.put("local_queue", read(local, LocalQueue))
        self.job = queued(world, "train", 4)
        slots = world.admit(self.job)
        self.entry = entry_of(world, self.job)
        at = slots.slots[0].values
        pod = make_pod("slow", owner=self.entry.job, at=at, node="r1-h1")
        annotations = {**pod.metadata.annotations, ADMITTED_QUOTA: encode(AdmittedQuota("cq", {"cpu": "gpu"}))}
        ends = timestamp(WALL + left) if left is not None else None
        metadata = msgspec.structs.replace(pod.metadata, annotations=annotations, deletion_timestamp=ends)
        self.pod = msgspec.structs.replace(pod, metadata=metadata)
        world.put("pod", self.pod)
        self.waits = waits

    def hurried(self, **rules):
        """Which pods are told to stop sooner, and in how many seconds."""
        world, evictor = self.world, unittest.mock.Mock()
        if self.waits:
            job = make_job("mine", parallelism=4, labels={KEYS.queue_name: "owners"}, suspend=True)
            world.put("job", job)
            mine = entry_of(world, job)
            mine.observed = make_known(mine.job)
            world.memory.admissions.enqueue_entry(mine)
        for now in (10.0, 1000.0):
            assert not cycle(world.memory.state, world.memory.queues, now).admitted
        clock = Clock(now=lambda: WALL, monotonic=lambda: 1000.0)
        look = LingeringPods(world.memory, world.stores["pod"].values, evictor, ReclaimRules(**rules), clock)
        for _ in range(2):
            look.hurry_pods()
        return [(call.args[1].metadata.name, call.kwargs["most_grace"]) for call in evictor.mock_calls]


YEARS = 1e8


def test_a_pod_of_a_workload_that_leaves_with_quota_of_others_has_to_stop_in_time():
    lent = Lent(YEARS)
    lent.world.memory.queues.holders.mark_leaving(lent.entry.key)
    assert lent.hurried() == [("slow", 600)]


def test_a_pod_that_outlives_its_workload_with_quota_of_others_has_to_stop_in_time():
    lent = Lent(YEARS)
    lent.world.drop("job", lent.job)
    assert lent.hurried() == [("slow", 600)]


@pytest.mark.parametrize(
    ("left", "waits", "rules"),
    [(500.0, True, {}), (YEARS, False, {}), (YEARS, True, {"overrides": False})],
    ids=["it-stops-soon", "nobody-waits", "budgets-count"],
)
def test_a_pod_stops_as_it_was_told_to_where(left, waits, rules):
    lent = Lent(left, waits=waits)
    lent.world.memory.queues.holders.mark_leaving(lent.entry.key)
    assert lent.hurried(**rules) == []

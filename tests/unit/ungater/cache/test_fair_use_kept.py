"""What LocalQueues used over time is in their status, and a controller that starts goes on from there."""

import msgspec
import pytest
from support.queued_world import filled, read
from support.used_over_time import UsedWorld

from kube.queues import LocalQueue
from queueing.model import Rules, UseRules
from ungater.model import conditions
from ungater.model.conditions import ADMITTED, QUOTA_RESERVED, WantedCondition
from ungater.status.queues import REFRESH, Source, changes

SCOPE = {"admissionScope": {"admissionMode": "UsageBasedAdmissionFairSharing"}}
PART = "ns/team"


class Shared(UsedWorld):
    """A queue of four CPUs that goes by use, its LocalQueue, and what their status says."""

    def __init__(self, sampling=None):
        super().__init__(Rules(use=UseRules(half_life=600.0, sampling=sampling)))

    @property
    def use(self):
        return self.memory.queues.use

    def end(self, job):
        """A job is deleted."""
        self.drop("job", job)

    def written(self):
        """What would be written of the LocalQueue now; it is there afterwards."""
        (local,) = self.stores["local_queue"].values()
        source = Source(self.memory.queues, lambda: ("gpu",), lambda: (), lambda: (), lambda: [local], set)
        (patch,) = list(changes(source, self.clock.at)) or [None]
        if patch is None:
            return None
        status = {**(local.status or {}), **patch.status}
        self.put("local_queue", msgspec.structs.replace(local, status=status))
        return patch.status

    def used(self, memory=None):
        memory = memory or self.memory
        memory.queues.pass_time(self.clock.at)
        return memory.queues.use.consumed_by(PART), memory.queues.use.score_of(PART)


def shared(**options):
    return filled(Shared(**options), **SCOPE)


def test_a_controller_that_starts_goes_on_where_the_last_one_stood():
    world = shared()
    early = world.run("early")
    world.clock.at += 600.0
    world.written()
    world.clock.at += 100.0
    world.run("late", 1)
    world.clock.at += 2.0
    (status,) = [one for one in [world.written()] if one]
    found = status["fairSharing"]["admissionFairSharingStatus"]
    assert found["consumedResources"]["cpu"] == f"{world.use.consumed_by(PART)['cpu'] / 1000:.9f}".rstrip("0")
    assert found["lastUpdate"] == "1970-01-12T13:58:22.000000Z"
    world.clock.at += 500.0
    consumed, score = world.used()
    again, after = world.used(world.restarted())
    assert consumed["cpu"] > 1500, "of 3,000 that are held"
    assert again == pytest.approx(consumed, rel=1e-8)
    assert after == pytest.approx(score, abs=1e-6)
    world.end(early)
    world.clock.at += 600.0
    assert world.used()[0]["cpu"] == pytest.approx(1000 + (consumed["cpu"] - 1000) / 2)


def test_without_a_status_what_runs_counts_from_when_it_was_admitted():
    world = shared()
    world.run("train")
    world.clock.at += 600.0
    assert world.used(world.restarted())[0] == {"cpu": pytest.approx(1000.0)}, "half of what it holds"


def test_what_runs_and_does_not_say_since_when_counts_from_now_on():
    world = shared()
    world.run("train", told=())
    world.clock.at += 600.0
    memory = world.restarted()
    assert world.used(memory)[0] == {}
    world.clock.at += 600.0
    assert world.used(memory)[0] == {"cpu": pytest.approx(1000.0)}


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"fairSharing": None},
        {"fairSharing": "x"},
        {"fairSharing": {"admissionFairSharingStatus": []}},
        {"fairSharing": {"admissionFairSharingStatus": {"consumedResources": {"cpu": "9"}}}},
        {"fairSharing": {"admissionFairSharingStatus": {"consumedResources": {"cpu": "9"}, "lastUpdate": "yesterday"}}},
        {"fairSharing": {"admissionFairSharingStatus": {"consumedResources": {"cpu": {}}, "lastUpdate": "1970-01-12"}}},
        {
            "fairSharing": {
                "admissionFairSharingStatus": {"consumedResources": [1], "lastUpdate": "1970-01-12T00:00:00Z"}
            }
        },
    ],
)
def test_a_status_that_nobody_can_read_stops_nothing_and_says_nothing(status):
    world = shared()
    (local,) = world.stores["local_queue"].values()
    world.put("local_queue", msgspec.structs.replace(local, status=status))
    memory = world.restarted()
    assert world.used(memory) == ({}, 0.0)
    assert world.used() == ({}, 0.0), "and nothing is read from it while a controller runs"


def test_a_status_with_giant_numbers_is_bounded():
    world = shared()
    (local,) = world.stores["local_queue"].values()
    found = {"consumedResources": {"cpu": "9e999", "x/y": "-5"}, "lastUpdate": "9999-01-01T00:00:00Z"}
    status = {"fairSharing": {"admissionFairSharingStatus": found}}
    world.put("local_queue", msgspec.structs.replace(local, status=status))
    assert world.used()[0] == {}, "while a controller runs the status is what it wrote itself"
    memory = world.restarted()
    assert world.used(memory)[0] == {"cpu": pytest.approx(float(2**63))}
    world.clock.at += 600.0
    assert world.used(memory)[0] == {"cpu": pytest.approx(float(2**62))}, "it falls from now on"


def test_use_is_written_beside_other_numbers_and_else_only_when_it_is_old_and_far_off():
    world = shared()
    world.written()
    assert world.written() is None
    job = world.run("train")
    assert "fairSharing" in world.written()
    world.clock.at += REFRESH - 1.0
    assert world.written() is None
    world.clock.at += 1.0
    assert [*world.written()] == ["fairSharing"]
    world.end(job)
    assert {"fairSharing", "flavorsUsage"} <= set(world.written())
    for _ in range(60):
        world.clock.at += 600.0
        world.written()
    assert world.written() is None, "what decayed to nothing is not written for ever"
    (local,) = world.stores["local_queue"].values()
    assert local.status["fairSharing"]["admissionFairSharingStatus"]["consumedResources"] == {"cpu": None}


def test_without_a_scope_there_is_no_use_in_the_status():
    world = filled(Shared())
    world.run("train")
    world.clock.at += 100.0
    assert "fairSharing" not in world.written()
    scoped = shared()
    scoped.run("train")
    scoped.clock.at += 100.0
    scoped.written()
    scoped.memory.queues.set_cluster_queue(
        msgspec.structs.replace(scoped.memory.queues.quotas.queues["cq"], by_use=False)
    )
    assert scoped.written() == {"fairSharing": None}
    assert scoped.written() is None


def test_with_sampling_use_counts_once_the_workload_says_that_it_is_admitted():
    world = shared(sampling=300.0)
    world.run("train", told=(QUOTA_RESERVED,))
    penalty = 2 * (1 - 0.5**0.5)
    assert world.used() == ({}, pytest.approx(penalty, abs=1e-6)), "a check is not ready yet"
    world.clock.at += 3000.0
    assert world.used() == ({}, pytest.approx(penalty, abs=1e-6))
    record = world.memory.entries[next(iter(world.memory.entries))]
    stored = world.stores["workload"][record.key]
    wanted = (WantedCondition(ADMITTED, True, "Admitted", ""),)
    merged = conditions.merge(stored.status.conditions, wanted, generation=1, now=world.clock.at)
    meta = msgspec.structs.replace(stored.metadata, resource_version="9")
    status = msgspec.structs.replace(stored.status, conditions=merged)
    world.put("workload", msgspec.structs.replace(stored, metadata=meta, status=status))
    world.clock.at += 300.0
    assert world.used()[0] == {"cpu": pytest.approx(1000.0)}, "4.000 of example E, for two cores instead of eight GPUs"


def test_a_local_queue_with_a_weight_that_nobody_can_read_keeps_the_one_that_is_known():
    world = shared()
    wire = {"metadata": {"namespace": "ns", "name": "team"}, "spec": {"clusterQueue": "cq"}}
    world.put("local_queue", read({**wire, "spec": {"clusterQueue": "cq", "fairSharing": {"weight": "2"}}}, LocalQueue))
    world.put("local_queue", read({**wire, "spec": {"clusterQueue": "cq", "fairSharing": {"weight": "x"}}}, LocalQueue))
    assert world.memory.queues.config.local["ns", "team"].weight == 2000
    world.run("train")
    assert world.used()[1] == pytest.approx(1 - 0.5**0.5, abs=1e-6)

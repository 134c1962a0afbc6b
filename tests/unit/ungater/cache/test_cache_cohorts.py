"""Cohorts in what the controller knows: by events, from its lists, and where one cannot be read."""

import pytest
from support.queued_world import entry_of, filled, queued, read
from support.world import World

from engine.reasons import Reason
from kube.queues import Cohort
from queueing.cycle.cycle import cycle

KEY = ("gpu", "cpu")


def cohort(name, parent="", cpus=None):
    spec = {"parentName": parent} if parent else {}
    if cpus is not None:
        flavor = {"name": "gpu", "resources": [{"name": "cpu", "nominalQuota": cpus}]}
        spec["resourceGroups"] = [{"coveredResources": ["cpu"], "flavors": [flavor]}]
    return read({"metadata": {"name": name}, "spec": spec}, Cohort)


@pytest.fixture
def world():
    return filled(World(), cpus=1, cohortName="team")


def waits(world, job):
    """Why a job waits after a cycle; None where it was admitted."""
    record = entry_of(world, job)
    if record.key not in world.memory.queues.entries:
        return world.refused(job).reason
    admitted = cycle(world.memory.state, world.memory.queues, 0.0).admitted
    return None if admitted else world.memory.queues.entries[record.key].refusal.reason


def test_a_cohort_gives_its_own_quota_to_who_waits_below_it_until_it_goes(world):
    job = queued(world, "train")
    assert waits(world, job) is Reason.EXCEEDS_QUOTA
    world.put("cohort", cohort("team", "org"))
    assert waits(world, job) is Reason.EXCEEDS_QUOTA
    world.put("cohort", cohort("org", cpus=1))
    assert waits(world, job) is None
    world.drop("cohort", cohort("org", cpus=1))
    assert world.memory.queues.quotas.limit("cq", KEY) == 1000


def test_a_restart_knows_the_same_tree(world):
    for one in (cohort("team", "org"), cohort("org", "above", cpus=3), cohort("loop", "loop")):
        world.put("cohort", one)
    before, after = (one.queues.quotas for one in (world.memory, world.restarted()))
    assert after.cohorts == before.cohorts
    for quotas in (before, after):
        assert [node.name for node in quotas.tree.queues["cq"].path] == ["team", "org", "above"]
        assert (quotas.limit("cq", KEY), quotas.tree.cohorts["loop"].cycle) == (4000, ("loop",))


def test_of_a_cohort_that_cannot_be_read_what_was_known_counts(world):
    world.put("cohort", cohort("team", cpus=3))
    world.put("cohort", cohort("team", "org", cpus="much"))
    assert world.memory.queues.quotas.limit("cq", KEY) == 4000


def test_an_event_before_everything_is_listed_changes_nothing(world):
    fresh = world.make()
    world.memory = fresh
    world.put("cohort", cohort("team", cpus=3))
    assert fresh.queues.quotas.cohorts == {}

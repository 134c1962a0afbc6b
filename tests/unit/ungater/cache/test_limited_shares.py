"""Shares of domains in what the controller knows: jobs take turns, a restart knows the same, and who waits is woken."""

import json

import pytest
from support.owned import KEYS
from support.queued_world import filled, queued
from support.world import World

from queueing.cycle.cycle import cycle

APP = {"app": "main"}


def limits(share="0.5", mode="Required", selectors=({"key": "app", "operator": "In", "values": ["main"]},)):
    rule = {"topologyKey": "rack", "maxShareAllowingPlacement": share, "enforcementMode": mode}
    return {
        KEYS.required[0]: "rack",
        KEYS.spreading: json.dumps({"workloadLabelSelectors": selectors, "rules": [rule]}),
    }


def limited(world, name, **more):
    return queued(world, name, pods=1, request=limits(**more), pod_labels=APP)


def racks(memory):
    """By job, the rack that it holds."""
    return {
        key.partition("/")[2].partition("-")[2].rpartition("-")[0]: part.slices[0].values[-2]
        for key, parts in memory.state.workloads.items()
        if isinstance(key, str)
        for part in parts.values()
    }


@pytest.fixture
def world():
    return filled(World(), cpus=8)


def test_jobs_of_one_label_take_turns_and_a_restart_knows_it(world):
    *jobs, last = [limited(world, name) for name in ("a", "b", "c", "d")]
    for job in jobs:
        world.admit(job)
    there = racks(world.memory)
    assert sorted(there.values()) in (["r1", "r1", "r2"], ["r1", "r2", "r2"])
    again = world.restarted()
    assert racks(again) == there
    fewer = min(("r1", "r2"), key=[*there.values()].count)
    for memory in (world.memory, again):
        world.memory = memory
        world.admit(last)
        assert racks(memory)["d"] == fewer


def test_who_waits_for_a_share_is_looked_at_when_one_of_them_ends(world):
    for name in ("a", "b"):
        world.admit(limited(world, name, share="0.4"))
    waiting, memory = limited(world, "c", share="0.4"), world.memory
    assert "no rack of flavor gpu may take one more" in world.refused(waiting).message
    assert not cycle(memory.state, memory.queues, 1.0).admitted
    memory.reservations.release_reservations(memory.entries["ns/uid-a"])
    (admitted,) = cycle(memory.state, memory.queues, 2.0).admitted
    assert admitted.key == memory.entries["ns/uid-c"].key


def test_who_waits_for_a_share_is_looked_at_when_another_is_placed(world):
    # Placed elsewhere, one more of them makes the share of the first rack a smaller one.
    first = limited(world, "a", share="0.5")
    world.admit(first)
    memory = world.memory
    (used,) = racks(memory).values()
    free = {"r1": "r2", "r2": "r1"}[used]
    filler = queued(world, "filler", pods=4, request={KEYS.required[0]: "rack"})
    world.admit(filler)
    waiting = limited(world, "b", share="0.5")
    assert f"rack b/{used} has 1 of 1" in world.refused(waiting).message
    memory.reservations.release_reservations(memory.entries["ns/uid-filler"])
    other = queued(
        world, "other", pods=1, request=limits(share="0.5"), pod_labels=APP, spec={"nodeSelector": {"rack": free}}
    )
    world.admit(other)
    assert racks(memory)["other"] == free
    decided = cycle(memory.state, memory.queues, 2.0)
    assert [one.key for one in decided.admitted] in ([memory.entries["ns/uid-b"].key], [])
    assert "b" in racks(memory)


def test_without_a_selector_jobs_of_two_owners_do_not_count_for_each_other(world):
    for name in ("a", "b"):
        world.admit(queued(world, name, pods=1, request=limits(selectors=()), pod_labels=APP))
    assert len(set(racks(world.memory).values())) == 1

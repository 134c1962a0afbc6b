"""An eviction that a budget refuses for longer than is waited for: nobody plans on what it holds."""

import unittest.mock

from support.owned import KEYS, make_pod
from support.queued_world import entry_of, filled, queued
from support.world import World

from clock import SYSTEM
from ungater.executor.eviction import Eviction, ReclaimRules
from ungater.executor.start_stop import StartStop
from ungater.metrics import ControllerMetrics
from ungater.model.actions import EvictPods
from ungater.writers.evictor import Blocked


async def test_it_is_expected_to_go_again_once_the_budget_lets_its_pods_go():
    world = filled(World())
    job = queued(world, "train")
    world.admit(job)
    record, queues = entry_of(world, job), world.memory.queues
    queues.holders.mark_leaving(record.key)
    evictor = unittest.mock.Mock()
    eviction = Eviction(
        world.memory,
        None,
        None,
        evictor,
        writes=None,
        jobs=StartStop(None, world.memory, None, flavors={}, keys=KEYS, recorder=None),
        requeue=unittest.mock.Mock(),
        recorder=None,
        metrics=ControllerMetrics(),
        patience=1.0,
        reclaim=ReclaimRules(),
        clock=SYSTEM,
    )
    found = []
    for blocked in (None, Blocked(SYSTEM.monotonic() - 5.0, "its budget"), None):
        evictor.blocked.return_value = blocked
        await eviction.evict_pods(record, EvictPods((make_pod("train-0"),), "kube-scheduler refuses its pods"))
        found.append(queues.holders.going())
    assert found == [[record.key], [], [record.key]]

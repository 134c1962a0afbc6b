"""An eviction that a budget refuses for longer than is waited for: nobody plans on what it holds."""

import unittest.mock

import msgspec
import pytest
from support.owned import KEYS, make_pod
from support.queued_world import entry_of, filled, queued
from support.world import World

from clock import SYSTEM, Clock
from kube.objects import Condition
from ungater.executor.eviction import Eviction, ReclaimRules
from ungater.executor.start_stop import StartStop
from ungater.metrics import ControllerMetrics
from ungater.model.actions import EvictPods
from ungater.model.conditions import EVICTED, timestamp
from ungater.writers.evictor import Blocked

START = 1_800_000_000.0  # of the controller
PATIENCE = 60.0


class Evicted:
    """Job ``train`` is being evicted, by a controller that started at ``START``."""

    def __init__(self, since=START):
        world = self.world = filled(World())
        job = queued(world, "train")
        world.admit(job)
        self.record, self.queues = entry_of(world, job), world.memory.queues
        told = Condition(type=EVICTED, status="True", reason="SchedulerRefused", last_transition_time=timestamp(since))
        self.record.observed = msgspec.structs.replace(self.record.observed, conditions=(told,))
        self.queues.holders.mark_leaving(self.record.key)
        self.evictor = unittest.mock.Mock()
        self.evictor.blocked.return_value, self.evictor.has_granted.return_value = None, False
        self.eviction = Eviction(
            world.memory,
            None,
            None,
            self.evictor,
            writes=None,
            jobs=StartStop(None, world.memory, None, flavors={}, keys=KEYS, recorder=None),
            requeue=unittest.mock.Mock(),
            recorder=None,
            metrics=ControllerMetrics(),
            patience=PATIENCE,
            reclaim=ReclaimRules(),
            clock=Clock(lambda: START, SYSTEM.monotonic),
        )

    async def is_planned_on(self, *, stops=False):
        """Whether plans count on what it holds, once its eviction was looked at."""
        pod = make_pod("train-0")
        ends = timestamp(START + 30) if stops else None
        pod = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, deletion_timestamp=ends))
        await self.eviction.evict_pods(self.record, EvictPods((pod,), "kube-scheduler refuses its pods"))
        return self.queues.holders.going() == [self.record.key]


async def test_it_is_expected_to_go_again_once_the_budget_lets_its_pods_go():
    made, found = Evicted(), []
    for blocked in (None, Blocked(SYSTEM.monotonic() - PATIENCE - 5.0, "its budget"), None):
        made.evictor.blocked.return_value = blocked
        found.append(await made.is_planned_on())
    assert found == [True, False, True]


@pytest.mark.parametrize(("before", "planned_on"), [(PATIENCE - 1, True), (PATIENCE, False), (86_400.0, False)])
async def test_after_a_restart_nobody_plans_on_one_whose_pods_stayed_for_longer_than_is_waited_for(before, planned_on):
    """A budget kept a workload for minutes; each restart had another one evicted that did not suffice without it."""
    assert await Evicted(START - before).is_planned_on() is planned_on


async def test_one_that_a_budget_kept_before_a_restart_is_planned_on_once_a_pod_is_let_go():
    made, now = Evicted(START - 3600), SYSTEM.monotonic()
    made.evictor.blocked.return_value = Blocked(now, "its budget")
    assert not await made.is_planned_on(), "the budget refuses as before"
    made.evictor.blocked.return_value, made.evictor.has_granted.return_value = None, True
    assert await made.is_planned_on()


async def test_one_whose_pods_stop_already_is_planned_on_after_a_restart():
    assert await Evicted(START - 3600).is_planned_on(stops=True)


async def test_after_a_restart_who_was_nominated_goes_on_waiting_for_its_victim(monkeypatch):
    """The controller may have been down since it stored the eviction, so that no budget was asked yet."""
    made = Evicted(START - 3600)
    monkeypatch.setattr(made.world.memory.reservations, "preemptors_of", lambda _: ["ns/mine"])
    assert await made.is_planned_on()

"""The tasks of one term of leadership: watches feed the cache, workers look at jobs, cycles admit workloads.

- One worker at a time looks at one job (`ungater.reconciler`).
- A workload that needs a place, or more of it, waits in queueing; `ungater.scheduling.scheduler` runs the admission
  cycle.
- What a queued job's life needs is carried out in `ungater.executor`: `start_stop` and `eviction`.
- Only the leader runs one of these. When the lease is lost the task is cancelled, and what is in memory goes with it.
"""

import asyncio

import structlog

from clock import Clock
from kube.events import EventRecorder
from kube.objects import key
from ungater import kinds
from ungater.assembly import Parts
from ungater.executor.sweeper import SWEEP
from ungater.metrics import ControllerMetrics
from ungater.reconciler import Reconciler

WORKERS = 16  # looks at jobs, and creations of Workloads, at a time
FIRST_LOOKS = 30.0  # seconds at most, after a start, until somebody is admitted though others were not looked at yet
PAUSE = 0.05  # seconds between two cycles that only freed capacity asked for

log = structlog.get_logger()


class Controller:
    """One term of leadership, with its parts."""

    def __init__(self, parts: Parts, recorder: EventRecorder, metrics: ControllerMetrics, clock: Clock) -> None:
        self.parts = parts
        self.reconciler = Reconciler(parts, recorder, metrics, clock)
        self._clock = clock
        self.ready = False

    async def run(self) -> None:
        """List, rebuild, then work, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                parts, informers = self.parts, self.parts.informers
                parts.tasks.start_in(group)
                for task in (*(each.run() for each in informers.every), *(each.run() for each in informers.optional)):
                    group.create_task(task)
                await informers.synced()
                await informers.load(parts.cache)
                leftover = parts.sweeper.leftover(informers.stored_workloads(), informers.stored_pods())
                parts.cycle_requests.await_looks((*parts.cache.entries, *map(key, leftover)))
                group.create_task(parts.sweeper.clear(leftover))
                parts.cycle_requests.request_cycle()
                self.ready = True
                nodes, pods = len(informers.list_objects(kinds.NODES)), len(informers.list_objects(kinds.PODS))
                log.info("leading", nodes=nodes, pods=pods, jobs=len(parts.cache.entries))
                for _ in range(WORKERS):
                    group.create_task(self._work())
                for name, loop in (
                    ("sender", parts.pod_writer.run),
                    ("evictions", parts.evictor.run),
                    ("cycles", self._cycles),
                    ("lazy", parts.executor.deferred.run),
                    ("sweep", parts.sweeper.run),
                    ("kueue", parts.bridge.run),
                    ("queues", parts.queue_status.run),
                    ("flavors", parts.flavor_status.run),
                ):
                    group.create_task(parts.guard.forever(name, loop))
        finally:
            self.ready = False
            # Timers reach an hour ahead, and would keep this term's objects until then.
            self.parts.queue.close()

    async def _work(self) -> None:
        queue, guard, saw = self.parts.queue, self.parts.guard, self.parts.cycle_requests.saw
        while True:
            uid = await queue.get()
            try:
                with guard("workload", uid):
                    await self.reconciler.reconcile(uid)
            finally:
                # Also after an error: one job that fails must not hold up the first cycle for all.
                saw(uid)
                queue.done(uid)

    async def _cycles(self) -> None:
        cache, scheduler, requests = self.parts.cache, self.parts.scheduler, self.parts.cycle_requests
        # Else the first to be looked at would be admitted before those it waits behind.
        await requests.wait_for_looks(FIRST_LOOKS)
        while True:
            due = scheduler.next_time
            await requests.wait_for_request(SWEEP if due is None else min(SWEEP, max(0.0, due - self._clock.now())))
            generation = cache.generation
            with self.parts.guard("budget", ""):
                self.parts.budgets.report_changes()
            while scheduler.cycle():
                # Between two steps watches are read and the lease is renewed.
                await asyncio.sleep(0)
            if cache.generation != generation:
                await asyncio.sleep(PAUSE)

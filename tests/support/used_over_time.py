"""A `World` with a clock that is set, in which use over time is counted, and jobs that are admitted there."""

import msgspec
from support.queued_world import entry_of, queued
from support.world import World

from ungater.model import conditions
from ungater.model.conditions import ADMITTED, QUOTA_RESERVED, WantedCondition

BEGAN = 1_000_000.0


class Clock:
    """A clock that is set."""

    def __init__(self):
        self.at = BEGAN

    def now(self):
        return self.at

    monotonic = now


class UsedWorld(World):
    """See the module; ``rules``: those of its queues."""

    def __init__(self, rules):
        self.clock, self.rules = Clock(), rules
        super().__init__()

    def make(self, **options):
        return super().make(clock=self.clock, queueing=self.rules, **options)

    def run(self, name, cpus=2, *, told=(QUOTA_RESERVED, ADMITTED)):
        """A job is admitted now, and its Workload says so."""
        job = queued(self, name, cpus)
        self.memory.queues.pass_time(self.clock.at)
        self.admit(job)
        stored = self.stores["workload"][entry_of(self, job).key]
        wanted = tuple(WantedCondition(one, True, "QuotaReserved", "") for one in told)
        merged = conditions.merge((), wanted, generation=1, now=self.clock.at)
        meta = msgspec.structs.replace(stored.metadata, resource_version="8")
        status = msgspec.structs.replace(stored.status, conditions=merged)
        self.put("workload", msgspec.structs.replace(stored, metadata=meta, status=status))
        return job

"""Kueue's Workloads, by the job that each is of, where both controllers serve one cluster under one domain.

Nothing is written to them. What is not known of them is never taken for not there: a job of Kueue's that runs would be
suspended for that (`ungater.cache.held.adopted`).
"""

from collections.abc import Callable
from typing import Final

from clock import Clock
from kube import objects
from kube.informer import Event
from kube.objects import is_true
from ungater.cache.served import BesideKueue
from ungater.kueue.decide import owner_id
from ungater.model import kueue_objects
from ungater.model.kueue_objects import KueueWorkload
from ungater.optional import Discovery, OptionalInformer

FIRST_SECONDS: Final = 120.0  # for which a start waits for them, as for kinds of our own


class StartedByKueue:
    """See the module. ``enqueue(uid, after)`` has a job looked at."""

    def __init__(self, discovery: Discovery, clock: Clock, enqueue: Callable[[str, float], None]) -> None:
        newest, *older = kueue_objects.WORKLOADS
        self._enqueue = enqueue
        self._of_job: dict[str, set[str]] = {}  # by id of the job: keys of Workloads
        self._workloads: OptionalInformer[KueueWorkload] = OptionalInformer(
            discovery,
            newest,
            KueueWorkload,
            clock=clock,
            on_event=self._on_workload,
            older=older,
            first_seconds=FIRST_SECONDS,
        )

    def informers(self) -> tuple[OptionalInformer[KueueWorkload], ...]:
        """What is to be run."""
        return (self._workloads,)

    def beside(self, restart: Callable[[str], None]) -> BesideKueue:
        """What a cache asks of it. ``restart``: has the term end, and another begin."""
        return BesideKueue(self.workload_of_job, lambda: self._workloads.is_known, restart)

    def workload_of_job(self, job: str) -> KueueWorkload | None:
        """Kueue's Workload of a job, by the job's id: of several the one that is admitted; None where there is none."""
        found = [one for key in sorted(self._of_job.get(job, ())) if (one := self._workloads.get(key)) is not None]
        admitted = (one for one in found if is_true(one.status.conditions, kueue_objects.ADMITTED))
        return next(admitted, found[0] if found else None)

    def _on_workload(self, event: Event[KueueWorkload]) -> None:
        for workload in filter(None, (event.old, event.new)):
            if not (job := owner_id(workload)):
                continue
            keys = self._of_job.setdefault(job, set())
            keys.discard(objects.key(workload))
            if workload is event.new:
                keys.add(event.key)
            if not keys:
                del self._of_job[job]
            # It may be taken over now.
            self._enqueue(job, 0.0)

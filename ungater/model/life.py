"""A workload's life after it was submitted, as its rules read it (`ungater.reconcile.lifecycle`). Plain data."""

from enum import StrEnum
from typing import Final

import msgspec

from kube.objects import Condition, Pod

RELEASE: Final = "`topogate release` has it wait again"
ON_HOLD: Final = f"it is on hold (spec.active is false): {RELEASE}"


class CheckVerdict(StrEnum):
    """What an admission check says."""

    PENDING = "Pending"
    READY = "Ready"
    RETRY = "Retry"
    REJECTED = "Rejected"


class _Struct(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    pass


class LifeRules(_Struct, frozen=True):
    """Timeouts in seconds; None: none.

    ``ready_timeout``: until all pods are ready, from admission on (waitForPodsReady); ``recovery_timeout``: until they
    are ready again, once they were. ``backoff``: before the first return after a timeout, doubled each time up to
    ``backoff_most``; after ``backoff_limit`` returns (None: no limit) the workload is deactivated. ``replacement``: how
    long pods of lost nodes may be without another place. ``retention``: how long a finished Workload is kept.
    ``boost_rest``: how long a boost of a priority counts at least (`ungater.reconcile.boosts`).
    """

    ready_timeout: float | None = None
    recovery_timeout: float | None = None
    backoff: float = 60.0
    backoff_most: float = 3600.0
    backoff_limit: int | None = None
    replacement: float | None = None
    retention: float | None = None
    boost_rest: float = 600.0


class Check(_Struct, frozen=True):
    """One admission check's answer."""

    name: str
    state: CheckVerdict
    message: str = ""


class Evicted(_Struct, frozen=True):
    """The condition Evicted, while it is True."""

    reason: str
    message: str
    at: float


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one workload that has not finished. Times of things that are not so are None.

    ``started``: its job was unsuspended since it was admitted; ``resumed``: it was at some time, so an earlier run may
    have left pods. ``bound``: its pods that hold room on a node, by name, as far as something waits until they are
    gone. ``wanted`` and ``ready`` count pods, finished ones as ready. ``unready_at``: since when not all are ready,
    where they were. ``unstarted``: the pods whose nodes keep them from running, with that in words. ``lost_at``: since
    when pods of lost nodes have no place. ``ending_until``: until when its gates were kept as pods of its PodGroup
    ended; inf while some do. ``executed``: seconds it was admitted before its last eviction. ``most_execution``: how
    long it may run. ``pause``: seconds for which it stays away after an eviction that is not its own trouble
    (SchedulerRefused). ``unadmitted``: why it is suspended where it runs without an admission.
    """

    active: bool = True
    reserved_at: float | None = None
    admitted_at: float | None = None
    checks: tuple[Check, ...] = ()
    suspended: bool = True
    started: bool = False
    resumed: bool = False
    wanted: int = 0
    ready: int = 0
    bound: tuple[Pod, ...] = ()
    ready_at: float | None = None
    unready_at: float | None = None
    unstarted: tuple[Pod, ...] = ()
    unstarted_message: str = ""
    conditions: tuple[Condition, ...] = ()
    evicted: Evicted | None = None
    requeues: int = 0
    requeue_at: float | None = None
    lost_at: float | None = None
    ending_until: float = 0.0
    executed: float = 0.0
    most_execution: float | None = None
    pause: float = 0.0
    unadmitted: str = ""

    @property
    def on_hold(self) -> bool:
        """Whether it holds nothing, and is not to wait either."""
        return self.reserved_at is None and not self.active

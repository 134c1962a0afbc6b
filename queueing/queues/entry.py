"""One workload in the queues: where it stands, and what it was given. What one step means for others is theirs."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from engine.cluster.assignment import Assignment
from engine.model import Amounts
from engine.reservation_key import HolderKey
from engine.results import Refusal
from queueing.model import Order, OutsidePod, Quantities, Workload, order, shape
from queueing.queues.pending import EquivalenceClass


class Phase(StrEnum):
    """Where a workload stands in queueing."""

    STUCK = "Stuck"  # no queue takes it as things are configured
    LATER = "Later"  # put off until a time
    WAITING = "Waiting"
    NOMINATED = "Nominated"  # holds what it will get; its victims are not gone yet
    ADMITTED = "Admitted"


OUTSIDE: Final = ""  # as a queue: that of the pods that no queue admitted
HOLDING = (Phase.NOMINATED, Phase.ADMITTED)


class AssumedAdmission(msgspec.Struct, frozen=True):
    """What a workload is given: ``counts`` of pods by pod set, a flavor for each resource, and where the pods go.

    ``asks``: by pod set, what one of its pods may take; a pod set of which that is not known is left out.

    This is what ``status.admission`` stores, and all that is needed to take a workload in again after a restart.
    """

    queue: str
    counts: Mapping[str, int]
    flavors: Mapping[str, Mapping[str, str]]
    amounts: Quantities
    assignments: tuple[Assignment, ...]
    asks: Mapping[str, Amounts] = msgspec.field(default_factory=dict)


class Entry(msgspec.Struct, eq=False):
    """One workload. ``since``: when it began to wait; ``until``: put off to that time."""

    workload: Workload
    order: Order
    shape: bytes
    since: float
    phase: Phase = Phase.STUCK
    queue: str = ""
    until: float = 0.0
    group: EquivalenceClass | None = None
    grant: AssumedAdmission | None = None
    held_at: int = 0  # the priority with which it is listed among those who hold something
    victims: set[HolderKey] = msgspec.field(default_factory=set)
    refusal: Refusal | None = None
    pods: set[str] = msgspec.field(default_factory=set)
    drained: bool = False
    outside: OutsidePod | None = None  # it is no workload but this pod
    held_up: float | None = None  # since when it waits for claims that its victims had
    admitted_at: float | None = None  # since when its Workload says that it is admitted
    presumed: bool = False  # ... which it does not say yet, and its pods run already
    ready_at: float | None = None  # since when its pods are ready
    errors: int = 0  # that it led to since it last changed, which nobody had foreseen

    def change(self, workload: Workload) -> None:
        """It wishes for something else now."""
        self.workload, self.order, self.shape, self.errors = workload, order(workload), shape(workload), 0

    # -- while it waits ---------------------------------------------------------------------------------------

    def restart(self, now: float) -> None:
        """It begins to wait anew."""
        self.since = now

    def join(self, queue: str, group: EquivalenceClass) -> None:
        """It waits in the line of a cluster queue."""
        self.phase, self.queue, self.refusal, self.group = Phase.WAITING, queue, None, group

    def leave_group(self) -> None:
        """It is in no line any more."""
        self.group = None

    def get_stuck(self, queue: str, why: Refusal) -> None:
        """It can wait in no line."""
        self.phase, self.queue, self.refusal = Phase.STUCK, queue, why

    def delay_until(self, until: float) -> None:
        """It is not looked at before ``until``."""
        self.phase, self.until = Phase.LATER, until

    def record_refusal(self, why: Refusal) -> None:
        """It does not get what it wishes."""
        self.refusal = why

    def forget_refusal(self) -> None:
        """What it was told counts no more."""
        self.refusal = None

    def count_error(self) -> int:
        """It led to one more error; returns to how many."""
        self.errors += 1
        return self.errors

    # -- what it holds ----------------------------------------------------------------------------------------

    def hold_grant(self, grant: AssumedAdmission, victims: set[HolderKey], *, waits: bool) -> None:
        """It holds a grant instead of what it held; nominated where victims have to go first, or it ``waits``."""
        self.grant, self.queue, self.victims, self.refusal = grant, grant.queue, victims, None
        self.relist()
        self.held_up = None
        self.phase = Phase.NOMINATED if victims or waits else Phase.ADMITTED

    def relist(self) -> None:
        """It is listed with the priority that it has now."""
        # Kept: counts by priority (`Holders.lowest`) take back what they added, though the priority changed meanwhile.
        self.held_at = self.workload.priority

    def clear_grant(self) -> None:
        """It holds nothing, and nobody has to go for it."""
        self.grant, self.victims, self.phase, self.drained = None, set(), Phase.STUCK, False
        self.admitted_at, self.ready_at, self.presumed = None, None, False

    def note_start(self, admitted_at: float | None, ready_at: float | None, *, presumed: bool = False) -> None:
        """Since when it is admitted, and its pods are ready; None: it is, or they are, not.

        ``presumed``: its Workload does not say so yet.
        """
        self.admitted_at, self.ready_at, self.presumed = admitted_at, ready_at, presumed

    def mark_drained(self) -> None:
        """It was told to go, because its queue is drained."""
        self.drained = True

    def mark_undrained(self) -> None:
        """Its queue is not drained (any more)."""
        self.drained = False

    def hold_up(self, now: float) -> float:
        """Its victims are gone, and claims that they had are not deallocated; since when it waits for that."""
        self.held_up = now if self.held_up is None else self.held_up
        return self.held_up

    def pack(self, grant: AssumedAdmission) -> None:
        """The same that it holds, with the nodes on which the engine packed it."""
        self.grant = grant

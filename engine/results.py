"""What the engine answers: placements, refusals, and the requests they answer."""

import msgspec

from engine.cluster.assignment import Assignment
from engine.model import PodSet
from engine.reasons import Reason
from engine.reservation_key import HolderKey


class Placement(msgspec.Struct, frozen=True):
    """All pod sets of a workload placed: one assignment for each, in request order."""

    assignments: tuple[Assignment, ...]


class Refusal(msgspec.Struct, frozen=True):
    """Why a workload was not placed. ``message``, for a person: what is missing, how far it is away, and what to do.

    ``near``: how many pods the best domain takes, now or (where that is the reason) if nothing ran: of two flavors with
    one reason, the nearer is told.
    """

    reason: Reason
    message: str
    pod_set: str = ""
    flavor: str = ""
    near: int = 0


class WorkloadRequest(msgspec.Struct, frozen=True):
    """Pod sets to place together, all or none.

    ``flavors`` are tried in their order; () means every flavor whose levels contain the requested level, by name.
    ``effort``: on trees of more than 1,024 nodes, how much longer a pod set may be thought about to find fewer domains
    below the requested level, in cells (about a nanosecond each; 2,000,000 finds most of what there is to find).
    """

    key: HolderKey
    pod_sets: tuple[PodSet, ...]
    flavors: tuple[str, ...] = ()
    effort: int = 0

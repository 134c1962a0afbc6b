"""What an admitted workload lacks that waits to grow: how many pods, why, and who would have to go for them."""

from collections.abc import Collection

import msgspec

from cli.cluster import dry_run, room_report
from cli.cluster import required_evictions as reliefs
from cli.cluster.required_evictions import Relief
from cli.cluster.room_report import Room
from cli.output import counted
from engine.model import Policy
from engine.reservation_key import ReservationKey
from queueing.cycle import elastic
from ungater.cache.cache import Cache
from ungater.model.workload_entry import WorkloadEntry


class GrowthReport(msgspec.Struct, frozen=True):
    """``pods``: how many it waits for beside those it has; ``room`` and ``relief`` are for those alone."""

    pods: int
    reason: str
    message: str
    room: tuple[Room, ...] = ()
    relief: Relief | None = None


def in_words(found: GrowthReport) -> str:
    """The sentence that says it, wherever it is told."""
    pods = f" by {counted(found.pods, 'pod')}" if found.pods else ""  # else it wants larger ones
    return f"It waits to grow{pods}: {found.message}"


def growth(cache: Cache, entry: WorkloadEntry, flavors: Collection[str] | None, now: float) -> GrowthReport | None:
    """None where it wants no more than it has, would get it in the next cycle, or its victims go already.

    ``flavors``: those of its queue; None: any.
    """
    # A cache that was read from a cluster has nobody in its queues until somebody puts them in.
    dry_run.enqueue_entry(cache, entry, now)
    queues, key = cache.queues, entry.key
    queued = queues.entries.get(key)
    # With an entry of its own, growth has its victims named already and waits for them to go.
    if (
        queued is None
        or queued.grant is None
        or key not in queues.growing
        or ReservationKey.for_growth(key) in queues.entries
    ):
        return None
    refusal = elastic.why_not_grown(cache.state, queues, key)
    if refusal is None:
        return None
    held = queued.grant.counts
    wanted = {name: count - held.get(name, 0) for name, count in elastic.wished(queues, key).items()}
    more = {name: count for name, count in wanted.items() if count > 0}
    room: tuple[Room, ...] = ()
    if more:
        # The domains that its new pods may go to, the roomiest first; of several pod sets the one that grows most.
        owned = max(entry.job.pod_sets, key=lambda one: more.get(one.name, 0))
        room = room_report.rooms_of_entry(cache, entry, flavors, more)
        placed = cache.state.assignments(entry.key).get(owned.name)
        required = owned.request is not None and owned.request.policy is Policy.REQUIRED
        if placed is not None and placed.slices and required:
            own = placed.slices[0].values  # more pods of one that requires a level go where the others are
            room = tuple([one for one in room if one.values == own[: len(one.values)]])
    found = reliefs.relief(cache, entry, refusal.reason, room, more)
    return GrowthReport(sum(more.values()), str(refusal.reason), refusal.message, room, found)

"""What an admitted workload is to get for more of its pods, once victims are gone.

Rules
- It is held under a key of its own (`ReservationKey.for_growth`), as a nominated workload holds what it is to
  get: the workload itself stays admitted, with all that follows from that.
- It ends with what its workload holds (`Queues.release_workload`), or where that wants fewer pods.
"""

from collections.abc import Iterable, Mapping

from engine.cluster.state import ClusterState
from engine.reservation_key import HolderKey, workload_of
from queueing.model import Workload, order, shape
from queueing.queues.entry import AssumedAdmission, Entry
from queueing.queues.eviction_units import Path
from queueing.queues.queues import Queues


def hold_growth(  # noqa: PLR0917  (what is held of whom, and for whom it waits)
    state: ClusterState,
    queues: Queues,
    more: Workload,
    grant: AssumedAdmission,
    nominated: Iterable[HolderKey],
    parts: Mapping[HolderKey, tuple[Path, ...]],
    *,
    stored: bool = False,
) -> None:
    """Hold what more pods of an admitted workload are to get. The last arguments are those of `Queues.grant`.

    ``more``: those pods alone, as a workload of the key that `ReservationKey.for_growth` gives.
    """
    base = workload_of(more.key)
    entry = queues.entries[more.key] = Entry(more, order(more), shape(more), 0.0)
    # Through the holders and not ``Queues.grant``: growth is in no line, and gets no message about why it waits.
    queues.holders.set_grant(state, entry, grant, nominated=nominated, parts=parts, stored=stored, waits=True)
    held = queues.entries[base].grant
    if base not in queues.growing and held is not None:  # after a restart: until it says itself what it wants
        wanted = {name: held.counts.get(name, 0) + count for name, count in grant.counts.items() if count}
        queues.growing[base] = wanted, ()

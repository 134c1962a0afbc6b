"""What is added to the priority of a Workload: what an annotation asks for, once the boost before has rested.

Rules
- The annotation (`crds.constants.Keys.priority_boost`) is Kueue's (0.19.2, pkg/util/priority/priority.go): a whole
  number of 32 bits, which may be negative. Text that is none counts as 0; the policy ``topogate-workloads`` refuses it,
  and says who may write it.
- What counts is what the status says: order, victims, who may evict whom, and what is shown read nothing else, and a
  restart goes on with it. This module alone has the status follow the annotation.
- A boost that counts does so for `LifeRules.boost_rest` seconds, whatever the annotation says meanwhile; then the
  annotation counts as it is. And of one that holds an admission it does not fall before it has held that for as long,
  nor while others make room for it: what a boost let in would be evicted by whom it made room for. So a boost has
  others evicted at most once in that time, however often it is changed. One that falls after a run time (time sharing)
  still works. Kueue 0.19.2 has no such rule.
"""

import re
from collections.abc import Iterator
from typing import Final

from ungater.model.actions import Action, CountBoost, RequeueAfter
from ungater.model.workload_entry import WorkloadEntry
from ungater.reconcile.context import ReconcileContext

# As Go's ParseInt reads it; bounded, as Python refuses to read thousands of digits.
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)


def read_boost(text: str) -> int:
    """The number that an annotation says; 0 where it says none of 32 bits."""
    # Beyond 32 bits Go's ParseInt says an error, and Kueue takes an error for no boost.
    found = int(text) if _NUMBER.fullmatch(text) else 0
    return found if -(1 << 31) <= found < 1 << 31 else 0


def follow_boost(
    entry: WorkloadEntry, reserved_at: float | None, rules: ReconcileContext, wall: float
) -> Iterator[Action]:
    """Have another boost count, now or later. ``reserved_at``: since when it holds an admission; None: it holds none.

    Times are seconds since the epoch.
    """
    observed = entry.observed
    # Without a queue nobody waits for anybody: no priority of ours counts.
    if observed is not None and entry.job.queue:
        asked = read_boost(observed.boosts.get(rules.keys.priority_boost, ""))
        # By what counts, and not by what was asked before: of changes while a boost rests nobody remembers any.
        falls = asked < observed.boost
        times = (observed.boost_since, reserved_at if falls else None)
        # A time that is still to come is a clock's mistake, and would hold the boost for ever.
        due = max([at + rules.life.boost_rest for at in times if at is not None and at <= wall], default=wall)
        # One that is nominated has others make room by the boost that it had, and they would end for nothing. No time
        # ends that wait: its victims go, or it waits again, and both bring a look.
        if asked == observed.boost or (falls and observed.nomination is not None and reserved_at is None):
            pass
        elif due > wall:
            yield RequeueAfter(due - wall)
        else:
            yield CountBoost(asked)

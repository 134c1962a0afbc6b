"""What one workload takes from one queue, and the sums of several."""

from collections.abc import Iterable

import msgspec

from queueing.model import Quantities


class Held(msgspec.Struct, frozen=True, gc=False):
    """What one workload takes from one queue."""

    queue: str
    amounts: Quantities
    leaving: bool = False
    non_preemptible: bool = False


def summed(parts: Iterable[Held]) -> list[Held]:
    """What several hold, charged together: it comes to the same. Those of one shape share their amounts."""
    alike: dict[tuple[str, bool, bool, int], list[Quantities]] = {}
    for held in parts:
        # By identity: those of one shape share the dict itself, and comparing dicts would cost as much as summing them.
        same = held.queue, held.leaving, held.non_preemptible, id(held.amounts)
        alike.setdefault(same, []).append(held.amounts)
    sums: dict[tuple[str, bool, bool], Quantities] = {}
    for (queue, leaving, spared, _), each in alike.items():
        total = sums.setdefault((queue, leaving, spared), {})
        for key, amount in each[0].items():
            total[key] = total.get(key, 0) + amount * len(each)
    return [Held(queue, total, leaving, spared) for (queue, leaving, spared), total in sums.items()]

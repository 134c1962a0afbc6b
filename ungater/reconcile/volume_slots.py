"""Gated pods that stay so because of their volumes: claims that are not ready, or slots that they do not reach.

The same of resource claims that pods name: devices that are not given yet, or that slots do not reach.

Plain functions of what was seen, like `ungater.reconcile.reconcile`.
"""

from collections.abc import Mapping, Sequence

import msgspec

from engine.reasons import Reason
from kube.objects import Pod
from ungater.model.pod_slots import PodSetSlots, Tally
from ungater.model.workload_entry import WorkloadEntry
from ungater.reconcile.context import PodChoice


class VolumeSlots(msgspec.Struct, frozen=True):
    """Those of one pod set. ``unready``: pods with a claim that is not ready, and why.

    ``astray``: pods whose volumes reach none of the slots that are free or will be; ``moves``: free slots that are to
    have another place for that, by slice.
    """

    unready: tuple[tuple[Pod, str], ...] = ()
    astray: tuple[Pod, ...] = ()
    moves: Mapping[int, int] = msgspec.field(default_factory=dict)

    @classmethod
    def from_choices(
        cls,
        slots: PodSetSlots,
        counted: Tally,
        placed: Sequence[tuple[Pod, int]],
        choices: Mapping[str, PodChoice],
    ) -> "VolumeSlots":
        """``placed``: the pods that get a slot now; ``choices``: of pods that may not go to all slots, by uid."""
        if not choices:
            return cls()
        free, gone = counted.free_slots(slots), {pod.metadata.uid for pod, _ in placed}
        for _, index in placed:
            free[index] -= 1
        stays = [pod for pod in counted.waiting if pod.metadata.uid in choices and pod.metadata.uid not in gone]
        unready = tuple([(pod, why) for pod in stays if (why := choices[pod.metadata.uid].why)])
        # A pod that ends, or a patch that was not seen yet, may leave a slot that is reached.
        open_ = {at for at, used in enumerate(counted.used) if used > counted.bound[at] + counted.unbound[at]}
        open_ |= {at for at, count in enumerate(free) if count > 0}
        judged = [(pod, choices[pod.metadata.uid]) for pod in stays]
        astray = tuple([pod for pod, choice in judged if not choice.why and not open_ & choice.slots])
        moves, need = {}, len(astray)
        # Any free slots will do, as these pods reach none of them.
        for index in range(len(free) - 1, -1, -1):
            if (some := min(need, free[index])) > 0:
                moves[index] = some
                need -= some
        return cls(unready, astray, moves)


def message_of(entry: WorkloadEntry, found: Sequence[VolumeSlots]) -> tuple[Reason, str] | None:
    """Why pods stay gated for their volumes; None where none does."""
    unready = [one for each in found for one in each.unready]
    if unready:
        pod, why = min(unready, key=lambda one: one[0].metadata.name)
        if _by_claims(pod):
            return (
                Reason.RESOURCE_CLAIMS_NOT_COUNTED,
                f"pod {_name_and_more(pod, len(unready))} waits for its claims: {why}",
            )
        return Reason.VOLUME_NOT_READY, f"pod {_name_and_more(pod, len(unready))} waits for its volumes: {why}"
    astray = [pod for each in found for pod in each.astray]
    if not astray:
        return None
    first = min(astray, key=lambda pod: pod.metadata.name)
    what = "devices of the claims" if _by_claims(first) else "volumes"
    where = "another place is looked for"
    if not any(each.moves for each in found):
        where = f"other pods of {entry.job.called} have all slots that they reach"
    elif entry.refused is not None:
        where = f"there is no other place: {entry.refused.message}"
    return (
        Reason.CLAIM_NODE_AFFINITY if _by_claims(first) else Reason.VOLUME_NODE_AFFINITY,
        f"the {what} of pod {_name_and_more(first, len(astray))} reach none of the free slots; {where}",
    )


def _by_claims(pod: Pod) -> bool:
    """Whether it is for its resource claims that a pod may not go anywhere: its volumes keep it nowhere."""
    return pod.spec.volumes is None


def _name_and_more(pod: Pod, count: int) -> str:
    return pod.metadata.name + (f" (and {count - 1} more)" if count > 1 else "")

"""The old places of pods that do not go after all, when their workload is moved (`ungater.scheduling.moves`). Pure."""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from engine.cluster.assignment import Assignment
from engine.cluster.natural_order import natural
from engine.placement.relocate import spread
from kube.objects import Pod
from queueing.queues.entry import AssumedAdmission
from ungater.cache.cache import Cache
from ungater.model.job_view import PodSetView
from ungater.model.pod_slots import Expectation, PodSetSlots, Slot, finished
from ungater.model.workload_entry import WorkloadEntry


def level(owned: PodSetView, part: Assignment) -> str | None:
    """The level that a pod set asks for, in the flavor that it is in; None: none."""
    if owned.request is None:
        return None
    return part.levels[-1] if owned.request.auto else owned.request.level


def is_wider_than_before(
    entry: WorkloadEntry, before: Sequence[Sequence[Assignment]], after: Sequence[Assignment]
) -> bool:
    """Whether a pod set would use more domains than in any of ``before``, of a level down to what it asks for."""
    most: dict[str, list[tuple[int, ...]]] = {}
    owners = {owned.name: owned for owned in entry.job.pod_sets}
    for part in (part for parts in before for part in parts if part.pod_set in owners):
        most.setdefault(part.pod_set, []).append(spread(part, level(owners[part.pod_set], part)))
    for part in after:
        if part.pod_set not in most:
            continue
        now = spread(part, level(owners[part.pod_set], part))
        allowed = [max(counts) for counts in zip(*most[part.pod_set], strict=True)]
        if any(many > limit for many, limit in zip(now, allowed, strict=True)):
            return True
    return False


def restored(cache: Cache, entry: WorkloadEntry, pods: Iterable[Pod]) -> AssumedAdmission | None:
    """What it holds, with the places of these pods instead of as many that nobody uses; None where too few are."""
    grant, admission = entry.grant, entry.admission
    if grant is None or admission is None:
        return None
    back: dict[str, list[Pod]] = {}
    for pod in pods:
        back.setdefault(entry.pod_set_of(pod), []).append(pod)
    parts = []
    for held in grant.assignments:
        part, slots = admission.pod_set_named(held.pod_set), entry.slots_in.get(held.pod_set)
        there = back.get(held.pod_set)
        if part is None or slots is None or not there:
            parts.append(held)
            continue
        mine = [pod for pod in entry.pods.values() if entry.pod_set_of(pod) == held.pod_set]
        exchanged = _exchanged(slots, there, mine, entry.on_its_way)
        if exchanged is None:
            return None
        parts.append(cache.reservations.assignment(entry, part, exchanged))
    return msgspec.structs.replace(grant, assignments=tuple(parts))


def _exchanged(
    slots: PodSetSlots, back: Sequence[Pod], pods: Iterable[Pod], sent: Callable[[str], Expectation | None]
) -> PodSetSlots | None:
    """The slots with those where some pods are, for as many that no other pod is in, or was ``sent`` to.

    In the tree's order, which is that of ranks; None where there are fewer.
    """
    counts = {slot.values: slot.count for slot in slots.slots}
    used = dict.fromkeys(counts, 0)
    uids = {pod.metadata.uid for pod in back}
    for pod in pods:
        if finished(pod):
            continue
        index, on_its_way = slots.of_selector(pod.spec.node_selector), sent(pod.metadata.uid)
        # The watch may be behind: it counts where the pod was sent.
        if on_its_way is not None:
            index = slots.index(on_its_way.values)
        if index is not None and pod.metadata.uid not in uids:
            used[slots.slots[index].values] += 1
    nodes = {slot.values: slot.node for slot in slots.slots}
    for pod in back:
        values = tuple((pod.spec.node_selector or {}).get(level, "") for level in slots.levels)
        free = next((one for one in reversed(slots.slots) if counts[one.values] > used[one.values]), None)
        if free is None:
            return None
        counts[free.values] -= 1
        counts[values] = counts.get(values, 0) + 1
        used[values] = used.get(values, 0) + 1
        # A slice is one node where the flavor's last level is the host: the slot given for it tells.
        nodes.setdefault(values, pod.spec.node_name if free.node else "")
    in_order = sorted(counts.items(), key=lambda item: [natural(value) for value in item[0]])
    made = [Slot(values, count, nodes[values]) for values, count in in_order if count > 0]
    return PodSetSlots(slots.levels, made, slots.flavor)

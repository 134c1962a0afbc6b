"""Questions to the engine beside the cycle's own: other slots for lost ones, and why somebody waits in words. Pure."""

from collections.abc import Mapping, Sequence

import msgspec

from crds.request import resolve, unresolved
from engine.cluster.assignment import Assignment
from engine.cluster.levels import domain_labels
from engine.cluster.unlabeled import Unlabeled, helpful, in_words
from engine.model import PodSet, Policy, TopologyRequest
from engine.placement.place import extend, place, replace
from engine.reasons import Reason, Short
from engine.results import Refusal, WorkloadRequest
from kube.objects import PodTemplate
from queueing.cycle.backfill import open_, yielding
from queueing.messages import safe_at_first
from queueing.queues.entry import AssumedAdmission
from ungater.cache.cache import Cache
from ungater.model.admission import Admission
from ungater.model.job_view import PodSetView
from ungater.model.workload_entry import WorkloadEntry
from ungater.reconcile import messages


def pod_set_in(
    cache: Cache, entry: WorkloadEntry, owned: PodSetView, levels: Sequence[str], count: int | None = None
) -> PodSet:
    """A pod set as it is asked for in a flavor with these levels."""
    parsed = owned.request
    topology = resolve(parsed, levels) if parsed is not None else None
    if topology is None and parsed is not None:
        topology = unresolved(parsed)
    return cache.pod_sets.pod_set(entry, owned, topology or TopologyRequest(policy=Policy.UNCONSTRAINED), count)


def message_of(cache: Cache, entry: WorkloadEntry, admission: Admission, message: str) -> str:
    """Where its pods go, and how long it runs at least, for people.

    ``message``: what queueing says of it, for one with a queue.
    """
    where = []
    for pod_set in entry.job.pod_sets:
        part = admission.pod_set_named(pod_set.name)
        if part is not None and part.slots is not None:
            named = f"{pod_set.name}: " if len(admission.parts) > 1 else ""
            where.append(named + messages.admitted(part.slots, pod_set_in(cache, entry, pod_set, part.slots.levels)))
    said = list(filter(None, (message if admission.queue else "", *where)))
    safe = (
        safe_at_first(cache.queues, admission.queue) if said and admission.queue in cache.queues.quotas.queues else ""
    )
    return "; ".join([*said, safe] if safe else said)


def reclaimed(entry: WorkloadEntry, admission: Admission) -> dict[str, int]:
    """How many pods of each pod set need no room any more."""
    left = {
        one.name: one.full - part.count for one in entry.job.pod_sets if (part := admission.pod_set_named(one.name))
    }
    return {name: count for name, count in left.items() if count > 0}


def replace_lost_slots(cache: Cache, entry: WorkloadEntry) -> AssumedAdmission | Refusal:
    """Other slots for those that are lost, in the same required domain; the others stay where they are.

    Changes nothing.
    """
    state, grant = cache.state, entry.grant
    if grant is None or not entry.slots_in:
        raise AssertionError(f"{entry.key}: nothing to move")
    counts, queues = dict(grant.counts), cache.queues
    checkpoint = state.begin()
    try:
        # Room that is kept for those who come after it counts as free: claims stop nobody who holds something already.
        open_(state, yielding(queues, queues.entries[entry.key]))
        for owned in entry.job.pod_sets:
            if owned.name not in entry.lost or owned.name not in entry.slots_in:
                continue
            found = _replace_slots(cache, entry, owned)
            if isinstance(found, Refusal):  # a node that was lost may come back
                traits = found.reason.traits
                passes = traits.short is Short.ROOM and traits.hopeless
                return msgspec.structs.replace(found, reason=Reason.DOES_NOT_FIT) if passes else found
            others = [part for part in state.assignments(entry.key).values() if part.pod_set != owned.name]
            # Within the checkpoint, so that the next pod set does not find the same room.
            state.reserve(entry.key, [*others, found])
            counts[owned.name] = found.count
        held = state.assignments(entry.key)
        parts = tuple([held[name] for name in counts if name in held])
    finally:
        state.rollback(checkpoint)
    return msgspec.structs.replace(grant, counts=counts, assignments=parts)


def fits(cache: Cache, entry: WorkloadEntry, pod_set: str, selector: Mapping[str, str]) -> bool:
    """Whether all nodes of the slots of a pod set have these labels."""
    held = entry.grant.assignments if entry.grant is not None else ()
    names = {name for part in held if part.pod_set == pod_set for piece in part.slices for name, _ in piece.nodes}
    nodes = (cache.state.nodes.get(name) for name in names) if selector else ()
    return all(node is not None and selector.items() <= node.labels.items() for node in nodes)


def anew(cache: Cache, entry: WorkloadEntry, templates: Mapping[str, PodTemplate]) -> AssumedAdmission | Refusal:
    """Other slots for all that a job without pods holds, in the same flavors.

    ``templates``: by pod set, what its pods will be made of; absent: the job's own. Changes nothing.
    """
    state, grant = cache.state, entry.grant
    if grant is None:
        raise AssertionError(f"{entry.key}: nothing to place anew")
    owned = {
        one.name: msgspec.structs.replace(one, template=templates.get(one.name, one.template))
        for one in entry.job.pod_sets
    }
    checkpoint = state.begin()
    try:
        # What it holds itself is free for it, as all of it is placed again.
        state.release_workload(entry.key)
        parts: list[Assignment] = []
        for flavor in dict.fromkeys(part.flavor for part in grant.assignments):
            pod_sets = tuple(
                [
                    pod_set_in(cache, entry, owned[part.pod_set], part.levels, part.count)
                    for part in grant.assignments
                    if part.flavor == flavor
                ]
            )
            placed = place(state, WorkloadRequest(entry.key, pod_sets, (flavor,)))
            if isinstance(placed, Refusal):
                return placed
            parts += placed.assignments
            state.reserve(entry.key, parts)
    finally:
        state.rollback(checkpoint)
    return msgspec.structs.replace(grant, assignments=tuple(parts))


def _replace_slots(cache: Cache, entry: WorkloadEntry, owned: PodSetView) -> Assignment | Refusal:
    state, queued, name = cache.state, bool(entry.job.queue), owned.name
    slots, lost = entry.slots_in[name], entry.lost[name]
    whole = [slots.slots[at] for at, count in lost if at < len(slots.slots) and count == slots.slots[at].count]
    if entry.layers_of(owned) and len(whole) == len(lost) and all(slot.node for slot in whole):
        # By rank order, which tells what is lost of each slice.
        pod_set = pod_set_in(cache, entry, owned, slots.levels, slots.total)
        return replace(state, entry.key, pod_set, {slot.node for slot in whole})
    part = entry.admission.pod_set_named(name) if entry.admission is not None else None
    if part is None:
        raise AssertionError(f"{entry.key}: pod set {name} is not admitted")
    kept = slots.without_slots({index: count for index, count in lost if index < len(slots.slots)})
    want = slots.total if queued else max(entry.wanted(owned), slots.total)
    pod_set = pod_set_in(cache, entry, owned, slots.levels, want)
    others = [one for one in state.assignments(entry.key).values() if one.pod_set != name]
    checkpoint = state.begin()
    try:
        if kept.total:
            state.restore_slots(entry.key, [*others, cache.reservations.assignment(entry, part, kept)])
            return extend(state, entry.key, pod_set, want - kept.total)
        state.reserve(entry.key, others)
        pod_set = _held_to_domain(pod_set, others, entry)
        placed = place(state, WorkloadRequest(entry.key, (pod_set,), (slots.flavor,) if queued else ()))
        return placed if isinstance(placed, Refusal) else placed.assignments[0]
    finally:
        state.rollback(checkpoint)


def _held_to_domain(pod_set: PodSet, others: Sequence[Assignment], entry: WorkloadEntry) -> PodSet:
    """A pod set without any slots left, held to the required domain of those that it shares a group with."""
    names = {one.name for one in entry.job.pod_sets if one.request is not None and one.request.group == pod_set.group}
    mate = next((one for one in others if one.pod_set in names and one.slices), None)
    level = pod_set.topology.level
    alone = msgspec.structs.replace(pod_set, group="")
    if not pod_set.group or mate is None or pod_set.topology.policy is not Policy.REQUIRED or level not in mate.levels:
        return alone
    depth = mate.levels.index(level) + 1
    # Without the group the engine would choose any domain of the level: the selector holds it to that of its mate.
    domain = domain_labels(mate.levels[:depth], mate.slices[0].values)
    return msgspec.structs.replace(alone, node_selector={**pod_set.node_selector, **domain})


def could_take(nodes: tuple[Unlabeled, ...]) -> str:
    """Which nodes would help if they had all labels."""
    return f"{in_words(nodes)}, and could take such pods"


def refused_text(cache: Cache, entry: WorkloadEntry, refusal: Refusal) -> str:
    """Why a job waits, for a person, with the nodes that are left out for now, or lack a label."""
    text = refusal.message
    refusals = (
        cache.mismatches.describe_refusals(entry),
        cache.refusals.describe_refusals(entry),
        cache.node_refusals.describe_refusals(),
    )
    left_out = ", ".join(filter(None, refusals))
    room = refusal.reason.traits.short is Short.ROOM
    if (room or refusal.reason is Reason.NO_NODES) and left_out:
        text += f"; left out for now, because such a pod was refused there: {left_out}"
    if room and (given := cache.device_claims.given(entry.id)):
        text += f"; {given}"
    if (room or refusal.reason is Reason.NO_NODES) and refusal.flavor in cache.flavors:
        pod_sets = entry.job.pod_sets
        owned = next((one for one in pod_sets if one.name == refusal.pod_set), pod_sets[0])
        pod_set = pod_set_in(cache, entry, owned, cache.flavors[refusal.flavor])
        if found := helpful(cache.state, refusal.flavor, pod_set):
            text += f"; {could_take(found)}"
    return text

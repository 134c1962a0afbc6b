"""Questions to the engine beside the cycle's own: other slots for lost ones, and why somebody waits in words. Pure."""

import dataclasses
from collections.abc import Sequence

from crds.request import ParsedRequest, resolve, unresolved
from engine.explain import explain
from engine.model import PodSet, Policy, TopologyRequest
from engine.place import extend, place, replace
from engine.placement import Assignment, Refusal, WorkloadRequest
from engine.reasons import Reason
from engine.state import ClusterState
from queueing.queues import Grant
from ungater import messages
from ungater.memory import Memory
from ungater.record import Part, Record
from ungater.slots import SlotMap

COUNTED = frozenset({Reason.DOES_NOT_FIT, Reason.NUMA_ALIGNMENT, Reason.NEVER_FITS})


def pod_set_in(memory: Memory, record: Record, levels: Sequence[str], count: int | None = None) -> PodSet:
    """The job's pods as they are asked for in a flavor with these levels."""
    parsed = record.owner.request
    topology = resolve(parsed, levels) if isinstance(parsed, ParsedRequest) else None
    if topology is None and isinstance(parsed, ParsedRequest):
        topology = unresolved(parsed)
    return memory.pod_set(record, topology or TopologyRequest(policy=Policy.UNCONSTRAINED), count)


def elsewhere(memory: Memory, record: Record) -> Grant | Refusal:
    """Other slots for those that are lost, in the same required domain; the others stay where they are.

    Changes nothing.
    """
    slots, grant = record.slots, record.grant
    part = record.admission.part() if record.admission is not None else None
    if slots is None or grant is None or part is None:
        raise AssertionError(f"{record.key}: nothing to move")
    found = _moved(memory, record, slots, part)
    if isinstance(found, Refusal):
        return found
    return dataclasses.replace(grant, counts={**grant.counts, part.name: found.count}, assignments=(found,))


def _moved(memory: Memory, record: Record, slots: SlotMap, part: Part) -> Assignment | Refusal:
    state, queued = memory.state, bool(record.owner.queue)
    whole = [slots.slots[at] for at, count in record.lost if at < len(slots.slots) and count == slots.slots[at].count]
    if record.layers and len(whole) == len(record.lost) and all(slot.node for slot in whole):
        # By rank order, which tells what is lost of each slice.
        pod_set = pod_set_in(memory, record, slots.levels, slots.total)
        return replace(state, record.key, pod_set, {slot.node for slot in whole})
    kept = slots.without({index: count for index, count in record.lost if index < len(slots.slots)})
    want = slots.total if queued else max(record.owner.pod_sets[0].count, slots.total)
    pod_set = pod_set_in(memory, record, slots.levels, want)
    checkpoint = state.begin()
    try:
        if kept.total:
            state.restore(record.key, [memory.holdings.assignment(record, part, kept)])
            return extend(state, record.key, pod_set, want - kept.total)
        state.release(record.key)
        placed = place(state, WorkloadRequest(record.key, (pod_set,), (slots.flavor,) if queued else ()))
        return placed if isinstance(placed, Refusal) else placed.assignments[0]
    finally:
        state.rollback(checkpoint)


def reason_text(state: ClusterState, refusal: Refusal, pod_set: PodSet, flavors: Sequence[str]) -> str:
    """The refusal in words, with how close the best domains of the flavor come."""
    flavor = refusal.flavor or next(iter(flavors), "")
    known = state.flavors.get(flavor)
    if refusal.reason not in COUNTED or known is None or pod_set.topology.level not in {None, *known.levels}:
        return refusal.message
    return messages.waiting(refusal, pod_set, explain(state, flavor, pod_set))


def refused_text(memory: Memory, record: Record, refusal: Refusal) -> str:
    """Why a job waits, for a person: with how close it comes, and with the nodes that are left out for now."""
    flavor = refusal.flavor if refusal.flavor in memory.flavors else next(iter(sorted(memory.flavors)), "")
    text = refusal.message
    if flavor:
        pod_set = pod_set_in(memory, record, memory.flavors[flavor])
        text = reason_text(memory.state, refusal, pod_set, [flavor])
    if refusal.reason in COUNTED and (left_out := memory.troubles.listed(record)):
        text += f"; left out for now, because their kubelets refused such a pod: {left_out}"
    return text

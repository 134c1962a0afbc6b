"""Placing one workload on the engine's state: which questions to ask it, and what to say when all are refused. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from crds.request import ParsedRequest, RequestError, resolve, unresolved
from engine.explain import explain
from engine.model import PodSet
from engine.place import extend, place
from engine.placement import Assignment, Refusal, WorkloadRequest
from engine.reasons import Reason
from engine.state import ClusterState
from ungater import messages
from ungater.memory import Memory
from ungater.record import Record
from ungater.slots import SlotMap

_CLOSE = frozenset({Reason.DOES_NOT_FIT, Reason.NUMA_ALIGNMENT})
_COUNTED = _CLOSE | {Reason.NEVER_FITS}


@dataclass(frozen=True)
class Answer:
    """What the engine said: an assignment, or the refusal with the pod set that was refused."""

    result: Assignment | Refusal
    pod_set: PodSet

    @property
    def refusal(self) -> Refusal | None:
        """The refusal, if it is one."""
        return self.result if isinstance(self.result, Refusal) else None


def ask(memory: Memory, record: Record) -> Answer:
    """Place the job, or the pods that it has no slots for yet. Changes nothing."""
    if record.slots is not None:
        return _elsewhere(memory, record) if record.lost else _more(memory, record)
    return _anew(memory, record)


def _anew(memory: Memory, record: Record) -> Answer:
    answer: Answer | None = None
    for request in questions(memory, record):
        outcome = place(memory.state, request)
        if not isinstance(outcome, Refusal):
            return Answer(outcome.assignments[0], request.pod_sets[0])
        if answer is None or outcome.reason in _CLOSE:
            answer = Answer(outcome, request.pod_sets[0])
    if answer is None:
        raise AssertionError(f"{record.key}: no flavor has the level that was asked for")
    return answer


def questions(memory: Memory, record: Record) -> Iterator[WorkloadRequest]:
    """One request for all flavors; where the level is ``auto``, which differs between them, one for each."""
    parsed = record.owner.request
    if parsed is None or isinstance(parsed, RequestError):
        raise AssertionError(f"{record.key}: not to be placed")
    if not parsed.auto:
        yield WorkloadRequest(record.key, (memory.pod_set(record, unresolved(parsed)),))
        return
    for name in sorted(memory.flavors):
        if (topology_of := resolve(parsed, memory.flavors[name])) is not None:
            yield WorkloadRequest(record.key, (memory.pod_set(record, topology_of),), (name,))


def _more(memory: Memory, record: Record, held: SlotMap | None = None) -> Answer:
    """More slots than those held, so that every pod has one."""
    slots, parsed = held or record.slots, record.owner.request
    if slots is None or not isinstance(parsed, ParsedRequest):
        raise AssertionError(f"{record.key}: nothing to extend")
    topology = resolve(parsed, slots.levels) or unresolved(parsed)
    want = max(record.owner.pod_sets[0].count, record.slots.total if held and record.slots else 0)
    pod_set = memory.pod_set(record, topology, want)
    return Answer(extend(memory.state, record.key, pod_set, want - slots.total), pod_set)


def _elsewhere(memory: Memory, record: Record) -> Answer:
    """Other slots for those that are lost, in the same required domain; the others stay where they are."""
    slots, parsed, state = record.slots, record.owner.request, memory.state
    if slots is None or not isinstance(parsed, ParsedRequest):
        raise AssertionError(f"{record.key}: nothing to move")
    kept = slots.without({index: count for index, count in record.lost if index < len(slots.slots)})
    checkpoint = state.begin()
    try:
        if kept.total:
            state.restore(record.key, [memory.assignment(record, kept)])
            return _more(memory, record, kept)
        state.release(record.key)
        return _anew(memory, record)
    finally:
        state.rollback(checkpoint)


def reason_text(state: ClusterState, refusal: Refusal, pod_set: PodSet, flavors: Sequence[str]) -> str:
    """The refusal in words, with how close the best domains of the flavor come."""
    flavor = refusal.flavor or next(iter(flavors), "")
    if refusal.reason not in _COUNTED or not flavor:
        return refusal.message
    return messages.waiting(refusal, pod_set, explain(state, flavor, pod_set))


def shape(record: Record, memory: Memory) -> bytes:
    """What an answer depends on besides the engine's state and the number of pods, as bytes to compare."""
    owner = record.owner
    wish = owner.request if isinstance(owner.request, ParsedRequest) else None
    head = f"{owner.namespace}\n{wish.policy if wish else ''}\n{wish.level if wish else ''}\n{sorted(memory.flavors)}\n"
    head += f"{wish.slices if wish else ''}\n{sorted(owner.wishes.items())}\n"
    return head.encode() + owner.pod_sets[0].raw

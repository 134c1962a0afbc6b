"""What to do about a job that waits or holds something: plain functions of what was seen, like its neighbours.

`queueing.lifecycle` says what its life needs next; here that becomes instructions, together with what its pods need.
While a job is on its way out, nothing else is done with it. A job without a queue has a shorter life: nobody here
suspends it, waits for its pods to be ready, or ends it after a time. It is evicted where it is made inactive, and where
pods of lost nodes have no other place; pods that are made anew stay behind the gate.
"""

from collections.abc import Iterable, Iterator

from crds.constants import Keys
from engine.reasons import Reason
from kube.objects import Pod, condition, is_true
from queueing import lifecycle
from ungater.model import conditions as names
from ungater.model.actions import (
    ClearAdmission,
    Deactivate,
    Dequeue,
    Enqueue,
    Evict,
    EvictPods,
    EvictSome,
    Instruction,
    ReconcileContext,
    Release,
    RequeueAfter,
    RestoreAdmission,
    Start,
    Suspend,
    UpdateSpec,
    WriteConditions,
)
from ungater.model.conditions import WantedCondition, moment, timestamp
from ungater.model.job_view import JobView
from ungater.model.pod_slots import finished, is_gated
from ungater.model.workload_entry import ObservedWorkload, WorkloadEntry
from ungater.model.workload_object import fingerprint
from ungater.reconcile import missing_pods
from ungater.reconcile.partial_eviction import lost
from ungater.reconcile.ungating import SOON, running, waits


def decide(record: WorkloadEntry, rules: ReconcileContext, now: float, wall: float) -> list[Instruction]:
    """The instructions for a job that has a Workload; ``now`` and ``wall`` as in `reconcile.decide`."""
    known = record.known
    if known is None:
        raise AssertionError(f"{record.key}: no Workload")
    if record.admission is not None and known.admission is None:
        return [RestoreAdmission()]
    seen = life_of(record, rules)
    if ends := _ended(record, known, seen, rules, wall):
        return ends
    steps = lifecycle.decide(seen, rules.life, wall)
    done = [instruction for step in steps for instruction in _carried(record, step, seen, rules, wall)]
    if record.admission is None:
        off = [step for step in steps if isinstance(step, lifecycle.Leave)]
        done += [one for step in off for one in (Dequeue(), *waits(record, step.reason, step.message, now))]
        return [*done, *(_waiting(record, known, rules, now, wall) if seen.suspended and not off else ())]
    leaving = seen.evicted is not None or any(isinstance(one, Evict) for one in done)
    if leaving or seen.admitted_at is None or seen.suspended:
        return done
    losing, missing = rules.losing(record), missing_pods.decide(record, rules.missing_pods, now)
    if any(not isinstance(one, RequeueAfter) for one in missing):
        return [*done, *missing]
    going_on = lost(record, losing, rules, now) if losing is not None else running(record, rules, now)
    return [*done, *missing, *going_on]


def _waiting(
    record: WorkloadEntry, known: ObservedWorkload, rules: ReconcileContext, now: float, wall: float
) -> Iterator[Instruction]:
    if _edited(record.owner, known):
        yield UpdateSpec()
        return
    requeued = condition(known.conditions, names.REQUEUED)
    if requeued is not None and requeued.reason == str(Reason.BACKING_OFF) and (known.requeue_at or 0.0) <= wall:
        yield WriteConditions((WantedCondition(names.REQUEUED, True, Reason.REQUEUED, "it waits again"),), delay=SOON)
    yield Enqueue(until=known.requeue_at or 0.0)
    if outsiders := rules.outsiders(record):
        yield EvictSome(outsiders)
    if record.refused is not None:
        yield from waits(record, record.refused.reason, record.refused.message, now)


def _ended(
    record: WorkloadEntry, known: ObservedWorkload, seen: lifecycle.Life, rules: ReconcileContext, wall: float
) -> list[Instruction]:
    """What ends an admission, whatever else is to be done: others need its room, or the job was edited; [] if none."""
    if record.admission is None or seen.evicted is not None:
        return []
    if record.evict is not None:
        return list(_carried(record, record.evict, seen, rules, wall))
    changed = _changed(record, known, seen)
    return [Dequeue(), Release(changed)] if changed else []


def _changed(record: WorkloadEntry, known: ObservedWorkload, seen: lifecycle.Life) -> tuple[WantedCondition, ...]:
    """What is said of a job that was edited after it was admitted, and is not started as that: it is admitted anew."""
    owner = record.owner
    waits = owner.queue and owner.suspendable and owner.suspended and not seen.started
    if not waits or known.copy_of == fingerprint(owner):
        return ()
    message = f"{owner.kind} {owner.name} was edited after it was admitted: it waits as it is now"
    return tuple([WantedCondition(type_, False, Reason.PENDING, message) for type_ in names.HOLDING])


def _edited(owner: JobView, known: ObservedWorkload) -> bool:
    """Whether the Workload no longer says what the job asks for. Pods that no template made have none to copy."""
    copied = owner.suspendable or owner.foretold or owner.kinds
    if not owner.queue:
        return copied and known.copy_of != fingerprint(owner)
    copy = fingerprint(owner) if copied else known.copy_of
    counts, least = tuple([one.full for one in owner.pod_sets]), max([one.least for one in owner.pod_sets])
    said = known.counts, known.queue, known.least, known.most_execution, known.copy_of
    return said != (counts, owner.queue, least, owner.most_execution, copy)


def life_of(record: WorkloadEntry, rules: ReconcileContext) -> lifecycle.Life:
    """What is known of a job's life, as queueing takes it."""
    known, owner = record.known, record.owner
    if known is None:
        raise AssertionError(f"{record.key}: no Workload")
    held, queue, evicted = known.admission is not None, bool(owner.queue), _evicted(known)
    admitted_at = names.since(known.conditions, names.ADMITTED) if held else None
    if held and not queue:
        admitted_at = admitted_at or 0.0
    return lifecycle.Life(
        key=record.key,
        active=known.active,
        reserved_at=(names.since(known.conditions, names.QUOTA_RESERVED) or 0.0) if held else None,
        admitted_at=admitted_at,
        checks=_checks(known, rules.checks(record)) if held else (),
        suspended=owner.suspended if queue and owner.suspendable else evicted is not None or not held,
        started=_started(record, admitted_at) if queue and owner.suspendable else False,
        wanted=_wanted(record) if queue else 0,
        ready=owner.ready,
        bound=len(_bound(record, rules)) if evicted is not None else 0,
        ready_at=names.since(known.conditions, names.PODS_READY) if held else None,
        unready_at=names.unready_at(known.conditions, admitted_at),
        evicted=evicted,
        requeues=known.requeues,
        requeue_at=known.requeue_at,
        lost_at=record.lost_at if record.refused is not None else None,
        executed=known.executed,
        most_execution=known.most_execution if queue else None,
    )


def _wanted(record: WorkloadEntry) -> int:
    """Pods that are to be ready; those that wait for room to grow are none."""
    count, admission = record.owner.count, record.admission
    return min(count, admission.count) if admission is not None else count


def _evicted(known: ObservedWorkload) -> lifecycle.Evicted | None:
    found = condition(known.conditions, names.EVICTED)
    if found is None or found.status != "True":
        return None
    at = moment(found.last_transition_time) or 0.0
    return lifecycle.Evicted(reason=found.reason, message=found.message, at=at)


def _started(record: WorkloadEntry, admitted_at: float | None) -> bool:
    """Whether the job was unsuspended since it was admitted: it is now, or it was suspended again after that."""
    if record.started or not record.owner.suspended:
        return True
    if admitted_at is None:
        return False
    suspended_at, resumed_at = record.owner.suspended_at, record.owner.resumed_at
    if resumed_at is not None:
        return resumed_at >= admitted_at
    return suspended_at is not None and suspended_at > admitted_at


def _checks(known: ObservedWorkload, wanted: Iterable[str]) -> tuple[lifecycle.Check, ...]:
    """What each check that it needs says; one that says nothing yet is pending."""
    said = {check.name: check for check in known.checks}
    return tuple(said.get(name) or lifecycle.Check(name=name, state=lifecycle.CheckState.PENDING) for name in wanted)


def _bound(record: WorkloadEntry, rules: ReconcileContext) -> list[Pod]:
    """The pods that have to go before what it holds is free.

    Pods that were never held back come again as soon as one is evicted. Those that have no node yet go with the job,
    when it is suspended; all others that are on their way to a node go one by one. One that we let go, and that is
    still seen behind its gate or without a node, may run by now. One that terminates on a node that is gone or not
    ready is not waited for: nobody there ends it.
    """
    sent = {uid for uid, intent in record.intents.items() if not intent.gone}
    evicted = _evicted(record.known) if record.known is not None else None
    stays = bool(record.owner.queue) and record.owner.suspendable and not record.owner.suspended
    bound = [
        pod
        for pod in record.pods.values()
        if (pod.spec.node_name or pod.metadata.uid in sent or _on_its_way(pod, rules.keys, stays=stays))
        and not finished(pod)
        and not (pod.metadata.deletion_timestamp is not None and pod.spec.node_name and rules.dead(pod.spec.node_name))
    ]
    if evicted is None or record.slots_in or record.owner.suspended or not record.owner.suspendable:
        return bound
    return [pod for pod in bound if (moment(pod.metadata.creation_timestamp) or 0.0) <= evicted.at]


def _on_its_way(pod: Pod, keys: Keys, *, stays: bool) -> bool:
    """Whether one without a node may get one, and goes if it is evicted; ``stays``: its job is to be suspended yet."""
    if is_gated(pod, keys.gate):
        return False
    return not stays or keys.workload in (pod.metadata.annotations or {})


def _carried(
    record: WorkloadEntry, step: lifecycle.Instruction, seen: lifecycle.Life, rules: ReconcileContext, wall: float
) -> Iterator[Instruction]:
    match step:
        case lifecycle.Set(type=type_, status=status, reason=reason, message=message):
            if type_ is lifecycle.Condition.PODS_READY and (
                status or seen.admitted_at is None or not record.owner.queue
            ):
                return  # said with what else is known of the pods
            yield WriteConditions((WantedCondition(str(type_), status, reason, message),))
        case lifecycle.Evict(reason=reason, message=message, detail=detail):
            yield from _evict(reason, message, detail)
        case lifecycle.EvictPods():
            why = seen.evicted.message if seen.evicted is not None else ""
            yield EvictPods(tuple(sorted(_bound(record, rules), key=lambda pod: pod.metadata.name)), why)
        case lifecycle.Suspend():
            yield Suspend()
        case lifecycle.Release(reason=reason, message=message, until=until, requeues=requeues, leave=leave):
            yield ClearAdmission(_returned(record, reason, message, until, wall, leave=leave), until, requeues, leave)
        case lifecycle.Deactivate(reason=reason, message=message):
            yield Deactivate(reason, message)
        case lifecycle.Start():
            yield Start()
        case lifecycle.LookAgain(at=at):
            yield RequeueAfter(max(0.0, at - wall))


def _evict(reason: Reason, message: str, detail: Reason | None) -> Iterator[Instruction]:
    wanted = [WantedCondition(names.EVICTED, True, reason, message)]
    if detail is not None:
        wanted.append(WantedCondition(names.PREEMPTED, True, detail, message))
    yield Evict(tuple(wanted), reason, message)


def _returned(
    record: WorkloadEntry, reason: Reason, message: str, until: float, wall: float, *, leave: bool
) -> tuple[WantedCondition, ...]:
    """What is said of one that holds nothing any more."""
    known = record.known
    wanted = [WantedCondition(names.QUOTA_RESERVED, False, reason if leave else Reason.PENDING, message)]
    wanted += (
        WantedCondition(type_, False, reason, message)
        for type_ in (names.ADMITTED, names.PODS_READY)
        if known is not None and is_true(known.conditions, type_)
    )
    if leave:
        said = condition(known.conditions, names.REQUEUED) if known is not None else None
        if said is None or (said.status, said.reason) != ("False", str(Reason.REQUEUE_LIMIT)):  # which says more
            wanted.append(WantedCondition(names.REQUEUED, False, reason, f"it does not come back by itself: {message}"))
    elif until > wall:
        text = f"it comes back at {timestamp(until)}: {message}"
        wanted.append(WantedCondition(names.REQUEUED, False, Reason.BACKING_OFF, text))
    else:
        wanted.append(WantedCondition(names.REQUEUED, True, Reason.REQUEUED, f"it waits again: {message}"))
    return tuple(wanted)

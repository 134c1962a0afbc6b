"""What to do about a job that waits or holds something: plain functions of what was seen, like its neighbours.

`queueing.lifecycle` says what its life needs next; here that becomes instructions, together with what its pods need.
While a job is on its way out, nothing else is done with it. A job without a queue has a shorter life: nobody here
suspends it, waits for its pods to be ready, or ends it after a time. It is evicted where it is made inactive, and where
pods of lost nodes have no other place; pods that are made anew stay behind the gate.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import inf

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
    FreeCapacity,
    Instruction,
    LeaveOut,
    LoseTurns,
    ReconcileContext,
    Release,
    RequeueAfter,
    RestoreAdmission,
    Start,
    Suspend,
    Ungate,
    UpdateSpec,
    WriteConditions,
)
from ungater.model.conditions import WantedCondition, moment, timestamp
from ungater.model.held_pods import HoldReason
from ungater.model.job_view import JobView
from ungater.model.pod_slots import finished, is_gated
from ungater.model.workload_entry import ObservedWorkload, WorkloadEntry
from ungater.model.workload_spec import fingerprint
from ungater.reconcile import let_go, missing_pods, moves, native_groups, nominated_nodes
from ungater.reconcile.partial_eviction import lost
from ungater.reconcile.pods_ready import SOON
from ungater.reconcile.ungating import running, waits

UNSEEN_FOR = 60.0  # seconds that a job has run before its Workload is made; one that is deleted is made within 30
SEEN_WITHIN = 60.0  # seconds in which a controller is to say that its job is suspended; pods are waited for afterwards


def decide(entry: WorkloadEntry, rules: ReconcileContext, now: float, wall: float) -> list[Instruction]:
    """The instructions for a job that has a Workload; ``now`` and ``wall`` as in `reconcile.reconcile`."""
    observed = entry.observed
    if observed is None:
        raise AssertionError(f"{entry.key}: no Workload")
    if entry.admission is not None and observed.admission is None:
        # Before anything else: pods run by what is held, and no pod may go before it is stored again.
        return [RestoreAdmission()]
    seen = life_of(entry, rules)
    if alone := _left_running(entry, observed, rules, now) or _ended(entry, observed, seen, rules, wall):
        return alone
    steps = lifecycle.decide(seen, rules.life, wall)
    done = [instruction for step in steps for instruction in _carried(entry, step, seen, rules, wall)]
    if entry.admission is None:
        off = [step for step in steps if isinstance(step, lifecycle.Leave)]
        done += [one for step in off for one in (Dequeue(), *waits(entry, step.reason, step.message, now))]
        kept = nominated_nodes.before_admission(entry, rules.planned(entry), rules, now) if not off else ()
        return [*done, *(_waiting(entry, observed, rules, now, wall) if seen.suspended and not off else ()), *kept]
    # An eviction that begins at this look counts too, so that no pod is let go beside it.
    leaving = seen.evicted is not None or any(isinstance(one, Evict) for one in done)
    stops = leaving or seen.suspended
    if stops or seen.admitted_at is None:
        return [*done, *(nominated_nodes.before_admission(entry, entry.slots_in, rules, now) if not stops else ())]
    losing, missing = rules.losing(entry), missing_pods.decide(entry, rules.missing_pods, now)
    # What is given up for missing pods changes how many are wanted: the next look decides about the others by that.
    if any(not isinstance(one, RequeueAfter) for one in missing):
        return [*done, *missing]
    going_on = lost(entry, losing, rules, now) if losing is not None else running(entry, rules, now)
    # Turns come after the groups: a pod that its PodGroup holds back loses its turn at the node, too.
    together = native_groups.hold_groups_together(entry, going_on, rules, now)
    return [*done, *missing, *_out_of_turn(entry, together), *together]


def _left_running(
    entry: WorkloadEntry, observed: ObservedWorkload, rules: ReconcileContext, now: float
) -> list[Instruction]:
    """What is said of one that runs since before there was a webhook, and whose queue does not exist; [] elsewhere.

    To suspend it would end its pods for nothing: no queue could ever resume it. (Kueue 0.19 does suspend it.)
    """
    owner = entry.job
    if entry.admission is not None or owner.suspended or not (owner.queue and _unseen(entry, rules.keys)):
        return []
    if (missing := rules.no_queue(entry)) is None:
        return []
    if _edited(owner, observed):
        return [Dequeue(), UpdateSpec()]
    text = (
        f"{missing}: {owner.called} was started without Topogate and is left running, counted in no queue. Once that "
        "is there, it is suspended until it is admitted"
    )
    return [Dequeue(), *waits(entry, Reason.NO_QUEUE, text, now)]


def _unseen(entry: WorkloadEntry, keys: Keys) -> bool:
    """Whether a job that is suspendable was started while there was no Topogate.

    Nobody runs past a queue by that: a webhook suspends, gates and marks what it sees. Who takes gate and mark off
    while it resumes the job was suspended until then, and has had a Workload: those of a former Kueue have run longer.
    """
    owner, observed = entry.job, entry.observed
    marked = any(keys.pod_set in (one.template.metadata.annotations or {}) for one in owner.pod_sets)
    if not owner.suspendable or owner.gated or marked or observed is None or owner.suspended_at is not None:
        return False
    # A tenant may take gate and mark off in the update that resumes a job; the Workload of that job is older.
    return owner.resumed_at is None or observed.created - owner.resumed_at > UNSEEN_FOR


def _out_of_turn(entry: WorkloadEntry, steps: Iterable[Instruction]) -> list[Instruction]:
    """What becomes of pods that waited for their turn at a node, and do not go there now whoever is on the way.

    Another may go ahead of them for the claim that they share, or what they ask for was changed. Nobody overtakes those
    who wait for a turn, so all others would wait for them as long as they stay gated.
    """
    if not entry.held:
        return []
    going = {one.pod.metadata.uid for one in steps if isinstance(one, Ungate)}
    out = [uid for uid, held in entry.held.items() if uid not in going and held.why is not HoldReason.REFUSED]
    return [LoseTurns(tuple(out))] if out else []


def _waiting(
    entry: WorkloadEntry, observed: ObservedWorkload, rules: ReconcileContext, now: float, wall: float
) -> Iterator[Instruction]:
    if _edited(entry.job, observed):
        yield Dequeue()  # else it may be admitted as what it was, in the queue that it named
        yield UpdateSpec()
        return
    yield from moves.ended(entry)
    requeued = condition(observed.conditions, names.REQUEUED)
    if requeued is not None and requeued.reason == str(Reason.BACKING_OFF) and (observed.requeue_at or 0.0) <= wall:
        yield WriteConditions((WantedCondition(names.REQUEUED, True, Reason.REQUEUED, "it waits again"),), delay=SOON)
    yield Enqueue(until=observed.requeue_at or 0.0)
    if outsiders := rules.outsiders(entry):
        yield EvictSome(outsiders)
    if entry.refused is not None:
        yield from waits(entry, entry.refused.reason, entry.refused.message, now)


def _ended(
    entry: WorkloadEntry, observed: ObservedWorkload, seen: lifecycle.Life, rules: ReconcileContext, wall: float
) -> list[Instruction]:
    """What ends an admission, whatever else is to be done: others need its room, or the job was edited; [] if none."""
    if entry.admission is None or seen.evicted is not None:
        return []
    if entry.evict is not None:
        return list(_carried(entry, entry.evict, seen, rules, wall))
    changed = _edited_conditions(entry, observed, seen)
    return [Dequeue(), Release(changed)] if changed else []


def _edited_conditions(
    entry: WorkloadEntry, observed: ObservedWorkload, seen: lifecycle.Life
) -> tuple[WantedCondition, ...]:
    """What is said of a job that was edited after it was admitted, and is not started as that: it is admitted anew."""
    owner = entry.job
    waits = owner.queue and owner.suspendable and owner.suspended and not seen.started
    if not waits or observed.copy_of == fingerprint(owner):
        return ()
    message = f"{owner.kind} {owner.name} was edited after it was admitted: it waits to be admitted as it is now"
    return names.nothing_held(Reason.PENDING, message)


def _edited(owner: JobView, observed: ObservedWorkload) -> bool:
    """Whether the Workload no longer says what the job asks for. Pods that no template made have none to copy."""
    copied = owner.suspendable or owner.foretold or owner.kinds
    if not owner.queue:
        return bool(observed.queue) or (copied and observed.copy_of != fingerprint(owner))
    copy = fingerprint(owner) if copied else observed.copy_of
    counts, least = tuple([one.full for one in owner.pod_sets]), max([one.least for one in owner.pod_sets])
    said = observed.counts, observed.queue, observed.least, observed.most_execution, observed.copy_of
    return said != (counts, owner.queue, least, owner.most_execution, copy)


def is_ending(entry: WorkloadEntry) -> bool:
    """Whether its admission is to end whatever its job says: somebody needs its room, or its Workload is inactive."""
    observed = entry.observed
    if entry.evict is not None:
        return True
    return observed is not None and (not observed.active or _evicted(observed) is not None)


def end_without_workload(entry: WorkloadEntry, why: str, rules: ReconcileContext) -> Instruction:
    """Have its pods go, and then what it holds, without a word on its Workload, which is not there."""
    bound = _pods_to_leave(entry, rules)
    return EvictPods(tuple(sorted(bound, key=lambda pod: pod.metadata.name)), why) if bound else FreeCapacity()


def life_of(entry: WorkloadEntry, rules: ReconcileContext) -> lifecycle.Life:
    """What is known of a job's life, as queueing takes it."""
    observed, owner = entry.observed, entry.job
    if observed is None:
        raise AssertionError(f"{entry.key}: no Workload")
    held, queue, evicted = observed.admission is not None, bool(owner.queue), _evicted(observed)
    admitted_at = names.true_since(observed.conditions, names.ADMITTED) if held else None
    # A job without a queue has no checks to wait for: it counts as admitted before the condition is written.
    if held and not queue:
        admitted_at = admitted_at or 0.0
    return lifecycle.Life(
        key=entry.key,
        active=observed.active,
        reserved_at=(names.true_since(observed.conditions, names.QUOTA_RESERVED) or 0.0) if held else None,
        admitted_at=admitted_at,
        checks=_checks(observed, rules.checks(entry)) if held else (),
        suspended=owner.suspended if queue and owner.suspendable else evicted is not None or not held,
        started=_was_started(entry, admitted_at) if queue and owner.suspendable else False,
        wanted=_count_wanted(entry) if queue else 0,
        ready=owner.ready,
        bound=len(_pods_to_leave(entry, rules)) if evicted is not None else 0,
        ready_at=names.true_since(observed.conditions, names.PODS_READY) if held else None,
        unready_at=names.unready_at(observed.conditions, admitted_at),
        evicted=evicted,
        requeues=observed.requeues,
        requeue_at=observed.requeue_at,
        # The time for another place counts against the workload only once the scheduler found none.
        lost_at=entry.lost_at if entry.refused is not None else None,
        # kube-scheduler takes no new pod of the group before then, so the ready timeout does not run.
        ending_until=inf if native_groups.ending(entry, rules) else entry.ending_until,
        executed=observed.executed,
        most_execution=observed.most_execution if queue else None,
        pause=let_go.pause(entry),
    )


def _count_wanted(entry: WorkloadEntry) -> int:
    """Pods that are to be ready; those that wait for room to grow are none.

    Nor are those of a service that come once others are ready: a rollout takes as long as its pods do.
    """
    owner, admission = entry.job, entry.admission
    # An OrderedReady StatefulSet makes each pod once the one before is
    # ready: pods that exist are awaited, or the first.
    later = owner.scales and owner.in_order
    count = min(owner.count, max(sum(map(entry.count_existing, owner.pod_sets)), 1)) if later else owner.count
    return min(count, admission.count) if admission is not None else count


def _evicted(observed: ObservedWorkload) -> lifecycle.Evicted | None:
    found = condition(observed.conditions, names.EVICTED)
    if found is None or found.status != "True":
        return None
    at = moment(found.last_transition_time) or 0.0
    return lifecycle.Evicted(reason=found.reason, message=found.message, at=at)


def _was_started(entry: WorkloadEntry, admitted_at: float | None) -> bool:
    """Whether the job was unsuspended since it was admitted: it is now, or it was suspended again after that."""
    if entry.started or not entry.job.suspended:
        return True
    if admitted_at is None:
        return False
    suspended_at, resumed_at = entry.job.suspended_at, entry.job.resumed_at
    if resumed_at is not None:
        # Conditions have whole seconds: a job that is resumed in the second of its admission was started for that.
        return resumed_at >= admitted_at
    return suspended_at is not None and suspended_at > admitted_at


def _checks(observed: ObservedWorkload, wanted: Iterable[str]) -> tuple[lifecycle.Check, ...]:
    """What each check that it needs says; one that says nothing yet is pending."""
    said = {check.name: check for check in observed.checks}
    return tuple(said.get(name) or lifecycle.Check(name=name, state=lifecycle.CheckVerdict.PENDING) for name in wanted)


def _pods_to_leave(entry: WorkloadEntry, rules: ReconcileContext) -> list[Pod]:
    """The pods that have to go before what it holds is free.

    Pods that were never held back come again as soon as one is evicted. Those that have no node yet go with the job,
    when it is suspended; all others that are on their way to a node go one by one. One that we let go, and that is
    still seen behind its gate or without a node, may run by now. One that terminates on a node that is gone or not
    ready is not waited for: nobody there ends it.
    """
    sent = {uid for uid, expectation in entry.expectations.items() if not expectation.gone}
    evicted = _evicted(entry.observed) if entry.observed is not None else None
    stays = bool(entry.job.queue) and entry.job.suspendable and not entry.job.suspended
    bound = [
        pod
        for pod in entry.pods.values()
        if (pod.spec.node_name or pod.metadata.uid in sent or _on_its_way(pod, rules.keys, stays=stays))
        and not finished(pod)
        and not (pod.metadata.deletion_timestamp is not None and pod.spec.node_name and rules.dead(pod.spec.node_name))
    ]
    if evicted is None or entry.slots_in or entry.job.suspended or not entry.job.suspendable:
        return bound
    # Younger pods replace the ones that were evicted: they come for as long as the job is not suspended.
    return [pod for pod in bound if (moment(pod.metadata.creation_timestamp) or 0.0) <= evicted.at]


def _on_its_way(pod: Pod, keys: Keys, *, stays: bool) -> bool:
    """Whether one without a node may get one, and goes if it is evicted; ``stays``: its job is to be suspended yet."""
    if is_gated(pod, keys.gate):
        return False
    return not stays or keys.workload in (pod.metadata.annotations or {})


def _carried(
    entry: WorkloadEntry, step: lifecycle.Instruction, seen: lifecycle.Life, rules: ReconcileContext, wall: float
) -> Iterator[Instruction]:
    match step:
        case lifecycle.Set(type=type_, status=status, reason=reason, message=message):
            if type_ is lifecycle.WorkloadCondition.PODS_READY and (
                status or seen.admitted_at is None or not entry.job.queue
            ):
                return  # said with what else is known of the pods
            yield WriteConditions((WantedCondition(str(type_), status, reason, message),))
        case lifecycle.EvictStep(reason=reason, message=message, detail=detail):
            if reason is Reason.PODS_READY_TIMEOUT and (pods := let_go.kept_it_from_running(entry)):
                yield LeaveOut(pods)  # else it may come back to the same nodes
                message = f"{message}; {let_go.message_of_unstarted(entry, pods)}"
            yield from _evict(reason, message, detail)
        case lifecycle.EvictPodsStep():
            why = seen.evicted.message if seen.evicted is not None else ""
            yield EvictPods(tuple(sorted(_pods_to_leave(entry, rules), key=lambda pod: pod.metadata.name)), why)
        case lifecycle.SuspendStep():
            yield Suspend(_not_admitted(entry, rules.keys) if seen.evicted is None else "")
        case lifecycle.ReleaseStep(reason=reason, message=message, until=until, requeues=requeues, leave=leave):
            yield ClearAdmission(_returned(entry, reason, message, until, wall, leave=leave), until, requeues, leave)
        case lifecycle.DeactivateStep(reason=reason, message=message):
            yield Deactivate(reason, message)
        case lifecycle.StartStep():
            yield _start(entry, seen, rules, wall)
        case lifecycle.LookAgain(at=at):
            yield RequeueAfter(max(0.0, at - wall))


def _not_admitted(entry: WorkloadEntry, keys: Keys) -> str:
    """Why one is suspended that runs, or is to run, without an admission."""
    owner = entry.job
    if _unseen(entry, keys):
        return (
            f"{owner.called} was started without Topogate, and LocalQueue {owner.queue} has not admitted it: it is "
            "suspended, and resumed once it is admitted"
        )
    return (
        f"it is suspended again, as LocalQueue {owner.queue} has not admitted it yet: leave spec.suspend to Topogate, "
        "which resumes it once it is admitted"
    )


def _start(entry: WorkloadEntry, seen: lifecycle.Life, rules: ReconcileContext, wall: float) -> Instruction:
    # A controller that has not seen yet that its job was suspended would delete pods of the new run for it.
    left = (seen.admitted_at or 0.0) + SEEN_WITHIN - wall if entry.job.resumed_at is not None else 0.0
    if left > 0:
        return RequeueAfter(left)
    old = [pod for pod in _pods_to_leave(entry, rules) if _ends_on_its_node(pod)]
    return _waits_for(old) if old else Start()


def _ends_on_its_node(pod: Pod) -> bool:
    return bool(pod.spec.node_name) and pod.metadata.deletion_timestamp is not None


def _waits_for(old: Sequence[Pod]) -> Instruction:
    """Say that its job is not resumed yet: its controller makes new pods beside those that end (Kubernetes 1.37)."""
    first = min(pod.metadata.name for pod in old)
    if len(old) > 1:
        message = (
            f"pod {first} and {len(old) - 1} more of an earlier run still end: the job is resumed once they are gone"
        )
    else:
        message = f"pod {first} of an earlier run still ends: the job is resumed once it is gone"
    wanted = WantedCondition(names.PODS_READY, False, Reason.SLOT_OCCUPIED, message)
    return WriteConditions((wanted,), delay=SOON)


def _evict(reason: Reason, message: str, detail: Reason | None) -> Iterator[Instruction]:
    wanted = [WantedCondition(names.EVICTED, True, reason, message)]
    if detail is not None:
        wanted.append(WantedCondition(names.PREEMPTED, True, detail, message))
    yield Evict(tuple(wanted), reason, message)


def _returned(
    entry: WorkloadEntry, reason: Reason, message: str, until: float, wall: float, *, leave: bool
) -> tuple[WantedCondition, ...]:
    """What is said of one that holds nothing any more."""
    observed = entry.observed
    wanted = [WantedCondition(names.QUOTA_RESERVED, False, reason if leave else Reason.PENDING, message)]
    wanted += (
        WantedCondition(type_, False, reason, message)
        for type_ in (names.ADMITTED, names.PODS_READY)
        if observed is not None and is_true(observed.conditions, type_)
    )
    if leave:
        said = condition(observed.conditions, names.REQUEUED) if observed is not None else None
        if said is None or (said.status, said.reason) != ("False", str(Reason.REQUEUE_LIMIT)):  # which says more
            wanted.append(
                WantedCondition(
                    names.REQUEUED,
                    False,
                    reason,
                    f"it comes back once spec.active of its Workload is true again: {message}",
                )
            )
    elif until > wall:
        text = f"it comes back at {timestamp(until)}: {message}"
        # `_waiting` looks for this reason to say that the pause is over.
        wanted.append(WantedCondition(names.REQUEUED, False, Reason.BACKING_OFF, text))
    else:
        wanted.append(WantedCondition(names.REQUEUED, True, Reason.REQUEUED, f"it waits again: {message}"))
    return tuple(wanted)

"""What the rules of a workload's life read (`ungater.model.life`), from what was seen of it. Plain functions."""

from math import inf

from crds.constants import Keys
from kube.objects import Pod, condition
from ungater.model import conditions as names
from ungater.model.conditions import moment
from ungater.model.life import ON_HOLD, Check, CheckVerdict, Evicted, Life
from ungater.model.pod_slots import finished, is_gated
from ungater.model.workload_entry import ObservedWorkload, WorkloadEntry
from ungater.reconcile import let_go, native_groups
from ungater.reconcile.context import ReconcileContext

UNSEEN_FOR = 60.0  # seconds that a job has run before its Workload is made; one that is deleted is made within 30


def read_life(entry: WorkloadEntry, rules: ReconcileContext) -> Life:
    """What is known of the life of a job that has a Workload."""
    observed, owner = entry.observed, entry.job
    if observed is None:
        raise AssertionError(f"{entry.key}: no Workload")
    held, queue, evicted = observed.admission is not None, bool(owner.queue), _evicted(observed)
    admitted_at = names.true_since(observed.conditions, names.ADMITTED) if held else None
    # A job without a queue has no checks to wait for: it counts as admitted before the condition is written.
    if held and not queue:
        admitted_at = admitted_at or 0.0
    suspended = owner.suspended if queue and owner.suspendable else evicted is not None or not held
    # Nobody waits for pods of one that runs, and a look at each of a gang's costs time.
    bound = pods_to_leave(entry, rules) if held and (evicted is not None or suspended) else ()
    unstarted = let_go.kept_it_from_running(entry)
    said = {check.name: check for check in observed.checks}
    unadmitted = ""
    if not held and not suspended and not observed.active:
        unadmitted = f"{owner.called} is suspended, as {ON_HOLD}"
    elif not held and not suspended and evicted is None:
        unadmitted = (
            f"{owner.called} was started without Topogate, and LocalQueue {owner.queue} has not admitted it: it is "
            "suspended, and resumed once it is admitted"
            if is_unseen(entry, rules.keys)
            else f"it is suspended again, as LocalQueue {owner.queue} has not admitted it yet: leave spec.suspend to "
            "Topogate, which resumes it once it is admitted"
        )
    return Life(
        active=observed.active,
        reserved_at=(names.true_since(observed.conditions, names.QUOTA_RESERVED) or 0.0) if held else None,
        admitted_at=admitted_at,
        checks=tuple(
            # A check that says nothing yet is pending.
            said.get(name) or Check(name=name, state=CheckVerdict.PENDING)
            for name in (rules.checks(entry) if held else ())
        ),
        suspended=suspended,
        started=_was_started(entry, admitted_at) if queue and owner.suspendable else False,
        resumed=owner.resumed_at is not None,
        wanted=_count_wanted(entry) if queue else 0,
        ready=owner.ready,
        bound=tuple(sorted(bound, key=lambda pod: pod.metadata.name)),
        ready_at=names.true_since(observed.conditions, names.PODS_READY) if held else None,
        unready_at=names.unready_at(observed.conditions, admitted_at),
        unstarted=unstarted,
        unstarted_message=let_go.message_of_unstarted(entry, unstarted) if unstarted else "",
        conditions=observed.conditions,
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
        unadmitted=unadmitted,
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


def _evicted(observed: ObservedWorkload) -> Evicted | None:
    found = condition(observed.conditions, names.EVICTED)
    if found is None or found.status != "True":
        return None
    at = moment(found.last_transition_time) or 0.0
    return Evicted(reason=found.reason, message=found.message, at=at)


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


def is_unseen(entry: WorkloadEntry, keys: Keys) -> bool:
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


def is_ending(entry: WorkloadEntry) -> bool:
    """Whether its admission is to end whatever its job says: somebody needs its room, or its Workload is inactive."""
    observed = entry.observed
    if entry.evict is not None:
        return True
    return observed is not None and (not observed.active or _evicted(observed) is not None)


def pods_to_leave(entry: WorkloadEntry, rules: ReconcileContext) -> list[Pod]:
    """The pods that have to go before what it holds is free.

    Pods that were never held back come again as soon as one is evicted. Those that have no node yet go with the job,
    when it is suspended; all others that are on their way to a node go one by one. One that we let go, and that is
    still seen behind its gate or without a node, may run by now. One that terminates on a node that is gone or not
    ready is not waited for: nobody there ends it.
    """
    sent = {uid for uid, expectation in entry.expectations.items() if not expectation.gone}
    evicted = _evicted(entry.observed) if entry.observed is not None else None
    stays = bool(entry.job.queue) and entry.job.suspendable and not entry.job.suspended  # it is to be suspended yet
    keys = rules.keys
    bound = [
        pod
        for pod in entry.pods.values()
        if (
            pod.spec.node_name
            or pod.metadata.uid in sent
            # One without a node may get one, and goes if it is evicted.
            or (not is_gated(pod, keys.gate) and (not stays or keys.workload in (pod.metadata.annotations or {})))
        )
        and not finished(pod)
        and not (pod.metadata.deletion_timestamp is not None and pod.spec.node_name and rules.dead(pod.spec.node_name))
    ]
    if evicted is None or entry.slots_in or entry.job.suspended or not entry.job.suspendable:
        return bound
    # Younger pods replace the ones that were evicted: they come for as long as the job is not suspended.
    return [pod for pod in bound if (moment(pod.metadata.creation_timestamp) or 0.0) <= evicted.at]

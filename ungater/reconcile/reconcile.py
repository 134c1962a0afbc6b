"""What to do about one job: a plain function of what was seen. No I/O and no clock: ``now`` is an argument.

Rules
- No pod is ungated before its admission is stored. One whose pod set has slots needs a free slot too.
- Never more pods in a slice than its count: only free slots are given, and an expectation holds its slot.
- Whatever keeps a pod gated is said on the Workload; what somebody has to mend is an event too.
- The same entry gives the same actions, in the same order.
- What has a Workload has a life (`ungater.reconcile.lifecycle`): it is admitted, and evicted. A job with a queue is
  unsuspended and suspended by us too; one without a queue is as its user has it.
"""

from collections.abc import Iterator

from crds.constants import Keys
from crds.levels import check_level
from crds.request import RequestError
from engine.model import Policy
from engine.reasons import Reason
from kube.objects import Pod, condition, is_true
from ungater.jobs.leaderworkerset import KIND as LEADER_SETS
from ungater.jobs.pod_group import GONE
from ungater.model import conditions as names
from ungater.model.actions import (
    Action,
    Create,
    Delete,
    Dequeue,
    EmitEvent,
    FreeCapacity,
    MarkPods,
    Release,
    Remove,
    RequeueAfter,
    UpdateOwners,
    UpdateSpec,
    WriteConditions,
)
from ungater.model.conditions import WantedCondition
from ungater.model.job_view import JobView
from ungater.model.life import ON_HOLD
from ungater.model.pod_slots import finished, is_gated
from ungater.model.workload_entry import WorkloadEntry
from ungater.reconcile import as_made, life_seen, lifecycle, nominated_nodes
from ungater.reconcile.context import ReconcileContext
from ungater.reconcile.missing_pods import awaited
from ungater.reconcile.pods_ready import SOON
from ungater.reconcile.said import held_by, waits

UNADOPTED = 10.0  # seconds until one that could not be taken over is looked at again, where no event has it
# The garbage collector deletes an object with its last owner, and pods of a group are replaced one at a time.
OWNERS = 4  # pods that a group's Workload is to belong to at least, where there are as many

# A group of pods that is gone leaves nothing that its Workload could be about.
_OUTCOMES = {"Complete": Reason.SUCCEEDED, "Failed": Reason.FAILED}


def reconcile(entry: WorkloadEntry, rules: ReconcileContext, now: float, wall: float = 0.0) -> list[Action]:
    """The actions for one job, in the order in which they are to be carried out. Changes nothing.

    ``now``: seconds of a clock that never jumps; ``wall``: seconds since the epoch, as conditions have them.
    """
    steps, observed = list(_decided(entry, rules, now, wall)), entry.observed
    # Conditions that nothing of this changes hold for the Workload as it is now: `kubectl wait` asks for that.
    if observed is not None and (again := names.outdated(observed.conditions, observed.generation)):
        steps.append(WriteConditions(again, delay=SOON))
    return nominated_nodes.settled(entry, steps, rules, now) if rules.nominates else steps


def _decided(entry: WorkloadEntry, rules: ReconcileContext, now: float, wall: float) -> Iterator[Action]:
    owner = entry.job
    if owner.over or (entry.removing and entry.observed is not None):
        yield from _finish_job(entry, rules, wall)
    # Asked before there is a Workload: a job that is not ours gets none.
    elif (told := left_alone(entry, rules.keys)) is not None:
        yield from _left_to_others(entry, told, rules, now, wall)
    elif entry.observed is None:
        yield from _made_again(entry, rules, now)
    elif entry.unadopted and entry.admission is None and entry.observed.admission is None:
        yield Dequeue()
        # A moment after Kueue has resumed a job, its own Workload may not be seen to be admitted yet.
        if entry.ran_by_kueue or entry.seen_running is None:
            yield from waits(entry, Reason.NOT_ADOPTED, not_adopted_in_words(entry), now)
        yield RequeueAfter(UNADOPTED)
    else:
        holds = entry.admission is not None or entry.observed.admission is not None
        # Only what is stored: a restart before that finds pods that nobody let go here, and takes them over again.
        if entry.adopting and entry.admission is not None and entry.observed.admission is not None:
            pods = [entry.pods[uid] for uid in entry.adopting if uid in entry.pods]
            yield MarkPods(tuple(sorted(pods, key=lambda pod: pod.metadata.name)))
        stranded = [] if holds else list(_stranded(entry, rules, now))
        if not holds and (held_up := list(_held_up(entry, rules, now, wall))):
            yield from (*stranded, *held_up)
        elif owner.suspended and not owner.queue:
            yield from _suspended(entry, rules, now, wall)
        else:
            yield from (*stranded, *_misled(entry, rules, now), *lifecycle.follow_life(entry, rules, now, wall))
            # Its Workload is not to be collected while pods of the group are there. It was made when the first of them
            # were there, and they are replaced one by one.
            members = {uid for _, uid in owner.members}
            if len(members & entry.observed.owners) < min(OWNERS, len(members)):
                yield UpdateOwners()


def not_adopted_in_words(entry: WorkloadEntry) -> str:
    """What is said of a job that Kueue started and that is left running."""
    return f"{entry.job.called} was started by Kueue and is left running, counted in no queue: {entry.unadopted}"


def _made_again(entry: WorkloadEntry, rules: ReconcileContext, now: float) -> Iterator[Action]:
    """Its Workload is made, at once or after a pause where others delete it over and over: each time costs writes.

    Where somebody waits until it has gone, it is told so by its Workload, and goes step by step. One whose Workload is
    deleted before the next step goes without: else nobody could ever have its room.
    """
    if entry.evict is not None and entry.admission is not None and entry.writes.deleted_often:
        yield lifecycle.end_without_workload(entry, entry.evict.message, rules)
    # The Workload of a victim is made at once: each step of its
    # eviction is written there, and somebody waits for its room.
    left = entry.writes.create_in(now) if entry.evict is None else 0.0
    if left <= 0:
        yield Create()
    else:
        text = (
            f"its Workload was deleted, or given to another owner, several times: it is created again in {left:.0f} s"
        )
        yield Dequeue()
        yield EmitEvent("Warning", Reason.BACKING_OFF, "Admit", text, once="deleted over and over")
        yield RequeueAfter(left)


def _held_up(entry: WorkloadEntry, rules: ReconcileContext, now: float, wall: float) -> Iterator[Action]:
    """What is done about one that can be given nothing as it is; nothing where it can."""
    if entry.observed is not None and entry.observed.queue and not entry.job.queue:
        yield Dequeue()
        yield UpdateSpec()  # it left its queue: whatever it waits for, its Workload names none
    elif (made := as_made.compared(entry, rules)).taken is not None:
        yield made.taken
    elif made.mixed:
        yield Dequeue()
        yield from waits(entry, Reason.PODS_CHANGE, as_made.mixed_message(entry, made.mixed), now)
        yield from as_made.made_again(entry, made.mixed, rules, now)
    elif (why := why_not_placed(entry, rules)) is not None:
        yield Dequeue()
        yield from waits(entry, *why, now)
    elif missing := awaited(entry, doubted=rules.doubted(entry.job.namespace, now), wall=wall):
        yield Dequeue()
        yield from waits(entry, missing.reason, missing.message, now)
        if missing.left is not None:
            yield RequeueAfter(missing.left)


def _stranded(entry: WorkloadEntry, rules: ReconcileContext, now: float) -> Iterator[Delete]:
    """Pods that were let go, have no node yet, and whose workload holds nothing any more: it lost what it had.

    They wait for a node that is gone, or would run where nothing is held for them. A job that is suspended while it
    waits in a queue loses them with that.
    """
    for pod in entry.pods.values() if not (entry.job.queue and entry.job.suspendable) else ():
        meta = pod.metadata
        if (
            # Our ungating patch alone writes this mark: a pod without it was not sent anywhere.
            (meta.annotations or {}).get(rules.keys.workload) != entry.job.workload
            or pod.spec.node_name
            or is_gated(pod, rules.keys.gate)
            or finished(pod)
            or meta.deletion_timestamp is not None
            # Its deletion was asked for a short time ago, and the watch has not shown it yet.
            or entry.deleting.get(meta.uid, 0.0) > now
        ):
            continue
        text = (
            f"pod {meta.name} was sent to a place that {entry.job.called} does not hold any more: it is deleted, and "
            "its replacement is placed with the others"
        )
        yield Delete(pod, Reason.SLOT_MOVED, text)


def _misled(entry: WorkloadEntry, rules: ReconcileContext, now: float) -> Iterator[Action]:
    """Pods of a LeaderWorkerSet that were let go for one of its name that it replaced; their controller makes others.

    They tell its name alone, so until the watch tells of the new one they are taken for the old one's. Pods that are
    older than it may be meant to run on.
    """
    owner, mark = entry.job, rules.keys.workload
    for pod in entry.pods.values() if owner.kind == LEADER_SETS else ():
        meta = pod.metadata
        if (
            # A pod without the mark was not let go by us.
            (meta.annotations or {}).get(mark, owner.workload) == owner.workload
            or (meta.creation_timestamp or "") < owner.created
            or is_gated(pod, rules.keys.gate)
            or finished(pod)
            or meta.deletion_timestamp is not None
            or entry.deleting.get(meta.uid, 0.0) > now
        ):
            continue
        text = (
            f"pod {meta.name} was sent to a slot of an earlier {owner.kind} {owner.name}: it is deleted, and its "
            "replacement gets a slot of the new one"
        )
        yield Delete(pod, Reason.SLOT_MOVED, text)


def _finish_job(entry: WorkloadEntry, rules: ReconcileContext, wall: float) -> Iterator[Action]:
    """The job needs nothing any more. Its Workload says so, unless it goes with the job, and goes later itself."""
    observed, over = entry.observed, entry.job.over
    gone = over == GONE or entry.removing
    yield Dequeue()
    if gone and observed is not None:
        yield Remove()  # other pods may come, and would find what is stored
    yield FreeCapacity()
    if observed is not None and not gone and over != "Deleted":
        found = condition(observed.conditions, names.FINISHED)
        finished_at = names.true_since(observed.conditions, names.FINISHED)
        if found is None or found.status != "True":
            message = entry.job.outcome or f"{entry.job.kind} {entry.job.name} is {over.lower()}"
            wanted = WantedCondition(names.FINISHED, True, _OUTCOMES[over], message)
            yield WriteConditions((wanted,), delay=SOON)
        elif rules.life.retention is not None and finished_at is not None:
            left = finished_at + rules.life.retention - wall
            yield RequeueAfter(left) if left > 0 else Remove()


def held_back(entry: WorkloadEntry, keys: Keys) -> bool:
    """Whether our gate is on the job's pods: by its template, or by the webhook's on each pod."""
    return entry.job.gated or bool(entry.slots_in) or any(is_gated(pod, keys.gate) for pod in entry.pods.values())


def left_alone(entry: WorkloadEntry, keys: Keys) -> EmitEvent | None:
    """What is said of a job that is not ours to place; None where it is."""
    owner = entry.job
    ours = owner.queue or (owner.request is not None and held_back(entry, keys))
    return None if ours else not_ours(entry, keys)


def not_ours(entry: WorkloadEntry, keys: Keys) -> EmitEvent:
    """Why a job that is ours to place by its request or by its gate is not by the other."""
    if entry.job.request is None:
        message = (
            f"the pod template has the scheduling gate {keys.gate} but no topology request, so its pods stay gated: "
            f"create {entry.job.called} again with an annotation such as {keys.required[0]}, or without the gate"
        )
        return EmitEvent("Warning", Reason.INVALID_REQUEST, "Gate", message, once="gate-without-request")
    message = (
        f"{entry.job.called} asks for a topology, but its pods lack the scheduling gate {keys.gate} and are placed "
        "without it: Topogate's webhook was away when it was created. Create it again"
    )
    return EmitEvent("Warning", Reason.NOT_GATED, "Gate", message, once="request-without-gate")


def _left_to_others(
    entry: WorkloadEntry, told: EmitEvent, rules: ReconcileContext, now: float, wall: float
) -> Iterator[Action]:
    """One that is not ours to place keeps what it got when it was, as long as a pod has it and it is not evicted.

    A user can take the request and the queue off a pod that runs: else that would keep it from being a victim.
    """
    yield Dequeue()
    yield told
    if entry.admission is None or entry.left or any(_stays(pod, entry, rules.keys) for pod in entry.pods.values()):
        yield from _evicted_all_the_same(entry, rules, now, wall)
    elif entry.observed is not None:
        yield Release(names.nothing_held(told.reason, told.message))
    else:
        yield FreeCapacity()


def _evicted_all_the_same(entry: WorkloadEntry, rules: ReconcileContext, now: float, wall: float) -> Iterator[Action]:
    """What ends an admission of which only pods that still run are left, where it is to end; nothing elsewhere."""
    ends = entry.admission is not None and life_seen.is_ending(entry)
    if ends and entry.observed is None:
        yield lifecycle.end_without_workload(entry, entry.evict.message if entry.evict is not None else "", rules)
    elif ends:
        yield from lifecycle.follow_life(entry, rules, now, wall)


def why_not_placed(entry: WorkloadEntry, rules: ReconcileContext) -> tuple[Reason, str] | None:
    """Why the job cannot be placed as it stands, whatever is free."""
    owner = entry.job
    wrong = owner.request if isinstance(owner.request, RequestError) else owner.held_off
    if wrong is not None:
        return wrong.reason, str(wrong)
    if rules.require_queue and not owner.queue:
        label = rules.keys.queue_name
        return (
            Reason.QUEUE_REQUIRED,
            f"it names no queue, and nothing is placed without one here (requireQueue): set label {label}",
        )
    if not owner.queue and entry.observed is not None and not entry.observed.active:
        return Reason.DEACTIVATED, ON_HOLD
    for request in (pod_set.request for pod_set in owner.pod_sets):
        if request is None or (owner.queue and request.policy is Policy.UNCONSTRAINED):
            continue
        try:
            check_level(request, rules.flavors, names=rules.level_names)
        except RequestError as error:
            return error.reason, str(error)
    return _put_off(owner, rules.keys) or not_to_be_had(entry, rules)


def _put_off(owner: JobView, keys: Keys) -> tuple[Reason, str] | None:
    """Why a job waits with which nothing is wrong: others, or itself, say that it is not to run yet."""
    # Asked after what is wrong with it, as in Kueue (0.19.2, workload_controller.go): else that would come to light
    # only once it may go.
    if owner.gated_by:
        return Reason.ADMISSION_GATED, held_by(owner.gated_by, keys.gated_by)
    if (owner.queue or not owner.suspended) and owner.count == 0:
        return Reason.PENDING, "the job asks for no pods now (parallelism 0)"
    return None


def not_to_be_had(entry: WorkloadEntry, rules: ReconcileContext) -> tuple[Reason, str] | None:
    """Which devices and volumes of its pods keep the job waiting, whatever room there is."""
    if (uncounted := rules.uncounted(entry)) is not None:
        return Reason.RESOURCE_CLAIMS_NOT_COUNTED, uncounted
    if (grouped := rules.grouped(entry)) is not None:
        return Reason.INVALID_REQUEST, grouped
    unready = rules.unready(entry)
    return (Reason.VOLUME_NOT_READY, f"it waits for its volumes: {unready}") if unready is not None else None


def suspended_in_words(owner: JobView) -> str:
    """Why one without a queue is not placed while it is suspended: by its user, or by a queue that it left."""
    until = (
        owner.waits_for or "set spec.suspend to false to have it placed; only a job with a queue is resumed by Topogate"
    )
    return f"{owner.called} is suspended: {until}"


def _suspended(entry: WorkloadEntry, rules: ReconcileContext, now: float, wall: float) -> Iterator[Action]:
    message = suspended_in_words(entry.job)
    wanted = [WantedCondition(names.QUOTA_RESERVED, False, Reason.SUSPENDED, message)]
    observed = entry.observed
    wanted += (
        WantedCondition(type_, False, Reason.SUSPENDED, message)
        for type_ in (names.ADMITTED, names.PODS_READY)
        if observed is not None and is_true(observed.conditions, type_)
    )
    yield Dequeue()
    if entry.admission is None and (observed is None or observed.admission is None):
        yield WriteConditions(tuple(wanted), delay=SOON)
    elif any(_stays(pod, entry, rules.keys) for pod in entry.pods.values()):
        # It may be resumed before its controller has seen this, and then they just go on.
        yield from _evicted_all_the_same(entry, rules, now, wall)
    else:
        yield Release(tuple(wanted))


def _stays(pod: Pod, entry: WorkloadEntry, keys: Keys) -> bool:
    """Whether a pod was let go, as far as is seen or by a patch that was sent, and nobody has asked it to go yet."""
    # The watch may still show the gate after the patch has removed it:
    # such a pod runs on when the job is resumed at once.
    sent = not is_gated(pod, keys.gate) or entry.on_its_way(pod.metadata.uid) is not None
    return sent and not finished(pod) and pod.metadata.deletion_timestamp is None

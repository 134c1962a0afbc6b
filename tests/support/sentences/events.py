"""What happens to a workload, its pods and its nodes, as conditions and events say it."""

import msgspec
from support.engine_factories import make_pod_set
from support.numa_factories import make_shape
from support.owned import (
    KEYS,
    context,
    make_admission,
    make_known,
    make_owner,
    make_pod,
    make_record,
    slot_map,
)
from support.sentences.golden import Golden

from engine.model import Policy
from engine.reasons import Reason
from kube.objects import Condition
from queueing.queues.entry import AssumedAdmission
from ungater.model import actions as i
from ungater.model.conditions import ADMITTED, EVICTED, FINISHED, PODS_READY, QUOTA_RESERVED, REQUEUED, timestamp
from ungater.model.held_pods import HeldPod
from ungater.model.life import Check, CheckVerdict, Evicted, Life, LifeRules
from ungater.model.unscheduled import Unscheduled
from ungater.model.unstarted import Unstarted
from ungater.model.workload_entry import PlacementMismatch, Refused
from ungater.numa import device_turns
from ungater.reconcile import as_made, granted, let_go, lifecycle, messages, missing_pods, pods_ready, reconcile
from ungater.reconcile.context import MissingPods
from ungater.reconcile.granted import Barred
from ungater.reconcile.volume_slots import VolumeSlots
from ungater.reconcile.volume_slots import message_of as of_volumes
from ungater.scheduling import admission_conditions

GOLDEN = Golden("events")
case = GOLDEN.case
NOW, WALL = 1000.0, 1_800_000_000.0
SLOTS = slot_map(("b/r/n1", 2), ("b/r/n2", 2))
FULL = Refused(Reason.DOES_NOT_FIT, "2 pods do not fit one rack: b/r takes 0 and lacks 16 nvidia.com/gpu")


def of(kind, instructions):
    return [one for one in instructions if isinstance(one, kind)]


def told(instructions, type_=PODS_READY):
    """What the Workload is to say by one of its conditions."""
    release = [one for done in of(i.Release, instructions) for one in done.wanted]
    evict = [one for done in of(i.Evict, instructions) for one in done.wanted]
    wanted = [one for done in of(i.WriteConditions, instructions) for one in done.wanted]
    return next(one for one in (*wanted, *release, *evict) if one.type == type_)


def looked_at(record, **rules):
    return reconcile.reconcile(record, context(**rules), NOW, WALL)


def said(type_, message="m", status="True", reason="x"):
    return Condition(
        type=type_, status=status, reason=str(reason), message=message, last_transition_time=timestamp(WALL - 10)
    )


HELD = (said(QUOTA_RESERVED), said(ADMITTED))


def admitted(*pods, owner=None, slots=SLOTS, conditions=HELD, queue="", **more):
    """A workload that holds four slots; ``queue``: the cluster queue that admitted it."""
    owner = owner or make_owner(labels={KEYS.queue_name: "team"} if queue else {})
    more.setdefault("started", True)
    admission = make_admission(slots, queue=queue, count=4)
    observed = make_known(owner, admission=admission, conditions=conditions)
    return make_record(owner, slots=slots, admission=admission, observed=observed, pods=pods, **more)


def service(name="db", pods=4):
    """A StatefulSet."""
    owner = make_owner(name, parallelism=pods)
    return msgspec.structs.replace(owner, kind="StatefulSet", api_version="apps/v1")


def at(name, node="n1", **more):
    return make_pod(name, at=("b", "r", node), node=node, phase="Running", **more)


GOLDEN.section("a workload's life")
LIFE = Life(reserved_at=0.0, admitted_at=0.0, suspended=False, started=True, wanted=4)


def lived(rules=None, **more):
    life = msgspec.structs.replace(LIFE, **more)
    found = next(iter(lifecycle.live_on(life, rules or LifeRules(), 1000.0)))
    return found.wanted[0] if isinstance(found, i.WriteConditions) else found


def check(state, message=""):
    return (Check(name="mine", state=state, message=message),)


PENDING, READY, REJECTED = CheckVerdict.PENDING, CheckVerdict.READY, CheckVerdict.REJECTED


@case
def one_that_waits_for_a_check():
    return lived(admitted_at=None, suspended=True, started=False, checks=check(PENDING))


@case
def one_whose_checks_are_ready():
    return lived(admitted_at=None, suspended=True, started=False, checks=check(READY))


@case
def one_without_checks():
    return lived(admitted_at=None, suspended=True, started=False)


@case
def one_whose_check_refuses():
    return lived(admitted_at=None, suspended=True, started=False, checks=check(REJECTED, "no budget"))


@case
def one_that_is_deactivated():
    return lived(active=False)


@case
def one_that_waits_in_no_queue():
    owner = make_owner(labels={KEYS.queue_name: "team"}, suspend=True)
    return told(looked_at(make_record(owner, observed=make_known(owner, active=False))), QUOTA_RESERVED)


@case
def one_that_is_suspended_by_hand():
    return lived(suspended=True)


@case
def one_whose_pods_are_not_ready_any_more():
    return lived(ready=2, ready_at=10.0)


@case
def one_whose_pods_are_not_ready_in_time():
    return lived(LifeRules(ready_timeout=300.0), ready=2)


@case
def one_that_lost_nodes():
    return lived(LifeRules(replacement=300.0), lost_at=0.0, ready=4, ready_at=1.0)


@case
def one_that_ran_for_long_enough():
    return lived(most_execution=600, ready=4, ready_at=1.0)


@case
def one_that_was_put_back_too_often():
    evicted = Evicted(reason=str(Reason.PODS_READY_TIMEOUT), message="2 of 4 pods were ready after 300 seconds", at=0.0)
    return lived(LifeRules(backoff_limit=3), evicted=evicted, requeues=3, suspended=True)


@case
def one_that_finished():
    done = {"conditions": [{"type": "Complete", "status": "True"}]}
    return told(looked_at(make_record(make_owner(status=done))), FINISHED)


@case
def one_that_was_edited():
    owner = make_owner(labels={KEYS.queue_name: "team"}, suspend=True)
    admission = make_admission(SLOTS, queue="cq")
    observed = make_known(owner, admission=admission, conditions=HELD, copy_of="another")
    record = make_record(owner, slots=SLOTS, admission=admission, observed=observed)
    return told(looked_at(record), QUOTA_RESERVED)


def unadmitted(**more):
    """A Job that is not suspended, and that no queue admitted."""
    return make_record(make_owner(labels={KEYS.queue_name: "team"}, **more))


@case
def one_that_was_resumed_before_it_was_admitted():
    return of(i.Suspend, looked_at(unadmitted()))[0].why


@case
def one_that_was_resumed_while_it_is_on_hold():
    record = unadmitted()
    record.observed = make_known(record.job, active=False)
    return of(i.Suspend, looked_at(record))[0].why


@case
def one_that_ran_before_topogate():
    return of(i.Suspend, looked_at(unadmitted(request={}, gated=False)))[0].why


@case
def one_that_ran_before_topogate_and_whose_queue_does_not_exist():
    missing = "there is no LocalQueue team in namespace ns"
    return of(i.EmitEvent, looked_at(unadmitted(request={}, gated=False), no_queue=lambda _: missing))


@case
def one_whose_workload_is_deleted_often():
    record = make_record(observed=None)
    for at_ in range(8):
        record.writes.note_deleted(NOW - at_ / 10)
    (event,) = of(i.EmitEvent, looked_at(record))
    return event


@case
def one_whose_pods_of_before_still_end():
    owner = make_owner(labels={KEYS.queue_name: "team"}, suspend=True)
    old = at("old", terminating=True)
    return told(looked_at(admitted(old, owner=owner, queue="cq", started=False)))


@case
def one_whose_pods_of_before_still_end_several():
    owner = make_owner(labels={KEYS.queue_name: "team"}, suspend=True)
    old = [at(name, terminating=True) for name in ("old", "other")]
    return told(looked_at(admitted(*old, owner=owner, queue="cq", started=False)))


def returned(reason, **more):
    """A workload whose pods are all gone after an eviction; nothing is held any more."""
    owner = make_owner(labels={KEYS.queue_name: "team"}, suspend=True)
    record = admitted(owner=owner, queue="cq", conditions=(*HELD, said(EVICTED, "it was evicted", reason=reason)))
    record.observed = msgspec.structs.replace(record.observed, **more)
    found = looked_at(record, life=LifeRules(backoff=60.0))
    return next(one for step in of(i.ClearAdmission, found) for one in step.wanted if one.type == REQUEUED)


@case
def one_that_waits_again():
    return returned(Reason.PREEMPTED)


@case
def one_that_comes_back_later():
    return returned(Reason.PODS_READY_TIMEOUT)


@case
def one_that_does_not_come_back():
    return returned(Reason.DEACTIVATED, active=False)


@case
def one_that_is_placed_in_one_domain():
    return messages.admitted(SLOTS, make_pod_set(4, level="rack"))


@case
def one_that_is_spread():
    slots = slot_map(("b/r1/n1", 1), ("b/r2/n2", 3))
    return messages.admitted(slots, make_pod_set(4, level="rack", policy=Policy.PREFERRED))


@case
def one_that_is_admitted_again():
    observed = make_known(make_owner(), conditions=[said(EVICTED, "its nodes were lost")])
    return admission_conditions.admitted_as(observed, "", ())[-1]


@case
def one_whose_pods_are_to_come():
    return admission_conditions.not_ready(make_record())[0]


GOLDEN.section("pods that are not what was admitted")


def barred(pod, *, claims="", asks=None, pod_set="main", refused=None, more=()):
    record = admitted(pod, *more, owner=service(), queue="cq", refused=refused)
    record.observed = msgspec.structs.replace(record.observed, queue="team")
    record.grant = AssumedAdmission("cq", {}, {}, {}, (), {"main": {"cpu": 1000}, "workers": {"cpu": 1000}})
    return record, [Barred(one, pod_set, asks or {}, claims) for one in (pod, *more)]


@case
def a_pod_of_another_queue():
    return granted.message_of(*barred(make_pod("db-1")))


@case
def a_pod_that_asks_for_more():
    return granted.message_of(*barred(make_pod("db-1"), asks={"cpu": 2000}, refused=FULL))


@case
def a_pod_before_others_that_ask_for_more():
    return granted.message_of(*barred(make_pod("db-1"), asks={"cpu": 2000}, pod_set="workers"))


@case
def several_pods_with_claims():
    return granted.message_of(*barred(make_pod("db-1"), claims='resource claim "gpu"', more=[make_pod("db-2")]))


@case
def a_pod_before_others_with_claims():
    return granted.message_of(*barred(make_pod("db-1"), claims='resource claim "gpu"', pod_set="workers"))


@case
def a_workload_whose_pods_ask_for_more():
    record, _ = barred(make_pod("db-1"), asks={"cpu": 2000}, refused=FULL)
    record.asked = {"main": {"cpu": 2000}}
    return granted.anew(record, record.asked, KEYS.gate)[0]


@case
def a_workload_whose_pods_name_another_queue():
    record, bars = barred(make_pod("db-1"))
    record.observed = msgspec.structs.replace(record.observed, queue="other")
    return granted.requeued_conditions(record, bars, KEYS.gate)[0]


@case
def a_workload_whose_pods_have_claims():
    return granted.given_back(*barred(make_pod("db-1"), claims='resource claim "gpu"'), KEYS.gate)[0]


@case
def a_pod_that_differs_from_others():
    pod = make_pod("train-x")
    return as_made.mixed_message(admitted(pod), {pod.metadata.uid})


@case
def pods_that_differ_and_that_nobody_replaces():
    pods = [make_pod(name) for name in ("db-0", "db-1")]
    return as_made.mixed_message(admitted(*pods, owner=service()), {pod.metadata.uid for pod in pods})


@case
def a_pod_that_is_deleted_for_that():
    pod = make_pod("train-x")
    record, mixed = admitted(pod), frozenset({pod.metadata.uid})
    record.see_differing(mixed, 0.0, again=False)
    found = as_made.made_again(record, mixed, context(), NOW)
    return of(i.Delete, found)[0]


@case
def a_pod_that_runs_without_its_slot():
    pod = make_pod("train-x", gated=False, node="n9", phase="Running")
    return next(one for one in of(i.EmitEvent, looked_at(admitted(pod))) if one.reason == Reason.NOT_GATED)


@case
def a_pod_in_a_place_that_is_no_slot_any_more():
    pod = make_pod("train-x", at=("b", "r", "n9"))
    return of(i.Delete, looked_at(admitted(pod)))[0]


@case
def a_pod_of_a_workload_that_lost_its_place():
    pod = make_pod("train-x", at=("b", "r", "n1"))
    return of(i.Delete, looked_at(make_record(pods=[pod])))[0]


@case
def a_pod_of_a_leader_worker_set_that_was_replaced():
    owner = msgspec.structs.replace(make_owner("lws"), kind="LeaderWorkerSet")
    pod = make_pod("lws-0", at=("b", "r", "n1"))
    return next(one for one in of(i.Delete, looked_at(admitted(pod, owner=owner))) if "earlier" in one.message)


@case
def a_pod_on_a_node_that_was_deleted():
    pod = at("train-x")
    return of(i.Delete, looked_at(admitted(pod), missing=lambda _: 0.0))[0]


GOLDEN.section("pods that are missing")


def lacking(*pods, queue="", **more):
    record = admitted(*pods, queue=queue, **more)
    record.came = {}
    missing_pods.note(record, 0.0)
    return record


LIMITS = MissingPods(60.0, 900.0)


@case
def pods_that_never_came():
    return missing_pods.message(lacking(at("a"), queue="cq"), LIMITS)


@case
def pods_that_never_came_without_a_queue():
    return missing_pods.message(lacking(at("a")), LIMITS)


@case
def a_workload_that_is_placed_once_all_its_pods_exist():
    record = make_record(
        observed=make_known(make_owner(), conditions=[said(EVICTED, reason=Reason.PODS_MISSING)]), pods=[make_pod("a")]
    )
    return missing_pods.awaited(record, doubted=0.0, wall=WALL)


@case
def a_workload_of_a_namespace_where_pods_did_not_come():
    return missing_pods.awaited(make_record(pods=[make_pod("a")]), doubted=60.0, wall=WALL)


GOLDEN.section("pods that kube-scheduler or a kubelet refuses")
WORDS = "1 node(s) had a filter that nobody knows"


def refused(pod, **more):
    record = admitted(pod, **more)
    record.unscheduled[pod.metadata.uid] = Unscheduled(0.0, 1.0, WORDS)
    return record, {pod.metadata.uid: pod}


def bare(pod):
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=()))


COMING = make_pod("train-x", at=("b", "r", "n1"))


@case
def a_pod_that_kube_scheduler_refuses():
    return let_go.message_of(*refused(COMING))


@case
def what_becomes_of_it():
    return let_go.consequence(*refused(COMING), moving=True)


@case
def what_becomes_of_it_without_another_place():
    return let_go.consequence(*refused(COMING, refused=FULL), moving=True)


@case
def what_becomes_of_one_without_slots():
    return let_go.consequence(*refused(COMING), moving=False)


@case
def what_becomes_of_one_without_a_controller():
    return let_go.consequence(*refused(bare(COMING)), moving=True)


@case
def a_workload_whose_pods_are_refused_everywhere():
    record, late = refused(COMING, refused=FULL, lost={"main": ((0, 1),)})
    return let_go.evicted(record, late, context(), NOW, moving=True)


@case
def a_workload_whose_pods_are_refused_over_and_over():
    record, late = refused(COMING, refusals=let_go.MOVES + 1)
    return let_go.evicted(record, late, context(), NOW, moving=True)


@case
def a_pod_that_no_scheduler_looks_at():
    return let_go.message_of_ignored([COMING])


@case
def a_pod_with_another_gate():
    return let_go.message_of_ignored([make_pod("train-x", at=("b", "r", "n1"), gates=["example.com/theirs"])])


@case
def a_pod_that_does_not_start():
    pod = at("train-x")
    record = admitted(pod)
    record.unstarted[pod.metadata.uid] = Unstarted(0.0, "n1", lacks="its volumes or devices are not ready there")
    return let_go.message_of_unstarted(record, [pod])


@case
def a_pod_that_its_kubelet_refused():
    mismatch = PlacementMismatch(
        at("train-x"),
        "n1",
        "TopologyAffinityError",
        "the kubelet of n1 refused pod train-x: TopologyAffinityError",
        15.0,
    )
    record = admitted(mismatches={"u": mismatch})
    return told(pods_ready.ready(record))


@case
def pods_without_another_place_than_a_lost_node():
    record = admitted(make_pod("train-x"), refused=FULL)
    return told(looked_at(record, lost=lambda *_: (0,)))


@case
def pods_without_another_place_than_a_node_that_refused_them():
    record = admitted(make_pod("train-x", rank=0), refused=FULL)
    return told(looked_at(record, avoided=lambda *_: frozenset({"n1"})))


@case
def pods_that_do_not_all_have_a_slot():
    record = admitted(*(at(f"train-{name}") for name in "ab"), owner=make_owner(parallelism=6), refused=FULL)
    return told(looked_at(record))


GOLDEN.section("pods that are ready, or wait for their turn")


def waits_for(count, **more):
    record = admitted()
    record.held.update({f"u{at_}": HeldPod("n1", make_shape({"cpu": 1}), 0.0, **more) for at_ in range(count)})
    return told(pods_ready.said(record, NOW))


@case
def a_pod_that_waits_for_its_turn():
    return waits_for(1)


@case
def pods_that_wait_for_the_zones_of_their_devices():
    return waits_for(2, claims=True)


@case
def pods_that_wait_for_devices():
    return waits_for(2, words=device_turns.NONE)


@case
def pods_that_wait_for_devices_of_others():
    return waits_for(2, words=device_turns.LATER)


def is_ready(owner, ready, **more):
    owner = msgspec.structs.replace(owner, ready=ready)
    return told(pods_ready.ready(admitted(owner=owner, **more)))


@case
def all_pods_are_ready():
    return is_ready(make_owner(), 4)


@case
def its_pod_is_ready():
    return is_ready(make_owner(parallelism=1), 1, slots=slot_map(("b/r/n1", 1)))


@case
def one_pod_is_ready_in_other_zones():
    mismatch = PlacementMismatch(at("a"), "n1", "", "other zones")
    return is_ready(make_owner(parallelism=1), 1, slots=slot_map(("b/r/n1", 1)), mismatches={"u": mismatch})


@case
def pods_are_ready_in_other_zones():
    mismatch = PlacementMismatch(at("a"), "n1", "", "other zones")
    return is_ready(make_owner(), 4, mismatches={"u": mismatch})


@case
def some_pods_are_ready():
    return is_ready(make_owner(), 2, conditions=(*HELD, said(PODS_READY)))


def of_slots(count):
    ending = [
        at(f"old-{name}", node, terminating=True) for name, node in zip("abcd", ("n1", "n1", "n2", "n2"), strict=True)
    ]
    return told(looked_at(admitted(*ending, *(make_pod(f"new-{at_}") for at_ in range(count)))))


@case
def a_pod_that_waits_for_the_slot_of_another():
    return of_slots(1)


@case
def pods_that_wait_for_slots_of_others():
    return of_slots(2)


GOLDEN.section("volumes and claims of pods")
WITH_VOLUMES = make_pod("db-0", spec={"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]})


@case
def a_volume_that_is_not_ready():
    return of_volumes(admitted(), [VolumeSlots(((WITH_VOLUMES, 'persistentvolumeclaim "data" not found'),))])


@case
def a_claim_that_is_not_ready():
    return of_volumes(admitted(), [VolumeSlots(((make_pod("db-0"), 'ResourceClaim "mine" has no devices yet'),))])


@case
def volumes_that_reach_other_slots():
    return of_volumes(admitted(), [VolumeSlots(astray=(WITH_VOLUMES,))])


@case
def volumes_for_which_a_place_is_looked_for():
    return of_volumes(admitted(), [VolumeSlots(astray=(WITH_VOLUMES,), moves={0: 1})])


@case
def devices_for_which_there_is_no_place():
    return of_volumes(admitted(refused=FULL), [VolumeSlots(astray=(make_pod("db-0"),), moves={0: 1})])


GOLDEN.section("PodGroups of Kubernetes itself")
RING = {"schedulingGroup": {"podGroupName": "ring"}}


def in_ring(*pods, held_up=None, ready=300.0):
    record = admitted(*pods, owner=make_owner(parallelism=6), held_up_since=held_up)
    life = LifeRules(replacement=ready)
    return looked_at(record, life=life, in_group=lambda _: list(record.pods.values()))


@case
def new_pods_that_wait_for_one_that_ends():
    pods = (at("old", spec=RING, terminating=True), make_pod("new", spec=RING))
    return next(one for one in of(i.EmitEvent, in_ring(*pods)) if one.reason == Reason.POD_GROUP_HELD)


@case
def pods_that_are_held_up_by_one_without_a_place():
    pods = [make_pod(name, spec=RING) for name in "abcde"]
    return told(in_ring(*pods, held_up=0.0), EVICTED)

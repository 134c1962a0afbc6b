"""A workload that is moved: who is evicted, who waits for whom, and when it is over."""

import msgspec
from support.owned import KEYS, context, make_known, make_owner, make_pod, make_record, slot_map

from engine.reasons import Reason
from kube.objects import Condition
from ungater.model import actions as i
from ungater.model.conditions import MOVING
from ungater.reconcile import missing_pods, moves
from ungater.reconcile.reconcile import reconcile

RULES = context()
NOW = 1000.0


def moving(status="True"):
    return Condition(type=MOVING, status=status, reason="PullTogether", message="it comes together")


UNDER_WAY = moving()
REALIGNED = Condition(type=MOVING, status="True", reason="Realign", message="pod go lacks what it asks for")


def workload(slots, *pods, conditions=(UNDER_WAY,)):
    owner = make_owner(parallelism=slots.total)
    return make_record(owner, slots=slots, observed=make_known(owner, slots=slots, conditions=conditions), pods=pods)


def at(name, rack, node, **more):
    return make_pod(name, at=("b", rack, node), node=node, phase="Running", **more)


def run(record, rules=RULES):
    return reconcile(record, rules, NOW)


def of(kind, instructions):
    return [found for found in instructions if isinstance(found, kind)]


def ends(instructions):
    return [
        (one.status, one.reason) for w in of(i.WriteConditions, instructions) for one in w.wanted if one.type == MOVING
    ]


def test_pods_in_old_places_are_evicted_and_never_deleted():
    slots = slot_map(("b/r1/n1", 2), ("b/r1/n2", 2))
    stay, go = at("stay", "r1", "n1"), at("go", "r2", "n3")
    found = run(workload(slots, stay, go))
    (evict,) = of(i.EvictMoved, found)
    assert [pod.metadata.name for pod, _ in evict.pods] == ["go"]
    assert "it comes together" in evict.pods[0][1]
    assert of(i.Delete, found) == []
    assert ends(found) == []


def test_pods_of_a_job_go_at_once_and_those_of_a_service_when_the_last_successor_is_ready():
    slots = slot_map(("b/r1/n1", 3))
    pods = [at(f"go-{number}", "r2", "n3") for number in range(3)]
    (evict,) = of(i.EvictMoved, run(workload(slots, *pods)))
    assert (len(evict.pods), evict.one) == (3, False)
    service = [of_a_service(pod) for pod in pods]
    (evict,) = of(i.EvictMoved, run(ready(workload(slots, *service), 3)))
    assert evict.one
    assert of(i.EvictMoved, run(ready(workload(slots, *service[1:]), 2))) == [], "one is not there yet"
    going = of_a_service(at("go-0", "r2", "n3", terminating=True))
    assert of(i.EvictMoved, run(ready(workload(slots, going, *service[1:]), 3))) == [], "one ends yet"


def test_what_takes_too_long_is_told_each_time_so_that_it_has_an_end():
    slots = slot_map(("b/r1/n1", 2))
    one, other = (of_a_service(at(name, "r2", "n3")) for name in ("one", "other"))
    (late,) = of(i.GiveUpMove, run(ready(workload(slots, one, other), 1)))
    assert ([pod.metadata.name for pod in late.pods], late.ending) == (["one", "other"], ())
    ends_late = of_a_service(at("one", "r2", "n3", terminating=True))
    (late,) = of(i.GiveUpMove, run(ready(workload(slots, ends_late, other), 1)))
    assert [[pod.metadata.name for pod in pods] for pods in (late.pods, late.ending)] == [["other"], ["one"]]
    (late,) = of(i.GiveUpMove, run(workload(slots, at("one", "r2", "n3", terminating=True), at("two", "r1", "n1"))))
    assert ([pod.metadata.name for pod in late.ending], late.pods) == (["one"], ())
    crowd = [at(name, "r1", "n1", terminating=name == "c") for name in "abc"]
    (late,) = of(i.GiveUpMove, run(workload(slots, *crowd)))
    assert [pod.metadata.name for pod in late.ending] == ["c"]
    assert of(i.GiveUpMove, run(ready(workload(slots, one, other), 2))) == []


def test_none_goes_after_one_whose_successor_names_another_queue():
    slots = slot_map(("b/r1/n1", 3))
    made = ready(workload(slots, *(of_a_service(at(name, "r2", "n3")) for name in ("one", "other"))), 2)
    made.bar_pods({"main": 1})
    found = run(made)
    assert of(i.EvictMoved, found) == [], "its successor would be barred too, and the service lose one after the other"
    (late,) = of(i.GiveUpMove, found)
    assert [pod.metadata.name for pod in late.pods] == ["one", "other"]


def of_a_service(pod, kind="StatefulSet"):
    refs = tuple(
        msgspec.structs.replace(one, kind=kind, api_version="apps/v1") for one in pod.metadata.owner_references
    )
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=refs))


def ready(record, count):
    record.set_view(record.job, msgspec.structs.replace(record.job, ready=count))
    return record


# --- of a ReplicaSet, which makes a successor while the old pod ends, and does not tell how many it wants -----------


def service(slots, *pods, conditions=(REALIGNED,), **more):
    """A ReplicaSet as its pods tell it: as many as there are, those that end included."""
    made = make_owner(parallelism=len(pods))
    own = msgspec.structs.replace(made, kind="ReplicaSet", api_version="apps/v1", open_ended=True, ready=len(pods))
    observed = make_known(own, slots=slots, count=slots.total, conditions=conditions)
    record = make_record(own, slots=slots, observed=observed, pods=pods, **more)
    record.set_view(own, own)
    return record


def looked_at(record, now=NOW):
    """What a look does before it decides."""
    record.set_view(record.own, moves.one_for_one(record, record.own, KEYS.workload, now))
    missing_pods.note(record, now)
    return record


def changes(instructions):
    return of((i.Enqueue, i.UpdateSpec, i.Shrink, i.ShrinkLater, i.Release), instructions)


def of_replica_set(*args, **more):
    return of_a_service(at(*args, **more), "ReplicaSet")


SERVICE_SLOTS = slot_map(("b/r1/n1", 1), ("b/r1/n2", 1))


def test_a_pod_that_ends_does_not_count_beside_its_successor():
    stay, going = of_replica_set("stay", "r1", "n1"), of_replica_set("going", "r2", "n3", terminating=True)
    new = make_pod("new")
    record = looked_at(service(SERVICE_SLOTS, stay, going, new))
    assert (record.job.count, record.growing) == (2, {})
    found = run(record)
    assert changes(found) == [], "it is no growth"
    assert of(i.Ungate, found) == [], "it waits until the other is gone"
    (sent,) = of(i.Ungate, run(looked_at(service(SERVICE_SLOTS, stay, new))))
    assert (sent.pod.metadata.name, SERVICE_SLOTS.slots[sent.index].node) == ("new", "n2")


def test_a_pod_that_ends_counts_where_nothing_is_moved():
    stay, going = of_replica_set("stay", "r1", "n1"), of_replica_set("going", "r1", "n2", terminating=True)
    for conditions in ((), (moving("False"),)):
        record = looked_at(service(SERVICE_SLOTS, stay, going, make_pod("new"), conditions=conditions))
        assert record.job.count == 3


def test_the_place_of_a_successor_that_is_not_there_yet_is_kept_for_it_after_a_restart_too():
    stay, going = of_replica_set("stay", "r1", "n1"), of_replica_set("going", "r2", "n3", terminating=True)
    for pods in ((stay, going), (stay,)):
        record = looked_at(service(SERVICE_SLOTS, *pods))
        assert (record.job.count, changes(run(record))) == (2, [])
        assert ends(run(record)) == []


def test_a_stateful_set_that_does_not_tell_how_many_pods_it_has_keeps_the_place_of_one_that_went():
    stay, going = of_replica_set("stay", "r1", "n1"), of_replica_set("going", "r2", "n3", terminating=True)
    for pods in ((stay, going), (stay,)):
        record = service(SERVICE_SLOTS, *pods)
        record.set_view(record.own, own := msgspec.structs.replace(record.own, kind="StatefulSet"))
        record.set_view(own, own)
        assert (looked_at(record).job.count, changes(run(record))) == (2, [])


def test_pods_of_a_replica_set_go_one_at_a_time():
    pods = [of_replica_set(f"go-{number}", "r2", "n3") for number in range(2)]
    (evict,) = of(i.EvictMoved, run(looked_at(service(SERVICE_SLOTS, *pods))))
    assert (evict.one, len(evict.pods)) == (True, 2)
    gone = looked_at(service(SERVICE_SLOTS, pods[1]))
    assert of(i.EvictMoved, run(gone)) == [], "the successor of the first is not there yet"
    there = of_replica_set("new", "r1", "n1")
    (evict,) = of(i.EvictMoved, run(looked_at(service(SERVICE_SLOTS, there, pods[1]))))
    assert [pod.metadata.name for pod, _ in evict.pods] == ["go-1"]


def test_a_replica_set_that_is_made_smaller_meanwhile_gives_the_place_back_and_is_moved_no_more():
    record = service(SERVICE_SLOTS, of_replica_set("stay", "r1", "n1"))
    looked_at(record)
    looked_at(record, NOW + moves.AWAITED - 1.0)
    assert record.job.count == 2
    looked_at(record, now := NOW + moves.AWAITED)
    assert record.job.count == 1
    record.shrink(now)
    (smaller,) = of(i.Shrink, reconcile(record, RULES, now))
    assert [slot.node for slot in smaller.slots.slots] == ["n1"]
    assert ends(reconcile(record, RULES, now)) == [(False, Reason.MOVED)]


def test_a_replica_set_that_is_made_larger_meanwhile_asks_for_more():
    stay, going = of_replica_set("stay", "r1", "n1"), of_replica_set("going", "r2", "n3", terminating=True)
    record = looked_at(service(SERVICE_SLOTS, stay, going, make_pod("new"), make_pod("more")))
    assert record.growing == {"main": 3}
    assert of(i.Enqueue, run(record)) != []


def test_one_of_a_replica_set_that_is_on_its_way_out_or_holds_nothing_counts_what_is_there():
    going = of_replica_set("going", "r2", "n3", terminating=True)
    record = service(SERVICE_SLOTS, going, make_pod("new"))
    record.clear_holding()
    assert looked_at(record).job.count == 1
    over = msgspec.structs.replace(record.own, over="Gone")
    assert moves.one_for_one(record, over, KEYS.workload, NOW) is over


def test_without_a_move_a_pod_in_no_slot_is_deleted():
    slots = slot_map(("b/r1/n1", 2), ("b/r1/n2", 2))
    for conditions in ((), (moving("False"),)):
        found = run(workload(slots, at("go", "r2", "n3"), conditions=conditions))
        assert [one.pod.metadata.name for one in of(i.Delete, found)] == ["go"]
        assert of(i.EvictMoved, found) == []


def test_one_that_is_on_no_node_yet_is_deleted():
    slots = slot_map(("b/r1/n1", 2))
    found = run(workload(slots, make_pod("late", at=("b", "r2", "n3"))))
    assert [one.pod.metadata.name for one in of(i.Delete, found)] == ["late"]
    assert of(i.EvictMoved, found) == []


def test_a_pod_that_is_still_there_keeps_a_place_from_its_successor():
    slots = slot_map(("b/r1/n1", 2))
    old, stay, new = at("old", "r2", "n3"), at("stay", "r1", "n1"), make_pod("new")
    assert of(i.Ungate, run(workload(slots, old, stay, new))) == []
    going = at("old", "r2", "n3", terminating=True)
    assert of(i.Ungate, run(workload(slots, going, stay, new))) == []
    (sent,) = of(i.Ungate, run(workload(slots, stay, new)))
    assert sent.pod.metadata.name == "new"


def test_of_a_slice_that_has_fewer_places_those_go_whose_wishes_are_not_kept():
    slots = slot_map(("b/r1/n1", 1), ("b/r1/n2", 1))
    bad, good = at("a-bad", "r1", "n1"), at("z-good", "r1", "n1")
    rules = context(unkept=lambda _: {bad.metadata.uid: "spread"})
    (evict,) = of(i.EvictMoved, run(workload(slots, bad, good), rules))
    assert [pod.metadata.name for pod, _ in evict.pods] == ["a-bad"]
    new, going = make_pod("new"), at("a-bad", "r1", "n1", terminating=True)
    found = run(workload(slots, going, good, new), rules)
    assert of(i.EvictMoved, found) == [], "the one that goes already is the one"
    assert of(i.Ungate, found) == [], "three pods would run where two were admitted"
    assert ends(found) == []


def test_it_is_over_when_nobody_is_anywhere_else():
    slots = slot_map(("b/r1/n1", 2))
    stay, new = at("stay", "r1", "n1"), at("new", "r1", "n1")
    assert ends(run(ready(workload(slots, stay, at("old", "r2", "n3", terminating=True)), 2))) == []
    assert ends(run(ready(workload(slots, stay, new), 2))) == [(False, Reason.MOVED)]
    assert ends(run(ready(workload(slots, stay, new, conditions=()), 2))) == []


def test_it_is_not_over_before_all_its_pods_are_up():
    slots = slot_map(("b/r1/n1", 2))
    stay, new = at("stay", "r1", "n1"), at("new", "r1", "n1")
    assert ends(run(ready(workload(slots, stay, new), 1))) == [], "one is not ready"
    assert ends(run(ready(workload(slots, stay), 1))) == [], "one is not made yet"
    assert ends(run(ready(workload(slots, stay, make_pod("new")), 2))) == [], "one is gated; who counts is late"
    assert ends(run(ready(workload(slots, stay, make_pod("new", at=("b", "r1", "n1"))), 2))) == [], "on no node yet"


def test_one_whose_workload_is_written_again_is_moved_on_so_that_budgets_hold():
    slots = slot_map(("b/r1/n1", 2))
    there, elsewhere = at("there", "r1", "n1"), at("elsewhere", "r2", "n3")
    (told,) = moves.moving_conditions(record := workload(slots, there, elsewhere), KEYS.workload)
    assert (told.type, told.status, told.reason) == (MOVING, True, Reason.SLOT_MOVED)
    record.set_view(record.job, msgspec.structs.replace(record.job, open_ended=True))
    assert moves.moving_conditions(record, KEYS.workload) == ()
    assert moves.moving_conditions(workload(slots, there), KEYS.workload) == ()


def test_pods_that_run_in_no_slot_are_told_from_others():
    slots = slot_map(("b/r1/n1", 2))
    there, elsewhere = at("there", "r1", "n1"), at("elsewhere", "r2", "n3")
    assert not moves.astray(workload(slots, there, make_pod("gated")), KEYS.workload)
    assert moves.astray(workload(slots, there, elsewhere), KEYS.workload)
    assert moves.astray(workload(slots, *(at(f"many-{number}", "r1", "n1") for number in range(3))), KEYS.workload)
    assert not moves.astray(workload(slots, at("theirs", "r2", "n3", marked=False)), KEYS.workload)
    done = make_pod("done", at=("b", "r2", "n3"), node="n3", phase="Failed")
    assert not moves.astray(workload(slots, done), KEYS.workload)


def test_one_that_holds_nothing_any_more_is_not_moved():
    owner = make_owner()
    record = make_record(owner, observed=make_known(owner, conditions=(moving(),)))
    assert ends(run(record)) == [(False, Reason.EVICTED)], "it counts as a move"

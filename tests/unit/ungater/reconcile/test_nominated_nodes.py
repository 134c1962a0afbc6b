"""For which pods behind the gate kube-scheduler keeps room, and when that is written, changed and taken away.

Versions and behaviour of kube-scheduler are those of `ungater.reconcile.nominated_nodes`.
"""

from types import SimpleNamespace

import msgspec
import pytest
from support.owned import KEYS, context, make_admission, make_known, make_owner, make_pod, make_record, slot_map

from engine.claims.asks import DeviceAsk
from kube.objects import Condition, PodClaimStatus
from ungater.model import actions as i
from ungater.model.conditions import ADMITTED, EVICTED, QUOTA_RESERVED, timestamp
from ungater.model.nominated_node import AT_ONCE, FIRST_PAUSE, LONGEST_PAUSE, NominatedNode
from ungater.model.pod_slots import Expectation, PodSetSlots, Slot, assign
from ungater.reconcile.nominated_nodes import due_now
from ungater.reconcile.reconcile import reconcile

SLOTS = slot_map(("b/r/n1", 1), ("b/r/n2", 1))
WALL, NOW = 1_800_000_000.0, 100.0
RING = {"schedulingGroup": {"podGroupName": "ring"}}
replace = msgspec.structs.replace


def said(type_, status="True"):
    return Condition(type=type_, status=status, reason="x", message="m", last_transition_time=timestamp(WALL - 10))


def nominated(pod, node):
    return replace(pod, status=replace(pod.status, nominated_node_name=node))


def world(*pods, slots=SLOTS, conditions=(QUOTA_RESERVED, ADMITTED), queue="", spec=None, **more):
    owner = make_owner(parallelism=2, spec=spec, labels={KEYS.queue_name: queue} if queue else {})
    admission = make_admission(slots, queue="cq" if queue else "")
    observed = make_known(owner, admission=admission, conditions=[*map(said, conditions)])
    return make_record(owner, slots=slots, admission=admission, observed=observed, pods=pods, **more)


def look(entry, now=NOW, strangers=(), **more):
    def in_group(group):
        there = (*entry.pods.values(), *strangers)
        return [pod for pod in there if f"{pod.metadata.namespace}/{pod.spec.pod_group}" == group]

    return reconcile(entry, context(in_group=in_group, **{"nominates": True, **more}), now, WALL)


def asked(found):
    return [(one.pod.metadata.name, one.node) for one in found if isinstance(one, i.NominateNode)]


def going(found):
    return [one.pod.metadata.name for one in found if isinstance(one, i.Ungate)]


def gated(name, **more):
    return make_pod(name, **more)


def held_up(*, a="", b=""):
    """Both have a slot, and wait for a pod of their PodGroup that has none."""
    pods = [nominated(gated(name, spec=RING), node) for name, node in (("a", a), ("b", b))]
    return world(*pods), [gated("stranger", spec=RING)]


def test_pods_that_go_at_this_look_cost_no_call():
    found = look(world(gated("a"), gated("b")))
    assert going(found) == ["a", "b"]
    assert asked(found) == []


def test_room_is_kept_for_pods_that_wait_for_others_of_their_pod_group():
    entry, strangers = held_up()
    found = look(entry, strangers=strangers)
    assert going(found) == []
    assert asked(found) == [("a", "n1"), ("b", "n2")]
    assert asked(look(entry, strangers=strangers, nominates=False)) == [], "as long as nobody asks for it: the default"


def test_what_pods_say_already_is_not_written_again_nor_is_what_was_sent():
    entry, strangers = held_up(a="n1")
    entry.nominated["uid-b"] = NominatedNode("n2", NOW + 5)
    found = look(entry, strangers=strangers)
    assert asked(found) == []
    assert min(one.after for one in found if isinstance(one, i.RequeueAfter)) == 5


def test_what_kube_scheduler_took_away_is_written_again_after_a_while():
    """It does so where a pod of a higher priority has others evicted there (1.36 and 1.37: `prepareCandidate`)."""
    entry, strangers = held_up(b="n2")
    entry.nominated["uid-a"] = NominatedNode("n1", NOW + 10)
    assert asked(look(entry, NOW + 9, strangers)) == []
    assert asked(look(entry, NOW + 10, strangers)) == [("a", "n1")]


def test_each_time_it_waits_for_longer():
    sent, pauses = None, []
    for _ in range(9):
        sent = NominatedNode.after(sent, "n1", NOW)
        pauses.append(sent.again - NOW)
    assert pauses[:4] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE, 8 * FIRST_PAUSE]
    assert pauses[-1] == LONGEST_PAUSE


@pytest.mark.parametrize("attempts", [1, AT_ONCE + 5])
def test_room_that_a_pod_does_not_get_is_free_at_once(attempts):
    """Where its slot moved, another may have the old one; the new one is kept soon."""
    entry = world(pod := nominated(gated("a"), "n1"))
    entry.nominated["uid-a"] = NominatedNode("n1", NOW + 60, attempts)
    found, again = due_now(entry, pod, "n2", NOW)
    assert asked(found) == [("a", "n2" if attempts < AT_ONCE else "")]
    assert list(again) == ([] if attempts < AT_ONCE else [60])


@pytest.mark.parametrize(
    "entry",
    [
        world(nominated(gated("a"), "n1"), conditions=(QUOTA_RESERVED, ADMITTED, EVICTED)),
        world(nominated(gated("a", terminating=True), "n1")),
        make_record(make_owner(parallelism=2), pods=[nominated(gated("a"), "n1")]),
    ],
    ids=["is evicted", "ends, and a finalizer may keep it", "has no place"],
)
def test_no_room_is_kept_for_a_pod_that(entry):
    assert asked(look(entry)) == [("a", "")]


def test_no_room_is_kept_on_a_node_that_is_lost():
    entry = world(nominated(gated("a"), "n1"), nominated(gated("b"), "n2"))
    found = look(entry, lost=lambda *_: (0,))
    assert (going(found), asked(found)) == (["b"], [("a", "")])


def test_a_pod_that_asks_for_more_than_was_admitted_keeps_no_room():
    """kube-scheduler would keep as much as it asks for."""
    found = look(world(gated("a", spec=RING), gated("b", spec=RING)), charged=lambda *_: {"cpu": 10**9})
    assert asked(found) == []


def test_a_pod_that_another_gate_holds_keeps_no_room():
    """It would be gated once ours is gone, and kube-scheduler keeps the room as long as it is there."""
    entry = world(gated("a", spec=RING, gates=("example.com/other",)), gated("b", spec=RING))
    assert asked(look(entry, strangers=[gated("stranger", spec=RING)])) == [("b", "n2")]


def test_a_slot_of_a_wider_domain_has_no_node_to_be_kept():
    wide = PodSetSlots(("block", "rack"), (Slot(("b", "r"), 2),), "gpu")
    entry = world(gated("a", spec=RING), gated("b", spec=RING), slots=wide)
    assert asked(look(entry, strangers=[gated("stranger", spec=RING)])) == []


def test_a_pod_that_was_sent_on_its_way_is_left_to_kube_scheduler():
    entry = world(nominated(gated("a"), "n1"))
    entry.expectations["uid-a"] = Expectation(("b", "r", "n2"), NOW + 30)
    assert asked(look(entry)) == []


def test_a_pod_that_goes_elsewhere_leaves_the_room_that_was_kept_before():
    slots = slot_map(("b/r/n2", 1), ("b/r/n3", 1))
    entry = world(nominated(gated("a"), "n1"), nominated(gated("b"), "n3"), slots=slots)
    found = look(entry)
    assert going(found) == ["b", "a"]
    assert asked(found) == [("a", "")]
    assert [type(one) for one in found[:2]] == [i.NominateNode, i.Ungate], "first: others wait for that room"


def test_room_is_kept_while_the_claims_of_a_pod_are_made():
    """They are made of templates while it is gated (1.36 and 1.37); where a queue pays for them, it waits for that."""
    devices = DeviceAsk("", ())
    claims = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}]}
    made = gated("b", spec=claims)
    made = replace(made, status=replace(made.status, resource_claim_statuses=(PodClaimStatus(name="gpu"),)))
    entry = world(gated("a", spec=claims), made, queue="team", spec=claims)
    entry.grant = SimpleNamespace(asks={}, assignments=[SimpleNamespace(pod_set="main", devices=devices)])
    found = look(entry, devices=lambda *_: devices)
    assert going(found) == ["b"]
    assert asked(found) == [("a", "n1")]


@pytest.mark.parametrize("nominates", [True, False])
def test_room_is_kept_while_admission_checks_are_pending(nominates):
    entry = world(gated("a"), gated("b"), conditions=(QUOTA_RESERVED,), queue="team")
    job = msgspec.structs.replace(entry.job, kind="StatefulSet", api_version="apps/v1", suspended=False)
    entry.set_view(job, job)
    found = look(entry, checks=lambda _entry: ("budget",), nominates=nominates)
    assert going(found) == []
    assert asked(found) == ([("a", "n1"), ("b", "n2")] if nominates else [])


def test_pods_without_a_rank_keep_the_slots_that_are_kept_for_them():
    """Else one that comes later, with a name before theirs, would have all others change places, each with a call."""
    slots = slot_map(("b/r/n1", 1), ("b/r/n2", 1), ("b/r/n3", 1))
    pods = [gated("a"), nominated(gated("b"), "n1"), nominated(gated("c"), "n2")]
    placed = assign(pods, [1, 1, 1], slots, lambda rank: rank)
    assert sorted((pod.metadata.name, index) for pod, index in placed) == [("a", 2), ("b", 0), ("c", 1)]
    gone = assign([nominated(gated("b"), "n9"), gated("a")], [0, 1, 1], slots, lambda rank: rank)
    assert [(pod.metadata.name, index) for pod, index in gone] == [("a", 1), ("b", 2)]

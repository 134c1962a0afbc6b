"""Victims that are no whole workload: which plain pods may go, and how a gang loses slices."""

import pytest
from msgspec import convert
from support.owned import KEYS, context, make_admission, make_known, make_owner, make_pod, make_record, slot_map

from kube.objects import Pod
from ungater.model import actions as i
from ungater.model.pod_slots import Expectation
from ungater.reconcile.context import Losing
from ungater.reconcile.partial_eviction import lost, may_be_evicted, outside

SLOTS = slot_map(("b/r1/n1", 1), ("b/r1/n2", 1), ("b/r2/n3", 2))
RULES = context()
LOSING = Losing((("b", "r1"),), "for x")


def owned(kind):
    return [{"apiVersion": "v1", "kind": kind, "name": "o", "uid": "u", "controller": True}]


@pytest.mark.parametrize(
    ("meta", "may"),
    [
        ({}, True),
        ({"ownerReferences": owned("ReplicaSet")}, True),
        ({"ownerReferences": owned("DaemonSet")}, False),
        ({"ownerReferences": owned("Node")}, False),
        ({"annotations": {"kubernetes.io/config.mirror": "x"}}, False),
        ({"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}}, False),
        ({"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}}, True),
        ({"labels": {"kueue.x-k8s.io/podset": "main"}}, False),
        ({"labels": {"team.example.com/queue": "a"}}, True),
    ],
)
def test_which_plain_pods_may_make_room(meta, may):
    pod = convert({"metadata": {"name": "p", "namespace": "ns", "uid": "1", **meta}}, Pod)
    assert may_be_evicted(pod, KEYS) is may


def test_a_plain_pod_as_queueing_takes_it():
    found = outside(make_pod("p", at=("b", "r1", "n1"), node="n1"))
    assert (found.key.partition("/")[2], found.node, found.priority) == ("p", "n1", 0)


def gang(*pods):
    owner = make_owner(labels={KEYS.queue_name: "team"})
    admission = make_admission(SLOTS, queue="cq")
    return make_record(
        owner, slots=SLOTS, admission=admission, observed=make_known(owner, admission=admission), pods=pods
    )


def at(name, rack, node, **more):
    return make_pod(name, at=("b", rack, node), node=node, phase="Running", **more)


def test_the_pods_of_lost_slices_go_first_and_then_the_slots():
    one, two, other = at("p1", "r1", "n1"), at("p2", "r1", "n2"), at("p3", "r2", "n3")
    (evict, again) = lost(gang(other, two, one), LOSING, RULES, 1.0)
    assert evict == i.EvictSome(((one, "for x"), (two, "for x")))
    assert isinstance(again, i.RequeueAfter)
    (evict, _) = lost(gang(other, two), LOSING, RULES, 1.0)
    assert evict == i.EvictSome(((two, "for x"),))
    (shrink,) = lost(gang(other), LOSING, RULES, 1.0)
    assert isinstance(shrink, i.Shrink)
    assert shrink.count == 2
    assert [slot.values for slot in shrink.slots.slots] == [("b", "r2", "n3")]


def test_a_pod_on_its_way_to_such_a_slot_is_waited_for():
    pod = make_pod("p1", gated=True)
    record = gang(pod)
    record.expectations[pod.metadata.uid] = Expectation(("b", "r1", "n1"), deadline=9.0)
    (evict, _) = lost(record, LOSING, RULES, 1.0)
    assert evict == i.EvictSome(())

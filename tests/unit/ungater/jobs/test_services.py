"""StatefulSets and ReplicaSets whose pods require a domain: how many there will be is read where it is known.

Facts of Kubernetes 1.37: a StatefulSet of podManagementPolicy OrderedReady (the default) makes a pod once the one
before it is ready. In a rollout the Deployment's newest ReplicaSet has as many ``spec.replicas`` as ``maxSurge`` and
``maxUnavailable`` let it have now, and ``deployment.kubernetes.io/desired-replicas`` as it is to have in the end.
"""

from collections import Counter

import msgspec
import pytest
from support.cases import objects, of_kind
from support.looked_at import LookedAt
from support.owned import KEYS

from clock import SYSTEM, Clock
from kube.informer import Event, EventKind
from kube.objects import Node, Pod, ResourceFlavor
from kube.replicas import DESIRED, REVISION, Service, replicas_of_service
from kube.resources import REPLICA_SETS, STATEFUL_SETS
from ungater.reconcile.life_seen import read_life

CASE = "statefulset-ordered-required"


def read(body, kind):
    return msgspec.json.decode(msgspec.json.encode(body), type=kind)


class Served(LookedAt):
    """The racks of the case: r1 has one node, r2 has four; services come and go, and make pods."""

    def __init__(self, sizes=None):
        self.seconds = 0.0
        self.services = {}
        super().__init__()
        self.reads = True
        for body in of_kind(CASE, "objects.json", "ResourceFlavor"):
            self.put("flavor", read(body, ResourceFlavor))
        nodes = of_kind(CASE, "objects.json", "Node")
        template = nodes[0]
        if sizes is not None:
            nodes = [self._copy(template, rack, at) for rack, size in sizes.items() for at in range(size)]
        for body in nodes:
            self.put("node", read(body, Node))

    @staticmethod
    def _copy(body, rack, at):
        name = f"{rack}-{at}"
        labels = body["metadata"]["labels"] | {"example.net/rack": rack, "kubernetes.io/hostname": name}
        return {**body, "metadata": {**body["metadata"], "name": name, "labels": labels}}

    def make(self):
        return super().make(clock=Clock(SYSTEM.now, lambda: self.seconds))

    def see(self, kind, body):
        one = read(body, Service)
        old = self.services.get(one.metadata.name)
        self.services[one.metadata.name] = one
        event = Event(EventKind.MODIFIED if old else EventKind.ADDED, f"ns/{one.metadata.name}", old, one)
        self.memory.pod_groups.on_replicated(kind, event)
        self.settle()

    def pod(self, kind, owner, name, template, **labels):
        reference = {"apiVersion": "apps/v1", "kind": kind.kind, "name": owner, "uid": f"u-{owner}", "controller": True}
        made = template["metadata"]
        meta = {"name": name, "namespace": "ns", "uid": f"u-{name}", "ownerReferences": [reference]}
        meta |= {"annotations": made["annotations"], "labels": made.get("labels", {}) | labels}
        spec = template["spec"] | {"schedulingGates": [{"name": KEYS.gate}]}
        body = {"metadata": meta | {"creationTimestamp": "2026-11-21T00:00:00Z"}, "spec": spec, "status": {}}
        self.put("pod", read(body, Pod))
        self.settle()

    def racks(self, record):
        found = Counter()
        for slot in record.slots.slots if record.slots else ():
            found[slot.values[1]] += slot.count
        return dict(found)


def stateful(**spec):
    (body,) = objects(CASE, "job.json")
    return {**body, "metadata": {"name": "db", "namespace": "ns", "uid": "u-db"}, "spec": {**body["spec"], **spec}}


def ordered(world, **spec):
    """The first pod of the case's StatefulSet, as its controller makes it."""
    body = stateful(**spec)
    world.see(STATEFUL_SETS, body)
    start = spec.get("ordinals", {}).get("start", 0)
    template = body["spec"]["template"]
    world.pod(STATEFUL_SETS, "db", f"db-{start}", template, **{"apps.kubernetes.io/pod-index": str(start)})
    return template


def test_the_first_pod_of_an_ordered_stateful_set_goes_where_all_of_them_will_fit():
    world = Served()
    template = ordered(world)
    (record,) = world.memory.entries.values()
    assert world.racks(record) == {"r2": 4}
    assert world.let_go(record) == ["db-0"]
    for at in range(1, 4):
        world.pod(STATEFUL_SETS, "db", f"db-{at}", template, **{"apps.kubernetes.io/pod-index": str(at)})
        assert world.let_go(record) == [f"db-{at}"]


def test_pods_that_come_once_others_are_ready_are_not_waited_for_to_be_ready():
    world = Served()
    ordered(world)
    (record,) = world.memory.entries.values()
    record.set_view(record.own, msgspec.structs.replace(record.job, queue="q"))
    assert read_life(record, world.memory.rules).wanted == 1


def test_numbers_that_do_not_start_at_zero_are_ranks_from_the_first_on():
    world = Served()
    ordered(world, ordinals={"start": 5})
    (record,) = world.memory.entries.values()
    (pod,) = record.pods.values()
    (pod_set,) = record.job.pod_sets
    assert pod_set.position(pod_set.rank_of_pod(pod)) == 0


def test_pods_wait_a_moment_for_their_stateful_set_to_be_seen():
    world = Served()
    body = stateful()
    world.pod(STATEFUL_SETS, "db", "db-0", body["spec"]["template"])
    assert not world.memory.entries
    world.see(STATEFUL_SETS, body)
    (record,) = world.memory.entries.values()
    assert record.job.count == 4


def test_pods_of_a_stateful_set_that_nobody_sees_count_for_themselves():
    world = Served()
    world.pod(STATEFUL_SETS, "db", "db-0", stateful()["spec"]["template"])
    world.seconds = 60.0
    world.memory.pod_groups.judge_unseen()
    (record,) = world.memory.entries.values()
    assert record.job.count == 1


def test_pods_that_only_prefer_a_domain_go_one_by_one():
    world = Served()
    body = stateful()
    body["spec"]["template"]["metadata"]["annotations"] = {KEYS.preferred[0]: "example.net/rack"}
    world.see(STATEFUL_SETS, body)
    world.pod(STATEFUL_SETS, "db", "db-0", body["spec"]["template"])
    (record,) = world.memory.entries.values()
    assert (record.job.count, record.job.open_ended) == (1, True)


def test_a_total_that_the_pods_tell_counts_before_what_their_owner_tells():
    world = Served()
    body = stateful()
    body["spec"]["template"]["metadata"]["annotations"][KEYS.pod_group_total] = "2"
    world.see(STATEFUL_SETS, body)
    world.pod(STATEFUL_SETS, "db", "db-0", body["spec"]["template"])
    (record,) = world.memory.entries.values()
    assert (record.job.count, record.job.one_by_one) == (2, False)


@pytest.mark.parametrize("replicas", [2, 0])
def test_a_stateful_set_that_is_made_smaller_asks_for_less(replicas):
    world = Served()
    ordered(world)
    (record,) = world.memory.entries.values()
    world.see(STATEFUL_SETS, stateful(replicas=replicas))
    assert record.job.count == max(replicas, 1)  # of one that is to have none, pods count as long as they are there


def test_all_of_a_stateful_set_wait_where_no_domain_has_room_for_it():
    world = Served({"r1": 1, "r2": 3})
    ordered(world)
    (record,) = world.memory.entries.values()
    assert record.admission is None
    assert world.gated() == ["db-0"]


def revision(name, number, replicas, desired):
    (body,) = objects(CASE, "job.json")
    notes = {REVISION: str(number), DESIRED: str(desired)}
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "u-web", "controller": True}
    meta = {"name": name, "namespace": "ns", "uid": f"u-{name}", "annotations": notes, "ownerReferences": [reference]}
    return {"metadata": meta, "spec": {"replicas": replicas, "template": body["spec"]["template"]}}


def rolled_out(world):
    """A Deployment of four pods, one rack's, that run; then its next revision gets its first pod."""
    old = revision("web-1", 1, 4, 4)
    world.see(REPLICA_SETS, old)
    template = old["spec"]["template"]
    for at in range(4):
        world.pod(REPLICA_SETS, "web-1", f"web-1-{at}", template)
    (record,) = world.memory.entries.values()
    world.let_go(record)
    world.see(REPLICA_SETS, revision("web-2", 2, 1, 4))
    world.pod(REPLICA_SETS, "web-2", "web-2-0", template)
    return record, next(one for one in world.memory.entries.values() if one is not record)


def test_a_rollout_goes_to_a_rack_that_has_room_for_all_pods_of_the_new_revision():
    world = Served({"r1": 4, "r2": 2, "r3": 4})
    old, new = rolled_out(world)
    assert (new.job.count, new.job.in_order, new.job.follows[0]) == (4, True, old.key)
    assert sorted([world.racks(old), world.racks(new)], key=str) == [{"r1": 4}, {"r3": 4}]


def test_a_rollout_without_such_a_rack_begins_where_the_old_revision_is():
    """In r2, where its first pod would fit as well, the others would never find room."""
    world = Served({"r1": 5, "r2": 2})
    old, new = rolled_out(world)
    assert world.racks(old) == {"r1": 4}
    assert (world.racks(new), new.admitted("main")) == ({"r1": 1}, 1)
    assert world.let_go(new) == ["web-2-0"]
    assert new.growing == {"main": 4}


def test_a_rollout_that_finds_room_in_no_such_rack_waits():
    world = Served({"r1": 4, "r2": 2})
    _, new = rolled_out(world)
    assert new.admission is None
    assert "web-2-0" in world.gated()


def test_an_old_revision_asks_for_what_it_has_left():
    world = Served({"r1": 5, "r2": 2})
    old, _ = rolled_out(world)
    world.see(REPLICA_SETS, revision("web-1", 1, 3, 4))
    assert (old.job.count, old.job.follows) == (3, ())


def test_a_revision_that_is_rolled_back_to_is_the_newest_again():
    world = Served({"r1": 4, "r3": 4})
    old, new = rolled_out(world)
    world.see(REPLICA_SETS, revision("web-1", 3, 3, 4))
    assert (old.job.count, old.job.follows[0]) == (4, new.key)
    assert (new.job.count, new.job.follows) == (1, ())


@pytest.mark.parametrize("number", ["-1", "x", "1e3", "٣", "9" * 40])
def test_what_annotations_say_of_a_revision_may_be_anything(number):
    one = read(revision("web", 1, 2, 2), Service)
    meta = msgspec.structs.replace(one.metadata, annotations={DESIRED: number, REVISION: number})
    assert (
        replicas_of_service(msgspec.structs.replace(one, metadata=meta), "ReplicaSet", "main", newest=True).total == 2
    )


def test_of_a_service_only_what_is_read_is_kept():
    body = revision("web-1", 1, 2, 2)
    body["metadata"] |= {"labels": {"app": "x" * 1000}}
    body["metadata"]["annotations"] |= {"notes": "x" * 1000}
    assert len(msgspec.json.encode(read(body, Service))) < 1000

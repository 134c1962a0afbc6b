"""Pods with claims go to a node so that none is let go that gets no devices, whatever comes free meanwhile."""

import msgspec
import pytest
from support.claims_world import a_pod, read
from support.equipped import DRIVER, META, Equipped, on
from support.on_their_way import NODE, OnTheirWay, may_go
from support.owned import KEYS

from clock import SYSTEM, Clock
from engine.claims.allocate import allocate
from engine.claims.counting.beside import independent
from engine.claims.read.asks import read_ask, text_of
from engine.devices import turns
from engine.reasons import Reason
from kube.objects import PodClaimStatus
from kube.pods.devices import ResourceClaim, ResourceClaimTemplate, ResourceSlice
from ungater.model.actions import WriteConditions
from ungater.model.held_pods import HoldReason
from ungater.numa.device_turns import MOVE, PATIENCE, SHORT, TURN
from ungater.reconcile.reconcile import reconcile

replace = msgspec.structs.replace


def of(size):
    return [{"cel": {"expression": f"device.attributes['{DRIVER}'].size == {size}"}}]


def exactly(size):
    return {"name": "gpu", "exactly": {"deviceClassName": "gpu", "selectors": of(size)}}


KINDS = {
    "quarter": exactly(1),
    "half": exactly(2),
    "first": {
        "name": "gpu",
        "firstAvailable": [
            {"name": "whole", "deviceClassName": "gpu", "selectors": of(4)},
            {"name": "part", "deviceClassName": "gpu", "selectors": of(1)},
        ],
    },
}


def spec_of(kind):
    return {"devices": {"requests": [KINDS[kind]]}}


def partitions(node=NODE):
    """One GPU of four parts, whole or in halves or quarters."""
    pool = {"name": node, "generation": 1, "resourceSliceCount": 2}
    base = {"driver": DRIVER, "nodeName": node, "pool": pool}
    counted = [{"name": "gpu", "counters": {str(part): {"value": "1"} for part in range(4)}}]
    yield {"metadata": {"name": f"{node}-counters"}, "spec": {**base, "sharedCounters": counted}}
    places = [
        ("whole", 4, 0),
        *((f"half-{at}", 2, at) for at in (0, 2)),
        *((f"quarter-{at}", 1, at) for at in range(4)),
    ]
    devices = [
        {
            "name": name,
            "attributes": {"size": {"int": size}},
            "consumesCounters": [
                {"counterSet": "gpu", "counters": {str(part): {"value": "1"} for part in range(at, at + size)}}
            ],
        }
        for name, size, at in places
    ]
    yield {"metadata": {"name": f"{node}-devices"}, "spec": {**base, "devices": devices}}


class Parted(OnTheirWay, Equipped):
    """A node with one GPU in partitions; others have none."""

    def __init__(self):
        self.woken = []
        super().__init__(equipped=())
        self.now = 1000.0
        for one in partitions():
            self.put("resource_slice", read(ResourceSlice, one))
        for kind in KINDS:
            made = {"metadata": {"name": kind, **META}, "spec": {"spec": spec_of(kind)}}
            self.put("claim_template", read(ResourceClaimTemplate, made))

    def make(self):
        memory = super().make(clock=Clock(SYSTEM.now, lambda: self.now))
        memory.in_flight._enqueue = lambda uid, after: self.woken.append((uid, after))
        return memory

    def has(self, pod, device="", kind="quarter"):
        """The claim of a pod, with a device; none where that is not given."""
        owner = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": f"u-{pod}", "controller": True}
        results = [{"request": "gpu", "driver": DRIVER, "pool": NODE, "device": device}]
        status = {"allocation": {"devices": {"results": results}}} if device else {}
        meta = {"name": f"{pod}-gpu", "ownerReferences": [owner], **META}
        self.put("resource_claim", read(ResourceClaim, {"metadata": meta, "spec": spec_of(kind), "status": status}))

    def gated(self, kind, name, count=1):
        """A Job that was admitted to the node, with its pods behind the gate: pairs of entry and pod."""
        claims = [{"name": "gpu", "resourceClaimTemplateName": kind}]
        record, made = self.placed(name, count, claims=claims), []
        assert on(record) == {NODE: count}
        for number in range(count):
            pod_name = f"{name}-{number}"
            pod = self._made(record, pod_name, claims)
            self.has(pod_name, kind=kind)
            told = (PodClaimStatus(name="gpu", resource_claim_name=f"{pod_name}-gpu"),)
            pod = replace(pod, status=replace(pod.status, resource_claim_statuses=told))
            self.put("pod", pod)
            made.append((record, pod))
        return made

    def pod_of(self, record, name, claims):
        """A gated pod of a Job, whose claims pods name."""
        self.put("pod", pod := self._made(record, name, claims))
        return pod

    @staticmethod
    def _made(record, name, claims):
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": record.job.name, "uid": record.job.uid}
        return a_pod(name, owner={**owner, "controller": True}, claims=claims)

    def comes(self, one, device, kind="quarter", *, bound=True):
        """Its claim has a device, and the pod is on the node."""
        record, pod = one
        self.has(pod.metadata.name, device, kind)
        annotations = {**pod.metadata.annotations, KEYS.workload: record.job.workload}
        levels = dict(zip(record.slots_of(pod).levels, record.slots_of(pod).slots[0].values, strict=True))
        spec = replace(pod.spec, scheduling_gates=None, node_name=NODE if bound else None, node_selector=levels)
        self.put("pod", replace(pod, metadata=replace(pod.metadata, annotations=annotations), spec=spec))

    def why(self, one):
        return one[0].held[one[1].metadata.uid].why

    def first_fit(self, one):
        record, _ = one
        (part,) = record.grant.assignments
        found = self.memory.state.cluster.devices.first_fit(NODE, part.devices)
        return [use.device[2] for use in found] if found is not None else None


@pytest.fixture
def world():
    return Parted()


def test_an_earlier_alternative_comes_free_while_the_pod_is_on_its_way(world):
    """Both were to have a quarter; what ends meanwhile leads the one to take all, and the other would hang."""
    world.has("gone", "quarter-0")
    (first,), (quarter,) = world.gated("first", "a"), world.gated("quarter", "b")
    assert world.first_fit(first) == ["quarter-1"]
    world.go(first)
    assert not world.may_go(quarter)
    assert world.why(quarter) is HoldReason.DEVICES
    world.has("gone")
    assert world.first_fit(first) == ["whole"]
    world.woken.clear()
    world.comes(first, "whole", "first")
    assert quarter[0].id in [uid for uid, _ in world.woken]
    assert not world.may_go(quarter)
    assert world.why(quarter) is HoldReason.DEVICES
    world.drop("pod", world.stores["pod"]["ns/a-0"])
    assert not world.may_go(quarter)
    world.has("a-0", kind="first")
    assert world.may_go(quarter)


def test_pods_that_take_one_of_the_same_go_together(world):
    pods = world.gated("quarter", "a", 4)
    for one in pods:
        world.go(one)


def test_those_of_one_kind_go_together_where_nothing_can_come_free(world):
    """Who asks for the same gets it in any order; what others get may depend on who is first."""
    one, two = world.gated("half", "a", 2)
    world.go(one)
    world.go(two)


def test_those_of_two_kinds_go_one_after_the_other(world):
    (half,), (quarter,) = world.gated("half", "a"), world.gated("quarter", "b")
    world.go(half)
    assert not world.may_go(quarter)
    world.comes(half, "half-0", "half")
    world.go(quarter)


def in_line(world):
    """A pod on its way, one that may not overtake another that waits for its turn, and that other one."""
    world.has("gone", "quarter-0")
    one, two = world.gated("quarter", "a", 2)
    (first,) = world.gated("first", "b")
    world.go(one)
    assert not world.may_go(first)
    world.now += TURN + 1
    assert not world.may_go(two)
    return one, two, first


def test_nobody_overtakes_one_that_has_waited_for_its_turn(world):
    one, two, first = in_line(world)
    world.comes(one, "quarter-1")
    assert not world.may_go(two)
    world.go(first)


def test_who_goes_behind_another_for_the_claim_that_they_share_is_waited_for_no_more(world):
    """The pod that was there first waited for its turn; then one came that goes ahead of it, by its name."""
    meta = {"name": "mine", **META}
    world.put("resource_claim", read(ResourceClaim, {"metadata": meta, "spec": spec_of("half"), "status": {}}))
    claims = [{"name": "gpu", "resourceClaimName": "mine"}]
    record = world.placed("a", 2, claims=claims)
    (quarter,) = world.gated("quarter", "b")
    world.go(quarter)
    pods = {name: world.pod_of(record, name, claims) for name in ("a-1", "a-0")}
    one, two = [(record, pods[name]) for name in ("a-1", "a-0")]
    world.drop("pod", pods["a-0"])
    assert not world.may_go(one)
    assert world.why(one) is HoldReason.DEVICES
    world.put("pod", pods["a-0"])
    world.now += TURN + 1
    world.comes(quarter, "quarter-0")
    world.has("stranger", "quarter-1")  # one half is left
    assert not world.may_go(two)
    world.woken.clear()
    world.settle()
    assert record.id in [uid for uid, _ in world.woken]
    world.go(two)


def test_who_may_not_go_any_more_is_waited_for_no_more(world):
    """It asks for more than was admitted by now; who changes that of his pods would keep a node from everybody."""
    _, two, first = in_line(world)
    _, pod = first
    more = replace(pod.spec.containers[0], resources=replace(pod.spec.containers[0].resources, requests={"cpu": "2"}))
    world.put("pod", replace(pod, spec=replace(pod.spec, containers=[more])))
    world.settle()
    world.go(two)


def test_a_slot_without_devices_moves_where_it_can(world):
    """Somebody took them whom Topogate did not place."""
    (quarter,) = world.gated("quarter", "a")
    world.has("stranger", "whole")
    assert not world.may_go(quarter)
    assert world.why(quarter) is HoldReason.DEVICES  # they may be those of the pod that this one replaces
    world.now += MOVE
    assert not world.may_go(quarter)
    assert world.why(quarter) is HoldReason.REFUSED
    record, pod = quarter
    assert world.memory.in_flight.left_out(record, record.shape_of(pod)) == {NODE}
    (told,) = [one for one in reconcile(record, world.memory.rules, world.now, 0.0) if isinstance(one, WriteConditions)]
    assert told.wanted[0].reason is Reason.WAITS_FOR_ARRIVALS
    assert told.wanted[0].message == f"1 gated pod waits for {NODE}: the devices of their claims are not free there now"
    world.has("stranger")
    assert world.may_go(quarter)


def test_a_node_whose_slices_are_gone_is_told_as_such_and_its_pod_goes_when_they_are_back(world):
    """A kubelet 1.37 that starts deletes the slices of all drivers of its node; they come back under another uid."""
    (quarter,) = world.gated("quarter", "a")
    record, _ = quarter
    slices = [world.stores["resource_slice"][one["metadata"]["name"]] for one in partitions()]
    for one in slices:
        world.drop("resource_slice", one)
    assert not world.may_go(quarter)
    world.now += 6
    (told,) = [one for one in reconcile(record, world.memory.rules, world.now, 0.0) if isinstance(one, WriteConditions)]
    assert told.wanted[0].message == (
        f"1 gated pod waits for {NODE}: it has no devices of gpu at the moment (its ResourceSlices are gone)"
    )
    for one in reversed(slices):
        world.put("resource_slice", replace(one, metadata=replace(one.metadata, uid="another")))
    assert world.may_go(quarter)


def test_devices_that_come_in_another_order_are_given_in_that_though_their_pool_has_no_new_generation(world):
    """NVIDIA's driver v0.4.1: each start publishes in another order, of generation 1 and under the same uid."""
    ask = read_ask([("gpu", "", text_of(spec_of("quarter")))])
    ledger = world.memory.state.cluster.devices
    assert [use.device[2] for use in ledger.first_fit(NODE, ask)] == ["quarter-0"]
    _, published = partitions()
    published["spec"]["devices"].reverse()
    world.put("resource_slice", read(ResourceSlice, published))
    assert [use.device[2] for use in ledger.first_fit(NODE, ask)] == ["quarter-3"]


def test_after_a_restart_pods_on_their_way_are_known(world):
    world.has("gone", "quarter-0")
    (first,), (quarter,) = world.gated("first", "a"), world.gated("quarter", "b")
    world.comes(first, "", "first", bound=False)
    memory, (record, pod) = world.restarted(), quarter
    assert not may_go(memory.in_flight, memory.entries[record.id], pod, NODE)
    assert not world.may_go(quarter)
    world.now += PATIENCE
    assert world.may_go(quarter)


def test_one_that_is_deleted_on_its_way_is_not_waited_for(world):
    world.has("gone", "quarter-0")
    (first,), (quarter,) = world.gated("first", "a"), world.gated("quarter", "b")
    world.go(first)
    assert not world.may_go(quarter)
    world.drop("pod", first[1])
    assert world.may_go(quarter)


def test_a_node_is_not_searched_again_for_one_that_waits_until_its_devices_change(world, monkeypatch):
    """A search may take a third of a second, and all who wait are looked at each second."""
    searches = []
    monkeypatch.setattr(turns, "allocate", lambda *asked: searches.append(asked) or allocate(*asked))
    monkeypatch.setattr(turns, "independent", lambda *asked: searches.append(asked) or independent(*asked))
    world.has("gone", "quarter-0")
    (first,), (quarter,) = world.gated("first", "a"), world.gated("quarter", "b")
    world.go(first)
    for _ in range(5):
        assert not world.may_go(quarter)
    assert len(searches) == 1
    world.drop("pod", first[1])
    world.has("stranger", "half-2", "half")
    world.has("another", "quarter-1")
    for _ in range(5):
        assert not world.may_go(quarter)
    assert len(searches) == 2
    world.has("gone")
    assert world.may_go(quarter)


def test_a_pod_that_no_scheduler_takes_is_not_waited_for_again_whatever_is_heard_of_it(world):
    """Its namespace changes a label of it all the time."""
    world.has("gone", "quarter-0")
    (first,), (quarter,) = world.gated("first", "a"), world.gated("quarter", "b")
    world.comes(first, "", "first", bound=False)
    assert not world.may_go(quarter)
    world.now += PATIENCE
    assert world.may_go(quarter)
    world.comes(first, "", "first", bound=False)
    assert world.may_go(quarter)


def test_once_one_took_too_long_others_of_its_namespace_are_waited_for_shortly(world):
    """Each would hold up all others that go to the node, one after the other."""
    (one,), (half,), (other,) = world.gated("quarter", "a"), world.gated("half", "b"), world.gated("quarter", "c")
    world.go(one)
    assert not world.may_go(half)
    world.now += PATIENCE
    world.go(half)
    assert not world.may_go(other)
    world.now += SHORT
    assert world.may_go(other)

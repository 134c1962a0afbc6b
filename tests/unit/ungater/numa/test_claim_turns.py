"""Pods that wish devices of claims and CPUs from one zone: where they are placed, when they go, and what is told."""

import json

import msgspec
import pytest
from support.claims_world import ONE, a_class, read
from support.equipped import DRIVER, claim, template
from support.numa_world import NumaWorld
from support.on_their_way import NODE, OnTheirWay
from support.owned import KEYS, make_job, make_pod

from crds.constants import NUMA_PLACEMENT_OBSERVED, NUMA_POLICY
from crds.numa_placement import decode, encode
from engine.devices.first_fits import OUT_OF_TURN
from engine.kubelet.machine import NumaPlacement, ZoneUse
from engine.reasons import Reason
from kube.objects import ContainerStatus, PodClaimStatus, SchedulingGate
from kube.pods.devices import ResourceSlice
from ungater.model.actions import WriteConditions
from ungater.model.held_pods import HoldReason
from ungater.numa import device_turns
from ungater.numa.in_flight import MOVE, PATIENCE, TURN
from ungater.reconcile.reconcile import reconcile

WISH = {KEYS.unconstrained: "true", NUMA_POLICY: "single-numa-node"}
PLAIN = {KEYS.unconstrained: "true"}
replace = msgspec.structs.replace


def spec(cpu="4", claims=ONE):
    amounts = {"cpu": cpu, "memory": "1Gi"}
    return {"containers": [{"name": "c", "resources": {"requests": amounts, "limits": amounts}}]} | (
        {"resourceClaims": claims} if claims else {}
    )


def gpus(node, zones):
    attribute = "resource.kubernetes.io/numaNode"
    devices = [{"name": f"gpu-{at}", "attributes": {attribute: {"int": zone}}} for at, zone in enumerate(zones)]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    whole = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
    return read(ResourceSlice, {"metadata": {"name": f"{node}-gpus"}, "spec": whole})


class Zoned(OnTheirWay, NumaWorld):
    """Two nodes of two zones; devices on the first in the zones that are given, on the other of both zones."""

    def __init__(self, zones, other=(0, 0, 1, 1)):
        self.woken = []
        super().__init__()
        self.put("device_class", a_class("gpu"))
        self.put("claim_template", template())
        self.put("resource_slice", gpus(NODE, zones))
        if other:
            self.put("resource_slice", gpus("r1-h2", other))

    def make(self):
        memory = super().make()
        memory.in_flight._enqueue = lambda uid, after: self.woken.append((uid, after))
        return memory

    def job(self, name, count=1, *, request=None, cpu="4", claims=ONE):
        job = make_job(name, parallelism=count, request=WISH if request is None else request, spec=spec(cpu, claims))
        self.put("job", job)
        return job

    def gated(self, name, count=1, **asks):
        """Jobs that were admitted, with their pods behind the gate: pairs of entry and pod."""
        job = self.job(name, count, **asks)
        self.admit(job)
        record = self.record(job)
        pods = []
        for rank in range(count):
            pod = make_pod(f"{name}-{rank}", owner=record.job, rank=rank, spec=spec(**self._of(asks)))
            annotations = {**pod.metadata.annotations, **asks.get("request", WISH)}
            pod = replace(pod, metadata=replace(pod.metadata, annotations=annotations))
            if asks.get("claims", ONE):
                self.put("resource_claim", claim(pod.metadata.name, ""))
                made = (PodClaimStatus(name="gpu", resource_claim_name=f"{pod.metadata.name}-gpu"),)
                pod = replace(pod, status=replace(pod.status, resource_claim_statuses=made))
            self.put("pod", pod)
            pods.append((record, pod))
        return pods

    @staticmethod
    def _of(asks):
        return {key: value for key, value in asks.items() if key in {"cpu", "claims"}}

    def comes(self, one, device=None, zone=None):
        """The pod is on the node, with a device; ``zone``: and was seen to have its CPUs there."""
        record, pod = one
        if device is not None:
            self.put("resource_claim", claim(pod.metadata.name, NODE, device))
        annotations = {**pod.metadata.annotations, KEYS.workload: record.job.workload}
        status = pod.status
        if zone is not None:
            cpus = {"cpu": 1000 * int(pod.spec.containers[0].resources.limits["cpu"])}
            annotations[NUMA_PLACEMENT_OBSERVED] = encode(NumaPlacement(zones=(ZoneUse(zone=zone, amounts=cpus),)))
            status = replace(status, phase="Running", container_statuses=(ContainerStatus(name="c"),))
        selector = dict(zip(("block", "rack", "kubernetes.io/hostname"), ("b", "r1", NODE), strict=True))
        bound = replace(pod.spec, scheduling_gates=None, node_name=NODE, node_selector=selector)
        new = replace(pod, metadata=replace(pod.metadata, annotations=annotations), spec=bound, status=status)
        self.put("pod", new)

    def why(self, one):
        return one[0].held[one[1].metadata.uid].why


def nodes_of(world, job):
    return {slot.node: slot.count for slots in world.record(job).slots_in.values() for slot in slots.slots}


def test_a_job_keeps_off_the_node_where_device_and_cpus_would_not_meet():
    world = Zoned((1, 0))
    world.admit(job := world.job("wishes"))
    assert nodes_of(world, job) == {"r1-h2": 1}
    world = Zoned((1, 0), other=())
    assert world.refused(world.job("wishes")).reason is Reason.NEVER_FITS
    world.admit(job := world.job("plain", request=PLAIN))
    assert nodes_of(world, job) == {NODE: 1}


def test_the_reason_names_the_zones():
    world = Zoned((0, 1), other=())
    (one,) = world.gated("busy", request=PLAIN, cpu="8", claims=None)
    world.go(one)
    world.comes(one, zone=0)
    refusal = world.refused(world.job("wishes"))
    assert refusal.reason is Reason.NUMA_ALIGNMENT
    assert "here the devices come from zone 0, and cpu and memory from zone 1" in refusal.message


def test_pods_alike_go_together_where_no_order_makes_a_difference():
    world = Zoned((0, 0, 1, 1), other=())
    first, second, third, _ = world.gated("wishes", 4)
    world.go(first)
    world.go(second)
    assert not world.may_go(third)  # it might be given a device of zone 0, and CPUs of zone 1
    assert world.why(third) is HoldReason.ORDER
    world.now += 6
    (told,) = [
        one for one in reconcile(third[0], world.memory.rules, world.now, 0.0) if isinstance(one, WriteConditions)
    ]
    assert told.wanted[0].reason is Reason.WAITS_FOR_ARRIVALS
    assert "their order decides from which NUMA zones devices and CPUs come" in told.wanted[0].message
    world.comes(first, 0, zone=0)
    assert not world.may_go(third)
    world.comes(second, 1, zone=0)
    world.go(third)


def test_a_pod_whose_device_and_cpus_do_not_meet_any_more_does_not_go():
    world = Zoned((0, 1), other=())
    (one,) = world.gated("wishes")
    world.put("resource_claim", claim("stranger", NODE, 0))  # who has taken the device meanwhile
    assert not world.may_go(one)
    assert world.why(one) is HoldReason.REFUSED
    assert "from zone 1, and cpu and memory from zone 0" in one[0].held[one[1].metadata.uid].words
    world.now += MOVE
    assert not world.may_go(one)
    assert world.memory.in_flight.left_out(one[0], one[0].shape_of(one[1])) == {NODE}


def test_a_pod_waits_for_a_device_that_comes_free():
    world = Zoned((0,), other=())
    (one,) = world.gated("wishes")
    world.put("resource_claim", claim("gone", NODE, 0))
    assert not world.may_go(one)
    assert world.why(one) is HoldReason.ORDER
    world.now += PATIENCE
    assert not world.may_go(one)
    assert world.why(one) is HoldReason.REFUSED
    world.put("resource_claim", claim("gone", NODE))
    assert world.may_go(one)


@pytest.mark.parametrize("policy", ["single-numa-node", "best-effort"])
def test_who_takes_zones_waits_for_one_on_its_way(policy):
    world = Zoned((0, 1), other=())
    world.publish(NODE, policy=policy)
    (wishes,) = world.gated("wishes")
    world.memory.in_flight._claims._entry_of = lambda _: None  # whoever comes first
    (plain,) = world.gated("plain", request=PLAIN, claims=None)
    world.go(wishes)
    assert not world.may_go(plain)
    world.comes(wishes, 0, zone=0)
    world.go(plain)


def test_who_takes_zones_waits_for_those_that_were_admitted_before():
    world = Zoned((0, 1), other=())
    (wishes,) = world.gated("wishes")
    (plain,) = world.gated("younger", request=PLAIN, claims=None)
    assert not world.may_go(plain)
    world.go(wishes)
    world.comes(wishes, 0, zone=0)
    assert world.may_go(plain)


def test_one_that_has_waited_for_its_turn_is_not_overtaken():
    world = Zoned((0, 1), other=())
    world.memory.in_flight._claims._entry_of = lambda _: None
    (plain,) = world.gated("plain", request=PLAIN, claims=None)
    (wishes,) = world.gated("wishes")
    (late,) = world.gated("late", request=PLAIN, cpu="1", claims=None)
    world.go(plain)
    assert not world.may_go(wishes)
    world.now += TURN + 1
    assert not world.may_go(late)
    world.comes(plain, zone=0)
    assert not world.may_go(late)
    assert world.may_go(wishes)


def test_the_prediction_names_the_devices_of_claims():
    world = Zoned((0, 1), other=())
    (one,) = world.gated("wishes")
    record, pod = one
    claimed = world.memory.in_flight.foreseen(record, pod, NODE)
    assert claimed == {0: (f"{DRIVER}/{NODE}/gpu-0",)}
    (placement,) = world.memory.state.placements(record.key, record.pod_set_of(pod), NODE)
    text = world.memory.topologies.annotations(NODE, placement, claimed)["topogate.dev/numa-placement-predicted"]
    assert json.loads(text)[0]["claims"] == [f"{DRIVER}/{NODE}/gpu-0"]
    assert decode(text) == placement  # what claims hold is told by the claims
    world.go(one)
    assert world.memory.in_flight.foreseen(record, pod, NODE) == {}  # another on its way may be given it


def test_after_a_restart_pods_on_their_way_are_known():
    world = Zoned((0, 1), other=())
    first, second = world.gated("wishes", 2, cpu="8")
    world.go(first)
    world.comes(first)
    world.memory.in_flight._on.clear()
    world.memory.in_flight._node_of.clear()
    world.put("pod", world.stores["pod"][f"ns/{first[1].metadata.name}"])
    assert [seen.claims for seen in world.memory.in_flight._on[NODE].values()] == [True]
    assert not world.may_go(second)


@pytest.mark.parametrize("gates", [(), ("example.com/mine",)], ids=["a scheduler that there is not", "its own gate"])
@pytest.mark.parametrize("wishes", [0, 1])
def test_a_pod_that_never_gets_its_devices_closes_no_node_to_others(gates, wishes):
    """One pod on each node would keep all others off that ask for devices: those with a wish wait with nobody."""
    requests = (PLAIN, WISH)
    world = Zoned((0, 0, 1, 1), other=())
    ((entry, pod),) = world.gated("theirs", request=requests[wishes])
    world.memory.in_flight.record_sent(entry, pod, NODE)
    selector = dict(zip(("block", "rack", "kubernetes.io/hostname"), ("b", "r1", NODE), strict=True))
    gate = tuple(SchedulingGate(name=one) for one in gates) or None
    annotations = {**pod.metadata.annotations, KEYS.workload: entry.job.workload}
    spec_now = replace(pod.spec, scheduling_gates=gate, node_selector=selector)
    world.put("pod", replace(pod, metadata=replace(pod.metadata, annotations=annotations), spec=spec_now))
    honest = world.job("honest", request=requests[1 - wishes])
    assert OUT_OF_TURN in world.refused(honest).message
    assert not world.memory.in_flight.sweep()
    world.now += device_turns.PATIENCE
    assert world.memory.in_flight.sweep()
    assert not world.memory.in_flight.sweep()
    world.memory.queue_inadmissible()
    world.admit(honest)
    assert nodes_of(world, honest) == {NODE: 1}


def test_a_pod_behind_a_gate_of_its_own_gets_no_more_time_by_being_changed():
    world = Zoned((0, 0, 1, 1), other=())
    ((entry, pod),), (other,) = world.gated("theirs", request=PLAIN), world.gated("more", request=PLAIN)
    world.memory.in_flight.record_sent(entry, pod, NODE)
    selector = dict(zip(("block", "rack", "kubernetes.io/hostname"), ("b", "r1", NODE), strict=True))
    annotations = {**pod.metadata.annotations, KEYS.workload: entry.job.workload}
    spec_now = replace(pod.spec, scheduling_gates=(SchedulingGate(name="example.com/mine"),), node_selector=selector)
    for label in ("one", "two"):
        changed = replace(pod.metadata, annotations=annotations, labels={**pod.metadata.labels, "a": label})
        world.put("pod", replace(pod, metadata=changed, spec=spec_now))
        world.may_go(other)
        world.now += device_turns.PATIENCE / 2
    assert world.memory.in_flight.sweep()

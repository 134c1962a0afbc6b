"""Pods on their way to several nodes that reach the same devices: none is let go that gets none."""

from support.claims_world import read
from support.equipped import DRIVER, META, Equipped, gpus, on, request_of
from support.on_their_way import may_go

from clock import SYSTEM, Clock
from kube.pods.devices import ResourceClaim
from ungater.model.held_pods import HoldReason
from ungater.model.pod_slots import Expectation


class Fabric(Equipped):
    """Both hosts of the first rack reach the same two devices."""

    now = 1000.0

    def __init__(self):
        super().__init__([])
        need = {"key": "rack", "operator": "In", "values": ["r1"]}
        selector = {"nodeSelectorTerms": [{"matchExpressions": [need]}]}
        self.put("resource_slice", gpus("r1", nodeName=None, nodeSelector=selector))

    def make(self):
        return super().make(clock=Clock(SYSTEM.now, lambda: self.now))

    def alone(self, name):
        """A Job whose pod takes a whole host: it, its pod and the host."""
        record = self.placed(name, 1, amounts={"cpu": "4"})
        assert record.admission is not None, name
        return record, self.pod_of(record, f"{name}-0"), next(iter(on(record)))

    def may_go(self, one):
        return may_go(self.memory.in_flight, *one)

    def go(self, one):
        record, pod, node = one
        assert self.may_go(one)
        self.memory.in_flight.record_sent(*one)
        record.expectations[pod.metadata.uid] = Expectation(("b", "r1", node), self.now + 60)

    def takes(self, claim, *numbers):
        """A claim has these devices."""
        results = [{"request": "gpu", "driver": DRIVER, "pool": "r1", "device": f"gpu-{number}"} for number in numbers]
        status = {"allocation": {"devices": {"results": results}}} if numbers else {}
        spec = {"devices": {"requests": [request_of(1)]}}
        self.put(
            "resource_claim", read(ResourceClaim, {"metadata": {"name": claim, **META}, "spec": spec, "status": status})
        )


def test_pods_on_several_nodes_go_together_as_far_as_there_are_devices():
    world = Fabric()
    for one in (world.alone("a"), world.alone("b")):
        world.go(one)
    assert world.placed("c", 1).admission is None


def test_a_pod_waits_for_those_on_their_way_to_other_nodes():
    """Somebody took a device whom Topogate did not place; whoever of the two comes second would find none."""
    world = Fabric()
    first, second = world.alone("a"), world.alone("b")
    world.takes("stranger", 0)
    world.go(first)
    assert not world.may_go(second)
    assert second[0].held[second[1].metadata.uid].why is HoldReason.DEVICES
    world.takes("stranger")
    assert world.may_go(second)


def test_once_the_first_has_its_device_the_second_goes_if_there_is_another():
    world = Fabric()
    first, second = world.alone("a"), world.alone("b")
    world.takes("stranger", 0)
    world.go(first)
    assert not world.may_go(second)
    world.takes("a-0-gpu", 1)
    pod = world.stores["pod"]["ns/a-0"]
    world.run(first[0], pod, first[0].slots.slots[0])
    assert not world.may_go(second)
    world.takes("stranger")
    assert world.may_go(second)

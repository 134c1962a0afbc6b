"""A cluster whose nodes have devices for claims that are made of templates."""

from collections import Counter

import msgspec
from support.claims_world import ONE, Devices, a_class, a_pod, read

from kube.objects import PodClaimStatus
from kube.pods.devices import DeviceTaintRule, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from ungater.scheduling.replacement import refused_text

DRIVER = "gpu.example.com"
META = {"namespace": "ns", "creationTimestamp": "2026-11-21T00:00:00Z"}


def gpus(node, count=2, *, slices=1, **fields):
    """The slice of a node."""
    pool = {"name": node, "generation": 1, "resourceSliceCount": slices}
    devices = [{"name": f"gpu-{number}"} for number in range(count)]
    whole = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices, **fields}
    return read(ResourceSlice, {"metadata": {"name": f"{node}-gpus"}, "spec": whole})


def request_of(count):
    return {"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": count}}


def template(count=1, name="one-gpu", **fields):
    request = request_of(count)
    request["exactly"] |= fields
    return read(
        ResourceClaimTemplate,
        {"metadata": {"name": name, **META}, "spec": {"spec": {"devices": {"requests": [request]}}}},
    )


def rule(effect="NoSchedule", **selector):
    taint = {"key": "gpu.example.com/broken", "value": "yes", "effect": effect}
    return read(DeviceTaintRule, {"metadata": {"name": "broken"}, "spec": {"deviceSelector": selector, "taint": taint}})


def cel(expression):
    return [{"cel": {"expression": expression}}]


def claim(pod, node, *numbers, count=1):
    """That of a pod, with these devices."""
    spec = {"devices": {"requests": [request_of(count)]}}
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": f"u-{pod}"}
    results = [{"request": "gpu", "driver": DRIVER, "pool": node, "device": f"gpu-{number}"} for number in numbers]
    status = {"allocation": {"devices": {"results": results}}} if numbers else {}
    return read(
        ResourceClaim,
        {"metadata": {"name": f"{pod}-gpu", "ownerReferences": [owner], **META}, "spec": spec, "status": status},
    )


class Equipped(Devices):
    """Two racks of two hosts with two devices each, and a template that asks for one."""

    def __init__(self, equipped=("r1-h1", "r1-h2", "r2-h1", "r2-h2")):
        super().__init__()
        self.put("device_class", a_class("gpu"))
        self.put("claim_template", template())
        for name in equipped:
            self.put("resource_slice", gpus(name))

    def placed(self, name="train", count=2, **asks):
        record = self.job(name, count, **{"claims": ONE, **asks})
        self.settle()
        return record

    def pod_of(self, record, name):
        """A pod of a Job, for which the claim was made."""
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": record.job.name, "uid": record.job.uid}
        pod = a_pod(name, owner={**owner, "controller": True}, claims=ONE)
        made = (PodClaimStatus(name="gpu", resource_claim_name=f"{name}-gpu"),)
        self.put("resource_claim", claim(name, ""))
        pod = msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, resource_claim_statuses=made))
        self.put("pod", pod)
        return pod


def on(record):
    return Counter({slot.node: slot.count for slot in record.slots.slots}) if record.admission else None


def told(world, record):
    refusal = world.memory.queues.entries[record.key].refusal
    assert record.admission is None
    return refusal.reason, refused_text(world.memory, record, refusal)

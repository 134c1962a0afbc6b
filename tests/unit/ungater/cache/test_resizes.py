"""Pods that are resized in place: when it is done, their status alone says so.

Facts of Kubernetes 1.37: ``kubectl patch --subresource resize`` changes the spec; what the kubelet carried out is in
``containerStatuses[].resources`` and ``allocatedResources``, and until then the larger of both counts.
"""

import msgspec
import pytest
from support.cases import objects, of_kind
from support.looked_at import LookedAt
from support.owned import KEYS

from kube.objects import Job, Node, Pod, ResourceFlavor
from kube.pods.resizes import given_otherwise
from ungater.cache.pods import _same_to_slots

CASE = "in-place-resize"


def read(body, kind):
    return msgspec.json.decode(msgspec.json.encode(body), type=kind)


def status(cpu=None, **more):
    """What a kubelet reports of the case's pod, with so many CPUs."""
    resources = {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}
    given = {"resources": resources, "allocatedResources": {"cpu": cpu}} if cpu else {}
    return {"phase": "Running", "containerStatuses": [{"name": "main", **given}], **more}


def foreign(asked, told):
    (body,) = of_kind(CASE, "objects.json", "Pod")
    (container,) = body["spec"]["containers"]
    container = container | {"resources": {"requests": {"cpu": asked}, "limits": {"cpu": asked}}}
    spec = body["spec"] | {"containers": [container], "nodeName": "h-resize-1"}
    return read({"metadata": body["metadata"] | {"uid": "u-foreign"}, "spec": spec, "status": told}, Pod)


@pytest.fixture
def world():
    world = LookedAt()
    for kind, type_, name in (("flavor", ResourceFlavor, "ResourceFlavor"), ("node", Node, "Node")):
        for body in of_kind(CASE, "objects.json", name):
            world.put(kind, read(body, type_))
    world.put("pod", foreign("30", status("30")))
    (job,) = objects(CASE, "job.json")
    template = job["spec"]["template"]
    template["spec"] |= {"schedulingGates": [{"name": "kueue.x-k8s.io/topology"}]}
    meta = job["metadata"] | {"uid": "u-w", "creationTimestamp": "2026-11-21T00:00:00Z"}
    world.put("job", read({**job, "metadata": meta}, Job))
    world.settle()
    return world


def test_room_that_a_resize_leaves_is_free_when_the_status_says_so(world):
    (record,) = world.memory.entries.values()
    assert record.admission is None
    world.put("pod", foreign("20", status("30")))
    world.settle()
    assert record.admission is None, "the kubelet has not carried it out"
    world.put("pod", foreign("20", status("20")))
    world.settle()
    assert record.admission is not None


def test_what_a_resize_takes_is_taken_before_the_spec_changes_again(world):
    world.put("pod", foreign("20", status("20")))
    world.put("pod", foreign("20", status("31")))
    assert world.memory.state.free_on_node("h-resize-1")["cpu"] == 1000


@pytest.mark.parametrize("reason", ["Deferred", "Infeasible"])
def test_a_resize_that_is_refused_changes_what_counts(world, reason):
    pending = [{"type": "PodResizePending", "status": "True", "reason": reason}]
    world.put("pod", foreign("31", status("20")))
    world.put("pod", foreign("31", status("20", conditions=pending)))
    assert world.memory.state.free_on_node("h-resize-1")["cpu"] == {"Deferred": 1000, "Infeasible": 12000}[reason]


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        (foreign("30", status("30")), foreign("20", status("30")), False),
        (foreign("20", status("30")), foreign("20", status("20")), False),
        (foreign("20", {"phase": "Pending"}), foreign("20", status("20")), True),
        (foreign("20", status("20")), foreign("20", status("20", qosClass="Guaranteed")), True),
    ],
    ids=["asked for", "carried out", "it starts", "nothing"],
)
def test_the_workload_of_a_pod_that_is_resized_is_looked_at(before, after, same):
    """Quota that a smaller pod leaves comes back at a look alone, and nothing else may happen for hours."""
    assert _same_to_slots(before, after, KEYS.gate) is same


@pytest.mark.parametrize("told", [{"phase": "Running"}, status(), status("30"), status("30", conditions=[])])
def test_what_every_kubelet_reports_of_a_pod_that_runs_changes_nothing(told):
    assert given_otherwise(foreign("30", told)) == ()


def test_the_end_of_a_resize_is_a_change_whatever_else_the_status_says():
    under_way = [{"type": "PodResizeInProgress", "status": "True"}]
    assert given_otherwise(foreign("30", status("31", conditions=under_way))) != given_otherwise(
        foreign("30", status("31"))
    )

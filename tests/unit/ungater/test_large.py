"""What one pod template may ask for at most, and what large ones leave behind."""

import msgspec
from support.owned import context, make_known, make_owner, make_pod, make_record
from support.world import NODES, World

from engine.kubelet.machine import Qos
from engine.model import Policy, TopologyRequest
from engine.reasons import Reason
from kube.pods.limits import MOST_CONTAINERS, MOST_RESOURCES
from queueing.model import Workload, shape
from ungater.model import actions as i
from ungater.model import job_view
from ungater.reconcile.reconcile import reconcile

ANYWHERE = TopologyRequest(policy=Policy.UNCONSTRAINED)


def containers(many, **requests):
    return [{"name": f"c{n}", "resources": {"requests": requests or {"cpu": "1"}}} for n in range(many)]


def test_a_template_that_asks_for_too_many_things_is_refused_by_field_number_and_limit():
    names = {f"example.com/r{n}": "1" for n in range(8000)}
    owner = make_owner(spec={"containers": containers(1, **names)})
    leave, write, tell = reconcile(make_record(owner, observed=make_known(owner)), context(), 1.0)
    assert leave == i.Dequeue()
    assert (write.wanted[0].reason, tell.reason) == (Reason.TOO_LARGE, Reason.TOO_LARGE)
    assert "8000 different resource names" in tell.message
    assert f"at most {MOST_RESOURCES}" in tell.message
    fine = make_owner(spec={"containers": containers(MOST_CONTAINERS)})
    assert reconcile(make_record(fine, observed=make_known(fine)), context(), 1.0) == [i.Enqueue()]


def test_shapes_of_large_pods_are_not_remembered():
    job_view._shape.cache_clear()
    for number in range(8):
        padding = "x" * job_view.REMEMBERED
        make_owner(f"j{number}", spec={"containers": [{"name": padding + str(number)}]}).pod_sets[0].shape  # noqa: B018
    assert job_view._shape.cache_info().currsize == 0
    make_owner("small").pod_sets[0].shape  # noqa: B018
    assert job_view._shape.cache_info().currsize == 1


def test_the_inside_of_a_pod_of_very_many_containers_is_its_sum():
    world = World()
    for node in NODES:
        world.put("node", node)
    pod = make_pod("crowd", node="n1", spec={"containers": containers(3000), "schedulingGates": []})
    found = job_view.shape_of(pod.spec, {})
    assert len(found.containers) == 1
    assert dict(found.containers[0].requests) == {"cpu": 3_000_000}
    assert found.qos is Qos.BURSTABLE


def test_what_answers_are_remembered_by_is_short():
    large = make_owner(spec={"nodeSelector": {f"k{n}": "v" * 60 for n in range(200)}})
    world = World()
    world.put("node", NODES[0])
    pod_set = world.memory.pod_sets.pod_set(make_record(large), large.pod_sets[0], ANYWHERE)
    workload = Workload(key="ns/w", namespace="ns", queue="q", pod_sets=(pod_set,), priority=0, created=0.0)
    other = msgspec.structs.replace(workload, pod_sets=(msgspec.structs.replace(pod_set, count=9),))
    assert len(shape(workload)) == 32
    assert shape(workload) == shape(msgspec.structs.replace(workload, key="ns/other")) != shape(other)

"""Pods as their kubelet sees them: classes as ComputePodQOS gives them, kinds, amounts, and what is left out."""

import pytest

from engine.kubelet.machine import Container, ContainerKind, PodShape, Qos, TopologyPolicy
from kube.objects import Container as Wire
from kube.objects import PodSpec, ResourceRequirements
from kube.pods.shapes import pod_shape

GPU = "nvidia.com/gpu"


def container(requests=None, limits=None, *, name="c", sidecar=False):
    resources = ResourceRequirements(requests=requests, limits=limits) if requests or limits else None
    return Wire(name=name, resources=resources, restart_policy="Always" if sidecar else None)


def spec(*containers, init=(), pod=None):
    return PodSpec(containers=tuple(containers), init_containers=tuple(init), resources=pod)


WHOLE = {"cpu": "2", "memory": "1Gi"}
HALF = {"cpu": "1", "memory": "1Gi"}


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        ([container()], Qos.BEST_EFFORT),
        ([container({"cpu": "0", "memory": "0"})], Qos.BEST_EFFORT),
        ([container({GPU: "1"}, {GPU: "1"})], Qos.BEST_EFFORT),
        ([container(None, WHOLE)], Qos.GUARANTEED),
        ([container(WHOLE, WHOLE)], Qos.GUARANTEED),
        ([container({"cpu": "1500m"} | {"memory": "1Gi"}, {"cpu": "1.5", "memory": "1024Mi"})], Qos.GUARANTEED),
        ([container(HALF, WHOLE)], Qos.BURSTABLE),
        ([container(WHOLE)], Qos.BURSTABLE),
        ([container({"cpu": "1"}, {"cpu": "1"})], Qos.BURSTABLE),
        ([container(None, WHOLE), container(name="d")], Qos.BURSTABLE),
        ([container(None, WHOLE), container(None, WHOLE, name="d")], Qos.GUARANTEED),
        # The sums are equal, but no container's limits name what it requests: as the API server counts it.
        ([container(None, WHOLE), container({"cpu": "1"}, WHOLE, name="d")], Qos.BURSTABLE),
        ([container({**WHOLE, "ephemeral-storage": "1Gi"}, WHOLE)], Qos.GUARANTEED),
    ],
)
def test_the_class_is_that_of_kubernetes(containers, expected):
    assert pod_shape(spec(*containers)).qos is expected


def test_init_containers_count_in_the_class():
    assert pod_shape(spec(container(None, WHOLE), init=[container(None, WHOLE)])).qos is Qos.GUARANTEED
    assert pod_shape(spec(container(None, WHOLE), init=[container({"cpu": "1"})])).qos is Qos.BURSTABLE


@pytest.mark.parametrize(
    ("requests", "limits", "expected"),
    [
        (None, WHOLE, Qos.GUARANTEED),
        (WHOLE, WHOLE, Qos.GUARANTEED),
        (HALF, WHOLE, Qos.BURSTABLE),
        (WHOLE, None, Qos.BURSTABLE),
        (None, {"cpu": "2"}, Qos.BURSTABLE),
    ],
)
def test_resources_of_the_pod_as_a_whole_decide_the_class(requests, limits, expected):
    wide = spec(container(), pod=ResourceRequirements(requests=requests, limits=limits))
    assert pod_shape(wide).qos is expected
    assert pod_shape(wide).pod_level


@pytest.mark.parametrize(
    ("containers", "pod", "expected"),
    [
        ([container(None, WHOLE)], {"requests": {"cpu": "2"}}, Qos.GUARANTEED),
        ([container(None, HALF), container(None, HALF, name="d")], {"requests": {"cpu": "2"}}, Qos.GUARANTEED),
        ([container(None, WHOLE), container(None, WHOLE, name="d")], {"requests": {"cpu": "2"}}, Qos.BURSTABLE),
        ([container(None, WHOLE), container(WHOLE, name="d")], {"requests": WHOLE}, Qos.BURSTABLE),
        ([container(None, WHOLE)], {"limits": {"hugepages-2Mi": "2Mi"}}, Qos.GUARANTEED),
        ([container(None, WHOLE)], {}, Qos.GUARANTEED),
        ([container(None, WHOLE)], {"limits": {"pids": "100"}}, Qos.GUARANTEED),
    ],
)
def test_what_the_pod_as_a_whole_lacks_is_filled_in_from_its_containers(containers, pod, expected):
    assert pod_shape(spec(*containers, pod=ResourceRequirements(**pod))).qos is expected


def test_the_class_in_the_status_counts():
    assert pod_shape(spec(container()), qos_class="Burstable").qos is Qos.BURSTABLE
    assert pod_shape(spec(container()), qos_class="").qos is Qos.BEST_EFFORT


def test_containers_keep_their_order_kind_and_zero_amounts():
    shape = pod_shape(
        PodSpec(
            init_containers=(
                container({"cpu": "1"}, name="first"),
                container(None, {"cpu": "500m"}, name="mesh", sidecar=True),
            ),
            containers=(container({"ephemeral-storage": "1Gi"}, {GPU: "0", "hugepages-1Gi": "2Gi"}, name="app"),),
            overhead={"cpu": "250m"},
        )
    )
    assert shape == PodShape(
        containers=(
            Container(name="first", kind=ContainerKind.INIT, requests=(("cpu", 1000),)),
            Container(name="mesh", kind=ContainerKind.SIDECAR, requests=(("cpu", 500),), limits=(("cpu", 500),)),
            Container(
                name="app",
                requests=(("hugepages-1Gi", 2 << 30), (GPU, 0)),
                limits=(("hugepages-1Gi", 2 << 30), (GPU, 0)),
            ),
        ),
        qos=Qos.BURSTABLE,
    )
    assert not shape.pod_level


def test_equal_templates_have_equal_shapes_with_their_wish():
    wish = {"wish": TopologyPolicy.SINGLE, "wish_resources": ("cpu",), "gpu_link": "require"}
    shape = pod_shape(spec(container(None, WHOLE)), **wish)
    assert hash(shape) == hash(pod_shape(spec(container(WHOLE, {"memory": "1024Mi", "cpu": "2"})), **wish))
    assert (shape.wish, shape.wish_resources, shape.gpu_link) == (TopologyPolicy.SINGLE, ("cpu",), "require")


def test_a_quantity_that_is_none_is_named():
    with pytest.raises(ValueError, match="cpu: 'lots' is not a quantity"):
        pod_shape(spec(container({"cpu": "lots"})))

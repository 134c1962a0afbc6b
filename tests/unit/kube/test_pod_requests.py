"""What a pod takes of a node, against figures worked out by hand from the rules of kube-scheduler."""

import msgspec
import pytest

from kube.objects import Pod
from kube.pods.requests import pod_requests

GI = 1 << 30


def container(name="c", *, sidecar=False, limits=None, ports=None, **requests):
    found = {"name": name, "resources": {"requests": {key.replace("_", "/"): value for key, value in requests.items()}}}
    if limits:
        found["resources"]["limits"] = limits
    if sidecar:
        found["restartPolicy"] = "Always"
    return found


def requests_of(status=None, **spec):
    pod = msgspec.convert({"spec": spec, "status": status or {}}, Pod)
    return pod_requests(pod.spec, pod.status)


def test_containers_add_up():
    assert requests_of(
        containers=[container(cpu="1", memory="1Gi"), container(cpu="500m", **{"nvidia.com/gpu": "2"})]
    ) == {
        "cpu": 1500,
        "memory": GI,
        "nvidia.com/gpu": 2,
    }


@pytest.mark.parametrize("count", [1, 2])
def test_a_missing_request_is_the_limit(count):
    containers = [container(memory="1Gi", limits={"cpu": "2", "memory": "4Gi"})] * count
    assert requests_of(containers=containers) == {"cpu": 2000 * count, "memory": count * GI}


def test_zero_is_left_out_even_against_a_limit():
    assert requests_of(containers=[container(cpu="0", limits={"cpu": "2"})]) == {}


def test_init_containers_run_one_after_another():
    init = [container(cpu="3"), container(memory="5Gi"), container(cpu="2")]
    assert requests_of(containers=[container(cpu="1", memory="1Gi")], initContainers=init) == {
        "cpu": 3000,
        "memory": 5 * GI,
    }


def test_sidecars_run_beside_what_starts_after_them():
    init = [container(cpu="4"), container(sidecar=True, cpu="1"), container(cpu="4"), container(sidecar=True, cpu="2")]
    # starting: 4, 1, 1 + 4, 1 + 2; running: 1 + 1 + 2
    assert requests_of(containers=[container(cpu="1")], initContainers=init) == {"cpu": 5000}
    assert requests_of(containers=[container(cpu="3")], initContainers=init) == {"cpu": 6000}


def test_overhead_is_added_after_the_maximum():
    init = [container(cpu="3")]
    assert requests_of(containers=[container(cpu="1")], initContainers=init, overhead={"cpu": "250m"}) == {"cpu": 3250}
    assert requests_of(containers=[container()], overhead={"memory": "1Gi"}) == {"memory": GI}


def test_requests_of_the_pod_replace_the_sum():
    resources = {"requests": {"cpu": "10", "nvidia.com/gpu": "9"}}  # the API takes no GPU here; it would not count
    found = requests_of(containers=[container(cpu="1", memory="1Gi")], resources=resources, overhead={"cpu": "1"})
    assert found == {"cpu": 11000, "memory": GI}


def test_limits_of_the_pod_fill_in_what_no_container_asks_for():
    resources = {"limits": {"cpu": "8", "memory": "8Gi"}}
    assert requests_of(containers=[container(cpu="1")], resources=resources) == {"cpu": 1000, "memory": 8 * GI}
    pages = {"limits": {"cpu": "8", "hugepages-2Mi": "2Mi"}}
    assert requests_of(containers=[container(cpu="1")], resources=pages) == {"cpu": 1000, "hugepages-2Mi": 2 << 20}


def resizing(reason="Deferred"):
    return {
        "conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}],
        "containerStatuses": [
            {"name": "c", "allocatedResources": {"cpu": "2"}, "resources": {"requests": {"cpu": "3"}}},
        ],
    }


@pytest.mark.parametrize(("wanted", "taken"), [("1", 3000), ("5", 5000)])
def test_during_a_resize_the_largest_counts(wanted, taken):
    assert requests_of(resizing(), containers=[container(cpu=wanted)]) == {"cpu": taken}


def test_a_resize_that_cannot_be_done_does_not_count():
    assert requests_of(resizing("Infeasible"), containers=[container(cpu="50")]) == {"cpu": 3000}


def test_a_resize_of_the_whole_pod():
    status = {"allocatedResources": {"cpu": "2"}, "resources": {"requests": {"cpu": "6"}}}
    resources = {"requests": {"cpu": "4"}}
    assert requests_of(status, containers=[container(cpu="1")], resources=resources) == {"cpu": 6000}


def test_a_bad_quantity_is_named():
    with pytest.raises(ValueError, match="cpu: 'lots'"):
        requests_of(containers=[container(cpu="lots")])

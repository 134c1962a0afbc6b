"""What a pod takes of a node, against figures worked out by hand from the rules of kube-scheduler."""

from pathlib import Path

import msgspec
import pytest

from kube.objects import Pod
from kube.pods.requests import charged_requests, pod_requests
from kube.versions import NEWEST, newest, scheduler_rules

DATA = Path(__file__).parents[2] / "data"
GI = 1 << 30


def container(name="c", *, sidecar=False, limits=None, ports=None, **requests):
    found = {"name": name, "resources": {"requests": {key.replace("_", "/"): value for key, value in requests.items()}}}
    if limits:
        found["resources"]["limits"] = limits
    if sidecar:
        found["restartPolicy"] = "Always"
    return found


def requests_of(status=None, rules=NEWEST, **spec):
    pod = msgspec.convert({"spec": spec, "status": status or {}}, Pod)
    return pod_requests(pod.spec, pod.status, rules)


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


# -- rules of versions: facts of kube-scheduler 1.36.3 and 1.37.1, each seen on that release ---------------------------

V1_32, V1_33, V1_36, V1_37 = map(scheduler_rules, ("v1.32.9", "v1.33.0-eks-1234", "v1.36.3", "v1.37.1"))


def given(name, allocated, actuated=None):
    resources = {"requests": {"cpu": actuated or allocated}}
    return {"name": name, "allocatedResources": {"cpu": allocated}, "resources": resources}


def swapped(reason=""):
    """A goes from 1 to 3 CPUs, B from 3 to 1, and the kubelet has not acted on it."""
    conditions = [{"type": "PodResizePending", "status": "True", "reason": reason}] if reason else []
    return {"conditions": conditions, "containerStatuses": [given("a", "1"), given("b", "3")]}


@pytest.mark.parametrize(("rules", "taken"), [(V1_32, 4000), (V1_33, 6000), (V1_36, 6000), (V1_37, 4000)])
def test_a_swap_in_place_counts_the_largest_of_each_container_up_to_1_36_and_the_largest_sum_from_1_37(rules, taken):
    containers = [container("a", cpu="3"), container("b", cpu="1")]
    assert requests_of(swapped(), rules, containers=containers) == {"cpu": taken}


@pytest.mark.parametrize("rules", [V1_36, V1_37])
def test_an_infeasible_swap_counts_what_is_given_in_1_36_and_in_1_37(rules):
    containers = [container("a", cpu="3"), container("b", cpu="1")]
    assert requests_of(swapped("Infeasible"), rules, containers=containers) == {"cpu": 4000}


@pytest.mark.parametrize(("rules", "taken"), [(V1_33, 1250), (V1_36, 1250), (V1_37, 1500)])
def test_overhead_counts_twice_in_1_37_once_the_kubelet_reports_the_pod_as_a_whole(rules, taken):
    """1 CPU and 250m: kubelet 1.37.1 reports 1250m for the pod, kube-scheduler adds the overhead again."""
    whole = {"allocatedResources": {"cpu": "1250m"}, "resources": {"requests": {"cpu": "1250m"}}}
    status = {**whole, "containerStatuses": [given("c", "1")]}
    spec = {"containers": [container(cpu="1")], "overhead": {"cpu": "250m"}}
    assert requests_of(None, rules, **spec) == {"cpu": 1250}
    assert requests_of(status, rules, **spec) == {"cpu": taken}


@pytest.mark.parametrize(("rules", "taken"), [(V1_36, 2000), (V1_37, 3000)])
def test_an_init_container_that_ends_is_counted_by_its_status_from_1_37_on(rules, taken):
    status = {"initContainerStatuses": [given("i", "3")], "containerStatuses": [given("c", "1")]}
    spec = {"containers": [container(cpu="1")], "initContainers": [container("i", cpu="2")]}
    assert requests_of(status, rules, **spec) == {"cpu": taken}


@pytest.mark.parametrize(("rules", "taken"), [(V1_33, 4000), (V1_36, 6000), (V1_37, 6000)])
def test_a_resize_of_the_whole_pod_counts_by_its_status_from_1_36_on(rules, taken):
    status = {"allocatedResources": {"cpu": "2"}, "resources": {"requests": {"cpu": "6"}}}
    assert requests_of(status, rules, containers=[container(cpu="1")], resources={"requests": {"cpu": "4"}}) == {
        "cpu": taken
    }


def test_requests_of_the_pod_fill_in_from_its_status_in_1_37_what_its_spec_does_not_name():
    status = {"resources": {"requests": {"cpu": "4", "memory": "2Gi"}}}
    spec = {"containers": [container(cpu="1", memory="1Gi")], "resources": {"requests": {"cpu": "4"}}}
    assert requests_of(status, V1_36, **spec) == {"cpu": 4000, "memory": GI}
    assert requests_of(status, V1_37, **spec) == {"cpu": 4000, "memory": 2 * GI}


@pytest.mark.parametrize("version", ["", "unknown", "v1", "v" + "9" * 5000 + ".1"])
def test_a_version_that_says_nothing_counts_as_the_newest(version):
    assert scheduler_rules(version) == V1_37


def test_the_newest_of_versions_is_the_one_with_the_largest_minor():
    assert newest(["v1.9.3", "", "v1.36.2", "v1.35.9-kwok"]) == "v1.36.2"
    assert not newest([])


# -- what quota is charged: no more than a pod asked for, whatever its node says ---------------------------------------

NODE = {"cpu": 32000, "memory": 256 * GI, "nvidia.com/gpu": 8}
FORGED = msgspec.yaml.decode((DATA / "attack-03-node-status" / "status.yaml").read_bytes())["status"]


def charged(status, meta=None, **spec):
    return charged_requests(msgspec.convert({"metadata": meta or {}, "spec": spec, "status": status}, Pod), NODE, V1_37)


def asks(cpu="1"):
    return container(cpu=cpu, **{"nvidia.com/gpu": "4"})


def test_a_node_that_reports_10_to_the_12_gpus_of_a_pod_changes_nothing_of_what_is_charged():
    assert charged(FORGED, containers=[asks()]) == {"cpu": 1000, "nvidia.com/gpu": 4}


@pytest.mark.parametrize("kind", ["PodResizePending", "PodResizeInProgress"])
def test_while_a_resize_is_under_way_no_more_than_the_node_has_is_charged_and_no_more_gpus(kind):
    forged = {**FORGED, "conditions": [{"type": kind, "status": "True", "reason": "Deferred"}]}
    assert charged(forged, containers=[asks()]) == {"cpu": 32000, "nvidia.com/gpu": 4}


def test_a_resize_of_what_runs_is_charged_by_what_its_containers_have_until_it_is_done():
    status = {
        "conditions": [{"type": "PodResizeInProgress", "status": "True"}],
        "containerStatuses": [given("c", "2", "6")],
    }
    assert charged(status, containers=[asks("2")]) == {"cpu": 6000, "nvidia.com/gpu": 4}
    unseen = {"observedGeneration": 2, "containerStatuses": [given("c", "6")]}
    assert charged(unseen, {"generation": 3}, containers=[asks("2")]) == {"cpu": 6000, "nvidia.com/gpu": 4}
    assert charged(unseen, {"generation": 2}, containers=[asks("2")]) == {"cpu": 2000, "nvidia.com/gpu": 4}


def test_an_infeasible_resize_is_charged_as_what_the_pod_has():
    assert charged(resizing("Infeasible"), containers=[asks("50")]) == {"cpu": 3000, "nvidia.com/gpu": 4}


def test_overhead_is_charged_once_whatever_the_kubelet_reports():
    whole = {"allocatedResources": {"cpu": "1250m"}, "resources": {"requests": {"cpu": "1250m"}}}
    assert charged(whole, containers=[container(cpu="1")], overhead={"cpu": "250m"}) == {"cpu": 1250}

"""What the API server adds to pods (Kubernetes 1.37), and what of a pod decides its place."""

import msgspec
import pytest

from kube.objects import LimitRange, PodSpec, RuntimeClass
from kube.pods.convert import pod_requests
from kube.pods.defaults import with_defaults
from kube.pods.limits import MOST_RESOURCES
from kube.pods.placement_fields import TOO_LARGE, gang_fields, placement_fields


def read(kind, body):
    return msgspec.convert(body, kind)


def spec(**more):
    return read(PodSpec, {"containers": [{"name": "c", "resources": {"requests": {"memory": "1Gi"}}}], **more})


def limits(*items):
    return read(LimitRange, {"metadata": {"name": "d"}, "spec": {"limits": list(items)}})


CPU = {"type": "Container", "default": {"cpu": "4"}, "defaultRequest": {"cpu": "2"}}


def test_a_container_that_says_nothing_gets_the_default_request_and_limit_of_its_namespace():
    (made,) = with_defaults(spec(), [limits({"type": "Pod", "default": {"cpu": "9"}}, CPU)], None).containers
    assert made.resources.requests == {"memory": "1Gi", "cpu": "2"}
    assert made.resources.limits == {"cpu": "4"}


def test_a_limit_of_its_own_is_its_request_before_the_default_request_counts():
    own = {"containers": [{"name": "c", "resources": {"limits": {"cpu": "3"}}}]}
    (made,) = with_defaults(read(PodSpec, own), [limits(CPU)], None).containers
    assert (made.resources.requests, made.resources.limits) == ({"cpu": "3"}, {"cpu": "3"})


def test_init_containers_get_the_defaults_too():
    found = with_defaults(spec(initContainers=[{"name": "i"}]), [limits(CPU)], None)
    assert pod_requests(found)["cpu"] == 2000
    assert found.init_containers[0].resources.limits == {"cpu": "4"}


def test_a_runtime_class_adds_its_overhead_and_where_its_pods_may_go():
    body = {
        "metadata": {"name": "sandboxed"},
        "overhead": {"podFixed": {"cpu": "250m"}},
        "scheduling": {"nodeSelector": {"sandbox": "yes"}, "tolerations": [{"key": "sandbox", "operator": "Exists"}]},
    }
    found = with_defaults(spec(nodeSelector={"pool": "a"}), [], read(RuntimeClass, body))
    assert found.node_selector == {"pool": "a", "sandbox": "yes"}
    assert [one.key for one in found.tolerations] == ["sandbox"]
    assert pod_requests(found) == {"memory": 1 << 30, "cpu": 250}
    assert with_defaults(found, [], read(RuntimeClass, body)) == found, "a pod that has it all stays as it is"


ADDED = {
    "tolerations": [
        {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
        {
            "key": "node.kubernetes.io/unreachable",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": 300,
        },
    ],
    "priority": 5,
    "priorityClassName": "usual",
    "preemptionPolicy": "PreemptLowerPriority",
    "schedulerName": "default-scheduler",
    "schedulingGates": [{"name": "g"}],
    "volumes": [{"name": "kube-api-access-x", "projected": {}}],
    "schedulingGroup": {"podGroupName": "of-the-job-controller"},
}


def test_what_the_api_server_adds_to_every_pod_is_no_difference():
    assert placement_fields(spec(**ADDED), "usual") == placement_fields(spec(), "usual")
    limited = {"containers": [{"name": "c", "resources": {"limits": {"cpu": "1"}}}]}
    filled = {"containers": [{"name": "c", "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1000m"}}}]}
    assert placement_fields(read(PodSpec, limited)) == placement_fields(read(PodSpec, filled))


def test_what_match_label_keys_stand_for_is_no_difference():
    """Since Kubernetes 1.31 the API server merges it into the selector of the pod."""
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "a"}}, "matchLabelKeys": ["hash"]}
    merged = {**term["labelSelector"], "matchExpressions": [{"key": "hash", "operator": "In", "values": ["1"]}]}

    def near(one):
        return spec(affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [one]}})

    assert placement_fields(near(term)) == placement_fields(near({**term, "labelSelector": merged}))


@pytest.mark.parametrize(
    ("more", "by_others"),
    [
        ({"nodeSelector": {"zone": "a"}}, False),
        ({"tolerations": [{"key": "t", "operator": "Exists"}]}, False),
        ({"overhead": {"cpu": "1"}}, False),
        ({"containers": [{"name": "c", "resources": {"requests": {"memory": "2Gi"}}}]}, False),
        ({"initContainers": [{"name": "i", "restartPolicy": "Always"}]}, False),
        ({"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}]}, False),
        ({"schedulerName": "another"}, False),
        ({"priorityClassName": "high"}, False),
        ({"hostNetwork": True, "containers": [{"name": "c", "ports": [{"containerPort": 80}]}]}, True),
        ({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}, True),
        ({"topologySpreadConstraints": [{"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]}, True),
        (
            {
                "affinity": {
                    "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}
                }
            },
            True,
        ),
    ],
)
def test_whatever_decides_where_a_pod_may_run_is_a_difference(more, by_others):
    assert placement_fields(spec(**more)) != placement_fields(spec())
    assert (gang_fields(spec(**more)) != gang_fields(spec())) is by_others


def test_one_with_more_resources_than_are_counted_is_compared_without_reading_them():
    """A tenant's pod of 90 containers with 1,000 resources each took the controller 0.8 s at each look."""
    requests = {f"example.com/r{number}": "not read" for number in range(MOST_RESOURCES + 1)}
    large = msgspec.convert({"containers": [{"name": "c", "resources": {"requests": requests}}]}, PodSpec)
    assert placement_fields(large) == (TOO_LARGE,)
    assert placement_fields(msgspec.structs.replace(large, scheduler_name="other")) == (TOO_LARGE,)
    fits = dict.fromkeys([*requests][:-1], "1")
    few = msgspec.convert({"containers": [{"name": "c", "resources": {"requests": fits}}]}, PodSpec)
    assert placement_fields(few) != (TOO_LARGE,)

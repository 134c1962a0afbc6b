"""Which features pods need of a kubelet, as kube-scheduler 1.36 and 1.37 find them in a spec (NodeDeclaredFeatures)."""

import msgspec
import pytest

from kube.objects import Node, PodSpec
from kube.pods import convert
from kube.pods.features import needed_features
from kube.versions import scheduler_rules

RESTART_ALL = "RestartAllContainersOnContainerExits"
USERS = "UserNamespacesHostNetworkSupport"
OPTIONS = "VolumeBindMountOptions"
MOUNTED = [{"name": "v", "mountPath": "/v"}, {"name": "w", "mountPath": "/w", "bindMountOptions": ["noexec"]}]


def rule(action):
    return [{"action": action, "exitCodes": {"operator": "In", "values": [42]}}]


@pytest.mark.parametrize(
    ("spec", "needs"),
    [
        ({"containers": [{"name": "c", "restartPolicyRules": rule("RestartAllContainers")}]}, (RESTART_ALL,)),
        ({"initContainers": [{"name": "c", "restartPolicyRules": rule("RestartAllContainers")}]}, (RESTART_ALL,)),
        ({"containers": [{"name": "c", "restartPolicyRules": rule("Restart")}]}, ()),
        ({"hostNetwork": True, "hostUsers": False}, (USERS,)),
        ({"hostNetwork": True, "hostUsers": True}, ()),
        ({"hostNetwork": True}, ()),
        ({"hostUsers": False}, ()),
        ({"containers": [{"name": "c", "volumeMounts": MOUNTED}]}, (OPTIONS,)),
        ({"initContainers": [{"name": "c", "volumeMounts": MOUNTED}]}, (OPTIONS,)),
        ({"containers": [{"name": "c", "volumeMounts": MOUNTED[:1]}]}, ()),
        ({"containers": [{"name": "c"}]}, ()),
    ],
)
def test_features_that_a_pod_needs_in_1_37(spec, needs):
    assert needed_features(msgspec.convert(spec, PodSpec)) == needs


def test_of_mounts_only_those_with_options_are_kept():
    body = {"containers": [{"name": "c", "volumeMounts": MOUNTED}, {"name": "d", "volumeMounts": MOUNTED[:1]}]}
    kept = [one.volume_mounts for one in msgspec.json.decode(msgspec.json.encode(body), type=PodSpec).containers]
    assert [len(one or ()) for one in kept] == [1, 0]


@pytest.mark.parametrize(
    ("version", "declares"),
    [
        ("v1.37.1", (RESTART_ALL,)),
        ("v1.36.3", (RESTART_ALL,)),
        ("v1.35.4", (RESTART_ALL, USERS, OPTIONS)),  # its kube-scheduler does not ask for any: all nodes will do
    ],
)
def test_a_node_declares_what_its_kubelet_says_from_1_36_on_and_everything_before(version, declares):
    status = {"declaredFeatures": ["ExtendWebSocketsToKubelet", RESTART_ALL]}
    node = msgspec.convert({"metadata": {"name": "n"}, "status": status}, Node)
    assert convert.node(node, rules=scheduler_rules(version)).features == declares

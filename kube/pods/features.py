"""Features that pods need of their node's kubelet, as kube-scheduler finds them in a pod's spec.

Source: plugin NodeDeclaredFeatures and ``InferForScheduling`` of each feature in
``k8s.io/component-helpers/nodedeclaredfeatures`` of Kubernetes 1.37.1; 1.36.3 has all but the last of them. Other
features that nodes declare concern changes of pods that run.
"""

from collections.abc import Callable, Iterable
from typing import Final

from kube.objects import Container, Node, PodSpec
from kube.versions import SchedulerRules

_RESTART_ALL: Final = "RestartAllContainers"


def _restarts_all(spec: PodSpec) -> bool:
    return any(rule.action == _RESTART_ALL for one in _containers(spec) for rule in one.restart_policy_rules or ())


def _has_users_in_host_network(spec: PodSpec) -> bool:
    return spec.host_network and spec.host_users is False


def _has_mount_options(spec: PodSpec) -> bool:
    return any(mount.bind_mount_options for one in _containers(spec) for mount in one.volume_mounts or ())


def _containers(spec: PodSpec) -> Iterable[Container]:
    return (*(spec.containers or ()), *(spec.init_containers or ()))


_NEEDED: Final[dict[str, Callable[[PodSpec], bool]]] = {
    "RestartAllContainersOnContainerExits": _restarts_all,
    "UserNamespacesHostNetworkSupport": _has_users_in_host_network,
    "VolumeBindMountOptions": _has_mount_options,
}


def needed_features(spec: PodSpec) -> tuple[str, ...]:
    """The features that a node must declare for pods of this spec."""
    return tuple([name for name, is_needed in _NEEDED.items() if is_needed(spec)])


def declared_features(node: Node, rules: SchedulerRules) -> tuple[str, ...]:
    """Those that a node declares of what a pod may need; all of it where kube-scheduler does not look."""
    if not rules.reads_features:
        return tuple(_NEEDED)
    declared = node.status.declared_features
    return tuple([name for name in _NEEDED if name in declared]) if declared else ()

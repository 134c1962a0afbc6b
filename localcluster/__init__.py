"""A real control plane on one machine without containers.

``LocalCluster`` runs etcd, kube-apiserver, kube-controller-manager, kube-scheduler and KWOK as plain processes on the
loopback interface; ``add_nodes`` makes nodes that KWOK plays the kubelet for. See docs/localcluster.md.
"""

from localcluster.cluster import LocalCluster
from localcluster.errors import (
    AlreadyUp,
    BinariesMissing,
    ComponentFailed,
    KubeletsRefused,
    LocalClusterError,
    NotReady,
)
from localcluster.health import ComponentStatus
from localcluster.nodes import Fleet, add_nodes, wait_ready
from localcluster.options import API_SERVER, COMPONENTS, CONTROLLER_MANAGER, ETCD, KUBELETS, KWOK, SCHEDULER, Options
from localcluster.real.layout import RealNode

__all__ = [
    "API_SERVER",
    "COMPONENTS",
    "CONTROLLER_MANAGER",
    "ETCD",
    "KUBELETS",
    "KWOK",
    "SCHEDULER",
    "AlreadyUp",
    "BinariesMissing",
    "ComponentFailed",
    "ComponentStatus",
    "Fleet",
    "KubeletsRefused",
    "LocalCluster",
    "LocalClusterError",
    "NotReady",
    "Options",
    "RealNode",
    "add_nodes",
    "wait_ready",
]

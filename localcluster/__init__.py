"""A real control plane on one machine without containers.

``LocalCluster`` runs etcd, kube-apiserver, kube-controller-manager, kube-scheduler and KWOK as plain processes on the
loopback interface; ``add_nodes`` makes nodes that KWOK plays the kubelet for. See docs/localcluster.md.

1. `programs` finds, downloads or builds every program.
2. `cluster` reserves `ports`, makes certificates (`pki`), and starts each `process` with its `commands`.
3. `health` says when they are ready; `kwok` prepares KWOK; `nodes` makes nodes.
4. `kubelets` plays the kubelets of machines with NUMA zones, `dra` publishes their devices, `real` runs real kubelets.

`supervisor` owns a cluster that outlives the command which started it.
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

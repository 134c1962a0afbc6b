"""What can be chosen about a local control plane."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

ETCD = "etcd"
API_SERVER = "kube-apiserver"
CONTROLLER_MANAGER = "kube-controller-manager"
SCHEDULER = "kube-scheduler"
KWOK = "kwok"
KUBELETS = "kubelets"  # of simulated machines; only where there are some (`LocalCluster.play_kubelets`)
REAL_KINDS = ("runtime", "kubelet")  # the processes of a node with a real kubelet, in order of start
COMPONENTS = (ETCD, API_SERVER, CONTROLLER_MANAGER, SCHEDULER, KWOK)  # in order of start


def real_name(kind: str, node: str) -> str:
    """The name of one of a real node's processes: ``kubelet-real-b1-r1-h1``."""
    return f"{kind}-{node}"


def real_parts(name: str) -> tuple[str, str] | None:
    """The inverse of ``real_name``; None for another component."""
    kind, dash, node = name.partition("-")
    return (kind, node) if dash and kind in REAL_KINDS else None


@dataclass(frozen=True, kw_only=True)
class Options:
    """How the components run. The defaults are for speed on few cores with everything that decides being real.

    ``priority_and_fairness``: off by default: on two cores it costs throughput and protects nobody on a machine with
    one user. Turn it on to see HTTP 429 as clients of a busy cluster do.
    ``uncached``: resources (``configmaps``) that the API server serves from etcd instead of from its watch cache, so
    that a compaction is seen at once as 410 by a watch or a list from an old resourceVersion.
    ``feature_gates``: for all Kubernetes components. ``extra_args``: component name -> more arguments.
    ``scheduler_extenders``: URLs of HTTP extenders that kube-scheduler asks to filter nodes, by their names.
    """

    priority_and_fairness: bool = False
    uncached: Sequence[str] = ()
    feature_gates: Mapping[str, bool] = field(default_factory=dict)
    extra_args: Mapping[str, Sequence[str]] = field(default_factory=dict)
    scheduler_extenders: Sequence[str] = ()

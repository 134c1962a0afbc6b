"""The command line of every component: what runs, with which certificates, on which port.

Limits that would make our own measurements measure something else are raised (client QPS, concurrent syncs, KWOK's
parallelism) or removed (etcd's fsync: a killed process loses nothing by that, only a killed machine would).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from localcluster.options import API_SERVER, CONTROLLER_MANAGER, ETCD, KWOK, SCHEDULER, Options

SERVICE_RANGE = "10.96.0.0/16"
POD_RANGE = "10.128.0.0/9"
# Far above what a component sends, so that no measurement is one of client-side throttling.
CLIENT_QPS = 5000
CLIENT_BURST = 10000
LEASE_SECONDS = 160  # KWOK renews each node's lease four times in this time: 640 nodes cost 16 writes a second
# Above the lease of 160 seconds: a node must not be lost between two renewals on a busy machine.
NODE_GRACE_SECONDS = 200

# They need a kubelet or a metrics server, or write to every node for a kubelet's sake.
CONTROLLERS_OFF = (
    "horizontal-pod-autoscaler-controller",
    "node-ipam-controller",
    "persistentvolume-attach-detach-controller",
    "persistentvolume-expander-controller",
    "ttl-controller",
)


@dataclass(frozen=True)
class ClusterLayout:
    """Where a cluster lives: its folder, the programs, the ports."""

    root: Path
    programs: Mapping[str, Path]
    ports: Mapping[str, int]

    @property
    def pki(self) -> Path:
        """Certificates, keys and kubeconfigs."""
        return self.root / "pki"

    def kubeconfig(self, user: str) -> Path:
        """The kubeconfig of one of ``pki.USERS``."""
        return self.pki / f"{user}.kubeconfig"

    def log(self, component: str) -> Path:
        """The log file of a component."""
        return self.root / "logs" / f"{component}.log"

    @property
    def api_url(self) -> str:
        """Where the API server listens."""
        return f"https://127.0.0.1:{self.ports[API_SERVER]}"

    @property
    def etcd_url(self) -> str:
        """Where etcd listens for clients."""
        return f"https://127.0.0.1:{self.ports[ETCD]}"


def command(component: str, layout: ClusterLayout, options: Options) -> list[str]:
    """Program and arguments of ``component``; writes the configuration file it needs, where it needs one."""
    arguments = _ARGUMENTS[component](layout, options)
    return [str(layout.programs[component]), *arguments, *options.extra_args.get(component, ())]


def _etcd(layout: ClusterLayout, _: Options) -> list[str]:
    pki, peer = layout.pki, f"https://127.0.0.1:{layout.ports['etcd-peer']}"
    return [
        "--name=local",
        f"--data-dir={layout.root / 'etcd'}",
        f"--listen-client-urls={layout.etcd_url}",
        f"--advertise-client-urls={layout.etcd_url}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=local={peer}",
        "--client-cert-auth=true",
        f"--trusted-ca-file={pki / 'etcd-ca.crt'}",
        f"--cert-file={pki / 'etcd.crt'}",
        f"--key-file={pki / 'etcd.key'}",
        "--peer-client-cert-auth=true",
        f"--peer-trusted-ca-file={pki / 'etcd-ca.crt'}",
        f"--peer-cert-file={pki / 'etcd.crt'}",
        f"--peer-key-file={pki / 'etcd.key'}",
        "--unsafe-no-fsync=true",
        # Four times the default of 2 GiB: a full etcd refuses all writes.
        f"--quota-backend-bytes={8 << 30}",
        "--log-level=warn",
    ]


def _api_server(layout: ClusterLayout, options: Options) -> list[str]:
    pki = layout.pki
    # Nodes and roles, unless the arguments that are added bring a configuration, which takes no mode beside it.
    configured = any(each.startswith("--authorization-config") for each in options.extra_args.get(API_SERVER, ()))
    authorization = [] if configured else ["--authorization-mode=Node,RBAC"]
    # Priority and fairness shares out the sum of the two limits; without it a limit of 0 is none.
    no_limits = [
        "--enable-priority-and-fairness=false",
        "--max-requests-inflight=0",
        "--max-mutating-requests-inflight=0",
    ]
    return [
        f"--etcd-servers={layout.etcd_url}",
        f"--etcd-cafile={pki / 'etcd-ca.crt'}",
        f"--etcd-certfile={pki / 'etcd-client.crt'}",
        f"--etcd-keyfile={pki / 'etcd-client.key'}",
        # Both would ask etcd again and again for numbers that nobody reads here.
        "--etcd-count-metric-poll-period=0",
        "--etcd-db-metric-poll-interval=0",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        "--endpoint-reconciler-type=none",  # it refuses loopback addresses
        f"--secure-port={layout.ports[API_SERVER]}",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        f"--client-ca-file={pki / 'ca.crt'}",
        *authorization,
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki / 'service-account.pub'}",
        f"--service-account-signing-key-file={pki / 'service-account.key'}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        "--enable-admission-plugins=NodeRestriction",
        "--disable-admission-plugins=TaintNodesByCondition",  # nodes that are created ready can be used at once
        "--allow-privileged=true",
        "--profiling=false",
        *([] if options.priority_and_fairness else no_limits),
        *(["--watch-cache-sizes=" + ",".join(f"{name}#0" for name in options.uncached)] if options.uncached else []),
        *_feature_gates(options),
    ]


def _controller_manager(layout: ClusterLayout, options: Options) -> list[str]:
    pki = layout.pki
    return [
        *_serving(layout, CONTROLLER_MANAGER),
        f"--kubeconfig={layout.kubeconfig(CONTROLLER_MANAGER)}",
        # There is one of it, and a lease would delay each start and cost writes.
        "--leader-elect=false",
        # As in clusters: each controller has only its own rights, so missing rights show here too.
        "--use-service-account-credentials=true",
        f"--controllers=*,{','.join(f'-{name}' for name in CONTROLLERS_OFF)}",
        f"--root-ca-file={pki / 'ca.crt'}",
        f"--service-account-private-key-file={pki / 'service-account.key'}",
        f"--cluster-signing-cert-file={pki / 'ca.crt'}",
        f"--cluster-signing-key-file={pki / 'ca.key'}",
        f"--kube-api-qps={CLIENT_QPS}",
        f"--kube-api-burst={CLIENT_BURST}",
        "--concurrent-job-syncs=16",
        "--concurrent-gc-syncs=16",
        "--concurrent-namespace-syncs=16",
        "--concurrent-replicaset-syncs=8",
        "--concurrent-statefulset-syncs=8",
        f"--node-monitor-grace-period={NODE_GRACE_SECONDS}s",
        # `LocalCluster.stop` kills it after two seconds.
        "--controller-shutdown-timeout=1s",
        "--profiling=false",
        *_feature_gates(options),
    ]


def _scheduler(layout: ClusterLayout, options: Options) -> list[str]:
    config: dict[str, Any] = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {
            "kubeconfig": str(layout.kubeconfig(SCHEDULER)),
            "qps": CLIENT_QPS,
            "burst": CLIENT_BURST,
            "contentType": "application/vnd.kubernetes.protobuf",
        },
        "leaderElection": {"leaderElect": False},
        "enableProfiling": False,
    }
    if options.scheduler_extenders:
        config["extenders"] = [
            # Nodes go by their names alone (nodeCacheCapable): with whole objects each call would carry megabytes.
            {"urlPrefix": url, "filterVerb": "filter", "nodeCacheCapable": True, "httpTimeout": "5s"}
            for url in options.scheduler_extenders
        ]
    path = layout.root / "scheduler.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return [*_serving(layout, SCHEDULER), f"--config={path}", *_feature_gates(options)]


def _serving(layout: ClusterLayout, component: str) -> list[str]:
    """Health and metrics of the controller manager and the scheduler; the admin may read them."""
    kubeconfig = layout.kubeconfig(component)
    return [
        "--bind-address=127.0.0.1",
        f"--secure-port={layout.ports[component]}",
        f"--tls-cert-file={layout.pki / 'component.crt'}",
        f"--tls-private-key-file={layout.pki / 'component.key'}",
        f"--client-ca-file={layout.pki / 'ca.crt'}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        # It starts beside the API server, and must not end because that does not answer yet.
        "--authentication-tolerate-lookup-failure=true",
    ]


def _kwok(layout: ClusterLayout, _: Options) -> list[str]:
    config = {
        "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
        "kind": "KwokConfiguration",
        "options": {
            "cidr": POD_RANGE,
            "manageNodesWithAnnotationSelector": "kwok.x-k8s.io/node=fake",
            "nodeLeaseDurationSeconds": LEASE_SECONDS,
            "serverAddress": f"127.0.0.1:{layout.ports[KWOK]}",
            "enableDebuggingHandlers": False,
            "podPlayStageParallelism": 16,
            "nodePlayStageParallelism": 16,
            "nodeLeaseParallelism": 16,
            "podsOnNodeSyncParallelism": 16,
        },
    }
    path = layout.root / "kwok.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    stages = Path(__file__).with_name("stages.yaml")
    # Two configurations: how KWOK runs, and the stages by which it plays.
    return [f"--kubeconfig={layout.kubeconfig(KWOK)}", f"--config={path}", f"--config={stages}"]


def _feature_gates(options: Options) -> list[str]:
    gates = ",".join(f"{name}={str(on).lower()}" for name, on in options.feature_gates.items())
    return [f"--feature-gates={gates}"] if gates else []


_ARGUMENTS: Mapping[str, Callable[[ClusterLayout, Options], list[str]]] = {
    ETCD: _etcd,
    API_SERVER: _api_server,
    CONTROLLER_MANAGER: _controller_manager,
    SCHEDULER: _scheduler,
    KWOK: _kwok,
}

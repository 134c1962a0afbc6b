"""Whether the components of a cluster are ready, asked over the wire: for its owner and for other processes alike."""

from collections.abc import Mapping
from dataclasses import dataclass

from localcluster import kwok
from localcluster.api import Endpoint
from localcluster.commands import ClusterLayout
from localcluster.kubelets.service import READY_FILE
from localcluster.options import API_SERVER, COMPONENTS, ETCD, KUBELETS, KWOK, real_parts
from localcluster.process import usage
from localcluster.real import service as real
from localcluster.real.layout import node_folder


@dataclass(frozen=True)
class ComponentStatus:
    """One line of ``topogate local status``. Memory in bytes, CPU in seconds since the component's start."""

    name: str
    state: str  # Ready, NotReady, Stopped
    pid: int | None
    port: int
    memory: int
    cpu_seconds: float
    log: str


def api(layout: ClusterLayout) -> Endpoint:
    """The API server, as administrator."""
    return Endpoint(
        layout.api_url, ca=layout.pki / "ca.crt", cert=layout.pki / "admin.crt", key=layout.pki / "admin.key"
    )


def etcd(layout: ClusterLayout) -> Endpoint:
    """Etcd's JSON gateway."""
    pki = layout.pki
    return Endpoint(layout.etcd_url, ca=pki / "etcd-ca.crt", cert=pki / "etcd-client.crt", key=pki / "etcd-client.key")


def is_ready(name: str, layout: ClusterLayout) -> bool:
    """Whether a component answers that it is ready."""
    if name == ETCD:
        return etcd(layout).is_ok("/health")
    if name == API_SERVER:
        return api(layout).is_ok("/readyz")
    if name == KUBELETS:
        return (layout.root / READY_FILE).exists()
    if name == KWOK:
        return kwok.is_healthy(layout.ports[KWOK])
    if parts := real_parts(name):
        kind, node = parts
        return real.is_ready(kind, node_folder(layout.root, node), api(layout))
    return Endpoint(f"https://127.0.0.1:{layout.ports[name]}", ca=layout.pki / "ca.crt").is_ok("/healthz")


def statuses(layout: ClusterLayout, pids: Mapping[str, int]) -> list[ComponentStatus]:
    """The state of every component; one without a process id in ``pids`` is stopped.

    Simulated and real kubelets are among them where they run; they have no port (0).
    """
    more = [name for name in pids if name == KUBELETS or real_parts(name)]
    found: list[ComponentStatus] = []
    for name in (*COMPONENTS, *more):
        pid, port = pids.get(name), layout.ports.get(name, 0)
        memory, cpu = (0, 0.0) if pid is None else usage(pid)
        state = "Stopped" if pid is None else "Ready" if is_ready(name, layout) else "NotReady"
        found.append(ComponentStatus(name, state, pid, port, memory, cpu, str(layout.log(name))))
    return found

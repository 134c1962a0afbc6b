"""Where things are in the folder of one node with a real kubelet, and what the node is to be."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

FOLDER: Final = "real"  # in the cluster's folder: a folder for each node


class RealNode(msgspec.Struct, frozen=True, kw_only=True):
    """One node: its machine and kubelet in words (``localcluster.kubelets.specs``), how it is known in the cluster.

    ``taints`` as Kubernetes writes them.
    """

    name: str
    machine: str
    kubelet: str = ""
    pods: int = 110
    labels: Mapping[str, str] = {}
    taints: tuple[Mapping[str, str], ...] = ()


@dataclass(frozen=True)
class NodeFolder:
    """The files of one node. What the kubelet sees as /var/lib/kubelet is ``kubelet``."""

    root: Path

    @property
    def spec(self) -> Path:
        """The `RealNode` as JSON."""
        return self.root / "node.json"

    @property
    def kubelet(self) -> Path:
        """The kubelet's own directory: configuration, credentials, state files, sockets."""
        return self.root / "kubelet"

    @property
    def config(self) -> Path:
        """The kubelet's configuration."""
        return self.kubelet / "config.yaml"

    @property
    def kubeconfig(self) -> Path:
        """The node's own credentials."""
        return self.kubelet / "kubeconfig"

    @property
    def device_plugins(self) -> Path:
        """Where plugins register."""
        return self.kubelet / "device-plugins"

    @property
    def pod_resources(self) -> Path:
        """The socket of the podresources API."""
        return self.kubelet / "pod-resources" / "kubelet.sock"

    @property
    def runtime_socket(self) -> Path:
        """The container runtime's socket."""
        return self.kubelet / "runtime.sock"

    @property
    def records(self) -> Path:
        """What the container runtime holds."""
        return self.root / "containers.bin"

    @property
    def unhealthy(self) -> Path:
        """Ids of devices that are to be unhealthy, one a line; need not be there."""
        return self.root / "unhealthy"

    @property
    def registered(self) -> Path:
        """Which of the kubelet's lives has all device plugins: ``life`` when they were registered."""
        return self.root / "registered"

    def life(self) -> str:
        """Changes with every start of the kubelet, which makes this socket anew; "" before its first."""
        try:
            found = (self.device_plugins / "kubelet.sock").stat()
        except FileNotFoundError:
            return ""
        # Both: file systems give an inode's number away again at once.
        return f"{found.st_ino} {found.st_ctime_ns}"

    @property
    def sysfs(self) -> Path:
        """The described machine's sysfs."""
        return self.root / "sys"

    @property
    def procfs(self) -> Path:
        """The described machine's ``cpuinfo`` and ``meminfo``."""
        return self.root / "proc"

    def node(self) -> RealNode:
        """What the node is to be."""
        return msgspec.json.decode(self.spec.read_bytes(), type=RealNode)


def node_folder(cluster: Path, name: str) -> NodeFolder:
    """The folder of the node ``name`` in a cluster's folder."""
    return NodeFolder(cluster / FOLDER / name)

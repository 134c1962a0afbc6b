"""The processes of nodes with real kubelets: what they need before they start, and whether they are ready.

Of each node two: ``runtime-NODE`` (``localcluster.real.__main__``) and then ``kubelet-NODE``, which does not start
without the other. What a node is, its machine, kubelet, labels and taints, is settled when it is made; one that is
described otherwise is made anew.
"""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from clock import Clock
from localcluster import pki
from localcluster.api import Endpoint, RequestRefused
from localcluster.commands import ClusterLayout
from localcluster.errors import KubeletsRefused
from localcluster.kubelets.specs import build, parse_machine
from localcluster.options import real_name
from localcluster.process import PACKAGES, ControlPlaneProcess, module_command
from localcluster.programs.binaries import Binaries
from localcluster.programs.build import KUBELET
from localcluster.real import configuration, enter, machine
from localcluster.real.layout import FOLDER, NodeFolder, RealNode, node_folder

WANTED_FILE = "real-kubelets.json"
CHECK_SECONDS = 20
SIMULATED = "kwok.x-k8s.io/node"
_ENTER = (sys.executable, "-I", "-S", str(enter.__file__))


def remember(cluster: Path, nodes: Iterable[RealNode]) -> None:
    """Have whoever owns the cluster run these and no others, now and whenever it starts the cluster again."""
    pki.write_private(cluster / WANTED_FILE, msgspec.json.encode(list(nodes)))


def wanted(cluster: Path) -> list[RealNode]:
    """What ``remember`` was told."""
    try:
        return msgspec.json.decode((cluster / WANTED_FILE).read_bytes(), type=list[RealNode])
    except (FileNotFoundError, msgspec.DecodeError):
        return []


def existing(cluster: Path) -> list[RealNode]:
    """The nodes that have a folder, by name."""
    return [NodeFolder(path.parent).node() for path in sorted((cluster / FOLDER).glob("*/node.json"))]


def check(api: Endpoint, nodes: Iterable[RealNode]) -> None:
    """Raise KubeletsRefused with the reason where these cannot run here."""
    if why := refusal():
        raise KubeletsRefused(f"this system does not let a kubelet run here: {why}")
    for node in nodes:
        if SIMULATED in (_read_node(api, node.name).get("metadata", {}).get("annotations") or {}):
            raise KubeletsRefused(f"node {node.name} is there and simulated: choose another prefix")


def refusal() -> str:
    """Why this system does not let this user give a kubelet namespaces of its own; "" where it does."""
    if sys.platform != "linux":
        return "a kubelet needs Linux"
    try:
        done = subprocess.run([*_ENTER, "--check"], capture_output=True, text=True, check=False, timeout=CHECK_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else done.stderr.strip() or f"status {done.returncode}"


def prepare(layout: ClusterLayout, node: RealNode, clock: Clock) -> None:
    """Write everything that the node's processes read; what they have written themselves stays."""
    folder = node_folder(layout.root, node.name)
    # The node's credentials go into it.
    folder.kubelet.mkdir(mode=0o700, parents=True, exist_ok=True)
    machine.write(build(parse_machine(node.machine), node.name), folder.sysfs, folder.procfs)
    folder.config.write_text(yaml.safe_dump(configuration.configuration(node), sort_keys=False))
    authority = pki.Authority.load(layout.pki, clock.utc())
    identity = authority.issue(f"system:node:{node.name}", "system:nodes")
    config = pki.kubeconfig(layout.api_url, authority.pair.cert, identity, node.name)
    pki.write_private(folder.kubeconfig, yaml.safe_dump(config, sort_keys=False).encode())
    folder.spec.write_bytes(msgspec.json.encode(node))  # the last: whoever finds it finds all


def components(
    layout: ClusterLayout, nodes: Sequence[RealNode], env: Mapping[str, str], binaries: Binaries
) -> list[ControlPlaneProcess]:
    """The processes, each node's runtime before its kubelet."""
    made = []
    for node in nodes:
        folder, address = node_folder(layout.root, node.name), _address()
        kubelet = [*_ENTER, str(folder.root), str(binaries.paths[KUBELET]), *configuration.arguments(node)]
        for name, command in (
            (real_name("runtime", node.name), module_command("localcluster.real", str(folder.root))),
            (real_name("kubelet", node.name), [*kubelet, *([f"--node-ip={address}"] if address else [])]),
        ):
            made.append(
                ControlPlaneProcess(
                    name,
                    command,
                    directory=layout.root,
                    log=layout.log(name),
                    env={**env, "PYTHONPATH": str(PACKAGES)},
                )
            )
    return made


def forget(layout: ClusterLayout, api: Endpoint, name: str) -> None:
    """Remove a node, whose processes have ended, from the cluster and its folder. Raises Refused and OSError."""
    try:
        # The node before its folder: if this fails, the folder is still there to try again.
        api.request("DELETE", _path(name))
    except RequestRefused as error:
        if error.status != 404:
            raise
    shutil.rmtree(node_folder(layout.root, name).root)


def is_ready(kind: str, folder: NodeFolder, api: Endpoint) -> bool:
    """Whether one of a node's processes does its work; ``kind``: runtime or kubelet."""
    serves = _listens(folder.pod_resources)
    # The plugins register only once a kubelet runs. Before that the runtime is ready without them.
    if kind == "runtime":
        return _listens(folder.runtime_socket) and (not serves or _has_devices(folder))
    if not serves or not _has_devices(folder):
        return False
    status = _read_node(api, folder.root.name).get("status", {})
    node = folder.node()
    devices = build(parse_machine(node.machine), node.name).devices
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions", ()))
    # A node may be Ready before its devices are in the status, and pods would be refused on it.
    return ready and devices.keys() <= status.get("allocatable", {}).keys()


def _has_devices(folder: NodeFolder) -> bool:
    """Whether all device plugins are registered with the kubelet that runs now."""
    try:
        return folder.registered.read_text() == folder.life()
    except FileNotFoundError:
        return False


def _read_node(api: Endpoint, name: str) -> dict[str, Any]:
    """The Node object; {} where there is none."""
    try:
        found: dict[str, Any] = msgspec.json.decode(api.request("GET", _path(name)))
    except (OSError, RequestRefused):
        return {}
    return found


def _path(name: str) -> str:
    return f"/api/v1/nodes/{name}"


def _listens(path: Path) -> bool:
    """Whether somebody accepts connections there; the path may be longer than a socket's may (unix(7): 107 bytes)."""
    try:
        folder = os.open(path.parent, os.O_PATH)
    except OSError:
        return False
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(f"/proc/self/fd/{folder}/{path.name}")
    except OSError:
        return False
    finally:
        os.close(folder)
    return True


def _address() -> str:
    """This machine's own address, as the network sees it; "" where it has none. Nothing is sent.

    Without one the kubelet would ask the resolver for its node's name, again and again.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
        try:
            # An address of documentation (RFC 5737). A datagram socket only chooses a route when it connects.
            connection.connect(("192.0.2.1", 9))
        except OSError:
            return ""
        found: str = connection.getsockname()[0]
    return "" if found.startswith("127.") else found

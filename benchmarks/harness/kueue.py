"""A real Kueue to measure beside: built from its Go module and installed as its release is, as a process of its own.

It differs from a released one in where it runs: its Service is a name for this machine, the certificate that it makes
is copied out of its Secret, as a kubelet would mount it, and nobody elects a leader, reads its metrics, or asks it what
is pending.
"""

import asyncio
import base64
import json
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from clock import SYSTEM
from crds.constants import Keys
from kube.client import Client
from kube.errors import KubeError
from kube.resources import SECRETS, Resource
from localcluster import LocalCluster
from localcluster.errors import BinariesMissing
from localcluster.nodes import BLOCK_LABEL, GROUP_LABEL, HOSTNAME_LABEL, RACK_LABEL
from localcluster.pki import write_private
from localcluster.ports import Reservation
from localcluster.process import ControlPlaneProcess
from localcluster.programs import build, golang

Object = dict[str, Any]

NAME: Final = "kueue"
NAMESPACE: Final = "kueue-system"
VERSION: Final = "0.19.2"
MODULE: Final = "sigs.k8s.io/kueue"
TOPOLOGIES, FLAVORS, CLUSTER_QUEUES, LOCAL_QUEUES = (
    Resource("kueue.x-k8s.io", "v1beta2", plural, kind, namespaced=kind == "LocalQueue")
    for plural, kind in (
        ("topologies", "Topology"),
        ("resourceflavors", "ResourceFlavor"),
        ("clusterqueues", "ClusterQueue"),
        ("localqueues", "LocalQueue"),
    )
)
PATIENCE_SECONDS: Final = 60.0
POLL_SECONDS: Final = 0.2
TOKEN_SECONDS: Final = 24 * 3600
# It runs as a process of ours, and nobody asks it what is pending.
_LEFT_OUT: Final = ("Deployment", "APIService")


@dataclass(frozen=True)
class Kueue:
    """The program, and its module's folder."""

    program: Path
    module: Path

    @classmethod
    def find(cls, progress: Callable[[str], None]) -> "Kueue":
        """From the cache; built first where it is not there. Raises BinariesMissing with Go's own words."""
        cache = build.cache_directory()
        cache.mkdir(parents=True, exist_ok=True)
        go = golang.find(cache, progress=progress)
        folder = cache / "bin" / f"{NAME}-{VERSION}-{go.version}"
        environment = {**go.environment(), "GOBIN": str(folder)}
        if not (folder / NAME).exists():
            progress(f"building Kueue {VERSION} (some minutes, once)")
            with build.alone(cache, progress):
                _told([str(go.path), "install", f"{MODULE}/cmd/{NAME}@v{VERSION}"], environment)
        return cls(folder / NAME, download(go, f"{MODULE}@v{VERSION}"))

    def objects(self, kubectl: Path, port: int) -> Iterator[Object]:
        """What its release installs, with its webhooks called at ``port`` of this machine."""
        text = _told([str(kubectl), "kustomize", str(self.module / "config" / "default")], os.environ)
        for each in yaml.safe_load_all(text):
            if each["kind"] in _LEFT_OUT:
                continue
            if each["kind"] == "Service":
                each["spec"] = {"type": "ExternalName", "externalName": "localhost"}
            called = [*each.get("webhooks", ()), each.get("spec", {}).get("conversion", {}).get("webhook", {})]
            for webhook in filter(None, called):
                webhook["clientConfig"]["service"]["port"] = port
            yield each

    def settings(self, folder: Path, webhook: int, health: int, more: Object) -> Object:
        """Its release's configuration, with our ports and folder, and ``more`` fields in place of its own."""
        file = self.module / "config" / "components" / "manager" / "controller_manager_config.yaml"
        told: Object = yaml.safe_load(file.read_text())
        return told | {
            "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": "127.0.0.1", "port": webhook, "certDir": str(folder)},
            "leaderElection": {"leaderElect": False},
            "featureGates": {"VisibilityOnDemand": False},
            **more,
        }


def download(go: golang.Go, module: str) -> Path:
    """The folder of a Go module, from Go's cache where it is there. Raises BinariesMissing with Go's own words."""
    answer = _told([str(go.path), "mod", "download", "-json", module], go.environment())
    return Path(json.loads(answer)["Dir"])


def quota(nodes: int, queues: int = 1) -> Object:
    """The resource group of each of some queues that own equal parts of the nodes: Kueue's form, and ours."""
    amounts = {"nvidia.com/gpu": 8 * nodes // queues, "cpu": 96 * nodes // queues, "memory": f"{768 * nodes}Gi"}
    resources = [{"name": name, "nominalQuota": amount} for name, amount in amounts.items()]
    return {"coveredResources": list(amounts), "flavors": [{"name": "tas", "resources": resources}]}


def asked(job: Object, level: str, *, required: bool) -> Object:
    """A Job as users of Kueue write it: in its queue, with the topology request on the pod template."""
    keys = Keys()
    meta = {**job["metadata"], "annotations": {}, "labels": {keys.queue_name: "queue-0"}}
    request = {(keys.required if required else keys.preferred)[1]: level}
    template = {**job["spec"]["template"], "metadata": {"annotations": request}}
    return {**job, "metadata": meta, "spec": {**job["spec"], "template": template}}


def _told(command: Sequence[str], environment: Mapping[str, str], told: str | None = None) -> str:
    done = subprocess.run(
        command, input=told, capture_output=True, text=True, check=False, env=dict(environment), cwd="/"
    )
    if done.returncode != 0:
        raise BinariesMissing(f"`{' '.join(command)}` failed:\n{done.stderr.strip()[-2000:]}")
    return done.stdout


@asynccontextmanager
async def installed(
    kueue: Kueue, cluster: LocalCluster, client: Client, more: Object
) -> AsyncIterator[ControlPlaneProcess]:
    """Kueue on a control plane; the process is made, and not started. It is gone afterwards.

    ``more``: fields of its configuration that differ from its release's.
    """
    async with AsyncExitStack() as stack:
        ports = Reservation(2)
        stack.callback(ports.close)
        webhook, health = ports.ports
        folder = cluster.directory / NAME
        folder.mkdir()
        (folder / "config.yaml").write_text(yaml.safe_dump(kueue.settings(folder, webhook, health, more)))
        objects = yaml.safe_dump_all(await asyncio.to_thread(list, kueue.objects(cluster.kubectl, webhook)))
        command = [str(cluster.kubectl), f"--kubeconfig={cluster.kubeconfig}", "apply", "--server-side", "-f", "-"]
        await asyncio.to_thread(_told, command, os.environ, objects)
        token = await client.request_token("kueue-controller-manager", NAMESPACE, TOKEN_SECONDS)
        kubeconfig = cluster.token_kubeconfig(token, NAME)
        command = [str(kueue.program), f"--config={folder / 'config.yaml'}", f"--kubeconfig={kubeconfig}"]
        made = ControlPlaneProcess(
            NAME, [*command, "--zap-log-level=2"], directory=folder, log=folder / "log", env=dict(os.environ)
        )
        stack.callback(made.stop, 5.0)
        yield made


async def start(kueue: ControlPlaneProcess, client: Client) -> None:
    """Start it, and put the certificate that it makes where it waits for it."""
    kueue.start()
    deadline = SYSTEM.monotonic() + PATIENCE_SECONDS
    while not (data := (await client.get(SECRETS, "kueue-webhook-server-cert", NAMESPACE)).get("data")):
        _still(kueue, deadline, "made no certificate")
        await asyncio.sleep(POLL_SECONDS)
    for name, value in data.items():
        write_private(kueue.log.parent / name, base64.b64decode(value))


def one_queue(nodes: int) -> Iterator[tuple[Resource, Object]]:
    """The levels, the flavor and the queue that a benchmark of Topogate has: it owns all nodes."""
    levels = [{"nodeLabel": label} for label in (BLOCK_LABEL, RACK_LABEL, HOSTNAME_LABEL)]
    for resource, name, spec in (
        (TOPOLOGIES, "default", {"levels": levels}),
        (FLAVORS, "tas", {"nodeLabels": {GROUP_LABEL: "tas"}, "topologyName": "default"}),
        (CLUSTER_QUEUES, "queue-0", {"namespaceSelector": {}, "resourceGroups": [quota(nodes)]}),
        (LOCAL_QUEUES, "queue-0", {"clusterQueue": "queue-0"}),
    ):
        meta = {"name": name}
        yield resource, {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta, "spec": spec}


async def create_object(kueue: ControlPlaneProcess, client: Client, resource: Resource, each: Object) -> None:
    """Create an object as soon as Kueue takes it; its webhook may not listen yet."""
    namespace = "default" if resource.namespaced else None
    deadline = SYSTEM.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            await client.create(resource, each, namespace)
        except KubeError as error:
            _still(kueue, deadline, f"did not take {resource.kind} {each['metadata']['name']}: {error}")
            await asyncio.sleep(POLL_SECONDS)
        else:
            return


def _still(kueue: ControlPlaneProcess, deadline: float, what: str) -> None:
    """Raise ComponentFailed where it ended, or where it is too late."""
    kueue.check()
    if SYSTEM.monotonic() > deadline:
        raise kueue.failure(what)

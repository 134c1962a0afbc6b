"""Topogate as a user meets it: installed by the command, its components as processes under their own roles.

Slow to set up (a control plane of its own): one a module.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from support.jobs import GPU, KEYS, RACK_LABEL, make_flavor, until

from cli.run.components import Components
from kube.client import Client
from kube.objects import Object
from kube.resources import JOBS, NODES, PODS, WORKLOADS
from localcluster import Fleet, LocalCluster, Options, add_nodes, wait_ready

BIN = Path(sys.executable).parent
# A dead controller's lease must not outlive a test's patience.
LEASE = {"TOPOGATE_LEASE_SECONDS": "2", "TOPOGATE_LEASE_RENEW_SECONDS": "1", "TOPOGATE_LEASE_RETRY_SECONDS": "0.2"}
REQUIRED = {KEYS.required[0]: RACK_LABEL}
PREFERRED = {KEYS.preferred[0]: RACK_LABEL}
NAMESPACE = "default"
Json = dict[str, Any]


@dataclass
class House:
    """A cluster with Topogate in it. ``client`` is an administrator's."""

    cluster: LocalCluster
    client: Client
    components: Components

    async def run(self, *arguments: str, program: str = "topogate") -> subprocess.CompletedProcess[str]:
        """Run one of our console scripts, or kubectl, against this cluster; its result, whatever the status."""
        path = self.cluster.kubectl if program == "kubectl" else BIN / program
        env = {**os.environ, "KUBECONFIG": str(self.cluster.kubeconfig), "PATH": f"{BIN}:{os.environ['PATH']}"}
        return await asyncio.to_thread(
            subprocess.run, [path, *arguments], env=env, capture_output=True, text=True, check=False
        )

    async def topogate(self, *arguments: str) -> str:
        """Run ``topogate``, which must succeed, and return what it printed."""
        done = await self.run(*arguments)
        assert done.returncode == 0, f"topogate {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout

    async def explain(self, job: str) -> Json:
        return json.loads(await self.topogate("explain", job, "-o", "json"))

    async def submit(self, name: str, pods: int, request: dict[str, str] | None = None, **options: Any) -> Json:
        return await self.client.create(JOBS, user_job(name, pods, request, **options), NAMESPACE)

    async def clear(self) -> None:
        """Delete all Jobs and pods, and wait until they and their Workloads are gone."""
        for resource in (JOBS, PODS):  # the collection at once, and no grace period that KWOK would have to wait for
            options = {"propagationPolicy": "Background", "gracePeriodSeconds": "0"}
            await self.client.raw("DELETE", resource.path(NAMESPACE), params=options)

        async def gone() -> bool:
            kinds = (JOBS, PODS, WORKLOADS)
            return not [obj for kind in kinds for obj in await self.client.list(kind, NAMESPACE, type=Object)]

        await until(gone, "everything to be deleted")

    async def racks(self, pods: Iterable[Json]) -> set[tuple[str, str]]:
        """The racks of the nodes that the pods are bound to, by the nodes' own labels."""
        racks = {}
        for node in await self.client.list(NODES):
            labels = node["metadata"]["labels"]
            racks[node["metadata"]["name"]] = tuple(labels[f"cloud-provider.com/topology-{name}"] for name in _RACK)
        return {racks[pod["spec"]["nodeName"]] for pod in pods}


_RACK = ("block", "rack")


@asynccontextmanager
async def house(
    fleet: Fleet,
    progress: Callable[[str], None] = print,
    *,
    options: Options | None = None,
    env: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[House]:
    """A control plane with nodes, Topogate installed by ``topogate install``, one flavor, both components running.

    ``env``: settings of the components.
    """
    async with AsyncExitStack() as stack:
        cluster = LocalCluster(options=options or Options(), progress=progress)
        await asyncio.to_thread(cluster.up)
        stack.callback(cluster.stop)
        client = await stack.enter_async_context(await Client.connect(str(cluster.kubeconfig)))
        components = await stack.enter_async_context(Components(cluster, client, env={**LEASE, **env}))
        made = House(cluster, client, components)
        await made.topogate("install", "--out-of-cluster", "--webhook-url", components.webhook_url)
        await make_flavor(client, "tas")
        await add_nodes(client, fleet)
        await asyncio.gather(components.start("webhook"), components.start("ungater"))
        await wait_ready(client, fleet.node_names())
        yield made


def user_job(
    name: str,
    pods: int,
    request: dict[str, str] | None = None,
    *,
    gpus: int = 1,
    indexed: bool = False,
    pod_spec: Json | None = None,
) -> Json:
    """A Job as a person writes it: one annotation, or none."""
    container = {"name": "c", "image": "i", "resources": {"limits": {GPU: str(gpus)}, "requests": {"cpu": "1"}}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "annotations": request or {}},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "completionMode": "Indexed" if indexed else "NonIndexed",
            "template": {"spec": {"restartPolicy": "Never", "containers": [container], **(pod_spec or {})}},
        },
    }

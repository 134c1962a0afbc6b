"""``topogate demo``: the main job, on a real control plane on this machine, shown to a person."""

import asyncio
import subprocess
import textwrap
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Annotated, Any

import typer
from rich.rule import Rule
from rich.syntax import Syntax
from rich.text import Text

from cli import explain, installation
from cli.components import Components
from cli.output import Failure, progress, stdout
from crds.constants import API_VERSION, Keys
from kube.client import Client
from kube.errors import KubeError, NotFound
from kube.resources import EVENTS, JOBS, PODS, RESOURCE_FLAVORS
from localcluster import LocalCluster
from localcluster.binaries import Binaries
from localcluster.errors import LocalClusterError
from localcluster.nodes import Fleet, add_nodes, wait_ready
from manifests import render

BLOCK = "cloud-provider.com/topology-block"
RACK = "cloud-provider.com/topology-rack"
HOST = "kubernetes.io/hostname"
FLEET = Fleet(blocks=2, racks=3, hosts=4, gpus=8)
NAMESPACE = "default"
KEYS = Keys()
WAIT_SECONDS = 30.0


def command(
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the cluster running at the end, until Ctrl-C, to try things yourself.")
    ] = False,
) -> None:
    """Show the main job: Jobs placed by topology on a real control plane on this machine.

    Starts etcd, kube-apiserver, kube-controller-manager, kube-scheduler and KWOK, installs Topogate, makes 24 nodes
    in 2 blocks of 3 racks, and submits Jobs. The first run builds the control plane from source (about 6 minutes);
    later ones take half a minute. Everything is gone at the end.
    """
    try:
        asyncio.run(_run(keep=keep))
    except (KubeError, LocalClusterError) as error:
        raise Failure(str(error)) from error
    except KeyboardInterrupt:
        stdout().print("\nStopped.")


async def _run(*, keep: bool) -> None:
    began = time.monotonic()
    async with AsyncExitStack() as stack:
        stage = await _set_up(stack)
        for act in (_required, _preferred, _ranks, _wrong_level, _waits):
            await act(stage)
        pods = await stage.check()
        seconds = time.monotonic() - began
        _say(f"\nDone in {seconds:.0f} s. All {pods} pods run, each on the host that its Workload names.", "bold green")
        if keep:
            _say(f"\nThe cluster keeps running until Ctrl-C. Try:\n\n  export KUBECONFIG={stage.cluster.kubeconfig}")
            _say(f"  kubectl get nodes -L {BLOCK},{RACK}\n  kubectl topogate explain train\n")
            await asyncio.Event().wait()


class Stage:
    """What the acts play on."""

    def __init__(self, cluster: LocalCluster, client: Client) -> None:
        self.cluster = cluster
        self.client = client
        self.jobs: list[str] = []

    async def submit(self, name: str, pods: int, gpus: int, request: tuple[str, str], **spec: Any) -> None:
        """Create a Job, and show what a user would have written."""
        job = make_job(name, pods, gpus, request, **spec)
        key, level = request
        _say(f"$ kubectl create -f {name}.yaml      # {pods} pods of {gpus} GPUs")
        _syntax(f"annotations:\n  {key}: {level}")
        await self.client.create(JOBS, job, NAMESPACE)
        self.jobs.append(name)

    async def explain(self, name: str) -> None:
        """``kubectl topogate explain NAME``."""
        _say(f"$ kubectl topogate explain {name}")
        stdout().print(explain.render(await explain.report(self.client, NAMESPACE, name)))

    async def check(self) -> int:
        """How many pods run, each on the host its Workload names; Failure names one that does not."""
        checked = 0
        for name in self.jobs:
            report = await explain.report(self.client, NAMESPACE, name)
            for domain in report.domains:
                here = [pod for pod in domain.pods if pod.phase == "Running" and pod.node == domain.values[-1]]
                if len(here) != domain.slots:
                    raise Failure(f"Job {name}: {len(here)} of {domain.slots} pods run on {domain.values[-1]}")
                checked += len(here)
        return checked

    async def runs(self, name: str, pods: int) -> None:
        """Wait until that many pods of the Job run."""

        async def running() -> bool:
            found = await self.client.list(PODS, NAMESPACE, label_selector=f"job-name={name}")
            return [pod["status"].get("phase") for pod in found].count("Running") >= pods

        await _until(running, f"{pods} pods of Job {name} run")


def make_job(name: str, pods: int, gpus: int, request: tuple[str, str], **spec: Any) -> dict[str, Any]:
    """A Job of equal pods of ``gpus`` GPUs that carries one topology annotation."""
    key, level = request
    container = {
        "name": "main",
        "image": "registry.example/train:1",
        "resources": {"requests": {"cpu": str(2 * gpus)}, "limits": {"nvidia.com/gpu": str(gpus)}},
    }
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "annotations": {key: level}},
        "spec": {"parallelism": pods, "completions": pods, "template": template, **spec},
    }


async def _set_up(stack: AsyncExitStack) -> Stage:
    began = time.monotonic()
    _say("Setting up", "bold")
    binaries = await asyncio.to_thread(Binaries.find, progress=lambda text: _say(f"  {text}", "dim"))
    with progress("starting etcd, kube-apiserver, kube-controller-manager, kube-scheduler, KWOK"):
        cluster = LocalCluster(binaries=binaries)
        await asyncio.to_thread(cluster.up)
        stack.callback(cluster.stop)
    client = await stack.enter_async_context(await Client.connect(str(cluster.kubeconfig)))
    components = await stack.enter_async_context(Components(cluster, client))
    with progress("installing Topogate: 5 kinds, roles, webhook, policy"):
        await _install(client, components.webhook_url)
    with progress(f"making {len(FLEET)} nodes of 8 GPUs: 2 blocks, 3 racks a block, 4 hosts a rack"):
        await add_nodes(client, FLEET)
        await wait_ready(client, FLEET.names())
    await client.create(RESOURCE_FLAVORS, _flavor())
    with progress("starting the webhook and the ungater under their own service accounts"):
        await asyncio.gather(components.start("webhook"), components.start("ungater"))
    _say(f"ready in {time.monotonic() - began:.1f} s; the one object an administrator writes:", "dim")
    _syntax(
        f"kind: ResourceFlavor\nspec:\n  nodeLabels: {{cloud-provider.com/node-group: tas}}\n"
        f"  topology: {{levels: [{BLOCK}, {RACK}, {HOST}]}}"
    )
    return Stage(cluster, client)


async def _install(client: Client, webhook_url: str) -> None:
    options = await installation.plan(client, installation.Wish(webhook_url=webhook_url))
    async for _ in installation.apply(client, render.objects(options)):
        pass
    await installation.wait_established(client, WAIT_SECONDS)


def _flavor() -> dict[str, Any]:
    spec = {"nodeLabels": {"cloud-provider.com/node-group": "tas"}, "topology": {"levels": [BLOCK, RACK, HOST]}}
    return {"apiVersion": API_VERSION, "kind": "ResourceFlavor", "metadata": {"name": "tas"}, "spec": spec}


async def _required(stage: Stage) -> None:
    _act("1. required: all pods in one rack", "A rack has 32 GPUs. 6 pods of 4 GPUs fit one rack, and get one.")
    await stage.submit("train", 6, 4, (KEYS.required[0], RACK))
    await stage.runs("train", 6)
    await stage.explain("train")


async def _preferred(stage: Stage) -> None:
    _act(
        "2. preferred: as few racks as possible",
        "10 pods of 8 GPUs need more than any rack has. They stay in one block, on as few racks as can hold them.",
    )
    await stage.submit("sweep", 10, 8, (KEYS.preferred[0], RACK))
    await stage.runs("sweep", 10)
    await stage.explain("sweep")


async def _ranks(stage: Stage) -> None:
    _act("3. rank order", "Ranks of an Indexed Job sit in order: neighbours in the ring are neighbours in the rack.")
    await stage.submit("ring", 8, 2, (KEYS.required[0], RACK), completionMode="Indexed")
    await stage.runs("ring", 8)
    await stage.explain("ring")


async def _wrong_level(stage: Stage) -> None:
    _act("4. a level that does not exist", "Refused at once, with the levels that do.")
    job = make_job("typo", 2, 1, (KEYS.required[0], "cloud-provider.com/topology-row"))
    _say("$ kubectl create -f typo.yaml")
    _syntax(f"annotations:\n  {KEYS.required[0]}: cloud-provider.com/topology-row")
    stdout().print(await asyncio.to_thread(_kubectl_create, stage.cluster, job), style="red", markup=False)


def _kubectl_create(cluster: LocalCluster, job: dict[str, Any]) -> str:
    import json

    command = [str(cluster.kubectl), "--kubeconfig", str(cluster.kubeconfig), "create", "-f", "-"]
    done = subprocess.run(command, input=json.dumps(job), capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).strip()


async def _waits(stage: Stage) -> None:
    _act(
        "5. no room: it waits, says why, and starts by itself",
        "Two evaluations of 3 hosts take the last free racks. A Job that needs a whole rack has to wait.",
    )
    for name in ("eval-a", "eval-b"):
        await stage.submit(name, 3, 8, (KEYS.required[0], RACK))
        await stage.runs(name, 3)
    await stage.submit("big", 4, 8, (KEYS.required[0], RACK))
    event = await _event(stage.client, "big")
    await stage.explain("big")
    _say(f"$ kubectl events --for job/big\n{event['type']}  {event['reason']}  Job/big  {event['note']}", "yellow")
    _say("\n$ kubectl delete job eval-a      # room is made", "bold")
    began = time.monotonic()
    await stage.client.delete(JOBS, "eval-a", NAMESPACE, propagation="Background")
    stage.jobs.remove("eval-a")
    await stage.runs("big", 4)
    _say(f"big runs {time.monotonic() - began:.1f} s later, with nobody touching it", "green")
    await stage.explain("big")


async def _event(client: Client, job: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    async def warned() -> bool:
        events = await client.list(EVENTS, NAMESPACE)
        found[:] = [e for e in events if e["regarding"].get("name") == job and e["type"] == "Warning"]
        return bool(found)

    await _until(warned, f"there is an event on Job {job}")
    return found[-1]


async def _until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            while not await condition():
                await asyncio.sleep(0.1)
    except (TimeoutError, NotFound) as error:
        raise Failure(f"after {WAIT_SECONDS:.0f} s it is not yet so that {what}") from error


def _act(title: str, text: str) -> None:
    console = stdout()
    console.print()
    console.print(Rule(title, align="left", style="bold cyan"))
    console.print(text)
    console.print()


def _say(text: str, style: str = "") -> None:
    stdout().print(Text(text, style=style))


def _syntax(text: str) -> None:
    console = stdout()
    if console.is_terminal:
        console.print(Syntax(text, "yaml", background_color="default", padding=(0, 2)))
    else:
        console.print(textwrap.indent(text, "  "), markup=False)

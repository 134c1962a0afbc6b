"""What the acts of ``topogate demo`` share: the cluster, and how they speak to a person."""

import asyncio
import textwrap
from collections.abc import Awaitable, Callable
from typing import Any

from rich.rule import Rule
from rich.syntax import Syntax
from rich.text import Text

from cli.explain.rendering import render
from cli.explain.report import report
from cli.output import Failure, stdout
from clock import Clock
from crds.constants import API_VERSION
from kube.client import Client
from kube.errors import NotFound
from kube.resources import JOBS, PODS
from localcluster import LocalCluster
from localcluster.nodes import BLOCK_LABEL, GROUP_LABEL, HOSTNAME_LABEL, RACK_LABEL

NAMESPACE = "default"
# What the Jobs of the demo ask by, and what nodes call it.
LEVEL = "rack"
LEVEL_NAMES = {"block": BLOCK_LABEL, LEVEL: RACK_LABEL}
TOPOLOGY = {"levels": [BLOCK_LABEL, RACK_LABEL, HOSTNAME_LABEL], "names": LEVEL_NAMES}
WAIT_SECONDS = 30.0


class Stage:
    """What the acts play on. ``link``: opens the page of the cluster; "" where that did not start."""

    def __init__(self, cluster: LocalCluster, client: Client, clock: Clock, link: str) -> None:
        self.cluster = cluster
        self.client = client
        self.clock = clock
        self.link = link
        self.jobs: list[str] = []

    async def submit(self, name: str, pods: int, gpus: int, request: tuple[str, str], **spec: Any) -> None:
        """Create a Job, and show what a user would have written."""
        job = make_job(name, pods, gpus, request, **spec)
        key, level = request
        print_paragraph(f"$ kubectl create -f {name}.yaml      # {pods} pods of {gpus} GPUs")
        syntax(f"annotations:\n  {key}: {level}")
        await self.client.create(JOBS, job, NAMESPACE)
        self.jobs.append(name)

    async def explain(self, name: str) -> None:
        """``kubectl topogate explain NAME``."""
        print_paragraph(f"$ kubectl topogate explain {name}")
        stdout().print(render(await report(self.client, NAMESPACE, name)))

    async def check(self) -> int:
        """How many pods run, each on the host its Workload names; Failure names one that does not."""
        checked = 0
        for name in self.jobs:
            found = await report(self.client, NAMESPACE, name)
            for domain in found.domains:
                # By the pod's own node, which the scheduler wrote, against the Workload's slot.
                here = [pod for pod in domain.pods if pod.phase == "Running" and pod.node == domain.values[-1]]
                if len(here) != domain.slots:
                    raise Failure(f"Job {name}: {len(here)} of {domain.slots} pods run on {domain.values[-1]}")
                checked += len(here)
        return checked

    async def wait_for_running(self, name: str, pods: int) -> None:
        """Wait until that many pods of the Job run."""

        async def running() -> bool:
            found = await self.client.list(PODS, NAMESPACE, label_selector=f"job-name={name}")
            return [pod["status"].get("phase") for pod in found].count("Running") >= pods

        await until(running, f"{pods} pods of Job {name} run")


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


def make_object(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """An object of one of Topogate's own kinds."""
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


def make_flavor(name: str, group: str) -> dict[str, Any]:
    """A ResourceFlavor of the nodes of a group, in blocks and racks."""
    return make_object("ResourceFlavor", name, {"nodeLabels": {GROUP_LABEL: group}, "topology": TOPOLOGY})


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait for it; Failure after ``WAIT_SECONDS``."""
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            while not await condition():
                await asyncio.sleep(0.1)
    except (TimeoutError, NotFound) as error:
        raise Failure(f"after {WAIT_SECONDS:.0f} s it is not yet so that {what}") from error


def act(title: str, text: str) -> None:
    """The head of an act."""
    console = stdout()
    console.print()
    console.print(Rule(title, align="left", style="bold cyan"))
    console.print(text)
    console.print()


def print_paragraph(text: str, style: str = "") -> None:
    """One paragraph."""
    stdout().print(Text(text, style=style))


def syntax(text: str) -> None:
    """A piece of YAML."""
    console = stdout()
    if console.is_terminal:
        console.print(Syntax(text, "yaml", background_color="default", padding=(0, 2)))
    else:
        console.print(textwrap.indent(text, "  "))

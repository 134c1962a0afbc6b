"""``topogate demo``: the main job, on a real control plane on this machine, shown to a person."""

import asyncio
import signal
import subprocess
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import msgspec
import typer

from cli import browser
from cli.demo.numa import numa
from cli.demo.page import DemoPage
from cli.demo.preview import TRAIN, preview
from cli.demo.queues import teams
from cli.demo.real import real
from cli.demo.stage import (
    LEVEL,
    LEVEL_NAMES,
    NAMESPACE,
    TOPOLOGY,
    WAIT_SECONDS,
    Stage,
    act,
    make_flavor,
    make_job,
    print_paragraph,
    syntax,
    until,
)
from cli.install import installation, waiting
from cli.output import Failure, messages, progress, stdout
from cli.run.components import Components
from clock import SYSTEM, Clock
from crds.constants import Keys
from kube.client import Client
from kube.errors import KubeError
from kube.resources import EVENTS, JOBS, RESOURCE_FLAVORS
from localcluster import LocalCluster, supervisor
from localcluster.errors import LocalClusterError
from localcluster.nodes import GROUP_LABEL, Fleet, add_nodes, wait_ready
from localcluster.programs.binaries import PROGRAMS, Binaries, at_hand
from manifests import render

FLEET = Fleet(blocks=2, racks=3, hosts=4, gpus=8)
KEYS = Keys()


def command(
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the cluster running at the end, until Ctrl-C, to try things yourself.")
    ] = False,
    show: browser.Open = None,
) -> None:
    """Show the main job: Jobs placed by topology on a real control plane on this machine.

    Starts etcd, kube-apiserver, kube-controller-manager, kube-scheduler and KWOK, installs Topogate, makes 24 nodes
    in 2 blocks of 3 racks, and submits Jobs; then on three machines with NUMA zones, whose kubelets refuse what they
    cannot align, and on one with a real kubelet, where its program is there and this system lets it run; then through
    the queues of two teams that share eight machines. The first run downloads the control plane, or builds it where
    it cannot be had, and shows meanwhile where a Job would go; later ones take half a minute. Everything is gone at
    the end.
    """
    try:
        asyncio.run(_run(keep=keep, show=browser.wanted(show)))
    except (KubeError, LocalClusterError) as error:
        raise Failure(str(error)) from error
    except KeyboardInterrupt:
        stdout().print("\nStopped.")


async def _run(*, keep: bool, show: bool, clock: Clock = SYSTEM) -> None:
    began = clock.monotonic()
    async with AsyncExitStack() as stack:
        stage = await _set_up(stack, clock, show=show)
        # The order counts: each act needs the room that the ones before it leave on the machines.
        for play in (_required, _preferred, _ranks, _wrong_level, _show_waiting, numa, real, teams):
            await play(stage)
        pods = await stage.check()
        seconds = clock.monotonic() - began
        print_paragraph(
            f"\nDone in {seconds:.0f} s. All {pods} pods run, each on the host that its Workload names.", "bold green"
        )
        if keep:
            # Leave the cluster to others until Ctrl-C, or until `topogate local down` ends this process.
            # SIGTERM comes from `topogate local down`; without a handler the cluster's processes would be left behind.
            leave = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leave.set)
            with supervisor.announce_cluster("demo", stage.cluster) as name:
                print_paragraph("\nThe cluster keeps running until Ctrl-C. In another terminal, try:\n")
                print_paragraph(f"  export KUBECONFIG=$(topogate local kubeconfig --name {name})")
                print_paragraph(f"  kubectl get nodes -L {','.join(LEVEL_NAMES.values())}")
                print_paragraph("  kubectl topogate explain train\n  kubectl topogate tree")
                print_paragraph(f"  topogate local status\n  topogate local down --name {name}\n")
                if stage.link:
                    print_paragraph(f"The page: {stage.link}\n")
                await leave.wait()


async def _set_up(stack: AsyncExitStack, clock: Clock, *, show: bool) -> Stage:
    view = _View(stack, show=show)
    print_paragraph("Setting up", "bold")
    # Only a first run takes minutes; a later one would be done before anybody has read a preview.
    if not await asyncio.to_thread(at_hand, PROGRAMS):
        await view.show_preview(clock)
    with messages() as tell:
        binaries = await asyncio.to_thread(Binaries.find, progress=tell)
    began = clock.monotonic()
    with progress("starting etcd, kube-apiserver, kube-controller-manager, kube-scheduler, KWOK"):
        cluster = LocalCluster(binaries=binaries)
        await asyncio.to_thread(cluster.up)
        # Registered at once: whatever fails from here on, the processes go.
        stack.callback(cluster.stop)
    client = await stack.enter_async_context(await Client.connect(str(cluster.kubeconfig)))
    components = await stack.enter_async_context(Components(cluster, client))
    with progress("installing Topogate: 5 kinds, roles, webhook, policy"):
        options = await installation.plan(client, installation.Requested(webhook_url=components.webhook_url))
        async for _ in installation.apply(client, render.objects(options)):
            pass
        await waiting.wait_established(client, WAIT_SECONDS)
    with progress(f"making {len(FLEET)} nodes of 8 GPUs: 2 blocks, 3 racks a block, 4 hosts a rack"):
        await add_nodes(client, FLEET)
        await wait_ready(client, FLEET.node_names())
    await client.create(RESOURCE_FLAVORS, make_flavor("tas", FLEET.group))
    with progress("starting the webhook and the ungater under their own service accounts"):
        # After the flavor: until the webhook knows a level, it refuses every request.
        await asyncio.gather(components.start("webhook"), components.start("ungater"))
    print_paragraph(f"ready in {clock.monotonic() - began:.1f} s; the one object an administrator writes:", "dim")
    block, rack, host = TOPOLOGY["levels"]
    syntax(
        f"kind: ResourceFlavor\nspec:\n  nodeLabels: {{{GROUP_LABEL}: {FLEET.group}}}\n"
        f"  topology:\n    levels: [{block}, {rack}, {host}]\n    names: {{block: {block}, {LEVEL}: {rack}}}"
    )
    return Stage(cluster, client, clock, await view.show_cluster(cluster.kubeconfig))


class _View:
    """What a person sees of it in a browser. ``show``: whether that is opened for them."""

    def __init__(self, stack: AsyncExitStack, *, show: bool) -> None:
        self._stack = stack
        self._page = DemoPage()
        self._show = show
        stack.push_async_callback(self._page.close)

    async def show_preview(self, clock: Clock) -> None:
        """The README's Job on the machines of the demo, while there is no cluster yet."""
        print_paragraph(
            "Kubernetes is not here yet: it is downloaded, or built, once. Meanwhile, this takes no cluster:\n"
        )
        print_paragraph("$ kubectl topogate place -f train.yaml --cluster machines.yaml      # 4 pods of 8 GPUs")
        syntax(f"annotations:\n  {KEYS.required[0]}: {LEVEL}")
        answer, objects = preview([*FLEET.objects(), make_flavor("tas", FLEET.group)], TRAIN, clock.now())
        stdout().print(answer)
        file = Path(self._stack.enter_context(TemporaryDirectory(prefix="topogate-"))) / "machines.json"
        file.write_bytes(msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": objects}))
        told = "See it in a browser on this machine; it goes over to the cluster once that is up"
        await self._open(told, "--snapshot", str(file), "--cluster-name", "a preview, without a cluster")

    async def show_cluster(self, kubeconfig: Path) -> str:
        """The cluster as it is now. Returns the link to it, "" for none."""
        return await self._open("Watch it in a browser on this machine", "--kubeconfig", str(kubeconfig))

    async def _open(self, told: str, *source: str) -> str:
        if link := await self._page.show(*source):
            print_paragraph(f"\n{told}: {link}\n", "bold")
            if self._show:
                self._stack.callback(await asyncio.to_thread(browser.show, link))
                # The browser goes over from the preview to the cluster by itself: a second window is not opened.
                self._show = False
        else:
            print_paragraph(
                "\nThe page did not start, so there is nothing to see in a browser; the demo goes on.\n", "yellow"
            )
        return link


async def _required(stage: Stage) -> None:
    act("1. required: all pods in one rack", "A rack has 32 GPUs. 6 pods of 4 GPUs fit one rack, and get one.")
    await stage.submit("train", 6, 4, (KEYS.required[0], LEVEL))
    await stage.wait_for_running("train", 6)
    await stage.explain("train")


async def _preferred(stage: Stage) -> None:
    act(
        "2. preferred: as few racks as possible",
        "10 pods of 8 GPUs need more than any rack has. They stay in one block, on as few racks as can hold them.",
    )
    await stage.submit("sweep", 10, 8, (KEYS.preferred[0], LEVEL))
    await stage.wait_for_running("sweep", 10)
    await stage.explain("sweep")


async def _ranks(stage: Stage) -> None:
    act("3. rank order", "Ranks of an Indexed Job sit in order: neighbours in the ring are neighbours in the rack.")
    await stage.submit("ring", 8, 2, (KEYS.required[0], LEVEL), completionMode="Indexed")
    await stage.wait_for_running("ring", 8)
    await stage.explain("ring")


async def _wrong_level(stage: Stage) -> None:
    act("4. a level that does not exist", "Refused at once, with the levels that do.")
    job = make_job("typo", 2, 1, (KEYS.required[0], "row"))
    print_paragraph("$ kubectl create -f typo.yaml")
    syntax(f"annotations:\n  {KEYS.required[0]}: row")
    stdout().print(await asyncio.to_thread(_kubectl_create, stage.cluster, job), style="red")


def _kubectl_create(cluster: LocalCluster, job: dict[str, Any]) -> str:
    import json

    # kubectl would write its discovery cache into the home folder, where later clusters at this address read it.
    here = ("--kubeconfig", str(cluster.kubeconfig), "--cache-dir", str(cluster.directory / "kubectl"))
    command = [str(cluster.kubectl), *here, "create", "-f", "-"]
    done = subprocess.run(command, input=json.dumps(job), capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).strip()


async def _show_waiting(stage: Stage) -> None:
    act(
        "5. no room: it waits, says why, and starts by itself",
        "Two evaluations of 3 hosts take the last free racks. A Job that needs a whole rack has to wait.",
    )
    for name in ("eval-a", "eval-b"):
        await stage.submit(name, 3, 8, (KEYS.required[0], LEVEL))
        await stage.wait_for_running(name, 3)
    await stage.submit("big", 4, 8, (KEYS.required[0], LEVEL))
    found: list[dict[str, Any]] = []

    async def warned() -> bool:
        events = await stage.client.list(EVENTS, NAMESPACE)
        # The Job controller writes events on the Job as well, which are Normal here.
        found[:] = [e for e in events if e["regarding"].get("name") == "big" and e["type"] == "Warning"]
        return bool(found)

    await until(warned, "there is an event on Job big")
    event = found[-1]
    await stage.explain("big")
    print_paragraph(
        f"$ kubectl events --for job/big\n{event['type']}  {event['reason']}  Job/big  {event['note']}", "yellow"
    )
    print_paragraph("\n$ kubectl delete job eval-a      # room is made", "bold")
    began = stage.clock.monotonic()
    await stage.client.delete(JOBS, "eval-a", NAMESPACE, propagation="Background")
    # `check` at the end counts the pods of all jobs in this list.
    stage.jobs.remove("eval-a")
    await stage.wait_for_running("big", 4)
    print_paragraph(f"big runs {stage.clock.monotonic() - began:.1f} s later, with nobody touching it", "green")
    await stage.explain("big")

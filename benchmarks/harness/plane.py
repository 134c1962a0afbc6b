"""A control plane to measure on: fresh, with nodes, with or without Topogate, and quiet before anything is timed."""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness import kueue
from cli.install import installation, waiting
from cli.install.installation import Requested
from cli.run.components import Components
from crds.constants import API_VERSION
from kube.client import Client
from kube.resources import RESOURCE_FLAVORS
from localcluster import API_SERVER, LocalCluster, Options
from localcluster.nodes import BLOCK_LABEL, GROUP_LABEL, HOSTNAME_LABEL, RACK_LABEL, Fleet, add_nodes, wait_ready
from localcluster.process import ControlPlaneProcess, usage
from localcluster.programs.binaries import Binaries
from manifests import render

TOPOGATE = ("webhook", "ungater")
LEVELS = (BLOCK_LABEL, RACK_LABEL, HOSTNAME_LABEL)
QUIET_CORES = 0.3
QUIET_SECONDS = 20
ESTABLISHED_SECONDS = 30.0


@dataclass(frozen=True)
class Usage:
    """CPU seconds used so far, and resident bytes now and at most, of every process by its name."""

    cpu: dict[str, float]
    memory: dict[str, int]
    peak: dict[str, int]

    def since(self, before: "Usage") -> dict[str, float]:
        """CPU seconds between the two readings."""
        return {name: used - before.cpu.get(name, 0.0) for name, used in self.cpu.items()}


@dataclass
class Plane:
    """One control plane under measurement."""

    cluster: LocalCluster
    client: Client
    components: Components | None = None
    kueue: ControlPlaneProcess | None = None
    audit: Path | None = None
    _audited: int = field(default=0, repr=False)

    def usage(self) -> Usage:
        """What every process has used: the control plane's and Topogate's."""
        pids = dict(self.cluster.pids)
        if self.components is not None:
            pids |= {name: self.components.pid(name) for name in TOPOGATE}
        if self.kueue is not None and self.kueue.pid is not None:
            pids[kueue.NAME] = self.kueue.pid
        found = {name: usage(pid) for name, pid in pids.items()}
        return Usage(
            {name: cpu for name, (_, cpu) in found.items()},
            {name: rss for name, (rss, _) in found.items()},
            {name: peak(pid) for name, pid in pids.items()},
        )

    async def quiet(self) -> None:
        """Wait until the control plane has nothing left to do, for at most ``QUIET_SECONDS``."""
        before = self.usage()
        for _ in range(QUIET_SECONDS):
            await asyncio.sleep(1.0)
            now = self.usage()
            if sum(now.since(before).values()) < QUIET_CORES:
                return
            before = now

    def keep_logs(self, folder: Path, shape: str) -> None:
        """Copy the logs of what runs beside the control plane."""
        folder.mkdir(parents=True, exist_ok=True)
        logs = {name: self.components.log(name) for name in TOPOGATE} if self.components is not None else {}
        if self.kueue is not None:
            logs[kueue.NAME] = self.kueue.log
        for name, log in logs.items():
            (folder / f"{name}-{shape}.log").write_bytes(log.read_bytes())

    def requests(self) -> Counter[str]:
        """Calls to the API server since the last reading, by user, verb and resource; empty without ``audit``."""
        if self.audit is None:
            return Counter()
        with self.audit.open("rb") as log:
            log.seek(self._audited)
            lines = log.read().splitlines(keepends=True)
        whole = [line for line in lines if line.endswith(b"\n")]
        self._audited += sum(map(len, whole))
        return Counter(_call(json.loads(line)) for line in whole)


def peak(pid: int) -> int:
    """The most bytes a process has had resident since it was executed; 0 where it is gone."""
    try:
        rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(row.split()[1]) * 1024 for row in rows if row.startswith("VmHWM:")), 0)


@asynccontextmanager
async def plane(
    fleet: Fleet,
    *,
    topogate: bool,
    beside: kueue.Kueue | None = None,
    audit: bool = False,
    python: Mapping[str, Sequence[str]] | None = None,
    before: Callable[[Plane], Awaitable[None]] | None = None,
) -> AsyncIterator[Plane]:
    """A new control plane with the nodes of ``fleet``; gone afterwards.

    ``topogate``: installed, its components running as processes under their own roles. ``beside``: Kueue instead, with
    one queue. ``audit``: count requests (which
    costs the API server some CPU). ``python``: component -> arguments of the interpreter, to run it under a profiler.
    ``before``: called when the nodes are ready and Topogate is installed, but does not run yet.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="topogate-bench-")))
        options = Options(extra_args={API_SERVER: _audit_arguments(folder)} if audit else {})
        cluster = LocalCluster(options=options, binaries=Binaries.find(progress=_say))
        await asyncio.to_thread(cluster.up)
        stack.callback(cluster.stop)
        client = await stack.enter_async_context(await Client.connect(str(cluster.kubeconfig)))
        made = Plane(cluster, client, audit=folder / "audit.log" if audit else None)
        if topogate:
            made.components = await stack.enter_async_context(Components(cluster, client, python=python or {}))
            await install(client, made.components.webhook_url)
        if beside is not None:
            made.kueue = await stack.enter_async_context(kueue.installed(beside, cluster, client, {}))
        await add_nodes(client, fleet)
        await wait_ready(client, fleet.node_names(), timeout=120)
        if before is not None:
            await before(made)
        if made.components is not None:
            await asyncio.gather(*(made.components.start(name) for name in TOPOGATE))
        if made.kueue is not None:
            await kueue.start(made.kueue, client)
            for resource, each in kueue.one_queue(len(fleet)):
                await kueue.create_object(made.kueue, client, resource, each)
        await made.quiet()
        yield made


async def install(client: Client, webhook_url: str) -> None:
    """What ``topogate install --out-of-cluster`` does, and one flavor over all nodes."""
    options = await installation.plan(client, Requested(webhook_url=webhook_url))
    async for _ in installation.apply(client, render.objects(options)):
        pass
    await waiting.wait_established(client, ESTABLISHED_SECONDS)
    spec = {"nodeLabels": {GROUP_LABEL: "tas"}, "topology": {"levels": list(LEVELS)}}
    flavor = {"apiVersion": API_VERSION, "kind": "ResourceFlavor", "metadata": {"name": "tas"}, "spec": spec}
    await client.create(RESOURCE_FLAVORS, flavor)


def _audit_arguments(folder: Path) -> list[str]:
    policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"]}
    path = folder / "audit.json"
    path.write_text(json.dumps({**policy, "rules": [{"level": "Metadata"}]}))
    return [f"--audit-policy-file={path}", f"--audit-log-path={folder / 'audit.log'}"]


def _call(event: dict[str, Any]) -> str:
    reference = event.get("objectRef", {})
    resource = "/".join(
        filter(None, (reference.get("resource", event.get("requestURI")), reference.get("subresource")))
    )
    return f"{event['user']['username'].rsplit(':', 1)[-1]} {event['verb']} {resource}"


def _say(text: str) -> None:
    print(text, file=sys.stderr)

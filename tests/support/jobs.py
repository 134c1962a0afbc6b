"""Jobs as the webhook stamps them, a running controller, and waiting, for tests on the real control plane."""

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import aiohttp
import yaml
from support.accounts import as_ungater

from crds.constants import Keys
from crds.settings import Settings
from kube.client import Client
from kube.errors import NotFound
from kube.resources import CUSTOM_RESOURCE_DEFINITIONS, JOBS, PODS, RESOURCE_FLAVORS, WORKLOADS
from localcluster.nodes import BLOCK_LABEL, GROUP_LABEL, HOSTNAME_LABEL, RACK_LABEL
from ungater.process import run

KEYS = Keys()
LEVELS = [BLOCK_LABEL, RACK_LABEL, HOSTNAME_LABEL]
BASES = Path(__file__).parents[2] / "crds" / "bases"
WAIT_SECONDS = 120
GPU = "nvidia.com/gpu"
Json = dict[str, Any]


async def install_crds(client: Client) -> None:
    """All of ours. What stands as it was applied last is not applied again: that takes the API server a second."""
    await asyncio.gather(*(install_crd(client, path) for path in sorted(BASES.glob("*.yaml"))))


async def install_crd(client: Client, path: Path) -> None:
    """One of a file, ours or another's, and wait until it is served."""
    body = read_crd(path)
    name = body["metadata"]["name"]
    if await _stands(client, name):
        return
    made = (await client.apply(CUSTOM_RESOURCE_DEFINITIONS, body, field_manager="test"))["metadata"]
    await until(lambda: _established(client, name), f"CRD {name}")
    _applied.add((name, made["uid"], made["generation"]))


@functools.cache
def read_crd(path: Path) -> Json:
    """A CRD's file, read once; do not change what it says."""
    body: Json = yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return body


_applied: set[tuple[str, str, int]] = set()  # name, uid and generation of each CRD as it was applied


async def _stands(client: Client, name: str) -> bool:
    """Whether a CRD is there as it was applied, and nobody has changed it since."""
    with contextlib.suppress(NotFound):
        found = await client.get(CUSTOM_RESOURCE_DEFINITIONS, name)
        meta = found["metadata"]
        applied = (name, meta["uid"], meta["generation"]) in _applied
        return applied and not meta.get("deletionTimestamp") and _is_established(found)
    return False


async def _established(client: Client, name: str) -> bool:
    return _is_established(await client.get(CUSTOM_RESOURCE_DEFINITIONS, name))


def _is_established(found: Json) -> bool:
    return any(
        c["type"] == "Established" and c["status"] == "True" for c in found.get("status", {}).get("conditions") or []
    )


async def make_flavor(client: Client, name: str, group: str = "tas", levels: list[str] = LEVELS) -> None:
    body = {
        "apiVersion": "topogate.dev/v1alpha1",
        "kind": "ResourceFlavor",
        "metadata": {"name": name},
        "spec": {"nodeLabels": {GROUP_LABEL: group}, "topology": {"levels": levels}},
    }
    await client.create(RESOURCE_FLAVORS, body)


def job(
    name: str,
    pods: int = 4,
    *,
    completions: int | None = None,
    gpus: int = 8,
    request: Mapping[str, str] | None = None,
    indexed: bool = False,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    gated: bool = True,
    spec: Json | None = None,
    pod_spec: Json | None = None,
) -> Json:
    """A Job of ``pods`` pods with ``gpus`` GPUs each, stamped as the webhook stamps it."""
    request = {KEYS.required[0]: RACK_LABEL} if request is None else request
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "annotations": dict(request), "labels": dict(labels or {})},
        "spec": {
            "parallelism": pods,
            "completions": pods if completions is None else completions,
            "completionMode": "Indexed" if indexed else "NonIndexed",
            "backoffLimit": 1000,
            **(spec or {}),
            "template": {
                "metadata": {"annotations": {**request, KEYS.pod_set: "main", **(annotations or {})}},
                "spec": {
                    "restartPolicy": "Never",
                    "schedulingGates": [{"name": KEYS.gate}] if gated else [],
                    "containers": [
                        {
                            "name": "c",
                            "image": "i",
                            "resources": {"requests": {GPU: str(gpus), "cpu": "1"}, "limits": {GPU: str(gpus)}}
                            if gpus
                            else {"requests": {"cpu": "1"}},
                        }
                    ],
                    **(pod_spec or {}),
                },
            },
        },
    }


class Running:
    """A controller in this process; stop it like a crash: its task is cancelled wherever it stands.

    It has the rights of its own account, and its policies hold (`support.accounts.as_ungater`).
    """

    def __init__(self, client: Client, **settings: Any) -> None:
        self._client = client
        self._own: Client | None = None
        values = {"leader_election": False, "bind_address": "127.0.0.1", "health_port": 0, **settings}
        self.settings = Settings(**values)
        self.port = 0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.crash()

    async def start(self) -> None:
        bound = asyncio.Event()

        def on_port(port: int) -> None:
            self.port = port
            bound.set()

        self._own = await as_ungater(self._client, self.settings)
        self._task = asyncio.create_task(run(self.settings, self._own or self._client, on_port=on_port))
        waiting = asyncio.create_task(bound.wait())
        await asyncio.wait([self._task, waiting], timeout=WAIT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._task.done():
            self._task.result()

    async def metric(self, line: str) -> float | None:
        """The value of one line of /metrics; None where it is not there."""
        url = f"http://127.0.0.1:{self.port}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            text = await answer.text()
        return next((float(each.rsplit(" ", 1)[1]) for each in text.splitlines() if each.startswith(f"{line} ")), None)

    async def knows(self, source: str, count: int) -> None:
        """Wait until it knows the insides of so many nodes by one source."""

        async def there() -> bool:
            return await self.metric(f'topogate_machines{{source="{source}"}}') == count

        await until(there, f"{count} machines by {source}")

    async def crash(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        if self._own is not None:
            await self._own.close()
            self._own = None


async def until(condition: Callable[[], Awaitable[Any]], what: str, *, seconds: float = WAIT_SECONDS) -> Any:
    """Poll until the condition gives something true, and return that."""
    end = time.monotonic() + seconds
    while not (found := await condition()):
        assert time.monotonic() < end, f"waited {seconds} s in vain for {what}"
        await asyncio.sleep(0.05)
    return found


async def settled(
    client: Client, namespace: str, name: str, phases: tuple[str, ...] = ("Running", "Failed", "Succeeded")
) -> Json:
    """Wait for a pod to be in one of these phases."""

    async def there() -> Json | None:
        found: Json = await client.get(PODS, name, namespace)
        return found if found["status"].get("phase") in phases else None

    found: Json = await until(there, f"pod {name} to be in one of {phases}")
    return found


class Watched:
    """Questions about the jobs of one namespace."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client = client
        self.namespace = namespace

    async def create(self, body: Json) -> Json:
        return await self.client.create(JOBS, body, self.namespace)

    async def pods(self, name: str, *, phase: str = "") -> list[Json]:
        found = await self.client.list(PODS, self.namespace, label_selector=f"batch.kubernetes.io/job-name={name}")
        return [pod for pod in found if not phase or pod["status"].get("phase") == phase]

    async def running(self, name: str, count: int) -> list[Json]:
        """Wait until exactly so many pods run, none of which is being deleted."""

        async def enough() -> list[Json] | None:
            found = [p for p in await self.pods(name, phase="Running") if not p["metadata"].get("deletionTimestamp")]
            return found if len(found) == count else None

        if not count:
            return []
        try:
            return await until(enough, f"{count} running pods of job {name}")
        except AssertionError as error:
            workload = await self.workload(name)
            raise AssertionError(f"{error}; workload status: {workload and workload.get('status')}") from None

    async def workload(self, name: str) -> Json | None:
        for found in await self.client.list(WORKLOADS, self.namespace):
            if any(ref["name"] == name for ref in found["metadata"].get("ownerReferences", [])):
                return found
        return None

    async def condition(self, name: str, type_: str, status: str, reason: str = "") -> Json:
        """Wait for a condition of the job's Workload."""

        async def there() -> Json | None:
            workload = await self.workload(name) or {}
            for found in workload.get("status", {}).get("conditions", []):
                if (found["type"], found["status"]) == (type_, status) and reason in {"", found["reason"]}:
                    return found
            return None

        return await until(there, f"condition {type_}={status} {reason} of job {name}")

    async def event(self, name: str, reason: str) -> Json:
        """Wait for an event about the object of this name."""
        from kube.resources import EVENTS

        async def there() -> Json | None:
            found = await self.client.list(EVENTS, self.namespace)
            return next((e for e in found if e["regarding"]["name"] == name and e["reason"] == reason), None)

        return await until(there, f"event {reason} about {name}")

    async def edit(self, name: str, **spec: Any) -> None:
        await self.client.patch(JOBS, name, self.namespace, body={"spec": spec})

    async def delete(self, name: str) -> None:
        with contextlib.suppress(NotFound):
            await self.client.delete(JOBS, name, self.namespace, propagation="Background")

    async def annotate(self, pod: Json, **annotations: str) -> None:
        body = {"metadata": {"annotations": {f"topogate.dev/{key}": value for key, value in annotations.items()}}}
        await self.client.patch(PODS, pod["metadata"]["name"], self.namespace, body=body)


def nodes_of(pods: list[Json]) -> list[str]:
    return sorted(pod["spec"]["nodeName"] for pod in pods)


def racks_of(pods: list[Json]) -> set[tuple[str, str]]:
    return {(pod["spec"]["nodeSelector"][BLOCK_LABEL], pod["spec"]["nodeSelector"][RACK_LABEL]) for pod in pods}


W = TypeVar("W", bound="Watched")


@contextlib.asynccontextmanager
async def followed(
    kind: type[W], client: Client, namespace: str, nodes: Callable[..., Any], **settings: Any
) -> AsyncIterator[W]:
    """The pods of a namespace, with a controller that places them on eight nodes of their own (fixture ``nodes``)."""
    await install_crds(client)
    await nodes(blocks=2, racks=2, hosts=2, prefix=f"{namespace}-", group=namespace)
    await make_flavor(client, namespace, namespace)
    async with Running(client, **settings) as controller:
        watched = kind(client, namespace)
        watched.controller = controller
        yield watched
    await client.delete(RESOURCE_FLAVORS, namespace)

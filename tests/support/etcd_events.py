"""Every change of a cluster, in the order in which it happened, read from etcd itself.

A watch of the API server misses what happens while the API server is down or comes back with an empty cache. Etcd's
own watch goes on from the next revision, so nothing is missed: not a version, not the order between two objects. The
API server has to store JSON for it (`STORING_JSON`). A gap (compacted away before it was read) fails.
"""

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Self

import aiohttp
import msgspec

from localcluster import API_SERVER, LocalCluster

STORING_JSON = {API_SERVER: ("--storage-media-type=application/json",)}
KINDS = {
    "jobs": "jobs",
    "minions": "nodes",
    "poddisruptionbudgets": "budgets",
    "pods": "pods",
    "topogate.dev/clusterqueues": "queues",
    "topogate.dev/workloads": "workloads",
}
FIRST, LAST = b"/registry/jobs/", b"/registry/topogate.dev0"  # one range, so one order; the rest of it is passed over
RETRY_SECONDS = 0.1
SETTLE_SECONDS = 60
Json = dict[str, Any]


@dataclass(frozen=True)
class Change:
    """One object, after a write. ``new``: None where it was deleted; ``key``: ``namespace/name``, or the name."""

    revision: int
    kind: str
    key: str
    new: Json | None


class Events:
    """Hands every change to ``see``, first all that is there. ``async with``, whose end raises what ``see`` raised."""

    def __init__(self, cluster: LocalCluster, see: Callable[[Change], None]) -> None:
        self._see = see
        pki, port = cluster.directory / "pki", json.loads((cluster.directory / "ports.json").read_text())["etcd"]
        self._url = f"https://127.0.0.1:{port}"
        self._context = ssl.create_default_context(cafile=str(pki / "etcd-ca.crt"))
        self._context.load_cert_chain(pki / "etcd-client.crt", pki / "etcd-client.key")
        self.revision = 0  # the last that was seen
        self.cuts = 0  # how often the watch had to be taken up again
        self._keys: set[bytes] = set()

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=self._context), timeout=timeout)
        found = await self._range()
        for item in found.get("kvs", ()):
            self._changed(item, deleted=False)
        self.revision = int(found["header"]["revision"])
        self._task = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        outcome, *_ = await asyncio.gather(self._task, return_exceptions=True)
        await self._session.close()
        if isinstance(outcome, Exception):
            raise outcome

    async def caught_up(self) -> None:
        """Wait until all that is there now was seen."""
        async with asyncio.timeout(SETTLE_SECONDS):
            while True:
                assert not self._task.done(), self._task.exception()
                found = await self._range(keys_only=True)
                items = [item for item in found.get("kvs", ()) if _named(base64.b64decode(item["key"]))]
                newest = max((int(item["mod_revision"]) for item in items), default=0)
                if newest <= self.revision and {base64.b64decode(item["key"]) for item in items} == self._keys:
                    return
                await asyncio.sleep(RETRY_SECONDS)

    async def _range(self, **more: Any) -> Json:
        body = {"key": _text(FIRST), "range_end": _text(LAST), **more}
        async with self._session.post(f"{self._url}/v3/kv/range", json=body) as answer:
            answer.raise_for_status()
            return msgspec.json.decode(await answer.read())

    async def _follow(self) -> None:
        while True:
            with contextlib.suppress(aiohttp.ClientError, OSError):  # etcd is away
                await self._watch()
            self.cuts += 1
            await asyncio.sleep(RETRY_SECONDS)

    async def _watch(self) -> None:
        create = {"key": _text(FIRST), "range_end": _text(LAST), "start_revision": str(self.revision + 1)}
        async with self._session.post(f"{self._url}/v3/watch", json={"create_request": create}) as answer:
            if answer.status != 200:
                return
            async for line in _lines(answer):
                said = msgspec.json.decode(line).get("result")
                if said is None:
                    return
                if said.get("canceled"):
                    raise AssertionError(f"changes after revision {self.revision} were missed: {said}")
                for event in said.get("events", ()):
                    self._changed(event["kv"], deleted=event.get("type") == "DELETE")

    def _changed(self, item: Json, *, deleted: bool) -> None:
        key, revision = base64.b64decode(item["key"]), int(item["mod_revision"])
        self.revision = max(self.revision, revision)
        named = _named(key)
        if named is None:
            return
        (self._keys.discard if deleted else self._keys.add)(key)
        new = None if deleted else msgspec.json.decode(base64.b64decode(item["value"]))
        self._see(Change(revision, *named, new))


async def _lines(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    rest = b""
    async for part in answer.content.iter_any():
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            yield line


def _named(key: bytes) -> tuple[str, str] | None:
    """Kind and name of what a key stands for; None for what nobody here looks at."""
    path = key.decode().removeprefix("/registry/")
    for prefix, kind in KINDS.items():
        if path.startswith(f"{prefix}/"):
            return kind, path.removeprefix(f"{prefix}/")
    return None


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()

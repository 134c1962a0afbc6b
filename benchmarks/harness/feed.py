"""A cluster in memory that a controller lists, watches and writes, in the place of the transport to an API server.

What nobody writes is generated when it is listed, page by page, so that a hundred thousand nodes take no memory of the
process that is measured, and the CPU that this takes is counted apart. Nothing else of an API server is here: no
validation, no versions that conflict, no other clients.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from kube.connection.config import Connection
from kube.connection.transport import Params, Transport
from kube.errors import api_error
from kube.resources import Resource

Json = dict[str, Any]
Generated = Callable[[int, int], Iterable[bytes]]
encode, decode = msgspec.json.encode, msgspec.json.decode


class Watch:
    """What one watch still has to hand out."""

    def __init__(self) -> None:
        self._news: asyncio.Queue[bytes] = asyncio.Queue()

    async def readany(self) -> bytes:
        """The next whole lines."""
        return await self._news.get()

    def push(self, lines: bytes) -> None:
        """Hand out these."""
        self._news.put_nowait(lines)


class Feed(Transport):
    """The transport. ``generated``: by plural, how many objects there are, and those from one number to another."""

    def __init__(self, served: Iterable[Resource], generated: dict[str, tuple[int, Generated]]) -> None:
        super().__init__(Connection("http://feed"))
        self._resources = {resource.path(): resource for resource in served}
        self._generated = generated
        self.written: dict[str, dict[str, Json]] = {resource.plural: {} for resource in self._resources.values()}
        self._watches: dict[str, list[Watch]] = {}
        self._version = 1_000
        self.spent = 0.0  # seconds of CPU for what was generated
        self.calls: Counter[str] = Counter()

    def put(self, plural: str, obj: Json) -> Json:
        """An object, or its next version, as somebody else writes it; watches are told."""
        meta = obj["metadata"]
        name = f"{meta.get('namespace', '')}/{meta['name']}"
        self._version += 1
        old = self.written[plural].get(name)
        named = {"uid": f"u-{self._version}", "creationTimestamp": "2026-01-01T00:00:00Z", **meta}
        made = {**obj, "metadata": {**named, "resourceVersion": str(self._version)}}
        self.written[plural][name] = made
        self.tell(plural, [encode({"type": "MODIFIED" if old else "ADDED", "object": made})])
        return made

    def tell(self, plural: str, lines: Iterable[bytes]) -> None:
        """Have every watch of a resource hand out these events."""
        data = b"\n".join(lines) + b"\n"
        for watch in self._watches.get(plural, ()):
            watch.push(data)

    def expire(self, plural: str) -> None:
        """Tell the watches that their place in history is forgotten, so that all is listed anew."""
        self.tell(plural, [encode({"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}})])

    # --- as the client calls it ----------------------------------------------------------------------------------

    async def send(
        self, method: str, path: str, *, params: Params | None = None, body: bytes | None = None, **_: Any
    ) -> bytes:
        """The answer to a call."""
        await asyncio.sleep(0)
        resource, namespace, name = self._parsed(path)
        if resource is None:
            if method == "GET":
                raise api_error(404)
            return b"{}"
        self.calls[f"{method} {resource.plural}"] += 1
        if method == "GET" and not name:
            return self._page(resource.plural, int((params or {}).get("continue") or 0), params)
        key = f"{namespace}/{name}"
        if method == "POST":
            return encode(self.put(resource.plural, decode(body or b"{}")))
        if (obj := self.written[resource.plural].get(key)) is None:
            raise api_error(404)
        if method == "PATCH":
            change = decode(body or b"{}")
            obj = self.put(resource.plural, patched(obj, change))
        return encode(obj)

    @asynccontextmanager
    async def stream(self, path: str, **_: Any) -> AsyncIterator[Any]:
        """A watch."""
        resource, _namespace, _name = self._parsed(path)
        if resource is None:
            raise api_error(404)
        watch = Watch()
        self._watches.setdefault(resource.plural, []).append(watch)
        try:
            yield watch
        finally:
            self._watches[resource.plural].remove(watch)

    def _parsed(self, path: str) -> tuple[Resource | None, str, str]:
        for root, resource in self._resources.items():
            head, _, rest = root.rpartition("/")
            if path == root or path.startswith(f"{root}/"):
                return resource, "", path.removeprefix(root).strip("/").partition("/")[0]
            if path.startswith(f"{head}/namespaces/"):
                namespace, _, below = path.removeprefix(f"{head}/namespaces/").partition("/")
                if below == rest or below.startswith(f"{rest}/"):
                    return resource, namespace, below.removeprefix(rest).strip("/").partition("/")[0]
        return None, "", ""

    def _page(self, plural: str, start: int, params: Params | None) -> bytes:
        began = time.process_time()
        count, make = self._generated.get(plural, (0, lambda _start, _stop: ()))
        limit = int((params or {}).get("limit") or 0) or count
        stop = min(start + limit, count)
        items = list(make(start, stop))
        if stop == count:
            items += map(encode, self.written[plural].values())
        more = b"" if stop == count else b',"continue":"%d"' % stop
        version = b'{"metadata":{"resourceVersion":"%d"' % self._version
        page = version + more + b'},"items":[' + b",".join(items) + b"]}"
        self.spent += time.process_time() - began
        return page


def patched(obj: Json, change: Any) -> Json:
    """The object after a merge patch, or after a JSON patch whose tests hold."""
    if not isinstance(change, list):
        return merged(obj, change)
    new = decode(encode(obj))
    for step in change:
        *above, last = [part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]]
        at: Any = new
        for part in above:
            at = at[int(part)] if isinstance(at, list) else at.setdefault(part, {})
        if step["op"] in {"add", "replace"}:
            if isinstance(at, list):
                at.append(step["value"])
            else:
                at[last] = step["value"]
        elif step["op"] == "remove":
            at.pop(last, None)
    return new


def merged(obj: Json, change: Json) -> Json:
    """RFC 7386."""
    new = dict(obj)
    for name, value in change.items():
        if value is None:
            new.pop(name, None)
        elif isinstance(value, dict):
            old = new.get(name)
            new[name] = merged(old if isinstance(old, dict) else {}, value)
        else:
            new[name] = value
    return new

"""One API server to call: where it is, how long a call may take, and whether writes are still allowed."""
# ruff: noqa: ASYNC109 -- a deadline that passes becomes an error that says what was called

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import partial
from types import TracebackType
from typing import Self

from clock import SYSTEM, Clock
from kube.connection import config
from kube.connection.answers import decode
from kube.connection.transport import JSON, POOL_SIZE, TIMEOUT_SECONDS, USER_AGENT, Fence, Params, Transport, fenced_by
from kube.resources import Resource

_OPEN = nullcontext()


class Session:
    """Calls by their paths, over one pool of connections. `kube.client` puts verbs on resources on top."""

    def __init__(
        self,
        connection: config.Connection,
        *,
        pool_size: int = POOL_SIZE,
        timeout: float = TIMEOUT_SECONDS,
        user_agent: str = USER_AGENT,
        clock: Clock = SYSTEM,
        transport: Transport | None = None,
        fence: Fence | None = None,
    ) -> None:
        """``transport``: one that is there already; else a new one, with so many connections at most."""
        self.connection = connection
        self.timeout = timeout
        self._clock = clock
        self._fence = fence
        self.transport = transport or Transport(connection, pool_size=pool_size, user_agent=user_agent, clock=clock)

    @classmethod
    async def connect(
        cls,
        kubeconfig: str | os.PathLike[str] | None = None,
        context: str | None = None,
        *,
        pool_size: int = POOL_SIZE,
        timeout: float = TIMEOUT_SECONDS,
        user_agent: str = USER_AGENT,
        clock: Clock = SYSTEM,
    ) -> Self:
        """A client by kubeconfig and context, or in-cluster; nothing is sent yet.

        Raises:
            ConfigError: no usable configuration.
        """
        connection = await config.load(kubeconfig, context, clock)
        return cls(connection, pool_size=pool_size, timeout=timeout, user_agent=user_agent, clock=clock)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def fenced(self, fence: Fence) -> Self:
        """The same client and connections; its writes raise Fenced unless ``fence()`` holds right before they are sent.

        So a leader that was stopped for a while, and is not one any more, writes nothing.
        """
        # One pool for both: the fence goes with the context of each call, and not with a connection.
        return type(self)(
            self.connection, timeout=self.timeout, clock=self._clock, transport=self.transport, fence=fence
        )

    async def close(self) -> None:
        """Close every connection."""
        await self.transport.close()

    def server_time(self) -> datetime:
        """The API server's time at its last answer, to the second; this machine's where it said none."""
        try:
            return parsedate_to_datetime(self.transport.date)
        except ValueError:
            return self._clock.utc()

    async def raw(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        timeout: float | None = None,
    ) -> bytes:
        """Any call, by its absolute path; returns the answer's body."""
        seconds = self.timeout if timeout is None else timeout
        with self._behind_fence(method):
            return await self.transport.send(
                method, path, params=params, body=body, content_type=content_type, timeout=seconds
            )

    async def server_version(self) -> str:
        """The API server's version, e.g. ``v1.36.3``."""
        return str(decode(dict, await self.raw("GET", "/version"), "version")["gitVersion"])

    async def _send(
        self,
        method: str,
        resource: Resource,
        namespace: str | None,
        name: str | None = None,
        subresource: str | None = None,
        *,
        params: Params | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        idempotent: bool | None = None,
        timeout: float | None = None,
        most: int | None = None,
        warned: Callable[[str], None] | None = None,
    ) -> bytes:
        with self._behind_fence(method):
            return await self.transport.send(
                method,
                resource.path(namespace, name, subresource),
                params=params,
                body=body,
                content_type=content_type,
                timeout=self.timeout if timeout is None else timeout,
                idempotent=idempotent,
                what=partial(resource.describe, namespace, name, subresource),
                most=most,
                warned=warned,
            )

    def _behind_fence(self, method: str) -> AbstractContextManager[object]:
        # A read does no harm, whoever leads. Every other method may write, so only GET passes.
        return _OPEN if self._fence is None or method == "GET" else fenced_by(self._fence)

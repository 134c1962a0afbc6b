"""A listening socket whose connections are not lost when it closes.

asyncio's own server fails a connection that it took in the turn of the loop in which it is closed, and its client waits
for the handshake without end (python/cpython#109564). This one asks the loop for no more than to watch the socket and
to make a connection of one that was accepted. So it knows which are being made, and it can take those that wait in the
kernel's queue before it closes: their clients hold them for made.
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Self

import structlog

BACKLOG = 1024
RETRY_SECONDS = 1.0  # until connections are taken again where a resource was lacking
_LACKING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = structlog.get_logger(__name__)


class Listener:
    """Takes connections from its making on. ``port``: where.

    ``make``: the protocol of a new connection. ``tls``: None for a plain one. ``handshake``: seconds for one, at most.
    """

    def __init__(
        self,
        bound: socket.socket,
        make: Callable[[], asyncio.Protocol],
        *,
        tls: ssl.SSLContext | None,
        handshake: float,
    ) -> None:
        self._socket = bound
        self._make = make
        self._tls = tls
        self._handshake = handshake if tls is not None else None
        self._loop = asyncio.get_running_loop()
        self._making: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self.port = int(bound.getsockname()[1])
        self._watch()

    @classmethod
    async def bind(
        cls,
        address: str,
        port: int,
        make: Callable[[], asyncio.Protocol],
        *,
        tls: ssl.SSLContext | None,
        handshake: float,
    ) -> Self:
        """Listen on the first that ``address`` means. Raises OSError."""
        found = await asyncio.get_running_loop().getaddrinfo(
            address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, *_, where = found[0]
        bound = socket.create_server(where, family=family, backlog=BACKLOG)
        bound.setblocking(False)
        return cls(bound, make, tls=tls, handshake=handshake)

    @property
    def making(self) -> int:
        """How many connections are being made."""
        return len(self._making)

    def close(self) -> None:
        """Take those that wait in the queue, and then no more."""
        if self._socket.fileno() < 0:
            return
        self._loop.remove_reader(self._socket)
        self._accept()
        if self._retry is not None:
            self._retry.cancel()
        self._socket.close()

    def abort(self) -> None:
        """Give up the connections that are being made."""
        for task in self._making:
            task.cancel()

    def _watch(self) -> None:
        self._retry = None
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(BACKLOG):
            try:
                accepted, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _LACKING:
                    raise
                # The socket stays readable, and the loop would do nothing else.
                log.warning("no connection can be taken", error=str(error), retry_seconds=RETRY_SECONDS)
                self._loop.remove_reader(self._socket)
                self._retry = self._loop.call_later(RETRY_SECONDS, self._watch)
                return
            task = self._loop.create_task(self._connect(accepted))
            self._making.add(task)
            task.add_done_callback(self._making.discard)

    async def _connect(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._make, accepted, ssl=self._tls, ssl_handshake_timeout=self._handshake
            )
        except OSError as error:  # SSLError is one; so is a handshake that takes too long
            log.debug("a connection was not made", error=str(error))

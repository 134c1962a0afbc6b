"""A listening socket whose connections are not lost when it closes.

asyncio's own server fails a connection that it took in the turn of the loop in which it is closed, and its client waits
for the handshake without end (python/cpython#109564). This one asks the loop for no more than to watch the socket and
to make a connection of one that was accepted. So it knows which are being made, and it can take those that wait in the
kernel's queue before it closes: their clients hold them for made. Where there is no place for one more
(`webhook.crowd`), it takes none until there is, and the others wait in that queue.
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Self

import structlog

from clock import Clock
from webhook.crowd import Crowd, CrowdPlace

# Newcomers without a place wait here, in the kernel, at no cost to us.
BACKLOG = 1024
AT_ONCE = 64  # taken in one turn of the loop
RETRY_SECONDS = 1.0  # until connections are taken again where a resource was lacking
_LACKING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = structlog.get_logger(__name__)

Make = Callable[[CrowdPlace], asyncio.Protocol]


class Listener:
    """Takes connections from its making on. ``port``: where.

    ``make``: the protocol of a new connection, which leaves its place when it ends. ``crowd``: who may be there.
    ``tls``: None for plain ones. ``seconds``: for a handshake and for the end of a connection, at most.
    """

    def __init__(
        self,
        bound: socket.socket,
        make: Make,
        crowd: Crowd,
        *,
        tls: ssl.SSLContext | None,
        seconds: tuple[float, float],
        clock: Clock,
    ) -> None:
        self._socket = bound
        self._make = make
        self.crowd = crowd
        self._tls = tls
        self._seconds = seconds if tls is not None else (None, None)
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._making: set[asyncio.Task[None]] = set()
        self._held: socket.socket | None = None  # the newcomer for which there was no place
        self._retry: asyncio.TimerHandle | None = None
        self.port = int(bound.getsockname()[1])
        self._watch()

    @classmethod
    async def bind(
        cls,
        address: str,
        port: int,
        make: Make,
        crowd: Crowd,
        *,
        tls: ssl.SSLContext | None,
        seconds: tuple[float, float],
        clock: Clock,
    ) -> Self:
        """Listen on the first that ``address`` means. Raises OSError."""
        found = await asyncio.get_running_loop().getaddrinfo(
            address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, *_, where = found[0]
        bound = socket.create_server(where, family=family, backlog=BACKLOG)
        bound.setblocking(False)
        return cls(bound, make, crowd, tls=tls, seconds=seconds, clock=clock)

    @property
    def making(self) -> int:
        """How many connections are being made."""
        return len(self._making)

    def close(self) -> None:
        """Take those that wait in the queue and have a place, and then no more."""
        if self._socket.fileno() < 0:
            return
        self._pause()
        while self._held is None and self._take_some():
            pass
        # Once more: the last attempt may have set a timer, or asked the crowd to wake us.
        self._pause()
        self._socket.close()
        if self._held is not None:
            self._held.close()

    def abort(self) -> None:
        """Give up the connections that are being made."""
        for task in self._making:
            task.cancel()

    def _watch(self) -> None:
        """Take connections as they come; one that waits for its place first."""
        self._pause()
        self._loop.add_reader(self._socket, self._accept)
        if self._held is not None:
            # The newcomer that we hold has left the kernel's queue, so the socket need not become readable for it.
            self._loop.call_soon(self._accept)

    def _pause(self, seconds: float | None = None) -> None:
        """Take none for so long, or until there is room; None: until `_watch` is called."""
        self._loop.remove_reader(self._socket)
        # One way of being woken at a time, or a newcomer is tried twice.
        self.crowd.stop_awaiting_room()
        if self._retry is not None:
            self._retry.cancel()
        self._retry = None if seconds is None else self._loop.call_later(seconds, self._watch)

    def _accept(self) -> None:
        if self._socket.fileno() >= 0:
            self._take_some()

    def _take_some(self) -> bool:
        """Take some of those that wait; whether there may be more."""
        for _ in range(AT_ONCE):
            try:
                # The one that waited goes first: it has been here longest.
                accepted = self._held or self._socket.accept()[0]
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return False
            except OSError as error:
                if error.errno not in _LACKING:
                    raise
                # The socket stays readable, and the loop would do nothing else.
                log.warning("no connection can be taken", error=str(error), retry_seconds=RETRY_SECONDS)
                self._pause(RETRY_SECONDS)
                return False
            now = self._clock.monotonic()
            making = _Making()
            # Before the handshake: that takes memory and milliseconds, and is what a crowd would have us spend.
            place = self.crowd.admit_connection(now, making.cancel, partial(_unread, accepted))
            self._held = accepted if place is None else None
            if place is None:
                # By the clock as well as by the crowd: a client that becomes slow tells nobody.
                self._pause(self.crowd.seconds_to_wait(now))
                self.crowd.await_room(self._watch)
                return False
            task = making.start_task(self._loop.create_task(self._connect(accepted, place)))
            self._making.add(task)
            task.add_done_callback(self._making.discard)
        return True

    async def _connect(self, accepted: socket.socket, place: CrowdPlace) -> None:
        handshake, goodbye = self._seconds
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._make(place),
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=handshake,
                ssl_shutdown_timeout=goodbye,
            )
        except OSError as error:  # SSLError is one; so is a handshake that takes too long
            place.leave_crowd()
            log.debug("a connection was not made", error=str(error))
        # Also a cancellation: a place that is not left is lost until the process ends.
        except BaseException:
            place.leave_crowd()
            raise


class _Making:
    """The making of a connection, which begins once it has a place."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    def start_task(self, task: "asyncio.Task[None]") -> "asyncio.Task[None]":
        """This task makes it; returns it."""
        self._task = task
        return task

    def cancel(self) -> None:
        """Give it up."""
        if self._task is not None:
            self._task.cancel()


def _unread(accepted: socket.socket) -> bool:
    """Whether bytes of the client wait to be read."""
    try:
        return bool(accepted.recv(1, socket.MSG_PEEK))
    except OSError:  # there are none, or it is over
        return False

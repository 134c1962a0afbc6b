"""Free ports on the loopback interface that stay ours.

Two sockets hold a reserved port. One is bound to it and does not listen: Linux lets the component bind it too, even
while connections of its predecessor linger (SO_REUSEADDR, as Go sets it), but nobody who only looks for a free port.
The other is a lock among ourselves, a name in the kernel's abstract namespace. So two clusters that start at the same
time cannot collide, a component that was killed gets its port back, and nothing is left to clean up.
"""

import itertools
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

LOWEST = 20000


class Reservation:
    """Ports of one cluster. ``close()`` gives them back."""

    def __init__(self, count: int, preferred: Iterable[int] = ()) -> None:
        """Reserve ``count`` ports, those of ``preferred`` that are free first. OSError where there are not so many."""
        self._held: list[tuple[socket.socket, socket.socket]] = []
        candidates = itertools.chain(preferred, _candidates())
        while len(self._held) < count:
            port = next(candidates, None)
            if port is None:
                self.close()
                raise OSError(f"no {count} free ports on 127.0.0.1 below the ephemeral range")
            # A port that somebody else has is no error; the next candidate is tried.
            with suppress(OSError):
                self._held.append(_hold_port(port))

    @property
    def ports(self) -> list[int]:
        """The port numbers, in the order of reservation."""
        return [held.getsockname()[1] for held, _ in self._held]

    def close(self) -> None:
        """Give the ports back."""
        for held, lock in self._held:
            held.close()
            lock.close()
        self._held.clear()


def _hold_port(port: int) -> tuple[socket.socket, socket.socket]:
    """The bound socket and the lock of a port. OSError where somebody listens there or has reserved it."""
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # The lock first: two clusters may both bind the port with SO_REUSEADDR as long as neither listens.
        lock.bind(f"\0topogate-local-port-{port}")
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", port))
    except OSError:
        lock.close()
        held.close()
        raise
    return held, lock


def _candidates() -> Iterator[int]:
    """Ports below those that the kernel gives to outgoing connections, from a place that differs by process."""
    try:
        highest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        highest = 32768
    # A range that begins lower leaves no room below it.
    count = (highest if highest > LOWEST + 1000 else 32768) - LOWEST
    # Processes that start together begin at different places, and rarely try the same port.
    first = os.getpid() * 31 % count
    return (LOWEST + (first + i) % count for i in range(count))

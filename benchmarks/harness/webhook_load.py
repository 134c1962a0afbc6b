"""Clients of the webhook for its benchmark: as much as it takes, or so many calls a second.

Plain blocking sockets, so that the client costs little beside the server.
"""

import socket
import ssl
import statistics
import time
from collections.abc import Iterator, Sequence

HOST = "127.0.0.1"
KEPT = 4  # connections of calls at a steady rate
SHARES = (0.5, 0.9, 0.99, 0.999)


def request(path: str, body: bytes) -> bytes:
    """A review as an API server sends it."""
    head = (
        f"POST {path}?timeout=10s HTTP/1.1\r\nHost: topogate-webhook.topogate-system.svc:443\r\n"
        "User-Agent: kube-apiserver-admission\r\nAccept: application/json, */*\r\nContent-Type: application/json\r\n"
        f"Accept-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def flood(port: int, calls: Iterator[bytes], count: int, connections: int) -> int:
    """Make at least so many calls, half of the connections always in flight; the number answered.

    Raises RuntimeError at an answer that is not 200.
    """
    sockets = [_connect(port) for _ in range(connections)]
    try:
        waiting, idle = sockets[::2], sockets[1::2]
        for each in waiting:
            each.sendall(next(calls))
        done = 0
        while done < count:
            for each in idle:
                each.sendall(next(calls))
            for each in waiting:
                _receive(each)
            done += len(waiting)
            waiting, idle = idle, waiting
        for each in waiting:
            _receive(each)
        return done + len(waiting)
    finally:
        for each in sockets:
            each.close()


def paced(port: int, calls: Iterator[bytes], *, rate: float, seconds: float, fresh: bool) -> list[float]:
    """Seconds from when each call was due to its answer: a call that another held up has waited too.

    ``fresh``: each makes a connection of its own. Raises RuntimeError at an answer that is not 200.
    """
    sockets = [] if fresh else [_connect(port) for _ in range(KEPT)]
    taken, begin = [], time.perf_counter()
    try:
        for number in range(round(rate * seconds)):
            due = begin + number / rate
            time.sleep(max(0.0, due - time.perf_counter()))
            connection = _connect(port) if fresh else sockets[number % KEPT]
            connection.sendall(next(calls))
            _receive(connection)
            taken.append(time.perf_counter() - due)
            if fresh:
                connection.close()
    finally:
        for each in sockets:
            each.close()
    return taken


def quantiles(taken: Sequence[float]) -> dict[float, float]:
    """The value below which each of `SHARES` of them lies."""
    cuts = statistics.quantiles(taken, n=1000, method="inclusive")
    return {share: cuts[round(share * 1000) - 1] for share in SHARES}


def _connect(port: int) -> ssl.SSLSocket:
    return _TRUST.wrap_socket(socket.create_connection((HOST, port)))


def _receive(connection: ssl.SSLSocket) -> None:
    """One whole answer; they are small, and mostly come in one piece."""
    data = connection.recv(65536)
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"the server answered {head.decode(errors='replace')} {body.decode(errors='replace')}")
    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
    while len(body) < length:
        body += connection.recv(65536)


_TRUST = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_TRUST.check_hostname, _TRUST.verify_mode = False, ssl.CERT_NONE

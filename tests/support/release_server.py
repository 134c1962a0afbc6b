"""A small server on loopback that behaves as release servers do: redirects, ranges, and what goes wrong with them."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class ReleaseServer:
    """``files``: what it has, by path. ``asked``: (path, Range) of every request, in order.

    ``cut_after``: each answer ends after so many bytes. ``ranges``: whether it sends parts. ``moved``: paths that lead
    elsewhere. ``silent``: it takes connections, and says nothing.
    """

    def __init__(self):
        self.files = {}
        self.moved = {}
        self.asked = []
        self.cut_after = None
        self.ranges = True
        self.silent = threading.Event()
        self.over = threading.Event()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def release_server():
    state = ReleaseServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_GET(self):
            wanted = self.headers.get("Range")
            state.asked.append((self.path, wanted))
            if state.silent.is_set():
                state.over.wait(10)
                return
            if self.path in state.moved:
                self._head(302, {"Location": state.moved[self.path], "Content-Length": "0"})
                return
            body = state.files.get(self.path)
            if body is None:
                self._head(404, {"Content-Length": "0"})
                return
            self._send(body, wanted)

        def _send(self, body, wanted):
            begin = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and state.ranges else 0
            if begin >= len(body) > 0:
                self._head(416, {"Content-Length": "0", "Content-Range": f"bytes */{len(body)}"})
                return
            rest = body[begin:]
            ranged = {"Content-Range": f"bytes {begin}-{len(body) - 1}/{len(body)}"} if begin else {}
            self._head(206 if begin else 200, {"Content-Length": str(len(rest)), **ranged})
            if state.cut_after is None:
                self.wfile.write(rest)
                return
            self.wfile.write(rest[: state.cut_after])
            self.wfile.flush()
            self.close_connection = True

        def _head(self, status, headers):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.over.set()
        server.shutdown()
        server.server_close()

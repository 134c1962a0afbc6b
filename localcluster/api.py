"""The few blocking calls that setting up a cluster needs: HTTPS with client certificates."""

import http.client
import json
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_SECONDS = 5.0
OWNER = "topogate-local"


class RequestRefused(Exception):  # noqa: N818
    """The server answered with an error status."""

    def __init__(self, status: int, path: str, body: str) -> None:
        """``body`` is the answer's text."""
        super().__init__(f"{path}: HTTP {status}: {body}")
        self.status = status


class Endpoint:
    """One HTTPS server that checks client certificates. Each call is a connection of its own."""

    def __init__(self, url: str, *, ca: Path, cert: Path | None = None, key: Path | None = None) -> None:
        """``cert`` and ``key`` are what this client shows of itself."""
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port
        self._context = ssl.create_default_context(cafile=str(ca))
        if cert is not None:
            self._context.load_cert_chain(cert, key)

    def request(self, method: str, path: str, body: Any = None, *, content_type: str = "application/json") -> bytes:
        """Send one request and return the answer's body. Raises Refused for a status of 300 and more, and OSError."""
        connection = http.client.HTTPSConnection(self._host, self._port, timeout=TIMEOUT_SECONDS, context=self._context)
        try:
            payload = None if body is None else json.dumps(body)
            connection.request(method, path, payload, {"Content-Type": content_type} if payload else {})
            answer = connection.getresponse()
            # Before the connection is closed below, also of an error: its text says why.
            content = answer.read()
        except http.client.HTTPException as error:
            raise ConnectionError(f"{path}: {error!r}") from error
        finally:
            connection.close()
        if answer.status >= 300:
            raise RequestRefused(answer.status, path, content.decode(errors="replace").strip())
        return content

    def is_ok(self, path: str) -> bool:
        """Whether a GET succeeds."""
        try:
            self.request("GET", path)
        except (OSError, RequestRefused):
            return False
        return True

    def apply(self, path: str, obj: dict[str, Any]) -> None:
        """Server-side apply of one object at its own path."""
        self.request(
            "PATCH", f"{path}?fieldManager={OWNER}&force=true", obj, content_type="application/apply-patch+yaml"
        )

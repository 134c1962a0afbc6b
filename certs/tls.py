"""A TLS server whose certificate changes while it serves.

`SSLContext.load_cert_chain` on a live context would leave every handshake broken after a pair that does not match, and
half of one between its two reads. So each certificate gets a context of its own, made and checked apart, and the
context that the listener was started with hands every new connection over to the current one (`sni_callback`, which
OpenSSL calls also where the client names no server). Connections that exist keep what they have.
"""

import os
import ssl
from pathlib import Path
from tempfile import TemporaryDirectory


class ServerTls:
    """``context`` is what a listener is started with; `load` changes what new connections get."""

    def __init__(self) -> None:
        self.context = _bare_context()
        self.context.sni_callback = self._choose
        self._current: ssl.SSLContext | None = None

    @property
    def loaded(self) -> bool:
        """Whether there is a certificate; handshakes fail until then."""
        return self._current is not None

    def load(self, cert_pem: bytes, key_pem: bytes) -> None:
        """Serve new connections with this certificate chain and key.

        Raises ssl.SSLError where the two are unusable or do not match; what was served before is then served on.
        """
        context = _bare_context()
        pair = key_pem + b"\n" + cert_pem
        # The ssl module reads files only. Use memory behind a path, as the key must not lie on a disk.
        if hasattr(os, "memfd_create"):
            handle = os.memfd_create("topogate-tls", os.MFD_CLOEXEC)
            try:
                os.write(handle, pair)
                # Opened by its path, the file is read from its beginning; the handle itself stands at the end.
                context.load_cert_chain(f"/proc/self/fd/{handle}")
            finally:
                os.close(handle)
        else:
            with TemporaryDirectory() as folder:
                path = Path(folder) / "pair.pem"
                # The mode comes before the key, so that nobody else can open the file in between.
                path.touch(mode=0o600)
                path.write_bytes(pair)
                context.load_cert_chain(path)
        self._current = context

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> int | None:
        if self._current is None:
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        connection.context = self._current
        return None


def _bare_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Renegotiation lets one client make the server sign over and over on one connection.
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    # aiohttp's parser reads HTTP/1.1 alone, so a client that offers h2 as well must not get it.
    context.set_alpn_protocols(["http/1.1"])
    return context

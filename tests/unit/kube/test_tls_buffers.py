"""A TLS connection holds no more memory than it needs."""

import asyncio
import ssl
from asyncio import sslproto

from kube.connection.tls_buffers import READ_BYTES, shrink_tls_buffers


async def test_a_connection_holds_a_buffer_of_the_size_that_we_say(monkeypatch):
    """Should this fail after an upgrade of Python, look at SSLProtocol.get_buffer for what decides its size now."""
    monkeypatch.setattr(sslproto.SSLProtocol, "max_size", sslproto.SSLProtocol.max_size)  # put back afterwards
    shrink_tls_buffers()
    made = sslproto.SSLProtocol(
        asyncio.get_running_loop(), asyncio.Protocol(), ssl.create_default_context(), None, server_hostname="a"
    )
    assert len(made.get_buffer(-1)) == READ_BYTES < 256 * 1024
    made.connection_lost(None)

"""How much asyncio reads of a TLS connection at a time; each connection has a buffer of that size while it is open.

asyncio's own are 256 KiB and filled with zeros, so all of it is resident: two thirds of what a connection takes. The
ungater has a hundred, of watches and of calls at a time, and the webhook those of a crowd.
"""

from asyncio import sslproto

READ_BYTES = 64 * 1024  # four records of TLS


def shrink_tls_buffers() -> None:
    """Have the TLS connections that this process makes or takes from now on read ``READ_BYTES`` at a time."""
    # asyncio has no setting for it. A test fails where an upgrade of Python decides the size elsewhere.
    sslproto.SSLProtocol.max_size = READ_BYTES

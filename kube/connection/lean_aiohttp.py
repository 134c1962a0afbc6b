"""aiohttp, imported without the system's certificates.

While it is imported, aiohttp makes a TLS context of all certificates that this system trusts: a tenth of what a command
costs, for connections that name no context of their own. Each session of this product names its own.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

# Where OpenSSL looks for certificates, each time that it reads them.
_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


@contextmanager
def _no_certificates() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in _VARIABLES}
    os.environ.update(dict.fromkeys(_VARIABLES, os.devnull))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


with _no_certificates():
    import aiohttp

__all__ = ["aiohttp"]

"""``topogate usage`` asks a Prometheus over https: it trusts whom this system trusts, and nobody else."""

import asyncio
import os
import ssl
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from support.prometheus_server import prometheus_server

from certs.authority import Lifetimes, create

DAYS = timedelta(days=30)


@pytest.fixture
def made(tmp_path):
    bundle = create(["127.0.0.1"], datetime.now(UTC), Lifetimes(DAYS, DAYS))
    for name, pem in (("ca.crt", bundle.ca_pem), ("tls.crt", bundle.cert_pem), ("tls.key", bundle.key_pem)):
        (tmp_path / name).write_bytes(pem)
    return tmp_path


async def ask(made, **environment):
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(made / "tls.crt", made / "tls.key")
    async with prometheus_server(tls) as server:
        server.series["local_queue"] = [({"cluster_queue": "gpu", "resource": "nvidia.com/gpu"}, lambda _: "5")]
        program = [sys.executable, "-m", "cli.main", "usage", "--since", "1d", "--prometheus", server.url]
        return await asyncio.to_thread(
            subprocess.run, program, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60
        )


async def test_a_certificate_of_an_authority_that_the_system_trusts_is_good(made):
    found = await ask(made, SSL_CERT_FILE=str(made / "ca.crt"))
    assert (found.returncode, found.stderr) == (0, "")


async def test_another_certificate_is_refused(made):
    found = await ask(made)
    assert found.returncode != 0
    assert "certificate verify failed" in found.stderr


def test_what_the_environment_says_of_certificates_stays_so():
    """aiohttp is imported without the system's certificates; whoever reads them after it finds them."""
    program = "import os, kube.client; print(os.environ['SSL_CERT_FILE'], os.environ.get('SSL_CERT_DIR'))"
    environment = {**os.environ, "SSL_CERT_FILE": "/trusted.pem"}
    environment.pop("SSL_CERT_DIR", None)
    found = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert found.stdout == "/trusted.pem None\n"

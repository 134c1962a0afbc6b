"""The certificate that a TLS handshake gets."""

import ssl
from datetime import UTC, datetime

import pytest

from certs.authority import Lifetimes, create
from certs.tls import ServerTls

HOST = "127.0.0.1"
ONE, TWO = (create([HOST, "a.example"], datetime.now(UTC), Lifetimes()) for _ in range(2))


def handshake(tls, trusted, *, name=HOST, version=ssl.TLSVersion.TLSv1_3):
    """The certificate (DER) that a client who trusts ``trusted`` is given, in memory."""
    context = ssl.create_default_context(cadata=trusted.ca_pem.decode())
    context.maximum_version = version
    if name is None:
        context.check_hostname = False
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(to_client, to_server, server_hostname=name)
    server = tls.context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return client.getpeercert(binary_form=True)


def der(bundle):
    return ssl.PEM_cert_to_DER_cert(bundle.cert_pem.decode())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("name", [HOST, "a.example", None])
def test_each_handshake_gets_the_current_certificate(name, version):
    tls = ServerTls()
    for bundle in (ONE, TWO, ONE):
        tls.load(bundle.cert_pem, bundle.key_pem)
        assert handshake(tls, bundle, name=name, version=version) == der(bundle)


def test_nothing_is_served_before_there_is_one():
    tls = ServerTls()
    assert not tls.loaded
    with pytest.raises(ssl.SSLError):
        handshake(tls, ONE)


@pytest.mark.parametrize(
    ("cert", "key"), [(TWO.cert_pem, ONE.key_pem), (b"nonsense", ONE.key_pem), (ONE.cert_pem, b"nonsense"), (b"", b"")]
)
def test_a_pair_that_does_not_match_leaves_the_old_one_served(cert, key):
    tls = ServerTls()
    tls.load(ONE.cert_pem, ONE.key_pem)
    with pytest.raises(ssl.SSLError):
        tls.load(cert, key)
    assert handshake(tls, ONE) == der(ONE)


def test_the_key_can_be_loaded_without_memory_files(monkeypatch):
    monkeypatch.delattr("os.memfd_create")
    tls = ServerTls()
    tls.load(ONE.cert_pem, ONE.key_pem)
    assert handshake(tls, ONE) == der(ONE)

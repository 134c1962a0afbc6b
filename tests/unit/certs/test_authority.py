import base64
import os
import re
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from msgspec.structs import replace

from certs import store
from certs.authority import Bundle, BundleError, Lifetimes, check, create, service_hosts, signed_by
from certs.options import CertificateOptions
from certs.rotation import RoundFindings, advance
from crds.settings import Settings

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
LIVES = Lifetimes(ca=timedelta(days=3650), leaf=timedelta(days=365), renew_before=timedelta(days=60))
HOSTS = (*service_hosts("topogate-webhook", "topogate-system"), "127.0.0.1", "::1")
BUNDLE = create(HOSTS, NOW, LIVES)


def days(number):
    return NOW + timedelta(days=number)


def test_what_is_made_is_whole():
    check(BUNDLE, NOW)
    assert BUNDLE.hosts == set(HOSTS)
    assert BUNDLE.not_after == days(365)
    assert isinstance(BUNDLE.leaf.public_key(), ec.EllipticCurvePublicKey)
    assert BUNDLE.leaf.public_key().curve.name == "secp256r1"
    ca = BUNDLE.authorities[0]
    assert ca.not_valid_after_utc == days(3650)
    assert ca.extensions.get_extension_for_class(x509.BasicConstraints).value == x509.BasicConstraints(True, 0)
    assert not BUNDLE.leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    usage = BUNDLE.leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [x509.ExtendedKeyUsageOID.SERVER_AUTH]


def test_a_long_service_name_is_no_common_name():
    long = "a" * 63 + ".some-namespace.svc"
    assert create([long], NOW, LIVES).hosts == {long}


def edited(pem, old, new):
    """The first object of a PEM text, with these bytes in place of the first of those."""
    begin, *lines = pem.decode().split("-----END")[0].splitlines()
    der = base64.b64decode("".join(lines))
    assert old in der
    return f"{begin}\n{base64.encodebytes(der.replace(old, new, 1)).decode()}{begin.replace('BEGIN', 'END')}\n".encode()


OTHER = create(HOSTS, NOW, LIVES)
# P-256, and prime192v3, for which cryptography 50 raises UnsupportedAlgorithm.
CURVES = (bytes.fromhex("06082a8648ce3d030107"), bytes.fromhex("06082a8648ce3d030103"))
UNKNOWN = edited(BUNDLE.key_pem, *CURVES)
OF_UNKNOWN_VERSION = edited(BUNDLE.cert_pem, bytes.fromhex("a003020102"), bytes.fromhex("a003020107"))
TWO_LISTS_OF_NAMES = edited(BUNDLE.cert_pem, bytes.fromhex("0603551d25"), bytes.fromhex("0603551d11"))
RSA = rsa.generate_private_key(65537, 2048).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@pytest.mark.parametrize(
    ("broken", "what"),
    [
        (replace(BUNDLE, key_pem=OTHER.key_pem), "tls.key is not the key of tls.crt"),
        (replace(BUNDLE, cert_pem=b""), "tls.crt is missing"),
        (replace(BUNDLE, cert_pem=b"nonsense"), "tls.crt is no PEM certificate"),
        (replace(BUNDLE, cert_pem=BUNDLE.cert_pem[:-40]), "tls.crt is no PEM certificate"),
        (replace(BUNDLE, key_pem=b"nonsense"), "tls.key is no PEM private key"),
        (replace(BUNDLE, key_pem=RSA), "tls.key is not the key of tls.crt"),
        (replace(BUNDLE, key_pem=UNKNOWN), "tls.key is a key of an unknown kind"),
        (replace(BUNDLE, cert_pem=edited(BUNDLE.cert_pem, *CURVES)), "tls.key is not the key of tls.crt"),
        (replace(BUNDLE, cert_pem=OF_UNKNOWN_VERSION), "tls.crt is no PEM certificate"),
        (replace(BUNDLE, cert_pem=TWO_LISTS_OF_NAMES), "the extensions of tls.crt cannot be read"),
        (
            replace(BUNDLE, cert_pem=OTHER.cert_pem, key_pem=OTHER.key_pem),
            "signed by none of the certificates in ca.crt",
        ),
        (replace(BUNDLE, ca_key_pem=OTHER.ca_key_pem), "ca.key is not the key of the first certificate in ca.crt"),
        (replace(BUNDLE, ca_key_pem=b"nonsense"), "ca.key is no PEM private key"),
        (replace(BUNDLE, ca_key_pem=UNKNOWN), "ca.key is a key of an unknown kind"),
        (replace(BUNDLE, ca_pem=b""), "ca.crt is no PEM certificate"),
        (replace(BUNDLE, ca_pem=BUNDLE.cert_pem + BUNDLE.ca_pem, ca_key_pem=BUNDLE.key_pem), "is no CA"),
    ],
)
def test_what_is_broken_is_named(broken, what):
    with pytest.raises(BundleError, match=re.escape(what)):
        check(broken, NOW)


def test_a_key_of_an_unknown_kind_is_repaired():
    for broken in (replace(BUNDLE, key_pem=UNKNOWN), replace(BUNDLE, ca_key_pem=UNKNOWN)):
        seen = RoundFindings(stored=broken, held=BUNDLE, trusted=BUNDLE.authorities)
        step = advance(seen, HOSTS, NOW, LIVES)
        assert "is a key of an unknown kind" in step.repaired
        check(step.bundle, NOW)


def test_who_is_signed_by_a_certificate_of_an_unknown_kind_is_no_error():
    (odd,) = x509.load_pem_x509_certificates(edited(BUNDLE.ca_pem, *CURVES))
    assert not signed_by(BUNDLE.leaf, odd)


@pytest.mark.parametrize(("day", "what"), [(-1, "tls.crt is valid from"), (366, "tls.crt is valid from")])
def test_a_time_outside_of_its_life_is_named(day, what):
    with pytest.raises(BundleError, match=what):
        check(BUNDLE, days(day))


def test_somebody_elses_certificate_needs_no_ca_key():
    check(replace(BUNDLE, ca_key_pem=b"", ca_pem=b""), NOW)


def test_keys_are_never_shown():
    assert "PRIVATE" not in repr(BUNDLE)
    assert "PRIVATE" not in str(BUNDLE)


def test_a_secret_holds_it_and_gives_it_back():
    data = store.data_of(BUNDLE)
    assert set(data) == {"tls.crt", "tls.key", "ca.crt", "ca.key"}
    assert store.bundle_of(data) == BUNDLE


@pytest.mark.parametrize("data", [{}, {"tls.crt": ""}, {"tls.crt": "!!!", "tls.key": "x"}])
def test_an_empty_secret_is_only_the_place_for_it(data):
    assert store.bundle_of(data) is None


def test_a_secret_of_cert_manager_has_no_ca_key():
    data = {
        name: base64.b64encode(part).decode()
        for name, part in (("tls.crt", BUNDLE.cert_pem), ("tls.key", BUNDLE.key_pem))
    }
    found = store.bundle_of(data)
    assert found == Bundle(b"", BUNDLE.cert_pem, BUNDLE.key_pem)
    assert not found.managed


def test_options_take_names_and_times_from_the_settings():
    options = CertificateOptions.from_settings(
        Settings(webhook_url="https://10.1.2.3:9443/x", namespace="ns", certificate_days=30, certificate_renew_days=5),
        ["host.example"],
        env={"POD_NAME": "topogate-webhook-1", "POD_UID": "0a-1"},
    )
    assert (options.replica, options.pod, options.pod_uid) == ("0a-1", "topogate-webhook-1", "0a-1")
    assert options.hosts == (
        "topogate-webhook.ns.svc",
        "topogate-webhook.ns.svc.cluster.local",
        "10.1.2.3",
        "host.example",
    )
    assert options.lifetimes.leaf == timedelta(days=30)
    assert options.lifetimes.renew_before == timedelta(days=5)
    assert options.sign
    assert not CertificateOptions.from_settings(Settings(certificate_source="cert-manager")).sign


@pytest.mark.parametrize(("host", "port"), [("a.b_c", 9443), ("x" * 90, 0), ("-", 1)])
def test_a_process_outside_of_a_cluster_has_a_name_that_an_annotation_takes(monkeypatch, host, port):
    monkeypatch.setattr("socket.gethostname", lambda: host)
    name = CertificateOptions.from_settings(Settings(webhook_port=port), env={"POD_NAME": "without-uid"}).replica
    assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?", name)
    assert name.endswith(str(port or os.getpid()))

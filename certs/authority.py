"""The certificate authority: what a set of certificates looks like, when it is due, and what replaces it.

Rules
- Keys are ECDSA P-256. A signing CA signs serving certificates only (path length 0).
- `Bundle.ca_pem` lists every CA that clients shall trust, the signing one first; `ca_key_pem` is the key of the first.
- Nobody is served a certificate of a CA that clients may not have yet: a new CA is put in front first, and the serving
  certificate changes hands only once the caller says that clients have `settled` on it.
- A serving certificate never outlives its CA. A CA that expired is dropped.
- A bundle without a CA key was made by somebody else (cert-manager): it is served as it is, and never rewritten.

Nothing here reads a clock or talks to anybody. Keys are random, of course: no decision depends on them.
"""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import cast

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_SKEW = timedelta(minutes=5)  # clocks of API servers may be behind ours
_RENEW_AT = 2 / 3  # of the life
_MAX_COMMON_NAME = 64


class BundleError(ValueError):
    """What a Secret holds is no usable set of certificates; the text says which part, and why."""


@dataclass(frozen=True)
class Lifetimes:
    """How long certificates live. One is renewed at two thirds of its life, or ``renew_before`` its end if earlier."""

    ca: timedelta = timedelta(days=3650)
    leaf: timedelta = timedelta(days=365)
    renew_before: timedelta = timedelta(days=60)


@dataclass(frozen=True)
class Bundle:
    """One set of certificates, as PEM. ``cert_pem`` may be a chain, the serving certificate first.

    Raises BundleError where a part is read that cannot be parsed.
    """

    ca_pem: bytes
    cert_pem: bytes
    key_pem: bytes
    ca_key_pem: bytes = b""

    @cached_property
    def leaf(self) -> x509.Certificate:
        """The serving certificate."""
        return _parse_all(self.cert_pem, "tls.crt")[0]

    @cached_property
    def authorities(self) -> tuple[x509.Certificate, ...]:
        """The trusted CAs, the signing one first."""
        return _parse_all(self.ca_pem, "ca.crt")

    @property
    def not_after(self) -> datetime:
        """End of the serving certificate's life."""
        return self.leaf.not_valid_after_utc

    @property
    def hosts(self) -> frozenset[str]:
        """DNS names and IP addresses of the serving certificate."""
        return _hosts(self.leaf)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the serving certificate, in hex: for logs and comparisons."""
        return self.leaf.fingerprint(hashes.SHA256()).hex()

    @property
    def managed(self) -> bool:
        """Whether we sign it (there is a CA key), rather than somebody else."""
        return bool(self.ca_key_pem)

    def __repr__(self) -> str:
        return f"Bundle(leaf until {self.not_after:%Y-%m-%d %H:%M}, {len(self.authorities)} CA)"  # never a key


def check(bundle: Bundle, now: datetime) -> None:
    """Refuse a bundle that could not be served now.

    Raises BundleError: a part is missing or no PEM, a key is not its certificate's, the serving certificate is expired
    or of none of the CAs.
    """
    if not _same_key(bundle.leaf, _private_key(bundle.key_pem, "tls.key")):
        raise BundleError("tls.key is not the key of tls.crt")
    if not bundle.leaf.not_valid_before_utc <= now < bundle.not_after:
        raise BundleError(f"tls.crt is valid from {bundle.leaf.not_valid_before_utc} to {bundle.not_after} only")
    if not bundle.managed:
        return  # somebody else's chain may have intermediates that we do not see
    if not any(_signed_by(bundle.leaf, authority) for authority in bundle.authorities):
        raise BundleError("tls.crt is signed by none of the certificates in ca.crt")
    _check_signer(bundle, now)


def create(hosts: Iterable[str], now: datetime, lifetimes: Lifetimes) -> Bundle:
    """A new CA and a serving certificate for ``hosts`` (DNS names and IP addresses)."""
    ca_pem, ca_key_pem = _make_authority(now, lifetimes.ca)
    cert_pem, key_pem = _issue(ca_pem, ca_key_pem, hosts, now, lifetimes.leaf)
    return Bundle(ca_pem, cert_pem, key_pem, ca_key_pem)


def advance(
    bundle: Bundle | None, hosts: Iterable[str], now: datetime, lifetimes: Lifetimes, *, settled: bool
) -> Bundle:
    """The bundle that should take this one's place now; the very same object where nothing is due.

    One call takes one step of a rotation; call it again after the step's result is stored and published. ``settled``:
    every client has long had all CAs of ``bundle``.
    """
    if bundle is None:
        return create(hosts, now, lifetimes)
    if not bundle.managed:
        return bundle
    try:
        check(bundle, now)
    except BundleError:
        return _repair(bundle, hosts, now, lifetimes)
    signer = bundle.authorities[0]
    if _due(signer, now, timedelta(0)):
        return _add_authority(bundle, now, lifetimes)
    wanted = frozenset(hosts) | bundle.hosts  # a replica with other settings must not fight over the names
    if _signed_by(bundle.leaf, signer):
        due = wanted != bundle.hosts or _due(bundle.leaf, now, lifetimes.renew_before)
    else:
        due = settled
    return _reissue(bundle, wanted, now, lifetimes) if due else _drop_expired(bundle, now)


def service_hosts(service: str, namespace: str) -> tuple[str, ...]:
    """The names by which an API server may call a Service."""
    return (f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.cluster.local")


def _repair(bundle: Bundle, hosts: Iterable[str], now: datetime, lifetimes: Lifetimes) -> Bundle:
    """Keep the CA that clients trust where it is whole, else start over."""
    try:
        _check_signer(bundle, now)
    except BundleError:
        return create(hosts, now, lifetimes)
    return _reissue(bundle, hosts, now, lifetimes)


def _check_signer(bundle: Bundle, now: datetime) -> None:
    signer = bundle.authorities[0]
    if not _same_key(signer, _private_key(bundle.ca_key_pem, "ca.key")):
        raise BundleError("ca.key is not the key of the first certificate in ca.crt")
    if not signer.not_valid_before_utc <= now < signer.not_valid_after_utc:
        raise BundleError(f"the CA is valid from {signer.not_valid_before_utc} to {signer.not_valid_after_utc} only")


def _reissue(bundle: Bundle, hosts: Iterable[str], now: datetime, lifetimes: Lifetimes) -> Bundle:
    cert_pem, key_pem = _issue(bundle.ca_pem, bundle.ca_key_pem, hosts, now, lifetimes.leaf)
    return replace(_drop_expired(bundle, now), cert_pem=cert_pem, key_pem=key_pem)


def _add_authority(bundle: Bundle, now: datetime, lifetimes: Lifetimes) -> Bundle:
    ca_pem, ca_key_pem = _make_authority(now, lifetimes.ca)
    kept = _drop_expired(bundle, now)
    return replace(kept, ca_pem=ca_pem + kept.ca_pem, ca_key_pem=ca_key_pem)


def _drop_expired(bundle: Bundle, now: datetime) -> Bundle:
    kept = [authority for authority in bundle.authorities if now < authority.not_valid_after_utc]
    if len(kept) == len(bundle.authorities):
        return bundle
    return replace(bundle, ca_pem=b"".join(authority.public_bytes(Encoding.PEM) for authority in kept))


def _due(certificate: x509.Certificate, now: datetime, renew_before: timedelta) -> bool:
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    life = end - start
    # Never before half of its life: one that the end of its CA cut short would be due at birth.
    return now >= min(start + life * _RENEW_AT, max(end - renew_before, start + life / 2))


def _make_authority(now: datetime, life: timedelta) -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"topogate-ca {now.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}")
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        _builder(name, name, key.public_key(), now, now + life)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(Encoding.PEM), _key_pem(key)


def _issue(
    ca_pem: bytes, ca_key_pem: bytes, hosts: Iterable[str], now: datetime, life: timedelta
) -> tuple[bytes, bytes]:
    """A serving certificate of the first CA in ``ca_pem``, and its key."""
    authority = _parse_all(ca_pem, "ca.crt")[0]
    ca_key = _private_key(ca_key_pem, "ca.key")
    key = ec.generate_private_key(ec.SECP256R1())
    names = sorted(set(hosts))
    subject = _name(next((name for name in names if len(name) <= _MAX_COMMON_NAME), "topogate-webhook"))
    end = min(now + life, authority.not_valid_after_utc)
    certificate = (
        _builder(subject, authority.subject, key.public_key(), now, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    return certificate.public_bytes(Encoding.PEM), _key_pem(key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, start: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - _SKEW)
        .not_valid_after(end)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _hosts(certificate: x509.Certificate) -> frozenset[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    addresses = names.get_values_for_type(x509.IPAddress)
    return frozenset(names.get_values_for_type(x509.DNSName)) | {str(address) for address in addresses}


def _parse_all(pem: bytes, part: str) -> tuple[x509.Certificate, ...]:
    try:
        return tuple(x509.load_pem_x509_certificates(pem))
    except ValueError as error:
        raise BundleError(f"{part} is no PEM certificate: {error}") from error


def _private_key(pem: bytes, part: str) -> ec.EllipticCurvePrivateKey:
    """Somebody else's key may be RSA; it is only compared by its public half, never used to sign."""
    try:
        return cast("ec.EllipticCurvePrivateKey", load_pem_private_key(pem, password=None))
    except (ValueError, TypeError) as error:
        raise BundleError(f"{part} is no PEM private key without a password") from error


def _same_key(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> bool:
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return certificate.public_key().public_bytes(*form) == key.public_key().public_bytes(*form)


def _signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

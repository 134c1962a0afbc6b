"""X.509: what a set of certificates looks like, whether it can be served, and what it takes to sign another.

- Keys are ECDSA P-256. A signing CA signs serving certificates only (path length 0).
- `Bundle.ca_pem` lists every CA that clients shall trust, the signing one first; `ca_key_pem` is the key of the first.
- A serving certificate never outlives its CA.
- A bundle without a CA key was made by somebody else (cert-manager).

`rotation` decides which of this is due. Nothing here reads a clock or talks to anybody. Keys are random, of course: no
decision depends on them.
"""

import ipaddress
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import cast

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec.structs import replace

_SKEW = timedelta(minutes=5)  # clocks of API servers may be behind ours
_RENEW_AT = 2 / 3  # of the life
# RFC 5280 bounds a common name at 64 characters (ub-common-name).
_MAX_COMMON_NAME = 64
# What `cryptography` raises where a key or a certificate is none, or of a kind that it does not know: they have no
# base in common. An encrypted key, and one of a type that signs nothing, are TypeErrors.
_UNREADABLE = (
    *(ValueError, TypeError, UnsupportedAlgorithm),
    *(x509.InvalidVersion, x509.DuplicateExtension, x509.UnsupportedGeneralNameType),
)


class BundleError(ValueError):
    """What a Secret holds is no usable set of certificates; the text says which part, and why."""


class Lifetimes(msgspec.Struct, frozen=True):
    """How long certificates live. One is renewed at two thirds of its life, or ``renew_before`` its end if earlier."""

    ca: timedelta = timedelta(days=3650)
    leaf: timedelta = timedelta(days=365)
    renew_before: timedelta = timedelta(days=60)


class Bundle(msgspec.Struct, frozen=True, dict=True):
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
        return parse(self.cert_pem, "tls.crt")[0]

    @cached_property
    def authorities(self) -> tuple[x509.Certificate, ...]:
        """The trusted CAs, the signing one first."""
        return parse(self.ca_pem, "ca.crt")

    @property
    def not_after(self) -> datetime:
        """End of the serving certificate's life."""
        return self.leaf.not_valid_after_utc

    @property
    def hosts(self) -> frozenset[str]:
        """DNS names and IP addresses of the serving certificate."""
        leaf = self.leaf
        try:
            names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            return frozenset()
        except _UNREADABLE as error:
            raise BundleError(f"the extensions of tls.crt cannot be read: {error}") from error
        addresses = names.get_values_for_type(x509.IPAddress)
        return frozenset(names.get_values_for_type(x509.DNSName)) | {str(address) for address in addresses}

    @cached_property
    def issuer(self) -> x509.Certificate | None:
        """The CA of ``ca_pem`` that signed the serving certificate, or one that it came with; None: none of them."""
        chain = parse(self.cert_pem, "tls.crt")
        return next((each for each in self.authorities if any(signed_by(link, each) for link in chain)), None)

    @property
    def managed(self) -> bool:
        """Whether we sign it (there is a CA key), rather than somebody else."""
        return bool(self.ca_key_pem)

    def __repr__(self) -> str:
        return f"Bundle({len(self.cert_pem)} bytes of tls.crt, {len(self.ca_pem)} of ca.crt)"  # never a key


def check(bundle: Bundle, now: datetime) -> None:
    """Refuse a bundle that could not be served now.

    Raises BundleError: a part is missing or no PEM, a key is not its certificate's, the serving certificate is expired
    or of none of the CAs, the signing CA cannot sign.
    """
    check_serving(bundle, now)
    if bundle.managed:  # somebody else's chain may have intermediates that we do not see
        check_signer(bundle, now)


def check_serving(bundle: Bundle, now: datetime) -> None:
    """Refuse a serving certificate that no client would take, or whose key is another one. Raises BundleError."""
    if not bundle.cert_pem:
        raise BundleError("tls.crt is missing")
    if not _same_key(bundle.leaf, _private_key(bundle.key_pem, "tls.key")):
        raise BundleError("tls.key is not the key of tls.crt")
    if not bundle.leaf.not_valid_before_utc <= now < bundle.not_after:
        raise BundleError(f"tls.crt is valid from {bundle.leaf.not_valid_before_utc} to {bundle.not_after} only")
    # API servers look at no common name (Go, since 1.15). This is also the first reading of its extensions.
    if not bundle.hosts:
        raise BundleError("tls.crt names no host")
    if bundle.managed and bundle.issuer is None:
        raise BundleError("tls.crt is signed by none of the certificates in ca.crt")


def check_signer(bundle: Bundle, now: datetime) -> None:
    """Refuse a bundle whose first CA cannot sign now. Raises BundleError."""
    if not bundle.ca_key_pem:
        raise BundleError("ca.key is missing")
    signer, key = bundle.authorities[0], _private_key(bundle.ca_key_pem, "ca.key")
    # An Ed25519 key that somebody put there signs without a digest; `reissue` signs with SHA-256 and would raise.
    if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise BundleError("ca.key is neither an elliptic curve key nor an RSA key")
    if not _same_key(signer, key):
        raise BundleError("ca.key is not the key of the first certificate in ca.crt")
    try:
        is_authority = signer.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (*_UNREADABLE, x509.ExtensionNotFound):
        is_authority = False
    if not is_authority:
        raise BundleError("the first certificate in ca.crt is no CA")
    if not signer.not_valid_before_utc <= now < signer.not_valid_after_utc:
        raise BundleError(f"the CA is valid from {signer.not_valid_before_utc} to {signer.not_valid_after_utc} only")


def create(hosts: Iterable[str], now: datetime, lifetimes: Lifetimes) -> Bundle:
    """A new CA and a serving certificate for ``hosts`` (DNS names and IP addresses)."""
    return reissue(create_authority(now, lifetimes), hosts, now, lifetimes)


def create_authority(now: datetime, lifetimes: Lifetimes) -> Bundle:
    """A new CA that has signed nothing yet."""
    ca_pem, ca_key_pem = _make_authority(now, lifetimes.ca)
    return Bundle(ca_pem, b"", b"", ca_key_pem)


def add_authority(bundle: Bundle, now: datetime, lifetimes: Lifetimes) -> Bundle:
    """The same serving certificate, with a new CA in front that signs from now on."""
    ca_pem, ca_key_pem = _make_authority(now, lifetimes.ca)
    return replace(bundle, ca_pem=ca_pem + bundle.ca_pem, ca_key_pem=ca_key_pem)


def reissue(bundle: Bundle, hosts: Iterable[str], now: datetime, lifetimes: Lifetimes) -> Bundle:
    """The same CAs, with a new serving certificate of the first."""
    authority = bundle.authorities[0]
    ca_key = _private_key(bundle.ca_key_pem, "ca.key")
    key = ec.generate_private_key(ec.SECP256R1())
    names = sorted(set(hosts))
    alternatives: list[x509.GeneralName] = []
    for name in names:
        try:
            alternatives.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            alternatives.append(x509.DNSName(name))
    # Clients match the alternative names alone; the common name is for people, so it may leave out a name that is too
    # long.
    subject = _name(next((name for name in names if len(name) <= _MAX_COMMON_NAME), "topogate-webhook"))
    # Clients check the whole chain. A certificate that outlives its CA fails on a day that its own dates do not show.
    end = min(now + lifetimes.leaf, authority.not_valid_after_utc)
    certificate = (
        _builder(subject, authority.subject, key.public_key(), now, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    return replace(bundle, cert_pem=certificate.public_bytes(Encoding.PEM), key_pem=_key_pem(key))


def is_due(certificate: x509.Certificate, now: datetime, renew_before: timedelta) -> bool:
    """Whether it is time for the next one: two thirds of its life, or ``renew_before`` its end if that is earlier."""
    start, end = made_at(certificate), certificate.not_valid_after_utc
    life = end - start
    # Never before half of its life: one that the end of its CA cut short would be due at birth.
    return now >= min(start + life * _RENEW_AT, max(end - renew_before, start + life / 2))


def made_at(certificate: x509.Certificate) -> datetime:
    """When we signed it."""
    return certificate.not_valid_before_utc + _SKEW


def fingerprint(certificate: x509.Certificate) -> str:
    """The first half of its SHA-256, in hex: names a certificate in annotations and logs."""
    return certificate.fingerprint(hashes.SHA256()).hex()[:32]


def signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether the one signed the other."""
    try:
        # Another issuer's name is a ValueError. None of them may end a round.
        certificate.verify_directly_issued_by(authority)
    except (*_UNREADABLE, InvalidSignature):
        return False
    return True


def pem_of(certificates: Iterable[x509.Certificate]) -> bytes:
    """All of them, as PEM."""
    return b"".join(each.public_bytes(Encoding.PEM) for each in certificates)


def parse(pem: bytes, part: str) -> tuple[x509.Certificate, ...]:
    """All certificates in a PEM text; ``part`` names it in errors. Raises BundleError where there is none."""
    try:
        return tuple(x509.load_pem_x509_certificates(pem))
    except _UNREADABLE as error:
        raise BundleError(f"{part} is no PEM certificate: {error}") from error


def service_hosts(service: str, namespace: str) -> tuple[str, ...]:
    """The names by which an API server may call a Service."""
    return (f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.cluster.local")


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


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, start: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        # `made_at` adds the skew back, so that renewal and settling count from the signature.
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


def _private_key(pem: bytes, part: str) -> ec.EllipticCurvePrivateKey:
    """A key of any type that is known, whatever the cast says: `check_signer` looks at the type before it signs."""
    try:
        return cast("ec.EllipticCurvePrivateKey", load_pem_private_key(pem, password=None))
    except UnsupportedAlgorithm as error:
        raise BundleError(f"{part} is a key of an unknown kind: {error}") from error
    except _UNREADABLE as error:
        raise BundleError(f"{part} is no PEM private key without a password") from error


def _same_key(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> bool:
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    try:
        return certificate.public_key().public_bytes(*form) == key.public_key().public_bytes(*form)
    except _UNREADABLE:
        return False  # the certificate's is of a kind that no private key here is of


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

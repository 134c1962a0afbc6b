"""Certificates, keys and kubeconfigs of one local control plane, made again each time it is set up.

Two authorities on purpose: whoever holds a client certificate of the cluster must not be able to open etcd.
Everything is on curve P-256 and valid for a year; private keys are readable by their owner alone.
"""

import base64
import datetime as dt
import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALIDITY = dt.timedelta(days=365)
SERVER_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
SERVER_ADDRESSES = ("127.0.0.1", "10.96.0.1")

# file name -> (common name, organisation): the users of the control plane
USERS: Mapping[str, tuple[str, str | None]] = {
    "admin": ("topogate-local-admin", "system:masters"),
    "kube-controller-manager": ("system:kube-controller-manager", None),
    "kube-scheduler": ("system:kube-scheduler", None),
    "kwok": ("topogate-local:kwok", None),
}


@dataclass(frozen=True)
class Pair:
    """A certificate with its private key, both PEM."""

    cert: bytes
    key: bytes


class Authority:
    """A self-signed certificate authority that lives as long as the cluster's folder."""

    def __init__(self, cert: x509.Certificate, key: ec.EllipticCurvePrivateKey, now: dt.datetime) -> None:
        """``now``: all that it issues is valid from then on."""
        self._cert, self._key, self._now = cert, key, now

    @classmethod
    def create_authority(cls, name: str, now: dt.datetime) -> Self:
        """A new one, with a new key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usage = _key_usage(ca=True)
        builder = _builder(subject, key.public_key(), now).issuer_name(subject)
        cert = (
            builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(cert, key, now)

    @classmethod
    def load(cls, directory: Path, now: dt.datetime) -> Self:
        """The cluster's own, from where ``write_all`` wrote it."""
        key = serialization.load_pem_private_key((directory / "ca.key").read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise TypeError(f"{directory / 'ca.key'}: expected a key on an elliptic curve")
        return cls(x509.load_pem_x509_certificate((directory / "ca.crt").read_bytes()), key, now)

    @property
    def pair(self) -> Pair:
        """The authority's own certificate and key."""
        return Pair(self._cert.public_bytes(serialization.Encoding.PEM), private_pem(self._key))

    def issue(self, common_name: str, organization: str | None = None, *, server: bool = False) -> Pair:
        """Issue a client certificate; ``server`` adds the loopback names and server authentication."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
        if organization is not None:
            names.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if server else [])]
        issuer = self._cert.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        authority = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer)
        builder = (
            _builder(x509.Name(names), key.public_key(), self._now)
            .issuer_name(self._cert.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(ca=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(authority, critical=False)
        )
        if server:
            addresses = [x509.IPAddress(ipaddress.ip_address(address)) for address in SERVER_ADDRESSES]
            loopback = x509.SubjectAlternativeName([*map(x509.DNSName, SERVER_NAMES), *addresses])
            builder = builder.add_extension(loopback, critical=False)
        cert = builder.sign(self._key, hashes.SHA256())
        return Pair(cert.public_bytes(serialization.Encoding.PEM), private_pem(key))


def _builder(subject: x509.Name, public_key: ec.EllipticCurvePublicKey, now: dt.datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + VALIDITY)
    )


def _key_usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=ca,
        crl_sign=ca,
        key_encipherment=False,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The private key as unencrypted PKCS#8 PEM."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def write_private(path: Path, content: bytes) -> None:
    """Write a file that its owner alone can read, whole or not at all."""
    # In the same folder, so that the rename stays within one file system, and with the process id, so that two writers
    # do not meet.
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    # With its rights from the start: changing them afterwards leaves a moment in which others can read the key.
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    temporary.replace(path)


def write_all(directory: Path, server: str, now: dt.datetime) -> None:
    """Write every certificate, key and kubeconfig of a cluster whose API server is at ``server`` (a URL).

    Files in ``directory``: ``ca.crt|key``, ``apiserver.crt|key``, ``component.crt|key`` (serving certificate of the
    controller manager and the scheduler), ``service-account.key|pub``, ``etcd-ca.crt``, ``etcd.crt|key`` (server and
    peer), ``etcd-client.crt|key``, and
    ``<user>.crt|key|kubeconfig`` for each of ``USERS``.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    cluster, etcd = (
        Authority.create_authority("topogate-local-ca", now),
        Authority.create_authority("topogate-local-etcd-ca", now),
    )
    _write_pair(directory, "ca", cluster.pair)
    _write_pair(directory, "apiserver", cluster.issue("kube-apiserver", server=True))
    _write_pair(directory, "component", cluster.issue("localhost", server=True))
    write_private(directory / "etcd-ca.crt", etcd.pair.cert)
    _write_pair(directory, "etcd", etcd.issue("etcd", server=True))
    # Signed by etcd's own authority, whose key is written nowhere: nobody can make another client of etcd.
    _write_pair(directory, "etcd-client", etcd.issue("etcd-client"))
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    write_private(directory / "service-account.key", private_pem(key))
    write_private(directory / "service-account.pub", public)
    for user, (common_name, organization) in USERS.items():
        pair = cluster.issue(common_name, organization)
        _write_pair(directory, user, pair)
        config = kubeconfig(server, cluster.pair.cert, pair, user)
        write_private(directory / f"{user}.kubeconfig", yaml.safe_dump(config, sort_keys=False).encode())


def rewrite_server(path: Path, server: str) -> None:
    """Point an existing kubeconfig at another URL."""
    config = yaml.safe_load(path.read_bytes())
    config["clusters"][0]["cluster"]["server"] = server
    write_private(path, yaml.safe_dump(config, sort_keys=False).encode())


def kubeconfig(server: str, ca: bytes, credentials: Pair | str, user: str) -> dict[str, Any]:
    """A kubeconfig with everything inside, so that the one file can be copied; credentials are a pair or a token."""
    name = "topogate-local"
    cluster = {"server": server, "certificate-authority-data": _text(ca)}
    if isinstance(credentials, str):
        shown = {"token": credentials}
    else:
        shown = {"client-certificate-data": _text(credentials.cert), "client-key-data": _text(credentials.key)}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": user, "user": shown}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": user}}],
        "current-context": name,
    }


def _text(pem: bytes) -> str:
    return base64.b64encode(pem).decode()


def _write_pair(directory: Path, name: str, pair: Pair) -> None:
    write_private(directory / f"{name}.crt", pair.cert)
    write_private(directory / f"{name}.key", pair.key)

"""Keeps the webhook's Secret and the caBundle of its configurations right, for ever, with any number of replicas.

One round reads as follows:

1. read the Secret; let `authority.advance` decide whether something is due; write that, guarded by the
   resourceVersion. Who loses a race reads what the winner wrote, so replicas that start together end with one CA.
2. write the CAs into every webhook configuration that has other ones (somebody re-applied the manifests, say).
3. hand the certificate to the server.

A Secret that was deleted is made again of what this process serves, so that nobody notices. A round that fails changes
nothing that is served, and is tried again.
"""

import asyncio
import base64
import binascii
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import msgspec
import structlog

from certs.authority import Bundle, BundleError, Lifetimes, advance, check, service_hosts
from crds.settings import Settings
from kube.client import Client
from kube.errors import KubeError, NotFound
from kube.patches import PatchType, guard, retry_on_conflict
from kube.resources import MUTATING_WEBHOOKS, SECRETS, VALIDATING_WEBHOOKS, Resource

log = structlog.get_logger(__name__)

CHECK_SECONDS = 5.0
SETTLE_SECONDS = 60.0  # how long an API server may take to notice a changed caBundle, with room to spare

DEFAULT_LIFETIMES = Lifetimes()

_PARTS = {"ca.crt": "ca_pem", "tls.crt": "cert_pem", "tls.key": "key_pem", "ca.key": "ca_key_pem"}


class CertificatesMissingError(Exception):
    """Somebody else (cert-manager) is to make the certificates, and has not, or what it made cannot be served."""


@dataclass(frozen=True)
class Options:
    """Where certificates live and who shall trust them. Times are in seconds.

    ``hosts``: DNS names and IP addresses of the serving certificate. ``mutating``, ``validating``: names of the webhook
    configurations that get the caBundle; one that does not exist is passed over. ``sign`` False: the Secret is made by
    somebody else, who also writes the caBundle.
    """

    namespace: str
    secret: str
    hosts: tuple[str, ...]
    mutating: tuple[str, ...] = ()
    validating: tuple[str, ...] = ()
    lifetimes: Lifetimes = DEFAULT_LIFETIMES
    sign: bool = True
    check_seconds: float = CHECK_SECONDS
    settle_seconds: float = SETTLE_SECONDS

    @classmethod
    def from_settings(cls, settings: Settings, extra_hosts: Sequence[str] = ()) -> "Options":
        """What the settings say; ``extra_hosts`` are further names of a webhook outside of the cluster."""
        hosts = list(service_hosts(settings.webhook_service, settings.namespace))
        if settings.webhook_url and (host := urlsplit(settings.webhook_url).hostname):
            hosts.append(host)
        return cls(
            namespace=settings.namespace,
            secret=settings.webhook_secret,
            hosts=tuple(dict.fromkeys([*hosts, *extra_hosts])),
            mutating=(settings.webhook_configuration,),
            validating=(settings.webhook_configuration,),
            lifetimes=Lifetimes(
                ca=timedelta(days=settings.ca_days),
                leaf=timedelta(days=settings.certificate_days),
                renew_before=timedelta(days=settings.certificate_renew_days),
            ),
            sign=settings.certificate_source == "self-signed",
        )


async def ensure(
    client: Client, options: Options, *, now: datetime | None = None, held: Bundle | None = None, settled: bool = False
) -> Bundle:
    """The certificates to serve, read from the Secret, or made and written there where they lack or are due.

    ``held``: what this process has served so far; it is put back where the Secret is gone. ``settled``: all clients
    have long trusted every CA (see `authority.advance`). Raises KubeError, CertificatesMissingError, and BundleError
    where somebody else's certificates cannot be served.
    """
    moment = now or datetime.now(UTC)
    if not options.sign:
        return await _read_foreign(client, options, moment)

    async def attempt() -> Bundle:
        secret = await _read(client, options)
        stored = _bundle_of(secret) if secret is not None else held
        wanted = advance(stored, options.hosts, moment, options.lifetimes, settled=settled)
        if secret is None:
            await client.create(SECRETS, _secret_of(options, wanted), options.namespace)
        elif wanted is not stored:
            await _rewrite(client, options, secret, wanted)
        check(wanted, moment)  # what somebody else put there may be anything
        return wanted

    return await retry_on_conflict(attempt, attempts=10)


async def publish_ca(client: Client, ca_pem: bytes, options: Options) -> int:
    """Write the CAs into every webhook of the configurations that has other ones; the number of configurations written.

    Raises KubeError.
    """
    written = 0
    for resource, names in ((MUTATING_WEBHOOKS, options.mutating), (VALIDATING_WEBHOOKS, options.validating)):
        for name in names:
            written += await retry_on_conflict(partial(_publish, client, resource, name, ca_pem))
    return written


class CertificateManager:
    """Runs the rounds. ``on_change`` gets each new bundle, after its CAs were published."""

    def __init__(
        self,
        client: Client,
        options: Options,
        on_change: Callable[[Bundle], None],
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._options = options
        self._on_change = on_change
        self._clock = clock
        self._monotonic = monotonic
        self._trusted_since: tuple[bytes, float] | None = None
        self.bundle: Bundle | None = None
        self.rounds = 0

    @property
    def published(self) -> bool:
        """Whether the CAs of the bundle that is served were in all configurations when last looked."""
        return self.bundle is not None and self._trusted_since is not None

    async def refresh(self) -> None:
        """One round. Raises KubeError, CertificatesMissingError and BundleError; what is served then stays."""
        bundle = await ensure(self._client, self._options, now=self._clock(), held=self.bundle, settled=self._settled())
        if self._options.sign and (count := await publish_ca(self._client, bundle.ca_pem, self._options)):
            log.info("caBundle written", configurations=count, authorities=len(bundle.authorities))
        if self._trusted_since is None or self._trusted_since[0] != bundle.ca_pem:
            self._trusted_since = (bundle.ca_pem, self._monotonic())
        if self.bundle is None or (bundle.cert_pem, bundle.key_pem) != (self.bundle.cert_pem, self.bundle.key_pem):
            self._on_change(bundle)
            log.info("serving certificate loaded", not_after=bundle.not_after.isoformat(), hosts=sorted(bundle.hosts))
        self.bundle = bundle
        self.rounds += 1

    async def run(self) -> None:
        """Rounds for ever; ends only by cancellation."""
        while True:
            try:
                await self.refresh()
            except (KubeError, CertificatesMissingError, BundleError) as error:
                log.warning("certificates could not be checked; trying again", error=str(error))
            except Exception:
                log.exception("certificates could not be checked; trying again")  # what is served stays
            await asyncio.sleep(self._options.check_seconds if self.bundle else min(1.0, self._options.check_seconds))

    def _settled(self) -> bool:
        if self._trusted_since is None or self.bundle is None or self._trusted_since[0] != self.bundle.ca_pem:
            return False
        return self._monotonic() - self._trusted_since[1] >= self._options.settle_seconds


class _ClientConfig(msgspec.Struct, rename="camel"):
    ca_bundle: str | None = None


class _Webhook(msgspec.Struct, rename="camel"):
    name: str
    client_config: _ClientConfig


class _Metadata(msgspec.Struct, rename="camel"):
    resource_version: str


class _Configuration(msgspec.Struct):
    metadata: _Metadata
    webhooks: list[_Webhook] | None = None


async def _publish(client: Client, resource: Resource, name: str, ca_pem: bytes) -> bool:
    try:
        found = await client.get(resource, name, type=_Configuration)
    except NotFound:
        return False
    wanted = base64.b64encode(ca_pem).decode()
    stale = [hook.name for hook in found.webhooks or () if hook.client_config.ca_bundle != wanted]
    if not stale:
        return False
    # A strategic merge finds the webhooks by name, so one that moved in the list is not hit by mistake.
    body = {"webhooks": [{"name": hook, "clientConfig": {"caBundle": wanted}} for hook in stale]}
    guarded = guard(body, resource_version=found.metadata.resource_version)
    await client.patch(resource, name, body=guarded, content_type=PatchType.STRATEGIC)
    return True


async def _read(client: Client, options: Options) -> dict[str, Any] | None:
    try:
        return await client.get(SECRETS, options.secret, options.namespace)
    except NotFound:
        return None


async def _read_foreign(client: Client, options: Options, now: datetime) -> Bundle:
    where = f"Secret {options.namespace}/{options.secret}"
    secret = await _read(client, options)
    bundle = _bundle_of(secret) if secret is not None else None
    if bundle is None:
        raise CertificatesMissingError(f"{where}: expected tls.crt, tls.key and ca.crt, made by cert-manager")
    foreign = Bundle(bundle.ca_pem, bundle.cert_pem, bundle.key_pem)
    try:
        check(foreign, now)
    except BundleError as error:
        raise CertificatesMissingError(f"{where}: {error}") from error
    return foreign


def _bundle_of(secret: dict[str, Any]) -> Bundle | None:
    """What the Secret holds, whole or not; None where it is only the empty place for it."""
    data = secret.get("data") or {}
    try:
        parts = {field: base64.b64decode(data.get(key) or "") for key, field in _PARTS.items()}
    except (binascii.Error, ValueError):
        return None
    return Bundle(**parts) if parts["cert_pem"] and parts["key_pem"] else None


def _data_of(bundle: Bundle) -> dict[str, str]:
    return {key: base64.b64encode(getattr(bundle, field)).decode() for key, field in _PARTS.items()}


def _secret_of(options: Options, bundle: Bundle) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": "topogate", "app.kubernetes.io/component": "webhook"}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": options.secret, "namespace": options.namespace, "labels": labels},
        "type": "kubernetes.io/tls",
        "data": _data_of(bundle),
    }


async def _rewrite(client: Client, options: Options, secret: dict[str, Any], bundle: Bundle) -> None:
    body = guard({"data": _data_of(bundle)}, resource_version=secret["metadata"]["resourceVersion"])
    await client.patch(SECRETS, options.secret, options.namespace, body=body, content_type=PatchType.MERGE)

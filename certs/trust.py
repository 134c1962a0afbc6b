"""The caBundle of the webhook configurations: which CAs API servers trust, since when, and how that is changed.

- The configurations are read before the Secret, and written under the resourceVersion that was read. So a write never
  undoes what was published from a later state of the Secret: that would have changed the resourceVersion, or been read.
- A CA counts as settled once it has stood in every webhook for ``settle_seconds``: so long an API server may take
  to notice. One that was there at the first look, and is older than that, has stood there long enough.
"""

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property

import msgspec
from cryptography import x509

from certs.authority import fingerprint, made_at, parse
from kube.client import Client
from kube.errors import NotFound
from kube.patches import PatchType, guard
from kube.resources import Resource


class ClientConfig(msgspec.Struct, frozen=True, rename="camel"):
    """How a webhook is called."""

    ca_bundle: str = ""


class Webhook(msgspec.Struct, frozen=True, rename="camel"):
    """One webhook of a configuration."""

    name: str
    client_config: ClientConfig = ClientConfig()


class ConfigurationMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """Metadata of a configuration."""

    resource_version: str = ""
    annotations: Mapping[str, str] | None = None


class Configuration(msgspec.Struct, frozen=True):
    """A Mutating- or ValidatingWebhookConfiguration."""

    metadata: ConfigurationMetadata = ConfigurationMetadata()
    webhooks: tuple[Webhook, ...] | None = None


class Published(msgspec.Struct, frozen=True, dict=True):
    """The configurations that exist, as they were read: (resource, name, object)."""

    found: tuple[tuple[Resource, str, Configuration], ...] = ()

    @cached_property
    def bundles(self) -> tuple[tuple[x509.Certificate, ...], ...]:
        """The CAs of each webhook."""
        hooks = [hook for *_, configuration in self.found for hook in configuration.webhooks or ()]
        read: dict[str, tuple[x509.Certificate, ...]] = {}
        # All webhooks of an installation have the same text: it is parsed once, not once a webhook.
        for text in {hook.client_config.ca_bundle for hook in hooks}:
            # One that cannot be read has no CAs: then no client trusts anything by it.
            try:
                # A BundleError is a ValueError, and ends below like text that is no base64.
                read[text] = parse(base64.b64decode(text), "caBundle") if text else ()
            except (binascii.Error, ValueError):
                read[text] = ()
        return tuple(read[hook.client_config.ca_bundle] for hook in hooks)

    @property
    def trusted(self) -> tuple[x509.Certificate, ...]:
        """Every CA that some webhook has, each once."""
        return tuple({fingerprint(each): each for bundle in self.bundles for each in bundle}.values())

    @property
    def by_all(self) -> tuple[x509.Certificate, ...]:
        """The CAs that every webhook has."""
        return tuple(each for each in self.trusted if all(each in bundle for bundle in self.bundles))


async def read(client: Client, wanted: Iterable[tuple[Resource, str]]) -> Published:
    """The configurations; one that does not exist is passed over. Raises KubeError."""
    found = []
    for resource, name in wanted:
        try:
            found.append((resource, name, await client.get(resource, name, type=Configuration)))
        except NotFound:
            continue
    return Published(tuple(found))


async def publish(client: Client, published: Published, ca_pem: bytes) -> int:
    """Write the CAs into every webhook that has other ones; the number of configurations written.

    Raises Conflict where one has changed since it was read, and KubeError.
    """
    wanted = base64.b64encode(ca_pem).decode()
    written = 0
    for resource, name, configuration in published.found:
        stale = [hook.name for hook in configuration.webhooks or () if hook.client_config.ca_bundle != wanted]
        if not stale:
            continue
        # A strategic merge finds the webhooks by name, so one that moved in the list is not hit by mistake.
        body = {"webhooks": [{"name": hook, "clientConfig": {"caBundle": wanted}} for hook in stale]}
        guarded = guard(body, resource_version=configuration.metadata.resource_version)
        try:
            await client.patch(resource, name, body=guarded, content_type=PatchType.STRATEGIC)
        except NotFound:
            continue
        written += 1
    return written


class Settling:
    """Since when each CA has stood in all webhooks. Times are of one monotonic clock."""

    def __init__(self, settle_seconds: float) -> None:
        self._settle_seconds = settle_seconds
        self._since: dict[str, float] | None = None

    def record_authorities(self, authorities: Sequence[x509.Certificate], monotonic: float, now: datetime) -> None:
        """These stand in all webhooks now, and no other."""
        if self._since is None:
            # The age stands in the certificate, so a restart does not wait for `settle_seconds` again.
            old = [each for each in authorities if (now - made_at(each)).total_seconds() >= self._settle_seconds]
            self._since = dict.fromkeys(map(fingerprint, old), monotonic - self._settle_seconds)
        before = self._since
        # A CA that some webhook has lost begins again when it is back.
        self._since = {name: before.get(name, monotonic) for name in map(fingerprint, authorities)}

    def settled(self, monotonic: float) -> frozenset[str]:
        """Fingerprints of those that have stood there long enough."""
        since = self._since or {}
        return frozenset(name for name, start in since.items() if monotonic - start >= self._settle_seconds)

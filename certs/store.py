"""The webhook's Secret: its parts, and what its annotations say.

``ca.crt``, ``tls.crt``, ``tls.key`` as in any Secret of that kind, and ``ca.key``, which only we write. Annotations:

- ``replica.topogate.dev/NAME``: what a replica says of itself (`rotation.Replica`), as JSON;
- ``topogate.dev/retired-authorities``: fingerprints of CAs that were dropped;
- ``topogate.dev/rotate``: ``leaf`` or ``ca``, written by an administrator who wants another one now.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import msgspec

from certs.authority import Bundle
from certs.rotation import CA, LEAF, Replica
from kube.client import Client
from kube.errors import NotFound
from kube.patches import PatchType, guard
from kube.resources import SECRETS

REPLICA_PREFIX = "replica.topogate.dev/"
RETIRED = "topogate.dev/retired-authorities"
ROTATE = "topogate.dev/rotate"
CERT_MANAGER = "cert-manager.io/certificate-name"

_PARTS = {"ca.crt": "ca_pem", "tls.crt": "cert_pem", "tls.key": "key_pem", "ca.key": "ca_key_pem"}
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Replica).decode


class Stored(msgspec.Struct, frozen=True):
    """What a Secret holds. ``version`` empty: there is none. ``bundle`` None: it is only the place for one.

    ``unreadable``: names of replicas that say nothing that can be read. ``asked``: `LEAF`, `CA` or nothing;
    ``misasked``: what was asked and is neither.
    """

    version: str = ""
    uid: str = ""
    bundle: Bundle | None = None
    replicas: Mapping[str, Replica] = msgspec.field(default_factory=dict)
    unreadable: tuple[str, ...] = ()
    retired: tuple[str, ...] = ()
    asked: str = ""
    misasked: str = ""
    certificate: str = ""  # the Certificate by which cert-manager writes it


async def read(client: Client, namespace: str, name: str) -> Stored:
    """What is there. Raises KubeError."""
    try:
        return parsed(await client.get(SECRETS, name, namespace))
    except NotFound:
        return Stored()


def parsed(secret: Mapping[str, Any]) -> Stored:
    """What a Secret holds; nothing in it is an error here."""
    metadata = secret.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    replicas: dict[str, Replica] = {}
    unreadable = []
    for key, text in annotations.items():
        if key.startswith(REPLICA_PREFIX):
            name = key.removeprefix(REPLICA_PREFIX)
            try:
                replicas[name] = _decode(text)
            except msgspec.DecodeError:
                unreadable.append(name)
    asked = annotations.get(ROTATE, "")
    return Stored(
        version=metadata.get("resourceVersion", ""),
        uid=metadata.get("uid", ""),
        bundle=bundle_of(secret.get("data") or {}),
        replicas=replicas,
        unreadable=tuple(unreadable),
        retired=tuple(filter(None, annotations.get(RETIRED, "").split(","))),
        asked=asked if asked in {LEAF, CA} else "",
        misasked="" if asked in {LEAF, CA} else asked,
        certificate=annotations.get(CERT_MANAGER, ""),
    )


def bundle_of(data: Mapping[str, str]) -> Bundle | None:
    """What the data hold, whole or not; None where they hold nothing."""
    parts = {field: _decoded(data.get(key) or "") for key, field in _PARTS.items()}
    return Bundle(**parts) if any(parts.values()) else None


def data_of(bundle: Bundle) -> dict[str, str]:
    """The data of a Secret that holds the bundle."""
    return {key: base64.b64encode(getattr(bundle, field)).decode() for key, field in _PARTS.items()}


def annotations_for(
    found: Stored, replicas: Mapping[str, Replica], retired: tuple[str, ...], *, answered: bool
) -> dict[str, str | None]:
    """What has to change in the annotations (None: goes away), so that they say this."""
    wanted: dict[str, str | None] = {
        f"{REPLICA_PREFIX}{name}": _encode(replica).decode()
        for name, replica in replicas.items()
        if found.replicas.get(name) != replica
    }
    # An entry that nobody can read keeps no CA. Its replica writes it again in its next round.
    gone = (found.replicas.keys() - replicas.keys()) | set(found.unreadable) - replicas.keys()
    wanted |= dict.fromkeys([f"{REPLICA_PREFIX}{name}" for name in gone])
    if retired != found.retired:
        wanted[RETIRED] = ",".join(retired)
    if answered:
        wanted[ROTATE] = None
    return wanted


async def write(
    client: Client,
    namespace: str,
    name: str,
    found: Stored,
    *,
    bundle: Bundle | None = None,
    annotations: Mapping[str, str | None],
) -> None:
    """Store the bundle (None: leave the data) and the annotations, if nothing has changed since ``found``.

    Raises Conflict (AlreadyExists) where something has, and KubeError.
    """
    body: dict[str, Any] = {"metadata": {"annotations": dict(annotations)}}
    if bundle is not None:
        body["data"] = data_of(bundle)
    if found.version:
        # A merge patch leaves the labels and annotations of others as they are.
        guarded = guard(body, uid=found.uid, resource_version=found.version)
        await client.patch(SECRETS, name, namespace, body=guarded, content_type=PatchType.MERGE)
        return
    labels = {"app.kubernetes.io/name": "topogate", "app.kubernetes.io/component": "webhook"}
    kept = {key: text for key, text in annotations.items() if text is not None}
    metadata = {"name": name, "namespace": namespace, "labels": labels, "annotations": kept}
    # The API server requires the keys tls.crt and tls.key in a Secret of this type; `data_of` writes all four.
    secret = {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", **body, "metadata": metadata}
    await client.create(SECRETS, secret, namespace)


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except (binascii.Error, ValueError):
        return b""  # the API server lets none in

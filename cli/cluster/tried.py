"""Objects that are sent to the API server in a dry run: whether it takes them, and what it warns of.

So whoever asks hears what `kubectl create` would say: of the object's fields, the webhook's own words, and the hints of
an admission policy about what no webhook is called for. Nothing is stored.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from cli.cluster.dump import FoundObject
from kube.client import Client
from kube.errors import AlreadyExists, ApiError, KubeTimeout
from kube.resources import KNOWN

MAY_NOT: Final = "cannot create resource"  # how the API server's authorizer begins, and no admission
NO_DRY_RUN: Final = "does not support dry run"  # a webhook of others, which says so of its objects
OURS: Final = "'topogate-hints': "  # ends what the API server puts before the words of this policy
SECONDS: Final = 15.0  # a webhook that is called has 10


class Tried(NamedTuple):
    """What came of one object. ``refusal``: why it is refused, "" where it is not; ``unfit``: it could not be tried."""

    one: FoundObject
    namespace: str
    refusal: str = ""
    warnings: tuple[str, ...] = ()
    unfit: bool = False


async def tried(client: Client, *, namespace: str | None, objects: Sequence[FoundObject]) -> list[Tried]:
    """Each of these objects. Raises KubeError."""
    where = namespace or client.connection.namespace
    found = [(one, str((one.body.get("metadata") or {}).get("namespace") or where)) for one in objects]
    # `Client` bounds the calls in flight by its pool.
    return await asyncio.gather(*(_try(client, one, own) for one, own in found))


async def _try(client: Client, one: FoundObject, namespace: str) -> Tried:
    resource = KNOWN.get((str(one.body.get("apiVersion")), one.kind))
    if resource is None:
        text = f"{one.body.get('apiVersion')} is not a version of {one.kind} that can be tried"
        return Tried(one, namespace, text, unfit=True)
    heard: list[str] = []
    refusal, unfit = "", False
    try:
        # A dry run passes through admission, so webhooks and policies answer; nothing reaches etcd.
        await client.create(resource, one.body, namespace, dry_run=True, timeout=SECONDS, warned=heard.append)
    except (ApiError, KubeTimeout) as error:
        refusal = str(error)
        # None of these says anything about the object.
        unfit = isinstance(error, AlreadyExists) or MAY_NOT in refusal or NO_DRY_RUN in refusal
    return Tried(one, namespace, refusal, tuple(dict.fromkeys(text.rpartition(OURS)[2] for text in heard)), unfit)

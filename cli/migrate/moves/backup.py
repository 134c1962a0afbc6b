"""What Kueue's ClusterQueues were before they moved: ConfigMap `topogate-migration`, a key for each queue.

A queue whose key is there is on its way, or has moved; the way back puts its spec back and removes the key. The key is
written before anything else of a move. It is written again only where that move ended before it changed the queue, and
somebody has changed the queue since.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from cli.cluster.dump import FoundObject
from cli.install.steps import read
from cli.migrate.apply_objects import FIELD_MANAGER
from cli.migrate.convert_queues import CLUSTER_QUEUE
from cli.migrate.moves.kueue_spec import is_held
from cli.migrate.rows import Json
from cli.migrate.source_objects import KueueObjectsRead, read_cluster
from cli.output import Failure, counted
from kube.client import Client
from kube.errors import AlreadyExists, Conflict, Forbidden, Invalid, TooLarge
from kube.resources import CONFIG_MAPS

NAME: Final = "topogate-migration"


class QueueBackup(msgspec.Struct, frozen=True):
    """One ClusterQueue of Kueue as it was. ``uid``: of the object, since another one may get its name."""

    uid: str
    spec: Json


class Backups(msgspec.Struct, frozen=True):
    """All that were read. ``version``: of the ConfigMap, "" where there is none yet."""

    namespace: str
    version: str
    queues: Mapping[str, QueueBackup]

    def of_queue(self, name: str, uid: str) -> QueueBackup | None:
        """That of a queue; None where there is none of this object."""
        found = self.queues.get(name)
        return found if found is not None and found.uid == uid else None


def decode_backups(data: Mapping[str, str], place: str) -> dict[str, QueueBackup]:
    """The entries of the ConfigMap. Raises Failure, with the key, where one cannot be read."""
    found = {}
    for name, text in sorted(data.items()):
        try:
            found[name] = msgspec.json.decode(text, type=QueueBackup)
        except msgspec.DecodeError as error:
            raise Failure(
                f"{place}, key {name}: expected a backup that --move wrote, found something else ({error}): put it "
                f"back as it was, or remove the key if ClusterQueue {name} of Kueue is as you want it"
            ) from error
    return found


async def read_backups(client: Client, namespace: str) -> Backups:
    """What is kept in the namespace of Topogate."""
    found = await read(client, CONFIG_MAPS, NAME, namespace)
    if found is None:
        return Backups(namespace, "", {})
    queues = decode_backups(found.get("data") or {}, f"ConfigMap {namespace}/{NAME}")
    return Backups(namespace, found["metadata"]["resourceVersion"], queues)


async def read_as_before(client: Client, kueue_namespace: str, namespace: str) -> KueueObjectsRead:
    """Kueue's objects in a cluster; queues that moved as they were before, since Kueue's are on hold and alone now.

    Raises:
        Failure: the cluster has none of Kueue's kinds, or a backup cannot be read.
        KubeError: they may not be read.
    """
    read = await read_cluster(client, kueue_namespace)
    try:
        backups = await read_backups(client, namespace)
    except Forbidden:
        return read  # an auditor sees what is there
    return replace(read, found=[as_before(one, backups) for one in read.found])


def as_before(one: FoundObject, backups: Backups) -> FoundObject:
    """An object of Kueue as it was before it moved; itself where it has not."""
    if one.kind != CLUSTER_QUEUE:
        return one
    known = backups.of_queue(one.name, str(one.body["metadata"].get("uid")))
    return one if known is None else replace(one, body={**one.body, "spec": spec_before(one.body, known)})


def spec_before(body: Json, known: QueueBackup) -> Json:
    """What a ClusterQueue of Kueue was before its move: what it is, where nothing of it has been changed yet."""
    spec, kept = body.get("spec") or {}, known.spec
    # A run that ended after its first write, or while it undid its own hold, may be years old.
    goes_on = not is_held(spec) and not is_held(kept) and spec.get("cohortName") == kept.get("cohortName")
    return spec if goes_on else kept


async def write_backups(client: Client, before: Backups, changes: Mapping[str, QueueBackup | None]) -> None:
    """Add entries, or remove those that are None. Raises Failure where another command writes at the same time."""
    # A null removes the key: nothing of a queue that went back is left.
    data = {name: one and msgspec.json.encode(one).decode() for name, one in changes.items()}
    try:
        if not before.version:
            # Created, a null is an entry with nothing in it, which no later command could read.
            kept = {name: text for name, text in data.items() if text is not None}
            if not kept:
                return
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME}, "data": kept}
            await client.create(CONFIG_MAPS, body, before.namespace, field_manager=FIELD_MANAGER)
            return
        # The version as a precondition: two commands would each take the other's queue for one that never moved.
        patch = {"metadata": {"resourceVersion": before.version}, "data": data}
        await client.patch(CONFIG_MAPS, NAME, before.namespace, body=patch, field_manager=FIELD_MANAGER)
    except (AlreadyExists, Conflict) as error:
        raise Failure(
            f"ConfigMap {before.namespace}/{NAME} was changed meanwhile, by another command that moves queues: run "
            "this one again when that has ended"
        ) from error
    except (TooLarge, Invalid) as error:
        raise Failure(
            f"ConfigMap {before.namespace}/{NAME} does not take the backups of {counted(len(changes), 'queue')} beside "
            f"the {len(before.queues)} that it has, since Kubernetes limits one to 1 MiB: {error}"
        ) from error

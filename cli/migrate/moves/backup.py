"""What Kueue's ClusterQueues were before they moved: ConfigMap `topogate-migration`, a key for each queue.

About a thousand have room in one; what has none goes to `topogate-migration-2`, and so on.

A queue whose key is there is on its way, or has moved; the way back puts its spec back and removes the key. The key is
written before anything else of a move. It is written again only where that move ended before it changed the queue, and
somebody has changed the queue since.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
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
MOST_BYTES = 900_000  # of the data of one ConfigMap, which Kubernetes limits to 1 MiB


class QueueBackup(msgspec.Struct, frozen=True):
    """One ClusterQueue of Kueue as it was. ``uid``: of the object, since another one may get its name."""

    uid: str
    spec: Json


class BackupMap(msgspec.Struct, frozen=True):
    """One ConfigMap of them. ``sizes``: bytes by key."""

    name: str
    version: str
    sizes: Mapping[str, int]


class Backups(msgspec.Struct, frozen=True):
    """All that were read, and the ConfigMaps that they are in, in their order."""

    namespace: str
    queues: Mapping[str, QueueBackup] = {}
    maps: Sequence[BackupMap] = ()

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
    queues, maps = dict[str, QueueBackup](), []
    for one in await read_maps(client, namespace):
        meta, data = one["metadata"], one.get("data") or {}
        queues |= decode_backups(data, f"ConfigMap {namespace}/{meta['name']}")
        sizes = {name: _size_of(name, text) for name, text in data.items()}
        maps.append(BackupMap(meta["name"], meta["resourceVersion"], sizes))
    return Backups(namespace, queues, maps)


async def read_maps(client: Client, namespace: str) -> list[Json]:
    """The ConfigMaps, in their order."""
    found: list[Json] = []
    while (one := await read(client, CONFIG_MAPS, name_map(len(found)), namespace)) is not None:
        found.append(one)
    return found


def name_map(number: int) -> str:
    """The name of one of the ConfigMaps, counted from 0."""
    return f"{NAME}-{number + 1}" if number else NAME


def _size_of(name: str, text: str) -> int:
    return len(name) + len(text.encode())


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
    for number, data in sorted(divide_changes(before, changes).items()):
        name = name_map(number)
        try:
            if number >= len(before.maps):
                body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
                await client.create(CONFIG_MAPS, body, before.namespace, field_manager=FIELD_MANAGER)
                continue
            # The version as a precondition: two commands would each take the other's queue for one that never moved.
            patch = {"metadata": {"resourceVersion": before.maps[number].version}, "data": data}
            await client.patch(CONFIG_MAPS, name, before.namespace, body=patch, field_manager=FIELD_MANAGER)
        except (AlreadyExists, Conflict) as error:
            raise Failure(
                f"ConfigMap {before.namespace}/{name} was changed meanwhile, by another command that moves queues: "
                "run this one again when that has ended"
            ) from error
        except (TooLarge, Invalid) as error:
            raise Failure(
                f"ConfigMap {before.namespace}/{name} does not take the backups of {counted(len(data), 'queue')}: "
                f"{error}"
            ) from error


def divide_changes(before: Backups, changes: Mapping[str, QueueBackup | None]) -> dict[int, dict[str, str | None]]:
    """What is to be written into each ConfigMap, by its number: text by key, None where the key goes."""
    found: defaultdict[int, dict[str, str | None]] = defaultdict(dict)
    room = [MOST_BYTES - sum(one.sizes.values()) for one in before.maps]
    for name, one in changes.items():
        for number, there in enumerate(before.maps):
            # A null removes the key: nothing of a queue that went back is left.
            if name in there.sizes:
                found[number][name] = None
                room[number] += there.sizes[name]
        if one is None:
            continue
        text = msgspec.json.encode(one).decode()
        size = _size_of(name, text)
        number = next((number for number, left in enumerate(room) if left >= size), len(room))
        if number == len(room):
            room.append(MOST_BYTES)
        room[number] -= size
        found[number][name] = text
    return found

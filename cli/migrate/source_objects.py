"""Where Kueue's objects come from: files, folders and stdin, or a cluster."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from cli.cluster.dump import FoundObject, live_objects, objects_in, objects_in_text
from cli.migrate.conversion import CONFIG_GROUP
from cli.migrate.convert import OF_A_JOB
from cli.migrate.rows import Json, Row, refused
from cli.output import Failure
from kube.client import Client
from kube.errors import Forbidden, NotFound
from kube.resources import CONFIG_MAPS, DEPLOYMENTS, Resource
from ungater.model.kueue_objects import GROUP

DEPLOYMENT: Final = "kueue-controller-manager"
NAMESPACE: Final = "kueue-system"
_SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})
_GATES: Final = "--feature-gates="


class KueueObjectsRead(msgspec.Struct, frozen=True):
    """What was read. ``rows``: of what was not; ``no_configuration``: why there is none where one was looked for."""

    found: list[FoundObject]
    rows: list[Row]
    no_configuration: str = ""


def read_files(paths: Sequence[str]) -> KueueObjectsRead:
    """All objects of files, of the files of folders, and of stdin (-).

    Raises:
        Failure: a file that is named cannot be read; or two objects that differ have one name.
    """
    found: list[FoundObject] = []
    rows: list[Row] = []
    if [*paths].count("-") > 1:
        raise Failure("-f - is given twice, and stdin can be read once")
    for path in paths:
        if path == "-" or not Path(path).is_dir():
            found.extend(objects_in(path))
            continue
        for file in list_files(Path(path)):
            try:
                found.extend([*objects_in(file)])
            except Failure as failure:
                rows.append(tell_unread(file, failure))
    found = [inner for one in found for inner in unpack_object(one)]
    return KueueObjectsRead(drop_copies(found), rows)


def tell_unread(file: str, failure: Failure) -> Row:
    """A folder may have other YAML; one that speaks of Kueue may have a queue, and is not passed over."""
    try:
        of_kueue = GROUP.encode() in Path(file).read_bytes()
    except OSError:
        of_kueue = True  # nobody knows
    if not of_kueue:
        return Row("File", file, "", "", "left", why="it has no objects that can be read, and says nothing of Kueue")
    verdict = refused(str(failure).removeprefix(f"{file}: "), "correct it, or give the other files one by one")
    return Row("File", file, "", "", "refused", why=verdict.why, instead=verdict.instead)


def list_files(folder: Path) -> Iterator[str]:
    """Its files with objects, in order. Nothing hidden, and nothing that a link leads out of it to."""
    home = folder.resolve()
    # Links to folders are not followed: they may lead in a circle.
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            file = Path(where) / name
            if name.startswith(".") or file.suffix not in _SUFFIXES:
                continue
            # A pipe would have the command wait for somebody who writes into it.
            if file.is_file() and file.resolve().is_relative_to(home):
                yield str(file)


def unpack_object(one: FoundObject) -> Iterator[FoundObject]:
    """The Configuration in a ConfigMap, as Kueue's release has it; else the object itself."""
    data = one.body.get("data") if one.kind == "ConfigMap" else None
    inside = [*_configurations_in(data, str(one))] if isinstance(data, dict) else []
    yield from inside or [one]


def _configurations_in(data: Mapping[str, Any], where: str) -> Iterator[FoundObject]:
    for key, text in data.items():
        if isinstance(text, str) and f"{CONFIG_GROUP}/" in text:
            found = objects_in_text(f"{where}, key {key}", text.encode())
            yield from (one for one in found if one.api_group == CONFIG_GROUP)


def drop_copies(found: Iterable[FoundObject]) -> list[FoundObject]:
    """Each object once. Raises Failure where two of one name differ: nobody knows which of them is meant."""
    kept: dict[tuple[str, str, str], FoundObject] = {}
    others: list[FoundObject] = []
    # Jobs are passed on as they come: files of samples have one name often, and nothing is made of them.
    for one in found:
        if one.api_group not in {GROUP, CONFIG_GROUP} or not one.name:
            others.append(one)
            continue
        meta = one.body.get("metadata")
        key = (one.kind, str(meta.get("namespace")) if isinstance(meta, dict) else "", one.name)
        first = kept.setdefault(key, one)
        if first is not one and first.body != one.body:
            raise Failure(
                f"{one} is there twice and differs: in {first.file} (document {first.document + 1}) and in {one.file} "
                f"(document {one.document + 1}): leave one of them out, or migrate them one after the other"
            )
    return [*kept.values(), *others]


async def read_cluster(client: Client, namespace: str = NAMESPACE) -> KueueObjectsRead:
    """All of Kueue's objects in a cluster, in the newest version that it serves, and Kueue's Configuration.

    Raises:
        Failure: the cluster has none of Kueue's kinds.
        KubeError: they may not be read.
    """
    resources = await list_resources(client)
    if not resources:
        raise Failure(
            f"none of Kueue's kinds ({GROUP}) is in this cluster: choose another --context, or give files with -f"
        )
    found: list[FoundObject] = []
    rows: list[Row] = []
    for resource in resources:
        # Thousands, and all of them made by Kueue itself.
        if resource.kind == "Workload":
            rows.append(Row("Workload", "", "", "", OF_A_JOB.outcome, why=OF_A_JOB.why, where="the cluster"))
            continue
        bodies = await client.list(resource)
        said = {"apiVersion": resource.api_version, "kind": resource.kind}
        found.extend(live_objects(said | body for body in bodies))
    configuration, why = await read_configuration(client, namespace)
    return KueueObjectsRead([*found, *configuration], rows, why)


async def list_resources(client: Client) -> list[Resource]:
    """Kueue's resources that can be listed, each in the newest version that is served."""
    try:
        group = msgspec.json.decode(await client.raw("GET", f"/apis/{GROUP}"), type=dict)
    except NotFound:
        return []
    kinds: dict[str, Resource] = {}
    # The API server has the newest version first.
    for version in [str(one["version"]) for one in group["versions"]]:
        listed = msgspec.json.decode(await client.raw("GET", f"/apis/{GROUP}/{version}"), type=dict)
        for one in listed["resources"]:
            # Not those of subresources, such as clusterqueues/status.
            if "list" in one["verbs"]:
                resource = Resource(GROUP, version, one["name"], one["kind"], namespaced=one["namespaced"])
                kinds.setdefault(resource.kind, resource)
    return [*kinds.values()]


async def read_configuration(client: Client, namespace: str) -> tuple[list[FoundObject], str]:
    """Kueue's Configuration with the gates of its command line; else why there is none."""
    assumed = f"not found in {namespace}; Kueue's defaults are assumed (--kueue-namespace)"
    try:
        deployment = await client.get(DEPLOYMENTS, DEPLOYMENT, namespace)
        # Its release mounts one ConfigMap; an installation by hand may have others beside it.
        pod = deployment["spec"]["template"]["spec"]
        names = [one["configMap"]["name"] for one in pod.get("volumes") or () if "configMap" in one]
        for name in names:
            data = (await client.get(CONFIG_MAPS, name, namespace)).get("data") or {}
            for one in _configurations_in(data, f"ConfigMap {namespace}/{name}"):
                return [add_gates(one, pod)], ""
    except NotFound:
        return [], assumed
    except Forbidden:
        return [], f"may not be read in {namespace}; Kueue's defaults are assumed"
    return [], assumed


def add_gates(one: FoundObject, pod: Json) -> FoundObject:
    """The Configuration, with the gates that the containers have as an argument."""
    words = [word for container in pod.get("containers") or () for word in container.get("args") or ()]
    pairs = [pair.split("=") for word in words if word.startswith(_GATES) for pair in word[len(_GATES) :].split(",")]
    gates = {pair[0]: {"true": True, "false": False}.get(pair[-1], pair[-1]) for pair in pairs if pair[0]}
    if not gates:
        return one
    body = one.body | {"featureGates": {**(one.body.get("featureGates") or {}), **gates}}
    return msgspec.structs.replace(one, body=body)

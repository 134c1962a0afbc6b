"""What has to be so before anything moves: nothing is written unless all of it is."""

from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import datetime
from typing import Final

import msgspec

from cli.cluster.installed import in_use
from cli.cluster.leader import absence
from cli.install.installation import is_called
from cli.install.steps import read
from cli.migrate.apply_objects import tell_unset
from cli.migrate.conversion import CONFIG_GROUP
from cli.migrate.convert_settings import leaves_served_out
from cli.migrate.migration import migrate_objects
from cli.migrate.moves.sight import MoveSight
from cli.migrate.rows import Json
from cli.migrate.source_objects import DEPLOYMENT
from crds.constants import SERVED
from crds.settings import CONFIG_KEY, CONFIG_MAP
from kube.client import Client
from kube.lease import Lease
from kube.resources import CONFIG_MAPS, DEPLOYMENTS, LEASES, PODS

PAGE: Final = "docs/move-from-kueue.md, Move while Kueue runs"
_SELECTOR: Final = f"{{key: {SERVED}, operator: DoesNotExist}}"


async def find_missing_here(client: Client, namespace: str) -> AsyncIterator[str]:
    """What Topogate lacks so that it takes over what Kueue started, each in a sentence with what to do."""
    config = await read(client, CONFIG_MAPS, CONFIG_MAP, namespace)
    if config is None or not await is_called(client):
        yield (
            f"Topogate is not installed in namespace {namespace}: `topogate install --beside-kueue`, or say "
            "-n NAMESPACE"
        )
        return
    settings = in_use(config, namespace).settings
    if not settings.beside_kueue:
        yield "Topogate does not stand beside Kueue: `topogate install --beside-kueue`"
    # Without an election there is no Lease that could tell.
    if settings.leader_election:
        body = await read(client, LEASES, settings.lease_name, namespace)
        lease = msgspec.convert(body, Lease) if body is not None else None
        if why := absence(lease, client.server_time()):
            yield f"{why}: `topogate doctor` says more"


async def find_unset(client: Client, sight: MoveSight, namespace: str) -> str:
    """Which of Kueue's settings nobody has taken over, in a sentence; "" where none is left."""
    config = await read(client, CONFIG_MAPS, CONFIG_MAP, namespace)
    # Refused settings are not among them: --apply told of those, and nobody can merge them.
    text = ((config or {}).get("data") or {}).get(CONFIG_KEY, "")
    return tell_unset(text, migrate_objects(sight.read, ()).settings, namespace)


async def find_missing_there(client: Client, sight: MoveSight, kueue_namespace: str) -> AsyncIterator[str]:
    """Why Kueue might go on serving namespaces that are labelled, each in a sentence with what to do."""
    configurations = [one.body for one in sight.read.found if one.api_group == CONFIG_GROUP]
    if not configurations:
        yield (
            f"nobody knows which namespaces Kueue leaves out: its Configuration was not found by Deployment "
            f"{kueue_namespace}/{DEPLOYMENT}; say --kueue-namespace NAMESPACE"
        )
        return
    if not any(map(leaves_served_out, configurations)):
        yield (
            f"Kueue's Configuration does not leave out the namespaces that Topogate serves: add {_SELECTOR} to its "
            f"managedJobsNamespaceSelector.matchExpressions, and restart Kueue ({PAGE})"
        )
        return
    deployment = await read(client, DEPLOYMENTS, DEPLOYMENT, kueue_namespace)
    # Deleted since its Configuration was read: no pod is left that could go by an older one.
    if deployment is None:
        return
    labels = ((deployment["spec"].get("selector") or {}).get("matchLabels") or {}).items()
    selector = ",".join(f"{key}={value}" for key, value in labels)
    pods = await client.list(PODS, kueue_namespace, label_selector=selector) if selector else []
    names = [
        one["configMap"]["name"]
        for one in deployment["spec"]["template"]["spec"].get("volumes") or ()
        if one.get("configMap")
    ]
    maps = [found for name in names if (found := await read(client, CONFIG_MAPS, name, kueue_namespace)) is not None]
    if why := find_stale(deployment, maps, pods):
        yield why


def find_stale(deployment: Json, maps: Iterable[Json], pods: Iterable[Json]) -> str:
    """Why Kueue may run by an older Configuration, which it reads when it starts alone; "" where it does not."""
    meta, status = deployment["metadata"], deployment.get("status") or {}
    where = f"{meta['namespace']}/{meta['name']}"
    if (status.get("observedGeneration") or 0) < (meta.get("generation") or 0):
        return f"Deployment {where} is being changed: run the command again when that is through"
    # Whoever wrote a field last has the time of it; a write that changed nothing counts as none.
    written = max((when for one in maps for when in times_of(one["metadata"])), default=None)
    for pod in pods:
        status = pod.get("status") or {}
        started = status.get("startTime")
        if status.get("phase") in {"Succeeded", "Failed"}:
            continue
        # One that is being deleted may still work.
        if written is not None and (not started or datetime.fromisoformat(started) < written):
            return (
                f"pod {pod['metadata']['name']} of Kueue is older than its Configuration: `kubectl -n "
                f"{meta['namespace']} rollout restart deployment {meta['name']}`, and wait until it is through"
            )
    return ""


def times_of(metadata: Mapping[str, object]) -> Iterable[datetime]:
    """When an object was made and written, to the second."""
    fields = metadata.get("managedFields")
    entries = fields if isinstance(fields, list) else []
    texts = [metadata.get("creationTimestamp"), *(one.get("time") for one in entries if isinstance(one, dict))]
    return [datetime.fromisoformat(text) for text in texts if isinstance(text, str)]

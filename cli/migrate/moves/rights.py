"""What whoever runs a command may not do of what it takes: asked before anything is changed, and said in words."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from cli.migrate.moves.phase_walk import MoveOptions, say_stopped
from cli.output import some
from kube.client import Client
from kube.resources import (
    API_SERVICES,
    CLUSTER_QUEUES,
    COHORTS,
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    DEPLOYMENTS,
    JOB_SETS,
    JOBS,
    LOCAL_QUEUES,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    PODS,
    RESOURCE_FLAVORS,
    SELF_SUBJECT_ACCESS_REVIEWS,
    VALIDATING_WEBHOOKS,
    WORKLOAD_PRIORITY_CLASSES,
    WORKLOADS,
    Resource,
)

_APPLY: Final = ("get", "create", "patch")


class NeededRight(NamedTuple):
    """Verbs on a kind. ``namespace``: where; "" for a kind of the cluster, and in the namespaces that move."""

    resource: Resource
    verbs: tuple[str, ...]
    namespace: str = ""
    subresource: str = ""

    def title(self) -> str:
        """``patch, delete workloads.kueue.x-k8s.io/status``."""
        kind = ".".join(filter(None, (self.resource.plural, self.resource.group)))
        part = f"/{self.subresource}" if self.subresource else ""
        return f"{', '.join(self.verbs)} {kind}{part}"


def needed_to_move(kinds: Mapping[str, Resource], options: MoveOptions) -> list[NeededRight]:
    """What --move takes. ``kinds``: Kueue's by name, as they are served."""
    ours = (RESOURCE_FLAVORS, WORKLOAD_PRIORITY_CLASSES, COHORTS, CLUSTER_QUEUES, LOCAL_QUEUES)
    return [
        NeededRight(CONFIG_MAPS, _APPLY, options.namespace),
        NeededRight(kinds["ClusterQueue"], ("patch",)),
        NeededRight(kinds["Workload"], ("list",)),
        *(NeededRight(one, _APPLY) for one in ours),
        NeededRight(WORKLOADS, ("list",)),
        NeededRight(NAMESPACES, ("patch",)),
        NeededRight(JOBS, ("list", "patch")),
        NeededRight(JOB_SETS, ("list", "patch")),
        NeededRight(PODS, ("list", "patch")),
    ]


def needed_to_take_back(kinds: Mapping[str, Resource], options: MoveOptions) -> list[NeededRight]:
    """What --back takes."""
    return [
        NeededRight(CONFIG_MAPS, ("get", "patch"), options.namespace),
        NeededRight(CLUSTER_QUEUES, ("patch", "delete")),
        NeededRight(COHORTS, ("list", "patch")),
        NeededRight(LOCAL_QUEUES, ("list", "delete")),
        NeededRight(WORKLOADS, ("list", "delete")),
        NeededRight(kinds["ClusterQueue"], ("patch",)),
        NeededRight(kinds["Workload"], ("get", "list", "create", "patch", "delete")),
        NeededRight(kinds["Workload"], ("patch",), subresource="status"),
        NeededRight(NAMESPACES, ("patch",)),
        NeededRight(JOBS, ("get", "list", "patch")),
        NeededRight(JOB_SETS, ("get", "list", "patch")),
        NeededRight(PODS, ("list",)),
    ]


def needed_to_finish(kinds: Mapping[str, Resource], options: MoveOptions) -> list[NeededRight]:
    """What --finish takes."""
    whole = (VALIDATING_WEBHOOKS, MUTATING_WEBHOOKS, API_SERVICES, CUSTOM_RESOURCE_DEFINITIONS)
    return [
        *(NeededRight(one, ("list", "delete")) for one in whole),
        *(NeededRight(one, ("get", "list", "patch", "delete")) for one in kinds.values()),
        NeededRight(DEPLOYMENTS, ("get", "delete"), options.kueue_namespace),
        NeededRight(CONFIG_MAPS, ("get", "delete"), options.namespace),
        NeededRight(PODS, ("list", "patch")),
    ]


async def require_rights(
    client: Client, needed: Iterable[NeededRight], namespaces: Collection[str], *, nothing: str
) -> None:
    """Raises Failure with all that is missing, in the whole cluster or in some of ``namespaces``.

    ``nothing``: "nothing was moved". Raises KubeError where the API server does not answer.
    """
    missing = [text for one in needed for text in await _find_missing(client, one, namespaces)]
    if missing:
        raise say_stopped(
            f"{nothing}: you lack rights that this takes. Ask a cluster administrator to run it, or for a role with "
            "them",
            [f"you may not {text}" for text in missing],
        )


async def _find_missing(client: Client, one: NeededRight, namespaces: Collection[str]) -> list[str]:
    denied = await _denied_in(client, one, one.namespace)
    if not denied:
        return []
    left = one._replace(verbs=denied)
    if one.namespace:
        return [f"{left.title()} in namespace {one.namespace}"]
    if not one.resource.namespaced or not namespaces:
        return [left.title()]
    # A right in each of the namespaces that move is as good.
    found = dict(
        zip(namespaces, await asyncio.gather(*(_denied_in(client, left, each) for each in namespaces)), strict=True)
    )
    short = [name for name, verbs in found.items() if verbs]
    verbs = tuple(verb for verb in denied if any(verb in each for each in found.values()))
    return [f"{left._replace(verbs=verbs).title()} in namespace {some(short)}"] if short else []


async def _denied_in(client: Client, one: NeededRight, namespace: str) -> tuple[str, ...]:
    """The verbs that are denied; ``namespace``: "" for all."""
    allowed = await asyncio.gather(*(_is_allowed(client, one, verb, namespace) for verb in one.verbs))
    return tuple(verb for verb, is_allowed in zip(one.verbs, allowed, strict=True) if not is_allowed)


async def _is_allowed(client: Client, one: NeededRight, verb: str, namespace: str) -> bool:
    attributes = {
        "group": one.resource.group,
        "version": one.resource.version,
        "resource": one.resource.plural,
        "verb": verb,
        "namespace": namespace,
    }
    if one.subresource:
        attributes["subresource"] = one.subresource
    kind = SELF_SUBJECT_ACCESS_REVIEWS
    review = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {},
        "spec": {"resourceAttributes": attributes},
    }
    answer = await client.create(kind, review)
    return bool((answer.get("status") or {}).get("allowed"))

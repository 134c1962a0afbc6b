"""Waiting until what was installed works, and until what was deleted has gone."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from cli.install.steps import KINDS, Json, read
from cli.output import Failure
from clock import SYSTEM, Clock
from crds.constants import GROUP
from kube import resources
from kube.client import Client
from kube.resources import Resource
from manifests import render

POLL_SECONDS = 0.2
GONE_SECONDS = 120.0  # pods of the namespace may take their grace period


async def wait_established(
    client: Client,
    timeout: float,  # noqa: ASYNC109 - it ends in a Failure
    clock: Clock = SYSTEM,
) -> None:
    """Wait until the API server serves our kinds. Raises Failure after ``timeout`` seconds."""
    for resource in KINDS:
        name = f"{resource.plural}.{GROUP}"

        # The default binds this turn's name: the function runs while the loop goes on.
        async def established(name: str = name) -> str:
            found = await client.get(resources.CUSTOM_RESOURCE_DEFINITIONS, name)
            return _unmet_condition(found, "Established")

        await _until(established, f"CustomResourceDefinition {name}", timeout, clock)


async def wait_available(
    client: Client,
    options: render.InstallOptions,
    timeout: float,  # noqa: ASYNC109 - as above
    clock: Clock = SYSTEM,
) -> None:
    """Wait until Deployments and DaemonSet have all their pods. Raises Failure after ``timeout`` seconds."""
    for obj in render.objects(options):
        name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace", "")
        if obj["kind"] == "DaemonSet":

            async def everywhere(name: str = name, namespace: str = namespace) -> str:
                daemon_set = await client.get(resources.DAEMON_SETS, name, namespace)
                status = daemon_set.get("status", {})
                if status.get("observedGeneration", 0) < daemon_set["metadata"]["generation"]:
                    return "the daemonset controller has not seen it yet"
                wanted = status.get("desiredNumberScheduled", 0)
                # Neither alone: updated pods may not be ready, and ready ones may be old.
                ready = min(status.get("updatedNumberScheduled", 0), status.get("numberReady", 0))
                return "" if ready >= wanted else f"{ready} of {wanted} pods are of this version and ready"

            hint = f"`kubectl -n {namespace} describe daemonset {name}` says more"
            await _until(everywhere, f"DaemonSet {namespace}/{name}", timeout, clock, hint)
        if obj["kind"] != "Deployment":
            continue

        async def available(name: str = name) -> str:
            found = await client.get(resources.DEPLOYMENTS, name, options.namespace)
            # Available alone may still be that of the pods of the version before.
            return _not_rolled_out(found) or _unmet_condition(found, "Available")

        hint = f"`kubectl -n {options.namespace} describe deployment {name}` says more"
        await _until(available, f"Deployment {options.namespace}/{name}", timeout, clock, hint)


async def wait_trusted(
    client: Client,
    timeout: float,  # noqa: ASYNC109 - as above
    clock: Clock = SYSTEM,
) -> None:
    """Wait until the webhook has written its authority into its configuration. Raises Failure after ``timeout``."""

    async def trusted() -> str:
        found = await read(client, resources.MUTATING_WEBHOOKS, render.WEBHOOK_CONFIGURATION, "")
        bundles = [one.get("clientConfig", {}).get("caBundle") for one in (found or {}).get("webhooks", ())]
        # Ready pods are not enough: a webhook without a caBundle is called and fails.
        return "" if bundles and all(bundles) else "its caBundle is empty"

    hint = "until it is, Jobs with a request are refused: the log of the webhook's pods says why it did not write it"
    await _until(trusted, f"MutatingWebhookConfiguration {render.WEBHOOK_CONFIGURATION}", timeout, clock, hint)


async def wait_gone(
    client: Client,
    objects: Sequence[tuple[Resource, str, str]],
    *,
    only_terminating: bool = False,
    clock: Clock = SYSTEM,
) -> None:
    """Wait until deleted objects have gone. Raises Failure after GONE_SECONDS, with what holds the object."""
    for resource, name, namespace in objects:

        async def held(resource: Resource = resource, name: str = name, namespace: str = namespace) -> str:
            found = await read(client, resource, name, namespace)
            if found is None or (only_terminating and "deletionTimestamp" not in found["metadata"]):
                return ""
            finalizers = [*found["metadata"].get("finalizers", []), *found.get("spec", {}).get("finalizers", [])]
            notes = [c["message"] for c in found.get("status", {}).get("conditions", []) if c.get("message")]
            return f"held by {', '.join(finalizers) or 'nothing'}; {' '.join(notes)}"

        await _until(held, f"deletion of {resource.kind} {name}", GONE_SECONDS, clock)


async def _until(
    lacking: Callable[[], Awaitable[str]], what: str, seconds: float, clock: Clock, hint: str = ""
) -> None:
    deadline = clock.monotonic() + seconds
    while missing := await lacking():
        if clock.monotonic() > deadline:
            raise Failure(f"{what} was not ready after {seconds:g} s: {missing}" + (f"; {hint}" if hint else ""))
        await asyncio.sleep(POLL_SECONDS)


def _unmet_condition(obj: Json, condition: str) -> str:
    """What keeps the condition from being true; empty where it is."""
    for found in obj.get("status", {}).get("conditions", []):
        if found["type"] == condition:
            return "" if found["status"] == "True" else found.get("message") or found.get("reason", condition)
    return f"condition {condition} is not reported yet"


def _not_rolled_out(deployment: Json) -> str:
    status, wanted = deployment.get("status", {}), deployment["spec"].get("replicas", 1)
    # The counts below would be of the spec before ours.
    if status.get("observedGeneration", 0) < deployment["metadata"]["generation"]:
        return "the deployment controller has not seen it yet"
    updated = status.get("updatedReplicas", 0)
    return "" if updated >= wanted else f"{updated} of {wanted} pods are of this version"

"""What ``topogate uninstall`` does; what it leaves behind is `cli.install.left_objects`.

First it takes away what could refuse objects, then what runs, then the rest; data only where asked.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

import msgspec

from cli.install.steps import KINDS, InstallStep, delete, is_ours
from cli.install.waiting import POLL_SECONDS
from cli.output import Failure
from clock import SYSTEM, Clock
from crds.constants import API_VERSION, FINALIZER, Keys
from kube import resources
from kube.client import Client
from kube.errors import Forbidden, NotFound
from kube.patches import PatchType
from manifests import render

POLICY_SECONDS = 15.0  # API servers notice a deleted policy well within this


async def uninstall(
    client: Client, options: render.InstallOptions, *, delete_crds: bool, dry_run: bool = False
) -> AsyncIterator[InstallStep]:
    """Delete the objects, last applied first; the namespace only where it is ours, CRDs (and data) only where asked."""
    # Beside Kueue there is one object more; what is not there is passed over.
    for obj in reversed(render.objects(msgspec.structs.replace(options, beside=True))):
        match obj["kind"]:
            case "CustomResourceDefinition" if not delete_crds:
                yield InstallStep(obj["kind"], obj["metadata"]["name"], "", "kept", dry_run)
                continue
            case "CustomResourceDefinition" if not dry_run:
                # A CRD waits for its objects, and these for a finalizer that nobody takes off any more.
                plural = obj["spec"]["names"]["plural"]
                resource = next(kind for kind in KINDS if kind.plural == plural)
                with suppress(NotFound):
                    for kept in await client.list(resource):
                        finalizers = kept["metadata"].get("finalizers", [])
                        if FINALIZER in finalizers:
                            # Finalizers of others stay; they are for others to take off.
                            rest = [name for name in finalizers if name != FINALIZER]
                            body = {"apiVersion": API_VERSION, "metadata": {"finalizers": rest}}
                            await client.patch(
                                resource, kept["metadata"]["name"], kept["metadata"].get("namespace"), body=body
                            )
            case "Namespace" if not await is_ours(client, obj["metadata"]["name"]):
                continue
        if step := await delete(client, obj, dry_run=dry_run):
            yield step


async def ungate(client: Client, domain: str, pods: Sequence[str], clock: Clock = SYSTEM) -> AsyncIterator[str]:
    """Remove our gate from the pods (namespace/name), which then run anywhere. Call it once the policy is gone."""
    body = {"spec": {"schedulingGates": [{"$patch": "delete", "name": Keys(domain).gate}]}}
    # One deadline for all pods: once the policy's end is noticed, no further pod is refused for it.
    deadline = clock.monotonic() + POLICY_SECONDS
    for pod in pods:
        namespace, name = pod.split("/", 1)
        while True:
            try:
                # A strategic merge deletes the gate by its name; a JSON patch by index could hit another one.
                await client.patch(resources.PODS, name, namespace, body=body, content_type=PatchType.STRATEGIC)
            except NotFound:
                break
            except Forbidden as error:
                if clock.monotonic() > deadline:
                    raise Failure(f"pod {pod}: {error}") from error
                await asyncio.sleep(POLL_SECONDS)  # the API server has not noticed yet that the policy is gone
            else:
                yield pod
                break


async def count_data(client: Client) -> dict[str, int]:
    """Objects of each of our kinds that would go with the CRDs."""
    counts: dict[str, int] = {}
    for resource in KINDS:
        with suppress(NotFound):
            # Undecoded: even objects that cannot be read would be lost.
            counts[resource.plural] = len(await client.list(resource, type=msgspec.Raw))
    return counts

"""What ``topogate uninstall`` does, and what it leaves behind.

First it takes away what could refuse objects, then what runs, then the rest; data only where asked.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress

import msgspec

from cli.install.steps import KINDS, Step, delete, is_ours
from cli.install.waiting import POLL_SECONDS
from cli.output import Failure
from clock import SYSTEM, Clock
from crds.constants import API_VERSION, FINALIZER, Keys
from kube import resources
from kube.client import Client
from kube.errors import Forbidden, NotFound
from kube.patches import PatchType
from manifests import render

MOST_LISTED = 20
POLICY_SECONDS = 15.0  # API servers notice a deleted policy well within this


class _Gate(msgspec.Struct, frozen=True):
    name: str = ""


class _Meta(msgspec.Struct, frozen=True):
    name: str
    namespace: str = ""


class _PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    scheduling_gates: list[_Gate] | None = None


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Meta
    spec: _PodSpec


class _Template(msgspec.Struct, frozen=True):
    spec: _PodSpec


class _JobSpec(msgspec.Struct, frozen=True):
    template: _Template


class _JobStatus(msgspec.Struct, frozen=True, rename="camel"):
    completion_time: str | None = None


class _Job(msgspec.Struct, frozen=True):
    metadata: _Meta
    spec: _JobSpec
    status: _JobStatus = _JobStatus()


class Left(msgspec.Struct, frozen=True):
    """What an uninstall leaves behind that a person must know of: names as namespace/name."""

    gated_pods: list[str]
    gating_jobs: list[str]


async def uninstall(
    client: Client, options: render.Options, *, delete_crds: bool, dry_run: bool = False
) -> AsyncIterator[Step]:
    """Delete the objects, last applied first; the namespace only where it is ours, CRDs (and data) only where asked."""
    for obj in reversed(render.objects(options)):
        match obj["kind"]:
            case "CustomResourceDefinition" if not delete_crds:
                yield Step(obj["kind"], obj["metadata"]["name"], "", "kept", dry_run)
                continue
            case "CustomResourceDefinition" if not dry_run:
                await _drop_finalizers(client, obj["spec"]["names"]["plural"])
            case "Namespace" if not await is_ours(client, obj["metadata"]["name"]):
                continue
        if step := await delete(client, obj, dry_run=dry_run):
            yield step


async def left_behind(client: Client, domain: str) -> Left:
    """Pods that wait behind our gate, and unfinished Jobs whose template makes more of them."""
    gate = Keys(domain).gate
    pods = await client.list(resources.PODS, field_selector="spec.nodeName=", type=_Pod)
    jobs = await client.list(resources.JOBS, type=_Job)
    return Left(
        gated_pods=sorted(_full_name(pod.metadata) for pod in pods if _has(pod.spec, gate)),
        gating_jobs=sorted(
            _full_name(job.metadata)
            for job in jobs
            if _has(job.spec.template.spec, gate) and job.status.completion_time is None
        ),
    )


async def ungate(client: Client, domain: str, pods: Sequence[str], clock: Clock = SYSTEM) -> AsyncIterator[str]:
    """Remove our gate from the pods (namespace/name), which then run anywhere. Call it once the policy is gone."""
    body = {"spec": {"schedulingGates": [{"$patch": "delete", "name": Keys(domain).gate}]}}
    deadline = clock.monotonic() + POLICY_SECONDS
    for pod in pods:
        namespace, name = pod.split("/", 1)
        while True:
            try:
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
            counts[resource.plural] = len(await client.list(resource, type=msgspec.Raw))
    return counts


def lines(left: Left, *, ungated: bool, before: bool = False) -> Iterator[str]:
    """What a person must know and do about what is left, or (``before``) about what will be."""
    if left.gated_pods and ungated and before:
        yield f"{_counted(left.gated_pods, 'pod')} behind the gate will run anywhere."
    elif left.gated_pods and not ungated:
        pods, removes = _counted(left.gated_pods, "pod"), "would remove" if before else "removes"
        yield f"{pods} behind the gate, which nothing {removes} any more, so without --ungate they wait for ever:"
        yield from _listed(left.gated_pods)
        yield "`topogate uninstall --ungate` lets them run anywhere; or delete their jobs."
    if left.gating_jobs:
        yield f"{_counted(left.gating_jobs, 'unfinished Job')} with the gate in the template, to make more such pods:"
        yield from _listed(left.gating_jobs)
        yield "Create them again without a topology request."


def _counted(names: Sequence[str], what: str) -> str:
    return f"{len(names)} {what}{'s' * (len(names) != 1)}"


def _listed(names: Sequence[str]) -> Iterator[str]:
    yield from (f"  {name}" for name in names[:MOST_LISTED])
    if len(names) > MOST_LISTED:
        yield f"  ... and {len(names) - MOST_LISTED} more"


async def _drop_finalizers(client: Client, plural: str) -> None:
    """Take our finalizer from every object: whoever would do it has been deleted before."""
    resource = next(kind for kind in KINDS if kind.plural == plural)
    with suppress(NotFound):
        for obj in await client.list(resource):
            finalizers = obj["metadata"].get("finalizers", [])
            if FINALIZER in finalizers:
                rest = [name for name in finalizers if name != FINALIZER]
                body = {"apiVersion": API_VERSION, "metadata": {"finalizers": rest}}
                await client.patch(resource, obj["metadata"]["name"], obj["metadata"].get("namespace"), body=body)


def _has(spec: _PodSpec, gate: str) -> bool:
    return any(entry.name == gate for entry in spec.scheduling_gates or ())


def _full_name(meta: _Meta) -> str:
    return f"{meta.namespace}/{meta.name}"

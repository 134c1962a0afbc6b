"""What ``topogate install`` and ``uninstall`` do, step by step; `cli.install.command` is their face.

Rules
- Installing twice changes nothing; an upgrade is another install. Settings that somebody changed are kept.
- An installation's key domain never changes: pods gated under the old one would wait for ever.
- Uninstalling first takes away what could refuse objects, then what runs, then the rest; data only where asked.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec
import yaml

from cli.output import Failure
from crds.constants import API_VERSION, DEFAULT_DOMAIN, FINALIZER, GROUP, Keys
from crds.settings import Settings, SettingsError, from_mapping
from kube import resources
from kube.client import Client
from kube.errors import Forbidden, KubeError, NotFound
from kube.patches import PatchType
from kube.resources import Resource, resource_of
from manifests import render

Json = dict[str, Any]
Outcome = Literal["created", "configured", "unchanged", "deleted", "kept"]

FIELD_MANAGER = "topogate-install"
KUEUE_CRDS = ("workloads.kueue.x-k8s.io", "clusterqueues.kueue.x-k8s.io", "resourceflavors.kueue.x-k8s.io")
KINDS = (
    resources.WORKLOADS,
    resources.LOCAL_QUEUES,
    resources.CLUSTER_QUEUES,
    resources.RESOURCE_FLAVORS,
    resources.FLEX_TOPOS,
)
POLL_SECONDS = 0.2
POLICY_SECONDS = 15.0  # API servers notice a deleted policy well within this
GONE_SECONDS = 120.0  # pods of the namespace may take their grace period


class Step(msgspec.Struct, frozen=True):
    """One object and what happened to it."""

    kind: str
    name: str
    namespace: str
    outcome: Outcome

    def __str__(self) -> str:
        place = f" in {self.namespace}" if self.namespace else ""
        return f"{self.kind.lower()}/{self.name}{place} {self.outcome}"


@dataclass(frozen=True)
class Requested:
    """What the command line asks for; empty (None): what is installed, else the default."""

    domain: str = ""
    namespace: str = ""
    image: str = ""
    webhook_url: str = ""
    agent: bool | None = None
    kueue: bool | None = None
    metrics_authentication: bool | None = None


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


# --- install ---------------------------------------------------------------------------------------------------------


async def plan(client: Client | None, wish: Requested) -> render.Options:
    """What to render, from the wish and from what is installed. ``client`` None: from the wish alone.

    Raises Failure: the wish is not valid, differs in domain from what is installed, or meets Kueue in its own domain.
    """
    settings = _settings({key: text for key, text in _asked(wish).items() if text})
    config = await _installed_config(client, settings.namespace) if client else ""
    installed = _parse(config, settings.namespace).get("domain", DEFAULT_DOMAIN) if config else ""
    domain = wish.domain or installed or DEFAULT_DOMAIN
    if installed and domain != installed:
        raise Failure(
            f'--domain {domain}: Topogate is installed with domain "{installed}", and pods gated under that would wait '
            "for ever: run `topogate uninstall` first, or leave --domain away"
        )
    found = await _kueue(client) if client else ""
    if found and domain == DEFAULT_DOMAIN:
        raise Failure(
            f"this cluster runs Kueue ({found} exists), which reads and writes the same keys {DEFAULT_DOMAIN}/...: "
            "install with `--domain topogate.dev`, so that the two never touch each other's pods"
        )
    agent = wish.agent
    if agent is None:
        agent = client is not None and await _has_agent(client, settings.namespace)
    metrics = wish.metrics_authentication
    if metrics is None:
        metrics = client is not None and await _read(client, resources.CLUSTER_ROLES, render.METRICS, "") is not None
    options = render.Options(
        domain=domain,
        namespace=settings.namespace,
        image=wish.image,
        webhook_url=settings.webhook_url,
        agent=agent,
        kueue=bool(found) if wish.kueue is None else wish.kueue,
        metrics_authentication=metrics,
    )
    return replace(options, config=_config(config, options))


async def apply(client: Client, objects: Sequence[Json], *, dry_run: bool = False) -> AsyncIterator[Step]:
    """Apply the objects in order, server-side; fields of ours that others changed are taken back.

    Raises Failure with the object that the API server refused.
    """
    for obj in objects:
        resource = resource_of(obj)
        name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace", "")
        try:
            if resource is resources.NAMESPACES and await _is_ours(client, name) is False:
                yield Step(obj["kind"], name, "", "kept")  # somebody made it for us, and looks after its labels
                continue
            before = await _settled(client, resource, name, namespace)
            if dry_run and before is None and await _lacks_namespace(client, namespace):
                outcome: Outcome = "created"  # what lies in a namespace that a dry run does not make cannot be tried
            else:
                result = await client.apply(resource, obj, field_manager=FIELD_MANAGER, dry_run=dry_run)
                outcome = _compare(before, result)
        except KubeError as error:
            raise Failure(f"{obj['kind']} {name}: {error}") from error
        yield Step(obj["kind"], name, namespace, outcome)


async def remove_components(client: Client, options: render.Options) -> AsyncIterator[Step]:
    """Delete what runs inside of the cluster where the components now run outside of it."""
    kept = {(obj["kind"], obj["metadata"]["name"]) for obj in render.objects(options)}
    for obj in render.objects(replace(options, webhook_url="")):
        if (obj["kind"], obj["metadata"]["name"]) not in kept and (step := await _delete(client, obj)):
            yield step


def remove_agent(client: Client, options: render.Options) -> AsyncIterator[Step]:
    """Delete the agent and all that is its own; what it published stays until its nodes go."""
    return _remove_part(client, replace(options, agent=False), replace(options, agent=True))


def remove_kueue(client: Client, options: render.Options) -> AsyncIterator[Step]:
    """Take away the right to answer Kueue's checks."""
    return _remove_part(client, replace(options, kueue=False), replace(options, kueue=True))


def remove_metrics_authentication(client: Client, options: render.Options) -> AsyncIterator[Step]:
    """Take away the right to ask whose token it was."""
    without = replace(options, metrics_authentication=False)
    return _remove_part(client, without, replace(options, metrics_authentication=True))


async def _remove_part(client: Client, without: render.Options, whole: render.Options) -> AsyncIterator[Step]:
    others = {(obj["kind"], obj["metadata"]["name"]) for obj in render.objects(without)}
    for obj in reversed(render.objects(whole)):
        if (obj["kind"], obj["metadata"]["name"]) not in others and (step := await _delete(client, obj)):
            yield step


async def wait_established(client: Client, timeout: float) -> None:  # noqa: ASYNC109 - it ends in a Failure
    """Wait until the API server serves our kinds. Raises Failure after ``timeout`` seconds."""
    for resource in KINDS:
        name = f"{resource.plural}.{GROUP}"

        async def established(name: str = name) -> str:
            found = await client.get(resources.CUSTOM_RESOURCE_DEFINITIONS, name)
            return _lacking(found, "Established")

        await _until(established, f"CustomResourceDefinition {name}", timeout)


async def wait_available(client: Client, options: render.Options, timeout: float) -> None:  # noqa: ASYNC109 - as above
    """Wait until Deployments and DaemonSet have all their pods. Raises Failure after ``timeout`` seconds."""
    for obj in render.objects(options):
        name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace", "")
        if obj["kind"] == "DaemonSet":

            async def everywhere(name: str = name, namespace: str = namespace) -> str:
                return _not_everywhere(await client.get(resources.DAEMON_SETS, name, namespace))

            hint = f"`kubectl -n {namespace} describe daemonset {name}` says more"
            await _until(everywhere, f"DaemonSet {namespace}/{name}", timeout, hint)
        if obj["kind"] != "Deployment":
            continue

        async def available(name: str = name) -> str:
            found = await client.get(resources.DEPLOYMENTS, name, options.namespace)
            return _not_rolled_out(found) or _lacking(found, "Available")

        hint = f"`kubectl -n {options.namespace} describe deployment {name}` says more"
        await _until(available, f"Deployment {options.namespace}/{name}", timeout, hint)


# --- uninstall -------------------------------------------------------------------------------------------------------


async def installed(client: Client, namespace: str, domain: str = "") -> render.Options:
    """What is installed in the namespace, by its settings; ``domain`` or the default where there are none left."""
    settings = _settings({"namespace": namespace} | ({"domain": domain} if domain else {}))
    config = await _installed_config(client, namespace)
    found = _parse(config, namespace).get("domain", DEFAULT_DOMAIN) if config else settings.domain
    made = render.Options(domain=domain or found, namespace=namespace)
    return replace(made, agent=True, kueue=True, metrics_authentication=True)


async def uninstall(client: Client, options: render.Options, *, delete_crds: bool) -> AsyncIterator[Step]:
    """Delete the objects, last applied first; the namespace only where it is ours, CRDs (and data) only where asked."""
    for obj in reversed(render.objects(options)):
        match obj["kind"]:
            case "CustomResourceDefinition" if not delete_crds:
                yield Step(obj["kind"], obj["metadata"]["name"], "", "kept")
                continue
            case "CustomResourceDefinition":
                await _drop_finalizers(client, obj["spec"]["names"]["plural"])
            case "Namespace" if not await _is_ours(client, obj["metadata"]["name"]):
                continue
        if step := await _delete(client, obj):
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


async def ungate(client: Client, domain: str, pods: Sequence[str]) -> AsyncIterator[str]:
    """Remove our gate from the pods (namespace/name), which then run anywhere. Call it once the policy is gone."""
    body = {"spec": {"schedulingGates": [{"$patch": "delete", "name": Keys(domain).gate}]}}
    deadline = time.monotonic() + POLICY_SECONDS
    for pod in pods:
        namespace, name = pod.split("/", 1)
        while True:
            try:
                await client.patch(resources.PODS, name, namespace, body=body, content_type=PatchType.STRATEGIC)
            except NotFound:
                break
            except Forbidden as error:
                if time.monotonic() > deadline:
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


# --- parts -----------------------------------------------------------------------------------------------------------


def _asked(wish: Requested) -> Json:
    return {"domain": wish.domain, "namespace": wish.namespace, "webhookUrl": wish.webhook_url}


def _settings(values: Json) -> Settings:
    try:
        return from_mapping(values, source="command line")
    except SettingsError as error:
        raise Failure(str(error)) from error


async def _installed_config(client: Client, namespace: str) -> str:
    try:
        found = await client.get(resources.CONFIG_MAPS, render.CONFIG_MAP, namespace)
    except NotFound:
        return ""
    return str((found.get("data") or {}).get(render.CONFIG_KEY, ""))


def _parse(config: str, namespace: str) -> Json:
    where = f"ConfigMap {namespace}/{render.CONFIG_MAP}, key {render.CONFIG_KEY}"
    try:
        values = yaml.safe_load(config) or {}
        from_mapping(values, source=where)
    except (yaml.YAMLError, SettingsError, AttributeError) as error:
        raise Failure(f"{where}: {error}") from error
    return dict(values)


def _config(existing: str, options: render.Options) -> str:
    """The settings file: what is there, or the base's, with what this installation fixes; text that says it is kept."""
    text = existing or _base_config(options)
    values = _parse(text, options.namespace)
    wanted = {key: value for key, value in values.items() if key != "webhookUrl"}
    wanted |= {"domain": options.domain, "namespace": options.namespace}
    if options.webhook_url:
        wanted["webhookUrl"] = options.webhook_url
    return text if wanted == values else yaml.safe_dump(wanted, sort_keys=False)


def _base_config(options: render.Options) -> str:
    found = next(obj for obj in render.objects(options) if obj["kind"] == "ConfigMap")
    return str(found["data"][render.CONFIG_KEY])


async def _has_agent(client: Client, namespace: str) -> bool:
    found = await _read(client, resources.DAEMON_SETS, render.AGENT, render.agent_namespace(namespace))
    return found is not None


async def _kueue(client: Client) -> str:
    """The name of one of Kueue's CRDs; empty where there is none."""
    for name in KUEUE_CRDS:
        with suppress(NotFound):
            await client.get(resources.CUSTOM_RESOURCE_DEFINITIONS, name, type=msgspec.Raw)
            return name
    return ""


async def _read(client: Client, resource: Resource, name: str, namespace: str) -> Json | None:
    try:
        return await client.get(resource, name, namespace or None)
    except NotFound:
        return None


async def _settled(client: Client, resource: Resource, name: str, namespace: str) -> Json | None:
    """The object as it is; one that is being deleted is waited for, since applying it would not keep it."""
    await wait_gone(client, [(resource, name, namespace)], only_terminating=True)
    return await _read(client, resource, name, namespace)


async def wait_gone(
    client: Client, objects: Sequence[tuple[Resource, str, str]], *, only_terminating: bool = False
) -> None:
    """Wait until deleted objects have gone. Raises Failure after GONE_SECONDS, with what holds the object."""
    for resource, name, namespace in objects:

        async def held(resource: Resource = resource, name: str = name, namespace: str = namespace) -> str:
            found = await _read(client, resource, name, namespace)
            if found is None or (only_terminating and "deletionTimestamp" not in found["metadata"]):
                return ""
            return _holders(found)

        await _until(held, f"deletion of {resource.kind} {name}", GONE_SECONDS)


def _holders(obj: Json) -> str:
    finalizers = [*obj["metadata"].get("finalizers", []), *obj.get("spec", {}).get("finalizers", [])]
    notes = [c["message"] for c in obj.get("status", {}).get("conditions", []) if c.get("message")]
    return f"held by {', '.join(finalizers) or 'nothing'}; {' '.join(notes)}"


async def _lacks_namespace(client: Client, namespace: str) -> bool:
    return bool(namespace) and await _read(client, resources.NAMESPACES, namespace, "") is None


def _compare(before: Json | None, after: Json) -> Outcome:
    if before is None:
        return "created"
    return "unchanged" if _essence(before) == _essence(after) else "configured"


def _essence(obj: Json) -> Json:
    """The object without what others write while we look at it."""
    skipped = {"resourceVersion", "managedFields", "generation"}
    metadata = {key: value for key, value in obj["metadata"].items() if key not in skipped}
    return {key: value for key, value in obj.items() if key != "status"} | {"metadata": metadata}


async def _delete(client: Client, obj: Json) -> Step | None:
    """Delete the object; None where it is gone already."""
    name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace", "")
    try:
        await client.delete(resource_of(obj), name, namespace or None, propagation="Background")
    except NotFound:
        return None
    except KubeError as error:
        raise Failure(f"{obj['kind']} {name}: {error}") from error
    return Step(obj["kind"], name, namespace, "deleted")


async def _is_ours(client: Client, namespace: str) -> bool | None:
    """Whether the namespace was made by an install, as its label says; None where there is none."""
    found = await _read(client, resources.NAMESPACES, namespace, "")
    if found is None:
        return None
    labels = found["metadata"].get("labels", {})
    return all(labels.get(key) == text for key, text in render.PART_OF.items())


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


async def _until(lacking: Callable[[], Awaitable[str]], what: str, seconds: float, hint: str = "") -> None:
    deadline = time.monotonic() + seconds
    while missing := await lacking():
        if time.monotonic() > deadline:
            raise Failure(f"{what} was not ready after {seconds:g} s: {missing}" + (f"; {hint}" if hint else ""))
        await asyncio.sleep(POLL_SECONDS)


def _lacking(obj: Json, condition: str) -> str:
    """What keeps the condition from being true; empty where it is."""
    for found in obj.get("status", {}).get("conditions", []):
        if found["type"] == condition:
            return "" if found["status"] == "True" else found.get("message") or found.get("reason", condition)
    return f"condition {condition} is not reported yet"


def _not_rolled_out(deployment: Json) -> str:
    status, wanted = deployment.get("status", {}), deployment["spec"].get("replicas", 1)
    if status.get("observedGeneration", 0) < deployment["metadata"]["generation"]:
        return "the deployment controller has not seen it yet"
    updated = status.get("updatedReplicas", 0)
    return "" if updated >= wanted else f"{updated} of {wanted} pods are of this version"


def _not_everywhere(daemon_set: Json) -> str:
    status = daemon_set.get("status", {})
    if status.get("observedGeneration", 0) < daemon_set["metadata"]["generation"]:
        return "the daemonset controller has not seen it yet"
    wanted = status.get("desiredNumberScheduled", 0)
    ready = min(status.get("updatedNumberScheduled", 0), status.get("numberReady", 0))
    return "" if ready >= wanted else f"{ready} of {wanted} pods are of this version and ready"


def _has(spec: _PodSpec, gate: str) -> bool:
    return any(entry.name == gate for entry in spec.scheduling_gates or ())


def _full_name(meta: _Meta) -> str:
    return f"{meta.namespace}/{meta.name}"


def lines(left: Left, *, ungated: bool) -> Iterator[str]:
    """What a person must know and do about what is left."""
    if left.gated_pods and not ungated:
        yield f"{len(left.gated_pods)} pods still wait behind the gate, and nothing removes it any more:"
        yield from (f"  {pod}" for pod in left.gated_pods[:20])
        if len(left.gated_pods) > 20:
            yield f"  ... and {len(left.gated_pods) - 20} more"
        yield "`topogate uninstall --ungate` lets them run anywhere; or delete their jobs."
    if left.gating_jobs:
        yield f"{len(left.gating_jobs)} unfinished Jobs have the gate in their template, and make more such pods:"
        yield from (f"  {job}" for job in left.gating_jobs[:20])
        if len(left.gating_jobs) > 20:
            yield f"  ... and {len(left.gating_jobs) - 20} more"
        yield "Make them anew without a topology request."

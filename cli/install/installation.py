"""What ``topogate install`` does, step by step; `cli.install.command` is its face.

Rules
- Installing twice changes nothing; an upgrade is another install. Settings that somebody changed are kept.
- An installation's key domain never changes: pods gated under the old one would wait for ever.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

import msgspec
import yaml
from msgspec.structs import replace

from cli.cluster.installed import in_use
from cli.install.steps import InstallStep, Json, Outcome, delete, is_ours, is_served, read
from cli.install.waiting import wait_gone
from cli.output import Failure
from crds.constants import DEFAULT_DOMAIN, SERVED
from crds.settings import CONFIG_KEY, CONFIG_MAP, ReadSettings, Settings, SettingsError, from_mapping, parse
from kube import resources
from kube.client import Client
from kube.errors import KubeError, NotFound
from kube.objects import Object
from kube.resources import resource_of
from manifests import render

FIELD_MANAGER = "topogate-install"
SERVED_TRUE = f"{SERVED}=true"
KUEUE_CRDS = ("workloads.kueue.x-k8s.io", "clusterqueues.kueue.x-k8s.io", "resourceflavors.kueue.x-k8s.io")


class Requested(msgspec.Struct, frozen=True):
    """What the command line asks for; empty (None): what is installed, else the default."""

    domain: str = ""
    namespace: str = ""
    image: str = ""
    webhook_url: str = ""
    agent: bool | None = None
    kueue: bool | None = None
    metrics_authentication: bool | None = None
    beside: bool | None = None


async def plan(client: Client | None, wish: Requested) -> render.InstallOptions:
    """What to render, from the wish and from what is installed. ``client`` None: from the wish alone.

    Raises Failure: the wish is not valid, differs in domain from what is installed, or meets Kueue in its own domain
    without saying that it is to stand beside it.
    """
    asked = {"domain": wish.domain, "namespace": wish.namespace, "webhookUrl": wish.webhook_url}
    settings = _settings({key: text for key, text in asked.items() if text})
    if client:
        # Cluster-wide objects have fixed names: a second namespace would take them from the first.
        await _only_there(client, settings.namespace)
    stored = await read(client, resources.CONFIG_MAPS, CONFIG_MAP, settings.namespace) if client else None
    config = str(((stored or {}).get("data") or {}).get(CONFIG_KEY, ""))
    # Broken settings stop an upgrade: without their domain, the default would be applied over another one.
    before = _parsed(config, settings.namespace) if config else None
    installed = before.domain if before is not None else ""
    domain = wish.domain or installed or DEFAULT_DOMAIN
    if installed and domain != installed:
        raise Failure(
            f'--domain {domain}: Topogate is installed with domain "{installed}", and pods gated under that would wait '
            "for ever: run `topogate uninstall` first, or leave --domain away"
        )
    found = await _kueue(client) if client else ""
    beside = (before is not None and before.beside_kueue) if wish.beside is None else wish.beside
    if beside and domain != DEFAULT_DOMAIN:
        raise Failure(
            f"--beside-kueue shares the domain of Kueue, {DEFAULT_DOMAIN}: it does not go with --domain {domain}"
        )
    if beside and wish.kueue is False:
        raise Failure("--beside-kueue reads Kueue's Workloads: it does not go with --no-kueue")
    # Also for an upgrade: Kueue may have been installed since.
    if found and domain == DEFAULT_DOMAIN and not beside:
        raise Failure(
            f"this cluster runs Kueue ({found} exists), which reads and writes the same keys {DEFAULT_DOMAIN}/...: "
            "install with `--domain topogate.dev`, so that the two never touch each other's pods; or, to move from it "
            "namespace by namespace, with `--beside-kueue`"
        )
    if client and beside and before is not None and not before.beside_kueue:
        await _all_are_served(client)
    agent = wish.agent
    if agent is None:
        # What is optional stays as it is unless a flag says otherwise.
        namespace = render.agent_namespace(settings.namespace)
        agent = client is not None and await read(client, resources.DAEMON_SETS, render.AGENT, namespace) is not None
    metrics = wish.metrics_authentication
    if metrics is None:
        metrics = client is not None and await read(client, resources.CLUSTER_ROLES, render.METRICS, "") is not None
    # Without a cluster nobody knows what it serves: neither of the two is rendered.
    defaults = client is not None and await is_served(client, resources.MUTATING_ADMISSION_POLICIES)
    options = render.InstallOptions(
        domain=domain,
        namespace=settings.namespace,
        image=wish.image,
        webhook_url=settings.webhook_url,
        agent=agent,
        kueue=bool(found) or beside if wish.kueue is None else wish.kueue,
        metrics_authentication=metrics,
        default_queue=defaults,
        default_hint=client is not None and not defaults,
        beside=beside,
    )
    # The settings file: what is there, or the base's, with what this installation fixes; text that says it is kept.
    base = (obj for obj in render.objects(options) if obj["kind"] == "ConfigMap")
    written = config or str(next(base)["data"][CONFIG_KEY])
    values = yaml.safe_load(written) or {}
    # A URL that is not asked for this time goes: the components run in the cluster again.
    wanted = {key: value for key, value in values.items() if key not in {"webhookUrl", "besideKueue"}}
    wanted |= {"domain": options.domain, "namespace": options.namespace}
    if beside:
        wanted["besideKueue"] = True
    if options.webhook_url:
        wanted["webhookUrl"] = options.webhook_url
    # Equal values leave the text alone, with an administrator's comments in it.
    return replace(options, config=written if wanted == values else yaml.safe_dump(wanted, sort_keys=False))


async def apply(
    client: Client, objects: Sequence[Json], *, dry_run: bool = False, field_manager: str = FIELD_MANAGER
) -> AsyncIterator[InstallStep]:
    """Apply the objects in order, server-side; fields of ours that others changed are taken back.

    Raises Failure with the object that the API server refused.
    """
    for obj in objects:
        resource = resource_of(obj)
        name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace", "")
        try:
            # Server-side apply would take over labels such as the Pod Security level that somebody chose.
            if resource is resources.NAMESPACES and await is_ours(client, name) is False:
                yield InstallStep(
                    obj["kind"], name, "", "kept", dry_run
                )  # somebody made it for us, and looks after its labels
                continue
            await wait_gone(client, [(resource, name, namespace)], only_terminating=True)
            before = await read(client, resource, name, namespace)
            absent = dry_run and before is None and bool(namespace)
            if absent and await read(client, resources.NAMESPACES, namespace, "") is None:
                outcome: Outcome = "created"  # what lies in a namespace that a dry run does not make cannot be tried
            else:
                result = await client.apply(resource, obj, field_manager=field_manager, dry_run=dry_run)
                if before is None:
                    outcome = "created"
                else:
                    # By the stored objects: the API server adds defaults that our manifests do not say.
                    outcome = "unchanged" if _essence(before) == _essence(result) else "configured"
        except KubeError as error:
            raise Failure(f"{obj['kind']} {name}: {error}") from error
        yield InstallStep(obj["kind"], name, namespace, outcome, dry_run)


async def is_called(client: Client) -> bool:
    """Whether API servers call the webhook."""
    return await read(client, resources.MUTATING_WEBHOOKS, render.WEBHOOK_CONFIGURATION, "") is not None


async def remove_components(client: Client, options: render.InstallOptions) -> AsyncIterator[InstallStep]:
    """Delete what runs inside of the cluster where the components now run outside of it."""
    # By name: what both forms have was applied a moment ago.
    kept = {(obj["kind"], obj["metadata"]["name"]) for obj in render.objects(options)}
    for obj in render.objects(replace(options, webhook_url="")):
        if (obj["kind"], obj["metadata"]["name"]) not in kept and (step := await delete(client, obj)):
            yield step


async def remove_part(client: Client, options: render.InstallOptions, part: str) -> AsyncIterator[InstallStep]:
    """Delete an optional part and all that is its own; what the agent published stays until its nodes go.

    ``part``: the option that has it installed: agent, kueue, metrics_authentication, beside.
    """
    others = {(obj["kind"], obj["metadata"]["name"]) for obj in render.objects(replace(options, **{part: False}))}
    # Backwards: bindings and workloads go before the accounts and namespaces that they need.
    for obj in reversed(render.objects(replace(options, **{part: True}))):
        if (obj["kind"], obj["metadata"]["name"]) not in others and (step := await delete(client, obj)):
            yield step


async def settings_of(client: Client, namespace: str) -> ReadSettings | None:
    """The settings of the installation in a namespace, as far as they are right; None without one."""
    found = await read(client, resources.CONFIG_MAPS, CONFIG_MAP, namespace)
    return None if found is None else in_use(found, namespace)


async def installed(client: Client, namespace: str, domain: str = "") -> render.InstallOptions:
    """What is installed in the namespace, by its settings; ``domain`` or the default where there are none left."""
    settings = _settings({"namespace": namespace} | ({"domain": domain} if domain else {}))
    await _only_there(client, namespace)
    found = await settings_of(client, namespace)
    made = render.InstallOptions(domain=domain or (found.settings if found else settings).domain, namespace=namespace)
    # Without settings that say it, the gate may be Kueue's wherever Kueue is: what it holds back is not to be let go.
    shared = found.settings.beside_kueue if found else bool(await _kueue(client))
    made = replace(made, beside=shared and made.domain == DEFAULT_DOMAIN)
    # For an uninstall all parts count; the ones that are not there are passed over.
    parts = ("agent", "kueue", "metrics_authentication", "default_queue", "default_hint")
    return replace(made, **dict.fromkeys(parts, True))


async def _only_there(client: Client, namespace: str) -> None:
    """Whether no other namespace has it: roles, policies and the webhook are there once. Raises Failure."""
    binding = await read(client, resources.CLUSTER_ROLE_BINDINGS, "topogate-ungater", "")
    # The binding's subject is the ungater's account, whose namespace is Topogate's.
    homes = {one.get("namespace", "") for one in (binding or {}).get("subjects") or ()} - {namespace, ""}
    if homes:
        there = min(homes)
        raise Failure(
            f"--namespace {namespace}: Topogate is installed in namespace {there}: say --namespace {there}, or "
            f"`topogate uninstall --namespace {there}` first"
        )


# --- parts -----------------------------------------------------------------------------------------------------------


def _settings(values: Json) -> Settings:
    try:
        return from_mapping(values, source="command line")
    except SettingsError as error:
        raise Failure(str(error)) from error


def _parsed(config: str, namespace: str) -> Settings:
    try:
        return parse(config, source=f"ConfigMap {namespace}/{CONFIG_MAP}, key {CONFIG_KEY}")
    except SettingsError as error:
        mend = f"mend it first: kubectl -n {namespace} edit configmap {CONFIG_MAP}"
        raise Failure(f"{error}; {mend}") from error


async def _all_are_served(client: Client) -> None:
    """Raises Failure where a namespace with a Workload of ours is not labelled: its pods would wait for ever."""
    served = {
        one.metadata.name for one in await client.list(resources.NAMESPACES, label_selector=SERVED_TRUE, type=Object)
    }
    with suppress(NotFound):
        homes = {one.metadata.namespace for one in await client.list(resources.WORKLOADS, type=Object)}
        if left := sorted(homes - served):
            label = f"kubectl label namespace {' '.join(left)} {SERVED_TRUE}"
            raise Failure(
                f"--beside-kueue: Topogate serves namespaces with the label {SERVED_TRUE} alone then, and namespace "
                f"{left[0]} has Workloads of it and no such label: {label}"
            )


async def _kueue(client: Client) -> str:
    """The name of one of Kueue's CRDs; empty where there is none."""
    for name in KUEUE_CRDS:
        with suppress(NotFound):
            await client.get(resources.CUSTOM_RESOURCE_DEFINITIONS, name, type=msgspec.Raw)
            return name
    return ""


def _essence(obj: Json) -> Json:
    """The object without what others write while we look at it."""
    skipped = {"resourceVersion", "managedFields", "generation"}
    metadata = {key: value for key, value in obj["metadata"].items() if key not in skipped}
    return {key: value for key, value in obj.items() if key != "status"} | {"metadata": metadata}

"""What is wrong with the installation itself: objects, pods, certificates, versions. Reads first, judges then.

Rules
- What is compared are the objects that `topogate install` would make, and of them those that decide who may do what:
  kinds, roles, policies and the webhook's configuration. Fields of others are nobody's business here.
- What may not be read is said to be unknown, never to be wrong.
"""

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from certs.authority import BundleError, check, parse, signed_by
from certs.store import ROTATE, bundle_of
from cli.cluster.installed import in_use
from cli.cluster.leader import absence
from cli.cluster.simulated_nodes import WEBHOOK_URL, all_simulated, install_command
from cli.doctor.findings import Finding, error, unknown, warning
from cli.doctor.trial import FINE, TRIED_IN, TrialResult, try_webhook
from cli.install.steps import Json, is_served, read
from cli.output import some
from crds.constants import NAMESPACE, SERVED
from crds.settings import CONFIG_MAP, Settings, unread_keys
from kube import resources
from kube.client import Client
from kube.errors import Forbidden
from kube.lease import Lease
from kube.objects import Node
from kube.resources import resource_of
from manifests import render

OLDEST = (1, 30)
# Half way between the renewal and the end: a rotation that is late by that much has failed.
LATE = 5 / 6  # of a certificate's life; it is renewed after two thirds
COMPARED = frozenset(
    {
        "CustomResourceDefinition",
        "Role",
        "ClusterRole",
        "RoleBinding",
        "ClusterRoleBinding",
        "MutatingWebhookConfiguration",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    }
)
OUTSIDE = "docs/install.md, Components beside the cluster"


class Installation(msgspec.Struct):
    """What was read. ``objects``: what belongs to an installation like this one, and each as it is (None: missing)."""

    settings: Settings
    kubernetes: str = ""
    policies: bool = True  # the server offers ValidatingAdmissionPolicies as 1.30 and later do
    defaults: bool = True  # it can put jobs into the LocalQueue default: MutatingAdmissionPolicy v1, as 1.36 has it
    configured: bool = False
    misconfigured: str = ""  # what is wrong with its settings, so that older ones count
    unread: tuple[str, ...] = ()  # keys of its ConfigMap that nothing reads
    forgotten: str = ""  # the URL that the API server calls, and that its settings lack
    objects: list[tuple[Json, Json | None]] = msgspec.field(default_factory=list)
    denied: list[str] = msgspec.field(default_factory=list)
    lease: Lease | None = None
    secret: Json | None = None
    agent: bool = False
    simulated: bool = False  # no node on which anything runs
    trial: TrialResult = FINE

    @property
    def missing(self) -> frozenset[str]:
        """Kind and name of what is not there."""
        return frozenset(_name(wanted) for wanted, live in self.objects if live is None)

    @property
    def down(self) -> frozenset[str]:
        """Deployments of which no pod is ready."""
        return frozenset(
            wanted["metadata"]["name"]
            for wanted, live in self.objects
            if live is not None
            and wanted["kind"] == "Deployment"
            and not live.get("status", {}).get("availableReplicas")
        )

    def is_missing(self, component: str) -> bool:
        """Whether a component is not there, as its objects are missing."""
        return bool({f"{kind} topogate-{component}" for kind in ("ServiceAccount", "Deployment")} & self.missing)

    def is_working(self, component: str) -> bool:
        """Whether nothing that is told already keeps a component from its work."""
        return not self.is_missing(component) and f"topogate-{component}" not in self.down

    @property
    def outside(self) -> bool:
        """Whether webhook and ungater run beside the cluster: then it has no Deployment that could be restarted."""
        return bool(self.settings.webhook_url)

    def goes_by(self, configuration: Json | None) -> None:
        """Where the API server calls the webhook is where it is, whatever the settings say."""
        webhooks = configuration.get("webhooks", []) if configuration is not None else []
        # All webhooks of the configuration lead to one server: the first tells.
        url = urlsplit(next((one.get("clientConfig", {}).get("url", "") for one in webhooks), ""))
        if url.netloc and not self.settings.webhook_url:
            self.forgotten = f"{url.scheme}://{url.netloc}"
            self.settings = self.settings.model_copy(update={"webhook_url": self.forgotten})

    @property
    def install_command(self) -> str:
        """The command that brings the installation up to date, and leaves its components where they are."""
        return install_command(self.settings.webhook_url or (WEBHOOK_URL if self.simulated else ""))


async def look_at(client: Client, namespace: str = NAMESPACE) -> Installation:
    """Read all of it. Raises KubeError where the API server cannot be asked."""
    config_map = await read(client, resources.CONFIG_MAPS, CONFIG_MAP, namespace)
    told = in_use(config_map, namespace) if config_map is not None else None
    # The namespace that was asked about wins over the one that its settings name.
    settings = (told.settings if told else Settings()).model_copy(update={"namespace": namespace})
    found = Installation(settings, configured=told is not None, misconfigured=told.problem if told else "")
    found.unread = tuple(unread_keys(*((config_map or {}).get(field) for field in ("data", "binaryData"))))
    # Before the objects are rendered: inside and outside of a cluster they differ.
    found.goes_by(await _read(client, found, resources.MUTATING_WEBHOOKS, render.WEBHOOK_CONFIGURATION, ""))
    with suppress(Forbidden):
        found.simulated = all_simulated(await client.list(resources.NODES, type=Node))
    found.kubernetes = await client.server_version()
    found.policies = await is_served(client, resources.VALIDATING_ADMISSION_POLICIES)
    found.defaults = await is_served(client, resources.MUTATING_ADMISSION_POLICIES)
    options = replace(
        render.InstallOptions(
            domain=found.settings.domain, namespace=namespace, webhook_url=found.settings.webhook_url
        ),
        # Optional parts are compared only where they are: their absence is a choice.
        agent=await _is_there(client, found, resources.DAEMON_SETS, render.AGENT, render.agent_namespace(namespace)),
        kueue=await _is_there(client, found, resources.CLUSTER_ROLES, "topogate-ungater-kueue", ""),
        metrics_authentication=await _is_there(client, found, resources.CLUSTER_ROLES, render.METRICS, ""),
        default_queue=found.defaults,
        default_hint=not found.defaults,
        beside=found.settings.beside_kueue,
    )
    found.agent = options.agent
    for obj in render.objects(options):
        metadata = obj["metadata"]
        try:
            live = await read(client, resource_of(obj), metadata["name"], metadata.get("namespace", ""))
        except Forbidden:
            # Neither there nor missing: it goes into no comparison.
            found.denied.append(f"{obj['kind']} {metadata['name']}")
            continue
        found.objects.append((obj, live))
    lease = await _read(client, found, resources.LEASES, render.LEASE, namespace)
    found.lease = msgspec.convert(lease, Lease) if lease is not None else None
    found.secret = await _read(client, found, resources.SECRETS, found.settings.webhook_secret, namespace)
    if f"{resources.MUTATING_WEBHOOKS.kind} {render.WEBHOOK_CONFIGURATION}" not in found.missing:
        # Without the configuration nothing is called, and the missing object is reported already.
        homes = [TRIED_IN]
        if options.beside:
            # Elsewhere than in these the webhook is not called; where there are none, nobody needs it yet.
            homes = []
            with suppress(Forbidden):
                labelled = await client.list(resources.NAMESPACES, label_selector=f"{SERVED}=true")
                homes = sorted(one["metadata"]["name"] for one in labelled)
        for home in homes[:1]:
            found.trial = await try_webhook(client, found.settings.domain, home)
    return found


async def _is_there(
    client: Client, found: Installation, resource: resources.Resource, name: str, namespace: str
) -> bool:
    return await _read(client, found, resource, name, namespace) is not None


async def _read(
    client: Client, found: Installation, resource: resources.Resource, name: str, namespace: str
) -> Json | None:
    try:
        return await read(client, resource, name, namespace)
    except Forbidden:
        found.denied.append(f"{resource.kind} {name}")
        return None


def judge(found: Installation, now: datetime, version: str) -> Iterator[Finding]:
    """All findings about the installation, those about its settings first. ``version``: of this command."""
    mend = f"kubectl -n {found.settings.namespace} edit configmap {CONFIG_MAP}"
    if found.misconfigured:
        yield error("settings", f"{found.misconfigured}; the last good settings count", mend)
    for problem in found.unread:
        yield error("settings", f"ConfigMap {found.settings.namespace}/{CONFIG_MAP}: {problem}", mend)
    if found.forgotten:
        text = f"webhookUrl: expected {found.forgotten}, at which the API server calls the webhook, found nothing"
        yield error("settings", text, found.install_command)
    yield from _kubernetes(found)
    if found.denied:
        text = f"{len(found.denied)} objects may not be read ({', '.join(found.denied[:3])} ...)"
        yield unknown("rights", text, "ask for a ClusterRoleBinding to cluster-admin, or let an administrator run this")
    # One finding instead of forty missing objects.
    if not found.configured and not any(live for _, live in found.objects):
        yield error(
            "installation", "Topogate is not installed in this cluster", f"{found.install_command} --topology auto"
        )
        return
    objects, again = found.objects, found.install_command
    missing = [_name(wanted) for wanted, live in objects if live is None]
    if missing:
        effects = {"webhook": "no webhook answers", "ungater": "nothing new is placed"}
        follows = "".join(f", so {effect}" for component, effect in effects.items() if found.is_missing(component))
        yield error("installation", f"missing: {some(missing)}{follows}", again)
    for kinds, about, what in (
        ({"CustomResourceDefinition"}, "versions", "kinds of another version than this command"),
        ({"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"}, "rbac", "rights that differ from the installed"),
        ({"MutatingWebhookConfiguration"}, "webhook", "the webhook is called for other objects than it should be"),
        ({"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}, "policies", "policies that differ"),
    ):
        other = [
            f"{_name(wanted)} ({where})"
            for wanted, live in objects
            if live is not None and wanted["kind"] in kinds and (where := differs(_compared(wanted), live))
        ]
        if other:
            yield error(about, f"{what}: {some(other)}", again)
    yield from _check_pods(found, version)
    # A fault is reported once: what follows from it goes with it, and has no remedy of its own.
    if found.is_working("webhook"):
        certificates = list(_certificates(found, now))
        # A wrong certificate makes the trial fail too: the cause is reported, not both.
        yield from certificates or _trial(found)
    if found.is_working("ungater"):
        yield from _leader(found, now)


def _kubernetes(found: Installation) -> Iterator[Finding]:
    told = re.match(r"v?(\d+)\.(\d+)", found.kubernetes)
    oldest = ".".join(map(str, OLDEST))
    what = f"Kubernetes {found.kubernetes}" if found.kubernetes else "the API server"
    range_ = f"Topogate supports Kubernetes {oldest} and newer"
    if told and (int(told[1]), int(told[2])) < OLDEST:
        wrong = f"is older than {oldest}"
    elif not found.policies:
        wrong = "does not serve ValidatingAdmissionPolicy of admissionregistration.k8s.io/v1"
    else:
        return
    yield error("versions", f"{what} {wrong}: {range_}", f"upgrade the cluster to {oldest} or newer")


def _compared(wanted: Json) -> Json:
    if wanted["kind"] not in COMPARED:
        return {}
    return {key: value for key, value in wanted.items() if key not in {"apiVersion", "kind", "metadata"}}


def differs(wanted: Any, live: Any, path: str = "") -> str:
    """Where something that is wanted is not there, or is another; "" where all of it is. What else is there is fine."""
    if isinstance(wanted, Mapping):
        if not isinstance(live, Mapping):
            return path or "."
        parts = (differs(value, live.get(key), f"{path}.{key}".lstrip(".")) for key, value in wanted.items())
        return next(filter(None, parts), "")
    if isinstance(wanted, list):
        # A list of rules has no keys of its own: one more rule is a right that nobody installed.
        if not isinstance(live, list) or len(wanted) != len(live):
            return path
        parts = (differs(one, other, f"{path}[{at}]") for at, (one, other) in enumerate(zip(wanted, live, strict=True)))
        return next(filter(None, parts), "")
    # The API server leaves out empty texts and false when it stores an object.
    return "" if wanted == live or (live is None and wanted in ("", False)) else path


def _check_pods(found: Installation, version: str) -> Iterator[Finding]:
    for wanted, live in found.objects:
        if live is None or wanted["kind"] not in {"Deployment", "DaemonSet"}:
            continue
        name, namespace, status = live["metadata"]["name"], live["metadata"]["namespace"], live.get("status", {})
        if wanted["kind"] == "Deployment":
            # By its own spec: an administrator may have scaled it.
            ready, asked = status.get("availableReplicas", 0), live["spec"].get("replicas", 1)
        else:
            ready, asked = status.get("numberReady", 0), status.get("desiredNumberScheduled", 0)
        look = f"kubectl -n {namespace} describe {wanted['kind'].lower()} {name}"
        if asked and not ready:
            what = "objects with a request are refused" if "webhook" in name else "nothing new is placed"
            effect = "" if wanted["kind"] == "DaemonSet" else f", so {what}"
            yield error("pods", f"no pod of {name} is ready{effect}", look)
        elif ready < asked:
            yield warning("pods", f"{ready} of {asked} pods of {name} are ready", look)
        image = live["spec"]["template"]["spec"]["containers"][0].get("image", "")
        # After the last slash, or the port of a registry would read as a tag; a digest alone says no version.
        told = re.search(r":v?(\d+\.\d+\.\d+[^@]*)", image.rpartition("/")[2])
        if told and told[1] != version:
            yield warning(
                "versions",
                f"{name} runs {image}, and this command is {version}",
                f"{found.install_command} --image IMAGE:{version}",
            )


def _trial(found: Installation) -> Iterator[Finding]:
    look = f"kubectl -n {found.settings.namespace} get pods -l app.kubernetes.io/component=webhook"
    if found.outside:
        look = f"start `topogate webhook`, where {found.settings.webhook_url} leads to ({OUTSIDE})"
    if found.trial.wrong:
        yield error("webhook", found.trial.wrong, look)
    if found.trial.unknown:
        yield unknown("webhook", found.trial.unknown, "run this as somebody who may create Jobs there")


def _certificates(found: Installation, now: datetime) -> Iterator[Finding]:
    configuration = next(
        (live for wanted, live in found.objects if wanted["kind"] == "MutatingWebhookConfiguration"), None
    )
    namespace, name = found.settings.namespace, found.settings.webhook_secret
    restart = f"kubectl -n {namespace} rollout restart deployment/topogate-webhook"
    if found.outside:
        restart = f"restart `topogate webhook` where {found.settings.webhook_url} leads to ({OUTSIDE})"
    elif found.simulated:
        restart = f"{found.install_command}: pods on simulated nodes run nothing"
    rotate = f"kubectl -n {namespace} annotate --overwrite secret {name} {ROTATE}=leaf"
    webhooks = configuration.get("webhooks", []) if configuration is not None else []
    bundles = [one.get("clientConfig", {}).get("caBundle", "") for one in webhooks]
    if webhooks and not all(bundles):
        text = "the webhook's configuration has no caBundle yet: objects with a request are refused"
        yield error("certificates", text, restart)
    if found.secret is None:
        if f"Secret {name}" not in found.missing and f"Secret {name}" not in found.denied:
            yield error("certificates", f"there is no Secret {namespace}/{name}: no webhook ever started", restart)
        return
    bundle = bundle_of(found.secret.get("data") or {})
    if bundle is None:
        yield error("certificates", f"Secret {namespace}/{name} is empty", restart)
        return
    try:
        check(bundle, now)
        trusted = [parse(base64.b64decode(text), "caBundle") for text in bundles if text]
        # cert-manager's leaf may come by an intermediate, which no CA here has signed directly.
        if any(not any(signed_by(bundle.leaf, ca) for ca in each) for each in trusted) and bundle.managed:
            yield error("certificates", "the caBundle does not have the CA of the serving certificate", restart)
        made = bundle.leaf.not_valid_before_utc
        if now - made > LATE * (bundle.not_after - made):
            yield warning(
                "certificates", f"the serving certificate ends at {bundle.not_after:%Y-%m-%d %H:%M} UTC", rotate
            )
    except (BundleError, binascii.Error) as problem:
        yield error("certificates", f"Secret {namespace}/{name}: {problem}", rotate)


def _leader(found: Installation, now: datetime) -> Iterator[Finding]:
    namespace = found.settings.namespace
    logs = f"kubectl -n {namespace} logs -l app.kubernetes.io/component=ungater --tail 20"
    if found.outside:
        logs = f"start `topogate ungater` with a token of its own, or read what it printed ({OUTSIDE})"
    # A Lease that may not be read looks like one that is not there.
    if f"Lease {render.LEASE}" not in found.denied and (text := absence(found.lease, now)):
        yield error("ungater", text, logs)


def _name(obj: Json) -> str:
    return f"{obj['kind']} {obj['metadata']['name']}"

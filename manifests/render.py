"""The objects of an installation: those of the kustomize base, for any key domain, namespace and image.

kustomize cannot put a domain into the text of a rule, so the domain and the namespace are replaced as words here; with
the defaults the objects are exactly those of ``kubectl kustomize manifests/base``.
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Final

import msgspec
import yaml

from crds.constants import DEFAULT_DOMAIN, NAMESPACE, SERVED
from crds.settings import CONFIG_KEY, Settings, parse

Json = dict[str, Any]

WEBHOOK_CONFIGURATION = "topogate-webhook"
DEVICE_POLICY = "topogate-ungater-pods"
LEASE = UNGATER = "topogate-ungater"
NOMINATES = {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]}  # where nominateGatedPods is set
AGENT = "topogate-agent"
METRICS = "topogate-metrics-authentication"
SERVED_ALONE: Final[Json] = {"key": SERVED, "operator": "In", "values": ["true"]}
# Policies for pods, jobs and their owners, which are Kueue's elsewhere.
NARROWED: Final = (
    "topogate-pods",
    "topogate-hints",
    "topogate-unread",
    "topogate-default-queue",
    "topogate-default-hint",
)
PART_OF = {"app.kubernetes.io/part-of": "topogate"}
# What another domain, or another namespace, is put in for. As an API group it is Kueue's own, whatever the domain is.
LOCAL_WORDS = re.compile(rf"(?<!apiGroups: \[){re.escape(DEFAULT_DOMAIN)}|{re.escape(NAMESPACE)}")

_CRDS = "../../crds"
_AGENT_AFTER = "ungater.yaml"  # before the rules that refuse what the components do not know
_KUEUE_AFTER = "rbac-ungater.yaml"
_METRICS_AFTER = "rbac-users.yaml"
_DEFAULT_AFTER = "policy-hints.yaml"
_BESIDE_AFTER = "policy-webhook.yaml"
_IN_CLUSTER_ONLY = frozenset({"Deployment", "Service", "PodDisruptionBudget"})  # and the policies of their pods


class InstallOptions(msgspec.Struct, frozen=True):
    """What may differ between installations.

    ``image`` empty: the one of the base. ``webhook_url``: components run outside of the cluster, and the API server
    reaches the webhook there (``https://host:port``); there are then no Deployments and no Service. ``config``: the
    text of the settings file; empty: the one of the base. ``agent``: with the DaemonSet, in a namespace of its own.
    ``kueue``: with what it takes to answer Kueue's admission checks. ``metrics_authentication``: metrics are for those
    whom Kubernetes lets read them. ``default_queue``: with the policy that puts what names no queue into the LocalQueue
    default; only newer API servers take it. ``default_hint``: with a warning that older ones do not. ``beside``: in
    Kueue's domain beside Kueue, for namespaces that are labelled.
    """

    domain: str = DEFAULT_DOMAIN
    namespace: str = NAMESPACE
    image: str = ""
    webhook_url: str = ""
    config: str = ""
    agent: bool = False
    kueue: bool = False
    metrics_authentication: bool = False
    default_queue: bool = False
    default_hint: bool = False
    beside: bool = False


def objects(options: InstallOptions | None = None) -> list[Json]:
    """All objects in the order in which they are applied; taken backwards it is a safe order to delete them.

    They are read once for equal options and shared: do not change them.
    """
    return list(_objects(options or InstallOptions()))


@lru_cache(maxsize=8)
def _objects(wanted: InstallOptions) -> tuple[Json, ...]:
    # `_adapted` changes objects in place. That is safe as they are parsed from text for these options alone.
    return tuple(
        _adapted(obj, wanted) for text in _texts(wanted) for obj in _documents(text) if _is_rendered(obj, wanted)
    )


def _texts(options: InstallOptions) -> Iterator[str]:
    """Every manifest in the order of the kustomizations."""
    parts = ("base", "agent", "kueue", "metrics-authentication", "default-queue", "default-queue-hint", "beside-kueue")
    base, agent, kueue, metrics, default, hint, beside = (files("manifests") / part for part in parts)
    for entry in _resources(base):
        # kustomize has the kinds first. Here they follow the namespace, out of their own package.
        if entry == _CRDS:
            continue
        yield _localised((base / entry).read_text(encoding="utf-8"), options)
        if entry == "namespace.yaml":
            yield from crd_texts()
        if entry == _KUEUE_AFTER and options.kueue:
            yield from (_localised((kueue / own).read_text(encoding="utf-8"), options) for own in _resources(kueue))
        for wanted, part in ((options.default_queue, default), (options.default_hint, hint)):
            if entry == _DEFAULT_AFTER and wanted:
                yield from (_localised((part / own).read_text(encoding="utf-8"), options) for own in _resources(part))
        if entry == _BESIDE_AFTER and options.beside:
            yield from (_localised((beside / own).read_text(encoding="utf-8"), options) for own in _resources(beside))
        # Each optional part has a fixed place in the order: deleting goes backwards through the same list.
        if entry == _METRICS_AFTER and options.metrics_authentication:
            yield from (_localised((metrics / own).read_text(encoding="utf-8"), options) for own in _resources(metrics))
        if entry == _AGENT_AFTER and options.agent:
            yield from (_localised((agent / own).read_text(encoding="utf-8"), options) for own in _resources(agent))


def crd_texts() -> Iterator[str]:
    """The CustomResourceDefinitions alone."""
    root = files("crds")
    for entry in _resources(root):
        yield root.joinpath(*entry.split("/")).read_text(encoding="utf-8")


def agent_namespace(namespace: str) -> str:
    """Where the agent runs, by the namespace of Topogate itself."""
    return f"{namespace}-agent"


def _documents(text: str) -> Iterator[Json]:
    """The objects of a file; the loader in C takes a tenth of the time, and is not everywhere."""
    return filter(None, yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def _resources(folder: Traversable) -> list[str]:
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    return list(kustomization["resources"])


def _localised(text: str, options: InstallOptions) -> str:
    """The text with the domain and the namespace put in, both in one pass: neither may be replaced twice."""
    words: Mapping[str, str] = {DEFAULT_DOMAIN: options.domain, NAMESPACE: options.namespace}
    return LOCAL_WORDS.sub(lambda match: words[match[0]], text)


def _is_rendered(obj: Json, options: InstallOptions) -> bool:
    of_components = obj["kind"] in _IN_CLUSTER_ONLY or (
        obj["kind"] == "NetworkPolicy" and obj["metadata"]["namespace"] == options.namespace
    )
    return not (options.webhook_url and of_components)


def _narrow(obj: Json) -> None:
    """Have webhooks and policies for objects of tenants meet them in namespaces alone that are served."""
    for webhook in obj.get("webhooks", ()):
        wanted = webhook["namespaceSelector"]["matchExpressions"]
        # The one for settings looks at Topogate's own namespace.
        if all(one["operator"] == "NotIn" for one in wanted):
            wanted.append(SERVED_ALONE)
    if obj["kind"].endswith("AdmissionPolicyBinding") and obj["metadata"]["name"] in NARROWED:
        obj["spec"]["matchResources"] = {"namespaceSelector": {"matchExpressions": [SERVED_ALONE]}}


def _adapted(obj: Json, options: InstallOptions) -> Json:
    if options.beside:
        _narrow(obj)
    if obj["kind"] in {"Deployment", "DaemonSet"} and options.metrics_authentication:
        variable = {"name": "TOPOGATE_METRICS_AUTHENTICATION", "value": "kubernetes"}
        obj["spec"]["template"]["spec"]["containers"][0]["env"].insert(0, variable)
    match obj["kind"]:
        case "Deployment" | "DaemonSet" if options.image:
            # All containers of a component run the one image, also the agent's second.
            for container in obj["spec"]["template"]["spec"]["containers"]:
                container["image"] = options.image
        # A webhook has a service or a URL, never both. The caBundle is written by the webhook itself once it runs.
        case "MutatingWebhookConfiguration" if options.webhook_url:
            for webhook in obj["webhooks"]:
                path = webhook["clientConfig"]["service"]["path"]
                webhook["clientConfig"] = {"url": options.webhook_url.rstrip("/") + path}
        case "ConfigMap" if options.config:
            obj["data"][CONFIG_KEY] = options.config
        case "ValidatingAdmissionPolicy" if options.config and obj["metadata"]["name"] == DEVICE_POLICY:
            # The policy lets the ungater write these annotations and no other. Settings that the policy does not know
            # would make every ungating fail.
            devices = next(one for one in obj["spec"]["variables"] if one["name"] == "devices")
            devices["expression"] = str(sorted({one.key for one in _settings(options.config).device_annotations}))
        case "ClusterRole" if options.config and obj["metadata"]["name"] == UNGATER:
            # Least privilege: the right exists only where the setting uses it.
            obj["rules"] += [NOMINATES] if _settings(options.config).nominate_gated_pods else []
    return obj


def _settings(config: str) -> Settings:
    return parse(config, source=CONFIG_KEY)

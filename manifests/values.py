"""The values of the Helm chart: one model, from which values.yaml and values.schema.json are made.

Names are those that charts commonly use. What Topogate itself can be set to is not written twice: ``settings`` has the
schema of `crds.settings`, without what the chart decides.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from crds.constants import DEFAULT_DOMAIN
from crds.descriptions import described
from crds.settings import DECIDED, DnsName, Settings

Json = dict[str, Any]
Labels = dict[str, str]
Replicas = Annotated[int, Field(ge=0, le=100)]
Duration = Annotated[str, Field(pattern=r"^([0-9]+(h|m|s|ms))+$")]
NetworkPort = Annotated[int, Field(ge=1, le=65535)]


class _Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", alias_generator=to_camel, validate_by_name=True, use_attribute_docstrings=True
    )


class Image(_Section):
    """The image of all components."""

    repository: Annotated[str, Field(min_length=1)] = "topogate"
    """Without a tag."""
    tag: str = ""
    """Empty: the chart's appVersion."""
    digest: Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64})?$")] = ""
    """Wins over the tag: sha256:..."""
    pull_policy: Literal["", "Always", "IfNotPresent", "Never"] = ""
    """Empty: the API server's default."""
    pull_secrets: list[str] = []
    """Names of Secrets in the namespaces of the pods."""


class Resources(_Section):
    """Requests and limits of a container."""

    requests: dict[str, str | int | float] = {}
    """By resource."""
    limits: dict[str, str | int | float] = {}
    """By resource."""


class Pods(_Section):
    """What may differ about the pods of a component."""

    priority_class_name: str = "system-cluster-critical"
    """Empty: the cluster's default."""
    resources: Resources = Resources()
    """Requests and limits."""
    node_selector: Labels = {}
    """Labels of nodes that they may run on."""
    tolerations: list[Json] = []
    """Taints that they tolerate."""
    pod_labels: Labels = {}
    """More labels."""
    pod_annotations: Labels = {}
    """More annotations."""


class Replicated(Pods):
    """A component that runs in a Deployment."""

    replicas: Replicas = 2
    """Spread over nodes and zones; a PodDisruptionBudget lets one go at a time."""
    affinity: Json = {}
    """Beside the spreading."""


class Agent(Pods):
    """The DaemonSet that publishes what is inside of each node, in namespace <release namespace>-agent."""

    enabled: bool = False
    """Whether it runs."""
    priority_class_name: str = "system-node-critical"
    """Empty: the cluster's default."""
    runtime_class_name: str = ""
    """Where GPUs are behind a runtime class: nvidia."""
    kubelet_directory: Annotated[str, Field(pattern=r"^/")] = "/var/lib/kubelet"
    """The kubelet's root directory on the nodes."""


class Web(Pods):
    """The page of topogate web, for everybody who logs in with a token of his own: docs/web.md."""

    enabled: bool = False
    """Whether it runs."""
    hosts: list[DnsName] = []
    """Names that browsers know it by, such as that of your Ingress; its Service and localhost are known."""
    cluster_name: str = ""
    """What it calls the cluster, at the top of the page."""
    tls_secret: str = ""
    """A Secret with tls.crt and tls.key that it serves with; empty: a certificate that signs itself."""
    prometheus: Annotated[str, Field(pattern=r"^(https?://[^\s/?#]+[^\s?#]*)?$")] = ""
    """URL of a Prometheus that has the metrics, such as http://prometheus-operated.monitoring:9090, for History."""
    affinity: Json = {}
    """Where it runs."""


class CertManager(_Section):
    """How cert-manager makes the certificate."""

    issuer_ref: Labels = {}
    """Name, kind and group of your issuer; empty: an authority of Topogate's own, made by cert-manager too."""
    duration: Duration = "2160h"
    """Life of the serving certificate."""
    renew_before: Duration = "720h"
    """Renewed this long before its end."""


class Certificates(_Section):
    """The webhook's serving certificate."""

    source: Literal["self-signed", "cert-manager"] = "self-signed"
    """Who makes and rotates it: Topogate itself, or cert-manager, which has to run before."""
    cert_manager: CertManager = CertManager()
    """For source cert-manager."""


class ApiServer(_Section):
    """Where pods reach the API server."""

    ports: Annotated[list[NetworkPort], Field(min_length=1)] = [443, 6443, 8443, 16443]
    """The port that it listens on behind the Service `kubernetes` is one of them."""
    to: list[Json] = []
    """Peers as in a NetworkPolicy (ipBlock); empty: any address."""


class NetworkPolicies(_Section):
    """Policies for the pods of all components, for pod networks that enforce them."""

    enabled: bool = True
    """Whether there are any."""
    api_server: ApiServer = ApiServer()
    """The only destination."""
    webhook_from: list[Json] = []
    """Peers that may call the webhook, which is the API server; empty: any."""
    web_from: list[Json] = []
    """Peers that may open the page; empty: any."""
    metrics_from: list[Json] = [{"namespaceSelector": {"matchLabels": {"metrics": "enabled"}}}]
    """Peers that may read metrics: by default namespaces with the label metrics=enabled; empty: any."""


class Crds(_Section):
    """The kinds of topogate.dev."""

    install: bool = True
    """Whether this release installs and upgrades them."""
    keep: bool = True
    """Whether they, and all objects of these kinds, stay when the release goes."""


class ServiceMonitor(_Section):
    """For the Prometheus Operator, whose kinds have to be there."""

    enabled: bool = False
    """Whether there are any."""
    interval: Duration = "30s"
    """Between two scrapes."""
    labels: Labels = {}
    """What your Prometheus selects them by (release: kube-prometheus-stack)."""


class PrometheusRule(_Section):
    """Alerts, for the Prometheus Operator."""

    enabled: bool = False
    """Whether there is one."""
    labels: Labels = {}
    """What your Prometheus selects it by."""
    runbook_url: str = "docs/alerts.md"
    """Where docs/alerts.md is served for you; the alert's anchor is added."""


class Dashboards(_Section):
    """Grafana dashboards in a ConfigMap, for Grafana's sidecar."""

    enabled: bool = False
    """Whether there is one."""
    labels: Labels = {"grafana_dashboard": "1"}
    """What the sidecar selects it by."""
    annotations: Labels = {}
    """Such as the sidecar's folder."""


class Monitoring(_Section):
    """What watches Topogate."""

    service_monitor: ServiceMonitor = ServiceMonitor()
    """Where Prometheus reads metrics."""
    prometheus_rule: PrometheusRule = PrometheusRule()
    """Alert rules; docs/alerts.md says what to do about each."""
    dashboards: Dashboards = Dashboards()
    """Grafana."""


class Metrics(_Section):
    """Who reads metrics."""

    authentication: Literal["none", "kubernetes"] = "none"
    """Whoever reaches the port; or, over TLS, whose token may get /metrics (ClusterRole topogate-metrics-reader)."""


class Kueue(_Section):
    """The right to answer Kueue's admission check."""

    enabled: bool = False
    """Let the ungater read Kueue's objects and write the states of its check; the domain is then not Kueue's."""
    beside: bool = False
    """Share Kueue's domain, and serve namespaces with the label topogate.dev/served=true alone."""


class Values(_Section):
    """All values."""

    domain: DnsName = DEFAULT_DOMAIN
    """Prefix of request annotations, gate and queue label. Beside Kueue take topogate.dev. Fixed once installed."""
    image: Image = Image()
    """The image of all components."""
    settings: Json = {"logFormat": "json"}
    """Settings of webhook and ungater, by the names in docs/api.md."""
    webhook: Replicated = Replicated(
        resources=Resources(requests={"cpu": "100m", "memory": "128Mi"}, limits={"memory": "512Mi"})
    )
    """Holds back the pods of objects with a request. Stateless: as many replicas as you like."""
    ungater: Replicated = Replicated(
        resources=Resources(requests={"cpu": "200m", "memory": "256Mi"}, limits={"memory": "2Gi"})
    )
    """The controller. One replica leads, the others wait for its lease."""
    agent: Agent = Agent(
        resources=Resources(requests={"cpu": "10m", "memory": "64Mi"}, limits={"memory": "256Mi"}),
        node_selector={"kubernetes.io/os": "linux"},
        tolerations=[{"operator": "Exists"}],
    )
    """Publishes hardware and the kubelet's allocations, by which pods are placed inside of their nodes."""
    agent_settings: Json = {}
    """Settings of the agent, by the names in docs/api.md."""
    web: Web = Web(resources=Resources(requests={"cpu": "50m", "memory": "256Mi"}, limits={"memory": "2Gi"}))
    """The page, off by default."""
    kueue: Kueue = Kueue()
    """Beside Kueue: docs/kueue.md."""
    certificates: Certificates = Certificates()
    """The webhook's serving certificate."""
    network_policy: NetworkPolicies = NetworkPolicies()
    """Who may talk to whom."""
    metrics: Metrics = Metrics()
    """Who reads metrics: docs/metrics.md."""
    crds: Crds = Crds()
    """The kinds of topogate.dev."""
    monitoring: Monitoring = Monitoring()
    """Off by default: the kinds belong to the Prometheus Operator."""


def defaults() -> Json:
    """The values that hold where a user says nothing."""
    return Values().model_dump(by_alias=True)


def schema() -> Json:
    """JSON Schema: an unknown value or a wrong type stops helm with its path."""
    made = Values.model_json_schema(by_alias=True)
    settings = described(Settings).model_json_schema(by_alias=True)
    # The settings refer to `#/$defs` of their own root, so their definitions move along to the new root.
    definitions = made["$defs"] | settings.pop("$defs", {})
    settings["properties"] = {name: value for name, value in settings["properties"].items() if name not in DECIDED}
    settings["description"] = f"By the names in docs/api.md; the chart itself decides {', '.join(sorted(DECIDED))}."
    definitions["Settings"] = settings
    for name in ("settings", "agentSettings"):
        made["properties"][name] = {"$ref": "#/$defs/Settings", "description": made["properties"][name]["description"]}
    # Unknown values are refused, and Helm adds this one to every subchart by itself.
    made["properties"]["global"] = {"type": "object", "description": "Helm hands it to subcharts; it is not read."}
    made["$defs"] = definitions
    plain: Json = _without_titles(made)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | plain


def _without_titles(node: Any) -> Any:
    """Without titles and defaults: values.yaml has those."""
    match node:
        case dict():
            return {
                # A value may itself be named title or default: below these keys only the parts are searched.
                key: {name: _without_titles(part) for name, part in value.items()}
                if key in _BY_NAME
                else _without_titles(value)
                for key, value in node.items()
                if key not in {"title", "default"}
            }
        case list():
            return [_without_titles(part) for part in node]
    return node


_BY_NAME = frozenset({"properties", "$defs"})  # their keys are names of a user's, not words of JSON Schema


def comments(model: type[BaseModel] = Values, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], str]:
    """What each value means, by the path to it."""
    found: dict[tuple[str, ...], str] = {}
    for name, field in model.model_fields.items():
        here = (*path, to_camel(name))
        found[here] = field.description or ""
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found |= comments(field.annotation, here)
    return found

"""The Helm chart and the kustomize overlays, rendered by the real tools."""

import copy
import json
from typing import Any

import pytest
import yaml
from support import packages
from support.packages import (
    BY_API_SERVER,
    CHART,
    NAMESPACE,
    VALUE_SETS,
    call,
    essence,
    helm,
    kustomize,
    objects,
    run,
    template,
)

from crds.constants import DEFAULT_DOMAIN
from crds.settings import from_mapping
from manifests import values

MONITORING = {kind: {"enabled": True} for kind in ("serviceMonitor", "prometheusRule", "dashboards")}


def tried(given):
    return call("helm", "template", "topogate", CHART, "-n", NAMESPACE, "-f", "-", stdin=json.dumps(given))


@pytest.mark.parametrize("given", VALUE_SETS.values(), ids=VALUE_SETS)
def test_lint_has_nothing_to_say(given):
    printed = run(
        "helm", "lint", CHART, "--strict", "--quiet", "--namespace", NAMESPACE, "-f", "-", stdin=json.dumps(given)
    )
    assert "WARNING" not in printed
    assert "ERROR" not in printed


@pytest.mark.parametrize(
    ("given", "overlay", "options"),
    [
        ({}, "default", {}),
        ({"agent": {"enabled": True}}, "with-agent", {"agent": True}),
        ({"web": {"enabled": True}}, "with-web", None),
        (
            {"domain": "topogate.dev", "kueue": {"enabled": True}},
            "under-kueue",
            {"domain": "topogate.dev", "kueue": True},
        ),
        ({"certificates": {"source": "cert-manager"}}, "cert-manager", None),
        ({"agent": {"enabled": True}, "monitoring": MONITORING}, "monitoring", None),
        (
            {"agent": {"enabled": True}, "monitoring": MONITORING, "metrics": {"authentication": "kubernetes"}},
            "authenticated-monitoring",
            None,
        ),
    ],
)
def test_all_ways_to_install_make_the_same_objects(given, overlay, options):
    by_helm, by_kustomize = essence(helm(given)), essence(kustomize(overlay))
    assert by_helm == by_kustomize
    if options is not None:
        assert by_kustomize == essence(packages.install(**options))


def test_authenticated_metrics_are_the_same_by_the_chart_and_the_command():
    made = essence(helm({"agent": {"enabled": True}, "metrics": {"authentication": "kubernetes"}}))
    assert made == essence(packages.install(agent=True, metrics_authentication=True))
    plain = essence(helm({"agent": {"enabled": True}}))
    more = {("ClusterRole", "", f"topogate-metrics-{name}") for name in ("authentication", "reader")}
    assert made.keys() - plain.keys() == {*more, ("ClusterRoleBinding", "", "topogate-metrics-authentication")}


def test_the_queue_called_default_is_installed_by_what_the_api_server_serves():
    """Kubernetes 1.36 has MutatingAdmissionPolicy v1; an older API server says that the queue does nothing."""

    def named(found):
        return {
            (obj["kind"], obj["metadata"]["name"]): obj for obj in found if obj["metadata"]["name"] in BY_API_SERVER
        }

    serves = "--api-versions=admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"
    newer = objects(run("helm", "template", "topogate", CHART, "--namespace", NAMESPACE, serves))
    assert named(newer) == named(packages.install(default_queue=True))
    assert {kind for kind, _ in named(newer)} == {"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"}
    older = named(helm({})) | named(newer)
    assert older.keys() <= named(packages.install(default_queue=True, default_hint=True)).keys()
    for folder, option in (("default-queue", "default_queue"), ("default-queue-hint", "default_hint")):
        built = objects(run("kustomize", "build", f"manifests/{folder}"))
        assert named(built) == named(packages.install(**{option: True}))


def test_the_ungater_may_write_the_device_annotations_that_the_settings_name():
    rules = [{"resource": "a/b", "key": key} for key in ("x.y/z", "UPPER_CASE", "x.y/z")]
    for settings in ({}, {"deviceAnnotations": rules}):
        key = ("ValidatingAdmissionPolicy", "", "topogate-ungater-pods")
        given = {"logFormat": "json", **settings}
        made = packages.install(config=yaml.safe_dump(given)) if settings else packages.install()
        assert essence(helm({"settings": settings}))[key] == essence(made)[key]


def test_the_ungater_may_nominate_pods_where_the_settings_say_so():
    key = ("ClusterRole", "", "topogate-ungater")
    for settings in ({}, {"nominateGatedPods": True}):
        made = packages.install(config=yaml.safe_dump({"logFormat": "json", **settings}))
        assert essence(helm({"settings": settings}))[key] == essence(made)[key]
        verbs = [rule["verbs"] for rule in essence(made)[key]["rules"] if "pods/status" in rule["resources"]]
        assert verbs == ([["patch"]] if settings else [])


def test_metrics_are_open_to_namespaces_with_the_label_alone():
    """kubebuilder's label; on whatever port they are."""
    for obj in [*helm({"agent": {"enabled": True}}), *packages.install(agent=True)]:
        if obj["kind"] != "NetworkPolicy":
            continue
        for rule in obj["spec"]["ingress"]:
            ports = {port["port"] for port in rule["ports"]}
            assert (ports == {9443}) is ("from" not in rule), obj["metadata"]["name"]
            if "from" in rule:
                assert ports <= {8081, 8443}
                assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"metrics": "enabled"}}}]


def test_another_namespace_and_domain_leave_no_trace_of_the_defaults():
    given = {"domain": "topogate.dev", "agent": {"enabled": True}, "certificates": {"source": "cert-manager"}}
    made = helm(given, namespace="tg")
    text = yaml.safe_dump_all(obj for obj in made if obj["kind"] != "CustomResourceDefinition")
    # As an API group it is Kueue's own: its priority classes are read whatever the domain is.
    assert DEFAULT_DOMAIN not in text.replace(f"- apiGroups:\n  - {DEFAULT_DOMAIN}\n", "")
    assert NAMESPACE not in text
    assert essence(helm({"domain": "topogate.dev", "agent": {"enabled": True}}, namespace="tg")) == {
        key: obj
        for key, obj in essence(packages.install(domain="topogate.dev", namespace="tg", agent=True)).items()
        if key != ("Namespace", "", "tg")
    }


def leaves(node=None, path=()):
    """Every value that a user may set, as the path to it."""
    sections = {known[:-1] for known in values.comments()}
    for key, value in (values.defaults() if node is None else node).items():
        here = (*path, key)
        if here in sections:
            yield from leaves(value, here)
        else:
            yield here


# For values whose other than default needs to be something certain.
OTHER = {
    ("domain",): "topogate.dev",
    ("image", "digest"): "sha256:" + "1" * 64,
    ("image", "pullPolicy"): "Never",
    ("image", "pullSecrets"): ["other"],
    ("settings",): {"logLevel": "warning"},
    ("agentSettings",): {"logLevel": "warning"},
    ("certificates", "source"): "cert-manager",
    ("certificates", "certManager", "duration"): "4000h",
    ("certificates", "certManager", "renewBefore"): "1h",
    ("certificates", "certManager", "issuerRef"): {"name": "corp"},
    ("agent", "kubeletDirectory"): "/other",
    ("web", "hosts"): ["gpus.example.com"],
    ("web", "prometheus"): "http://prometheus.monitoring:9090",
    ("metrics", "authentication"): "kubernetes",
    ("networkPolicy", "apiServer", "ports"): [1234],
    ("monitoring", "serviceMonitor", "interval"): "7s",
}
# What has to hold for a value to matter.
EVERYTHING_ON = {
    "agent": {"enabled": True},
    "web": {"enabled": True},
    "monitoring": MONITORING,
}
ISSUED = {"certificates": {"source": "cert-manager"}}


def other(value: Any, path):
    if path in OTHER:
        return OTHER[path]
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case str():
            return f"{value}x"
        case list():
            return [{"key": "other"}]
        case _:
            return {"cpu": "7"} if path[-1] in {"requests", "limits"} else {"other": "x"}


def put(target, path, value):
    for part in path[:-1]:
        target = target.setdefault(part, {})
    target[path[-1]] = value


@pytest.mark.parametrize("path", list(leaves()), ids=".".join)
def test_every_value_changes_something(path):
    before = copy.deepcopy(EVERYTHING_ON | (ISSUED if path[:2] == ("certificates", "certManager") else {}))
    default = values.defaults()
    for part in path:
        default = default[part]
    if path[-1] == "enabled" and path[0] in {"agent", "monitoring", "web"}:
        default = True
    after = copy.deepcopy(before)
    put(after, path, other(default, path))
    assert template(before) != template(after)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"webhok": {}}, "additional properties 'webhok' not allowed"),
        ({"webhook": {"replica": 3}}, "at '/webhook': additional properties 'replica' not allowed"),
        ({"webhook": {"replicas": "3"}}, "at '/webhook/replicas': got string, want integer"),
        ({"settings": {"domian": "x"}}, "at '/settings': additional properties 'domian' not allowed"),
        ({"settings": {"domain": "x"}}, "at '/settings': additional properties 'domain' not allowed"),
        ({"settings": {"logLevel": "loud"}}, "at '/settings/logLevel': value must be one of"),
        ({"settings": {"ungateConcurrency": 0}}, "at '/settings/ungateConcurrency': minimum: got 0, want 1"),
        ({"domain": "Not a name"}, "at '/domain':"),
        ({"certificates": {"source": "vault"}}, "at '/certificates/source': value must be one of"),
        ({"certificates": {"certManager": {"duration": "90 days"}}}, "at '/certificates/certManager/duration':"),
        ({"image": {"digest": "latest"}}, "at '/image/digest':"),
        ({"networkPolicy": {"apiServer": {"ports": []}}}, "at '/networkPolicy/apiServer/ports': minItems"),
        ({"agent": {"enabled": "yes"}}, "at '/agent/enabled': got string, want boolean"),
        ({"monitoring": {"serviceMonitor": {"labels": {"a": 1}}}}, "at '/monitoring/serviceMonitor/labels/a':"),
    ],
)
def test_a_wrong_value_is_named(given, message):
    done = tried(given)
    assert done.returncode != 0
    assert message in done.stderr


def test_a_subchart_may_be_handed_globals():
    assert tried({"global": {"imageRegistry": "example.com"}}).returncode == 0


def test_settings_arrive_as_they_were_given():
    given = VALUE_SETS["everything"]["settings"]
    made = essence(helm({"settings": given}))
    config = made["ConfigMap", NAMESPACE, "topogate-config"]["data"]["config.yaml"]
    settings = from_mapping(config)
    assert settings.webhook_max_body_bytes == 12_345_678
    assert (settings.log_level, settings.xpu_resources) == ("debug", ("kunlunxin.com/xpu",))
    assert settings.log_format == "json"  # the chart's default stays


def test_pods_are_made_anew_when_their_settings_change():
    def marks(given):
        return {
            obj["metadata"]["name"]: obj["spec"]["template"]["metadata"]["annotations"]["topogate.dev/settings"]
            for obj in helm({"agent": {"enabled": True}, **given})
            if obj["kind"] in {"Deployment", "DaemonSet"}
        }

    before, after, agent = (
        marks({}),
        marks({"settings": {"logLevel": "debug"}}),
        marks({"agentSettings": {"logLevel": "debug"}}),
    )
    assert {name for name in before if before[name] != after[name]} == {"topogate-webhook", "topogate-ungater"}
    assert {name for name in before if before[name] != agent[name]} == {"topogate-agent"}


def test_with_cert_manager_the_webhook_may_write_nothing():
    made = essence(helm({"certificates": {"source": "cert-manager"}}))
    rules = [
        rule
        for (kind, _, name), obj in made.items()
        if kind in {"ClusterRole", "Role"} and name == "topogate-webhook"
        for rule in obj["rules"]
    ]
    assert [rule["verbs"] for rule in rules if "secrets" in rule["resources"]] == [["get"]]
    assert {verb for rule in rules for verb in rule["verbs"]} == {"get", "list", "watch"}
    assert ("Secret", NAMESPACE, "topogate-webhook-cert") not in made

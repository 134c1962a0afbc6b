"""What the ways to install render: the chart by the real helm, overlays by the real kustomize, `topogate install`."""

import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from localcluster.programs.binaries import TOOLS, Binaries
from manifests import render

Json = dict[str, Any]
Key = tuple[str, str, str]

ROOT = Path(__file__).parents[2]
CHART = "manifests/helm/topogate"
NAMESPACE = "topogate-system"
# Of these one is installed, by what the API server serves: the chart asks it, and kustomize cannot.
BY_API_SERVER = ("topogate-default-queue", "topogate-default-hint")
# One of each thing that values decide.
VALUE_SETS: dict[str, Json] = {
    "defaults": {},
    "with the agent": {"agent": {"enabled": True}, "agentSettings": {"logLevel": "debug", "agentPollSeconds": 5}},
    "with the page": {"web": {"enabled": True, "hosts": ["gpus.example.com"], "tlsSecret": "gpus-tls"}},
    "beside Kueue": {"domain": "topogate.dev"},
    "cert-manager": {"certificates": {"source": "cert-manager"}},
    "own issuer": {
        "certificates": {
            "source": "cert-manager",
            "certManager": {"issuerRef": {"name": "corp", "kind": "ClusterIssuer", "group": "cert-manager.io"}},
        }
    },
    "monitored": {
        "agent": {"enabled": True},
        "monitoring": {
            "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
            "dashboards": {"enabled": True},
        },
    },
    "authenticated": {
        "agent": {"enabled": True},
        "metrics": {"authentication": "kubernetes"},
        "monitoring": {"serviceMonitor": {"enabled": True}},
    },
    "small": {
        "webhook": {"replicas": 1, "priorityClassName": ""},
        "ungater": {"replicas": 1, "priorityClassName": ""},
        "networkPolicy": {"enabled": False},
        "crds": {"install": False},
    },
    "everything": {
        "image": {
            "repository": "registry.example.com/topogate",
            "digest": "sha256:" + "0" * 64,
            "pullPolicy": "Always",
            "pullSecrets": ["registry"],
        },
        "settings": {"logLevel": "debug", "webhookMaxBodyBytes": 12_345_678, "xpuResources": ["kunlunxin.com/xpu"]},
        "webhook": {
            "replicas": 3,
            "nodeSelector": {"node-role.kubernetes.io/control-plane": ""},
            "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}],
            "podLabels": {"team": "platform"},
            "podAnnotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"},
            "affinity": {
                "podAntiAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [
                        {
                            "topologyKey": "kubernetes.io/hostname",
                            "labelSelector": {"matchLabels": {"app.kubernetes.io/component": "webhook"}},
                        }
                    ]
                }
            },
        },
        "agent": {"enabled": True, "runtimeClassName": "nvidia", "kubeletDirectory": "/data/kubelet"},
        "networkPolicy": {
            "apiServer": {"ports": [6443], "to": [{"ipBlock": {"cidr": "10.0.0.1/32"}}]},
            "webhookFrom": [{"ipBlock": {"cidr": "10.0.0.1/32"}}],
            "metricsFrom": [
                {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}},
            ],
        },
        "crds": {"keep": False},
    },
}


@cache
def tools() -> Binaries:
    """Helm and kustomize. `make test` builds them before."""
    return Binaries.find(TOOLS, progress=print)


def run(name: str, *arguments: str, stdin: str | None = None, env: dict[str, str] | None = None) -> str:
    """What a tool prints; its error is the test's."""
    done = call(name, *arguments, stdin=stdin, env=env)
    assert done.returncode == 0, f"{name} {' '.join(arguments)}: {done.stderr}"
    return done.stdout


def call(
    name: str, *arguments: str, stdin: str | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    line = [tools().paths[name], *arguments]
    return subprocess.run(line, input=stdin, env=env, cwd=ROOT, capture_output=True, text=True, check=False)


@cache
def _template(values: str, namespace: str) -> str:
    return run("helm", "template", "topogate", CHART, "--namespace", namespace, "--values", "-", stdin=values)


def template(values: Json, *, namespace: str = NAMESPACE) -> str:
    return _template(json.dumps(values), namespace)


def helm(values: Json, *, namespace: str = NAMESPACE) -> list[Json]:
    return objects(template(values, namespace=namespace))


def kustomize(overlay: str) -> list[Json]:
    return objects(run("kustomize", "build", f"manifests/overlays/{overlay}"))


def install(**options: Any) -> list[Json]:
    return render.objects(render.InstallOptions(**options))


def objects(text: str) -> list[Json]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the one in C takes a tenth of the time
    return [obj for obj in yaml.load_all(text, Loader=loader) if obj]


def essence(found: list[Json]) -> dict[Key, Json]:
    """Objects by kind, namespace and name, without what only one way has on purpose.

    Helm makes its namespace by itself, marks CRDs that shall stay, makes new pods when settings change, and has hooks
    of its own; the settings file is compared by its content.
    """
    made = {}
    for obj in found:
        copy = json.loads(json.dumps(obj))
        metadata = copy["metadata"]
        if "helm.sh/hook" in metadata.get("annotations", {}):
            continue
        if copy["kind"] == "Namespace" and metadata["name"] == NAMESPACE:
            continue
        if metadata["name"] in BY_API_SERVER:
            continue
        if copy["kind"] == "CustomResourceDefinition":
            _without(metadata, "helm.sh/resource-policy")
        if "template" in copy.get("spec", {}):
            _without(copy["spec"]["template"]["metadata"], "topogate.dev/settings")
        if copy["kind"] == "ConfigMap" and "config.yaml" in copy["data"]:
            copy["data"]["config.yaml"] = yaml.safe_load(copy["data"]["config.yaml"])
        key = (copy["kind"], metadata.get("namespace", ""), metadata["name"])
        assert key not in made, key
        made[key] = copy
    return made


def _without(metadata: Json, annotation: str) -> None:
    annotations = metadata.get("annotations", {})
    annotations.pop(annotation, None)
    if not annotations:
        metadata.pop("annotations", None)

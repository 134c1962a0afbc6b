"""The chart and the overlays on a real API server: taken as they are, installed, upgraded, gone without a trace."""

import asyncio
import json
import os
import re
import subprocess

import pytest
import yaml
from support import packages
from support.kueue_kinds import bare_workloads
from support.packages import CHART, NAMESPACE, ROOT, VALUE_SETS

from crds.constants import Keys
from kube.client import Client
from localcluster import Fleet, LocalCluster, add_nodes, wait_ready
from manifests import render

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
AGENT_NAMESPACE = render.agent_namespace(NAMESPACE)
OURS = "app.kubernetes.io/part-of=topogate"
FIXED = ("--namespace", NAMESPACE, "--create-namespace", "--wait", "--timeout", "120s")


@pytest.fixture(scope="module")
def own():
    """A cluster of their own: these tests install and uninstall what all of a cluster shares."""

    async def nodes(cluster):
        async with await Client.connect(str(cluster.kubeconfig)) as client:
            fleet = Fleet(blocks=1, racks=1, hosts=2)
            await add_nodes(client, fleet)
            await wait_ready(client, fleet.node_names())

    with LocalCluster() as cluster:
        asyncio.run(nodes(cluster))
        yield cluster


@pytest.fixture(scope="module")
def kubectl(own):
    def run(*arguments, stdin=None, fails=False):
        line = [own.kubectl, "--kubeconfig", own.kubeconfig, *arguments]
        done = subprocess.run(line, input=stdin, capture_output=True, text=True, check=False, cwd=ROOT)
        assert (done.returncode != 0) is fails, done.stderr
        return done.stderr if fails else done.stdout

    return run


@pytest.fixture(scope="module")
def others(kubectl):
    """The kinds of cert-manager and of the Prometheus Operator."""
    names = [
        line
        for name in ("cert-manager", "prometheus-operator")
        for line in kubectl("apply", "-f", f"tests/data/others/{name}.yaml", "-o", "name").split()
    ]
    kubectl("wait", "--for=condition=Established", "--timeout=30s", *names)


@pytest.fixture(scope="module")
def helm(own, tmp_path_factory):
    home = tmp_path_factory.mktemp("helm")
    env = {**os.environ, "KUBECONFIG": str(own.kubeconfig), "HOME": str(home)}
    env |= {f"HELM_{name}_HOME": str(home / name) for name in ("CACHE", "CONFIG", "DATA")}

    def run(*arguments, values=None, fails=False):
        given = ("--values", "-") if values is not None else ()
        done = packages.call("helm", *arguments, *given, stdin=json.dumps(values), env=env)
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


@pytest.fixture
def clean(helm, kubectl):
    """Nothing of ours, before and after."""

    def away():
        helm("uninstall", "topogate", "--namespace", NAMESPACE, "--wait", "--ignore-not-found")
        kubectl("delete", "crd,clusterrole,clusterrolebinding", "-l", OURS)
        kubectl("delete", "namespace", NAMESPACE, AGENT_NAMESPACE, "--ignore-not-found", "--timeout=120s")

    away()
    yield
    away()


def get(kubectl, *what):
    return json.loads(kubectl("get", *what, "-o", "json"))


def namespaces(kubectl):
    for name in (NAMESPACE, AGENT_NAMESPACE):
        made = kubectl("create", "namespace", name, "--dry-run=client", "-o", "yaml")
        kubectl("apply", "-f", "-", stdin=made)


def accepted(kubectl, objects):
    """Every object passes the API server's strict validation and all of its admission; nothing is stored."""
    namespaces(kubectl)
    text = yaml.safe_dump_all(objects)
    printed = kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", stdin=text)
    assert len(printed.splitlines()) == len(objects)


@pytest.mark.parametrize("name", [name for name in VALUE_SETS if name != "defaults"])  # these are installed below
def test_the_api_server_takes_what_helm_renders(kubectl, others, name):
    """And what kustomize renders: `test_packages` shows that it is the same."""
    accepted(kubectl, packages.helm(VALUE_SETS[name]))


def test_what_is_wrong_is_not_taken(kubectl, others):
    """The check above can fail: a field that does not exist, and one with a wrong value."""
    namespaces(kubectl)
    objects = packages.helm(VALUE_SETS["cert-manager"])
    (certificate,) = [
        obj for obj in objects if obj["kind"] == "Certificate" and obj["metadata"]["name"] == "topogate-webhook"
    ]
    for change, message in (({"dnsName": "x"}, "dnsName"), ({"usages": ["serving"]}, "usages")):
        wrong = certificate | {"spec": certificate["spec"] | change}
        text = yaml.safe_dump(wrong)
        arguments = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
        assert message in kubectl(*arguments, stdin=text, fails=True)


def test_a_release_lives_and_dies(clean, helm, kubectl):
    """Install, settings, an upgrade that keeps certificates and puts kinds right, uninstall, and back again."""
    printed = helm("install", "topogate", CHART, *FIXED)
    assert "kubectl" in printed
    for name in ("topogate-webhook", "topogate-ungater"):
        deployment = get(kubectl, "deployment", name, "-n", NAMESPACE)
        assert deployment["status"]["availableReplicas"] == 2

    # What components write stays through an upgrade.
    bundle = [{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": "Cg=="}]
    kubectl("patch", "mutatingwebhookconfiguration", "topogate-webhook", "--type=json", "-p", json.dumps(bundle))
    secret = {"data": {"tls.crt": "Cg=="}}
    kubectl("patch", "secret", "topogate-webhook-cert", "-n", NAMESPACE, "-p", json.dumps(secret))
    # A kind of an older version, without a field.
    schema = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties"
    kubectl(
        "patch",
        "crd",
        "resourceflavors.topogate.dev",
        "--type=json",
        "-p",
        json.dumps([{"op": "remove", "path": f"{schema}/tolerations"}]),
    )
    kubectl("create", "-f", "-", stdin=json.dumps(FLAVOR))
    before = {pod["metadata"]["name"] for pod in get(kubectl, "pods", "-n", NAMESPACE)["items"]}

    values = {"ungater": {"replicas": 3}, "settings": {"logLevel": "debug"}, "agent": {"enabled": True}}
    values["crds"] = {"keep": True}
    helm("upgrade", "topogate", CHART, *FIXED, values=values)
    assert get(kubectl, "deployment", "topogate-ungater", "-n", NAMESPACE)["status"]["availableReplicas"] == 3
    assert get(kubectl, "daemonset", "topogate-agent", "-n", AGENT_NAMESPACE)["status"]["numberReady"] == 2
    webhooks = get(kubectl, "mutatingwebhookconfiguration", "topogate-webhook")["webhooks"]
    assert webhooks[0]["clientConfig"]["caBundle"] == "Cg=="
    assert get(kubectl, "secret", "topogate-webhook-cert", "-n", NAMESPACE)["data"] == secret["data"]
    config = get(kubectl, "configmap", "topogate-config", "-n", NAMESPACE)["data"]["config.yaml"]
    assert yaml.safe_load(config)["logLevel"] == "debug"
    pods = {
        pod["metadata"]["name"]
        for pod in get(kubectl, "pods", "-n", NAMESPACE, "--field-selector=status.phase=Running")["items"]
    }
    assert not before & pods, "other settings make new pods"

    # The domain is fixed: pods gated under the old one would wait for ever.
    refused = helm("upgrade", "topogate", CHART, *FIXED, values={"domain": "topogate.dev"}, fails=True)
    assert 'installed with domain "kueue.x-k8s.io"' in refused

    # Helm's own order has Services and Deployments first; what could refuse objects goes before them all the same.
    printed = helm("uninstall", "topogate", "--namespace", NAMESPACE, "--wait", "--debug")
    deleted = re.findall(r'Starting delete for "\S+" (\S+)', printed)
    assert deleted[0] == "ValidatingAdmissionPolicyBinding"
    assert set(deleted[:4]) == {"ValidatingAdmissionPolicyBinding", "MutatingWebhookConfiguration"}
    assert "Deployment" in deleted[4:]
    assert blocking(kubectl) == []
    kept = get(kubectl, "crd", "-l", OURS)["items"]
    assert {crd["metadata"]["name"].split(".")[0] for crd in kept} >= {"workloads", "resourceflavors"}
    assert get(kubectl, "resourceflavor", "tas")["spec"] == {"nodeLabels": {"a": "b"}}
    kubectl("create", "-n", "default", "-f", "-", stdin=json.dumps(POD))  # nothing asks for a gate any more
    kubectl("delete", "pod", "free", "-n", "default", "--wait=false")

    helm("install", "topogate", CHART, *FIXED)  # the kinds that stayed are taken over
    schema_again = get(kubectl, "crd", "resourceflavors.topogate.dev")["spec"]["versions"][0]["schema"][
        "openAPIV3Schema"
    ]
    assert "tolerations" in schema_again["properties"]["spec"]["properties"]


FLAVOR = {
    "apiVersion": "topogate.dev/v1alpha1",
    "kind": "ResourceFlavor",
    "metadata": {"name": "tas"},
    "spec": {"nodeLabels": {"a": "b"}},
}
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "free", "annotations": {Keys().required[0]: "kubernetes.io/hostname"}},
    "spec": {"containers": [{"name": "c", "image": "i"}]},
}


def blocking(kubectl):
    """What of ours could refuse an object."""
    hooks = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
    policies = ("validatingadmissionpolicies", "validatingadmissionpolicybindings")
    return [obj["metadata"]["name"] for obj in get(kubectl, ",".join(hooks + policies), "-l", OURS)["items"]]


def test_beside_kueue_its_domain_is_refused(helm, kubectl):
    kubectl("create", "-f", "-", stdin=json.dumps(bare_workloads("v1beta1")))
    asked = ("install", "topogate", CHART, "--namespace", NAMESPACE, "--create-namespace", "--dry-run=server")
    refused = helm(*asked, fails=True)
    assert "workloads.kueue.x-k8s.io exists" in refused
    assert "--set domain=topogate.dev" in refused
    assert "topogate.dev/require-topology" in helm(*asked, "--set", "domain=topogate.dev")
    kubectl("delete", "crd", "workloads.kueue.x-k8s.io")


def test_kustomize_applies_and_applies_again(clean, kubectl):
    apply = ("apply", "--server-side", "-k", "manifests/overlays/with-agent")
    first = kubectl(*apply)
    assert len(first.splitlines()) == len(packages.kustomize("with-agent"))
    kubectl(
        "rollout",
        "status",
        "deployment/topogate-webhook",
        "deployment/topogate-ungater",
        "-n",
        NAMESPACE,
        "--timeout=60s",
    )
    version = get(kubectl, "deployment", "topogate-ungater", "-n", NAMESPACE)["metadata"]["generation"]
    kubectl(*apply)
    assert get(kubectl, "deployment", "topogate-ungater", "-n", NAMESPACE)["metadata"]["generation"] == version
    kubectl("delete", "-k", "manifests/overlays/with-agent", "--ignore-not-found", "--timeout=120s")
    assert blocking(kubectl) == []

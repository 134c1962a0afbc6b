"""The real Kueue that is measured beside: what is installed of its release, and what its users write."""

import json
from pathlib import Path

from benchmarks.harness import kueue
from benchmarks.whole_path import Shape, _bodies

RELEASE = """\
kind: Deployment
metadata: {name: kueue-controller-manager}
---
kind: Service
metadata: {name: kueue-webhook-service}
spec: {ports: [{port: 443}], selector: {app: kueue}}
---
kind: MutatingWebhookConfiguration
metadata: {name: kueue-mutating-webhook-configuration}
webhooks:
- {name: mjob.kb.io, clientConfig: {service: {name: kueue-webhook-service, path: /mutate}}}
---
kind: CustomResourceDefinition
metadata: {name: workloads.kueue.x-k8s.io}
spec: {conversion: {webhook: {clientConfig: {service: {name: kueue-webhook-service, path: /convert}}}}}
---
kind: CustomResourceDefinition
metadata: {name: topologies.kueue.x-k8s.io}
spec: {scope: Cluster}
"""


def test_its_webhooks_are_called_on_this_machine_and_its_deployment_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "release.yaml").write_text(RELEASE)
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f'#!/bin/sh\n[ "$1" = kustomize ] && cat {tmp_path / "release.yaml"}\n')
    kubectl.chmod(0o755)
    found = list(kueue.Kueue(tmp_path / "kueue", tmp_path).objects(kubectl, 12345))
    assert [each["kind"] for each in found] == [
        "Service",
        "MutatingWebhookConfiguration",
        "CustomResourceDefinition",
        "CustomResourceDefinition",
    ]
    service, webhooks, converted, plain = found
    assert service["spec"] == {"type": "ExternalName", "externalName": "localhost"}
    assert webhooks["webhooks"][0]["clientConfig"]["service"]["port"] == 12345
    assert converted["spec"]["conversion"]["webhook"]["clientConfig"]["service"]["port"] == 12345
    assert plain["spec"] == {"scope": "Cluster"}


def test_its_jobs_ask_as_its_users_do() -> None:
    shape = Shape(2, 5, "required")
    jobs = [json.loads(body) for body in _bodies(shape, "kueue", 0)]
    assert [job["metadata"]["labels"] for job in jobs] == [{"kueue.x-k8s.io/queue-name": "queue-0"}] * 2
    template = jobs[0]["spec"]["template"]
    assert template["metadata"]["annotations"] == {
        "kueue.x-k8s.io/podset-required-topology": "cloud-provider.com/topology-rack"
    }
    ours = json.loads(next(iter(_bodies(shape, "queue", 1))))
    assert template["spec"] == ours["spec"]["template"]["spec"]
    assert ours["metadata"]["annotations"] == {"kueue.x-k8s.io/require-topology": "cloud-provider.com/topology-rack"}

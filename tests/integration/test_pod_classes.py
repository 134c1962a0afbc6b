"""The class that a pod gets from the API server, against what is computed from its template."""

import random

import msgspec
import pytest

from engine.kubelet.machine import Qos
from kube.errors import Invalid
from kube.objects import PodSpec
from kube.pods.requests import pod_requests
from kube.pods.shapes import pod_shape
from kube.resources import PODS

pytestmark = pytest.mark.cluster
CASES = 200


def amounts(rng, names=("cpu", "memory")):
    return {name: rng.choice(("1", "2", "4")) for name in names if rng.random() < 0.6}


def parts(rng):
    return {kind: found for kind in ("requests", "limits") if rng.random() < 0.7 and (found := amounts(rng))}


def template(seed):
    rng = random.Random(seed)
    containers = [
        {"name": f"c{number}", "image": "none", "resources": parts(rng)} for number in range(rng.randint(1, 2))
    ]
    made = {"containers": containers}
    if rng.random() < 0.3:
        init = {"name": "init", "image": "none", "resources": parts(rng)}
        made["initContainers"] = [init | ({"restartPolicy": "Always"} if rng.random() < 0.5 else {})]
    if rng.random() < 0.7:
        made["resources"] = parts(rng)
    return made


async def test_a_template_is_of_the_class_and_has_the_requests_that_its_pods_get(client, namespace):
    seen = set()
    for seed in range(CASES):
        spec = template(seed)
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"case-{seed}"}, "spec": spec}
        try:
            made = await client.create(PODS, body, namespace, dry_run=True)
        except Invalid:
            continue
        ours = msgspec.convert(spec, PodSpec)
        stored = msgspec.convert(made["spec"], PodSpec)
        assert pod_shape(ours).qos == made["status"]["qosClass"], (seed, spec, made["spec"])
        assert pod_requests(ours) == pod_requests(stored), (seed, spec, made["spec"])
        seen.add((made["status"]["qosClass"], "resources" in spec))
    assert seen == {(str(found), whole) for found in Qos for whole in (False, True)}

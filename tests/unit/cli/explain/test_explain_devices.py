"""Which devices a pod has by its claims, in words."""

import msgspec
import pytest
from support.claims_world import read
from support.equipped import Equipped, claim

from cli.cluster.claimed_devices import HeldDevices
from kube.objects import Pod


def a_pod(node="r1-h1", claims=(), made=(), extended=""):
    status = {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": one} for one in made]}
    status |= {"extendedResourceClaimStatus": {"resourceClaimName": extended}} if extended else {}
    spec = {"containers": [{"name": "c"}], "nodeName": node, "resourceClaims": list(claims)}
    return read(Pod, {"metadata": {"name": "p", "namespace": "ns", "uid": "u-p"}, "spec": spec, "status": status})


OF_TEMPLATE = {"name": "gpu", "resourceClaimTemplateName": "one-gpu"}


@pytest.mark.parametrize(
    ("pod", "devices"),
    [
        (a_pod(claims=[OF_TEMPLATE], made=["a-gpu"]), ("gpu.example.com/gpu-0", "gpu.example.com/gpu-1")),
        (a_pod(claims=[{"name": "gpu", "resourceClaimName": "b-gpu"}]), ("gpu.example.com/r1-h2/gpu-0",)),
        (a_pod(extended="a-gpu"), ("gpu.example.com/gpu-0", "gpu.example.com/gpu-1")),
        (a_pod(claims=[OF_TEMPLATE], made=["c-gpu"]), ()),
        (a_pod(claims=[OF_TEMPLATE], made=["none"]), ()),
        (a_pod(node="", claims=[OF_TEMPLATE], made=["a-gpu"]), ()),
        (a_pod(), ()),
    ],
)
def test_the_devices_of_a_pod(pod, devices):
    world = Equipped()
    world.put("resource_claim", claim("a", "r1-h1", 0, 1))
    world.put("resource_claim", claim("b", "r1-h2", 0))
    world.put("resource_claim", claim("c", ""))
    assert HeldDevices(world.memory.state).devices_of_pod(pod) == devices
    other = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, namespace="other"))
    assert HeldDevices(world.memory.state).devices_of_pod(other) == ()

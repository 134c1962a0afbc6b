"""`topogate doctor` names nodes whose device plugin and whose DRA driver give the same devices."""

import json

from support.snapshots import FLAVOR, node

from cli.cluster import cluster_snapshot, dump
from cli.doctor.devices import given_twice
from crds.settings import Settings

GPU = "nvidia.com/gpu"


def device_class(name="gpu.nvidia.com", resource=GPU, type_="gpu"):
    selector = {"cel": {"expression": f"device.attributes['gpu.nvidia.com'].type == '{type_}'"}}
    spec = {"selectors": [selector], **({"extendedResourceName": resource} if resource else {})}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def published(name, type_="gpu"):
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    device = {"name": "gpu-0", "attributes": {"type": {"string": type_}}}
    spec = {"driver": "gpu.nvidia.com", "nodeName": name, "pool": pool, "devices": [device]}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


def found(tmp_path, *items):
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [FLAVOR, *items]}))
    return list(given_twice(cluster_snapshot.cache_of(dump.read([str(path)]), Settings()).state))


def with_plugin(name, gpus):
    made = node(name, "r1")
    made["status"]["allocatable"][GPU] = str(gpus)
    return made


def test_a_node_with_a_device_plugin_and_slices_of_the_class_for_its_resource_is_named(tmp_path):
    """kube-scheduler 1.37: allocatable wins for the resource, and claims take the same card once more."""
    nodes = [with_plugin("a", 8), with_plugin("b", 8), with_plugin("c", 0)]
    (one,) = found(tmp_path, *nodes, device_class(), published("a"), published("c"))
    assert (one.weight, one.about) == ("warning", "devices")
    assert "node a has nvidia.com/gpu of a device plugin, and devices of DeviceClass gpu.nvidia.com" in one.message
    assert "spec.nodeName=a" in one.mend


def test_devices_of_other_classes_and_classes_that_stand_for_nothing_are_no_finding(tmp_path):
    plugged = with_plugin("a", 8)
    assert found(tmp_path, plugged, device_class(resource=""), published("a")) == []
    assert found(tmp_path, plugged, device_class(resource="example.com/other"), published("a")) == []
    assert found(tmp_path, plugged, device_class(), published("a", type_="mig")) == []
    assert found(tmp_path, plugged, device_class()) == []

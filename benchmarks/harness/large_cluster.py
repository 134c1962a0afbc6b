"""A generated cluster of any size for `benchmarks.harness.feed`: nodes in racks, Jobs that were placed, pods."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from benchmarks.harness.feed import Feed
from benchmarks.ungating import make_job
from crds.constants import API_VERSION, Keys
from kube import resources
from kube.workloads import WorkloadObject
from localcluster.nodes import BLOCK_LABEL, GROUP_LABEL, HOSTNAME_LABEL, RACK_LABEL, make_node
from ungater.model.workload_status import observed_of

PODS_A_NODE: Final = 2
JOB_PODS: Final = 200
LEVELS: Final = (BLOCK_LABEL, RACK_LABEL, HOSTNAME_LABEL)
IMAGES: Final = [{"names": [f"registry.example/image-{i}@sha256:{'0' * 64}"], "sizeBytes": 10**9} for i in range(20)]
KEYS: Final = Keys()
Json = dict[str, Any]
encode = msgspec.json.encode


def jobs_on(nodes: int) -> int:
    """How many placed Jobs there are: half of the pods are theirs."""
    return nodes * PODS_A_NODE // 2 // JOB_PODS


def node_name(number: int) -> str:
    """Racks of 16 nodes, blocks of 32 racks."""
    return f"n{number:06}"


def nodes_from(start: int, stop: int) -> Iterator[bytes]:
    """The Node objects, of 3.7 KB each."""
    amounts = {"cpu": "96", "memory": "768Gi", "nvidia.com/gpu": "8", "pods": "110"}
    labels = {BLOCK_LABEL: "@block@", RACK_LABEL: "@rack@", HOSTNAME_LABEL: "@name@", GROUP_LABEL: "tas"}
    node = make_node("@name@", labels=labels, resources=amounts)
    node["metadata"] |= {"uid": "node-@name@", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    node["status"]["images"] = IMAGES
    text = encode(node)
    for number in range(start, stop):
        made = text.replace(b"@name@", node_name(number).encode()).replace(b"@rack@", b"r%d" % (number // 16))
        yield made.replace(b"@block@", b"b%d" % (number // 512))


def pod_object(name: str, node: str, *, gpus: int = 0) -> Json:
    """A pod that runs on a node, of 1.6 KB; 2 KB where it is a Job's."""
    requests = {"requests": {"cpu": "100m", "memory": "1Gi"}}
    limits = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    environment = [{"name": f"SETTING_{number}", "value": "some value of usual length"} for number in range(20)]
    container = {"name": "main", "image": "registry.example/train:1", "env": environment}
    meta = {"name": name, "namespace": "default", "uid": f"pod-{name}", "resourceVersion": "1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**meta, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeName": node, "containers": [{**container, "resources": {**requests, **limits}}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "hostIP": "10.0.0.1"},
    }


class Pods:
    """All pods: first those of the placed Jobs, then as many that are none of ours."""

    def __init__(self, nodes: int, workloads: Iterable[Json]) -> None:
        self.nodes = nodes
        self._ours: list[tuple[str, str, str, Sequence[str]]] = []  # Job, its uid, Workload, values by level
        for obj in workloads:
            found = msgspec.json.decode(encode(obj), type=WorkloadObject, strict=False)
            (owner,) = found.metadata.owner_references or ()
            slots = observed_of(found).slots
            assert slots is not None  # noqa: S101 - it was placed
            for slot in slots.slots:
                self._ours += [(owner.name, owner.uid, found.metadata.name, slot.values)] * slot.count
        self._texts = {own: encode(self._template(own=own)) for own in (True, False)}
        self.count = PODS_A_NODE * nodes

    def _template(self, *, own: bool) -> Json:
        pod = pod_object("@name@", "@node@", gpus=1 if own else 0)
        if own:
            owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "@job@", "uid": "@uid@", "controller": True}
            pod["metadata"] |= {
                "annotations": {KEYS.workload: "@workload@"},
                "labels": {"batch.kubernetes.io/job-name": "@job@"},
                "ownerReferences": [owner],
            }
            pod["spec"]["nodeSelector"] = {level: f"@{index}@" for index, level in enumerate(LEVELS)}
        return pod

    def range(self, start: int, stop: int) -> Iterator[bytes]:
        """Pods from one number to another."""
        for number in range(start, stop):
            yield self.pod(number)

    def pod(self, number: int) -> bytes:
        """One pod."""
        name = b"p%07d" % number
        if number >= len(self._ours):
            node = node_name(number % self.nodes).encode()
            return self._texts[False].replace(b"@name@", name).replace(b"@node@", node)
        job, uid, workload, values = self._ours[number]
        text = self._texts[True].replace(b"@name@", name).replace(b"@job@", job.encode())
        text = text.replace(b"@uid@", uid.encode()).replace(b"@workload@", workload.encode())
        for index, value in enumerate(values):
            text = text.replace(b"@%d@" % index, value.encode())
        return text.replace(b"@node@", values[-1].encode())


def stamped(job: Json, request: Json) -> Json:
    """A Job as the webhook leaves it."""
    template = job["spec"]["template"]
    template["metadata"] = {"annotations": {**request, KEYS.pod_set: "main"}}
    template["spec"]["schedulingGates"] = [{"name": KEYS.gate}]
    job["metadata"] |= {"annotations": request}
    return job


def feed_of(nodes: int, workloads: list[Json], pods: Pods | None) -> Feed:
    """The cluster; without pods where nothing is placed yet."""
    served = [
        *(resources.NODES, resources.PODS, resources.JOBS, resources.WORKLOADS, resources.RESOURCE_FLAVORS),
        *(resources.PRIORITY_CLASSES, resources.NAMESPACES, resources.CLUSTER_QUEUES, resources.LOCAL_QUEUES),
        *(resources.COHORTS, resources.LIMIT_RANGES, resources.RUNTIME_CLASSES),
        *(resources.PERSISTENT_VOLUME_CLAIMS, resources.PERSISTENT_VOLUMES, resources.STORAGE_CLASSES),
        *(resources.CSI_NODES, resources.WORKLOAD_PRIORITY_CLASSES),
    ]
    generated: dict[str, Any] = {"nodes": (nodes, nodes_from)}
    if pods is not None:
        generated["pods"] = (pods.count, pods.range)
    feed = Feed(served, generated)
    spec = {"nodeLabels": {GROUP_LABEL: "tas"}, "topology": {"levels": list(LEVELS)}}
    feed.put(
        "resourceflavors",
        {"apiVersion": API_VERSION, "kind": "ResourceFlavor", "metadata": {"name": "tas"}, "spec": spec},
    )
    feed.put("namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}})
    for number in range(jobs_on(nodes)):
        job = stamped(make_job(f"job-{number}", JOB_PODS), {KEYS.preferred[0]: RACK_LABEL})
        job["metadata"]["uid"] = f"job-{number}-uid"
        feed.put("jobs", job)
    for workload in workloads:
        feed.put("workloads", workload)
    return feed

"""Queues and Workloads as the API server lists them, with defaults, and what a command makes of them."""

import json

import msgspec

from cli.cluster import live_queues
from kube.objects import Namespace, ResourceFlavor
from kube.queues import ClusterQueue, Cohort, LocalQueue
from kube.workloads import WholeWorkload
from queueing.model import Rules

NOW = 1_700_000_000.0
EARLY = "2023-11-14T22:03:20Z"  # 600 s before
GPU = "nvidia.com/gpu"
PATIENT = Rules(patience=1e9)


def wire(kind, name, spec=None, status=None, namespace="", **metadata):
    body = {"metadata": {"name": name, "namespace": namespace, "uid": name, **metadata}}
    return msgspec.convert({**body, "spec": spec or {}, "status": status or {}}, kind)


def quota(flavor="tas", amount=16, **limits):
    return {"name": flavor, "resources": [{"name": GPU, "nominalQuota": str(amount), **limits}]}


def cluster(name, *flavors, **spec):
    groups = [{"coveredResources": [GPU], "flavors": list(flavors) or [quota()]}]
    return wire(ClusterQueue, name, {"resourceGroups": groups, "namespaceSelector": {}, **spec})


def cohort(name, parent="", *flavors, **spec):
    groups = {"resourceGroups": [{"coveredResources": [GPU], "flavors": list(flavors)}]} if flavors else {}
    return wire(Cohort, name, {**({"parentName": parent} if parent else {}), **groups, **spec})


def local(name, cluster_queue, namespace="team", **spec):
    return wire(LocalQueue, name, {"clusterQueue": cluster_queue, **spec}, namespace=namespace)


def workload(name, queue="a", pods=2, *, namespace="team", priority=0, held=None, made=EARLY, status=None, **spec):
    container = {"name": "c", "resources": {"requests": {GPU: "4"}}}
    template = msgspec.Raw(json.dumps({"spec": {"containers": [container]}}).encode())
    pod_set = {"name": "main", "count": pods, "template": template}
    status = dict(status or {})
    if held is not None:
        assignment = {"name": "main", "count": pods, "flavors": {GPU: "tas"}, "resourceUsage": {GPU: str(4 * pods)}}
        status["admission"] = {"clusterQueue": held, "podSetAssignments": [assignment]}
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": name.removeprefix("job-"),
        "uid": f"{name}-owner",
        "controller": True,
    }
    metadata = {"creationTimestamp": made, "ownerReferences": [owner]}
    spec = {"queueName": queue, "priority": priority, "podSets": [pod_set], **spec}
    return wire(WholeWorkload, name, spec, status, namespace, **metadata)


def began(admitted=EARLY, ready=None):
    """The status of one that is admitted since then, and whose pods are ready since then."""
    said = {"QuotaReserved": admitted, "Admitted": admitted} | ({"PodsReady": ready} if ready else {})
    each = {"status": "True", "reason": "Said", "message": ""}
    return {"conditions": [{"type": name, "lastTransitionTime": at, **each} for name, at in said.items()]}


def waits(reason, message):
    return {"conditions": [{"type": "QuotaReserved", "status": "False", "reason": reason, "message": message}]}


def read(cluster_queues, local_queues, workloads, rules=PATIENT, cohorts=()):
    flavor = wire(ResourceFlavor, "tas", {"topology": {"levels": ["rack"]}, "nodeLabels": {"a": "b"}})
    namespaces = [wire(Namespace, name) for name in ("team", "other")]
    found = [flavor], namespaces, cluster_queues, local_queues, workloads, cohorts
    return live_queues.build(*found, now=NOW, rules=rules)

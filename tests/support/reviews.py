"""Jobs, Pods and AdmissionReviews with defaults, and what an API server makes of an answer."""

import base64
import copy
import json

RACK = "cloud.example/rack"
BLOCK = "cloud.example/block"
HOST = "kubernetes.io/hostname"
FLAVORS = {"tas": (BLOCK, RACK, HOST)}
DOMAIN = "kueue.x-k8s.io"
REQUIRE = f"{DOMAIN}/require-topology"
PREFER = f"{DOMAIN}/prefer-topology"
KUEUE_REQUIRED = f"{DOMAIN}/podset-required-topology"
KUEUE_PREFERRED = f"{DOMAIN}/podset-preferred-topology"
UNCONSTRAINED = f"{DOMAIN}/podset-unconstrained-topology"
GATE = f"{DOMAIN}/topology"
POD_SET = f"{DOMAIN}/topology-podset"
WORKLOAD = f"{DOMAIN}/topology-workload"
QUEUE = f"{DOMAIN}/queue-name"


def make_pod(annotations=None, *, name="p", gates=(), **spec):
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": pod_spec(gates=gates, **spec)}
    if annotations is not None:
        pod["metadata"]["annotations"] = annotations
    return pod


def make_job(
    annotations=None,
    *,
    template=None,
    labels=None,
    name="j",
    namespace=None,
    gates=(),
    parallelism=2,
    spec=None,
    **more,
):
    metadata = {"name": name} if namespace is None else {"name": name, "namespace": namespace}
    if annotations is not None:
        metadata["annotations"] = annotations
    if labels is not None:
        metadata["labels"] = labels
    pod = {
        "metadata": {"creationTimestamp": None},
        "spec": pod_spec(gates=gates, restartPolicy="Never", **(spec or {})),
    }
    if template is not None:
        pod["metadata"]["annotations"] = template
    job_spec = {"parallelism": parallelism, "completions": parallelism, "template": pod, **more}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": job_spec}


def make_jobset(annotations=None, *, jobs=("leader", "workers"), labels=None, suspend=None, template=None):
    metadata = {"name": "js", "namespace": "ns"}
    if annotations is not None:
        metadata["annotations"] = annotations
    if labels is not None:
        metadata["labels"] = labels
    spec = {} if suspend is None else {"suspend": suspend}
    template = template or make_job()["spec"]
    replicated = [{"name": name, "replicas": 2, "template": {"spec": copy.deepcopy(template)}} for name in jobs]
    body = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata}
    return {**body, "spec": {**spec, "replicatedJobs": replicated}}


def pod_spec(gates=(), **spec):
    gated = {"schedulingGates": [{"name": gate} for gate in gates]} if gates else {}
    return {"containers": [{"name": "c", "image": "i"}], **gated, **spec}


def make_review(obj, *, operation="CREATE", old=None, uid="0a1b", **request):
    kind = obj.get("kind", "Job") if isinstance(obj, dict) else "Job"
    body = {"uid": uid, "kind": {"kind": kind}, "operation": operation, "object": obj, "oldObject": old, **request}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": body}


def answer_of(reply):
    assert reply.status == 200, reply
    return json.loads(reply.body)["response"]


def patch_of(response):
    return json.loads(base64.b64decode(response["patch"])) if "patch" in response else []


def patched(obj, patch):
    """The object after the operations, by RFC 6902, which the webhook uses only ``add`` of."""
    result = copy.deepcopy(obj)
    for operation in patch:
        assert operation["op"] == "add"
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        target = result
        for parent in parents:
            target = target[int(parent)] if isinstance(target, list) else target[parent]
        if isinstance(target, list):
            target.insert(len(target) if last == "-" else int(last), operation["value"])
        else:
            target[last] = operation["value"]
    return result

"""Objects of a small cluster as `topogate snapshot` writes them: nodes in racks, and jobs with pods on them."""

from crds.names import workload_name

RACK, HOST, GPU = "example.com/rack", "kubernetes.io/hostname", "nvidia.com/gpu"
DOMAIN = "kueue.x-k8s.io"
FLAVOR = {
    "apiVersion": "topogate.dev/v1alpha1",
    "kind": "ResourceFlavor",
    "metadata": {"name": "tas"},
    "spec": {"topology": {"levels": [RACK, HOST]}},
}


def node(name, rack, **spec):
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {RACK: rack, HOST: name}},
        "spec": spec,
        "status": {
            "allocatable": {"cpu": "96", "memory": "512Gi", GPU: "8", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def container(gpus):
    return {"name": "main", "resources": {"limits": {"cpu": "1", GPU: str(gpus)}}}


def running(name, where, gpus, *, priority=0, require=RACK, labels=None):
    """A job of ours with one pod on each of these nodes: Job, Workload, pods."""
    uid, work = f"uid-{name}", workload_name("Job", name, f"uid-{name}")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid, "controller": True}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": uid,
            "annotations": {f"{DOMAIN}/require-topology": require},
        },
        "spec": {
            "parallelism": len(where),
            "completions": len(where),
            "completionMode": "Indexed",
            "template": {"spec": {"containers": [container(gpus)]}},
        },
    }
    slices = [{"nodeLabels": {RACK: node[:2], HOST: node}, "count": where.count(node)} for node in dict.fromkeys(where)]
    workload = {
        "apiVersion": "topogate.dev/v1alpha1",
        "kind": "Workload",
        "metadata": {"name": work, "namespace": "team", "ownerReferences": [owner]},
        "spec": {"podSets": [{"name": "main", "count": len(where)}]},
        "status": {
            "admission": {
                "podSetAssignments": [
                    {
                        "name": "main",
                        "flavors": {GPU: "tas"},
                        "count": len(where),
                        "topologyAssignment": {"levels": [RACK, HOST], "slices": slices},
                    }
                ]
            }
        },
    }
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{name}-{at}",
                "namespace": "team",
                "uid": f"{uid}-{at}",
                "labels": labels or {},
                "annotations": {f"{DOMAIN}/topology-workload": work},
                "ownerReferences": [owner],
            },
            "spec": {
                "nodeName": host,
                "nodeSelector": {RACK: host[:2], HOST: host},
                "priority": priority,
                "containers": [container(gpus)],
            },
            "status": {"phase": "Running"},
        }
        for at, host in enumerate(where)
    ]
    return [job, workload, *pods]


def foreign(name, where, gpus, kind=""):
    owners = [{"apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "o", "controller": True}] if kind else []
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "kube-system", "uid": f"uid-{name}", "ownerReferences": owners},
        "spec": {"nodeName": where, "containers": [container(gpus)]},
        "status": {"phase": "Running"},
    }


def let_go(name, where, gpus, **more):
    """As the controller lets pods go: with a node selector for each level."""
    job, workload, *pods = running(name, where, gpus, **more)
    for pod in pods:
        pod["spec"]["nodeSelector"] = {RACK: pod["spec"]["nodeName"][:2], HOST: pod["spec"]["nodeName"]}
    return [job, workload, *pods]


def steady(name, where, gpus, **more):
    """The same as the controller left it: its pods sent to their nodes, and ready."""
    job, workload, *pods = running(name, where, gpus, **more)
    job["status"] = {"ready": len(pods), "active": len(pods)}
    for pod in pods:
        host = pod["spec"]["nodeName"]
        pod["spec"]["nodeSelector"] = {RACK: host[:2], HOST: host}
        pod["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    workload["status"]["conditions"] = [{"type": "Admitted", "status": "True", "reason": "Admitted", "message": "m"}]
    return [job, workload, *pods]

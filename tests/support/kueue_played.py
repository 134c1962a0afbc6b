"""A Kueue 0.19.2 that the test plays on a real control plane: its Configuration, queues, and a Job as it starts one."""

import asyncio
import time
from contextlib import suppress

from support import kueue_kinds
from support.jobs import GPU, KEYS, job, until

from cli.migrate.source_objects import DEPLOYMENT, NAMESPACE
from crds.constants import HOSTNAME_LABEL, KUEUE_POD_SET, SERVED
from crds.kueue.assignment import encode
from crds.settings import CONFIG_KEY, CONFIG_MAP
from kube.errors import AlreadyExists, NotFound
from kube.resources import CONFIG_MAPS, DEPLOYMENTS, JOBS, MUTATING_WEBHOOKS, NAMESPACES, PODS
from localcluster.nodes import BLOCK_LABEL, GROUP_LABEL, RACK_LABEL
from manifests.render import WEBHOOK_CONFIGURATION
from ungater.model.conditions import timestamp
from ungater.model.kueue_objects import WORKLOADS as KUEUE_WORKLOADS

CONFIGURATION = f"""apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
managedJobsNamespaceSelector:
  matchExpressions:
  - {{key: kubernetes.io/metadata.name, operator: NotIn, values: [kube-system, kueue-system]}}
  - {{key: {SERVED}, operator: DoesNotExist}}
"""


async def play_kueue(client, configuration=CONFIGURATION, namespace=NAMESPACE):
    """Kueue's Deployment with its ConfigMap, restarted since that was written. Its pod is on a node of the test."""
    labels = {"control-plane": "controller-manager"}
    container = {"name": "manager", "image": "kueue"}
    volumes = [{"name": "config", "configMap": {"name": "kueue-manager-config"}}]
    spec = {"containers": [container], "volumes": volumes, "tolerations": [{"operator": "Exists"}]}
    template = {"metadata": {"labels": labels, "annotations": {"restarted": str(time.time())}}, "spec": spec}
    data = {"controller_manager_config.yaml": configuration}
    with suppress(NotFound):
        # One on a node that is gone would be deleted minutes later.
        for pod in await client.list(PODS, namespace):
            await client.delete(PODS, pod["metadata"]["name"], namespace, grace_period=0)
    for resource, name, where, body in (
        (NAMESPACES, namespace, None, {}),
        (CONFIG_MAPS, "kueue-manager-config", namespace, {"data": data}),
        (
            DEPLOYMENTS,
            DEPLOYMENT,
            namespace,
            {"spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}},
        ),
    ):
        meta = {"name": name} | ({"namespace": where} if where else {})
        whole = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta, **body}
        await client.apply(resource, whole, field_manager="test")
        await asyncio.sleep(1.1 if resource is CONFIG_MAPS else 0)  # times have seconds

    async def restarted():
        found = await client.get(DEPLOYMENTS, DEPLOYMENT, namespace)
        pods = await client.list(PODS, namespace)
        status = found.get("status", {})
        seen = status.get("observedGeneration", 0) >= found["metadata"]["generation"]
        return seen and status.get("availableReplicas") == 1 and len(pods) == 1

    await until(restarted, "Kueue's pod to be the new one")


async def play_installation(client, namespace, **settings):
    """What says that Topogate is installed beside Kueue; the webhook itself is not there."""
    text = "".join(
        f"{key}: {value}\n" for key, value in {"besideKueue": "true", "leaderElection": "false", **settings}.items()
    )
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CONFIG_MAP}, "data": {CONFIG_KEY: text}}
    await client.create(CONFIG_MAPS, body, namespace)
    webhook = {
        "apiVersion": MUTATING_WEBHOOKS.api_version,
        "kind": MUTATING_WEBHOOKS.kind,
        "metadata": {"name": WEBHOOK_CONFIGURATION},
        "webhooks": [],
    }
    try:
        await client.create(MUTATING_WEBHOOKS, webhook)
    except AlreadyExists:
        return


async def make_kueue_queue(client, namespace, name="team", *, nominal=16, cohort="", stop="None"):
    """Topology, flavor, ClusterQueue NAMESPACE-NAME and LocalQueue NAME of Kueue."""
    levels = [{"nodeLabel": label} for label in (BLOCK_LABEL, RACK_LABEL, HOSTNAME_LABEL)]
    amounts = [
        {"name": GPU, "nominalQuota": str(nominal), **({"borrowingLimit": "4", "lendingLimit": "2"} if cohort else {})},
        {"name": "cpu", "nominalQuota": "1k"},
    ]
    groups = [{"coveredResources": [GPU, "cpu"], "flavors": [{"name": namespace, "resources": amounts}]}]
    queue = {"resourceGroups": groups, "namespaceSelector": {}, "stopPolicy": stop}
    if cohort:
        queue["cohortName"] = cohort
    for kind, title, spec, where in (
        ("Topology", namespace, {"levels": levels}, None),
        ("ResourceFlavor", namespace, {"nodeLabels": {GROUP_LABEL: namespace}, "topologyName": namespace}, None),
        ("ClusterQueue", f"{namespace}-{name}", queue, None),
        ("LocalQueue", name, {"clusterQueue": f"{namespace}-{name}"}, namespace),
    ):
        resource = kueue_kinds.resource(kind, "v1beta2")
        meta = {"name": title} | ({"namespace": where} if where else {})
        body = {"apiVersion": resource.api_version, "kind": kind, "metadata": meta, "spec": spec}
        await client.apply(resource, body, field_manager="test")


async def started_by_kueue(client, namespace, jobs, name, host):
    """A Job of two pods on a host, as it runs by Kueue's admission; start times by uid of its pods."""
    labels = {KEYS.queue_name: "team"}
    before = job(name, 2, gpus=1, request={}, gated=False, labels=labels)
    template = before["spec"]["template"]
    template["metadata"] = {}
    body = {
        **before,
        "spec": {**before["spec"], "template": {**template, "metadata": {"labels": {KUEUE_POD_SET: "main"}}}},
    }
    body["spec"]["template"]["spec"] = {**template["spec"], "nodeSelector": {HOSTNAME_LABEL: host}}
    made = await client.create(JOBS, body, namespace)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": made["metadata"]["uid"], "controller": True}
    kueue = KUEUE_WORKLOADS[0]
    workload = {
        "apiVersion": kueue.api_version,
        "kind": "Workload",
        "metadata": {"name": f"job-{name}", "ownerReferences": [owner]},
        "spec": {"queueName": "team", "podSets": [{"name": "main", "count": 2, "template": template}]},
    }
    await client.create(kueue, workload, namespace)
    given = {
        "name": "main",
        "count": 2,
        "flavors": {GPU: namespace, "cpu": namespace},
        "resourceUsage": {GPU: "2", "cpu": "2"},
        "topologyAssignment": encode([HOSTNAME_LABEL], [((host,), 2)]),
    }
    conditions = [
        {"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": timestamp(1e9)}
        for kind in ("QuotaReserved", "Admitted")
    ]
    status = {"conditions": conditions}
    status["admission"] = {"clusterQueue": f"{namespace}-team", "podSetAssignments": [given]}
    await client.patch(kueue, f"job-{name}", namespace, body={"status": status}, subresource="status")
    return start_times(await jobs.running(name, 2))


def start_times(pods):
    """When each pod started, by its uid: the same afterwards, if none was ended."""
    return {pod["metadata"]["uid"]: pod["status"].get("startTime") for pod in pods}

"""Every right of the roles is used, and none is missing: by the API server's own audit log of a run under those roles.

The components live through what clusters do to them; then each (verb, resource) that a role grants was asked for, or
stands in `SELDOM` with the reason why a run on good days does not need it.
"""

import asyncio
import json
import re
from collections import Counter

import pytest
import yaml
from support.agents import NAMESPACE as AGENT_NAMESPACE
from support.agents import NRT_CRD, agent_on, dgx, pod_on
from support.house import NAMESPACE, PREFERRED, REQUIRED, house, user_job
from support.jobs import GPU, KEYS, Watched, until

from crds.constants import NAMESPACE as OURS
from crds.constants import NUMA_PLACEMENT_OBSERVED
from kube.client import Client
from kube.replicas import REPLICATED
from kube.resources import (
    CLUSTER_QUEUES,
    CUSTOM_RESOURCE_DEFINITIONS,
    JOBS,
    LOCAL_QUEUES,
    PODS,
    PRIORITY_CLASSES,
)
from localcluster import Fleet, Options
from manifests import render

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

FLEET = Fleet(blocks=1, racks=2, hosts=2, gpus=8)  # 32 GPUs
ACCOUNT = re.compile(rf"system:serviceaccount:{OURS}(?:-agent)?:topogate-(\w+)")
API = {"apiVersion": "topogate.dev/v1alpha1"}
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {
            "level": "Metadata",
            "userGroups": [f"system:serviceaccounts:{OURS}", f"system:serviceaccounts:{AGENT_NAMESPACE}"],
        },
        {"level": "None"},
    ],
}
# Granted, and not to be seen on good days.
SELDOM = {
    "ungater": {
        ("delete", "pods"): "a pod whose slot moved: test_ungater_jobs",
        ("delete", "workloads.topogate.dev"): "one that finished long ago: test_ungater_queues",
        ("list", "noderesourcetopologies.topology.node.k8s.io"): "where the kind is served: test_ungater_numa",
        ("watch", "noderesourcetopologies.topology.node.k8s.io"): "as above",
        ("list", "podgroups.scheduling.k8s.io"): "where the kind is served: test_ungater_pod_groups",
        ("watch", "podgroups.scheduling.k8s.io"): "as above",
        ("list", "jobsets.jobset.x-k8s.io"): "where the kind is served: test_ungater_jobsets",
        ("watch", "jobsets.jobset.x-k8s.io"): "as above",
        ("patch", "jobsets.jobset.x-k8s.io"): "as above",
        ("list", "leaderworkersets.leaderworkerset.x-k8s.io"): "where the kind is served: test_ungater_leaders",
        ("watch", "leaderworkersets.leaderworkerset.x-k8s.io"): "as above",
        **{
            (verb, f"{resource.plural}.{resource.group}"): "where the kind is served: test_ungater_mpi"
            for resource, _ in REPLICATED
            for verb in ("list", "watch")
        },
        ("list", "workloadpriorityclasses.kueue.x-k8s.io"): "where Kueue's kind is served: test_ungater_queues",
        ("watch", "workloadpriorityclasses.kueue.x-k8s.io"): "as above",
        ("patch", "cohorts/status.topogate.dev"): "where there are Cohorts: test_queue_status",
        ("patch", "events.events.k8s.io"): "an event that comes again is counted: test_kube_events",
        ("list", "events.events.k8s.io"): "of a pod that does not start: test_pod_warnings",
        ("patch", "jobs/status.batch"): "before Kubernetes 1.36 a start time has to go first",
        ("patch", "workloads.topogate.dev"): "a Job that was scaled: test_ungater_jobs",
        ("update", "jobs/finalizers.batch"): "asked by admission plugin OwnerReferencesPermissionEnforcement",
    },
    "webhook": {
        (
            "get",
            "pods",
        ): "whether a replica is gone, before its certificate authority is dropped: test_webhook_rotation",
        ("patch", "events.events.k8s.io"): "an event that comes again is counted: test_kube_events",
        (
            "patch",
            "validatingwebhookconfigurations.admissionregistration.k8s.io",
        ): "where somebody has one of that name",
    },
    "agent": {
        ("create", "events.events.k8s.io"): "a faulty GPU: test_agent",
        ("patch", "events.events.k8s.io"): "an event that comes again is counted: test_kube_events",
        ("patch", "flextopos.topogate.dev"): "hardware that changed: test_agent",
        ("patch", "noderesourcetopologies.topology.node.k8s.io"): "allocations that changed: test_agent",
    },
}


def granted(component):
    """(verb, resource.group) of the component's roles."""
    found = set()
    for obj in render.objects(render.InstallOptions(agent=True)):
        if obj["kind"] in {"Role", "ClusterRole"} and obj["metadata"]["name"] == f"topogate-{component}":
            for rule in obj["rules"]:
                for verb in rule["verbs"]:
                    for group in rule["apiGroups"]:
                        found |= {(verb, f"{resource}.{group}".rstrip(".")) for resource in rule["resources"]}
    return found


def audited(log):
    """Component -> (verb, resource.group) -> requests; and what was forbidden."""
    used, forbidden = {name: Counter() for name in SELDOM}, []
    for line in log.read_text().splitlines():
        entry = json.loads(line)
        account = ACCOUNT.fullmatch(entry["user"]["username"])
        target = entry.get("objectRef")
        if account is None or target is None:
            continue
        resource = "/".join(filter(None, (target["resource"], target.get("subresource"))))
        right = (entry["verb"], f"{resource}.{target.get('apiGroup', '')}".rstrip("."))
        used[account[1]][right] += 1
        refused_by_policy = entry.get("responseStatus", {}).get("code") == 403
        if entry["annotations"].get("authorization.k8s.io/decision") == "forbid" or refused_by_policy:
            forbidden.append((account[1], *right, target.get("name", "")))
    return used, forbidden


async def live(here, folder):
    """What happens to a cluster: jobs with and without queues, change, loss, preemption, an agent."""
    client, jobs = here.client, Watched(here.client, NAMESPACE)
    await make_queue(client)
    await here.submit("free", 2, REQUIRED, gpus=8)
    pods = await jobs.running("free", 2)
    await submit_queued(client, "low", 2)
    await jobs.running("low", 2)
    await submit_queued(client, "high", 2, priorityClassName="urgent")
    await jobs.running("high", 2)  # all of the quota: "low" had to go

    await client.delete(PODS, pods[0]["metadata"]["name"], NAMESPACE)
    await jobs.running("free", 2)
    await client.delete(JOBS, "high", NAMESPACE, propagation="Background")
    await jobs.running("low", 2)

    async with await agents_client(here) as account:
        node = (await jobs.running("free", 2))[0]["spec"]["nodeName"]
        pod = await pod_on(client, node, NAMESPACE, "pinned")
        kubelet = dgx(folder / "kubelet")
        kubelet.hold(pod["metadata"]["uid"], namespace=NAMESPACE, pod="pinned", cpus="1-2")
        async with agent_on(node, account, folder, kubelet=kubelet, agent_publish_topology="always") as agent:
            await agent.turned()
            await until(lambda: observed(client), "the observed placement")


async def make_queue(client):
    await client.create(PRIORITY_CLASSES, {"metadata": {"name": "urgent"}, "value": 1000})
    quotas = [{"name": GPU, "nominalQuota": 16}, {"name": "cpu", "nominalQuota": 100}]
    group = {"coveredResources": [GPU, "cpu"], "flavors": [{"name": "tas", "resources": quotas}]}
    spec = {
        "resourceGroups": [group],
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
    }
    await client.create(CLUSTER_QUEUES, {**API, "kind": "ClusterQueue", "metadata": {"name": "team"}, "spec": spec})
    body = {"metadata": {"name": "team"}, "spec": {"clusterQueue": "team"}}
    await client.create(LOCAL_QUEUES, {**API, "kind": "LocalQueue", **body}, NAMESPACE)


async def submit_queued(client, name, pods, **pod_spec):
    body = user_job(name, pods, PREFERRED, gpus=8, pod_spec=pod_spec)
    body["metadata"]["labels"] = {KEYS.queue_name: "team"}
    await client.create(JOBS, body, NAMESPACE)


async def observed(client):
    found = await client.get(PODS, "pinned", NAMESPACE)
    return NUMA_PLACEMENT_OBSERVED in found["metadata"].get("annotations", {})


async def agents_client(here):
    body = yaml.safe_load(NRT_CRD.read_text())
    await here.client.apply(CUSTOM_RESOURCE_DEFINITIONS, body, field_manager="test")
    await here.topogate("install", "--agent", "--out-of-cluster", "--webhook-url", here.components.webhook_url)
    token = await here.client.request_token("topogate-agent", AGENT_NAMESPACE, 3600)
    return await Client.connect(str(here.cluster.token_kubeconfig(token, "agent")))


async def test_every_right_is_used_and_none_is_missing(tmp_path):
    policy, log = tmp_path / "policy.yaml", tmp_path / "audit.log"
    policy.write_text(yaml.safe_dump(POLICY))
    arguments = [f"--audit-policy-file={policy}", f"--audit-log-path={log}", "--audit-log-mode=blocking"]
    async with house(FLEET, options=Options(extra_args={"kube-apiserver": arguments})) as here:
        await live(here, tmp_path)
        await here.components.kill("ungater")  # what it lets go of at its end is not asked for
        await asyncio.sleep(0.5)
    used, forbidden = audited(log)
    assert forbidden == []
    for component, seldom in SELDOM.items():
        rights = granted(component)
        unused = rights - set(used[component])
        assert unused <= set(seldom), (component, "granted, never asked for, and no reason is listed")
        assert set(seldom) <= rights, (component, "a reason for what is not granted")

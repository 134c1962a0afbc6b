"""Rights: what the role edit, and a stolen token, do not reach."""

import json

import pytest
from support.accounts import HOME, annotate, metadata, refused
from support.jobs import KEYS
from support.siege import pod

from crds.constants import GPU_LINK
from kube.errors import ApiError
from kube.patches import PatchType
from kube.resources import (
    CLUSTER_QUEUES,
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    COHORTS,
    CONFIG_MAPS,
    FLEX_TOPOS,
    JOBS,
    LOCAL_QUEUES,
    NAMESPACES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_FLAVORS,
    RESOURCE_QUOTAS,
    ROLE_BINDINGS,
    SECRETS,
    VALIDATING_ADMISSION_POLICIES,
    VALIDATING_ADMISSION_POLICY_BINDINGS,
    WORKLOADS,
)

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]
WHOLE = False  # nothing is made, so nothing can be held

API = {"apiVersion": "topogate.dev/v1alpha1"}


def named(kind, name="evil", **more):
    return {**API, "kind": kind, "metadata": {"name": name}, **more}


def bound(role, siege):
    subject = {"kind": "ServiceAccount", "name": "user", "namespace": siege.namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
    return {"metadata": {"name": "evil"}, "roleRef": reference, "subjects": [subject]}


# By what the tenant tries: its client, the attacker's namespace, the honest one, and the call.
TRIES = {
    "evict a pod of the honest tenant": lambda s, their: s.tenant.evict(their, s.theirs.namespace),
    "delete a pod of the honest tenant": lambda s, their: s.tenant.delete(PODS, their, s.theirs.namespace),
    "delete all pods of the honest tenant": lambda s, _: s.tenant.raw("DELETE", PODS.path(s.theirs.namespace)),
    "read the pods of the honest tenant": lambda s, _: s.tenant.list(PODS, s.theirs.namespace),
    "relabel a pod of the honest tenant": lambda s, their: s.tenant.patch(
        PODS, their, s.theirs.namespace, body={"metadata": {"labels": {KEYS.queue_name: "x"}}}
    ),
    "suspend the honest tenant's Job": lambda s, _: s.tenant.patch(
        JOBS, "steady", s.theirs.namespace, body={"spec": {"suspend": True}}
    ),
    "make the honest tenant's Workload inactive": lambda s, _: s.tenant.patch(
        WORKLOADS, "job-steady", s.theirs.namespace, body={"spec": {"active": False}}
    ),
    "make a Workload of its own": lambda s, _: s.tenant.create(WORKLOADS, named("Workload"), s.namespace),
    "make a LocalQueue that names the honest tenant's queue": lambda s, _: s.tenant.create(
        LOCAL_QUEUES,
        named("LocalQueue", spec={"clusterQueue": f"{s.theirs.namespace}-team"}),
        s.namespace,
    ),
    "lead its LocalQueue elsewhere": lambda s, _: s.tenant.patch(
        LOCAL_QUEUES, "team", s.namespace, body={"spec": {"clusterQueue": f"{s.theirs.namespace}-team"}}
    ),
    "raise the quota of its ClusterQueue": lambda s, _: s.tenant.patch(
        CLUSTER_QUEUES, f"{s.namespace}-team", body={"spec": {"stopPolicy": "None"}}
    ),
    "drain the honest tenant's ClusterQueue": lambda s, _: s.tenant.patch(
        CLUSTER_QUEUES, f"{s.theirs.namespace}-team", body={"spec": {"stopPolicy": "HoldAndDrain"}}
    ),
    "put its queue's cohort below the honest tenant's": lambda s, _: s.tenant.create(
        COHORTS, named("Cohort", spec={"parentName": s.theirs.namespace})
    ),
    "delete the flavor": lambda s, _: s.tenant.delete(RESOURCE_FLAVORS, s.name),
    "publish the inside of a node": lambda s, _: s.tenant.create(FLEX_TOPOS, named("FlexTopo", spec={})),
    "relabel a node": lambda s, _: s.tenant.patch(
        NODES, f"{s.name}-b1-r1-h1", body={"metadata": {"labels": {"a": "b"}}}
    ),
    "make a PriorityClass": lambda s, _: s.tenant.create(
        PRIORITY_CLASSES,
        {"metadata": {"name": "evil"}, "value": 10**9},
    ),
    "budget the honest tenant's pods": lambda s, _: s.tenant.create(
        POD_DISRUPTION_BUDGETS, {"metadata": {"name": "evil"}, "spec": {"maxUnavailable": 0}}, s.theirs.namespace
    ),
    "take its namespace off the webhook": lambda s, _: s.tenant.patch(
        NAMESPACES, s.namespace, body={"metadata": {"labels": {"kubernetes.io/metadata.name": "topogate-system"}}}
    ),
    "lift its ResourceQuota": lambda s, _: s.tenant.raw("DELETE", RESOURCE_QUOTAS.path(s.namespace)),
    "switch off the policy": lambda s, _: s.tenant.delete(VALIDATING_ADMISSION_POLICIES, f"{HOME}-pods"),
    "have the policy warn instead of deny": lambda s, _: s.tenant.patch(
        VALIDATING_ADMISSION_POLICY_BINDINGS, f"{HOME}-pods", body={"spec": {"validationActions": ["Warn"]}}
    ),
    "ask for the ungater's token": lambda s, _: s.tenant.request_token(f"{HOME}-ungater", HOME),
    "read the Secrets of the components": lambda s, _: s.tenant.list(SECRETS, HOME),
    "change the settings": lambda s, _: s.tenant.patch(CONFIG_MAPS, "topogate-config", HOME, body={"data": {}}),
    "give itself the right to set priorities": lambda s, _: s.tenant.create(
        ROLE_BINDINGS, bound(f"{HOME}-priority", s), s.namespace
    ),
    "add to the role edit": lambda s, _: s.tenant.create(
        CLUSTER_ROLES,
        {"metadata": {"name": "evil", "labels": {"rbac.authorization.k8s.io/aggregate-to-edit": "true"}}},
    ),
}


@pytest.mark.parametrize("what", TRIES)
async def test_a_tenant_cannot(siege, what):
    (found,) = await siege.theirs.running("steady", 1)
    await refused(TRIES[what](siege, found["metadata"]["name"]), "cannot")


@pytest.mark.parametrize("subresource", ["binding", "status", "resize"])
async def test_a_tenant_writes_no_subresource_of_its_gated_pod(siege, subresource):
    await siege.create(pod("evil"))
    path = PODS.path(siege.namespace, "evil", subresource)
    target = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "evil"}, "target": {"name": "n"}}
    method, kind = ("POST", "json") if subresource == "binding" else ("PATCH", "merge-patch+json")
    call = siege.tenant.raw(method, path, body=json.dumps(target).encode(), content_type=f"application/{kind}")
    await refused(call, "cannot")


async def test_no_other_gate_and_no_patch_takes_the_gate_from_a_pod(siege):
    await siege.create(pod("evil"))
    for body in (
        {"spec": {"schedulingGates": None}},
        {"spec": {"schedulingGates": []}},
        {"spec": {"schedulingGates": [{"name": "example.com/other"}]}},
    ):
        with pytest.raises(ApiError, match="schedulingGates"):
            await siege.tenant.patch(PODS, "evil", siege.namespace, body=body)


@pytest.mark.parametrize("key", [KEYS.workload, "topogate.dev/admitted-quota", "topogate.dev/numa-placement-predicted"])
async def test_a_tenant_marks_no_pod_as_placed(siege, key):
    await refused(siege.create(pod("evil", annotations={key: "x"}, gated=False)), key)
    await siege.create(pod("evil"))
    await refused(siege.tenant.patch(PODS, "evil", siege.namespace, **annotate({key: "x"})), key)


async def test_a_tenant_changes_no_request_of_a_pod_that_waits(siege):
    await siege.create(pod("evil", 64))
    await refused(siege.tenant.patch(PODS, "evil", siege.namespace, **annotate({GPU_LINK: "NVLink"})), GPU_LINK)
    await refused(siege.tenant.patch(PODS, "evil", siege.namespace, **metadata(ownerReferences=[OWNER])), "owner")


OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "steady", "uid": "1", "controller": True}

# With the ungater's own token.
STOLEN = {
    "delete a plain pod": lambda s, token: token.delete(PODS, "plain", s.namespace),
    "run a pod": lambda s, token: token.create(PODS, pod("mine", gated=False, annotations={}), s.namespace),
    "run a command in a pod": lambda s, token: token.raw("POST", PODS.path(s.namespace, "plain", "exec")),
    "read Secrets": lambda s, token: token.list(SECRETS, s.namespace),
    "become an administrator": lambda s, token: token.create(CLUSTER_ROLE_BINDINGS, bound("cluster-admin", s)),
    "raise a quota": lambda s, token: token.patch(
        CLUSTER_QUEUES, f"{s.namespace}-team", body={"spec": {"stopPolicy": "None"}}
    ),
    "change a plain pod's image": lambda s, token: token.patch(
        PODS,
        "plain",
        s.namespace,
        body={"spec": {"containers": [{"name": "c", "image": "evil"}]}},
        content_type=PatchType.STRATEGIC,
    ),
}


@pytest.mark.parametrize("what", STOLEN)
async def test_a_thief_of_the_ungaters_token_cannot(siege, what):
    await siege.create(pod("plain", 0, gated=False, annotations={}))
    await refused(STOLEN[what](siege, siege.controller._own))

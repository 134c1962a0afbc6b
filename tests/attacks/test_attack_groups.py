"""PodGroups, growth and moves: what a tenant forges, toggles or blocks costs nobody else a place, and has an end.

The API server serves PodGroups of Kubernetes. An administrator allows four moves an hour: two that nobody asked for.
"""

import asyncio
import contextlib
import json

import pytest
import pytest_asyncio
from support.accounts import refused
from support.jobs import GPU, KEYS, RACK_LABEL, until
from support.queues import queued
from support.siege import ANYWHERE, GPUS, HOSTS, pod, replicated

from crds import constants
from kube.errors import Conflict, NotFound
from kube.resources import (
    DEPLOYMENTS,
    EVENTS,
    JOBS,
    POD_DISRUPTION_BUDGETS,
    POD_GROUPS,
    PODS,
    RESOURCE_QUOTAS,
    ROLE_BINDINGS,
    ROLES,
    WORKLOADS,
)
from localcluster import LocalCluster, Options
from localcluster.options import API_SERVER

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]
SETTINGS = {
    "moves_per_hour": 4,
    "move_rest_seconds": 0.2,
    "replacement_timeout_seconds": 3.0,
    "requeuing_backoff_base_seconds": 1.0,
}
GATES = {"GenericWorkload": True, "TopologyAwareWorkloadScheduling": True, "WorkloadWithJob": True}
MOST = 2**31 - 1
FREE = HOSTS - 2  # hosts that honest jobs do not have from the beginning


@pytest.fixture(scope="module")
def cluster():
    arguments = {API_SERVER: ["--runtime-config=scheduling.k8s.io/v1beta1=true"]}
    with LocalCluster(options=Options(feature_gates=GATES, extra_args=arguments)) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module", autouse=True)
async def may_make_groups(siege):
    """What clusters with PodGroups give their tenants, the group's status among it."""
    kinds = {"apiGroups": [POD_GROUPS.group], "resources": ["podgroups", "podgroups/status"], "verbs": ["*"]}
    await siege.admin.create(ROLES, {"metadata": {"name": "groups"}, "rules": [kinds]}, siege.namespace)
    subject = {"kind": "ServiceAccount", "name": "user", "namespace": siege.namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "groups"}
    binding = {"metadata": {"name": "groups"}, "roleRef": role, "subjects": [subject]}
    await siege.admin.create(ROLE_BINDINGS, binding, siege.namespace)


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def without_groups(siege):
    """No group is left to the next attack."""
    yield
    for one in await siege.admin.list(POD_GROUPS, siege.namespace):
        with contextlib.suppress(NotFound):
            await siege.admin.delete(POD_GROUPS, one["metadata"]["name"], siege.namespace)


def of_group(name, pods, group="ring", **options):
    """A Job without a queue whose pods name a PodGroup."""
    named = {"schedulingGroup": {"podGroupName": group}, **options.pop("pod_spec", {})}
    body = queued(name, pods, request=ANYWHERE, pod_spec=named, **options)
    body["spec"]["suspend"] = False
    del body["metadata"]["labels"][KEYS.queue_name]
    return body


async def group(siege, least, *, name="ring", client=None, namespace=None, **more):
    spec = {"schedulingPolicy": {"gang": {"minCount": least}}, **more}
    body = {"metadata": {"name": name}, "spec": spec}
    await (client or siege.tenant).create(POD_GROUPS, body, namespace or siege.namespace)


async def kept(siege):
    """How many slots the attacker's workloads have.

    Without those of Jobs that an earlier attack deleted: they hold nothing any more, and the garbage collector of
    Kubernetes removes them some 20 s later.
    """
    found = [one for one in await siege.admin.list(WORKLOADS, siege.namespace) if not siege.is_over(one)]
    parts = [part for one in found for part in one.get("status", {}).get("admission", {}).get("podSetAssignments", [])]
    return sum(part["count"] for part in parts)


async def keeps(siege, slots):
    async def same():
        return await kept(siege) == slots

    await until(same, f"{slots} slots to be held")


# --- PodGroups of Kubernetes -----------------------------------------------------------------------------------------


async def test_a_group_that_wants_two_billion_pods_at_once(siege):
    await group(siege, MOST)
    await siege.create(of_group("evil", 2))
    await siege.create(pod("lone", schedulingGroup={"podGroupName": "ring"}))
    await siege.reason("evil", "ContradictingRequests")
    await siege.reason("lone", "Pending")
    assert await kept(siege) == 0
    await siege.restart()


async def test_it_names_the_group_of_the_honest_tenant(siege):
    """Pods of one that waits hold all of its group, but a group is of its namespace alone."""
    theirs = siege.theirs.namespace
    await group(siege, 2, client=siege.admin, namespace=theirs)
    await siege.create(of_group("evil", FREE))
    await siege.create(pod("gated", schedulingGroup={"podGroupName": "ring"}))
    await siege.reason("evil", "Pending")
    body = of_group("gang", 2)
    try:
        await siege.theirs.create(body)
        await siege.theirs.running("gang", 2)
    finally:
        await siege.theirs.delete("gang")
        await siege.admin.delete(POD_GROUPS, "ring", theirs)


async def test_a_group_whose_pods_never_come(siege):
    """Its Job may make none; nothing is held for them, whatever the group says."""
    await siege.restart()
    await group(siege, FREE)
    await siege.create(of_group("evil", FREE, pod_spec={"serviceAccountName": "gone"}))
    await siege.create(pod("first", schedulingGroup={"podGroupName": "other"}))
    await group(siege, 4, name="other")
    await siege.reason("evil", "PodsMissing")
    await siege.reason("first", "Pending")
    await keeps(siege, 0)


async def test_pods_of_one_workload_name_other_groups(siege):
    """One after the other, as fast as they can be made anew."""
    labels = {KEYS.pod_group: "evil", KEYS.queue_name: "team"}
    for name in ("ring", "other"):
        await group(siege, 2, name=name)
    for step in range(10):
        named = {"podGroupName": "ring" if step % 2 else "other"}
        with contextlib.suppress(Conflict, NotFound):
            await siege.tenant.delete(PODS, f"evil-{step % 3}", siege.namespace, grace_period=0)
        with contextlib.suppress(Conflict):
            annotations = {**ANYWHERE, KEYS.pod_group_total: "3"}
            await siege.create(pod(f"evil-{step % 3}", labels=labels, annotations=annotations, schedulingGroup=named))
        await asyncio.sleep(0.1)
    await siege.stands()
    await siege.covered()  # one that is alone in its group is held by kube-scheduler, and is paid for


async def test_the_group_changes_all_the_time_under_pods_that_run(siege):
    """Its count, its level, its mode; then it is deleted and made anew."""
    await group(siege, 2)
    await siege.create(of_group("evil", 2))
    await siege.mine.running("evil", 2)
    for step in range(30):
        least = (MOST, 1, 2)[step % 3]
        body = {"spec": {"schedulingPolicy": {"gang": {"minCount": least}}}}
        await siege.tenant.patch(POD_GROUPS, "ring", siege.namespace, body=body)
    await siege.tenant.delete(POD_GROUPS, "ring", siege.namespace)
    more = {"schedulingConstraints": {"topology": [{"key": "example.com/nonsense"}]}, "disruptionMode": {"all": {}}}
    with contextlib.suppress(Conflict):  # its finalizer keeps it while its pods are there
        await group(siege, 1, **more)
    await siege.stands()
    assert await kept(siege) == 2
    assert await siege.run_gpus() == 2 * GPUS


async def test_more_workloads_than_are_looked_at_name_one_group(siege):
    """Each that comes or goes has the others looked at, up to a limit."""
    await group(siege, 1)
    for number in range(66):
        await siege.create(of_group(f"evil-{number}", 1, gpus=1))
    for number in range(0, 66, 33):
        await siege.tenant.delete(JOBS, f"evil-{number}", siege.namespace, propagation="Background")
    await siege.reason("evil-65", "InvalidRequest")
    await siege.stands()


async def test_a_group_forges_that_it_was_scheduled(siege):
    await group(siege, 4)
    said = {"type": "PodGroupInitiallyScheduled", "status": "True", "reason": "Scheduled", "message": "so it says"}
    status = {"conditions": [{**said, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}
    await siege.tenant.patch(POD_GROUPS, "ring", siege.namespace, body={"status": status}, subresource="status")
    await siege.create(pod("evil", schedulingGroup={"podGroupName": "ring"}))
    await siege.reason("evil", "Pending")
    assert await kept(siege) == 0


# --- growth ----------------------------------------------------------------------------------------------------------


async def scale(siege, replicas):
    await siege.tenant.patch(DEPLOYMENTS, "evil", siege.namespace, body={"spec": {"replicas": replicas}})


async def test_a_deployment_grows_to_two_billion_and_shrinks_while_it_grows(siege):
    """A ResourceQuota keeps the API server from being filled; ten pods there may be. No StatefulSet: of one so large
    kube-controller-manager itself makes a list, and ends.
    """
    body = {"metadata": {"name": "ten"}, "spec": {"hard": {"pods": "10"}}}
    await siege.admin.create(RESOURCE_QUOTAS, body, siege.namespace)
    await siege.create(replicated("Deployment", "evil", 1, queue="team"))
    await siege.paid(GPUS)
    for replicas in (MOST, 2, MOST, 1):
        await scale(siege, replicas)
        await asyncio.sleep(0.3)
    await scale(siege, MOST)
    await siege.paid(4 * GPUS)
    await siege.stands()
    await scale(siege, 1)
    await siege.paid(GPUS)


async def test_a_deployment_toggles_its_replicas_as_fast_as_it_can(siege):
    await siege.create(replicated("Deployment", "evil", 2, queue="team"))
    for step in range(24):
        await scale(siege, (0, 6, 1, 3, 8, 2)[step % 6])
        await asyncio.sleep(0.05)
        assert await siege.run_gpus() <= 4 * GPUS
    await siege.stands()
    await scale(siege, 2)
    await siege.paid(2 * GPUS)


async def at_least(siege, gpus):
    return await siege.run_gpus() >= gpus


# --- moves -----------------------------------------------------------------------------------------------------------


async def moved(siege):
    """How many moves of the attacker's workloads began."""
    found = await siege.admin.list(EVENTS, siege.namespace)
    return sum(
        one.get("series", {}).get("count", 1)
        for one in found
        if not siege.is_over(one) and one["reason"] in {"PullTogether", "Realign", "Defragmented"}
    )


ASTRAY = json.dumps([{"zone": f"node-{zone}", "amount": {GPU: "4"}} for zone in (0, 1)])
FORGED = {constants.NUMA_PLACEMENT_OBSERVED: ASTRAY, constants.NUMA_PLACEMENT_PREDICTED: ASTRAY}


async def test_it_says_itself_that_its_pods_went_astray(siege):
    """As the agent would, on pods that run, and in the template of new ones."""
    await siege.submit("evil", 2)
    for found in await siege.mine.running("evil", 2):
        for key, value in FORGED.items():
            body = {"metadata": {"annotations": {key: value}}}
            await refused(
                siege.tenant.patch(PODS, found["metadata"]["name"], siege.namespace, body=body), "annotations"
            )
    await siege.submit("worse", 1, annotations=FORGED)
    await siege.reason("worse", "PodsMissing")  # nobody may make such a pod
    assert await moved(siege) == 0


async def test_it_asks_for_moves_by_itself(siege):
    """By its Workload, its Job and its pods: only an administrator's request is one."""
    asked = {"id": "evil", "until": "2100-01-01T00:00:00Z", "nodes": {"main": [f"{siege.name}-b2-r2-h2"]}}
    request = {constants.MOVE_TO: json.dumps(asked)}
    await siege.submit("evil", 2, annotations=request)
    await siege.mine.running("evil", 2)
    name, body = (await siege.mine.workload("evil"))["metadata"]["name"], {"metadata": {"annotations": request}}
    await refused(siege.tenant.patch(WORKLOADS, name, siege.namespace, body=body), "move")
    await siege.tenant.patch(JOBS, "evil", siege.namespace, body=body)
    await siege.stands()
    assert await moved(siege) == 0


async def spread(siege, name="evil"):
    """A Deployment of two whole hosts that prefers a rack, and is spread, as others of the attacker have the rest."""
    found = await siege.admin.list(PODS, siege.theirs.namespace)
    taken = {one["spec"].get("nodeName") for one in found}
    racks = {}
    for host in (f"{siege.name}-b{b}-r{r}-h{h}" for b in (1, 2) for r in (1, 2) for h in (1, 2)):
        if host not in taken:
            racks.setdefault(host[:-3], []).append(host)
    whole = [hosts for hosts in racks.values() if len(hosts) == 2]
    for at, hosts in enumerate(whole):
        where = {"nodeSelector": {"kubernetes.io/hostname": hosts[0]}}
        body = queued(f"filler-{at}", 1, request=ANYWHERE, pod_spec=where, spec={"suspend": False})
        del body["metadata"]["labels"][KEYS.queue_name]
        await siege.create(body)
        await siege.mine.running(f"filler-{at}", 1)
    body = replicated("Deployment", name, 2)
    body["spec"]["template"]["metadata"]["annotations"] = {KEYS.preferred[0]: RACK_LABEL, KEYS.pod_set: "main"}
    await siege.create(body)
    await until(lambda: at_least(siege, (2 + len(whole)) * GPUS), "the Deployment to be spread")
    return [f"filler-{at}" for at in range(len(whole))]


async def test_it_makes_itself_spread_over_and_over(siege):
    """Four moves an hour: two that nobody asked for, whoever wants more."""
    await siege.restart()
    for _ in range(3):
        for filler in await spread(siege):
            await siege.tenant.delete(JOBS, filler, siege.namespace, propagation="Background")
        await asyncio.sleep(1.0)
        await siege.clean()
    assert await moved(siege) <= 2
    await siege.stands()


async def test_a_budget_comes_once_a_move_began(siege):
    """What is on its way holds two places, and not for ever."""
    await siege.restart()
    fillers = await spread(siege)
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "evil"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "evil"}}},
    }
    for filler in fillers:
        await siege.tenant.delete(JOBS, filler, siege.namespace, propagation="Background")
    await siege.create(budget)
    for step in range(10):
        spec = {"maxUnavailable": step % 2}
        await siege.tenant.patch(POD_DISRUPTION_BUDGETS, "evil", siege.namespace, body={"spec": spec})
        await asyncio.sleep(0.2)
    await siege.tenant.patch(POD_DISRUPTION_BUDGETS, "evil", siege.namespace, body={"spec": {"maxUnavailable": 0}})
    await siege.stands()

    async def over():
        found = await siege.admin.list(WORKLOADS, siege.namespace)
        said = [said for one in found for said in one.get("status", {}).get("conditions", [])]
        return not [one for one in said if one["type"] == "Moving" and one["status"] == "True"]

    await until(over, "the move to be over")
    assert await kept(siege) == 2

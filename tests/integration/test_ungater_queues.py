"""Queued jobs on the real control plane, the controller in this process: 2 blocks x 2 racks x 2 hosts of 8 GPUs."""

import pytest
from support.cluster_checker import snapshot, violations
from support.faults import FaultProxy, through
from support.jobs import GPU, KEYS, Running, install_crds, make_flavor, racks_of, until
from support.queues import API, Queued, make_priorities, make_queue, queued

from kube.connection import config
from kube.resources import (
    CLUSTER_QUEUES,
    LOCAL_QUEUES,
    NAMESPACES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    RESOURCE_FLAVORS,
    WORKLOAD_PRIORITY_CLASSES,
    WORKLOADS,
)
from ungater.model.conditions import moment

pytestmark = pytest.mark.cluster
LOWER = {"withinClusterQueue": "LowerPriority"}


@pytest.fixture
async def jobs(client, namespace, nodes):
    """A flavor and the two priorities; every test ends with the independent checker."""
    await install_crds(client)
    await nodes(blocks=2, racks=2, hosts=2, prefix=f"{namespace}-", group=namespace)
    await make_flavor(client, namespace, namespace)
    await make_priorities(client)
    yield Queued(client, namespace)
    for queue in await client.list(CLUSTER_QUEUES):
        if queue["metadata"]["name"].startswith(f"{namespace}-"):
            await client.delete(CLUSTER_QUEUES, queue["metadata"]["name"])
    await client.delete(RESOURCE_FLAVORS, namespace)


@pytest.fixture
async def running(client, jobs, namespace):
    """A running controller."""
    async with Running(client):
        yield jobs
        assert violations(await snapshot(client, {namespace})) == []


async def test_quota_and_topology_are_one_decision_and_the_job_is_unsuspended_into_its_slots(
    running, client, namespace
):
    await make_queue(client, namespace, "team", 16, flavors=(namespace,))
    await running.submit("first", 2)
    assert len(racks_of(await running.running("first", 2))) == 1
    assert not (await running.job("first"))["spec"]["suspend"]
    admission = (await running.status("first"))["admission"]
    assert admission["clusterQueue"] == f"{namespace}-team"
    (part,) = admission["podSetAssignments"]
    assert part["flavors"] == {GPU: namespace, "cpu": namespace}
    assert part["resourceUsage"] == {GPU: "16", "cpu": "2", "pods": "2"}
    assert (part["name"], part["count"]) == ("main", 2)
    assert part["topologyAssignment"]["slices"]
    admitted = await running.condition("first", "Admitted", "True", "Admitted")
    assert f"cluster queue {namespace}-team in flavor {namespace}" in admitted["message"]
    assert "2 pods in b1/r1" in admitted["message"]
    workload = await running.workload("first")
    assert workload["spec"]["queueName"] == "team"
    await running.submit("second", 1)
    message = await running.waits("second", "InsufficientQuota")
    assert "8 nvidia.com/gpu" in message
    assert (await running.job("second"))["spec"]["suspend"]
    assert await running.pods("second") == []
    await running.finish("first")
    await running.running("second", 1)


async def test_what_a_queue_lends_is_borrowed_and_taken_back_with_evictions(running, client, namespace):
    cohort = {"cohortName": namespace}
    reclaim = {"preemption": {"reclaimWithinCohort": "Any"}}
    await make_queue(client, namespace, "ours", 32, flavors=(namespace,), **cohort, **reclaim)
    await make_queue(client, namespace, "theirs", 32, flavors=(namespace,), **cohort)
    for number in range(3):
        await running.submit(f"t{number}", 2, "theirs")
        await running.running(f"t{number}", 2)
    await running.submit("back", 4, "ours", request={KEYS.preferred[0]: "cloud-provider.com/topology-block"})
    await running.running("back", 4)
    gone = [name for name in ("t0", "t1", "t2") if (await running.job(name))["spec"]["suspend"]]
    (victim,) = gone
    preempted = await running.condition(victim, "Preempted", "True", "InCohortReclamation")
    assert f"cluster queue {namespace}-ours takes back its nominal quota" in preempted["message"]
    await running.condition(victim, "Evicted", "True", "Preempted")
    await running.condition(victim, "Requeued", "True", "Requeued")
    await running.waits(victim, "InsufficientQuota")
    assert "nomination" not in await running.status("back")
    assert (await running.job(victim))["status"].get("failed", 0) == 0
    await running.finish("back")
    await running.running(victim, 2)
    await running.condition(victim, "Evicted", "False")


async def keep(jobs, name, pods):
    """A budget that lets no pod of a job go, once it counts them."""
    client, namespace = jobs.client, jobs.namespace
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "keep"},
        "spec": {"minAvailable": pods, "selector": {"matchLabels": {"batch.kubernetes.io/job-name": name}}},
    }
    await client.create(POD_DISRUPTION_BUDGETS, budget, namespace)

    async def counted():
        found = await client.get(POD_DISRUPTION_BUDGETS, "keep", namespace)
        return found.get("status", {}).get("currentHealthy") == pods

    await until(counted, "the budget to count the pods")


async def two_of_low_priority(jobs, namespace):
    """A full queue where the high ones preempt: ``other``, and the newer and so cheaper ``kept``."""
    within = {"preemption": {"withinClusterQueue": "LowerPriority"}}
    await make_queue(jobs.client, namespace, "team", 16, flavors=(namespace,), **within)
    for name in ("other", "kept"):
        await jobs.submit(name, 1, priority="low")
        await jobs.running(name, 1)


async def suspended(jobs, *names):
    return [name for name in names if (await jobs.job(name))["spec"]["suspend"]]


async def test_whom_a_budget_is_known_to_keep_is_not_chosen(running, namespace):
    await two_of_low_priority(running, namespace)
    await keep(running, "kept", 1)
    await running.submit("first", 1, priority="high")
    await running.running("first", 1)
    assert await suspended(running, "other", "kept") == ["other"]
    assert "Evicted" not in {found["type"] for found in (await running.status("kept"))["conditions"]}
    await running.submit("second", 1, priority="high")
    await running.waits("second", "InsufficientQuota")
    await running.client.delete(POD_DISRUPTION_BUDGETS, "keep", namespace)
    await running.running("second", 1)
    assert await suspended(running, "other", "kept") == ["other", "kept"]


async def test_a_budget_that_refuses_after_all_changes_the_plan(cluster, client, jobs, namespace):
    real = await config.load(str(cluster.kubeconfig))
    async with FaultProxy(real.url, real.tls).serve() as proxy, await through(proxy, cluster) as ours:
        proxy.refuse_evictions("kept")
        async with Running(ours, eviction_patience_seconds=1.0):
            await two_of_low_priority(jobs, namespace)
            await jobs.submit("first", 1, priority="high")
            await jobs.running("first", 1)
            assert await suspended(jobs, "other", "kept") == ["other"]
            stays = await jobs.condition("kept", "Evicted", "False", "EvictionBlocked")
            assert "disruption budget" in stays["message"]
            await jobs.running("kept", 1)
            assert violations(await snapshot(client, {namespace})) == []
            calls = [path for method, path in proxy.calls if method == "POST" and "/pods/kept" in path]
            assert len(calls) >= 1


async def test_strict_queues_stop_at_their_first_and_others_pass_it(running, client, namespace):
    for name, strategy in (("strict", "StrictFIFO"), ("loose", "BestEffortFIFO")):
        await make_queue(client, namespace, name, 16, flavors=(namespace,), queueingStrategy=strategy)
        await running.submit(f"{name}-runs", 1, name)
        await running.running(f"{name}-runs", 1)
        await running.submit(f"{name}-large", 2, name)
        await running.waits(f"{name}-large", "InsufficientQuota")
        await running.submit(f"{name}-small", 1, name)
    await running.running("loose-small", 1)
    assert f"{namespace}-strict is StrictFIFO" in await running.waits("strict-small", "BehindOthers")
    await running.finish("strict-runs")
    await running.running("strict-large", 2)


async def test_suspended_by_hand_and_deactivated_it_gives_back_all(running, client, namespace):
    await make_queue(client, namespace, "team", 16, flavors=(namespace,))
    await running.submit("mine", 2)
    await running.running("mine", 2)
    await running.edit_workload("mine", active=False)
    await running.empty("mine")
    await running.condition("mine", "Evicted", "True", "Deactivated")
    await running.waits("mine", "Deactivated")
    await running.submit("other", 2)
    await running.running("other", 2)
    await running.edit_workload("mine", active=True)
    await running.waits("mine", "InsufficientQuota")
    await running.edit("other", suspend=True)
    await running.condition("other", "Evicted", "True", "Suspended")
    await running.running("mine", 2)
    await running.waits("other", "InsufficientQuota")


async def test_a_drained_queue_evicts_and_a_held_one_admits_nothing(running, client, namespace):
    await make_queue(client, namespace, "team", 16, flavors=(namespace,))
    await running.submit("runs", 1)
    await running.running("runs", 1)
    await running.edit_queue("team", stopPolicy="Hold")
    await running.submit("held", 1)
    assert "stopPolicy Hold" in await running.waits("held", "QueueStopped")
    await running.running("runs", 1)
    await client.patch(CLUSTER_QUEUES, f"{namespace}-team", body={"spec": {"stopPolicy": "HoldAndDrain"}})
    await running.empty("runs")
    await running.condition("runs", "Evicted", "True", "QueueDrained")
    await running.edit_queue("team", stopPolicy="None")
    await running.running("runs", 1)
    await running.running("held", 1)


@pytest.mark.parametrize("local", [False, True], ids=["ClusterQueue", "LocalQueue"])
async def test_one_that_waits_for_its_check_gives_its_quota_back_where_its_queue_is_stopped(
    running, client, namespace, local
):
    """The example of Kueue: w1 runs, w2 holds quota and waits for a check; 0.19.2 unsets what w2 reserved."""
    checks = {"admissionChecks": [{"name": "budget"}]}
    await make_queue(
        client,
        namespace,
        "team",
        8,
        flavors=(namespace,),
        cohortName=f"{namespace}-all",
        admissionChecksStrategy=checks,
    )
    await make_queue(client, namespace, "other", 0, flavors=(namespace,), cohortName=f"{namespace}-all")

    async def stop(policy):
        what = (LOCAL_QUEUES, "team", namespace) if local else (CLUSTER_QUEUES, f"{namespace}-team")
        await client.patch(*what, body={"spec": {"stopPolicy": policy}})

    four = {"gpus": 4}
    await running.submit("w1", 1, **four)
    await answer(running, "w1")
    await running.running("w1", 1)
    await running.submit("w2", 1, **four)
    await running.condition("w2", "Admitted", "False", "Pending")
    await stop("Hold")
    found = await running.condition("w2", "QuotaReserved", "False", "QueueStopped")
    assert "is stopped (stopPolicy Hold)" in found["message"]
    workload = await running.workload("w2")
    assert "Evicted" not in {one["type"] for one in workload["status"]["conditions"]}
    assert "admission" not in workload["status"]
    await running.running("w1", 1)
    await running.submit("borrows", 1, "other", **four)
    await running.running("borrows", 1)
    await stop("HoldAndDrain")
    await running.empty("w1")
    await running.condition("w1", "Evicted", "True", "QueueDrained")
    assert "Evicted" not in {one["type"] for one in (await running.workload("w2"))["status"]["conditions"]}
    await running.finish("borrows")
    await stop("None")
    for name in ("w1", "w2"):
        await answer(running, name)
        await running.running(name, 1)


async def test_a_class_of_our_own_and_the_one_named_default_are_priorities_of_jobs(client, jobs, namespace):
    await make_queue(client, namespace, "team", 0, flavors=(namespace,))
    body = {"apiVersion": API, "kind": "WorkloadPriorityClass"}
    names = {"batch": f"{namespace}-batch", "default": "default"}
    try:
        for name, value in ((names["batch"], 3), ("default", 7)):
            await client.apply(
                WORKLOAD_PRIORITY_CLASSES, {**body, "metadata": {"name": name}, "value": value}, field_manager="test"
            )
        await jobs.submit("plain", 1, priority="high")
        await jobs.submit("named", 1, priority="high", labels={KEYS.priority_class: names["batch"]})
        # The classes are listed before anything is placed: no Workload may be created without them.
        async with Running(client):
            for job, (name, value) in {"plain": ("default", 7), "named": (names["batch"], 3)}.items():
                await jobs.condition(job, "QuotaReserved", "False")
                spec = (await jobs.workload(job))["spec"]
                assert (spec["priorityClassName"], spec["priority"]) == (name, value)
    finally:
        for name in names.values():
            await client.delete(WORKLOAD_PRIORITY_CLASSES, name)


async def test_a_boost_lets_one_in_and_falls_once_it_has_rested_over_a_restart(client, jobs, namespace):
    await make_queue(client, namespace, "team", 8, flavors=(namespace,), preemption=LOWER)
    classes = {name: f"{namespace}-{name}" for name in ("x", "y")}
    for name, value in (("x", 100), ("y", 90)):
        body = {"apiVersion": API, "kind": "WorkloadPriorityClass", "metadata": {"name": classes[name]}, "value": value}
        await client.apply(WORKLOAD_PRIORITY_CLASSES, body, field_manager="test")

    async def boost(value):
        name = (await jobs.workload("y"))["metadata"]["name"]
        body = {"metadata": {"annotations": {KEYS.priority_boost: value}}}
        await client.patch(WORKLOADS, name, namespace, body=body)

    async def counts(value):
        async def counted():
            return (await jobs.status("y")).get("priorityBoost", {}).get("value") == value

        await until(counted, f"a boost of {value} to count")

    try:
        async with Running(client, priority_boost_rest_seconds=12.0):
            for name in ("x", "y"):
                await jobs.submit(name, 1, labels={KEYS.priority_class: classes[name]})
                await (jobs.running(name, 1) if name == "x" else jobs.waits(name, "InsufficientQuota"))
            await boost("20")
            await jobs.running("y", 1)
            reserved = moment((await jobs.condition("y", "QuotaReserved", "True"))["lastTransitionTime"])
            await jobs.condition("x", "Preempted", "True", "InClusterQueue")
            assert (await jobs.workload("y"))["spec"]["priority"] == 90
            await boost("0")
        assert (await jobs.status("y"))["priorityBoost"]["value"] == 20
        async with Running(client, priority_boost_rest_seconds=12.0):
            await jobs.waits("x", "InsufficientQuota")
            await counts(0)
            since = moment((await jobs.status("y"))["priorityBoost"]["since"])
            assert since - reserved >= 12.0 - 1.0  # times of conditions are whole seconds
            await jobs.running("x", 1)
            await jobs.condition("y", "Preempted", "True", "InClusterQueue")
    finally:
        for name in classes.values():
            await client.delete(WORKLOAD_PRIORITY_CLASSES, name)


async def test_pods_that_are_not_ready_in_time_put_it_back_and_too_often_make_it_inactive(client, jobs, namespace):
    await make_queue(client, namespace, "team", 16, flavors=(namespace,))
    limits = {"requeuing_backoff_base_seconds": 1.0, "requeuing_backoff_limit_count": 1}
    async with Running(client, wait_for_pods_ready_timeout_seconds=2.0, **limits):
        never = {"schedulingGates": [{"name": KEYS.gate}, {"name": "example.com/never"}]}
        await jobs.submit("slow", 1, pod_spec=never)
        await jobs.condition("slow", "Evicted", "True", "PodsReadyTimeout")
        again = await jobs.condition("slow", "Requeued", "False", "RequeuingLimitExceeded")
        assert "put back 1 times" in again["message"]
        await jobs.empty("slow")
        assert not (await jobs.workload("slow"))["spec"]["active"]
        await jobs.event("slow", "RequeuingLimitExceeded")
        await jobs.submit("fast", 1)
        await jobs.running("fast", 1)
        await jobs.condition("fast", "PodsReady", "True")


async def test_it_starts_with_fewer_pods_where_it_may_and_has_all_again_when_it_is_put_back(running, client, namespace):
    await make_queue(client, namespace, "team", 24, flavors=(namespace,))
    anywhere = {KEYS.unconstrained: "true"}
    await running.submit("runs", 1)
    await running.running("runs", 1)
    body = queued("partly", 4, request=anywhere)
    body["metadata"]["annotations"][KEYS.min_parallelism] = "2"
    await running.create(body)
    await running.running("partly", 2)
    workload = await running.workload("partly")
    assert workload["spec"]["podSets"][0] | {"template": 0} == {
        "name": "main",
        "count": 4,
        "minCount": 2,
        "template": 0,
        "topologyRequest": {"policy": "Unconstrained"},
    }
    assert workload["status"]["admission"]["podSetAssignments"][0]["count"] == 2
    assert "fewer than it asked for" in (await running.condition("partly", "Admitted", "True"))["message"]
    assert (await running.job("partly"))["spec"]["parallelism"] == 2
    await running.edit_workload("partly", active=False)
    await running.empty("partly")
    assert (await running.job("partly"))["spec"]["parallelism"] == 4
    await running.finish("runs")
    await running.edit_queue("team", resourceGroups=_nominal(namespace, 32))
    await running.edit_workload("partly", active=True)
    await running.running("partly", 4)


def _nominal(flavor, gpus):
    quotas = [{"name": GPU, "nominalQuota": str(gpus)}, {"name": "cpu", "nominalQuota": "1k"}]
    return [{"coveredResources": [GPU, "cpu"], "flavors": [{"name": flavor, "resources": quotas}]}]


async def test_an_elastic_job_grows_within_its_quota_and_gives_back_what_it_does_not_need(running, client, namespace):
    await make_queue(client, namespace, "team", 24, flavors=(namespace,))
    await running.submit("elastic", 1, indexed=True, request={KEYS.unconstrained: "true"})
    await running.running("elastic", 1)
    await running.edit("elastic", parallelism=3, completions=3)
    await running.running("elastic", 3)
    await until(lambda: _counts(running, "elastic", 3), "the larger admission")
    await running.edit("elastic", parallelism=4, completions=4)
    more = await running.condition("elastic", "PodsReady", "False", "PartlyPlaced")
    assert "3 of 4 pods have a slot" in more["message"]
    assert "quota" in more["message"] or "more than is left" in more["message"]
    await running.edit("elastic", parallelism=1, completions=1)
    await until(lambda: _counts(running, "elastic", 1), "the smaller admission")
    await running.submit("other", 2)
    await running.running("other", 2)


async def _counts(jobs, name, count):
    (part,) = (await jobs.status(name))["admission"]["podSetAssignments"]
    usage = {key: part["resourceUsage"][key] for key in (GPU, "cpu", "pods")}
    spec = (await jobs.workload(name))["spec"]["podSets"][0]["count"]
    return (part["count"], spec, usage) == (count, count, {GPU: str(8 * count), "cpu": str(count), "pods": str(count)})


async def test_without_a_topology_quota_alone_decides_and_the_flavor_is_in_the_node_selector(
    running, client, namespace
):
    name = f"{namespace}-plain"
    flavor = {
        "apiVersion": API,
        "kind": "ResourceFlavor",
        "metadata": {"name": name},
        "spec": {
            "nodeLabels": {"cloud-provider.com/topology-rack": "r2"},
            "tolerations": [{"key": "example.com/dedicated", "operator": "Exists"}],
        },
    }
    await client.create(RESOURCE_FLAVORS, flavor)
    await make_queue(client, namespace, "team", 16, flavors=(name,))
    body = queued("plain", 2, request={}, gated=False)
    del body["spec"]["template"]["spec"]["schedulingGates"]
    await running.create(body)
    pods = await running.running("plain", 2)
    assert {pod["spec"]["nodeSelector"]["cloud-provider.com/topology-rack"] for pod in pods} == {"r2"}
    (part,) = (await running.status("plain"))["admission"]["podSetAssignments"]
    assert (part["flavors"], "topologyAssignment" in part) == ({GPU: name, "cpu": name}, False)
    await running.condition("plain", "PodsReady", "True")
    await running.edit_workload("plain", active=False)
    await running.empty("plain")
    template = (await running.job("plain"))["spec"]["template"]["spec"]
    assert ("nodeSelector" in template, "tolerations" in template) == (False, False)
    await running.edit_workload("plain", active=True)
    await running.running("plain", 2)
    await client.delete(RESOURCE_FLAVORS, name)


async def test_a_job_that_asks_for_no_topology_gets_slots_where_the_flavor_has_one(running, client, namespace):
    await make_queue(client, namespace, "team", 16, flavors=(namespace,))
    body = queued("free", 2, request={}, gated=False)
    await running.create(body)
    pods = await running.running("free", 2)
    assert all(pod["spec"]["nodeSelector"]["kubernetes.io/hostname"] == pod["spec"]["nodeName"] for pod in pods)


async def test_what_is_wrong_with_its_queue_is_said(running, client, namespace):
    await running.submit("lost", 1, "nowhere")
    assert "there is no LocalQueue nowhere" in await running.waits("lost", "NoQueue")
    await running.event("lost", "NoQueue")
    body = {"apiVersion": API, "kind": "LocalQueue", "metadata": {"name": "nowhere"}}
    await client.create(LOCAL_QUEUES, {**body, "spec": {"clusterQueue": f"{namespace}-later"}}, namespace)

    async def named():
        return f"no ClusterQueue {namespace}-later" in await running.waits("lost", "NoQueue")

    await until(named, "the missing ClusterQueue to be named")
    other = {"matchLabels": {"team": "other"}}
    await make_queue(client, namespace, "later", 8, flavors=(namespace,), selector=other)
    await running.waits("lost", "NamespaceNotSelected")
    await client.patch(NAMESPACES, namespace, body={"metadata": {"labels": {"team": "other"}}})
    await running.running("lost", 1)
    await make_queue(client, namespace, "few", 8, flavors=(namespace,), resources=(GPU,), selector=other)
    await running.submit("uncovered", 1, "few")
    assert "has no quota for cpu" in await running.waits("uncovered", "NoQuota")
    await running.submit("huge", 3, "later", request={KEYS.unconstrained: "true"})
    assert "at most 8 possible" in await running.waits("huge", "ExceedsQuota")


async def test_a_finished_workload_goes_after_its_time_and_one_that_runs_too_long_ends(client, jobs, namespace):
    await make_queue(client, namespace, "team", 16, flavors=(namespace,))
    async with Running(client, workload_retention_seconds=1.0):
        await jobs.submit("brief", 1)
        await jobs.running("brief", 1)
        await jobs.submit("long", 1, labels={KEYS.max_execution: "2"})
        await jobs.condition("long", "Evicted", "True", "MaximumExecutionTimeExceeded")
        await jobs.empty("long")
        assert not (await jobs.workload("long"))["spec"]["active"]
        for pod in await jobs.pods("brief", phase="Running"):
            await jobs.annotate(pod, **{"run-seconds": "0"})

        async def gone():
            return await jobs.workload("brief") is None

        await until(gone, "the Workload of the finished job to go")
        assert await jobs.job("brief")


async def test_pods_of_a_lost_node_without_another_place_put_it_back_into_a_rack_that_is_whole(client, jobs, namespace):
    await make_queue(client, namespace, "team", 16, flavors=(namespace,))
    async with Running(client, replacement_timeout_seconds=2.0, requeuing_backoff_base_seconds=1.0):
        await jobs.submit("moves", 2)
        before = await jobs.running("moves", 2)
        lost = before[0]
        await client.patch(NODES, lost["spec"]["nodeName"], body={"spec": {"unschedulable": True}})
        await client.delete(PODS, lost["metadata"]["name"], namespace)
        found = await jobs.condition("moves", "Evicted", "True", "ReplacementTimeout")
        assert "no other place for 2 seconds" in found["message"]

        async def elsewhere():
            pods = await jobs.pods("moves", phase="Running")
            return len(pods) == 2 and racks_of(pods).isdisjoint(racks_of(before))

        await until(elsewhere, "both pods in another rack")
        assert (await jobs.status("moves"))["requeueState"]["count"] == 1
        assert violations(await snapshot(client, {namespace})) == []


async def test_checks_stand_between_quota_and_the_start_of_a_job(running, client, namespace):
    checks = {"admissionChecks": [{"name": "budget"}]}
    await make_queue(client, namespace, "team", 16, flavors=(namespace,), admissionChecksStrategy=checks)
    await running.submit("checked", 1)
    pending = await running.condition("checked", "Admitted", "False", "Pending")
    assert "budget" in pending["message"]
    await running.condition("checked", "QuotaReserved", "True")
    assert (await running.job("checked"))["spec"]["suspend"]
    workload = await running.workload("checked")
    (check,) = workload["status"]["admissionChecks"]
    assert (check["name"], check["state"]) == ("budget", "Pending")
    body = {"status": {"admissionChecks": [{**check, "state": "Ready", "message": "paid"}]}}
    await client.patch(WORKLOADS, workload["metadata"]["name"], namespace, body=body, subresource="status")
    await running.running("checked", 1)
    await running.condition("checked", "Admitted", "True", "Admitted")


async def answer(jobs, name, **said):
    """What the controller of the check writes, once quota is reserved."""
    await jobs.condition(name, "Admitted", "False", "Pending")
    workload = await jobs.workload(name)
    (check,) = workload["status"]["admissionChecks"]
    update = {"podSetUpdates": [{"name": "main", **said}]}
    body = {"status": {"admissionChecks": [{**check, "state": "Ready", "message": "paid", **update}]}}
    await jobs.client.patch(WORKLOADS, workload["metadata"]["name"], jobs.namespace, body=body, subresource="status")


async def test_what_a_check_adds_is_in_the_pods_and_moves_the_slots_until_the_job_is_put_back(
    running, client, namespace
):
    checks = {"admissionChecks": [{"name": "budget"}]}
    await make_queue(client, namespace, "team", 32, flavors=(namespace,), admissionChecksStrategy=checks)
    for host in ("h1", "h2"):
        fast = {"metadata": {"labels": {"example.com/disk": "fast"}}}
        await client.patch(NODES, f"{namespace}-b2-r1-{host}", body=fast)
    await running.submit("paid", 2)
    before = (await running.job("paid"))["spec"]["template"]
    await answer(
        running,
        "paid",
        labels={"paid-by": "team-a"},
        annotations={"example.com/ticket": "7"},
        nodeSelector={"example.com/disk": "fast"},
        tolerations=[{"key": "example.com/spot", "operator": "Exists"}],
    )
    pods = await running.running("paid", 2)
    assert {pod["spec"]["nodeName"] for pod in pods} == {f"{namespace}-b2-r1-h1", f"{namespace}-b2-r1-h2"}
    for pod in pods:
        assert pod["metadata"]["labels"]["paid-by"] == "team-a"
        assert pod["metadata"]["annotations"]["example.com/ticket"] == "7"
        assert pod["spec"]["nodeSelector"]["example.com/disk"] == "fast"
        assert {"key": "example.com/spot", "operator": "Exists"} in pod["spec"]["tolerations"]
    await running.edit_workload("paid", active=False)
    await running.empty("paid")
    assert (await running.job("paid"))["spec"]["template"] == before
    pool = {"metadata": {"labels": {"example.com/pool": "a"}}}
    await client.patch(NODES, f"{namespace}-b1-r1-h1", body=pool)
    await running.submit("wrong", 1, pod_spec={"nodeSelector": {"example.com/pool": "a"}})
    await answer(running, "wrong", nodeSelector={"example.com/pool": "b"})
    found = await running.condition("wrong", "Evicted", "True", "AdmissionCheckRejected")
    assert 'nodeSelector[example.com/pool]: "b" contradicts "a" of the pod template' in found["message"]
    await running.empty("wrong")
    assert not (await running.workload("wrong"))["spec"]["active"]
    await running.submit("nowhere", 1)
    await answer(running, "nowhere", nodeSelector={"example.com/disk": "slow"})
    found = await running.condition("nowhere", "Evicted", "True", "AdmissionCheckRetry")
    assert "admission check budget wants nodes with example.com/disk=slow" in found["message"]
    await running.condition("nowhere", "Requeued", "False", "BackingOff")

"""Quota: what runs is what was admitted and is charged, whatever changes after the admission."""

import asyncio
import contextlib

import pytest
from support.accounts import label, metadata, refused
from support.jobs import GPU, KEYS, until
from support.queues import queued
from support.siege import ANYWHERE, GPUS, QUOTA, pod, replicated

from kube.errors import Conflict, Invalid
from kube.patches import PatchType
from kube.resources import DEPLOYMENTS, JOBS, PODS, STATEFUL_SETS, WORKLOADS

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]


def group(name, gpus, total, **labels):
    told = {KEYS.pod_group: "evil", KEYS.queue_name: "team", **labels}
    return pod(name, gpus, labels=told, annotations={**ANYWHERE, KEYS.pod_group_total: str(total)})


def larger(gpus):
    """A patch of a pod template."""
    amounts = {GPU: str(gpus), "cpu": "1"}
    container = {"name": "c", "resources": {"requests": amounts, "limits": amounts}}
    return {"spec": {"template": {"spec": {"containers": [container]}}}}


async def edit(siege, resource, name, body):
    await siege.tenant.patch(resource, name, siege.namespace, body=body, content_type=PatchType.STRATEGIC)


async def within(siege):
    """No more than the quota runs; looked at for a while, for nothing should happen."""
    for _ in range(10):
        assert await siege.run_gpus() <= QUOTA
        await asyncio.sleep(0.2)


async def settle(siege):
    """What runs is what is charged, and no more than the quota."""
    await within(siege)
    await siege.paid()


async def settle_alike(siege):
    """The same where pods of one workload differ: all of them are charged like the largest."""
    await within(siege)
    await siege.covered()


async def test_a_group_switches_its_requests_after_its_first_pod(siege):
    await siege.create(group("evil-0", 1, 4))
    await siege.reason("evil", "Admitted")
    for number in range(1, 4):
        await siege.create(group(f"evil-{number}", 8, 4))
    await settle_alike(siege)


async def test_a_group_of_small_pods_ends_and_comes_again_larger(siege):
    for number in range(4):
        await siege.create(group(f"evil-{number}", 1, 4))
    await siege.paid(4)
    for number in range(1, 4):
        await siege.tenant.delete(PODS, f"evil-{number}", siege.namespace, grace_period=0)
        await siege.create(group(f"large-{number}", 8, 4))
    await settle_alike(siege)


async def test_more_pods_than_the_group_says(siege):
    for number in range(2):
        await siege.create(group(f"evil-{number}", 8, 2))
    await siege.paid(2 * GPUS)
    for number in range(2, 8):
        await siege.create(group(f"evil-{number}", 8, 2))
    await settle(siege)
    assert await siege.run_gpus() == 2 * GPUS


async def test_later_pods_say_a_larger_total(siege):
    for number in range(2):
        await siege.create(group(f"evil-{number}", 8, 2))
    await siege.paid(2 * GPUS)
    for number in range(2, 9):
        await siege.create(group(f"evil-{number}", 8, 9))
    await settle(siege)


async def test_a_pod_of_the_group_names_another_queue(siege):
    await siege.create(group("evil-0", 8, 2))
    await siege.create(group("evil-1", 8, 2, **{KEYS.queue_name: "other"}))
    await siege.reason("evil", "InvalidRequest")
    await settle(siege)


async def test_a_pod_of_the_group_names_no_queue(siege):
    await siege.create(group("evil-0", 8, 2))
    body = group("evil-1", 8, 2)
    del body["metadata"]["labels"][KEYS.queue_name]
    await siege.create(body)
    await settle(siege)


@pytest.mark.parametrize("kind", ["StatefulSet", "Deployment"])
@pytest.mark.parametrize("gpus", [8, 64])
async def test_a_rolling_update_to_larger_requests(siege, kind, gpus):
    """Six of 1 GPU become six of 8, of which the quota pays four; or of what no node has."""
    resource = STATEFUL_SETS if kind == "StatefulSet" else DEPLOYMENTS
    await siege.create(replicated(kind, "evil", 6, gpus=1, queue="team"))
    await siege.paid(6)
    await edit(siege, resource, "evil", larger(gpus))
    await settle_alike(siege)


async def test_a_rolling_update_within_the_quota_is_charged_anew(siege):
    await siege.create(replicated("StatefulSet", "evil", 2, gpus=1, queue="team"))
    await siege.paid(2)
    await edit(siege, STATEFUL_SETS, "evil", larger(8))
    await siege.paid(2 * GPUS)


async def test_a_sidecar_asks_for_what_the_job_does_not(siege):
    side = {"name": "s", "image": "i", "restartPolicy": "Always", "resources": {"limits": {GPU: "7"}}}
    await siege.submit("evil", 1, gpus=1, pod_spec={"initContainers": [side]})
    await siege.mine.running("evil", 1)
    await until(lambda: siege.uses(8), "the sidecar to be charged")


async def test_limits_without_requests(siege):
    container = {"name": "c", "image": "i", "resources": {"limits": {GPU: "8"}}}
    await siege.submit("evil", 2, pod_spec={"containers": [container]})
    await siege.mine.running("evil", 2)
    await siege.paid(2 * GPUS)


async def test_a_resource_that_the_queue_has_no_quota_for(siege):
    amounts = {"memory": "1Gi", GPU: "8"}
    container = {"name": "c", "image": "i", "resources": {"requests": amounts, "limits": {GPU: "8"}}}
    await siege.submit("evil", 1, pod_spec={"containers": [container]})
    await siege.reason("evil", "NoQuota")
    await settle(siege)


RELABELLED = {
    "another queue": label({KEYS.queue_name: "other"}),
    "no queue": label({KEYS.queue_name: None}),
    "another group": label({KEYS.pod_group: "other"}),
    "no group": label({KEYS.pod_group: None}),
    "an owner": metadata(
        ownerReferences=[{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "1", "controller": True}]
    ),
}


@pytest.mark.parametrize("what", RELABELLED)
async def test_running_pods_of_a_group_are_given(siege, what):
    for number in range(2):
        await siege.create(group(f"evil-{number}", 8, 2))
    await siege.paid(2 * GPUS)
    for number in range(2):
        await refused(siege.tenant.patch(PODS, f"evil-{number}", siege.namespace, **RELABELLED[what]), "metadata.")
    await siege.restart()
    await siege.paid(2 * GPUS)


async def test_running_pods_are_orphaned_and_their_set_is_made_anew(siege):
    """Those that run on are charged, and those of the new set have what is left."""
    await siege.create(replicated("StatefulSet", "evil", 4, queue="team"))
    await siege.paid(QUOTA)
    await siege.tenant.delete(STATEFUL_SETS, "evil", siege.namespace, propagation="Orphan")
    await siege.gone(STATEFUL_SETS, "evil")
    await siege.create(replicated("StatefulSet", "other", 4, queue="team"))
    await siege.reason("other", "InsufficientQuota")
    await siege.paid(QUOTA)
    await siege.restart()
    await settle(siege)
    await siege.create(replicated("StatefulSet", "evil", 4, queue="team"))
    await settle(siege)


async def test_a_job_is_orphaned_and_made_anew(siege):
    await siege.submit("evil", 4)
    await siege.paid(QUOTA)
    await siege.tenant.delete(JOBS, "evil", siege.namespace, propagation="Orphan")
    await siege.gone(JOBS, "evil")
    await siege.submit("evil", 4)
    await siege.submit("other", 1)
    await settle(siege)


async def test_running_pods_leave_their_set_one_by_one(siege):
    """A label of the set's selector is the tenant's: the set makes others, which the quota does not pay for."""
    await siege.create(replicated("StatefulSet", "evil", 4, queue="team"))
    await siege.paid(QUOTA)
    for number in range(4):
        await siege.tenant.patch(PODS, f"evil-{number}", siege.namespace, **label({"app": f"free-{number}"}))
    await settle(siege)


async def test_running_pods_leave_their_replica_set(siege):
    await siege.create(replicated("Deployment", "evil", 4, queue="team"))
    await siege.paid(QUOTA)
    for found in await siege.admin.list(PODS, siege.namespace):
        await siege.tenant.patch(PODS, found["metadata"]["name"], siege.namespace, **label({"app": "free"}))
    await settle(siege)
    await siege.restart()
    await settle(siege)


async def test_a_job_loses_its_queue_while_it_runs(siege):
    """Without the webhook, which refuses it."""
    await siege.submit("evil", 2)
    await siege.paid(2 * GPUS)
    await siege.tenant.patch(JOBS, "evil", siege.namespace, **label({KEYS.queue_name: None}))
    await siege.submit("other", 4)
    await asyncio.sleep(1)
    await siege.stands()


async def test_a_job_changes_its_queue_while_it_runs(siege):
    await siege.submit("evil", 4)
    await siege.paid(QUOTA)
    await siege.tenant.patch(JOBS, "evil", siege.namespace, **label({KEYS.queue_name: "elsewhere"}))
    await settle(siege)


async def test_a_suspended_job_comes_back_with_other_requests(siege):
    """Kubernetes lets the template of a suspended Job change in part, from some version on its requests too."""
    await siege.submit("evil", 4, gpus=1)
    await siege.paid(4)
    await siege.tenant.patch(JOBS, "evil", siege.namespace, body={"spec": {"suspend": True}})
    for body in (larger(8), {"spec": {"suspend": False}}, larger(8)):
        with contextlib.suppress(Conflict, Invalid):
            await edit(siege, JOBS, "evil", body)
    await settle(siege)


async def test_a_job_asks_for_less_while_its_large_pods_end_slowly(siege):
    """Two pods of 8 GPUs take long to end; meanwhile it asks for two of one, and another wants 24."""
    await siege.submit("evil", 2, annotations={"topogate.dev/stop-seconds": "10"})
    await siege.paid(2 * GPUS)
    await siege.tenant.patch(JOBS, "evil", siege.namespace, body={"spec": {"suspend": True}})

    async def less():
        try:
            await edit(siege, JOBS, "evil", larger(1))
        except (Conflict, Invalid):
            return False
        return True

    await until(less, "the suspended job to ask for less")
    await siege.tenant.patch(JOBS, "evil", siege.namespace, body={"spec": {"suspend": False}})
    assert await siege.run_gpus() >= 2 * GPUS, "its large pods run yet"
    await siege.submit("other", 3)
    for _ in range(5):
        await within(siege)
    await settle_alike(siege)


async def test_an_elastic_job_grows_and_shrinks_as_fast_as_it_can(siege):
    await siege.submit("evil", 1, indexed=True)
    await siege.paid(GPUS)
    for count in (4, 1, 6, 2, 9, 3, 40, 1, 2) * 3:
        try:
            body = {"spec": {"parallelism": count, "completions": count}}
            await siege.tenant.patch(JOBS, "evil", siege.namespace, body=body)
        except Conflict:
            continue
        assert await siege.run_gpus() <= QUOTA
    await siege.paid(2 * GPUS)


async def test_a_job_is_deleted_and_made_anew_over_and_over(siege):
    for _ in range(10):
        await siege.submit("evil", 4)
        await asyncio.sleep(0.1)
        await siege.tenant.delete(JOBS, "evil", siege.namespace, propagation="Background")
        assert await siege.run_gpus() <= QUOTA
    await settle(siege)


async def test_the_workload_goes_inactive_while_its_pods_start(siege):
    for _ in range(4):
        await siege.submit("evil", 4)
        await siege.reason("evil", "Admitted")
        name = (await siege.mine.workload("evil"))["metadata"]["name"]
        await siege.tenant.patch(WORKLOADS, name, siege.namespace, body={"spec": {"active": False}})
        await siege.mine.empty("evil")
        await siege.paid(0)
        await siege.clean()


async def test_a_pod_that_says_to_be_of_the_running_job(siege):
    """Made by hand, with the Job as its controller: the Job deletes what is too much."""
    made = await siege.submit("evil", 1)
    await siege.paid(GPUS)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "evil", "uid": made["metadata"]["uid"]}
    for number in range(6):
        labels = {"batch.kubernetes.io/job-name": "evil", "batch.kubernetes.io/controller-uid": owner["uid"]}
        await siege.create(pod(f"forged-{number}", labels=labels, owner={**owner, "controller": True}))
    await settle(siege)


async def test_a_pod_that_says_to_be_of_the_running_set(siege):
    made = await siege.create(replicated("StatefulSet", "evil", 1, queue="team"))
    await siege.paid(GPUS)
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "evil", "uid": made["metadata"]["uid"]}
    for number in range(6):
        labels = {"app": "evil", KEYS.queue_name: "team"}
        await siege.create(pod(f"evil-{number + 7}", labels=labels, owner={**owner, "controller": True}))
    await settle(siege)


async def test_its_queue_s_label_is_on_the_pods_alone(siege):
    """The Job has no queue, so its pods get none."""
    body = queued("evil", 2, request=ANYWHERE, spec={"suspend": False})
    del body["metadata"]["labels"][KEYS.queue_name]
    body["spec"]["template"]["metadata"]["labels"] = {KEYS.queue_name: "team"}
    await siege.create(body)
    await siege.mine.running("evil", 2)
    assert await siege.used() in {0, 2 * GPUS}

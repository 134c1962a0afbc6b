"""Reservations: nothing is kept for pods that never come, or for one who waits, at the cost of those who would run."""

import asyncio
import contextlib

import pytest
import pytest_asyncio
from support.jobs import GPU, KEYS, RACK_LABEL, until
from support.jobsets import jobset
from support.queues import queued
from support.siege import ANYWHERE, GPUS, HOSTS, pod, replicated

from kube.errors import NotFound
from kube.resources import JOB_SETS, JOBS, PODS, RESOURCE_QUOTAS, STATEFUL_SETS, WORKLOADS
from localcluster.nodes import BLOCK_LABEL

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]
SETTINGS = {"queue_patience_seconds": 0.5, "missing_pods_recovery_timeout_seconds": 120.0}

FREE = HOSTS - 2  # hosts that honest jobs do not have from the beginning


def unqueued(name, pods, **options):
    body = queued(name, pods, **{"request": ANYWHERE, **options})
    body["spec"]["suspend"] = False
    del body["metadata"]["labels"][KEYS.queue_name]
    return body


@pytest_asyncio.fixture(loop_scope="module")
async def forbidden(siege):
    """A ResourceQuota of the attacker's namespace that lets none of its pods have a GPU."""
    body = {"metadata": {"name": "none"}, "spec": {"hard": {f"requests.{GPU}": "0"}}}
    await siege.admin.create(RESOURCE_QUOTAS, body, siege.namespace)


@pytest.mark.parametrize("queue", ["", "team"])
async def test_a_job_whose_pods_a_resource_quota_refuses(siege, forbidden, queue):
    if queue:
        await siege.submit("evil", 4)
    else:
        await siege.create(unqueued("evil", FREE))
    await siege.reason("evil", "PodsMissing")


async def test_ten_such_jobs_one_after_the_other(siege, forbidden):
    for number in range(10):
        await siege.create(unqueued(f"evil-{number}", FREE))
    await siege.reason("evil-0", "PodsMissing")


async def test_a_resource_quota_lets_half_of_the_pods_come(siege):
    body = {"metadata": {"name": "half"}, "spec": {"hard": {f"requests.{GPU}": str(2 * GPUS)}}}
    await siege.admin.create(RESOURCE_QUOTAS, body, siege.namespace)
    await siege.submit("evil", 4)
    await siege.reason("evil", "PodsMissing")
    await siege.paid(2 * GPUS)


async def kept(siege):
    """How many slots the attacker's jobs have."""
    found = await siege.admin.list(WORKLOADS, siege.namespace)
    parts = [part for one in found for part in one.get("status", {}).get("admission", {}).get("podSetAssignments", [])]
    return sum(part["count"] for part in parts)


async def told(siege, name):
    """Why the attacker's job waits."""
    for one in await siege.admin.list(WORKLOADS, siege.namespace):
        if one["metadata"]["ownerReferences"][0]["name"] == name:
            said = one.get("status", {}).get("conditions", [])
            return next((found["message"] for found in said if found["type"] == "QuotaReserved"), "")
    return ""


def of_no_account(name, pods):
    """A Job whose pods are never made, as their account is not there."""
    body = unqueued(name, pods)
    body["spec"]["template"]["spec"]["serviceAccountName"] = "gone"
    return body


async def in_turn(siege, *specs):
    """Change the Job ``evil`` every half a second until it is told that its pods did not come, for a minute at most."""
    for step in range(120):
        await siege.tenant.patch(JOBS, "evil", siege.namespace, body={"spec": specs[step % len(specs)]})
        await asyncio.sleep(0.5)
        if "not created in time" in await told(siege, "evil"):
            return
    pytest.fail(f"{await kept(siege)} slots are held for pods that nobody makes")


async def test_a_job_without_an_account_asks_for_less_and_for_more_in_turn(siege):
    await siege.restart()  # it forgets what others before did
    await siege.create(of_no_account("evil", FREE))
    await in_turn(siege, {"parallelism": FREE - 1}, {"parallelism": FREE})


async def test_a_job_asks_for_what_is_there_and_for_everything_in_turn(siege):
    """A ResourceQuota lets one pod come."""
    await siege.restart()
    body = {"metadata": {"name": "one"}, "spec": {"hard": {f"requests.{GPU}": str(GPUS)}}}
    await siege.admin.create(RESOURCE_QUOTAS, body, siege.namespace)
    await siege.create(unqueued("evil", FREE))
    await siege.reason("evil", "PodsMissing")
    for step in range(10):
        spec = {"parallelism": FREE if step % 2 else 1}
        await siege.tenant.patch(JOBS, "evil", siege.namespace, body={"spec": spec})
        await asyncio.sleep(1.0)
        assert step == 0 or await kept(siege) <= 1


async def test_a_job_is_suspended_and_resumed_before_the_time_of_its_pods_is_over(siege):
    await siege.restart()
    await siege.create(of_no_account("evil", FREE))
    await in_turn(siege, {"suspend": True}, {"suspend": False})


async def test_jobs_one_after_the_other_each_deleted_before_the_time_of_its_pods_is_over(siege):
    await siege.restart()
    for number in range(60):
        name = f"evil-{number}"
        await siege.create(of_no_account(name, FREE))
        await asyncio.sleep(1.0)
        if "pods of others" in await told(siege, name):
            assert await kept(siege) == 0
            return
        await siege.tenant.delete(JOBS, name, siege.namespace, propagation="Background")
    pytest.fail("each has its slots")


@pytest.mark.parametrize("queue", ["", "team"])
async def test_a_job_that_somebody_else_manages(siege, queue):
    body = queued("evil", 4, request=ANYWHERE) if queue else unqueued("evil", FREE)
    body["spec"]["managedBy"] = "example.com/nobody"
    await siege.tenant.create(JOBS, body, siege.namespace)


@pytest.mark.parametrize("queue", ["", "team"])
async def test_a_jobset_whose_jobs_nobody_makes(siege, queue):
    """No controller of JobSets runs here."""
    body = jobset("evil", {"workers": (2, 2)}, queue=queue, annotations=ANYWHERE, gpus=8)
    await siege.tenant.create(JOB_SETS, body, siege.namespace)
    if queue:
        await siege.reason("evil", "PodsMissing")


async def test_a_jobset_that_somebody_else_manages(siege):
    body = jobset("evil", {"workers": (2, 2)}, queue="team", annotations=ANYWHERE, gpus=8)
    body["spec"]["managedBy"] = "example.com/nobody"
    await siege.tenant.create(JOB_SETS, body, siege.namespace)


async def test_a_bare_pod_says_that_it_is_one_of_six(siege):
    await siege.create(pod("evil", annotations={**ANYWHERE, KEYS.pod_group_total: str(FREE)}))
    await siege.reason("evil", "Admitted")


@pytest.mark.parametrize("queue", ["", "team"])
async def test_one_pod_of_a_group_of_four(siege, queue):
    labels = {KEYS.pod_group: "evil", **({KEYS.queue_name: queue} if queue else {})}
    await siege.create(pod("evil", labels=labels, annotations={**ANYWHERE, KEYS.pod_group_total: "4"}))
    await siege.reason("evil", "PodsMissing")
    if queue:
        await siege.paid(GPUS)


async def test_fifty_groups_of_six_of_which_one_pod_each_comes(siege):
    for number in range(50):
        labels = {KEYS.pod_group: f"evil-{number}"}
        await siege.create(
            pod(f"evil-{number}", labels=labels, annotations={**ANYWHERE, KEYS.pod_group_total: str(FREE)})
        )


async def test_a_job_without_a_queue_waits_for_all_nodes(siege):
    """Once its patience is over, those that fit still go."""
    await siege.create(unqueued("evil", HOSTS))
    await siege.reason("evil", "DoesNotFit")
    for _ in range(3):
        await siege.stands()


async def test_a_hundred_jobs_without_a_queue_wait_for_a_block(siege):
    for number in range(100):
        await siege.create(unqueued(f"evil-{number}", HOSTS // 2, request={KEYS.required[0]: BLOCK_LABEL}))
    await siege.reason("evil-99", "DoesNotFit")


async def test_a_job_that_has_slots_and_ends_its_pods_before_they_run(siege):
    await siege.create(unqueued("evil", 2))
    await siege.mine.running("evil", 2)
    for _ in range(5):
        for found in await siege.mine.pods("evil"):
            with contextlib.suppress(NotFound):
                await siege.tenant.delete(PODS, found["metadata"]["name"], siege.namespace, grace_period=0)


async def test_a_job_that_is_deleted_and_kept_by_a_finalizer(siege):
    body = queued("evil", 4, request=ANYWHERE)
    body["metadata"]["finalizers"] = ["example.com/forever"]
    await siege.create(body)
    await siege.mine.running("evil", 4)
    await siege.tenant.delete(JOBS, "evil", siege.namespace, propagation="Background")
    await siege.stands()
    await siege.paid(4 * GPUS)  # its pods run on until it is gone


async def test_a_finished_job_that_is_kept(siege):
    body = queued("evil", 4, request=ANYWHERE)
    body["spec"]["template"]["metadata"]["finalizers"] = ["example.com/forever"]
    await siege.create(body)
    await siege.mine.running("evil", 4)
    await siege.mine.finish("evil")
    await siege.paid(0)


async def test_a_suspended_job_without_a_queue(siege):
    body = unqueued("evil", FREE)
    body["spec"]["suspend"] = True
    await siege.create(body)
    await siege.reason("evil", "Suspended")


async def test_a_stateful_set_that_is_scaled_beyond_what_there_is(siege):
    await siege.create(replicated("StatefulSet", "evil", 2, queue="team"))
    await siege.paid(2 * GPUS)
    await siege.tenant.patch(STATEFUL_SETS, "evil", siege.namespace, body={"spec": {"replicas": 40}})
    await siege.stands()
    assert await siege.run_gpus() <= 4 * GPUS


async def test_slices_that_do_not_divide(siege):
    request = {KEYS.slice_level: RACK_LABEL, KEYS.slice_size: "3"}
    await siege.create(unqueued("evil", 4, request=request))
    await siege.reason("evil", "NeverFits")  # the last slice is a part of one, and a rack here takes no whole one


async def test_two_groups_of_pod_sets_in_one_job(siege):
    await siege.create(unqueued("evil", 2, request={**ANYWHERE, KEYS.group: "steady"}))


async def test_a_gate_of_its_own_keeps_admitted_pods_from_running(siege):
    """They exist and hold what their quota pays for, and no more."""
    gates = [{"name": KEYS.gate}, {"name": "example.com/never"}]
    await siege.submit("evil", 4, pod_spec={"schedulingGates": gates})
    await siege.reason("evil", "Admitted")
    assert await siege.run_gpus() == 0


async def test_a_gate_of_its_own_holds_what_a_resource_quota_counts(siege):
    """Without a queue: pods behind it are counted as if they ran."""
    await siege.restart()
    body = {"metadata": {"name": "two"}, "spec": {"hard": {f"requests.{GPU}": str(2 * GPUS)}}}
    await siege.admin.create(RESOURCE_QUOTAS, body, siege.namespace)
    gates = [{"name": KEYS.gate}, {"name": "example.com/never"}]
    await siege.create(unqueued("evil", FREE, pod_spec={"schedulingGates": gates}))
    await siege.reason("evil", "PodsMissing")

    async def few():
        return await kept(siege) <= 2

    await until(few, "the slots of others to be given back")

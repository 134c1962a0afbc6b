"""Priority: whatever a tenant writes, nobody who came first is evicted for it.

Attacker and honest tenant share one ClusterQueue that preempts; an honest job has all of its quota.
"""

import asyncio
from contextlib import suppress

import pytest
import pytest_asyncio
from support.accounts import refused
from support.jobs import KEYS
from support.jobsets import jobset
from support.queues import queued
from support.siege import ANYWHERE, make_shared_queue, pod, replicated

from crds import constants
from kube.errors import NotFound
from kube.patches import PatchType
from kube.resources import CLUSTER_QUEUES, JOB_SETS, JOBS, LOCAL_QUEUES, WORKLOADS

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module", autouse=True)
async def shared(siege):
    """The queues of both: ``shared``, full of an honest job, and ``fair``."""
    name = f"{siege.name}-shared"
    await make_shared_queue(siege, name, 16)
    await make_shared_queue(siege, f"{siege.name}-fair", 16, local="fair")
    await siege.hold("first", 2, "shared")
    yield
    for local in ("shared", "fair"):
        for namespace in (siege.namespace, siege.theirs.namespace):
            await siege.admin.delete(LOCAL_QUEUES, local, namespace)
        await siege.admin.delete(CLUSTER_QUEUES, f"{siege.name}-{local}")


async def waits(siege, name="evil"):
    await siege.reason(name, "InsufficientQuota")


@pytest.mark.parametrize("name", ["system-node-critical", "system-cluster-critical", "high", "no-such-class"])
async def test_a_label_names_a_priority_class_that_the_pods_do_not_have(siege, name):
    await siege.submit("evil", 2, "shared", labels={KEYS.priority_class: name})
    await siege.reason("evil", "UnknownPriorityClass")


async def test_the_label_comes_once_the_job_waits(siege):
    await siege.submit("evil", 2, "shared")
    await waits(siege)
    label = {"metadata": {"labels": {KEYS.priority_class: "system-node-critical"}}}
    await siege.tenant.patch(JOBS, "evil", siege.namespace, body=label)
    await siege.restart()
    await waits(siege)


async def test_a_number_in_the_template_without_a_class(siege):
    await siege.submit("evil", 2, "shared", pod_spec={"priority": 2_000_000_000})
    await waits(siege)
    assert (await siege.mine.workload("evil"))["spec"].get("priority", 0) == 0


async def test_a_group_with_the_label(siege):
    labels = {KEYS.pod_group: "evil", KEYS.queue_name: "shared", KEYS.priority_class: "system-node-critical"}
    await siege.create(pod("evil", labels=labels))
    await siege.reason("evil", "UnknownPriorityClass")


async def test_a_stateful_set_with_the_label(siege):
    body = replicated("StatefulSet", "evil", 2, queue="shared")
    body["spec"]["template"]["metadata"]["labels"][KEYS.priority_class] = "high"
    await siege.create(body)
    await siege.reason("evil", "UnknownPriorityClass")


async def test_a_jobset_with_the_label(siege):
    body = jobset("evil", {"workers": (1, 2)}, queue="shared", annotations=ANYWHERE)
    body["metadata"]["labels"][KEYS.priority_class] = "system-node-critical"
    await siege.tenant.create(JOB_SETS, body, siege.namespace)
    await siege.reason("evil", "UnknownPriorityClass")


WRITES = {
    "a merge patch": {"body": {"spec": {"priority": 10**9}}, "content_type": PatchType.MERGE},
    "a JSON patch": {
        "body": [{"op": "add", "path": "/spec/priority", "value": 10**9}],
        "content_type": PatchType.JSON,
    },
    "a class": {"body": {"spec": {"priorityClassName": "system-node-critical"}}, "content_type": PatchType.MERGE},
    "inactive at once": {"body": {"spec": {"priority": 10**9, "active": False}}, "content_type": PatchType.MERGE},
}


@pytest.mark.parametrize("what", WRITES)
async def test_the_workload_is_given_a_priority_by(siege, what):
    await siege.submit("evil", 2, "shared")
    await waits(siege)
    name = (await siege.mine.workload("evil"))["metadata"]["name"]
    await refused(siege.tenant.patch(WORKLOADS, name, siege.namespace, **WRITES[what]), "spec.priority")


async def test_the_workload_is_given_a_nomination_and_an_admission(siege):
    await siege.submit("evil", 2, "shared")
    await waits(siege)
    name = (await siege.mine.workload("evil"))["metadata"]["name"]
    admission = {"clusterQueue": f"{siege.name}-shared", "podSetAssignments": [{"name": "main", "count": 2}]}
    body = {"status": {"admission": admission}}
    await refused(siege.tenant.patch(WORKLOADS, name, siege.namespace, body=body, subresource="status"), "cannot")
    await siege.tenant.patch(WORKLOADS, name, siege.namespace, body=body)
    assert "admission" not in (await siege.mine.workload("evil"))["status"]


async def test_the_workload_goes_inactive_and_active_over_and_over(siege):
    await siege.submit("evil", 2, "shared")
    await waits(siege)
    name = (await siege.mine.workload("evil"))["metadata"]["name"]
    for at in range(20):
        await siege.tenant.patch(WORKLOADS, name, siege.namespace, body={"spec": {"active": bool(at % 2)}})
    await waits(siege)


async def test_it_calls_itself_older_than_all_others(siege):
    body = queued("evil", 2, "shared", request=ANYWHERE)
    body["metadata"]["creationTimestamp"] = "1970-01-01T00:00:00Z"
    body["metadata"]["annotations"]["topogate.dev/created"] = "1970-01-01T00:00:00Z"
    await siege.create(body)
    await waits(siege)


async def test_it_unsuspends_itself(siege):
    """Its pods are made, and wait behind the gate."""
    await siege.submit("evil", 2, "shared")
    await waits(siege)
    for _ in range(5):
        await siege.tenant.patch(JOBS, "evil", siege.namespace, body={"spec": {"suspend": False}})
        await asyncio.sleep(0.1)
    assert await siege.run_gpus() == 0


async def test_it_says_that_others_are_evicted_slice_by_slice(siege):
    request = {**ANYWHERE, constants.EVICT_BY: "slice"}
    await siege.submit("evil", 2, "shared", request=request, annotations={constants.EVICT_BY: "slice"})
    await waits(siege)


async def test_a_hundred_small_jobs_wait_behind(siege):
    for number in range(100):
        await siege.submit(f"evil-{number}", 1, "shared", gpus=1)
    await waits(siege, "evil-99")


async def test_a_later_pod_of_a_group_has_the_label(siege):
    labels = {KEYS.pod_group: "evil", KEYS.queue_name: "shared"}
    annotations = {**ANYWHERE, KEYS.pod_group_total: "2"}
    await siege.create(pod("evil-0", labels=labels, annotations=annotations))
    await siege.create(pod("evil-1", labels={**labels, KEYS.priority_class: "high"}, annotations=annotations))
    await siege.reason("evil-0", "InsufficientQuota")
    await siege.restart()
    await siege.stands()


async def test_a_victim_has_its_workload_deleted_before_each_step(siege):
    """As the admin of a namespace may do it, as fast as he can: who waits for its room gets it all the same."""
    await siege.submit("evil", 2, "fair")
    await siege.mine.running("evil", 2)

    async def delete() -> None:
        while True:
            for workload in await siege.admin.list(WORKLOADS, siege.namespace):
                with suppress(NotFound):
                    await siege.admin.delete(WORKLOADS, workload["metadata"]["name"], siege.namespace)

    deleting = asyncio.create_task(delete())
    try:
        await siege.theirs.submit("important", 2, "fair", request=ANYWHERE, priority="high")
        await siege.theirs.running("important", 2)
    finally:
        deleting.cancel()
        with suppress(asyncio.CancelledError):
            await deleting
        await siege.theirs.delete("important")

"""Costs: what one namespace stores and makes takes neither the memory nor the time nor the room of others."""

import asyncio

import pytest
from support.jobs import KEYS
from support.queues import queued
from support.siege import ANYWHERE, HOSTS, pod

from kube.resources import JOBS, PERSISTENT_VOLUME_CLAIMS, POD_DISRUPTION_BUDGETS, PODS
from localcluster.nodes import BLOCK_LABEL

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]
HOLD = 1.0
SETTINGS = {"queue_patience_seconds": 0.5, "queue_hold_seconds": HOLD}

AT_ONCE = 16
MOST = 2**31 - 1
MANY = 9  # of them more than a page takes
SELECTOR = {"matchExpressions": [{"key": "a", "operator": "In", "values": ["aa"] * 200_000}]}  # 1 MB, and 17 decoded
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


async def flood(siege, calls):
    todo = iter(calls)

    async def some():
        for call in todo:
            await call()

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(some())


def hopeless(name, pods):
    term = {"labelSelector": {"matchLabels": {"there-is": "nobody"}}, "topologyKey": BLOCK_LABEL}
    spec = {"affinity": {"podAffinity": {REQUIRED: [term]}}}
    return queued(name, pods, request={KEYS.required[0]: BLOCK_LABEL}, pod_spec=spec)


async def test_jobs_that_can_never_run_wait_for_longer_than_room_is_kept_softly(siege):
    """One near pods that nobody has, and one of a volume that is not there: they close nothing."""
    await siege.create(hopeless("never", 2))
    lacking = [{"name": "v", "persistentVolumeClaim": {"claimName": "not-there"}}]
    await siege.submit("lacks", 2, pod_spec={"volumes": lacking})
    await siege.reason("lacks", "VolumeNotReady")
    await asyncio.sleep(3 * HOLD)
    await siege.stands()
    await siege.theirs.submit("whole", HOSTS - 2, request=ANYWHERE)
    await siege.theirs.running("whole", HOSTS - 2)
    await siege.admin.delete(JOBS, "whole", siege.theirs.namespace, propagation="Background")


async def test_budgets_and_claims_with_selectors_of_a_megabyte(siege):
    """Nine of each, over which the controller starts anew; the job that they select keeps running."""
    await siege.submit("evil", 1)
    await siege.mine.running("evil", 1)

    def budget(number):
        body = {"metadata": {"name": f"evil-{number}"}, "spec": {"maxUnavailable": 1, "selector": SELECTOR}}
        return lambda: siege.tenant.create(POD_DISRUPTION_BUDGETS, body, siege.namespace)

    def claim(number):
        asked = {"accessModes": ["ReadWriteOnce"], "storageClassName": "none", "selector": SELECTOR}
        spec = {**asked, "resources": {"requests": {"storage": "1Gi"}}}
        body = {"metadata": {"name": f"evil-{number}"}, "spec": spec}
        return lambda: siege.tenant.create(PERSISTENT_VOLUME_CLAIMS, body, siege.namespace)

    try:
        await flood(siege, [each(number) for number in range(MANY) for each in (budget, claim)])
        await siege.stands()
        await siege.restart()
        await siege.stands()
    finally:
        for number in range(MANY):
            await siege.admin.delete(PERSISTENT_VOLUME_CLAIMS, f"evil-{number}", siege.namespace)


async def test_pods_made_and_deleted_at_once_and_groups_whose_total_never_comes(siege):
    """An honest job beside them is placed while they are looked at."""

    def made(number):
        async def call():
            name = f"evil-{number}"
            await siege.create(pod(name, labels={KEYS.queue_name: "team"}))
            await siege.tenant.delete(PODS, name, siege.namespace, grace_period=0)

        return call

    def group(number):
        annotations = {**ANYWHERE, KEYS.pod_group_total: str(MOST - number)}
        body = pod(f"group-{number}", labels={KEYS.pod_group: f"g{number}"}, annotations=annotations)
        return lambda: siege.create(body)

    calls = [each(number) for number in range(60) for each in (made, group)]
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(flood(siege, calls))
        tasks.create_task(siege.stands())

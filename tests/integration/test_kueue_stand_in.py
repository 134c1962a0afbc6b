"""The stand-in for Kueue does with the answers of a check what Kueue 0.19.2 does (compared with the real one by hand).

Two jobs ask for all quota of a queue whose check this file answers; nothing of ours runs.
"""

import asyncio
import contextlib
from contextlib import asynccontextmanager

import pytest
from support import kueue_kinds
from support.jobs import GPU, job, until
from support.kueue import QUEUE_NAME, Kueue, now, true
from support.kueue_queue import condition, requeue_at, seconds

from kube.errors import Conflict
from kube.resources import JOBS

pytestmark = pytest.mark.cluster

CONTROLLER = "example.com/check"
RESET = "Reset to Pending after eviction. Previously: "


@pytest.fixture(scope="module")
def kinds(cluster):
    with kueue_kinds.installed(cluster):
        yield


class Case:
    """Two jobs, of which the first has the quota, and their check."""

    def __init__(self, client, namespace, kueue):
        self.client, self.namespace, self.kueue = client, namespace, kueue

    async def submit(self, name, gpus):
        body = job(name, 1, gpus=gpus, request={}, gated=False, labels={QUEUE_NAME: "team"}, spec={"suspend": True})
        await self.client.create(JOBS, body, self.namespace)

    async def is_so(self, name, what, condition_):
        """Wait for the job's Workload to be so."""

        async def found():
            workload = await self.kueue.workload(name)
            return workload if workload and condition_(workload) else None

        try:
            return await until(found, f"{name}: {what}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {await self.kueue.workload(name)}; {self.kueue.broken}") from None

    async def has_quota(self, name):
        return await self.is_so(name, "quota", lambda w: true(w, "QuotaReserved") and check_of(w))

    async def answer(self, workload, state, **more):
        """As the check's controller answers, for this version of the Workload."""
        entry = {"name": self.namespace, "state": state, "message": "m", "lastTransitionTime": now(), **more}
        await self._apply("Workload", workload, {"admissionChecks": [entry]})

    async def _apply(self, kind, found, status):
        resource = self.kueue.kinds[kind]
        names = ("name", "namespace", "uid", "resourceVersion")
        metadata = {key: found["metadata"][key] for key in names if key in found["metadata"]}
        body = {"apiVersion": resource.api_version, "kind": kind, "metadata": metadata, "status": status}
        await self.client.apply(resource, body, field_manager=CONTROLLER, subresource="status")

    async def activate(self, name, *, active):
        workload = await self.kueue.workload(name)
        body = {"spec": {"active": active}}
        await self.client.patch(self.kueue.workload_kind, workload["metadata"]["name"], self.namespace, body=body)

    async def retry_and_then_again(self, name, delay):
        """Retry; when it is evicted once more, with a delay; Pending when Kueue has noted that.

        The second must come before it is requeued, or its quota is back already: then all of it again.
        """
        noted = False
        while not noted:
            workload = await self.kueue.workload(name)
            quota, evicted = true(workload, "QuotaReserved"), true(workload, "Evicted")
            state, noted = check_of(workload)["state"], requeue_at(workload) > 0
            with contextlib.suppress(Conflict):
                if state == "Pending" and quota and not evicted:
                    await self.answer(workload, "Retry")
                elif state == "Pending" and evicted and (quota or not true(workload, "Requeued")) and not noted:
                    await self.answer(workload, "Retry", requeueAfterSeconds=delay)
                elif state == "Retry" and noted:
                    await self.answer(workload, "Pending")
                    return
                noted = False


def check_of(workload):
    return next(iter(workload.get("status", {}).get("admissionChecks", [])), None)


def came_back(times):
    """Whether it has its quota again, after so many evictions by Retry."""
    return lambda w: check_of(w).get("retryCount") == times and true(w, "QuotaReserved") and not true(w, "Evicted")


@asynccontextmanager
async def open_case(client, namespace, strategy="BestEffortFIFO"):
    async with Kueue(client, namespace) as kueue:
        case = Case(client, namespace, kueue)
        check = await kueue.make("AdmissionCheck", namespace, {"controllerName": CONTROLLER})
        status = {"type": "Active", "status": "True", "reason": "x", "message": "", "lastTransitionTime": now()}
        await case._apply("AdmissionCheck", {"metadata": {"name": check["metadata"]["name"]}}, {"conditions": [status]})
        await kueue.make("ResourceFlavor", namespace, {"nodeLabels": {"example.com/no": "node"}})
        quota = [{"name": GPU, "nominalQuota": 8}, {"name": "cpu", "nominalQuota": 100}]
        group = {"coveredResources": [GPU, "cpu"], "flavors": [{"name": namespace, "resources": quota}]}
        spec = {
            "namespaceSelector": {},
            "queueingStrategy": strategy,
            "admissionChecksStrategy": {"admissionChecks": [{"name": namespace}]},
            "resourceGroups": [group],
        }
        await kueue.make("ClusterQueue", namespace, spec)
        await kueue.make("LocalQueue", "team", {"clusterQueue": namespace})
        await case.submit("first", 8)
        await case.has_quota("first")
        await case.submit("second", 7)  # of the same shape it would be treated alike
        await case.is_so("second", "tried", lambda w: condition(w, "QuotaReserved").get("status") == "False")
        yield case
        assert kueue.broken == []
    for kind in ("ClusterQueue", "ResourceFlavor", "AdmissionCheck"):
        await client.delete(kueue.kinds[kind], namespace)


@pytest.fixture
async def case(kinds, client, namespace):
    async with open_case(client, namespace) as made:
        yield made


async def test_retry_with_a_delay_keeps_the_quota_until_then_and_has_it_back_before_another(case):
    await case.answer(await case.has_quota("first"), "Retry", requeueAfterSeconds=3)
    waiting = await case.is_so("first", "requeueAt", requeue_at)
    assert requeue_at(waiting) == seconds(check_of(waiting)["lastTransitionTime"]) + 3
    assert true(waiting, "QuotaReserved")
    assert not true(waiting, "Evicted")
    evicted = await case.is_so("first", "evicted", lambda w: true(w, "Evicted"))
    assert seconds(condition(evicted, "Evicted")["lastTransitionTime"]) >= requeue_at(waiting)
    back = await case.is_so("first", "quota again", came_back(1))
    assert check_of(back)["message"] == f"{RESET}Retry"
    assert check_of(back)["state"] == "Pending"
    await asyncio.sleep(2)
    assert "admission" not in (await case.kueue.workload("second"))["status"]


@pytest.mark.parametrize(("strategy", "winner"), [("BestEffortFIFO", "first"), ("StrictFIFO", "second")])
async def test_retry_without_a_delay_evicts_at_once_and_only_a_strict_queue_gives_others_the_quota(
    kinds, client, namespace, strategy, winner
):
    async with open_case(client, namespace, strategy) as case:
        await case.answer(await case.has_quota("first"), "Retry")
        if winner == "first":
            await case.is_so("first", "quota again", came_back(1))
            await asyncio.sleep(2)
        await case.has_quota(winner)
        loser = "second" if winner == "first" else "first"
        assert "admission" not in (await case.kueue.workload(loser))["status"]
        assert "requeueAt" not in (await case.kueue.workload(loser))["status"].get("requeueState", {})


async def test_a_delay_that_is_told_after_the_eviction_keeps_it_away_while_others_have_the_quota(case):
    await case.retry_and_then_again("first", 4)
    backing = await case.kueue.workload("first")
    assert not true(backing, "QuotaReserved") or true(backing, "Evicted")
    await case.has_quota("second")
    back = await case.is_so("first", "requeued", lambda w: true(w, "Requeued"))
    assert seconds(condition(back, "Requeued")["lastTransitionTime"]) >= requeue_at(backing)
    assert "requeueAt" not in back["status"].get("requeueState", {})
    await case.client.delete(JOBS, "second", case.namespace, propagation="Background")
    body = await case.kueue.workload("second")
    with contextlib.suppress(Exception):
        await case.client.delete(case.kueue.workload_kind, body["metadata"]["name"], case.namespace)
    await case.is_so("first", "quota again", came_back(1))


async def test_one_whose_check_stays_retry_gets_no_quota(case):
    await case.answer(await case.has_quota("first"), "Retry")
    while True:
        workload = await case.kueue.workload("first")
        if true(workload, "Evicted") and check_of(workload)["state"] == "Pending":
            with contextlib.suppress(Conflict):
                await case.answer(workload, "Retry", requeueAfterSeconds=1)
                break
    found = await case.is_so(
        "first", "refused", lambda w: "failed admission checks" in condition(w, "QuotaReserved").get("message", "")
    )
    assert "admission" not in found["status"]
    await case.has_quota("second")


async def test_rejected_deactivates_and_only_a_new_workload_comes_back(case):
    await case.answer(await case.has_quota("first"), "Rejected")
    gone = await case.is_so(
        "first",
        "without quota",
        lambda w: condition(w, "QuotaReserved")["status"] == "False" and "admission" not in w["status"],
    )
    assert gone["spec"]["active"] is False
    evicted = condition(gone, "Evicted")
    assert evicted["reason"] == "DeactivatedDueToAdmissionCheck"
    assert evicted["message"].endswith(f'AdmissionCheck in Rejected state: "{case.namespace}" (m)')
    assert condition(gone, "Requeued")["status"] == "False"
    assert check_of(gone)["message"] == f"{RESET}Rejected"
    await case.answer(await case.has_quota("second"), "Rejected")
    await case.is_so("second", "inactive", lambda w: not w["spec"]["active"])
    await case.activate("first", active=True)
    await asyncio.sleep(3)
    assert not true(await case.kueue.workload("first"), "QuotaReserved")
    name = gone["metadata"]["name"]
    await case.client.delete(case.kueue.workload_kind, name, case.namespace)
    await case.has_quota("first")


async def test_one_that_somebody_deactivated_comes_back_when_it_is_active_again(case):
    await case.activate("first", active=False)
    await case.is_so("first", "evicted", lambda w: condition(w, "Evicted").get("reason") == "Deactivated")
    await case.has_quota("second")
    await case.activate("first", active=True)
    await case.is_so("first", "requeued", lambda w: condition(w, "Requeued").get("reason") == "Reactivated")

"""Beside Kueue on the real control plane: its kinds, a stand-in for its scheduler, and our controller in this process.

One block of two racks of two hosts of 8 GPUs; a job of two pods of 8 GPUs takes a rack.
"""

import asyncio
import json
import re
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path

import pytest
import yaml
from support import kueue_kinds
from support.cluster_checker import snapshot, violations
from support.jobs import RACK_LABEL, Running, Watched, install_crds, job, make_flavor, nodes_of, racks_of, until
from support.kueue import PRIORITY, QUEUE_NAME, Kueue, now, true
from support.kueue_queue import condition

from cli.explain.report import report
from crds.constants import DEFAULT_DOMAIN, Keys
from kube.resources import JOBS, PODS, RESOURCE_FLAVORS, WORKLOADS, resource_of
from localcluster.nodes import GROUP_LABEL
from manifests import render
from ungater.kueue import bridge, retries
from ungater.kueue.answers import NOTHING_TO_PLACE
from ungater.model.kueue_objects import CONTROLLER

pytestmark = pytest.mark.cluster

DOMAIN = "topogate.dev"
KEYS = Keys(DOMAIN)
POOL = "example.com/pool"
THING = {"apiGroup": "x.dev", "kind": "Thing", "name": "x"}
NEXT_STEP = retries.next_step
PAGE = Path(__file__).parents[2] / "docs" / "kueue.md"


@pytest.fixture(scope="module")
def kinds(cluster):
    """Kueue's kinds, for this file alone."""
    with kueue_kinds.installed(cluster):
        yield


def slots_of(workload):
    """{hostname: pods} of our Workload's admission."""
    admission = workload.get("status", {}).get("admission")
    slices = admission["podSetAssignments"][0]["topologyAssignment"]["slices"] if admission else []
    return {part["nodeLabels"]["kubernetes.io/hostname"]: part["count"] for part in slices}


class Site(Watched):
    """One namespace with a queue, its quota, and the check ``check``."""

    def __init__(self, client, namespace, kueue):
        super().__init__(client, namespace)
        self.kueue, self.check = kueue, f"topology-{namespace}"
        self.made = []

    async def make(self, kind, name, spec):
        self.made.append((kind, name))
        await self.kueue.make(kind, name, spec)

    async def queue(self, name, *flavors, checks, gpus=1000, strategy="BestEffortFIFO"):
        """A LocalQueue and ClusterQueue of this name."""
        quota = [{"name": "nvidia.com/gpu", "nominalQuota": gpus}, {"name": "cpu", "nominalQuota": 1000}]
        offered = [{"name": flavor, "resources": quota} for flavor in flavors]
        group = {"coveredResources": ["nvidia.com/gpu", "cpu"], "flavors": offered}
        spec = {"namespaceSelector": {}, "queueingStrategy": strategy, "resourceGroups": [group]}
        if checks:
            spec["admissionChecksStrategy"] = {"admissionChecks": [{"name": check} for check in checks]}
        cluster = f"{name}-{self.namespace}"
        await self.make("ClusterQueue", cluster, spec)
        await self.kueue.make("LocalQueue", name, {"clusterQueue": cluster})

    async def submit(self, name, pods=2, *, queue="team", level=RACK_LABEL, gpus=8, priority=0):
        """A Job of a user, as both webhooks leave it; ``level`` empty: without a topology request."""
        request = {KEYS.required[0]: level} if level else {}
        labels = {QUEUE_NAME: queue, PRIORITY: str(priority)}
        body = job(name, pods, gpus=gpus, request=request, labels=labels, spec={"suspend": True})
        template = body["spec"]["template"]
        template["metadata"]["annotations"] = {**request, KEYS.pod_set: "main"} if level else {}
        template["spec"]["schedulingGates"] = [{"name": KEYS.gate}] if level else []
        await self.create(body)

    async def state(self, name, state, text=""):
        """Wait for our check of the job to be so."""

        async def there():
            found = await self.kueue.check(name, self.check)
            return found if found.get("state") == state and text in found["message"] else None

        try:
            return await until(there, f"check {state} {text!r} of job {name}")
        except AssertionError as error:
            found = (await self.kueue.workload(name)).get("status")
            raise AssertionError(f"{error}; it is {found}; Kueue: {self.kueue.broken}") from None

    async def delete(self, name):
        """The Job and its pods: the garbage collector, which looks for kinds anew after each CRD, may take long."""
        await super().delete(name)
        params = {"labelSelector": f"batch.kubernetes.io/job-name={name}", "gracePeriodSeconds": "0"}
        await self.client.raw("DELETE", PODS.path(self.namespace), params=params)

    async def suspended(self, name):
        return (await self.client.get(JOBS, name, self.namespace))["spec"].get("suspend", False)

    async def places(self, name):
        """Where our Workload of the job sends its pods: {hostname: pods}."""
        return slots_of(await self.workload(name) or {})

    async def land(self, name, pods=2):
        """Wait until the job's pods run; they must where our Workload says."""
        found = await self.running(name, pods)
        assert nodes_of(found) == sorted(
            node for node, count in (await self.places(name)).items() for _ in range(count)
        )
        return found

    async def wrong(self):
        """What the independent checker, which knows the default keys, finds wrong."""
        text = json.dumps(await snapshot(self.client, {self.namespace}))
        return violations(json.loads(text.replace(f'"{DOMAIN}/topology', f'"{DEFAULT_DOMAIN}/topology')))


@asynccontextmanager
async def open_site(client, namespace, nodes, *, version="v1beta2", account=None, running=None, **settings):
    """``account``: a client with the rights of the controller alone. ``running``: a controller that is there."""
    await install_crds(client)
    await nodes(blocks=1, racks=2, hosts=2, prefix=f"{namespace}-", group=namespace)
    await make_flavor(client, namespace, namespace)
    async with AsyncExitStack() as stack:
        kueue = await stack.enter_async_context(Kueue(client, namespace, version))
        site = Site(client, namespace, kueue)
        site.running_controller = running or Running(account or client, domain=DOMAIN, **settings)
        await site.make("AdmissionCheck", site.check, {"controllerName": CONTROLLER})
        await site.make("ResourceFlavor", namespace, {"nodeLabels": {GROUP_LABEL: namespace}})
        await site.queue("team", namespace, checks=[site.check])
        async with site.running_controller if running is None else nullcontext():
            yield site
            assert await site.wrong() == []
        assert kueue.broken == []
    for kind, name in site.made:
        await client.delete(kueue.kinds[kind], name)
    await client.delete(RESOURCE_FLAVORS, namespace)


@pytest.fixture
async def site(kinds, client, namespace, nodes):
    async with open_site(client, namespace, nodes) as made:
        yield made


@pytest.fixture
async def account(client, as_account):
    """The ungater's service account, with the roles of an installation beside Kueue and no others."""
    options = render.InstallOptions(domain=DOMAIN, namespace="topogate-kueue", kueue=True)
    wanted = {"Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
    made = [obj for obj in render.objects(options) if obj["kind"] in wanted]
    for obj in made:
        await client.apply(resource_of(obj), obj, field_manager="test")
    yield await as_account(options.namespace, "topogate-ungater")
    for obj in reversed(made):
        await client.delete(resource_of(obj), obj["metadata"]["name"], obj["metadata"].get("namespace"))


async def full(site):
    """Two jobs of Kueue that fill both racks."""
    for name in ("first", "second"):
        await site.submit(name)
        await site.land(name)


async def test_held_pending_with_the_reason_until_there_is_room_then_ready_and_run(site):
    await full(site)
    await site.submit("third")
    waiting = await site.state("third", "Pending", "DoesNotFit: ")
    assert "takes 0 and lacks 16 nvidia.com/gpu" in waiting["message"]
    assert "podSetUpdates" not in waiting
    explained = await report(site.client, site.namespace, "third", domain=DOMAIN)
    assert (explained.state, explained.reason) == ("Waiting", "DoesNotFit")
    assert [room.fits for room in explained.room] == [0, 0]
    assert await site.suspended("third")
    assert await site.pods("third") == []
    assert not true(await site.kueue.workload("third"), "Admitted")
    await site.submit("urgent", priority=10)
    await site.state("urgent", "Pending", "DoesNotFit: ")
    await site.delete("second")
    await site.land("urgent")
    await site.state("third", "Pending", "DoesNotFit: ")
    (freed,) = racks_of(await site.pods("first"))
    await site.delete("first")
    ready = await site.state("third", "Ready", "2 pods in b1/")
    assert sum((await site.places("third")).values()) == 2, "the record is stored before the check is Ready"
    assert ready["podSetUpdates"] == [{"name": "main", "nodeSelector": {GROUP_LABEL: site.namespace}}]
    assert racks_of(await site.land("third")) == {freed}
    assert not await site.suspended("third")


async def test_the_rights_of_an_installation_are_enough(kinds, client, namespace, nodes, account):
    async with open_site(client, namespace, nodes, account=account) as site:
        await full(site)
        await site.submit("third")
        await site.state("third", "Pending", "DoesNotFit")
        await activate(site, "first", active=False)
        await site.land("third")


async def test_what_kueue_takes_back_is_given_back_and_comes_again(site):
    await full(site)
    await site.submit("third")
    await site.state("third", "Pending", "DoesNotFit")
    await activate(site, "first", active=False)
    await site.land("third")
    assert await site.pods("first") == []
    assert await site.places("first") == {}
    await activate(site, "first", active=True)
    await site.state("first", "Pending", "DoesNotFit")
    await site.delete("second")
    await site.land("first")
    old = {pod["metadata"]["uid"] for pod in await site.pods("third")}
    await site.kueue.evict("third")

    async def anew():
        pods = await site.pods("third", phase="Running")
        return len(pods) == 2 and not old & {pod["metadata"]["uid"] for pod in pods}

    await until(anew, "the evicted job to run again")
    await site.land("third")


async def activate(site, name, *, active):
    workload = await site.kueue.workload(name)
    body = {"spec": {"active": active}}
    await site.client.patch(site.kueue.workload_kind, workload["metadata"]["name"], site.namespace, body=body)


async def test_rivals_for_two_racks_never_hold_more_than_there_is(site):
    names = [f"rival-{number}" for number in range(6)]
    for name in names:
        await site.submit(name)
    done = set()

    async def overfull():
        """Nodes that live jobs hold more than once, of 8 GPUs each; who is deleted is so before others get its room."""
        workloads = await site.client.list(WORKLOADS, site.namespace)
        live = {job["metadata"]["uid"] for job in await site.client.list(JOBS, site.namespace)}
        held = Counter()
        for workload in workloads:
            if workload["metadata"]["ownerReferences"][0]["uid"] in live:
                held.update(slots_of(workload))
        return [node for node, count in held.items() if count > 1]

    while len(done) < len(names):

        async def some():
            assert await overfull() == []
            return [name for name in names if name not in done and len(await site.pods(name, phase="Running")) == 2]

        for name in await until(some, f"the next of {set(names) - done} to run"):
            assert nodes_of(await site.pods(name)) == sorted(await site.places(name))
            await site.delete(name)
            done.add(name)


async def test_a_place_is_kept_over_a_restart_while_another_check_keeps_the_job_waiting(site):
    other = await another_check(site)
    await site.queue("slow", site.namespace, checks=[site.check, other])
    await site.submit("kept", queue="slow")
    await site.state("kept", "Ready")
    kept = await site.places("kept")
    assert await site.suspended("kept")
    await site.submit("other")
    await site.land("other")
    await site.running_controller.crash()
    await site.submit("third")
    await site.running_controller.start()
    await site.state("third", "Pending", "DoesNotFit")
    assert await site.places("kept") == kept
    assert (await site.kueue.check("kept", site.check))["state"] == "Ready"
    await say(site, other, "kept", "Ready")
    await site.land("kept")
    assert await site.places("kept") == kept


async def test_a_place_is_given_to_others_as_soon_as_another_check_sends_the_job_away(site):
    """Kueue evicts it only when the delay is over."""
    other = await another_check(site)
    await site.queue("slow", site.namespace, checks=[site.check, other])
    await site.submit("kept", queue="slow")
    await site.state("kept", "Ready")
    await site.submit("second")
    await site.land("second")
    await site.submit("third")
    await site.state("third", "Pending", "DoesNotFit")
    await say(site, other, "kept", "Retry", requeueAfterSeconds=300)
    await site.land("third")
    await site.state("kept", "Pending", f"check {other} says Retry")
    assert true(await site.kueue.workload("kept"), "QuotaReserved")


async def test_a_job_whose_queue_was_stopped_is_not_admitted_by_the_answer_of_before(site):
    other = await another_check(site)
    await site.queue("slow", site.namespace, checks=[site.check, other])
    await site.submit("kept", queue="slow")
    await site.state("kept", "Ready")
    await say(site, other, "kept", "Ready")
    await site.land("kept")
    await site.submit("held", queue="slow")
    await site.state("held", "Ready")
    await stop(site, "slow", "Hold")
    await site.state("held", "Pending", "no place is kept")
    await site.submit("third")
    await site.land("third")
    await say(site, other, "held", "Ready")
    await stop(site, "slow", "None")
    await site.state("held", "Pending", "DoesNotFit")
    assert await site.suspended("held")
    await site.delete("third")
    await site.land("held")


async def stop(site, queue, policy):
    await site.client.patch(
        site.kueue.kinds["LocalQueue"], queue, site.namespace, body={"spec": {"stopPolicy": policy}}
    )


async def another_check(site):
    """A check that another controller answers, and that is Active."""
    name = f"other-{site.namespace}"
    await site.make("AdmissionCheck", name, {"controllerName": "example.com/other"})
    condition = {"type": "Active", "status": "True", "reason": "x", "message": ""}
    await answer(site.client, site.kueue.kinds["AdmissionCheck"], name, None, {"conditions": [condition]})
    return name


async def say(site, check, job, state, **more):
    name = (await site.kueue.workload(job))["metadata"]["name"]
    said = {"name": check, "state": state, "message": "", **more}
    await answer(site.client, site.kueue.workload_kind, name, site.namespace, {"admissionChecks": [said]})


async def answer(client, resource, name, namespace, status):
    """As the controller of another check writes."""
    for entries in status.values():
        entries[0]["lastTransitionTime"] = now()
    meta = {"name": name, **({"namespace": namespace} if namespace else {})}
    body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta, "status": status}
    await client.apply(resource, body, field_manager="example.com/other", subresource="status")


async def test_restarted_at_any_moment_it_goes_on(site):
    for number in range(4):
        await site.submit(f"job-{number}", gpus=4)
        await asyncio.sleep(0.1 * number)
        await site.running_controller.crash()
        await asyncio.sleep(0.1)
        await site.running_controller.start()
    for number in range(4):
        await site.land(f"job-{number}")


async def test_what_is_not_asked_of_us_is_left_alone(site, client):
    await site.queue("free", site.namespace, checks=[])
    await site.submit("stranger", queue="free", level="", gpus=1)
    await site.running("stranger", 2)
    managers = {entry["manager"] for entry in (await site.kueue.workload("stranger"))["metadata"]["managedFields"]}
    assert CONTROLLER not in managers
    await site.submit("plain", level="", gpus=1)
    await site.state("plain", "Ready", NOTHING_TO_PLACE)
    await site.running("plain", 2)
    assert await client.list(WORKLOADS, site.namespace) == []
    await site.submit("unchecked", queue="free", gpus=4)
    assert len(racks_of(await site.land("unchecked"))) == 1
    assert not (await site.kueue.workload("unchecked"))["status"].get("admissionChecks")


async def test_only_nodes_of_the_flavor_that_kueue_assigned_are_used(site, nodes):
    taint = {"key": POOL, "value": "x", "effect": "NoSchedule"}
    more = {"prefix": f"{site.namespace}-x-", "group": site.namespace, "labels": {POOL: "x"}, "taints": [taint]}
    await nodes(blocks=1, racks=1, hosts=2, **more)
    name, tolerated = f"x-{site.namespace}", {"key": POOL, "operator": "Exists"}
    await site.make("ResourceFlavor", name, {"nodeLabels": {POOL: "x"}, "tolerations": [tolerated]})
    await site.queue("pool", name, checks=[site.check])
    await site.submit("pooled", queue="pool")
    assert nodes_of(await site.land("pooled")) == [f"{site.namespace}-x-b1-r1-h1", f"{site.namespace}-x-b1-r1-h2"]
    await site.submit("next", queue="pool")
    await site.state("next", "Pending", "DoesNotFit")


async def test_slots_of_a_reservation_that_ended_unseen_are_given_back_before_others_are_taken(site, nodes, client):
    """Kueue evicts and reserves again in another flavor while no controller looks."""
    flavors = []
    for pool in ("x", "y"):
        await nodes(
            blocks=1, racks=1, hosts=2, prefix=f"{site.namespace}-{pool}-", group=site.namespace, labels={POOL: pool}
        )
        flavors.append(f"{pool}-{site.namespace}")
        await site.make("ResourceFlavor", flavors[-1], {"nodeLabels": {POOL: pool}})
    other = await another_check(site)
    await site.queue("two", *flavors, checks=[site.check, other], gpus=16)
    await site.submit("moved", queue="two")
    await site.state("moved", "Ready")
    assert all("-x-" in node for node in await site.places("moved"))
    await site.running_controller.crash()
    queue, name = site.kueue.kinds["ClusterQueue"], f"two-{site.namespace}"
    group = (await client.get(queue, name))["spec"]["resourceGroups"][0]
    body = {"spec": {"resourceGroups": [{**group, "flavors": group["flavors"][1:]}]}}
    await client.patch(queue, name, body=body)
    await site.kueue.evict("moved")

    async def again():
        admission = (await site.kueue.workload("moved"))["status"].get("admission")
        return admission and set(admission["podSetAssignments"][0]["flavors"].values()) == {flavors[1]}

    await until(again, "quota in the other flavor")
    await site.running_controller.start()
    await site.state("moved", "Ready")
    assert all("-y-" in node for node in await site.places("moved"))
    await say(site, other, "moved", "Ready")
    await site.land("moved")


async def test_a_flavor_whose_pods_kueue_places_itself_and_a_check_with_parameters_are_refused_in_words(site):
    await site.make("Topology", site.namespace, {"levels": [{"nodeLabel": RACK_LABEL}]})
    name = f"tas-{site.namespace}"
    spec = {"nodeLabels": {GROUP_LABEL: site.namespace}, "topologyName": site.namespace}
    await site.make("ResourceFlavor", name, spec)
    await site.queue("tas", name, checks=[site.check])
    site.kueue.places_itself = {name}
    await site.submit("twice", queue="tas")
    await site.state("twice", "Pending", "remove topologyName")
    site.kueue.places_itself = set()
    await site.submit("once", queue="tas")
    await site.land("once")
    await site.make(
        "AdmissionCheck", odd := f"odd-{site.namespace}", {"controllerName": CONTROLLER, "parameters": THING}
    )

    async def said():
        found = await site.client.get(site.kueue.kinds["AdmissionCheck"], odd)
        return found.get("status", {}).get("conditions")

    (condition,) = await until(said, "the condition of the check")
    assert (condition["type"], condition["status"], condition["reason"]) == ("Active", "False", "BadParametersRef")


LEVEL = "example.com/no-such-level"


async def tight(site, **options):
    """A queue with quota for one job, which one that fits no rack has taken, and another that would run."""
    await site.queue("tight", site.namespace, checks=[site.check], gpus=16, **options)
    await site.submit("hopeless", pods=3, gpus=5, queue="tight")
    await site.state("hopeless", "Pending", "NeverFits: ")
    await site.submit("other", queue="tight")

    async def tried():
        return condition(await site.kueue.workload("other"), "QuotaReserved").get("status") == "False"

    await until(tried, "other to be tried in vain")


async def requeued_at(site, name):
    """When Kueue tries the workload again; "" where it does not wait for anything."""
    return (await site.kueue.workload(name))["status"].get("requeueState", {}).get("requeueAt", "")


@pytest.mark.parametrize("strategy", ["BestEffortFIFO", "StrictFIFO"])
async def test_nobody_waits_behind_one_that_can_never_be_placed(kinds, client, namespace, nodes, strategy):
    async with open_site(client, namespace, nodes, kueue_never_fits_seconds=3) as site:
        await tight(site, strategy=strategy)
        await site.land("other")
        away = await site.state("hopeless", "Pending", "NeverFits: ")
        assert away["retryCount"] >= 1
        if strategy == "BestEffortFIFO":  # in the other, others may come first without that
            assert f"others have its quota until {await requeued_at(site, 'hopeless')}" in away["message"]
        workload = await site.kueue.workload("hopeless")
        assert "admission" not in workload["status"]
        assert workload["spec"]["active"]
        await site.event("hopeless", "NeverFits")


async def test_where_kueue_gives_the_quota_back_before_it_is_told_the_delay_all_of_it_is_done_again(
    kinds, client, namespace, nodes, monkeypatch
):
    """As it is where the controller or the API server is slow: here it sees two evictions too late."""
    late = []

    def slowly(workload, check, told, now):
        count = check.retry_count or 0
        if 0 < count <= 2:
            late.append(count)
            return None
        return NEXT_STEP(workload, check, told, now)

    monkeypatch.setattr(retries, "next_step", slowly)
    async with open_site(client, namespace, nodes, kueue_never_fits_seconds=25) as site:
        await tight(site)
        await site.land("other")  # sooner than with further patience
        assert set(late) == {1, 2}
        assert (await site.kueue.check("hopeless", site.check))["retryCount"] >= 3


async def test_one_that_was_sent_away_comes_back_and_runs_when_there_are_nodes_for_it(
    kinds, client, namespace, nodes, monkeypatch
):
    monkeypatch.setattr(retries, "FIRST_BACKOFF", 3)
    async with open_site(client, namespace, nodes, kueue_never_fits_seconds=3) as site:
        await tight(site)
        await site.land("other")
        await nodes(blocks=1, racks=1, hosts=3, prefix=f"{namespace}-more-", group=namespace)
        await site.delete("other")
        await site.land("hopeless", 3)


async def test_one_that_only_waits_gives_its_quota_to_others_for_a_while_and_is_not_deactivated(
    kinds, client, namespace, nodes, monkeypatch
):
    monkeypatch.setattr(retries, "WANTED_AGAIN", 0.5)
    async with open_site(client, namespace, nodes, kueue_wait_seconds=1) as site:
        for name in ("first", "second"):
            await site.submit(name, gpus=5)
            await site.land(name)
        await site.queue("tight", site.namespace, checks=[site.check], gpus=16)
        await site.submit("large", queue="tight")
        await site.state("large", "Pending", "DoesNotFit: ")
        await asyncio.sleep(2)
        assert (await site.kueue.workload("large"))["status"]["admission"], "nobody waits for its quota"
        await site.submit("small", pods=1, gpus=3, queue="tight")
        await site.land("small", 1)
        await site.state("large", "Pending", "others have its quota until")
        assert (await site.kueue.workload("large"))["spec"]["active"]


async def test_a_level_that_is_none_is_said_and_what_follows_is_a_setting(kinds, client, namespace, nodes):
    async with open_site(client, namespace, nodes, kueue_never_fits="Wait", kueue_never_fits_seconds=1) as site:
        await site.submit("wait", level=LEVEL)
        found = await site.state("wait", "Pending", "UnknownLevel: ")
        assert LEVEL in found["message"]
        await asyncio.sleep(2)
        assert (await site.kueue.workload("wait"))["status"]["admission"]
        await site.delete("wait")
        await again(site, kueue_never_fits="Retry", kueue_never_fits_seconds=1, kueue_reject_seconds=1)
        await site.submit("retry", level=LEVEL)
        await site.state("retry", "Pending", "others have its quota until")
        assert (await site.kueue.workload("retry"))["spec"]["active"]
        await again(site, kueue_never_fits="Reject", kueue_never_fits_seconds=1, kueue_reject_seconds=1)
        await rejected(site, "reject", level=LEVEL)


async def again(site, **settings):
    """Another controller, with other settings."""
    await site.running_controller.crash()
    site.running_controller = Running(site.client, domain=DOMAIN, **settings)
    await site.running_controller.start()


async def rejected(site, name, **job):
    await site.submit(name, **job)
    await site.state(name, "Pending", "Reset to Pending after eviction. Previously: Rejected")

    async def given_back():
        workload = await site.kueue.workload(name)
        return not workload["status"].get("admission") and workload

    workload = await until(given_back, "the quota to be given back")
    assert not workload["spec"]["active"]
    assert await requeued_at(site, name) == ""
    assert (await site.kueue.check(name, site.check)).get("retryCount", 0) == 0
    assert "UnknownLevel" in condition(workload, "Evicted")["message"]
    await site.event(name, "UnknownLevel")


async def test_the_page_works_as_it_is_typed(kinds, client, namespace, nodes):
    """Every object of docs/kueue.md, as it stands there, in a cluster with nodes of its node group."""
    await install_crds(client)
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    written = [obj for block in blocks for obj in yaml.safe_load_all(block)]
    await nodes(blocks=1, racks=1, hosts=2, prefix=f"{namespace}-", group="tas")
    watched = Watched(client, namespace)
    cluster_wide = []
    async with Kueue(client, namespace) as kueue, Running(client, domain=DOMAIN):
        for obj in written:
            if obj["kind"] == "Job":
                obj["spec"]["template"]["spec"]["schedulingGates"] = [{"name": KEYS.gate}]  # as our webhook does
            resource = kueue.kinds[obj["kind"]] if "kueue" in obj["apiVersion"] else resource_of(obj)
            await client.create(resource, obj, namespace if resource.namespaced else None)
            if not resource.namespaced:
                cluster_wide.append((resource, obj["metadata"]["name"]))
        assert len(await watched.running("train", 2)) == 2
    assert kueue.broken == []
    for resource, name in cluster_wide:
        await client.delete(resource, name)


async def test_kueue_comes_late_and_has_the_older_version_only(kinds, client, namespace, nodes, monkeypatch):
    monkeypatch.setattr(bridge, "LOOK_SECONDS", 0.5)
    await install_crds(client)
    await kueue_kinds.uninstall(client)
    async with Running(client, domain=DOMAIN, kueue_never_fits_seconds=1) as running:
        await asyncio.sleep(1)
        await kueue_kinds.install(client, ("v1beta1",))
        async with open_site(client, namespace, nodes, version="v1beta1", running=running) as site:
            await full(site)
            await site.submit("third")
            await site.state("third", "Pending", "DoesNotFit")
            await site.delete("second")
            await site.land("third")
            await site.submit("bad", level="example.com/no-such-level")
            await site.state("bad", "Pending", "Reset to Pending after eviction. Previously: Retry")
            state = (await site.kueue.workload("bad"))["status"]["requeueState"]
            assert state["count"] == 1
            assert "requeueAt" in state

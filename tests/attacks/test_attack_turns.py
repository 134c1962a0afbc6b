"""Pods with claims that never get their devices, and kinds of them without end: nobody else waits for them for long.

Who has devices to get waits for those on their way to the same node. The controller waits here for a few seconds for
what it gives two minutes else, and keeps fewer kinds (``bounds``).
"""

import asyncio
from contextlib import asynccontextmanager, suppress

import pytest
import pytest_asyncio
from support.accounts import label, metadata, refused
from support.claims_siege import (
    GPU_CLASS,
    QUOTA,
    SETTINGS,
    equipped_siege,
    hosts_of,
    of_claim,
    of_template,
    where,
)
from support.jobs import KEYS, until
from support.nrt import install_nrt, remove_nrt
from support.published import GI, nrt_body, nrt_zone
from support.siege import ANYWHERE, pod

from crds.constants import NUMA_POLICY
from engine.devices import known_kinds
from kube.errors import Conflict, NotFound
from kube.resources import CLAIM_TEMPLATES, NODE_RESOURCE_TOPOLOGIES, PODS, RESOURCE_CLAIMS
from localcluster.nodes import HOSTNAME_LABEL
from ungater.numa import device_turns

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]

__all__ = ["SETTINGS"]  # what the controller is set to (conftest)
WHOLE = False
NOBODY = {"schedulerName": "nobody"}
FOREVER = "example.com/forever"
# Which devices such a pod gets depends on what is free when its turn comes; so who wants one of them waits for it.
EITHER = {
    "devices": {
        "requests": [
            {
                "name": "gpu",
                "firstAvailable": [
                    {"name": "two", "deviceClassName": GPU_CLASS, "count": 2},
                    {"name": "one", "deviceClassName": GPU_CLASS},
                ],
            }
        ]
    }
}
KEPT, KINDS = 16, 40  # kinds that are kept here, and that the tenant makes


@pytest.fixture(scope="module", autouse=True)
def bounds():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_turns, "PATIENCE", 4.0)
        patch.setattr(device_turns, "SHORT", 1.0)
        patch.setattr(known_kinds, "KINDS_KEPT", KEPT)
        patch.setattr(known_kinds, "MOST_REMEMBERED", 100)
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def equipped(siege):
    async with equipped_siege(siege) as made:
        await made.template("either", EITHER)
        yield made
        await made.tenant.delete(CLAIM_TEMPLATES, "either", made.namespace)


@pytest_asyncio.fixture(loop_scope="module")
async def claims(equipped, siege):
    """Nothing is left of an attack to the next one; the controller forgets who took too long."""
    yield equipped
    await siege.answers()
    await equipped.others_run()
    await equipped.clean("either")
    await siege.restart()


def at(host):
    return {"nodeSelector": {HOSTNAME_LABEL: host}}


def grouped(name, host, claim, **spec):
    """One of two pods that share a claim."""
    annotations = {**ANYWHERE, KEYS.pod_group_total: "2"}
    of_two = {**of_claim(claim), **at(host), **spec}
    return pod(name, 0, labels={KEYS.pod_group: "evil"}, annotations=annotations, **of_two)


async def sent(claims, *names):
    """Wait until our gate is gone from the pods of these names, or Jobs."""

    async def gone():
        found = await claims.admin.list(PODS, claims.namespace)
        mine = [one for one in found if one["metadata"]["name"].startswith(names)]
        gated = [one for one in mine if one["spec"].get("schedulingGates")]
        return mine if len(mine) == len(names) and not gated else None

    return await until(gone, f"{names} to be let go", seconds=30)


async def is_gated(claims, name):
    found = await claims.admin.get(PODS, name, claims.namespace)
    return bool(found["spec"].get("schedulingGates"))


@asynccontextmanager
async def again_and_again(step, seconds):
    """Somebody does something all the time while the block runs."""

    async def go():
        while True:
            with suppress(NotFound, Conflict):
                await step()
            await asyncio.sleep(seconds)

    task = asyncio.create_task(go())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def relabelled(claims, pods):
    """Their tenant writes another label on each of these pods all the time while the block runs."""
    steps = iter(range(10**6))

    async def relabel():
        for one in pods:
            name = one["metadata"]["name"]
            await claims.tenant.patch(PODS, name, claims.namespace, **label({"step": str(next(steps))}))

    async with again_and_again(relabel, 0.2):
        yield


# --- turns -----------------------------------------------------------------------------------------------------------


async def test_a_pod_that_waits_for_its_turn_comes_behind_another_of_its_claim(claims, siege):
    """That one never gets it. Nobody overtakes who waits for a turn; who is not to go there any more waits for none."""
    host = hosts_of(siege)[0]
    await claims.plain("blocks", 1, {**of_template("one"), **NOBODY, **at(host)})
    await sent(claims, "blocks")
    await claims.claim("mine", EITHER)
    for name in ("evil-0", "evil-1"):
        await siege.create(grouped(name, host, "mine", **NOBODY))
    await siege.reason("evil", "Admitted")
    await claims.tenant.delete(PODS, "evil-0", claims.namespace, grace_period=0)
    await asyncio.sleep(device_turns.TURN + 0.3)
    assert await is_gated(claims, "evil-1")
    await siege.create(grouped("evil-0", host, "mine", **NOBODY))
    await sent(claims, "blocks", "evil-0")
    assert await is_gated(claims, "evil-1")
    await claims.others_run(1, **at(host))


async def test_a_pod_that_waits_for_its_turn_is_deleted_and_kept_by_a_finalizer(claims, siege):
    host = hosts_of(siege)[0]
    await claims.plain("blocks", 1, {**of_template("one"), **NOBODY, **at(host)})
    await sent(claims, "blocks")
    body = pod("evil", 0, **of_template("either"), **at(host))
    body["metadata"]["finalizers"] = [FOREVER]
    await siege.create(body)
    await siege.reason("evil", "Admitted")
    await asyncio.sleep(device_turns.TURN + 0.3)
    assert await is_gated(claims, "evil")
    await claims.tenant.delete(PODS, "evil", claims.namespace, grace_period=0)
    await claims.others_run(1, **at(host))


async def test_pods_that_no_scheduler_takes_are_relabelled_so_that_others_wait_for_them_anew(claims, siege):
    for number, host in enumerate(hosts_of(siege)):
        await claims.plain(f"evil-{number}", 1, {**of_template("either"), **NOBODY, **at(host)})
    made = await sent(claims, *(f"evil-{number}" for number in range(8)))
    async with relabelled(claims, made):
        await claims.others_run()


async def test_pods_behind_a_gate_of_the_tenants_own_are_relabelled_so_that_others_wait_for_them_anew(claims, siege):
    gates = {"schedulingGates": [{"name": KEYS.gate}, {"name": "example.com/later"}]}
    for number, host in enumerate(hosts_of(siege)):
        await claims.plain(f"evil-{number}", 1, {**of_template("either"), **gates, **at(host)})

    async def ours_is_gone():
        found = await claims.admin.list(PODS, claims.namespace)
        return len(found) == 8 and all(len(one["spec"]["schedulingGates"]) == 1 for one in found) and found

    made = await until(ours_is_gone, "our gate to be gone", seconds=30)
    async with relabelled(claims, made):
        await claims.others_run()


async def test_pods_that_no_scheduler_takes_go_and_come_again_before_their_time_is_over(claims, siege):
    """Each has its time; but who waits for them is not overtaken by those that come later."""
    hosts = hosts_of(siege)

    async def make():
        for number, host in enumerate(hosts):
            await siege.create(pod(f"evil-{number}", 0, **of_template("either"), **NOBODY, **at(host)))

    async def anew():
        for number in range(len(hosts)):
            with suppress(NotFound):
                await claims.tenant.delete(PODS, f"evil-{number}", claims.namespace, grace_period=0)
        await make()

    await make()
    await sent(claims, *(f"evil-{number}" for number in range(8)))
    async with again_and_again(anew, 1.0):
        await claims.others_run()


# --- devices ---------------------------------------------------------------------------------------------------------


async def test_claims_are_to_keep_their_devices_once_their_pods_are_gone(claims):
    """Without the finalizer of Kubernetes, and with one of its own, a claim would keep them with no pod to pay."""
    await claims.queued("evil", QUOTA)
    await claims.paid(QUOTA)
    for claim in await claims.admin.list(RESOURCE_CLAIMS, claims.namespace):
        name, there = claim["metadata"]["name"], claim["metadata"]["finalizers"]
        for finalizers in ([FOREVER], [*there, FOREVER], None):
            change = claims.tenant.patch(RESOURCE_CLAIMS, name, claims.namespace, **metadata(finalizers=finalizers))
            await refused(change, "metadata.finalizers")
    await claims.siege.clean()
    await claims.paid(0)


async def test_devices_are_asked_for_by_the_name_of_their_class_as_a_resource(claims):
    """`deviceclass.resource.kubernetes.io/...`, which no queue covers: no device comes without quota."""
    limits = {"cpu": "1", "deviceclass.resource.kubernetes.io/gpu.nvidia.com": "4"}
    containers = [{"name": "c", "image": "i", "resources": {"limits": limits}}]
    for number in range(3):
        await claims.queued(f"evil-{number}", 1, {"containers": containers})
    await claims.paid()
    assert await claims.given() <= QUOTA


# --- kinds -----------------------------------------------------------------------------------------------------------


async def test_kinds_of_claims_without_end_whose_selectors_read_many_attributes(claims, siege):
    """Each costs a long look at each device of each node; new ones come while others wait to be counted."""
    many = " || ".join(f"has(device.attributes['gpu.nvidia.com'].a{number})" for number in range(120))
    for number in range(KINDS):
        await claims.template(f"kind-{number}", where(f"({many}) && {number} >= 0"))

    async def come():
        for number in range(KINDS):
            await claims.queued(f"evil-{number}", 1, of_template(f"kind-{number}"))

    coming = asyncio.create_task(come())
    await claims.others_run()
    await coming
    await siege.restart()
    await claims.others_run()
    assert await claims.given() == 0


# --- zones: at the end, as machines tell of their inside from here on ------------------------------------------------


async def test_one_pod_that_no_scheduler_takes_wishes_zones_on_each_node(claims, siege):
    """Such pods wait on no node with others."""
    hosts, wish = hosts_of(siege), {NUMA_POLICY: "single-numa-node"}
    await install_nrt(claims.admin)
    try:
        for host in hosts:
            told = [nrt_zone(zone, {"cpu": 48, "memory": 64 * GI}) for zone in (0, 1)]
            body = nrt_body(told, name=host, policy="single-numa-node")
            await claims.admin.apply(NODE_RESOURCE_TOPOLOGIES, body, field_manager="test")
        await siege.controller.knows("NodeResourceTopology", len(hosts))
        amounts = {"cpu": "2", "memory": "1Gi"}
        resources = {"requests": amounts, "limits": amounts, "claims": [{"name": "gpu"}]}
        containers = [{"name": "c", "image": "i", "resources": resources}]
        for number, host in enumerate(hosts):
            spec = {"containers": containers, **of_template("one"), **NOBODY, **at(host)}
            await claims.plain(f"evil-{number}", 1, spec, annotations=wish)
        await sent(claims, *(f"evil-{number}" for number in range(len(hosts))))
        await claims.others_run()
    finally:
        await siege.clean()
        await remove_nrt(claims.admin)

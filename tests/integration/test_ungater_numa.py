"""The inside of nodes on the real control plane: predicted zones, pods that a kubelet refuses, sources that come late.

KWOK runs every pod that is bound; what a kubelet would say is written by the tests.
"""

import asyncio
import contextlib
import json

import pytest
from support.cluster_checker import snapshot, violations
from support.jobs import GPU, KEYS, RACK_LABEL, Running, Watched, install_crds, job, make_flavor, until
from support.nrt import install_nrt, remove_nrt
from support.published import GI, flex_body, nrt_body, nrt_zone

from cli.explain.report import report
from clock import SYSTEM
from crds.constants import NUMA_PLACEMENT_OBSERVED, NUMA_PLACEMENT_PREDICTED
from kube.errors import NotFound
from kube.informer import EventKind
from kube.resources import EVENTS, FLEX_TOPOS, NODE_RESOURCE_TOPOLOGIES, PODS, RESOURCE_FLAVORS
from kube.topologies import NodeResourceTopology
from ungater.optional import Discovery, OptionalInformer

pytestmark = pytest.mark.cluster

ZONE = {"cpu": 8, "memory": 64 * GI, GPU: 4}
HOST = "kubernetes.io/hostname"
PREFERRED = {KEYS.preferred[0]: RACK_LABEL}


def guaranteed(cpu=4, gpus=2):
    amounts = {"cpu": str(cpu), "memory": "4Gi", **({GPU: str(gpus)} if gpus else {})}
    return {"containers": [{"name": "c", "image": "i", "resources": {"requests": amounts, "limits": amounts}}]}


class Inside(Watched):
    """Questions about the inside of nodes, and a controller in this process."""

    def __init__(self, client, namespace, nodes):
        super().__init__(client, namespace)
        self.nodes = nodes
        self.running_controller = Running(client)

    async def publish(self, name, **options):
        zones = options.pop("zones", [nrt_zone(0, ZONE), nrt_zone(1, ZONE)])
        body = nrt_body(zones, name=name, **{"policy": "single-numa-node", **options})
        await self.client.apply(NODE_RESOURCE_TOPOLOGIES, body, field_manager="test")

    async def refuse(self, pod, reason="TopologyAffinityError"):
        """What a kubelet does with a pod that it does not admit."""
        status = {
            "phase": "Failed",
            "reason": reason,
            "message": "Resources cannot be allocated with Topology locality",
            "conditions": None,  # as kubelet 1.37.1: nothing of what was there stays
        }
        await self.client.patch(
            PODS, pod["metadata"]["name"], self.namespace, body={"status": status}, subresource="status"
        )

    async def node_event(self, node, reason):
        async def there():
            found = await self.client.list(EVENTS, "default")
            return next((e for e in found if e["regarding"].get("name") == node and e["reason"] == reason), None)

        return await until(there, f"event {reason} about node {node}")


@pytest.fixture
async def inside(client, namespace, nodes):
    """Two nodes of 2 zones x (8 CPUs, 4 GPUs) that allow one zone a container, and a controller that knows of it."""
    await install_crds(client)
    await install_nrt(client)
    await nodes(blocks=1, racks=1, hosts=2, prefix=f"{namespace}-", group=namespace, cpu="16")
    names = [f"{namespace}-b1-r1-h{host}" for host in (1, 2)]
    await make_flavor(client, namespace, namespace)
    watched = Inside(client, namespace, names)
    for name in names:
        await watched.publish(name)
    async with watched.running_controller:
        await watched.running_controller.knows("NodeResourceTopology", 2)
        yield watched
        assert violations(await snapshot(client, {namespace})) == []
    for name in names:
        for resource in (NODE_RESOURCE_TOPOLOGIES, FLEX_TOPOS):
            with contextlib.suppress(NotFound):
                await client.delete(resource, name)
    await client.delete(RESOURCE_FLAVORS, namespace)


def predicted(pod):
    return json.loads(pod["metadata"]["annotations"][NUMA_PLACEMENT_PREDICTED])


async def test_each_pod_is_told_its_zone_and_no_zone_is_promised_twice(inside):
    await inside.create(job("fill", 8, request=PREFERRED, indexed=True, pod_spec=guaranteed(cpu=4, gpus=2)))
    pods = await inside.running("fill", 8)
    taken = {}
    for pod in pods:
        (entry,) = predicted(pod)
        assert entry["amount"] == {"cpu": "4", "memory": "4Gi", GPU: "2"}
        taken.setdefault((pod["spec"]["nodeName"], entry["zone"]), []).append(pod["metadata"]["name"])
    assert {len(names) for names in taken.values()} == {2}
    assert len(taken) == 4
    await inside.condition("fill", "PodsReady", "True")


async def test_a_pod_that_no_zone_can_hold_waits_though_its_node_could(inside):
    await inside.create(job("fill", 4, request=PREFERRED, pod_spec=guaranteed(cpu=5, gpus=1)))
    await inside.running("fill", 4)
    await inside.create(job("more", 1, request=PREFERRED, pod_spec=guaranteed(cpu=4, gpus=1)))
    condition = await inside.condition("more", "QuotaReserved", "False")
    assert condition["reason"] == "NumaAlignment", condition
    await inside.delete("fill")
    await inside.running("more", 1)


async def test_a_refused_pod_goes_elsewhere_and_people_are_told(inside):
    await inside.create(job("moves", 1, request=PREFERRED, pod_spec=guaranteed()))
    (first,) = await inside.running("moves", 1)
    before = (
        await inside.running_controller.metric('topogate_kubelet_refusals_total{reason="TopologyAffinityError"}') or 0
    )
    await inside.refuse(first)
    for name in (first["metadata"]["name"], "moves"):
        event = await inside.event(name, "KubeletRefused")
        assert "TopologyAffinityError" in event["note"]
        assert first["spec"]["nodeName"] in event["note"]
    condition = await inside.condition("moves", "PodsReady", "False", "KubeletRefused")
    assert first["metadata"]["name"] in condition["message"]
    (second,) = await inside.running("moves", 1)
    assert second["spec"]["nodeName"] != first["spec"]["nodeName"]
    assert predicted(second)
    assert (
        await inside.running_controller.metric('topogate_kubelet_refusals_total{reason="TopologyAffinityError"}')
        == before + 1
    )
    await inside.condition("moves", "PodsReady", "True")
    pods = await inside.pods("moves")
    assert len(pods) == 2, "no pod was tried in vain in between"


async def test_with_no_other_place_it_waits_and_comes_back_when_the_machine_changed(inside):
    home = inside.nodes[0]
    there = {**guaranteed(), "nodeSelector": {HOST: home}}
    await inside.create(job("stays", 1, request=PREFERRED, pod_spec=there))
    (first,) = await inside.running("stays", 1)
    await inside.refuse(first, "UnexpectedAdmissionError")
    condition = await inside.condition("stays", "PodsReady", "False", "PartlyPlaced")
    assert f"pods for {home} (refused there) have no other place" in condition["message"]
    pods = await inside.pods("stays")
    assert len(pods) == 2
    assert [bool(pod["spec"].get("schedulingGates")) for pod in pods if pod["status"]["phase"] != "Failed"] == [True]
    await inside.publish(home, policy="restricted")
    (second,) = await inside.running("stays", 1)
    assert second["spec"]["nodeName"] == home
    assert len(await inside.pods("stays")) == 2


async def test_other_zones_than_predicted_are_told_and_then_count(inside):
    await inside.create(
        job("astray", 1, request=PREFERRED, pod_spec={**guaranteed(), "nodeSelector": {HOST: inside.nodes[0]}})
    )
    (pod,) = await inside.running("astray", 1)
    (entry,) = predicted(pod)
    other = "node-1" if entry["zone"] == "node-0" else "node-0"
    observed = json.dumps([{**entry, "zone": other}])
    body = {"metadata": {"annotations": {NUMA_PLACEMENT_OBSERVED: observed}}}
    await inside.client.patch(PODS, pod["metadata"]["name"], inside.namespace, body=body)
    event = await inside.event(pod["metadata"]["name"], "Misaligned")
    assert f"got NUMA zones {other[-1]} instead of the predicted {entry['zone'][-1]}" in event["note"]
    # Both zones have room for 2 more pods of 2 GPUs less the one of the pod: three in all, by what was observed.
    await inside.create(
        job("rest", 3, request=PREFERRED, pod_spec={**guaranteed(), "nodeSelector": {HOST: inside.nodes[0]}})
    )
    zones = [predicted(found)[0]["zone"] for found in await inside.running("rest", 3)]
    assert sorted(zones) == sorted([other, entry["zone"], entry["zone"]])


async def test_sources_that_disagree_are_told_on_the_node_once(inside):
    name = inside.nodes[0]
    body = flex_body(name=name, cores=4, threads=2, gpus=4, policy="restricted", reserved="")
    status = body.pop("status")
    await inside.client.apply(FLEX_TOPOS, body, field_manager="test")
    await inside.client.patch(FLEX_TOPOS, name, body={"status": _timed(status)}, subresource="status")
    event = await inside.node_event(name, "MachineDataDisagrees")
    assert (
        "Topology Manager policy: FlexTopo has restricted, NodeResourceTopology has single-numa-node" in event["note"]
    )
    assert (
        await until(
            lambda: inside.running_controller.metric('topogate_machine_troubles{kind="disagreement"}'), "the metric"
        )
        == 1
    )
    zones = [nrt_zone(zone, {"cpu": 8, "memory": (64 * GI, 63 * GI, 63 * GI), GPU: 4}) for zone in (0, 1)]
    await inside.publish(name, policy="restricted", zones=zones)
    await inside.node_event(name, "MachineDataValid")


def _timed(status):
    for condition in status["conditions"]:
        condition["lastTransitionTime"] = "2026-11-21T00:00:00Z"
    return status


async def test_explain_shows_zones_and_how_many_nodes_fail_by_numa(inside):
    await inside.create(job("fill", 4, request=PREFERRED, indexed=True, pod_spec=guaranteed(cpu=5, gpus=1)))
    (pod, *_) = await inside.running("fill", 4)
    told = await report(inside.client, inside.namespace, "fill")
    pods = {found.name: found for domain in told.domains for found in domain.pods}
    (entry,) = predicted(pod)
    shown = pods[pod["metadata"]["name"]]
    assert shown.zones_from == "predicted"
    assert [(f"node-{zone.zone}", zone.amounts) for zone in shown.zones] == [(entry["zone"], entry["amount"])]
    await inside.create(job("more", 1, request=PREFERRED, pod_spec=guaranteed(cpu=4, gpus=1)))
    await inside.condition("more", "QuotaReserved", "False", "NumaAlignment")
    waits = await report(inside.client, inside.namespace, "more")
    rooms = [room for room in waits.room if room.nodes == 2]
    assert [(room.fits, room.misaligned) for room in rooms] == [(0, 2)]
    assert "TopologyAffinityError" in rooms[0].refusal


async def test_the_restarted_controller_keeps_off_too(inside):
    await inside.create(job("again", 1, request=PREFERRED, pod_spec=guaranteed()))
    (first,) = await inside.running("again", 1)
    await inside.running_controller.crash()
    await inside.refuse(first)
    await inside.running_controller.start()
    (second,) = await inside.running("again", 1)
    assert second["spec"]["nodeName"] != first["spec"]["nodeName"]


async def test_the_resource_may_come_and_go_while_we_run(client, namespace, nodes):
    await remove_nrt(client)
    heard = []
    informer = OptionalInformer(
        Discovery(client, SYSTEM),
        NODE_RESOURCE_TOPOLOGIES,
        NodeResourceTopology,
        on_event=lambda event: heard.append((event.kind, event.key)),
        look_seconds=0.2,
        clock=SYSTEM,
    )
    task = asyncio.create_task(informer.run())
    try:
        assert await informer.first()
        assert dict(informer.store) == {}
        await install_nrt(client)
        await client.create(NODE_RESOURCE_TOPOLOGIES, nrt_body([nrt_zone(0, ZONE)], name=namespace))
        await until(_heard(heard, (EventKind.ADDED, namespace)), "the object to be seen")
        assert informer.get(namespace).zones[0].name == "node-0"
        await remove_nrt(client)
        await until(_heard(heard, (EventKind.DELETED, namespace)), "the object to be gone")
        assert informer.get(namespace) is None
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await install_nrt(client)


def _heard(heard, what):
    async def there():
        return what in heard

    return there

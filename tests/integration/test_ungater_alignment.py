"""What is inside nodes decides between nodes, through the running controller: alignment comes before tightness.

Machines of two sockets with 4 GPUs each. The fuller node would always be the tighter choice; it is the first by name or
the last. KWOK runs what is bound, and what pods are told of their zones and devices says where they land.
"""

import contextlib
import json

import pytest
from support.cluster_checker import snapshot, violations
from support.jobs import GPU, KEYS, RACK_LABEL, Running, Watched, install_crds, job, make_flavor, until
from support.nrt import install_nrt
from support.published import GI, flex_body, nrt_body, nrt_zone

from crds.constants import HOSTNAME_LABEL, NUMA_PLACEMENT_PREDICTED
from kube.errors import NotFound
from kube.resources import FLEX_TOPOS, JOBS, NODE_RESOURCE_TOPOLOGIES, NODES, PODS, RESOURCE_FLAVORS

pytestmark = pytest.mark.cluster

ZONE = {"cpu": 16, "memory": 64 * GI, GPU: 4}  # a socket
XPU = "kunlunxin.com/xpu"
MATRIX, STATES = "gpu-topology.acme.com/nvlink-matrix", "gpu-topology.acme.com/gpu-states"
ANYWHERE, IN_A_RACK = {KEYS.unconstrained: "true"}, {KEYS.required[0]: RACK_LABEL}
FULLER = pytest.mark.parametrize("fuller", [0, -1], ids=["first", "last"])


def asks(**more):
    """A pod whose limits are its requests; ``more``: of the pod's spec, and amounts by resource."""
    amounts = {"cpu": "1", "memory": "1Gi", **more.pop("amounts")}
    container = {"name": "c", "image": "i", "resources": {"requests": amounts, "limits": amounts}}
    return {"containers": [container], **more}


def zones_of(pod):
    return [use["zone"] for use in json.loads(pod["metadata"]["annotations"][NUMA_PLACEMENT_PREDICTED])]


class Fleet(Watched):
    """Nodes of one rack, by name, and a controller in this process."""

    def __init__(self, client, namespace, names, **settings):
        super().__init__(client, namespace)
        self.names = sorted(names)
        self.controller = Running(client, **settings)

    async def publish(self, name, policy="best-effort"):
        body = nrt_body([nrt_zone(0, ZONE), nrt_zone(1, ZONE)], name=name, policy=policy, scope="pod")
        await self.client.apply(NODE_RESOURCE_TOPOLOGIES, body, field_manager="test")

    async def publish_xpus(self, name):
        body = flex_body(name=name, cores=4, threads=2, gpus=0, policy="none", reserved="")
        cards = [{"id": f"xpu{card}", "zones": [card // 4]} for card in range(8)]
        body["status"]["devices"] = [{"resource": XPU, "devices": cards}]
        await self.publish_flex(body)
        amounts = {"capacity": {XPU: "8"}, "allocatable": {XPU: "8"}}
        await self.client.patch(NODES, name, body={"status": amounts}, subresource="status")

    async def publish_flex(self, body):
        status = body.pop("status")
        for condition in status["conditions"]:
            condition["lastTransitionTime"] = "2026-11-21T00:00:00Z"
        await self.client.apply(FLEX_TOPOS, body, field_manager="test")
        await self.client.patch(FLEX_TOPOS, body["metadata"]["name"], body={"status": status}, subresource="status")

    async def links(self, name, word):
        matrix = [["X" if one == other else word for other in range(8)] for one in range(8)]
        await self.client.patch(NODES, name, body={"metadata": {"annotations": {MATRIX: json.dumps(matrix)}}})

    async def states(self, name, free):
        """Say which GPUs of a node are free, by index."""
        said = json.dumps(["free" if gpu in free else "used" for gpu in range(8)])
        await self.client.patch(NODES, name, body={"metadata": {"annotations": {STATES: said}}})

    async def foreign(self, name, node, spec):
        """A pod that nobody asked Topogate about is on a node, and runs."""
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"batch.kubernetes.io/job-name": name}},
            "spec": {"nodeName": node, "terminationGracePeriodSeconds": 0, **spec},
        }
        await self.client.create(PODS, body, self.namespace)
        await self.running(name, 1)

    async def waits(self, name, amount, **options):
        """Ask for a pod that gets no place: what it is told."""
        await self.ask(name, amount, **options)
        return (await self.condition(name, "QuotaReserved", "False"))["message"]

    async def put(self, name, amount, pods=1, **options):
        """A job's pods, running."""
        await self.ask(name, amount, pods, **options)
        return await self.running(name, pods)

    async def ask(
        self, name, amount, pods=1, *, resource=GPU, request=ANYWHERE, on=None, but=None, spec=None, **wishes
    ):
        """Make a job: ``on`` one node, or on any ``but`` one; ``spec``: of its pods, where not as `asks` says."""
        where = {}
        if on is not None:
            where = {"nodeSelector": {HOSTNAME_LABEL: on}}
        if but is not None:
            term = {"matchExpressions": [{"key": HOSTNAME_LABEL, "operator": "NotIn", "values": [but]}]}
            where = {
                "affinity": {
                    "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
                }
            }
        spec = {**asks(amounts={resource: str(amount)}, **where), **(spec or {})}
        annotations = {f"topogate.dev/{key.replace('_', '-')}": value for key, value in wishes.items()}
        await self.create(job(name, pods, request=request, annotations=annotations, pod_spec=spec))

    async def lands(self, name, amount, **options):
        """(node, zones) of one pod."""
        (pod,) = await self.put(name, amount, **options)
        return pod["spec"]["nodeName"], zones_of(pod)

    async def split(self, name, **where):
        """Three of the four GPUs of each zone are taken: one is free in each."""
        for pod in await self.put(name, 3, where.pop("pods", 2), **where):
            assert len(zones_of(pod)) == 1

    async def end(self, *names):
        """These jobs are over, and nothing holds what they had."""
        for name in names:
            await self.delete(name)

        async def gone():
            return not any([await self.pods(name) or await self.workload(name) for name in names])

        await until(gone, f"{', '.join(names)} to be gone")


@pytest.fixture
async def fleet(client, namespace, nodes):
    """Makes so many nodes, and a controller with such settings."""
    await install_crds(client)
    await install_nrt(client)
    await make_flavor(client, namespace, namespace)
    names = []

    @contextlib.asynccontextmanager
    async def make(hosts, cpu="32", **settings):
        names.extend(await nodes(blocks=1, racks=1, hosts=hosts, prefix=f"{namespace}-", group=namespace, cpu=cpu))
        found = Fleet(client, namespace, names, **settings)
        async with found.controller:
            yield found
            assert violations(await snapshot(client, {namespace})) == []
            await found.end(*[each["metadata"]["name"] for each in await client.list(JOBS, namespace)])

    yield make
    for name in names:
        for resource in (NODE_RESOURCE_TOPOLOGIES, FLEX_TOPOS):
            with contextlib.suppress(NotFound):
                await client.delete(resource, name)
    await client.delete(RESOURCE_FLAVORS, namespace)


@FULLER
async def test_a_pod_goes_whole_to_an_empty_node_and_not_split_to_a_half_full_one(fleet, fuller):
    async with fleet(3) as jobs:
        for name in jobs.names:
            await jobs.publish(name)
        await jobs.controller.knows("NodeResourceTopology", 3)
        used = jobs.names[fuller]
        await jobs.split("fill", on=used)
        node, zones = await jobs.lands("pair", 2)
        assert (node != used, len(zones)) == (True, 1)
        second, zones = await jobs.lands("another", 2, request=IN_A_RACK, numa_policy="best-effort")
        assert (second, len(zones)) == (node, 1), "the tighter of those that align it"
        assert (await jobs.lands("one", 1))[0] == used, "where alignment is equal the tightest is taken"


async def test_what_alignment_may_cost_is_a_setting(fleet):
    async with fleet(2, alignment_over_packing="Never") as jobs:
        for name in jobs.names:
            await jobs.publish(name)
        await jobs.controller.knows("NodeResourceTopology", 2)
        await jobs.split("fill", on=jobs.names[-1])
        node, zones = await jobs.lands("pair", 2)
        assert (node, len(zones)) == (jobs.names[-1], 2)


@pytest.mark.parametrize(
    ("score", "best"), [("LeastNUMANodes", "tightest"), ("MostAllocated", "half"), ("LeastAllocated", "idle")]
)
async def test_how_full_zones_should_become_decides_between_nodes(fleet, score, best):
    """One more GPU makes three of four of a zone on one node, two on the tightest, one on the idle one."""
    async with fleet(3, numa_score=score) as jobs:
        for name in jobs.names:
            await jobs.publish(name)
        await jobs.controller.knows("NodeResourceTopology", 3)
        name_of = dict(zip(("half", "tightest", "idle"), jobs.names, strict=True))
        for name, gpus, where in (("a", 2, "half"), ("b", 4, "tightest"), ("c", 1, "tightest")):
            await jobs.put(name, gpus, on=name_of[where])
        node, zones = await jobs.lands("one", 1)
        assert (node, len(zones)) == (name_of[best], 1)


@FULLER
async def test_the_only_node_of_twenty_that_aligns_a_pod_is_found(fleet, fuller):
    async with fleet(20) as jobs:
        for name in jobs.names:
            await jobs.publish(name)
        await jobs.controller.knows("NodeResourceTopology", 20)
        alone = jobs.names[-1 - fuller]  # the last, or the first
        await jobs.split("fill", pods=38, but=alone)
        node, zones = await jobs.lands("pair", 2)
        assert (node, len(zones)) == (alone, 1)


@FULLER
async def test_a_wish_for_alignment_leads_to_the_kubelet_that_aligns(fleet, fuller):
    async with fleet(2) as jobs:
        used, other = jobs.names[fuller], jobs.names[-1 - fuller]
        await jobs.publish(used, "none")
        await jobs.publish(other)
        await jobs.controller.knows("NodeResourceTopology", 2)
        await jobs.put("fill", 1, on=used)
        assert (await jobs.lands("wish", 2, numa_policy="best-effort"))[0] == other
        await jobs.end("wish")
        (pod,) = await jobs.put("none", 2)
        assert pod["spec"]["nodeName"] == used


@FULLER
async def test_a_pod_that_prefers_links_goes_where_they_are(fleet, fuller):
    async with fleet(2) as jobs:
        used, other = jobs.names[fuller], jobs.names[-1 - fuller]
        await jobs.links(used, "SYS")
        await jobs.links(other, "NV18")
        await jobs.controller.knows("Node", 2)
        await jobs.put("fill", 1, on=used)
        (pod,) = await jobs.put("prefers", 2, gpu_link="prefer")
        assert pod["spec"]["nodeName"] == other
        await jobs.end("prefers")
        (pod,) = await jobs.put("any", 2)
        assert pod["spec"]["nodeName"] == used


@FULLER
async def test_an_xpu_is_taken_where_that_leaves_the_better_set(fleet, fuller):
    """00000111 (score 2000) before 00001111 (score 0), which is fuller."""
    async with fleet(2) as jobs:
        used, other = jobs.names[fuller], jobs.names[-1 - fuller]
        for name in jobs.names:
            await jobs.publish_xpus(name)
        await jobs.controller.knows("FlexTopo", 2)
        told = []
        for name, count, on in (("four", 4, used), ("two", 2, other), ("one", 1, other), ("last", 1, None)):
            (pod,) = await jobs.put(name, count, resource=XPU, on=on)
            told.append((pod["spec"]["nodeName"], pod["metadata"]["annotations"]["BAIDU_COM_DEVICE_IDX"]))
        assert told == [(used, "0,1,2,3"), (other, "0,1"), (other, "2"), (other, "3")]


# --- what the user states, and nodes without an agent ---------------------------------------------------------------


async def test_zones_are_guaranteed_and_one_socket_is_wished(fleet):
    """A zone of 2 GPUs is free in each socket: 4 GPUs in one `socket` wait, with `numa-guaranteed` they take both."""
    async with fleet(1) as jobs:
        (only,) = jobs.names
        body = flex_body(name=only, zones=(0, 1, 2, 3), gpus=2, policy="best-effort", scope="pod", reserved="")
        await jobs.publish_flex(body)
        await jobs.controller.knows("FlexTopo", 1)
        sockets = {}
        for name in ("a", "b", "c"):
            _, (zone,) = await jobs.lands(name, 2)
            sockets.setdefault(int(zone.removeprefix("node-")) // 2, []).append(name)
        await jobs.end(max(sockets.values(), key=len)[0])
        assert "kubelets" in await jobs.waits("hard", 4, numa_policy="socket")
        _, zones = await jobs.lands("soft", 4, numa_policy="socket", topology_qos="numa-guaranteed")
        assert len({int(zone.removeprefix("node-")) // 2 for zone in zones}) == len(zones) == 2


@FULLER
async def test_pods_without_a_record_hold_what_the_exporter_says_is_in_use(fleet, fuller):
    """Of 4 CPUs a zone each of two foreign pods holds 3: a pod of 2 CPUs in one zone goes to the other node."""
    async with fleet(2, cpu="8") as jobs:
        used, other = jobs.names[fuller], jobs.names[-1 - fuller]
        memory = 64 * GI
        for number in range(2):
            await jobs.foreign(f"foreign-{number}", used, asks(amounts={"cpu": "3"}))
        for name, free in ((used, 1), (other, 4)):
            zones = [nrt_zone(zone, {"cpu": (4, 4, free), "memory": memory}) for zone in range(2)]
            body = nrt_body(zones, name=name, policy="single-numa-node", scope="pod")
            await jobs.client.apply(NODE_RESOURCE_TOPOLOGIES, body, field_manager="test")
        await jobs.controller.knows("NodeResourceTopology", 2)
        pods = [(await jobs.put(f"job-{number}", 2, resource="cpu"))[0] for number in range(4)]
        assert [pod["spec"]["nodeName"] for pod in pods] == [other] * 4
        assert await jobs.controller.metric('topogate_unrecorded_pods{source="NodeResourceTopology"}') == 2
        assert "take 0" in await jobs.waits("fifth", 2, resource="cpu")


async def test_a_pod_that_requires_links_gets_them_of_the_gpus_that_are_free(fleet):
    """Pairs are linked. GPUs 0, 2, 4 and 6 are free of one node, so no pair is; of the other 2 and 3 are."""
    async with fleet(2) as jobs:
        apart, pair = jobs.names
        linked = [["X" if a == b else "NV4" if a // 2 == b // 2 else "SYS" for a in range(8)] for b in range(8)]
        for name, free in ((apart, {0, 2, 4, 6}), (pair, {0, 2, 3, 5})):
            await jobs.client.patch(NODES, name, body={"metadata": {"annotations": {MATRIX: json.dumps(linked)}}})
            await jobs.states(name, free)
            await jobs.foreign(f"holds-{name}", name, asks(amounts={GPU: "4"}))
        await jobs.controller.knows("Node", 2)
        (pod,) = await jobs.put("pair", 2, gpu_link="require")
        assert pod["spec"]["nodeName"] == pair
        assert "NVLink clique" in await jobs.waits("another", 2, gpu_link="require")
        (pod,) = await jobs.put("any", 2)
        assert pod["spec"]["nodeName"] in {apart, pair}


async def test_a_wish_that_no_node_could_keep_is_refused_with_its_reason(fleet):
    async with fleet(1) as jobs:
        assert "no node publishes its NUMA zones" in await jobs.waits("aligned", 2, numa_policy="single-numa-node")
        await jobs.put("plain", 2)
        await jobs.publish(jobs.names[0], "single-numa-node")
        (pod,) = await jobs.running("aligned", 1)
        assert len(zones_of(pod)) == 1


async def test_xpus_are_given_in_ones_twos_fours_and_eights_where_nothing_is_published_too(fleet):
    async with fleet(1) as jobs:
        amounts = {"capacity": {XPU: "8"}, "allocatable": {XPU: "8"}}
        await jobs.client.patch(NODES, jobs.names[0], body={"status": amounts}, subresource="status")
        assert "1, 2, 4" in await jobs.waits("three", 3, resource=XPU)
        await jobs.put("four", 4, resource=XPU)

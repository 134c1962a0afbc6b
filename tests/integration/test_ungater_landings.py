"""Where a preemptor lands decides between nodes, on the real control plane: Figure 3 of the paper, and its Table 3.

Machines of two sockets with 4 GPUs each, all full. KWOK runs what is bound; what the kubelets gave each instance is
written by the test, as an agent writes it, and is what the paper shows. Preemptors are best-effort, as they have no
wish, or guaranteed one socket, as in Table 4.
"""

import contextlib
import json
import random

import pytest
from support.cluster_checker import snapshot, violations
from support.jobs import GPU, KEYS, Running, install_crds, make_flavor
from support.nrt import install_nrt
from support.published import GI, nrt_body, nrt_zone
from support.queues import Queued, make_queue

from crds.constants import HOSTNAME_LABEL, NUMA_PLACEMENT_OBSERVED, NUMA_PLACEMENT_PREDICTED, NUMA_POLICY
from engine.kubelet.machine import TopologyPolicy
from engine.preemption.model import Landing, TopologyQos
from engine.preemption.roster import Roster
from engine.preemption.search import find
from kube.errors import NotFound
from kube.resources import CLUSTER_QUEUES, NODE_RESOURCE_TOPOLOGIES, PODS, PRIORITY_CLASSES, RESOURCE_FLAVORS
from simulator.paper import FIGURE_CLASSES, PREEMPTORS, RTX_4090, TABLE_3, Filling, figure_3_servers, filled_servers
from simulator.servers import preemptor_of, room_of

pytestmark = pytest.mark.cluster

ZONE = {"cpu": 32, "memory": 64 * GI, GPU: 4}  # a socket
ANYWHERE = {KEYS.unconstrained: "true"}
TENTH = {"A": 2, "B": 4, "C": 20, "D": 8}  # of the instances of Table 3, on a tenth of its servers


def asks(of, **more):
    amounts = {"cpu": str(of.cpu), GPU: str(of.gpus)}
    container = {"name": "c", "image": "i", "resources": {"requests": amounts, "limits": amounts}}
    return {"containers": [container], **more}


def observed(one):
    """What an agent writes: an instance's GPUs by socket, and the CPUs beside them."""
    by_socket = [sum(gpu // 4 == socket for gpu in one.gpus) for socket in (0, 1)]
    each = one.of.cpu // one.of.gpus
    return json.dumps(
        [
            {"zone": f"node-{socket}", "amount": {"cpu": str(gpus * each), GPU: str(gpus)}}
            for socket, gpus in enumerate(by_socket)
            if gpus
        ]
    )


def priority_of(of):
    return f"of-{of.priority}"


class Machines(Queued):
    """Instances and preemptors as jobs of one pod; ``names``: the nodes, in order; ``first``: their first pods."""

    names: list[str]
    first: dict[str, str]

    async def fill(self, servers, name_of):
        """``servers``: by machine its instances; ``name_of``: by machine its node."""
        for machine, on in servers.items():
            there = {"nodeSelector": {HOSTNAME_LABEL: name_of[machine]}}
            for one in on:
                spec, priority = asks(one.of, **there), priority_of(one.of)
                await self.submit(one.id.lower(), 1, request=ANYWHERE, priority=priority, pod_spec=spec)
        for on in servers.values():
            for one in on:
                (pod,) = await self.running(one.id.lower(), 1)
                self.first[one.id] = pod["metadata"]["uid"]
                body = {"metadata": {"annotations": {NUMA_PLACEMENT_OBSERVED: observed(one)}}}
                await self.client.patch(PODS, pod["metadata"]["name"], self.namespace, body=body)

    async def comes(self, name, of, servers, wish=None):
        """(node, sockets, instances that are gone) of one more instance of a class."""
        await self.submit(name, 1, request=ANYWHERE, annotations=wish, priority=priority_of(of), pod_spec=asks(of))
        (pod,) = await self.running(name, 1)
        sockets = [use["zone"] for use in json.loads(pod["metadata"]["annotations"][NUMA_PLACEMENT_PREDICTED])]
        ids = {one.id for on in servers.values() for one in on if one.of.preemptible}
        gone = {one for one in ids if await self._went_for(one, name)}
        return pod["spec"]["nodeName"], sockets, gone

    async def _went_for(self, one, name):
        """Whether an instance was evicted for this one; those that were may come back, and evict others."""
        if self.first[one] in {pod["metadata"]["uid"] for pod in await self.pods(one.lower())}:
            return False
        return f"/{name}:" in (await self.event(one.lower(), "Preempted"))["note"]


async def make_machines(client, namespace, nodes, hosts):
    await install_crds(client)
    await install_nrt(client)
    names = await nodes(blocks=1, racks=1, hosts=hosts, prefix=f"{namespace}-", group=namespace, cpu="64")
    for name in names:
        body = nrt_body([nrt_zone(0, ZONE), nrt_zone(1, ZONE)], name=name, policy="best-effort", scope="pod")
        await client.apply(NODE_RESOURCE_TOPOLOGIES, body, field_manager="test")
    await make_flavor(client, namespace, namespace)
    for of in (*FIGURE_CLASSES.values(), *TABLE_3.values()):
        body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": of.priority}
        await client.apply(PRIORITY_CLASSES, {**body, "metadata": {"name": priority_of(of)}}, field_manager="test")
    within = {"preemption": {"withinClusterQueue": "LowerPriority"}}
    await make_queue(client, namespace, "team", 8 * hosts, flavors=(namespace,), **within)
    made = Machines(client, namespace)
    made.names, made.first = sorted(names), {}
    return made


@pytest.fixture
async def machines(client, namespace, nodes):
    """Makes so many machines."""
    made = []

    async def make(hosts):
        made.append(await make_machines(client, namespace, nodes, hosts))
        return made[0]

    yield make
    assert violations(await snapshot(client, {namespace})) == []
    await client.delete(CLUSTER_QUEUES, f"{namespace}-team")
    for name in made[0].names:
        with contextlib.suppress(NotFound):
            await client.delete(NODE_RESOURCE_TOPOLOGIES, name)
    await client.delete(RESOURCE_FLAVORS, namespace)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 0, 1), (2, 1, 0)], ids=str)
async def test_one_more_of_a_takes_machine_1_and_one_more_of_b_one_socket(machines, client, order):
    jobs, servers = await machines(3), figure_3_servers()
    name_of = {f"machine-{number + 1}": jobs.names[at] for number, at in enumerate(order)}
    async with Running(client) as controller:
        await jobs.fill(servers, name_of)
        await controller.crash()
        await controller.start()  # which has read what the agents wrote
        node, sockets, gone = await jobs.comes("more-a", FIGURE_CLASSES["A"], servers)
        of_machine_1 = {one.id for one in servers["machine-1"] if one.of.preemptible}
        assert (node, sockets, gone) == (name_of["machine-1"], ["node-1"], of_machine_1)
        node, sockets, gone = await jobs.comes("more-b", FIGURE_CLASSES["B"], servers)
        of_machine_2 = {one.id: one.gpus[0] // 4 for one in servers["machine-2"] if one.of.preemptible}
        assert (node, len(sockets)) == (name_of["machine-2"], 1)
        assert len({of_machine_2[one] for one in gone - of_machine_1}) == 1
        assert len(gone - of_machine_1) == 2


QOS = {
    TopologyQos.BEST_EFFORT: (TopologyPolicy.NONE, None),
    TopologyQos.GUARANTEED: (TopologyPolicy.SOCKET, {NUMA_POLICY: "socket"}),
}


@pytest.mark.parametrize("qos", QOS)
@pytest.mark.parametrize("name", PREEMPTORS)
@pytest.mark.parametrize("filling", list(Filling))
async def test_on_servers_of_table_3_a_preemptor_crosses_sockets_only_where_the_best_victims_make_it(
    machines, client, filling, name, qos
):
    """The best victims and their landing by the search inside nodes; `tests/unit/simulator` has the whole table."""
    classes = {each: (TABLE_3[each], count) for each, count in TENTH.items()}
    servers, of = filled_servers(filling, 10, classes, random.Random(f"landings {filling}")), TABLE_3[name]
    policy, wish = QOS[qos]
    preemptor = preemptor_of(of, qos, policy)
    best = find(Roster([room_of(RTX_4090, node, on) for node, on in servers.items()]), preemptor)
    jobs = await machines(10)
    async with Running(client) as controller:
        await jobs.fill(servers, dict(zip(servers, jobs.names, strict=True)))
        await controller.crash()
        await controller.start()
        _, sockets, gone = await jobs.comes("more", of, servers, wish)
    priority = {one.id: one.of.priority for on in servers.values() for one in on}
    assert sorted(priority[one] for one in gone) == sorted(victim.priority for victim in best.victims)
    assert (len(sockets) > 1) == (best.landing is Landing.ACROSS)
    assert qos is not TopologyQos.GUARANTEED or len(sockets) == 1, "a hit of Table 4"

"""Jobs whose pods each claim a channel of a ComputeDomain, on the real control plane: one a node, one domain a node.

2 blocks x 2 racks x 2 hosts, where a block is an NVLink clique. The stock scheduler gives the channels; `settle` stands
in for the driver's plugins.
"""

from collections import Counter

import pytest
from support.jobs import KEYS, Watched, followed, job, nodes_of, until

from cli.explain.report import report
from kube.resources import CLAIM_TEMPLATES, DEVICE_CLASSES, NODES
from localcluster.dra.domains import CLIQUE_LABEL, channel_template, clique, settle
from localcluster.dra.driver import parse_driver
from localcluster.dra.publish import publish
from localcluster.dra.slices import device_classes
from localcluster.nodes import BLOCK_LABEL

pytestmark = pytest.mark.cluster

MACHINE = "2 sockets / 2 NUMA / 16 cores / 4 GPUs"
ONE_BLOCK = {KEYS.required[0]: BLOCK_LABEL}


class Domains(Watched):
    """A domain is known by its uid."""

    async def domain(self, uid):
        await self.client.create(CLAIM_TEMPLATES, channel_template(uid, uid), self.namespace)

    async def train(self, name, uid, pods=3):
        claims = {"resourceClaims": [{"name": "channel", "resourceClaimTemplateName": uid}]}
        await self.create(job(name, pods, gpus=0, request=ONE_BLOCK, pod_spec=claims))


@pytest.fixture
async def domains(client, namespace, nodes):
    hosts = [f"{namespace}-b{block}-r{rack}-h{host}" for block in (1, 2) for rack in (1, 2) for host in (1, 2)]
    async with followed(Domains, client, namespace, nodes) as watched:
        for host in hosts:
            labels = {CLIQUE_LABEL: clique(host.split("-")[2], "1")}
            await client.patch(NODES, host, body={"metadata": {"labels": labels}})
        await publish(client, hosts, MACHINE, parse_driver("gpus, channels"))
        yield watched
        await publish(client, hosts, MACHINE, None)
        for one in device_classes():
            await client.delete(DEVICE_CLASSES, one["metadata"]["name"])


def blocks(hosts):
    return {host.split("-")[2] for host in hosts}


async def test_one_channel_and_one_domain_a_node(domains, client, namespace):
    for uid in ("uid-a", "uid-b"):
        await domains.domain(uid)
    await domains.train("first", "uid-a")
    first = nodes_of(await domains.running("first", 3))
    assert (max(Counter(first).values()), len(blocks(first))) == (1, 1)
    assert await settle(client) == dict.fromkeys(first, "uid-a")
    told = await report(client, namespace, "first")
    assert [pod.devices for at in told.domains for pod in at.pods] == [("compute-domain.nvidia.com/channel-0",)] * 3

    await domains.train("second", "uid-b")
    second = nodes_of(await domains.running("second", 3))
    assert max(Counter(second).values()) == 1
    assert len(blocks(first) | blocks(second)) == 2, "each has a clique of its own"
    assert await settle(client) == {**dict.fromkeys(first, "uid-a"), **dict.fromkeys(second, "uid-b")}

    await domains.delete("first")
    await domains.train("third", "uid-b", 4)
    await domains.condition("third", "QuotaReserved", "False", "DoesNotFit")

    async def placed():
        await settle(client)  # the label goes with the claims of the first
        return len(await domains.pods("third", phase="Running")) == 4

    await until(placed, "four running pods of the third")
    third = nodes_of(await domains.running("third", 4))
    assert (max(Counter(third).values()), blocks(third)) == (1, blocks(first))
    assert set((await settle(client)).values()) == {"uid-b"}

"""A stream of Jobs on real kubelets, with an agent beside each: with Topogate they refuse none of its pods.

Of 60 Jobs. ``TOPOGATE_REAL_STREAM=500`` makes it so many on four machines, and the same Jobs without a request beside
them; 0 makes none. Each prints what became of them.
"""

import asyncio
import os
from contextlib import AsyncExitStack

import pytest
from support.agents import install_agent_rights
from support.house import house
from support.real import agent_beside

from benchmarks.stream import KUBELETS, MACHINES, play, stream
from crds.constants import NUMA_PLACEMENT_OBSERVED
from kube.resources import FLEX_TOPOS, PODS
from localcluster import Fleet, RealNode
from localcluster.nodes import HOSTNAME_LABEL
from localcluster.real import service

JOBS = int(os.environ.get("TOPOGATE_REAL_STREAM", "60"))
VARIANTS = ["topogate", "plain"] if "TOPOGATE_REAL_STREAM" in os.environ else ["topogate"]
PATIENCE = 300.0

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(600 + 2 * JOBS),
    pytest.mark.skipif(not JOBS, reason="TOPOGATE_REAL_STREAM is 0"),
]

FLEETS = [
    Fleet(blocks=1, racks=1, hosts=1, prefix=f"real{number}-", machine=MACHINES[number % 2], kubelet=kubelet)
    for number, kubelet in enumerate(KUBELETS if len(VARIANTS) > 1 else KUBELETS[:2])
]
# A controller needs one node that is there from the start; it takes no pods.
OTHER = Fleet(blocks=1, racks=1, hosts=1, group="none", gpus=0, taints=[{"key": "none", "effect": "NoSchedule"}])
LEASE = {"TOPOGATE_LEASE_SECONDS": "15", "TOPOGATE_LEASE_RENEW_SECONDS": "3", "TOPOGATE_LEASE_RETRY_SECONDS": "1"}


def node(fleet):
    (made,) = fleet.objects()
    labels = {key: value for key, value in made["metadata"]["labels"].items() if "kubernetes.io" not in key}
    assert HOSTNAME_LABEL not in labels  # the kubelet's own
    return RealNode(name=made["metadata"]["name"], machine=fleet.machine, kubelet=fleet.kubelet, labels=labels)


@pytest.mark.parametrize("variant", VARIANTS)
async def test_with_topogate_no_real_kubelet_refuses(variant):
    if why := service.refusal():
        pytest.skip(f"no kubelet runs here: {why}")
    nodes = [node(fleet) for fleet in FLEETS]
    plans = stream(pods=4 * JOBS, rate=2.0 * len(nodes), run_seconds=3, seed=4)[:JOBS]
    async with house(OTHER, env=LEASE) as here, AsyncExitStack() as stack:
        await install_agent_rights(here.client)
        await asyncio.to_thread(here.cluster.run_kubelets, nodes)
        for each in nodes:
            await stack.enter_async_context(
                agent_beside(here.cluster.directory, here.client, each.name, agent_poll_seconds=5.0)
            )
        async with asyncio.timeout(60):
            while sum("status" in found for found in await here.client.list(FLEX_TOPOS)) < len(nodes):
                await asyncio.sleep(0.2)
        await asyncio.sleep(2.0)  # the controller has seen what is published
        run = await play(here.client, plans, variant, len(nodes), PATIENCE + JOBS)
        print(run)
        if variant == "plain":
            return  # it stands beside the other
        assert run.refused == {}, run
        assert run.jobs == {"Complete": JOBS}, run
        pods = await here.client.list(PODS, "default")
        assert len(pods) == run.started == run.pods  # none was made twice
        assert sum(NUMA_PLACEMENT_OBSERVED in pod["metadata"].get("annotations", {}) for pod in pods) > len(pods) / 3

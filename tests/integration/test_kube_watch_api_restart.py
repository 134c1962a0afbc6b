"""The API server goes away and comes back while it is watched."""

import pytest
from support.faults import watching

from kube.client import Client
from kube.watch import Signal

pytestmark = pytest.mark.cluster


async def test_a_killed_and_restarted_api_server(fresh_cluster):
    async with (
        await Client.connect(str(fresh_cluster.kubeconfig)) as direct,
        watching(fresh_cluster.kubeconfig, direct, "default", inactivity=5.0) as w,
    ):
        await w.create("before")
        await w.until_has("before")
        fresh_cluster.kill("kube-apiserver")
        await w.until(lambda: Signal.FAILED in w.signals)
        fresh_cluster.start("kube-apiserver")
        await w.create("after")
        await w.delete("before")
        await w.until_has("after")
        await w.converge()

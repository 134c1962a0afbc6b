"""An API server that fails, refuses and loses answers only delays the controller."""

import asyncio
import contextlib
import random
from urllib.parse import urlsplit

import pytest
from support.cluster_checker import settled, snapshot, violations
from support.faults import FaultProxy, is_list, is_watch, through
from support.jobs import KEYS, RACK_LABEL, Running, Watched, install_crds, job, make_flavor, until

from kube.connection import config
from kube.resources import EVENTS, NODES, PODS, RESOURCE_FLAVORS

pytestmark = pytest.mark.cluster


class Lossy(FaultProxy):
    """Passes some writes on and then drops the connection instead of the answer; answers others with an error."""

    choose: random.Random
    lost = failed = 0

    async def _pass_on(self, request: bytes, writer: asyncio.StreamWriter, watch: bool) -> None:
        write = request.startswith((b"PATCH", b"POST"))
        luck = self.choose.random()
        if write and luck < 0.15:
            self.lost += 1
            await self._swallow(request)
        elif write and luck < 0.3:
            self.failed += 1
            status, header = self.choose.choice([(500, b""), (503, b""), (429, b"Retry-After: 0\r\n"), (409, b"")])
            writer.write(b"HTTP/1.1 %d Fault\r\nContent-Length: 2\r\nConnection: close\r\n%b\r\n{}" % (status, header))
            await writer.drain()
        else:
            await super()._pass_on(request, writer, watch)

    async def _swallow(self, request: bytes) -> None:
        address = urlsplit(self.upstream)
        reader, writer = await asyncio.open_connection(address.hostname, address.port, ssl=self.tls)
        try:
            writer.write(request)
            await reader.read()
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


@pytest.fixture
async def jobs(client, namespace, nodes):
    await install_crds(client)
    await nodes(blocks=2, racks=2, hosts=3, prefix=f"{namespace}-", group=namespace)
    await make_flavor(client, namespace, namespace)
    yield Watched(client, namespace)
    await client.delete(RESOURCE_FLAVORS, namespace)


async def test_lost_answers_and_errors_only_delay(jobs, client, namespace, cluster):
    real = await config.load(str(cluster.kubeconfig))
    proxy = Lossy(real.url, real.tls)
    proxy.choose = random.Random(3)
    async with proxy.serve(), await through(proxy, cluster) as faulty, Running(faulty):
        for number in range(6):
            request = {KEYS.required[0] if number % 2 else KEYS.preferred[0]: RACK_LABEL}
            await jobs.create(job(f"f{number}", 8, gpus=1, indexed=True, request=request))

        async def done():
            found = await snapshot(client, {namespace})
            assert violations(found) == []
            return not settled(found)

        await until(done, "all pods to run", seconds=120)
    print(f"{proxy.lost} answers lost, {proxy.failed} calls failed")
    assert proxy.lost
    assert proxy.failed


async def test_broken_watches_are_taken_up_again(jobs, client, namespace, cluster):
    real = await config.load(str(cluster.kubeconfig))
    async with FaultProxy(real.url, real.tls).serve() as proxy, await through(proxy, cluster) as faulty:
        async with Running(faulty):
            await jobs.create(job("before", 4, gpus=1))
            await jobs.running("before", 4)
            proxy.cut_next_line()
            await jobs.create(job("during", 4, gpus=1))
            await asyncio.sleep(0.5)
            proxy._cut = False
            proxy.answer(410, times=3)
            await jobs.create(job("after", 4, gpus=1))
            await jobs.running("during", 4)
            await jobs.running("after", 4)
            assert violations(await snapshot(client, {namespace})) == []
        assert any(is_watch(*call) for call in proxy.calls)
        assert any(is_list(*call) for call in proxy.calls)


async def test_pods_of_a_lost_node_get_another_place(jobs, client, namespace):
    async with Running(client):
        await jobs.create(job("spare", 2, gpus=8))
        before = await jobs.running("spare", 2)
        lost = before[0]["spec"]["nodeName"]
        await client.patch(NODES, lost, body={"spec": {"unschedulable": True}})
        await client.delete(PODS, before[0]["metadata"]["name"], namespace)

        async def moved():
            found = await jobs.pods("spare", phase="Running")
            return len(found) == 2 and all(pod["spec"]["nodeName"] != lost for pod in found) and found

        after = await until(moved, "another place for the pod of the node that was drained")
        assert before[1]["metadata"]["uid"] in {pod["metadata"]["uid"] for pod in after}, "the other pod stays"
        assert len({pod["spec"]["nodeSelector"][RACK_LABEL] for pod in after}) == 1
        await jobs.event("spare", "Replaced")
        assert violations(await snapshot(client, {namespace})) == []
        await client.patch(NODES, lost, body={"spec": {"unschedulable": None}})


async def test_the_quiet_cluster_is_not_written_to(jobs, client, namespace):
    """After the goal is reached nothing more is written: five sweeps later every version is the same."""
    async with Running(client):
        await jobs.create(job("still", 4, gpus=1))
        await jobs.create(job("never", 4, gpus=8, request={KEYS.required[0]: RACK_LABEL}))
        await jobs.running("still", 4)
        await jobs.condition("still", "PodsReady", "True")
        await jobs.condition("never", "QuotaReserved", "False", "NeverFits")
        before = await _versions(client, namespace)
        await asyncio.sleep(11)
        assert await _versions(client, namespace) == before


async def _versions(client, namespace):
    found = await snapshot(client, {namespace})
    found["events"] = await client.list(EVENTS, namespace)
    return {
        f"{kind} {obj['metadata']['name']}": obj["metadata"]["resourceVersion"]
        for kind in ("jobs", "workloads", "pods", "events")
        for obj in found[kind]
        if obj["metadata"]["namespace"] == namespace
    }

"""Leader election against the real API server: two electors, a clean stop, an API server that freezes."""

import asyncio
import contextlib

import pytest
from support.faults import WAIT_SECONDS, proxied

from kube.client import Client
from kube.connection import config
from kube.lease import LeaderElector, Lease
from kube.resources import LEASES

pytestmark = pytest.mark.cluster
TIMES = {"lease_seconds": 3.0, "renew_seconds": 0.5, "retry_seconds": 0.2}


class Contender:
    """An elector whose work says when it begins and ends; ``alone`` fails where two work at once."""

    working: set[str]

    def __init__(self, client: Client, namespace: str, identity: str, working: set[str]) -> None:
        self.elector = LeaderElector(client, namespace, "leader", identity, **TIMES)
        self.working = working
        self.identity = identity
        self.finish = asyncio.Event()
        self.begun = 0

    async def work(self) -> None:
        assert not self.working, f"{self.identity} begins while {self.working} works"
        self.working.add(self.identity)
        self.begun += 1
        try:
            await self.finish.wait()
        finally:
            self.working.discard(self.identity)

    @contextlib.asynccontextmanager
    async def running(self):
        task = asyncio.create_task(self.elector.run(self.work))
        try:
            yield task
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def until(condition) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


async def test_one_leads_and_the_other_follows_at_once_after_a_clean_stop(client, namespace):
    working: set[str] = set()
    first, second = Contender(client, namespace, "first", working), Contender(client, namespace, "second", working)
    async with first.running() as stopping:
        await until(lambda: working == {"first"})
        assert first.elector.is_leader
        async with second.running() as other:
            await until(lambda: second.elector.holder == "first")
            first.finish.set()
            await stopping
            assert not first.elector.is_leader
            await until(lambda: working == {"second"})
            lease = await client.get(LEASES, "leader", namespace, type=Lease)
            assert lease.spec.holder_identity == "second"
            assert lease.spec.lease_transitions == 1
            assert lease.spec.renew_time.endswith("Z")
            other.cancel()
            await asyncio.wait({other})
    assert (await client.get(LEASES, "leader", namespace, type=Lease)).spec.holder_identity in {None, ""}


async def test_a_frozen_api_server_costs_the_lease_before_another_takes_it(cluster, client, namespace):
    working: set[str] = set()
    async with proxied(cluster.kubeconfig) as proxy, Client(config.Connection(proxy.url)) as through:
        first = Contender(through, namespace, "first", working)
        second = Contender(client, namespace, "second", working)
        async with first.running():
            await until(lambda: working == {"first"})
            async with second.running():
                await until(lambda: second.elector.holder == "first")
                proxy.freeze()
                await until(lambda: not working)  # given up, with nothing but silence from the API server
                assert not first.elector.is_leader
                assert second.begun == 0
                await until(lambda: working == {"second"})
                proxy.thaw()
                await until(lambda: first.elector.holder == "second")
                assert working == {"second"}


async def test_a_lease_that_somebody_else_takes_is_lost(client, namespace):
    working: set[str] = set()
    first = Contender(client, namespace, "first", working)
    async with first.running():
        await until(lambda: working == {"first"})
        await client.patch(LEASES, "leader", namespace, body={"spec": {"holderIdentity": "thief"}})
        await until(lambda: not working)
        assert first.elector.holder == "thief"
        await until(lambda: first.begun == 2)  # the thief never renews


async def test_the_end_of_the_work_is_the_end_of_the_run(client, namespace):
    async def fails() -> None:
        raise RuntimeError("broken")

    elector = LeaderElector(client, namespace, "leader", "first", **TIMES)
    with pytest.raises(RuntimeError, match="broken"):
        await elector.run(fails)
    lease = await client.get(LEASES, "leader", namespace, type=Lease)
    assert not lease.spec.holder_identity

"""Restarts, lost leadership and SIGKILL: they change nothing but the time it takes."""

import asyncio
import os
import random
import signal
import subprocess
import sys

import pytest
from support.cluster_checker import rank_order, settled, snapshot, violations
from support.jobs import KEYS, RACK_LABEL, Running, Watched, install_crds, job, make_flavor, until

from kube.informer import Informer
from kube.objects import Pod
from kube.resources import LEASES, NAMESPACES, PODS, RESOURCE_FLAVORS, WORKLOADS

pytestmark = pytest.mark.cluster


@pytest.fixture
async def jobs(client, namespace, nodes):
    await install_crds(client)
    await nodes(blocks=2, racks=3, hosts=4, prefix=f"{namespace}-", group=namespace)
    await make_flavor(client, namespace, namespace)
    yield Watched(client, namespace)
    await client.delete(RESOURCE_FLAVORS, namespace)


async def all_well(client, namespace, *, seconds=120):
    """Wait until every job has all its pods running; then nothing may be wrong, and a while later nothing changed."""

    async def done():
        return not settled(await snapshot(client, {namespace}))

    try:
        await until(done, "all pods to run", seconds=seconds)
    except AssertionError as error:
        raise AssertionError(f"{error}: {settled(await snapshot(client, {namespace}))}") from None
    first = await snapshot(client, {namespace})
    assert violations(first) == []
    return first


async def test_restarted_at_random_moments_it_goes_on(jobs, client, namespace):
    choose = random.Random(7)
    running = Running(client)
    for number in range(6):
        request = {KEYS.required[0] if number % 2 else KEYS.preferred[0]: RACK_LABEL}
        await jobs.create(job(f"j{number}", 20, gpus=1, indexed=True, request=request))
        await running.start()
        await asyncio.sleep(choose.uniform(0.0, 0.6))
        await running.crash()
    async with running:
        found = await all_well(client, namespace)
    for number in range(6):
        assert rank_order(found, f"j{number}") == []


async def test_after_a_restart_nothing_is_written_and_no_pod_moves(jobs, client, namespace):
    await jobs.create(job("calm", 8, gpus=4))
    running = Running(client)
    async with running:
        await jobs.running("calm", 8)
        await jobs.condition("calm", "PodsReady", "True")
    before = await snapshot(client, {namespace})
    async with running:
        await until(lambda: _leads(running), "the controller to be ready")
        await asyncio.sleep(4)  # longer than a lazy write is put off
    after = await snapshot(client, {namespace})
    for kind in ("workloads", "jobs"):
        versions = [[obj["metadata"]["resourceVersion"] for obj in found[kind]] for found in (before, after)]
        assert versions[0] == versions[1]
    assert violations(after) == []


async def _leads(running):
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    writer.write(b"GET /readyz HTTP/1.0\r\n\r\n")
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return b" 200 " in answer.split(b"\r\n")[0]


async def test_an_admission_without_ungated_pods_is_carried_out(jobs, client, namespace):
    """The stored admission alone is enough: whoever comes next lets the pods go to exactly these slots."""
    await jobs.create(job("record", 8, gpus=1))
    running = Running(client, ungate_concurrency=1)
    async with running:
        await until(lambda: _admitted(jobs, "record"), "the admission")
    stored = (await jobs.workload("record"))["status"]["admission"]
    async with running:
        await jobs.running("record", 8)
    assert (await jobs.workload("record"))["status"]["admission"] == stored
    assert violations(await snapshot(client, {namespace})) == []


async def _admitted(jobs, name):
    workload = await jobs.workload(name)
    return workload and "admission" in workload.get("status", {})


async def test_of_two_one_leads_and_the_other_takes_over(jobs, client, namespace, make_client, cluster):
    await client.create(
        NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"{namespace}-lease"}}
    )
    lease = {"leader_election": True, "namespace": f"{namespace}-lease", "lease_seconds": 3.0}
    lease |= {"lease_renew_seconds": 1.0, "lease_retry_seconds": 0.3}
    first, second = Running(client, **lease), Running(await make_client(cluster.kubeconfig), **lease)
    async with first, second:
        await jobs.create(job("one", 4, gpus=1))
        await jobs.running("one", 4)
        await jobs.create(job("two", 20, gpus=1))
        await first.crash()
        await jobs.running("two", 20)
        await first.start()
        await jobs.create(job("three", 20, gpus=1))
        await second.crash()
        await all_well(client, namespace)
    assert (await client.get(LEASES, "topogate-ungater", f"{namespace}-lease"))["spec"]["leaseTransitions"] >= 1
    await client.delete(NAMESPACES, f"{namespace}-lease")


def _spawn(cluster, log):
    command = [sys.executable, "-m", "cli.main", "ungater", "--kubeconfig", str(cluster.kubeconfig)]
    command += ["--no-leader-election", "--metrics-port", "0", "--host", "127.0.0.1"]
    # few patches in flight, so that a kill finds many pods half done
    return subprocess.Popen(command, stderr=log, stdout=log, env={**os.environ, "TOPOGATE_UNGATE_CONCURRENCY": "4"})


class Progress:
    """Counts the pods of a namespace that were let go, by a watch, and waits for a count."""

    def __init__(self, client, namespace):
        self._gone: set[str] = set()
        self._changed = asyncio.Event()
        self.informer = Informer(client, PODS, Pod, namespace=namespace, on_event=self._see)

    def __len__(self):
        return len(self._gone)

    def _see(self, event):
        if event.new is not None and not event.new.spec.scheduling_gates:
            self._gone.add(event.key)
            self._changed.set()

    async def reach(self, count):
        async with asyncio.timeout(120):
            while len(self) < count:
                self._changed.clear()
                await self._changed.wait()


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_killed_ten_times_while_500_pods_are_placed(client, namespace, nodes, cluster, tmp_path):
    """Each kill comes at a random moment of the placing: when a random number of the pods due has been let go."""
    await install_crds(client)
    await nodes(blocks=4, racks=5, hosts=4, prefix=f"{namespace}-", group=namespace)
    await make_flavor(client, namespace, namespace)
    jobs, choose, progress = Watched(client, namespace), random.Random(20), Progress(client, namespace)
    watching = asyncio.create_task(progress.informer.run())
    with (tmp_path / "ungater.log").open("wb") as log:
        process = _spawn(cluster, log)
        try:
            for number in range(20):
                policy = KEYS.required[0] if number % 2 else KEYS.preferred[0]
                await jobs.create(job(f"k{number}", 25, gpus=1, indexed=number % 3 == 0, request={policy: RACK_LABEL}))
                if number % 2:
                    await progress.reach(choose.randint(len(progress), 25 * (number + 1) - 1))
                    await asyncio.sleep(choose.uniform(0.0, 0.02))
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                    found = await snapshot(client, {namespace})
                    print(f"kill {number // 2 + 1}: {len(progress)} of {25 * (number + 1)} pods were let go")
                    assert violations(found) == []
                    process = _spawn(cluster, log)
            found = await all_well(client, namespace, seconds=240)
        finally:
            process.kill()
            process.wait()
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
    assert sum(pod["metadata"]["namespace"] == namespace for pod in found["pods"]) == 500
    assert len(await client.list(WORKLOADS, namespace)) == 20
    for number in range(0, 20, 3):
        assert rank_order(found, f"k{number}") == []
    await client.delete(RESOURCE_FLAVORS, namespace)

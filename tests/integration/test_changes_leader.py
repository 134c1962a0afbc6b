"""A leader that is stopped (SIGSTOP), overtaken, and woken up: it writes nothing any more (docs/changes.md)."""

import asyncio
import contextlib
import os
import pathlib
import signal
import subprocess
import sys

import pytest
import yaml
from support.cluster_checker import rank_order, settled, snapshot, violations
from support.faults import FaultProxy
from support.jobs import KEYS, RACK_LABEL, Running, Watched, install_crds, job, make_flavor, until

from kube.connection import config
from kube.resources import LEASES, NAMESPACES, RESOURCE_FLAVORS

pytestmark = pytest.mark.cluster
LEASE = {"lease_seconds": 6.0, "lease_renew_seconds": 1.0, "lease_retry_seconds": 0.3}


def start(proxy, folder, lease, log):
    """An ungater as a process, which sees the API server through the proxy."""
    path = folder / "kubeconfig"
    body = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        "clusters": [{"name": "c", "cluster": {"server": proxy.url}}],
        "users": [{"name": "c", "user": {}}],
    }
    path.write_text(yaml.safe_dump(body))
    settings = {f"TOPOGATE_{key.upper()}": str(value) for key, value in lease.items()}
    command = [sys.executable, "-m", "cli.main", "ungater", "--kubeconfig", str(path)]
    command += ["--metrics-port", "0", "--host", "127.0.0.1"]
    env = {**os.environ, **settings, "TOPOGATE_UNGATE_CONCURRENCY": "1"}
    return subprocess.Popen(command, stderr=log, stdout=log, env=env)


def writes(calls):
    """What was written but for events and the lease itself."""
    others = [(method, path) for method, path in calls if method not in {"GET", "HEAD"}]
    return [call for call in others if "/events" not in call[1] and "/leases/" not in call[1]]


async def test_a_leader_that_was_stopped_writes_nothing_after_another_took_over(
    client, namespace, nodes, cluster, tmp_path
):
    await install_crds(client)
    await nodes(blocks=2, racks=2, hosts=4, prefix=f"{namespace}-", group=namespace)
    await make_flavor(client, namespace, namespace)
    where = f"{namespace}-lease"
    await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": where}})
    lease = {"leader_election": True, "namespace": where, **LEASE}
    jobs = Watched(client, namespace)
    for number in range(4):
        request = {KEYS.required[0]: RACK_LABEL}
        await jobs.create(job(f"j{number}", 25, gpus=1, indexed=True, request=request))
    real = await config.load(str(cluster.kubeconfig))
    async with FaultProxy(real.url, real.tls).serve() as proxy:
        with (tmp_path / "ungater.log").open("wb") as log:
            process = start(proxy, tmp_path, lease, log)
        try:
            await until(lambda: _written(proxy, 30), "the first controller to be in the middle of its work")
            process.send_signal(signal.SIGSTOP)
            stopped = await _seen_all(process, proxy)
            async with Running(client, **lease):
                await until(lambda: _holder_changed(client, where), "another to take the lease over")
                process.send_signal(signal.SIGCONT)
                await until(lambda: _asks_again(proxy, stopped), "the first one to go on")
                await asyncio.sleep(1.0)  # long enough for what it had in hand
                late = writes(proxy.calls[stopped:])
                await until(lambda: _all_run(client, namespace), "all pods to run")
            assert late == [], "it writes though another leads"
            assert process.poll() is None, "it stands by"
            found = await snapshot(client, {namespace})
            assert violations(found) == []
            for number in range(4):
                assert rank_order(found, f"j{number}") == []
        finally:
            process.kill()
            process.wait()
    await client.delete(RESOURCE_FLAVORS, namespace)
    with contextlib.suppress(Exception):
        await client.delete(NAMESPACES, where)


async def _seen_all(process, proxy):
    """How many calls the proxy has seen once it has read what the process had sent when it stopped."""
    while not _is_stopped(process.pid):
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.5)  # less than any lease lasts; the proxy, on the same loop, reads on
    return len(proxy.calls)


def _is_stopped(pid):
    state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "T"


async def _written(proxy, count):
    return len(writes(proxy.calls)) >= count


async def _holder_changed(client, namespace):
    found = await client.get(LEASES, "topogate-ungater", namespace)
    return found["spec"]["leaseTransitions"] >= 1


async def _asks_again(proxy, since):
    return any("/leases/" in path for _, path in proxy.calls[since:])


async def _all_run(client, namespace):
    return not settled(await snapshot(client, {namespace}))

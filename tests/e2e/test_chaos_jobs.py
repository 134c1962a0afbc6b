"""Whatever dies while jobs are placed: at the end every pod is where its Workload says, and no slot was given twice.

Not only at the end: a witness reads every change from etcd and judges each of them (`support.witness`). The same run in
full, 2,000 pods on 640 nodes: ``TOPOGATE_CHAOS=full pytest -s tests/e2e/test_chaos_jobs.py``.
"""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass

import pytest
from support.chaos import ALONE, ASKED, FULL, gets_on, insist, witnessed
from support.cluster_checker import is_gated, rank_order, settled, violations
from support.etcd_events import STORING_JSON
from support.house import NAMESPACE, PREFERRED, REQUIRED, house, user_job
from support.jobs import KEYS, until

from kube.resources import JOBS, NODES
from localcluster import API_SERVER, ETCD, Fleet, Options
from localcluster.process import log_tail

SEED = 20
DISRUPTED = [{"type": "DisruptionTarget", "status": "True"}]
# A rack that lost a host may be too small for a job that has to be in one: it starts over then.
ENV = {"TOPOGATE_REPLACEMENT_TIMEOUT_SECONDS": "30", **ALONE}


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    fleet: Fleet
    jobs: int
    pods: int  # of each job
    kills: int
    api_kills: int
    nodes: int  # that are deleted on the way
    settle_seconds: int


SMALL = Size(Fleet(blocks=5, racks=5, hosts=4, gpus=8), 20, 25, kills=10, api_kills=1, nodes=3, settle_seconds=180)
LARGE = Size(Fleet(blocks=8, racks=10, hosts=8, gpus=8), 50, 40, kills=20, api_kills=2, nodes=10, settle_seconds=900)
SIZE = LARGE if FULL else SMALL

pytestmark = [ASKED, pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(3600 if FULL else 600)]


async def test_the_controller_the_api_server_etcd_and_nodes_die_while_jobs_are_placed():
    async with (
        house(SIZE.fleet, options=Options(extra_args=STORING_JSON), env=ENV) as here,
        witnessed(here) as (seen, events),
    ):
        choose, began = random.Random(SEED), time.monotonic()
        submitting = asyncio.create_task(submit(here))
        other = _others(here, choose)
        lost: set[str] = set()
        share = (2 * SIZE.jobs + SIZE.jobs * SIZE.pods) // SIZE.kills  # of the writes that have to be made at least
        for number in range(SIZE.kills):
            pid = here.components.pid("ungater")
            moment = choose.randint(1, max(2, share * 3 // 4))
            await gets_on(seen, moment, lambda pid=pid: os.kill(pid, signal.SIGKILL))
            await here.components.kill("ungater")  # waits until it is gone
            print(f"{time.monotonic() - began:.1f} s: ungater killed after {seen.writes} of its writes", flush=True)
            here.components.spawn("ungater")
            for what in other.get(number, ()):
                print(f"{time.monotonic() - began:.1f} s: {what}", flush=True)
                await _break(here, seen, choose, what, lost)
            assert seen.wrong == [], seen.wrong
        await submitting
        await _all_well(here, seen, events)
        print(
            f"{time.monotonic() - began:.1f} s: {SIZE.jobs * SIZE.pods} pods of {SIZE.jobs} jobs run on "
            f"{len(seen.nodes)} nodes; {seen.seen} changes judged, the watch of etcd was cut {events.cuts} times; "
            f"lost nodes {sorted(lost)}; wrong: {seen.wrong}",
            flush=True,
        )


async def submit(here):
    for number in range(SIZE.jobs):
        request = REQUIRED if number % 2 else PREFERRED
        body = user_job(f"k{number}", SIZE.pods, request, indexed=number % 3 == 0)
        # Where Kubernetes collects the pods of a deleted node first, it counts them as failures and waits for minutes.
        body["spec"]["podFailurePolicy"] = {"rules": [{"action": "Ignore", "onPodConditions": DISRUPTED}]}
        await insist(lambda body=body: here.client.create(JOBS, body, NAMESPACE))


def _others(here, choose):
    """What else breaks, by the number of the kill after which it does: each thing at another moment."""
    events = ["etcd", "compaction", *["API server"] * SIZE.api_kills, *["node"] * SIZE.nodes]
    plan = {}
    for what in events:
        plan.setdefault(choose.randrange(1, SIZE.kills), []).append(what)
    return plan


async def _break(here, seen, choose, what, lost):
    match what:
        case "etcd":
            await asyncio.to_thread(here.cluster.kill, ETCD)
            await asyncio.sleep(1)
            await asyncio.to_thread(here.cluster.start, ETCD)
        case "API server":
            await asyncio.to_thread(here.cluster.kill, API_SERVER)
            await asyncio.sleep(1)  # calls fail, watches break
            await asyncio.to_thread(here.cluster.start, API_SERVER)
        case "compaction":
            await asyncio.to_thread(here.cluster.compact_etcd)
        case "node":
            used = sorted({pod["spec"]["nodeName"] for pod in seen.pods.values() if pod["spec"].get("nodeName")})
            there = seen.nodes.keys() - lost
            name = choose.choice([name for name in used if name in there] or sorted(there))
            lost.add(name)
            await insist(lambda: here.client.delete(NODES, name))


async def _all_well(here, seen, events):
    """Wait until every job has all its pods running, then judge."""

    async def done():
        assert seen.wrong == []
        if any(pod["spec"].get("nodeName") not in seen.nodes for pod in seen.pods.values()):
            return False  # pods of a deleted node count as running until they are collected
        return len(seen.jobs) == SIZE.jobs and not settled(seen.cluster({NAMESPACE}))

    try:
        await until(done, "all pods to run", seconds=SIZE.settle_seconds)
    except AssertionError as error:
        log, states = log_tail(here.components.log("ungater")), [str(one) for one in here.cluster.status()]
        pods = [_state(key, pod) for key, pod in sorted(seen.pods.items()) if _state(key, pod)][:40]
        text = "\n".join([str(settled(seen.cluster({NAMESPACE}))), *pods, *states, str(seen.wrong), log])
        raise AssertionError(f"{error}: {text}") from None
    await events.caught_up()
    found = seen.cluster({NAMESPACE})
    assert seen.wrong == [], seen.wrong
    assert violations(found) == []
    assert len(found["workloads"]) == len(found["jobs"]) == SIZE.jobs
    running = [pod for pod in found["pods"] if pod["status"].get("phase") == "Running"]
    assert all(pod["metadata"]["annotations"][KEYS.workload] for pod in running)
    assert all(pod["spec"]["nodeName"] in seen.nodes for pod in running)
    stored = Counter(len(admissions) for admissions in seen.admissions.values())
    assert len(seen.admissions) == SIZE.jobs
    assert stored[1] >= SIZE.jobs - SIZE.nodes * 8, "only who lost a node got other slots"
    for number in range(0, SIZE.jobs, 3):
        if len(seen.admissions[_uid(found, f"k{number}")]) == 1:
            assert rank_order(found, f"k{number}") == []


def _state(key, pod):
    """How a pod is that does not run; "" of one that does."""
    meta, spec = pod["metadata"], pod["spec"]
    if pod["status"].get("phase") == "Running" and not meta.get("deletionTimestamp"):
        return ""
    node, selector = spec.get("nodeName"), list(spec.get("nodeSelector", {}).values())
    gone = f" deleted at {meta['deletionTimestamp']}" if meta.get("deletionTimestamp") else ""
    return f"{key}: {pod['status']} node {node}, selects {selector}, gated {is_gated(pod)}{gone}"


def _uid(found, job):
    return next(
        workload["metadata"]["uid"]
        for workload in found["workloads"]
        if any(ref["name"] == job for ref in workload["metadata"]["ownerReferences"])
    )

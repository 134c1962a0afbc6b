"""The cluster in memory on which the growth of the controller is measured: listed, watched, written like a real one."""

import asyncio

from benchmarks import scale
from benchmarks.harness.feed import Feed, patched
from benchmarks.harness.large_cluster import Pods, feed_of, jobs_on, nodes_from
from kube.client import Client
from kube.connection.config import Connection
from kube.informer import Informer
from kube.objects import Node, Pod
from kube.resources import NODES, PODS

NODES_HERE = 400


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def test_pages_and_events_reach_an_informer():
    feed = Feed([NODES], {"nodes": (1200, nodes_from)})
    async with Client(Connection("http://feed"), transport=feed) as client:
        seen = []
        informer = Informer(client, NODES, Node, on_event=seen.append)
        running = asyncio.create_task(informer.run())
        await informer.wait_synced()
        assert (len(informer.store), feed.calls["GET nodes"]) == (1200, 3)
        await asyncio.sleep(0)
        feed.put("nodes", {"metadata": {"name": "late"}})
        await until(lambda: "late" in informer.store)
        feed.expire("nodes")
        await until(lambda: feed.calls["GET nodes"] == 6)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert len(seen) == 1201


def test_patches_change_what_they_name():
    obj = {"a": {"b": 1, "c": 2}, "d": [1]}
    assert patched(obj, {"a": {"b": None, "e": 3}}) == {"a": {"c": 2, "e": 3}, "d": [1]}
    steps = [
        {"op": "test", "path": "/a/b", "value": 1},
        {"op": "replace", "path": "/a/b", "value": 4},
        {"op": "add", "path": "/d/-", "value": 2},
        {"op": "remove", "path": "/a/c"},
    ]
    assert patched(obj, steps) == {"a": {"b": 4}, "d": [1, 2]}
    assert obj == {"a": {"b": 1, "c": 2}, "d": [1]}


async def test_a_controller_places_the_jobs_and_another_takes_over():
    workloads = await scale._all_placed(NODES_HERE)
    assert len(workloads) == jobs_on(NODES_HERE) == 2
    pods = Pods(NODES_HERE, workloads)
    feed = feed_of(NODES_HERE, workloads, pods)
    async with Client(Connection("http://feed"), transport=feed) as client:
        run = scale._Run(feed, client)
        running = asyncio.create_task(run.controller.run())
        await run.until(lambda: run.controller.ready, "the controller to lead")
        entries = run.controller.parts.cache.entries.values()
        assert sorted(len(entry.pods) for entry in entries) == [200, 200]
        assert all(entry.admission is not None for entry in entries)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert feed.calls["POST workloads"] == 0


async def test_generated_pods_are_as_they_were_placed():
    workloads = await scale._all_placed(NODES_HERE)
    pods = Pods(NODES_HERE, workloads)
    feed = feed_of(NODES_HERE, workloads, pods)
    async with Client(Connection("http://feed"), transport=feed) as client:
        found = await client.list(PODS, type=Pod)
    assert len(found) == 2 * NODES_HERE
    ours = [pod for pod in found if pod.metadata.owner_references]
    assert len(ours) == NODES_HERE
    assert all(set((pod.spec.node_selector or {}).values()) >= {pod.spec.node_name} for pod in ours)

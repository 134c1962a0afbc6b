"""Figures of the page on a large cluster: `python -m support.web_figures [BLOCKS RACKS HOSTS]`. Prints one line each.

A real control plane with KWOK nodes; `topogate web` watches it; ten viewers follow its changes, and pods come and go.
Then a Chromium opens it. Both share the machine with the control plane, so times are upper bounds.
"""

import asyncio
import os
import re
import statistics
import sys
import time
from pathlib import Path

import aiohttp
from support import chromium
from support.web_page import serving

from cli.install import installation, waiting
from kube.client import Client
from kube.resources import PODS, RESOURCE_FLAVORS
from localcluster import Fleet, LocalCluster, add_nodes, wait_ready
from manifests import render

TICKS = os.sysconf("SC_CLK_TCK")
VIEWERS, SECONDS, CHURN = 10, 60, 5  # pods that come, and as many that go, each second
OBSERVE = """
window.__paints = []; window.__long = [];
new PerformanceObserver(list => window.__paints.push(...list.getEntries()
  .filter(e => e.name === 'paint').map(e => [e.startTime, e.duration, e.detail])))
  .observe({type: 'measure', buffered: true});
new PerformanceObserver(list => window.__long.push(...list.getEntries().map(e => Math.round(e.duration))))
  .observe({type: 'longtask', buffered: true});
"""


def cpu(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory(pid):
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024


async def follow(base, key, got):
    headers = {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=None)) as session:
        async with session.get(f"{base}api/picture") as answer:
            picture = await answer.json()
        url = f"{base}api/changes?since={picture['version']}&epoch={picture['epoch']}"
        async with session.get(url, read_bufsize=1 << 24) as answer:
            async for line in answer.content:
                got["bytes"] += len(line)
                got["events"] += line.startswith(b"data")


def pod(number, node):
    container = {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "4"}}}
    meta = {"name": f"p{number}", "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"nodeName": node, "containers": [container]}}


async def churn(client, names, stop):
    number = 0
    while not stop.is_set():
        began = time.monotonic()
        for _ in range(CHURN):
            await client.create(PODS, pod(number, names[(number * 37) % len(names)]), "default")
            if number >= 200:
                await client.raw("DELETE", PODS.path("default", f"p{number - 200}"), params={"gracePeriodSeconds": "0"})
            number += 1
        await asyncio.sleep(max(0.0, 1 - (time.monotonic() - began)))


async def browser(link):
    async with chromium.tab() as tab:
        await tab.call("Page.addScriptToEvaluateOnNewDocument", source=OBSERVE)
        for attempt in range(2):
            await tab.open(link)
            await tab.until("window.__paints.length > 0")
            first = await tab.js("performance.getEntriesByType('navigation')[0].responseStart")
            paint = await tab.js("window.__paints[0]")
            after = paint[0] + paint[1] - first
            print(f"first paint of the map, after the first byte (visit {attempt + 1}): {after:.0f} ms")
        await tab.js("window.__paints.length = 0; window.__long.length = 0; true")
        await asyncio.sleep(20)
        paints = await tab.js("window.__paints")
        updates = {}
        for _, duration, version in paints:
            updates.setdefault(version, duration)
        took, median = sorted(updates.values()), statistics.median(updates.values())
        print(f"updates painted in 20 s: {len(took)}, median {median:.1f} ms, longest {took[-1]:.1f} ms")
        print(f"tasks over 50 ms meanwhile: {await tab.js('window.__long')}")
        await tab.js("window.__paints.length = 0; true")
        began = time.monotonic()
        for step in range(60):
            await tab.mouse("mouseWheel", 500 + step, 450, deltaX=0, deltaY=-40 if step < 30 else 40)
        lasted = time.monotonic() - began
        paints = await tab.js("window.__paints")
        median = statistics.median(one[1] for one in paints)
        print(f"zooming: {len(paints)} frames in {lasted:.1f} s, median {median:.1f} ms each")
        used = await tab.call("Runtime.getHeapUsage")
        print(f"memory of the page: {used['usedSize'] / 1e6:.0f} MB in use")


async def main(sizes):
    fleet = Fleet(blocks=sizes[0], racks=sizes[1], hosts=sizes[2], gpus=8)
    with LocalCluster() as cluster:
        async with await Client.connect(str(cluster.kubeconfig)) as client:
            options = await installation.plan(client, installation.Requested(webhook_url="https://127.0.0.1:1"))
            objects = render.objects(options)
            kept = [one for one in objects if not re.search("Webhook|Policy", one["kind"])]
            async for _ in installation.apply(client, kept):
                pass
            await waiting.wait_established(client, 30)
            began = time.monotonic()
            await add_nodes(client, fleet)
            await wait_ready(client, fleet.node_names(), timeout=300)
            print(f"{len(fleet)} nodes of 8 GPUs in {time.monotonic() - began:.0f} s", flush=True)
            api = "topogate.dev/v1alpha1"
            levels = ["cloud-provider.com/topology-block", "cloud-provider.com/topology-rack", "kubernetes.io/hostname"]
            spec = {"nodeLabels": {"cloud-provider.com/node-group": "tas"}, "topology": {"levels": levels}}
            flavor = {"apiVersion": api, "kind": "ResourceFlavor", "metadata": {"name": "tas"}, "spec": spec}
            await client.create(RESOURCE_FLAVORS, flavor)
            began = time.monotonic()
            async with serving("--kubeconfig", str(cluster.kubeconfig)) as (process, link):
                served = time.monotonic() - began
                print(f"the page is served after {served:.1f} s, {memory(process.pid):.0f} MiB", flush=True)
                await measured(client, fleet, process, link)


async def measured(client, fleet, process, link):
    base, _, key = link.partition("#key=")
    headers = {"Authorization": f"Bearer {key}", "Accept-Encoding": "gzip"}
    async with (
        aiohttp.ClientSession(headers=headers, auto_decompress=False) as session,
        session.get(f"{base}api/picture") as answer,
    ):
        print(f"a picture: {len(await answer.read()) / 1e3:.0f} kB packed", flush=True)
    got, stop = {"bytes": 0, "events": 0}, asyncio.Event()
    viewers = [asyncio.create_task(follow(base, key, got)) for _ in range(VIEWERS)]
    await asyncio.sleep(10)
    before, began = cpu(process.pid), time.monotonic()
    await asyncio.sleep(SECONDS)
    idle = (cpu(process.pid) - before) / (time.monotonic() - began)
    churning = asyncio.create_task(churn(client, fleet.node_names(), stop))
    await asyncio.sleep(5)
    got.update(bytes=0, events=0)
    before, began = cpu(process.pid), time.monotonic()
    await asyncio.sleep(SECONDS)
    seconds = time.monotonic() - began
    busy = (cpu(process.pid) - before) / seconds
    print(
        f"CPU of the server, {VIEWERS} viewers: {idle:.1%} of a core at rest, {busy:.1%} with {2 * CHURN} pods a second"
    )
    events, size = got["events"] / VIEWERS / seconds, got["bytes"] / VIEWERS / seconds / 1e3
    print(f"a viewer: {events:.1f} events and {size:.1f} kB a second; server {memory(process.pid):.0f} MiB", flush=True)
    for one in viewers:
        one.cancel()
    await browser(link)
    stop.set()
    await churning


if __name__ == "__main__":
    asyncio.run(main([int(one) for one in sys.argv[1:4]] or [10, 20, 25]))

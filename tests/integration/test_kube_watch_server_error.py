"""The API server answers 500 and 503, or closes the connection: what may be sent twice is, the rest is not."""

import asyncio
import socket

import pytest
from support.faults import FaultProxy, is_list, proxied, watching

from kube.client import Client
from kube.connection import config
from kube.errors import ConnectionFailed, ServerError
from kube.patches import PatchType
from kube.resources import CONFIG_MAPS
from kube.watch import Signal

pytestmark = pytest.mark.cluster


async def test_a_watch_survives_server_errors(cluster, client, namespace):
    async with watching(cluster.kubeconfig, client, namespace, watch_seconds=(1, 1)) as w:
        listed = w.signals.count(Signal.LISTED)
        w.proxy.answer(500, body=b"not even JSON", times=2)
        await w.until(lambda: w.signals.count(Signal.FAILED) >= 2)
        await w.create("one")
        await w.until_has("one")
        await w.converge()
        assert w.signals.count(Signal.LISTED) == listed


async def test_an_error_event_that_is_no_410_goes_on_from_where_it_was(cluster, client, namespace):
    async with watching(cluster.kubeconfig, client, namespace) as w:
        listed = w.signals.count(Signal.LISTED)
        await w.proxy.inject(b'{"type":"ERROR","object":{"kind":"Status","code":500,"reason":"InternalError"}}\n')
        await w.create("one")
        await w.until_has("one")
        await w.converge()
        assert Signal.FAILED in w.signals
        assert w.signals.count(Signal.LISTED) == listed


async def test_reads_are_sent_again_and_creations_are_not(cluster, client, namespace):
    await client.create(CONFIG_MAPS, {"metadata": {"name": "one"}}, namespace)
    async with proxied(cluster.kubeconfig) as proxy, Client(config.Connection(proxy.url)) as through:
        proxy.answer(503, times=2, match=is_list)
        assert (await through.get(CONFIG_MAPS, "one", namespace))["metadata"]["name"] == "one"
        assert len(proxy.calls) == 3
        proxy.calls.clear()
        proxy.answer(503, match=lambda method, _: method == "POST")
        with pytest.raises(ServerError, match=f"POST configmaps {namespace}: 503"):
            await through.create(CONFIG_MAPS, {"metadata": {"name": "two"}}, namespace)
        assert len(proxy.calls) == 1


@pytest.mark.parametrize(("kind", "calls"), [(PatchType.JSON, 1), (PatchType.MERGE, 2), (PatchType.STRATEGIC, 2)])
async def test_a_patch_is_sent_again_only_where_that_does_no_harm(cluster, client, namespace, kind, calls):
    await client.create(CONFIG_MAPS, {"metadata": {"name": "one"}, "data": {}}, namespace)
    body = [{"op": "add", "path": "/data", "value": {"x": "1"}}] if kind is PatchType.JSON else {"data": {"x": "1"}}
    async with proxied(cluster.kubeconfig) as proxy, Client(config.Connection(proxy.url)) as through:
        proxy.answer(500, match=lambda method, _: method == "PATCH")
        try:
            await through.patch(CONFIG_MAPS, "one", namespace, body=body, content_type=kind)
        except ServerError:
            assert kind is PatchType.JSON
        assert len(proxy.calls) == calls


async def test_a_call_waits_for_a_server_that_is_about_to_listen(cluster, client, namespace):
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    async with Client(config.Connection(f"http://127.0.0.1:{port}")) as early:
        creating = asyncio.create_task(early.create(CONFIG_MAPS, {"metadata": {"name": "one"}}, namespace))
        await asyncio.sleep(0.3)
        assert not creating.done()
        upstream = client.connection
        async with FaultProxy(upstream.url, upstream.tls).serve(port) as proxy:
            await creating
            assert [method for method, _ in proxy.calls] == ["POST"]


async def test_a_server_that_is_not_there_is_named(namespace):
    async with Client(config.Connection("http://127.0.0.1:9"), timeout=1) as nowhere:
        with pytest.raises(ConnectionFailed, match=r"GET configmaps default/one: .*127\.0\.0\.1:9"):
            await nowhere.get(CONFIG_MAPS, "one", "default")

"""The API server is overloaded: 429 with Retry-After, on a watch and on ordinary calls."""

import time

import pytest
from support.faults import proxied, watching

from kube.client import Client
from kube.connection import config
from kube.errors import TooManyRequests
from kube.resources import CONFIG_MAPS
from kube.watch import Signal

pytestmark = pytest.mark.cluster


async def test_a_refused_watch_waits_as_asked_and_goes_on(cluster, client, namespace):
    async with watching(cluster.kubeconfig, client, namespace, watch_seconds=(1, 1)) as w:
        listed = w.signals.count(Signal.LISTED)
        w.proxy.answer(429, header="Retry-After: 1\r\n", times=2)
        await w.until(lambda: w.signals.count(Signal.FAILED) >= 2)
        await w.create("one")
        await w.until_has("one")
        await w.converge()
        assert w.signals.count(Signal.LISTED) == listed


async def test_a_call_is_sent_again_after_the_time_asked_for(cluster, namespace):
    async with proxied(cluster.kubeconfig) as proxy, Client(config.Connection(proxy.url)) as client:
        proxy.answer(429, header="Retry-After: 1\r\n", times=2, match=lambda method, _: method == "POST")
        began = time.monotonic()
        await client.create(CONFIG_MAPS, {"metadata": {"name": "one"}}, namespace)
        assert time.monotonic() - began >= 2
        assert [method for method, _ in proxy.calls] == ["POST"] * 3


async def test_retries_are_bounded_and_end_by_the_deadline(cluster, namespace):
    async with proxied(cluster.kubeconfig) as proxy, Client(config.Connection(proxy.url)) as client:
        proxy.answer(429, header="Retry-After: 0\r\n", times=100, match=lambda method, _: method == "POST")
        with pytest.raises(TooManyRequests):
            await client.create(CONFIG_MAPS, {"metadata": {"name": "one"}}, namespace)
        assert len(proxy.calls) == 6
        proxy.calls.clear()
        proxy.answer(429, header="Retry-After: 60\r\n", match=lambda method, _: method == "DELETE")
        with pytest.raises(TooManyRequests) as refused:
            await client.delete(CONFIG_MAPS, "one", namespace)
        assert refused.value.retry_after == 60
        assert len(proxy.calls) == 1

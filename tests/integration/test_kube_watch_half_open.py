"""The connection stays open but nothing comes any more: no data, no bookmark, no end."""

import pytest
from structlog.testing import capture_logs
from support.faults import watching

from kube.watch import Signal

pytestmark = pytest.mark.cluster


async def test_a_silent_watch_is_given_up_and_resumed_without_listing(cluster, client, namespace):
    async with watching(cluster.kubeconfig, client, namespace, inactivity=1.0) as w:
        await w.create("before")
        await w.until_has("before")
        listed = w.signals.count(Signal.LISTED)
        w.proxy.freeze()
        await w.create("meanwhile")
        await w.change("before")
        await w.until(lambda: Signal.FAILED in w.signals)
        w.proxy.thaw()
        await w.until_has("meanwhile")
        await w.converge()
        assert w.signals.count(Signal.LISTED) == listed


async def test_a_server_that_never_answers_the_first_list_is_asked_again(cluster, client, namespace, monkeypatch):
    monkeypatch.setattr("kube.watch.LIST_SECONDS", 0.5)
    async with watching(cluster.kubeconfig, client, namespace) as w:
        await w.create("one")
        await w.until_has("one")
        w.proxy.freeze()
        await w.proxy.inject(b'{"type":"ERROR","object":{"code":410,"reason":"Expired"}}\n')
        await w.until(lambda: w.signals.count(Signal.FAILED) >= 2)
        w.proxy.thaw()
        await w.create("two")
        await w.until_has("two")
        await w.converge()


async def test_a_watch_of_what_does_not_change_is_opened_again_and_nothing_is_said_to_have_failed(
    cluster, client, namespace
):
    async with watching(cluster.kubeconfig, client, namespace, inactivity=1.0) as w:
        await w.create("one")
        await w.until_has("one")
        with capture_logs() as logged:
            before = w.signals.count(Signal.WATCHED)
            await w.until(lambda: w.signals.count(Signal.WATCHED) >= before + 3)
        assert Signal.FAILED not in w.signals
        assert {line["log_level"] for line in logged} == {"info"}
        await w.create("two")
        await w.until_has("two")

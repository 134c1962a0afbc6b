"""The watch sends what is no watch event, or an object that does not fit its type."""

import msgspec
import pytest
from support.faults import watching

from kube.objects import Object
from kube.resources import CONFIG_MAPS
from kube.watch import Signal

pytestmark = pytest.mark.cluster


class Picky(Object, frozen=True):
    """A ConfigMap whose ``data.x`` must be a number, which the API server does not know."""

    data: dict[str, float] = msgspec.field(default_factory=dict)


async def test_a_garbage_line_breaks_the_watch_and_nothing_else(cluster, client, namespace):
    async with watching(cluster.kubeconfig, client, namespace) as w:
        await w.create("before")
        await w.until_has("before")
        listed = w.signals.count(Signal.LISTED)
        await w.proxy.inject(b"<html>who am I</html>\n")
        await w.until(lambda: Signal.FAILED in w.signals)
        await w.create("after")
        await w.until_has("after")
        await w.converge()
        assert w.signals.count(Signal.LISTED) == listed


async def test_an_object_that_cannot_be_decoded_is_passed_over(cluster, client, namespace):
    await client.create(CONFIG_MAPS, {"metadata": {"name": "bad-at-start"}, "data": {"x": "text"}}, namespace)
    await client.create(CONFIG_MAPS, {"metadata": {"name": "good"}}, namespace)
    async with watching(cluster.kubeconfig, client, namespace, type=Picky) as w:
        assert f"{namespace}/good" in w.informer.store
        assert f"{namespace}/bad-at-start" not in w.informer.store
        await w.create("turns-bad")
        await w.until_has("turns-bad")
        passed_over = w.signals.count(Signal.UNDECODABLE)
        await client.patch(CONFIG_MAPS, "turns-bad", namespace, body={"data": {"x": "text"}})
        await w.create("last")
        await w.until_has("last")
        assert w.signals.count(Signal.UNDECODABLE) > passed_over
        await w.delete("turns-bad")  # its deletion is understood all the same
        await w.until(lambda: f"{namespace}/turns-bad" not in w.informer.store)
        assert Signal.FAILED not in w.signals


async def test_a_handler_that_raises_stops_nothing(cluster, client, namespace):
    async with watching(cluster.kubeconfig, client, namespace) as w:
        told = []

        def raises(event):
            if event.key.endswith("/kube-root-ca.crt"):  # comes to each namespace when its controller gets to it
                return
            told.append(event.key)
            raise RuntimeError("broken handler")

        w.informer.subscribe(raises)
        await w.create("one")
        await w.create("two")
        await w.until_has("one", "two")
        assert told == [f"{namespace}/one", f"{namespace}/two"]
        assert w.signals.count(Signal.HANDLER_ERROR) == 2

"""The connection breaks in the middle of a line."""

import pytest
from support.faults import watching

from kube.watch import Signal

pytestmark = pytest.mark.cluster


async def test_the_change_in_the_cut_line_is_not_lost(cluster, client, namespace):
    async with watching(cluster.kubeconfig, client, namespace) as w:
        await w.create("before")
        await w.until_has("before")
        listed = w.signals.count(Signal.LISTED)
        w.proxy.cut_next_line()
        await w.create("cut")
        await w.until(lambda: Signal.FAILED in w.signals)
        assert f"{namespace}/cut" not in w.informer.store
        w.proxy._cut = False
        await w.until_has("cut")
        await w.converge()
        assert w.signals.count(Signal.LISTED) == listed


async def test_a_watch_that_is_cut_again_and_again_gets_there(cluster, client, namespace):
    async with watching(cluster.kubeconfig, client, namespace) as w:
        for number in range(3):
            w.proxy.cut_next_line()
            await w.create(f"cut-{number}")
            seen = w.signals.count(Signal.FAILED)
            await w.until(lambda seen=seen: w.signals.count(Signal.FAILED) > seen)
            w.proxy._cut = False
            await w.until_has(f"cut-{number}")
        await w.delete("cut-1")
        await w.until(lambda: f"{namespace}/cut-1" not in w.informer.store)
        await w.converge()

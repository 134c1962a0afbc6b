"""The API server has forgotten the resourceVersion: 410 as an ERROR event, as an HTTP status, and for a list's page."""

import json

import pytest
from support.faults import is_watch, watching

from kube.resources import CONFIG_MAPS
from kube.watch import Signal

pytestmark = pytest.mark.cluster
GONE = json.dumps({"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old"})


async def test_after_a_compaction_everything_is_listed_and_differences_become_events(cluster, client, namespace):
    async with watching(cluster.kubeconfig, client, namespace, inactivity=1.0) as w:
        for name in ("kept", "changed", "gone", "remade"):
            await w.create(name)
        await w.until_has("kept", "changed", "gone", "remade")
        w.proxy.freeze()
        await w.until(lambda: Signal.FAILED in w.signals)  # so that the next watch starts from before the compaction
        await w.change("changed")
        await w.delete("gone")
        await w.delete("remade")
        await w.create("remade")
        await w.create("new")
        cluster.compact_etcd()
        w.events.clear()
        w.proxy.thaw()
        await w.until(lambda: Signal.EXPIRED in w.signals)
        await w.until_has("new")
        told = sorted((event.key.split("/")[1], event.kind.value) for event in w.events)
    assert told == [
        ("changed", "MODIFIED"),
        ("gone", "DELETED"),
        ("new", "ADDED"),
        ("remade", "ADDED"),
        ("remade", "DELETED"),
    ]


async def test_http_410_leads_to_a_list(cluster, client, namespace):
    async with watching(cluster.kubeconfig, client, namespace, watch_seconds=(1, 1)) as w:
        await w.create("one")
        await w.until_has("one")
        listed = w.signals.count(Signal.LISTED)
        w.proxy.answer(410, body=GONE.encode())
        await w.until(lambda: w.signals.count(Signal.LISTED) > listed)
        await w.create("two")
        await w.until_has("two")
        await w.converge()


async def test_a_page_whose_continue_token_expired_starts_the_list_again_unpaged(cluster, client, namespace):
    names = [f"map-{number}" for number in range(6)]
    for name in names:
        await client.create(CONFIG_MAPS, {"metadata": {"name": name}}, namespace)

    async with watching(cluster.kubeconfig, client, namespace, page=2) as w:

        def compact_before_second_page(method: str, path: str) -> None:
            if "continue=" in path and not is_watch(method, path):
                w.proxy.before = None
                cluster.compact_etcd()

        await w.delete("map-0")
        await w.until(lambda: f"{namespace}/map-0" not in w.informer.store)
        w.proxy.before = compact_before_second_page
        first = len(w.proxy.calls)
        await w.proxy.inject(b'{"type":"ERROR","object":{"code":410,"reason":"Expired"}}\n')
        await w.until(lambda: w.proxy.before is None)
        await w.create("late")
        await w.until_has(*names[1:], "late")
        await w.converge()
        lists = [path for method, path in w.proxy.calls[first:] if not is_watch(method, path)]
    assert any("continue=" in path for path in lists)
    assert any("limit=0" in path for path in lists)

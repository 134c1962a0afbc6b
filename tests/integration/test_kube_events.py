"""Events as somebody sees them with a GET."""

import asyncio
import contextlib

import pytest
from support.faults import WAIT_SECONDS, proxied

from kube import events
from kube.client import Client
from kube.connection import config
from kube.events import EventRecorder, ObjectReference
from kube.objects import Object, Struct
from kube.resources import CONFIG_MAPS, EVENTS, NODES

pytestmark = pytest.mark.cluster


class EventSeries(Struct, frozen=True):
    count: int = 0
    last_observed_time: str = ""


class EventObject(Object, frozen=True):
    event_time: str | None = None
    type: str = ""
    reason: str = ""
    action: str = ""
    note: str = ""
    regarding: ObjectReference | None = None
    related: ObjectReference | None = None
    reporting_controller: str = ""
    reporting_instance: str = ""
    series: EventSeries | None = None


@contextlib.asynccontextmanager
async def recorder(client: Client):
    recorder = EventRecorder(client, "tester")
    task = asyncio.create_task(recorder.run())
    try:
        yield recorder
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await recorder.close()  # the task may have been cancelled before it began


async def about(client: Client, namespace: str) -> ObjectReference:
    made = await client.create(CONFIG_MAPS, {"metadata": {"name": "one"}}, namespace, type=Object)
    return events.reference(CONFIG_MAPS, made)


async def seen(client: Client, namespace: str, count: int) -> list[EventObject]:
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            listed = await client.list(EVENTS, namespace, type=EventObject)
            found = [event for event in listed if event.reporting_controller == "topogate.dev/tester"]
            if len(found) >= count:
                return sorted(found, key=lambda event: event.event_time)
            await asyncio.sleep(0.05)


async def test_repetitions_are_one_event_with_a_count(client, namespace):
    target = await about(client, namespace)
    async with recorder(client) as recording:
        recording.event(target, "Normal", "Admitted", "Admit", "in rack r1")
        await seen(client, namespace, 1)
        for _ in range(4):
            recording.event(target, "Normal", "Admitted", "Admit", "in rack r1")
    (event,) = await seen(client, namespace, 1)
    assert (event.type, event.reason, event.action, event.note) == ("Normal", "Admitted", "Admit", "in rack r1")
    assert event.regarding == target
    assert event.reporting_controller == "topogate.dev/tester"
    assert event.series.count == 5


async def test_counts_are_written_while_running(client, namespace, monkeypatch):
    monkeypatch.setattr(events, "SERIES_SECONDS", 0.05)
    target = await about(client, namespace)
    async with recorder(client) as recording:
        recording.event(target, "Warning", "DoesNotFit", "Place", "no rack")
        await seen(client, namespace, 1)
        recording.event(target, "Warning", "DoesNotFit", "Place", "no rack")
        async with asyncio.timeout(WAIT_SECONDS):
            while (await seen(client, namespace, 1))[0].series is None:
                await asyncio.sleep(0.05)


async def test_another_note_reason_or_object_is_another_event(client, namespace):
    target = await about(client, namespace)
    async with recorder(client) as recording:
        recording.event(target, "Normal", "Pending", "Place", "12 of 16 fit")
        recording.event(target, "Normal", "Pending", "Place", "13 of 16 fit")
        recording.event(target, "Normal", "Admitted", "Admit", "in rack r1", related=target)
    notes = [event.note for event in await seen(client, namespace, 3)]
    assert sorted(notes) == ["12 of 16 fit", "13 of 16 fit", "in rack r1"]


async def test_an_object_cannot_flood_the_api_server(client, namespace):
    target = await about(client, namespace)
    async with recorder(client) as recording:
        for number in range(100):
            recording.event(target, "Normal", "Pending", "Place", f"{number} of 100 fit")
    found = await seen(client, namespace, events.BURST)
    assert len(found) == events.BURST
    assert sum(event.series.count if event.series else 1 for event in found) == 100


async def test_a_long_note_and_a_cluster_scoped_object(client, nodes):
    (name,) = await nodes(blocks=1, racks=1, hosts=1, ready=False)
    node = await client.get(NODES, name, type=Object)
    async with recorder(client) as recording:
        recording.event(events.reference(NODES, node), "Warning", "Unready", "Look", "é" * 2000)
    async with asyncio.timeout(WAIT_SECONDS):
        while not (found := [e for e in await seen(client, "default", 0) if e.reason == "Unready"]):
            await asyncio.sleep(0.05)
    assert found[0].note.endswith("é...")
    assert len(found[0].note.encode()) <= 1024


async def test_events_survive_errors_and_never_block(cluster, client, namespace, monkeypatch):
    monkeypatch.setattr(events, "QUEUE", 100)
    monkeypatch.setattr(events, "FLUSH_SECONDS", 0.2)
    target = await about(client, namespace)
    async with proxied(cluster.kubeconfig) as proxy, Client(config.Connection(proxy.url)) as through:
        proxy.answer(503, times=2, match=lambda method, _: method == "POST")
        async with recorder(through) as recording:
            recording.event(target, "Normal", "Admitted", "Admit", "in rack r1")
            await seen(client, namespace, 1)
            recording.event(ObjectReference(), "Nonsense", "", "", "the API server refuses this one")
            async with asyncio.timeout(WAIT_SECONDS):
                while not recording.dropped:
                    await asyncio.sleep(0.01)
            proxy.freeze()
            dropped = recording.dropped
            for number in range(events.QUEUE + 10):
                recording.event(ObjectReference(name=f"n{number}"), "Normal", "R", "A", "m")
            assert recording.dropped == dropped + 10

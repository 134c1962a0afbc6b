"""However many events one namespace has made, those about others are written, and counted."""

import pytest

from clock import SYSTEM
from kube import events
from kube.events import EventRecorder, ObjectReference

MANY = 2000


class Server:
    """Takes every event."""

    def __init__(self):
        self.made, self.counted = [], []

    async def create(self, _resource, body, **_):
        self.made.append(body["regarding"].namespace)

    async def patch(self, _resource, _name, namespace, *, body):
        self.counted.append((namespace, body["series"]["count"]))


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def recorder(server, monkeypatch):
    monkeypatch.setattr(events, "QUEUE", 100)
    monkeypatch.setattr(events, "SERIES", 150)
    return EventRecorder(server, "ungater", instance="test", clock=SYSTEM)


def tell(recorder, namespace, number=0):
    about = ObjectReference(kind="Job", namespace=namespace, name=f"job-{number}")
    recorder.event(about, "Warning", "DoesNotFit", "Admit", "no rack")


async def test_an_event_is_written_next_however_many_another_namespace_has_made(recorder, server):
    for number in range(MANY):
        tell(recorder, "mallory", number)
    tell(recorder, "alice")
    await recorder.close()
    assert server.made[:2] == ["mallory", "alice"]
    assert len(server.made) == events.QUEUE, "what is kept is bounded"
    assert recorder.dropped == MANY + 1 - events.QUEUE


async def test_events_of_many_namespaces_take_nothing_from_one_that_has_few(recorder, server):
    for number in range(MANY):
        tell(recorder, f"mallory-{number % 20}", number)
    for number in range(2):
        tell(recorder, "alice", number)
    await recorder.close()
    assert server.made.count("alice") == 2


async def test_repetitions_are_counted_however_many_series_another_namespace_has_begun(recorder, server):
    tell(recorder, "alice")
    await recorder.close()
    for number in range(MANY):
        tell(recorder, "mallory", number)
        tell(recorder, "mallory", number)
        if number % 50 == 0:
            await recorder.close()
    tell(recorder, "alice")
    await recorder.close()
    assert server.made.count("alice") == 1, "it is known that it happened before"
    assert ("alice", 2) in server.counted
    assert len(recorder._series) <= events.SERIES
    assert len(recorder._counting) <= events.SERIES


async def test_one_object_has_no_more_events_because_others_have_many(recorder, server):
    """How often it had some is not forgotten."""
    about = ObjectReference(kind="Job", namespace="alice", name="job")
    for number in range(events.BURST + 5):
        recorder.event(about, "Normal", f"R{number}", "Admit", "note")
        for more in range(events.SERIES + 10):
            tell(recorder, "mallory", 1000 * number + more)
        await recorder.close()
    assert server.made.count("alice") == events.BURST

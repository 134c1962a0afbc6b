"""Why a pod does not start is in its events alone: the newest warning is read, and without an answer none."""

from datetime import UTC, datetime

import msgspec
import pytest
from support.owned import KEYS, make_pod

from clock import SYSTEM
from kube.connection.answers import Page
from kube.errors import KubeTimeout
from kube.events import EventRecorder
from kube.told_events import Regarding, Stamp, ToldEvent
from ungater.guard import Guard
from ungater.metrics import ControllerMetrics
from ungater.writers.pods import PodWriter


def told(reason, note, second, *, type_="Warning", uid="uid-a"):
    at = datetime(2026, 11, 21, 0, 0, second, tzinfo=UTC)
    about = Regarding(kind="Pod", name="a", uid=uid)
    return ToldEvent(metadata=Stamp(creation_timestamp=at), regarding=about, type=type_, reason=reason, note=note)


class Server:
    """An API server that has these events, or does not answer."""

    def __init__(self, *events, error=None):
        self.events = events
        self.error = error
        self.asked = []

    async def pages(self, _resource, namespace, *, field_selector, limit, **more):
        self.asked.append((namespace, field_selector))
        assert limit <= 100
        assert more["timeout"] <= 10
        if self.error is not None:
            raise self.error
        yield Page(items=[msgspec.Raw(msgspec.json.encode(one)) for one in self.events]), True
        raise AssertionError("whoever writes many events has no more than one page of them read")

    def last_warning(self):
        writer = PodWriter(
            self,
            KEYS,
            {},
            concurrency=1,
            timeout=1.0,
            requeue=lambda *_: None,
            stayed=lambda *_: None,
            metrics=ControllerMetrics(),
            recorder=EventRecorder(self, "ungater", instance="test", clock=SYSTEM),
            guard=Guard(SYSTEM, [].append),
            clock=SYSTEM,
        )
        return writer.last_warning(make_pod("a"))


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ((), ""),
        ((told("Scheduled", "assigned", 1, type_="Normal"),), ""),
        (
            (told("FailedMount", "old", 1), told("FailedPrepareDynamicResources", "no such config", 2)),
            "FailedPrepareDynamicResources: no such config",
        ),
        ((told("FailedMount", "of a pod before it, of the same name", 3, uid="other"),), ""),
        ((told("FailedMount", "x" * 5000, 1),), None),
    ],
)
async def test_the_newest_warning_of_this_very_pod_counts(events, expected):
    server = Server(*events)
    found = await server.last_warning()
    assert found == expected if expected is not None else len(found) == 300
    assert server.asked == [("ns", "regarding.kind=Pod,regarding.name=a")]


async def test_a_server_that_does_not_answer_costs_no_more_than_the_words():
    assert await Server(error=KubeTimeout("no answer")).last_warning() == ""

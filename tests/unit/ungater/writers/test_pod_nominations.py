"""How a nomination of a gated pod is sent, and what is not sent any more."""

import asyncio
from contextlib import suppress

import pytest
from support.owned import KEYS, make_pod, make_record, slot_map

from clock import SYSTEM
from kube.errors import Conflict, Forbidden, NotFound
from kube.patches import PatchType
from ungater.guard import Guard
from ungater.metrics import ControllerMetrics
from ungater.model.nominated_node import NominatedNode
from ungater.model.pod_slots import Expectation
from ungater.writers.pods import PodWriter

SLOTS = slot_map(("b/r/n1", 1), ("b/r/n2", 1))


class Server:
    """An API server that takes patches, or refuses them."""

    def __init__(self, error=None):
        self.error = error
        self.patches = []

    async def patch(self, resource, name, namespace, *, body, content_type, subresource):
        assert (resource.plural, content_type, subresource) == ("pods", PatchType.MERGE, "status")
        self.patches.append((f"{namespace}/{name}", body))
        if self.error is not None:
            raise self.error


class Sent:
    """What a writer sends, all at once when it is asked."""

    def __init__(self, error=None):
        self.server, self.again, self.metrics = Server(error), [], ControllerMetrics()
        self.writer = PodWriter(
            self.server,
            KEYS,
            {},
            concurrency=1,
            timeout=5.0,
            requeue=lambda uid, after: self.again.append((uid, after)),
            stayed=lambda *_: None,
            metrics=self.metrics,
            recorder=None,
            guard=Guard(SYSTEM, [].append),
            clock=SYSTEM,
        )
        self.pod = make_pod("a")
        self.entry = make_record(slots=SLOTS, pods=[self.pod])

    async def patches(self):
        task = asyncio.create_task(self.writer.run())
        while not self.writer.quiet(0.0):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return self.server.patches


async def test_one_patch_of_the_status_names_the_node_and_the_pod_that_is_meant():
    sent = Sent()
    sent.writer.nominate(sent.entry, sent.pod, "n1")
    assert sent.entry.nominated["uid-a"].node == "n1"
    assert await sent.patches() == [
        ("ns/a", {"metadata": {"uid": "uid-a"}, "status": {"nominatedNodeName": "n1"}}),
    ]
    assert sent.metrics.nominations.labels("kept")._value.get() == 1


async def test_of_two_that_wait_to_be_sent_the_last_counts():
    sent = Sent()
    sent.writer.nominate(sent.entry, sent.pod, "n1")
    sent.writer.nominate(sent.entry, sent.pod, "")
    assert [body["status"] for _, body in await sent.patches()] == [{"nominatedNodeName": None}]
    assert sent.entry.nominated["uid-a"].attempts == 2


@pytest.mark.parametrize("how", ["goes", "is given back", "left"])
async def test_none_is_sent_for_a_pod_whose_workload(how):
    sent = Sent()
    sent.writer.nominate(sent.entry, sent.pod, "n1")
    if how == "goes":
        sent.entry.expectations["uid-a"] = Expectation(("b", "r", "n1"), 1e18)
    elif how == "is given back":
        sent.entry.close()
    else:
        sent.entry.nominated.clear()
    assert await sent.patches() == []


@pytest.mark.parametrize(
    ("error", "again"),
    [(NotFound("gone"), False), (Conflict("others write it"), True), (Forbidden("no right"), True)],
)
async def test_what_is_refused_is_tried_again_after_a_while_that_doubles(error, again):
    sent = Sent(error)
    sent.entry.nominated["uid-a"] = NominatedNode("", 0.0, attempts=3)
    sent.writer.nominate(sent.entry, sent.pod, "n1")
    await sent.patches()
    assert [round(after) for _, after in sent.again] == ([80] if again else [])


async def test_a_pod_of_nobody_loses_its_nomination():
    sent = Sent()
    sent.writer.forget_nomination(sent.pod)
    assert [body["status"] for _, body in await sent.patches()] == [{"nominatedNodeName": None}]
    assert sent.metrics.nominations.labels("removed")._value.get() == 1

"""When the numbers of queues are written: more rarely while there is something better to do."""

import pytest
from support.queue_factories import make_queue, make_queues, make_workload, submit

from kube.objects import ObjectMeta
from kube.queues import ClusterQueue
from ungater.status.queues import BUSY, EVERY, QueueStatusLoop, Source


class Clock:
    """A clock that is set."""

    time = 1000.0

    def now(self):
        return self.time

    monotonic = now


class Client:
    """Has one queue; whoever looks sees what was written last."""

    def __init__(self):
        self.status, self.wrote, self.generation = {}, [], 1

    def queue(self):
        return ClusterQueue(metadata=ObjectMeta(name="q", uid="u", generation=self.generation), status=self.status)

    async def patch(self, _resource, _name, _namespace, *, body, **_options):
        self.wrote.append(body["status"])
        self.status = {**self.status, **body["status"]}


class Stream:
    """Workloads come to one queue, one each second; ``busy``: pods are let go meanwhile."""

    def __init__(self, *, busy):
        self.clock, self.client, self.queues, self.busy = Clock(), Client(), make_queues(make_queue("q", 16)), busy
        source = Source(self.queues, lambda: ("tas",), lambda: (), lambda: [self.client.queue()], lambda: (), set)
        self.status = QueueStatusLoop(self.client, source, lambda: not self.busy, self.clock)
        self.sent = 0

    async def second(self):
        self.clock.time += 1.0
        self.sent += 1
        submit(self.queues, make_workload(f"w{self.sent}"))
        await self.status.update()


@pytest.mark.parametrize(("busy", "pause"), [(False, EVERY), (True, BUSY)])
async def test_numbers_of_a_queue_are_written_more_rarely_while_pods_are_let_go(busy, pause):
    stream = Stream(busy=busy)
    for _ in range(30):
        await stream.second()
    assert [one["pendingWorkloads"] for one in stream.client.wrote] == [*range(1, 31, int(pause))]


async def test_what_waited_is_written_as_soon_as_nothing_better_is_to_be_done():
    stream = Stream(busy=True)
    for _ in range(5):
        await stream.second()
    assert stream.client.status["pendingWorkloads"] == 1
    stream.busy = False
    await stream.status.update()
    assert stream.client.status["pendingWorkloads"] == 5


async def test_the_condition_does_not_wait_for_anything():
    stream = Stream(busy=True)
    await stream.second()
    stream.queues.set_cluster_queue(make_queue("q", 16, flavors=("gone",)))
    await stream.status.update()
    (active,) = stream.client.status["conditions"]
    assert active["status"] == "False"


async def test_the_condition_of_an_edited_queue_is_said_again_of_its_new_generation_once():
    """`kubectl wait --for=condition=Active clusterqueue/q` (1.37) never ends while observedGeneration is behind."""
    stream = Stream(busy=True)
    await stream.second()
    (before,) = stream.client.status["conditions"]
    stream.client.generation, stream.client.wrote = 2, []
    for _ in range(3):
        await stream.status.update()
    (wrote,) = stream.client.wrote
    assert wrote == {"conditions": [{**before, "observedGeneration": 2}]}

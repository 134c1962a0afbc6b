"""Whether all that was sent for pods is answered: what can wait is written only then."""

import asyncio
from contextlib import suppress

from support.owned import KEYS, make_pod, make_record

from clock import SYSTEM
from ungater.guard import Guard
from ungater.jobs.pod_template import Added
from ungater.metrics import ControllerMetrics
from ungater.writers.pods import PodWriter


class Client:
    """Answers when it is told to."""

    def __init__(self):
        self.asked, self.answer = asyncio.Event(), asyncio.Event()

    async def delete(self, *_args, **_options):
        self.asked.set()
        await self.answer.wait()


async def test_it_is_not_quiet_while_the_api_server_has_yet_to_answer():
    """However long that takes: it has enough to do."""
    client, metrics = Client(), ControllerMetrics()
    writer = PodWriter(
        client,
        KEYS,
        lambda _entry, _pod_set: Added(),
        concurrency=1,
        timeout=5.0,
        requeue=lambda _key, _after: None,
        stayed=lambda _pod, _workload: None,
        metrics=metrics,
        recorder=None,
        guard=Guard(SYSTEM, lambda _kind: None),
        clock=SYSTEM,
    )
    assert writer.quiet(0.0)
    task = asyncio.create_task(writer.run())
    record, pod = make_record(), make_pod()
    writer.delete(record, pod)
    assert not writer.quiet(0.0), "it is to be sent yet"
    await client.asked.wait()
    assert not writer.quiet(0.0)
    client.answer.set()
    while not writer.quiet(0.0):
        await asyncio.sleep(0)
    assert not writer.quiet(3600.0), "it was answered just now"
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task

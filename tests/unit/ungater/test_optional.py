"""Resources that may not be served: what a start waits for."""

import asyncio

from clock import SYSTEM
from kube.errors import ConnectionFailed
from kube.parents import JobSet
from kube.resources import JOB_SETS
from ungater.optional import OptionalInformer


class Client:
    """Fails the first calls."""

    def __init__(self, failures):
        self.failures = failures

    async def raw(self, *_args, **_options):
        if self.failures:
            self.failures -= 1
            raise ConnectionFailed("no route")
        return b'{"resources": []}'


async def test_a_start_asks_again_at_once_what_is_served():
    """Else it goes on without JobSets, and what they hold is given to others."""
    informer = OptionalInformer(
        Client(2), JOB_SETS, JobSet, on_event=lambda _: None, look_seconds=3600.0, first_seconds=60.0, clock=SYSTEM
    )
    task = asyncio.create_task(informer.run())
    assert await informer.first()
    assert informer.resource is None
    task.cancel()


async def test_a_start_does_not_wait_for_ever():
    informer = OptionalInformer(
        Client(10**9), JOB_SETS, JobSet, on_event=lambda _: None, look_seconds=3600.0, first_seconds=0.05, clock=SYSTEM
    )
    task = asyncio.create_task(informer.run())
    assert not await informer.first()
    task.cancel()

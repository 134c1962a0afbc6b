"""Resources that may not be served: what a start waits for, and how often the API server is asked for them."""

import asyncio
import json
from collections import Counter

import pytest

from clock import SYSTEM
from crds.constants import Keys
from kube.errors import ConnectionFailed
from kube.parents import JobSet
from kube.resources import DEVICE_CLASSES, JOB_SETS, RESOURCE_CLAIMS, RESOURCE_SLICES
from ungater.informers import Informers
from ungater.optional import Discovery, OptionalInformer


class Client:
    """Serves some resources; the first calls fail; ``starts``: its list of groups is empty yet."""

    def __init__(self, *there, failures=0, starts=False):
        self.there, self.failures, self.starts, self.asked = list(there), failures, starts, Counter()

    async def raw(self, _method, path, **_options):
        self.asked[path] += 1
        await asyncio.sleep(0)
        if self.failures:
            self.failures -= 1
            raise ConnectionFailed("no route")
        if path == "/apis":
            there = [] if self.starts else self.there
            return json.dumps({"groups": [{"versions": [{"groupVersion": one.api_version}]} for one in there]})
        return json.dumps({"resources": [{"name": one.plural} for one in self.there if one.root == path]})


def informer(client, **options):
    more = {"look_seconds": 3600.0, "on_event": lambda _: None, **options}
    return OptionalInformer(Discovery(client, SYSTEM), JOB_SETS, JobSet, clock=SYSTEM, **more)


async def test_a_start_asks_again_at_once_what_is_served():
    """Else it goes on without JobSets, and what they hold is given to others."""
    made = informer(Client(failures=2), first_seconds=60.0)
    task = asyncio.create_task(made.run())
    assert not made.is_known
    assert await made.first()
    assert made.resource is None
    assert made.is_known, "there is none"
    task.cancel()


async def test_a_start_does_not_wait_for_ever():
    made = informer(Client(failures=10**9), first_seconds=0.05)
    task = asyncio.create_task(made.run())
    assert not await made.first()
    assert not made.is_known
    task.cancel()


async def test_what_all_informers_want_to_know_is_asked_once():
    """Some thirty kinds may not be served. Each asked for itself, and for each of its versions, twice a minute."""
    client = Client(RESOURCE_SLICES, DEVICE_CLASSES)
    informers = Informers(client, Keys(), SYSTEM)
    found = await asyncio.gather(*(one._served() for one in informers.optional))
    assert set(found) == {None, RESOURCE_SLICES, DEVICE_CLASSES}
    roots = {path: count for path, count in client.asked.items() if path.count("/") == 3}
    assert len(roots) > 10
    assert set(roots.values()) == {1}


async def test_nothing_is_asked_of_groups_that_are_not_there_once_that_is_known():
    client = Client(RESOURCE_SLICES)
    discovery = Discovery(client, SYSTEM)
    assert not await discovery.serves(JOB_SETS, 60.0, surely=False)
    assert client.asked == {"/apis": 1}


async def test_a_list_of_groups_that_is_empty_takes_nothing_that_is_watched_and_no_start_believes_it():
    """As that of an API server is for a moment when it starts: what JobSets hold would be given to others."""
    client = Client(JOB_SETS, starts=True)
    made = informer(client)
    assert await made._served() == JOB_SETS, "at a start"
    made._looked.set()
    made.resource = JOB_SETS
    assert await made._served() == JOB_SETS, "while it is watched"
    assert client.asked["/apis"] == 0


async def test_what_comes_to_be_served_is_found_at_the_next_look():
    client = Client(RESOURCE_SLICES)
    discovery = Discovery(client, SYSTEM)
    assert not await discovery.serves(RESOURCE_CLAIMS, 60.0, surely=True)
    client.there.append(RESOURCE_CLAIMS)
    assert not await discovery.serves(RESOURCE_CLAIMS, 60.0, surely=True), "it was said a moment ago"
    assert await discovery.serves(RESOURCE_CLAIMS, -1.0, surely=True)


async def test_an_error_is_told_to_all_who_waited_for_that_answer_and_to_nobody_else():
    client = Client(JOB_SETS, failures=1)
    discovery = Discovery(client, SYSTEM)
    found = await asyncio.gather(
        *(discovery.serves(JOB_SETS, 60.0, surely=False) for _ in range(5)), return_exceptions=True
    )
    assert [type(one) for one in found] == [ConnectionFailed] * 5
    assert client.asked == {"/apis": 1}
    assert await discovery.serves(JOB_SETS, 60.0, surely=False)


async def test_who_waits_for_an_answer_gets_one_though_who_asked_was_cancelled():
    client = Client(JOB_SETS)
    discovery = Discovery(client, SYSTEM)
    first = asyncio.create_task(discovery.serves(JOB_SETS, 60.0, surely=False))
    second = asyncio.create_task(discovery.serves(JOB_SETS, 60.0, surely=False))
    await asyncio.sleep(0)
    first.cancel()
    assert await second
    with pytest.raises(asyncio.CancelledError):
        await first

"""Whatever dies while jobs are placed: at the end every pod is where its Workload says, and no slot was given twice."""

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Callable

import msgspec
import pytest
import pytest_asyncio
from support.cluster_checker import rank_order, settled, snapshot, violations
from support.house import NAMESPACE, PREFERRED, REQUIRED, house
from support.jobs import KEYS, until

from kube.informer import Event, Informer
from kube.objects import ObjectMeta, Pod, Struct
from kube.resources import PODS, WORKLOADS
from localcluster import API_SERVER, Fleet
from localcluster.process import log_tail

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.asyncio(loop_scope="module"),
]

PODS_EACH = 25
KILLS = 10
SETTLE_SECONDS = 180
STALL_SECONDS = 60


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here():
    async with house(Fleet(blocks=5, racks=5, hosts=4, gpus=8)) as made:  # a rack takes 32 pods of one GPU
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def seen(here):
    """What the controller has written, as it is written."""
    async with Writes(here.client) as watched:
        yield watched


class Workload(Struct, frozen=True):
    """The admission as it is on the wire; the rest does not matter here."""

    metadata: ObjectMeta = ObjectMeta()
    status: dict = msgspec.field(default_factory=dict)


class Writes:
    """Counts the controller's writes, and remembers every admission that was ever stored."""

    def __init__(self, client):
        self.count = 0
        self._at, self._then, self._reached = 0, lambda: None, asyncio.Event()
        self.admissions: dict[str, list[str]] = {}
        self._informers = [
            Informer(client, PODS, Pod, namespace=NAMESPACE, on_event=self._on_pod),
            Informer(client, WORKLOADS, Workload, namespace=NAMESPACE, on_event=self._on_workload),
        ]

    async def __aenter__(self):
        self._tasks = [asyncio.create_task(informer.run()) for informer in self._informers]
        for informer in self._informers:
            await informer.wait_synced()
        return self

    async def __aexit__(self, *_):
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def wait(self, more: int, then: Callable[[], None] = lambda: None):
        """Until the controller has written so many times more; ``then`` is called at that very moment."""
        self._at, self._then = self.count + more, then
        self._reached.clear()
        await self._reached.wait()

    async def has_admissions(self, count: int):
        """Whether one admission at least was seen of that many Workloads."""
        return len(self.admissions) == count and all(self.admissions.values())

    def _wrote(self):
        self.count += 1
        if self.count == self._at:
            self._then()
            self._reached.set()

    def _on_pod(self, event: Event[Pod]):
        if event.old and event.new and gated(event.old) and not gated(event.new):
            self._wrote()

    def _on_workload(self, event: Event[Workload]):
        if event.new is None:
            return
        if event.old is None:
            self._wrote()
        stored = self.admissions.setdefault(event.key, [])
        if admission := event.new.status.get("admission"):
            text = json.dumps(admission, sort_keys=True)
            if text not in stored:
                stored.append(text)
                self._wrote()


def gated(pod: Pod):
    return any(gate.name == KEYS.gate for gate in pod.spec.scheduling_gates or ())


async def submit(here, prefix, jobs, first=0):
    for number in range(first, first + jobs):
        request = REQUIRED if number % 2 else PREFERRED
        await here.submit(f"{prefix}{number}", PODS_EACH, request, indexed=number % 3 == 0)


async def gets_on(here, seen, writes, then=lambda: None):
    """Wait until the controller has written so many times more, and do something at that moment."""
    try:
        async with asyncio.timeout(STALL_SECONDS):
            await seen.wait(writes, then)
    except TimeoutError:
        waits = settled(await snapshot(here.client, {NAMESPACE}))
        log = log_tail(here.components.log("ungater"))
        pytest.fail(f"after {seen.count} writes nothing more for {STALL_SECONDS} s\n{waits}\n{log}")


async def all_well(here, seen, prefix, jobs):
    """Wait until every job has all its pods running, then judge."""

    async def done():  # a Job controller whose view was old made pods too many, and deletes them
        found = await snapshot(here.client, {NAMESPACE})
        return not settled(found) and len(found["pods"]) == len(found["jobs"]) * PODS_EACH

    try:
        await until(done, "all pods to run", seconds=SETTLE_SECONDS)
    except AssertionError as error:
        raise AssertionError(f"{error}: {settled(await snapshot(here.client, {NAMESPACE}))}") from None
    found = await snapshot(here.client, {NAMESPACE})
    assert violations(found) == []
    assert len(found["pods"]) == len(found["jobs"]) * PODS_EACH
    assert len(found["workloads"]) == len(found["jobs"]) >= jobs
    assert all(pod["metadata"]["annotations"][KEYS.workload] for pod in found["pods"])
    await until(lambda: seen.has_admissions(len(found["workloads"])), "our own watch to catch up")
    assert {key: len(stored) for key, stored in seen.admissions.items()} == dict.fromkeys(seen.admissions, 1)
    for number in range(0, jobs, 3):
        assert rank_order(found, f"{prefix}{number}") == []


async def test_the_api_server_is_killed_and_comes_back(here, seen):
    await submit(here, "a", 5)
    await gets_on(here, seen, 20)
    print(f"killing the API server after {seen.count} writes of the controller")
    ungater, webhook = here.components.pid("ungater"), here.components.pid("webhook")
    await asyncio.to_thread(here.cluster.kill, API_SERVER)
    await asyncio.sleep(1)  # calls fail, watches break
    await asyncio.to_thread(here.cluster.start, API_SERVER)
    await all_well(here, seen, "a", 5)
    assert (ungater, webhook) == (here.components.pid("ungater"), here.components.pid("webhook"))


async def test_the_controller_is_killed_ten_times(here, seen):
    choose = random.Random(20)
    for kill in range(KILLS):
        # It gets on a little first. Two jobs more, of 54 writes, are enough for that, whatever was written meanwhile.
        submitting = asyncio.create_task(submit(here, "k", 2, 2 * kill))
        pid = here.components.pid("ungater")
        await gets_on(here, seen, choose.randint(1, 20), lambda pid=pid: os.kill(pid, signal.SIGKILL))
        await here.components.kill("ungater")  # waits until it is gone
        found = await snapshot(here.client, {NAMESPACE})
        print(f"{time.monotonic():.1f} s: killed after {seen.count} of its writes; {len(found['pods'])} pods")
        assert violations(found) == []
        here.components.spawn("ungater")
        await submitting
    await here.components.wait_ready("ungater")
    await all_well(here, seen, "k", 2 * KILLS)

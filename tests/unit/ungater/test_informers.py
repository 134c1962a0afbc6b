"""What is taken in at a start: a slice a turn of the loop, and nothing else before it is whole."""

import asyncio
from contextlib import contextmanager

import msgspec
import pytest
from support.owned import KEYS, make_job, make_pod
from support.world import FLAVOR, NODES, World

from clock import SYSTEM
from crds.constants import ADMITTED_QUOTA
from crds.settings import Settings
from kube.objects import key
from kube.parents import JobSet
from kube.resources import JOB_SETS, WORKLOADS
from kube.watch import Changed
from ungater import kinds
from ungater.assembly import assemble
from ungater.cache.cache import SLICE
from ungater.controller import Controller
from ungater.jobs.job import owner_of
from ungater.metrics import ControllerMetrics
from ungater.optional import Discovery, OptionalInformer

MANY = 10 * SLICE
ONE = {"cpu": "1m"}


class Told:
    """In place of a feed: hands on what it is told."""

    def __init__(self):
        self.parts = asyncio.Queue()
        self.clock = SYSTEM

    async def for_ever(self):
        while True:
            yield await self.parts.get()

    def tell_observer(self, *_):
        pass

    def say(self, *pods):
        self.parts.put_nowait(Changed([(key(pod), pod, None) for pod in pods], 0.0))

    def gone(self, *pods):
        self.parts.put_nowait(Changed([(key(pod), None, pod) for pod in pods], 0.0))


@contextmanager
def running(call):
    task = asyncio.create_task(call)
    try:
        yield task
    finally:
        task.cancel()


def on_node(name, node, version="1"):
    pod = make_pod(name, node=node, gated=False, spec={"containers": [{"name": "c", "resources": {"requests": ONE}}]})
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, resource_version=version))


@pytest.fixture
def controller():
    """One whose informers have listed nodes and many pods."""
    made = Controller(
        assemble(Settings(), None, ControllerMetrics(), None, SYSTEM, restart=print), None, ControllerMetrics(), SYSTEM
    )
    informers = made.parts.informers
    informers.of(kinds.NODES)._store.update({key(node): node for node in NODES})
    informers.of(kinds.FLAVORS)._store.update({key(FLAVOR): FLAVOR})
    pods = [on_node(f"p{number}", NODES[0].metadata.name) for number in range(MANY)]
    informers.of(kinds.PODS)._store.update({key(pod): pod for pod in pods})
    return made


async def test_the_loop_goes_on_between_slices_of_what_a_start_takes_in(controller):
    """Else the lease is not renewed while a large cluster is taken in."""
    turns, wholes = 0, set()

    async def renew():
        nonlocal turns
        while True:
            turns += 1
            wholes.add(controller.parts.cache.live)
            await asyncio.sleep(0)

    with running(renew()):
        await controller.parts.informers.load(controller.parts.cache)
    assert turns >= MANY // SLICE
    assert wholes == {False}
    assert controller.parts.cache.live
    assert len(controller.parts.cache.state.pods) == MANY


def test_a_job_counts_as_its_pods_in_a_slice():
    world = World()
    jobs = [make_job(name, parallelism=SLICE) for name in ("a", "b", "c")]
    for job in jobs:
        world.put("job", job)
        for rank in range(SLICE):
            world.put("pod", make_pod(f"{job.metadata.name}-{rank}", owner=owner_of(job, KEYS)))
    memory = world.make()
    stores = (world.stores[kind].values() for kind in ("node", "flavor", "class", "job", "pod"))
    known = [len(memory.entries) for _ in memory.load(*stores)]
    assert {1, 2, 3} <= {*known}


async def test_what_happens_while_a_start_takes_in_is_told_of_afterwards(controller):
    informers, first, second = controller.parts.informers, *(node.metadata.name for node in NODES[:2])
    told = informers.of(kinds.PODS)._feed = Told()
    last = tuple(informers.of(kinds.PODS).store)[-1]
    with running(informers.of(kinds.PODS).run()):
        loading = asyncio.create_task(informers.load(controller.parts.cache))
        await asyncio.sleep(0)
        told.say(on_node("new", second), on_node("p0", second, "2"))
        told.gone(informers.of(kinds.PODS).store[last])
        while not controller.parts.cache.live:
            assert "ns/new" not in informers.of(kinds.PODS).store
            assert last in informers.of(kinds.PODS).store
            await asyncio.sleep(0)
        await loading
        while last in informers.of(kinds.PODS).store:
            await asyncio.sleep(0)
    pods = controller.parts.cache.state.pods
    assert pods["ns/new"].node == second
    assert pods["ns/p0"].node == second
    assert last not in pods
    assert pods["ns/p1"].node == first


async def test_what_comes_to_be_served_while_a_start_takes_in_is_looked_at_afterwards():
    class Client:
        asked = 0

        async def raw(self, _method, path, **_options):
            self.asked += 1
            if path == "/apis":
                return b'{"groups": [{"versions": [{"groupVersion": "jobset.x-k8s.io/v1alpha2"}]}]}'
            return b'{"resources": [{"name": "jobsets"}]}'

    client = Client()
    informer = OptionalInformer(Discovery(client, SYSTEM), JOB_SETS, JobSet, clock=SYSTEM)
    informer.pause()
    with running(informer.run()):
        while not client.asked:
            await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)
        assert informer.resource is None
        informer.go_on()
        while informer.resource is None:
            await asyncio.sleep(0)


async def test_a_start_that_ends_in_the_middle_leaves_nobody_paused(controller):
    """The lease was lost: the next term has informers of its own, but these are to end as any."""
    informers = controller.parts.informers
    with running(informers.load(controller.parts.cache)) as loading:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
    assert not controller.parts.cache.live
    assert informers.of(kinds.PODS)._going.is_set()


def test_of_all_kinds_that_tenants_write_only_so_much_is_kept():
    """Nodes and such are of no namespace; Workloads are written by Topogate, and those of Kueue by Kueue."""
    informers = assemble(Settings(), None, ControllerMetrics(), None, SYSTEM, restart=print).informers
    whole = {str(one.resource) for one in informers.every if one._feed._kept is None}
    assert whole == {str(WORKLOADS)}
    ours = {one._versions[0].group for one in informers.optional if one._read is None}
    assert ours == {"kueue.x-k8s.io"}
    pods = informers.of(kinds.PODS)._feed._kept
    assert {KEYS.workload, KEYS.queue_name, ADMITTED_QUOTA} <= pods._read
